"""Scenes on disk are read, or refused with the reason."""

import gzip
import threading

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.shutil import copy as copy_raster
from rasterio.windows import Window

from hyperscene.errors import DtypeUnsupported, SceneIncomplete, SceneUnreadable
from hyperscene.service.mapping.block_map import BlockMap
from hyperscene.service.mapping.prefetch import Cancelled, Stop
from hyperscene.service.mapping.scenes import open_pixels, open_scene, read_cube
from tests.scenes import GRID, UTM, write_envi, write_tif

VALUES = np.random.default_rng(0).integers(1, 200, (6, 7, 4))


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"],
)
def test_geotiff_of_each_type_is_read(tmp_path, dtype):
    # Three bands, because GDAL reads the fourth of a byte image as alpha.
    values = (VALUES[..., :3] // 2).astype(dtype)
    cube, valid = read_cube(open_scene(write_tif(tmp_path / "s.tif", values)))
    np.testing.assert_array_equal(cube, values)
    assert valid.all()


ENVI_TYPES = {"int16": 2, "float32": 4, "float64": 5, "uint16": 12}
LAYOUTS = {
    "striped": {"blockysize": 2},
    "tiled": {"tiled": True, "blockxsize": 16, "blockysize": 16},
    "pixel": {"interleave": "pixel"},
    "band": {"interleave": "band", "compress": "lzw"},
    "BigTIFF": {"bigtiff": "yes"},
    "big endian": {"endianness": "big"},
    "compressed": {"compress": "deflate", "predictor": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_geotiff_of_each_layout_is_read(tmp_path, layout):
    values = np.random.default_rng(1).integers(1, 9000, (37, 21, 6)).astype("int16")
    scene = open_scene(write_tif(tmp_path / "s.tif", values, **LAYOUTS[layout]))
    np.testing.assert_array_equal(read_cube(scene)[0], values)
    assert (scene.crs, scene.transform) == (UTM, GRID)


def test_a_cog_is_read(tmp_path):
    values = np.random.default_rng(1).integers(1, 9000, (600, 530, 3)).astype("int16")
    plain = write_tif(tmp_path / "plain.tif", values)
    copy_raster(plain, tmp_path / "s.tif", driver="COG")
    scene = open_scene(tmp_path / "s.tif")
    np.testing.assert_array_equal(read_cube(scene)[0], values)
    assert (scene.crs, scene.transform) == (UTM, GRID)


def write_raw_envi(path, values, order=0, offset=0, more=""):
    """An ENVI pair written byte by byte, as other programs write them."""
    rows, cols, bands = values.shape
    swapped = np.moveaxis(values, -1, 0).astype(values.dtype.newbyteorder("<>"[order]))
    path.write_bytes(b"\7" * offset + swapped.tobytes())
    path.with_suffix(".hdr").write_text(
        f"ENVI\nsamples = {cols}\nlines = {rows}\nbands = {bands}\nheader offset = {offset}\n"
        f"file type = ENVI Standard\ndata type = {ENVI_TYPES[values.dtype.name]}\ninterleave = bsq\n"
        f"byte order = {order}\n{more}"
    )
    return path


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float32", "float64"])
@pytest.mark.parametrize("offset", [0, 17])
@pytest.mark.parametrize("order", [0, 1])
def test_envi_of_either_byte_order_and_any_header_offset_is_read(tmp_path, order, offset, dtype):
    path = write_raw_envi(tmp_path / "s.dat", VALUES.astype(dtype), order, offset)
    np.testing.assert_array_equal(read_cube(open_scene(path))[0], VALUES)


def test_a_header_offset_counts_when_a_file_is_cut_short(tmp_path):
    path = write_raw_envi(tmp_path / "s.dat", VALUES.astype("int16"), offset=17)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SceneUnreadable, match="352 bytes of 353"):
        open_scene(path)


def test_a_header_named_after_the_whole_data_file_is_found(tmp_path):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"))
    path.with_suffix(".hdr").rename(tmp_path / "s.img.hdr")
    for given in (path, tmp_path / "s.img.hdr"):
        np.testing.assert_array_equal(read_cube(open_scene(given))[0], VALUES)


def test_rotated_map_info_is_kept(tmp_path):
    more = "map info = {UTM, 1, 1, 380000, 5820000, 30, 30, 33, North, WGS-84, units=Meters, rotation=30}\n"
    scene = open_scene(write_raw_envi(tmp_path / "s.dat", VALUES.astype("int16"), more=more))
    assert scene.crs == UTM
    assert np.hypot(scene.transform.a, scene.transform.d) == pytest.approx(30)
    assert abs(scene.transform.b) == pytest.approx(30 * np.sin(np.radians(30)))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("wavelength units = Nanometers\nwavelength = {450, 550, 650, 750}", [450, 550, 650, 750]),
        ("wavelength units = Micrometers\nwavelength = {0.45, 0.55, 0.65, 0.75}", [450, 550, 650, 750]),
        ("wavelength = {450, 550, 650, 750}", [450, 550, 650, 750]),
        ("wavelength = {0.45, 0.55, 0.65, 0.75}", [450, 550, 650, 750]),
    ],
)
def test_wavelengths_are_nm_with_any_unit_or_none(tmp_path, header, expected):
    scene = open_scene(write_envi(tmp_path / "s.img", VALUES.astype("int16"), header + "\n"))
    np.testing.assert_allclose(scene.wavelengths_nm, expected)


def test_ground_control_points_are_kept(tmp_path):
    pixels = ((0, 0), (0, 7), (6, 7))
    points = [GroundControlPoint(row, col, 380000 + 30 * col, 5820000 - 30 * row) for row, col in pixels]
    scene = open_scene(write_tif(tmp_path / "s.tif", VALUES.astype("int16"), transform=None, gcps=points))
    assert scene.crs == UTM
    assert [(point.row, point.col, point.x) for point in scene.gcps] == [(p.row, p.col, p.x) for p in points]


def test_a_scene_without_georeference_has_a_warning(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", VALUES.astype("int16"), crs=None, transform=None))
    assert not scene.is_georeferenced
    assert "no georeference" in scene.warnings[0]


def test_a_scene_without_crs_keeps_its_transform_with_a_warning(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", VALUES.astype("int16"), crs=None))
    assert scene.transform == GRID
    assert "its transform is kept" in scene.warnings[0]


def test_a_sidecar_file_changes_nothing(tmp_path):
    path = write_tif(tmp_path / "s.tif", VALUES.astype("int16"))
    (tmp_path / "s.tif.aux.xml").write_text(
        '<PAMDataset><GeoTransform>0,1,0,0,0,1</GeoTransform><PAMRasterBand band="1"><NoDataValue>7</NoDataValue>'
        "</PAMRasterBand></PAMDataset>"
    )
    scene = open_scene(path)
    assert scene.transform == GRID
    assert scene.nodata == (None,) * 4


def test_a_geotiff_without_its_end_is_refused_when_opened(tmp_path):
    # GDAL writes the list of blocks before the blocks, so the file still opens.
    path = write_tif(tmp_path / "s.tif", VALUES.astype("float64").repeat(30, axis=0))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SceneUnreadable, match="cut short"):
        open_scene(path)


@pytest.mark.parametrize("interleave", ["BSQ", "BIL", "BIP"])
def test_envi_of_each_interleave_is_read_by_data_file_and_by_header(tmp_path, interleave):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"), interleave=interleave)
    for given in (path, path.with_suffix(".hdr")):
        scene = open_scene(given)
        np.testing.assert_array_equal(read_cube(scene)[0], VALUES)
        assert (scene.crs, scene.transform) == (UTM, GRID)


def test_a_window_equals_that_part_of_the_whole(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", VALUES.astype("int16")))
    np.testing.assert_array_equal(read_cube(scene, Window(2, 1, 3, 4))[0], VALUES[1:5, 2:5])


def test_gains_offsets_and_reflectance_factor_are_applied(tmp_path):
    header = "data gain values = {2, 2, 2, 2}\ndata offset values = {10, 10, 10, 10}\nreflectance scale factor = 100\n"
    scene = open_scene(write_envi(tmp_path / "s.img", VALUES.astype("int16"), header))
    np.testing.assert_allclose(read_cube(scene)[0], (VALUES * 2 + 10) / 100, rtol=1e-6)


def test_bad_bands_are_dropped_with_their_wavelengths(tmp_path):
    header = "wavelength units = Micrometers\nwavelength = {0.5, 0.6, 0.7, 0.8}\n"
    header += "fwhm = {0.01, 0.01, 0.02, 0.01}\nbbl = {1, 0, 1, 1}\n"
    scene = open_scene(write_envi(tmp_path / "s.img", VALUES.astype("int16"), header))
    np.testing.assert_allclose(scene.wavelengths_nm, [500, 700, 800])
    np.testing.assert_allclose(scene.fwhm_nm, [10, 20, 10])
    np.testing.assert_array_equal(read_cube(scene)[0], VALUES[..., [0, 2, 3]])
    assert scene.bad_bands == 1


@pytest.mark.parametrize("unit", ["Nanometers", "nanometres", "nanometers (nm)", "Unknown"])
def test_band_widths_are_nm_for_every_unit(tmp_path, unit):
    header = f"wavelength units = {unit}\nwavelength = {{500, 600, 700, 800}}\nfwhm = {{10, 10, 10, 10}}\n"
    scene = open_scene(write_envi(tmp_path / "s.img", VALUES.astype("int16"), header))
    np.testing.assert_allclose(scene.fwhm_nm, 10)
    np.testing.assert_allclose(scene.wavelengths_nm, [500, 600, 700, 800])


def test_lists_of_another_length_are_ignored_with_a_warning(tmp_path):
    header = "bbl = {1, 0}\nwavelength units = Nanometers\nwavelength = {500, 600, 700}\n"
    scene = open_scene(write_envi(tmp_path / "s.img", VALUES.astype("int16"), header))
    assert len(scene.bands) == 4
    assert scene.warnings == (
        "bbl lists 2 values for 4 bands and was ignored",
        "wavelength lists 3 values for 4 bands and was ignored",
    )


@pytest.mark.parametrize(
    "line",
    ["bbl = {good, bad, good, good}", "fwhm = {a, b, c, d}", "bbl = {0, 0, 0, 0}", "band names = {gr\xfcn, b, c, d}"],
)
def test_an_invalid_header_is_refused(tmp_path, line):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"))
    header = path.with_suffix(".hdr")
    header.write_bytes(header.read_bytes() + line.encode("latin-1") + b"\n")
    with pytest.raises(SceneUnreadable, match="correct it"):
        open_scene(path)


def test_a_header_in_capitals_is_found(tmp_path):
    path = write_envi(tmp_path / "S.img", VALUES.astype("int16"))
    path.with_suffix(".hdr").rename(path.with_suffix(".HDR"))
    np.testing.assert_array_equal(read_cube(open_scene(path))[0], VALUES)


def test_wavelength_tags_are_exact(tmp_path):
    scene = open_scene(
        write_tif(tmp_path / "s.tif", VALUES.astype("int16"), wavelengths_nm=np.array([450.1234, 500, 550, 600]))
    )
    assert scene.wavelengths_nm[0] == 450.1234


def test_wavelengths_only_in_band_names_are_found(tmp_path):
    path = tmp_path / "s.img"
    write_envi(path, VALUES.astype("float32"))
    header = path.with_suffix(".hdr")
    text = header.read_text()
    for band in range(1, 5):
        text = text.replace(f"Band {band}", f"band {band} (0.{band}5 Micrometers)")
    header.write_text(text)
    np.testing.assert_allclose(open_scene(path).wavelengths_nm, [150, 250, 350, 450])


def test_any_band_without_data_makes_a_pixel_invalid(tmp_path):
    values = VALUES.astype("int16")
    values[2, 3, 1] = -999
    _, valid = read_cube(open_scene(write_tif(tmp_path / "s.tif", values, nodata=-999)))
    assert np.argwhere(~valid).tolist() == [[2, 3]]


def test_zero_as_nodata_must_be_in_all_bands(tmp_path):
    values = VALUES.astype("int16")
    values[0, 0] = 0
    values[2, 3, 1] = 0  # a dark pixel
    _, valid = read_cube(open_scene(write_tif(tmp_path / "s.tif", values, nodata=0)))
    assert np.argwhere(~valid).tolist() == [[0, 0]]


def test_no_data_in_a_bad_band_does_not_matter(tmp_path):
    values = VALUES.astype("int16")
    values[1, 1, 1] = -999
    header = "bbl = {1, 0, 1, 1}\ndata ignore value = -999\n"
    _, valid = read_cube(open_scene(write_envi(tmp_path / "s.img", values, header)))
    assert valid.all()


def test_nan_makes_a_pixel_invalid(tmp_path):
    values = VALUES.astype("float32")
    values[4, 4, 0] = np.nan
    _, valid = read_cube(open_scene(write_tif(tmp_path / "s.tif", values)))
    assert np.argwhere(~valid).tolist() == [[4, 4]]


def test_an_internal_mask_is_honoured(tmp_path):
    path = tmp_path / "s.tif"
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        write_tif(path, VALUES.astype("uint8"))
        with rasterio.open(path, "r+") as file:
            file.write_mask(np.where(np.arange(7) == 5, 0, 255).astype("uint8")[None].repeat(6, axis=0))
    _, valid = read_cube(open_scene(path))
    assert np.argwhere(~valid.all(axis=0)).tolist() == [[5]]


def test_an_alpha_band_is_a_mask(tmp_path):
    values = VALUES.astype("uint8")
    values[..., 3] = 255
    values[0, 0, 3] = 0
    path = write_tif(tmp_path / "s.tif", values, photometric="RGB", alpha="yes")
    scene = open_scene(path)
    assert scene.bands == (1, 2, 3)
    assert np.argwhere(~read_cube(scene)[1]).tolist() == [[0, 0]]


def test_a_truncated_envi_file_is_refused_with_its_byte_count(tmp_path):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SceneUnreadable, match="326 bytes of 336"):
        open_scene(path)


def test_unpacking_a_gzipped_envi_file_can_be_cancelled(tmp_path):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"), "file compression = 1\n")
    path.write_bytes(gzip.compress(path.read_bytes()))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        open_scene(path, stop=Stop(cancelled))


def test_a_gzipped_envi_file_is_read(tmp_path):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"), "file compression = 1\n")
    path.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(read_cube(open_scene(path))[0], VALUES)


def test_a_truncated_geotiff_is_refused(tmp_path):
    path = write_tif(tmp_path / "s.tif", VALUES.astype("float64").repeat(30, axis=0))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SceneUnreadable, match=r"s\.tif"):
        read_cube(open_scene(path))


def test_complex_samples_are_refused(tmp_path):
    with pytest.raises(DtypeUnsupported, match="complex64"):
        open_scene(write_tif(tmp_path / "s.tif", VALUES.astype("complex64")))


def test_half_of_an_envi_pair_is_refused_by_name(tmp_path):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"))
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(SceneIncomplete, match=r"without its data: add s\.img"):
        open_scene(path.with_suffix(".hdr"))
    path.write_bytes(data)
    path.with_suffix(".hdr").unlink()
    with pytest.raises(SceneIncomplete, match=r"add s\.hdr"):
        open_scene(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"<VRTDataset/>"])
def test_a_file_of_another_format_is_refused(tmp_path, content):
    path = tmp_path / "s.tif"
    path.write_bytes(content)
    with pytest.raises(SceneUnreadable, match="GeoTIFF, or ENVI"):
        open_scene(path)


@pytest.mark.parametrize("share", [0.5, 0.98])
def test_a_gzipped_envi_file_that_was_cut_is_refused(tmp_path, share):
    path = write_envi(tmp_path / "s.img", VALUES.astype("int16"), "file compression = 1\n")
    packed = gzip.compress(path.read_bytes())
    path.write_bytes(packed[: int(share * len(packed))])
    with pytest.raises(SceneUnreadable, match="bytes of 336"):
        open_scene(path)


def test_a_header_finds_its_own_data_only(tmp_path):
    other = write_envi(tmp_path / "sc.img", VALUES.astype("int16"))
    dotted = write_envi(tmp_path / "sc.2013.img", (VALUES + 1).astype("int16"))
    assert open_scene(tmp_path / "sc.2013.hdr").path == dotted
    dotted.unlink()
    with pytest.raises(SceneIncomplete, match=r"add sc\.2013\.img"):
        open_scene(tmp_path / "sc.2013.hdr")
    assert open_scene(tmp_path / "sc.hdr").path == other


def test_a_header_does_not_use_data_of_another_header(tmp_path):
    mine = write_envi(tmp_path / "a.bsq", VALUES.astype("int16"))
    own = (tmp_path / "a.hdr").read_text()
    write_envi(tmp_path / "a.img", (VALUES + 1).astype("int16"))
    (tmp_path / "a.hdr").rename(tmp_path / "a.img.hdr")
    (tmp_path / "a.hdr").write_text(own)
    assert open_scene(tmp_path / "a.hdr").path in (mine, tmp_path / "a.img")
    assert open_scene(tmp_path / "a.bsq").path == mine


def test_data_in_capitals_is_found_by_its_header(tmp_path):
    path = write_envi(tmp_path / "UP.img", VALUES.astype("int16")).rename(tmp_path / "UP.IMG")
    assert open_scene(tmp_path / "UP.hdr").path == path


def test_header_keys_may_be_in_capitals(tmp_path):
    path = write_envi(
        tmp_path / "s.img", VALUES.astype("int16"), "Reflectance Scale Factor = 100\nBBL = {1, 0, 1, 1}\n"
    )
    header = path.with_suffix(".hdr")
    header.write_text(header.read_text().replace("data type", "Data Type").replace("header offset", "Header Offset"))
    scene = open_scene(path)
    assert scene.bad_bands == 1
    np.testing.assert_allclose(read_cube(scene)[0], VALUES[..., [0, 2, 3]] / 100, rtol=1e-6)


@pytest.mark.parametrize("suffix", [".msk", ".ovr", ".aux.xml"])
def test_a_sidecar_vrt_is_not_followed(tmp_path, suffix):
    secret = write_tif(tmp_path / "secret.tif", np.zeros((6, 7), "uint8"))
    path = write_tif(tmp_path / "s.tif", VALUES.astype("int16"))
    copy_raster(secret, f"{path}{suffix}", driver="VRT")
    scene = open_scene(path)
    assert not scene.has_mask
    assert read_cube(scene)[1].all()


def test_a_byte_band_with_a_wavelength_is_not_alpha(tmp_path):
    nm = np.array([450.0, 550, 650, 750])
    values = VALUES.astype("uint8")
    values[0, 0, 3] = 0
    scene = open_scene(write_tif(tmp_path / "s.tif", values, wavelengths_nm=nm))
    cube, valid = read_cube(scene)
    np.testing.assert_array_equal(cube, values)
    np.testing.assert_allclose(scene.wavelengths_nm, nm)
    assert valid.all()


@pytest.mark.parametrize("unit", ["Index", "Wavenumber", "GHz", "MHz"])
def test_units_other_than_lengths_give_no_wavelengths(tmp_path, unit):
    header = f"wavelength units = {unit}\nwavelength = {{500, 600, 700, 800}}\n"
    assert open_scene(write_envi(tmp_path / "s.img", VALUES.astype("int16"), header)).wavelengths_nm is None


def test_values_beyond_float32_are_invalid_without_a_warning(tmp_path):
    values = VALUES.astype("float64")
    values[1, 2, 3] = 1e300
    _, valid = read_cube(open_scene(write_tif(tmp_path / "s.tif", values, nodata=1e40)))
    assert np.argwhere(~valid).tolist() == [[1, 2]]


def test_impossible_paths_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / ("x" * 300 + ".tif"), tmp_path / "no" / "such.tif"):
        with pytest.raises(SceneUnreadable):
            open_scene(path)


def holed(rows=70, cols=90, bands=3):
    """Values without zeros but in two rectangles, which are whole blocks in all layouts of BLOCKS."""
    values = np.random.default_rng(2).integers(1, 9000, (rows, cols, bands)).astype("int16")
    values[16:32] = 0
    values[48:64, 32:64] = 0
    return values


BLOCKS = {
    "tiles": {"tiled": True, "blockxsize": 16, "blockysize": 16},
    "tiles by band": {"tiled": True, "blockxsize": 16, "blockysize": 16, "interleave": "band"},
    "strips": {"blockysize": 16, "interleave": "pixel"},
    "BigTIFF": {"tiled": True, "blockxsize": 32, "blockysize": 16, "bigtiff": "yes", "endianness": "big"},
}


@pytest.mark.parametrize("layout", BLOCKS)
def test_absent_blocks_are_no_data(tmp_path, layout):
    values = holed()
    if layout == "strips":
        values[48:64, 32:64] = 1
    path = write_tif(tmp_path / "s.tif", values, SPARSE_OK=True, compress="deflate", **BLOCKS[layout])
    scene = open_scene(path)
    cube, valid = read_cube(scene)
    np.testing.assert_array_equal(cube, values)
    np.testing.assert_array_equal(valid, values.any(axis=-1))
    window = Window(30, 14, 40, 41)
    np.testing.assert_array_equal(read_cube(scene, window)[1], valid[14:55, 30:70])


def test_zeros_that_were_written_are_data(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", holed(), **BLOCKS["tiles"]))
    assert scene.blocks is None
    assert read_cube(scene)[1].all()


def test_an_absent_block_of_one_band_holds_zeros(tmp_path):
    values = np.ones((32, 32, 3), "int16")
    values[:16, :16, 1] = 0
    scene = open_scene(write_tif(tmp_path / "s.tif", values, SPARSE_OK=True, **BLOCKS["tiles by band"]))
    assert scene.blocks is not None
    assert read_cube(scene)[1].all()
    assert not read_cube(scene.narrowed(np.array([1])))[1][:16, :16].any()


def test_a_pixel_of_an_absent_block_has_no_spectrum(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", holed(), SPARSE_OK=True, **BLOCKS["tiles"]))
    with open_pixels(scene) as pixels:
        assert np.isnan(pixels.spectrum(20, 5)).all()
        np.testing.assert_array_equal(pixels.spectrum(5, 5), holed()[5, 5])


@pytest.mark.parametrize("shape", [(70, 90), (16, 16), (1, 50), (33, 17)])
@pytest.mark.parametrize("block", [(16, 16), (1, 90), (7, 90), (32, 16)])
def test_cells_that_may_hold_data_are_counted(shape, block):
    blocks = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    present = np.random.default_rng(3).random((1, *blocks)) < 0.3
    found = BlockMap(*shape, *block, present)
    pixels = np.kron(present[0], np.ones(block, bool))[: shape[0], : shape[1]]
    for stride_px in (1, 2, 4, 8, 16):
        starts = [range(0, size, stride_px) for size in shape]
        cells = [pixels[row : row + stride_px, col : col + stride_px].any() for row in starts[0] for col in starts[1]]
        assert found.count_cells([1], stride_px) == sum(cells)


@pytest.mark.parametrize("number", [1e308, float("inf"), float("nan")])
@pytest.mark.parametrize("what", ["scales", "offsets"])
def test_a_scale_that_is_no_number_in_32_bits_is_refused(tmp_path, what, number):
    path = write_tif(tmp_path / "s.tif", VALUES.astype("int16"))
    with rasterio.open(path, "r+") as dataset:
        setattr(dataset, what, [1.0, number, 1.0, 1.0])
    with pytest.raises(SceneUnreadable, match="not a finite number in 32 bits"):
        open_scene(path)


def test_a_no_data_value_that_the_samples_cannot_hold_marks_nothing(tmp_path):
    header = "data ignore value = 1e308\n"
    assert read_cube(open_scene(write_envi(tmp_path / "s.img", VALUES.astype("float32"), header)))[1].all()


def test_absurd_ground_control_points_are_dropped_with_a_warning(tmp_path):
    points = [GroundControlPoint(0, 0, 1e200, 0), GroundControlPoint(4, 0, 0, 0), GroundControlPoint(0, 4, 5, 5)]
    scene = open_scene(write_tif(tmp_path / "s.tif", VALUES, transform=None, gcps=points))
    assert (scene.crs, scene.gcps, scene.is_georeferenced) == (None, (), False)
    assert "its numbers reach 1e+200" in scene.warnings[0]
