"""Samples of a map: sizes, places, files, and answers that do not fit."""

import csv
import json

import numpy as np
import pytest
import rasterio
from scipy.ndimage import distance_transform_edt

from hyperscene.errors import OptionsUnusable, SampleUnusable
from hyperscene.service.assessment import finished_map
from hyperscene.service.assessment.accuracy import agreement, assess
from hyperscene.service.assessment.buffers import open_buffer
from hyperscene.service.assessment.drawing import SampleOptions, allocate, draw_sample, sample_total
from hyperscene.service.assessment.samples import (
    design_of,
    design_path,
    make_answers,
    read_design,
    write_sample,
)
from hyperscene.service.assessment.vector_files import read_points
from tests.command_line import refusal, run_here
from tests.maps import NAMES, truth_and_map, write_map
from tests.scenes import write_tif

SAMPLE = SampleOptions(total=200, per_class=20, seed=3)


@pytest.fixture(scope="module")
def truth():
    return truth_and_map()[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_map(tmp_path_factory.mktemp("map") / "lake", truth_and_map()[1])


@pytest.fixture(scope="module")
def sample(finished):
    return draw_sample(finished, SAMPLE)


def answers_of(finished, truth, sample, name="a"):
    texts = [NAMES[truth[row, col] - 1] for row, col in sample.pixels]
    return make_answers(name, finished, sample.pixels, texts)


def test_the_total_follows_from_the_target_standard_error():
    assert sample_total(SampleOptions(target_se=0.01, expected_accuracy=0.9)) == 900


def test_each_class_gets_its_minimum_and_the_rest_is_proportional():
    sizes = allocate(np.array([70_000, 20_000, 9_000, 1_000]), SampleOptions(total=500, per_class=50))
    assert sizes.tolist() == [311, 89, 50, 50]
    assert allocate(np.array([5, 0, 995]), SampleOptions(total=100, per_class=10)).tolist() == [5, 0, 95]


def test_a_total_below_the_minimum_of_all_classes_is_refused():
    with pytest.raises(OptionsUnusable, match="150 or more"):
        allocate(np.array([1_000, 1_000, 1_000]), SampleOptions(total=100, per_class=50))


def test_the_same_seed_gives_the_same_points_for_blocks_of_any_height(finished, sample, monkeypatch):
    monkeypatch.setattr(finished_map, "BLOCK_PIXELS", 17 * finished.cols)
    again = draw_sample(finished, SAMPLE)
    assert np.array_equal(again.pixels, sample.pixels)
    other = draw_sample(finished, SampleOptions(total=200, per_class=20, seed=4))
    assert not np.array_equal(other.pixels, sample.pixels)


def test_points_are_different_pixels_of_their_stratum(finished, sample):
    assert len(np.unique(sample.pixels, axis=0)) == len(sample.pixels) == 200
    assert np.array_equal(finished.classes_at(sample.pixels), sample.strata)
    assert not np.array_equal(np.sort(sample.strata), sample.strata)


def test_every_pixel_of_a_class_is_drawn_equally_often(tmp_path):
    small = write_map(tmp_path / "small", np.array([[1, 1, 1, 1, 1, 2, 2, 2]]), NAMES[:2])
    drawn = np.zeros(8)
    for seed in range(100):
        drawn[draw_sample(small, SampleOptions(total=4, per_class=2, seed=seed)).pixels[:, 1]] += 1
    assert drawn[:5] == pytest.approx(100 * 2 / 5, rel=0.4)
    assert drawn[5:] == pytest.approx(100 * 2 / 3, rel=0.4)


def test_pixels_near_training_labels_are_left_out(finished, tmp_path):
    labels = np.zeros((finished.rows, finished.cols), np.uint8)
    labels[100:110, 50:60] = 1
    labels[290, 235] = 2
    path = write_tif(tmp_path / "labels.tif", labels, nodata=0)
    near = distance_transform_edt(labels == 0) <= 9
    buffer = open_buffer(finished, path, 9)
    assert np.array_equal(buffer.rows(0, finished.rows), near)
    assert np.array_equal(buffer.rows(105, 20), near[105:125])
    drawn = draw_sample(finished, SampleOptions(total=5_000, per_class=20), buffer)
    assert not near[tuple(drawn.pixels.T)].any()
    assert drawn.left_out_pixels == near.sum()
    assert drawn.frame.pixels.sum() == near.size - near.sum()


@pytest.mark.parametrize("name", ["sample.gpkg", "sample.geojson", "sample.csv"])
def test_a_sample_is_read_back_from_each_format_without_a_word_about_the_map(name, finished, sample, tmp_path):
    path = tmp_path / name
    write_sample(path, sample, finished)
    pixels, attributes = read_points(path, finished)
    assert np.array_equal(pixels, sample.pixels)
    assert (
        {"row", "col", "id", "label", "remark"} <= set(attributes) <= {"row", "col", "id", "label", "remark", "x", "y"}
    )
    assert not any(name.encode() in path.read_bytes() for name in NAMES)
    design = read_design(design_path(path))
    assert np.array_equal(design.points[:, 2], sample.strata)


def test_a_map_without_georeference_has_samples_too(tmp_path):
    plain = write_map(tmp_path / "plain", truth_and_map(60, 50)[1], crs=None, transform=None)
    drawn = draw_sample(plain, SampleOptions(total=80, per_class=10))
    for name in ("sample.gpkg", "sample.csv"):
        write_sample(tmp_path / name, drawn, plain)
        assert np.array_equal(read_points(tmp_path / name, plain)[0], drawn.pixels)


def test_areas_of_a_checked_sample_are_near_the_truth(finished, truth, sample):
    report = assess(finished, answers_of(finished, truth, sample), design_of(sample, finished))
    assert report.estimator == "stratified"
    for value, entry in enumerate(report.assessment.classes, start=1):
        area = report.hectares(entry)
        assert area.value == pytest.approx((truth == value).sum() * 0.09, abs=4 * area.standard_error)


def test_a_sample_of_another_map_needs_consent_and_is_then_weighted_by_its_strata(finished, truth, sample, tmp_path):
    other = write_map(tmp_path / "other", truth_and_map(wrong=0.4, seed=8)[1])
    answers, design = answers_of(other, truth, sample), design_of(sample, finished)
    with pytest.raises(SampleUnusable, match="drawn from another map, lake"):
        assess(other, answers, design)
    report = assess(other, answers, design, accepts_other_map=True)
    assert report.estimator == "other strata"
    wrong = (truth_and_map(wrong=0.4, seed=8)[1] == truth).mean()
    assert report.assessment.overall_accuracy.low < wrong < report.assessment.overall_accuracy.high


def test_points_without_a_design_are_poststratified(finished, truth):
    pixels = np.stack([np.repeat(np.arange(5, 300, 20), 12), np.tile(np.arange(7, 240, 20), 15)], axis=1)
    texts = [NAMES[truth[row, col] - 1] for row, col in pixels]
    report = assess(finished, make_answers("plots", finished, pixels, texts), None)
    assert report.estimator == "poststratified"
    assert "not drawn from this map" in report.record()["estimator"]["explanation"]
    assert report.totals.pixels.sum() == truth.size


def test_a_class_without_answers_is_joined_with_another_and_named(finished, truth, sample):
    kept = sample.strata != 2
    texts = [NAMES[truth[row, col] - 1] if keep else "" for (row, col), keep in zip(sample.pixels, kept, strict=True)]
    report = assess(finished, make_answers("a", finished, sample.pixels, texts), design_of(sample, finished))
    assert any("answers lie in reed" in note for note in report.notes)
    assert any("have no answer yet" in note for note in report.notes)
    assert report.assessment.shares.sum() == pytest.approx(1)
    assert report.assessment.classes[1].users_accuracy.value is None


def test_the_agreement_of_two_interpreters_is_reported(finished, truth, sample):
    first = answers_of(finished, truth, sample, "a")
    texts = [NAMES[(truth[row, col] - (number > 20)) % 4] for number, (row, col) in enumerate(sample.pixels)]
    texts[-1] = "cannot tell"
    second = make_answers("b", finished, sample.pixels, texts)
    found = agreement(first, second, 4)
    assert found["points"] == 199
    assert found["share"] == pytest.approx(178 / 199, abs=1e-6)
    assert found["kappa"] < found["share"]


class TestCommands:
    """`hyperscene assess` from the sample to the report."""

    @pytest.fixture
    def answered(self, finished, truth, tmp_path):
        path = tmp_path / "sample.csv"
        done = run_here("assess", "sample", finished.path.parent, "-o", path, "--total", 200, "--per-class", 20)
        assert done.returncode == 0, done.stderr
        with path.open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row["label"] = NAMES[truth[int(row["row"]), int(row["col"])] - 1]
        rows[7]["label"] = "cannot tell"
        return path, rows

    def save(self, path, rows):
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)

    def test_a_report_is_written_as_json_csv_and_one_html_page(self, finished, truth, answered, tmp_path):
        path, rows = answered
        self.save(path, rows)
        done = run_here("assess", "report", finished.path.parent, path, "-o", tmp_path / "out", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document == json.loads((tmp_path / "out" / "accuracy.json").read_text())
        assert document["points"] == {"used": 199, "cannot_tell": 1, "unanswered": 0}
        oa = document["overall_accuracy"]
        with rasterio.open(finished.path) as raster:
            true_accuracy = (raster.read(1) == truth).mean()
        assert oa["low"] < true_accuracy < oa["high"]
        page = (tmp_path / "out" / "accuracy.html").read_text()
        assert 'src="http' not in page
        assert "<script" not in page
        assert all(name in page for name in NAMES)
        lines = (tmp_path / "out" / "accuracy.csv").read_text().splitlines()
        assert len(lines) == 1 + len(NAMES) + 1

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda rows: [row.update(label="") for row in rows], "has no answers"),
            (lambda rows: rows[3].update(label="swamp"), "the class 'swamp', which the map lacks"),
            (lambda rows: rows[3].update(row="9999"), "lie outside of the map or on its missing data: 1,"),
            (lambda rows: rows.append(dict(rows[0], label="cannot tell")), "has two answers, 'cannot tell' and"),
            (lambda rows: rows[3].update(row=str((int(rows[3]["row"]) + 1) % 300)), "not in the sample's design: 1,"),
            (lambda rows: [row.pop("label") for row in rows], "has no field 'label'"),
        ],
    )  # fmt: skip
    def test_answers_that_do_not_fit_are_refused_in_one_sentence(self, change, words, finished, answered):
        path, rows = answered
        change(rows)
        self.save(path, rows)
        assert words in refusal(run_here("assess", "report", finished.path.parent, path))

    def test_a_folder_without_a_map_is_refused(self, tmp_path):
        done = run_here("assess", "sample", tmp_path, "-o", tmp_path / "s.csv")
        assert "holds no classes.tif" in refusal(done)
