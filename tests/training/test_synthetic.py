"""Synthetic scenes: reproducible, georeferenced, with light and noise as specified."""

import numpy as np
import pytest
import rasterio

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.service.mapping.scenes import open_scene, read_cube
from hyperscene.training.data.synthetic import MATERIALS, SyntheticScene, make_scene, write_scene


def test_a_seed_makes_the_same_scene_and_another_does_not():
    (first, labels), (again, _), (other, _) = (make_scene(SyntheticScene(40, 30, 8, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other, equal_nan=True)
    assert first.shape == (40, 30, 8)
    assert set(np.unique(labels)) <= set(range(len(MATERIALS) + 1))


def test_a_taller_scene_of_the_same_seed_begins_with_the_shorter_one():
    short, tall = (make_scene(SyntheticScene(rows, 50, 6, 3))[1] for rows in (64, 200))
    same = (short == tall[:64]) | (short == 0) | (tall[:64] == 0)  # the wedge without data follows the height
    assert same.all()


def test_light_changes_the_length_of_a_spectrum_and_keeps_its_angle():
    scene = SyntheticScene(200, 200, 64, 0, snr_db=200)
    cube, labels = make_scene(scene)
    loam = next(value for value, material in enumerate(MATERIALS, start=1) if material.name == "loam")
    pure = MATERIALS[loam - 1].reflectance(scene.wavelengths_nm)
    spectra = cube[labels == loam].astype(float)
    lengths = np.linalg.norm(spectra, axis=1)
    angles = np.arccos(np.clip(spectra @ pure / (lengths * np.linalg.norm(pure)), -1, 1))
    cleanest = lengths[angles < 0.02]  # pixels with hardly any clutter
    assert len(cleanest) > 50
    assert np.percentile(cleanest, 95) / np.percentile(cleanest, 5) > 1.5


def test_noise_follows_the_signal_to_noise_ratio():
    clean, noisy = (make_scene(SyntheticScene(64, 64, 32, 0, snr_db=snr))[0] for snr in (200, 20))
    ratio = np.nanmean(clean**2) / np.nanmean((noisy - clean) ** 2)
    assert 14 < 10 * np.log10(ratio) < 24


@pytest.mark.parametrize("name", ["s.tif", "s.img", "s.bsq", "s.bil", "s.bip"])
def test_each_format_holds_the_same_scene(tmp_path, name):
    made = SyntheticScene(70, 45, 9, 5)
    write_scene(made, tmp_path / name, tmp_path / "labels.tif")
    scene = open_scene(tmp_path / name)
    cube, valid = read_cube(scene)
    reflectance, labels = make_scene(made)
    np.testing.assert_array_equal(valid, labels > 0)
    assert 0 < (~valid).mean() < 0.3
    np.testing.assert_allclose(cube[valid], reflectance[valid], atol=0.6e-4)
    np.testing.assert_allclose(scene.wavelengths_nm, made.wavelengths_nm, atol=1e-3)
    assert (scene.crs, scene.transform) == (made.crs, made.transform)
    with rasterio.open(tmp_path / "labels.tif") as file:
        np.testing.assert_array_equal(file.read(1), labels)
        assert (file.crs, file.transform) == (made.crs, made.transform)


def test_a_single_pixel_is_a_scene(tmp_path):
    write_scene(SyntheticScene(1, 1, 1), tmp_path / "s.tif")
    assert read_cube(open_scene(tmp_path / "s.tif"))[0].shape == (1, 1, 1)


def test_refused_outputs_leave_no_files(tmp_path):
    with pytest.raises(OutputUnwritable, match="a folder that exists"):
        write_scene(SyntheticScene(8, 8, 2), tmp_path / "missing" / "s.tif")
    with pytest.raises(OptionsUnusable, match=r"use one of \.tif"):
        write_scene(SyntheticScene(8, 8, 2), tmp_path / "s.jpg")
    with pytest.raises(OutputUnwritable, match="a folder that exists"):
        write_scene(SyntheticScene(8, 8, 2), tmp_path / "s.tif", tmp_path / "missing" / "l.tif")
    with pytest.raises(OptionsUnusable, match="overwrite the scene"):
        write_scene(SyntheticScene(8, 8, 2), tmp_path / "s.tif", tmp_path / "s.tif")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"rows": 0}, {"cols": -1}, {"bands": 0}, {"seed": -1}, {"seed": 10**18}])
def test_sizes_below_one_are_refused(change):
    with pytest.raises(OptionsUnusable, match="--" + next(iter(change))):
        SyntheticScene(**change)
