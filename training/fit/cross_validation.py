"""How accurate a map from these labels is, by spatial cross-validation inside the labels.

Labels that lie together are alike, so whole clusters (a polygon, an area of a raster) are held out at a time: Roberts
et al., "Cross-validation strategies for data with temporal, spatial, hierarchical, or phylogenetic structure",
Ecography 40 (2017). What is tested is label propagation, which the network learns from. Intervals come from a bootstrap
of the clusters, since the pixels of a cluster are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.transform import Affine
from scipy.spatial import cKDTree

from hyperscene.service.assessment.intervals import wilson
from hyperscene.training.evaluate import confusion_of, score
from hyperscene.training.fit.calibration import Bins, calibration_error, reliability_bins, reliability_lines
from hyperscene.training.fit.pixel_graph import PixelGraph, Probabilities
from hyperscene.training.fit.propagation_settings import (
    LabelledPixels,
    PropagationSettings,
    Trial,
    predict_trials,
    sharpen,
    trial_of,
)
from hyperscene.training.fit.spectral_features import SpectralFeatures

FOLDS = 5
MOST_LABELS = 2_000  # in cross-validation, at random
RESAMPLES = 1_000  # of the bootstrap
# A likely mistake: without the label, another class has at least the first probability, its own at most the second.
MISTAKE_PROBABILITY, OWN_PROBABILITY = 0.7, 0.1
MOST_MISTAKES = 50

Interval = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """An accuracy and its 95 % interval; None if nothing could be tested."""

    value: float | None
    interval: Interval | None = None

    def record(self) -> dict[str, Any]:
        return {"value": _rounded(self.value), "interval": None if self.interval is None else _both(self.interval)}

    def __str__(self) -> str:
        if self.value is None or self.interval is None:
            return "-"
        low, high = self.interval
        return f"{100 * self.value:.1f} ({100 * low:.0f} to {100 * high:.0f})"


@dataclass(frozen=True)
class Estimate:
    """Accuracies for labels that were held out in one way."""

    pixels: int
    clusters: int
    distance_px: float  # median distance of a held-out label from the nearest one used
    overall: Figure
    average: Figure
    kappa: Figure
    recall: tuple[Figure, ...]  # of each class
    precision: tuple[Figure, ...]
    confusion: NDArray[np.int64]  # truth in rows, predictions in columns
    reliability: Bins  # of the confidence that the network is calibrated to

    def record(self, class_names: Sequence[str]) -> dict[str, Any]:
        """The estimate as stored in a manifest."""
        counts = self.confusion.sum(axis=1)
        return {
            "pixels": self.pixels,
            "clusters": self.clusters,
            "distance_px": round(self.distance_px, 1),
            "oa": self.overall.record(),
            "aa": self.average.record(),
            "kappa": self.kappa.record(),
            "per_class": [
                {"name": name, "pixels": int(count), "accuracy": recall.record(), "precision": precision.record()}
                for name, count, recall, precision in zip(class_names, counts, self.recall, self.precision, strict=True)
            ],
            "confusion": self.confusion.tolist(),
            "calibration_error": round(calibration_error(self.reliability), 4),
            "reliability": [
                {"confidence": round(confidence, 4), "accuracy": round(share, 4), "labels": count}
                for confidence, share, count in self.reliability
            ],
        }


@dataclass(frozen=True)
class LikelyMistake:
    """A label that its held-out prediction contradicts."""

    row: int
    col: int
    labelled: int  # class 0..K-1
    predicted: int
    probability: float  # of the predicted class


@dataclass(frozen=True)
class CrossValidation:
    """What cross-validation found out about a set of labels."""

    far: Estimate | None  # whole clusters held out; None if no class has two clusters
    near: Estimate | None  # single pixels held out: places close to labels; None if no class has two pixels
    single_clusters: tuple[int, ...]  # classes whose labels lie in one cluster, so that `far` cannot test them
    mistakes: tuple[LikelyMistake, ...]

    def record(self, class_names: Sequence[str]) -> dict[str, Any]:
        """The results as stored in a manifest."""
        return {
            "method": "spatial cross-validation of label propagation inside the labels",
            "far_from_labels": None if self.far is None else self.far.record(class_names),
            "close_to_labels": None if self.near is None else self.near.record(class_names),
            "classes_in_one_cluster": [class_names[number] for number in self.single_clusters],
            "likely_mistakes": [
                {
                    "row": mistake.row,
                    "col": mistake.col,
                    "label": class_names[mistake.labelled],
                    "predicted": class_names[mistake.predicted],
                    "probability": round(mistake.probability, 3),
                }
                for mistake in self.mistakes
            ],
        }


@dataclass(frozen=True)
class HeldOut:
    """Labels that were held out, and what the other folds gave for them."""

    numbers: NDArray[np.int64]  # among all labels
    labels: LabelledPixels
    clusters: NDArray[np.int64]
    distance_px: NDArray[np.float64]  # from the nearest label used
    probabilities: Probabilities  # (labels, classes)


def cross_validate(
    features: Sequence[SpectralFeatures],
    graph: PixelGraph,
    labels: LabelledPixels,
    clusters: NDArray[np.integer],
    settings: PropagationSettings,
    class_count: int,
    seed: int,
) -> CrossValidation:
    """Hold out whole clusters, and single pixels; `clusters` has the cluster of each label."""
    generator = np.random.default_rng(seed)
    if len(labels) > MOST_LABELS:
        chosen = np.sort(generator.choice(len(labels), MOST_LABELS, replace=False))
        labels, clusters = labels.subset(chosen), clusters[chosen]
    folds = [cluster_folds(labels.classes, clusters, generator), pixel_folds(labels.classes, generator)]
    trials = [[trial_of(features, labels, fold_of == fold) for fold in range(FOLDS)] for fold_of in folds]
    made = [[trial for trial in some if trial is not None] for some in trials]
    predictions = predict_trials(graph, labels, [*made[0], *made[1]], settings, class_count)
    far, near = predictions[: len(made[0])], predictions[len(made[0]) :]
    held = [
        _pool(labels, clusters, some, found, settings.temperature) for some, found in ((made[0], far), (made[1], near))
    ]
    counts = [len(np.unique(clusters[labels.classes == number])) for number in range(class_count)]
    contradicted = np.zeros(len(labels), bool) if held[0] is None else _contradicted(held[0], len(labels))
    # Wrong labels mislead the predictions of others: those that look wrong are predicted again without all of them.
    again = trial_of(features, labels, contradicted) if contradicted.any() else None
    suspected = [] if again is None else [again]
    predictions = predict_trials(graph, labels, suspected, settings, class_count)
    without = _pool(labels, clusters, suspected, predictions, settings.temperature)
    return CrossValidation(
        far=None if held[0] is None else estimate_of(held[0], class_count, generator),
        near=None if held[1] is None else estimate_of(held[1], class_count, generator),
        single_clusters=tuple(number for number, count in enumerate(counts) if count == 1),
        mistakes=() if without is None else likely_mistakes(without),
    )


def cluster_folds(
    classes: NDArray[np.int64], clusters: NDArray[np.integer], generator: np.random.Generator
) -> NDArray[np.int64]:
    """The fold in which each label is held out with its whole cluster; -1 for classes of a single cluster."""
    fold_of, held = np.full(len(classes), -1), np.zeros(FOLDS)
    for number in np.unique(classes):
        own, sizes = np.unique(clusters[classes == number], return_counts=True)
        if len(own) < 2:
            continue
        held_of_class = np.zeros(FOLDS)
        for cluster in np.argsort(-(sizes + generator.random(len(sizes)) / 2)):
            fold = int(np.lexsort((generator.random(FOLDS), held, held_of_class))[0])
            fold_of[(clusters == own[cluster]) & (classes == number)] = fold
            held_of_class[fold] += sizes[cluster]
            held[fold] += sizes[cluster]
    return fold_of


def pixel_folds(classes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """The fold in which each label is held out by itself; -1 for classes of a single label."""
    fold_of = np.full(len(classes), -1)
    for number in np.unique(classes):
        of_class = generator.permutation(np.flatnonzero(classes == number))
        if len(of_class) > 1:
            fold_of[of_class] = (np.arange(len(of_class)) + generator.integers(FOLDS)) % FOLDS
    return fold_of


def _pool(
    labels: LabelledPixels,
    clusters: NDArray[np.integer],
    trials: Sequence[Trial],
    predictions: Sequence[Probabilities],
    temperature: float,
) -> HeldOut | None:
    if not trials:
        return None
    numbers = np.concatenate([trial.held_out_numbers for trial in trials])
    distances = [cKDTree(labels.positions[trial.sources]).query(trial.held_out.positions)[0] for trial in trials]
    return HeldOut(
        numbers,
        labels.subset(numbers),
        clusters[numbers].astype(np.int64),
        np.concatenate(distances),
        sharpen(np.concatenate(predictions), temperature),
    )


def estimate_of(held: HeldOut, class_count: int, generator: np.random.Generator) -> Estimate:
    """Accuracies of held-out labels, with intervals from a bootstrap of their clusters."""
    truth, predicted = held.labels.classes, held.probabilities.argmax(axis=1)
    _, cluster_of = np.unique(held.clusters, return_inverse=True)
    cluster_count = int(cluster_of.max()) + 1
    by_cluster = np.zeros((cluster_count, class_count, class_count))
    np.add.at(by_cluster, (cluster_of, truth, predicted), 1)
    draws = generator.multinomial(cluster_count, np.full(cluster_count, 1 / cluster_count), RESAMPLES)
    resampled = np.tensordot(draws, by_cluster, 1)  # (RESAMPLES, classes, classes)
    exact = score(truth + 1, predicted + 1, tuple(map(str, range(class_count))))
    confusion = confusion_of(truth + 1, predicted + 1, class_count)
    correct, labelled, given = (
        np.diagonal(resampled, axis1=1, axis2=2), resampled.sum(axis=2), resampled.sum(axis=1)
    )  # fmt: skip
    total = resampled.sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        overall, recall, precision = correct.sum(axis=1) / total, correct / labelled, correct / given
        by_chance = (labelled * given).sum(axis=1) / total**2
        kappa = (overall - by_chance) / (1 - by_chance)
        average = _mean_of_known(recall)
    clusters_with = (by_cluster.sum(axis=2) > 0).sum(axis=0)
    clusters_given = (by_cluster.sum(axis=1) > 0).sum(axis=0)
    return Estimate(
        pixels=len(truth),
        clusters=cluster_count,
        distance_px=float(np.median(held.distance_px)),
        overall=_proportion(exact.overall_accuracy, overall, cluster_count),
        average=Figure(exact.average_accuracy, _percentiles(average)),
        kappa=Figure(exact.kappa, _percentiles(kappa)),
        recall=tuple(map(_proportion, exact.recall, recall.T, clusters_with)),
        precision=tuple(map(_proportion, exact.precision, precision.T, clusters_given)),
        confusion=confusion,
        reliability=reliability_bins(held.probabilities.max(axis=1), truth == predicted),
    )


def _mean_of_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = np.isfinite(values)
    mean: NDArray[np.float64] = np.where(known, values, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return mean


def _percentiles(values: NDArray[np.float64]) -> Interval | None:
    known = values[np.isfinite(values)]
    return (float(np.percentile(known, 2.5)), float(np.percentile(known, 97.5))) if len(known) else None


def _proportion(value: float | None, resampled: NDArray[np.float64], clusters: int) -> Figure:
    """A proportion with the Wilson interval of its effective sample size.

    The bootstrap gives the variance, and so how many independent pixels the clusters are worth: at least as many as
    there are clusters. Its own percentiles would be one point where all held-out pixels are classified correctly.
    """
    known = resampled[np.isfinite(resampled)]
    if value is None or not len(known):
        return Figure(None)
    variance = float(known.var())
    worth = max(float(clusters), value * (1 - value) / variance if variance > 0 else 0.0)
    return Figure(value, wilson(value, worth))


def _is_contradicted(held: HeldOut) -> NDArray[np.bool_]:
    own = held.probabilities[np.arange(len(held.labels)), held.labels.classes]
    found: NDArray[np.bool_] = (held.probabilities.max(axis=1) >= MISTAKE_PROBABILITY) & (own <= OWN_PROBABILITY)
    return found


def _contradicted(held: HeldOut, count: int) -> NDArray[np.bool_]:
    """Which of all labels are contradicted by their held-out prediction."""
    found = np.zeros(count, bool)
    found[held.numbers[_is_contradicted(held)]] = True
    return found


def likely_mistakes(held: HeldOut) -> tuple[LikelyMistake, ...]:
    """Contradicted labels, the most certain first."""
    highest, predicted = held.probabilities.max(axis=1), held.probabilities.argmax(axis=1)
    contradicted = np.flatnonzero(_is_contradicted(held))
    order = contradicted[np.argsort(-highest[contradicted], kind="stable")][:MOST_MISTAKES]
    return tuple(
        LikelyMistake(
            int(held.labels.positions[number, 0]),
            int(held.labels.positions[number, 1]),
            int(held.labels.classes[number]),
            int(predicted[number]),
            float(highest[number]),
        )
        for number in order
    )


def validation_lines(found: CrossValidation, class_names: Sequence[str]) -> list[str]:
    """The results as a table, in percent with 95 % intervals."""
    main = found.far or found.near
    if main is None:
        return ["accuracy unknown: every class has one labelled pixel; label more to have it estimated"]
    way = "whole clusters of labels" if found.far is not None else "single labels"
    width = max(len("class"), *map(len, class_names))
    lines = [
        f"estimated by cross-validation: {main.pixels} labels in {main.clusters} clusters, {way} held out",
        f"{'class':<{width}}  {'labels':>6}  {'accuracy':>16}  {'precision':>16}",
    ]
    counts = main.confusion.sum(axis=1)
    for name, count, recall, precision in zip(class_names, counts, main.recall, main.precision, strict=True):
        lines.append(f"{name:<{width}}  {count:>6}  {recall!s:>16}  {precision!s:>16}")
    lines.append(f"OA {main.overall}  AA {main.average}  kappa {main.kappa}  (in %, 95 % intervals)")
    lines += reliability_lines(main.reliability)
    if found.far is not None and found.near is not None:
        lines.append(
            f"close to labels ({found.near.distance_px:.0f} px): OA {found.near.overall}; "
            f"far from labels ({found.far.distance_px:.0f} px): OA {found.far.overall}"
        )
    return lines


def advice(
    found: CrossValidation, counts: Sequence[int], class_names: Sequence[str], transform: Affine | None
) -> list[str]:
    """What to do next: classes that need labels elsewhere, and labels to look at; `counts` are labels per class."""
    lines = [
        f"class {class_names[number]!r} has {counts[number]} labelled pixel{'s' * (counts[number] != 1)} in one place: "
        "label some elsewhere, so that its accuracy can be estimated"
        for number in found.single_clusters
    ]
    if found.mistakes:
        first = found.mistakes[0]
        where = f"row {first.row}, column {first.col}"
        if transform is not None:
            x, y = transform @ (first.col + 0.5, first.row + 0.5)
            where += f" (x {x:.10g}, y {y:.10g})"
        lines.append(
            f"{len(found.mistakes)} label{'s look' if len(found.mistakes) > 1 else ' looks'} like a mistake, first "
            f"{class_names[first.labelled]!r} at {where}, which looks like {class_names[first.predicted]!r}; "
            "the bundle's manifest lists them"
        )
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _both(interval: Interval) -> list[float]:
    return [round(bound, 4) for bound in interval]
