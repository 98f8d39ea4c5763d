"""Wavelengths: units, names, and the matching of bands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscene.model.spectra import (
    WIDEST_BRIDGE_NM,
    BandMismatch,
    Gap,
    from_band_names,
    match_bands,
    parse_list,
    to_nm,
)

BUNDLE = np.arange(500.0, 1000.0, 10)


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([450.5], "Nanometers", 450.5),
        ([0.4505], "Micrometers", 450.5),
        ([0.4505], "um", 450.5),
        ([450.5], None, 450.5),
        ([0.4505], "Micrometres", 450.5),
        ([0.4505], None, 450.5),
        ([450.5], "Unknown", 450.5),
        ([12.0], None, 12_000.0),
    ],
)
def test_units_become_nm(values, unit, expected):
    np.testing.assert_allclose(to_nm(values, unit), [expected])


@pytest.mark.parametrize("values", [[], [0.0], [-5.0], [float("nan")]])
def test_numbers_that_cannot_be_wavelengths_give_none(values):
    assert to_nm(values, None) is None


def test_wavelengths_are_found_in_band_names():
    names = ["band 1 (0.455400 Micrometers)", "Band 2 (469.4 nm)", ".4843 um"]
    np.testing.assert_allclose(from_band_names(names), [455.4, 469.4, 484.3])


@pytest.mark.parametrize("names", [[], ["band 1"], ["450 nm", None], ["450 nm", "red"]])
def test_names_without_wavelengths_give_none(names):
    assert from_band_names(names) is None


def test_lists_are_read_with_braces_commas_and_lines():
    assert parse_list("{1, 2.5,\n 3}") == [1.0, 2.5, 3.0]


def test_the_same_wavelengths_match_in_any_order():
    order = np.random.default_rng(0).permutation(len(BUNDLE))
    match = match_bands(BUNDLE[order] + 2, len(BUNDLE), BUNDLE, len(BUNDLE))
    assert match.kind == "same"
    np.testing.assert_array_equal(order[match.bands], np.arange(len(BUNDLE)))


@pytest.mark.parametrize("fwhm_nm", [None, 2.0, 12.0, 40.0])
def test_a_scene_matches_itself_whatever_the_width_of_its_bands(fwhm_nm):
    fwhm = None if fwhm_nm is None else np.full(len(BUNDLE), fwhm_nm)
    match = match_bands(BUNDLE, len(BUNDLE), BUNDLE, len(BUNDLE), fwhm)
    assert match.kind == "same"
    np.testing.assert_array_equal(match.bands, np.arange(len(BUNDLE)))


def test_duplicate_wavelengths_give_no_nan():
    twice = np.array([450.0, 450.0, 470.0, 490.0])
    np.testing.assert_array_equal(match_bands(twice, 4, twice, 4).bands, [0, 1, 2, 3])
    match = match_bands(twice, 4, np.array([450.0, 457.0, 480.0]), 3)
    assert match.weights is not None
    np.testing.assert_allclose(match.weights.sum(axis=0), 1)


def test_bands_that_are_not_needed_are_left_out():
    scene = np.concatenate([[400.0, 410.0], BUNDLE, [1200.0]])
    match = match_bands(scene, len(scene), BUNDLE, len(BUNDLE))
    np.testing.assert_array_equal(match.bands, np.arange(2, 2 + len(BUNDLE)))


@given(st.floats(3.0, 25.0), st.floats(-4.0, 4.0))
def test_resampling_keeps_a_straight_spectrum_straight(spacing_nm, start_nm):
    scene = np.arange(490 + start_nm, 1030, spacing_nm)
    match = match_bands(scene, len(scene), BUNDLE, len(BUNDLE))
    spectrum = (3 + 0.01 * scene)[match.bands]
    found = spectrum @ match.weights if match.weights is not None else spectrum
    tolerance = 0.01 * 5.01 if match.weights is None else 1e-4  # half a spacing counts as the same band
    np.testing.assert_allclose(found, 3 + 0.01 * BUNDLE, rtol=0, atol=tolerance)


def test_wide_bands_average_the_narrow_ones_under_them():
    scene = np.arange(480.0, 1020.0, 2)
    match = match_bands(scene, len(scene), BUNDLE, len(BUNDLE), np.full(len(BUNDLE), 20.0))
    assert match.weights is not None
    np.testing.assert_allclose(match.weights.sum(axis=0), 1, atol=1e-6)
    assert ((match.weights > 0.01).sum(axis=0) > 8).all()


@pytest.mark.parametrize(
    ("scene", "first"),
    [(np.arange(600.0, 1000.0, 10), "500.0"), (np.arange(500.0, 800.0, 10), "800.0"),
     (np.concatenate([np.arange(500.0, 700.0, 10), np.arange(800.0, 1000.0, 10)]), "700.0")],
)  # fmt: skip
def test_a_scene_that_does_not_cover_the_bundle_is_refused_with_the_first_gap(scene, first):
    with pytest.raises(BandMismatch, match=f"the first at {first} nm"):
        match_bands(scene, len(scene), BUNDLE, len(BUNDLE))


def test_a_small_gap_is_bridged_by_interpolation_and_named():
    scene = BUNDLE[(BUNDLE <= 700) | (BUNDLE >= 760)]
    match = match_bands(scene, len(scene), BUNDLE, len(BUNDLE), np.full(50, 25.0), np.full(len(scene), 25.0))
    assert match.gaps == (Gap(700, 760, 5),)
    assert (match.bridged_bands, match.largest_gap_nm) == (5, 60)
    spectrum = np.sin(scene / 100)[match.bands]
    np.testing.assert_allclose(spectrum @ match.weights, np.interp(BUNDLE, scene, np.sin(scene / 100)), atol=1e-6)


def test_a_band_just_inside_a_wide_gap_is_taken_from_its_edge():
    bundle = np.array([1290.0, 1480.0, 1516.0, 1548.0])  # demo bands round a water vapour window
    scene = np.concatenate([np.arange(1280.0, 1385, 9.5), np.arange(1488.0, 1600, 9.5)])
    match = match_bands(scene, len(scene), bundle, len(bundle))
    assert match.gaps == ()
    np.testing.assert_allclose((scene[match.bands] @ match.weights)[1], 1480.0, rtol=1e-6)
    with pytest.raises(BandMismatch, match="does not cover 1 of them"):
        match_bands(scene, len(scene), bundle - [0, 40, 0, 0], len(bundle))


def test_a_gap_just_above_the_limit_is_refused_by_name():
    for width, is_bridged in ((WIDEST_BRIDGE_NM, True), (WIDEST_BRIDGE_NM + 1, False)):
        scene = np.concatenate([np.arange(500.0, 705.0, 5), np.arange(700.0 + width, 1000.0, 5)])
        if is_bridged:
            assert match_bands(scene, len(scene), BUNDLE, len(BUNDLE)).bridged_bands == 5
        else:
            words = "the first at 710.0 nm; gaps wider than 65 nm are not bridged: from 700 to 766 nm: use"
            with pytest.raises(BandMismatch, match=words):
                match_bands(scene, len(scene), BUNDLE, len(BUNDLE))


@pytest.mark.parametrize("scene_fwhm_nm", [4.0, 12.0, 16.0])
def test_with_widths_on_both_sides_resampled_bands_are_as_wide_as_the_bundles(scene_fwhm_nm):
    fine = np.arange(300.0, 1200.0, 0.5)
    spectrum = 0.3 + 0.2 / (1 + np.exp(-(fine - 715) / 4)) - 0.1 * np.exp(-0.5 * ((fine - 850) / 6) ** 2)

    def measured(nm, fwhm_nm):  # by a sensor with Gaussian bands
        response = np.exp(-4 * np.log(2) * ((fine - nm[:, None]) / fwhm_nm) ** 2)
        return (response @ spectrum) / response.sum(axis=1)

    scene, widths = np.arange(480.0, 1020.0, 4), np.full(len(BUNDLE), 20.0)
    both = match_bands(scene, len(scene), BUNDLE, len(BUNDLE), widths, np.full(len(scene), scene_fwhm_nm))
    one = match_bands(scene, len(scene), BUNDLE, len(BUNDLE), widths)
    found = [measured(scene, scene_fwhm_nm)[match.bands] @ match.weights for match in (both, one)]
    expected = measured(BUNDLE, 20.0)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-3)
    if scene_fwhm_nm > 4:
        assert np.abs(found[0] - expected).max() < np.abs(found[1] - expected).max() / 4


def test_without_any_wavelengths_bands_match_by_count():
    assert match_bands(None, 7, None, 7).kind == "by count"
    with pytest.raises(BandMismatch, match="7 bands and the bundle 8"):
        match_bands(None, 7, None, 8)


def test_a_bundle_with_wavelengths_refuses_a_scene_without():
    with pytest.raises(BandMismatch, match="without wavelengths; the bundle needs 50 bands from 500 to 990 nm"):
        match_bands(None, 50, BUNDLE, 50)


def test_wavelengths_beyond_light_are_none():
    assert to_nm([1e308, 1e308], "um") is None
    assert from_band_names(["9" * 400 + " nm"]) is None
