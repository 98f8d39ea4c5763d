"""Labels as polygons, lines or points in a vector file, or as a table of coordinates, on the scene's grid."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.features import rasterize
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points

from hyperscene.errors import LabelsUnusable

VECTOR_SUFFIXES = (".gpkg", ".geojson", ".json", ".shp", ".fgb")
TABLE_SUFFIX = ".csv"
# rasterio passes on GDAL's errors where a coordinate cannot be transformed.
TRANSFORM_ERRORS = (RasterioError, CPLE_BaseError)
# GEOS type ids
POINTS, LINES, POLYGONS = (0, 4), (1, 2, 5), (3, 6)
WGS84 = CRS.from_epsg(4326)
BLOCK_PX = 1024  # shapes are drawn in blocks of so many rows and columns, so that memory does not grow with the scene
# Names of columns with coordinates, in lower case; rows and columns count from 0.
COORDINATE_COLUMNS = (("lon", "lat"), ("longitude", "latitude"), ("x", "y"), ("easting", "northing"), ("col", "row"))


@dataclass(frozen=True)
class Grid:
    """Size and georeference of the scene that labels belong to."""

    shape: tuple[int, int]
    crs: CRS | None
    transform: Affine | None


@dataclass(frozen=True)
class DrawnLabels:
    """Labelled pixels of the scene's grid."""

    places: NDArray[np.int64]  # (n, 2): row, col
    values: NDArray[np.uint16]  # (n)
    shapes: NDArray[np.int32]  # (n): which shape of the file, from 1
    names: dict[int, str]  # by value, if the field holds names rather than numbers


@dataclass(frozen=True)
class _Features:
    """What a file contains."""

    crs: CRS | None  # None: pixel coordinates
    shapes: NDArray[Any]  # shapely geometries; None for a feature without
    attributes: NDArray[Any]


def draw_labels(path: Path, class_field: str | None, grid: Grid) -> DrawnLabels:
    """Draw a vector file or a table on the scene's grid.

    A polygon covers the pixels whose centre it contains, a line those that it crosses, a point the one it lies in.
    """
    features = _read_table(path, class_field, grid) if _is_table(path) else _read_vectors(path, class_field)
    shapes, transform = _to_scene(path, features, grid)
    is_numbered = features.attributes.dtype.kind in "iu"
    of_name = _numbered_classes(path, features.attributes) if is_numbered else _named_classes(features.attributes)
    classes = np.array([of_name[str(attribute).strip()] for attribute in features.attributes], np.uint16)
    places, numbers = [np.empty((0, 2), np.int64)], [np.empty(0, np.int32)]
    for corner, chosen in _blocks(shapes, grid.shape, transform).items():
        drawn = _draw_shapes(path, shapes[chosen], classes[chosen], corner, grid.shape, transform)
        inside = np.argwhere(drawn)
        places.append(inside + corner)
        numbers.append(chosen[drawn[tuple(inside.T)] - 1].astype(np.int32))
    found, of_shape = np.concatenate(places), np.concatenate(numbers)
    values = classes[of_shape]
    _require_every_class(path, values, of_name)
    names = {} if is_numbered else {value: name for name, value in of_name.items()}
    return DrawnLabels(found, values, of_shape + np.int32(1), names)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == TABLE_SUFFIX


def _to_scene(path: Path, features: _Features, grid: Grid) -> tuple[NDArray[Any], Affine]:
    """Shapes in the scene's coordinates, and the transform to its pixels."""
    if features.crs is None:
        return features.shapes, Affine.identity()
    if grid.transform is None or grid.crs is None:
        raise LabelsUnusable(
            f"the scene has no coordinate system, so {path.name} cannot be placed on it: give the labels as a raster "
            "on the scene's grid, or as a table with the columns row and col"
        )
    try:
        return _reproject(features.shapes, features.crs, grid.crs), grid.transform
    except TRANSFORM_ERRORS as error:
        raise LabelsUnusable(
            f"the coordinates of {path.name} do not fit its coordinate system ({error}): set the right one"
        ) from error


def _numbered_classes(path: Path, attributes: NDArray[Any]) -> dict[str, int]:
    if attributes.min() < 1 or attributes.max() > 65535:
        raise LabelsUnusable(f"{path.name} has class numbers outside 1 to 65535: number the classes from 1")
    return {str(value): int(value) for value in np.unique(attributes)}


def _named_classes(attributes: NDArray[Any]) -> dict[str, int]:
    """Values 1..K for the names, in alphabetical order."""
    names = {str(attribute).strip() for attribute in attributes}
    return {name: value for value, name in enumerate(sorted(names), start=1)}


def _blocks(shapes: NDArray[Any], size: tuple[int, int], transform: Affine) -> dict[tuple[int, int], NDArray[np.int64]]:
    """The blocks of the scene that shapes may touch, by their first row and column, with the numbers of the shapes."""
    import shapely

    x, y = shapely.bounds(shapes)[:, [0, 0, 2, 2]], shapely.bounds(shapes)[:, [1, 3, 1, 3]]  # of four corners
    inverse = ~transform
    found: dict[tuple[int, int], list[int]] = {}
    known = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    cols, rows = inverse.a * x + inverse.b * y + inverse.c, inverse.d * x + inverse.e * y + inverse.f
    for number in np.flatnonzero(known):
        ranges = []
        for values, limit in ((rows[number], size[0]), (cols[number], size[1])):
            low, high = np.clip([values.min() - 1, values.max() + 1], -1, limit)
            ranges.append(range(max(int(low), 0) // BLOCK_PX, max(math.ceil(high), 0) // BLOCK_PX + 1))
        for row in ranges[0]:
            for col in ranges[1]:
                found.setdefault((row * BLOCK_PX, col * BLOCK_PX), []).append(int(number))
    inside = {
        corner: np.array(chosen) for corner, chosen in found.items() if corner[0] < size[0] and corner[1] < size[1]
    }
    return dict(sorted(inside.items()))


def _draw_shapes(
    path: Path,
    shapes: NDArray[Any],
    classes: NDArray[np.uint16],
    corner: tuple[int, int],
    size: tuple[int, int],
    transform: Affine,
) -> NDArray[np.int32]:
    """The number of the shape, from 1, that covers each pixel of a block; refuses pixels with two classes."""
    block = min(BLOCK_PX, size[0] - corner[0]), min(BLOCK_PX, size[1] - corner[1])
    transform = transform * Affine.translation(corner[1], corner[0])
    claims = np.zeros(block, np.int32)  # classes of each pixel
    for value in np.unique(classes):
        claims += _burn(shapes, (classes == value).astype(np.int32), block, transform)
    if (claims > 1).any():
        row, col = np.argwhere(claims > 1)[0] + corner
        raise LabelsUnusable(
            f"{int((claims > 1).sum())} pixels lie in shapes of two classes in {path.name}, the first at row {row}, "
            f"column {col}: correct the shapes so that they do not overlap"
        )
    return _burn(shapes, np.arange(1, len(shapes) + 1, dtype=np.int32), block, transform)


def _burn(
    shapes: NDArray[Any], values: NDArray[np.int32], size: tuple[int, int], transform: Affine
) -> NDArray[np.int32]:
    """Draw each shape with its value; shapes with the value 0 are left out."""
    import shapely

    types = shapely.get_type_id(shapes)  # -1 for none
    is_drawn = (types >= 0) & ~shapely.is_empty(shapes) & (values > 0)
    drawn = np.zeros(size, np.int32)
    for is_polygon in (True, False):
        chosen = np.flatnonzero(is_drawn & (np.isin(types, POLYGONS) == is_polygon))
        pairs = [(shapes[number], int(values[number])) for number in chosen]
        if pairs:
            rasterize(pairs, out=drawn, transform=transform, all_touched=not is_polygon)
    return drawn


def _require_every_class(path: Path, labels: NDArray[np.uint16], values: dict[str, int]) -> None:
    if not len(labels):
        raise LabelsUnusable(f"no shape of {path.name} covers a pixel of the scene: check that both show the same area")
    for name, value in values.items():
        if not (labels == value).any():
            raise LabelsUnusable(
                f"class {name!r} of {path.name} covers no pixel centre of the scene: draw it larger, or remove it"
            )


def _read_vectors(path: Path, class_field: str | None) -> _Features:
    import pyogrio
    import shapely

    if not path.is_file():
        raise LabelsUnusable(f"there is no file {path}: check the path")
    try:
        layers = [str(name) for name, _ in pyogrio.list_layers(path)]
        if len(layers) > 1:
            raise LabelsUnusable(
                f"{path.name} has several layers, {', '.join(layers)}: save the one with the labels as a separate file"
            )
        meta, _, geometries, columns = pyogrio.raw.read(path)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise LabelsUnusable(
            f"{path.name} cannot be read as labels ({error}): use GeoPackage, GeoJSON, FlatGeobuf, Shapefile or CSV"
        ) from error
    fields = [str(field) for field in meta["fields"]]
    column = columns[_class_column(path, class_field, fields)] if fields else np.array([])
    if geometries is None or len(geometries) == 0:
        raise LabelsUnusable(f"{path.name} contains no shapes: draw some")
    _require_classes(path, class_field, column)
    if meta["crs"] is None:
        raise LabelsUnusable(f"{path.name} names no coordinate system: add one (a .prj beside a Shapefile)")
    shapes = shapely.force_2d(shapely.from_wkb(geometries))
    if not np.isin(shapely.get_type_id(shapes), (-1, *POINTS, *LINES, *POLYGONS)).all():
        raise LabelsUnusable(f"{path.name} contains mixed or curved geometries: save points, lines or polygons")
    return _Features(CRS.from_user_input(meta["crs"]), shapes, column)


def _class_column(path: Path, class_field: str | None, fields: Sequence[str]) -> int:
    if class_field is None or class_field not in fields:
        problem = (
            "--class-field must name the field with the classes"
            if class_field is None
            else f"{path.name} has no field {class_field!r}"
        )
        raise LabelsUnusable(f"{problem}; its fields are {', '.join(fields) or 'none'}")
    return fields.index(class_field)


def _require_classes(path: Path, class_field: str | None, column: NDArray[Any]) -> None:
    if any(value is None or value != value or not str(value).strip() for value in column):
        raise LabelsUnusable(f"a shape of {path.name} has no value in {class_field!r}: fill it in, or delete the shape")


def _read_table(path: Path, class_field: str | None, grid: Grid) -> _Features:
    """Points from a CSV file with two columns of coordinates and one with the class."""
    import shapely

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelsUnusable(f"{path.name} cannot be read as a table ({error}): save it as CSV in UTF-8") from error
    fields, records = [name.strip() for name in lines[0]] if lines else [], lines[1:]
    columns = [name.lower() for name in fields]
    pair = next((pair for pair in COORDINATE_COLUMNS if set(pair) <= set(columns)), None)
    if pair is None:
        wanted = ", or ".join(" and ".join(pair) for pair in COORDINATE_COLUMNS)
        raise LabelsUnusable(f"{path.name} has the columns {', '.join(fields) or 'none'}: name two of them {wanted}")
    column = _class_column(path, class_field, fields)
    if not records:
        raise LabelsUnusable(f"{path.name} contains no labels: add a line for each")
    try:
        points = np.array([[float(record[columns.index(name)]) for name in pair] for record in records])
        classes = [record[column].strip() for record in records]
    except (ValueError, IndexError) as error:
        raise LabelsUnusable(f"a line of {path.name} lacks a number for {' or '.join(pair)}: correct it") from error
    if not np.isfinite(points).all():
        raise LabelsUnusable(f"{path.name} contains NaN or infinity as a coordinate: correct it")
    _require_classes(path, class_field, np.array(classes, object))
    is_numbered = all(name.isdecimal() for name in classes)
    attributes = np.array([int(name) for name in classes]) if is_numbered else np.array(classes, object)
    if pair == ("col", "row"):
        return _Features(None, shapely.points(points + 0.5), attributes)  # pixel centres
    return _Features(WGS84 if pair[0].startswith("lon") else grid.crs, shapely.points(points), attributes)


def _reproject(shapes: NDArray[Any], source: CRS, target: CRS) -> NDArray[Any]:
    import shapely

    if source == target:
        return shapes

    def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
        xs, ys = transform_points(source, target, points[:, 0], points[:, 1])
        return np.column_stack([xs, ys])

    return shapely.transform(shapes, move)
