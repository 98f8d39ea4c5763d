"""The report: its tables, texts and figures, and that its page is complete, accessible and fits its window."""

from __future__ import annotations

import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.figure import Figure

from hyperscene.errors import OptionsUnusable
from hyperscene.model.attention import VARIANTS
from hyperscene.training.baselines import BASELINES
from hyperscene.training.study import figures, model_figures, tables
from hyperscene.training.study.figures import draw_png
from hyperscene.training.study.pages import Entry, FigureBlock, Heading, Paragraph, Row, Table, html_page, markdown_page
from hyperscene.training.study.plan import DEFAULT_VARIANT, Amount, Cell
from hyperscene.training.study.report import write_collection, write_report
from hyperscene.training.study.results import load_study, summarise_study
from tests.programs import running_browser
from tests.studies import SIXTEEN, SyntheticStudy, add_variants, blocks_of, fields, findings_of, table_of

ONE, FIVE = Amount(fraction=0.01), Amount(fraction=0.05)
THREE_CLASSES = ("roof", "grass", "tree")
SOME = ("cosine_squared", "cosine", "dot_product", "cross_additive")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A study with everything in it, and its report."""
    made = SyntheticStudy(tmp_path_factory.mktemp("whole") / "study", classes=SIXTEEN, shape=(50, 54))
    made.add_table_one([ONE, FIVE], ["paper", "strong"], 3, SOME)
    made.add_table_two(ONE, "paper", 3)
    made.add_inspection(ONE, points=200)
    write_report(made.directory)
    return made.directory


@pytest.fixture
def made(tmp_path) -> SyntheticStudy:
    return SyntheticStudy(tmp_path / "study", classes=THREE_CLASSES, shape=(24, 24))


def test_the_html_is_one_file_without_scripts(whole):
    page = (whole / "report.html").read_text()
    assert "<script" not in page
    assert not re.search(r"\son[a-z]+=", page)
    addresses = re.findall(r'(?:\bsrc|href)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses)


def test_every_address_inside_the_html_leads_somewhere_and_only_there(whole):
    page = (whole / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_the_markdown_shows_the_overview_and_the_map_and_there_is_no_other_file(whole):
    shown = re.findall(r"\]\(figures/([^)]+)\)", (whole / "report.md").read_text())
    assert shown == ["overview.png", "map-strong-f0.01-s0.png"]
    assert set(shown) == {path.name for path in (whole / "figures").iterdir()}


def test_both_forms_hold_the_same_tables(whole):
    page, text = (whole / "report.html").read_text(), (whole / "report.md").read_text()
    assert page.count("<table>") == text.count("| --- |")


def test_the_html_has_a_figure_for_everything_that_was_measured(whole):
    page = (whole / "report.html").read_text()
    for caption in (
        "Overall accuracy against the number of labelled pixels", "Table I as a figure",
        "Accuracy of every class", "Table II as differences", "Confusion of ours", "The map that the service",
        "Features of 200 test pixels", "Attention of the centre pixel",
        "Accuracy by confidence", "Ours minus the best baseline",
    ):  # fmt: skip
        assert f'<img alt="{caption}' in page


def test_a_heading_with_figures_of_the_html_alone_is_not_in_the_markdown():
    hidden = FigureBlock("a", Figure(), "A")
    text = markdown_page("t", [Heading("One"), hidden, Heading("Two"), Heading("Three", 3), hidden, Paragraph("B")])
    assert re.findall("^#+ (.*)", text, re.MULTILINE) == ["t", "Two", "Three"]


@pytest.mark.slow
def test_the_same_files_make_the_same_bytes(whole, tmp_path):
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    write_report(again)
    for name in ("report.html", "report.md", "figures/overview.png"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_figures_of_an_earlier_report_are_deleted(made):
    made.add_table_one([ONE], ["paper"], 2, SOME)
    (made.directory / "figures").mkdir()
    (made.directory / "figures" / "map-old.png").touch()
    write_report(made.directory)
    assert not (made.directory / "figures" / "map-old.png").exists()


def test_a_study_without_cells_has_a_report_that_says_so(made):
    write_report(made.directory)
    assert "No cell is finished yet" in (made.directory / "report.md").read_text()
    assert not (made.directory / "figures").exists()


@pytest.mark.parametrize(
    "cell",
    [
        Cell("baselines", "svm", None, ONE, 0),
        Cell("variants", DEFAULT_VARIANT, "paper", ONE, 0),
        Cell("variants", "cosine", "strong", ONE, 3),
        Cell("ablations", "heads_2", "paper", ONE, 0),
        Cell("inspection", DEFAULT_VARIANT, "strong", ONE, 0),
    ],
    ids=lambda cell: cell.id,
)
def test_any_cell_alone_makes_a_report(made, cell):
    made.add(cell)
    write_report(made.directory)
    assert "1 finished cell over 1 seed" in (made.directory / "report.md").read_text()


def test_what_was_not_measured_has_no_heading(made):
    made.add_table_one([ONE], ["paper"], 2, (DEFAULT_VARIANT,))
    write_report(made.directory)
    headings = re.findall(r"^## (.*)", (made.directory / "report.md").read_text(), re.MULTILINE)
    assert headings == ["In short", "Ours and the baselines", "Calibration"]


def test_the_report_says_how_and_where_it_was_made(tmp_path):
    machine = {"processor": "AMD EPYC", "cores": 2, "threads": 1}
    commands = ["hyperscene study --scene s.mat --out `x`", "hyperscene study --scene s.mat --seeds 5"]
    made = SyntheticStudy(
        tmp_path / "study", shape=(24, 24), machines=[machine], commands=commands, title="Our <fields>"
    )
    for seed in range(60):
        made.add(Cell("variants", DEFAULT_VARIANT, "paper", ONE, seed))
    write_report(made.directory)
    page, text = (made.directory / "report.html").read_text(), (made.directory / "report.md").read_text()
    assert re.search(
        r"60 finished cells over 60 seeds, 1\.\d hours of computing on AMD EPYC \(2 cores, 1 thread\)", text
    )
    assert "Commands of this study:\n\n    hyperscene study --scene s.mat --out `x`\n    hyperscene study" in text
    shown = [re.sub("<[^>]*>", "", line) for line in re.findall("<code>(.*?)</code>", page)]
    assert shown == commands
    assert "<h1>Study of Our &lt;fields&gt;, random split</h1>" in page


@pytest.mark.parametrize(
    ("file", "title"),
    [("Indian_pines_corrected.mat", "Indian pines corrected"), ("a__b c.bsq", "a b c"), ("_.npy", "_.npy")],
)
def test_a_scene_without_a_title_is_called_by_its_file(tmp_path, file, title):
    assert load_study(SyntheticStudy(tmp_path / "study", file, shape=(24, 24)).directory).name == title


def test_arrays_that_cannot_be_read_are_refused_with_the_remedy(made):
    made.add_inspection(ONE, points=20)
    (path,) = (made.directory / "cells").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arrays": "UEsDBA=="}))
    with pytest.raises(OptionsUnusable, match="delete it"):
        write_report(made.directory)


@pytest.mark.slow
def test_names_that_look_like_markup_stay_text(tmp_path):
    made = SyntheticStudy(tmp_path / "study", "<b>a|b</b>.tif", classes=("<i>roof", "$x$ | *y*"), shape=(24, 24))
    made.add_table_one([ONE], ["paper"], 2, SOME[:2])
    made.add_inspection(ONE, points=20)
    write_report(made.directory)
    page, text = (made.directory / "report.html").read_text(), (made.directory / "report.md").read_text()
    assert "<b>a" not in page
    assert "&lt;b&gt;a|b" in page
    assert r"\<b\>a\|b" in text


# Tables and words


def test_table_one_has_the_papers_order_and_baselines_below_a_rule(made):
    made.add_table_one([ONE], ["paper"], 2)
    table = table_of(blocks_of(made))
    names = [row.name for row in table.rows]
    assert names == [name.replace("_", " ") for name in VARIANTS] + list(BASELINES.values())
    assert [row.name for row in table.rows if row.is_ruled] == ["logistic regression"]


def test_best_second_and_third_are_marked_in_every_column(made):
    add_variants(made, {"cosine": [4, 4.2], "additive": [2, 2.1], "dot_product": [3, 3.1], "self_attention": [9, 9]})
    ranks = {row.name: [entry.rank for entry in row.entries[:3]] for row in table_of(blocks_of(made)).rows}
    assert ranks == {"additive": [1] * 3, "dot product": [2] * 3, "cosine": [3] * 3, "self attention": [0] * 3}


def test_ranks_are_visible_without_colour():
    table = Table("T", ["a", "b"], [Row("x", [Entry("9", 1)]), Row("y", [Entry("8", 2)]), Row("z", [Entry("7", 3)])])
    page, text = html_page("t", [table]), markdown_page("t", [table])
    for mark in "①②③":
        assert mark in page
        assert mark in text
    assert "**9** ①" in text


def test_a_mean_over_fewer_seeds_says_so_and_has_no_rank(made):
    add_variants(made, {"cosine": [4, 4.2], "additive": [1], "dot_product": [3, 3.1]})
    rows = {row.name: row for row in table_of(blocks_of(made)).rows}
    assert rows["additive (1 of 2 seeds)"].entries[0].rank == 0
    assert rows["dot product"].entries[0].rank == 1


def test_a_method_with_more_seeds_is_compared_over_the_common_seeds(made):
    errors = {"cosine_squared": [2, 2.1, 2, 50, 50], "cosine": [4, 4.2, 4], "svm": [9, 9, 9, 60, 60]}
    add_variants(made, errors)
    rows = {row.name: row.entries for row in table_of(blocks_of(made)).rows}
    assert set(rows) == {"cosine squared", "cosine", "SVM"}
    assert (rows["cosine squared"][0].rank, rows["cosine"][0].rank) == (1, 2)
    assert rows["cosine squared"][0].text.startswith("97.97")
    assert rows["SVM"][0].text.startswith("91.00")


def test_table_two_compares_over_the_seeds_that_its_rows_have(made):
    add_variants(made, {"cosine_squared": [2, 2.1, 50]})
    for seed in range(2):
        made.add(Cell("ablations", "heads_2", "paper", ONE, seed))
    rows = {row.name: row.entries for row in table_of(blocks_of(made, tables.ablations)).rows}
    assert next(entries for name, entries in rows.items() if name.startswith("4 heads"))[0].text.startswith("97.95")


def test_baselines_with_more_seeds_do_not_take_the_marks_of_a_recipe(made):
    add_variants(made, {"cosine_squared": [2, 2.1, 2], "cosine": [4, 4.2, 4], "svm": [9] * 5})
    for seed in range(5):
        for name in ("cosine_squared", "cosine"):
            made.add(Cell("variants", name, "strong", ONE, seed))
    rows = {row.name: row.entries for row in table_of(blocks_of(made)).rows}
    assert (rows["cosine squared"][0].rank, rows["cosine"][0].rank, rows["SVM"][0].rank) == (1, 2, 3)


def test_the_finding_of_table_one_ranks_only_methods_with_all_seeds(made):
    leader, lucky = [20, 20.1, 20, 5, 5], [18, 17.9, 18.1]
    add_variants(made, {"cosine_squared": leader, "additive": lucky, "cosine": [21, 22, 20.5, 7, 8]})
    said = findings_of(blocks_of(made))
    assert "above additive" not in said
    assert "the highest mean of those with all seeds" in said or "No two score functions" in said


def test_changes_with_too_few_seeds_are_not_called_alike(made):
    for seed in range(2):
        for name in ("no_pseudo_labels", "dropout"):
            made.add(Cell("ingredients", name, "strong", ONE, seed))
        made.add(Cell("variants", "cosine_squared", "strong", ONE, seed))
    assert findings_of(blocks_of(made, tables.ingredients)) == "Ingredients: too few seeds for a test."


def test_differences_within_noise_are_no_ranking(made):
    add_variants(made, {"cosine": [5, 3, 6], "additive": [4, 6, 3], "dot_product": [3, 5, 5]})
    assert "No two score functions differ beyond noise" in findings_of(blocks_of(made))


def test_a_difference_beyond_noise_is_named(made):
    errors = {"cosine": [5, 3, 6, 4], "additive": [5.2, 2.9, 6.1, 4], "dot_product": [25.1, 23, 26, 24.2]}
    add_variants(made, errors)
    said = findings_of(blocks_of(made))
    assert "2 of the 3 pairs of score functions differ beyond noise" in said
    assert "is beyond noise above dot product, but is within noise of additive" in said


def test_one_seed_is_no_ranking(made):
    add_variants(made, {"cosine": [5], "additive": [4]})
    assert "this is no ranking" in findings_of(blocks_of(made))


def test_every_group_of_table_two_holds_the_default_network_where_the_paper_has_it(made):
    made.add_table_one([ONE], ["paper"], 2, (DEFAULT_VARIANT,))
    made.add_table_two(ONE, "paper", 2)
    names = [row.name for row in table_of(blocks_of(made, tables.ablations)).rows]
    assert names[:5] == ["Normalization", "None", "Query only", "Key only", "Query + Key"]
    assert names[5:10] == ["Squaring strategy", "Cosine", "|cosine|", "Cosine²", "Temp.-scaled cosine²"]
    assert names[-5:] == ["Spectral noise", "none added", "30 dB", "20 dB", "10 dB"]
    assert names.count("16 x 16") == names.count("4 heads") == names.count("4 layers") == names.count("64") == 1


def test_a_table_says_how_its_networks_were_scored(made):
    ways = {"map": "Scored by the map that", "patches": "Scored pixel by pixel", None: "Scored pixel by pixel"}
    for way, said in ways.items():
        for seed, name in product(range(2), ("cosine", "additive")):
            made.add(Cell("variants", name, "strong", ONE, seed), judged_by=way)
        assert said in table_of(blocks_of(made, tables.score_functions)).note
    made.add(Cell("variants", "cosine", "strong", ONE, 0), judged_by="map")
    assert "older cells are scored" in table_of(blocks_of(made, tables.score_functions)).note


def test_label_propagation_has_a_row_beside_its_network_without_a_time(made):
    add_variants(made, {"svm": [20.3, 20.8]})
    for seed in range(2):
        made.add(Cell("variants", DEFAULT_VARIANT, "strong", ONE, seed), judged_by="map", propagation_error=4.0)
    rows = {row.name: row for row in table_of(blocks_of(made, tables.against_baselines)).rows}
    assert list(rows) == ["ours (strong), label propagation alone", "ours (strong), map", "SVM"]
    assert rows["ours (strong), label propagation alone"].entries[-1].text == ""
    assert rows["ours (strong), map"].entries[-1].text != ""


def test_ingredients_stand_under_what_was_taken_out_and_put_in(made):
    made.add_table_one([ONE], ["strong"], 3, (DEFAULT_VARIANT,))
    for name, seed in product(("dropout", "no_pseudo_labels", "no_symmetries"), range(3)):
        made.add_with_accuracy(Cell("ingredients", name, "strong", ONE, seed), (20, 5, 12)[seed])
    blocks = blocks_of(made, tables.ingredients)
    assert [row.name for row in table_of(blocks).rows] == [
        "Taken out", "default", "pseudo-labels: labelled patches only, each once per epoch", "rotations and flips",
        "Put in", "default", "dropout of 0.1",
    ]  # fmt: skip
    assert any(isinstance(block, FigureBlock) for block in blocks)
    assert "No change of Ingredients differs from the default beyond noise" in findings_of(blocks)


def test_an_ingredient_that_was_deleted_since_is_still_reported(made):
    made.add_table_one([ONE], ["strong"], 3, (DEFAULT_VARIANT,))
    for seed in range(3):
        record = made.add(Cell("ingredients", "dropout", "strong", ONE, seed))
        record |= {"name": "mixing", "label": "mixing of patches"}
        (made.directory / "cells" / f"{record['id']}.json").write_text(json.dumps(record))
    rows = table_of(blocks_of(made, tables.ingredients)).rows
    assert [row.name for row in rows] == ["Put in", "default", "mixing of patches"]


@pytest.mark.parametrize(("split", "is_said"), [("spatial", True), ("random", False)])
def test_table_two_says_whose_patches_reach_from_training_to_test_pixels(tmp_path, split, is_said):
    made = SyntheticStudy(tmp_path, split=split)
    for name in ("heads_2", "patch_24"):
        made.add(Cell("ablations", name, "paper", ONE, 0))
    said = "patches of 24 x 24 reach further: its score is too high."
    assert (said in table_of(blocks_of(made, tables.ablations)).note) == is_said


def test_table_two_without_the_default_network_still_shows_its_rows(made):
    made.add(Cell("ablations", "heads_2", "paper", ONE, 0))
    blocks = blocks_of(made, tables.ablations)
    assert [row.name for row in table_of(blocks).rows] == ["Head number", "2 heads"]
    assert not any(isinstance(block, FigureBlock) for block in blocks)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([5, 6, 5.5], "Ours is above the best baseline, beyond noise (1 of 1). 1\u00a0%"),
        ([35, 36, 35.5], "Ours is below the best baseline, beyond noise (1 of 1). 1\u00a0%"),
        ([20, 21, 20.6], "Ours and the best baseline are within noise (1 of 1). 1\u00a0%"),
    ],
)
def test_the_overview_says_which_method_is_better(made, ours, said):
    add_variants(made, {DEFAULT_VARIANT: ours, "svm": [20.3, 20.8, 20.7], "random_forest": [30, 31, 30.5]})
    for path in (made.directory / "cells").glob("variants-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mapped": None}))
    write_report(made.directory)
    text = (made.directory / "report.md").read_text()
    assert text.split("## In short\n\n> ")[1].startswith(said)
    assert "against SVM" in text


# What a recipe chose, and the paper's figures


@pytest.mark.parametrize(
    ("after", "expected"),
    [((0.01, 0.02), "in every row"), ((0.01, 0.2), "in 1 of 2 rows only"), ((0.2, 0.2), "in no row")],
)
def test_a_temperature_that_raises_the_error_is_reported(made, after, expected):
    for amount, error in zip((ONE, FIVE), after, strict=True):
        cell = Cell("variants", DEFAULT_VARIANT, "strong", amount, 0)
        record = made.add(cell) | {"calibration": {"ece_before": 0.1, "ece_after": error, "temperature": 2.0}}
        (made.directory / "cells" / f"{cell.id}.json").write_text(json.dumps(record))
    assert f"lowers the calibration error {expected}" in findings_of(blocks_of(made, model_figures.calibration))


def test_chosen_settings_are_counted_over_seeds_by_amount(made):
    made.add_table_one([ONE, FIVE], ["paper", "strong"], 3, SOME[:2])
    table = table_of(blocks_of(made, model_figures.recipe_choices))
    assert table.title == "Settings that recipe strong chose"
    assert [row.name for row in table.rows] == [
        "1\u00a0% of the labels (4 pixels)",
        "5\u00a0% of the labels (19 pixels)",
    ]
    assert table.columns[1] == "fidelity weight (seeds)"
    assert table.rows[0].entries[0].text == "spectra alone (1), weight 0.1 (2); smoothed spectra too (1)"
    assert all(re.fullmatch(r"\d+\.\d ± \d+\.\d", entry.text) for entry in table.rows[0].entries[1:3])
    assert table.rows[0].entries[4].text == "41 ± 0"
    assert len(table.columns) == 1 + len(table.rows[0].entries)


def test_the_held_out_accuracy_of_one_seed_has_no_deviation(made):
    record = made.add(Cell("variants", DEFAULT_VARIANT, "strong", ONE, 0))
    (row,) = table_of(blocks_of(made, model_figures.recipe_choices)).rows
    assert row.entries[1].text == f"{100 * record['chosen']['held_out_accuracy']:.1f}"


# What a study cannot say


def test_classes_without_test_pixels_are_named(made):
    for seed in range(2):
        record = made.add(Cell("baselines", "svm", None, ONE, seed))
        for found in record["scores"]["per_class"]:
            if found["name"] == "roof" or (found["name"] == "tree" and seed == 1):
                found["pixels"] = 0
        (made.directory / "cells" / f"{record['id']}.json").write_text(json.dumps(record))
    write_report(made.directory)
    said = "There are no test pixels of roof and tree (1 of 2 splits): the scores do not include them"
    assert said in (made.directory / "report.md").read_text()


def test_a_name_of_another_version_comes_last(made):
    add_variants(made, {"cosine": [1.0], "dot_product": [2.0]})
    record = made.add(Cell("baselines", "svm", None, ONE, 0))
    for part, name in (("variants", "forgotten"), ("baselines", "older")):
        renamed = record | {"id": name, "part": part, "name": name, "label": name, "recipe": "paper"}
        (made.directory / "cells" / f"{name}.json").write_text(json.dumps(renamed))
    write_report(made.directory)
    assert [row["name"] for row in summarise_study(made.directory)] == [
        "cosine",
        "dot_product",
        "forgotten",
        "svm",
        "older",
    ]
    assert [row.name for row in table_of(blocks_of(made)).rows][:3] == ["cosine", "dot product", "forgotten"]


@pytest.mark.parametrize(("content", "why"), [("{}", "it has no id, part"), ("7", "not iterable"), ("{", "property")])
def test_a_file_that_is_no_cell_is_refused_with_a_remedy(made, content, why):
    made.add(Cell("baselines", "svm", None, ONE, 0))
    (made.directory / "cells" / "odd.json").write_text(content)
    with pytest.raises(OptionsUnusable, match=rf"odd\.json cannot be read \(.*{why}.*\): delete it and run the same"):
        write_report(made.directory)


# Collections


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    """Two scenes in folders of the same name, with other amounts each."""
    root = tmp_path_factory.mktemp("collection")
    for folder, name, split, amounts in (
        ("a/study", "Indian_pines.mat", "random", [ONE, FIVE]),
        ("b/study", "SalinasA.mat", "spatial", [Amount(train_pixels=count) for count in (100, 200, 500)]),
    ):
        made = SyntheticStudy(root / folder, name, split, THREE_CLASSES, (24, 24))
        made.add_table_one(amounts, ["strong"], 2, (DEFAULT_VARIANT,))
    write_collection([root / "a/study", root / "b/study"], root / "out")
    return root / "out"


def test_a_collection_begins_with_a_line_for_every_scene_and_amount(collection):
    table = (collection / "report.md").read_text().split("| --- |")[1]
    names = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert names[:7] == [
        "**Indian pines, random split**", "1\u00a0% (4)", "5\u00a0% (19)",
        "**SalinasA, spatial split**", "100 labels", "200 labels", "500 labels",
    ]  # fmt: skip


def test_a_collection_says_over_how_many_seeds_its_lines_are(tmp_path):
    for folder, seeds in (("one", 2), ("two", 3)):
        SyntheticStudy(tmp_path / folder, shape=(24, 24)).add_table_one([ONE], ["strong"], seeds, (DEFAULT_VARIANT,))
    write_collection([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    table = (tmp_path / "out" / "report.md").read_text().split("Overall accuracy of every method")[1]
    assert "Means ± standard deviation over 2 to 3 seeds. ①" in table


def test_a_collection_has_a_part_for_every_study(collection):
    text = (collection / "report.md").read_text()
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert headings == ["In short", "Indian pines, random split", "SalinasA, spatial split"]
    assert text.count("### Ours and the baselines") == 2


def test_studies_of_one_scene_and_split_are_called_by_their_folders_too(tmp_path):
    for folder in ("old", "new"):
        SyntheticStudy(tmp_path / folder, shape=(24, 24)).add(Cell("baselines", "svm", None, ONE, 0))
    write_collection(
        [tmp_path / "old", tmp_path / "new"], tmp_path / "out", "Old and new", "hyperscene study --collect"
    )
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.startswith("# Old and new\n\n")
    assert "\n\n2 studies with 2 finished cells, " in text
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[1:] == [
        "Indian pines (old), random split",
        "Indian pines (new), random split",
    ]
    assert "\n    hyperscene study --collect\n" in text


def test_headings_of_one_name_have_addresses_of_their_own():
    page = html_page("t", [Heading("A b"), Heading("A b", 3), Heading("A b"), Heading("!")])
    assert re.findall(r'<h\d id="([^"]+)"', page) == ["a-b", "a-b_2", "a-b_3", "part"]


# In a browser


@pytest.mark.slow
@pytest.mark.chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_page_fits_its_window_and_is_accessible(whole, width, scheme):
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto((whole / "report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
    assert found.violations_count == 0, found.generate_report()


NAMES = ("roof", "a class with a very long name that does not fit", "$20 & <more>", "草地")
COLORS = ("#112233", "#ddccbb", "#ff0000", "#00ff00")


def luminance(color: str) -> float:
    """As WCAG 2 has it."""
    shares = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("colors", "wanted"), [((figures.INK, figures.QUIET), 4.5), (figures.SERIES, 3)])
def test_colours_have_enough_contrast(colors, wanted):
    assert all(contrast(color, figures.GROUND) >= wanted for color in colors)


def map_arrays(rows: int, cols: int) -> figures.MapLayers:
    truth = fields((rows, cols), len(NAMES))
    split = np.where(truth > 0, 3, 0)
    split[np.nonzero(truth)[0][:5], np.nonzero(truth)[1][:5]] = 1
    rgb = np.zeros((rows, cols, 3), np.uint8)
    return figures.MapLayers(rgb, truth, split, np.maximum(truth, 1), np.full(truth.shape, 0.5))


def drawn(kind: str) -> figures.Figure:
    attention = np.full((2, 3, 2, 8, 8), 1 / 64)
    margin = figures.DifferenceRow("a", [1.0], False)
    draw = {
        "spread of one seed": lambda: figures.accuracy_by_method(
            ["a", "b"], {"x": [[90.0], []], "y": [[], [80.0]]}, [1]
        ),
        "one margin": lambda: figures.differences_by_row([margin], "points"),
        "labels": lambda: figures.accuracy_by_labels(
            [figures.Line("a", [figures.Point(10, 80, None), figures.Point(20, 90, 1.0)], False)]
        ),
        "a class without test pixels": lambda: figures.class_accuracies(
            NAMES, [1, 2, 3, 4], {"a": [None, (5.0, None)] * 2}
        ),
        "confusion without pixels": lambda: figures.confusion_matrix(NAMES, np.zeros((4, 4), int)),
        "many classes": lambda: figures.confusion_matrix([f"class {n}" for n in range(40)], np.eye(40, dtype=int)),
        "flat scene": lambda: figures.class_maps(map_arrays(20, 120), NAMES, COLORS),
        "tall scene": lambda: figures.class_maps(map_arrays(120, 20), NAMES, COLORS),
        "large scene": lambda: figures.class_maps(map_arrays(900, 750), NAMES, COLORS),
        "features": lambda: figures.embedding(np.eye(4)[:, :2], np.array([1, 2, 3, 4]), NAMES, COLORS),
        "even attention": lambda: figures.attention_maps(np.zeros((2, 8, 8, 3), np.uint8), attention, ["a", "b\nc"]),
        "one curve": lambda: figures.reliability({"unscaled": ([(0.9, 0.8, 5)], None)}),
    }
    return draw[kind]()


KINDS = (
    "spread of one seed", "one margin", "labels", "a class without test pixels", "confusion without pixels",
    "many classes", "flat scene", "tall scene", "large scene", "features", "even attention", "one curve",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_input_is_drawn(kind):
    assert draw_png(drawn(kind)).startswith(b"\x89PNG")


def test_the_same_figure_has_the_same_bytes():
    assert draw_png(drawn("labels")) == draw_png(drawn("labels"))


def test_figures_do_not_change_matplotlibs_settings():
    before = dict(figures.mpl.rcParams)
    draw_png(drawn("labels"))
    assert dict(figures.mpl.rcParams) == before


@pytest.mark.parametrize(("largest", "is_stretched"), [(-30.0, True), (-1.5, False)])
def test_small_differences_stay_visible_beside_a_very_large_one(largest, is_stretched):
    rows = [figures.DifferenceRow(f"{value:g}", [value], False) for value in (largest, -0.5, -0.1, 0.1, 0.2)]
    axes = figures.differences_by_row(rows, "points").axes[0]
    positions = axes.transAxes.inverted().transform(axes.transData.transform([(-0.5, 0), (0.2, 0)]))
    assert positions[1, 0] - positions[0, 0] > 0.15  # of the axis
    assert ("stretched" in axes.get_xlabel()) == is_stretched
