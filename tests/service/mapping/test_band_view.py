"""A view has the bundle's bands, with missing data filled."""

import threading

import numpy as np
import pytest

from hyperscene.errors import BandsMissing
from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle, read_bundle
from hyperscene.service.mapping import scenes
from hyperscene.service.mapping.band_view import match_manifest, sample_pixels, unit_warning, view_scene
from hyperscene.service.mapping.prefetch import Cancelled, Stop
from hyperscene.service.mapping.scenes import open_scene
from tests.bundles import describe, pixel_graph, write_bundle
from tests.scenes import quadrants, spectra_of, write_tif

NM = np.linspace(450, 900, 5)


@pytest.fixture
def manifest(tmp_path):
    return load_bundle(write_bundle(tmp_path / "b.onnx", nodata_fill=[0.1, 0.2, 0.3, 0.4, 0.5])).manifest


def read(view, top=0, bottom=None):
    with view.open() as pixels:
        return pixels.read(top, bottom or view.scene.rows)


def test_rows_of_absent_blocks_take_no_memory(tmp_path, manifest):
    values = spectra_of(quadrants(64, 7), 5)
    values[16:48] = 0
    path = write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, SPARSE_OK=True, blockysize=16)
    view = view_scene(open_scene(path), manifest)
    upper, lower, last = read(view, 16, 30), read(view, 30, 48), read(view, 48, 64)
    middle = upper.joined(lower)
    assert middle.cube.strides[:2] == (0, 0)
    assert not middle.valid.any()
    joined = middle.since(20).joined(last)
    np.testing.assert_array_equal(joined.cube, read(view, 20, 64).cube)
    np.testing.assert_array_equal(joined.valid, values[20:].any(axis=-1))


@pytest.mark.parametrize("layout", [{}, {"blockysize": 4}, {"tiled": True, "blockxsize": 16, "blockysize": 16}])
def test_parts_are_the_same_as_the_whole_and_reading_is_cancelled_between_them(tmp_path, manifest, monkeypatch, layout):
    values = spectra_of(quadrants(40, 50), 6)
    values[3:5, 7:40], values[:, 0] = -1, 1e35
    nm = np.linspace(440, 910, 6)
    view = view_scene(
        open_scene(write_tif(tmp_path / "s.tif", values, wavelengths_nm=nm, nodata=-1, **layout)), manifest
    )
    whole = read(view, 3, 37)
    monkeypatch.setattr(scenes, "PART_VALUES", 200)
    monkeypatch.setattr(scenes, "PART_ROWS", 1)
    cancelled = threading.Event()
    with view.open(stop=Stop(cancelled)) as pixels:
        assert len([*pixels._pixels.windows(3, 37)]) > 1
        parts = pixels.read(3, 37)
        assert pixels.absurd_in_row == dict.fromkeys(range(3, 37), 1)
        cancelled.set()
        with pytest.raises(Cancelled):
            pixels.read(3, 37)
    np.testing.assert_array_equal(parts.valid, whole.valid)
    np.testing.assert_allclose(parts.cube, whole.cube, rtol=1e-6)


def test_bands_are_in_the_order_of_the_bundle(tmp_path, manifest):
    values = spectra_of(quadrants(6, 7), 5)
    view = view_scene(open_scene(write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM)), manifest)
    backwards = tmp_path / "r.tif"
    write_tif(backwards, values[..., ::-1], wavelengths_nm=NM[::-1])
    np.testing.assert_array_equal(read(view).cube, values)
    np.testing.assert_array_equal(read(view_scene(open_scene(backwards), manifest)).cube, values)


def test_unused_bands_do_not_make_pixels_invalid(tmp_path, manifest):
    values = spectra_of(quadrants(6, 7), 7)
    values[1, 1, 6] = -1  # at 1000 nm, which the bundle has no use for
    values[2, 2, 3] = -1
    nm = np.append(NM, [960, 1000])
    view = view_scene(open_scene(write_tif(tmp_path / "s.tif", values, wavelengths_nm=nm, nodata=-1)), manifest)
    pixels = read(view)
    assert np.argwhere(~pixels.valid).tolist() == [[2, 2]]
    np.testing.assert_allclose(pixels.cube[2, 2], [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)


def test_resampled_bands_interpolate_the_spectrum(tmp_path, manifest):
    nm = np.array([440.0, 590, 740, 890, 960])
    ramp = np.broadcast_to(nm / 1000, (4, 5, len(nm))).astype("float32").copy()
    ramp[0, 0] = np.nan
    view = view_scene(open_scene(write_tif(tmp_path / "s.tif", ramp, wavelengths_nm=nm)), manifest)
    pixels = read(view)
    assert view.match.kind == "resampled"
    np.testing.assert_allclose(pixels.cube[1:], np.broadcast_to(NM / 1000, (3, 5, 5)), rtol=1e-5)
    assert np.isfinite(pixels.cube).all()


def test_a_scene_that_does_not_cover_the_wavelengths_of_the_bundle_is_refused(tmp_path, manifest):
    path = write_tif(tmp_path / "s.tif", spectra_of(quadrants(6, 7), 5), wavelengths_nm=np.linspace(450, 700, 5))
    with pytest.raises(BandsMissing, match="450 to 700 nm and the bundle 5 bands from 450 to 900 nm") as caught:
        view_scene(open_scene(path), manifest)
    assert caught.value.code == "bands_missing"


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1, None), (0.1, None), (3, None), (10_000, "divide it by 10000"), (0.0001, "multiply it by 10000"),
     (100, "divide it by 100")],
)  # fmt: skip
def test_values_in_another_unit_give_a_warning(factor, words):
    spectra = np.random.default_rng(0).uniform(0.05, 1, (500, 5)).astype("float32") * factor
    warning = unit_warning(spectra, describe(pixel_graph(), value_range=(0.0, 1.0)))
    assert (warning is None) if words is None else (words in warning)


def test_a_sample_is_spread_over_the_scene_and_counts_valid_pixels(tmp_path, manifest):
    values = np.full((200, 4, 5), 0.5, "float32")
    values[:100] = -1
    view = view_scene(open_scene(write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, nodata=-1)), manifest)
    with view.open() as pixels:
        spectra, share = sample_pixels(pixels, 200)
    assert share == pytest.approx(0.5, abs=0.1)
    assert (spectra == 0.5).all()


# Ranges and spacings of sensors, and the windows in which their products have no usable bands, in nm.
SENSORS = {
    "EnMAP L2A": (np.r_[np.linspace(418, 901, 78), np.linspace(904, 2445, 130)], [(1342, 1460), (1781, 1967)]),
    "EnMAP L1B": (np.r_[np.linspace(423, 901, 78), np.linspace(905, 1382, 44), np.linspace(1488, 2439, 86)], []),
    "PRISMA": (np.r_[np.linspace(406, 960, 57), np.linspace(962, 2497, 170)], [(1340, 1450), (1800, 1950)]),
    "EMIT": (np.linspace(381, 2493, 285), [(1320, 1440), (1770, 1970)]),
    "NEON": (np.linspace(383, 2512, 426), [(1340, 1445), (1790, 1955)]),
    "Tanager": (np.linspace(376, 2500, 426), [(1350, 1430), (1790, 1960)]),
    "AVIRIS-NG": (np.linspace(377, 2500, 425), [(1350, 1430), (1800, 1950)]),
}


@pytest.mark.parametrize("sensor", SENSORS)
def test_the_demo_bundle_fits_each_sensor_of_its_range_with_the_usual_gaps(sensor):
    nm, windows = SENSORS[sensor]
    for low, high in windows:
        nm = nm[(nm < low) | (nm > high)]
    match = match_manifest(nm, len(nm), read_bundle(DEMO_BUNDLE).manifest, np.full(len(nm), 9.0))
    assert match.gaps == ()
