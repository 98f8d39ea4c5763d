"""Products are recognised by their layout, and become scenes."""

import json
import os
import re
import struct
import tarfile
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.rpc import RPC
from rasterio.transform import RPCTransformer, from_origin
from rasterio.warp import Resampling, reproject
from rasterio.warp import transform as transform_points
from rasterio.windows import Window

from hyperscene.errors import OptionsUnusable, SceneIncomplete, SceneTooLarge, SceneUnreadable
from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.products import cube_files
from hyperscene.service.mapping.products.containers import ArchiveLimits, unpack
from hyperscene.service.mapping.products.finding import unpack_all
from hyperscene.service.mapping.products.product import OVERLAP, RationalFunctions, ReadOptions
from hyperscene.service.mapping.products.rational import image_positions
from hyperscene.service.mapping.scenes import open_pixels, open_scene, read_cube
from hyperscene.service.mapping.swaths import open_ground
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.bundles import write_patch_bundle
from tests.products import (
    EMIT_GOOD,
    EMIT_NM,
    ENMAP_EMPTY,
    ENMAP_HEIGHT_M,
    ENMAP_NM,
    ENMAP_STEM,
    KINDS,
    NEON_NM,
    NODATA,
    PRISMA_MIN_MAX,
    PRISMA_SWIR,
    PRISMA_VNIR,
    enmap_functions,
    enmap_masks,
    enmap_values,
    lookup_table,
    positions,
    prisma_samples,
    smooth_cube,
    write_any,
    write_aviris3,
    write_aviris3_radiance,
    write_aviris_ng,
    write_desis,
    write_emit,
    write_enmap,
    write_enmap_l1b,
    write_enmap_of,
    write_neon,
    write_netcdf3,
    write_pace,
    write_prisma,
    write_tanager,
    zipped,
)
from tests.scenes import GRID, UTM, write_envi, write_tif

ENMAP_USED = [0, 1, 2, 3, 4, 5, 7, 8, 10, 11]  # without the overlap at 958 nm and the empty band


@pytest.fixture
def enmap(tmp_path):
    """A folder, and its samples."""
    values = enmap_values(14, 13)
    return write_enmap(tmp_path / "enmap" / ENMAP_STEM, values), values


def tagged_enmap(path, values, **tags):
    """The image of an EnMAP product without its metadata, as other programs write it."""
    write_tif(path, values, nodata=NODATA, wavelengths_nm=ENMAP_NM)
    with rasterio.open(path, "r+") as file:
        for band in range(1, file.count + 1):
            if "bbl" in tags:
                file.update_tags(band, bbl=str(tags["bbl"][band - 1]))
    return path


def test_bands_that_their_own_tags_mark_as_bad_are_dropped_and_named(tmp_path):
    values = enmap_values(9, 8)
    flags = [0 if band in ENMAP_EMPTY else 1 for band in range(1, 13)]
    scene = open_scene(tagged_enmap(tmp_path / "s.tif", values, bbl=flags))
    assert [(band.number, band.wavelength_nm) for band in scene.dropped] == [(10, 1360.0)]
    assert scene.warnings == ("bands that are not used: 10 (1360 nm): marked bad (bbl)",)
    _, valid = read_cube(scene)
    np.testing.assert_array_equal(valid, values[..., 0] != NODATA)


def test_an_empty_band_that_nothing_marks_is_dropped_and_named(tmp_path):
    values = enmap_values(9, 8)
    scene = open_scene(write_tif(tmp_path / "s.tif", values, nodata=NODATA))
    assert scene.warnings == ("bands that are not used: 10: empty",)
    assert read_cube(scene)[1].sum() == 9 * 8 - 6


def test_an_empty_band_of_envi_data_is_dropped(tmp_path):
    header = f"data ignore value = {NODATA}\nwavelength = {{{', '.join(map(str, ENMAP_NM))}}}\n"
    scene = open_scene(write_envi(tmp_path / "s.img", enmap_values(9, 8), header))
    assert [band.number for band in scene.dropped] == [10]
    assert len(scene.wavelengths_nm) == 11


def test_a_scene_without_any_value_keeps_its_bands(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", np.full((5, 4, 3), NODATA, np.int16), nodata=NODATA))
    assert len(scene.bands) == 3


@pytest.mark.parametrize("given", ["folder", "metadata", "image", "zip", "parent"])
def test_an_enmap_product_is_read_by_any_of_its_paths(enmap, tmp_path, given):
    folder, values = enmap
    path = {
        "folder": folder,
        "metadata": folder / f"{ENMAP_STEM}-METADATA.XML",
        "image": folder / f"{ENMAP_STEM}-SPECTRAL_IMAGE.TIF",
        "zip": tmp_path / "product.zip",
        "parent": folder.parent,
    }[given]
    if given == "zip":
        zipped(folder, path)
    scene = open_scene(path)
    assert (scene.sensor, scene.level, scene.name, scene.unit) == ("EnMAP", "L2A", ENMAP_STEM, "reflectance")
    assert scene.acquired == "2022-07-24T10:45:26.123Z"
    assert (scene.crs, scene.transform) == (UTM, GRID)
    np.testing.assert_array_equal(scene.wavelengths_nm, ENMAP_NM[ENMAP_USED])
    np.testing.assert_array_equal(scene.fwhm_nm, 9.0)
    assert [(band.number, band.reason) for band in scene.dropped] == [(7, OVERLAP), (10, "empty")]
    cube, valid = read_cube(scene)
    masks = enmap_masks(14, 13)
    expected = (values[..., 0] != NODATA) & (masks["CLOUD"] == 0) & (masks["CLOUDSHADOW"] == 0)
    np.testing.assert_array_equal(valid, expected)
    np.testing.assert_allclose(cube[valid], values[valid][:, ENMAP_USED] * 1e-4, rtol=1e-6)


def test_the_detectors_of_an_enmap_l1b_product_are_brought_together(tmp_path):
    values = enmap_values(20, 17)
    scene = open_scene(write_enmap_l1b(tmp_path / "l1b", values), options=ReadOptions(masks=("saturated",)))
    np.testing.assert_array_equal(scene.wavelengths_nm, ENMAP_NM[ENMAP_USED])
    assert (scene.rows, scene.cols, scene.mask_kinds) == (17, 16, ("cloud", "saturated"))
    cube, valid = read_cube(scene)
    # What both detectors saw begins three rows down, because the SWIR looks ahead by so much.
    seen = values[3:, :16]
    expected = seen[..., 0] != NODATA
    expected[9, 3] = expected[9, 5] = False
    np.testing.assert_array_equal(valid, expected)
    np.testing.assert_allclose(cube[valid], seen[valid][:, ENMAP_USED] * 1e-4, rtol=1e-6)


@pytest.mark.parametrize("ending", ["BSQ", "BIL", "BIP", "JP2"])
def test_an_enmap_image_may_have_each_format_that_can_be_ordered(tmp_path, ending):
    values = enmap_values(14, 13)
    folder = write_enmap(tmp_path / ENMAP_STEM, values, ending=ending)
    limits = Limits(pixels=14 * 13, bands=12, unpacked_bytes=1 << 20, header_bytes=1 << 20)
    scene = open_scene(zipped(folder, tmp_path / "p.zip"), limits)
    assert (scene.crs, scene.transform) == (UTM, GRID)
    with pytest.raises(SceneTooLarge, match="14 x 13 pixels"):
        open_scene(folder, replace(limits, pixels=14 * 13 - 1))
    cube, valid = read_cube(scene)
    masks = enmap_masks(14, 13)
    expected = (values[..., 0] != NODATA) & (masks["CLOUD"] == 0) & (masks["CLOUDSHADOW"] == 0)
    np.testing.assert_array_equal(valid, expected)
    np.testing.assert_allclose(cube[valid], values[valid][:, ENMAP_USED] * 1e-4, rtol=1e-6)


def test_rational_functions_are_those_of_gdal():
    found = enmap_functions()
    functions = RationalFunctions(
        (np.array(found["ROW_NUM"]), np.array(found["COL_NUM"])),
        (np.array(found["ROW_DEN"]), np.array(found["COL_DEN"])),
        np.array(found["OFF"]),
        np.array(found["SCALE"]),
        ENMAP_HEIGHT_M + 77,
        np.zeros((4, 2)),
    )
    generator = np.random.default_rng(0)
    lon, lat = 13.1 + generator.uniform(0, 0.005, 50), 52.5 - generator.uniform(0, 0.004, 50)
    with RPCTransformer(gdal_rpc(found)) as transformer:
        row, col = transformer.rowcol(lon, lat, [ENMAP_HEIGHT_M + 77] * 50, op=lambda value: value)
    # GDAL counts from the outer edge of the first pixel.
    np.testing.assert_allclose(image_positions(functions, lon, lat), np.array([row, col]) - 0.5, atol=1e-6)


def gdal_rpc(found):
    """The same functions for GDAL."""
    names = ("line", "samp", "long", "lat", "height")
    numbers = {f"{names[axis]}_{key.lower()}": found[key][axis] for key in ("OFF", "SCALE") for axis in range(5)}
    return RPC(
        **numbers,
        line_num_coeff=found["ROW_NUM"],
        line_den_coeff=found["ROW_DEN"],
        samp_num_coeff=found["COL_NUM"],
        samp_den_coeff=found["COL_DEN"],
    )


def test_an_enmap_l1b_product_is_laid_out_as_gdal_does_by_its_rational_functions(tmp_path):
    scene = open_scene(write_enmap_l1b(tmp_path / "l1b", enmap_values(40, 33)))
    with open_ground(scene) as (placed, lookup):
        found = lookup.find(Window(0, 0, placed.cols, placed.rows))
    assert (placed.crs, placed.transform.a) == (UTM, pytest.approx(30, rel=0.01))
    functions = enmap_functions()
    functions["OFF"][0] -= 3  # where the grid of both detectors begins
    warped = np.full(found.shape, -1, np.int32)
    index = np.arange(scene.rows * scene.cols, dtype=np.int32).reshape(scene.rows, scene.cols)
    reproject(
        index, warped, rpcs=gdal_rpc(functions), src_crs=CRS.from_epsg(4326), dst_crs=UTM, dst_nodata=-1,
        dst_transform=placed.transform, RPC_HEIGHT=ENMAP_HEIGHT_M, resampling=Resampling.nearest,
    )  # fmt: skip
    both = (found >= 0) & (warped >= 0)
    assert both.sum() == pytest.approx(scene.rows * scene.cols, rel=0.12)
    apart = np.array(divmod(found[both], scene.cols)) - np.array(divmod(warped[both], scene.cols))
    # GDAL interpolates the functions along rows, so that a few pixels at a boundary differ.
    assert np.abs(apart).max() <= 1
    assert (apart == 0).all(axis=0).mean() > 0.96


def test_an_enmap_l1b_product_without_rational_functions_is_laid_out_by_its_corners(tmp_path):
    scene = open_scene(write_enmap_l1b(tmp_path / "l1b", enmap_values(40, 33), has_rpc=False))
    assert (scene.rows, scene.cols) == (40, 33)
    with open_ground(scene) as (placed, lookup):
        found = lookup.find(Window(0, 0, placed.cols, placed.rows))
    known = found >= 0
    assert known.sum() == pytest.approx(40 * 33, rel=0.02)
    lon, lat = (values.ravel()[found[known]] for values in positions(40, 33))
    x, y = (np.array(values) for values in transform_points(CRS.from_epsg(4326), UTM, lon, lat))
    col, row = np.meshgrid(np.arange(placed.cols) + 0.5, np.arange(placed.rows) + 0.5)
    east, north = placed.transform @ (col[known], row[known])
    assert np.hypot(east - x, north - y).max() <= 30 / np.sqrt(2) + 1


def test_a_cube_in_a_zip_is_read(tmp_path):
    path = write_prisma(tmp_path / "zip" / "PRS_L2D_STD.he5", prisma_samples())
    assert open_scene(zipped(path.parent, tmp_path / "p.zip")).name == "PRS_L2D_STD"


def test_masks_are_those_that_were_asked_for(enmap):
    folder, values = enmap
    masks, has_data = enmap_masks(14, 13), values[..., 0] != NODATA
    _, valid = read_cube(open_scene(folder, options=ReadOptions(masks=())))
    np.testing.assert_array_equal(valid, has_data)
    _, valid = read_cube(open_scene(folder, options=ReadOptions(masks=("cirrus", "water"))))
    np.testing.assert_array_equal(valid, has_data & (masks["CIRRUS"] == 0) & (masks["CLASSES"] != 2))
    # A defective sample of the empty band masks nothing.
    _, valid = read_cube(open_scene(folder, options=ReadOptions(masks=("defective",))))
    assert [tuple(place) for place in np.argwhere(has_data & ~valid)] == [(13, 11)]
    assert open_scene(folder).mask_kinds == ("cirrus", "cloud", "defective", "shadow", "water")
    with pytest.raises(OptionsUnusable, match="no mask snow; it has cloud, shadow, cirrus, water, defective"):
        open_scene(folder, options=ReadOptions(masks=("snow",)))


def test_metadata_without_their_image_are_refused(enmap):
    folder, _ = enmap
    (folder / f"{ENMAP_STEM}-SPECTRAL_IMAGE.TIF").unlink()
    with pytest.raises(SceneIncomplete, match=r"add .*SPECTRAL_IMAGE\.TIF"):
        open_scene(folder)


def test_an_image_without_its_metadata_says_what_it_lacks(enmap, tmp_path):
    folder, _ = enmap
    (folder / f"{ENMAP_STEM}-METADATA.XML").unlink()
    lacks = rf"{ENMAP_STEM}-SPECTRAL_IMAGE\.TIF lacks its metadata: add {ENMAP_STEM}-METADATA\.XML"
    with pytest.raises(SceneIncomplete, match=lacks):
        open_scene(folder)
    scene = open_scene(folder / f"{ENMAP_STEM}-SPECTRAL_IMAGE.TIF")
    assert scene.wavelengths_nm is None
    assert re.fullmatch(lacks, scene.warnings[0])
    desis = write_desis(tmp_path / "desis", np.ones((6, 5, 4), np.int16))
    for file in desis.glob("*[lr]"):
        file.unlink()
    with pytest.raises(SceneIncomplete, match=r"lacks its metadata: add DESIS.*-METADATA\.xml"):
        open_scene(desis)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[: len(content) // 2], "is cut short: the list of its members"),
        (lambda content: content.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"), "by a password"),
    ],
)
def test_a_zip_that_is_cut_or_locked_is_refused_in_one_sentence(enmap, tmp_path, change, words):
    path = zipped(enmap[0], tmp_path / "p.zip")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SceneUnreadable, match=words) as refusal:
        open_scene(path)
    assert str(refusal.value).startswith("p.zip is")
    assert "\n" not in str(refusal.value)


def test_a_folder_of_two_products_is_refused(enmap):
    folder, values = enmap
    write_enmap(folder, values, level="L1C")
    with pytest.raises(SceneUnreadable, match="holds 2 products"):
        open_scene(folder)


def test_metadata_of_other_bands_are_ignored_with_a_warning(enmap):
    folder, values = enmap
    write_tif(folder / f"{ENMAP_STEM}-SPECTRAL_IMAGE.TIF", values[..., :5], nodata=NODATA)
    scene = open_scene(folder)
    assert scene.wavelengths_nm is None
    assert "has 5 bands and the product's metadata describe 12" in scene.warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]><level_X>&a;</level_X>', "declares a document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><level_X/>', "declares a document type"),
        ("<level_X>" + "<a>" * 70, "nests its elements deeper"),
        ("<level_X>", "not well-formed"),
        ("", "not well-formed"),
    ],
)
def test_hostile_metadata_are_refused(enmap, text, words):
    folder, _ = enmap
    (folder / f"{ENMAP_STEM}-METADATA.XML").write_text(text)
    with pytest.raises(SceneUnreadable, match=rf"METADATA\.XML {words}|METADATA\.XML is {words}"):
        open_scene(folder)


def test_a_prisma_l2d_product_is_scaled_ordered_and_georeferenced(tmp_path):
    samples = prisma_samples()
    scene = open_scene(write_prisma(tmp_path / "PRS_L2D_STD_20240402102837_20240402102842_0001.he5", samples))
    assert (scene.sensor, scene.level, scene.unit) == ("PRISMA", "L2D", "reflectance")
    assert scene.acquired.startswith("2024-04-02T10:28:37")
    assert (scene.crs, scene.transform) == (UTM, from_origin(380_000, 5_820_000, 30, 30))
    np.testing.assert_array_equal(scene.wavelengths_nm, [450, 560, 670, 860, 961, 1050, 1650, 2200])
    assert {band.number for band in scene.dropped} == {1, 2, 11}  # 972 nm lies in the overlap
    cube, valid = read_cube(scene)
    np.testing.assert_array_equal(valid, samples.any(axis=-1))
    nm = np.concatenate([PRISMA_VNIR, PRISMA_SWIR])
    for place, wavelength in enumerate(scene.wavelengths_nm):
        band = int(np.flatnonzero(nm == wavelength)[0])
        low, high = PRISMA_MIN_MAX["Vnir" if band < len(PRISMA_VNIR) else "Swir"]
        expected = low + samples[..., band] * (high - low) / 65535
        np.testing.assert_allclose(cube[..., place][valid], expected[valid], rtol=1e-5)


def test_a_prisma_l1_product_is_radiance_with_a_cloud_mask(tmp_path):
    samples = prisma_samples()
    scene = open_scene(write_prisma(tmp_path / "p.he5", samples, level="L1"))
    cube, valid = read_cube(scene)
    assert (scene.level, scene.crs) == ("L1", None)
    assert scene.mask_kinds == ("cloud", "defective", "saturated", "snow", "water")
    expected = samples.any(axis=-1)
    expected[2:4, 3:6] = False
    np.testing.assert_array_equal(valid, expected)
    np.testing.assert_allclose(cube[..., 0], samples[..., 5] / 100, rtol=1e-6)


@pytest.mark.parametrize("level", ["L2B", "L2C", "L2D"])
def test_the_error_matrices_of_prisma_mask_pixels_by_the_bands_used(tmp_path, level):
    path = write_prisma(tmp_path / "p.he5", prisma_samples(), level)
    valid = {
        kind: read_cube(open_scene(path, options=ReadOptions(masks=(kind,))))[1] for kind in ("saturated", "defective")
    }
    valid["none"] = read_cube(open_scene(path))[1]
    assert [tuple(place) for place in np.argwhere(valid["none"] & ~valid["saturated"])] == [(8, 1)]
    assert [tuple(place) for place in np.argwhere(valid["none"] & ~valid["defective"])] == [(7, 2)]
    scene = open_scene(path, options=ReadOptions(masks=("saturated", "defective")))
    without_560 = scene.narrowed(np.flatnonzero(scene.wavelengths_nm != 560))
    assert read_cube(without_560)[1][8, 1]
    assert scene.unit == ("W/(m2 sr um)" if level == "L2B" else "reflectance")


def test_an_emit_product_is_read_with_its_mask_file(tmp_path):
    cube = smooth_cube(9, 8, len(EMIT_NM))
    cube[..., 4] = -0.01
    cube[8, 7] = -9999
    path = write_emit(tmp_path / "emit", cube)
    scene = open_scene(path)
    assert (scene.sensor, scene.level, scene.acquired) == ("EMIT", "L2A", "2022-08-15T04:28:38+0000")
    assert [band.wavelength_nm for band in scene.dropped] == [1360.0]
    assert scene.mask_kinds == ("aggregate", "cirrus", "cloud", "dilated-cloud", "water")
    values, valid = read_cube(scene)
    expected = np.ones((9, 8), bool)
    expected[1:3, 1:4] = expected[8, 7] = False
    np.testing.assert_array_equal(valid, expected)
    np.testing.assert_array_equal(values[valid], cube[valid][:, EMIT_GOOD == 1])
    folder = open_scene(path.parent)
    assert (folder.name, folder.bands) == (scene.name, scene.bands)


def test_the_mask_file_alone_is_refused(tmp_path):
    path = write_emit(tmp_path, smooth_cube(5, 4, len(EMIT_NM)))
    with pytest.raises(SceneUnreadable, match="give the file EMIT_L2A_RFL instead"):
        open_scene(path.with_name(path.name.replace("_RFL_", "_MASK_")))


def test_a_neon_tile_is_scaled_and_its_band_windows_are_dropped(tmp_path):
    cube = smooth_cube(6, 5, len(NEON_NM))
    cube[0, 0] = -0.9999
    scene = open_scene(write_neon(tmp_path / "NEON_D02_SERC_DP3_368000_4307000_reflectance.h5", cube))
    assert (scene.sensor, scene.level) == ("NEON AOP", "DP3")
    assert (scene.crs, scene.transform) == (CRS.from_epsg(32618), from_origin(368_000, 4_307_000, 1, 1))
    assert [band.reason for band in scene.dropped] == ["in the bad band window 1340 to 1445 nm"]
    values, valid = read_cube(scene)
    assert not valid[0, 0]
    np.testing.assert_allclose(values[valid], cube[valid][:, NEON_NM != 1400], atol=6e-5)


@pytest.mark.parametrize("is_ortho", [True, False])
def test_a_tanager_product_is_read_with_its_masks(tmp_path, is_ortho):
    cube = smooth_cube(6, 5, len(EMIT_NM))
    scene = open_scene(write_tanager(tmp_path / "20250815_043916_87_4001_ortho_sr.h5", cube, is_ortho=is_ortho))
    assert (scene.sensor, scene.acquired) == ("Tanager", "2025-08-15T04:39:16Z")
    assert scene.mask_kinds == ("cirrus", "cloud")
    assert (scene.transform == from_origin(570_300, 3_555_450, 30, 30)) is is_ortho
    assert (scene.ground is None) is is_ortho
    values, valid = read_cube(scene)
    assert {tuple(place) for place in np.argwhere(~valid)} == {(1, 2), (0, 0)}
    np.testing.assert_array_equal(values, cube[..., EMIT_GOOD == 1])


def test_a_pace_product_is_unpacked_with_its_flags(tmp_path):
    cube = smooth_cube(6, 5, 4)
    scene = open_scene(write_pace(tmp_path / "PACE_OCI.20240809T105059.L2.SFREFL.nc", cube))
    assert (scene.sensor, scene.mask_kinds) == ("PACE OCI", ("cloud",))
    values, valid = read_cube(scene)
    assert [tuple(place) for place in np.argwhere(~valid)] == [(0, 1)]
    np.testing.assert_allclose(values, cube, atol=1.1e-5)


def test_an_aviris_3_product_is_read(tmp_path):
    cube = smooth_cube(6, 5, len(EMIT_NM))
    scene = open_scene(write_aviris3(tmp_path / "AV320230926t201618_001_L2A_OE_main_RFL_ORT.nc", cube))
    assert (scene.sensor, scene.acquired, scene.crs, scene.transform) == ("AVIRIS-3", "2023-09-26", UTM, GRID)
    np.testing.assert_array_equal(read_cube(scene)[0], cube)


def test_envi_data_of_aviris_are_named_after_their_sensor(tmp_path):
    data = tmp_path / "ang20170707t200459_corr_v2p9_img"
    write_envi(data.with_suffix(".img"), smooth_cube(6, 5, 3), "wavelength = {450, 560, 670}\n")
    data.with_suffix(".img").rename(data)
    for given in (data, data.with_suffix(".hdr"), tmp_path):
        scene = open_scene(given)
        assert (scene.sensor, scene.acquired, scene.path) == ("AVIRIS-NG", "2017-07-07", data)


def ground_of(scene):
    """The scene's map on the ground, and the index of the sensor's pixel for each of its pixels."""
    with open_ground(scene) as (placed, lookup):
        return placed, lookup.find(Window(0, 0, placed.cols, placed.rows))


def test_aviris_3_radiance_is_laid_out_by_its_lookup_table(tmp_path):
    cube = smooth_cube(12, 9, len(EMIT_NM))
    scene = open_scene(write_aviris3_radiance(tmp_path / "AV320230926t201618_001_L1B_RDN_main_RDN.nc", cube))
    assert (scene.level, scene.unit, scene.crs) == ("L1B", "uW/(cm2 sr nm)", None)
    placed, found = ground_of(scene)
    col, row, west, north, step = lookup_table(12, 9)
    np.testing.assert_array_equal(found, np.where(col > 0, (row - 1) * 9 + col - 1, -1))
    assert (placed.crs, placed.transform) == (CRS.from_epsg(4326), from_origin(west, north, step, step))


@pytest.mark.parametrize("has_table", [True, False])
def test_aviris_ng_is_laid_out_by_the_table_or_the_positions_beside_it(tmp_path, has_table):
    cube = smooth_cube(12, 9, 4)
    image = write_aviris_ng(tmp_path / "ang20150422t163638_rdn_v1e", cube, has_table=has_table)
    for given in (image, image.parent):
        scene = open_scene(given)
        assert (scene.sensor, scene.level, scene.path, scene.warnings) == ("AVIRIS-NG", "L1B", image, ())
    np.testing.assert_array_equal(read_cube(scene)[0], cube)
    placed, found = ground_of(scene)
    if has_table:
        col, row, *_ = lookup_table(12, 9)
        np.testing.assert_array_equal(found, np.where(col > 0, (row - 1) * 9 + col - 1, -1))
    else:
        assert (placed.crs, placed.transform.a) == (CRS.from_epsg(32633), 30)
        assert len(np.unique(found[found >= 0])) > 0.9 * 12 * 9


def test_aviris_classic_radiance_is_divided_by_its_gains(tmp_path):
    name = "f130503t01p00r11rdn_e_sc01_ort_img"
    write_envi(tmp_path / f"{name}.img", np.full((6, 5, 3), 600, np.int16), "wavelength = {450, 560, 670}\n")
    (tmp_path / f"{name}.img").rename(tmp_path / name)
    (tmp_path / "f130503t01p00r11rdn_e.gain").write_text("300.0 1\n600.0 1\n1200.0 1\n")
    scene = open_scene(tmp_path / name)
    np.testing.assert_allclose(read_cube(scene)[0][0, 0], [2, 1, 0.5])
    (tmp_path / "f130503t01p00r11rdn_e.gain").write_text("300.0 1\n")
    with pytest.raises(SceneUnreadable, match="has 3 bands and its product 1 scales"):
        open_scene(tmp_path / name)


def test_a_desis_product_is_read_with_its_header(tmp_path):
    values = np.random.default_rng(0).integers(100, 5000, (6, 5, 4)).astype(np.int16)
    scene = open_scene(write_desis(tmp_path / "desis", values))
    assert (scene.sensor, scene.level, scene.acquired) == ("DESIS", "L2A", "2019-12-03T02:11:28Z")
    np.testing.assert_allclose(scene.wavelengths_nm, [402, 404.55, 407.1, 409.65])
    cube, valid = read_cube(scene)
    assert {tuple(place) for place in np.argwhere(~valid)} == {(1, 1), (2, 2), (3, 3)}
    np.testing.assert_allclose(cube, values * 1e-4, rtol=1e-6)


@pytest.mark.parametrize("chunks", [(4, 3, 5), (1, 11, 7), (9, 11, 7), (9, 1, 7)])
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_any_chunks_give_the_same_rows(tmp_path, monkeypatch, chunks, is_rewritten):
    samples = prisma_samples()
    plain = write_prisma(tmp_path / "plain.he5", samples)
    packed = write_prisma(tmp_path / "packed.he5", samples, chunks=tuple(map(min, chunks, (9, 5, 7))))
    if is_rewritten:
        monkeypatch.setattr(cube_files, "CACHE_BYTES", 0)
        monkeypatch.setattr(cube_files, "PART_BYTES", 100)
    done = []
    with (
        open_pixels(open_scene(packed), lambda *now: done.append(now)) as pixels,
        open_pixels(open_scene(plain)) as other,
    ):
        for window in (Window(0, 3, 7, 2), Window(2, 0, 3, 9), None):
            for found, expected in zip(pixels.read(window), other.read(window), strict=True):
                np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(pixels.spectrum(4, 5), other.spectrum(4, 5))
    assert all(now <= total for now, total in done)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("order", ["rcb", "brc"])
def test_a_classic_netcdf_cube_is_read_with_its_wavelengths(tmp_path, version, order):
    cube = smooth_cube(9, 8, 5)
    cube[2, 3] = -999
    path = write_netcdf3(tmp_path / "cube.nc", cube, order, version)
    scene = open_scene(path)
    assert (scene.rows, scene.cols, scene.sensor) == (9, 8, "")
    np.testing.assert_allclose(scene.wavelengths_nm, EMIT_NM[:5])
    values, valid = read_cube(scene)
    assert [tuple(place) for place in np.argwhere(~valid)] == [(2, 3)]
    np.testing.assert_allclose(values[valid], cube[valid] * 2 + 1, rtol=1e-6)


def test_a_cdf_5_cube_is_read(tmp_path):
    name, wide = b"\0\0\0\0\0\0\0\x04cube", ">q"
    sizes = [("a", 2), ("b", 3), ("c", 4)]
    header = b"CDF\x05" + struct.pack(">q", 0) + struct.pack(">iq", 10, 3)
    for letter, size in sizes:
        header += struct.pack(">q", 1) + letter.encode() + bytes(3) + struct.pack(wide, size)
    header += struct.pack(">iq", 0, 0) + struct.pack(">iq", 11, 1) + name + struct.pack(">qqqq", 3, 0, 1, 2)
    header += struct.pack(">iq", 0, 0) + struct.pack(">iq", 5, 96)
    values = np.arange(24, dtype=">f4").reshape(2, 3, 4)
    path = tmp_path / "cube.nc"
    path.write_bytes(header + struct.pack(">q", len(header) + 8) + values.tobytes())
    np.testing.assert_array_equal(read_cube(open_scene(path))[0], values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-60], "cut short"),
        (lambda content: content[:40], "cannot be read as netCDF"),
        (lambda content: content[:4] + b"\xff" * 60 + content[64:], "cannot be read as netCDF"),
    ],
)
def test_a_damaged_classic_netcdf_file_is_refused(tmp_path, change, words):
    path = write_netcdf3(tmp_path / "cube.nc", smooth_cube(9, 8, 5), "rcb", 1)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SceneUnreadable, match=words):
        open_scene(path)


def hostile_emit(tmp_path, change):
    """An EMIT product whose reflectance would be read from another file, which blocks any process that opens it."""
    path = write_emit(tmp_path, smooth_cube(5, 4, len(EMIT_NM)))
    secret = tmp_path / "secret.h5"
    os.mkfifo(secret)
    with h5py.File(path, "r+") as file:
        del file["reflectance"]
        change(file, secret)
    return path


def as_virtual(file, secret):
    layout = h5py.VirtualLayout(shape=(5, 4, 7), dtype="f4")
    layout[:] = h5py.VirtualSource(str(secret), "reflectance", shape=(5, 4, 7))
    file.create_virtual_dataset("reflectance", layout)


def as_external_data(file, secret):
    file.create_dataset("reflectance", (5, 4, 7), "f4", external=[(str(secret), 0, 560)])


def as_external_link(file, secret):
    file["reflectance"] = h5py.ExternalLink(str(secret), "reflectance")


def as_foreign_filter(file, secret):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((5, 4, 7))
    properties.set_filter(32_015, h5py.h5z.FLAG_OPTIONAL, (3,))
    h5py.h5d.create(file.id, b"reflectance", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((5, 4, 7)), properties)


@pytest.mark.parametrize("change", [as_virtual, as_external_data, as_external_link, as_foreign_filter])
def test_hdf5_that_leads_out_of_the_file_is_refused_unopened(tmp_path, change):
    with pytest.raises(SceneUnreadable, match="only data in the file itself are read"):
        open_scene(hostile_emit(tmp_path, change))


def test_a_damaged_hdf5_file_is_refused(tmp_path):
    path = write_emit(tmp_path, smooth_cube(5, 4, len(EMIT_NM)))
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(SceneUnreadable, match="cannot be read as HDF5"):
        open_scene(path)


def mapped(scene, bundle, output):
    """The class map of a scene, and its summary."""
    summary = map_scene(scene, bundle, make_engine(bundle, "cpu", 1, 4), output, MapOptions(1, "none"))
    with rasterio.open(output / "classes.tif") as file:
        return file.read(1), file.profile, summary


def reference(scene, bundle, folder):
    """The class map of the same pixels in a plain GeoTIFF."""
    values, valid = read_cube(scene)
    values[~valid] = np.nan
    path = write_tif(folder / "plain.tif", values, nodata=np.nan, wavelengths_nm=scene.wavelengths_nm)
    return mapped(open_scene(path), bundle, folder / "plain")[0]


@pytest.fixture(scope="module")
def small_bundle(tmp_path_factory):
    return load_bundle(write_patch_bundle(tmp_path_factory.mktemp("bundle") / "b.onnx", patch_px=8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_mapped_like_its_pixels_in_a_geotiff(tmp_path, small_bundle, kind):
    scene = open_scene(write_any(kind, tmp_path / "product"))
    classes, profile, summary = mapped(scene, small_bundle, tmp_path / "map")
    expected = reference(scene, small_bundle, tmp_path)
    assert summary["scene"].get("sensor", "") == scene.sensor
    assert summary["valid_pixels"] == (expected > 0).sum()
    if scene.ground is None:
        assert (profile["crs"], profile["transform"]) == (scene.crs, scene.transform)
    else:
        placed, found = ground_of(scene)
        expected = np.where(found >= 0, expected.ravel()[found], 0)
        assert (profile["crs"], profile["transform"]) == (placed.crs, placed.transform)
    np.testing.assert_array_equal(classes, expected)


@pytest.mark.slow
def test_the_demo_bundle_maps_an_enmap_product_with_empty_water_vapour_bands(tmp_path):
    scene = SyntheticScene(96, 96, 224, seed=7)
    write_scene(scene, tmp_path / "image.tif", tmp_path / "truth.tif")
    nm = scene.wavelengths_nm
    empty = np.flatnonzero(((nm > 1340) & (nm < 1460)) | ((nm > 1760) & (nm < 1960))) + 1
    with rasterio.open(tmp_path / "image.tif", "r+") as image:
        for band in empty:
            image.write(np.full((96, 96), NODATA, np.int16), int(band))
    write_enmap_of(tmp_path / ENMAP_STEM, tmp_path / "image.tif", nm, 0.0001, tuple(empty))
    product = open_scene(tmp_path / ENMAP_STEM)
    assert {band.number for band in product.dropped} == set(empty)
    classes, _, summary = mapped(product, load_bundle(DEMO_BUNDLE), tmp_path / "map")
    with rasterio.open(tmp_path / "truth.tif") as raster:
        truth = raster.read(1)
    np.testing.assert_array_equal(classes > 0, truth > 0)
    assert (classes == truth)[truth > 0].mean() > 0.85
    assert not [warning for warning in summary["warnings"] if "gaps" in warning]


def test_mask_tif_tells_masked_from_missing(tmp_path, small_bundle):
    values = enmap_values(20, 17)
    scene = open_scene(write_enmap(tmp_path / ENMAP_STEM, values))
    classes, _, summary = mapped(scene, small_bundle, tmp_path / "map")
    masks = enmap_masks(20, 17)
    expected = np.zeros((20, 17), np.uint8)
    expected[values[..., 0] == NODATA] = 1
    expected[masks["CLOUDSHADOW"] == 1] = 3
    expected[masks["CLOUD"] == 1] = 2
    with rasterio.open(tmp_path / "map" / "mask.tif") as file:
        np.testing.assert_array_equal(file.read(1), expected)
    np.testing.assert_array_equal(classes == 0, expected > 0)
    item = json.loads((tmp_path / "map" / "item.json").read_text())
    assert item["assets"]["mask"]["href"] == "./mask.tif"
    assert summary["masked_pixels"] == {"cloud": int((expected == 2).sum()), "shadow": int((expected == 3).sum())}
    mapped(open_scene(tmp_path / ENMAP_STEM, options=ReadOptions(masks=())), small_bundle, tmp_path / "map")
    assert not (tmp_path / "map" / "mask.tif").exists()


def test_a_lookup_table_lays_a_map_out_as_numpy_does(tmp_path, small_bundle):
    path = write_emit(tmp_path / "emit", smooth_cube(20, 17, len(EMIT_NM)))
    scene = open_scene(path)
    classes, profile, summary = mapped(scene, small_bundle, tmp_path / "map")
    sensor = reference(scene, small_bundle, tmp_path)
    with h5py.File(path) as file:
        col, row = file["location/glt_x"][()], file["location/glt_y"][()]
        np.testing.assert_allclose(
            list(profile["transform"])[:6], np.roll(file.attrs["geotransform"], -1)[[0, 1, 5, 3, 4, 2]]
        )
    np.testing.assert_array_equal(classes, np.where(col > 0, sensor[row - 1, col - 1], 0))
    assert profile["crs"] == CRS.from_epsg(4326)
    area = sum(entry["hectares"] for entry in summary["classes"])
    assert area == pytest.approx((classes > 0).sum() * 0.09, rel=0.4)


def test_positions_lay_a_map_out_within_half_a_pixel(tmp_path, small_bundle):
    rows, cols = 40, 33
    path = write_prisma(tmp_path / "p.he5", prisma_samples(rows, cols), level="L2C")
    scene = open_scene(path)
    lon, lat = (values.astype(np.float32) for values in positions(rows, cols))
    with open_ground(scene) as (placed, lookup):
        found = lookup.find(Window(0, 0, placed.cols, placed.rows))
    assert placed.crs == UTM
    x, y = (np.array(values) for values in transform_points(CRS.from_epsg(4326), UTM, lon.ravel(), lat.ravel()))
    col, row = np.meshgrid(np.arange(placed.cols) + 0.5, np.arange(placed.rows) + 0.5)
    east, north = placed.transform @ (col, row)
    distance = np.hypot(east[..., None] - x, north[..., None] - y) / placed.transform.a
    near = distance.min(axis=-1)
    known = found >= 0
    # Every pixel of the ground inside the swath has the nearest pixel of the sensor.
    np.testing.assert_array_equal(known, near <= 1.5)
    np.testing.assert_allclose(
        np.take_along_axis(distance, found[..., None].clip(0), -1)[known][:, 0], near[known], atol=1e-4
    )


@pytest.mark.parametrize(("kind", "same"), [("PRISMA L2C", 0.99), ("EMIT", 0.85)])
def test_a_map_lies_where_gdal_puts_it(tmp_path, kind, same):
    rows, cols = 80, 66
    if kind == "EMIT":
        scene = open_scene(write_emit(tmp_path / "emit", smooth_cube(rows, cols, len(EMIT_NM))))
    else:
        scene = open_scene(write_prisma(tmp_path / "p.he5", prisma_samples(rows, cols), level="L2C"))
    placed, found = ground_of(scene)
    warped = np.full(found.shape, -1, np.int32)
    reproject(
        np.arange(rows * cols, dtype=np.int32).reshape(rows, cols), warped, src_crs=CRS.from_epsg(4326),
        src_geoloc_array=np.stack(positions(rows, cols, -0.5)),  # GDAL takes positions of upper left corners
        dst_crs=placed.crs, dst_transform=placed.transform, dst_nodata=-1, resampling=Resampling.nearest,
    )  # fmt: skip
    both = (found >= 0) & (warped >= 0)
    assert both.sum() > 0.95 * (found >= 0).sum()
    apart = np.array(divmod(found[both], cols)) - np.array(divmod(warped[both], cols))
    assert np.abs(apart).max() <= 1
    assert np.abs(apart.mean(axis=1)).max() < 0.02  # pixels
    assert (apart == 0).all(axis=0).mean() > same


@pytest.mark.parametrize("change", ["../x.tif", "/x.tif", "C:/x.tif", "a/../../x.tif", "a\\x.tif", "a/" * 9 + "x.tif"])
def test_archive_members_that_lead_elsewhere_are_refused(tmp_path, change):
    path = tmp_path / "in" / "p.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ENMAP01-____L2A-X-METADATA.XML", "<x/>")
        archive.writestr(zipfile.ZipInfo(change), "x")
        archive.filelist[-1].filename = change  # ZipInfo cleans backslashes on some systems
    with pytest.raises(SceneUnreadable, match=r"leads outside its folder|nests its folders"):
        open_scene(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_links_in_archives_and_folders_are_left_out(tmp_path):
    secret = tmp_path / "secret.xml"
    secret.write_text("<level_X/>")
    name = f"{ENMAP_STEM}-METADATA.XML"
    with tarfile.open(tmp_path / "p.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).symlink_to(secret)
    for path in (tmp_path / "p.tar.gz", folder):
        with pytest.raises(SceneUnreadable, match=r"holds no product|is a folder"):
            open_scene(path)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ArchiveLimits(members=2), "more than 2 members"),
        (ArchiveLimits(unpacked_bytes=2_000), "unpacks to more than"),
        (ArchiveLimits(ratio=1, exempt_bytes=100), "1 times its size"),
    ],
)
def test_archives_beyond_the_limits_are_refused_before_they_are_unpacked(tmp_path, enmap, limits, words):
    path = zipped(enmap[0], tmp_path / "p.zip")
    with pytest.raises(SceneTooLarge, match=words):
        unpack(path, tmp_path / "unpacked", limits)
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_a_member_that_unpacks_to_far_more_than_its_size_is_refused_among_others(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("noise.tif", np.random.default_rng(0).bytes(200_000))
        archive.writestr("bomb.tif", bytes(200_000))
    with pytest.raises(SceneTooLarge, match=r"bomb\.tif of p\.zip unpacks to more than 5 times its size"):
        unpack(tmp_path / "p.zip", tmp_path / "unpacked", ArchiveLimits(ratio=5, exempt_bytes=100))


def test_archives_in_an_archive_share_its_limit(tmp_path):
    for number in range(3):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            archive.writestr(f"{number}.tif", bytes(1_000))
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.write(tmp_path / f"{number}.zip", f"{number}.zip")
    assert unpack_all(tmp_path / "p.zip", tmp_path / "a", ArchiveLimits(unpacked_bytes=7_000)) > 6_000
    with pytest.raises(SceneTooLarge, match="unpacks to more than"):
        unpack_all(tmp_path / "p.zip", tmp_path / "b", ArchiveLimits(unpacked_bytes=5_500))


def test_a_damaged_archive_is_refused(tmp_path, enmap):
    path = zipped(enmap[0], tmp_path / "p.zip")
    content = bytearray(path.read_bytes())
    content[400:600] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(SceneUnreadable, match="copy it again"):
        open_scene(path)


def test_a_zip_in_a_tar_is_read(tmp_path, enmap):
    inner = zipped(enmap[0], tmp_path / f"{ENMAP_STEM}.ZIP")
    with tarfile.open(tmp_path / "dims_op.tar.gz", "w:gz") as archive:
        archive.add(inner, f"dims_op/ENMAP.HSI.L2A/{inner.name}")
    assert open_scene(tmp_path / "dims_op.tar.gz").sensor == "EnMAP"


@pytest.mark.parametrize("start", [b"PK\3\4", b"\x93NUMPY\1\0", b"MATLAB 5.0 MAT-file", b"\x89HDF\r\n\x1a\n"])
def test_envi_data_stay_envi_whatever_they_start_with(tmp_path, start):
    path = write_envi(tmp_path / "scene.img", np.zeros((8, 8, 3), np.uint8))
    path.write_bytes(start + bytes(8 * 8 * 3 - len(start)))
    assert open_scene(path).driver == "ENVI"


def test_opening_a_cube_does_not_rewrite_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cube_files, "CACHE_BYTES", 0)
    monkeypatch.setattr(cube_files, "_rewrite", pytest.fail)
    path = write_prisma(tmp_path / "p.he5", prisma_samples(), chunks=(4, 3, 5))
    assert open_scene(path).sensor == "PRISMA"
