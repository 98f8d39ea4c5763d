"""A study's results: methods over seeds, paired comparisons, and the statistics behind them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import ttest_rel

from hyperscene.errors import OptionsUnusable
from hyperscene.training.fit.calibration import calibration_error, reliability_bins
from hyperscene.training.study.plan import DEFAULT_VARIANT, Amount, Cell
from hyperscene.training.study.results import (
    Method,
    best,
    class_shares,
    compare,
    compare_all,
    compare_main_method,
    complete,
    confusion_of,
    load_study,
    main_method,
    with_common_seeds,
)
from hyperscene.training.study.statistics import detectable_effect, holm, paired_p, summarise, top_three
from tests.studies import SyntheticStudy

ONE, FIVE = Amount(fraction=0.01), Amount(fraction=0.05)


def method(label: str, *accuracies: float, first_seed: int = 0) -> Method:
    """A method with these overall accuracies in percent, seed after seed."""
    scores = {
        first_seed + index: {"oa": value / 100, "aa": value / 100, "kappa": value / 100}
        for index, value in enumerate(accuracies)
    }
    return Method(label, scores)


@pytest.fixture
def made(tmp_path):
    return SyntheticStudy(tmp_path / "study", classes=("roof", "grass", "tree"), shape=(24, 24))


def test_differences_are_paired_by_seed():
    found = compare([(method("a", 90, 80, 70), method("b", 89, 78.5, 69))])[0]
    assert_allclose(found.by_seed, [1, 1.5, 1])
    assert found.difference == pytest.approx(3.5 / 3)
    assert found.reversed.difference == pytest.approx(-3.5 / 3)


def test_p_values_are_corrected_for_all_comparisons_made_together():
    first, second, third = method("a", 90, 91, 93), method("b", 88, 89.5, 90.5), method("c", 89, 91, 92.5)
    raw = [paired_p(first.values(), other.values()) for other in (second, third)]
    corrected = [found.p for found in compare([(first, second), (first, third)])]
    assert_allclose(corrected, holm(raw))
    assert corrected != raw


def test_only_seeds_that_both_have_are_compared():
    found = compare([(method("a", 90, 91, 92), method("b", 80, 80, first_seed=1))])[0]
    assert_allclose(found.by_seed, [11, 12])


def test_methods_are_restricted_to_the_seeds_that_leave_most_to_compare():
    def seeds(*methods):
        return [found.seeds for found in with_common_seeds(methods)]

    three = [method(name, 80, 81, 82) for name in "abc"]
    ahead = method("ahead", 90, 91, 92, 93, 94)
    assert seeds(*three, ahead, ahead) == [(0, 1, 2)] * 5
    assert seeds(ahead, ahead, method("begun", 80)) == [(0, 1, 2, 3, 4)] * 2 + [(0,)]
    assert seeds(method("a", 80, 81), method("b", 80, 81, first_seed=1)) == [(0, 1), (1,)]
    assert seeds(ahead, method("elsewhere", 80, first_seed=9)) == [(0, 1, 2, 3, 4)]


def test_a_pixel_that_is_wrong_in_every_seed_is_not_beyond_noise():
    def of(label, *wrong):
        scores = {seed: {"oa": 1 - count / 5000, "pixels": 5000} for seed, count in enumerate(wrong)}
        return Method(label, scores)

    assert not compare([(of("a", 9, 20, 14), of("b", 10, 21, 15))])[0].is_beyond_noise
    assert compare([(of("a", 9, 20, 14), of("b", 210, 221, 215))])[0].is_beyond_noise


def test_methods_without_a_common_seed_are_not_compared():
    assert compare([(method("a", 90), method("b", 80, first_seed=1))]) == []


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_or_two_are_never_beyond_noise(seeds):
    found = compare([(method("a", *[99] * seeds), method("b", *[10] * seeds))])[0]
    assert found.p is None
    assert not found.is_beyond_noise


def test_every_pair_is_compared_once_and_from_the_better_side():
    found = compare_all([method("low", 70, 71), method("high", 90, 92), method("middle", 80, 81)])
    assert [(one.first.label, one.second.label) for one in found] == [
        ("high", "middle"),
        ("high", "low"),
        ("middle", "low"),
    ]


def test_a_lucky_method_with_fewer_seeds_is_not_the_best():
    lucky, solid = method("lucky", 99), method("solid", 90, 91)
    assert complete([lucky, solid]) == [solid]
    assert best([lucky, solid]) is solid


def test_one_seed_has_no_standard_deviation():
    assert method("a", 90).summary() == (pytest.approx(90), None)
    assert method("a", 90, 92).summary() == (pytest.approx(91), pytest.approx(np.sqrt(2)))


def test_amounts_come_from_few_labels_to_many_and_the_default_recipe_last(made):
    for amount in (FIVE, ONE):
        for recipe in ("strong", "paper"):
            made.add(Cell("variants", DEFAULT_VARIANT, recipe, amount, 0))
    study = load_study(made.directory)
    assert study.amounts == (ONE, FIVE)
    assert study.recipes == ("paper", "strong")


def test_our_main_method_is_the_map_of_the_default_recipe(made):
    for recipe in ("paper", "strong"):
        made.add(Cell("variants", DEFAULT_VARIANT, recipe, ONE, 0))
    ours = load_study(made.directory).ours(ONE)
    assert [one.label for one in ours] == ["ours (paper)", "ours (paper), map", "ours (strong)", "ours (strong), map"]
    assert main_method(ours) is ours[-1]


def test_our_main_method_is_compared_with_all_others(made):
    made.add_table_one([ONE], ["strong"], 2, (DEFAULT_VARIANT, "cosine"))
    found = compare_main_method(load_study(made.directory), ONE)
    assert {one.first.label for one in found} == {"ours (strong), map"}
    assert [one.second.label for one in found] == [
        "ours (strong)", "logistic regression", "logistic regression, tuned", "shrinkage LDA", "random forest", "SVM",
        "SVM, tuned", "3-D CNN",
    ]  # fmt: skip


def test_a_class_without_test_pixels_has_no_accuracy():
    scores = {"per_class": [{"accuracy": 0.5}, {"accuracy": None}]}
    assert class_shares(Method("a", {0: scores})) == [(50.0, None), None]


def test_confusions_of_all_seeds_are_added(made):
    cells = [made.add(Cell("variants", "cosine", "paper", ONE, seed)) for seed in range(2)]
    assert_allclose(confusion_of(cells), np.add(cells[0]["confusion"], cells[1]["confusion"]))


def test_a_scene_of_the_paper_has_its_published_name(made):
    path = made.directory / "study.json"
    path.write_text(path.read_text().replace('"published": null', '"published": "salinas"'))
    assert load_study(made.directory).title == "Salinas, random split"


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(OptionsUnusable, match="no study"):
        load_study(tmp_path)


def test_the_deviation_is_the_samples():
    assert summarise([1.0, 2.0, 3.0]) == (2.0, 1.0)


def test_one_value_has_no_deviation():
    assert summarise([0.7]) == (0.7, 0.0)


def test_nothing_cannot_be_summarised():
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_the_best_three_are_marked():
    assert top_three([90.0, 95.0, None, 93.0, 80.0]) == [3, 1, 0, 2, 0]


def test_values_that_print_alike_share_a_mark():
    assert top_three([95.001, 95.004, 93.0, 92.0]) == [1, 1, 3, 0]


def test_a_steady_difference_is_found():
    first = [90.0, 85.0, 88.0, 91.0, 84.0]
    second = [value - 1.0 - wobble for value, wobble in zip(first, [0.1, -0.1, 0.0, 0.05, -0.05], strict=True)]
    assert paired_p(first, second) < 0.001


def test_noise_is_not_reported_as_a_difference():
    generator = np.random.default_rng(0)
    found = [paired_p(generator.normal(size=5), generator.normal(size=5)) < 0.05 for _ in range(400)]
    assert_allclose(np.mean(found), 0.05, atol=0.03)


def test_the_order_of_two_methods_does_not_matter():
    first, second = [1.0, 2.0, 4.0], [1.5, 1.0, 3.0]
    assert_allclose(paired_p(first, second), paired_p(second, first))


def test_equal_scores_are_no_difference():
    assert paired_p([0.9, 0.8], [0.9, 0.8]) == 1.0


def test_equal_differences_are_beyond_noise():
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
        p = paired_p(shape + factor * detectable_effect(tests, seeds), np.zeros(seeds))
        assert (holm([p] + [1.0] * (tests - 1))[0] < 0.05) == is_found


def test_holm_of_nothing_is_nothing():
    assert holm([]) == []


def test_predictions_are_grouped_by_confidence():
    bins = reliability_bins(np.array([0.9, 0.95, 0.55]), np.array([True, False, True]), bins=10)
    assert [count for _, _, count in bins] == [1, 2]
    assert_allclose(bins[1][:2], (0.925, 0.5))


def test_full_confidence_lies_in_the_last_bin():
    assert reliability_bins(np.array([1.0]), np.array([True])) == [(1.0, 1.0, 1)]


def test_the_calibration_error_weights_bins_by_their_predictions():
    assert_allclose(calibration_error([(0.9, 0.5, 3), (0.6, 0.6, 1)]), 0.3)
    assert calibration_error([]) == 0.0


def test_seeds_that_agree_by_chance_have_the_uncertainty_of_their_pixels():
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
