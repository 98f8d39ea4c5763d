"""Scenes that stay where they are: COGs at addresses, read in place by window, about once."""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rasterio.shutil import copy

from tests.places import running_place
from tests.scenes import write_tif
from tests.server import running_server, wait_for

EXECUTION = "/processes/classify-scene/execution"
WAVELENGTHS = np.linspace(450, 900, 5)
ROWS, COLS = 700, 300


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`scene.tif`, a COG of several rows of blocks, and files that cannot be read in place."""
    folder = tmp_path_factory.mktemp("place")
    values = np.random.default_rng(3).uniform(0.05, 0.6, (ROWS, COLS, 5)).astype("float32")
    plain = write_tif(folder / "plain.tif", values, wavelengths_nm=WAVELENGTHS)
    copy(plain, folder / "scene.tif", driver="COG", compress="DEFLATE", blocksize=128, overviews="NONE")
    (folder / "bucket").mkdir()
    shutil.copy(folder / "scene.tif", folder / "bucket" / "scene.tif")
    (folder / "scene.vrt.tif").write_text("<VRTDataset rasterXSize='1' rasterYSize='1'/>")
    (folder / "half.tif").write_bytes((folder / "scene.tif").read_bytes()[: (folder / "scene.tif").stat().st_size // 2])
    return folder


@pytest.fixture(scope="module")
def place(files):
    with running_place(files) as found:
        yield found


@pytest.fixture(scope="module")
def reader(tmp_path_factory, bundle_folder, place):
    """A server that may read from the place, over HTTP and as S3."""
    data = tmp_path_factory.mktemp("reader") / "data"
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(data, *options, "--hrefs", f"{place.url}/,s3://bucket/", **place.s3_variables()) as running:
        yield running


def order(server, href, **headers):
    body = {"inputs": {"scene": {"href": href}}}
    return server.client.post(EXECUTION, json=body, headers={"Prefer": "respond-async", **headers})


def job_of(server, href, **headers):
    answer = order(server, href, **headers)
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
def test_a_cog_elsewhere_is_mapped_to_the_same_bytes_and_read_about_once(reader, place, files, uploaded_map, kind):
    href = f"{place.url}/scene.tif" if kind == "http" else "s3://bucket/scene.tif"
    before = place.sent_bytes
    job = job_of(reader, href)
    assert job["status"] == "successful", job
    assert map_of(reader, job) == uploaded_map
    size = (files / "scene.tif").stat().st_size
    assert 0.95 * size < place.sent_bytes - before < 1.15 * size


def test_nothing_but_the_scene_is_asked_for(reader, place):
    place.asked.clear()
    assert job_of(reader, f"{place.url}/scene.tif")["status"] == "successful"
    assert set(place.asked) == {"/scene.tif"}


def test_nothing_of_the_scene_is_kept_here(reader, place):
    before = set((reader.data / "scenes").iterdir())
    job_of(reader, f"{place.url}/scene.tif")
    assert set((reader.data / "scenes").iterdir()) == before


def test_a_scene_by_reference_is_described_and_forgotten(reader, place):
    answer = reader.client.post("/scenes", json={"href": f"{place.url}/scene.tif"})
    assert answer.status_code == 201, answer.text
    document = reader.client.get(answer.headers["location"]).json()
    assert (document["rows"], document["cols"], document["bands"]) == (ROWS, COLS, 5)
    assert document["href"] == f"{place.url}/scene.tif"
    assert document["name"] == "scene.tif"
    assert document["size_bytes"] == 0
    job = job_of(reader, answer.headers["location"])
    assert job["status"] == "successful"
    assert reader.client.delete(answer.headers["location"]).status_code == 204


def test_a_scene_in_another_place_is_looked_at_pixel_by_pixel_and_as_a_picture(reader, place):
    job = job_of(reader, f"{place.url}/scene.tif")
    pixel = reader.client.get(f"/jobs/{job['jobID']}/pixel", params={"row": 300, "col": 200}).json()
    assert len(pixel["spectrum"]["values"]) == 5

    def tile():
        answer = reader.client.get(f"/jobs/{job['jobID']}/tiles/scene/0/0/0.png")
        return answer if answer.status_code != 503 else None

    assert wait_for(tile).headers["content-type"] == "image/png"


def test_the_same_key_answers_the_same_job_and_only_for_the_same_address(reader, place):
    first = order(reader, f"{place.url}/scene.tif", **{"Idempotency-Key": "place-1"})
    again = order(reader, f"{place.url}/scene.tif", **{"Idempotency-Key": "place-1"})
    assert first.json()["jobID"] == again.json()["jobID"]
    refused(order(reader, "s3://bucket/scene.tif", **{"Idempotency-Key": "place-1"}), 422, "use another key")


def test_a_server_that_reads_from_nowhere_says_so(server, place):
    refused(order(server, f"{place.url}/scene.tif"), 422, "reads from no other place", "POST /scenes")
    refused(server.client.post("/scenes", json={"href": f"{place.url}/scene.tif"}), 422, "POST /scenes")


def test_a_place_that_is_not_listed_is_not_asked(reader, files):
    with running_place(files) as elsewhere:
        refused(order(reader, f"{elsewhere.url}/scene.tif"), 422, "does not read from", "s3://bucket/")
        assert not elsewhere.asked


def test_a_redirect_is_not_followed(reader, place, files):
    with running_place(files) as elsewhere:
        place.redirects["/moved.tif"] = f"{elsewhere.url}/scene.tif"
        refused(order(reader, f"{place.url}/moved.tif"), 422, "leads to another address")
        assert not elsewhere.asked


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.tif", "404"),
        ("plain.tif", "not tiled"),
        ("scene.vrt.tif", "tiled GeoTIFF"),
    ],
)
def test_what_cannot_be_read_in_place_is_refused_with_the_address(reader, place, name, words):
    refused(order(reader, f"{place.url}/{name}?signature=hidden"), 422, words)
    assert "hidden" not in order(reader, f"{place.url}/{name}?signature=hidden").text


def test_a_file_that_is_cut_short_is_tried_again_and_then_fails_its_job(reader, place):
    job = job_of(reader, f"{place.url}/half.tif?signature=hidden")
    assert job["problem"]["code"] == "place_unreachable"
    assert "half.tif could not be read to its end" in job["problem"]["detail"]
    assert "hidden" not in json.dumps(job)
    assert job["resumes"] == 4


def test_what_may_be_a_secret_is_kept(reader, place):
    answer = reader.client.post("/scenes", json={"href": f"{place.url}/scene.tif?signature=hidden"})
    told = answer.text + reader.client.get(answer.headers["location"]).text + reader.log.read_text()
    assert "hidden" not in told
    assert job_of(reader, answer.headers["location"])["status"] == "successful"


def test_a_place_that_stalls_holds_up_nobody_else(reader, files, bundle_folder):
    with running_place(files) as silent:
        data = reader.data.with_name("patient")
        options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--hrefs", f"{silent.url}/")
        with running_server(data, *options) as server, ThreadPoolExecutor(5) as callers:
            silent.stalls_after = 1
            asked = [callers.submit(order, server, f"{silent.url}/scene.tif") for _ in range(4)]
            wait_for(lambda: len(silent.asked) >= 4)
            refused(order(server, f"{silent.url}/scene.tif"), 429, "in other places")
            assert server.client.get("/readyz", timeout=5).status_code == 200
            assert server.finished(server.submit(files / "plain.tif"))["status"] == "successful"
            assert not all(answer.done() for answer in asked)
            for answer in asked:
                refused(answer.result(), 503, "scene.tif does not answer")
            silent.stalls_after = None


def test_a_job_that_is_dismissed_while_its_place_stalls_frees_its_worker(reader, files, bundle_folder):
    with running_place(files) as silent:
        data = reader.data.with_name("dismissed")
        options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--hrefs", f"{silent.url}/")
        with running_server(data, *options) as server:
            scene = server.client.post("/scenes", json={"href": f"{silent.url}/scene.tif"}).headers["location"]
            silent.stalls_after = 7  # while pixels are read
            job = order(server, scene).json()["jobID"]
            wait_for(lambda: silent.stalls_after == 0)
            assert server.client.delete(f"/jobs/{job}").status_code == 200
            found = server.finished(server.submit(files / "plain.tif"))
            assert found["status"] == "successful"
            assert "its place stalls: ending" in server.log.read_text()
            silent.stalls_after = None


def test_a_server_without_ranges_is_refused(reader, files):
    with running_place(files) as whole:
        whole.sends_parts = False
        data = reader.data.with_name("whole")
        with running_server(data, "--device", "cpu", "--hrefs", f"{whole.url}/") as server:
            refused(order(server, f"{whole.url}/scene.tif"), 422, "whole files only")


@pytest.mark.parametrize("spared", [0, 6])  # before the first look, and while pixels are read
def test_a_place_that_is_busy_for_a_moment_costs_no_job(reader, place, spared):
    scene = reader.client.post("/scenes", json={"href": f"{place.url}/scene.tif"}).headers["location"]
    place.spared, place.failures = spared, 2
    job = job_of(reader, scene)
    assert place.failures == 0
    assert job["status"] == "successful", job


def test_a_file_that_was_replaced_is_not_mapped_in_its_place(reader, place, files):
    shutil.copy(files / "scene.tif", files / "replaced.tif")
    scene = reader.client.post("/scenes", json={"href": f"{place.url}/replaced.tif"}).headers["location"]
    os.utime(files / "replaced.tif", (time.time() + 5, time.time() + 5))
    job = job_of(reader, scene)
    assert job["problem"]["code"] == "scene_unreadable"
    assert "was replaced since it was sent" in job["problem"]["detail"]


def test_pixels_of_a_file_that_was_replaced_are_not_shown_as_the_jobs(reader, place, files):
    shutil.copy(files / "scene.tif", files / "later.tif")
    job = job_of(reader, f"{place.url}/later.tif")
    os.utime(files / "later.tif", (time.time() + 5, time.time() + 5))
    pixel = reader.client.get(f"/jobs/{job['jobID']}/pixel", params={"row": 300, "col": 200}).json()
    assert pixel["spectrum"] is None
    assert pixel["class"] is not None
