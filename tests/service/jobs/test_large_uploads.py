"""Uploads far larger than memory: streamed to disk."""

import threading
import time

import numpy as np
import pytest

from tests.scenes import WAVELENGTH_LINE, WAVELENGTHS
from tests.server import running_server
from tests.uploads import BOUNDARY, Memory, form_part, striped_tiff_start, wavelength_tags

pytestmark = pytest.mark.slow

MB = 1_000_000
ROWS, COLS, BANDS = 20_000, 20_000, 5
DATA_BYTES = ROWS * COLS * BANDS
ZEROS = bytes(1 << 20)
HEADER = f"""ENVI
samples = {COLS}
lines = {ROWS}
bands = {BANDS}
header offset = 0
data type = 1
interleave = bil
byte order = 0
{WAVELENGTH_LINE}"""
FORM_START = form_part(HEADER.encode(), "wide.hdr") + form_part(b"", "wide.img")[:-2]
FORM_END = f"\r\n--{BOUNDARY}--\r\n".encode()
FORM_HEADERS = {
    "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
    "Content-Length": str(len(FORM_START) + DATA_BYTES + len(FORM_END)),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, bundle_folder):
    """A server with its own folder for temporary files."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "tmp").mkdir()
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(folder / "data", *options, TMPDIR=str(folder / "tmp")) as running:
        yield running


def zeros(count):
    for _ in range(count // len(ZEROS)):
        yield ZEROS
    yield ZEROS[: count % len(ZEROS)]


def big_tiff():
    """A BigTIFF, generated while it is sent."""
    yield striped_tiff_start(
        (ROWS, COLS, BANDS), rows_per_strip=100, is_big=True, description=wavelength_tags(WAVELENGTHS)
    )
    yield from zeros(DATA_BYTES)


def envi_form():
    """An ENVI pair as a form, generated while it is sent."""
    yield FORM_START
    yield from zeros(DATA_BYTES)
    yield FORM_END


class Probe:
    """Polls /livez and the temporary folder during an upload."""

    def __init__(self, server):
        self._server = server
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.waits_s = []
        self.temporary = set()

    def _ask(self):
        while not self._is_over.wait(0.1):
            began = time.monotonic()
            assert self._server.client.get("/livez").status_code == 200
            self.waits_s.append(time.monotonic() - began)
            self.temporary |= set(self._server.data.with_name("tmp").iterdir())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()


def used_bytes(server):
    return sum(path.stat().st_size for path in server.data.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("make", "headers", "kind"),
    [
        (big_tiff, {"Content-Type": "image/tiff"}, "GeoTIFF"),  # in chunks, without a length
        (envi_form, FORM_HEADERS, "ENVI"),
    ],
)
def test_two_gigabytes_are_stored_without_memory_or_temporary_files(server, make, headers, kind):
    before = used_bytes(server)
    with Memory(server) as memory, Probe(server) as probe:
        answer = server.client.post("/scenes", content=make(), headers=headers)
    assert answer.status_code == 201, answer.text
    scene = answer.json()
    assert (scene["format"], scene["rows"], scene["cols"], scene["bands"]) == (kind, ROWS, COLS, BANDS)
    assert scene["size_bytes"] >= DATA_BYTES
    np.testing.assert_allclose(scene["wavelengths_nm"], WAVELENGTHS)
    assert memory.growth < 150 * MB
    assert len(probe.waits_s) > 10
    assert max(probe.waits_s) < 2
    assert not probe.temporary
    assert used_bytes(server) - before >= DATA_BYTES
    assert server.client.delete(f"/scenes/{scene['id']}").status_code == 204
    assert used_bytes(server) - before < MB
