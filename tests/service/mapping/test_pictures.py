"""A scene's picture: bands, stretch and georeference."""

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rio_cogeo.cogeo import cog_validate

from hyperscene.errors import StorageFull
from hyperscene.service.mapping import pictures, rasters
from hyperscene.service.mapping.pictures import choose_bands, stretched, write_picture
from hyperscene.service.mapping.scenes import open_scene
from tests.scenes import GRID, UTM, write_envi, write_tif

NM = np.linspace(400, 900, 26)  # every 20 nm


@pytest.fixture
def values():
    return np.random.default_rng(6).uniform(100, 4000, (37, 29, 5)).astype("int16")


def read(path):
    with rasterio.open(path) as file:
        return np.moveaxis(file.read(), 0, -1)


def picture_of(path, folder, bands=(3, 2, 1)):
    folder.mkdir(exist_ok=True)
    return read(write_picture(open_scene(path), bands, folder))


def test_true_colours_are_the_bands_nearest_to_640_550_and_460_nm():
    assert choose_bands(range(1, 27), NM) == (13, 8, 4)  # 640, 540 and 460 nm


def test_band_numbers_are_those_of_the_file():
    assert choose_bands([2, 5, 9, 10], [460, 550, 640, 900]) == (9, 5, 2)


def test_wavelengths_may_come_in_any_order():
    assert choose_bands([1, 2, 3], [640, 460, 550]) == (1, 3, 2)


@pytest.mark.parametrize(
    "nm", [np.linspace(1000, 2500, 9), np.linspace(300, 2500, 9), None], ids=["infrared", "too far apart", "unknown"]
)
def test_without_true_colours_bands_are_spread_over_the_list(nm):
    assert choose_bands(range(1, 10), nm) == (7, 5, 3)


@pytest.mark.parametrize(("bands", "chosen"), [(1, (1, 1, 1)), (2, (2, 1, 1))])
def test_fewer_than_three_bands_are_repeated(tmp_path, values, bands, chosen):
    path = write_tif(tmp_path / "s.tif", values[..., :bands])
    numbers = choose_bands(range(1, bands + 1), None)
    assert numbers == chosen
    shown = picture_of(path, tmp_path / "p", numbers)
    np.testing.assert_array_equal(shown[..., 1], shown[..., 2])


def test_values_between_the_percentiles_go_from_1_to_255():
    cube = np.array([[[0.0], [10.0], [20.0], [15.0], [99.0], [-5.0]]], np.float32)
    valid = np.array([[True, True, True, True, True, False]])
    shown = stretched(cube, valid, np.array([10.0]), np.array([20.0]))
    assert shown[0, :, 0].tolist() == [1, 1, 255, 128, 255, 0]


def test_each_band_is_stretched_by_its_own_percentiles(tmp_path, values):
    values[..., 1] *= 7
    shown = picture_of(write_tif(tmp_path / "s.tif", values), tmp_path / "p", (1, 2, 3))
    for band in range(3):
        low, high = np.percentile(values[::2, :, band], (2, 98))  # of some rows; the picture takes others
        expected = 1 + 254 * np.clip((values[..., band] - low) / (high - low), 0, 1)
        assert np.abs(shown[..., band] - expected).mean() < 4
        assert shown[..., band].min() == 1
        assert shown[..., band].max() == 255


def test_a_constant_band_is_grey(tmp_path, values):
    values[..., 1] = 7
    shown = picture_of(write_tif(tmp_path / "s.tif", values), tmp_path / "p", (1, 2, 3))
    assert (shown[..., 1] == 128).all()
    assert shown[..., 0].std() > 10


def test_pixels_without_data_are_0_in_all_bands_and_others_in_none(tmp_path, values):
    values[3, 4, 1] = -9
    shown = picture_of(write_tif(tmp_path / "s.tif", values, nodata=-9), tmp_path / "p")
    assert np.argwhere((shown == 0).any(axis=-1)).tolist() == [[3, 4]]
    assert not shown[3, 4].any()


def test_a_scene_without_a_valid_pixel_gives_an_empty_picture(tmp_path):
    shown = picture_of(write_tif(tmp_path / "s.tif", np.full((5, 6, 3), np.nan, "float32")), tmp_path / "p")
    assert shown.shape == (5, 6, 3)
    assert not shown.any()


def test_implausible_values_do_not_change_the_stretch(tmp_path, values):
    values = values.astype("float32")
    values[:5] = -3.4e38
    shown = picture_of(write_tif(tmp_path / "s.tif", values), tmp_path / "p")
    assert not shown[:5].any()
    assert shown[5:].std() > 50


@pytest.mark.parametrize("interleave", ["BSQ", "BIL", "BIP"])
def test_envi_scenes_have_the_same_picture(tmp_path, values, interleave):
    expected = picture_of(write_tif(tmp_path / "s.tif", values), tmp_path / "p")
    shown = picture_of(write_envi(tmp_path / "e.img", values, interleave=interleave), tmp_path / "e")
    np.testing.assert_array_equal(shown, expected)


def test_a_picture_does_not_depend_on_the_strips(tmp_path, values, monkeypatch):
    path = write_tif(tmp_path / "s.tif", values)
    expected = picture_of(path, tmp_path / "whole")
    monkeypatch.setattr(pictures, "STRIP_ROWS", 7)
    np.testing.assert_array_equal(picture_of(path, tmp_path / "strips"), expected)
    monkeypatch.setattr(pictures, "STRIP_VALUES", 1)
    np.testing.assert_array_equal(picture_of(path, tmp_path / "rows"), expected)


def test_a_picture_is_a_cog_with_the_georeference_of_the_scene(tmp_path):
    values = np.random.default_rng(6).uniform(0, 1, (700, 600, 3)).astype("float32")
    path = write_picture(open_scene(write_tif(tmp_path / "s.tif", values)), (1, 2, 3), tmp_path)
    assert cog_validate(path)[0]
    with rasterio.open(path) as file:
        assert (file.crs, file.transform, file.shape, file.nodata) == (UTM, GRID, (700, 600), 0)
        assert file.overviews(1)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["picture.tif", "s.tif"]


def test_control_points_are_kept(tmp_path, values):
    corners = ((0, 0), (0, 29), (37, 29), (37, 0))
    points = [GroundControlPoint(row, col, 13 + col / 100, 52 - row / 100) for row, col in corners]
    path = write_tif(tmp_path / "s.tif", values, crs="EPSG:4326", transform=None, gcps=points)
    with rasterio.open(write_picture(open_scene(path), (1, 2, 3), tmp_path)) as file:
        found, crs = file.gcps
    assert crs.to_epsg() == 4326
    assert [(point.row, point.col, point.x, point.y) for point in found] == [
        (point.row, point.col, point.x, point.y) for point in points
    ]


def test_a_picture_that_does_not_fit_on_the_disk_is_refused(tmp_path, values, monkeypatch):
    def cut(file):
        raise rasters.disk_full_error()

    monkeypatch.setattr(pictures, "require_complete", cut)
    with pytest.raises(StorageFull):
        write_picture(open_scene(write_tif(tmp_path / "s.tif", values)), (1, 2, 3), tmp_path)
