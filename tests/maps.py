"""Finished maps with a known truth, written as `hyperscene classify` writes them, but without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.service.assessment.finished_map import FinishedMap, open_map
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.metadata import write_json
from tests.scenes import GRID, UTM, write_tif

NAMES = ("water", "reed", "meadow", "forest")
COLORS = ("#1f5fbf", "#7fbf3f", "#bfdf5f", "#1f6f2f")


def write_map(
    folder: Path,
    classes: np.ndarray,
    names: tuple[str, ...] = NAMES,
    crs: CRS | None = UTM,
    transform: Affine | None = GRID,
) -> FinishedMap:
    """A folder with classes.tif and a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tif(folder / "classes.tif", classes.astype(np.uint8), nodata=0, crs=crs, transform=transform)
    with ignore_missing_georeference(), rasterio.open(folder / "classes.tif", "r+") as raster:
        raster.write_colormap(1, {value: (40 * value, 90, 200 - 30 * value, 255) for value in range(1, len(names) + 1)})
    entries = [
        {"value": value, "name": name, "color": color, "pixels": int((classes == value).sum()), "share": 0.0,
         "hectares": None}
        for value, (name, color) in enumerate(zip(names, COLORS, strict=False), start=1)
    ]  # fmt: skip
    scene = {"name": folder.name, "rows": classes.shape[0], "cols": classes.shape[1], "bands": 5}
    write_json(folder / "summary.json", {"scene": scene, "classes": entries, "no_data_pixels": 0, "warnings": []})
    return open_map(folder)


def truth_and_map(
    rows: int = 300, cols: int = 240, wrong: float = 0.15, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """True classes 1..4, the second one rare, and a map in which a share of the pixels is wrong."""
    generator = np.random.default_rng(seed)
    truth = generator.choice(4, (rows, cols), p=[0.4, 0.04, 0.26, 0.3]) + 1
    other = generator.choice(4, (rows, cols), p=[0.5, 0.02, 0.28, 0.2]) + 1
    return truth, np.where(generator.random(truth.shape) < wrong, other, truth)
