"""The rasters are valid COGs with names, colours, scales and the scene's georeference."""

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.transform import Affine
from rio_cogeo.cogeo import cog_validate

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.prefetch import Cancelled
from hyperscene.service.mapping.rasters import RASTERS, MapWriter, optimise
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.mapping.strips import MappedStrip
from tests.bundles import describe, pixel_graph
from tests.scenes import GRID, UTM, write_tif

ROTATED = Affine(26, 15, 380_000, 15, -26, 5_820_000)


def make_rasters(tmp_path, rows=30, cols=23, classes=3, probability_type="uint8", strip_px=7, **georeference):
    scene = open_scene(write_tif(tmp_path / "scene.tif", np.ones((rows, cols, 5), "float32"), **georeference))
    manifest = describe(pixel_graph(classes=classes), classes=classes, class_colors=colors(classes))
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(rows, cols, classes)).astype("float32")
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    valid = generator.random((rows, cols)) < 0.9
    with MapWriter(tmp_path, scene, manifest, probability_type) as writer:
        for top in range(0, rows, strip_px):
            part = slice(top, top + strip_px)
            writer.write(MappedStrip(top, probabilities[part], valid[part]).stored(probability_type))
    for name in RASTERS:
        optimise(tmp_path, name, threads=2)
    return probabilities, valid


def colors(classes):
    return [f"#{value % 256:02x}40{255 - value % 256:02x}" for value in range(1, classes + 1)]


def test_rasters_that_are_left_unfinished_are_not_filled(tmp_path):
    scene = open_scene(write_tif(tmp_path / "scene.tif", np.ones((3000, 3000), "uint8")))
    manifest = describe(pixel_graph(classes=3), classes=3, class_colors=colors(3))
    writer = MapWriter(tmp_path, scene, manifest, "uint8")
    writer.__enter__()
    writer.write(MappedStrip(0, np.full((1, 3000, 3), 0.5, "float32"), np.ones((1, 3000), bool)).stored("uint8"))
    writer.__exit__(Cancelled, Cancelled(), None)
    assert (tmp_path / "plain_probabilities.tif").stat().st_blocks * 512 < 1_000_000


@pytest.mark.parametrize("size", [(30, 23), (700, 610)])
def test_all_three_rasters_pass_the_cog_validator(tmp_path, size):
    make_rasters(tmp_path, *size)
    for name in RASTERS:
        is_valid, errors, warnings = cog_validate(tmp_path / name, quiet=True)
        assert (is_valid, errors, warnings) == (True, [], [])


def test_classes_are_bytes_with_names_colours_and_0_for_no_data(tmp_path):
    probabilities, valid = make_rasters(tmp_path)
    with rasterio.open(tmp_path / "classes.tif") as raster:
        assert (raster.dtypes, raster.nodata) == (("uint8",), 0)
        assert raster.colormap(1)[2] == (2, 64, 253, 255)
        assert raster.tags()["class_names"] == "{no data, class 1, class 2, class 3}"
        np.testing.assert_array_equal(raster.read(1), np.where(valid, probabilities.argmax(axis=-1) + 1, 0))


def test_above_255_classes_take_two_bytes(tmp_path):
    probabilities, valid = make_rasters(tmp_path, 20, 20, classes=300)
    with rasterio.open(tmp_path / "classes.tif") as raster:
        assert raster.dtypes == ("uint16",)
        np.testing.assert_array_equal(raster.read(1), np.where(valid, probabilities.argmax(axis=-1) + 1, 0))


def test_probabilities_as_bytes_are_scaled_to_0_and_1(tmp_path):
    probabilities, valid = make_rasters(tmp_path)
    for name, expected in (("probabilities.tif", probabilities), ("confidence.tif", probabilities.max(-1)[..., None])):
        with rasterio.open(tmp_path / name) as raster:
            assert set(raster.dtypes) == {"uint8"}
            assert raster.nodata == 255
            found = np.moveaxis(raster.read() * raster.scales[0], 0, -1)
            np.testing.assert_allclose(found[valid], expected[valid], atol=0.5 / 254 + 1e-6)
            np.testing.assert_array_equal(raster.read(1) == 255, ~valid)
    with rasterio.open(tmp_path / "probabilities.tif") as raster:
        assert raster.descriptions == ("class 1", "class 2", "class 3")


def test_probabilities_as_floats_are_exact(tmp_path):
    probabilities, valid = make_rasters(tmp_path, probability_type="float32")
    with rasterio.open(tmp_path / "probabilities.tif") as raster:
        np.testing.assert_array_equal(np.moveaxis(raster.read(), 0, -1)[valid], probabilities[valid])
        assert np.isnan(raster.read()[:, ~valid]).all()
        assert np.isnan(raster.nodata)


def test_overviews_of_classes_hold_classes_only(tmp_path):
    make_rasters(tmp_path, 700, 610)
    with rasterio.open(tmp_path / "classes.tif") as raster:
        assert raster.overviews(1)
        shrunk = raster.read(1, out_shape=(88, 77))
    assert set(np.unique(shrunk)) <= {0, 1, 2, 3}


@pytest.mark.parametrize("transform", [GRID, ROTATED])
def test_the_georeference_of_the_scene_is_kept_also_if_rotated(tmp_path, transform):
    make_rasters(tmp_path, transform=transform)
    for name in RASTERS:
        with rasterio.open(tmp_path / name) as raster:
            assert (raster.crs, raster.transform) == (UTM, transform)


def test_ground_control_points_are_kept(tmp_path):
    points = [GroundControlPoint(row, col, 5.0 * col, 7.0 * row) for row, col in ((0, 0), (0, 23), (30, 23))]
    make_rasters(tmp_path, transform=None, gcps=points)
    for name in RASTERS:
        with rasterio.open(tmp_path / name) as raster:
            found, crs = raster.gcps
            assert crs == UTM
            assert [(p.row, p.col, p.x, p.y) for p in found] == [(p.row, p.col, p.x, p.y) for p in points]


def test_a_scene_without_georeference_gives_rasters_without(tmp_path):
    make_rasters(tmp_path, transform=None, crs=None)
    with ignore_missing_georeference(), rasterio.open(tmp_path / "classes.tif") as raster:
        assert raster.crs is None
        assert raster.transform == Affine.identity()


def test_no_plain_raster_and_no_sidecar_is_left(tmp_path):
    make_rasters(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((*RASTERS, "scene.tif"))
