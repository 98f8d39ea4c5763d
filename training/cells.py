"""Running one cell of a study: something is fitted to a split, judged on its test pixels, and described."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import model
import training
from model.architecture import ModelConfig
from training.baselines import classify_with_baseline
from training.datasets import LabelledScene
from training.evaluate import confusion_of, score
from training.fit import Fitted, centre_logits, choose_device, fit
from training.inspection import Mapper, SceneMap, bundle_of, draw_arrays, softmax
from training.patches import PatchSource, is_fast_in_bfloat16
from training.plan import DEFAULT_VARIANT, Cell
from training.recipes import RECIPES, Recipe
from training.splits import Pixels, Split, draw_some
from training.statistics import Bins, calibration_error, reliability_bins
from training.teacher import Lesson, Teach, teach

CALIBRATION_PIXELS = 2000  # test pixels that say how sure single patches are, where all are judged by a map


def default_config(scene: LabelledScene, change: dict[str, Any] | None = None) -> ModelConfig:
    """The default network for a scene, with one thing changed."""
    return ModelConfig(bands=scene.cube.shape[-1], classes=len(scene.legend), **(change or {}))


@dataclass(frozen=True)
class Finished:
    """What a cell's file holds, and the arrays beside it where it is a portrait."""

    document: dict[str, Any]
    arrays: dict[str, NDArray[Any]] | None = None


def run_cell(
    cell: Cell,
    scene: LabelledScene,
    drawn: Split,
    device: str,
    note: Callable[[str], None] = lambda _: None,
    test_pixels: int | None = None,
    teach: Teach = teach,
) -> Finished:
    """Fit and judge, by all test pixels or so many of them; `note` is told how far it is."""
    split = replace(drawn, test=draw_some(drawn.test, test_pixels, cell.seed))
    if cell.part == "baselines":
        return Finished(_run_baseline(cell, scene, split, device))
    if cell.noise_db is not None:
        scene = add_noise(scene, cell.noise_db, cell.seed)
    with Stopwatch() as fitting:
        # How many pixels are judged must not change what is learnt.
        fitted = fit_cell(scene, drawn, default_config(scene, cell.change), cell, device, note, teach)
    note("judging")
    network, truth = fitted.network, scene.labels[tuple(split.test.T)]
    source = PatchSource(scene, network.config.patch_px, choose_device(device))
    # A network that answers for whole patches is judged by the map that they make, and so is what it is compared with
    # ingredient by ingredient. Calibration needs fewer pixels.
    is_map_judged = network.config.head == "token" or cell.part == "ingredients"
    asked = draw_some(np.arange(len(split.test)), CALIBRATION_PIXELS if is_map_judged else None, cell.seed)
    with Stopwatch() as predicting:
        logits = centre_logits(network.to(source.pixels.device), source, split.test[asked])
    maps: list[SceneMap] = []
    with Stopwatch() as mapping:
        if cell.part == "portrait":
            maps = _map_in_many_ways(fitted, cell, scene, device)
        elif is_map_judged or (cell.part == "variants" and cell.name == DEFAULT_VARIANT):
            maps = [_mapper(fitted, cell, scene, device).map(symmetries=cell.symmetries)]
    found = maps[0].classes[tuple(split.test.T)] if is_map_judged else logits.argmax(axis=1) + 1
    reliability = _reliability(fitted, logits, truth[asked])
    of_map = {"map": _map_reliability(maps[0], scene, split)} if maps else {}
    document: dict[str, Any] = {
        **describe_cell(cell, split),
        **judge(scene, split.test, found),
        "judged_by": "map" if is_map_judged else "patches",
        "mapped": _judge_map(maps[0], scene, split) if maps else None,
        "calibration": _calibration(fitted, reliability | of_map),
        "chosen": None if fitted.choice is None else fitted.choice.record(),
        "teacher": None if fitted.lesson is None else _judge_teacher(fitted.lesson, scene, split),
        "settings": asdict(recipe_of(cell)),
        "bfloat16": is_fast_in_bfloat16(source.pixels.device),
        "weights": sum(weight.numel() for weight in network.parameters()),
        "seconds": {"fit": fitting.seconds, "predict": predicting.seconds, "map": mapping.seconds},
        "remembered_seconds": 0.0 if fitted.lesson is None else fitted.lesson.remembered_s,  # that the fit was spared
    }
    if cell.part != "portrait":
        return Finished(document)
    note("drawing")
    arrays = draw_arrays(network.to(source.pixels.device), source, scene, split, cell.seed)
    arrays |= {"classes": maps[0].classes, "confidence": maps[0].confidence}
    speed = [_speed(other, scene, split) for other in maps[1:]]
    return Finished({**document, "reliability": reliability, "speed": speed}, arrays)


def _run_baseline(cell: Cell, scene: LabelledScene, split: Split, device: str) -> dict[str, Any]:
    with Stopwatch() as fitting:
        found = classify_with_baseline(cell.name, scene, split.train, split.test, cell.seed, device)
    return {**describe_cell(cell, split), **judge(scene, split.test, found), "seconds": {"fit": fitting.seconds}}


def _mapper(fitted: Fitted, cell: Cell, scene: LabelledScene, device: str) -> Mapper:
    return Mapper(bundle_of(fitted, scene, cell.id), scene, device)


def _map_in_many_ways(fitted: Fitted, cell: Cell, scene: LabelledScene, device: str) -> list[SceneMap]:
    """The map that the service delivers, then every stride and blend worth comparing, timed with a warm engine."""
    mapper = _mapper(fitted, cell, scene, device)
    return [mapper.map(), *(mapper.map(stride, blend) for stride, blend in mapper.ways())]


def _speed(found: SceneMap, scene: LabelledScene, split: Split) -> dict[str, Any]:
    return {
        "stride": found.options.stride_px,
        "blend": found.options.blend,
        "oa": _judge_map(found, scene, split)["scores"]["oa"],
        "seconds": round(found.seconds, 3),
        "patches": found.patches,
    }


def _judge_map(found: SceneMap, scene: LabelledScene, split: Split) -> dict[str, Any]:
    scores = judge(scene, split.test, found.classes[tuple(split.test.T)])["scores"]
    return {"stride": found.options.stride_px, "blend": found.options.blend, "scores": scores}


def _judge_teacher(lesson: Lesson, scene: LabelledScene, split: Split) -> dict[str, Any]:
    """Scores of the teacher's own answers: what a network has to be better than, or as good as with any scene."""
    answers = lesson.probabilities.reshape(*scene.labels.shape, -1)[tuple(split.test.T)]
    scores: dict[str, Any] = judge(scene, split.test, answers.argmax(axis=1) + 1)["scores"]
    return scores


def _reliability(fitted: Fitted, logits: NDArray[np.float32], truth: NDArray[np.integer]) -> dict[str, Bins]:
    """How often answers of a confidence are right, before and after the temperature."""
    is_right = logits.argmax(axis=1) + 1 == truth
    temperatures = {"before": 1.0, "after": fitted.temperature}
    return {
        when: reliability_bins(softmax(logits, temperature).max(axis=1), is_right)
        for when, temperature in temperatures.items()
    }


def _map_reliability(found: SceneMap, scene: LabelledScene, split: Split) -> Bins:
    """The same of the map that the service delivers, whose confidence is that of blended answers."""
    places = tuple(split.test.T)
    return reliability_bins(found.confidence[places], found.classes[places] == scene.labels[places])


def _calibration(fitted: Fitted, reliability: dict[str, Bins]) -> dict[str, float]:
    """How far confidence is off on average."""
    errors = {f"ece_{of_what}": round(calibration_error(bins), 6) for of_what, bins in reliability.items()}
    return {**errors, "temperature": round(fitted.temperature, 6)}


def fit_cell(
    scene: LabelledScene,
    split: Split,
    config: ModelConfig,
    cell: Cell,
    device: str,
    note: Callable[[str], None] = lambda _: None,
    teach: Teach = teach,
) -> Fitted:
    """The one place where a study fits networks."""
    recipe = recipe_of(cell)
    return fit(
        scene,
        split,
        replace(config, head=recipe.head, spectral_path=recipe.spectral_path, dropout=recipe.dropout),
        recipe,
        cell.seed,
        device,
        report=lambda epoch: note(f"epoch {epoch.epoch}/{epoch.epochs}"),
        is_watched=False,
        teach=teach,
    )


def recipe_of(cell: Cell) -> Recipe:
    """How a cell's network is trained."""
    assert cell.recipe is not None
    return replace(RECIPES[cell.recipe], **cell.recipe_change)


def add_noise(scene: LabelledScene, snr_db: float, seed: int) -> LabelledScene:
    """The scene as a noisier sensor would have measured it: white Gaussian noise in every band.

    A band's signal is the mean of its squared values, and the noise has so many decibels less. The paper says only
    "spectral noise" and that everything else is kept fixed; the noise is read as a property of the scene, which is
    learnt from and judged on as it is, since both come from one image.
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
    """What a cell's file says before anything is fitted; what a kind of cell does not have stays None."""
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
        "teacher": None,
        "settings": None,
        "bfloat16": None,
        "judged_by": None,
        "remembered_seconds": None,
        "weights": None,
        "code_version": version("hyperscene"),
        "sources": source_digest(),
    }


@cache
def source_digest() -> str:
    """Names the code that a cell follows from: figures of one table had better have one name."""
    digest = hashlib.sha256()
    for package in (model, training):
        for path in sorted(Path(package.__path__[0]).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def judge(scene: LabelledScene, pixels: Pixels, found: NDArray[np.integer]) -> dict[str, Any]:
    """Scores and confusion (truth in rows) of the classes 1..K that were found for pixels."""
    truth = scene.labels[tuple(pixels.T)]
    class_names = tuple(entry.name for entry in scene.legend)
    confusion = confusion_of(truth, found, len(class_names))
    return {"scores": score(truth, found, class_names).record(), "confusion": confusion.tolist()}


class Stopwatch:
    """Seconds that a block took."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.perf_counter() - self._began, 3)
