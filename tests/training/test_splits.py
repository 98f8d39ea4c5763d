"""Splits: the paper's shares, drawn per class, and blocks that share no patch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hyperscene.errors import LabelsUnusable
from hyperscene.model.architecture import HEADS, ModelConfig
from hyperscene.training.data.splits import Split, split_labels
from hyperscene.training.fit.patches import PatchSource, draw_batches
from hyperscene.training.fit.recipes import RECIPES, separation_px
from tests.scenes import labelled_scene, quadrants


def label_map(rows: int, cols: int, classes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes + 1, (rows, cols))


def as_set(pixels: np.ndarray) -> set[tuple[int, int]]:
    return {(int(row), int(col)) for row, col in pixels}


def drawn(labels: np.ndarray, split: Split, part: str) -> np.ndarray:
    return np.bincount(labels[tuple(getattr(split, part).T)], minlength=labels.max() + 1)[1:]


@given(
    st.integers(2, 40), st.integers(2, 40), st.integers(1, 6), st.integers(0, 99), st.floats(0, 0.5), st.floats(0, 0.4)
)
def test_a_random_split_uses_every_labelled_pixel_once(rows, cols, classes, seed, fraction, val_fraction):
    labels = label_map(rows, cols, classes, seed)
    assume(labels.any())
    try:
        split = split_labels(labels, "random", fraction, val_fraction, seed, 16)
    except LabelsUnusable:
        assume(False)
    split = split_labels(labels, "random", fraction, val_fraction, seed, 16)
    parts = [as_set(part) for part in (split.train, split.validation, split.test)]
    assert set.union(*parts) == as_set(np.argwhere(labels > 0))
    assert sum(map(len, parts)) == int((labels > 0).sum())
    assert set(labels[tuple(split.train.T)]) == set(labels[labels > 0])


def test_shares_are_taken_per_class():
    labels = np.concatenate([np.full(1000, 1), np.full(300, 2), np.full(7, 3)])[None]
    split = split_labels(labels, "random", 0.01, 0.02, 0, 16)
    assert drawn(labels, split, "train").tolist() == [10, 3, 1]
    assert drawn(labels, split, "validation").tolist() == [20, 6, 0]
    assert drawn(labels, split, "test").tolist() == [970, 291, 6]


def test_a_seed_draws_the_same_pixels_and_another_does_not():
    labels = quadrants(60, 60)
    first, again, other = (split_labels(labels, "random", 0.05, 0.05, seed, 16) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.train, again.train)
    assert as_set(first.train) != as_set(other.train)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(40, 110), st.integers(40, 110), st.sampled_from([4, 8, 16]), st.integers(0, 99))
def test_a_spatial_split_shares_no_pixel_between_train_and_test_patches(rows, cols, patch_px, seed):
    labels = label_map(rows, cols, 3, seed)
    split = split_labels(labels, "spatial", 0.1, 0.1, seed, patch_px)
    held_out = np.concatenate([split.validation, split.test])
    apart = np.abs(split.train[:, None] - held_out[None]).max(axis=-1)  # the larger of both distances
    assert apart.min() >= patch_px
    assert set(labels[tuple(split.train.T)]) == {1, 2, 3}
    assert len(split.test) > 0


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", RECIPES)
def test_training_patches_share_no_pixel_with_a_test_patch(head, name):
    recipe = replace(RECIPES[name], pseudo_labels=False)  # with pseudo-labels, patches lie everywhere
    scene = labelled_scene(96, 90)
    config = ModelConfig(bands=6, classes=4, head=head)
    split = split_labels(scene.labels, "spatial", 0.05, 0.0, 0, separation_px(config, recipe))
    source = PatchSource(scene, 16, torch.device("cpu"))
    centers = torch.from_numpy(split.train)
    trained: set[int] = set()
    for _ in range(10):
        for batch in draw_batches(source, centers, config, recipe):
            trained |= set(batch.indices.flatten().tolist())
    tested = set(source.pixel_indices(torch.from_numpy(split.test)).flatten().tolist())
    assert trained
    assert not trained & tested


def test_a_spatial_split_trains_on_a_class_in_a_single_block():
    labels = label_map(120, 120, 2, 0)
    labels[50:54, 60:64] = 3
    for seed in range(5):
        split = split_labels(labels, "spatial", 0.02, 0.02, seed, 16)
        assert 3 in labels[tuple(split.train.T)]


def test_seeds_of_a_spatial_split_have_other_test_pixels():
    labels = quadrants(48, 48)  # few blocks: every start ends with the same choice
    tested = {
        frozenset(as_set(split_labels(labels, "spatial", 0.0, 0.0, seed, 12, train_pixels=40).test))
        for seed in range(5)
    }
    assert len(tested) == 5


def test_a_spatial_split_draws_the_same_number_of_pixels_as_a_random_one():
    labels = label_map(120, 100, 3, 0)
    counts = [len(split_labels(labels, name, 0.01, 0.01, 0, 16).train) for name in ("random", "spatial")]
    assert counts[0] == counts[1]


def test_a_scene_too_small_for_a_spatial_split_says_what_to_do():
    with pytest.raises(LabelsUnusable, match="use --split random"):
        split_labels(quadrants(12, 12), "spatial", 0.1, 0.1, 0, 16)


def test_shares_that_leave_nothing_to_test_are_refused():
    with pytest.raises(LabelsUnusable, match="lower --fraction, --train-pixels, --per-class or --val-fraction"):
        split_labels(quadrants(9, 9), "random", 0.05, 0.99, 0, 16)


@pytest.mark.parametrize(("fraction", "val_fraction"), [(1.0, 0.0), (-0.1, 0.0), (0.1, 1.5)])
def test_shares_outside_zero_to_one_are_refused(fraction, val_fraction):
    with pytest.raises(LabelsUnusable, match="below 1"):
        split_labels(quadrants(9, 9), "random", fraction, val_fraction, 0, 16)


@pytest.mark.parametrize("name", ["random", "spatial"])
@pytest.mark.parametrize("count", [20, 101, 300])
def test_a_number_of_training_pixels_is_spread_over_the_classes_as_the_labels_are(name, count):
    labels = label_map(120, 100, 3, 0)
    labels[60:63, 40:43] = 4
    split = split_labels(labels, name, 0.0, 0.01, 0, 16, train_pixels=count)
    assert len(split.train) == count
    shares = np.bincount(labels[labels > 0])[1:] / (labels > 0).sum()
    drawn = np.bincount(labels[tuple(split.train.T)], minlength=5)[1:]
    assert drawn.min() >= 1
    assert np.abs(drawn - np.maximum(1, count * shares)).max() <= 2


@pytest.mark.parametrize("name", ["random", "spatial"])
def test_per_class_takes_at_most_half_of_a_small_class(name):
    labels = label_map(120, 100, 3, 0)
    if name == "random":
        labels[60, 40:47] = 4
    split = split_labels(labels, name, 0.0, 0.01, 0, 16, per_class=5)
    expected = [5, 5, 5, 3] if name == "random" else [5, 5, 5]
    assert np.bincount(labels[tuple(split.train.T)])[1:].tolist() == expected
    assert set(labels[tuple(split.test.T)]) == set(range(1, len(expected) + 1))


def test_train_pixels_are_limited_by_the_training_blocks():
    labels = label_map(120, 100, 2, 0)
    available = int((labels > 0).sum())
    split = split_labels(labels, "spatial", 0.0, 0.0, 0, 16, train_pixels=available)
    assert 0 < len(split.train) < available
    assert len(split.test) > 0
