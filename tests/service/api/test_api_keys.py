"""API keys: only the probes are open without one, and one key never sees another's data."""

import json
import time
from contextlib import ExitStack, contextmanager, suppress
from socket import MSG_PEEK

import numpy as np
import pytest

from tests.scenes import WAVELENGTHS, write_tif
from tests.server import running_server, sleeping_workers, wait_for
from tests.uploads import RawResponse, connected, request_head

ANNA, BEN = "anna-key-5f1c", "ben-key-9d2e"
GUARDED = [
    ("GET", "/"), ("GET", "/api"), ("GET", "/conformance"), ("GET", "/processes"),
    ("GET", "/processes/classify-scene"), ("POST", "/processes/classify-scene/execution"), ("POST", "/classify"),
    ("POST", "/scenes"), ("POST", "/demo-scene"), ("GET", "/scenes/x"), ("DELETE", "/scenes/x"), ("GET", "/jobs"),
    ("GET", "/jobs/x"),
    ("DELETE", "/jobs/x"), ("GET", "/jobs/x/results"), ("GET", "/jobs/x/results/classes.tif"),
    ("HEAD", "/jobs/x/results/classes.tif"), ("GET", "/jobs/x/events"),
    ("GET", "/jobs/x/tilejson.json"), ("GET", "/jobs/x/tiles/classes/0/0/0.png"),
    ("GET", "/jobs/x/tiles/scene/0/0/0@2x.png"), ("GET", "/jobs/x/pixel"), ("GET", "/models"), ("GET", "/models/pixel"),
    ("GET", "/health"), ("GET", "/metrics"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory, bundle_folder):
    data = tmp_path_factory.mktemp("keys") / "data"
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--log-level", "debug")
    with running_server(data, *options, HYPERSCENE_API_KEYS=f"{ANNA}, {BEN}") as running:
        yield running


@pytest.fixture
def client(server):
    return server.client


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    cube = np.random.default_rng(3).uniform(0.05, 0.6, (20, 23, 5)).astype("float32")
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", cube, wavelengths_nm=WAVELENGTHS).read_bytes()


@pytest.fixture(scope="module")
def annas_job(server, tif):
    """A finished job of Anna's."""
    response = classify(server.client, tif, ANNA)
    assert response.status_code == 200
    return response.headers["location"].rsplit("/", 1)[1]


@pytest.fixture(scope="module")
def annas_scene(server, tif):
    response = server.client.post("/scenes", content=tif, headers={"X-API-Key": ANNA})
    assert response.status_code == 201
    return response.json()["id"]


def classify(client, tif, key, **headers):
    headers = {"X-API-Key": key} | {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/classify", files={"scene": ("field.tif", tif)}, headers=headers)


def is_refused(response, status, code):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert not response.text or json.loads(response.text)["code"] == code
    return True


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_without_a_key_every_request_is_refused_and_names_the_header(client, method, path):
    response = client.request(method, path)
    assert is_refused(response, 401, "unauthorized")
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert method == "HEAD" or "X-API-Key" in response.json()["detail"]


def test_every_route_but_the_probes_requires_a_key(client):
    api = client.get("/api", headers={"X-API-Key": ANNA}).json()
    for path, calls in api["paths"].items():
        for method in calls:
            url = path.replace("{", "").replace("}", "")
            expected = 200 if path in ("/livez", "/readyz") else 401
            assert client.request(method, url).status_code == expected, (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": ANNA},
        {"Authorization": f"Bearer {ANNA}"},
        {"Authorization": f"bearer {ANNA}"},
        {"X-API-Key": ANNA, "Authorization": "Basic YTpi"},
    ],
)
def test_a_key_is_accepted_in_either_header(client, headers):
    assert client.get("/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": ""},
        {"X-API-Key": "wrong"},
        {"X-API-Key": ANNA[:-1]},
        {"X-API-Key": ANNA + "x"},
        {"X-API-Key": ANNA.upper()},
        {"X-API-Key": f"{ANNA},{BEN}"},
        {"X-API-Key": f"{ANNA}, {BEN}"},
        {"X-API-Key": "x" * 50_000},
        {"Authorization": ANNA},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {ANNA}"},
        {"Authorization": "Bearer wrong"},
    ],
)
def test_wrong_keys_are_refused(client, headers):
    assert is_refused(client.get("/models", headers=headers), 401, "unauthorized")


@pytest.mark.parametrize(
    "key", [b"\xff\xfe\x80", "schlüssel".encode(), "schlüssel".encode("latin-1"), b"\xed\xa0\x80", b" ", b"\t", b""]
)
@pytest.mark.parametrize("header", [b"X-API-Key: ", b"Authorization: Bearer "])
def test_keys_that_are_empty_or_not_ascii_are_refused_like_others(server, header, key):
    with connected(server) as connection:
        connection.sendall(b"GET /models HTTP/1.1\r\nHost: localhost\r\n" + header + key + b"\r\n\r\n")
        assert is_refused(RawResponse(connection), 401, "unauthorized")


@pytest.mark.slow
def test_a_key_that_is_not_ascii_is_accepted_if_set(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--api-keys", "schlüssel")
    with running_server(tmp_path / "data", *options) as server:
        response = server.client.get("/models", headers={b"X-API-Key": "schlüssel".encode()})
        assert response.status_code == 200


def test_a_key_in_the_url_is_ignored(client):
    assert client.get(f"/models?api_key={ANNA}&X-API-Key={ANNA}").status_code == 401


def test_an_upload_without_a_key_is_not_read(server):
    with connected(server) as connection:
        connection.sendall(
            b"POST /scenes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert is_refused(RawResponse(connection), 401, "unauthorized")


@pytest.mark.parametrize("path", ["", "/results", "/results/classes.tif", "/results/results.zip", "/events"])
def test_a_job_does_not_exist_for_another_key(client, annas_job, path):
    assert client.get(f"/jobs/{annas_job}{path}", headers={"X-API-Key": ANNA}).status_code == 200
    assert is_refused(client.get(f"/jobs/{annas_job}{path}", headers={"X-API-Key": BEN}), 404, "no_such_job")


def test_a_job_of_another_key_looks_like_an_unknown_job(client, annas_job):
    hers = client.get(f"/jobs/{annas_job}", headers={"X-API-Key": BEN})
    nobodys = client.get(f"/jobs/{'0' * len(annas_job)}", headers={"X-API-Key": BEN})
    assert hers.text.replace(annas_job, "0" * len(annas_job)) == nobodys.text


def test_a_job_is_not_dismissed_by_another_key(client, annas_job):
    assert is_refused(client.delete(f"/jobs/{annas_job}", headers={"X-API-Key": BEN}), 404, "no_such_job")
    assert client.get(f"/jobs/{annas_job}", headers={"X-API-Key": ANNA}).json()["status"] == "successful"


def test_the_list_has_only_the_keys_own_jobs(client, annas_job):
    listed = {key: client.get("/jobs", headers={"X-API-Key": key}).json()["jobs"] for key in (ANNA, BEN)}
    assert annas_job in [job["jobID"] for job in listed[ANNA]]
    assert annas_job not in [job["jobID"] for job in listed[BEN]]


def test_a_scene_does_not_exist_for_another_key(client, annas_scene):
    for method in ("GET", "DELETE"):
        response = client.request(method, f"/scenes/{annas_scene}", headers={"X-API-Key": BEN})
        assert is_refused(response, 404, "no_such_scene")
    assert client.get(f"/scenes/{annas_scene}", headers={"X-API-Key": ANNA}).status_code == 200


def test_a_scene_is_not_mapped_by_another_key(client, annas_scene):
    body = {"inputs": {"scene": {"href": f"/scenes/{annas_scene}"}}}
    path, headers = "/processes/classify-scene/execution", {"Prefer": "respond-async"}
    response = client.post(path, json=body, headers=headers | {"X-API-Key": BEN})
    assert is_refused(response, 404, "no_such_scene")
    assert client.post(path, json=body, headers=headers | {"X-API-Key": ANNA}).status_code == 201


def test_idempotency_keys_are_separate_for_each_api_key(client, tif):
    jobs = [
        classify(client, tif, key, Idempotency_Key="once", Prefer="respond-async").json()["jobID"]
        for key in (ANNA, BEN, ANNA, BEN)
    ]
    assert jobs[0] != jobs[1]
    assert jobs[:2] == jobs[2:]


def test_both_headers_are_the_same_owner(client, annas_job):
    assert client.get(f"/jobs/{annas_job}", headers={"Authorization": f"Bearer {ANNA}"}).status_code == 200


def test_keys_appear_in_no_response_log_or_file(server, client, annas_job):
    shown = "".join(
        client.get(path, headers={"X-API-Key": ANNA}).text for path in ("/health", "/metrics", "/jobs", "/api")
    )
    stored = b"".join(path.read_bytes() for path in server.data.rglob("*") if path.is_file())
    for key in (ANNA, BEN):
        assert key not in shown
        assert key not in server.log.read_text()
        assert key.encode() not in stored
    assert server.log.stat().st_size > 0


def test_wrong_keys_leave_no_traceback(server, client):
    client.get("/models", headers={"X-API-Key": "a-wrong-one"})
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "a-wrong-one" not in log


@pytest.fixture(scope="module")
def small(tmp_path_factory, bundle_folder):
    """A server with four places for uploads and for jobs, which two keys share."""
    limits = {"max-waiting": 4, "max-uploads": 4, "upload-grace-s": 0.5, "min-upload-bytes-per-s": 1000}
    options = [word for name, value in limits.items() for word in (f"--{name}", value)]
    options = ["--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", *options]
    data = tmp_path_factory.mktemp("small") / "data"
    with running_server(data, *options, HYPERSCENE_API_KEYS=f"{ANNA},{BEN}") as running:
        running.client.headers["X-API-Key"] = ANNA
        yield running


def test_one_key_takes_neither_all_waiting_places_nor_all_turns(small, tif):
    def submit(key):
        return classify(small.client, tif, key, Prefer="respond-async")

    with sleeping_workers(small):
        annas = [submit(ANNA), submit(ANNA)]
        full = submit(ANNA)
        assert is_refused(full, 429, "queue_full")
        assert "2 jobs of your API key are waiting" in full.json()["detail"]
        assert 1 <= int(full.headers["retry-after"]) <= 600
        bens = submit(BEN)
        assert bens.status_code == 201
    finished = [small.finished(answer.json()["jobID"]) for answer in annas]
    bens = small.finished(bens.json()["jobID"], **{"X-API-Key": BEN})
    assert bens["started"] < max(job["started"] for job in finished)


@contextmanager
def open_uploads(server, key, count):
    """Uploads whose bodies do not arrive."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(count)]
        for connection in connections:
            connection.sendall(request_head("/scenes", 100_000, X_API_Key=key, Content_Type="image/tiff"))
        yield connections


def test_uploads_of_one_key_leave_places_to_others(small, tif):
    with open_uploads(small, ANNA, 2):
        wait_for(lambda: len(list((small.data / "incoming").iterdir())) == 2)
        full = small.client.post("/scenes", content=tif)
        assert is_refused(full, 429, "queue_full")
        assert "2 uploads of your API key are in progress" in full.json()["detail"]
        assert full.headers["retry-after"]
        assert small.client.post("/scenes", content=tif, headers={"X-API-Key": BEN}).status_code == 201
    wait_for(lambda: not list((small.data / "incoming").iterdir()))
    assert small.client.post("/scenes", content=tif).status_code == 201


def test_uploads_that_trickle_are_closed_and_leave_nothing(small, tif):
    with open_uploads(small, ANNA, 2) as connections:
        for answer in map(trickled, connections):
            assert is_refused(answer, 408, "upload_rate_too_low")
            assert answer.headers["retry-after"] == "60"
            assert "at least 1000 per second" in json.loads(answer.text)["detail"]
    wait_for(lambda: not list((small.data / "incoming").iterdir()))
    assert small.client.post("/scenes", content=tif).status_code == 201


def trickled(connection):
    """The response to a body of which a byte is sent now and then."""
    connection.settimeout(0.02)
    while True:
        with suppress(TimeoutError):
            connection.sendall(b"-")
            connection.recv(1, MSG_PEEK)
            connection.settimeout(60)
            return RawResponse(connection)


def test_an_upload_that_is_slow_but_steady_is_accepted(small, tif):
    answer = small.client.post("/scenes", content=slowly(tif, 20))
    assert answer.status_code == 201, answer.text


def slowly(content, pieces):
    """A body that takes two seconds."""
    length = -(-len(content) // pieces)
    for start in range(0, len(content), length):
        time.sleep(2 / pieces)
        yield content[start : start + length]


def test_each_key_has_one_demo_scene_of_its_own(client):
    anna, ben = {"X-API-Key": ANNA}, {"X-API-Key": BEN}
    made = client.post("/demo-scene", headers=anna)
    assert made.status_code == 201, made.text
    scene = made.json()
    assert (scene["name"], scene["rows"], scene["cols"], scene["bands"]) == ("demo.tif", 240, 240, 64)
    again = client.post("/demo-scene", headers=anna)
    assert (again.status_code, again.json()["id"]) == (200, scene["id"])
    assert client.get(f"/scenes/{scene['id']}", headers=ben).status_code == 404
    other = client.post("/demo-scene", headers=ben).json()["id"]
    assert other != scene["id"]
    assert client.delete(f"/scenes/{scene['id']}", headers=anna).status_code == 204
    assert client.post("/demo-scene", headers=anna).status_code == 201
