"""Accuracy of a bundle on labelled pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import LabelsUnusable
from hyperscene.model.bundle import Bundle, Manifest, run_graph
from hyperscene.service.mapping.band_view import PixelRows, fit_bands, match_manifest
from hyperscene.service.mapping.engines import Engine, make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.strip_mapper import StripMapper, plan_scene
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.splits import split_labels

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# Pixels in one square of this size share a window of the cube; the graph embeds the window once per call.
SQUARE_PX = 32
PATCHES_PER_CALL = 16


@dataclass(frozen=True)
class Scores:
    """Overall accuracy, average accuracy, kappa, and recall and precision of each class."""

    pixels: int
    overall_accuracy: float
    average_accuracy: float
    kappa: float
    class_names: tuple[str, ...]
    recall: tuple[float | None, ...]  # None: the class has no test pixel
    precision: tuple[float | None, ...]  # None: no pixel was classified so
    class_pixels: tuple[int, ...]

    def record(self) -> dict[str, Any]:
        """The scores as stored in a manifest and printed by `--json`."""
        rows = zip(self.class_names, self.class_pixels, self.recall, self.precision, strict=True)
        return {
            "pixels": self.pixels,
            "oa": round(self.overall_accuracy, 6),
            "aa": round(self.average_accuracy, 6),
            "kappa": round(self.kappa, 6),
            "per_class": [
                {"name": name, "pixels": pixels, "accuracy": _rounded(recall), "precision": _rounded(precision)}
                for name, pixels, recall, precision in rows
            ],
        }


def confusion_of(truth: NDArray[np.integer], predicted: NDArray[np.integer], class_count: int) -> NDArray[np.int64]:
    """The confusion matrix of classes 1..K: truth in rows, predictions in columns."""
    confusion = np.zeros((class_count, class_count), np.int64)
    np.add.at(confusion, (truth.astype(int) - 1, predicted.astype(int) - 1), 1)
    return confusion


def score(truth: NDArray[np.integer], predicted: NDArray[np.integer], class_names: tuple[str, ...]) -> Scores:
    """Compare classes 1..K of the same pixels."""
    confusion = confusion_of(truth, predicted, len(class_names))
    total, correct = int(confusion.sum()), np.diag(confusion)
    of_class, as_class = confusion.sum(axis=1), confusion.sum(axis=0)
    recall = [float(c / n) if n else None for c, n in zip(correct, of_class, strict=True)]
    precision = [float(c / n) if n else None for c, n in zip(correct, as_class, strict=True)]
    overall = float(correct.sum() / total) if total else 0.0
    by_chance = float((of_class * as_class).sum() / total**2) if total else 0.0
    known = [value for value in recall if value is not None]
    return Scores(
        pixels=total,
        overall_accuracy=overall,
        average_accuracy=float(np.mean(known)) if known else 0.0,
        kappa=(overall - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0,
        class_names=class_names,
        recall=tuple(recall),
        precision=tuple(precision),
        class_pixels=tuple(int(n) for n in of_class),
    )


def classify_pixels(
    session: InferenceSession, cube: NDArray[np.float32], pixels: NDArray[np.int64], patch_px: int
) -> NDArray[np.int64]:
    """Classes 1..K of pixels (n, 2), each from the patch round it."""
    half = patch_px // 2
    classes = np.zeros(len(pixels), np.int64)
    squares, square_of = np.unique(pixels // SQUARE_PX, axis=0, return_inverse=True)
    for number, square in enumerate(squares):
        members = np.flatnonzero(square_of == number)
        # Half a patch more on every side; at the scene's edge the graph reflects as it would on the whole scene.
        low = np.maximum(square * SQUARE_PX - half, 0)
        high = (square + 1) * SQUARE_PX + half
        window = np.ascontiguousarray(cube[low[0] : high[0], low[1] : high[1]])
        for start in range(0, len(members), PATCHES_PER_CALL):
            chosen = members[start : start + PATCHES_PER_CALL]
            probabilities = run_graph(session, window, pixels[chosen] - low)
            if probabilities.ndim == 4:  # one prediction per token: take the centre's
                probabilities = probabilities[:, half, half]
            classes[chosen] = probabilities.argmax(axis=-1) + 1
    return classes


@dataclass(frozen=True)
class Scored:
    """A bundle's scores on a labelled scene, and the number of pixels left out."""

    scores: Scores
    left_out: int  # pixels that the bundle was trained on

    @property
    def remark(self) -> str:
        if self.left_out:
            return f"{self.left_out} pixels that the bundle was trained on were left out"
        return "no pixel was left out: the bundle was not trained on this scene with these labels"

    def record(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {**self.scores.record(), "training_pixels_left_out": self.left_out}


def score_bundle(bundle: Bundle, files: LabelledFiles, options: MapOptions | None = None) -> Scored:
    """Map a scene as a user would, and score all labelled pixels that the bundle was not trained on."""
    manifest = bundle.manifest
    scene = load_labelled_scene(files)
    truth = _bundle_classes(scene, manifest)
    is_tested = truth > 0
    trained = _training_pixels(scene, manifest, files)
    is_tested[tuple(trained.T)] = False
    if not is_tested.any():
        raise LabelsUnusable(
            f"the bundle was trained on all {len(trained)} of these labels: score it on other labels, or see what "
            "cross-validation found with hyperscene inspect --bundle"
        )
    predicted = map_array(bundle, _bundle_pixels(scene, manifest), options or MapOptions())
    return Scored(score(truth[is_tested], predicted[is_tested], tuple(manifest.class_names)), len(trained))


@dataclass(frozen=True)
class ArraySource:
    """Pixels in memory, read like a scene."""

    pixels: PixelRows

    def read(self, top: int, bottom: int) -> PixelRows:
        """Rows top..bottom."""
        return PixelRows(top, self.pixels.cube[top:bottom], self.pixels.valid[top:bottom])


def map_array(
    bundle: Bundle, pixels: PixelRows, options: MapOptions, engine: Engine | None = None
) -> NDArray[np.uint16]:
    """The class map (rows, cols) of a whole scene in memory, by the fastest engine if none is given."""
    rows, cols = pixels.valid.shape
    options = options.settled(bundle.manifest, cols)
    engine = engine or make_engine(bundle)
    plan = plan_scene(rows, cols, bundle.manifest, options, engine.batch)
    mapper = StripMapper(engine, bundle.manifest, plan, options.blend)
    return np.concatenate([strip.classes for strip in mapper.map_source(ArraySource(pixels), plan.strips)])


def _bundle_pixels(scene: LabelledScene, manifest: Manifest) -> PixelRows:
    """The scene in the bundle's bands."""
    match = match_manifest(scene.wavelengths_nm, scene.cube.shape[-1], manifest, scene.fwhm_nm)
    fill = np.array(manifest.nodata_fill, np.float32)
    cube = fit_bands(scene.cube[..., match.bands], scene.valid, match.weights, fill)
    return PixelRows(0, cube, scene.valid)


def _bundle_classes(scene: LabelledScene, manifest: Manifest) -> NDArray[np.int64]:
    """The labels with the bundle's class numbers, matched by name, or by value for classes without a name."""
    values = manifest.training.get("data", {}).get("label_values") or []
    table = np.zeros(len(scene.legend) + 1, np.int64)
    for label, entry in enumerate(scene.legend, start=1):
        if entry.name in manifest.class_names:
            table[label] = manifest.class_names.index(entry.name) + 1
        elif entry.value in values and not entry.is_named:
            table[label] = values.index(entry.value) + 1
        else:
            known = ", ".join(manifest.class_names)
            raise LabelsUnusable(
                f"the bundle has no class {entry.name!r} (value {entry.value}); its classes are {known}: "
                "use these names in --classes, or use another bundle"
            )
    return table[scene.labels]


def _training_pixels(scene: LabelledScene, manifest: Manifest, files: LabelledFiles) -> NDArray[np.int64]:
    """The pixels that the bundle was trained on; none if it was trained on another scene or other labels."""
    record = manifest.training
    data = record.get("data", {})
    if "mosaic" in data:  # it learned from windows of a large scene
        learned = load_labelled_scene(files, in_windows=True)
        is_same = learned.digest == data["digest"]
        return learned.places(np.argwhere(learned.labels > 0)) if is_same else np.empty((0, 2), np.int64)
    if data.get("digest") != scene.digest:
        return np.empty((0, 2), np.int64)
    split = record["split"]
    drawn = split_labels(
        scene.labels,
        split["name"],
        split["fraction"] or 0.0,
        split["val_fraction"],
        record["seed"],
        split["separation_px"],
        split.get("train_pixels"),
        split.get("per_class"),
    )
    return drawn.train


def score_table(scores: Scores) -> str:
    """Scores as text: one line per class, then overall accuracy, average accuracy and kappa."""
    width = max(len("class"), *(len(name) for name in scores.class_names))
    lines = [f"{'class':<{width}}  {'pixels':>8}  {'accuracy':>8}  {'precision':>9}"]
    for name, pixels, recall, precision in zip(
        scores.class_names, scores.class_pixels, scores.recall, scores.precision, strict=True
    ):
        lines.append(f"{name:<{width}}  {pixels:>8}  {_percent(recall):>8}  {_percent(precision):>9}")
    return "\n".join([*lines, f"{score_line(scores)}  (in %, {scores.pixels} test pixels)"])


def score_line(scores: Scores) -> str:
    """Overall accuracy, average accuracy and kappa, in percent."""
    figures = {"OA": scores.overall_accuracy, "AA": scores.average_accuracy, "kappa": scores.kappa}
    return "  ".join(f"{name} {100 * value:.2f}" for name, value in figures.items())


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
