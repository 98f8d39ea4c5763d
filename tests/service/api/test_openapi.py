"""The OpenAPI document is valid and complete, and the server conforms to it."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from openapi_schema_validator import OAS30Validator
from openapi_spec_validator import OpenAPIV30SpecValidator
from referencing import Registry
from referencing.jsonschema import DRAFT4

from hyperscene.service.app import create_app
from hyperscene.service.settings import Settings
from tests.programs import ROOT
from tests.scenes import write_tif
from tests.server import running_server, wait_for

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
BINARY = {"type": "string", "format": "binary"}
NOT_GUARDED = ("/livez", "/readyz")


@pytest.fixture(scope="module")
def document(server):
    response = server.client.get("/api")
    assert response.headers["content-type"] == "application/vnd.oai.openapi+json;version=3.0"
    return response.json()


@pytest.fixture(scope="module")
def operations(document):
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_the_document_is_openapi_3_0(document):
    assert document["openapi"].startswith("3.0.")
    OpenAPIV30SpecValidator(document).validate()


def test_every_operation_has_a_summary_a_description_and_a_known_tag(document, operations):
    tags = {tag["name"] for tag in document["tags"]}
    for name, operation in operations.items():
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name


def test_every_operation_has_a_unique_id(operations):
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names)


def test_every_operation_documents_its_error_responses(operations):
    for name, operation in operations.items():
        documented = {
            status
            for status, response in operation["responses"].items()
            if "application/problem+json" in response.get("content", {})
        }
        expected = {"500"} if name.endswith(NOT_GUARDED) else {"401", "422", "500", "503"}
        assert expected <= documented, name


def resolved(document, node):
    while "$ref" in node:
        found = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def examples_of(document, node):
    """Examples of a parameter or a media type: its own, or its schema's."""
    schema = resolved(document, node.get("schema", {}))
    return [found["example"] for found in (node, schema) if "example" in found]


def media_types(operation):
    for response in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from response.get("content", {}).items()


def test_every_operation_has_an_example_of_success(document, operations):
    for name, operation in operations.items():
        shown = [node for kind, node in media_types(operation) if kind != "application/problem+json"]
        parts = [*operation.get("parameters", []), *shown]
        assert any(examples_of(document, part) for part in parts), name


def test_every_json_response_and_every_request_has_an_example(document, operations):
    for name, operation in operations.items():
        for kind, node in media_types(operation):
            if kind.endswith("json") and node["schema"] != BINARY:  # a part of a file
                assert examples_of(document, node), (name, kind)
        body = operation.get("requestBody", {}).get("content", {})
        assert not body or any(examples_of(document, node) for node in body.values()), name


def test_every_path_parameter_has_an_example_or_a_list_of_values(document, operations):
    for name, operation in operations.items():
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert examples_of(document, parameter) or "enum" in parameter["schema"], (name, parameter["name"])


def test_examples_fit_their_schemas(document, operations):
    registry = Registry().with_resource("urn:api", DRAFT4.create_resource(document))
    for name, operation in operations.items():
        parts = [*operation.get("parameters", []), *(node for _, node in media_types(operation))]
        for part in parts:
            for example in examples_of(document, part) if "schema" in part else ():
                text = json.dumps(part["schema"]).replace('"#/', '"urn:api#/')
                errors = list(OAS30Validator(json.loads(text), registry=registry).iter_errors(example))
                assert not errors, (name, errors[0].message)


def test_the_examples_have_the_fields_of_the_servers_responses(document, server):
    for path in ("/", "/processes/classify-scene", "/processes", "/models", "/models/pixel", "/health", "/livez"):
        answered = set(server.client.get(path).json())
        template = re.sub(
            "(classify-scene|pixel)$", lambda found: {"pixel": "{name}"}.get(found[0], "{process_id}"), path
        )
        node = document["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]
        missing = {"geometry"}  # null, and left out
        assert set(examples_of(document, node)[0]) == answered - missing, path


def test_api_keys_are_documented_only_if_the_server_requires_them():
    operations = {
        has_keys: create_app(Settings(api_keys="one,two" if has_keys else "")).openapi()["paths"]["/jobs"]["get"]
        for has_keys in (True, False)
    }
    assert operations[True]["security"] == [{"APIKeyHeader": []}, {"HTTPBearer": []}]
    assert "security" not in operations[False]


def test_the_document_names_no_server(document):
    assert "servers" not in document


def test_a_405_response_lists_all_methods_of_the_path(client):
    response = client.put(f"/jobs/{'0' * 32}")
    assert (response.status_code, response.headers["allow"]) == (405, "DELETE, GET")
    assert response.json()["code"] == "method_not_allowed"


# Generated requests to a real server


def existing_resources(server, folder, headers):
    """A scene and jobs for the requests of schemathesis."""
    values = np.random.default_rng(5).uniform(0.05, 0.6, (6, 5, 5)).astype("float32")
    file = write_tif(folder / "scene.tif", values, wavelengths_nm=np.linspace(450, 900, 5))
    scene = server.client.post("/scenes", content=file.read_bytes(), headers={"Content-Type": "image/tiff", **headers})
    inputs = {"scene": {"href": f"/scenes/{scene.json()['id']}"}}
    jobs = [
        server.client.post(
            "/processes/classify-scene/execution",
            json={"inputs": inputs},
            headers={"Prefer": "respond-async", **headers},
        ).json()["jobID"]
        for _ in range(2)
    ]
    done, to_delete = [server.finished(job, **headers)["jobID"] for job in jobs]
    tile = f"/jobs/{done}/tiles/scene/0/0/0.png?bands=3,2,1"
    wait_for(lambda: server.client.get(tile, headers=headers).is_success)  # 503 until the preview is rendered
    prepare_live_map(server, f"/scenes/{scene.json()['id']}", headers)
    return {
        "file": str(file),
        "to_read": {
            "scene_id": scene.json()["id"],
            "job_id": done,
            "process_id": "classify-scene",
            "name": "pixel",
        },
        "to_delete": {"job_id": to_delete},
    }


def prepare_live_map(server, scene, headers):
    """Labels of two classes, and the live map that they give; its calls respond with 503 until it is ready."""
    etag = server.client.get(f"{scene}/labels", headers=headers).headers["etag"]
    classes = [{"value": value, "name": str(value), "color": "#000000"} for value in (1, 2)]
    body = {"classes": classes, "set": [{"class": 1, "runs": [[0, 0, 5]]}, {"class": 2, "runs": [[4, 0, 5]]}]}
    server.client.patch(f"{scene}/labels", json=body, headers={"If-Match": etag} | headers).raise_for_status()
    server.client.post(f"{scene}/live", headers=headers).raise_for_status()
    tile = f"{scene}/live/tiles/classes/0/0/0.png"
    wait_for(lambda: server.client.get(tile, headers=headers).is_success)


def run_schemathesis(server, folder, resources, document, run, *options):
    """Run schemathesis, whose exit code is 0 if it finds no violation; `run` names its requests in the log."""
    (folder / "api.json").write_text(json.dumps(document))
    command = [
        Path(sys.executable).with_name("st"), "run", "api.json", "--url", server.url, "--checks", ",".join(CHECKS),
        "--seed", "1", "--request-timeout", "20", "--no-color", "--generation-database", "none",
        "--continue-on-failure", "--warnings", "off", "--header", f"X-Request-ID: {run}", *options,
    ]  # fmt: skip
    # PYTHONPATH finds the hooks; the working folder has no other configuration of schemathesis.
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.schemathesis_hooks",
        "PYTHONPATH": str(ROOT),
        "HYPERSCENE_REAL": json.dumps(resources),
    }
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


def responses(server, run):
    """The number of responses of a run, by path (without ids) and status."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if '"request"' in line]
    return Counter(
        (line["method"], re.sub("[0-9a-f]{32}", "ID", line["path"]), line["status"])
        for line in lines
        if line.get("request_id") == run
    )


@pytest.fixture
def options(bundle_folder):
    return (
        "--bundles",
        bundle_folder,
        "--model",
        "pixel",
        "--device",
        "cpu",
        "--upload-idle-s",
        2,
        "--train-workers",
        1,
    )


@pytest.mark.slow
def test_schemathesis_finds_no_violation_of_the_document(tmp_path, document, options):
    with running_server(tmp_path / "data", *options) as server:
        resources = existing_resources(server, tmp_path, {})
        much = ("--phases", "examples,coverage,fuzzing", "--max-examples", "10")
        run_schemathesis(server, tmp_path, resources, document, "open", *much)
        seen = responses(server, "open")
        for answered in (
            ("POST", "/scenes", 201),
            ("POST", "/processes/classify-scene/execution", 200),
            ("GET", "/jobs/ID", 200),
            ("GET", "/jobs/ID/events", 200),
            ("GET", "/jobs/ID/results", 200),
            ("GET", "/jobs/ID/tilejson.json", 200),
            ("GET", "/jobs/ID/pixel", 200),
            ("GET", "/models/pixel", 200),
            ("DELETE", "/jobs/ID", 200),
        ):
            assert seen[answered], answered
        for start in ("/jobs/ID/results/", "/jobs/ID/tiles/classes/", "/jobs/ID/tiles/scene/"):
            assert {path for _, path, status in seen if path.startswith(start) and status == 200}, start
        assert server.client.get("/readyz").status_code == 200


@pytest.mark.slow
def test_schemathesis_finds_no_violation_with_api_keys(tmp_path, options):
    key = {"X-API-Key": "a-key-of-the-tests"}
    with running_server(tmp_path / "data", *options, "--api-keys", key["X-API-Key"]) as server:
        resources = existing_resources(server, tmp_path, key)
        document = server.client.get("/api", headers=key).json()
        few = ("--phases", "examples,fuzzing", "--max-examples", "3")
        run_schemathesis(server, tmp_path, resources, document, "without", *few)
        without = responses(server, "without")
        assert {path for _, path, status in without if status < 400} == {"/livez", "/readyz"}
        assert without["GET", "/jobs/ID", 401]
        run_schemathesis(
            server, tmp_path, resources, document, "with", *few, "--header", f"X-API-Key: {key['X-API-Key']}"
        )
        assert responses(server, "with")["GET", "/jobs/ID", 200]
