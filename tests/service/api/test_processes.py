"""OGC API - Processes 1.0: documents validated against the standard's schemas, and OWSLib as a client."""

import base64
import email
import email.policy
import re
import time
from datetime import datetime, timedelta

import httpx
import numpy as np
import psutil
import pytest
from jsonschema import Draft202012Validator, ValidationError
from owslib.ogcapi.processes import Processes

from hyperscene.service.api.documents import OUTPUTS
from tests.scenes import WAVELENGTHS, write_tif
from tests.schemas import require
from tests.server import running_server

EXECUTION = "/processes/classify-scene/execution"
EXCEPTIONS = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"
RELATIONS = "http://www.opengis.net/def/rel/ogc/1.0/"
CLASSES = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/"
NOBODY = "0" * 32


def upload(client, path):
    response = client.post("/scenes", content=path.read_bytes(), headers={"Content-Type": "image/tiff"})
    assert response.status_code == 201, response.text
    return response.json()["id"]


def values(rows, cols, low=0.05):
    return np.random.default_rng(7).uniform(low, 0.6, (rows, cols, 5)).astype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scenes")


@pytest.fixture(scope="module")
def small(folder):
    return write_tif(folder / "small.tif", values(24, 20), wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def scene(server, small):
    return upload(server.client, small)


@pytest.fixture(scope="module")
def large_scene(server, folder):
    """A scene that takes some seconds with `patch` and stride 1."""
    return upload(server.client, write_tif(folder / "large.tif", values(700, 700), wavelengths_nm=WAVELENGTHS))


@pytest.fixture(scope="module")
def bad_scene(server, folder):
    """A scene for which `root` returns NaN."""
    return upload(server.client, write_tif(folder / "bad.tif", values(9, 9, low=-1), wavelengths_nm=WAVELENGTHS))


def execute(client, scene, *, prefer=None, **request):
    inputs = {"scene": {"href": f"/scenes/{scene}"}, **request.pop("inputs", {})}
    document = {"inputs": inputs, **request}
    require("execute", document)
    return client.post(EXECUTION, json=document, headers={"Prefer": prefer} if prefer else {})


def start(client, scene, **inputs):
    response = execute(client, scene, prefer="respond-async", inputs=inputs)
    assert response.status_code == 201, response.text
    return response.json()["jobID"]


@pytest.fixture(scope="module")
def done(server, scene):
    """A successful job."""
    job = start(server.client, scene)
    assert server.finished(job)["status"] == "successful"
    return job


@pytest.fixture
def busy(server, client, large_scene):
    """A running job and a waiting one."""
    jobs = [start(client, large_scene, model="patch", stride_px=1) for _ in range(2)]
    deadline = time.monotonic() + 30
    while client.get(f"/jobs/{jobs[0]}").json()["status"] != "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield jobs
    for job in reversed(jobs):
        client.delete(f"/jobs/{job}")


def problem(response, status):
    """The problem document, which must be an exception of the standard."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    require("exception", response.json())
    assert response.json()["status"] == status
    return response.json()


def links(document):
    return {link["rel"]: link["href"] for link in document["links"]}


# The schemas


def test_the_schemas_refuse_invalid_documents():
    job = {"jobID": "1", "processID": "p", "type": "process", "status": "running"}
    require("statusInfo", job)
    for wrong in ({"status": "done"}, {"progress": 101}, {"created": "yesterday"}, {"links": [{"rel": "self"}]}):
        with pytest.raises(ValidationError):
            require("statusInfo", job | wrong)
    for schema in ({"type": "file"}, {"examples": []}):
        with pytest.raises(ValidationError):
            require("schema", schema)
    with pytest.raises(ValidationError):
        require("results", {"classes": {"type": "image/tiff"}})


# Documents


def test_the_landing_page_links_to_api_conformance_processes_and_jobs(server, client):
    page = client.get("/").json()
    require("landingPage", page)
    for rel in ("service-desc", f"{RELATIONS}conformance", f"{RELATIONS}processes", f"{RELATIONS}job-list"):
        assert client.get(links(page)[rel]).status_code == 200, rel
    assert all(link["href"].startswith(server.url) for link in page["links"])


def test_the_conformance_names_what_is_implemented(client):
    document = client.get("/conformance").json()
    require("confClasses", document)
    expected = ("core", "ogc-process-description", "json", "oas30", "job-list", "dismiss")
    assert {CLASSES + name for name in expected} <= set(document["conformsTo"])


def test_the_list_of_processes_has_classify_scene(client):
    document = client.get("/processes").json()
    require("processList", document)
    assert [process["id"] for process in document["processes"]] == ["classify-scene"]
    assert client.get(links(document["processes"][0])["self"]).json()["id"] == "classify-scene"


def test_the_description_has_every_input_and_output(client):
    document = client.get("/processes/classify-scene").json()
    require("process", document)
    assert set(document["inputs"]) == {"scene", "model", "stride_px", "blend", "probability_type", "unknown", "mask"}
    assert set(document["outputs"]) == {*OUTPUTS, "mask", "applicability"}
    assert [name for name, given in document["inputs"].items() if given["minOccurs"] > 0] == ["scene"]


def test_the_inputs_have_valid_json_schemas_and_defaults(client):
    for name, given in client.get("/processes/classify-scene").json()["inputs"].items():
        Draft202012Validator.check_schema(given["schema"])
        if "default" in given["schema"]:
            Draft202012Validator(given["schema"]).validate(given["schema"]["default"])
        assert name == "scene" or {"enum", "pattern"} & set(given["schema"])


@pytest.mark.slow
def test_every_described_value_is_accepted(server, client, scene):
    described = client.get("/processes/classify-scene").json()["inputs"]
    for name in ("model", "stride_px", "blend", "probability_type"):
        for value in described[name]["schema"]["enum"]:
            if value == 16:  # a whole patch, for token bundles only
                continue
            more = {"stride_px": 1} if value == "none" else {}
            job = start(client, scene, **{name: value}, **more)
            assert server.finished(job)["status"] == "successful", (name, value)


def test_an_unknown_process_has_the_standards_exception_type(client, scene):
    body = {"inputs": {"scene": {"href": f"/scenes/{scene}"}}}
    for response in (client.get("/processes/none"), client.post("/processes/none/execution", json=body)):
        assert problem(response, 404)["type"] == EXCEPTIONS + "no-such-process"


# Jobs


def test_an_unknown_job_has_the_standards_exception_type(client):
    urls = [f"/jobs/{NOBODY}{rest}" for rest in ("", "/results", "/results/classes.tif", "/events")]
    for response in [*map(client.get, urls), client.delete(urls[0])]:
        assert problem(response, 404)["type"] == EXCEPTIONS + "no-such-job"


def test_a_successful_job_links_to_its_results(client, done):
    job = client.get(f"/jobs/{done}").json()
    require("statusInfo", job)
    assert (job["status"], job["progress"]) == ("successful", 100)
    assert job["patches_done"] == job["patches_total"] == 30  # 24 x 20 pixels, every fourth
    assert job["created"] <= job["started"] <= job["finished"]
    assert client.get(links(job)[f"{RELATIONS}results"]).status_code == 200


def test_running_and_waiting_jobs_have_no_results(client, busy):
    found = []
    for job in busy:
        document = client.get(f"/jobs/{job}").json()
        require("statusInfo", document)
        found.append(document["status"])
        assert f"{RELATIONS}results" not in links(document)
        for name in ("results", "results/classes.tif"):
            refusal = problem(client.get(f"/jobs/{job}/{name}"), 404)
            assert refusal["type"] == EXCEPTIONS + "result-not-ready"
    assert found == ["running", "accepted"]


def test_results_of_dismissed_jobs_are_not_found(client, busy):
    for job in reversed(busy):
        response = client.delete(f"/jobs/{job}")
        assert response.status_code == 200
        require("statusInfo", response.json())
        assert response.json()["status"] == client.get(f"/jobs/{job}").json()["status"] == "dismissed"
        assert problem(client.get(f"/jobs/{job}/results"), 404)["type"] == EXCEPTIONS + "no-such-job"


def test_a_failed_job_says_why_and_so_do_its_results(server, client, bad_scene):
    job = server.finished(start(client, bad_scene, model="root"))
    require("statusInfo", job)
    assert job["status"] == "failed"
    refusal = problem(client.get(f"/jobs/{job['jobID']}/results"), 500)
    assert refusal == job["problem"]
    assert refusal["detail"] == job["message"]


def test_the_results_link_to_files_of_their_media_types(client, done):
    document = client.get(f"/jobs/{done}/results").json()
    require("results", document)
    assert set(document) == set(OUTPUTS)
    for link in document.values():
        assert client.head(link["href"]).headers["content-type"].partition(";")[0] == link["type"]


def pages(client, url, rel):
    """All pages, starting with this URL."""
    while url:
        page = client.get(url).json()
        require("jobList", page)
        yield page
        url = links(page).get(rel)


def test_the_pages_of_the_job_list_have_every_job_once_newest_first(client, scene):
    made = [start(client, scene) for _ in range(5)]
    found = [job["jobID"] for page in pages(client, "/jobs?limit=2", "next") for job in page["jobs"]]
    assert found[:5] == made[::-1]
    assert len(found) == len(set(found))


def test_the_pages_of_the_job_list_link_back_to_the_first(client, scene):
    for _ in range(5):
        start(client, scene)
    there = list(pages(client, "/jobs?limit=2&offset=0", "next"))
    back = list(pages(client, links(there[-1])["self"], "prev"))
    assert [links(page)["self"] for page in back[::-1]] == [links(page)["self"] for page in there]
    assert "prev" not in links(there[0])


def listed(client, **query):
    response = client.get("/jobs", params={"limit": 1000, **query})
    assert response.status_code == 200, response.text
    require("jobList", response.json())
    return [job["jobID"] for job in response.json()["jobs"]]


def test_jobs_are_listed_by_status(server, client, done, scene, bad_scene):
    failed = start(client, bad_scene, model="root")
    server.finished(failed)
    assert done in listed(client, status="successful")
    assert failed not in listed(client, status="successful")
    assert {done, failed} <= set(listed(client, status=["failed", "successful"]))


def test_jobs_are_listed_by_process_and_type(client, done):
    assert done in listed(client, processID="classify-scene", type="process")
    assert done in listed(client, processID=["another", "classify-scene"])
    assert listed(client, processID="another") == []
    assert listed(client, type="provider") == []


def test_jobs_are_listed_by_creation_time(client, done):
    made = client.get(f"/jobs/{done}").json()["created"]
    moment = datetime.fromisoformat(made)
    before, after = ((moment + timedelta(seconds=by)).isoformat() for by in (-1, 1))
    assert listed(client, datetime=made) == [done]
    for query in (f"{before}/{after}", f"../{made}", f"{made}/..", f"/{after}", f"{before}/"):
        assert done in listed(client, datetime=query), query
    for query in (f"../{before}", f"{after}/.."):
        assert done not in listed(client, datetime=query), query


@pytest.mark.parametrize("query", ["", "..", "../..", "yesterday", "2026-01-01T00:00:00Z/then", "/"])
def test_an_invalid_time_is_refused_with_an_example(client, query):
    assert "2026-01-31T12:00:00Z/.." in problem(client.get("/jobs", params={"datetime": query}), 422)["detail"]


def test_jobs_are_listed_by_duration(client, done, busy):
    running, waiting = busy
    assert done in listed(client, minDuration=0, maxDuration=1000)
    assert done not in listed(client, minDuration=1000)
    assert running in listed(client, minDuration=0)
    assert waiting not in listed(client, minDuration=0)
    assert waiting not in listed(client, maxDuration=1000)


def test_the_next_page_keeps_the_filter(client, scene):
    for _ in range(3):
        start(client, scene)
    query = {"limit": 1, "processID": "classify-scene", "datetime": "2020-01-01T00:00:00Z/..", "status": "successful"}
    page = links(client.get("/jobs", params=query).json())["next"]
    assert dict(httpx.URL(page).params) == {key: str(value) for key, value in query.items()} | {"offset": "1"}


# Execution


def test_a_synchronous_request_returns_the_results_document(client, scene):
    response = execute(client, scene, response="document")
    assert response.status_code == 200
    require("results", response.json())
    assert set(response.json()) == set(OUTPUTS)
    assert client.get(response.json()["classes"]["href"]).headers["content-type"] == "image/tiff"


def test_the_document_has_only_the_requested_outputs(client, scene):
    response = execute(client, scene, response="document", outputs={"classes": {}, "item": {}})
    assert set(response.json()) == {"classes", "item"}


def test_outputs_requested_by_value_are_in_the_document(client, scene):
    outputs = {name: {"transmissionMode": "value"} for name in ("classes", "summary")}
    response = execute(client, scene, response="document", outputs={**outputs, "preview": {}})
    document = response.json()
    require("results", document)
    files = f"{response.headers['location']}/results"
    assert base64.b64decode(document["classes"]["value"]) == client.get(f"{files}/classes.tif").content
    assert document["summary"]["value"] == client.get(f"{files}/summary.json").json()
    assert document["preview"]["href"] == f"{files}/preview.png"


def test_one_raw_output_is_the_file_itself(client, scene):
    response = execute(client, scene, response="raw", outputs={"preview": {}})
    assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    assert response.content == client.get(f"{response.headers['location']}/results/preview.png").content


def linked(response):
    found = re.findall(r'<([^>]+)>; rel="([^"]+)"', ", ".join(response.headers.get_list("link")))
    return {rel: href for href, rel in found}


@pytest.mark.parametrize(
    "outputs", [{"classes": {}, "summary": {}}, {"classes": {"transmissionMode": "reference"}}, None]
)
def test_raw_outputs_by_reference_are_in_headers(client, scene, outputs):
    response = execute(client, scene, response="raw", **({"outputs": outputs} if outputs else {}))
    assert (response.status_code, response.content) == (204, b"")
    found = linked(response)
    assert client.get(found.pop("monitor")).json()["status"] == "successful"
    assert set(found) == set(outputs or OUTPUTS)
    assert client.get(found["classes"]).headers["content-type"] == "image/tiff"


def test_several_raw_outputs_by_value_are_multipart(client, scene):
    outputs = {"classes": {"transmissionMode": "value"}, "summary": {"transmissionMode": "value"}}
    response = execute(client, scene, response="raw", outputs=outputs)
    assert response.status_code == 200
    head = f"Content-Type: {response.headers['content-type']}\r\n\r\n".encode()
    parts = email.message_from_bytes(head + response.content, policy=email.policy.HTTP).get_payload()
    files = f"{response.headers['location']}/results"
    assert [part["Content-ID"] for part in parts] == ["classes", "summary"]
    assert [part.get_content_type() for part in parts] == ["image/tiff", "application/json"]
    assert client.get(f"{files}/classes.tif").content in response.content
    assert client.get(f"{files}/summary.json").content in response.content


def test_results_of_an_asynchronous_job_are_the_requested_outputs(server, client, scene):
    some = execute(client, scene, prefer="respond-async", response="document", outputs={"classes": {}, "item": {}})
    raw = execute(client, scene, prefer="respond-async", response="raw", outputs={"preview": {}})
    for response in (some, raw):
        assert server.finished(response.json()["jobID"])["status"] == "successful"
    document = client.get(f"{some.headers['location']}/results").json()
    require("results", document)
    assert set(document) == {"classes", "item"}
    assert client.get(f"{raw.headers['location']}/results").headers["content-type"] == "image/png"


def test_an_idempotency_key_with_other_inputs_is_refused(client, scene):
    headers = {"Prefer": "respond-async", "Idempotency-Key": "same-key"}
    inputs = {"scene": {"href": f"/scenes/{scene}"}}
    first, again, other = (
        client.post(EXECUTION, json={"inputs": inputs | more}, headers=headers) for more in ({}, {}, {"stride_px": 8})
    )
    assert first.json()["jobID"] == again.json()["jobID"]
    assert "another key" in problem(other, 422)["detail"]


@pytest.mark.slow
def test_an_idempotency_key_returns_its_job_after_scene_and_settings_changed(tmp_path, bundle_folder, small):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    headers = {"Prefer": "respond-async", "Idempotency-Key": "kept"}
    with running_server(tmp_path / "data", *options) as server:
        body = {"inputs": {"scene": {"href": f"/scenes/{upload(server.client, small)}"}}}
        job = server.client.post(EXECUTION, json=body, headers=headers).json()["jobID"]
        server.finished(job)
        assert server.client.delete(body["inputs"]["scene"]["href"]).status_code == 204
    with running_server(tmp_path / "data", *options, "--strip-px", 32) as server:
        assert server.client.post(EXECUTION, json=body, headers=headers).json()["jobID"] == job
        other = {**body, "outputs": {"classes": {}}}
        assert problem(server.client.post(EXECUTION, json=other, headers=headers), 422)["code"] == "request_unusable"


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"", b"\xff\xfe", b"[" + b"1," * 300_000 + b"1]"])
def test_a_body_that_is_not_small_json_is_refused_at_once(client, body):
    response = client.post(EXECUTION, content=body, headers={"Content-Type": "application/json"})
    assert problem(response, response.status_code)["code"] in ("upload_broken", "scene_too_large")
    assert response.status_code in (400, 413)


@pytest.mark.slow
def test_a_large_body_without_a_key_costs_no_memory(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--device", "cpu", "--api-keys", "secret")
    with running_server(tmp_path / "data", *options) as server:
        before = psutil.Process(server.process.pid).memory_info().rss
        response = server.client.post(EXECUTION, content=(b" " * (1 << 20) for _ in range(200)))
        assert problem(response, 401)["code"] == "unauthorized"
        assert psutil.Process(server.process.pid).memory_info().rss - before < 30 << 20


@pytest.mark.slow
def test_a_scene_is_found_by_a_public_url_with_a_path(tmp_path, bundle_folder, small):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(tmp_path / "data", *options, "--public-url", "https://maps.example/hs") as server:
        scene = upload(server.client, small)
        for href in (f"/scenes/{scene}", f"/hs/scenes/{scene}", f"https://maps.example/hs/scenes/{scene}"):
            assert with_inputs(server.client, scene={"href": href}).status_code == 201


def test_an_asynchronous_request_returns_the_job_and_its_url(server, client, scene):
    response = execute(client, scene, prefer="respond-async, wait=10")
    assert response.status_code == 201
    require("statusInfo", response.json())
    assert response.headers["location"] == f"{server.url}/jobs/{response.json()['jobID']}"
    assert response.headers["preference-applied"] == "respond-async"
    assert server.finished(response.json()["jobID"])["status"] == "successful"


def test_a_failed_job_is_an_error_of_the_synchronous_request(client, bad_scene):
    response = execute(client, bad_scene, response="document", inputs={"model": "root"})
    assert problem(response, 500)["code"] == "inference_failed"
    assert client.get(response.headers["location"]).json()["status"] == "failed"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory, bundle_folder):
    """A server that sends headers at once."""
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--headers-after-s", 0)
    with running_server(tmp_path_factory.mktemp("hasty") / "data", *options) as running:
        yield running.client


def test_outputs_are_in_headers_even_of_a_slow_job(hasty, small):
    response = execute(hasty, upload(hasty, small), response="raw")
    assert response.status_code == 204
    assert set(linked(response)) == {*OUTPUTS, "monitor"}


def test_the_document_of_a_slow_job_follows_its_headers(hasty, small):
    response = execute(hasty, upload(hasty, small), response="document")
    assert response.status_code == 200
    require("results", response.json())
    assert hasty.get(response.json()["classes"]["href"]).status_code == 200


# Inputs


def with_inputs(client, **inputs):
    headers = {"Prefer": "respond-async"}
    return client.post(EXECUTION, json={"inputs": inputs}, headers=headers)


@pytest.mark.parametrize("form", ["/scenes/{id}", "{url}/scenes/{id}", "{url_in_capitals}/scenes/{id}"])
def test_a_scene_is_referenced_by_its_url(server, client, scene, form):
    href = form.format(id=scene, url=server.url, url_in_capitals=server.url.upper())
    for given in ({"href": href}, {"href": href, "type": "image/tiff"}, [{"href": href}]):
        response = with_inputs(client, scene=given)
        assert response.status_code == 201, response.text
        assert response.json()["scene_id"] == scene


@pytest.mark.parametrize(
    "form",
    [
        "http://example.com/scenes/{id}",
        "http://example.com:{port}/scenes/{id}",
        "//example.com/scenes/{id}",
        "http://127.0.0.1:{port}@example.com/scenes/{id}",
        "http://someone@127.0.0.1:{port}/scenes/{id}",
        "http://127.0.0.1/scenes/{id}",
        "http:/scenes/{id}",
        "http:///scenes/{id}",
        "ftp://127.0.0.1:{port}/scenes/{id}",
        "file:///scenes/{id}",
        "file:///etc/passwd",
        "/vsicurl/http://127.0.0.1:{port}/scenes/{id}",
        "/etc/passwd",
        "{id}",
        "scenes/{id}",
        "/scenes/../scenes/{id}",
        "/scenes/{id}/..",
        "/scenes/%2e%2e",
        "/scenes/{id}?file=/etc/passwd",
        "/scenes/{id}#part",
        "/scenes/{id}\n",
        " /scenes/{id}",
        "/scenes/",
        "http://[/scenes/{id}",
        "data:image/tiff;base64,SUkqAA==",
        "",
    ],
)
def test_a_url_of_another_resource_is_refused(server, client, scene, form):
    href = form.format(id=scene, port=httpx.URL(server.url).port)
    refusal = problem(with_inputs(client, scene={"href": href}), 422)
    assert "POST /scenes" in refusal["detail"]


@pytest.mark.parametrize("given", [None, 7, True, [], {}, {"value": "SUkqAA=="}, {"href": 7}, [{"href": "/"}] * 2])
def test_an_invalid_scene_reference_is_refused_with_an_example(client, given):
    assert '{"href": "/scenes/ID"}' in problem(with_inputs(client, scene=given), 422)["detail"]


def test_an_unknown_scene_is_refused(client):
    assert problem(with_inputs(client, scene={"href": f"/scenes/{NOBODY}"}), 404)["code"] == "no_such_scene"


def test_values_may_be_qualified(client, scene):
    inputs = {"stride_px": {"value": 8}, "blend": {"value": "linear"}, "model": {"value": "patch"}}
    job = with_inputs(client, scene={"href": f"/scenes/{scene}"}, **inputs).json()
    assert (job["model"], job["settings"]["stride_px"], job["settings"]["blend"]) == ("patch", 8, "linear")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"stride": 4}, "no option 'stride'"),
        ({"stride_px": 3}, "stride_px must be one of"),
        ({"stride_px": {"value": True}}, "stride_px must be one of"),
        ({"stride_px": [4]}, "stride_px must be one of"),
        ({"stride_px": 4.5}, "stride_px must be one of"),
        ({"blend": {"value": ["angle"]}}, "blend must be one of"),
        ({"blend": {"href": "http://example.com/"}}, "blend must be one of"),
        ({"probability_type": None}, "probability_type must be one of"),
        ({"model": 7}, "model must be a name"),
    ],
)
def test_unknown_inputs_and_values_are_refused(client, scene, inputs, message):
    response = with_inputs(client, scene={"href": f"/scenes/{scene}"}, **inputs)
    assert message in problem(response, 422)["detail"]


def test_unknown_outputs_are_refused(client, scene):
    response = execute(client, scene, outputs={"picture": {}})
    assert "no output 'picture'; the outputs are classes" in problem(response, 422)["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"inputs": 3}', b'{"inputs": {}, "response": "both"}', b"\xff\xfe"]
)
def test_bodies_that_are_not_execute_requests_are_refused(client, body):
    response = client.post(EXECUTION, content=body, headers={"Content-Type": "application/json"})
    require("exception", response.json())
    assert response.status_code in (400, 422)


# OWSLib


@pytest.fixture
def owslib(server):
    return Processes(server.url)


def test_owslib_lists_and_describes_the_process(owslib):
    assert [process["id"] for process in owslib.processes()] == ["classify-scene"]
    assert set(owslib.process("classify-scene")["outputs"]) == {*OUTPUTS, "mask", "applicability"}
    assert CLASSES + "core" in owslib.conformance()["conformsTo"]


def test_owslib_finds_the_api(owslib):
    assert EXECUTION.replace("classify-scene", "{process_id}") in owslib.api()["paths"]


def test_owslib_runs_the_process_and_waits(owslib, client, scene):
    inputs = {"scene": {"href": f"/scenes/{scene}"}, "stride_px": 8}
    results = owslib.execute("classify-scene", inputs, outputs={"classes": {"transmissionMode": "reference"}})
    require("results", results)
    assert client.get(results["classes"]["href"]).headers["content-type"] == "image/tiff"


def test_owslib_runs_the_process_asynchronously(server, owslib, scene):
    job = owslib.execute("classify-scene", {"scene": {"href": f"{server.url}/scenes/{scene}"}}, async_=True)
    require("statusInfo", job)
    assert owslib.response_headers["Location"].endswith(job["jobID"])
    assert server.finished(job["jobID"])["status"] == "successful"
