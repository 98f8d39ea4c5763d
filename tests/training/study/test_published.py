"""The paper's scenes: their files are found and checked, and a study is compared with the paper's tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from hyperscene.errors import LabelsUnusable, SceneUnreadable, SceneUnusable
from hyperscene.model.attention import VARIANTS
from hyperscene.training.data.datasets import load_labelled_scene
from hyperscene.training.study.comparison import compare, compare_with_paper
from hyperscene.training.study.pages import Paragraph, Table
from hyperscene.training.study.plan import ABLATIONS, DEFAULT_ROWS, DEFAULT_VARIANT, Amount, Cell
from hyperscene.training.study.published import (
    COLUMNS,
    PUBLISHED,
    TABLE_TWO,
    PublishedScene,
    find_files,
    load_published,
    require_layout,
)
from hyperscene.training.study.report import write_report
from tests.scenes import spectra_of, write_envi, write_tif
from tests.studies import SyntheticStudy, add_variants, blocks_of, findings_of, table_of


def labels_of(published: PublishedScene) -> np.ndarray:
    """Every class in turn, with a row that is not labelled."""
    labels = np.arange(published.rows * published.cols) % len(published.class_names) + 1
    labels[: published.cols] = 0
    return labels.reshape(published.rows, published.cols).astype(np.uint8)


def small(name: str) -> PublishedScene:
    """The scene's layout with fewer pixels and bands."""
    tiny = replace(PUBLISHED[name], rows=12, cols=10, bands=5)
    counts = np.bincount(labels_of(tiny).ravel(), minlength=len(tiny.class_names) + 1)[1:]
    return replace(tiny, class_pixels=tuple(counts.tolist()))


def write_mats(folder: Path, published: PublishedScene, labels: np.ndarray | None = None, **others: np.ndarray) -> None:
    labels = labels_of(published) if labels is None else labels
    folder.mkdir(parents=True, exist_ok=True)
    cube = spectra_of(labels, published.bands)
    scipy.io.savemat(folder / published.cube_files[0], {published.cube_variable: cube, **others})
    scipy.io.savemat(folder / published.label_files[0], {published.label_variable: labels})


def load(published: PublishedScene, path: Path):
    return load_published(published, find_files(published, path))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_scene_loads_from_its_folder_with_its_class_names(tmp_path, name):
    published = small(name)
    write_mats(tmp_path, published)
    scene = load(published, tmp_path)
    assert scene.cube.shape == published.shape
    assert tuple(entry.name for entry in scene.legend) == published.class_names
    np.testing.assert_array_equal(scene.labels, labels_of(published))
    assert scene.warnings == ()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_plain_loader_gives_the_same_scene(tmp_path, name):
    published = small(name)
    write_mats(tmp_path, published)
    plain, checked = load_labelled_scene(find_files(published, tmp_path)), load(published, tmp_path)
    assert plain.legend == checked.legend
    assert plain.digest == checked.digest


def test_what_is_built_in_is_whole():
    assert set(COLUMNS) == set(VARIANTS)
    shapes = {name: (*published.shape, len(published.class_names)) for name, published in PUBLISHED.items()}
    assert shapes == {
        "salinas": (512, 217, 204, 16),
        "honghu": (940, 475, 270, 22),
        "tangdaowan": (1740, 860, 176, 18),
    }
    for published in PUBLISHED.values():
        assert len(published.class_pixels) == len(set(published.class_names)) == len(published.class_names)
        assert set(published.figures) == set(VARIANTS)
    assert sum(PUBLISHED["salinas"].class_pixels) == 54_129
    assert sum(PUBLISHED["honghu"].class_pixels) == 386_693


def test_salinas_in_its_true_shape_and_true_counts(tmp_path):
    published = PUBLISHED["salinas"]
    labels = np.repeat(np.arange(17), [512 * 217 - 54_129, *published.class_pixels]).reshape(512, 217).astype(np.uint8)
    # Two values in all, so that 45 MB of samples are a small file; an HDF5 file as MATLAB 7.3 writes it.
    with h5py.File(tmp_path / "Salinas_corrected.mat", "w", userblock_size=512) as file:
        samples = np.broadcast_to((labels > 0).T, (204, 217, 512)).astype(np.int16)
        file.create_dataset("salinas_corrected", data=samples, compression="gzip", chunks=(204, 31, 64))
    scipy.io.savemat(tmp_path / "Salinas_gt.mat", {"salinas_gt": labels}, do_compression=True)
    scene = load(published, tmp_path)
    assert scene.cube.shape == (512, 217, 204)
    assert scene.warnings == ()
    assert scene.legend[7].name == "Grapes_untrained"


@pytest.mark.parametrize(
    "names",
    [
        ("WHU-Hi-HongHu.bsq", "WHU-Hi-HongHu_gt.bsq"),
        ("WHU-Hi-HongHu", "WHU-Hi-HongHu_gt"),
        ("WHU-Hi-HongHu.tif", "WHU-Hi-HongHu_gt.tif"),
    ],
)
def test_honghu_as_envi_and_as_tiff_in_the_publishers_folders(tmp_path, names):
    published = small("honghu")
    folder = tmp_path / "formats" / "WHU-Hi-HongHu"
    folder.mkdir(parents=True)
    labels = labels_of(published)
    for name, values in zip(names, (spectra_of(labels, published.bands), labels), strict=True):
        if name.endswith("tif"):
            write_tif(folder / name, values, crs=None, transform=None)
        else:
            write_envi(folder / name, values.reshape(*labels.shape, -1))
    samples = folder / "Training samples and test samples"
    samples.mkdir()
    scipy.io.savemat(samples / "Train50.mat", {"HHCYtrain50": labels})
    scene = load(published, tmp_path)
    assert scene.cube.shape == published.shape
    assert scene.legend[-1].name == "Tree"


def test_other_spellings_and_a_second_download_are_found(tmp_path):
    published = small("tangdaowan")
    write_mats(tmp_path, published)
    (tmp_path / "QUH-Tangdaowan.mat").rename(tmp_path / "quh_tangdaowan.MAT")
    (tmp_path / "QUH-Tangdaowan_GT.mat").rename(tmp_path / "QUH-Tangdaowan_gt (1).mat")
    files = find_files(published, tmp_path)
    assert (files.scene.name, files.labels.name) == ("quh_tangdaowan.MAT", "QUH-Tangdaowan_gt (1).mat")


def test_a_cube_that_is_named_finds_the_labels_beside_it(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, published)
    renamed = (tmp_path / "Salinas_corrected.mat").rename(tmp_path / "mine.mat")
    assert find_files(published, renamed).labels == tmp_path / "Salinas_gt.mat"
    elsewhere = tmp_path / "elsewhere.mat"
    assert find_files(published, renamed, elsewhere).labels == elsewhere


def test_the_published_variable_is_taken_where_a_file_holds_several(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, published, smooth=np.zeros((12, 10, 5)))
    scene = load(published, tmp_path)
    np.testing.assert_array_equal(scene.cube, spectra_of(labels_of(published), 5))


def test_a_variable_of_another_name_is_found_by_its_shape(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, replace(published, cube_variable="data", label_variable="map"))
    assert load(published, tmp_path).cube.shape == published.shape


def test_a_missing_cube_says_what_it_is_called_and_where_it_is(tmp_path):
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(SceneUnreadable, match=r"Salinas_corrected\.mat.*but other\.npy: get it from https://www\.ehu"):
        find_files(PUBLISHED["salinas"], tmp_path)
    with pytest.raises(SceneUnreadable, match="give the folder that holds Salinas_corrected"):
        find_files(PUBLISHED["salinas"], tmp_path / "absent")


def test_missing_labels_say_what_they_are_called(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, published)
    (tmp_path / "Salinas_gt.mat").unlink()
    with pytest.raises(LabelsUnusable, match=r"Salinas_gt\.mat, but Salinas_corrected\.mat: .* --labels"):
        find_files(published, tmp_path)


def test_labels_given_as_the_cube_are_refused(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, published)
    with pytest.raises(SceneUnreadable, match="holds the labels"):
        find_files(published, tmp_path / "Salinas_gt.mat")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bands": 6}, r"12 x 10 x 5, and Salinas 12 x 10 x 6 .*bands.*Salinas_corrected\.mat"),
        ({"rows": 10, "cols": 12}, "another order: save it as rows x cols x bands"),
        ({"rows": 99}, "another scene, or part of one.*without --published"),
    ],
)
def test_a_cube_of_another_shape_is_refused_with_the_remedy(tmp_path, change, message):
    published = small("salinas")
    write_mats(tmp_path, published)
    with pytest.raises(SceneUnusable, match=message):
        load(replace(published, **change), tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1, r"16 classes.*no pixel of 7 \(Celery\): take Salinas_gt\.mat"),
        (200, r"no pixel of 7 \(Celery\) and the unknown value 200"),
    ],
)
def test_other_classes_are_refused_without_a_word_of_options(tmp_path, value, message):
    published = small("salinas")
    labels = labels_of(published)
    labels[labels == 7] = value
    write_mats(tmp_path, published, labels)
    with pytest.raises(LabelsUnusable, match=message) as refused:
        load(published, tmp_path)
    assert "--classes" not in str(refused.value)


def test_other_numbers_of_pixels_are_a_warning(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, published)
    counts = list(published.class_pixels)
    found, counts[6], counts[8] = counts[6], 1000, None
    (warning,) = load(replace(published, class_pixels=tuple(counts)), tmp_path).warnings
    assert f"Celery {found} instead of 1000)" in warning


def test_a_few_pixels_more_or_less_are_no_warning(tmp_path):
    published = small("salinas")
    write_mats(tmp_path, published)
    scene = load(published, tmp_path)
    many = replace(published, class_pixels=tuple(100 * count for count in published.class_pixels))
    labels = np.tile(scene.labels, (100, 1))  # 600 pixels and more of each class
    labels[-1, -1] = 0
    assert require_layout(many, replace(scene, labels=labels)) == []


def test_table_two_has_a_figure_for_every_ablation_and_default():
    printed = {(group, label) for group, rows in TABLE_TWO.items() for label in rows}
    ours = {(ablation.group, ablation.label) for ablation in ABLATIONS.values()}
    ours |= {(group, label) for group, (label, _) in DEFAULT_ROWS.items() if group != "Spectral noise"}
    assert printed == ours


ONE, FIVE = Amount(fraction=0.01), Amount(fraction=0.05)


def test_the_comparison_has_every_cell_of_the_table():
    cells = compare(PUBLISHED["salinas"], {})
    assert [cell.column for cell in cells[::3]] == list(COLUMNS.values())
    assert [cell.metric for cell in cells[:3]] == ["oa", "aa", "kappa"]
    assert all(cell.ours is None and cell.difference is None and cell.seeds == 0 for cell in cells)


def test_each_cell_has_our_score_and_the_published_one():
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
def salinas(tmp_path) -> SyntheticStudy:
    return SyntheticStudy(tmp_path / "salinas", "Salinas_corrected.mat", shape=(24, 24), published="salinas")


def test_a_scene_of_the_papers_has_its_figures_beside_ours(salinas):
    add_variants(salinas, {"cosine_squared": [0.5, 1.5], "cosine": [1.26], "dot_product": [9, 9]})
    write_report(salinas.directory)
    assert "## Comparison with the paper" in (salinas.directory / "report.md").read_text()
    blocks = blocks_of(salinas, compare_with_paper)
    rows = {row.name: [entry.text for entry in row.entries] for row in table_of(blocks).rows}
    assert rows["cosine squared (CS²)"][:2] == ["99.00 ± 0.71", "99.23 (\N{MINUS SIGN}0.23)"]
    assert rows["cosine (CS), 1 of 2 seeds"][:2] == ["98.74", "98.74 (+0.00)"]
    assert rows["cross additive (C-Add)"][:2] == ["", "98.87"]
    assert len(table_of(blocks).columns) == 7
    assert "with 0 of 3 score functions" in findings_of(blocks)
    assert "both have cosine squared first" in findings_of(blocks)


def test_the_papers_marks_stay_as_it_has_them(salinas):
    add_variants(salinas, {"cosine": [1.0]})
    ranks = {row.name: row.entries[1].rank for row in table_of(blocks_of(salinas, compare_with_paper)).rows}
    assert [name for name, rank in ranks.items() if rank == 1] == ["cross cosine squared (C-CS²)"]


def test_before_the_papers_share_of_labels_was_run_the_chapter_says_so(salinas):
    salinas.add(Cell("variants", "cosine", "paper", FIVE, 0))
    (block,) = blocks_of(salinas, compare_with_paper)
    assert block.text == "No score function has been run with 1 % of the labels yet."


def test_other_scenes_have_no_chapter_of_the_papers_figures(tmp_path):
    made = SyntheticStudy(tmp_path / "study")
    made.add(Cell("variants", "cosine", "paper", ONE, 0))
    assert blocks_of(made, compare_with_paper) == []


def test_table_two_has_our_scores_and_the_papers(salinas):
    for seed in range(2):
        salinas.add_with_accuracy(Cell("variants", DEFAULT_VARIANT, "paper", ONE, seed), 1.0)
        salinas.add_with_accuracy(Cell("ablations", "heads_2", "paper", ONE, seed), 2.0)
    *_, table = [block for block in blocks_of(salinas, compare_with_paper) if isinstance(block, Table)]
    rows = {row.name: [entry.text for entry in row.entries] for row in table.rows if row.entries}
    assert rows["2 heads"][1:] == ["99.08 ± 0.08", "\N{MINUS SIGN}1.08"]
    assert rows["4 heads"][1:] == ["99.24 ± 0.05", "\N{MINUS SIGN}0.24"]
    assert rows["8 heads"] == ["", "99.17 ± 0.06", ""]
    assert [row.name for row in table.rows if not row.entries][:2] == ["Normalization", "Squaring strategy"]


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        ({"split": "spatial"}, "this study's split is spatial"),
        ({"val_fraction": 0.2}, "this study validated on 20 %"),
        ({"test_pixels": 1500}, "this study on 1,500 of them"),
    ],
)
def test_a_protocol_that_differs_from_the_papers_is_reported(tmp_path, study, expected):
    made = SyntheticStudy(tmp_path / "study", published="salinas", **study)
    made.add(Cell("variants", "cosine", "paper", ONE, 0))
    texts = [block.text for block in blocks_of(made, compare_with_paper) if isinstance(block, Paragraph)]
    assert expected in texts[0]


def test_the_papers_own_protocol_needs_no_words(salinas):
    add_variants(salinas, {"cosine": [1.0]})
    assert isinstance(blocks_of(salinas, compare_with_paper)[0], Table)


def test_the_report_of_a_study_has_both_sides(salinas):
    add_variants(salinas, {"cosine": [1.26]})
    write_report(salinas.directory)
    page = (salinas.directory / "report.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| cosine (CS)")]
    assert "98.74" in line
    assert "98.74 (+0.00)" in line
