"""`hyperscene bench train`: its scenes, its table, and a training that it measures."""

import json

import numpy as np
import pytest

from hyperscene.service.commands.bench_training import table
from hyperscene.training.benchmark import Work, make_files
from hyperscene.training.data.datasets import LabelledFiles, load_labelled_scene
from tests.command_line import refusal, run, run_here
from tests.scenes import quadrants, spectra_of, write_tif


@pytest.mark.parametrize("is_sparse", [False, True])
def test_polygons_of_a_benchmark_lie_on_pixels_with_data(tmp_path, is_sparse):
    files = make_files(Work("made", 700, 5, 16, is_sparse), tmp_path)
    scene = load_labelled_scene(LabelledFiles(files.scene, files.labels, class_field="class"))
    assert (scene.labels > 0).sum() == 16 * 9
    assert len(scene.legend) == 8
    assert scene.valid.mean() > 0.8 or is_sparse
    spectra = np.stack([scene.cube[scene.labels == number].mean(axis=0) for number in range(1, 9)])
    assert np.ptp(spectra, axis=0).min() > 0.05  # classes differ


def test_the_table_has_a_line_for_each_work_with_the_share_of_each_stage():
    found = {
        "seconds": 41.5, "processor_s": 60.5, "stages": {"reading": 0.5, "network": 20.0, "export": 9.0}, "oa": 0.9212,
        "scored_by": "test pixels", "peak_memory_mb": 900, "labels": 105,
    }  # fmt: skip
    heads, line = table({"cores": 2, "seeds": [0, 1], "works": {"pines": found}}).splitlines()[1:]
    assert heads.split()[:3] == ["work", "labels", "reading"]
    assert line.split() == ["pines", "105", "0.5", "0.0", "20.0", "9.0", "0.0", "12.0", "41.5", "60.5", "900", "92.1",
                            "(test", "pixels)"]  # fmt: skip


def test_unknown_works_and_half_of_the_files_are_refused(tmp_path):
    assert "--works has no 'tiny': choose from small, medium, large, huge" in refusal(
        run_here("bench", "train", "--works", "tiny")
    )
    assert "--scene and --labels go together" in refusal(run_here("bench", "train", "--scene", tmp_path / "s.tif"))


@pytest.mark.slow
def test_a_training_is_measured_in_a_process_of_its_own(tmp_path):
    labels = quadrants(40, 36)
    scene = write_tif(tmp_path / "scene.tif", spectra_of(labels, 6))
    truth = write_tif(tmp_path / "labels.tif", labels)
    files = ["--scene", scene, "--labels", truth, "--fraction", 0.05, "--works", "", "--json", tmp_path / "times.json"]
    done = run("bench", "train", *files)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "times.json").read_text())["works"]["scene.tif"]
    assert set(found["stages"]) == {"reading", "label propagation", "network", "export", "scoring"}
    assert sum(found["stages"].values()) < found["seconds"]
    assert (found["scored_by"], found["oa"] > 0.9, found["peak_memory_mb"] > 100) == ("test pixels", True, True)
    assert "scene.tif" in done.stdout
