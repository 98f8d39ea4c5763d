"""The report: what stands in it, in which words, and that it is whole by itself in every light and width."""

from __future__ import annotations

import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from model.attention import VARIANTS
from service.errors import OptionsUnusable
from tests.browser import needs_chromium, running_browser
from tests.studies import SIXTEEN, MadeUpStudy, add_variants, blocks_of, findings_of, table_of
from training import portraits, tables
from training.findings import load_study
from training.pages import Entry, Heading, Picture, Row, Table, html_page, markdown_page
from training.plan import BASELINES, DEFAULT_VARIANT, Amount, Cell
from training.report import write_collection, write_report
from training.summary import summarise_study

ONE, FIVE = Amount(fraction=0.01), Amount(fraction=0.05)
THREE_CLASSES = ("roof", "grass", "tree")
SOME = ("cosine_squared", "cosine", "dot_product", "cross_additive")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A study with everything in it, and its report."""
    made = MadeUpStudy(tmp_path_factory.mktemp("whole") / "study", classes=SIXTEEN, shape=(50, 54))
    made.add_table_one([ONE, FIVE], ["paper", "strong"], 3, SOME)
    made.add_table_two(ONE, "paper", 3)
    made.add_portrait(ONE, points=200)
    write_report(made.directory)
    return made.directory


@pytest.fixture
def made(tmp_path) -> MadeUpStudy:
    return MadeUpStudy(tmp_path / "study", classes=THREE_CLASSES, shape=(24, 24))


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


def test_the_markdown_shows_every_picture_and_there_is_no_other(whole):
    shown = re.findall(r"\]\(figures/([^)]+)\)", (whole / "report.md").read_text())
    assert len(shown) == len(set(shown))
    assert set(shown) == {path.name for path in (whole / "figures").iterdir()}


def test_both_forms_hold_the_same_pictures_and_tables(whole):
    page, text = (whole / "report.html").read_text(), (whole / "report.md").read_text()
    assert page.count('<svg class="picture"') == text.count("![")
    assert page.count("<table>") == text.count("| --- |")


@pytest.mark.parametrize(
    "picture",
    [
        "labels", "variants-f0.01", "variants-f0.05", "pairs-paper-f0.01", "pairs-strong-f0.05", "classes",
        "ablations-paper-f0.01", "confusion", "map-strong-f0.01-s0", "features-strong-f0.01-s0",
        "attention-strong-f0.01-s0", "speed-strong-f0.01-s0", "reliability-strong-f0.01-s0", "overview",
    ],
)  # fmt: skip
def test_everything_that_was_measured_has_its_picture(whole, picture):
    assert (whole / "figures" / f"{picture}.svg").exists()


def test_the_same_files_make_the_same_bytes(whole, tmp_path):
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    write_report(again)
    for name in ("report.html", "report.md", "figures/confusion.svg", "figures/features-strong-f0.01-s0.svg"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_pictures_of_an_earlier_report_are_taken_away(made):
    made.add_table_one([ONE], ["paper"], 2, SOME)
    (made.directory / "figures").mkdir()
    (made.directory / "figures" / "map-old.svg").touch()
    write_report(made.directory)
    assert not (made.directory / "figures" / "map-old.svg").exists()


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
        Cell("portrait", DEFAULT_VARIANT, "strong", ONE, 0),
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
    assert headings == ["In short", "Ours beside the baselines", "Classes", "Calibration"]


def test_the_report_says_how_and_where_it_was_made(tmp_path):
    machine = {"processor": "AMD EPYC", "cores": 2, "threads": 1}
    commands = ["hyperscene study --scene s.mat --out `x`", "hyperscene study --scene s.mat --seeds 5"]
    made = MadeUpStudy(tmp_path / "study", shape=(24, 24), machines=[machine], commands=commands, title="Our <fields>")
    for seed in range(60):
        made.add(Cell("variants", DEFAULT_VARIANT, "paper", ONE, seed))
    write_report(made.directory)
    page, text = (made.directory / "report.html").read_text(), (made.directory / "report.md").read_text()
    assert re.search(
        r"60 finished cells over 60 seeds, 1\.\d hours of computing on AMD EPYC \(2 cores, 1 thread\)", text
    )
    assert "Made by these commands:\n\n    hyperscene study --scene s.mat --out `x`\n    hyperscene study" in text
    shown = [re.sub("<[^>]*>", "", line) for line in re.findall("<code>(.*?)</code>", page)]
    assert shown == commands
    assert "<h1>Study of Our &lt;fields&gt;, random split</h1>" in page


def test_a_folder_of_an_earlier_version_has_a_report_too(made):
    made.add_table_one([ONE], ["paper"], 1, (DEFAULT_VARIANT,))
    write_report(made.directory)
    assert "minutes of computing. hyperscene 0.1.0." in (made.directory / "report.md").read_text()


@pytest.mark.parametrize(
    ("file", "title"),
    [("Indian_pines_corrected.mat", "Indian pines corrected"), ("a__b c.bsq", "a b c"), ("_.npy", "_.npy")],
)
def test_a_scene_without_a_title_is_called_by_its_file(tmp_path, file, title):
    assert load_study(MadeUpStudy(tmp_path / "study", file, shape=(24, 24)).directory).name == title


def test_arrays_that_cannot_be_read_are_refused_with_the_remedy(made):
    made.add_portrait(ONE, points=20)
    next((made.directory / "cells").glob("*.npz")).write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(OptionsUnusable, match="delete it"):
        write_report(made.directory)


def test_names_that_look_like_markup_stay_text(tmp_path):
    made = MadeUpStudy(tmp_path / "study", "<b>a|b</b>.tif", classes=("<i>roof", "$x$ | *y*"), shape=(24, 24))
    made.add_table_one([ONE], ["paper"], 2, SOME[:2])
    made.add_portrait(ONE, points=20)
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


def test_marks_are_seen_without_colour():
    table = Table("T", ["a", "b"], [Row("x", [Entry("9", 1)]), Row("y", [Entry("8", 2)]), Row("z", [Entry("7", 3)])])
    page, text = html_page("t", [table]), markdown_page("t", [table])
    for mark in "①②③":
        assert mark in page
        assert mark in text
    assert "**9** ①" in text


def test_a_mean_over_fewer_seeds_is_told_and_not_marked(made):
    add_variants(made, {"cosine": [4, 4.2], "additive": [1], "dot_product": [3, 3.1]})
    rows = {row.name: row for row in table_of(blocks_of(made)).rows}
    assert rows["additive (1 of 2 seeds)"].entries[0].rank == 0
    assert rows["dot product"].entries[0].rank == 1


def test_one_that_is_ahead_by_seeds_is_compared_over_those_that_others_have_too(made):
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


def test_the_first_words_of_table_one_wait_for_those_without_all_seeds(made):
    leader, lucky = [20, 20.1, 20, 5, 5], [18, 17.9, 18.1]
    add_variants(made, {"cosine_squared": leader, "additive": lucky, "cosine": [21, 22, 20.5, 7, 8]})
    said = findings_of(blocks_of(made))
    assert "above additive" not in said
    assert "the highest mean of those with all seeds" in said or "No two score functions" in said


def test_changes_with_too_few_seeds_are_not_called_alike(made):
    for seed in range(2):
        for name in ("no_teacher", "mixing"):
            made.add(Cell("ingredients", name, "strong", ONE, seed))
        made.add(Cell("variants", "cosine_squared", "strong", ONE, seed))
    assert findings_of(blocks_of(made, tables.ingredients)) == "Ingredients: too few seeds for a test."


def test_noise_is_not_called_a_ranking(made):
    add_variants(made, {"cosine": [5, 3, 6], "additive": [4, 6, 3], "dot_product": [3, 5, 5]})
    assert "No two score functions differ beyond noise" in findings_of(blocks_of(made))


def test_a_difference_beyond_noise_is_named(made):
    errors = {"cosine": [5, 3, 6, 4], "additive": [5.2, 2.9, 6.1, 4], "dot_product": [25.1, 23, 26, 24.2]}
    add_variants(made, errors)
    said = findings_of(blocks_of(made))
    assert "2 of the 3 pairs of score functions differ beyond noise" in said
    assert "is beyond noise above dot product, but cannot be told apart from additive" in said


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


def test_a_table_says_what_its_networks_were_judged_by(made):
    ways = {"map": "Judged by the map that", "patches": "Judged pixel by pixel", None: "Judged pixel by pixel"}
    for way, said in ways.items():
        for seed, name in product(range(2), ("cosine", "additive")):
            made.add(Cell("variants", name, "strong", ONE, seed), judged_by=way)
        assert said in table_of(blocks_of(made, tables.score_functions)).note
    made.add(Cell("variants", "cosine", "strong", ONE, 0), judged_by="map")
    assert "cells that were made before" in table_of(blocks_of(made, tables.score_functions)).note


def test_a_teacher_stands_beside_its_network_and_takes_no_time_of_its_own(made):
    add_variants(made, {"svm": [20.3, 20.8]})
    for seed in range(2):
        made.add(Cell("variants", DEFAULT_VARIANT, "strong", ONE, seed), judged_by="map", teacher=4.0)
    rows = {row.name: row for row in table_of(blocks_of(made, tables.beside_baselines)).rows}
    assert list(rows) == ["ours (strong), teacher alone", "ours (strong), map", "SVM"]
    assert rows["ours (strong), teacher alone"].entries[-1].text == ""
    assert rows["ours (strong), map"].entries[-1].text != ""


def test_ingredients_stand_under_what_was_taken_out_and_put_in(made):
    made.add_table_one([ONE], ["strong"], 3, (DEFAULT_VARIANT,))
    for name, seed in product(("mixing", "no_teacher", "no_symmetries"), range(3)):
        made.add(Cell("ingredients", name, "strong", ONE, seed))
    blocks = blocks_of(made, tables.ingredients)
    assert [row.name for row in table_of(blocks).rows] == [
        "Taken out", "default", "teacher: labelled patches alone, each once an epoch", "rotations and flips",
        "Put in", "default", "mixing of patches",
    ]  # fmt: skip
    assert any(isinstance(block, Picture) for block in blocks)
    assert "No change of Ingredients differs from the default beyond noise" in findings_of(blocks)


@pytest.mark.parametrize(("split", "is_said"), [("spatial", True), ("random", False)])
def test_table_two_says_whose_patches_reach_from_training_to_test_pixels(tmp_path, split, is_said):
    made = MadeUpStudy(tmp_path, split=split)
    for name in ("heads_2", "patch_24"):
        made.add(Cell("ablations", name, "paper", ONE, 0))
    said = "patches of 24 x 24 reach further: this row is flattered."
    assert (said in table_of(blocks_of(made, tables.ablations)).note) == is_said


def test_table_two_without_the_default_network_still_shows_its_rows(made):
    made.add(Cell("ablations", "heads_2", "paper", ONE, 0))
    blocks = blocks_of(made, tables.ablations)
    assert [row.name for row in table_of(blocks).rows] == ["Head number", "2 heads"]
    assert not any(isinstance(block, Picture) for block in blocks)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([5, 6, 5.5], "Ours is above the best baseline, beyond noise (1 of 1). 1\u00a0%"),
        ([35, 36, 35.5], "Ours is below the best baseline, beyond noise (1 of 1). 1\u00a0%"),
        ([20, 21, 20.6], "Ours and the best baseline cannot be told apart (1 of 1). 1\u00a0%"),
    ],
)
def test_the_first_words_say_who_wins(made, ours, said):
    add_variants(made, {DEFAULT_VARIANT: ours, "svm": [20.3, 20.8, 20.7], "random_forest": [30, 31, 30.5]})
    for path in (made.directory / "cells").glob("variants-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mapped": None}))
    write_report(made.directory)
    text = (made.directory / "report.md").read_text()
    assert text.split("## In short\n\n> ")[1].startswith(said)
    assert "against SVM" in text


# What a recipe chose, and the paper's figures


@pytest.mark.parametrize(
    ("after", "said"), [((0.01, 0.02), "in every row"), ((0.01, 0.2), "in only 1 of 2 rows"), ((0.2, 0.2), "in no row")]
)
def test_a_temperature_that_does_harm_is_told(made, after, said):
    for amount, error in zip((ONE, FIVE), after, strict=True):
        cell = Cell("variants", DEFAULT_VARIANT, "strong", amount, 0)
        record = made.add(cell) | {"calibration": {"ece_before": 0.1, "ece_after": error, "temperature": 2.0}}
        (made.directory / "cells" / f"{cell.id}.json").write_text(json.dumps(record))
    assert f"nearer to the truth {said}" in findings_of(blocks_of(made, portraits.calibration))


def test_what_was_chosen_is_counted_over_seeds_by_amount(made):
    made.add_table_one([ONE, FIVE], ["paper", "strong"], 3, SOME[:2])
    table = table_of(blocks_of(made, portraits.choices))
    assert table.title == "What recipe strong chose by itself"
    assert [row.name for row in table.rows] == [
        "1\u00a0% of the labels (4 pixels)",
        "5\u00a0% of the labels (19 pixels)",
    ]
    assert table.columns[1] == "choice (seeds)"
    assert table.rows[0].entries[0].text == "spectra alone (1), pull 0.1 (2); smoothed spectra too (1)"
    assert all(re.fullmatch(r"\d+\.\d ± \d+\.\d", entry.text) for entry in table.rows[0].entries[1:3])
    assert table.rows[0].entries[4].text == "41 ± 0"
    assert len(table.columns) == 1 + len(table.rows[0].entries)


def test_the_pull_of_one_seed_has_no_deviation(made):
    record = made.add(Cell("variants", DEFAULT_VARIANT, "strong", ONE, 0))
    (row,) = table_of(blocks_of(made, portraits.choices)).rows
    assert row.entries[1].text == f"{100 * record['chosen']['held_out_accuracy']:.1f}"


def test_choices_that_nobody_has_words_for_are_listed(made):
    cell = Cell("variants", DEFAULT_VARIANT, "strong", ONE, 0)
    record = made.add(cell) | {"chosen": {"number_of_epochs": 25, "head": "token"}}
    (made.directory / "cells" / f"{cell.id}.json").write_text(json.dumps(record))
    rows = table_of(blocks_of(made, portraits.choices)).rows
    said = {row.name.split(": ")[1]: row.entries[0].text for row in rows}
    assert said == {"number of epochs": "25 (1)", "head": "token (1)"}


# What a study cannot say


def test_classes_without_test_pixels_are_named(made):
    for seed in range(2):
        record = made.add(Cell("baselines", "svm", None, ONE, seed))
        for found in record["scores"]["per_class"]:
            if found["name"] == "roof" or (found["name"] == "tree" and seed == 1):
                found["pixels"] = 0
        (made.directory / "cells" / f"{record['id']}.json").write_text(json.dumps(record))
    write_report(made.directory)
    said = "There are no test pixels of roof and tree (1 of 2 splits): scores do not speak of them"
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


@pytest.mark.parametrize(("content", "why"), [("{}", "it has no part, name"), ("7", "not iterable"), ("{", "property")])
def test_a_file_that_is_no_cell_is_refused_with_a_remedy(made, content, why):
    made.add(Cell("baselines", "svm", None, ONE, 0))
    (made.directory / "cells" / "odd.json").write_text(content)
    with pytest.raises(OptionsUnusable, match=rf"odd\.json cannot be read \(.*{why}.*\): delete it, and the same"):
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
        made = MadeUpStudy(root / folder, name, split, THREE_CLASSES, (24, 24))
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
        MadeUpStudy(tmp_path / folder, shape=(24, 24)).add_table_one([ONE], ["strong"], seeds, (DEFAULT_VARIANT,))
    write_collection([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    table = (tmp_path / "out" / "report.md").read_text().split("Overall accuracy of every method")[1]
    assert "Means ± standard deviation over 2 to 3 seeds. ①" in table


def test_studies_in_folders_of_one_name_keep_their_pictures_apart(collection):
    assert {"1-study-labels.svg", "2-study-labels.svg"} <= {path.name for path in (collection / "figures").iterdir()}


def test_a_collection_has_a_part_for_every_study(collection):
    text = (collection / "report.md").read_text()
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert headings == ["In short", "Indian pines, random split", "SalinasA, spatial split"]
    assert text.count("### Ours beside the baselines") == 2


def test_studies_of_one_scene_and_split_are_called_by_their_folders_too(tmp_path):
    for folder in ("old", "new"):
        MadeUpStudy(tmp_path / folder, shape=(24, 24)).add(Cell("baselines", "svm", None, ONE, 0))
    write_collection(
        [tmp_path / "old", tmp_path / "new"], tmp_path / "out", "Old and new", "hyperscene study --collect"
    )
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.startswith("# Old and new\n\n2 studies with 2 finished cells, ")
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[1:] == [
        "Indian pines (old), random split",
        "Indian pines (new), random split",
    ]
    assert "\n    hyperscene study --collect\n" in text


def test_a_portrait_s_pictures_are_small(whole):
    of_portrait = [path for path in (whole / "figures").glob("*-s0.svg") if "speed" not in path.name]
    assert sum(path.stat().st_size for path in of_portrait) < 400_000


def test_headings_of_one_name_have_addresses_of_their_own():
    page = html_page("t", [Heading("A b"), Heading("A b", 3), Heading("A b"), Heading("!")])
    assert re.findall(r'<h\d id="([^"]+)"', page) == ["a-b", "a-b_2", "a-b_3", "part"]


# In a browser


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_page_fits_its_window_and_is_for_everybody(whole, width, scheme):
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto((whole / "report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
    assert found.violations_count == 0, found.generate_report()
