"""Label propagation: pseudo-labels for a whole scene from few labels, with neighbours only where they help."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hyperscene.training.data.splits import Split, split_labels
from hyperscene.training.fit import base_classifiers, label_propagation, propagation_settings
from hyperscene.training.fit.base_classifiers import fit_base_classifiers
from hyperscene.training.fit.ensembles import RESAMPLES, Ensemble, fit_ensemble, weigh
from hyperscene.training.fit.label_propagation import PropagationCache, propagate_labels
from hyperscene.training.fit.pixel_graph import PixelGraph
from hyperscene.training.fit.propagation_settings import FIDELITY_WEIGHTS, class_weights
from hyperscene.training.fit.spatial_folds import matched_folds
from hyperscene.training.fit.spectral_features import SpectralFeatures
from tests import scenes

ROWS, COLS, BANDS = 48, 40, 8


def noisy_scene(noise: float, seed: int = 0, mixed: bool = False):
    """Four materials in large fields, or mixed pixel by pixel; every pixel is labelled."""
    generator = np.random.default_rng(seed)
    rows, cols = np.mgrid[:ROWS, :COLS]
    materials = (rows >= ROWS // 2) * 2 + (cols >= COLS // 2)
    if mixed:
        materials = generator.integers(0, 4, (ROWS, COLS))
    spectra = generator.normal(size=(4, BANDS))
    cube = (spectra[materials] + generator.normal(size=(ROWS, COLS, BANDS)) * noise).astype(np.float32)
    scene = scenes.labelled_scene(ROWS, COLS, bands=BANDS)
    known = cube.reshape(-1, BANDS)
    return replace(
        scene,
        cube=cube,
        labels=(materials + 1).astype(np.uint16),
        valid=np.ones((ROWS, COLS), bool),
        band_mean=known.mean(axis=0),
        band_std=known.std(axis=0),
    )


def by_spectra(features, indices, classes) -> np.ndarray:
    """Mean probabilities of the base classifiers, fitted to these labels."""
    return Ensemble.uncalibrated().predict(fit_base_classifiers([features], indices, classes), 4)


def accuracy(probabilities, scene, pixels) -> float:
    found = probabilities.reshape(ROWS, COLS, -1)[tuple(pixels.T)].argmax(axis=1) + 1
    return float((found == scene.labels[tuple(pixels.T)]).mean())


def test_neighbours_are_used_and_improve_accuracy_in_large_fields():
    scene = noisy_scene(2.0)
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    found = propagate_labels(scene, split, 0)
    assert found.settings.fidelity_weight < 1
    assert found.settings.accuracy > found.settings.spectral_accuracy
    indices = np.ravel_multi_index(tuple(split.train.T), (ROWS, COLS))
    alone = by_spectra(SpectralFeatures.of(scene), indices, scene.labels.ravel()[indices].astype(int) - 1)
    assert accuracy(found.probabilities, scene, split.test) > accuracy(alone, scene, split.test) + 0.1


def test_spectra_dominate_where_pixels_differ_from_their_neighbours():
    scene = noisy_scene(0.7, mixed=True)
    split = split_labels(scene.labels, "random", 0.05, 0.0, 0, 5)
    found = propagate_labels(scene, split, 0)
    assert found.settings.fidelity_weight >= 1
    assert accuracy(found.probabilities, scene, split.test) > 0.8
    assert "spectra" in str(found.settings)


def test_classifiers_that_are_wrong_count_little(monkeypatch):
    scene = noisy_scene(0.7, mixed=True)
    split = split_labels(scene.labels, "random", 0.05, 0.0, 0, 5)
    fit_lda = base_classifiers.shrinkage_lda

    def misled(features, classes, is_scaled=False):
        weights, offsets = fit_lda(features, np.random.default_rng(0).permutation(classes))
        return 10 * weights, 10 * offsets

    monkeypatch.setattr(base_classifiers, "shrinkage_lda", misled)
    found = propagate_labels(scene, split, 0)
    ensemble = found.settings.ensemble
    assert ensemble.weights[0] > 0.9
    assert sum(ensemble.weights) == pytest.approx(1)
    assert min(ensemble.temperatures[1:]) > 3 * ensemble.temperatures[0]
    assert found.settings.record()["base_weights"] == [round(weight, 4) for weight in ensemble.weights]
    assert found.settings.record()["base_temperatures"] == [round(each, 4) for each in ensemble.temperatures]
    indices = np.ravel_multi_index(tuple(split.train.T), (ROWS, COLS))
    uncalibrated = by_spectra(SpectralFeatures.of(scene), indices, scene.labels.ravel()[indices].astype(int) - 1)
    assert accuracy(found.probabilities, scene, split.test) > accuracy(uncalibrated, scene, split.test) + 0.05


def scores_of(truth: np.ndarray, correct: float, scale: float, seed: int) -> np.ndarray:
    """Scores of a classifier that is right about so many pixels, with the same confidence about all."""
    generator = np.random.default_rng(seed)
    chosen = np.where(generator.random(len(truth)) < correct, truth, (truth + 1) % 3)
    return (scale * np.eye(3)[chosen]).astype(np.float32)


def test_the_more_accurate_classifier_counts_more_and_more_labels_make_that_surer():
    weights = []
    for count in (60, 600):
        truth = np.random.default_rng(0).integers(0, 3, count)
        scores = [scores_of(truth, 0.9, 3.0, 1), scores_of(truth, 0.8, 300.0, 2)]
        found = fit_ensemble(scores, truth, np.arange(count), np.random.default_rng(0))
        assert found.temperatures[1] > 50 * found.temperatures[0]  # far too sure of itself
        weights.append(found.weights[0])
    assert 0.5 < weights[0] < weights[1]
    assert weights[1] > 0.9


def test_classifiers_count_equally_where_too_few_labels_could_be_held_out():
    truth = np.arange(20) % 3
    scores = [scores_of(truth, 1.0, 3.0, 1), scores_of(truth, 0.3, 3.0, 2)]
    assert fit_ensemble(scores, truth, np.arange(20), np.random.default_rng(0)) == Ensemble.uncalibrated(2)


def test_a_label_that_is_held_out_twice_is_one_observation():
    losses = np.random.default_rng(0).random((100, 3))
    once = weigh(losses, np.arange(100), np.random.default_rng(1))
    twice = weigh(np.concatenate([losses, losses]), np.tile(np.arange(100), 2), np.random.default_rng(1))
    assert_allclose(once, twice, atol=1 / RESAMPLES)


@pytest.mark.parametrize("seed", range(2))
def test_neighbours_that_hardly_help_near_the_labels_are_not_used_far_from_them(monkeypatch, seed):
    """Fields round the labels and mixed pixels elsewhere: no label lies far enough from the others to be held out."""
    fields, single = noisy_scene(1.5), noisy_scene(1.5, mixed=True)
    pixels = np.argwhere(fields.labels > 0)
    distance = np.abs(pixels - [ROWS // 2, COLS // 2]).max(axis=1)
    is_single = (distance.reshape(ROWS, COLS) > 8) | (np.random.default_rng(0).random((ROWS, COLS)) < 0.4)
    scene = replace(
        fields,
        cube=np.where(is_single[..., None], single.cube, fields.cube),
        labels=np.where(is_single, single.labels, fields.labels),
    )
    train = np.random.default_rng(seed).permutation(pixels[distance <= 6])[:80]
    split = Split("spatial", train, train[:0], pixels[distance > 15])
    careful = propagate_labels(scene, split, seed)
    assert careful.settings.held_out_px < careful.settings.target_px / 2
    assert math.isinf(careful.settings.fidelity_weight)
    monkeypatch.setattr(propagation_settings, "NEIGHBOUR_GAIN", 0.0)
    without = propagate_labels(scene, split, seed)
    assert math.isfinite(without.settings.fidelity_weight)
    reached = [accuracy(found.probabilities, scene, split.test) for found in (careful, without)]
    assert reached[0] > reached[1]


def test_balanced_labels_are_weighted_by_the_expected_shares_of_the_classes(monkeypatch):
    """Two classes alike in fields, two different ones mixed pixel by pixel: the test pixels decide."""
    monkeypatch.setattr(propagation_settings, "STANDARD_ERRORS", 0.0)
    generator = np.random.default_rng(0)
    scene = noisy_scene(1.2)
    fields, mixed = scene.labels.copy(), noisy_scene(1.2, mixed=True).labels
    left = np.arange(COLS) < COLS // 2
    labels = np.where(left, np.where(fields <= 2, 1, 2), np.where(mixed <= 2, 3, 4)).astype(np.uint16)
    spectra = generator.normal(size=(4, BANDS)) * [[0.3], [0.3], [1.5], [1.5]]
    cube = (spectra[labels - 1] + generator.normal(size=(ROWS, COLS, BANDS)) * 1.2).astype(np.float32)
    scene = replace(scene, cube=cube, labels=labels)
    train = np.concatenate([generator.permutation(np.argwhere(labels == value))[:25] for value in range(1, 5)])
    tests = {name: np.argwhere((labels > 0) & is_side) for name, is_side in (("fields", left), ("mixed", ~left))}
    chosen = {
        name: propagate_labels(scene, Split("random", train, train[:0], test), 0).settings.fidelity_weight
        for name, test in tests.items()
    }
    assert chosen["fields"] < chosen["mixed"]


@pytest.mark.parametrize(("labels", "chosen"), [(20, 4), (2000, 2)])
def test_a_lower_fidelity_weight_is_used_unless_its_loss_is_higher_beyond_noise(labels, chosen):
    means = np.array([1.0, 0.9, 0.5, 0.55, 0.6, 0.7, 0.75])  # of each fidelity weight, from spectra only downwards
    noise = np.random.default_rng(0).normal(size=(labels, len(means)))
    losses = means + (noise - noise.mean(axis=0)) * 0.6
    assert propagation_settings._best(losses, is_too_near=False) == chosen


def test_neighbours_must_help_by_a_tenth_where_labels_cannot_be_held_out_far_enough():
    for gain, chosen in ((0.08, 0), (0.12, 6)):
        losses = np.tile(np.r_[1.0, np.full(6, 1 - gain)], (50, 1))
        assert propagation_settings._best(losses, is_too_near=True) == chosen


def test_unbalanced_labels_keep_their_own_proportions():
    expected = np.array([0.7, 0.2, 0.1], np.float32)
    even, uneven = np.repeat([0, 1, 2], 5), np.repeat([0, 1, 2], [5, 5, 11])
    assert_allclose(class_weights(even, expected) * 5, expected)
    assert (class_weights(uneven, expected) == 1).all()
    absent = np.array([1.0, 0, 0], np.float32)
    assert (class_weights(even, absent) > 0).all()  # a class that is expected nowhere still counts
    assert_allclose(class_weights(np.repeat([0, 2], 5), expected)[[0, 2]] * 5, [0.7, 0.1])


def few_labels(scene, count: int) -> Split:
    """`count` random labels of every class; the other pixels are to be predicted."""
    generator = np.random.default_rng(1)
    of_class = [generator.permutation(np.argwhere(scene.labels == value)) for value in range(1, 5)]
    train, test = (np.concatenate([pixels[part] for pixels in of_class]) for part in (slice(count), slice(count, None)))
    return Split("random", train, train[:0], test)


def test_smoothed_spectra_improve_accuracy_with_few_labels_in_noisy_fields(monkeypatch):
    scene = noisy_scene(2.0)
    split = few_labels(scene, 4)
    found = propagate_labels(scene, split, 0)
    assert found.settings.uses_smoothed_spectra
    assert found.settings.record()["smoothed"] is True
    assert "smoothed spectra" in str(found.settings)
    monkeypatch.setattr(label_propagation, "FEW_LABELS", 0)
    without = propagate_labels(scene, split, 0)
    assert not without.settings.uses_smoothed_spectra
    assert "smoothed" not in without.settings.record()
    reached = [accuracy(each.probabilities, scene, split.test) for each in (found, without)]
    assert reached[0] > reached[1]


def test_smoothed_spectra_are_not_used_with_many_labels_or_held_out_pixels_too_near():
    scene = noisy_scene(2.0)
    assert not propagate_labels(scene, few_labels(scene, 8), 0).settings.uses_smoothed_spectra
    distance = np.abs(np.argwhere(scene.labels > 0) - [ROWS // 2, COLS // 2]).max(axis=1)  # from where fields meet
    near, far = np.argwhere(scene.labels > 0)[distance <= 2], np.argwhere(scene.labels > 0)[distance > 12]
    train = np.concatenate([near[scene.labels[tuple(near.T)] == value][:4] for value in range(1, 5)])
    assert not propagate_labels(scene, Split("spatial", train, train[:0], far), 0).settings.uses_smoothed_spectra


def test_smoothing_reduces_noise_and_keeps_constants():
    scene = noisy_scene(1.0)
    spectra = SpectralFeatures.of(scene)
    graph = PixelGraph.of(spectra.components[:, :3], scene.valid)
    smooth = graph.smooth(spectra.standardised)
    assert smooth.shape == spectra.standardised.shape
    field = (scene.labels == 1).ravel()
    assert smooth[field].std(axis=0).mean() < spectra.standardised[field].std(axis=0).mean() / 1.5
    assert_allclose(graph.smooth(np.ones((ROWS * COLS, 2), np.float32)), 1, atol=1e-3)


def test_pseudo_labels_sum_to_one_keep_the_labels_and_are_zero_without_data():
    scene = noisy_scene(1.0)
    valid = scene.valid.copy()
    valid[10:14] = False
    scene = replace(scene, valid=valid, labels=np.where(valid, scene.labels, 0))
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    found = propagate_labels(scene, split, 0)
    sums = found.probabilities.sum(axis=1).reshape(ROWS, COLS)
    assert (sums[10:14] == 0).all()
    np.testing.assert_allclose(sums[valid], 1, atol=1e-5)
    assert found.probabilities.min() >= 0
    assert accuracy(found.probabilities, scene, split.train) == 1


def test_a_seed_gives_the_same_pseudo_labels():
    scene = noisy_scene(1.0)
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    first, again = propagate_labels(scene, split, 3), propagate_labels(scene, split, 3)
    assert first.settings == again.settings
    np.testing.assert_array_equal(first.probabilities, again.probabilities)


@pytest.mark.slow
def test_pseudo_labels_are_cached_until_scene_split_or_seed_change():
    scene = noisy_scene(1.0)
    split, other = (split_labels(scene.labels, "random", 0.02, 0.0, seed, 5) for seed in (0, 1))
    cached = PropagationCache()
    first = cached(scene, split, 0)
    again = cached(scene, split, 0)
    assert again.probabilities is first.probabilities
    assert first.cached_s == 0 < again.cached_s
    for changed in ((replace(scene, cube=scene.cube + 1), split, 0), (scene, other, 0), (scene, split, 1)):
        np.testing.assert_array_equal(cached(*changed).probabilities, propagate_labels(*changed).probabilities)
    np.testing.assert_array_equal(cached(scene, split, 0).probabilities, first.probabilities)


@pytest.mark.parametrize("labels_per_class", [1, 2])
def test_one_or_two_labels_per_class_are_enough(labels_per_class):
    scene = noisy_scene(0.5)
    train = np.concatenate([np.argwhere(scene.labels == value)[50 : 50 + labels_per_class] for value in range(1, 5)])
    test = np.argwhere(scene.labels > 0)[::7]
    found = propagate_labels(scene, Split("random", train, train[:0], test), 0)
    assert np.isfinite(found.probabilities).all()
    assert accuracy(found.probabilities, scene, test) > 0.8
    if labels_per_class == 1:
        assert "too few labels" in str(found.settings)
        assert "held_out_accuracy" not in found.settings.record()


def test_scenes_of_one_line_or_with_a_constant_band_have_pseudo_labels():
    scene = noisy_scene(0.3)
    line = replace(scene, cube=scene.cube[:1], valid=scene.valid[:1], labels=scene.labels[:1])
    train = np.array([[0, 2], [0, 9], [0, 25], [0, 33]])
    found = propagate_labels(line, Split("random", train, train[:0], np.argwhere(line.labels > 0)), 0)
    assert np.isfinite(found.probabilities).all()
    flat = scene.cube.copy()
    flat[..., 3] = 1.0
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    assert np.isfinite(propagate_labels(replace(scene, cube=flat), split, 0).probabilities).all()


def test_mnf_components_stay_bounded_with_more_bands_than_neighbours():
    generator = np.random.default_rng(0)
    scene = noisy_scene(0.3)
    cube = np.concatenate([scene.cube[:12, :12]] * 20, axis=2) + generator.normal(size=(12, 12, 20 * BANDS)) * 0.3
    cube = cube.astype(np.float32)
    known = cube.reshape(-1, cube.shape[-1])
    small = replace(
        scene, cube=cube, valid=scene.valid[:12, :12], band_mean=known.mean(axis=0), band_std=known.std(axis=0)
    )
    assert np.abs(SpectralFeatures.of(small).components).max() < 100


def edge_weights(components: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The graph's edge weights as a matrix (pixels, pixels), computed pair by pair."""
    where = np.argwhere(np.ones_like(valid))
    apart = np.abs(where[:, None] - where[None]).max(axis=-1)
    linked = (apart == 1) & valid.ravel()[:, None] & valid.ravel()[None]
    distance = np.square(components[:, None] - components[None]).sum(axis=-1)
    return np.where(linked, np.exp(-distance / np.median(distance[linked])) + 0.01, 0)


@pytest.mark.parametrize("fidelity", FIDELITY_WEIGHTS)
def test_propagation_solves_its_equation_for_every_fidelity_weight(fidelity):
    """An unlabelled pixel is the mean of its neighbours and of its prior, weighted by edges and the fidelity weight."""
    generator = np.random.default_rng(0)
    rows, cols = 14, 11
    valid = generator.random((rows, cols)) < 0.95
    components = generator.normal(size=(rows * cols, 3)).astype(np.float32)
    weights = edge_weights(components, valid)
    indices = np.flatnonzero(valid)[[3, 40, 90, 120]]
    prior = generator.dirichlet(np.ones(4), rows * cols).astype(np.float32)
    graph = PixelGraph.of(components, valid)
    np.testing.assert_allclose(graph.degree[1:-1, 1:-1].ravel(), weights.sum(axis=1), rtol=1e-5)
    found = graph.propagate(prior, indices, np.arange(4), fidelity)
    np.testing.assert_array_equal(found[indices], np.eye(4))
    free = np.setdiff1d(np.arange(rows * cols), indices)
    expected = prior
    if math.isfinite(fidelity):
        expected = (weights @ found + fidelity * prior) / (weights.sum(axis=1, keepdims=True) + fidelity)
    np.testing.assert_allclose(found[free], expected[free], atol=1e-3)


@pytest.mark.parametrize("fidelity", FIDELITY_WEIGHTS[1:])
def test_the_influence_of_labels_gives_what_propagation_gives(fidelity):
    """Cross-validation takes its predictions from the influence of the labels, without propagating over the scene."""
    scene = noisy_scene(1.0)
    spectra = SpectralFeatures.of(scene)
    graph = PixelGraph.of(spectra.components, scene.valid)
    generator = np.random.default_rng(0)
    positions = np.argwhere(scene.labels > 0)[generator.permutation(ROWS * COLS)[:60]]
    # Neighbouring labels, as in polygons, make the equations nearly singular.
    positions = np.unique(np.concatenate([positions, positions[:30] + np.array([0, 1])]) % [ROWS, COLS], axis=0)
    indices = np.ravel_multi_index(tuple(positions.T), (ROWS, COLS))
    classes = scene.labels.ravel()[indices].astype(int) - 1
    prior = by_spectra(spectra, indices, classes)
    sources, held = np.arange(0, len(indices), 2), np.arange(1, len(indices), 2)
    influence = graph.influence(positions, fidelity, prior.reshape(ROWS, COLS, 4))
    found = propagation_settings.predict_held_out(influence, influence.from_priors, sources, held, classes, 4)
    expected = graph.propagate(prior, indices[sources], classes[sources], fidelity)[indices[held]]
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_held_out_pixels_are_as_far_from_the_others_as_the_pixels_to_predict():
    generator = np.random.default_rng(0)
    train = generator.integers(0, 60, (150, 2))
    near = matched_folds(train, generator.integers(0, 60, (500, 2)), generator)
    far = matched_folds(train, generator.integers(90, 120, (500, 2)), generator)
    assert near.held_out_px == pytest.approx(near.target_px, rel=0.5)
    assert far.held_out_px > 2 * near.held_out_px
    for folds in (near, far):
        assert set(folds.fold_of.tolist()) == set(range(5))
