"""Label propagation without a network, beside classifiers of single spectra, on splits of a study.

python -m tests.propagation_accuracy SCENE LABELS --split spatial --train-pixels 100 --train-pixels 500
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hyperscene.training.baselines import BASELINES, SPECTRAL_CLASSIFIERS, predict_baseline
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.splits import Pixels, Split, split_labels
from hyperscene.training.evaluate import score
from hyperscene.training.fit.label_propagation import propagate_labels
from hyperscene.training.study.plan import SEPARATION_PX

VALIDATION = 0.01  # of the labels, as in a study

Classify = Callable[[LabelledScene, Split, int], Pixels]  # classes 1..K of the test pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--classes")
    parser.add_argument("--split", default="random", choices=("random", "spatial"))
    parser.add_argument("--fraction", type=float, action="append", default=[])
    parser.add_argument("--per-class", type=int, action="append", default=[])
    parser.add_argument("--train-pixels", type=int, action="append", default=[])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--baselines", default="all", help="all, none, or names with commas")
    options = parser.parse_args()
    scene = load_labelled_scene(LabelledFiles(options.scene, options.labels, classes=options.classes))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    amounts = [
        *((f"{share:.0%}", share, None, None) for share in options.fraction),
        *((f"{count} per class", 0.0, None, count) for count in options.per_class),
        *((str(count), 0.0, count, None) for count in options.train_pixels),
    ]
    for amount, share, total, per_class in amounts:
        splits = [
            split_labels(scene.labels, options.split, share, VALIDATION, seed, SEPARATION_PX, total, per_class)
            for seed in seeds
        ]
        for name, classify in _methods(options.baselines).items():
            print(
                f"{scene.name}, {options.split}, {amount}: {name}: {_line(scene, splits, seeds, classify)}", flush=True
            )


def _methods(baselines: str) -> dict[str, Classify]:
    names = {"all": list(SPECTRAL_CLASSIFIERS), "none": []}.get(baselines, baselines.split(","))
    return {"label propagation": _propagate} | {BASELINES[name]: _baseline(name) for name in names}


def _propagate(scene: LabelledScene, split: Split, seed: int) -> Pixels:
    indices = np.ravel_multi_index(tuple(split.test.T), scene.labels.shape)
    return propagate_labels(scene, split, seed).probabilities[indices].argmax(axis=1) + 1


def _baseline(name: str) -> Classify:
    return lambda scene, split, seed: predict_baseline(name, scene, split.train, split.test, seed)


def _line(scene: LabelledScene, splits: list[Split], seeds: range, classify: Classify) -> str:
    class_names, found = tuple(entry.name for entry in scene.legend), []
    began = time.process_time()
    for split, seed in zip(splits, seeds, strict=True):
        scores = score(scene.labels[tuple(split.test.T)], classify(scene, split, seed), class_names)
        found.append([scores.overall_accuracy, scores.average_accuracy, scores.kappa])
    seconds = (time.process_time() - began) / len(splits)
    means, spread = 100 * np.mean(found, axis=0), 100 * np.std(found, axis=0, ddof=min(1, len(found) - 1))
    figures = zip(("OA", "AA", "kappa"), means, spread, strict=True)
    return "  ".join(f"{name} {mean:.1f} ± {some:.1f}" for name, mean, some in figures) + f"  ({seconds:.1f} s)"


if __name__ == "__main__":
    main()
