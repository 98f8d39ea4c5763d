"""Large scenes: windows round the labels and elsewhere, what is read of the scene, and training on them."""

import json
from pathlib import Path

import numpy as np
import pytest

from hyperscene.model.bundle import load_bundle
from hyperscene.training.data import large_scenes
from hyperscene.training.data.classes import FileLegend
from hyperscene.training.data.datasets import LabelledFiles, load_labelled_scene
from hyperscene.training.data.label_files import LabelList
from hyperscene.training.data.large_scenes import clusters_of
from hyperscene.training.data.mosaic import arrange, random_windows, windows_round
from tests.command_line import run_here
from tests.scenes import quadrants, spectra_of, write_tif

ROWS, COLS, BANDS = 300, 410, 6
TRUTH = quadrants(ROWS, COLS)
CUBE = spectra_of(TRUTH, BANDS)
# Two places of each class; one label lies at the scene's edge.
PLACES = [(5, 5), (90, 100), (40, 300), (120, 409), (200, 20), (280, 150), (170, 260), (250, 330)]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> LabelledFiles:
    folder = tmp_path_factory.mktemp("large")
    write_tif(folder / "scene.tif", CUBE, wavelengths_nm=np.linspace(450, 900, BANDS))
    labels = np.zeros_like(TRUTH)
    for row, col in PLACES:
        inside = np.s_[row - 1 : row + 2, col - 1 : col + 2]
        labels[inside] = TRUTH[inside]
    write_tif(folder / "labels.tif", labels)
    write_tif(folder / "truth.tif", TRUTH)
    return LabelledFiles(folder / "scene.tif", folder / "labels.tif")


@pytest.fixture
def is_large(monkeypatch):
    monkeypatch.setattr(large_scenes, "LARGE_SCENE_BYTES", 100_000)
    monkeypatch.setattr(large_scenes, "MOSAIC_BYTES", 40_000 * BANDS * 4)
    monkeypatch.setattr(large_scenes, "MOST_RANDOM_WINDOWS", 4)


def test_every_label_lies_in_the_mosaic_with_the_spectrum_of_its_place(files, is_large):
    scene = load_labelled_scene(files, in_windows=True)
    assert scene.mosaic is not None
    assert scene.size == (ROWS, COLS)
    assert scene.valid.sum() < ROWS * COLS / 2
    pixels = np.argwhere(scene.labels > 0)
    places = scene.places(pixels)
    whole = load_labelled_scene(files)
    assert sorted(map(tuple, places)) == sorted(map(tuple, np.argwhere(whole.labels > 0)))
    np.testing.assert_array_equal(scene.labels[tuple(pixels.T)], whole.labels[tuple(places.T)])
    np.testing.assert_array_equal(scene.cube[tuple(pixels.T)], CUBE[tuple(places.T)])
    of = dict(zip(map(tuple, places), scene.clusters[tuple(pixels.T)], strict=True))
    assert len(set(of.values())) == len(PLACES)
    assert all(of[row, col] == of[row - 1, col - 1] for row, col in PLACES)


def test_statistics_come_from_windows_at_random_places(files, is_large):
    scene = load_labelled_scene(files, in_windows=True)
    typical = np.argwhere(scene.typical)
    assert len(typical)
    assert not scene.labels[tuple(typical.T)].any()
    np.testing.assert_allclose(scene.band_mean, CUBE[tuple(scene.places(typical).T)].mean(axis=0), rtol=1e-5)


def test_patches_lie_in_one_window_also_mirrored(files, is_large):
    scene = load_labelled_scene(files, in_windows=True)
    for center in np.argwhere(scene.patch_centers(16))[::97]:
        around = np.stack(np.meshgrid(*(np.arange(-8, 9) + place for place in center), indexing="ij"), -1)
        found = scene.places(around.reshape(-1, 2)) - scene.places(center[None])
        np.testing.assert_array_equal(found.reshape(17, 17, 2), around - center)


def test_a_scene_of_moderate_size_is_read_as_a_whole(files):
    assert load_labelled_scene(files, in_windows=True).mosaic is None


def test_only_the_windows_are_read(files, is_large, monkeypatch):
    read, reader = [], large_scenes.SceneReader.read
    monkeypatch.setattr(
        large_scenes.SceneReader, "read", lambda self, window: read.append(window) or reader(self, window)
    )
    load_labelled_scene(files, in_windows=True)
    assert sum(window.width * window.height for window in read) < ROWS * COLS / 2


def test_windows_get_smaller_with_more_labels_and_never_overlap():
    generator = np.random.default_rng(0)
    for count, most_pixels in ((10, 10 * 65**2), (300, 40_000), (4_000, 40_000)):
        places = np.unique(generator.integers(0, (3000, 2000), (count, 2)), axis=0)
        classes = np.arange(len(places)) % 5 + 1
        labelled, held = windows_round(places, classes, most_pixels)
        assert set(classes[held]) == {1, 2, 3, 4, 5}
        assert held.all() == (count < 4_000)
        others = random_windows(3000, 2000, labelled)
        mosaic = arrange(3000, 2000, labelled, type(others)(others.corners[:20], others.side_px))
        assert mosaic.shape[0] * mosaic.shape[1] < 1.5 * (most_pixels + 20 * 65**2)
        seen = np.zeros((3000, 2000), np.int8)
        for _, _, row, col, rows, cols in mosaic.windows:
            seen[row : row + rows, col : col + cols] += 1
        assert seen.max() == 1
        np.testing.assert_array_equal(mosaic.places(mosaic.pixels(places[held])), places[held])


def test_labels_of_one_class_side_by_side_are_one_cluster():
    places = np.array([(0, 0), (1, 1), (5, 5), (5, 6), (1, 2)])
    found = clusters_of(LabelList(places, np.array([1, 1, 1, 2, 2]), FileLegend({}, {})))
    assert found[0] == found[1]
    assert len(set(found.tolist())) == 4


@pytest.mark.slow
def test_a_bundle_trained_on_windows_maps_the_whole_scene(files, is_large, tmp_path: Path):
    network = ["--depth", 1, "--width", 16, "--heads", 2, "--mlp-width", 16, "--epochs", 3, "--batch", 16]
    paths = ["--scene", files.scene, "--labels", files.labels, "-o", tmp_path / "b.onnx"]
    done = run_here("train", *paths, *network)
    assert done.returncode == 0, done.stderr
    assert "learning from all 69 labelled pixels, in 8 windows of 48 px round the labels and 4 of 64 px" in done.stderr
    data = load_bundle(tmp_path / "b.onnx").manifest.training["data"]
    assert (data["rows"], data["cols"], data["mosaic"]["round_labels"]) == (ROWS, COLS, 8)
    scoring = ["evaluate", "--bundle", tmp_path / "b.onnx", "--scene", files.scene, "--json", "--labels"]
    scored = json.loads(run_here(*scoring, files.scene.with_name("truth.tif")).stdout)
    assert (scored["oa"] > 0.9, scored["training_pixels_left_out"]) == (True, 0)
    assert "trained on all 69 of these labels" in run_here(*scoring, files.labels).stderr
