"""classify --server: the same progress, files and errors as without a server."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from hyperscene.service.mapping.output import RESULTS
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.bundles import write_bundle
from tests.command_line import refusal, run
from tests.products import ENMAP_STEM, enmap_values, write_enmap
from tests.scenes import WAVELENGTH_LINE, WAVELENGTHS, write_envi, write_tif
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cube():
    return np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")


@pytest.fixture
def tif(tmp_path, cube):
    return write_tif(tmp_path / "field.tif", cube, wavelengths_nm=WAVELENGTHS)


def test_a_scene_is_mapped_on_a_server_as_locally(server, tif, bundle_folder, tmp_path):
    here = run("classify", tif, "-o", tmp_path / "here", "--bundle", bundle_folder / "pixel.onnx", "--device", "cpu")
    there = run("classify", tif, "-o", tmp_path / "there", "--server", server.url, "--bundle", "pixel")
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == sorted(RESULTS)
    for name in RESULTS:
        if not name.endswith(".json"):
            assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name
    assert here.stdout.splitlines()[:-1] == there.stdout.splitlines()[:-1]  # the last line has the time it took
    assert "patches 90/90" in there.stderr


@pytest.mark.parametrize("given", ["field.img", "field.hdr"])
def test_an_envi_scene_is_sent_with_its_header(server, cube, tmp_path, given):
    write_envi(tmp_path / "field.img", cube, WAVELENGTH_LINE)
    done = run("classify", tmp_path / given, "-o", tmp_path / "map", "--server", server.url)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "map" / "summary.json").read_text())["scene"]["name"] == "field.img"


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_product_is_sent_with_its_files_and_masks(tmp_path, is_folder):
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "broad.onnx", wavelengths_nm=[450.0, 560.0, 670.0, 860.0, 2200.0])
    product = write_enmap(tmp_path / ENMAP_STEM, enmap_values(20, 19))
    scene = product if is_folder else product / f"{ENMAP_STEM}-METADATA.XML"
    options = ("--bundles", tmp_path / "bundles", "--model", "broad", "--device", "cpu")
    with running_server(tmp_path / "data", *options) as server:
        sent = ("classify", scene, "--mask", "cirrus,cloud")
        done = run(*sent, "-o", tmp_path / "remote", "--server", server.url)
        assert done.returncode == 0, done.stderr
    run(*sent, "-o", tmp_path / "local", "--device", "cpu", "--bundle", tmp_path / "bundles" / "broad.onnx")
    for name in ("classes.tif", "mask.tif"):
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


def test_the_servers_error_message_is_printed(server, tmp_path, cube):
    scene = write_tif(tmp_path / "red.tif", cube[..., :2], wavelengths_nm=np.array([2000.0, 2100.0]))
    message = refusal(run("classify", scene, "-o", tmp_path / "map", "--server", server.url))
    assert "2000" in message
    assert not (tmp_path / "map").exists()


def test_a_model_that_the_server_does_not_have_is_refused(server, tif, tmp_path):
    message = refusal(run("classify", tif, "-o", tmp_path / "map", "--server", server.url, "--bundle", "other.onnx"))
    assert "no model 'other'" in message


def test_options_of_the_server_are_refused(server, tif, tmp_path):
    message = refusal(run("classify", tif, "-o", tmp_path / "map", "--server", server.url, "--threads", 1))
    assert "the server chooses --device" in message


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "http://[", "ftp://127.0.0.1"])
def test_an_unreachable_server_is_reported_in_one_line(tif, tmp_path, url):
    message = refusal(run("classify", tif, "-o", tmp_path / "map", "--server", url))
    assert url in message


def test_a_key_is_sent_to_the_server(tif, tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--api-keys", "secret")
    with running_server(tmp_path / "data", *options) as server:
        classify = ("classify", tif, "-o", tmp_path / "map", "--server", server.url)
        assert "X-API-Key" in refusal(run(*classify))
        assert run(*classify, "--api-key", "secret").returncode == 0


@pytest.fixture
def long_scene(tmp_path):
    path = tmp_path / "long.tif"
    write_scene(SyntheticScene(rows=160, cols=128, seed=3), path, None)
    return path


def classify_process(scene, output, server):
    options = ["classify", str(scene), "-o", str(output), "--server", server.url]
    command = [sys.executable, "-m", "hyperscene.service.cli", *options]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )


def running_job(server):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for job in server.client.get("/jobs").json()["jobs"]:
            if job["status"] == "running" and job["patches_done"]:
                return job["jobID"]
        time.sleep(0.02)
    raise AssertionError


def test_ctrl_c_dismisses_the_job(long_scene, tmp_path):
    with running_server(tmp_path / "data") as server:
        process = classify_process(long_scene, tmp_path / "map", server)
        job = running_job(server)
        os.kill(process.pid, signal.SIGINT)
        _, message = process.communicate(timeout=20)
        assert process.returncode == 130, message
        assert server.client.get(f"/jobs/{job}").json()["status"] == "dismissed"
        assert not (tmp_path / "map").exists()


def test_the_client_waits_for_a_server_that_restarts(long_scene, tmp_path):
    server = RunningServer(tmp_path / "data").wait_until_ready()
    port = server.url.rsplit(":", 1)[1]
    process = classify_process(long_scene, tmp_path / "map", server)
    running_job(server)
    server.stop(signal.SIGKILL)
    again = RunningServer(tmp_path / "data", "--port", port)
    try:
        _, message = process.communicate(timeout=60)
    finally:
        again.stop()
    assert process.returncode == 0, message
    assert (tmp_path / "map" / "classes.tif").is_file()


class Stranger(BaseHTTPRequestHandler):
    """A web server other than hyperscene: responds with HTML."""

    status, headers_sent = 200, {}

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_):
        return None


@pytest.mark.parametrize("status", [200, 201, 404])
def test_a_server_other_than_hyperscene_is_reported_in_one_line(tif, tmp_path, status):
    with HTTPServer(("127.0.0.1", 0), type("Answering", (Stranger,), {"status": status})) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stranger.server_port}"
        message = refusal(run("classify", tif, "-o", tmp_path / "map", "--server", url))
        stranger.shutdown()
    assert "hyperscene server" in message


def test_an_empty_server_url_does_not_map_locally(tif, tmp_path):
    refusal(run("classify", tif, "-o", tmp_path / "map", "--server", ""))
    assert not (tmp_path / "map").exists()


def test_a_key_with_umlauts_is_sent_to_the_server(tif, tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--api-keys", "schlüssel")
    with running_server(tmp_path / "data", *options) as server:
        classify = ("classify", tif, "-o", tmp_path / "map", "--server", server.url)
        done = run(*classify, "--api-key", "schlüssel")
        assert done.returncode == 0, done.stderr
