"""Vector files: shapes and points are read onto a map's grid, and layers are written as GeoPackage or GeoJSON."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.warp import transform as transform_points

from hyperscene.errors import SampleUnusable, write_error
from hyperscene.service.assessment.finished_map import FinishedMap
from hyperscene.service.mapping.gdal import GDAL_ERRORS

LON_LAT = CRS.from_epsg(4326)
DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON"}
TABLE_SUFFIX = ".csv"
# Columns of a table, first those that need no georeference.
COORDINATES = (("row", "col"), ("x", "y"), ("lon", "lat"), ("longitude", "latitude"))


@dataclass(frozen=True)
class Features:
    """Shapes in a map's columns and rows, and the attributes of each."""

    shapes: NDArray[Any]
    attributes: dict[str, NDArray[Any]]  # by field name


def read_shapes(path: Path, finished: FinishedMap) -> Features:
    """All features of a vector file, in columns and rows of the map."""
    import pyogrio
    import shapely

    if not path.is_file():
        raise SampleUnusable(f"there is no file {path}: check the path")
    try:
        meta, _, geometries, columns = pyogrio.raw.read(path)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ValueError) as error:
        raise SampleUnusable(
            f"{path.name} cannot be read ({error}): use GeoPackage, GeoJSON, Shapefile, FlatGeobuf or CSV"
        ) from error
    if geometries is None or len(geometries) == 0:
        raise SampleUnusable(f"{path.name} contains no shapes: draw some")
    attributes = {str(name): column for name, column in zip(meta["fields"], columns, strict=True)}
    shapes = shapely.force_2d(shapely.from_wkb(geometries))
    if (shapely.is_missing(shapes) | shapely.is_empty(shapes)).any():
        raise SampleUnusable(f"a feature of {path.name} has no shape: draw it, or delete it")
    source = None if meta["crs"] is None else CRS.from_user_input(meta["crs"])
    return Features(shapely.transform(shapes, lambda points: _to_grid(path, points, source, finished)), attributes)


def _to_grid(path: Path, points: NDArray[Any], source: CRS | None, finished: FinishedMap) -> NDArray[Any]:
    """Coordinates as columns and rows of the map."""
    if not finished.is_georeferenced or finished.gcps:
        if source is not None:
            raise SampleUnusable(
                f"the map has no grid of coordinates, so {path.name} cannot be placed on it: use a table with the "
                "columns row and col"
            )
        return points  # our own files of such a map hold columns and rows
    xs, ys = points[:, 0], points[:, 1]
    if source is not None and finished.crs is not None and source != finished.crs:
        try:
            xs, ys = (np.array(part) for part in transform_points(source, finished.crs, xs, ys))
        except GDAL_ERRORS as error:
            raise SampleUnusable(
                f"the coordinates of {path.name} do not fit its coordinate system ({error}): set the right one"
            ) from error
    with np.errstate(all="ignore"):
        cols, rows = ~finished.transform @ (xs, ys)
    return np.column_stack([cols, rows])


def read_points(path: Path, finished: FinishedMap) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """The pixels (n, 2) of points in a vector file or a table, and their attributes."""
    import shapely

    if path.suffix.lower() == TABLE_SUFFIX:
        return _read_table(path, finished)
    features = read_shapes(path, finished)
    if not (shapely.get_type_id(features.shapes) == 0).all():
        raise SampleUnusable(f"{path.name} contains shapes other than points: save the points of the sample")
    pixels = np.floor(shapely.get_coordinates(features.shapes))[:, ::-1]
    return _whole(path, pixels), features.attributes


def _whole(path: Path, pixels: NDArray[Any]) -> NDArray[np.int64]:
    if not (np.isfinite(pixels).all() and (np.abs(pixels) < 2**31).all()):
        raise SampleUnusable(f"{path.name} contains a point without a position on the map: correct its coordinates")
    return pixels.astype(np.int64)


def _read_table(path: Path, finished: FinishedMap) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    try:
        lines = [line for line in csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SampleUnusable(f"{path.name} cannot be read as a table ({error}): save it as CSV in UTF-8") from error
    names = [name.strip() for name in lines[0]] if lines else []
    lower = [name.lower() for name in names]
    pair = next((pair for pair in COORDINATES if set(pair) <= set(lower)), None)
    if pair is None:
        wanted = ", or ".join(" and ".join(pair) for pair in COORDINATES)
        raise SampleUnusable(f"{path.name} has the columns {', '.join(names) or 'none'}: name two of them {wanted}")
    if len(lines) < 2:
        raise SampleUnusable(f"{path.name} contains no points: add a line for each")
    try:
        columns = {name: np.array([line[number] for line in lines[1:]], object) for number, name in enumerate(lower)}
        first, second = (np.array([float(text) for text in columns[name]]) for name in pair)
    except (ValueError, IndexError) as error:
        raise SampleUnusable(f"a line of {path.name} lacks a number for {' or '.join(pair)}: correct it") from error
    if pair == ("row", "col"):
        return _whole(path, np.column_stack([first, second])), columns
    source = LON_LAT if pair[0].startswith("lon") else finished.crs
    grid = _to_grid(path, np.column_stack([first, second]), source, finished)
    return _whole(path, np.floor(grid[:, ::-1])), columns


def write_points(
    path: Path, finished: FinishedMap, pixels: NDArray[np.int64], attributes: Mapping[str, Sequence[Any]]
) -> None:
    """Pixel centres as GeoPackage, GeoJSON (in longitude and latitude) or CSV; `row` and `col` come first."""
    import shapely

    fields = {"row": pixels[:, 0], "col": pixels[:, 1]} | {
        name: np.array(values, object) for name, values in attributes.items()
    }
    centers = pixels[:, ::-1] + 0.5
    # The identity for a map without georeference, or with control points: columns and rows.
    xs, ys = finished.transform @ (centers[:, 0], centers[:, 1])
    if path.suffix.lower() == TABLE_SUFFIX:
        _write_table(path, {**fields, "x": xs, "y": ys})
    else:
        write_layer(path, shapely.points(np.column_stack([xs, ys])), fields, finished.grid_crs)


def _write_table(path: Path, fields: Mapping[str, Any]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(fields)
            writer.writerows(zip(*(list(column) for column in fields.values()), strict=True))
    except OSError as error:
        raise write_error(error) from error


def write_layer(path: Path, shapes: NDArray[Any], fields: Mapping[str, Any], crs: CRS | None) -> None:
    """Write features into a new GeoPackage or GeoJSON file."""
    import pyogrio
    import shapely

    driver = DRIVERS.get(path.suffix.lower())
    if driver is None:
        raise SampleUnusable(f"{path.name} has an unknown format: name the file .gpkg, .geojson or .csv")
    if driver == "GeoJSON" and crs is not None:  # RFC 7946
        shapes = shapely.transform(shapes, lambda points: _to_lon_lat(points, crs))
        crs = LON_LAT
    unfinished = path.with_name(f".unfinished-{path.name}")
    kinds = {int(kind) for kind in shapely.get_type_id(shapes)}
    try:
        # pyogrio warns of a missing coordinate system: such a map has none.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            pyogrio.raw.write(
            unfinished, shapely.to_wkb(shapes), [np.asarray(column) for column in fields.values()], list(fields),
            driver=driver, geometry_type=_geometry_type(kinds), crs=None if crs is None else crs.to_wkt(),
            layer=path.stem,
        )  # fmt: skip
        unfinished.replace(path)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, OSError) as error:
        raise write_error(error) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _geometry_type(kinds: set[int]) -> str:
    """The name of the one type that holds all shapes."""
    if kinds <= {0}:
        return "Point"
    return "Polygon" if kinds <= {3} else "MultiPolygon" if kinds <= {3, 6} else "Unknown"


def _to_lon_lat(points: NDArray[Any], crs: CRS) -> NDArray[Any]:
    return np.column_stack(transform_points(crs, LON_LAT, points[:, 0], points[:, 1]))
