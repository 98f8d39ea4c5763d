"""Estimators against published examples, and intervals against known truths."""

import numpy as np
import pytest

from hyperscene.service.assessment.estimation import CheckedPoints, estimate
from hyperscene.service.assessment.intervals import wilson
from tests.coverage import DEFORESTATION, TRUTHS, measure

PIXELS = np.array([200_000, 150_000, 3_200_000, 6_450_000])  # of 30 m: 0.09 ha


def checked(matrix, pixels):
    """Points of an error matrix; the strata are the map's classes."""
    mapped, reference = (np.repeat(side + 1, matrix.ravel()) for side in np.indices(matrix.shape).reshape(2, -1))
    return CheckedPoints(mapped - 1, mapped, reference, pixels * 0.09, pixels, len(matrix))


def test_the_example_of_olofsson_2014_is_reproduced_to_its_printed_digits():
    found = estimate(checked(DEFORESTATION, PIXELS))
    hectares = [entry.area_share.scaled(PIXELS.sum() * 0.09) for entry in found.classes]
    assert [round(area.value) for area in hectares] == [21_158, 11_686, 285_770, 581_386]
    halves = [1.96 * area.standard_error for area in hectares]
    assert halves == pytest.approx([6_158, 3_756, 15_510, 16_282], abs=1.0)
    assert round(found.overall_accuracy.value, 2) == 0.95
    assert [round(entry.users_accuracy.value, 2) for entry in found.classes] == [0.88, 0.73, 0.93, 0.96]
    assert [round(entry.producers_accuracy.value, 2) for entry in found.classes] == [0.75, 0.85, 0.93, 0.96]


# Forty points of table 2 of Stehman (2014), ten of each stratum.
STEHMAN_REFERENCE = "AAAAACBABCABBBBBAABBCCCCCDDBBADDDDDDDCCB"
STEHMAN_MAP = "AAAAAAABBBABBBBBBBBBBBCCCCCCBBDDDDDDDDDD"


def stehman_points():
    mapped, reference = (np.array(["ABCD".index(name) + 1 for name in names]) for names in
                         (STEHMAN_MAP, STEHMAN_REFERENCE))  # fmt: skip
    pixels = np.array([40_000, 30_000, 20_000, 10_000])
    return CheckedPoints(np.repeat(np.arange(4), 10), mapped, reference, pixels.astype(float), pixels, 4)


def test_the_example_of_stehman_2014_with_other_strata_is_reproduced_to_its_printed_digits():
    points = stehman_points()
    found = estimate(points)
    assert not points.is_stratified_by_map
    pairs = [
        (found.overall_accuracy, 0.63, 0.085),
        (found.classes[0].area_share, 0.35, 0.082),
        (found.classes[2].area_share, 0.20, 0.064),
        (found.classes[1].users_accuracy, 0.574, 0.125),
        (found.classes[1].producers_accuracy, 0.794, 0.117),
    ]
    for figure, value, error in pairs:
        assert figure.value == pytest.approx(value, abs=0.0006)
        assert figure.standard_error == pytest.approx(error, abs=0.0006)


def test_a_stratum_that_was_checked_completely_has_no_error():
    matrix = np.array([[3, 1], [0, 4]])
    found = estimate(checked(matrix, matrix.sum(axis=1)))
    area = found.classes[0].area_share
    assert (area.value, area.standard_error) == (0.375, 0.0)
    assert area.low == pytest.approx(0.375)
    assert area.high == pytest.approx(0.375)
    assert (found.overall_accuracy.low, found.overall_accuracy.high) == (0.875, 0.875)


def test_an_interval_contains_its_estimate_and_stays_between_0_and_1():
    found = estimate(checked(np.array([[50, 0, 0], [0, 50, 0], [1, 0, 200]]), np.array([900, 5_000, 500_000])))
    for entry in found.classes:
        for figure in (entry.users_accuracy, entry.producers_accuracy, entry.area_share):
            assert 0 <= figure.low <= figure.value <= figure.high <= 1


def test_wilsons_interval_agrees_with_its_published_values():
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_a_class_with_few_points_is_named():
    found = estimate(checked(DEFORESTATION, PIXELS))
    assert "one more would be 15 % of its area" in found.classes[1].remarks[0]
    assert found.classes[2].remarks == found.classes[3].remarks == ()


@pytest.mark.slow
@pytest.mark.parametrize("truth", [TRUTHS[0], TRUTHS[2], TRUTHS[5]], ids=lambda truth: truth.name)
def test_intervals_contain_the_truth_as_often_as_promised(truth):
    # 80 samples: 95 % +- 9 % is nearly four standard errors; tests/coverage.py draws thousands.
    found = measure(truth, samples=80, seed=1)
    for name, _, covered, _, remarked in found.rows():
        assert covered >= (0.86 if remarked < 0.5 else 0.8), name
    assert 0.93 <= found.ours.mean() <= 0.98
