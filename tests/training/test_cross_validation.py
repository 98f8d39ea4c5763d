"""The estimate of accuracy inside the labels: honest, with intervals, and with likely mistakes."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hyperscene.service.assessment.intervals import wilson
from hyperscene.training.data.splits import split_labels
from hyperscene.training.fit.calibration import fit_temperature_to, reliability_lines
from hyperscene.training.fit.cross_validation import (
    CrossValidation,
    advice,
    cluster_folds,
    pixel_folds,
    validation_lines,
)
from hyperscene.training.fit.label_propagation import propagate_labels
from tests.scenes import GRID, labelled_scene

ROWS, COLS, BANDS = 48, 40, 8
NAMES = ("wheat", "soil", "water", "reed")


def fields_with_labels(noise: float = 1.5, per_class: int = 4, seed: int = 0, variation: float = 0.6):
    """Fields of 12 x 10 pixels of four classes, and squares of 3 x 3 labelled pixels in some; and the truth."""
    generator = np.random.default_rng(seed)
    rows, cols = np.mgrid[:ROWS, :COLS]
    truth = (rows // 12 * 2 + cols // 10) % 4 + 1  # fields of a class do not touch
    spectra = generator.normal(size=(5, BANDS))
    # A field differs from others of its class, so that pixels of the same field are easier to predict.
    field = generator.normal(size=(4, 4, BANDS))[rows // 12, cols // 10] * variation
    cube = (spectra[truth] + field + generator.normal(size=(ROWS, COLS, BANDS)) * noise).astype(np.float32)
    labels, clusters = np.zeros((ROWS, COLS), np.uint16), np.zeros((ROWS, COLS), np.int32)
    corners = [(row, col) for row in range(4, ROWS, 12) for col in range(3, COLS, 10)]
    used = dict.fromkeys(range(1, 5), 0)
    for number, (row, col) in enumerate(corners, start=1):
        value = truth[row, col]
        if used[value] < per_class:
            used[value] += 1
            labels[row : row + 3, col : col + 3] = value
            clusters[row : row + 3, col : col + 3] = number
    known = cube.reshape(-1, BANDS)
    scene = replace(
        labelled_scene(ROWS, COLS, bands=BANDS), cube=cube, labels=labels, clusters=clusters,
        valid=np.ones((ROWS, COLS), bool), band_mean=known.mean(axis=0), band_std=known.std(axis=0),
    )  # fmt: skip
    return scene, truth


def validate(scene, seed: int = 0) -> CrossValidation:
    split = split_labels(scene.labels, "none", 0.0, 0.0, 0, 17)
    found = propagate_labels(scene, split, seed).validation
    assert found is not None
    return found


def test_every_label_is_used_and_the_estimate_holds_for_other_fields():
    scene, truth = fields_with_labels(per_class=3)
    split = split_labels(scene.labels, "none", 0.0, 0.0, 0, 17)
    assert len(split.train) == (scene.labels > 0).sum() == 3 * 4 * 9
    assert len(split.validation) == len(split.test) == 0
    made = propagate_labels(scene, split, 0)
    far, near = made.validation.far, made.validation.near
    assert far.pixels == near.pixels == len(split.train)
    assert far.clusters == 12
    assert far.distance_px > near.distance_px
    # Fields without a label are far from all labels.
    fields = np.arange(ROWS)[:, None] // 12 * 4 + np.arange(COLS)[None] // 10
    unseen = ~np.isin(fields, np.unique(fields[scene.labels > 0]))
    classes = made.probabilities.argmax(axis=1).reshape(ROWS, COLS) + 1
    low, high = far.overall.interval
    assert low <= (classes[unseen] == truth[unseen]).mean() <= high
    assert near.overall.value > far.overall.value


def test_labels_that_look_like_another_class_are_listed_with_their_place():
    scene, _ = fields_with_labels(noise=0.3)
    row, col = np.argwhere(scene.clusters == 6)[0]
    wrong = scene.labels.copy()
    wrong[scene.clusters == 6] = scene.labels[row, col] % 4 + 1
    found = validate(replace(scene, labels=wrong))
    places = {(mistake.row, mistake.col) for mistake in found.mistakes}
    assert {tuple(pixel) for pixel in np.argwhere(scene.clusters == 6).tolist()} <= places
    assert len(places) <= 9 + 3
    first = found.mistakes[0]
    assert scene.labels[first.row, first.col] == first.predicted + 1
    counts = np.bincount(wrong[wrong > 0], minlength=5)[1:].tolist()
    lines = advice(found, counts, NAMES, GRID)
    x, y = GRID @ (first.col + 0.5, first.row + 0.5)
    assert f"{len(found.mistakes)} labels look like a mistake" in lines[-1]
    assert f"row {first.row}, column {first.col} (x {x:.10g}, y {y:.10g})" in lines[-1]


def test_a_class_in_one_place_is_not_estimated_and_the_user_is_told():
    scene, _ = fields_with_labels()
    labels = np.where((scene.labels != 4) | (scene.clusters == scene.clusters[scene.labels == 4][0]), scene.labels, 0)
    scene = replace(scene, labels=labels.astype(np.uint16), clusters=np.where(labels > 0, scene.clusters, 0))
    found = validate(scene)
    assert found.single_clusters == (3,)
    assert found.far.recall[3].value is None
    assert found.near.recall[3].value is not None
    counts = np.bincount(labels[labels > 0], minlength=5)[1:].tolist()
    assert advice(found, counts, NAMES, None)[0] == (
        "class 'reed' has 9 labelled pixels in one place: label some elsewhere, so that its accuracy can be estimated"
    )
    assert validation_lines(found, NAMES)[5].split() == ["reed", "0", "-", "-"]


def test_one_label_per_class_has_no_estimate():
    scene, _ = fields_with_labels()
    labels = np.zeros_like(scene.labels)
    for value in range(1, 5):
        labels[tuple(np.argwhere(scene.labels == value)[0])] = value
    found = validate(replace(scene, labels=labels))
    assert found.far is found.near is None
    assert "accuracy unknown" in validation_lines(found, NAMES)[0]
    assert found.record(NAMES)["far_from_labels"] is None


def test_intervals_widen_with_fewer_clusters_and_never_shrink_to_a_point():
    widths = []
    for per_class in (2, 4):
        scene, _ = fields_with_labels(noise=0.3, per_class=per_class, variation=0.1)
        overall = validate(scene).far.overall
        assert overall.value > 0.9
        widths.append(overall.interval[1] - overall.interval[0])
    assert widths[0] > widths[1] > 0.05
    assert_allclose(wilson(0.5, 10), (0.2366, 0.7634), atol=1e-4)
    assert_allclose(wilson(1.0, 10), (0.7225, 1.0), atol=1e-4)


def test_folds_keep_clusters_together_and_spread_the_classes():
    generator = np.random.default_rng(0)
    clusters = np.repeat(np.arange(20), 7)
    classes = np.repeat(np.arange(4), 35)
    fold_of = cluster_folds(classes, clusters, generator)
    for cluster in range(20):
        assert len(np.unique(fold_of[clusters == cluster])) == 1
    for number in range(4):
        assert sorted(fold_of[classes == number][::7]) == [0, 1, 2, 3, 4]
    singles = pixel_folds(np.array([0, 0, 0, 1]), generator)
    assert singles[3] == -1
    assert len(set(singles[:3])) == 3


def test_a_temperature_makes_logits_as_confident_as_given_probabilities():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 4)).astype(np.float32) * 3
    targets = np.exp(logits / 2.5)
    assert fit_temperature_to(logits, targets / targets.sum(axis=1, keepdims=True)) == pytest.approx(2.5, rel=0.01)


def test_the_reliability_diagram_ends_calibrated_bars_at_the_mark():
    head, low, high = reliability_lines([(0.5, 0.5, 40), (0.95, 0.75, 60)])
    assert head == "confidence and accuracy, expected calibration error 12.0 %:"
    assert low == " 50.0  " + "#" * 20 + "|" + " " * 19 + "  50.0 % of 40"
    assert high.index("|") > high.rindex("#")
