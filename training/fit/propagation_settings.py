"""Settings of label propagation, chosen by cross-validation inside the training labels.

What is chosen: how much a pixel's own spectrum counts beside its neighbours (the fidelity weight), whether smoothed
spectra are used too, and a temperature for each classifier and for the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from hyperscene.training.data.splits import Pixels
from hyperscene.training.fit.base_classifiers import (
    CLASSIFIERS_PER_FEATURES,
    BaseClassifier,
    fit_base_classifiers,
)
from hyperscene.training.fit.calibration import fit_temperature, pixel_losses
from hyperscene.training.fit.ensembles import LOWEST_TEMPERATURE, SMALLEST_PROBABILITY, Ensemble, fit_ensemble
from hyperscene.training.fit.pixel_graph import Influence, PixelGraph, Probabilities
from hyperscene.training.fit.spatial_folds import FOLDS, Folds, matched_folds
from hyperscene.training.fit.spectral_features import SpectralFeatures

# The weights of a pixel's edges add up to about 8 * 0.4; infinity uses the spectra only.
FIDELITY_WEIGHTS = (math.inf, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
# Relative gain over spectra only that neighbours must bring where no labels can be held out that lie far enough from
# the others. HyMap Berlin: at most 0.08, and neighbours cost 1 to 2 points; SalinasA: 0.19 and more.
NEIGHBOUR_GAIN = 0.1
EQUAL_LOSS = 1e-3  # nats per pixel; settings whose losses differ by less are equally good
# A lower fidelity weight, by at most so many steps, is used if it costs less than so many standard errors. With 5
# labels a class SalinasA, spatial, then had 98.9 instead of 98.2 (seeds 10 to 15), Indian Pines 76.7 instead of 74.4
# (10 to 12). More steps cost HyMap Berlin 5 points.
STANDARD_ERRORS, MOST_STEPS = 2.0, 2
MOST_LABELS = 2_000  # in cross-validation; more take long and change little
REPEATS = 2  # of the cross-validation, with other folds
LARGE_SCENE_PIXELS = 100_000  # above this, the cross-validation is not repeated
BALANCED_RATIO = 2  # labels are balanced if no class has more than so many times the labels of another
RIDGE = 1e-6  # of the equations of neighbouring labels, which are solved in single precision


@dataclass(frozen=True)
class PropagationSettings:
    """The settings that cross-validation chose, and how accurate they were for the held-out pixels."""

    fidelity_weight: float
    temperature: float  # of the result, fitted to the held-out pixels
    ensemble: Ensemble  # how the base classifiers are combined
    accuracy: float | None  # None: no training pixel could be held out
    spectral_accuracy: float | None  # with spectra only
    held_out_px: float  # median distance of a held-out pixel from the nearest label used
    target_px: float  # median distance of a pixel to predict from the nearest label
    uses_smoothed_spectra: bool = False

    @property
    def is_spectra_only(self) -> bool:
        """Each pixel is classified by its own spectrum, so errors are scattered over the scene."""
        return math.isinf(self.fidelity_weight)

    def record(self) -> dict[str, float | str | list[float]]:
        """The settings as stored in a manifest and in a study's cells."""
        return {
            "fidelity_weight": "spectra alone" if self.is_spectra_only else self.fidelity_weight,
            **({"smoothed": True} if self.uses_smoothed_spectra else {}),
            "temperature": round(self.temperature, 4),
            "base_temperatures": [round(temperature, 4) for temperature in self.ensemble.temperatures],
            "base_weights": [round(weight, 4) for weight in self.ensemble.weights],
            **self._accuracy_record(),
            "held_out_distance_px": round(self.held_out_px, 1),
            "target_distance_px": round(self.target_px, 1),
        }

    def _accuracy_record(self) -> dict[str, float]:
        if self.accuracy is None or self.spectral_accuracy is None:
            return {}
        return {
            "held_out_accuracy": round(self.accuracy, 4),
            "held_out_accuracy_of_spectra_alone": round(self.spectral_accuracy, 4),
        }

    def __str__(self) -> str:
        if self.accuracy is None or self.spectral_accuracy is None:
            return "pseudo-labels from spectra only: too few labels to hold some out and test whether neighbours help"
        spectra = "spectra and smoothed spectra" if self.uses_smoothed_spectra else "spectra"
        how = (
            f"{spectra} only, since neighbours did not help"
            if self.is_spectra_only
            else f"{spectra} and neighbours, fidelity weight {self.fidelity_weight:g}"
        )
        return (
            f"pseudo-labels from {how} (held-out training pixels: {100 * self.accuracy:.1f} % correct, "
            f"{100 * self.spectral_accuracy:.1f} % with spectra only; median distance to the nearest label "
            f"{self.held_out_px:.0f} px, of the pixels to predict {self.target_px:.0f} px)"
        )


@dataclass(frozen=True)
class LabelledPixels:
    """Training pixels and their classes."""

    positions: Pixels  # (n, 2): row, col in the whole scene, for distances
    indices: NDArray[np.int64]  # (n), into the pixels that are held in memory, flattened
    classes: NDArray[np.int64]  # (n), 0..K-1

    def __len__(self) -> int:
        return len(self.classes)

    def subset(self, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> LabelledPixels:
        return LabelledPixels(self.positions[chosen], self.indices[chosen], self.classes[chosen])


@dataclass(frozen=True)
class Trial:
    """One fold: base classifiers fitted without its labels, and the pixels that they are tested on."""

    held_out: LabelledPixels
    held_out_numbers: NDArray[np.int64]  # of the held-out pixels among all labels
    sources: NDArray[np.int64]  # numbers of the labels that are propagated
    classifiers: list[BaseClassifier]


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, and what they gave for the held-out pixels of all trials."""

    ensemble: Ensemble
    fidelity_weight: float
    logits: NDArray[np.float32]  # (held-out pixels, classes)


def choose_settings(
    features: Sequence[SpectralFeatures],
    graph: PixelGraph,
    labels: LabelledPixels,
    targets: Pixels,
    class_shares: NDArray[np.float32],
    seed: int,
) -> PropagationSettings:
    """The settings under which the held-out training pixels are most likely, each with its best temperature.

    `features` are plain spectra and, where they may be used, smoothed ones. `class_shares` are the expected shares of
    the classes among the pixels to predict, `targets`. Likelihood is the criterion because a hundred pixels are too few
    to compare accuracies. Of equally good settings that of lower fidelity weight is used, after the standard-error rule
    of Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees" (1984): where every held-out pixel is
    classified well, neighbours correct outliers.
    """
    class_count = len(class_shares)
    weights = class_weights(labels.classes, class_shares)
    generator = np.random.default_rng(seed)
    if len(labels) > MOST_LABELS:
        labels = labels.subset(np.sort(generator.choice(len(labels), MOST_LABELS, replace=False)))
    repeats = 1 if graph.pixels > LARGE_SCENE_PIXELS else REPEATS
    repeated = [matched_folds(labels.positions, targets, generator) for _ in range(repeats)]
    held_out_px, target_px = float(np.median([folds.held_out_px for folds in repeated])), repeated[-1].target_px
    is_too_near = held_out_px < target_px / 2  # the cross-validation would overestimate what neighbours contribute
    if is_too_near:
        features = features[:1]
    trials = [trial for folds in repeated for trial in _trials(features, labels, folds)]
    if not trials:
        alone = Ensemble.uncalibrated()
        return PropagationSettings(math.inf, 1.0, alone, None, None, 0.0, target_px)
    truth = np.concatenate([trial.held_out.classes for trial in trials])
    candidates = list(_candidates(graph, labels, trials, class_count, generator))
    temperatures = [fit_temperature(candidate.logits, truth, LOWEST_TEMPERATURE) for candidate in candidates]
    losses = np.stack(
        [
            pixel_losses(candidate.logits, truth, temperature) * weights[truth] / weights[truth].mean()
            for candidate, temperature in zip(candidates, temperatures, strict=True)
        ],
        axis=1,
    )
    best = _best(_mean_by_label(losses, trials), is_too_near)
    accuracy = [float((candidate.logits.argmax(axis=1) == truth).mean()) for candidate in candidates]
    chosen = candidates[best]
    return PropagationSettings(
        chosen.fidelity_weight,
        temperatures[best],
        chosen.ensemble,
        accuracy[best],
        accuracy[0],
        held_out_px,
        target_px,
        uses_smoothed_spectra=len(chosen.ensemble) > CLASSIFIERS_PER_FEATURES,
    )


def _mean_by_label(losses: NDArray[np.float64], trials: Sequence[Trial]) -> NDArray[np.float64]:
    """The mean loss of each label that was held out, maybe several times: (labels, candidates)."""
    _, label_of = np.unique(np.concatenate([trial.held_out_numbers for trial in trials]), return_inverse=True)
    totals = np.zeros((int(label_of.max()) + 1, losses.shape[1]))
    np.add.at(totals, label_of, losses)
    return totals / np.bincount(label_of)[:, None]


def _best(losses: NDArray[np.float64], is_too_near: bool) -> int:
    """The candidate of lowest mean loss (labels, candidates), or one of a lower fidelity weight if as good."""
    means = losses.mean(axis=0)
    best = int(means.argmin())
    if is_too_near and means[best] > (1 - NEIGHBOUR_GAIN) * means[0]:
        return 0
    end = (best // len(FIDELITY_WEIGHTS) + 1) * len(FIDELITY_WEIGHTS)  # of the candidates with the same features
    found = best
    for lower in range(best + 1, end):
        difference = losses[:, lower] - losses[:, best]
        tolerated = STANDARD_ERRORS * float(difference.std()) / math.sqrt(len(losses))
        is_near = lower <= best + MOST_STEPS
        if difference.mean() <= (max(tolerated, EQUAL_LOSS) if is_near else EQUAL_LOSS):
            found = lower
    return found


def _trials(features: Sequence[SpectralFeatures], labels: LabelledPixels, folds: Folds) -> Iterator[Trial]:
    for fold in range(FOLDS):
        # Labels closer to the held-out pixels than labels are to the pixels to predict would help too much.
        trial = trial_of(features, labels, folds.fold_of == fold, folds.target_px)
        if trial is not None:
            yield trial


def trial_of(
    features: Sequence[SpectralFeatures], labels: LabelledPixels, held: NDArray[np.bool_], apart_px: float = 0.0
) -> Trial | None:
    """Hold out some labels, and propagate those at least `apart_px` away; None if there is nothing to test."""
    # A class whose labels are all held out cannot be predicted.
    tested = held & np.isin(labels.classes, labels.classes[~held])
    if not tested.any() or len(np.unique(labels.classes[~held])) < 2:
        return None
    distance, _ = cKDTree(labels.positions[held]).query(labels.positions)
    used = labels.subset(~held)
    return Trial(
        held_out=labels.subset(tested),
        held_out_numbers=np.flatnonzero(tested),
        sources=np.flatnonzero(~held & (distance >= apart_px)),
        classifiers=fit_base_classifiers(features, used.indices, used.classes),
    )


def _candidates(
    graph: PixelGraph,
    labels: LabelledPixels,
    trials: Sequence[Trial],
    class_count: int,
    generator: np.random.Generator,
) -> Iterator[Candidate]:
    """Plain spectra with each fidelity weight, then the same with smoothed spectra too, where there are some."""
    scores = [
        np.concatenate([trial.classifiers[number].scores(class_count, trial.held_out.indices) for trial in trials])
        for number in range(len(trials[0].classifiers))
    ]
    truth = np.concatenate([trial.held_out.classes for trial in trials])
    numbers = np.concatenate([trial.held_out_numbers for trial in trials])
    for count in range(CLASSIFIERS_PER_FEATURES, len(scores) + 1, CLASSIFIERS_PER_FEATURES):
        ensemble = fit_ensemble(scores[:count], truth, numbers, generator)
        priors = _priors(trials, ensemble, class_count)
        for fidelity_weight in FIDELITY_WEIGHTS:
            found = _predict(graph, labels, trials, priors, fidelity_weight, class_count)
            yield Candidate(ensemble, fidelity_weight, _logits(found))


def predict_trials(
    graph: PixelGraph,
    labels: LabelledPixels,
    trials: Sequence[Trial],
    settings: PropagationSettings,
    class_count: int,
) -> list[Probabilities]:
    """What label propagation with these settings gives for the held-out pixels of each trial."""
    priors = _priors(trials, settings.ensemble, class_count)
    return _predict(graph, labels, trials, priors, settings.fidelity_weight, class_count)


def _priors(trials: Sequence[Trial], ensemble: Ensemble, class_count: int) -> list[Probabilities]:
    return [ensemble.predict(trial.classifiers, class_count) for trial in trials]


def _predict(
    graph: PixelGraph,
    labels: LabelledPixels,
    trials: Sequence[Trial],
    priors: Sequence[Probabilities],
    fidelity_weight: float,
    class_count: int,
) -> list[Probabilities]:
    if math.isinf(fidelity_weight) or not trials:
        return [prior[trial.held_out.indices] for prior, trial in zip(priors, trials, strict=True)]
    columns = np.stack(priors, axis=1).reshape(*graph.shape, -1)  # (rows, cols, trials * classes)
    on_graph = np.stack(np.unravel_index(labels.indices, graph.shape), axis=1)
    influence = graph.influence(on_graph, fidelity_weight, columns)
    by_trial = np.split(influence.from_priors, len(trials), axis=1)
    return [
        predict_held_out(influence, from_prior, trial.sources, trial.held_out_numbers, labels.classes, class_count)
        for from_prior, trial in zip(by_trial, trials, strict=True)
    ]


def predict_held_out(
    influence: Influence,
    from_prior: Probabilities,
    sources: NDArray[np.int64],
    held: NDArray[np.int64],
    classes: NDArray[np.int64],
    class_count: int,
) -> Probabilities:
    """What label propagation gives for the labels `held`, if only the labels `sources` are known."""
    correction = np.eye(class_count)[classes[sources]] - from_prior[sources]
    between = influence.between[np.ix_(sources, sources)]
    strength = np.linalg.solve(between + RIDGE * np.diag(np.diag(between)), correction)
    found = from_prior[held] + influence.between[np.ix_(held, sources)] @ strength
    return np.maximum(found, 0).astype(np.float32)


def sharpen(probabilities: Probabilities, temperature: float) -> Probabilities:
    """Divide the logits by a temperature."""
    powers: Probabilities = np.power(probabilities, 1 / temperature)
    powers /= np.maximum(powers.sum(axis=1, keepdims=True), 1e-30)
    return powers


def _logits(probabilities: Sequence[Probabilities]) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = np.log(np.maximum(np.concatenate(probabilities), SMALLEST_PROBABILITY))
    return logits


def class_weights(classes: NDArray[np.int64], class_shares: NDArray[np.float32]) -> NDArray[np.float64]:
    """The weight of a held-out pixel of each class in the loss.

    Balanced labels do not show how common a class is, so a class weighs as its expected share. Otherwise the labels'
    own proportions are used, which are more reliable than expected ones.
    """
    counts = np.bincount(classes, minlength=len(class_shares))
    if counts.max() > BALANCED_RATIO * counts[counts > 0].min():
        return np.ones(len(class_shares))
    weights: NDArray[np.float64] = np.maximum(class_shares, SMALLEST_PROBABILITY) / np.maximum(counts, 1)
    return weights
