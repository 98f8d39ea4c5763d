"""Ours beside the paper's tables: every cell, in which words, and where the protocols differ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.studies import MadeUpStudy, add_variants, blocks_of, findings_of, table_of
from training.comparison import compare, papers_figures
from training.pages import Paragraph, Table
from training.plan import DEFAULT_VARIANT, Amount, Cell
from training.published import COLUMNS, PUBLISHED
from training.report import published_page, write_report

ONE, FIVE = Amount(fraction=0.01), Amount(fraction=0.05)


def test_the_comparison_has_every_cell_of_the_table():
    cells = compare(PUBLISHED["salinas"], {})
    assert [cell.column for cell in cells[::3]] == list(COLUMNS.values())
    assert [cell.metric for cell in cells[:3]] == ["oa", "aa", "kappa"]
    assert all(cell.ours is None and cell.difference is None and cell.seeds == 0 for cell in cells)


def test_ours_stands_beside_the_published_figure():
    results = {"scaled_dot_product": [(0.98, 0.94, 0.97), (0.99, 0.96, 0.98)]}
    cells = {(cell.variant, cell.metric): cell for cell in compare(PUBLISHED["honghu"], results)}
    oa = cells["scaled_dot_product", "oa"]
    assert (oa.published, oa.seeds) == (98.32, 2)
    assert oa.ours == pytest.approx(98.5)
    assert oa.deviation == pytest.approx(np.sqrt(0.5))
    assert oa.difference == pytest.approx(0.18)
    assert cells["scaled_dot_product", "aa"].published == 94.48
    assert cells["scaled_dot_product", "kappa"].published == 97.87


@pytest.fixture
def salinas(tmp_path) -> MadeUpStudy:
    return MadeUpStudy(tmp_path / "salinas", "Salinas_corrected.mat", shape=(24, 24), published="salinas")


def test_a_scene_of_the_papers_has_its_figures_beside_ours(salinas):
    add_variants(salinas, {"cosine_squared": [0.5, 1.5], "cosine": [1.26], "dot_product": [9, 9]})
    write_report(salinas.directory)
    assert "## The paper's figures" in (salinas.directory / "report.md").read_text()
    blocks = blocks_of(salinas, papers_figures)
    rows = {row.name: [entry.text for entry in row.entries] for row in table_of(blocks).rows}
    assert rows["cosine squared (CS²)"][:2] == ["99.00 ± 0.71", "99.23 (\N{MINUS SIGN}0.23)"]
    assert rows["cosine (CS), 1 of 2 seeds"][:2] == ["98.74", "98.74 (+0.00)"]
    assert rows["cross additive (C-Add)"][:2] == ["", "98.87"]
    assert len(table_of(blocks).columns) == 7
    assert "with 0 of 3 score functions" in findings_of(blocks)
    assert "both have cosine squared first" in findings_of(blocks)


def test_the_papers_marks_stay_as_it_has_them(salinas):
    add_variants(salinas, {"cosine": [1.0]})
    ranks = {row.name: row.entries[1].rank for row in table_of(blocks_of(salinas, papers_figures)).rows}
    assert [name for name, rank in ranks.items() if rank == 1] == ["cross cosine squared (C-CS²)"]


def test_before_the_papers_share_of_labels_was_run_the_chapter_says_so(salinas):
    salinas.add(Cell("variants", "cosine", "paper", FIVE, 0))
    (block,) = blocks_of(salinas, papers_figures)
    assert block.text == "No score function has been run with 1 % of the labels yet."


def test_other_scenes_have_no_chapter_of_the_papers_figures(tmp_path):
    made = MadeUpStudy(tmp_path / "study")
    made.add(Cell("variants", "cosine", "paper", ONE, 0))
    assert blocks_of(made, papers_figures) == []
    assert published_page(made.directory) is None


def test_table_two_stands_beside_the_papers(salinas):
    for seed in range(2):
        salinas.add_exactly(Cell("variants", DEFAULT_VARIANT, "paper", ONE, seed), 1.0)
        salinas.add_exactly(Cell("ablations", "heads_2", "paper", ONE, seed), 2.0)
    *_, table = [block for block in blocks_of(salinas, papers_figures) if isinstance(block, Table)]
    rows = {row.name: [entry.text for entry in row.entries] for row in table.rows if row.entries}
    assert rows["2 heads"][1:] == ["99.08 ± 0.08", "\N{MINUS SIGN}1.08"]
    assert rows["4 heads"][1:] == ["99.24 ± 0.05", "\N{MINUS SIGN}0.24"]
    assert rows["8 heads"] == ["", "99.17 ± 0.06", ""]
    assert [row.name for row in table.rows if not row.entries][:2] == ["Normalization", "Squaring strategy"]


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"split": "spatial"}, "this study's split is spatial"),
        ({"val_fraction": 0.2}, "this study validated on 20 %"),
        ({"test_pixels": 1500}, "this study on 1,500 of them"),
    ],
)
def test_another_protocol_than_the_papers_is_told(tmp_path, study, said):
    made = MadeUpStudy(tmp_path / "study", published="salinas", **study)
    made.add(Cell("variants", "cosine", "paper", ONE, 0))
    told = [block.text for block in blocks_of(made, papers_figures) if isinstance(block, Paragraph)]
    assert said in told[0]


def test_the_papers_own_protocol_needs_no_words(salinas):
    add_variants(salinas, {"cosine": [1.0]})
    assert isinstance(blocks_of(salinas, papers_figures)[0], Table)


def test_the_page_of_a_study_has_both_sides(salinas):
    add_variants(salinas, {"cosine": [1.26]})
    page = published_page(salinas.directory)
    assert page is not None
    (line,) = [line for line in page.splitlines() if line.startswith("| cosine (CS)")]
    assert "98.74" in line
    assert "98.74 (+0.00)" in line
