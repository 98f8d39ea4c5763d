"""Linear classifiers of single spectra: logistic regression, and linear discriminant analysis (LDA) with shrinkage.

The shrinkage is that of Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
Journal of Multivariate Analysis 88 (2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from hyperscene.training.fit.pixel_graph import Probabilities
from hyperscene.training.fit.spectral_features import SpectralFeatures

CLASSIFIERS_PER_FEATURES = 3
SMALLEST_SPREAD = 1e-3  # of standardised bands; a constant band has none

Weights = NDArray[np.float32]  # (features, classes)
Offsets = NDArray[np.float32]  # (classes)
ALL_PIXELS = slice(None)


@dataclass(frozen=True)
class BaseClassifier:
    """A linear classifier, fitted to some labels, and the features of all pixels."""

    features: NDArray[np.float32]  # (pixels, features)
    weights: Weights  # (features, classes that have labels)
    offsets: Offsets
    present: NDArray[np.int64]  # the classes that have labels

    def predict(
        self, class_count: int, temperature: float = 1.0, pixels: NDArray[np.int64] | slice = ALL_PIXELS
    ) -> Probabilities:
        """Probabilities (pixels, classes) of scores divided by the temperature."""
        scores = self.features[pixels] @ self.weights + self.offsets
        found = np.zeros((len(scores), class_count), np.float32)
        found[:, self.present] = softmax(scores / np.float32(temperature), axis=1)
        return found

    def scores(self, class_count: int, pixels: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unnormalised log-probabilities (pixels, classes), minus infinity for classes without labels."""
        found = np.full((len(pixels), class_count), -np.inf, np.float32)
        found[:, self.present] = self.features[pixels] @ self.weights + self.offsets
        return found


def fit_base_classifiers(
    features: Sequence[SpectralFeatures], indices: NDArray[np.int64], classes: NDArray[np.int64]
) -> list[BaseClassifier]:
    """Three classifiers for each set of features, from the labels of the pixels at `indices`."""
    present, numbers = np.unique(classes, return_inverse=True)
    found = []
    for each in features:
        with threadpool_limits(1):  # the matrices are so small that threads wait for each other
            regression = logistic_regression(each.standardised[indices], numbers)
            discriminant = shrinkage_lda(each.components[indices], numbers)
            of_all_bands = shrinkage_lda(each.standardised[indices], numbers, is_scaled=True)
        found += [
            BaseClassifier(each.standardised, *regression, present),
            BaseClassifier(each.components, *discriminant, present),
            BaseClassifier(each.standardised, *of_all_bands, present),
        ]
    return found


def logistic_regression(
    features: NDArray[np.float32], classes: NDArray[np.integer], inverse_penalty: float = 10.0
) -> tuple[Weights, Offsets]:
    """Multinomial logistic regression with an L2 penalty."""
    fitted = LogisticRegression(C=inverse_penalty, max_iter=2000).fit(features, classes)
    weights, offsets = fitted.coef_.T, fitted.intercept_
    if len(offsets) == 1:  # two classes: scikit-learn gives the logit of the second
        weights, offsets = np.hstack([-weights, weights]) / 2, np.concatenate([-offsets, offsets]) / 2
    return weights.astype(np.float32), offsets.astype(np.float32)


def shrinkage_lda(
    features: NDArray[np.float32], classes: NDArray[np.int64], is_scaled: bool = False
) -> tuple[Weights, Offsets]:
    """Linear discriminant analysis with one shrunk covariance for all classes; scaled, correlations are shrunk."""
    values = features.astype(np.float64)
    counts = np.bincount(classes)
    means = np.stack([values[classes == value].mean(axis=0) for value in range(len(counts))])
    spread = np.ones(values.shape[1])
    if is_scaled and len(classes) > len(counts):
        spread = np.maximum((values - means[classes]).std(axis=0), SMALLEST_SPREAD)
    covariance, _ = ledoit_wolf((values - means[classes]) / spread, assume_centered=True)
    # One more pixel with the covariance of the noise: with one pixel per class, the covariance would be zero.
    covariance = (covariance * len(classes) + np.eye(len(covariance))) / (len(classes) + 1)
    covariance *= np.outer(spread, spread)
    weights = np.linalg.solve(covariance, means.T)  # (components, classes)
    offsets = np.log(counts / counts.sum()) - (means.T * weights).sum(axis=0) / 2
    return weights.astype(np.float32), offsets.astype(np.float32)
