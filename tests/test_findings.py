"""What a study's files say: methods over seeds, and which differences are more than noise."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from service.errors import OptionsUnusable
from tests.studies import MadeUpStudy
from training.findings import (
    Method,
    best,
    class_shares,
    compare,
    compare_all,
    compare_headline,
    complete,
    confusion_of,
    even,
    headline,
    load_study,
)
from training.plan import DEFAULT_VARIANT, Amount, Cell
from training.statistics import holm, paired_p

ONE, FIVE = Amount(fraction=0.01), Amount(fraction=0.05)


def method(label: str, *accuracies: float, first_seed: int = 0) -> Method:
    """A method with these overall accuracies in percent, seed after seed."""
    scores = {
        first_seed + place: {"oa": value / 100, "aa": value / 100, "kappa": value / 100}
        for place, value in enumerate(accuracies)
    }
    return Method(label, scores)


@pytest.fixture
def made(tmp_path):
    return MadeUpStudy(tmp_path / "study", classes=("roof", "grass", "tree"), shape=(24, 24))


def test_differences_are_paired_by_seed():
    found = compare([(method("a", 90, 80, 70), method("b", 89, 78.5, 69))])[0]
    assert_allclose(found.by_seed, [1, 1.5, 1])
    assert found.difference == pytest.approx(3.5 / 3)
    assert found.turned.difference == pytest.approx(-3.5 / 3)


def test_p_values_are_corrected_for_all_comparisons_made_together():
    first, second, third = method("a", 90, 91, 93), method("b", 88, 89.5, 90.5), method("c", 89, 91, 92.5)
    raw = [paired_p(first.values(), other.values()) for other in (second, third)]
    corrected = [found.p for found in compare([(first, second), (first, third)])]
    assert_allclose(corrected, holm(raw))
    assert corrected != raw


def test_only_seeds_that_both_have_are_compared():
    found = compare([(method("a", 90, 91, 92), method("b", 80, 80, first_seed=1))])[0]
    assert_allclose(found.by_seed, [11, 12])


def test_methods_are_made_even_by_the_seeds_that_give_most_to_compare():
    def seeds(*methods):
        return [found.seeds for found in even(methods)]

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


def test_we_stand_for_the_default_recipes_map(made):
    for recipe in ("paper", "strong"):
        made.add(Cell("variants", DEFAULT_VARIANT, recipe, ONE, 0))
    ours = load_study(made.directory).ours(ONE)
    assert [one.label for one in ours] == ["ours (paper)", "ours (paper), map", "ours (strong)", "ours (strong), map"]
    assert headline(ours) is ours[-1]


def test_ours_is_compared_with_everything_beside_it(made):
    made.add_table_one([ONE], ["strong"], 2, (DEFAULT_VARIANT, "cosine"))
    found = compare_headline(load_study(made.directory), ONE)
    assert {one.first.label for one in found} == {"ours (strong), map"}
    assert [one.second.label for one in found] == [
        "ours (strong)", "logistic regression", "logistic regression, tuned", "random forest", "SVM", "3-D CNN",
    ]  # fmt: skip


def test_a_class_without_test_pixels_has_no_accuracy():
    scores = {"per_class": [{"accuracy": 0.5}, {"accuracy": None}]}
    assert class_shares(Method("a", {0: scores})) == [(50.0, None), None]


def test_confusions_of_all_seeds_are_added(made):
    cells = [made.add(Cell("variants", "cosine", "paper", ONE, seed)) for seed in range(2)]
    assert_allclose(confusion_of(cells), np.add(cells[0]["confusion"], cells[1]["confusion"]))


def test_a_scene_of_the_papers_goes_by_its_published_name(made):
    path = made.directory / "study.json"
    path.write_text(path.read_text().replace('"split"', '"published": "salinas", "split"', 1))
    assert load_study(made.directory).title == "Salinas, random split"


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(OptionsUnusable, match="no study"):
        load_study(tmp_path)
