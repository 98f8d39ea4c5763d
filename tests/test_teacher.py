"""The teacher: answers for the whole scene from few labels, and trusts neighbours only where that was seen to help."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests import scenes
from training import teacher as teaching
from training.splits import Split, split_labels
from training.teacher import PULLS, Graph, RememberingTeacher, Spectra, _weights, matched_folds, teach

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


def by_spectra(spectra, places, classes) -> np.ndarray:
    """The mean of what two classifiers that know these labels say about all pixels."""
    return np.mean([voice.answer(4) for voice in spectra.voices(places, classes)], axis=0)


def share_right(probabilities, scene, pixels) -> float:
    found = probabilities.reshape(ROWS, COLS, -1)[tuple(pixels.T)].argmax(axis=1) + 1
    return float((found == scene.labels[tuple(pixels.T)]).mean())


def test_in_large_fields_neighbours_are_trusted_and_help():
    scene = noisy_scene(2.0)
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    lesson = teach(scene, split, 0)
    assert lesson.choice.pull < 1
    assert lesson.choice.accuracy > lesson.choice.spectral_accuracy
    places = np.ravel_multi_index(tuple(split.train.T), (ROWS, COLS))
    alone = by_spectra(Spectra.of(scene), places, scene.labels.ravel()[places].astype(int) - 1)
    assert share_right(lesson.probabilities, scene, split.test) > share_right(alone, scene, split.test) + 0.1


def test_where_every_pixel_differs_from_its_neighbours_spectra_are_trusted():
    scene = noisy_scene(0.7, mixed=True)
    split = split_labels(scene.labels, "random", 0.05, 0.0, 0, 5)
    lesson = teach(scene, split, 0)
    assert lesson.choice.pull >= 1
    assert share_right(lesson.probabilities, scene, split.test) > 0.8
    assert "spectra" in str(lesson.choice)


def test_a_voice_that_is_sure_and_wrong_does_not_drown_the_other(monkeypatch):
    scene = noisy_scene(0.7, mixed=True)
    split = split_labels(scene.labels, "random", 0.05, 0.0, 0, 5)
    learn = teaching._discriminant

    def boast(learnt, classes):
        weights, offsets = learn(learnt, np.random.default_rng(0).permutation(classes))
        return 10 * weights, 10 * offsets

    monkeypatch.setattr(teaching, "_discriminant", boast)
    lesson = teach(scene, split, 0)
    regression, discriminant = lesson.choice.voice_temperatures
    assert discriminant > 3 * regression
    assert regression * discriminant == pytest.approx(1)
    assert lesson.choice.record()["voice_temperatures"] == [round(regression, 4), round(discriminant, 4)]
    places = np.ravel_multi_index(tuple(split.train.T), (ROWS, COLS))
    drowned = by_spectra(Spectra.of(scene), places, scene.labels.ravel()[places].astype(int) - 1)
    assert share_right(lesson.probabilities, scene, split.test) > share_right(drowned, scene, split.test) + 0.05


@pytest.mark.parametrize("seed", range(2))
def test_neighbours_that_hardly_help_near_the_labels_are_not_trusted_far_from_them(monkeypatch, seed):
    """Fields round the labels, and single pixels everywhere else: none can be held out that lies far enough away."""
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
    careful = teach(scene, split, seed)
    assert careful.choice.held_out_px < careful.choice.asked_px / 2
    assert math.isinf(careful.choice.pull)
    monkeypatch.setattr(teaching, "WORTH_NEIGHBOURS", 0.0)
    trusting = teach(scene, split, seed)
    assert math.isfinite(trusting.choice.pull)
    right = [share_right(lesson.probabilities, scene, split.test) for lesson in (careful, trusting)]
    assert right[0] > right[1] + 0.01


def test_classes_count_by_how_much_of_what_is_asked_for_they_are():
    """As many labels of every class, half of which lie in fields and half pixel by pixel: what is asked for decides."""
    generator = np.random.default_rng(0)
    scene = noisy_scene(1.2)
    fields, mixed = scene.labels.copy(), noisy_scene(1.2, mixed=True).labels
    left = np.arange(COLS) < COLS // 2
    labels = np.where(left, np.where(fields <= 2, 1, 2), np.where(mixed <= 2, 3, 4)).astype(np.uint16)
    spectra = generator.normal(size=(4, BANDS))
    cube = (spectra[labels - 1] + generator.normal(size=(ROWS, COLS, BANDS)) * 1.2).astype(np.float32)
    scene = replace(scene, cube=cube, labels=labels)
    train = np.concatenate([generator.permutation(np.argwhere(labels == value))[:25] for value in range(1, 5)])
    asked = {name: np.argwhere((labels > 0) & is_side) for name, is_side in (("fields", left), ("mixed", ~left))}
    pulls = {name: teach(scene, Split("random", train, train[:0], test), 0).choice.pull for name, test in asked.items()}
    assert pulls["fields"] < pulls["mixed"]


def test_labels_in_unequal_numbers_are_believed_to_be_as_common_as_what_is_asked_for():
    expected = np.array([0.7, 0.2, 0.1], np.float32)
    even, uneven = np.repeat([0, 1, 2], 5), np.repeat([0, 1, 2], [5, 5, 11])
    assert_allclose(_weights(even, expected) * 5, expected)
    assert (_weights(uneven, expected) == 1).all()
    assert (_weights(even, np.array([1.0, 0, 0], np.float32)) > 0).all()  # one that is expected nowhere still counts
    assert_allclose(_weights(np.repeat([0, 2], 5), expected)[[0, 2]] * 5, [0.7, 0.1])


def few_labels(scene, count: int) -> Split:
    """As many labels of every class, anywhere; all the rest is asked for."""
    generator = np.random.default_rng(1)
    places = [generator.permutation(np.argwhere(scene.labels == value)) for value in range(1, 5)]
    train, test = (np.concatenate([found[part] for found in places]) for part in (slice(count), slice(count, None)))
    return Split("random", train, train[:0], test)


def test_with_few_labels_in_noisy_fields_smoothed_spectra_have_a_voice_and_help(monkeypatch):
    scene = noisy_scene(2.0)
    split = few_labels(scene, 4)
    lesson = teach(scene, split, 0)
    assert lesson.choice.is_smoothed
    assert lesson.choice.record()["smoothed"] is True
    assert "smoothed spectra" in str(lesson.choice)
    monkeypatch.setattr(teaching, "FEW_LABELS", 0)
    without = teach(scene, split, 0)
    assert not without.choice.is_smoothed
    assert "smoothed" not in without.choice.record()
    right = [share_right(found.probabilities, scene, split.test) for found in (lesson, without)]
    assert right[0] > right[1]


def test_smoothing_is_not_tried_with_many_labels_or_where_held_out_pixels_lie_too_near():
    scene = noisy_scene(2.0)
    assert not teach(scene, few_labels(scene, 8), 0).choice.is_smoothed
    distance = np.abs(np.argwhere(scene.labels > 0) - [ROWS // 2, COLS // 2]).max(axis=1)  # from where fields meet
    near, far = np.argwhere(scene.labels > 0)[distance <= 2], np.argwhere(scene.labels > 0)[distance > 12]
    train = np.concatenate([near[scene.labels[tuple(near.T)] == value][:4] for value in range(1, 5)])
    assert not teach(scene, Split("spatial", train, train[:0], far), 0).choice.is_smoothed


def test_a_smoothed_value_lies_between_its_own_and_its_neighbours():
    scene = noisy_scene(1.0)
    spectra = Spectra.of(scene)
    graph = Graph.of(spectra.components[:, :3], scene.valid)
    smooth = graph.smooth(spectra.standardised)
    assert smooth.shape == spectra.standardised.shape
    field = (scene.labels == 1).ravel()
    assert smooth[field].std(axis=0).mean() < spectra.standardised[field].std(axis=0).mean() / 1.5
    assert_allclose(graph.smooth(np.ones((ROWS * COLS, 2), np.float32)), 1, atol=1e-3)


def test_answers_are_probabilities_agree_with_the_labels_and_leave_out_what_holds_no_data():
    scene = noisy_scene(1.0)
    valid = scene.valid.copy()
    valid[10:14] = False
    scene = replace(scene, valid=valid, labels=np.where(valid, scene.labels, 0))
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    lesson = teach(scene, split, 0)
    sums = lesson.probabilities.sum(axis=1).reshape(ROWS, COLS)
    assert (sums[10:14] == 0).all()
    np.testing.assert_allclose(sums[valid], 1, atol=1e-5)
    assert lesson.probabilities.min() >= 0
    assert share_right(lesson.probabilities, scene, split.train) == 1


def test_a_seed_gives_the_same_lesson():
    scene = noisy_scene(1.0)
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    first, again = teach(scene, split, 3), teach(scene, split, 3)
    assert first.choice == again.choice
    np.testing.assert_array_equal(first.probabilities, again.probabilities)


def test_a_lesson_is_remembered_until_another_is_asked_for():
    scene = noisy_scene(1.0)
    split, other = (split_labels(scene.labels, "random", 0.02, 0.0, seed, 5) for seed in (0, 1))
    ask = RememberingTeacher()
    first = ask(scene, split, 0)
    again = ask(scene, split, 0)
    assert again.probabilities is first.probabilities
    assert first.remembered_s == 0 < again.remembered_s
    for changed in ((replace(scene, cube=scene.cube + 1), split, 0), (scene, other, 0), (scene, split, 1)):
        np.testing.assert_array_equal(ask(*changed).probabilities, teach(*changed).probabilities)
    np.testing.assert_array_equal(ask(scene, split, 0).probabilities, first.probabilities)


@pytest.mark.parametrize("labels_per_class", [1, 2])
def test_one_or_two_labels_a_class_are_enough_to_begin_with(labels_per_class):
    scene = noisy_scene(0.5)
    train = np.concatenate([np.argwhere(scene.labels == value)[50 : 50 + labels_per_class] for value in range(1, 5)])
    test = np.argwhere(scene.labels > 0)[::7]
    lesson = teach(scene, Split("random", train, train[:0], test), 0)
    assert np.isfinite(lesson.probabilities).all()
    assert share_right(lesson.probabilities, scene, test) > 0.8
    if labels_per_class == 1:
        assert "too few labels" in str(lesson.choice)
        assert "held_out_accuracy" not in lesson.choice.record()


def test_a_scene_of_one_line_and_one_of_constant_bands_have_a_teacher():
    scene = noisy_scene(0.3)
    line = replace(scene, cube=scene.cube[:1], valid=scene.valid[:1], labels=scene.labels[:1])
    train = np.array([[0, 2], [0, 9], [0, 25], [0, 33]])
    lesson = teach(line, Split("random", train, train[:0], np.argwhere(line.labels > 0)), 0)
    assert np.isfinite(lesson.probabilities).all()
    flat = scene.cube.copy()
    flat[..., 3] = 1.0
    split = split_labels(scene.labels, "random", 0.02, 0.0, 0, 5)
    assert np.isfinite(teach(replace(scene, cube=flat), split, 0).probabilities).all()


def test_more_bands_than_neighbours_do_not_blow_up_the_noise():
    generator = np.random.default_rng(0)
    scene = noisy_scene(0.3)
    cube = np.concatenate([scene.cube[:12, :12]] * 20, axis=2) + generator.normal(size=(12, 12, 20 * BANDS)) * 0.3
    cube = cube.astype(np.float32)
    known = cube.reshape(-1, cube.shape[-1])
    small = replace(
        scene, cube=cube, valid=scene.valid[:12, :12], band_mean=known.mean(axis=0), band_std=known.std(axis=0)
    )
    assert np.abs(Spectra.of(small).components).max() < 100


def test_the_walk_solves_its_equation_for_every_pull():
    """Each free pixel's answer is the mean of its neighbours' and of its spectrum's, weighted by ties and pull."""
    scene = noisy_scene(1.0)
    spectra = Spectra.of(scene)
    graph = Graph.of(spectra.components, scene.valid)
    places = np.array([100, 700, 1200, 1800])
    spectral = by_spectra(spectra, places, np.arange(4))
    degree = np.asarray(graph.ties.sum(axis=1)).ravel()[:, None]
    free = np.ones(ROWS * COLS, bool)
    free[places] = False
    for pull, found in zip(PULLS, graph.walk(spectral, places, np.arange(4), PULLS), strict=True):
        np.testing.assert_array_equal(found[places], np.eye(4))
        expected = spectral if math.isinf(pull) else (graph.ties @ found + pull * spectral) / (degree + pull)
        np.testing.assert_allclose(found[free], expected[free], atol=1e-3)


def test_held_out_pixels_lie_as_far_from_the_rest_as_the_pixels_asked_for():
    generator = np.random.default_rng(0)
    train = generator.integers(0, 60, (150, 2))
    near = matched_folds(train, generator.integers(0, 60, (500, 2)), generator)
    far = matched_folds(train, generator.integers(90, 120, (500, 2)), generator)
    assert near.held_out_px == pytest.approx(near.asked_px, rel=0.5)
    assert far.held_out_px > 2 * near.held_out_px
    for folds in (near, far):
        assert set(folds.fold_of.tolist()) == set(range(5))
