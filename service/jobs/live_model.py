"""The live model: labels to a class map of a window within a fraction of a second.

Shrinkage LDA of the MNF components gives each pixel's prior; label propagation on the window's pixel graph (the random
walker with priors) gives the map. Only a session's own process imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.special import softmax

from hyperscene.service.jobs.label_sets import LabelSet
from hyperscene.service.jobs.live_features import LiveFeatures
from hyperscene.training.fit.base_classifiers import shrinkage_lda
from hyperscene.training.fit.cross_validation import HeldOut, cluster_folds, estimate_of, likely_mistakes
from hyperscene.training.fit.pixel_graph import PixelGraph, Probabilities
from hyperscene.training.fit.propagation_settings import LabelledPixels

# On the demo scene with 5 strokes in each of 8 classes, weights of 0.1 to 0.3 give 94 to 95 % and 1.0 gives 89 %.
FIDELITY_WEIGHT = 0.3
EDGE_COMPONENTS = 10
TOLERANCE = 2e-3  # of a step of the solver: below what a picture shows
MARGIN_PX = 8  # around a window, so that its edges are classified with their neighbours
MOST_LABELS = 20_000  # to fit, at random
HELD_OUT_RADIUS_PX = 12
MOST_CLUSTERS = 150  # that are held out
SUGGESTION_PIXELS = 60_000  # places that are compared
MOST_UNCERTAIN = 0.1  # share of the places that are candidates


@dataclass(frozen=True)
class View:
    """A window at one level, in that level's pixels."""

    level: int
    top: int
    left: int
    bottom: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left

    @property
    def in_scene(self) -> tuple[int, int, int, int]:
        """Top, left, rows and columns in pixels of the scene; the last ones may lie outside."""
        scale = 2**self.level
        return self.top * scale, self.left * scale, self.shape[0] * scale, self.shape[1] * scale

    def grown(self, margin: int, rows: int, cols: int) -> View:
        """With a margin, inside a level of this size."""
        return View(
            self.level,
            max(0, self.top - margin),
            max(0, self.left - margin),
            min(rows, self.bottom + margin),
            min(cols, self.right + margin),
        )


def choose_view(features: LiveFeatures, window: tuple[int, int, int, int], most_pixels: int) -> View:
    """The finest level at which a window of the scene (top, left, rows, cols) has at most so many pixels."""
    top, left, rows, cols = window
    bottom, right = min(features.rows, top + rows), min(features.cols, left + cols)
    for level in range(features.levels):
        scale = 2**level
        view = View(level, top // scale, left // scale, -(-bottom // scale), -(-right // scale))
        if math.prod(view.shape) <= most_pixels:
            break
    return view


@dataclass
class _Window:
    """What of a view does not depend on the labels, and its last result."""

    view: View  # with margin
    components: NDArray[np.float32]  # (pixels, components)
    valid: NDArray[np.bool_]  # (rows, cols)
    graph: PixelGraph
    result: Probabilities | None = None
    classes: tuple[int, ...] = ()


class LiveModel:
    """The classifier of one label set."""

    def __init__(self, features: LiveFeatures) -> None:
        self._features = features
        self._levels = [features.level(number) for number in range(features.levels)]
        self._window: _Window | None = None
        self.labels: LabelSet | None = None
        self.classes: tuple[int, ...] = ()  # values of the classes that have labels
        self._weights: NDArray[np.float32] = np.zeros((features.components, 0), np.float32)
        self._offsets: NDArray[np.float32] = np.zeros(0, np.float32)
        self._held_out: _HeldOutWork | None = None

    def fit(self, labels: LabelSet) -> None:
        """Learn from labels, unless they are those that it learnt from before."""
        if self.labels is not None and labels.etag == self.labels.etag:
            return
        self.labels, self._held_out = labels, None
        spectra, numbers, positions = self._labelled(labels)
        self.classes = tuple(map(int, np.unique(numbers)))
        self._fitted = LabelledPixels(positions, np.arange(len(numbers)), np.searchsorted(self.classes, numbers))
        self._spectra = spectra
        if len(self.classes) > 1:
            self._weights, offsets = shrinkage_lda(spectra, self._fitted.classes)
            # Without the shares of the classes among the labels: a person does not label at random. On Indian Pines,
            # SalinasA and HyMap Berlin with 130 labels, average accuracy rises by 0 to 6 points.
            counts = np.bincount(self._fitted.classes)
            self._offsets = offsets - np.log(counts / counts.sum()).astype(np.float32)

    def _labelled(self, labels: LabelSet) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Components, class values and positions of labelled pixels with data."""
        positions, values = labels.positions, labels.values.astype(np.int64)
        if len(values) > MOST_LABELS:
            chosen = np.sort(np.random.default_rng(0).choice(len(values), MOST_LABELS, replace=False))
            positions, values = positions[chosen], values[chosen]
        found = self._levels[0][positions[:, 0], positions[:, 1]].astype(np.float32)
        known = np.isfinite(found).all(axis=1) if len(found) else np.zeros(0, bool)
        return found[known], values[known], positions[known]

    @property
    def is_fitted(self) -> bool:
        return len(self.classes) > 1

    def classify(self, view: View) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Class values (rows, cols), 0 for no data, and confidences in steps of 1/255."""
        probabilities, window = self._probabilities(view)
        rows, cols = window.valid.shape
        best = probabilities.argmax(axis=1)
        values = np.array(self.classes, np.uint8)[best].reshape(rows, cols)
        highest = np.take_along_axis(probabilities, best[:, None], 1).reshape(rows, cols)
        confidence = np.clip(np.rint(255 * highest), 0, 255).astype(np.uint8)
        values[~window.valid], confidence[~window.valid] = 0, 0
        top, left = view.top - window.view.top, view.left - window.view.left
        inner = np.s_[top : top + view.shape[0], left : left + view.shape[1]]
        return values[inner], confidence[inner]

    def _probabilities(self, view: View) -> tuple[Probabilities, _Window]:
        window = self._open(view)
        prior = softmax(window.components @ self._weights + self._offsets, axis=1).astype(np.float32)
        positions = self._fitted.positions // 2**view.level - (window.view.top, window.view.left)
        rows, cols = window.valid.shape
        inside = ((positions >= 0) & (positions < (rows, cols))).all(axis=1)
        indices = positions[inside] @ (cols, 1)
        classes = self._fitted.classes[inside]
        _, last = np.unique(indices[::-1], return_index=True)  # a coarse pixel may have several labels
        kept = len(indices) - 1 - last
        kept = kept[window.valid.ravel()[indices[kept]]]
        start = window.result if window.classes == self.classes else None
        result = window.graph.propagate(prior, indices[kept], classes[kept], FIDELITY_WEIGHT, start, TOLERANCE)
        window.result, window.classes = result, self.classes
        return result, window

    def _open(self, view: View) -> _Window:
        """The window of a view; the last one is kept, since strokes follow each other in one place."""
        level = self._levels[view.level]
        grown = view.grown(MARGIN_PX, *level.shape[:2])
        if self._window is None or self._window.view != grown:
            components = level[grown.top : grown.bottom, grown.left : grown.right].astype(np.float32)
            valid = ~np.isnan(components[..., 0])
            components[~valid] = 0
            graph = PixelGraph.of(components[..., :EDGE_COMPONENTS], valid)
            flat = components.reshape(-1, components.shape[-1])
            self._window = _Window(grown, flat, valid, graph)
        return self._window

    def picture(self, view: View) -> NDArray[np.uint8]:
        """The first components as colours (rows, cols, 4)."""
        shown = self._features.shown_range
        window = self._levels[view.level][view.top : view.bottom, view.left : view.right, : len(shown)]
        low, high = np.array(shown, np.float32).T
        share = np.nan_to_num((window.astype(np.float32) - low) / np.maximum(high - low, 1e-6))
        colors = np.zeros((*share.shape[:2], 4), np.uint8)
        colors[..., : share.shape[-1]] = np.rint(255 * np.clip(share, 0, 1))
        colors[..., 3] = np.where(np.isnan(window[..., 0]), 0, 255)
        return colors

    # How good it is

    def estimate(self, should_pause: Callable[[], bool]) -> dict[str, Any] | None:
        """Accuracy by spatial cross-validation, and likely mistakes; None if it paused before it was finished."""
        if self._held_out is None:
            self._held_out = _HeldOutWork(self._fitted, self._spectra)
        while self._held_out.waiting:
            if should_pause():
                return None
            self._held_out.step(self)
        return self._held_out.result(len(self.classes))

    def predict_at(
        self, cluster: NDArray[np.int64], others: LabelledPixels, weights: NDArray[Any], offsets: NDArray[Any]
    ) -> Probabilities:
        """Probabilities at the positions of a cluster, from the labels of others in a window around it."""
        rows, cols, _ = self._levels[0].shape
        low = np.maximum(cluster.min(axis=0) - HELD_OUT_RADIUS_PX, 0)
        high = np.minimum(cluster.max(axis=0) + HELD_OUT_RADIUS_PX + 1, (rows, cols))
        components = self._levels[0][low[0] : high[0], low[1] : high[1]].astype(np.float32)
        valid = ~np.isnan(components[..., 0])
        components[~valid] = 0
        graph = PixelGraph.of(components[..., :EDGE_COMPONENTS], valid)
        flat = components.reshape(-1, components.shape[-1])
        prior = softmax(flat @ weights + offsets, axis=1).astype(np.float32)
        inside = ((others.positions >= low) & (others.positions < high)).all(axis=1)
        indices = (others.positions[inside] - low) @ (valid.shape[1], 1)
        found = graph.propagate(prior, indices, others.classes[inside], FIDELITY_WEIGHT, None, TOLERANCE)
        at: Probabilities = found[(cluster - low) @ (valid.shape[1], 1)]
        shares: Probabilities = at / np.maximum(at.sum(axis=1, keepdims=True), 1e-6)
        return shares

    # Where to label next

    def suggest(self, count: int, allowed: NDArray[np.bool_] | None = None) -> list[dict[str, Any]]:
        """Places whose label would help most: uncertain ones, far from each other in the scene and in spectra.

        In a simulation, only places whose class is known are `allowed` (rows, cols).
        """
        whole = (0, 0, self._features.rows, self._features.cols)
        view = choose_view(self._features, whole, SUGGESTION_PIXELS)
        probabilities, window = self._probabilities(view)
        self._window = None
        first, second = np.sort(probabilities, axis=1)[:, :-3:-1].T
        shape, scale = window.valid.shape, 2**view.level
        usable = window.valid if allowed is None else window.valid & allowed[::scale, ::scale]
        margin = np.where(usable.ravel(), first - second, np.inf)
        candidates = np.argsort(margin)[: max(10 * count, int(MOST_UNCERTAIN * usable.sum()))]
        candidates = candidates[np.isfinite(margin[candidates])]
        places = np.column_stack(np.unravel_index(candidates, shape)) / np.hypot(*shape)
        spread = window.components.std(axis=0) * math.sqrt(window.components.shape[1])
        points = np.hstack([places, window.components[candidates] / np.maximum(spread, 1e-6)])
        labelled = self._fitted.positions / scale / np.hypot(*shape)
        known = np.hstack([labelled, self._spectra / np.maximum(spread, 1e-6)])
        distance = cKDTree(known).query(points)[0]
        chosen: list[int] = []
        for _ in range(min(count, len(candidates))):
            best = int(np.argmax(distance * (1 - margin[candidates])))
            chosen.append(best)
            distance = np.minimum(distance, np.linalg.norm(points - points[best], axis=1))
        half = scale // 2
        found = []
        for each in chosen:
            row, col = divmod(int(candidates[each]), shape[1])
            place = min(row * scale + half, self._features.rows - 1), min(col * scale + half, self._features.cols - 1)
            guess = int(self.classes[int(probabilities[candidates[each]].argmax())])
            found.append({"row": place[0], "col": place[1], "guess": guess, "margin": float(margin[candidates[each]])})
        return found


class _HeldOutWork:
    """Cross-validation of the live model, one cluster at a time."""

    def __init__(self, labels: LabelledPixels, spectra: NDArray[np.float32]) -> None:
        self._generator = np.random.default_rng(0)
        self._labels, self._spectra = labels, spectra
        self._clusters = _clusters_of(labels)
        self._fold_of = cluster_folds(labels.classes, self._clusters, self._generator)
        tested = np.unique(self._clusters[self._fold_of >= 0])
        self.waiting = [int(each) for each in self._generator.permutation(tested)[:MOST_CLUSTERS]]
        self._fits: dict[int, tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]] | None] = {}
        self._numbers: list[NDArray[np.int64]] = []
        self._found: list[Probabilities] = []

    def step(self, model: LiveModel) -> None:
        """Hold out one cluster."""
        cluster = self.waiting.pop()
        numbers = np.flatnonzero(self._clusters == cluster)
        fold = int(self._fold_of[numbers[0]])
        if fold not in self._fits:
            self._fits[fold] = self._fit_without(fold)
        fitted = self._fits[fold]
        if fitted is None:
            return
        weights, offsets, present = fitted
        used = self._labels.subset(np.flatnonzero(self._fold_of != fold))
        others = LabelledPixels(used.positions, used.indices, np.searchsorted(present, used.classes))
        found = model.predict_at(self._labels.positions[numbers], others, weights, offsets)
        full = np.zeros((len(numbers), int(self._labels.classes.max()) + 1), np.float32)
        full[:, present] = found
        self._numbers.append(numbers)
        self._found.append(full)

    def _fit_without(self, fold: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]] | None:
        used = self._fold_of != fold
        present, numbers = np.unique(self._labels.classes[used], return_inverse=True)
        if len(present) < 2:
            return None
        weights, offsets = shrinkage_lda(self._spectra[used], numbers)
        return weights, offsets, present

    def result(self, class_count: int) -> dict[str, Any]:
        """Accuracies with intervals, the confusion matrix and likely mistakes; none if nothing could be held out."""
        if not self._numbers:
            return {"estimate": None, "mistakes": []}
        numbers = np.concatenate(self._numbers)
        distance = np.zeros(len(numbers))
        held = HeldOut(
            numbers, self._labels.subset(numbers), self._clusters[numbers], distance, np.concatenate(self._found)
        )
        mistakes = likely_mistakes(held)
        return {
            "estimate": estimate_of(held, class_count, self._generator),
            "mistakes": [vars(mistake) for mistake in mistakes],
        }


def _clusters_of(labels: LabelledPixels) -> NDArray[np.int64]:
    """The number of the connected area of one class that each label belongs to."""
    count = len(labels)
    pairs = cKDTree(labels.positions).query_pairs(1.5, output_type="ndarray")
    same = labels.classes[pairs[:, 0]] == labels.classes[pairs[:, 1]]
    graph = coo_array((np.ones(int(same.sum())), tuple(pairs[same].T)), shape=(count, count))
    found: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return found
