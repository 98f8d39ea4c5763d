"""Statistics: means over seeds, marks, paired tests that do not mistake noise for a ranking, and calibration."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import ttest_rel

from training.statistics import calibration_error, holm, marks, needed_spreads, paired_p, reliability_bins, summarise


def test_the_deviation_is_the_samples():
    assert summarise([1.0, 2.0, 3.0]) == (2.0, 1.0)


def test_one_value_has_no_deviation():
    assert summarise([0.7]) == (0.7, 0.0)


def test_nothing_cannot_be_summarised():
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_the_best_three_are_marked():
    assert marks([90.0, 95.0, None, 93.0, 80.0]) == [3, 1, 0, 2, 0]


def test_values_that_print_alike_share_a_mark():
    assert marks([95.001, 95.004, 93.0, 92.0]) == [1, 1, 3, 0]


def test_a_steady_difference_is_found():
    first = [90.0, 85.0, 88.0, 91.0, 84.0]
    second = [value - 1.0 - wobble for value, wobble in zip(first, [0.1, -0.1, 0.0, 0.05, -0.05], strict=True)]
    assert paired_p(first, second) < 0.001


def test_noise_is_not_taken_for_a_difference():
    generator = np.random.default_rng(0)
    found = [paired_p(generator.normal(size=5), generator.normal(size=5)) < 0.05 for _ in range(400)]
    assert_allclose(np.mean(found), 0.05, atol=0.03)


def test_the_order_of_two_methods_does_not_matter():
    first, second = [1.0, 2.0, 4.0], [1.5, 1.0, 3.0]
    assert_allclose(paired_p(first, second), paired_p(second, first))


def test_equal_scores_are_no_difference():
    assert paired_p([0.9, 0.8], [0.9, 0.8]) == 1.0


def test_differences_without_spread_are_beyond_doubt():
    assert paired_p([0.9, 0.8, 0.7], [0.8, 0.7, 0.6]) == 0.0


@pytest.mark.parametrize(("first", "second"), [([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0, 3.0])])
def test_a_test_without_pairs_is_refused(first, second):
    with pytest.raises(ValueError, match="two or more pairs"):
        paired_p(first, second)


def test_holm_raises_the_smallest_most():
    assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])


def test_holm_never_exceeds_one_and_keeps_order():
    raised = holm([0.9, 0.5, 0.02, 0.7])
    assert max(raised) <= 1
    assert np.argsort(raised, kind="stable")[0] == 2


@pytest.mark.parametrize(("tests", "seeds"), [(55, 3), (36, 3), (10, 5), (1, 4)])
def test_a_difference_of_as_many_spreads_as_needed_is_just_found(tests, seeds):
    shape = np.arange(seeds) - (seeds - 1) / 2
    shape /= shape.std(ddof=1)
    for factor, is_found in ((1.01, True), (0.99, False)):
        p = paired_p(shape + factor * needed_spreads(tests, seeds), np.zeros(seeds))
        assert (holm([p] + [1.0] * (tests - 1))[0] < 0.05) == is_found


def test_holm_of_nothing_is_nothing():
    assert holm([]) == []


def test_answers_are_gathered_by_confidence():
    bins = reliability_bins(np.array([0.9, 0.95, 0.55]), np.array([True, False, True]), bins=10)
    assert [count for _, _, count in bins] == [1, 2]
    assert_allclose(bins[1][:2], (0.925, 0.5))


def test_full_confidence_lies_in_the_last_bin():
    assert reliability_bins(np.array([1.0]), np.array([True])) == [(1.0, 1.0, 1)]


def test_the_calibration_error_weighs_bins_by_their_answers():
    assert_allclose(calibration_error([(0.9, 0.5, 3), (0.6, 0.6, 1)]), 0.3)
    assert calibration_error([]) == 0.0


def test_seeds_that_agree_by_chance_are_no_surer_than_their_pixels():
    """One pixel of 5,000 in each of three seeds may be anything; a hundred in each are not."""
    step = 100 / 5000
    behind = np.array([99.0, 98.5, 99.2])
    assert paired_p(behind + step, behind, step) > 0.1
    assert paired_p(behind + 3 * step, behind, step) > 0.05
    assert paired_p(behind + 100 * step, behind, step) < 0.01
    assert paired_p(behind, behind, step) == 1


def test_seeds_that_do_not_agree_are_tested_by_their_own_spread():
    first, second = [90.0, 80.0, 70.0], [88.0, 71.0, 69.5]
    assert_allclose(paired_p(first, second, 0.01), ttest_rel(first, second).pvalue)
