"""A scene's georeference as its file has it: kept if it is plausible, otherwise dropped with a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.errors import SceneUnreadable

# No map has larger coordinates: the Earth is 4e7 m around, or 4e10 mm.
LARGEST_COORDINATE = 1e12


@dataclass(frozen=True)
class Georeference:
    """Coordinate reference system, and a transform or ground control points."""

    crs: CRS | None
    transform: Affine  # from (col, row); the identity if there is none
    gcps: tuple[GroundControlPoint, ...]
    warnings: tuple[str, ...]


def read_georeference(name: str, dataset: Any) -> Georeference:
    """The georeference of an open file."""
    transform = dataset.transform
    gcps, gcps_crs = dataset.gcps
    crs = dataset.crs or gcps_crs
    corners = [(col, row) for col in (0, dataset.width) for row in (0, dataset.height)]
    points = [(point.row, point.col, point.x, point.y, point.z or 0.0) for point in gcps]
    with np.errstate(over="ignore", invalid="ignore"):
        reached = [*transform, *np.ravel([transform @ corner for corner in corners]), *np.ravel(points)]
    if not np.isfinite([*transform, *np.ravel(points)]).all():
        raise SceneUnreadable(f"the georeference of {name} contains NaN or infinity: correct it, or remove it")
    if not np.abs(reached).max() <= LARGEST_COORDINATE:
        warning = (
            f"the georeference was ignored, so the map has none: its numbers reach {np.abs(reached).max():.3g}, which "
            "is no position on any map; correct it"
        )
        return Georeference(None, Affine.identity(), (), (warning,))
    return Georeference(crs, transform, tuple(gcps), tuple(georeference_warnings(transform, gcps, crs)))


def georeference_warnings(transform: Affine, gcps: Sequence[GroundControlPoint], crs: CRS | None) -> list[str]:
    """What a scene's georeference lacks."""
    if not gcps and transform == Affine.identity():
        return ["the scene has no georeference, so its map has none"]
    return [] if crs is not None else ["the scene has no coordinate reference system; its transform is kept"]
