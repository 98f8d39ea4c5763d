"""Footprints: a scene's outline as GeoJSON, also across the date line and around a pole."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from rasterio.transform import from_gcps

from hyperscene.service.mapping.grids import bounds_of, can_be_inverted, outline, poles_inside, span_a_plane
from hyperscene.service.mapping.scenes import Scene

SIDE_POINTS = 21
DIGITS = 7  # a centimetre
MAX_LONGITUDE = 540.0  # longitudes may be one turn off and cross the next date line; more is invalid

Ring = list[tuple[float, float]]  # longitude, latitude; the last is the first


def find_footprint(scene: Scene) -> tuple[dict[str, Any], list[float]] | None:
    """A scene's geometry and box (west, south, east, north), by RFC 7946; None without a position on Earth."""
    if scene.crs is None or not scene.is_georeferenced or (scene.gcps and not span_a_plane(scene.gcps)):
        return None
    transform = from_gcps(list(scene.gcps)) if scene.gcps else scene.transform
    if not can_be_inverted(transform):
        return None
    found = outline(scene.rows, scene.cols, scene.crs, transform, SIDE_POINTS)
    if found is None or abs(found[0]).max() > MAX_LONGITUDE:
        return None
    poles = poles_inside(scene.rows, scene.cols, scene.crs, transform)
    west, south, east, north = bounds_of(*found, poles)
    lon, lat = found[0] - 360 * math.floor((found[0].min() + 180) / 360), found[1].clip(-90, 90)
    ring = [(float(x), float(y)) for x, y in zip(lon, lat, strict=True)]
    if poles:
        ring = _round_pole(ring, poles)
    parts = [_rounded(part) for part in _cut(ring)]
    geometry: dict[str, Any] = {"type": "MultiPolygon", "coordinates": [[part] for part in parts]}
    if len(parts) == 1:
        geometry = {"type": "Polygon", "coordinates": parts}
    box = [west, max(south, -90.0), east - 360 if east > 180 else east, min(north, 90.0)]
    return geometry, [round(number, DIGITS) for number in box]


def _round_pole(ring: Ring, poles: list[float]) -> Ring:
    """An outline around a pole, closed along the pole; from pole to pole if both are inside."""
    (first, _), (last, _) = ring[0], ring[-1]
    if len(poles) == 2 or abs(last - first) < 180:
        south, north = (-90.0, 90.0) if len(poles) == 2 else sorted((poles[0], min((lat for _, lat in ring), key=abs)))
        return [(-180.0, south), (180.0, south), (180.0, north), (-180.0, north), (-180.0, south)]
    return [*ring, (last, poles[0]), (first, poles[0]), ring[0]]


def _cut(ring: Ring) -> list[Ring]:
    """The parts on both sides of the date line, each between -180 and 180 degrees."""
    parts = [ring]
    if max(lon for lon, _ in ring) > 180:
        east = [(lon - 360, lat) for lon, lat in _clipped(ring, -1)]
        parts = [_clipped(ring, 1), east]
    return [part for part in parts if len(set(part)) >= 3]


def _clipped(ring: Ring, side: int) -> Ring:
    """The part of a ring west (1) or east (-1) of 180 degrees."""
    kept: Ring = []
    for (x0, y0), (x1, y1) in pairwise(ring):
        is_in, goes_in = side * (180 - x0) >= 0, side * (180 - x1) >= 0
        if is_in:
            kept.append((x0, y0))
        if is_in != goes_in:
            kept.append((180.0, y0 + (y1 - y0) * (180 - x0) / (x1 - x0)))
    return [*kept, kept[0]] if kept else []


def _rounded(ring: Ring) -> list[list[float]]:
    """A ring in counterclockwise order, as GeoJSON wants it, without points that rounding made equal."""
    area = sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring))
    points = [[round(lon, DIGITS), round(lat, DIGITS)] for lon, lat in (ring if area > 0 else reversed(ring))]
    kept = [point for point, before in zip(points[1:], points, strict=False) if point != before]
    return [points[0], *kept] if len(kept) >= 3 else points
