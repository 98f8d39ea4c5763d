"""Folds for cross-validation whose held-out pixels lie as far from the labels as the pixels to predict do.

Nearby pixels are alike, so random folds overestimate accuracy far from the labels. The method is k-fold nearest
neighbour distance matching (kNNDM): Linnenbrink, Milà, Ludwig and Meyer, Geoscientific Model Development 17 (2024).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.spatial import cKDTree
from scipy.stats import wasserstein_distance

from hyperscene.training.data.splits import Pixels

FOLDS = 5
MOST_TARGETS = 2000  # pixels to predict whose distances are measured


@dataclass(frozen=True)
class Folds:
    """The fold in which each training pixel is held out."""

    fold_of: NDArray[np.int64]
    held_out_px: float  # median distance of a held-out pixel from the nearest label of the other folds
    target_px: float  # median distance of a pixel to predict from the nearest label


def matched_folds(train: Pixels, targets: Pixels, generator: np.random.Generator) -> Folds:
    """Folds whose held-out distances are most similar to the distances of the pixels to predict, `targets`.

    Training pixels are grouped into clusters, and whole clusters are held out. Of the numbers of clusters tried, that
    with the smallest Wasserstein distance between both distributions is used.
    """
    sample = targets[generator.permutation(len(targets))[:MOST_TARGETS]]
    wanted = cKDTree(train).query(sample)[0]
    best, best_folds = math.inf, None
    clusters = len(train)
    while True:
        fold_of = _assign_folds(_cluster(train, clusters, generator), generator)
        distances = _held_out_distances(train, fold_of)
        difference = wasserstein_distance(distances, wanted)
        if difference < best:
            best, best_folds = difference, Folds(fold_of, float(np.median(distances)), float(np.median(wanted)))
        if clusters <= FOLDS:
            break
        clusters = max(FOLDS, clusters // 2)
    assert best_folds is not None
    return best_folds


def _cluster(train: Pixels, clusters: int, generator: np.random.Generator) -> NDArray[np.int64]:
    if clusters >= len(train):
        return np.arange(len(train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about empty clusters, which do no harm
        _, cluster_of = kmeans2(train.astype(np.float64), clusters, minit="points", seed=generator)
    return cluster_of.astype(np.int64)


def _assign_folds(cluster_of: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Assign clusters to folds, the largest first, each to the fold with the fewest pixels; ties are random."""
    sizes = np.bincount(cluster_of)
    fold_of_cluster, held = np.zeros(len(sizes), np.int64), np.zeros(FOLDS)
    for cluster in np.argsort(-(sizes + generator.random(len(sizes)) / 2)):
        fold = int(np.argmin(held + generator.random(FOLDS) / 2))
        fold_of_cluster[cluster] = fold
        held[fold] += sizes[cluster]
    return fold_of_cluster[cluster_of]


def _held_out_distances(train: Pixels, fold_of: NDArray[np.int64]) -> NDArray[np.float64]:
    """Distance of each pixel from the nearest pixel of another fold."""
    distances = np.zeros(len(train))
    for fold in np.unique(fold_of):
        held = fold_of == fold
        if not held.all():
            distances[held] = cKDTree(train[~held]).query(train[held])[0]
    return distances
