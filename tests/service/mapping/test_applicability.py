"""Where the model applies: distances from the training pixels, their raster, and the class "unknown"."""

import numpy as np
import pytest
import rasterio

from hyperscene.errors import OptionsUnusable
from hyperscene.model.bundle import load_bundle
from hyperscene.service.mapping.applicability import Dissimilarity, applicability_rows, average, decode, encode
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data.splits import split_labels
from hyperscene.training.evaluate import ArraySource
from hyperscene.training.fit.applicability import averaged_components, fit_applicability
from tests.bundles import write_bundle
from tests.scenes import WAVELENGTHS, labelled_scene, write_tif

STRANGE = (slice(4, 14), slice(10, 20))


@pytest.fixture(scope="module")
def labelled():
    return labelled_scene(rows=40, cols=36, bands=5)


@pytest.fixture(scope="module")
def found(labelled):
    return fit_applicability(labelled, split_labels(labelled.labels, "random", 0.1, 0.0, 0, 1), 0)


@pytest.fixture(scope="module")
def mapped(labelled, found, tmp_path_factory):
    """A scene with a strange square and missing data, and a bundle that knows what it learnt from."""
    folder = tmp_path_factory.mktemp("applicability")
    cube = labelled.cube.copy()
    cube[STRANGE] = np.linspace(0.9, 0.05, 5)
    cube[30:33, 5:9] = -1
    scene = write_tif(folder / "scene.tif", cube, nodata=-1, wavelengths_nm=WAVELENGTHS)
    statistics = {"band_mean": labelled.band_mean.tolist(), "band_std": labelled.band_std.tolist()}
    path = write_bundle(folder / "b.onnx", applicability=found, nodata_fill=statistics["band_mean"], **statistics)
    bundle = load_bundle(path)
    return scene, bundle


def run(mapped, output, **options):
    scene, bundle = mapped
    return map_scene(open_scene(scene), bundle, make_engine(bundle), output, MapOptions(**options))


def read(path):
    with rasterio.open(path) as raster:
        return raster.read(1)


def test_the_raster_shows_strange_pixels_and_the_summary_their_share(mapped, tmp_path):
    summary = run(mapped, tmp_path)
    ratio = read(tmp_path / "applicability.tif")
    assert (ratio[30:33, 5:9] == 255).all()
    assert (ratio[6:12, 12:18] > 100).all()
    usual = np.ones(ratio.shape, bool)
    usual[:18, 6:24] = usual[28:35, 3:11] = False
    assert (ratio[usual] <= 100).mean() > 0.9
    assert summary["applicability"]["inside_pixels"] == ((ratio <= 100) & (ratio != 255)).sum()
    assert "95 % of them are to the others" in summary["applicability"]["promise"]
    assert [entry["name"] for entry in summary["classes"]] == ["class 1", "class 2", "class 3"]


def test_unknown_is_a_class_of_the_map_on_request(mapped, tmp_path):
    plain = run(mapped, tmp_path / "plain")
    summary = run(mapped, tmp_path / "unknown", unknown=True)
    outside = read(tmp_path / "plain" / "applicability.tif")
    outside = (outside > 100) & (outside != 255)
    classes = read(tmp_path / "unknown" / "classes.tif")
    assert np.array_equal(classes == 4, outside)
    assert np.array_equal(classes[~outside], read(tmp_path / "plain" / "classes.tif")[~outside])
    assert [entry["pixels"] for entry in summary["classes"]] == [(classes == value).sum() for value in range(1, 5)]
    assert summary["classes"][3]["name"] == "unknown"
    assert summary["classes"][3]["hectares"] == pytest.approx(outside.sum() * 0.09)
    assert summary["valid_pixels"] == plain["valid_pixels"]
    with rasterio.open(tmp_path / "unknown" / "probabilities.tif") as raster:
        assert raster.count == 3


def test_the_bytes_do_not_depend_on_the_height_of_blocks_and_strips(mapped, labelled, found, tmp_path):
    measure = Dissimilarity.of(mapped[1].manifest, found)
    valid = np.random.default_rng(0).random(labelled.valid.shape) > 0.1
    source = ArraySource(PixelRows(0, labelled.cube, valid))
    whole = np.concatenate([rows for _, rows in applicability_rows(source, 40, 36, measure)])
    for height in (1, 3, 16):
        parts = [rows for _, rows in applicability_rows(source, 40, 36, measure, height)]
        assert np.array_equal(np.concatenate(parts), whole)
    run(mapped, tmp_path / "a", strip_px=16)
    run(mapped, tmp_path / "b", strip_px=40)
    assert (tmp_path / "a" / "applicability.tif").read_bytes() == (tmp_path / "b" / "applicability.tif").read_bytes()


def test_the_threshold_holds_the_promised_share_of_held_out_pixels(labelled, found):
    index = tuple(split_labels(labelled.labels, "random", 0.1, 0.0, 0, 1).train.T)
    prototypes = decode(found.prototypes, found.components)
    rest = np.ones(labelled.labels.shape, bool)
    rest[index] = False
    values = averaged_components(labelled, decode(found.projection, found.components))[rest]
    distances = np.sqrt(((values[:, None] - prototypes) ** 2).sum(-1)).min(axis=1)
    assert 0.9 < (distances <= found.threshold).mean() <= 1


def test_a_window_averages_valid_pixels_only():
    values = np.arange(12, dtype=np.float32).reshape(3, 4, 1)
    valid = np.ones((3, 4), bool)
    valid[1, 1] = False
    values[1, 1] = 0
    averaged = average(values, valid, 3)[..., 0]
    assert averaged[0, 0] == pytest.approx((0 + 1 + 4) / 3)
    assert averaged[1, 2] == pytest.approx(np.mean([1, 2, 3, 6, 7, 9, 10, 11]))


def test_numbers_in_a_manifest_are_read_back_exactly():
    values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    assert np.array_equal(decode(encode(values), 3), values)


def test_a_bundle_without_statistics_maps_and_says_nothing_about_applicability(labelled, tmp_path):
    scene = write_tif(tmp_path / "scene.tif", labelled.cube, wavelengths_nm=WAVELENGTHS)
    bundle = load_bundle(write_bundle(tmp_path / "old.onnx"))
    summary = run((scene, bundle), tmp_path / "out")
    assert "applicability" not in summary
    assert not (tmp_path / "out" / "applicability.tif").exists()
    with pytest.raises(OptionsUnusable, match="train it again"):
        run((scene, bundle), tmp_path / "out", unknown=True)
