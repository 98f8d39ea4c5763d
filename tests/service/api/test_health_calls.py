"""Health, probes, metrics, logs, CORS."""

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from tests.scenes import write_tif
from tests.server import RunningServer, part, running_server

METRICS = (
    "jobs_submitted_total", "jobs_finished_total", "jobs_pending", "jobs_running", "job_seconds_bucket",
    "job_queue_seconds_bucket", "stage_seconds_bucket", "patches_total", "cells_total", "pixels_total",
    "upload_bytes_total", "job_resumes_total", "model_info", "worker_heartbeat_age_seconds",
    "ready", "jobs_pending_limit", "disk_free_bytes", "disk_total_bytes", "disk_min_free_bytes",
)  # fmt: skip


@pytest.fixture(scope="module")
def mapped(server, tmp_path_factory):
    """The id of a job that was mapped with the client's request id."""
    values = np.random.default_rng(3).uniform(0.05, 0.6, (20, 33, 5)).astype("float32")
    scene = write_tif(tmp_path_factory.mktemp("s") / "field.tif", values, wavelengths_nm=np.linspace(450, 900, 5))
    response = server.client.post("/classify", files={"scene": part(scene)}, headers={"X-Request-ID": "my-request.1"})
    assert response.headers["x-request-id"] == "my-request.1"
    return response.headers["location"].rsplit("/", 1)[1]


def test_health_summarises_the_service(client, mapped):
    health = client.get("/health").json()
    assert health["status"] == "ready"
    assert health["models"] == ["patch", "pixel", "root"]
    assert health["workers"][0]["device"] == "cpu"
    assert "CPUExecutionProvider" in health["workers"][0]["provider"]
    assert health["jobs"]["successful"] >= 1
    assert health["disk"]["free_bytes"] > 0
    assert re.match(r"\d+\.\d+", health["version"])


def test_every_metric_of_the_design_is_there(client, mapped):
    text = client.get("/metrics").text
    for name in METRICS:
        assert re.search(rf"^hyperscene_{name}(\{{[^}}]*\}})? [0-9.e+-]+$", text, re.MULTILINE), name
    assert mapped not in text  # no job ids in labels


def test_metrics_count_jobs_stages_and_pixels(client, mapped):
    values = metrics_of(client)
    finished = values['hyperscene_jobs_finished_total{reason="",status="successful"}']
    assert values["hyperscene_jobs_submitted_total"] >= finished >= 1
    assert values["hyperscene_job_seconds_count"] >= finished
    assert values['hyperscene_stage_seconds_count{stage="network"}'] >= 1
    assert values['hyperscene_pixels_total{kind="valid"}'] >= 20 * 33
    assert values["hyperscene_upload_bytes_total"] > 20 * 33 * 5 * 4


def metrics_of(client):
    """Every sample, by name and labels."""
    found = re.findall(r"^(hyperscene_\S+) ([0-9.e+]+)$", client.get("/metrics").text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_metrics_have_readiness_and_disk(client):
    values = metrics_of(client)
    assert values["hyperscene_ready"] == 1
    assert values["hyperscene_jobs_pending_limit"] == 100
    assert values["hyperscene_disk_min_free_bytes"] == 1e9
    assert values["hyperscene_disk_total_bytes"] >= values["hyperscene_disk_free_bytes"] > 0


@pytest.mark.slow
def test_metrics_show_that_a_server_is_not_ready(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--device", "cpu", "--min-free-bytes", "1000TB", "--max-waiting", "7")
    server = RunningServer(tmp_path / "data", *options)
    try:
        values = metrics_of(server.client)
        assert server.client.get("/readyz").status_code == 503
    finally:
        server.stop()
    assert values["hyperscene_ready"] == 0
    assert values["hyperscene_jobs_pending_limit"] == 7
    assert values["hyperscene_disk_min_free_bytes"] == 1e15


def test_logs_are_json_with_the_ids_of_request_and_job(server, mapped):
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    of_job = [line for line in lines if line.get("job_id") == mapped]
    assert {line["message"] for line in of_job} >= {"accepted", "started", "successful"}
    accepted = next(line for line in of_job if line["message"] == "accepted")
    assert accepted["request_id"] == "my-request.1"
    request = next(line for line in lines if line.get("request_id") == "my-request.1" and line["message"] == "request")
    assert (request["method"], request["path"], request["status"]) == ("POST", "/classify", 200)


def test_an_invalid_request_id_is_replaced(client):
    assert client.get("/livez", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"


def test_an_unknown_path_is_a_problem_document(client):
    response = client.get("/nothing")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "not_found"
    assert client.put("/classify").json()["code"] == "method_not_allowed"


@pytest.mark.slow
def test_only_allowed_web_origins_can_read_responses(tmp_path, bundle_folder, client):
    origin = {"Origin": "https://maps.example"}
    assert "access-control-allow-origin" not in client.get("/livez", headers=origin).headers
    options = ("--bundles", bundle_folder, "--device", "cpu", "--cors-origins", "https://maps.example")
    with running_server(tmp_path / "data", *options) as server:
        response = server.client.get("/livez", headers=origin)
        assert response.headers["access-control-allow-origin"] == "https://maps.example"
        exposed = response.headers["access-control-expose-headers"]
        assert {"Content-Range", "Accept-Ranges", "ETag", "Content-Length"} <= set(exposed.split(", "))
        preflight_headers = origin | {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "range"}
        preflight = server.client.options("/jobs/1/results/classes.tif", headers=preflight_headers)
        assert preflight.status_code == 200
        assert "range" in preflight.headers["access-control-allow-headers"].lower()
        other = server.client.get("/livez", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.slow
def test_the_app_imports_neither_torch_nor_an_engine():
    heavy = "('torch', 'onnxruntime', 'openvino')"
    check = f"import sys, hyperscene.service.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_links_begin_with_the_public_url(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--device", "cpu", "--public-url", "https://maps.example/hyper/")
    with running_server(tmp_path / "data", *options) as server:
        assert server.client.get("/").json()["links"][0]["href"] == "https://maps.example/hyper/"


def test_an_unexpected_error_is_answered_and_logged_with_its_request_id(server):
    with closing(sqlite3.connect(server.data / "hyperscene.sqlite")) as store, store:
        store.execute("INSERT INTO scenes VALUES ('damaged', '', 'a.tif', 'a.tif', 1, 0, 1e12, '{', 0, NULL)")
    try:
        answer = server.client.get("/scenes/damaged", headers={"X-Request-ID": "damaged-1"})
    finally:
        with closing(sqlite3.connect(server.data / "hyperscene.sqlite")) as store, store:
            store.execute("DELETE FROM scenes WHERE id = 'damaged'")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "damaged-1"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (found,) = [line for line in lines if "JSONDecodeError" in line.get("traceback", "")]
    assert (found["message"], found["request_id"]) == ("unexpected error", "damaged-1")
    (request,) = [line for line in lines if line.get("path") == "/scenes/damaged"]
    assert (request["status"], request["request_id"]) == (500, "damaged-1")
