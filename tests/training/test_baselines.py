"""Spectral classifiers accept few labels; the 3-D CNN learns, repeats itself, and sees patches round pixels."""

import numpy as np
import pytest
import torch

from hyperscene.training import baselines
from hyperscene.training.baselines import SPECTRAL_CLASSIFIERS, ConvNet, fit_cnn, predict_baseline, predict_cnn
from hyperscene.training.data.splits import split_labels
from tests import scenes

SCENE = scenes.labelled_scene(30, 28, bands=12, noise=0.2)
SPLIT = split_labels(SCENE.labels, "random", 0.1, 0.0, 0, 8)


@pytest.fixture(autouse=True)
def a_short_fit(monkeypatch):
    monkeypatch.setattr(baselines, "STEPS", 40)
    monkeypatch.setattr(baselines, "MIN_EPOCHS", 1)


@pytest.mark.parametrize("name", ["shrinkage_lda", "tuned_svm", "tuned_regression"])
def test_a_classifier_of_single_spectra_learns_a_scene(name):
    found = predict_baseline(name, SCENE, SPLIT.train, SPLIT.test, 0)
    assert (found == SCENE.labels[tuple(SPLIT.test.T)]).mean() > 0.9


@pytest.mark.parametrize("of_second", [1, 4])
def test_shrinkage_lda_accepts_classes_of_one_pixel(of_second):
    of_class = [np.argwhere(SCENE.labels == value) for value in range(1, 5)]
    train = np.concatenate([of_class[0][:1], of_class[1][:of_second], of_class[2][:1], of_class[3][:1]])
    found = SPECTRAL_CLASSIFIERS["shrinkage_lda"](0).fit(
        SCENE.standardised(tuple(train.T)), SCENE.labels[tuple(train.T)]
    )
    predicted = found.predict(SCENE.standardised(tuple(SPLIT.test.T)))
    assert (predicted == SCENE.labels[tuple(SPLIT.test.T)]).mean() > 0.6


def test_the_cnn_learns_a_scene():
    found = predict_cnn(fit_cnn(SCENE, SPLIT.train, 0, "cpu"), SCENE, SPLIT.test)
    assert found.shape == (len(SPLIT.test),)
    assert set(found) <= {1, 2, 3, 4}
    assert (found == SCENE.labels[tuple(SPLIT.test.T)]).mean() > 0.9


@pytest.mark.slow
def test_a_seed_gives_the_same_classes_and_another_other_weights():
    first, again, other = (fit_cnn(SCENE, SPLIT.train, seed, "cpu").network.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@pytest.mark.parametrize("bands", [1, 4, 111, 204])
def test_any_number_of_bands_gives_logits(bands):
    assert ConvNet(bands, 5)(torch.zeros(2, baselines.PATCH_PX, baselines.PATCH_PX, bands)).shape == (2, 5)


def test_the_cnn_is_small():
    assert fit_cnn(SCENE, SPLIT.train[:3], 0, "cpu").weights < 100_000
    assert sum(weight.numel() for weight in ConvNet(270, 22).parameters()) < 110_000


def test_a_patch_lies_round_its_pixel_and_every_symmetry_keeps_it_there():
    rows, cols = SCENE.labels.shape
    pixels = torch.arange(rows * cols).reshape(-1, 1)
    center = torch.tensor([[10, 12]])
    expected = np.arange(rows * cols).reshape(rows, cols)[7:14, 9:16]
    np.testing.assert_array_equal(baselines._patches(pixels, SCENE, center)[0, ..., 0], expected)
    seen = set()
    for symmetry in range(8):
        turned = baselines._patches(pixels, SCENE, center, torch.tensor([symmetry]))[0, ..., 0].numpy()
        assert turned[3, 3] == expected[3, 3]
        assert set(turned.ravel()) == set(expected.ravel())
        seen.add(turned.tobytes())
    assert len(seen) == 8


def test_a_patch_is_reflected_at_the_edge():
    pixels = torch.arange(SCENE.labels.size).reshape(-1, 1)
    patch = baselines._patches(pixels, SCENE, torch.tensor([[0, 0]]))[0, ..., 0]
    assert patch[2, 3] == patch[4, 3]
    assert patch[3, 2] == patch[3, 4]


def test_predictions_do_not_depend_on_the_batch():
    fitted = fit_cnn(SCENE, SPLIT.train, 0, "cpu")
    together = predict_cnn(fitted, SCENE, SPLIT.test[:9])
    alone = [predict_cnn(fitted, SCENE, pixel[None])[0] for pixel in SPLIT.test[:9]]
    np.testing.assert_array_equal(together, alone)
    assert predict_cnn(fitted, SCENE, SPLIT.test[:0]).shape == (0,)
