"""Accuracy measures, and the classes of single pixels."""

import numpy as np
import pytest
from sklearn import metrics
from sklearn.ensemble import RandomForestClassifier

from hyperscene.errors import LabelsUnusable
from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.band_view import match_manifest
from hyperscene.training.data.datasets import LabelledFiles
from hyperscene.training.data.synthetic import MATERIALS, SyntheticScene, make_scene
from hyperscene.training.evaluate import classify_pixels, score, score_bundle, score_table
from tests import bundles
from tests.scenes import quadrants, spectra_of, write_tif


def test_scores_equal_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    truth = generator.integers(1, 6, 500)
    found = np.where(generator.random(500) < 0.7, truth, generator.integers(1, 6, 500))
    scores = score(truth, found, ("a", "b", "c", "d", "e"))
    assert scores.overall_accuracy == pytest.approx(metrics.accuracy_score(truth, found))
    assert scores.average_accuracy == pytest.approx(metrics.balanced_accuracy_score(truth, found))
    assert scores.kappa == pytest.approx(metrics.cohen_kappa_score(truth, found))
    np.testing.assert_allclose(scores.recall, metrics.recall_score(truth, found, average=None))
    np.testing.assert_allclose(scores.precision, metrics.precision_score(truth, found, average=None))


def test_a_class_without_test_pixels_is_left_out_of_the_average():
    scores = score(np.array([1, 1, 2]), np.array([1, 2, 2]), ("a", "b", "unseen"))
    assert scores.average_accuracy == pytest.approx(0.75)
    assert scores.recall[2] is None
    assert "unseen" in score_table(scores)


def test_pixels_are_classified_in_any_order(tmp_path):
    bundle = load_bundle(bundles.write_bundle(tmp_path / "b.onnx"))
    cube = np.random.default_rng(1).random((70, 41, 5), np.float32)
    pixels = np.argwhere(np.ones((70, 41), bool))
    expected = bundle.probabilities(cube, pixels).argmax(axis=1) + 1
    order = np.random.default_rng(2).permutation(len(pixels))
    found = classify_pixels(bundle.session, cube, pixels[order], 16)
    np.testing.assert_array_equal(found, expected[order])


def test_a_bundle_of_other_classes_is_refused(tmp_path):
    path = bundles.write_bundle(tmp_path / "b.onnx", class_names=["x", "y", "z"])
    labels = quadrants(12, 12)
    scene_path = write_tif(tmp_path / "s.tif", spectra_of(labels, 5), wavelengths_nm=np.linspace(450, 900, 5))
    labels_path = write_tif(tmp_path / "l.tif", labels)
    with pytest.raises(LabelsUnusable, match="has no class 'class 1'"):
        score_bundle(load_bundle(path), LabelledFiles(scene_path, labels_path))


def test_classes_are_matched_by_name_and_else_by_value(tmp_path):
    record = {"data": {"label_values": [1, 2, 3]}}
    names = ["corn", "soy", "wheat"]
    bundle = load_bundle(bundles.write_bundle(tmp_path / "b.onnx", class_names=names, training=record))
    labels = quadrants(12, 12, 2)
    scene_path = write_tif(tmp_path / "s.tif", spectra_of(labels, 5), wavelengths_nm=np.linspace(450, 900, 5))
    labels_path = write_tif(tmp_path / "l.tif", labels)
    with pytest.raises(LabelsUnusable, match="has no class 'water'"):
        score_bundle(bundle, LabelledFiles(scene_path, labels_path, "corn,water"))
    by_name = score_bundle(bundle, LabelledFiles(scene_path, labels_path, "soy,corn"))
    by_value = score_bundle(bundle, LabelledFiles(scene_path, labels_path))
    assert by_name.scores.class_pixels == (*by_value.scores.class_pixels[1::-1], 0)


def test_bands_are_matched_by_wavelength(tmp_path):
    bundle = load_bundle(bundles.write_bundle(tmp_path / "b.onnx", classes=4))
    labels, wavelengths_nm = quadrants(12, 12), np.linspace(450, 900, 5)
    values = spectra_of(labels, 5)
    labels_path = write_tif(tmp_path / "l.tif", labels)
    scores = []
    for name, order in (("a.tif", [0, 1, 2, 3, 4]), ("b.tif", [3, 0, 4, 2, 1])):
        path = write_tif(tmp_path / name, values[..., order], wavelengths_nm=wavelengths_nm[order])
        scores.append(score_bundle(bundle, LabelledFiles(path, labels_path)))
    assert scores[0] == scores[1]
    assert scores[0].left_out == 0


def test_the_demo_bundle_is_small_and_valid():
    bundle = load_bundle(DEMO_BUNDLE)
    assert DEMO_BUNDLE.stat().st_size < 1_500_000
    assert bundle.manifest.class_names == [material.name for material in MATERIALS]
    assert bundle.manifest.class_colors == [material.color for material in MATERIALS]
    assert bundle.manifest.training["split"]["name"] == "random"


@pytest.mark.slow
def test_the_demo_bundle_is_far_better_than_a_random_forest_on_an_unseen_landscape():
    bundle = load_bundle(DEMO_BUNDLE)
    scene = SyntheticScene(128, 128, 64, seed=77)
    cube, labels = make_scene(scene)
    valid = labels > 0
    bands = match_manifest(scene.wavelengths_nm, scene.bands, bundle.manifest).bands
    filled = np.where(valid[..., None], cube[..., bands], np.array(bundle.manifest.nodata_fill, np.float32))
    generator = np.random.default_rng(0)
    pixels = generator.permutation(np.argwhere(valid))
    trained, judged = pixels[:700], pixels[700:1300]
    # The forest is trained on this landscape, the bundle on another.
    forest = RandomForestClassifier(200, random_state=0).fit(cube[tuple(trained.T)], labels[tuple(trained.T)])
    truth = labels[tuple(judged.T)]
    by_forest = (forest.predict(cube[tuple(judged.T)]) == truth).mean()
    by_bundle = (classify_pixels(bundle.session, filled, judged, 16) == truth).mean()
    assert by_bundle > by_forest + 0.1
    assert by_bundle > 0.85
