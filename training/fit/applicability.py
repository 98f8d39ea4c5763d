"""What a bundle records of its training pixels, so that maps show where they are unlike them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from hyperscene.model.bundle import Applicability
from hyperscene.service.mapping.applicability import average, encode
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Split
from hyperscene.training.fit.cross_validation import cluster_folds, pixel_folds
from hyperscene.training.fit.spectral_features import mnf_projection

COMPONENTS = 20
WINDOW_PX = 5
MOST_PROTOTYPES = 512
SHARE = 0.95  # of held-out training pixels that lie inside
FEWEST_HELD_OUT = 20


def fit_applicability(scene: LabelledScene, split: Split, seed: int) -> Applicability | None:
    """The record of a manifest; None if there are too few training pixels to find a threshold."""
    projection = mnf_projection(scene)[:, :COMPONENTS]
    index = tuple(split.train.T)
    prototypes = averaged_components(scene, projection)[index]
    classes = scene.labels[index].astype(np.int64) - 1
    generator = np.random.default_rng(seed)
    if len(prototypes) > MOST_PROTOTYPES:
        chosen = _by_class(classes, generator)
        prototypes, classes, index = prototypes[chosen], classes[chosen], tuple(each[chosen] for each in index)
    held_out = "clusters"
    distances = _held_out(prototypes, cluster_folds(classes, scene.clusters[index], generator))
    if len(distances) < FEWEST_HELD_OUT:
        held_out, distances = "pixels", _held_out(prototypes, pixel_folds(classes, generator))
    if len(distances) < FEWEST_HELD_OUT:
        return None
    return Applicability(
        components=projection.shape[1],
        projection=encode(projection),
        prototypes=encode(prototypes),
        window_px=WINDOW_PX,
        threshold=max(float(np.quantile(distances, SHARE)), 1e-6),
        share=SHARE,
        held_out=held_out,
    )


def averaged_components(scene: LabelledScene, projection: NDArray[np.floating]) -> NDArray[np.float32]:
    """Components of all pixels (rows, cols, components), as mapping computes them."""
    components = np.where(scene.valid[..., None], scene.standardised() @ projection.astype(np.float32), np.float32(0))
    return average(components, scene.valid, WINDOW_PX)


def _by_class(classes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of MOST_PROTOTYPES pixels, as equally divided among the classes as they allow."""
    order = generator.permutation(len(classes))
    rank = np.zeros(len(classes), np.int64)
    for value in np.unique(classes):
        members = order[classes[order] == value]
        rank[members] = np.arange(len(members))
    return np.sort(np.argsort(rank, kind="stable")[:MOST_PROTOTYPES])


def _held_out(values: NDArray[np.float32], fold_of: NDArray[np.int64]) -> NDArray[np.float64]:
    """The distance of each held-out pixel from the nearest pixel of the other folds."""
    found = []
    for fold in np.unique(fold_of[fold_of >= 0]):
        held = fold_of == fold
        if not held.all():
            found.append(cKDTree(values[~held]).query(values[held])[0])
    return np.concatenate(found) if found else np.zeros(0)
