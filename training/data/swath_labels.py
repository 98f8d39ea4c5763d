"""Labels given on the ground for a scene in sensor geometry, brought to the pixels of the sensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.windows import Window

from hyperscene.service.mapping.scenes import Scene
from hyperscene.service.mapping.swaths import open_ground


@dataclass(frozen=True)
class GroundGrid:
    """The grid of a swath's map, and for each of its cells the pixel of the sensor."""

    crs: CRS | None
    transform: Affine
    pixels: NDArray[np.int64]  # (rows, cols): row * cols + col of the scene; below 0 there is none


def ground_grid(scene: Scene) -> GroundGrid | None:
    """The grid of the map of a scene in sensor geometry; None for other scenes."""
    if scene.ground is None:
        return None
    with open_ground(scene) as (placed, lookup):
        pixels = lookup.find(Window(0, 0, placed.cols, placed.rows))
        return GroundGrid(placed.crs, placed.transform, pixels)
