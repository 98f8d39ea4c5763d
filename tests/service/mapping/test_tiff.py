"""The expected length of a TIFF, from its directories, in every layout."""

import numpy as np
import pytest
from rasterio.shutil import copy as copy_raster

from hyperscene.service.mapping.tiff import expected_bytes
from tests.scenes import write_tif

VALUES = np.random.default_rng(0).integers(1, 9000, (70, 41, 6)).astype("int16")
LAYOUTS = {
    "striped": {},
    "tiled": {"tiled": True, "blockxsize": 16, "blockysize": 16},
    "band": {"interleave": "band"},
    "BigTIFF": {"bigtiff": "yes"},
    "big endian": {"endianness": "big"},
    "big endian BigTIFF": {"endianness": "big", "bigtiff": "yes"},
    "compressed": {"compress": "deflate"},
    "tagged": {"wavelengths_nm": np.linspace(450, 900, 6)},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_expected_length_is_the_length_of_the_file(tmp_path, layout):
    path = write_tif(tmp_path / "s.tif", VALUES, **LAYOUTS[layout])
    size = path.stat().st_size
    assert size - 2 <= expected_bytes(path) <= size  # GDAL pads to whole words


def test_a_cog_has_its_expected_length(tmp_path):
    plain = write_tif(tmp_path / "plain.tif", np.repeat(np.repeat(VALUES, 10, axis=0), 20, axis=1))
    copy_raster(plain, tmp_path / "s.tif", driver="COG")
    size = (tmp_path / "s.tif").stat().st_size
    assert size - 8 <= expected_bytes(tmp_path / "s.tif") <= size


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_detected_at_any_length(tmp_path, layout, share):
    path = write_tif(tmp_path / "s.tif", VALUES, **LAYOUTS[layout])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert expected_bytes(path) > path.stat().st_size


def test_circular_directories_do_not_loop_for_ever(tmp_path):
    path = write_tif(tmp_path / "s.tif", VALUES)
    content = bytearray(path.read_bytes())
    first = int.from_bytes(content[4:8], "little")
    count = int.from_bytes(content[first : first + 2], "little")
    content[first + 2 + 12 * count : first + 6 + 12 * count] = first.to_bytes(4, "little")
    path.write_bytes(content)
    assert expected_bytes(path) <= len(content)
