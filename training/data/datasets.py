"""Labelled scenes: files, products and cubes, with labels from rasters, arrays, vector files or tables."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points
from scipy import ndimage

from hyperscene.errors import LabelsUnusable, SceneUnusable
from hyperscene.model.spectra import Wavelengths
from hyperscene.service.mapping.band_view import LARGEST_VALUE
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.products.masks import parse_masks
from hyperscene.service.mapping.products.product import ReadOptions
from hyperscene.service.mapping.scenes import DEFAULT_OPTIONS, open_scene, read_cube
from hyperscene.training.data import classes
from hyperscene.training.data.arrays import read_array
from hyperscene.training.data.swath_labels import GroundGrid, ground_grid
from hyperscene.training.data.vector_labels import (
    TABLE_SUFFIX,
    TRANSFORM_ERRORS,
    VECTOR_SUFFIXES,
    Grid,
    draw_labels,
)

ARRAY_SUFFIXES = (".mat", ".npy")
ANY_CRS = CRS.from_epsg(3857)  # source and target where coordinates are compared without reprojection
RANGE_PIXELS = 20_000  # sample from which the value range is estimated
# Grids whose corners differ by less are the same grid.
GRID_TOLERANCE_PX = 0.1


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
    ground: GroundGrid | None = None  # of a scene in sensor geometry


@dataclass(frozen=True)
class Labels:
    """Labels on a scene's grid, as their file has them."""

    values: NDArray[np.int64]  # (rows, cols), 0 for none
    in_file: classes.FileLegend
    shapes: NDArray[np.int32] | None = None  # (rows, cols): which shape of a vector file, from 1


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

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pixels and the labels, by which a checkpoint or a split recognises its data."""
        digest = hashlib.sha256(np.ascontiguousarray(self.cube).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def standardised(self, index: tuple[Any, ...] = ()) -> NDArray[np.float32]:
        """Values with mean 0 and standard deviation 1 in every band, of the whole scene or at (rows, cols)."""
        return (self.cube[index] - self.band_mean) / self.band_std


def load_labelled_scene(files: LabelledFiles) -> LabelledScene:
    """Read a scene and its labels; refuses data that cannot be used for training."""
    options = ReadOptions(parse_masks(files.mask), files.wavelengths, files.variable)
    cube = load_cube(files.scene, options, files.nan_is_nodata)
    labels = load_labels(files.labels, cube, files.class_field, files.label_variable)
    return label_cube(cube, labels, files.classes)


def load_cube(path: Path, options: ReadOptions = DEFAULT_OPTIONS, nan_is_nodata: bool = False) -> Cube:
    """Read a whole scene; NaN that is not declared as no data is refused unless `nan_is_nodata`."""
    scene = open_scene(path, options=options)
    values, valid = read_cube(scene)
    cube = Cube(
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
        ground=ground_grid(scene),
    )
    declared = any(value is not None and np.isnan(value) for value in scene.nodata)
    broken = ~np.isfinite(cube.values).all(axis=-1)
    if broken.any() and not (declared or nan_is_nodata):
        raise SceneUnusable(
            f"{path.name} has NaN or infinite values in {int(broken.sum())} pixels and does not declare them as no "
            "data: add --nan-is-nodata to leave those pixels out, or fix the file"
        )
    if not cube.valid.any():
        raise SceneUnusable(f"{path.name} has no valid pixel: check its no-data value")
    return cube


def load_labels(path: Path, cube: Cube, class_field: str | None, variable: str | None) -> Labels:
    """The labels of a file on the scene's grid."""
    rows, cols, _ = cube.values.shape
    suffix = path.suffix.lower()
    if cube.ground is not None and suffix not in ARRAY_SUFFIXES and _is_on_ground(path, cube.ground):
        return _from_ground(load_labels(path, _ground_cube(cube, cube.ground), class_field, variable), cube)
    if suffix in (*VECTOR_SUFFIXES, TABLE_SUFFIX):
        drawn = draw_labels(path, class_field, Grid((rows, cols), cube.crs, cube.transform))
        in_file = classes.FileLegend(drawn.names, {}, are_names_fixed=bool(drawn.names))
        return Labels(drawn.values.astype(np.int64), in_file, drawn.shapes)
    if suffix in ARRAY_SUFFIXES:
        wanted = "labels (rows x cols)"
        labels = read_array(
            path, variable, "--label-variable", wanted, lambda found: len(found) == 2 and min(found) > 0
        )
        _require_same_size(path, labels.shape, cube)
        return Labels(_whole_numbers(path, labels), classes.FileLegend({}, {}))
    return _read_label_raster(path, cube)


def _is_on_ground(path: Path, ground: GroundGrid) -> bool:
    """Whether labels are shapes, or a raster of the size of a swath's map."""
    if path.suffix.lower() in (*VECTOR_SUFFIXES, TABLE_SUFFIX):
        return True
    grid = open_scene(path)
    return (grid.rows, grid.cols) == ground.pixels.shape and grid.is_georeferenced


def _ground_cube(cube: Cube, ground: GroundGrid) -> Cube:
    """The size and georeference of a swath's map, for its labels."""
    values = np.broadcast_to(np.float32(0), (*ground.pixels.shape, 1))
    return replace(cube, values=values, crs=ground.crs, transform=ground.transform, ground=None)


def _from_ground(labels: Labels, cube: Cube) -> Labels:
    assert cube.ground is not None
    shape = cube.valid.shape
    shapes = None if labels.shapes is None else cube.ground.to_swath(labels.shapes, shape)
    return replace(labels, values=cube.ground.to_swath(labels.values, shape), shapes=shapes)


def _read_label_raster(path: Path, cube: Cube) -> Labels:
    grid = open_scene(path)  # with the same checks as for scenes
    if len(grid.bands) != 1:
        raise LabelsUnusable(f"{path.name} has {len(grid.bands)} bands; labels must be one band of class values")
    _require_same_size(path, (grid.rows, grid.cols), cube)
    _require_same_grid(path, grid.crs, grid.transform, cube)
    with ignore_missing_georeference(), rasterio.open(grid.path, driver=grid.driver) as dataset:
        values, nodata = dataset.read(1), dataset.nodata
        legend = classes.read_file_legend(grid.path, dataset)
    if nodata is not None:
        values = np.where(np.isnan(values) if np.isnan(nodata) else values == nodata, 0, values)
    return Labels(_whole_numbers(path, values), legend)


def _require_same_size(path: Path, found: tuple[int, ...], cube: Cube) -> None:
    rows, cols, _ = cube.values.shape
    if found == (rows, cols):
        return
    hint = "resample the labels to the scene's grid"
    if found == cube.values.shape[1:]:
        hint = "the first axis of the cube seems to be the bands; save it as rows x cols x bands"
    raise LabelsUnusable(f"{path.name} is {found[0]} x {found[1]} and {cube.name} {rows} x {cols} pixels: {hint}")


def _require_same_grid(path: Path, crs: CRS | None, transform: Affine, cube: Cube) -> None:
    """Refuse labels of the same size at other coordinates; a CRS may be written in two ways."""
    if cube.transform is None or Affine.identity() in (transform, cube.transform):
        return  # one of both is not georeferenced
    source, target = (crs, cube.crs) if crs is not None and cube.crs is not None else (ANY_CRS, ANY_CRS)
    rows, cols, _ = cube.values.shape
    corners = [(0, 0), (cols, 0), (0, rows)]
    try:
        points = zip(
            *transform_points(source, target, *zip(*(transform @ c for c in corners), strict=True)), strict=True
        )
        found = np.array([~cube.transform @ point for point in points])
    except TRANSFORM_ERRORS:
        found = np.full((3, 2), np.inf)
    if not (np.abs(found - corners) <= GRID_TOLERANCE_PX).all():
        raise LabelsUnusable(
            f"{path.name} has the scene's size but other coordinates: its corner is {found[0][1]:.1f} rows and "
            f"{found[0][0]:.1f} columns off; resample the labels to the scene's grid"
        )


def _whole_numbers(path: Path, values: NDArray[Any]) -> NDArray[np.int64]:
    values = np.nan_to_num(values) if values.dtype.kind == "f" else values
    whole = values.astype(np.int64)
    if (whole != values).any() or (whole < 0).any() or (whole > 65535).any():
        raise LabelsUnusable(
            f"{path.name} contains values that are not classes: use 0 for no label and 1 to 65535 for classes"
        )
    return whole


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
    known = cube.values[cube.valid]  # (pixels, bands)
    if np.abs(known).max() > LARGEST_VALUE:
        raise SceneUnusable(
            f"{cube.name} has values as large as {np.abs(known).max():.1e}, which no sensor measures: declare them "
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
    )


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
