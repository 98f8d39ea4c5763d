"""Scenes on other hosts: COGs that are read by window through HTTP or S3, about once."""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rasterio.shutil import copy

from tests.file_host import running_file_host
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import running_server, wait_for

pytestmark = pytest.mark.slow

EXECUTION = "/processes/classify-scene/execution"
ROWS, COLS = 700, 300


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`scene.tif`, a COG of several rows of blocks, and files that cannot be read remotely."""
    folder = tmp_path_factory.mktemp("host")
    values = np.random.default_rng(3).uniform(0.05, 0.6, (ROWS, COLS, 5)).astype("float32")
    plain = write_tif(folder / "plain.tif", values, wavelengths_nm=WAVELENGTHS)
    copy(plain, folder / "scene.tif", driver="COG", compress="DEFLATE", blocksize=128, overviews="NONE")
    (folder / "bucket").mkdir()
    shutil.copy(folder / "scene.tif", folder / "bucket" / "scene.tif")
    (folder / "scene.vrt.tif").write_text("<VRTDataset rasterXSize='1' rasterYSize='1'/>")
    (folder / "half.tif").write_bytes((folder / "scene.tif").read_bytes()[: (folder / "scene.tif").stat().st_size // 2])
    return folder


@pytest.fixture(scope="module")
def host(files):
    with running_file_host(files) as host:
        yield host


@pytest.fixture(scope="module")
def reader(tmp_path_factory, bundle_folder, host):
    """A server that may read from the host, over HTTP and as S3."""
    data = tmp_path_factory.mktemp("reader") / "data"
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(data, *options, "--hrefs", f"{host.url}/,s3://bucket/", **host.s3_variables()) as running:
        yield running


def submit(server, href, **headers):
    body = {"inputs": {"scene": {"href": href}}}
    return server.client.post(EXECUTION, json=body, headers={"Prefer": "respond-async", **headers})


def finished_job(server, href, **headers):
    answer = submit(server, href, **headers)
    assert answer.status_code == 201, answer.text
    return server.finished(answer.json()["jobID"])


def map_of(server, job):
    return server.client.get(f"/jobs/{job['jobID']}/results/probabilities.tif").content


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    for word in words:
        assert word in answer.json()["detail"]


@pytest.fixture(scope="module")
def uploaded_map(reader, files):
    return map_of(reader, reader.finished(reader.submit(files / "scene.tif")))


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_remote_cog_is_mapped_to_the_same_bytes_and_read_about_once(reader, host, files, uploaded_map, kind):
    href = f"{host.url}/scene.tif" if kind == "http" else "s3://bucket/scene.tif"
    before = host.sent_bytes
    job = finished_job(reader, href)
    assert job["status"] == "successful", job
    assert map_of(reader, job) == uploaded_map
    size = (files / "scene.tif").stat().st_size
    assert 0.95 * size < host.sent_bytes - before < 1.15 * size


def test_only_the_scene_is_requested(reader, host):
    host.requests.clear()
    assert finished_job(reader, f"{host.url}/scene.tif")["status"] == "successful"
    assert set(host.requests) == {"/scene.tif"}


def test_a_remote_scene_is_not_stored(reader, host):
    before = set((reader.data / "scenes").iterdir())
    finished_job(reader, f"{host.url}/scene.tif")
    (folder,) = set((reader.data / "scenes").iterdir()) - before
    assert [path.name for path in folder.iterdir()] == ["record.json"]


def test_a_remote_scene_is_described_mapped_and_deleted(reader, host):
    answer = reader.client.post("/scenes", json={"href": f"{host.url}/scene.tif"})
    assert answer.status_code == 201, answer.text
    document = reader.client.get(answer.headers["location"]).json()
    assert (document["rows"], document["cols"], document["bands"]) == (ROWS, COLS, 5)
    assert document["href"] == f"{host.url}/scene.tif"
    assert document["name"] == "scene.tif"
    assert document["size_bytes"] == 0
    job = finished_job(reader, answer.headers["location"])
    assert job["status"] == "successful"
    assert reader.client.delete(answer.headers["location"]).status_code == 204


def test_a_remote_scene_has_spectra_and_a_preview(reader, host):
    job = finished_job(reader, f"{host.url}/scene.tif")
    pixel = reader.client.get(f"/jobs/{job['jobID']}/pixel", params={"row": 300, "col": 200}).json()
    assert len(pixel["spectrum"]["values"]) == 5

    def tile():
        answer = reader.client.get(f"/jobs/{job['jobID']}/tiles/scene/0/0/0.png")
        return answer if answer.status_code != 503 else None

    assert wait_for(tile).headers["content-type"] == "image/png"


def test_an_idempotency_key_returns_its_job_for_the_same_url_only(reader, host):
    first = submit(reader, f"{host.url}/scene.tif", **{"Idempotency-Key": "key-1"})
    again = submit(reader, f"{host.url}/scene.tif", **{"Idempotency-Key": "key-1"})
    assert first.json()["jobID"] == again.json()["jobID"]
    refused(submit(reader, "s3://bucket/scene.tif", **{"Idempotency-Key": "key-1"}), 422, "use another key")


def test_a_server_without_hrefs_refuses_remote_scenes(server, host):
    refused(submit(server, f"{host.url}/scene.tif"), 422, "does not read scenes from URLs", "POST /scenes")
    refused(server.client.post("/scenes", json={"href": f"{host.url}/scene.tif"}), 422, "POST /scenes")


def test_a_host_that_is_not_allowed_gets_no_request(reader, files):
    with running_file_host(files) as other:
        refused(submit(reader, f"{other.url}/scene.tif"), 422, "does not read from", "s3://bucket/")
        assert not other.requests


def test_a_redirect_is_not_followed(reader, host, files):
    with running_file_host(files) as other:
        host.redirects["/moved.tif"] = f"{other.url}/scene.tif"
        refused(submit(reader, f"{host.url}/moved.tif"), 422, "redirects to another URL")
        assert not other.requests


@pytest.mark.parametrize("kind", ["http", "s3"])
@pytest.mark.parametrize("after", [1, 3])
def test_a_late_redirect_is_not_followed(reader, host, files, kind, after):
    name = f"late-{kind}-{after}.tif"
    for folder in (files, files / "bucket"):
        shutil.copy(files / "scene.tif", folder / name)
    path = f"/{name}" if kind == "http" else f"/bucket/{name}"
    with running_file_host(files) as other:
        host.redirects[path], host.redirects_after = f"{other.url}{path}", after
        answer = submit(reader, f"{host.url}{path}" if kind == "http" else f"s3:/{path}")
        problem = answer.json() if answer.status_code != 201 else reader.finished(answer.json()["jobID"])["problem"]
        host.redirects_after = 0
        assert problem["code"] == "scene_unreadable"
        assert "redirects to another URL" in problem["detail"]
        assert not other.requests


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.tif", "404"),
        ("plain.tif", "not tiled"),
        ("scene.vrt.tif", "tiled GeoTIFF"),
    ],
)
def test_a_file_that_cannot_be_read_remotely_is_refused_without_its_query(reader, host, name, words):
    refused(submit(reader, f"{host.url}/{name}?signature=hidden"), 422, words)
    assert "hidden" not in submit(reader, f"{host.url}/{name}?signature=hidden").text


def test_a_job_with_a_truncated_file_is_tried_again_and_then_fails(reader, host):
    job = finished_job(reader, f"{host.url}/half.tif?signature=hidden")
    assert job["problem"]["code"] == "source_unreachable"
    assert "half.tif could not be read to its end" in job["problem"]["detail"]
    assert "hidden" not in json.dumps(job)
    assert job["resumes"] == 4


def test_a_urls_query_is_not_shown_or_logged(reader, host):
    answer = reader.client.post("/scenes", json={"href": f"{host.url}/scene.tif?signature=hidden"})
    shown = answer.text + reader.client.get(answer.headers["location"]).text + reader.log.read_text()
    assert "hidden" not in shown
    assert finished_job(reader, answer.headers["location"])["status"] == "successful"


def test_a_host_that_stalls_does_not_block_others(reader, files, bundle_folder):
    with running_file_host(files) as silent:
        data = reader.data.with_name("patient")
        options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--hrefs", f"{silent.url}/")
        with running_server(data, *options) as server, ThreadPoolExecutor(5) as callers:
            silent.stalls_after = 1
            responses = [callers.submit(submit, server, f"{silent.url}/scene.tif") for _ in range(4)]
            wait_for(lambda: len(silent.requests) >= 4)
            refused(submit(server, f"{silent.url}/scene.tif"), 429, "remote scenes are being read")
            assert server.client.get("/readyz", timeout=5).status_code == 200
            assert server.finished(server.submit(files / "plain.tif"))["status"] == "successful"
            assert not all(answer.done() for answer in responses)
            for answer in responses:
                refused(answer.result(), 503, "scene.tif does not respond")
            silent.stalls_after = None


def test_dismissing_a_job_whose_host_stalls_frees_its_worker(reader, files, bundle_folder):
    with running_file_host(files) as silent:
        data = reader.data.with_name("dismissed")
        options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--hrefs", f"{silent.url}/")
        with running_server(data, *options) as server:
            scene = server.client.post("/scenes", json={"href": f"{silent.url}/scene.tif"}).headers["location"]
            silent.stalls_after = 3  # while pixels are read
            job = submit(server, scene).json()["jobID"]
            wait_for(lambda: silent.stalls_after == 0)
            assert server.client.delete(f"/jobs/{job}").status_code == 200
            found = server.finished(server.submit(files / "plain.tif"))
            assert found["status"] == "successful"
            assert "the scene's host does not respond: ending" in server.log.read_text()
            silent.stalls_after = None


def test_a_server_without_ranges_is_refused(reader, files):
    with running_file_host(files) as whole:
        whole.sends_parts = False
        data = reader.data.with_name("whole")
        with running_server(data, "--device", "cpu", "--hrefs", f"{whole.url}/") as server:
            refused(submit(server, f"{whole.url}/scene.tif"), 422, "whole files only")


@pytest.mark.parametrize("spared", [0, 3])  # before the header is read, and while pixels are read
def test_a_host_that_is_busy_for_a_moment_fails_no_job(reader, host, spared):
    scene = reader.client.post("/scenes", json={"href": f"{host.url}/scene.tif"}).headers["location"]
    host.spared, host.failures = spared, 2
    job = finished_job(reader, scene)
    assert host.failures == 0
    assert job["status"] == "successful", job


def test_a_file_that_was_replaced_is_not_mapped(reader, host, files):
    shutil.copy(files / "scene.tif", files / "replaced.tif")
    scene = reader.client.post("/scenes", json={"href": f"{host.url}/replaced.tif"}).headers["location"]
    os.utime(files / "replaced.tif", (time.time() + 5, time.time() + 5))
    job = finished_job(reader, scene)
    assert job["problem"]["code"] == "scene_unreadable"
    assert "was replaced after it was submitted" in job["problem"]["detail"]


def test_pixels_of_a_replaced_file_are_not_shown(reader, host, files):
    shutil.copy(files / "scene.tif", files / "later.tif")
    job = finished_job(reader, f"{host.url}/later.tif")
    os.utime(files / "later.tif", (time.time() + 5, time.time() + 5))
    pixel = reader.client.get(f"/jobs/{job['jobID']}/pixel", params={"row": 300, "col": 200}).json()
    assert pixel["spectrum"] is None
    assert pixel["class"] is not None
