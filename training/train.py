"""Training from files: a scene and its labels in, a bundle out."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
from numpy.typing import NDArray

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.model.architecture import Head, ModelConfig, Positions
from hyperscene.model.attention import Normalise, Squaring
from hyperscene.model.bundle import Bundle, open_session, parse_bundle
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.engines import open_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.prefetch import StageClock
from hyperscene.training.baselines import score_baselines
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.splits import Pixels, Split, SplitName, draw_some, split_labels, split_warnings
from hyperscene.training.evaluate import Scores, classify_pixels, map_array, score, score_line, score_table
from hyperscene.training.fit.applicability import fit_applicability
from hyperscene.training.fit.checkpoints import require_checkpoint
from hyperscene.training.fit.compute import Compute, choose_compute
from hyperscene.training.fit.cross_validation import CrossValidation, advice, validation_lines
from hyperscene.training.fit.export import bundle_content, export_graph, require_onnxruntime, write_bundle
from hyperscene.training.fit.network import EpochReport, FitOptions, Fitted, fit
from hyperscene.training.fit.recipes import RECIPES, Recipe, separation_px

Protocol = Literal["labels", "paper"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
PAPER_FRACTION = 0.01  # of the labels for training, and of the others for validation

LARGEST_SEED = 2**31


@dataclass(frozen=True)
class TrainOptions:
    """The options of `hyperscene train`."""

    files: LabelledFiles
    output: Path
    name: str | None = None
    scene_name: str | None = None  # in the manifest, instead of the names of the files
    labels_name: str | None = None
    description: str | None = None
    recipe: str = "strong"
    epochs: int | None = None
    batch: int | None = None
    # "labels" learns from all of them, unless one of the options of the split is given; "paper" from 1 %.
    protocol: Protocol = "labels"
    fraction: float | None = None
    train_pixels: int | None = None
    per_class: int | None = None
    val_fraction: float | None = None
    test_pixels: int | None = None
    split: SplitName | None = None
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"
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
    dropout: float | None = None  # None: the recipe's

    @property
    def checkpoint(self) -> Path:
        return self.output.with_name(self.output.name + ".checkpoint")

    def with_split(self) -> TrainOptions:
        """The same options, with the split and its shares filled in."""
        amounts = (self.fraction, self.train_pixels, self.per_class)
        asks_for_split = self.protocol == "paper" or any(value is not None for value in (*amounts, self.val_fraction))
        name: SplitName = self.split or ("random" if asks_for_split else "none")
        if self.fraction == 1 and self.split is None:
            name = "none"
        if name == "none":
            return replace(self, split="none", fraction=None, val_fraction=0.0)
        is_open = all(value is None for value in amounts)
        return replace(
            self,
            split=name,
            fraction=PAPER_FRACTION if is_open else self.fraction,
            val_fraction=PAPER_FRACTION if self.val_fraction is None else self.val_fraction,
        )


@dataclass(frozen=True)
class Trained:
    """A bundle on disk, and how accurate it is: by its test pixels, or by cross-validation if there are none."""

    bundle: Bundle
    scores: Scores | None
    validation: CrossValidation | None
    baselines: dict[str, Scores]
    scene: LabelledScene
    seconds: dict[str, float]  # of each stage
    propagated: NDArray[np.uint16] | None = None  # the map (rows, cols) of label propagation, if there was one

    def report(self) -> list[str]:
        """How accurate the bundle is and what to do next, as lines of text."""
        names = tuple(entry.name for entry in self.scene.legend)
        lines = [] if self.scores is None else [score_table(self.scores)]
        lines += [f"{name} on the same pixels: {score_line(scores)}" for name, scores in self.baselines.items()]
        if self.validation is not None:
            counts = np.bincount(self.scene.labels[self.scene.labels > 0], minlength=len(names) + 1)[1:]
            lines += validation_lines(self.validation, names)
            lines += advice(self.validation, counts.tolist(), names, self.scene.transform)
        elif self.scores is None:
            lines.append(
                "accuracy unknown: this recipe needs labels set aside for it, with --protocol paper or --fraction"
            )
        return lines


def train(
    options: TrainOptions,
    report: Callable[[EpochReport], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    clock: StageClock | None = None,
) -> Trained:
    """Load, split, fit, export, score, write."""
    if not 0 <= options.seed < LARGEST_SEED:
        raise OptionsUnusable(f"--seed must be between 0 and {LARGEST_SEED - 1}, not {options.seed}")
    require_writable(options.output)
    options = options.with_split()
    if options.split == "none" and options.baselines:
        raise OptionsUnusable("--baselines needs pixels to score: add --fraction, --split or --protocol paper")
    recipe = _recipe(options)
    compute = choose_compute(options.device, options.precision, say)
    require_onnxruntime()
    if options.resume:
        require_checkpoint(options.checkpoint)
    clock = clock or StageClock()
    with clock.stage("reading"):
        scene = load_labelled_scene(options.files, in_windows=options.split == "none" and recipe.pseudo_labels)
    config = _config(options, scene, recipe)
    recipe = replace(recipe, head=config.head, spectral_path=config.spectral_path, dropout=config.dropout)
    if options.dropout is not None:
        recipe = replace(recipe, spectra_only_dropout=options.dropout)
    split = _split(options, scene, separation_px(config, recipe), say)
    fitting = FitOptions(compute, options.checkpoint, options.resume, report, say, clock)
    fitted = fit(scene, split, config, recipe, options.seed, fitting)
    say("exporting and comparing with torch")
    with clock.stage("export"):
        graph = export_graph(fitted, scene)
    with clock.stage("scoring"):
        scores, baselines = _score(options, graph, fitted, scene, split, say)
    record = _record(options, scene, split, config, recipe, compute, fitted, scores)
    with clock.stage("export"):
        found = fit_applicability(scene, split, options.seed)
        bundle = write_bundle(graph, fitted, scene, options.name or options.output.stem, record, options.output, found)
    options.checkpoint.unlink(missing_ok=True)
    propagated = _propagated(fitted, scene)
    return Trained(bundle, scores, fitted.validation, baselines, scene, clock.seconds, propagated)


def _propagated(fitted: Fitted, scene: LabelledScene) -> NDArray[np.uint16] | None:
    """The classes 1..K of the pseudo-labels on the scene's grid, 0 where it has no data."""
    if fitted.pseudo_labels is None:
        return None
    classes = fitted.pseudo_labels.probabilities.argmax(axis=1).reshape(scene.valid.shape) + 1
    return np.where(scene.valid, classes, 0).astype(np.uint16)


def _split(options: TrainOptions, scene: LabelledScene, apart_px: int, say: Callable[[str], None]) -> Split:
    """The split of the options; says what it is and what is missing."""
    assert options.split is not None
    split = split_labels(
        scene.labels,
        options.split,
        options.fraction or 0.0,
        options.val_fraction or 0.0,
        options.seed,
        apart_px,
        options.train_pixels,
        options.per_class,
    )
    say(_summary(scene, split))
    class_names = tuple(entry.name for entry in scene.legend)
    shortages = (
        split_warnings(scene.labels, class_names, split, options.train_pixels, options.per_class)
        if split.name != "none"
        else []
    )
    for warning in (*scene.warnings, *shortages):
        say(f"warning: {warning}")
    return split


def _score(
    options: TrainOptions,
    graph: onnx.ModelProto,
    fitted: Fitted,
    scene: LabelledScene,
    split: Split,
    say: Callable[[str], None],
) -> tuple[Scores | None, dict[str, Scores]]:
    """Scores of the network and of the baselines on the test pixels."""
    tested = draw_some(split.test, options.test_pixels, options.seed)
    if not len(tested):
        return None, {}
    say(f"scoring {len(tested)} test pixels")
    class_names = tuple(entry.name for entry in scene.legend)
    scores = score(scene.labels[tuple(tested.T)], _predict(graph, fitted, scene, tested), class_names)
    return scores, score_baselines(scene, split.train, tested, options.seed) if options.baselines else {}


def _predict(graph: onnx.ModelProto, fitted: Fitted, scene: LabelledScene, tested: Pixels) -> NDArray[np.integer]:
    """Classes of the pixels in the map that the service would deliver; by the paper's heads one patch per pixel."""
    config = fitted.network.config
    if config.head != "token":
        session = open_session(graph.SerializeToString(), "the exported graph")
        return classify_pixels(session, scene.cube, tested, config.patch_px)
    draft = parse_bundle(bundle_content(copy.deepcopy(graph), fitted, scene, "draft", {}), Path("draft.onnx"))
    pixels, engine = PixelRows(0, scene.cube, scene.valid), open_engine(draft, "cpu", threads=0, batch=0)
    return map_array(draft, pixels, MapOptions(), engine)[tuple(tested.T)]


def require_writable(output: Path, option: str = "-o", name: str = "bundle.onnx") -> None:
    """Refuse an output that cannot be written before hours of training."""
    if output.is_dir():
        raise OutputUnwritable(f"{output} is a folder: name the file to write, for example {output / name}")
    try:
        with tempfile.NamedTemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise OutputUnwritable(
            f"the folder {output.parent} cannot be written ({error.strerror}): create it, or choose another with "
            f"{option}"
        ) from error


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
    (rows, cols), bands = scene.size, scene.cube.shape[-1]
    size = f"{scene.name}: {rows} x {cols} x {bands}, {len(scene.legend)} classes"
    if split.name == "none":
        where = "" if scene.mosaic is None else f", in {scene.mosaic}"
        return f"{size}; learning from all {len(split.train)} labelled pixels{where}"
    counts = f"{len(split.train)} training, {len(split.validation)} validation, {len(split.test)} test pixels"
    return f"{size}; {split.name} split: {counts}"


def _record(
    options: TrainOptions,
    scene: LabelledScene,
    split: Split,
    config: ModelConfig,
    recipe: Recipe,
    compute: Compute,
    fitted: Fitted,
    scores: Scores | None,
) -> dict[str, Any]:
    """The `training` record of the manifest; it contains everything that determines the split."""
    (rows, cols), bands = scene.size, scene.cube.shape[-1]
    class_names = tuple(entry.name for entry in scene.legend)
    scored_by = "map" if config.head == "token" else "patches"
    return {
        **({"description": options.description} if options.description else {}),
        "data": {
            "scene": options.scene_name or options.files.scene.name,
            "labels": options.labels_name or options.files.labels.name,
            "rows": rows,
            "cols": cols,
            "bands": bands,
            "label_values": [entry.value for entry in scene.legend] if scene.has_values else None,
            "digest": scene.digest,
            **({} if scene.mosaic is None else {"mosaic": scene.mosaic.record()}),
            **{key: value for key, value in (("sensor", scene.sensor), ("acquired", scene.acquired)) if value},
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
        "precision": compute.precision,
        "chosen": None if fitted.propagation is None else fitted.propagation.record(),
        **({} if scores is None else {"scores": scores.record(), "scored_by": scored_by}),
        **({} if fitted.validation is None else {"cross_validation": fitted.validation.record(class_names)}),
        "code_version": version("hyperscene"),
    }
