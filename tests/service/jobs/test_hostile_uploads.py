"""Hostile and broken uploads: each is refused with a reason, leaves no files, and does not affect others."""

import gzip
import io
import json
import re
import sqlite3
import tarfile
import time
import zipfile
import zlib
from contextlib import closing, contextmanager, suppress
from shutil import rmtree
from socket import MSG_PEEK

import h5py
import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from tests.products import ENMAP_STEM, enmap_values, smooth_cube, write_enmap, write_neon, zipped
from tests.scenes import GRID, WAVELENGTH_LINE, WAVELENGTHS, write_envi, write_tif
from tests.server import part, running_server, sleeping_workers, wait_for
from tests.uploads import (
    ASCII,
    BOUNDARY,
    LONG,
    SHORT,
    Memory,
    RawResponse,
    Secret,
    connected,
    exchange,
    form_body,
    form_part,
    request_head,
    shared_list_tiff,
    striped_tiff_start,
    tiff_start,
    wavelength_tags,
)

MB = 1_000_000
ENVI_HEADER = f"""ENVI
samples = 33
lines = 40
bands = 5
header offset = 0
file type = ENVI Standard
data type = 4
interleave = bsq
byte order = 0
{WAVELENGTH_LINE}"""


@pytest.fixture(scope="module")
def cube():
    return np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")


@pytest.fixture(scope="module")
def tif(tmp_path_factory, cube):
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", cube, wavelengths_nm=WAVELENGTHS).read_bytes()


@pytest.fixture(scope="module")
def data(cube):
    return np.ascontiguousarray(np.moveaxis(cube, -1, 0)).tobytes()


@pytest.fixture(scope="module")
def good_map(server, tif):
    return mapped(server, tif)


@pytest.fixture(scope="module")
def strict(tmp_path_factory, bundle_folder):
    """A server with low limits."""
    limits = {
        "max-upload-bytes": MB, "max-pixels": 5000, "max-bands": 9, "max-header-bytes": 5000, "max-waiting": 1,
        "upload-idle-s": 1, "upload-s": 2,
    }  # fmt: skip
    options = [word for name, value in limits.items() for word in (f"--{name}", value)]
    data = tmp_path_factory.mktemp("strict") / "data"
    options = ["--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", *options]
    with running_server(data, *options) as running:
        yield running


@pytest.fixture
def secret(tmp_path):
    return Secret(tmp_path / "secret.bin")


def mapped(server, tif):
    answer = server.client.post("/classify", files={"scene": ("good.tif", tif)})
    assert answer.status_code == 200, answer.text
    assert server.client.delete(answer.headers["location"]).status_code == 200
    return answer.content


@contextmanager
def harmless(server, tif, within_s=10):
    """Check that the block leaves no file and no traceback, harms no other job, and that a good scene is mapped next.

    Working files of earlier jobs, and previews, may come and go meanwhile.
    """
    wait_for(lambda: is_idle(server))
    log_bytes, earlier, kept = server.log.stat().st_size, folders_of(server), kept_files(server)
    yield
    deadline = time.monotonic() + within_s
    while (left := folders_of(server) - earlier) and time.monotonic() < deadline:
        time.sleep(0.02)  # files of a client that disconnected are removed after a moment
    assert not left, sorted(left)
    assert not (lost := [path for path in kept if not path.exists()]), lost
    assert "Traceback" not in server.log.read_bytes()[log_bytes:].decode()
    mapped(server, tif)


def rows_of(server, query):
    with closing(sqlite3.connect(server.data / "hyperscene.sqlite", timeout=60)) as store:
        return [value for (value,) in store.execute(query)]


def is_idle(server):
    """Whether no earlier upload or job can make a new folder."""
    unfinished = rows_of(server, "SELECT id FROM jobs WHERE status IN ('accepted', 'running')")
    return not unfinished and not any((server.data / "incoming").iterdir())


def folders_of(server):
    """The folders of all uploads, scenes and jobs."""
    return {path for name in ("incoming", "scenes", "jobs") for path in (server.data / name).iterdir()}


def kept_files(server):
    """Files of finished jobs and of scenes that nothing but their expiry removes."""
    jobs = "jobs WHERE status = 'successful'"
    scenes = rows_of(server, f"SELECT id FROM scenes WHERE NOT is_temporary OR id IN (SELECT scene_id FROM {jobs})")
    tops = [server.data / "scenes" / scene for scene in scenes]
    tops += [server.data / "jobs" / job / "results" for job in rows_of(server, f"SELECT id FROM {jobs}")]
    return [path for top in tops for path in top.glob("*") if path.is_file()]


def send(server, *files, path="/classify", **headers):
    return server.client.post(path, files=[("scene", file) for file in files], headers=headers)


def refused(server, answer, status, code):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert re.search(r'"code":"(\w+)"', answer.text)[1] == code, answer.text
    assert "Traceback" not in answer.text
    assert str(server.data) not in answer.text
    return answer.text


def vrt_of(path, rows=40, cols=33):
    source = f"<SourceFilename relativeToVRT='0'>{path}</SourceFilename>"
    band = f"<VRTRasterBand dataType='Float32' band='1' subClass='VRTRawRasterBand'>{source}</VRTRasterBand>"
    return f"<VRTDataset rasterXSize='{cols}' rasterYSize='{rows}'>{band}</VRTDataset>".encode()


# The check itself


def test_working_files_of_an_earlier_job_may_come_and_go(server, tif):
    job = send(server, ("a.tif", tif)).headers["location"]
    folder = server.data / "jobs" / job.rsplit("/", 1)[1]
    (folder / "strips").mkdir(exist_ok=True)
    with harmless(server, tif):
        rmtree(folder / "strips", ignore_errors=True)  # its worker may remove it too
        (folder / "attempt-2").mkdir()
    server.client.delete(job)


@pytest.mark.parametrize("name", ["incoming", "scenes", "jobs"])
def test_a_folder_that_a_request_leaves_is_found(server, tif, name):
    left = server.data / name / "left"
    with pytest.raises(AssertionError, match="left"), harmless(server, tif, within_s=0):
        left.mkdir()
    left.rmdir()


def test_a_result_of_an_earlier_job_that_is_lost_is_found(server, tif):
    job = send(server, ("a.tif", tif)).headers["location"]
    with pytest.raises(AssertionError, match="classes"), harmless(server, tif):
        next((server.data / "jobs" / job.rsplit("/", 1)[1] / "results").glob("classes*")).unlink()
    server.client.delete(job)


# Products


def zip_of(members):
    """A zip of names and contents, with names as they are given."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
            archive.filelist[-1].filename = name
    return packed.getvalue()


KEY = f"{ENMAP_STEM}-METADATA.XML"


@pytest.mark.parametrize(
    ("members", "status", "words"),
    [
        ([(KEY, "<x/>"), ("../../x.tif", "x")], 422, "leads outside its folder"),
        ([(KEY, "<x/>"), ("/tmp/x.tif", "x")], 422, "leads outside its folder"),
        ([(f"{number}.tif", "") for number in range(10_001)], 413, "more than 10000 members"),
        ([(f"{ENMAP_STEM}-SPECTRAL_IMAGE.TIF", bytes(80 * MB))], 413, "more than 200 times its size"),
        ([("a.tif", "x"), ("a.tif/b.tif", "x")], 422, "two members of one name"),
        ([("a" * 300 + ".tif", "x")], 422, "leads outside its folder or is not plain"),
        ([("notes.xml", "<x/>")], 422, "no product of a known sensor"),
        ([(KEY, '<!DOCTYPE x [<!ENTITY a "b">]><level_X>&a;</level_X>')], 422, "METADATA.XML"),
    ],
)
def test_a_hostile_zip_is_refused(server, tif, members, status, words):
    content = zip_of(members)
    with harmless(server, tif):
        for path in ("/classify", "/scenes"):
            answer = send(server, ("product.zip", content), path=path)
            code = "scene_too_large" if status == 413 else "scene_unreadable"
            detail = refused(server, answer, status, code)
            assert words in detail
            assert str(server.data) not in detail


def test_zips_in_a_tar_share_one_limit(strict, tif):
    packed = io.BytesIO()
    inner = zip_of([("a.tif", np.random.default_rng(1).bytes(20_000) * 20)])
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number in range(3):
            entry = tarfile.TarInfo(f"{number}.zip")
            entry.size = len(inner)
            archive.addfile(entry, io.BytesIO(inner))
    assert len(packed.getvalue()) < MB
    with harmless(strict, tif):
        answer = send(strict, ("product.tar.gz", packed.getvalue()))
        refused(strict, answer, 413, "scene_too_large")


def test_a_zip_that_unpacks_to_more_than_the_limit_on_uploads_is_refused(strict, tif):
    with harmless(strict, tif):
        answer = send(strict, ("product.zip", zip_of([("a.tif", bytes(2 * MB))])))
        assert "unpacks to more than" in refused(strict, answer, 413, "scene_too_large")


def test_a_link_in_a_tar_is_not_followed(server, tif, secret):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        link = tarfile.TarInfo(KEY)
        link.type, link.linkname = tarfile.SYMTYPE, str(secret.path)
        archive.addfile(link)
    with harmless(server, tif):
        refused(server, send(server, ("product.tar.gz", packed.getvalue())), 422, "scene_unreadable")
    assert not secret.was_read


def as_virtual(file, name, secret):
    layout = h5py.VirtualLayout(shape=(9, 8, 7), dtype="i2")
    layout[:] = h5py.VirtualSource(str(secret), "data", shape=(9, 8, 7))
    file.create_virtual_dataset(name, layout)


def as_external_link(file, name, secret):
    file[name] = h5py.ExternalLink(str(secret), "data")


def as_external_data(file, name, secret):
    file.create_dataset(name, (9, 8, 7), "i2", external=[(str(secret), 0, 2 * 9 * 8 * 7)])


@pytest.mark.parametrize("change", [as_virtual, as_external_link, as_external_data])
def test_an_hdf5_file_that_leads_to_another_file_is_refused_and_that_is_not_read(server, tif, secret, tmp_path, change):
    path = write_neon(tmp_path / "tile.h5", smooth_cube(9, 8, 7))
    with h5py.File(path, "r+") as file:
        del file["SERC/Reflectance/Reflectance_Data"]
        change(file, "SERC/Reflectance/Reflectance_Data", secret.path)
    with harmless(server, tif):
        answer = send(server, ("tile.h5", path.read_bytes()))
        assert "only data in the file itself are read" in refused(server, answer, 422, "scene_unreadable")
    assert not secret.was_read


def test_a_vrt_as_an_image_of_a_product_is_refused_and_what_it_names_is_not_read(server, tif, secret, tmp_path):
    folder = write_enmap(tmp_path / ENMAP_STEM, enmap_values(9, 8))
    (folder / f"{ENMAP_STEM}-SPECTRAL_IMAGE.TIF").write_bytes(vrt_of(secret.path))
    with harmless(server, tif):
        answer = send(server, ("product.zip", zipped(folder, tmp_path / "p.zip").read_bytes()))
        refused(server, answer, 422, "scene_unreadable")
    assert not secret.was_read


@pytest.mark.parametrize("name", ["../x-METADATA.XML", "x y-METADATA.XML", "x-METADATA.XML/../y.tif", ".METADATA.XML"])
def test_files_of_a_product_need_plain_names(server, tif, name):
    with harmless(server, tif):
        answer = send(server, (name, b"<x/>"), ("x-SPECTRAL_IMAGE.TIF", tif))
        refused(server, answer, 422, "scene_unreadable")


# Files that refer to other files


@pytest.mark.parametrize("path", ["/classify", "/scenes"])
def test_a_vrt_named_tif_is_refused_and_what_it_names_is_not_read(server, tif, secret, path):
    with harmless(server, tif):
        refused(server, send(server, ("scene.tif", vrt_of(secret.path)), path=path), 422, "scene_unreadable")
    assert not secret.was_read


def test_a_vrt_as_raw_body_is_refused_and_what_it_names_is_not_read(server, tif, secret):
    with harmless(server, tif):
        refused(server, server.client.post("/scenes", content=vrt_of(secret.path)), 422, "scene_unreadable")
    assert not secret.was_read


@pytest.mark.parametrize("suffix", [".ovr", ".msk", ".aux.xml", ".vrt"])
def test_a_file_beside_a_geotiff_is_refused_and_what_it_names_is_not_read(server, tif, secret, suffix):
    with harmless(server, tif):
        answer = send(server, ("scene.tif", tif), ("scene.tif" + suffix, vrt_of(secret.path)))
        refused(server, answer, 422, "scene_unreadable")
    assert not secret.was_read


def test_a_file_beside_an_envi_pair_is_refused(server, tif, data, secret):
    with harmless(server, tif):
        files = [("scene.img", data), ("scene.hdr", ENVI_HEADER.encode()), ("scene.img.aux.xml", vrt_of(secret.path))]
        refused(server, send(server, *files), 422, "scene_unreadable")
    assert not secret.was_read


def test_a_vrt_as_envi_data_is_read_as_plain_bytes(server, tif, data, secret):
    with harmless(server, tif):
        answer = send(server, ("scene.img", vrt_of(secret.path).ljust(len(data))), ("scene.hdr", ENVI_HEADER.encode()))
        assert answer.status_code == 200
        server.client.delete(answer.headers["location"])
    assert not secret.was_read


@pytest.mark.parametrize(
    "line",
    [
        "data file = SECRET",
        "file = SECRET",
        "dem file = SECRET",
        "sta file = {SECRET}",
        "band names = {SECRET, SECRET, SECRET, SECRET, SECRET}",
        "description = {SECRET}",
        "spectra names = {SECRET}",
        "rpc info = {SECRET}",
        "coordinate system string = {SECRET}",
        "map info = {SECRET, 1, 1, 5, 5, 1, 1, SECRET}",
        "projection info = {SECRET}",
    ],
)
def test_an_envi_header_that_names_another_file_does_not_read_it(server, tif, data, good_map, secret, line):
    header = ENVI_HEADER + line.replace("SECRET", str(secret.path)) + "\n"
    with harmless(server, tif):
        answer = send(server, ("scene.img", data), ("scene.hdr", header.encode()))
        assert answer.status_code == 200, answer.text
        server.client.delete(answer.headers["location"])
        with MemoryFile(answer.content) as found, MemoryFile(good_map) as expected:
            assert (pixels_of(found) == pixels_of(expected)).all()
    assert not secret.was_read


def pixels_of(file):
    with file.open() as raster:
        return raster.read(1)


DATUM = 'DATUM["x",SPHEROID["x",6377000,300]'
REST = 'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]'
MERCATOR = 'PROJECTION["Mercator_1SP"],UNIT["metre",1]'


@pytest.mark.parametrize(
    "system",
    [
        f'GEOGCS["x",{DATUM},EXTENSION["PROJ4_GRIDS","SECRET"]],{REST}',
        f'GEOGCS["x",{DATUM},EXTENSION["PROJ4_\nGRIDS","@null,SECRET"]],{REST}',
        f'PROJCS["x",GEOGCS["x",{DATUM}],{REST},{MERCATOR},EXTENSION["PROJ4","+nadgrids=@null,SECRET +wktext"]]',
    ],
)
def test_a_reference_system_that_names_a_grid_by_its_path_is_refused_and_the_grid_not_read(
    server, tif, data, secret, system
):
    lines = "map info = {Arbitrary, 1, 1, 5, 5, 1, 1}\ncoordinate system string = {" + system + "}\n"
    header = ENVI_HEADER + lines.replace("SECRET", str(secret.path))
    with harmless(server, tif):
        answer = send(server, ("scene.img", data), ("scene.hdr", header.encode()))
        assert "names a grid file by its path" in refused(server, answer, 422, "scene_unreadable")
    assert not secret.was_read


def test_a_geotiff_whose_reference_system_names_a_grid_by_its_path_is_refused(server, tif, secret):
    text = f'ESRI PE String = GEOGCS["x",{DATUM},EXTENSION["PROJ4_GRIDS","{secret.path}"]],{REST}|'.encode()
    keys = [1, 1, 0, 2, 1024, 0, 1, 2, 2049, 34737, len(text), 0]
    size = {256: (LONG, [4]), 257: (LONG, [4]), 258: (SHORT, [8]), 273: (LONG, [8]), 279: (LONG, [16])}
    head = tiff_start({**size, 34735: (SHORT, keys), 34737: (ASCII, text + b"\0")})
    with harmless(server, tif):
        answer = send(server, ("scene.tif", head))
        assert "names a grid file by its path" in refused(server, answer, 422, "scene_unreadable")
    assert not secret.was_read


def test_web_mercator_is_not_taken_for_a_grid_path(server, tif, tmp_path, cube):
    path = write_envi(tmp_path / "web.img", cube, WAVELENGTH_LINE)
    header = path.with_suffix(".hdr").read_text()
    mercator = CRS.from_epsg(3857).to_wkt()
    header = re.sub(r"coordinate system string = \{.*?\}", f"coordinate system string = {{{mercator}}}", header)
    with harmless(server, tif):
        answer = send(server, ("web.img", path.read_bytes()), ("web.hdr", header.encode()))
        assert answer.status_code == 200, answer.text
        server.client.delete(answer.headers["location"])


def test_an_envi_mosaic_of_other_files_is_refused(server, tif, data, secret):
    header = ENVI_HEADER.replace("ENVI Standard", "ENVI Virtual Mosaic") + f"files = {{{secret.path}}}\n"
    with harmless(server, tif):
        refused(server, send(server, ("a.img", data), ("a.hdr", header.encode())), 422, "scene_unreadable")
    assert not secret.was_read


# Names


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../../../tmp/field.tif", "field.tif"),
        ("..\\\\..\\\\field.tif", "field.tif"),
        ("/etc/passwd", "passwd"),
        ("..", ".."),
        ("field\0.tif", "field.tif"),
        ("é" * 1000 + ".tif", "é" * 255),
        ("<script>alert(1)</script>.tif", "script>.tif"),
        ("%2e%2e%2ffield.tif", "%2e%2e%2ffield.tif"),
        ("", "scene"),
        ("/", "scene"),
        (" \t ", "scene"),
        ("\u202etif.exe", "tif.exe"),
    ],
)
def test_a_sent_file_name_is_shown_and_never_used_as_a_path(server, tif, given, kept):
    part = form_part(tif, given or " ").replace(b'filename=" "', b'filename="' + given.encode() + b'"')
    with harmless(server, tif):
        body = form_body(part)
        answer = server.client.post(
            "/scenes", content=body, headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        )
        assert answer.status_code == 201, answer.text
        scene = answer.json()
        assert scene["name"] == kept
        folder = server.data / "scenes" / scene["id"]
        assert {path.name for path in folder.iterdir()} == {"scene.tif", "record.json"}
        assert server.client.delete(f"/scenes/{scene['id']}").status_code == 204


def test_a_name_of_4096_characters_is_shortened(server, tif):
    with harmless(server, tif):
        headers = {"Content-Disposition": f'attachment; filename="{"x" * 4092}.tif"'}
        scene = server.client.post("/scenes", content=tif, headers=headers).json()
        assert scene["name"] == "x" * 255
        server.client.delete(f"/scenes/{scene['id']}")


@pytest.mark.parametrize("name", ["a\r\nX-Other: b.tif", "a\nb.tif", "a\x1b[2Jb.tif"])
def test_a_name_with_line_breaks_or_controls_is_refused_or_shown_without_them(server, tif, name):
    with harmless(server, tif):
        body = form_body(form_part(tif, name))
        answer = exchange(server, request_head("/scenes", len(body)) + body)
        assert "X-Other" not in answer.headers
        if answer.status_code == 201:
            scene = json.loads(answer.text)
            assert scene["name"].isprintable()
            server.client.delete(f"/scenes/{scene['id']}")
        else:
            refused(server, answer, 400, "upload_broken")


# False sizes


@pytest.mark.parametrize("is_big", [False, True])
def test_a_tiff_that_claims_a_huge_size_is_refused_before_memory_is_allocated(server, tif, is_big):
    head = striped_tiff_start((10**6, 10**6, 500), rows_per_strip=10**6, is_big=is_big, strip_bytes=0)
    with harmless(server, tif), Memory(server) as memory:
        refused(server, send(server, ("scene.tif", head + bytes(100))), 413, "scene_too_large")
    assert memory.growth < 100 * MB


@pytest.mark.parametrize("is_big", [False, True])
def test_a_tiff_of_one_giant_packed_strip_is_refused(server, tif, is_big):
    packed = zlib.compress(bytes(10 * MB), 9)
    head = striped_tiff_start(
        (30_000, 30_000, 5), rows_per_strip=30_000, is_big=is_big, compression=8, strip_bytes=len(packed),
        description=wavelength_tags(WAVELENGTHS),
    )  # fmt: skip
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("scene.tif", head + 5 * packed))
        assert "smaller tiles or strips" in refused(server, answer, 413, "scene_too_large")
    assert memory.growth < 200 * MB


def test_a_tiff_of_endless_rows_is_refused(server, tif, tmp_path):
    path = tmp_path / "wide.tif"
    shape = {"width": 400_000_000, "height": 2, "count": 5, "dtype": "uint8"}
    packing = {"compress": "deflate", "tiled": True, "blockxsize": 65536, "blockysize": 16, "SPARSE_OK": True}
    with ignore_missing_georeference(), rasterio.open(path, "w", driver="GTiff", **packing, **shape):
        pass
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("scene.tif", path.read_bytes()))
        assert "a row of scene.tif" in refused(server, answer, 413, "scene_too_large")
    assert memory.growth < 100 * MB


@pytest.mark.parametrize(
    "spelling",
    ["{}samples = 1000000\nlines = 1000000\nbands = 500\n", "{}SAMPLES = 1000000\nLINES = 1000000\nBANDS = 60000\n"],
)
def test_an_envi_header_that_claims_a_huge_size_is_refused(server, tif, spelling):
    header = spelling.format("ENVI\n") + "data type = 4\ninterleave = bsq\nbyte order = 0\n"
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("scene.img", bytes(1000)), ("scene.hdr", header.encode()))
        refused(server, answer, 413, "scene_too_large")
    assert memory.growth < 100 * MB


@pytest.mark.parametrize(
    ("entries", "status", "code"),
    [
        ({}, 422, "scene_unreadable"),
        ({256: [0], 257: [0]}, 422, "scene_unreadable"),
        ({256: [33], 257: [40], 258: [8], 277: [0]}, 422, "scene_unreadable"),
        ({256: [33], 257: [40], 258: [8], 273: [2**32 - 1], 279: [2**32 - 1]}, 422, "scene_unreadable"),
        ({256: [33], 257: [40], 258: [77], 273: [8], 279: [8]}, 422, "scene_unreadable"),
        ({256: [2**31], 257: [1], 258: [8], 273: [8], 279: [8]}, 413, "scene_too_large"),
    ],
)
@pytest.mark.parametrize("is_big", [False, True])
def test_an_invalid_directory_is_refused(server, tif, entries, status, code, is_big):
    head = tiff_start({tag: (LONG, values) for tag, values in entries.items()}, is_big=is_big)
    with harmless(server, tif):
        refused(server, send(server, ("scene.tif", head)), status, code)


def test_directories_in_a_loop_are_refused(server, tif):
    head = tiff_start({256: (LONG, [33]), 257: (LONG, [40])})
    with harmless(server, tif):
        refused(server, send(server, ("scene.tif", head[:-4] + b"\x08\0\0\0")), 422, "scene_unreadable")


# Bombs


@pytest.mark.slow
def test_a_packed_tiff_of_zeros_is_mapped_within_bounded_memory(server, tif):
    rows, cols, bands, rows_per_strip = 1024, 4096, 150, 64
    packed = zlib.compress(bytes(rows_per_strip * cols), 9)
    head = striped_tiff_start(
        (rows, cols, bands), rows_per_strip=rows_per_strip, compression=8, strip_bytes=len(packed), nodata=b"0",
        description=wavelength_tags(np.linspace(450, 900, bands)),
    )  # fmt: skip
    bomb = head + packed * (bands * rows // rows_per_strip)
    assert rows * cols * bands > 800 * len(bomb)
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("bomb.tif", bomb))
        assert answer.status_code == 200, answer.text
        server.client.delete(answer.headers["location"])
    with MemoryFile(answer.content) as file:
        found = pixels_of(file)
    assert found.shape == (rows, cols)
    assert not found.any()
    assert memory.growth < 500 * MB


@pytest.mark.slow
def test_a_gzip_bomb_behind_an_envi_header_is_refused_within_bounded_memory(server, tif):
    bomb = gzip.compress(bytes(10 * MB)) * 20
    header = ENVI_HEADER.replace("samples = 33", "samples = 4000").replace("lines = 40", "lines = 2501")
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("a.img", bomb), ("a.hdr", (header + "file compression = 1\n").encode()))
        refused(server, answer, 422, "scene_unreadable")
    assert memory.growth < 100 * MB


def test_a_gzip_bomb_is_read_only_as_far_as_its_header_says(server, tif):
    bomb = gzip.compress(bytes(10 * MB)) * 50
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("a.img", bomb), ("a.hdr", (ENVI_HEADER + "file compression = 1\n").encode()))
        assert answer.status_code == 200
        server.client.delete(answer.headers["location"])
    assert memory.growth < 100 * MB


def test_an_endless_header_is_refused_while_it_is_read(server, tif):
    begin = form_part(b"ENVI\ndescription = {")[:-2]
    pieces = [request_head("/classify", 100 * MB), begin, *[b"x" * MB] * 99]
    with harmless(server, tif), Memory(server) as memory:
        answer = exchange(server, *pieces)
        assert "16000000 bytes: shorten it" in refused(server, answer, 413, "scene_too_large")
    assert memory.growth < 100 * MB


def test_a_header_of_countless_keys_is_refused_at_once(server, tif, data):
    header = ENVI_HEADER + "".join(f"key{number} = 1\n" for number in range(200_000))
    began = time.monotonic()
    with harmless(server, tif):
        answer = send(server, ("a.img", data), ("a.hdr", header.encode()))
        assert "more than 5000 keys" in refused(server, answer, 413, "scene_too_large")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("tags", [[257] * 4000, range(50_000, 54_000)], ids=["one tag", "many tags"])
def test_a_directory_whose_entries_share_a_long_list_is_refused_at_once(server, tif, tags):
    with harmless(server, tif), Memory(server) as memory:
        answer = send(server, ("scene.tif", shared_list_tiff(tags)), path="/scenes")
        assert "entries that refer to the same bytes" in refused(server, answer, 422, "scene_unreadable")
    assert memory.growth < 100 * MB


# Bodies that differ from their headers


def test_a_client_that_disconnects_halfway_leaves_nothing(server, tif):
    body = form_body(form_part(tif))
    with harmless(server, tif):
        for sent in (0, 10, len(body) // 2, len(body) - 1):
            with connected(server) as connection:
                connection.sendall(request_head("/classify", len(body)) + body[:sent])


def test_a_body_that_stalls_is_refused_and_its_connection_closed(strict, tif):
    body = form_body(form_part(tif))
    with harmless(strict, tif), connected(strict) as connection:
        connection.sendall(request_head("/classify", len(body)) + body[:-100])
        refused(strict, RawResponse(connection), 408, "upload_too_slow")
        connection.settimeout(2)
        assert connection.recv(1) == b""


@pytest.mark.slow
def test_a_body_that_trickles_is_refused_after_the_time_limit(strict, tif):
    body = form_body(form_part(tif))
    began = time.monotonic()
    with harmless(strict, tif), connected(strict) as connection:
        connection.sendall(request_head("/scenes", len(body)))
        connection.settimeout(0.2)
        for index in range(100):
            connection.sendall(body[index : index + 1])
            with suppress(TimeoutError):
                connection.recv(1, MSG_PEEK)
                break
        connection.settimeout(5)
        refused(strict, RawResponse(connection), 408, "upload_too_slow")
        assert 1.8 < time.monotonic() - began < 8


def test_a_content_length_that_is_too_long_is_refused_after_the_pause_limit(strict, tif):
    body = form_body(form_part(tif))
    with harmless(strict, tif):
        refused(strict, exchange(strict, request_head("/classify", len(body) + 1) + body), 408, "upload_too_slow")


def test_a_content_length_that_is_too_short_is_refused(server, tif):
    body = form_body(form_part(tif))
    with harmless(server, tif):
        answer = exchange(server, request_head("/classify", len(body) - 100) + body)
        assert answer.status_code == 400  # the rest is no request either; either may be reported first
        assert "Traceback" not in answer.text


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "0x10", "\xb2", "99999999999999999999999", "5, 6"])
def test_an_invalid_content_length_is_refused(server, tif, length):
    with harmless(server, tif):
        answer = exchange(server, request_head("/classify", length) + form_body(form_part(tif)))
        assert answer.status_code == 400
        assert answer.text == "Invalid HTTP request received."  # rejected before routing, so without a problem document


def test_a_content_length_together_with_chunks_is_refused(server, tif):
    with harmless(server, tif):
        answer = exchange(server, request_head("/classify", 5, Transfer_Encoding="chunked") + b"0\r\n\r\n")
        assert answer.status_code == 400


def test_a_form_of_a_thousand_parts_is_refused(server, tif):
    body = form_body(*[form_part(tif)] * 1000)
    with harmless(server, tif), Memory(server) as memory:
        answer = exchange(server, request_head("/classify", len(body)), body)
        assert "more than 48 parts" in refused(server, answer, 400, "upload_broken")
    assert memory.growth < 100 * MB


@pytest.mark.parametrize("headers", ["X-Long: " + "x" * 5 * MB + "\r\n", "X-More: x\r\n" * 10_000])
def test_a_part_with_enormous_headers_is_refused(server, tif, headers):
    body = form_body(form_part(tif, headers=headers))
    with harmless(server, tif):
        refused(server, exchange(server, request_head("/classify", len(body)), body), 400, "upload_broken")


def test_a_field_that_does_not_end_is_refused(server, tif):
    body = form_body(form_part(b"x" * 5 * MB, "", field="model"), form_part(tif))
    with harmless(server, tif):
        answer = exchange(server, request_head("/classify", len(body)), body)
        assert "longer than 4096 bytes" in refused(server, answer, 400, "upload_broken")


def test_a_form_without_its_last_boundary_is_refused(server, tif):
    body = form_part(tif)
    with harmless(server, tif):
        refused(server, exchange(server, request_head("/classify", len(body)), body), 400, "upload_broken")


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 10_000,
        "multipart/form-data; boundary=another",
        "multipart/mixed; boundary=" + BOUNDARY,
        "application/json",
        "application/x-www-form-urlencoded",
        "",
        "\xff\xfe",
    ],
)
def test_a_body_of_another_kind_is_refused(server, tif, kind):
    body = form_body(form_part(tif))
    with harmless(server, tif):
        answer = exchange(server, request_head("/classify", len(body), Content_Type=kind), body)
        refused(server, answer, 400, "upload_broken")


def test_a_file_in_another_field_is_refused(server, tif):
    with harmless(server, tif):
        answer = server.client.post("/classify", files={"image": ("a.tif", tif)})
        assert "send files in the field `scene`" in refused(server, answer, 400, "upload_broken")


def test_a_form_without_a_scene_is_refused(server, tif):
    body = form_body(form_part(b"4", "", field="stride_px"))
    with harmless(server, tif):
        answer = exchange(server, request_head("/classify", len(body)), body)
        refused(server, answer, 422, "scene_unreadable")


def flood(connection, start, piece):
    connection.sendall(start)
    for _ in range(100):
        connection.sendall(piece)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /livez HTTP/1.1\r\nX-Long: ", b"x" * MB),
        (b"GET /livez HTTP/1.1\r\n", b"X-More: x\r\n" * 100_000),
        (b"GET /livez?", b"x" * MB),
        (b"POST /scenes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ", b"x" * MB),
    ],
)
def test_headers_that_do_not_end_are_cut_off(server, tif, start, piece):
    with harmless(server, tif), Memory(server) as memory, connected(server) as connection:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            flood(connection, start, piece)
        assert time.monotonic() - began < 5
    assert memory.growth < 50 * MB


# Scenes that cannot be used


def test_an_empty_file_is_refused(server, tif):
    with harmless(server, tif):
        refused(server, send(server, ("a.tif", b"")), 422, "scene_unreadable")
        refused(server, server.client.post("/scenes", content=b""), 422, "scene_unreadable")


def test_two_geotiffs_are_refused(server, tif):
    with harmless(server, tif):
        refused(server, send(server, ("a.tif", tif), ("b.tif", tif)), 422, "scene_unreadable")


def test_half_of_an_envi_pair_is_refused_with_what_is_missing(server, tif, data):
    with harmless(server, tif):
        answer = send(server, ("a.hdr", ENVI_HEADER.encode()))
        assert "without its data" in refused(server, answer, 422, "scene_incomplete")
        answer = send(server, ("a.img", data))
        assert "without its header" in refused(server, answer, 422, "scene_incomplete")


def test_complex_samples_are_refused(server, tif, tmp_path, cube):
    path = write_tif(tmp_path / "a.tif", cube.astype("complex64"), wavelengths_nm=WAVELENGTHS)
    with harmless(server, tif):
        refused(server, send(server, ("a.tif", path.read_bytes())), 422, "dtype_unsupported")


def test_other_wavelengths_are_refused(server, tif, tmp_path, cube):
    path = write_tif(tmp_path / "a.tif", cube, wavelengths_nm=WAVELENGTHS + 1000)
    with harmless(server, tif):
        refused(server, send(server, ("a.tif", path.read_bytes())), 422, "bands_missing")


# Limits


def test_too_many_bytes_are_refused_by_their_length_before_they_are_read(strict, tif):
    with harmless(strict, tif):
        answer = exchange(strict, request_head("/classify", MB + 1, Expect="100-continue"))
        refused(strict, answer, 413, "scene_too_large")


@pytest.mark.parametrize("path", ["/classify", "/scenes"])
def test_too_many_bytes_without_a_length_are_refused_while_they_are_read(strict, tif, path):
    start = form_part(tif[:4])[:-2]
    chunk = b"%x\r\n" % 100_000 + bytes(100_000) + b"\r\n"
    head = request_head(path, Transfer_Encoding="chunked") + b"%x\r\n" % len(start) + start + b"\r\n"
    with harmless(strict, tif):
        refused(strict, exchange(strict, head, *[chunk] * 11), 413, "scene_too_large")


def test_too_many_pixels_are_refused(strict, tif, tmp_path):
    path = write_tif(tmp_path / "a.tif", np.zeros((100, 51, 5), "uint8"), wavelengths_nm=WAVELENGTHS)
    with harmless(strict, tif):
        answer = send(strict, ("a.tif", path.read_bytes()))
        assert "100 x 51 pixels; this server accepts 5000" in refused(strict, answer, 413, "scene_too_large")


def test_too_many_bands_are_refused(strict, tif, tmp_path):
    path = write_tif(tmp_path / "a.tif", np.zeros((10, 10, 10), "uint8"))
    with harmless(strict, tif):
        assert "10 bands" in refused(strict, send(strict, ("a.tif", path.read_bytes())), 413, "scene_too_large")


def test_a_header_above_the_setting_is_refused(strict, tif, data):
    with harmless(strict, tif):
        answer = send(strict, ("a.img", data), ("a.hdr", ENVI_HEADER.encode().ljust(5001)))
        refused(strict, answer, 413, "scene_too_large")


def sparse_tif(path, rows, cols, **options):
    """A GeoTIFF without a single block, in the bands of the test bundles."""
    shape = {"height": rows, "width": cols, "count": 5, "dtype": "int16", "crs": "EPSG:32633", "transform": GRID}
    tiles = {"tiled": True, "blockxsize": 512, "blockysize": 512, "interleave": "pixel", "SPARSE_OK": True}
    with rasterio.open(path, "w", driver="GTiff", **shape, **tiles, **options) as file:
        for band, nm in enumerate(WAVELENGTHS, start=1):
            file.update_tags(band, wavelength=str(nm), wavelength_units="Nanometers")
    return path


def test_a_large_file_of_absent_blocks_is_known_to_have_no_patch(server, tif, tmp_path):
    path = sparse_tif(tmp_path / "sparse.tif", 31_000, 31_000)
    assert path.stat().st_size < 60_000
    with harmless(server, tif):
        scene = server.client.post("/scenes", files={"scene": part(path)}).json()
        assert set(scene["cells_with_data"].values()) == {0}
        server.client.delete(f"/scenes/{scene['id']}")


def test_a_scene_of_absent_blocks_is_mapped_without_a_patch(server, tif, tmp_path):
    with harmless(server, tif):
        job = server.submit(sparse_tif(tmp_path / "sparse.tif", 1500, 1000), stride_px="1")
        finished = server.finished(job)
        assert (finished["status"], finished["patches_total"], finished["estimated_s"]) == ("successful", 0, 0)
        assert "no valid pixel" in str(server.client.get(f"/jobs/{job}/results/summary.json").json()["warnings"])
        server.client.delete(f"/jobs/{job}")


@pytest.fixture(scope="module")
def brief(tmp_path_factory, bundle_folder):
    """A server for jobs that take a moment."""
    options = ["--bundles", bundle_folder, "--model", "patch", "--device", "cpu", "--max-job-s", 0.2]
    with running_server(tmp_path_factory.mktemp("brief") / "data", *options) as running:
        yield running


def test_a_job_that_would_take_too_long_is_refused_with_its_estimate_and_a_remedy(brief, tif, tmp_path):
    values = np.ones((3000, 3000, 5), "uint8")
    path = write_tif(tmp_path / "long.tif", values, wavelengths_nm=WAVELENGTHS, compress="deflate")
    with harmless(brief, tif):
        for fields in ({"stride_px": "1"}, {"stride_px": "1", "blend": "none"}):
            answer = brief.client.post("/classify", files={"scene": part(path)}, data=fields)
            detail = refused(brief, answer, 413, "scene_too_large")
            assert re.search(r"would take about .* \(9000000 patches, \d+ per second\)", detail)
            assert "jobs of up to less than a second" in detail
            assert "crop it" in detail


def test_a_full_queue_refuses_uploads_before_they_are_read(strict, tif):
    with harmless(strict, tif):
        with sleeping_workers(strict):
            job = send(strict, ("a.tif", tif), Prefer="respond-async").headers["location"]
            # A client that waits for 100 Continue does not get it: nothing of the body is sent or read.
            answer = exchange(strict, request_head("/classify", 500_000, Expect="100-continue"))
            refused(strict, answer, 429, "queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 600
        strict.finished(job.rsplit("/", 1)[1])
        strict.client.delete(job)


def test_a_used_idempotency_key_returns_its_job_without_reading_the_upload(server, tif):
    headers = {"Prefer": "respond-async", "Idempotency-Key": "hostile-1"}
    with harmless(server, tif):
        first = send(server, ("a.tif", tif), **headers)
        asked = {"Expect": "100-continue", "Prefer": "respond-async", "Idempotency_Key": "hostile-1"}
        again = exchange(server, request_head("/classify", 500_000, **asked))
        assert again.status_code == 201
        assert again.headers["location"].rsplit("/", 1)[1] == first.json()["jobID"]
        server.finished(first.json()["jobID"])
        server.client.delete(f"/jobs/{first.json()['jobID']}")


def test_a_key_used_twice_at_the_same_time_makes_one_job_and_keeps_one_scene(server, tif):
    body = form_body(form_part(tif))
    head = request_head("/classify", len(body), Prefer="respond-async", Idempotency_Key="hostile-2")
    with harmless(server, tif):
        earlier = folders_of(server)
        with connected(server) as one, connected(server) as two:
            for connection in (one, two):
                connection.sendall(head + body[:-1])
            time.sleep(0.2)
            for connection in (one, two):
                connection.sendall(body[-1:])
            jobs = {RawResponse(connection).headers["location"].rsplit("/", 1)[1] for connection in (one, two)}
        assert len(jobs) == 1
        assert len([path for path in folders_of(server) - earlier if path.parent.name == "scenes"]) == 1
        server.finished(*jobs)
        server.client.delete(f"/jobs/{jobs.pop()}")


@pytest.mark.parametrize("size", [1e160, -1e300, 1.7e308, 1e13])
def test_a_georeference_of_absurd_numbers_is_dropped_with_a_warning(server, tif, tmp_path, size):
    transform = Affine(size, 0, 380_000, 0, -size, 5_820_000)
    scene = write_tif(tmp_path / "far.tif", np.ones((4, 4, 5), "float32"), transform=transform)
    with harmless(server, tif):
        answer = server.client.post("/scenes", files={"scene": part(scene)})
        assert answer.status_code == 201, answer.text
        document = answer.json()
        assert document["is_georeferenced"] is False
        assert "the georeference was ignored" in document["warnings"][0]
        assert server.client.delete(f"/scenes/{document['id']}").status_code == 204


@pytest.mark.parametrize(
    ("transform", "points"),
    [
        (Affine(1e11, 0, 1e11, 0, -1e11, 1e11), []),
        (Affine(1e-300, 0, 0, 0, -1e-300, 0), []),
        (Affine(1e9, 1e9, -1e9, 1e9, 1e9, 0), []),
        (None, [(0, 0, 1e200, 0), (4, 0, 0, 1e200), (0, 4, 5, 5)]),
        (None, [(0, 0, 1e11, 0), (4, 1e-300, 0, 1e11), (0, 4, 5, 5)]),
    ],
)
def test_every_document_of_a_scene_with_a_strange_georeference_can_be_read(server, tif, tmp_path, transform, points):
    gcps = {"gcps": [GroundControlPoint(*point) for point in points]} if points else {}
    values = np.ones((4, 4, 5), "float32")
    scene = write_tif(tmp_path / "far.tif", values, wavelengths_nm=WAVELENGTHS, transform=transform, **gcps)
    with harmless(server, tif):
        job = server.submit(scene)
        assert server.finished(job)["status"] == "successful"
        results = f"/jobs/{job}/results"
        for path in (f"/jobs/{job}/tilejson.json", f"{results}/summary.json", f"{results}/item.json"):
            answer = server.client.get(path)
            assert answer.status_code == 200, answer.text
            answer.json()
        assert server.client.get(f"/jobs/{job}/pixel?row=1&col=1").status_code == 200
        server.client.delete(f"/jobs/{job}")


@pytest.mark.parametrize("number", ["1e308", "9" * 400, "1e-320", "nan", "-inf"])
def test_absurd_numbers_in_an_envi_header_make_no_document_unreadable(server, data, number):
    for line in (
        "wavelength units = Micrometers\nwavelength = {N, N, N, N, N}",
        "band names = {Nnm, Num, Nnm, Nnm, Nnm}",
        "fwhm = {N, N, N, N, N}",
        "reflectance scale factor = N",
        "data ignore value = N",
        "data gain values = {N, N, N, N, N}",
        "data offset values = {N, N, N, N, N}",
        "map info = {UTM, 1, 1, N, N, N, N, 33, North, WGS-84}",
        "bbl = {N, N, N, N, N}",
    ):
        header = ENVI_HEADER.replace(WAVELENGTH_LINE, "") + re.sub(r"\bN(?=\b|nm|um)", number, line) + "\n"
        answer = send(server, ("a.img", data), ("a.hdr", header.encode()), path="/scenes")
        assert answer.status_code in (201, 422), f"{line}: {answer.text}"
        if answer.status_code == 201:
            scene = f"/scenes/{answer.json()['id']}"
            assert server.client.get(scene).status_code == 200
            assert server.client.delete(scene).status_code == 204


def test_a_georeference_without_numbers_is_refused(server, tif, tmp_path):
    scene = write_tif(
        tmp_path / "nowhere.tif", np.ones((4, 4, 5), "float32"), transform=Affine(float("nan"), 0, 0, 0, -1, 0)
    )
    for address in ("/scenes", "/classify"):
        with harmless(server, tif):
            answer = server.client.post(address, files={"scene": part(scene)})
            assert answer.status_code == 422
            assert "georeference" in answer.json()["detail"]
