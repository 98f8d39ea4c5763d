"""The whole way from a scene and its labels on disk to a bundle, with nothing half-written on the way."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model.architecture import Head, ModelConfig, Positions
from model.attention import Normalise, Squaring
from model.bundle import Bundle, open_session
from service.errors import OptionsUnusable, OutputUnwritable
from training.baselines import score_baselines
from training.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from training.evaluate import Scores, classify_pixels, score
from training.export import export_graph, write_bundle
from training.fit import EpochReport, Fitted, choose_device, fit, require_checkpoint
from training.recipes import RECIPES, Recipe, separation_px
from training.splits import Split, SplitName, draw_some, split_labels, split_warnings

LARGEST_SEED = 2**31


@dataclass(frozen=True)
class TrainOptions:
    """What `hyperscene train` is asked for."""

    files: LabelledFiles
    output: Path
    name: str | None = None
    recipe: str = "strong"
    epochs: int | None = None
    batch: int | None = None
    fraction: float = 0.01
    train_pixels: int | None = None
    per_class: int | None = None
    val_fraction: float = 0.01
    test_pixels: int | None = None
    split: SplitName = "random"
    seed: int = 0
    device: str = "auto"
    baselines: bool = False
    resume: bool = False
    attention: str = "cosine_squared"
    head: Head | None = None  # None: the recipe's
    spectral_path: bool | None = None  # None: the recipe's
    normalise: Normalise = "both"
    squaring: Squaring | None = None
    positions: Positions = "learnable"
    patch: int = 16
    width: int = 64
    depth: int = 4
    heads: int = 4
    mlp_width: int = 128
    dropout: float | None = None  # the recipe's

    @property
    def checkpoint(self) -> Path:
        return self.output.with_name(self.output.name + ".checkpoint")


@dataclass(frozen=True)
class Trained:
    """A bundle on disk, its scores on the test pixels, and what others score there."""

    bundle: Bundle
    scores: Scores
    baselines: dict[str, Scores]


def train(
    options: TrainOptions,
    report: Callable[[EpochReport], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Trained:
    """Load, split, fit, export, score, write."""
    if not 0 <= options.seed < LARGEST_SEED:
        raise OptionsUnusable(f"--seed must lie between 0 and {LARGEST_SEED - 1}, not at {options.seed}")
    require_writable(options.output)
    recipe = _recipe(options)
    choose_device(options.device)
    if options.resume:
        require_checkpoint(options.checkpoint)
    scene = load_labelled_scene(options.files)
    config = _config(options, scene, recipe)
    recipe = replace(recipe, head=config.head, spectral_path=config.spectral_path, dropout=config.dropout)
    if options.dropout is not None:
        recipe = replace(recipe, dropout_by_spectra=options.dropout)
    split = split_labels(
        scene.labels,
        options.split,
        options.fraction,
        options.val_fraction,
        options.seed,
        separation_px(config, recipe),
        options.train_pixels,
        options.per_class,
    )
    say(_summary(scene, split))
    names = [entry.name for entry in scene.legend]
    lacks = split_warnings(scene.labels, names, split, options.train_pixels, options.per_class)
    for warning in (*scene.warnings, *lacks):
        say(f"warning: {warning}")
    fitted = fit(
        scene, split, config, recipe, options.seed, options.device, options.checkpoint, options.resume, report, say
    )
    say("exporting and comparing with torch")
    graph = export_graph(fitted, scene)
    judged = draw_some(split.test, options.test_pixels, options.seed)
    say(f"scoring {len(judged)} test pixels")
    session = open_session(graph.SerializeToString(), options.output.name)
    found = classify_pixels(session, scene.cube, judged, config.patch_px)
    class_names = tuple(entry.name for entry in scene.legend)
    scores = score(scene.labels[tuple(judged.T)], found, class_names)
    baselines = score_baselines(scene, split.train, judged, options.seed) if options.baselines else {}
    record = _record(options, scene, split, config, recipe, fitted, scores)
    bundle = write_bundle(graph, fitted, scene, options.name or options.output.stem, record, options.output)
    options.checkpoint.unlink(missing_ok=True)
    return Trained(bundle, scores, baselines)


def require_writable(output: Path, option: str = "-o", name: str = "bundle.onnx") -> None:
    """Refuse an output that could not be written hours later."""
    if output.is_dir():
        raise OutputUnwritable(f"{output} is a folder: name the file to write, {output / name} say")
    try:
        with tempfile.NamedTemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        why = f"the folder {output.parent} cannot be written ({error.strerror})"
        raise OutputUnwritable(f"{why}: create it, or choose another with {option}") from error


def _recipe(options: TrainOptions) -> Recipe:
    recipe = RECIPES[options.recipe]
    for name in ("epochs", "batch", "test_pixels", "train_pixels", "per_class"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionsUnusable(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    return replace(recipe, epochs=options.epochs or recipe.epochs, batch=options.batch or recipe.batch)


def _config(options: TrainOptions, scene: LabelledScene, recipe: Recipe) -> ModelConfig:
    try:
        return ModelConfig(
            bands=scene.cube.shape[-1],
            classes=len(scene.legend),
            patch_px=options.patch,
            width=options.width,
            depth=options.depth,
            heads=options.heads,
            mlp_width=options.mlp_width,
            dropout=recipe.dropout if options.dropout is None else options.dropout,
            attention=options.attention,
            normalise=options.normalise,
            squaring=options.squaring,
            positions=options.positions,
            head=options.head or recipe.head,
            spectral_path=recipe.spectral_path if options.spectral_path is None else options.spectral_path,
        )
    except ValueError as error:
        raise OptionsUnusable(str(error)) from error


def _summary(scene: LabelledScene, split: Split) -> str:
    rows, cols, bands = scene.cube.shape
    counts = f"{len(split.train)} train, {len(split.validation)} validate, {len(split.test)} test"
    return f"{scene.name}: {rows} x {cols} x {bands}, {len(scene.legend)} classes; {split.name} split: {counts}"


def _record(
    options: TrainOptions,
    scene: LabelledScene,
    split: Split,
    config: ModelConfig,
    recipe: Recipe,
    fitted: Fitted,
    scores: Scores,
) -> dict[str, Any]:
    """What the manifest says of the training; enough to find the same split again."""
    rows, cols, bands = scene.cube.shape
    return {
        "data": {
            "scene": options.files.scene.name,
            "labels": options.files.labels.name,
            "rows": rows,
            "cols": cols,
            "bands": bands,
            "label_values": [entry.value for entry in scene.legend] if scene.has_values else None,
            "digest": scene.digest,
        },
        "split": {
            "name": split.name,
            "fraction": options.fraction if options.train_pixels is None and options.per_class is None else None,
            "train_pixels": options.train_pixels,
            "per_class": options.per_class,
            "val_fraction": options.val_fraction,
            "separation_px": separation_px(config, recipe),
            "train": len(split.train),
            "validation": len(split.validation),
            "test": len(split.test),
        },
        "seed": options.seed,
        "recipe": asdict(recipe),
        "chosen": None if fitted.choice is None else fitted.choice.record(),
        "scores": scores.record(),
        "code_version": version("hyperscene"),
    }
