"""Labels of a scene in rasters, arrays, vector files or tables: the labelled pixels of its grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points
from rasterio.windows import Window

from hyperscene.errors import LabelsUnusable
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data import classes
from hyperscene.training.data.arrays import read_array
from hyperscene.training.data.swath_labels import GroundGrid
from hyperscene.training.data.vector_labels import (
    TABLE_SUFFIX,
    TRANSFORM_ERRORS,
    VECTOR_SUFFIXES,
    Grid,
    draw_labels,
)

ARRAY_SUFFIXES = (".mat", ".npy")
ANY_CRS = CRS.from_epsg(3857)  # source and target where coordinates are compared without reprojection
LABEL_ROWS = 512  # of a label raster that are read at a time
# Grids whose corners differ by less are the same grid.
GRID_TOLERANCE_PX = 0.1


@dataclass(frozen=True)
class SceneGrid:
    """Name, size and georeference of a scene that labels belong to."""

    name: str
    shape: tuple[int, int, int]  # rows, cols, bands
    crs: CRS | None
    transform: Affine | None
    ground: GroundGrid | None = None  # of a scene in sensor geometry


@dataclass(frozen=True)
class Labels:
    """Labels on a scene's grid, as their file has them."""

    values: NDArray[np.int64]  # (rows, cols), 0 for none
    in_file: classes.FileLegend
    shapes: NDArray[np.int32] | None = None  # (rows, cols): which shape of a vector file, from 1


@dataclass(frozen=True)
class LabelList:
    """The labelled pixels of a scene, as their file has them."""

    places: NDArray[np.int64]  # (n, 2): row, col
    values: NDArray[np.int64]  # (n)
    in_file: classes.FileLegend
    shapes: NDArray[np.int32] | None = None  # (n): which shape of a vector file, from 1

    def on_grid(self, shape: tuple[int, int]) -> Labels:
        """The labels as a raster."""
        values, index = np.zeros(shape, np.int64), tuple(self.places.T)
        values[index] = self.values
        if self.shapes is None:
            return Labels(values, self.in_file)
        shapes = np.zeros(shape, np.int32)
        shapes[index] = self.shapes
        return Labels(values, self.in_file, shapes)


def list_labels(path: Path, scene: SceneGrid, class_field: str | None, variable: str | None) -> LabelList:
    """The labels of a file, on the scene's grid."""
    rows, cols, bands = scene.shape
    suffix = path.suffix.lower()
    if scene.ground is not None and suffix not in ARRAY_SUFFIXES and _is_on_ground(path, scene.ground):
        ground = scene.ground
        on_map = SceneGrid(scene.name, (*ground.pixels.shape, bands), ground.crs, ground.transform)
        return _from_ground(list_labels(path, on_map, class_field, variable), ground, cols)
    if suffix in (*VECTOR_SUFFIXES, TABLE_SUFFIX):
        drawn = draw_labels(path, class_field, Grid((rows, cols), scene.crs, scene.transform))
        in_file = classes.FileLegend(drawn.names, {}, are_names_fixed=bool(drawn.names))
        return LabelList(drawn.places, drawn.values.astype(np.int64), in_file, drawn.shapes)
    if suffix in ARRAY_SUFFIXES:
        wanted = "labels (rows x cols)"
        labels = read_array(
            path, variable, "--label-variable", wanted, lambda found: len(found) == 2 and min(found) > 0
        )
        _require_same_size(path, labels.shape, scene)
        return _listed(path, [labels], classes.FileLegend({}, {}))
    return _read_label_raster(path, scene)


def _is_on_ground(path: Path, ground: GroundGrid) -> bool:
    """Whether labels are shapes, or a raster of the size of a swath's map."""
    if path.suffix.lower() in (*VECTOR_SUFFIXES, TABLE_SUFFIX):
        return True
    grid = open_scene(path)
    return (grid.rows, grid.cols) == ground.pixels.shape and grid.is_georeferenced


def _from_ground(listed: LabelList, ground: GroundGrid, cols: int) -> LabelList:
    """Labels of the sensor's pixels, of which a cell of the map shows each; of several cells the last."""
    pixels = ground.pixels[tuple(listed.places.T)]
    shown, last = np.unique(pixels[::-1], return_index=True)
    chosen = (len(pixels) - 1 - last)[shown >= 0]
    places = np.stack(np.divmod(pixels[chosen], cols), axis=1)
    shapes = None if listed.shapes is None else listed.shapes[chosen]
    return LabelList(places, listed.values[chosen], listed.in_file, shapes)


def _read_label_raster(path: Path, scene: SceneGrid) -> LabelList:
    grid = open_scene(path)  # with the same checks as for scenes
    if len(grid.bands) != 1:
        raise LabelsUnusable(f"{path.name} has {len(grid.bands)} bands; labels must be one band of class values")
    _require_same_size(path, (grid.rows, grid.cols), scene)
    _require_same_grid(path, grid.crs, grid.transform, scene)
    with ignore_missing_georeference(), rasterio.open(grid.path, driver=grid.driver) as dataset:
        legend = classes.read_file_legend(grid.path, dataset)
        return _listed(path, _label_rows(dataset), legend)


def _label_rows(dataset: Any) -> Iterator[NDArray[Any]]:
    """The rows of a label raster, some at a time, with 0 where it has no data."""
    nodata = dataset.nodata
    for top in range(0, dataset.height, LABEL_ROWS):
        values = dataset.read(1, window=Window(0, top, dataset.width, min(LABEL_ROWS, dataset.height - top)))
        if nodata is not None:
            values = np.where(np.isnan(values) if np.isnan(nodata) else values == nodata, 0, values)
        yield values


def _listed(path: Path, rows: Iterable[NDArray[Any]], legend: classes.FileLegend) -> LabelList:
    """The labels of a raster whose rows come in parts."""
    places, values, top = [], [], 0
    for part in rows:
        whole = _whole_numbers(path, part)
        inside = np.argwhere(whole)
        places.append(inside + np.array([top, 0]))
        values.append(whole[tuple(inside.T)])
        top += len(part)
    return LabelList(np.concatenate(places), np.concatenate(values), legend)


def _require_same_size(path: Path, found: tuple[int, ...], scene: SceneGrid) -> None:
    rows, cols, _ = scene.shape
    if found == (rows, cols):
        return
    hint = "resample the labels to the scene's grid"
    if found == scene.shape[1:]:
        hint = "the first axis of the cube seems to be the bands; save it as rows x cols x bands"
    raise LabelsUnusable(f"{path.name} is {found[0]} x {found[1]} and {scene.name} {rows} x {cols} pixels: {hint}")


def _require_same_grid(path: Path, crs: CRS | None, transform: Affine, scene: SceneGrid) -> None:
    """Refuse labels of the same size at other coordinates; a CRS may be written in two ways."""
    if scene.transform is None or Affine.identity() in (transform, scene.transform):
        return  # one of both is not georeferenced
    source, target = (crs, scene.crs) if crs is not None and scene.crs is not None else (ANY_CRS, ANY_CRS)
    rows, cols, _ = scene.shape
    corners = [(0, 0), (cols, 0), (0, rows)]
    try:
        points = zip(
            *transform_points(source, target, *zip(*(transform @ c for c in corners), strict=True)), strict=True
        )
        found = np.array([~scene.transform @ point for point in points])
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
