"""Spectra as the base classifiers see them: standardised bands, and the components of an MNF transform.

Minimum noise fraction (MNF): Green, Berman, Switzer and Craig, "A transformation for ordering multispectral data in
terms of image quality with implications for noise removal", IEEE TGRS 26 (1988). The noise covariance comes from the
differences between vertical neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf

from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.fit.pixel_graph import PixelGraph

COMPONENTS = 30
STATISTICS_PIXELS = 200_000  # largest sample for a covariance
PAIRS_PER_BAND = 10  # with fewer pairs of neighbours, the noise covariance is shrunk


@dataclass(frozen=True)
class SpectralFeatures:
    """Two representations of every pixel's spectrum, one for each base classifier."""

    standardised: NDArray[np.float32]  # (pixels, bands)
    components: NDArray[np.float32]  # (pixels, COMPONENTS), noise variance 1, highest signal-to-noise ratio first

    @classmethod
    def of(cls, scene: LabelledScene) -> SpectralFeatures:
        """Standardise the bands and transform them."""
        flat = scene.standardised().reshape(-1, scene.cube.shape[-1])
        return cls(flat, flat @ mnf_projection(scene, flat))

    def smoothed(self, graph: PixelGraph) -> SpectralFeatures:
        """The same features, averaged over similar neighbours."""
        return SpectralFeatures(graph.smooth(self.standardised), graph.smooth(self.components))


def mnf_projection(scene: LabelledScene, flat: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """The matrix (bands, COMPONENTS) from standardised bands to the components of largest variance; white noise.

    `flat` are the scene's standardised pixels (pixels, bands), if they are at hand.
    """
    _, cols, bands = scene.cube.shape
    flat = scene.standardised().reshape(-1, bands) if flat is None else flat
    upper = _subsample(np.flatnonzero(scene.valid[1:] & scene.valid[:-1]))
    noise = (flat[upper + cols] - flat[upper]) / math.sqrt(2)
    return noise_adjusted(flat[_subsample(np.flatnonzero(scene.valid))], noise)


def noise_adjusted(spectra: NDArray[np.float32], noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix (bands, components) from standardised spectra to their MNF components."""
    whitening = _noise_whitening(noise)
    sample = spectra @ whitening
    covariance = _covariance(sample) if len(sample) > 1 else np.eye(len(whitening))
    variances, directions = np.linalg.eigh(covariance)
    chosen = directions[:, np.argsort(-variances)[:COMPONENTS]]
    projection: NDArray[np.float32] = (whitening @ chosen).astype(np.float32)
    return projection


def _subsample(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most about twice STATISTICS_PIXELS of the indices, evenly spaced."""
    return indices[:: max(1, len(indices) // STATISTICS_PIXELS)]


def _covariance(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """The covariance of columns; in single precision, twice as fast as numpy's."""
    centred = values - values.mean(axis=0, dtype=np.float64).astype(np.float32)
    found: NDArray[np.float64] = (centred.T @ centred).astype(np.float64) / (len(values) - 1)
    return found


def _noise_whitening(noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix (bands, bands) that gives the noise an identity covariance."""
    bands = noise.shape[1]
    if len(noise) < 2:
        return np.eye(bands, dtype=np.float32)
    if len(noise) < PAIRS_PER_BAND * bands:
        covariance = ledoit_wolf(noise, assume_centered=True)[0]
    else:
        covariance = _covariance(noise)
    variances, directions = np.linalg.eigh(covariance + 1e-6 * np.eye(bands))
    return (directions / np.sqrt(np.maximum(variances, 1e-6))).astype(np.float32)
