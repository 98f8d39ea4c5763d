"""Labelled scenes: the pixels of a file or product with their labels, and the statistics that a bundle stores."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from scipy import ndimage

from hyperscene.errors import LabelsUnusable, SceneUnusable
from hyperscene.model.spectra import Wavelengths
from hyperscene.service.mapping.band_view import LARGEST_VALUE
from hyperscene.service.mapping.products.masks import parse_masks
from hyperscene.service.mapping.products.product import ReadOptions
from hyperscene.service.mapping.scenes import Scene, open_scene, read_cube
from hyperscene.training.data import classes
from hyperscene.training.data.label_files import ARRAY_SUFFIXES, Labels, SceneGrid, list_labels
from hyperscene.training.data.large_scenes import is_large, read_windows
from hyperscene.training.data.mosaic import Mosaic
from hyperscene.training.data.swath_labels import ground_grid

RANGE_PIXELS = 20_000  # sample from which the value range is estimated


@dataclass(frozen=True)
class LabelledFiles:
    """A scene and its labels on disk, and the options for reading them."""

    scene: Path
    labels: Path
    classes: str | None = None
    class_field: str | None = None
    variable: str | None = None
    label_variable: str | None = None
    wavelengths: Path | None = None
    nan_is_nodata: bool = False
    mask: str | None = None


@dataclass(frozen=True)
class Cube:
    """A scene in memory: values, valid pixels and georeference."""

    name: str
    values: NDArray[np.float32]  # (rows, cols, bands)
    valid: NDArray[np.bool_]  # (rows, cols)
    wavelengths_nm: Wavelengths | None = None
    fwhm_nm: Wavelengths | None = None
    crs: CRS | None = None
    transform: Affine | None = None
    warnings: tuple[str, ...] = ()
    sensor: str | None = None
    acquired: str | None = None
    mosaic: Mosaic | None = None  # where the pixels lie, if they are windows of a large scene


@dataclass(frozen=True)
class LabelledScene:
    """A scene with labels for training; labels are 0 (none) or a class 1..K in the order of `legend`."""

    name: str
    cube: NDArray[np.float32]  # (rows, cols, bands), finite; invalid pixels hold `band_mean`
    valid: NDArray[np.bool_]  # (rows, cols)
    labels: NDArray[np.uint16]  # (rows, cols)
    clusters: NDArray[np.int32]  # (rows, cols): labels that belong together, numbered from 1; 0 where there is no label
    legend: tuple[classes.ClassEntry, ...]
    has_values: bool  # the label file identifies classes by value, not by name
    band_mean: NDArray[np.float32]
    band_std: NDArray[np.float32]
    value_range: tuple[float, float]
    wavelengths_nm: Wavelengths | None
    fwhm_nm: Wavelengths | None
    crs: CRS | None = None
    transform: Affine | None = None
    warnings: tuple[str, ...] = ()
    sensor: str | None = None
    acquired: str | None = None
    mosaic: Mosaic | None = None  # where the pixels lie, if they are windows of a large scene

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the whole scene."""
        return self.valid.shape if self.mosaic is None else (self.mosaic.scene_rows, self.mosaic.scene_cols)

    @property
    def typical(self) -> NDArray[np.bool_]:
        """Valid pixels (rows, cols) that are drawn from the whole scene."""
        return _typical(self.valid, self.mosaic)

    def places(self, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where pixels (n, 2) lie in the whole scene."""
        return pixels if self.mosaic is None else self.mosaic.places(pixels)

    def patch_centers(self, patch_px: int) -> NDArray[np.bool_]:
        """Valid pixels (rows, cols) round which the scene has a patch."""
        if self.mosaic is None:
            return self.valid
        centers = self.valid & self.mosaic.holds_patch(patch_px)
        return centers if centers.any() else self.valid

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pixels and the labels, by which a checkpoint or a split recognises its data."""
        digest = hashlib.sha256(np.ascontiguousarray(self.cube).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def standardised(self, index: tuple[Any, ...] = ()) -> NDArray[np.float32]:
        """Values with mean 0 and standard deviation 1 in every band, of the whole scene or at (rows, cols)."""
        return (self.cube[index] - self.band_mean) / self.band_std


def load_labelled_scene(files: LabelledFiles, *, in_windows: bool = False) -> LabelledScene:
    """Read a scene and its labels; refuses data that cannot be used for training.

    With `in_windows`, a large scene is not read as a whole, but as a mosaic of windows.
    """
    options = ReadOptions(parse_masks(files.mask), files.wavelengths, files.variable)
    scene = open_scene(files.scene, options=options)
    bands = len(scene.bands)
    grid = SceneGrid(scene.name, (scene.rows, scene.cols, bands), scene.crs, scene.transform, ground_grid(scene))
    if in_windows and is_large(scene):
        listed = list_labels(files.labels, grid, files.class_field, files.label_variable)
        read = read_windows(scene, listed)
        cube = _cube(files, scene, read.values, read.valid)
        missing = f"{read.left_out} labels were left out: their places do not fit into memory" * (read.left_out > 0)
        cube = replace(cube, mosaic=read.mosaic, warnings=tuple(filter(None, (*cube.warnings, missing))))
        return label_cube(cube, read.labels, files.classes)
    cube = _cube(files, scene, *read_cube(scene))
    labels = list_labels(files.labels, grid, files.class_field, files.label_variable)
    return label_cube(cube, labels.on_grid(cube.valid.shape), files.classes)


def _cube(files: LabelledFiles, scene: Scene, values: NDArray[np.float32], valid: NDArray[np.bool_]) -> Cube:
    """The pixels that were read; NaN that is not declared as no data is refused unless `nan_is_nodata`."""
    path = files.scene
    declared = any(value is not None and np.isnan(value) for value in scene.nodata)
    broken = ~np.isfinite(values).all(axis=-1)
    if broken.any() and not (declared or files.nan_is_nodata):
        raise SceneUnusable(
            f"{path.name} has NaN or infinite values in {int(broken.sum())} pixels and does not declare them as no "
            "data: add --nan-is-nodata to leave those pixels out, or fix the file"
        )
    if not valid.any():
        raise SceneUnusable(f"{path.name} has no valid pixel: check its no-data value")
    return Cube(
        name=scene.name,
        values=values,
        valid=valid,
        wavelengths_nm=scene.wavelengths_nm,
        fwhm_nm=scene.fwhm_nm,
        crs=scene.crs,
        transform=scene.transform,
        # An array never has a georeference; the warning is for files that could have one.
        warnings=() if path.suffix.lower() in ARRAY_SUFFIXES else scene.warnings,
        sensor=scene.sensor,
        acquired=scene.acquired,
    )


def label_cube(cube: Cube, given: Labels, class_names: str | None = None) -> LabelledScene:
    """Combine a cube and its labels, and compute the statistics that a bundle stores."""
    warnings, labels, in_file = list(cube.warnings), given.values, given.in_file
    lost = (labels > 0) & ~cube.valid
    if lost.any():
        warnings.append(f"{int(lost.sum())} labelled pixels have no data and were left out")
    before = np.unique(labels[labels > 0])
    labels = np.where(cube.valid, labels, 0)
    values = [int(value) for value in np.unique(labels[labels > 0])]
    for value in sorted(set(map(int, before)) - set(values)):
        raise LabelsUnusable(
            f"all pixels of class {value} have no data in the scene: label others, or remove the class"
        )
    if len(values) < 2:
        raise LabelsUnusable(
            f"the labels contain {len(values)} class{'es' * (len(values) != 1)} and at least two are needed: label more"
        )
    legend = classes.make_legend(values, in_file, class_names)
    unused = sorted(set(in_file.names) - set(values)) if class_names is None else []
    warnings += [f"class {in_file.names[value]!r} of the label file has no pixel and was left out" for value in unused]
    known = cube.values[_typical(cube.valid, cube.mosaic)]  # (pixels, bands)
    largest = max(abs(float(known.max())), abs(float(known.min())))
    if largest > LARGEST_VALUE:
        raise SceneUnusable(
            f"{cube.name} has values as large as {largest:.1e}, which no sensor measures: declare them "
            "as the file's no-data value"
        )
    mean = known.mean(axis=0, dtype=np.float64).astype(np.float32)
    std = known.std(axis=0, dtype=np.float64).astype(np.float32)
    low, high = np.percentile(known[:: max(1, len(known) // RANGE_PIXELS)], [0.5, 99.5])
    return LabelledScene(
        name=cube.name,
        cube=np.where(cube.valid[..., None], cube.values, mean),
        valid=cube.valid,
        labels=np.searchsorted([0, *values], labels).astype(np.uint16),
        clusters=label_clusters(labels, given.shapes),
        legend=legend,
        has_values=not in_file.are_names_fixed,
        band_mean=mean,
        band_std=np.where(std > 0, std, 1).astype(np.float32),  # constant bands
        value_range=(float(low), float(high)),
        wavelengths_nm=cube.wavelengths_nm,
        fwhm_nm=cube.fwhm_nm,
        crs=cube.crs,
        transform=cube.transform,
        warnings=tuple(warnings),
        sensor=cube.sensor,
        acquired=cube.acquired,
        mosaic=cube.mosaic,
    )


def _typical(valid: NDArray[np.bool_], mosaic: Mosaic | None) -> NDArray[np.bool_]:
    """Valid pixels that show what is common in a scene: not those that were read for their labels."""
    drawn = valid if mosaic is None else valid & mosaic.is_random()
    return drawn if drawn.any() else valid


def label_clusters(labels: NDArray[np.int64], shapes: NDArray[np.int32] | None) -> NDArray[np.int32]:
    """Labels that belong together: the pixels of a shape, or of an area of one class in a raster."""
    if shapes is not None:
        return np.where(labels > 0, shapes, 0).astype(np.int32)
    clusters, count = np.zeros(labels.shape, np.int32), 0
    for value in np.unique(labels[labels > 0]):
        areas, found = ndimage.label(labels == value, structure=np.ones((3, 3)))
        clusters[areas > 0] = areas[areas > 0] + count
        count += found
    return clusters
