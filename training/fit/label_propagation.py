"""Label propagation: pseudo-labels for every pixel of a scene, from few labels.

A network that learns from a few labelled patches overfits to their surroundings. So a semi-supervised classifier comes
first, and the network learns its probabilities (knowledge distillation: Hinton, Vinyals and Dean, "Distilling the
knowledge in a neural network", arXiv:1503.02531, 2015):

1. `spectral_features`: minimum noise fraction (MNF) components of the spectra;
2. `base_classifiers`: logistic regression and shrinkage LDA of single spectra;
3. `ensembles`: their weighted mean;
4. `pixel_graph`: label propagation along the graph of similar neighbours (random walker with priors);
5. `propagation_settings`: their settings, by cross-validation inside the training labels;
6. `cross_validation`: how accurate the result is, if no labels were set aside for testing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Split
from hyperscene.training.fit.base_classifiers import (
    CLASSIFIERS_PER_FEATURES,
    fit_base_classifiers,
)
from hyperscene.training.fit.cross_validation import CrossValidation, cross_validate
from hyperscene.training.fit.ensembles import Ensemble
from hyperscene.training.fit.pixel_graph import PixelGraph, Probabilities
from hyperscene.training.fit.propagation_settings import (
    LabelledPixels,
    PropagationSettings,
    choose_settings,
    sharpen,
)
from hyperscene.training.fit.spectral_features import SpectralFeatures

EDGE_COMPONENTS = 10  # MNF components by which neighbours are compared
# With fewer labels per class on average, smoothed spectra are tried too: noise matters most then.
FEW_LABELS = 6


@dataclass(frozen=True)
class PseudoLabels:
    """Probabilities for all pixels of a scene (rows * cols, classes); zeros where it has no data."""

    probabilities: Probabilities
    settings: PropagationSettings
    validation: CrossValidation | None = None  # None: test pixels tell how accurate the result is
    cached_s: float = 0.0  # seconds that a cached result took to compute


PropagateLabels = Callable[[LabelledScene, Split, int], PseudoLabels]


def propagate_labels(scene: LabelledScene, split: Split, seed: int) -> PseudoLabels:
    """Pseudo-labels for the whole scene from the labels of its training pixels."""
    labels, class_count = _training_labels(scene, split), len(scene.legend)
    spectra = SpectralFeatures.of(scene)
    graph = PixelGraph.of(spectra.components[:, :EDGE_COMPONENTS], scene.valid)
    has_few_labels = len(labels) < FEW_LABELS * len(np.unique(labels.classes))
    features = [spectra, spectra.smoothed(graph)] if has_few_labels else [spectra]
    classifiers = fit_base_classifiers(features, labels.indices, labels.classes)
    uncalibrated = Ensemble.uncalibrated().predict(classifiers, class_count)
    class_shares = _class_shares(uncalibrated, scene, split)
    targets = scene.places(split.test if len(split.test) else np.argwhere(scene.typical))
    settings = choose_settings(features, graph, labels, targets, class_shares, seed)
    prior = settings.ensemble.predict(classifiers, class_count)
    probabilities = graph.propagate(prior, labels.indices, labels.classes, settings.fidelity_weight)
    validation = None
    if not len(split.test):
        clusters = scene.clusters.ravel()[labels.indices]
        validation = cross_validate(
            features[: len(settings.ensemble) // CLASSIFIERS_PER_FEATURES],
            graph,
            labels,
            clusters,
            settings,
            class_count,
            seed,
        )
    return PseudoLabels(_sharpened(probabilities, settings.temperature, scene), settings, validation)


def _training_labels(scene: LabelledScene, split: Split) -> LabelledPixels:
    indices = np.ravel_multi_index((split.train[:, 0], split.train[:, 1]), scene.valid.shape)
    return LabelledPixels(scene.places(split.train), indices, scene.labels.ravel()[indices].astype(np.int64) - 1)


def _class_shares(probabilities: Probabilities, scene: LabelledScene, split: Split) -> Probabilities:
    """Expected shares of the classes among the test pixels, or in the whole scene if there are none."""
    tested = np.ravel_multi_index((split.test[:, 0], split.test[:, 1]), scene.valid.shape)
    shares: Probabilities = (probabilities[tested] if len(tested) else probabilities[scene.typical.ravel()]).mean(
        axis=0
    )
    return shares


def _sharpened(probabilities: Probabilities, temperature: float, scene: LabelledScene) -> Probabilities:
    """Divide the logits by the temperature, if that is below 1.

    Far from the labels, propagation is more accurate than its probabilities say, and a network learns confident
    targets faster.
    """
    sharpened = sharpen(probabilities, min(1.0, temperature))
    sharpened[~scene.valid.ravel()] = 0
    return sharpened


class PropagationCache:
    """`propagate_labels` that keeps its last result: cells of a study often share their labels."""

    def __init__(self) -> None:
        self._key: tuple[LabelledScene, Split, int] | None = None
        self._cached: PseudoLabels | None = None

    def __call__(self, scene: LabelledScene, split: Split, seed: int) -> PseudoLabels:
        key = self._key
        if self._cached and key and key[0] is scene and key[1] is split and key[2] == seed:
            return self._cached
        began = time.perf_counter()
        found = propagate_labels(scene, split, seed)
        self._key = (scene, split, seed)
        self._cached = replace(found, cached_s=round(time.perf_counter() - began, 3))
        return found
