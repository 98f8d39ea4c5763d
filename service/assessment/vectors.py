"""The class map as polygons: small areas merged, edges simplified once, so that neighbours share them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.features import shapes, sieve

from hyperscene.errors import MapUnusable, OptionsUnusable
from hyperscene.service.assessment.finished_map import FinishedMap
from hyperscene.service.assessment.vector_files import write_layer
from hyperscene.service.mapping.metadata import pixel_hectares

# The sieve and the polygons hold the map in memory, with 10 bytes per pixel and about 1 kB per polygon.
MAX_PIXELS = 100_000_000
MAX_SHAPES = 2_000_000
MAX_SIEVES = 20


@dataclass(frozen=True)
class VectorOptions:
    """The smallest area, and how far an edge may move."""

    min_pixels: int = 4
    simplify_px: float = 1.0

    def check(self) -> None:
        """Raise OptionsUnusable for values without a meaning."""
        if self.min_pixels < 1:
            raise OptionsUnusable(f"the smallest area is 1 pixel or more, not {self.min_pixels}")
        if not 0 <= self.simplify_px <= 100:
            raise OptionsUnusable(f"edges may move by 0 to 100 pixels, not {self.simplify_px}")


def write_vectors(finished: FinishedMap, path: Path, options: VectorOptions) -> int:
    """Write the polygons of all classes into a GeoPackage or GeoJSON file; returns their number."""
    options.check()
    if finished.rows * finished.cols > MAX_PIXELS:
        raise MapUnusable(
            f"the map has {finished.rows} x {finished.cols} pixels and polygons are made of {MAX_PIXELS} at most: "
            "crop the map"
        )
    with finished.open() as raster:
        classes = raster.read(1)
    polygons, values = outlines(merge_small(classes, options.min_pixels))
    if options.simplify_px:
        polygons = simplify(polygons, options.simplify_px)
    import shapely

    kept = ~shapely.is_empty(polygons)
    polygons, values = polygons[kept], values[kept]
    if not len(polygons):
        raise MapUnusable("the map has no classes: every pixel is missing data")
    fields: dict[str, Any] = {
        "class": values,
        "name": np.array([finished.class_names[value - 1] for value in values], object),
        "color": np.array([finished.class_colors[value - 1] for value in values], object),
    }
    hectares = pixel_hectares(finished, 0, finished.rows)
    if hectares is not None:
        rows = shapely.get_y(shapely.centroid(polygons)).astype(int).clip(0, finished.rows - 1)
        fields["hectares"] = shapely.area(polygons) * hectares[rows]
    write_layer(path, _placed(polygons, finished), fields, finished.grid_crs)
    return len(polygons)


def merge_small(classes: NDArray[Any], min_pixels: int) -> NDArray[Any]:
    """Areas of fewer pixels join their largest neighbour; missing data stays as it is."""
    if min_pixels <= 1:
        return classes
    known = classes > 0
    merged = classes
    for _ in range(MAX_SIEVES):  # one pass leaves areas whose largest neighbour was small itself
        before = merged
        merged = np.where(known, sieve(before, min_pixels, mask=known.astype(np.uint8), connectivity=4), 0)
        merged = merged.astype(classes.dtype)
        if np.array_equal(merged, before):
            break
    return merged


def outlines(classes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Polygons along the pixel edges, in columns and rows, and their classes."""
    import shapely

    polygons, values = [], []
    for outline, value in shapes(classes, mask=classes > 0, connectivity=4):
        rings = outline["coordinates"]
        polygons.append(shapely.Polygon(rings[0], rings[1:]))
        values.append(int(value))
        if len(polygons) > MAX_SHAPES:
            raise MapUnusable(f"the map has more than {MAX_SHAPES} areas: give a larger smallest area, or crop the map")
    return np.array(polygons, object), np.array(values, np.int64)


def simplify(polygons: NDArray[Any], tolerance_px: float) -> NDArray[Any]:
    """Fewer points by Visvalingam-Whyatt; an edge between two polygons stays one edge (GEOS's coverage simplifier)."""
    import shapely

    # A corner of two polygons on the straight edge of a third one has to be a point of that edge as well.
    return np.asarray(shapely.coverage_simplify(shapely.segmentize(polygons, 1.0), tolerance_px))


def _placed(polygons: NDArray[Any], finished: FinishedMap) -> NDArray[Any]:
    """From columns and rows into the map's coordinates."""
    import shapely

    if not finished.is_georeferenced:
        return polygons

    def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
        xs, ys = finished.transform @ (points[:, 0], points[:, 1])
        return np.column_stack([xs, ys])

    return np.asarray(shapely.transform(polygons, move))
