"""The Python API as a notebook uses it."""

import subprocess
import sys

import numpy as np
import pytest
import rasterio

import hyperscene as hs
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.products import ENMAP_STEM, enmap_values, write_enmap, zipped


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with scene.tif and labels.tif."""
    folder = tmp_path_factory.mktemp("api")
    write_scene(SyntheticScene(rows=48, cols=40, seed=3), folder / "scene.tif", folder / "labels.tif")
    return folder


def test_importing_it_loads_neither_arrays_nor_torch():
    code = "import sys, hyperscene; print([name for name in ('numpy', 'torch', 'rasterio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert [name for name in hs.__all__ if not hasattr(hs, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'map_scenes'"):
        hs.map_scenes  # noqa: B018


@pytest.mark.slow
def test_arrays_and_files_hold_the_same_map(folder, tmp_path):
    scene, bundle = hs.open_scene(folder / "scene.tif"), hs.load_bundle()
    arrays = hs.map_arrays(scene, bundle)
    summary = hs.map_scene(scene, bundle, tmp_path / "map", probability_type="float32")
    assert summary["classes"][0]["name"] == arrays.class_names[0]
    with rasterio.open(tmp_path / "map" / "classes.tif") as classes:
        np.testing.assert_array_equal(classes.read(1), arrays.classes)
        assert (classes.crs, classes.transform) == (arrays.crs, arrays.transform)
    with rasterio.open(tmp_path / "map" / "probabilities.tif") as probabilities:
        np.testing.assert_array_equal(probabilities.read().transpose(1, 2, 0), arrays.probabilities)
    with rasterio.open(tmp_path / "map" / "confidence.tif") as confidence:
        np.testing.assert_array_equal(confidence.read(1), arrays.confidence)


def test_pixels_without_data_are_class_0_and_nan(folder, tmp_path):
    with rasterio.open(folder / "scene.tif") as source:
        values, profile = source.read(), source.profile | {"nodata": -1}
        tags = [source.tags(band) for band in source.indexes]
    values = values.astype(np.float32)
    values[:, :5, :7] = -1
    with rasterio.open(tmp_path / "holes.tif", "w", **profile | {"dtype": "float32"}) as target:
        target.write(values)
        for band, found in enumerate(tags, start=1):
            target.update_tags(band, **found)
    arrays = hs.map_arrays(tmp_path / "holes.tif", hs.load_bundle())
    assert (arrays.classes == 0).sum() == 35
    np.testing.assert_array_equal(np.isnan(arrays.confidence), arrays.classes == 0)
    np.testing.assert_array_equal(np.isnan(arrays.probabilities[..., 0]), arrays.classes == 0)


@pytest.mark.slow
def test_a_bundle_is_trained_and_evaluated(tmp_path):
    folder = tmp_path
    write_scene(SyntheticScene(rows=20, cols=20, seed=3), folder / "scene.tif", folder / "labels.tif")
    lines = []
    trained = hs.train(
        folder / "scene.tif", folder / "labels.tif", folder / "mine.onnx",
        recipe="paper", epochs=1, fraction=0.1, say=lines.append,
    )  # fmt: skip
    assert (folder / "mine.onnx").is_file()
    assert any("train" in line for line in lines)
    scored = hs.evaluate(trained.bundle, folder / "scene.tif", folder / "labels.tif")
    assert scored.left_out > 0
    assert 0 <= scored.scores.overall_accuracy <= 1


def test_what_is_refused_raises_an_error_with_the_remedy(folder, tmp_path):
    with pytest.raises(hs.ServiceError, match=r"missing\.tif"):
        hs.open_scene(tmp_path / "missing.tif")
    with pytest.raises(hs.BundleRefused):
        hs.load_bundle(folder / "scene.tif")


def test_a_product_is_a_scene_with_its_masks(tmp_path):
    product = zipped(write_enmap(tmp_path / ENMAP_STEM, enmap_values(14, 13)), tmp_path / "product.zip")
    assert [layer.kind for layer in hs.open_scene(product).masks] == ["cloud", "shadow"]
    assert [layer.kind for layer in hs.open_scene(product, mask="water").masks] == ["water"]
    assert hs.open_scene(product, mask="none").masks == ()
