"""Anchors for the speed of mapping: a random forest and a logistic regression beside the default map.

They go from file to GeoTIFF as a careful person would write them: blocks of rows, a whole block at a time through the
classifier, all cores, compressed tiles. The network's weights are random, which costs what trained ones cost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from hyperscene.model.bundle import Bundle
from hyperscene.service.mapping.benchmark import STATUS_CODE, Measurements, peak_in
from hyperscene.service.mapping.devices import precision_of
from hyperscene.service.mapping.engines import cores, make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data.synthetic import MATERIALS, SyntheticScene, make_scene, write_scene

BLOCK_ROWS = 64
TREES = 500
LABELS_PER_CLASS = 50
NODATA = 255


@dataclass(frozen=True)
class AnchorScene:
    """The scene that all map, and the labels to fit the anchors to."""

    path: Path
    spectra: NDArray[np.float32]
    labels: NDArray[np.uint8]


def write_anchor_scene(folder: Path, side_px: int, bands: int, seed: int = 5) -> AnchorScene:
    """A synthetic scene and some labels of another one of the same kind."""
    path = folder / f"anchor_{side_px}_{bands}.tif"
    write_scene(SyntheticScene(side_px, side_px, bands, seed), path)
    values, labels = make_scene(SyntheticScene(128, 128, bands, seed + 1))
    generator = np.random.default_rng(0)
    chosen = [
        generator.choice(np.flatnonzero(labels.ravel() == number), LABELS_PER_CLASS)
        for number in np.unique(labels[labels > 0])
    ]
    picked = np.concatenate(chosen)
    return AnchorScene(path, values.reshape(-1, bands)[picked], labels.ravel()[picked])


def fit_forest(scene: AnchorScene) -> Any:
    """A forest that predicts on all cores."""
    return RandomForestClassifier(TREES, random_state=0, n_jobs=cores()).fit(scene.spectra, scene.labels)


def fit_regression(scene: AnchorScene) -> Any:
    """A logistic regression of standardised spectra."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)).fit(scene.spectra, scene.labels)


def map_with(classifier: Any, scene: Path, folder: Path) -> float:
    """Map a scene with a classifier of single spectra, from the file to compressed rasters; returns the seconds."""
    began = time.perf_counter()
    classes = len(classifier.classes_)
    with rasterio.open(scene) as source, threadpool_limits(cores(), user_api="blas"):
        grid = {"driver": "GTiff", "height": source.height, "width": source.width, "crs": source.crs, "dtype": "uint8",
                "transform": source.transform, "tiled": True, "blockxsize": 256, "blockysize": BLOCK_ROWS,
                "compress": "deflate", "num_threads": cores(), "interleave": "pixel"}  # fmt: skip
        scales = np.array(source.scales, np.float32)[:, None, None]
        with (
            rasterio.open(folder / "classes.tif", "w", count=1, nodata=0, **grid) as class_file,
            rasterio.open(folder / "probabilities.tif", "w", count=classes, nodata=NODATA, **grid) as share_file,
        ):
            for top in range(0, source.height, BLOCK_ROWS):
                window = Window(0, top, source.width, min(BLOCK_ROWS, source.height - top))
                values = source.read(window=window)
                valid = (values != source.nodata).all(axis=0)
                spectra = (values * scales)[:, valid].T
                shares = classifier.predict_proba(spectra) if len(spectra) else np.zeros((0, classes))
                found = np.zeros(valid.shape, np.uint8)
                found[valid] = classifier.classes_[shares.argmax(axis=1)]
                stored = np.full((classes, *valid.shape), NODATA, np.uint8)
                stored[:, valid] = np.rint(shares.T * 254)
                class_file.write(found, 1, window=window)
                share_file.write(stored, window=window)
    return time.perf_counter() - began


def strong_bundle(path: Path, bands: int = 100, classes: int = len(MATERIALS)) -> Bundle:
    """A bundle of the default recipe's network, with random weights, for synthetic scenes."""
    import torch

    from hyperscene.model.architecture import ModelConfig, Transformer
    from hyperscene.training.data.classes import FileLegend
    from hyperscene.training.data.datasets import Cube, label_cube
    from hyperscene.training.data.label_files import Labels
    from hyperscene.training.fit.export import export_graph, write_bundle
    from hyperscene.training.fit.network import Fitted

    size = SyntheticScene(64, 64, bands, 4)
    values, _ = make_scene(size)
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=-1))
    cube = Cube("synthetic", values, valid, size.wavelengths_nm)
    labels = 1 + np.arange(valid.size, dtype=np.int64).reshape(valid.shape) % classes
    scene = label_cube(cube, Labels(np.where(valid, labels, 0), FileLegend({}, {})))
    torch.manual_seed(0)
    network = Transformer(ModelConfig(bands, classes, head="token", spectral_path=True)).eval()
    fitted = Fitted(network)
    return write_bundle(export_graph(fitted, scene), fitted, scene, "random", {}, path)


def measure_anchors(
    folder: Path,
    side_px: int,
    bands: int,
    rounds: int,
    choice: tuple[Any, Any],
    report: Callable[[int, int], None],
) -> dict[str, Any]:
    """Seconds of all, in interleaved rounds, and the default map's speed as a ratio within each round.

    `choice` is the device and the precision; a map in bfloat16 is measured beside one in float32.
    """
    scene, measured = write_anchor_scene(folder, side_px, bands), Measurements()
    classifiers = {"forest": fit_forest(scene), "regression": fit_regression(scene)}
    bundle = strong_bundle(folder / "random.onnx", bands)
    engine = make_engine(bundle, choice[0], precision=choice[1])
    engines = {"map": engine}
    if precision_of(engine.provider) != "float32":
        engines["other"] = make_engine(bundle, choice[0], precision="float32")
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder) as output:
        for round_number in range(rounds + 1):
            for name, classifier in classifiers.items():
                measured.add(name, map_with(classifier, scene.path, Path(output)))
            for name, used in engines.items():
                summary = map_scene(open_scene(scene.path), bundle, used, Path(output) / "map", MapOptions())
                for stage, seconds in summary["seconds"].items():
                    measured.add(name if stage == "total" else f"{name} {stage}", seconds)
            report(round_number + 1, rounds + 1)
            if round_number == 0:  # warm-up
                measured.rounds.clear()
    return {
        "scene": [side_px, side_px, bands],
        "provider": engine.provider,
        "other_provider": engines["other"].provider if "other" in engines else None,
        "stride": summary["settings"]["stride_px"],
        "trees": TREES,
        "seconds": {name: measured.median(name) for name in measured.rounds},
        "map_to": {name: measured.ratio(name, "map") for name in ("forest", "regression", "other")},
        "all_rounds": measured.rounds,
    }


# Rows and columns, bands and classes of the maps that show how cost grows; each differs in one number from the second.
GROWTH = (
    (500, 100, 9), (1000, 100, 9), (2000, 100, 9), (4000, 100, 9), (1000, 50, 9), (1000, 200, 9), (1000, 400, 9),
    (1000, 100, 5), (1000, 100, 50),
)  # fmt: skip


def measure_growth(folder: Path, device: str, report: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """Seconds and peak memory of default maps, each in a process of its own."""
    rows = []
    for index, (side_px, bands, classes) in enumerate(GROWTH, start=1):
        bundle = strong_bundle(folder / f"random_{bands}_{classes}.onnx", bands, classes)
        scene = folder / f"growth_{side_px}_{bands}.tif"
        if not scene.exists():
            write_scene(SyntheticScene(side_px, side_px, bands, 5), scene)
        output = folder / "grown"
        arguments = ["classify", scene, "-o", output, "--bundle", bundle.path, "--device", device]
        ended = subprocess.run(
            [sys.executable, "-c", STATUS_CODE, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        summary = json.loads((output / "summary.json").read_text())
        rows.append({
            "pixels": side_px**2, "bands": bands, "classes": classes, "seconds": summary["seconds"]["total"],
            "stages": summary["seconds"], "provider": summary["provider"], "peak_mb": peak_in(ended.stdout),
        })  # fmt: skip
        report(index, len(GROWTH))
    return rows
