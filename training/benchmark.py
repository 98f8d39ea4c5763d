"""Training speed of this machine: the whole command on scenes of several sizes, each in a process of its own.

`python -m hyperscene.training.benchmark OPTIONS` is one such process: it trains with options in JSON and prints what it
measured.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.child_process import module_command
from hyperscene.errors import OutputUnwritable, TrainingFailed
from hyperscene.training.data.synthetic import NODATA, REFLECTANCE_FACTOR, SyntheticScene, make_scene

BASE_PX = 320  # larger scenes repeat a synthetic one of this side
TILE_PX = 64
POLYGON_PX = 3
COMMAND = module_command("hyperscene.training.benchmark")


@dataclass(frozen=True)
class Work:
    """A training to measure: a scene with square polygons as labels, or files of the user."""

    name: str
    rows: int
    bands: int
    polygons: int
    is_sparse: bool = False  # only the tiles that training may read are written


WORKS = (
    Work("small", 96, 64, 18),
    Work("medium", 600, 100, 22),
    Work("large", 1_000, 224, 33),
    Work("huge", 10_000, 224, 111, is_sparse=True),
)


@dataclass(frozen=True)
class Files:
    """A work's scene and labels, and further options of `hyperscene train`."""

    name: str
    scene: Path
    labels: Path
    options: dict[str, Any]


def measure(
    files: Sequence[Files], seeds: Sequence[int], folder: Path, done: Callable[[int, int], None]
) -> dict[str, Any]:
    """Train on each scene with each seed, one after the other; seeds are interleaved."""
    runs: dict[str, list[dict[str, Any]]] = {each.name: [] for each in files}
    for round_number, seed in enumerate(seeds):
        for number, each in enumerate(files):
            runs[each.name].append(_run(each, seed, folder))
            done(round_number * len(files) + number + 1, len(files) * len(seeds))
    works = {name: _summary(found) for name, found in runs.items()}
    return {"cores": len(os.sched_getaffinity(0)), "seeds": list(seeds), "works": works}


def _run(files: Files, seed: int, folder: Path) -> dict[str, Any]:
    given = {"scene": str(files.scene), "labels": str(files.labels), "seed": seed, **files.options}
    given["output"] = str(folder / f"{files.name}-{seed}.onnx")
    began = time.perf_counter()
    ended = subprocess.run([*COMMAND, json.dumps(given)], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise TrainingFailed(f"training on {files.name} failed: {ended.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {"seconds": round(seconds, 1), **found}


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the runs, and the mean accuracy."""
    known = [run["oa"] for run in runs if run["oa"] is not None]
    peaks = [run["peak_memory_mb"] for run in runs if run["peak_memory_mb"] is not None]
    stages = {name: statistics.median(run["stages"].get(name, 0.0) for run in runs) for name in runs[0]["stages"]}
    return {
        "seconds": statistics.median(run["seconds"] for run in runs),
        "processor_s": statistics.median(run["processor_s"] for run in runs),
        "stages": {name: round(seconds, 1) for name, seconds in stages.items()},
        "oa": round(statistics.mean(known), 4) if known else None,
        "scored_by": runs[0]["scored_by"],
        "peak_memory_mb": max(peaks) if peaks else None,
        "labels": runs[0]["labels"],
        "runs": runs,
    }


def main() -> None:
    """Train as the options say, and print seconds by stage, peak memory and accuracy as JSON."""
    from hyperscene.training.data.datasets import LabelledFiles
    from hyperscene.training.train import TrainOptions, train

    given = json.loads(sys.argv[1])
    paths = {name: Path(given.pop(name)) for name in ("scene", "labels", "output")}
    field = given.pop("class_field", None)
    files = LabelledFiles(paths["scene"], paths["labels"], class_field=field)
    trained = train(TrainOptions(files, paths["output"], **given))
    scores, validation = trained.scores, trained.validation
    estimate = None if validation is None else validation.far or validation.near
    oa = scores.overall_accuracy if scores else (estimate.overall.value if estimate else None)
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    used = os.times()
    found = {
        "processor_s": round(used.user + used.system, 1),
        "stages": {name: round(seconds, 2) for name, seconds in trained.seconds.items()},
        "peak_memory_mb": round(int(peak[1]) / 1024) if peak else None,
        "oa": oa,
        "scored_by": "test pixels" if scores else "cross-validation",
        "labels": trained.bundle.manifest.training["split"]["train"],
    }
    print(json.dumps(found))


def make_files(work: Work, folder: Path) -> Files:
    """Write a work's synthetic scene, 30 m a pixel in UTM, and its polygons."""
    repeated = min(work.rows, BASE_PX)
    kind = SyntheticScene(repeated, repeated, work.bands, seed=0)
    reflectance, truth = make_scene(kind)
    places, classes = _places(truth, work)
    scene, labels = folder / f"{work.name}.tif", folder / f"{work.name}.geojson"
    _write_labels(labels, places, classes, kind)
    _write_scene(scene, work, reflectance, kind, _tiles(work, places))
    return Files(work.name, scene, labels, {"class_field": "class"})


def _places(truth: NDArray[np.uint8], work: Work) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixels of squares of one class, the classes in turn, and their classes."""
    generator = np.random.default_rng(0)
    count, limit = work.polygons, work.rows - POLYGON_PX
    found: dict[tuple[int, int], int] = {}
    wanted = np.unique(truth[truth > 0])
    while len(found) < count:
        row, col = generator.integers(0, limit, 2).tolist()
        square = truth[
            np.ix_(np.arange(row, row + POLYGON_PX) % len(truth), np.arange(col, col + POLYGON_PX) % len(truth))
        ]
        is_apart = all(max(abs(row - other), abs(col - place)) > POLYGON_PX for other, place in found)
        if is_apart and (square == wanted[len(found) % len(wanted)]).all():
            found[row, col] = int(square[0, 0])
    return np.array(list(found)), np.array(list(found.values()))


def _write_labels(path: Path, places: NDArray[np.int64], classes: NDArray[np.int64], kind: SyntheticScene) -> None:
    features = []
    for (row, col), value in zip(places.tolist(), classes.tolist(), strict=True):
        corners = [(col, row), (col + POLYGON_PX, row), (col + POLYGON_PX, row + POLYGON_PX), (col, row + POLYGON_PX)]
        ring = [kind.transform @ corner for corner in (*corners, corners[0])]
        shape = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "properties": {"class": f"class {value}"}, "geometry": shape})
    crs = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{kind.crs.to_epsg()}"}}
    path.write_text(json.dumps({"type": "FeatureCollection", "crs": crs, "features": features}))


def _tiles(work: Work, places: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The tiles to write: all, or those with labels and every 40th of the others."""
    across = -(-work.rows // TILE_PX)
    every = [(row, col) for row in range(across) for col in range(across)]
    if not work.is_sparse:
        return every
    ends = [(places + step) // TILE_PX for step in ((0, 0), (0, 2), (2, 0), (2, 2))]
    labelled = set(map(tuple, np.concatenate(ends).tolist()))
    return sorted(labelled | set(every[::40]))


def _write_scene(
    path: Path, work: Work, reflectance: NDArray[np.float32], kind: SyntheticScene, tiles: list[tuple[int, int]]
) -> None:
    numbers = np.nan_to_num(np.rint(reflectance * REFLECTANCE_FACTOR), nan=NODATA).clip(NODATA, 32767).astype(np.int16)
    with rasterio.open(
        path, "w", driver="GTiff", height=work.rows, width=work.rows, count=work.bands, dtype="int16", nodata=NODATA,
        crs=kind.crs, transform=kind.transform, interleave="pixel", tiled=True, blockxsize=TILE_PX, blockysize=TILE_PX,
        bigtiff="yes", sparse_ok=True,
    ) as file:  # fmt: skip
        file.scales = [1 / REFLECTANCE_FACTOR] * work.bands
        for band, wavelength_nm in enumerate(kind.wavelengths_nm, start=1):
            file.update_tags(band, wavelength=f"{wavelength_nm:.4f}", wavelength_units="Nanometers")
        for row, col in tiles:
            rows, cols = (np.arange(at * TILE_PX, min((at + 1) * TILE_PX, work.rows)) for at in (row, col))
            window = Window(cols[0], rows[0], len(cols), len(rows))
            tile = numbers[np.ix_(rows % len(numbers), cols % len(numbers))]
            file.write(np.moveaxis(tile, -1, 0), window=window)


@contextmanager
def bench_files(works: Sequence[str], own: Files | None, out: Path | None) -> Iterator[tuple[list[Files], Path]]:
    """The files of the works, in `out` or in a folder that is removed afterwards."""
    try:
        with tempfile.TemporaryDirectory(prefix="hyperscene-bench-") as temporary:
            folder = out or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            made = [make_files(work, folder) for work in WORKS if work.name in works]
            yield [*([] if own is None else [own]), *made], folder
    except OSError as error:
        raise OutputUnwritable(
            f"{error.filename or out} cannot be written ({error.strerror}): choose another"
        ) from error


if __name__ == "__main__":
    main()
