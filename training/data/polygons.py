"""Labels as polygons in GeoPackage, GeoJSON or Shapefile, rasterised on the scene's grid."""

from __future__ import annotations

from collections.abc import Sequence
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

# rasterio passes on GDAL's errors where a coordinate cannot be transformed.
TRANSFORM_ERRORS = (RasterioError, CPLE_BaseError)
POLYGON_TYPES = (3, 6)  # GEOS type ids of polygon and multipolygon


def rasterise_polygons(
    path: Path, class_field: str | None, shape: tuple[int, int], crs: CRS | None, transform: Affine | None
) -> tuple[NDArray[np.uint16], dict[int, str]]:
    """Labels on the scene's grid, and the class names by value if the field holds names rather than numbers.

    A pixel belongs to the polygon that contains its centre.
    """
    if transform is None or crs is None:
        raise LabelsUnusable(
            f"the scene has no coordinate system, so {path.name} cannot be placed on it: give the labels as a raster "
            "on the scene's grid"
        )
    polygons_crs, geometries, attributes = _read(path, class_field)
    shapes = _to_scene(path, geometries, polygons_crs, crs)
    is_numbered = attributes.dtype.kind in "iu"
    values = _numbered_classes(path, attributes) if is_numbered else _named_classes(attributes)
    classes = [values[str(attribute).strip()] for attribute in attributes]
    labels = _burn(shapes, classes, shape, transform)
    _require_every_class(path, labels, values)
    return labels, {} if is_numbered else {value: name for name, value in values.items()}


def _to_scene(path: Path, geometries: NDArray[Any], polygons_crs: str | None, crs: CRS) -> NDArray[Any]:
    """Polygons in the scene's coordinates."""
    import shapely

    if polygons_crs is None:
        raise LabelsUnusable(f"{path.name} names no coordinate system: add one (a .prj beside a Shapefile)")
    shapes = shapely.from_wkb(geometries)
    if not np.isin(shapely.get_type_id(shapes[shapes != None]), POLYGON_TYPES).all():  # noqa: E711 - element-wise
        raise LabelsUnusable(f"{path.name} contains geometries other than polygons: keep only polygons")
    try:
        return _reproject(shapes, CRS.from_user_input(polygons_crs), crs)
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


def _burn(
    shapes: NDArray[Any], classes: Sequence[int], shape: tuple[int, int], transform: Affine
) -> NDArray[np.uint16]:
    pairs = [
        (polygon, value)
        for polygon, value in zip(shapes, classes, strict=True)
        if polygon is not None and not polygon.is_empty
    ]
    if not pairs:
        return np.zeros(shape, np.uint16)
    labels: NDArray[np.uint16] = rasterize(pairs, out_shape=shape, transform=transform, fill=0, dtype="uint16")
    return labels


def _require_every_class(path: Path, labels: NDArray[np.uint16], values: dict[str, int]) -> None:
    if not labels.any():
        raise LabelsUnusable(
            f"no polygon of {path.name} covers a pixel of the scene: check that both show the same area"
        )
    for name, value in values.items():
        if not (labels == value).any():
            raise LabelsUnusable(
                f"class {name!r} of {path.name} covers no pixel centre of the scene: draw it larger, or remove it"
            )


def _read(path: Path, class_field: str | None) -> tuple[str | None, NDArray[Any], NDArray[Any]]:
    """The coordinate system, the geometries as WKB, and the values of the class field."""
    import pyogrio

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
            f"{path.name} cannot be read as polygons ({error}): use GeoPackage, GeoJSON or Shapefile"
        ) from error
    column = columns[_field_index(path, [str(field) for field in meta["fields"]], class_field)]
    if geometries is None or len(geometries) == 0:
        raise LabelsUnusable(f"{path.name} contains no polygons: draw some")
    if any(value is None or value != value or not str(value).strip() for value in column):
        raise LabelsUnusable(
            f"a polygon of {path.name} has no value in {class_field!r}: fill it in, or delete the polygon"
        )
    return meta["crs"], geometries, column


def _field_index(path: Path, fields: list[str], class_field: str | None) -> int:
    if class_field in fields:
        return fields.index(class_field)
    problem = "--class-field must name the field with the classes"
    if class_field is not None:
        problem = f"{path.name} has no field {class_field!r}"
    raise LabelsUnusable(f"{problem}; its fields are {', '.join(fields) or 'none'}")


def _reproject(shapes: NDArray[Any], source: CRS, target: CRS) -> NDArray[Any]:
    import shapely

    if source == target:
        return shapes

    def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
        xs, ys = transform_points(source, target, points[:, 0], points[:, 1])
        return np.column_stack([xs, ys])

    return shapely.transform(shapely.force_2d(shapes), move)
