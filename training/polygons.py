"""Labels drawn as polygons: GeoPackage, GeoJSON or Shapefile, brought to the scene's grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.features import rasterize
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points

from service.errors import LabelsUnusable


def rasterise_polygons(
    path: Path, class_field: str | None, shape: tuple[int, int], crs: CRS | None, transform: Affine | None
) -> tuple[NDArray[np.uint16], dict[int, str]]:
    """Labels on the scene's grid, and each value's name; a pixel belongs to the polygon that holds its centre."""
    import shapely

    if transform is None or crs is None:
        raise LabelsUnusable(
            f"the scene has no coordinate system, so {path.name} cannot be laid over it: give labels as a raster on "
            "the scene's grid"
        )
    meta, geometries, attributes = _read(path, class_field)
    names = [str(value).strip() for value in attributes]
    if meta["crs"] is None:
        raise LabelsUnusable(f"{path.name} names no coordinate system: add one (a .prj beside a Shapefile)")
    moved = _reproject(shapely.from_wkb(geometries), CRS.from_user_input(meta["crs"]), crs)
    values = {name: value for value, name in enumerate(_in_order(set(names)), start=1)}
    pairs = [
        (shape_, values[name])
        for shape_, name in zip(moved, names, strict=True)
        if shape_ is not None and not shape_.is_empty
    ]
    labels = (
        rasterize(pairs, out_shape=shape, transform=transform, fill=0, dtype="uint16")
        if pairs
        else np.zeros(shape, np.uint16)
    )
    if not labels.any():
        raise LabelsUnusable(
            f"no polygon of {path.name} covers a pixel of the scene: check that both show the same place"
        )
    for name, value in values.items():
        if not (labels == value).any():
            raise LabelsUnusable(
                f"class {name!r} of {path.name} covers no pixel centre of the scene: draw it larger, or take it out"
            )
    return labels, {value: name for name, value in values.items()}


def _read(path: Path, class_field: str | None) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any]]:
    import pyogrio

    if not path.is_file():
        raise LabelsUnusable(f"there is no file {path}: check the path")
    try:
        meta, _, geometries, columns = pyogrio.raw.read(path)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise LabelsUnusable(
            f"{path.name} cannot be read as polygons ({error}): send GeoPackage, GeoJSON or Shapefile"
        ) from error
    fields = [str(field) for field in meta["fields"]]
    if class_field is None or class_field not in fields:
        asked = (
            "--class-field must name the field with the classes"
            if class_field is None
            else f"{path.name} has no field {class_field!r}"
        )
        raise LabelsUnusable(f"{asked}; its fields are {', '.join(fields) or 'none'}")
    if len(geometries) == 0:
        raise LabelsUnusable(f"{path.name} holds no polygons: draw some")
    if "Polygon" not in str(meta["geometry_type"]) and meta["geometry_type"] not in (
        None,
        "Unknown",
        "GeometryCollection",
    ):
        raise LabelsUnusable(f"{path.name} holds geometries of type {meta['geometry_type']}; polygons are needed")
    column = columns[fields.index(class_field)]
    if any(value is None or value != value for value in column):
        raise LabelsUnusable(
            f"a polygon of {path.name} has no value in {class_field!r}: fill it in, or delete the polygon"
        )
    return meta, geometries, column


def _reproject(shapes: NDArray[Any], source: CRS, target: CRS) -> NDArray[Any]:
    import shapely

    if source == target:
        return shapes

    def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
        xs, ys = transform_points(source, target, points[:, 0], points[:, 1])
        return np.column_stack([xs, ys])

    return shapely.transform(shapely.force_2d(shapes), move)


def _in_order(names: set[str]) -> list[str]:
    """Numbers by size, names by the alphabet."""
    return sorted(
        names, key=lambda name: (0, float(name), name) if name.replace(".", "", 1).isdigit() else (1, 0.0, name)
    )
