"""How well pixels of a class that was left out of training are told from the others: `python -m tests.unknown_classes`.

Each class in turn is left out of the training labels. The table has the area under the ROC curve (AUROC), mean over
classes: of the distance that `applicability.tif` shows, of one minus the largest probability of the classifiers that
label propagation starts from, and of the spectral angle to the nearest class mean.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from hyperscene.service.mapping.applicability import decode
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.splits import Split, split_labels
from hyperscene.training.fit.applicability import averaged_components, fit_applicability
from hyperscene.training.fit.base_classifiers import fit_base_classifiers
from hyperscene.training.fit.ensembles import Ensemble
from hyperscene.training.fit.spectral_features import SpectralFeatures

WAYS = ("applicability", "the same, pixel by pixel", "largest probability", "spectral angle")
SEPARATION_PX = 17


def auroc(score: np.ndarray, is_unknown: np.ndarray) -> float:
    """The chance that an unknown pixel has a larger score than a known one."""
    ranks, count = rankdata(score), int(is_unknown.sum())
    return float((ranks[is_unknown].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


def nearest(values: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    """Distances from the nearest of the prototypes."""
    squares = (values**2).sum(1)[:, None] + (prototypes**2).sum(1) - 2 * values @ prototypes.T
    return np.sqrt(np.maximum(squares, 0)).min(axis=1)


def scores_without(scene: LabelledScene, split: Split, features: SpectralFeatures) -> list[np.ndarray]:
    """The scores of the test pixels, learnt from the training pixels."""
    train, tested = tuple(split.train.T), tuple(split.test.T)
    found = fit_applicability(scene, split, 0)
    assert found is not None
    projection, prototypes = (decode(text, found.components) for text in (found.projection, found.prototypes))
    averaged = averaged_components(scene, projection)
    single = features.components.reshape(*scene.valid.shape, -1)[..., : found.components]
    flat, tested_flat = (np.ravel_multi_index(index, scene.valid.shape) for index in (train, tested))
    numbers = scene.labels[train].astype(np.int64) - 1
    classifiers = fit_base_classifiers([features], flat, numbers)
    largest = Ensemble((1.0, 1.0), (0.5, 0.5)).predict(classifiers, len(scene.legend))[tested_flat].max(axis=1)
    spectra = scene.cube / np.maximum(np.linalg.norm(scene.cube, axis=-1, keepdims=True), 1e-9)
    means = np.stack([spectra[train][numbers == number].mean(axis=0) for number in np.unique(numbers)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    angle = np.arccos(np.clip(spectra[tested] @ means.T, -1, 1)).min(axis=1)
    return [nearest(averaged[tested], prototypes), nearest(single[tested], single[train]), 1 - largest, angle]


def measure(scene: LabelledScene, split: Split) -> np.ndarray:
    """AUROC of each way (columns) for each class that is left out (rows)."""
    features = SpectralFeatures.of(scene)
    truth = scene.labels[tuple(split.test.T)]
    rows = []
    for value in range(1, len(scene.legend) + 1):
        if (truth == value).any():
            without = replace(split, train=split.train[scene.labels[tuple(split.train.T)] != value])
            rows.append([auroc(score, truth == value) for score in scores_without(scene, without, features)])
    return np.array(rows)


def main() -> None:
    """Print a table in Markdown, mean and lowest class over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--split", default="random", choices=("random", "spatial"))
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--per-class", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    scene = load_labelled_scene(LabelledFiles(options.scene, options.labels))
    found = []
    for seed in range(options.seeds):
        split = split_labels(
            scene.labels, options.split, options.fraction, 0.0, seed, SEPARATION_PX, None, options.per_class
        )
        found.append(measure(scene, split))
        print(f"seed {seed}, {len(split.train)} labels: " + ", ".join(f"{each:.3f}" for each in found[-1].mean(axis=0)))
    means = np.array([each.mean(axis=0) for each in found])
    print("| way | AUROC, mean over classes | worst class |\n|---|---|---|")
    for number, way in enumerate(WAYS):
        worst = np.mean([each[:, number].min() for each in found])
        print(f"| {way} | {means[:, number].mean():.3f} | {worst:.3f} |", flush=True)


if __name__ == "__main__":
    main()
