"""Features of a scene for its live map: MNF components on disk, at several resolutions, computed once in a sandbox.

Each level is one file of half-precision numbers (rows, cols, components), NaN without data; a level has half the
resolution of the one before. A window is read by mapping the file into memory.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import SceneUnusable, write_error
from hyperscene.service.jobs.sandbox import SandboxLimits, serve
from hyperscene.service.mapping.band_view import BandViewReader, all_bands_view
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.scenes import open_scene

LIMITS = SandboxLimits(seconds=6 * 3600.0, memory_bytes=6 << 30)
SAMPLE_PIXELS, SAMPLE_STRIPS = 200_000, 16
STRIP_VALUES = 1 << 24  # samples read at once
LARGEST = 3e4  # half precision ends at 65,504
SMALLEST_LEVEL_PX = 128
SHOWN_COMPONENTS = 3  # as red, green and blue
LOW_PERCENT, HIGH_PERCENT = 2, 98
DESCRIPTION, PROGRESS = "features.json", "progress"

Components = NDArray[np.float32]  # (rows, cols, components), NaN without data


@dataclass(frozen=True)
class LiveFeatures:
    """The features of a scene on disk."""

    folder: Path
    rows: int
    cols: int
    components: int
    levels: int
    shown_range: tuple[tuple[float, float], ...]  # of the first components, for pictures

    @classmethod
    def open(cls, folder: Path) -> LiveFeatures:
        """The features in a folder; FileNotFoundError if they were not computed yet."""
        found = json.loads((folder / DESCRIPTION).read_bytes())
        shown = tuple((low, high) for low, high in found.pop("shown_range"))
        return cls(folder=folder, shown_range=shown, **found)

    def level(self, number: int) -> NDArray[np.float16]:
        """All components of a level, mapped into memory."""
        mapped: NDArray[np.float16] = np.load(self.folder / level_name(number), mmap_mode="r")
        return mapped


def level_name(number: int) -> str:
    """The file of a level."""
    return f"level{number}.npy"


def compute_features(path: Path, limits: Limits, version: str, folder: Path) -> None:
    """Compute the features of a scene; memory depends on its width, not on its height."""
    from hyperscene.training.fit.spectral_features import COMPONENTS, noise_adjusted

    scene = open_scene(path, limits, counts_packed=False, version=version)
    step = max(2, STRIP_VALUES // (len(scene.bands) * scene.cols) // 2 * 2)
    with all_bands_view(scene).open() as pixels:
        spectra, noise = _sample(pixels, scene.rows, scene.cols)
        mean, deviation = spectra.mean(axis=0), np.maximum(spectra.std(axis=0), 1e-12)
        projection = noise_adjusted((spectra - mean) / deviation, noise / deviation) / deviation[:, None]
        shown = (spectra - mean) @ projection[:, :SHOWN_COMPONENTS]
        components = min(COMPONENTS, len(scene.bands))
        with (folder / level_name(0)).open("wb") as file:
            _write_header(file, (scene.rows, scene.cols, components))
            for top in range(0, scene.rows, step):
                strip = pixels.read(top, min(top + step, scene.rows))
                flat = (strip.cube.reshape(-1, strip.cube.shape[-1]) - mean) @ projection
                found = np.clip(flat, -LARGEST, LARGEST).reshape(*strip.valid.shape, -1)
                found[~strip.valid] = np.nan
                file.write(np.ascontiguousarray(found, np.float16).data)
                (folder / PROGRESS).write_text(str(round(95 * (top + step) / scene.rows)))
    levels = _write_levels(folder, scene.rows, scene.cols)
    low, high = np.percentile(shown, (LOW_PERCENT, HIGH_PERCENT), axis=0)
    features = LiveFeatures(folder, scene.rows, scene.cols, components, levels, tuple(zip(low, high, strict=True)))
    document = {name: value for name, value in asdict(features).items() if name != "folder"}
    document["shown_range"] = [[float(number) for number in pair] for pair in features.shown_range]
    (folder / DESCRIPTION).write_text(json.dumps(document))


def _sample(pixels: BandViewReader, rows: int, cols: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Valid spectra from strips all over the scene, and the noise: differences of vertical neighbours."""
    height = min(rows, max(2, math.ceil(SAMPLE_PIXELS / SAMPLE_STRIPS / cols)))
    tops = np.unique(np.linspace(0, max(0, rows - height), min(SAMPLE_STRIPS, math.ceil(rows / height))).astype(int))
    spectra, noise = [], []
    for top in tops:
        strip = pixels.read(int(top), int(top) + height)
        spectra.append(strip.cube[strip.valid])
        both = strip.valid[1:] & strip.valid[:-1]
        noise.append((strip.cube[1:][both] - strip.cube[:-1][both]) / np.float32(math.sqrt(2)))
    found = np.concatenate(spectra)
    if len(found) < 2:
        raise SceneUnusable("the scene has hardly any pixel with data, so there is nothing to label: check its no-data")
    return found, np.concatenate(noise)


def _write_header(file: Any, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})


def _write_levels(folder: Path, rows: int, cols: int) -> int:
    """Write levels of half the resolution each until one is small; returns the number of levels."""
    number = 0
    while max(rows, cols) > SMALLEST_LEVEL_PX:
        upper: NDArray[np.float16] = np.load(folder / level_name(number), mmap_mode="r")
        number, rows, cols = number + 1, -(-rows // 2), -(-cols // 2)
        step = max(1, STRIP_VALUES // (8 * upper.shape[1] * upper.shape[2]))
        with (folder / level_name(number)).open("wb") as file:
            _write_header(file, (rows, cols, upper.shape[2]))
            for top in range(0, rows, step):
                file.write(_halved(upper[2 * top : 2 * min(rows, top + step)]).data)
    return number + 1


def _halved(values: NDArray[np.float16]) -> NDArray[np.float16]:
    """Means over 2 x 2 pixels with data."""
    padded = np.pad(
        values.astype(np.float32), ((0, len(values) % 2), (0, values.shape[1] % 2), (0, 0)), constant_values=np.nan
    )
    known = ~np.isnan(padded[..., 0])
    padded[~known] = 0
    total = padded[::2] + padded[1::2]
    count = known[::2].astype(np.float32) + known[1::2]
    total, count = total[:, ::2] + total[:, 1::2], count[:, ::2] + count[:, 1::2]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.ascontiguousarray(total / count[..., None], np.float16)


def _compute(request: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    try:
        compute_features(Path(request["scene"]), limits, request["version"], Path(request["folder"]))
    except OSError as error:
        raise write_error(error) from error
    return {}


if __name__ == "__main__":
    os.nice(5)  # as the workers: the server's responses come first
    serve(_compute)
