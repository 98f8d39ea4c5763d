"""Simulated labelling: how many labels "Where next?" needs for an accuracy, against places at random.

python -m tests.active_learning --salinas DIR --hymap DIR --out curves.json --seeds 5
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import rasterio
from scipy.io import loadmat

from hyperscene.service.jobs.label_sets import Change, LabelClass, LabelSet
from hyperscene.service.jobs.live_features import LiveFeatures, compute_features
from hyperscene.service.jobs.live_model import LiveModel, choose_view
from hyperscene.service.settings import Settings
from tests.scenes import write_tif

ROUND, MOST = 10, 250  # labels added at a time, and in all


class Simulation:
    """A scene with a known truth and the live model that learns from its labels."""

    def __init__(self, features: LiveFeatures, truth: np.ndarray) -> None:
        self._features, self._truth = features, truth
        values = np.unique(truth[truth > 0])
        self._classes = [LabelClass(int(value), f"class {value}", "#000000") for value in values]

    def curve(self, is_led: bool, seed: int) -> list[tuple[int, float, float]]:
        """Number of labels, overall and average accuracy; it starts from one label in each class."""
        generator = np.random.default_rng(seed)
        labels = LabelSet(*self._truth.shape).changed([], self._classes)
        first = [generator.permutation(np.flatnonzero(self._truth == each.value))[0] for each in self._classes]
        chosen = [divmod(int(pixel), self._truth.shape[1]) for pixel in first]
        model, found = LiveModel(self._features), []
        while True:
            changes = [Change(int(self._truth[place]), ((*place, 1),)) for place in chosen]
            labels = labels.changed(changes)
            model.fit(labels)
            found.append((len(labels.pixels), *self._accuracy(model, labels)))
            if len(labels.pixels) >= MOST:
                return found
            chosen = self._next(model, labels, generator, is_led)

    def _next(
        self, model: LiveModel, labels: LabelSet, generator: np.random.Generator, is_led: bool
    ) -> list[tuple[int, int]]:
        allowed = self._truth > 0
        allowed.ravel()[labels.pixels] = False
        if is_led:
            return [(each["row"], each["col"]) for each in model.suggest(ROUND, allowed)]
        drawn = generator.permutation(np.flatnonzero(allowed))[:ROUND]
        return [divmod(int(pixel), self._truth.shape[1]) for pixel in drawn]

    def _accuracy(self, model: LiveModel, labels: LabelSet) -> tuple[float, float]:
        whole = choose_view(self._features, (0, 0, *self._truth.shape), 10**9)
        tested = self._truth > 0
        tested.ravel()[labels.pixels] = False
        correct = (model.classify(whole)[0] == self._truth)[tested]
        truth = self._truth[tested]
        average = np.mean([correct[truth == value].mean() for value in np.unique(truth)])
        return float(correct.mean()), float(average)


def read_scenes(salinas: Path | None, hymap: Path | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Cubes and truths: Indian Pines if tensorly is installed, and those in the folders."""
    found = {}
    try:
        from tensorly.datasets import load_indian_pines

        pines = load_indian_pines()
        found["Indian Pines"] = np.asarray(pines.tensor, np.float32), np.asarray(pines.ticks[0])
    except ImportError:
        pass
    if salinas is not None:
        cube = loadmat(salinas / "SalinasA_corrected.mat")["salinasA_corrected"].astype(np.float32)
        found["SalinasA"] = cube, loadmat(salinas / "SalinasA_gt.mat")["salinasA_gt"]
    if hymap is not None:
        with rasterio.open(hymap / "HyMap02_berlin.bsq") as scene, rasterio.open(hymap / "labels.tif") as labels:
            found["HyMap Berlin"] = np.moveaxis(scene.read(), 0, -1).astype(np.float32), labels.read(1)
    return found


def labels_needed(curves: list[list[tuple[int, float, float]]], target: float) -> float | None:
    """Labels until the mean overall accuracy of the curves reaches a target, interpolated."""
    means = np.mean([[point[1] for point in curve[: min(map(len, curves))]] for curve in curves], axis=0)
    counts = np.mean([[point[0] for point in curve[: len(means)]] for curve in curves], axis=0)
    reached = np.flatnonzero(means >= target)
    if not len(reached):
        return None
    at = int(reached[0])
    if at == 0:
        return float(counts[0])
    share = (target - means[at - 1]) / (means[at] - means[at - 1])
    return float(counts[at - 1] + share * (counts[at] - counts[at - 1]))


def main() -> None:
    """Simulate every scene and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--salinas", type=Path, help="folder with SalinasA_corrected.mat and SalinasA_gt.mat")
    parser.add_argument("--hymap", type=Path, help="folder with HyMap02_berlin.bsq and labels.tif")
    parser.add_argument("--out", type=Path, help="file for the curves as JSON")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    curves: dict[str, dict[str, list]] = {}
    for name, (cube, truth) in read_scenes(options.salinas, options.hymap).items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_tif(Path(folder) / "scene.tif", cube)
            compute_features(path, Settings().limits, "", Path(folder))
            simulation = Simulation(LiveFeatures.open(Path(folder)), truth.astype(np.int64))
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            both = {
                "random": [simulation.curve(False, seed) for seed in seeds],
                "led": [simulation.curve(True, seed) for seed in seeds],
            }
        curves[name] = both
        print(f"{name}, {len(np.unique(truth)) - 1} classes, {options.seeds} seeds: labels, random, led")
        for point in range(0, len(both["random"][0]), 4):
            means = {way: np.mean([curve[point][1:] for curve in found], axis=0) for way, found in both.items()}
            shown = "  ".join(f"{way} OA {100 * oa:.1f} AA {100 * aa:.1f}" for way, (oa, aa) in means.items())
            print(f"  {both['random'][0][point][0]:4d}  {shown}", flush=True)
        for count in (100, MOST):
            reached = np.mean([next(each[1] for each in curve if each[0] >= count) for curve in both["random"]])
            needed = labels_needed(both["led"], float(reached))
            text = "not reached" if needed is None else f"{needed:.0f} labels"
            print(f"  random with {count} labels: OA {100 * reached:.1f}; led: {text}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(curves))


if __name__ == "__main__":
    main()
