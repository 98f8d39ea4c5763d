"""Labels drawn as polygons: GeoPackage, GeoJSON or Shapefile, brought to the scene's grid."""

from __future__ import annotations

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

from service.errors import LabelsUnusable

# rasterio lets GDAL's own errors through where a coordinate cannot be transformed.
TRANSFORM_ERRORS = (RasterioError, CPLE_BaseError)
POLYGON_TYPES = (3, 6)  # GEOS's numbers of polygon and multipolygon


def rasterise_polygons(
    path: Path, class_field: str | None, shape: tuple[int, int], crs: CRS | None, transform: Affine | None
) -> tuple[NDArray[np.uint16], dict[int, str]]:
    """Labels on the scene's grid, and the names behind their values where the field holds names and not numbers.

    A pixel belongs to the polygon that holds its centre.
    """
    import shapely

    if transform is None or crs is None:
        raise LabelsUnusable(
            f"the scene has no coordinate system, so {path.name} cannot be laid over it: give labels as a raster on "
            "the scene's grid"
        )
    meta, geometries, attributes = _read(path, class_field)
    if meta["crs"] is None:
        raise LabelsUnusable(f"{path.name} names no coordinate system: add one (a .prj beside a Shapefile)")
    shapes = shapely.from_wkb(geometries)
    if not np.isin(shapely.get_type_id(shapes[shapes != None]), POLYGON_TYPES).all():  # noqa: E711 - an array's test
        raise LabelsUnusable(f"{path.name} holds geometries that are no polygons: keep only polygons")
    try:
        moved = _reproject(shapes, CRS.from_user_input(meta["crs"]), crs)
    except TRANSFORM_ERRORS as error:
        raise LabelsUnusable(
            f"the coordinates of {path.name} do not fit its coordinate system ({error}): set the right one"
        ) from error
    is_numbered = attributes.dtype.kind in "iu"
    names = [str(value).strip() for value in attributes]
    if is_numbered:
        if attributes.min() < 1 or attributes.max() > 65535:
            raise LabelsUnusable(f"{path.name} holds class numbers outside 1 to 65535: number them from 1")
        values = {str(value): int(value) for value in np.unique(attributes)}
    else:
        values = {name: value for value, name in enumerate(sorted(set(names)), start=1)}
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
    return labels, {} if is_numbered else {value: name for name, value in values.items()}


def _read(path: Path, class_field: str | None) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any]]:
    import pyogrio

    if not path.is_file():
        raise LabelsUnusable(f"there is no file {path}: check the path")
    try:
        layers = [str(name) for name, _ in pyogrio.list_layers(path)]
        if len(layers) > 1:
            raise LabelsUnusable(
                f"{path.name} holds several layers, {', '.join(layers)}: save the one with the labels to its own file"
            )
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
    if geometries is None or len(geometries) == 0:
        raise LabelsUnusable(f"{path.name} holds no polygons: draw some")
    column = columns[fields.index(class_field)]
    if any(value is None or value != value or not str(value).strip() for value in column):
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
