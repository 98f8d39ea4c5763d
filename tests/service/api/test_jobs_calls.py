"""Jobs over HTTP: status, results with ranges, events, dismissal, expiry, several devices."""

import io
import json
import shutil
import zipfile

import httpx
import numpy as np
import pytest
import rasterio

from hyperscene.model.bundle import DEMO_BUNDLE
from hyperscene.service.mapping.output import RESULTS
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import RunningServer, part, running_server, wait_for


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    values = np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", values, wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def large_scene(tmp_path_factory):
    """About ten seconds of work for the demo bundle."""
    path = tmp_path_factory.mktemp("scene") / "large.tif"
    write_scene(SyntheticScene(rows=160, cols=160, seed=3), path, None)
    return path


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory):
    """A server with the demo bundle and small strips."""
    data = tmp_path_factory.mktemp("demo") / "data"
    with running_server(data, "--strip-px", 16, "--headers-after-s", 0.5) as server:
        yield server


@pytest.fixture(scope="module")
def job_id(server, tif):
    job_id = server.submit(tif)
    assert server.finished(job_id)["status"] == "successful"
    return job_id


def events_of(client, job_id, last=None):
    headers = {"Last-Event-ID": str(last)} if last is not None else {}
    with client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        event = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line == "":
                if "data" in event:
                    yield int(event["id"]), json.loads(event["data"])
                event = {}
            elif name:
                event[name] = value


def test_results_are_links_to_every_file(client, job_id):
    links = client.get(f"/jobs/{job_id}/results").json()
    assert {link["href"].rsplit("/", 1)[1] for link in links.values()} == set(RESULTS)
    for link in links.values():
        response = client.get(link["href"])
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(link["type"])


def test_a_range_request_returns_only_that_range(client, job_id):
    url = f"/jobs/{job_id}/results/classes.tif"
    whole = client.get(url)
    part = client.get(url, headers={"Range": "bytes=4-11"})
    assert part.status_code == 206
    assert part.content == whole.content[4:12]
    assert part.headers["content-range"] == f"bytes 4-11/{len(whole.content)}"
    assert client.get(url, headers={"Range": "bytes=999999999-"}).status_code == 416


def test_head_returns_size_and_etag_without_the_file(client, job_id):
    url = f"/jobs/{job_id}/results/probabilities.tif"
    head, whole = client.head(url), client.get(url)
    assert head.status_code == 200
    assert head.content == b""
    for name in ("content-length", "etag", "accept-ranges"):
        assert head.headers[name] == whole.headers[name]


def test_head_ignores_range(client, job_id):
    head = client.head(f"/jobs/{job_id}/results/classes.tif", headers={"Range": "bytes=0-3"})
    assert head.status_code == 200
    assert int(head.headers["content-length"]) > 4
    assert client.head(f"/jobs/{job_id}/results/results.zip").headers["content-type"] == "application/zip"


def test_removed_results_are_not_found_in_any_form(server, client, tif):
    job_id = server.submit(tif)
    server.finished(job_id)
    shutil.rmtree(server.data / "jobs" / job_id)
    for url in ("results", "results/classes.tif", "results/results.zip"):
        response = client.get(f"/jobs/{job_id}/{url}")
        assert response.status_code == 404
        assert response.json()["code"] == "no_such_job"


def test_a_cached_result_is_not_sent_again(client, job_id):
    url = f"/jobs/{job_id}/results/classes.tif"
    tag = client.get(url).headers["etag"]
    assert client.get(url, headers={"If-None-Match": tag}).status_code == 304
    assert client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_gdal_reads_a_cog_in_place(server, job_id):
    options = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_HTTP_PROXY": "", "NO_PROXY": "*"}
    with (
        rasterio.Env(**options),
        rasterio.open(f"/vsicurl/{server.url}/jobs/{job_id}/results/classes.tif") as raster,
    ):
        assert raster.shape == (40, 33)
        assert raster.read(1).max() > 0


def test_an_unknown_result_is_refused(client, job_id):
    assert client.get(f"/jobs/{job_id}/results/../../lock").status_code == 404
    response = client.get(f"/jobs/{job_id}/results/lock")
    assert response.status_code == 404
    assert response.json()["code"] == "no_such_result"


def test_results_of_a_running_job_are_not_ready(demo_server, large_scene):
    client = demo_server.client
    job_id = demo_server.submit(large_scene)
    response = client.get(f"/jobs/{job_id}/results")
    assert response.status_code == 404
    assert response.json()["code"] == "result_not_ready"
    assert response.json()["type"].endswith("/result-not-ready")
    assert f"/jobs/{job_id}" in response.json()["detail"]
    client.delete(f"/jobs/{job_id}")


def test_an_unknown_job_is_refused_with_how_long_results_are_kept(client):
    response = client.get("/jobs/0123")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "no_such_job"
    assert "kept for 7 days" in response.json()["detail"]


def test_a_job_with_nan_probabilities_fails_with_the_same_message_everywhere(server, client, tmp_path):
    scene = write_tif(tmp_path / "negative.tif", np.full((20, 20, 5), -0.5, "float32"), wavelengths_nm=WAVELENGTHS)
    waited = client.post("/classify", files={"scene": part(scene)}, data={"model": "root"})
    assert waited.status_code == 500
    assert waited.json()["code"] == "inference_failed"
    job = client.get(waited.headers["location"]).json()
    assert job["status"] == "failed"
    assert job["problem"] == waited.json()
    assert client.get(f"/jobs/{job['jobID']}/results").json() == waited.json()


@pytest.mark.slow
def test_progress_has_patches_and_time_left(demo_server, large_scene):
    job_id = demo_server.submit(large_scene, stride_px="2")  # takes some seconds, and reports twice a second
    seen = [event for _, event in events_of(demo_server.client, job_id)]
    assert seen[-1]["status"] == "successful"
    assert seen[-1]["progress"] == 100
    running = [event for event in seen if event["status"] == "running" and event["patches_total"]]
    totals = [event["patches_total"] for event in running]
    assert 80 * 80 >= totals[0] >= totals[-1] >= seen[-1]["patches_total"] > 0  # patches without data are left out
    assert totals == sorted(totals, reverse=True)
    summary = demo_server.client.get(f"/jobs/{job_id}/results/summary.json").json()
    assert seen[-1]["patches_done"] == seen[-1]["patches_total"] == summary["patches"]
    done = [event["patches_done"] for event in running]
    assert done == sorted(done)
    assert len(set(done)) > 3
    assert any(event.get("seconds_left", 0) > 0 for event in running)


@pytest.mark.slow
def test_events_resume_after_a_broken_connection(demo_server, large_scene):
    job_id = demo_server.submit(large_scene)
    stream = events_of(demo_server.client, job_id)
    first = [next(stream)[0] for _ in range(3)]
    stream.close()
    rest = [number for number, _ in events_of(demo_server.client, job_id, last=first[-1])]
    assert min(rest) > first[-1]
    assert rest == sorted(set(rest))
    finished = demo_server.client.get(f"/jobs/{job_id}/events", headers={"Last-Event-ID": str(rest[-1])})
    assert finished.status_code == 204  # no further events


@pytest.mark.slow
def test_a_dismissed_job_stops_within_a_second_and_frees_its_disk(demo_server, large_scene):
    client = demo_server.client
    job_id = demo_server.submit(large_scene, stride_px="1")
    scene_id = client.get(f"/jobs/{job_id}").json()["scene_id"]
    wait_for(lambda: client.get(f"/jobs/{job_id}").json()["patches_done"] > 0)
    response = client.delete(f"/jobs/{job_id}")
    assert response.json()["status"] == "dismissed"
    next_job = demo_server.submit(large_scene, stride_px="8")
    wait_for(lambda: client.get(f"/jobs/{next_job}").json()["status"] != "accepted", within_s=2)
    assert demo_server.finished(next_job)["status"] == "successful"
    assert not (demo_server.data / "jobs" / job_id).exists()
    assert not (demo_server.data / "scenes" / scene_id).exists()
    assert client.get(f"/jobs/{job_id}").json()["status"] == "dismissed"
    assert client.get(f"/jobs/{job_id}/results").json()["code"] == "no_such_job"


def test_dismissing_a_finished_job_removes_its_results(server, client, tif):
    job_id = server.submit(tif)
    server.finished(job_id)
    assert client.delete(f"/jobs/{job_id}").json()["status"] == "dismissed"
    assert not (server.data / "jobs" / job_id).exists()
    assert client.get(f"/jobs/{job_id}/results/classes.tif").status_code == 404


def test_a_download_completes_though_the_job_is_dismissed(server, client, tif):
    job_id = server.submit(tif)
    server.finished(job_id)
    with client.stream("GET", f"/jobs/{job_id}/results/results.zip") as response:
        client.delete(f"/jobs/{job_id}")
        content = response.read()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(RESULTS)


@pytest.mark.slow
def test_a_client_that_disconnects_does_not_stop_the_job(demo_server, large_scene):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{demo_server.url}/classify", files={"scene": part(large_scene)}, timeout=httpx.Timeout(30, read=0.2)
        )
    newest = demo_server.client.get("/jobs?limit=1").json()["jobs"][0]["jobID"]
    assert demo_server.finished(newest)["status"] == "successful"


@pytest.mark.slow
def test_the_url_of_a_long_job_arrives_before_its_map(demo_server, large_scene):
    with httpx.Client(base_url=demo_server.url, timeout=60) as client:
        request = client.build_request("POST", "/classify", files={"scene": part(large_scene)})
        response = client.send(request, stream=True)
        assert response.status_code == 200
        job = demo_server.client.get(response.headers["location"]).json()
        assert job["status"] in ("accepted", "running")
        content = response.read()
    results = f"/jobs/{job['jobID']}/results/classes.tif"
    assert content == demo_server.client.get(results).content


def test_a_map_that_fails_after_its_headers_were_sent_is_cut_off(demo_server, large_scene):
    with httpx.Client(base_url=demo_server.url, timeout=60) as client:
        response = client.send(
            client.build_request("POST", "/classify", files={"scene": part(large_scene)}), stream=True
        )
        demo_server.client.delete(response.headers["location"])
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()


def test_a_repeated_idempotency_key_returns_the_same_job(server, client, tif):
    headers = {"Prefer": "respond-async", "Idempotency-Key": "one"}
    first, second = (client.post("/classify", files={"scene": part(tif)}, headers=headers) for _ in range(2))
    assert first.json()["jobID"] == second.json()["jobID"]
    unread = client.post("/classify", content=b"not even a form", headers=headers)
    assert unread.json()["jobID"] == first.json()["jobID"]


@pytest.mark.slow
def test_jobs_and_scenes_expire(tmp_path, tif, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(tmp_path / "data", *options, "--keep-results-s", 2, "--keep-scenes-s", 2) as server:
        job_id = server.submit(tif)
        scene_id = server.client.post("/scenes", content=tif.read_bytes()).json()["id"]
        server.finished(job_id)
        wait_for(lambda: server.client.get(f"/jobs/{job_id}").status_code == 404)
        wait_for(lambda: server.client.get(f"/scenes/{scene_id}").status_code == 404)
        assert not any((server.data / "jobs").iterdir())
        assert not any((server.data / "scenes").iterdir())


@pytest.mark.slow
def test_several_devices_take_jobs_in_parallel(tmp_path, large_scene):
    with running_server(tmp_path / "data", "--device", "cpu,cpu") as server:
        wait_for(lambda: len(server.workers()) == 2)
        jobs = [server.submit(large_scene) for _ in range(2)]
        wait_for(lambda: {server.client.get(f"/jobs/{job}").json()["status"] for job in jobs} == {"running"})
        names = {server.finished(job)["provider"] for job in jobs}
        assert len(names) == 1
        assert len(server.client.get("/health").json()["workers"]) == 2


@pytest.mark.slow
def test_an_unknown_device_is_not_ready_and_says_why(tmp_path, tif):
    server = RunningServer(tmp_path / "data", "--device", "cuda")
    try:
        wait_for(lambda: "CUDA" in server.client.get("/readyz").json()["detail"])
        ready = server.client.get("/readyz")
        assert ready.status_code == 503
        assert "CUDAExecutionProvider" in ready.json()["detail"]
        refused = server.client.post("/classify", files={"scene": part(tif)})
        assert refused.status_code == 503
        assert refused.json()["code"] == "not_ready"
        assert "/health" in refused.json()["detail"]
        assert server.client.get("/livez").status_code == 200
    finally:
        server.stop()


def test_the_demo_bundle_is_served_by_default(demo_server):
    listed = demo_server.client.get("/models").json()
    assert listed["default"] == DEMO_BUNDLE.stem
    item = demo_server.client.get("/models/demo").json()
    assert item["properties"]["mlm:name"] == "demo"
    assert demo_server.client.get("/models/demo/bundle.onnx").content == DEMO_BUNDLE.read_bytes()
