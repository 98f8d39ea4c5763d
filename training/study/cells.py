"""Run one cell of a study: fit a classifier or network to a split and score it on the test pixels."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import hyperscene.model
import hyperscene.training
from hyperscene.model.architecture import ModelConfig
from hyperscene.training.baselines import predict_baseline
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Pixels, Split, draw_some
from hyperscene.training.evaluate import confusion_of, score
from hyperscene.training.fit.calibration import Bins, calibration_error, reliability_bins
from hyperscene.training.fit.compute import Compute
from hyperscene.training.fit.label_propagation import PropagateLabels, PseudoLabels, propagate_labels
from hyperscene.training.fit.network import FitOptions, Fitted, centre_logits, fit
from hyperscene.training.fit.patches import PatchSource
from hyperscene.training.fit.recipes import RECIPES, Recipe
from hyperscene.training.study.folder import encode_arrays
from hyperscene.training.study.inspection import Mapper, SceneMap, figure_arrays, make_bundle, softmax
from hyperscene.training.study.plan import DEFAULT_VARIANT, Cell

CALIBRATION_PIXELS = 2000  # test pixels for calibration where scores come from the map


def default_config(scene: LabelledScene, change: dict[str, Any] | None = None) -> ModelConfig:
    """The default network for a scene, with one thing changed."""
    return ModelConfig(bands=scene.cube.shape[-1], classes=len(scene.legend), **(change or {}))


def run_cell(
    cell: Cell,
    scene: LabelledScene,
    drawn: Split,
    compute: Compute,
    note: Callable[[str], None] = lambda _: None,
    test_pixels: int | None = None,
    propagate_labels: PropagateLabels = propagate_labels,
) -> dict[str, Any]:
    """Fit and score, on all test pixels or on `test_pixels` of them; `note` receives the progress."""
    split = replace(drawn, test=draw_some(drawn.test, test_pixels, cell.seed))
    if cell.part == "baselines":
        return _run_baseline(cell, scene, split, compute)
    if cell.noise_db is not None:
        scene = add_noise(scene, cell.noise_db, cell.seed)
    with Stopwatch() as fitting:
        # All test pixels: how many are scored must not change the training.
        fitted = fit_cell(scene, drawn, default_config(scene, cell.change), cell, compute, note, propagate_labels)
    note("scoring")
    network, truth = fitted.network, scene.labels[tuple(split.test.T)]
    source = PatchSource(scene, network.config.patch_px, compute.device)
    # A network that predicts whole patches is scored by its map, and so are the ingredients, to be comparable.
    # Calibration needs fewer pixels.
    uses_map = network.config.head == "token" or cell.part == "ingredients"
    calibrated = draw_some(np.arange(len(split.test)), CALIBRATION_PIXELS if uses_map else None, cell.seed)
    with Stopwatch() as predicting:
        logits = centre_logits(network.to(source.pixels.device), source, split.test[calibrated])
    with Stopwatch() as mapping:
        maps = _map_scene(fitted, cell, scene, compute, uses_map)
    found = maps[0].classes[tuple(split.test.T)] if uses_map else logits.argmax(axis=1) + 1
    reliability = _reliability(fitted, logits, truth[calibrated])
    of_map = {"map": _map_reliability(maps[0], scene, split)} if maps else {}
    document: dict[str, Any] = {
        **describe_cell(cell, split),
        **score_pixels(scene, split.test, found),
        "judged_by": "map" if uses_map else "patches",
        "mapped": _score_map(maps[0], scene, split) if maps else None,
        "calibration": _calibration(fitted, reliability | of_map),
        "chosen": None if fitted.propagation is None else fitted.propagation.record(),
        "label_propagation": _score_label_propagation(fitted.pseudo_labels, scene, split),
        "settings": asdict(recipe_of(cell)),
        "precision": compute.precision,
        "weights": sum(weight.numel() for weight in network.parameters()),
        "seconds": {"fit": fitting.seconds, "predict": predicting.seconds, "map": mapping.seconds},
        # Time of label propagation whose result was cached; the fit was shorter by it.
        "cached_seconds": 0.0 if fitted.pseudo_labels is None else fitted.pseudo_labels.cached_s,
    }
    if cell.part == "inspection":
        note("drawing")
        arrays = figure_arrays(network.to(source.pixels.device), source, scene, split, cell.seed)
        arrays |= {"classes": maps[0].classes, "confidence": maps[0].confidence}
        speed = [_speed(other, scene, split) for other in maps[1:]]
        document |= {"reliability": reliability, "speed": speed, "arrays": encode_arrays(arrays)}
    return document


def _run_baseline(cell: Cell, scene: LabelledScene, split: Split, compute: Compute) -> dict[str, Any]:
    with Stopwatch() as fitting:
        found = predict_baseline(cell.name, scene, split.train, split.test, cell.seed, compute.device)
    return {**describe_cell(cell, split), **score_pixels(scene, split.test, found), "seconds": {"fit": fitting.seconds}}


def _map_scene(
    fitted: Fitted, cell: Cell, scene: LabelledScene, compute: Compute, is_scored_by_map: bool
) -> list[SceneMap]:
    """The map that the service delivers, if it is needed; of an inspection then one for each stride and blend."""
    is_inspected = cell.part == "inspection"
    if not (is_scored_by_map or is_inspected or (cell.part == "variants" and cell.name == DEFAULT_VARIANT)):
        return []
    mapper = Mapper(make_bundle(fitted, scene, cell.id), scene, compute.device.type)
    ways = mapper.ways() if is_inspected else ()
    return [mapper.map(), *(mapper.map(stride, blend) for stride, blend in ways)]  # timed with a warm engine


def _speed(found: SceneMap, scene: LabelledScene, split: Split) -> dict[str, Any]:
    return {
        "stride": found.options.stride_px,
        "blend": found.options.blend,
        "oa": _score_map(found, scene, split)["scores"]["oa"],
        "seconds": round(found.seconds, 3),
        "patches": found.patches,
    }


def _score_map(found: SceneMap, scene: LabelledScene, split: Split) -> dict[str, Any]:
    scores = score_pixels(scene, split.test, found.classes[tuple(split.test.T)])["scores"]
    return {"stride": found.options.stride_px, "blend": found.options.blend, "scores": scores}


def _score_label_propagation(pseudo_labels: PseudoLabels | None, scene: LabelledScene, split: Split) -> Any:
    """Scores of label propagation itself; None where the network was trained on the labels alone."""
    if pseudo_labels is None:
        return None
    probabilities = pseudo_labels.probabilities.reshape(*scene.labels.shape, -1)[tuple(split.test.T)]
    return score_pixels(scene, split.test, probabilities.argmax(axis=1) + 1)["scores"]


def _reliability(fitted: Fitted, logits: NDArray[np.float32], truth: NDArray[np.integer]) -> dict[str, Bins]:
    """Reliability bins of single patches, before and after temperature scaling."""
    is_right = logits.argmax(axis=1) + 1 == truth
    temperatures = {"before": 1.0, "after": fitted.temperature}
    return {
        when: reliability_bins(softmax(logits, temperature).max(axis=1), is_right)
        for when, temperature in temperatures.items()
    }


def _map_reliability(found: SceneMap, scene: LabelledScene, split: Split) -> Bins:
    """Reliability bins of the map that the service delivers."""
    test = tuple(split.test.T)
    return reliability_bins(found.confidence[test], found.classes[test] == scene.labels[test])


def _calibration(fitted: Fitted, reliability: dict[str, Bins]) -> dict[str, float]:
    """Expected calibration errors and the temperature."""
    errors = {f"ece_{of_what}": round(calibration_error(bins), 6) for of_what, bins in reliability.items()}
    return {**errors, "temperature": round(fitted.temperature, 6)}


def fit_cell(
    scene: LabelledScene,
    split: Split,
    config: ModelConfig,
    cell: Cell,
    compute: Compute,
    note: Callable[[str], None] = lambda _: None,
    propagate_labels: PropagateLabels = propagate_labels,
) -> Fitted:
    """Fit a cell's network; all networks of a study are fitted here."""
    recipe = recipe_of(cell)
    return fit(
        scene,
        split,
        replace(config, head=recipe.head, spectral_path=recipe.spectral_path, dropout=recipe.dropout),
        recipe,
        cell.seed,
        FitOptions(
            compute,
            report=lambda epoch: note(f"epoch {epoch.epoch}/{epoch.epochs}"),
            validates=False,
            propagate_labels=propagate_labels,
        ),
    )


def recipe_of(cell: Cell) -> Recipe:
    """The recipe of a cell's network."""
    assert cell.recipe is not None
    return replace(RECIPES[cell.recipe], **cell.recipe_change)


def add_noise(scene: LabelledScene, snr_db: float, seed: int) -> LabelledScene:
    """Add white Gaussian noise to every band, `snr_db` below the mean of the band's squared values.

    The paper says only "spectral noise" and that everything else is kept fixed; here training and test pixels both
    have the noise, since they come from one image.
    """
    generator = np.random.default_rng([seed, round(10 * snr_db)])
    power = np.square(scene.cube[scene.valid], dtype=np.float64).mean(axis=0)  # (bands,)
    deviation = np.sqrt(power / 10 ** (snr_db / 10)).astype(np.float32)
    noisy = scene.cube + deviation * generator.standard_normal(scene.cube.shape, np.float32)
    known = noisy[scene.valid]
    mean = known.mean(axis=0, dtype=np.float64).astype(np.float32)
    std = known.std(axis=0, dtype=np.float64).astype(np.float32)
    return replace(
        scene,
        cube=np.where(scene.valid[..., None], noisy, mean),
        band_mean=mean,
        band_std=np.where(std > 0, std, 1).astype(np.float32),
    )


def describe_cell(cell: Cell, split: Split) -> dict[str, Any]:
    """The fields that are known before fitting; fields that a kind of cell does not have stay None."""
    return {
        "id": cell.id,
        "part": cell.part,
        "name": cell.name,
        "label": cell.label,
        "group": cell.group,
        "recipe": cell.recipe,
        "amount": cell.amount.record(),
        "seed": cell.seed,
        "split": {
            "name": split.name,
            "train": len(split.train),
            "validation": len(split.validation),
            "test": len(split.test),
        },
        "mapped": None,
        "calibration": None,
        "chosen": None,
        "label_propagation": None,
        "settings": None,
        "precision": None,
        "judged_by": None,
        "cached_seconds": None,
        "weights": None,
        "code_version": version("hyperscene"),
        "sources": source_digest(),
    }


@cache
def source_digest() -> str:
    """Digest of the code that made a cell; the cells of one table should have the same."""
    digest = hashlib.sha256()
    for package in (hyperscene.model, hyperscene.training):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def score_pixels(scene: LabelledScene, pixels: Pixels, found: NDArray[np.integer]) -> dict[str, Any]:
    """Scores and confusion matrix (truth in rows) of predicted classes 1..K."""
    truth = scene.labels[tuple(pixels.T)]
    class_names = tuple(entry.name for entry in scene.legend)
    confusion = confusion_of(truth, found, len(class_names))
    return {"scores": score(truth, found, class_names).record(), "confusion": confusion.tolist()}


class Stopwatch:
    """Measures the seconds that a block takes."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.perf_counter() - self._began, 3)
