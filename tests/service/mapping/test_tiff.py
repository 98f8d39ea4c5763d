"""The expected length of a TIFF, from its directories, in every layout."""

import struct

import numpy as np
import pytest
import rasterio
from rasterio.shutil import copy as copy_raster

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping import tiff
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.tiff import MAX_DIRECTORIES, declared_size, expected_bytes, reference_text
from tests.scenes import write_tif
from tests.uploads import ASCII, SHORT, shared_list_tiff, tiff_start

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


@pytest.mark.parametrize("tags", [[257] * 4000, range(50_000, 54_000)], ids=["one tag", "many tags"])
def test_entries_that_share_a_long_list_are_refused(tmp_path, tags):
    path = tmp_path / "s.tif"
    path.write_bytes(shared_list_tiff(tags))
    with pytest.raises(SceneUnreadable, match="entries that refer to the same bytes"):
        expected_bytes(path)


def chained(directories, list_values):
    """A TIFF of equal directories with one entry each, which all refer to the same list."""
    size = 2 + 12 + 4
    start = 8 + directories * size
    entry = struct.pack("<HHHII", 1, 50_000, SHORT, list_values, start)
    links = [8 + number * size for number in range(1, directories)] + [0]
    return b"II*\0\x08\0\0\0" + b"".join(entry + struct.pack("<I", link) for link in links) + bytes(2 * list_values)


@pytest.mark.parametrize(
    ("directories", "list_values", "reason"),
    [(5, 500_000, "entries that refer to the same bytes"), (MAX_DIRECTORIES + 1, 3, "more than 10000 directories")],
)
def test_a_chain_of_directories_is_refused_when_it_is_long_or_shares_a_long_list(
    tmp_path, directories, list_values, reason
):
    path = tmp_path / "s.tif"
    path.write_bytes(chained(1, list_values))
    assert expected_bytes(path) == path.stat().st_size
    path.write_bytes(chained(directories, list_values))
    with pytest.raises(SceneUnreadable, match=reason):
        expected_bytes(path)


def test_a_directory_of_countless_entries_is_refused_without_reading_them(tmp_path):
    path = tmp_path / "s.tif"
    path.write_bytes(b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 70_000) + bytes(20 * 70_000 + 8))
    with pytest.raises(SceneUnreadable, match="a directory of 70000 entries"):
        expected_bytes(path)


def test_of_a_repeated_tag_the_first_counts_as_in_gdal(tmp_path):
    content = shared_list_tiff([257], list_bytes=40)
    path = tmp_path / "s.tif"
    path.write_bytes(content + bytes(1400))
    assert declared_size(path) == (40, 33, 1)
    with ignore_missing_georeference(), rasterio.open(path) as dataset:
        assert dataset.shape == (40, 33)


def test_a_long_reference_system_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "s.tif"
    path.write_bytes(tiff_start({34737: (ASCII, b"x" * ((1 << 20) + 1))}))
    with pytest.raises(SceneUnreadable, match="a coordinate reference system of 1048577 bytes"):
        reference_text(path)


@pytest.mark.parametrize("layout", ["striped", "tiled", "big endian BigTIFF"])
def test_lists_are_read_in_parts_with_the_same_result(tmp_path, layout, monkeypatch):
    path = write_tif(tmp_path / "s.tif", VALUES, **LAYOUTS[layout])
    whole = expected_bytes(path)
    monkeypatch.setattr(tiff, "PART_VALUES", 3)
    assert expected_bytes(path) == whole
