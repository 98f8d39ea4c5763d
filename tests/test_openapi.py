"""The OpenAPI document: sound, complete, with examples, and kept by the server whatever it is asked."""

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

from service.app import create_app
from service.settings import Settings
from tests.scenes import write_tif
from tests.server import running_server

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
BINARY = {"type": "string", "format": "binary"}
NOT_GUARDED = ("/livez", "/readyz")


@pytest.fixture(scope="module")
def document(server):
    answer = server.client.get("/api")
    assert answer.headers["content-type"] == "application/vnd.oai.openapi+json;version=3.0"
    return answer.json()


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


def test_every_call_has_a_summary_words_and_a_known_tag(document, operations):
    tags = {tag["name"] for tag in document["tags"]}
    for name, operation in operations.items():
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name


def test_every_call_has_a_name_of_its_own(operations):
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names)


def test_every_call_tells_how_it_refuses(operations):
    for name, operation in operations.items():
        told = {
            status
            for status, answer in operation["responses"].items()
            if "application/problem+json" in answer.get("content", {})
        }
        expected = {"500"} if name.endswith(NOT_GUARDED) else {"401", "422", "500", "503"}
        assert expected <= told, name


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
    for answer in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from answer.get("content", {}).items()


def test_every_call_has_an_example_beside_those_of_refusals(document, operations):
    for name, operation in operations.items():
        shown = [node for kind, node in media_types(operation) if kind != "application/problem+json"]
        places = [*operation.get("parameters", []), *shown]
        assert any(examples_of(document, place) for place in places), name


def test_every_json_answer_and_every_request_has_an_example(document, operations):
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
        places = [*operation.get("parameters", []), *(node for _, node in media_types(operation))]
        for place in places:
            for example in examples_of(document, place) if "schema" in place else ():
                text = json.dumps(place["schema"]).replace('"#/', '"urn:api#/')
                errors = list(OAS30Validator(json.loads(text), registry=registry).iter_errors(example))
                assert not errors, (name, errors[0].message)


def test_the_example_of_a_document_has_the_fields_that_the_server_answers_with(document, server):
    for path in ("/", "/processes/classify-scene", "/processes", "/models", "/models/pixel", "/health", "/livez"):
        answered = set(server.client.get(path).json())
        place = re.sub("(classify-scene|pixel)$", lambda found: {"pixel": "{name}"}.get(found[0], "{process_id}"), path)
        node = document["paths"][place]["get"]["responses"]["200"]["content"]["application/json"]
        missing = {"geometry"}  # null, and left out
        assert set(examples_of(document, node)[0]) == answered - missing, path


def test_keys_are_spoken_of_where_the_server_wants_them():
    operations = {
        is_wanted: create_app(Settings(api_keys="one,two" if is_wanted else "")).openapi()["paths"]["/jobs"]["get"]
        for is_wanted in (True, False)
    }
    assert operations[True]["security"] == [{"APIKeyHeader": []}, {"HTTPBearer": []}]
    assert "security" not in operations[False]


def test_the_document_needs_no_server_that_is_named_in_it(document):
    assert "servers" not in document


def test_an_address_tells_every_method_that_it_knows(client):
    answer = client.put(f"/jobs/{'0' * 32}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")
    assert answer.json()["code"] == "method_not_allowed"


# Everything that the document allows, asked of a real server


def things_that_are_there(server, folder, headers):
    """A scene and jobs for schemathesis to ask about."""
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
    return {
        "file": str(file),
        "to_ask": {
            "scene_id": scene.json()["id"],
            "job_id": done,
            "process_id": "classify-scene",
            "name": "pixel",
        },
        "to_delete": {"job_id": to_delete},
    }


def ask_everything(server, folder, things, document, run, *options):
    """Run schemathesis, which ends with 0 when it found nothing wrong; `run` is how the log calls its requests."""
    (folder / "api.json").write_text(json.dumps(document))
    command = [
        Path(sys.executable).with_name("st"), "run", "api.json", "--url", server.url, "--checks", ",".join(CHECKS),
        "--seed", "1", "--request-timeout", "20", "--no-color", "--generation-database", "none",
        "--continue-on-failure", "--warnings", "off", "--header", f"X-Request-ID: {run}", *options,
    ]  # fmt: skip
    # Found as a module from the root; a folder of its own, so that no configuration or report of others is in the way.
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.schemathesis_hooks",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "HYPERSCENE_REAL": json.dumps(things),
    }
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


def answers(server, run):
    """How often each path, with ids left out, was answered with each status in a run."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if '"request"' in line]
    return Counter(
        (line["method"], re.sub("[0-9a-f]{32}", "ID", line["path"]), line["status"])
        for line in lines
        if line.get("request_id") == run
    )


@pytest.fixture
def options(bundle_folder):
    return ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--upload-idle-s", 2)


@pytest.mark.slow
def test_whatever_the_document_allows_is_answered_as_it_says(tmp_path, document, options):
    with running_server(tmp_path / "data", *options) as server:
        things = things_that_are_there(server, tmp_path, {})
        much = ("--phases", "examples,coverage,fuzzing", "--max-examples", "10")
        ask_everything(server, tmp_path, things, document, "open", *much)
        seen = answers(server, "open")
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
def test_with_keys_the_document_holds_for_those_who_have_one_and_nobody_else_gets_in(tmp_path, options):
    key = {"X-API-Key": "a-key-of-the-tests"}
    with running_server(tmp_path / "data", *options, "--api-keys", key["X-API-Key"]) as server:
        things = things_that_are_there(server, tmp_path, key)
        document = server.client.get("/api", headers=key).json()
        few = ("--phases", "examples,fuzzing", "--max-examples", "3")
        ask_everything(server, tmp_path, things, document, "without", *few)
        without = answers(server, "without")
        assert {path for _, path, status in without if status < 400} == {"/livez", "/readyz"}
        assert without["GET", "/jobs/ID", 401]
        ask_everything(server, tmp_path, things, document, "with", *few, "--header", f"X-API-Key: {key['X-API-Key']}")
        assert answers(server, "with")["GET", "/jobs/ID", 200]
