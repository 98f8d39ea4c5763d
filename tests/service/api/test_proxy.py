"""Behind nginx with deploy/nginx/hyperscene.conf: uploads, events, ranges, links and errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import httpx
import numpy as np
import pytest
import rasterio

from hyperscene.model.bundle import DEMO_BUNDLE
from hyperscene.service.mapping.output import RESULTS
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.cluster import free_port
from tests.programs import running_browser
from tests.proxy import OPENSSL, accepts_tls, running_proxy
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import part, running_server, wait_for
from tests.service.api.test_jobs_calls import events_of
from tests.service.jobs.test_large_uploads import zeros
from tests.uploads import RawResponse, form_part, request_head, striped_tiff_start, wavelength_tags

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nginx,
    pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed"),
]

MB = 1_000_000
KEY = "a-key-of-the-test"
WITH_KEY = {"X-API-Key": KEY}
ROWS, COLS = 6000, 10_000  # of five bands, 300 MB
MOST_BYTES = 320 * MB
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def server(tmp_path_factory, bundle_folder):
    """A server that requires a key, with a fast and a slow bundle."""
    folder = tmp_path_factory.mktemp("behind")
    bundles = shutil.copytree(bundle_folder, folder / "bundles")
    shutil.copy(DEMO_BUNDLE, bundles / "demo.onnx")
    options = ("--bundles", bundles, "--model", "pixel", "--device", "cpu", "--strip-px", 16)
    limits = ("--max-upload-bytes", MOST_BYTES, "--headers-after-s", 0.5)
    with running_server(folder / "data", *options, *limits, HYPERSCENE_API_KEYS=KEY) as running:
        running.client.headers.update(WITH_KEY)
        yield running


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    with running_proxy(tmp_path_factory.mktemp("proxy") / "nginx", server.url) as running:
        yield running
        assert "buffered to a temporary file" not in running.errors()  # nginx's warning


@pytest.fixture
def client(proxy):
    """A client of the proxy, with a key."""
    with httpx.Client(base_url=proxy.url, verify=proxy.tls, timeout=120, trust_env=False, headers=WITH_KEY) as caller:
        yield caller


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    values = np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", values, wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """At least a minute of work for the demo bundle at stride 1."""
    path = tmp_path_factory.mktemp("scene") / "large.tif"
    write_scene(SyntheticScene(rows=200, cols=200, seed=3), path, None)
    return path


@pytest.fixture(scope="module")
def job_id(server, tif):
    """A finished job."""
    job_id = server.submit(tif)
    assert server.finished(job_id)["status"] == "successful"
    return job_id


@pytest.fixture
def unoccupied(server):
    """Dismisses the jobs that a test leaves behind."""
    yield
    for job in server.client.get("/jobs?status=accepted&status=running").json()["jobs"]:
        server.client.delete(f"/jobs/{job['jobID']}")


@pytest.fixture
def slow_job(server, large, unoccupied):
    """A job that runs during the whole test."""
    return server.submit(large, model="demo", stride_px="1")


def incoming_bytes(server):
    return sum(path.stat().st_size for path in (server.data / "incoming").rglob("*") if path.is_file())


def refused(response, status, code):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    problem = json.loads(response.text)
    assert (problem["status"], problem["code"]) == (status, code)
    assert set(problem) == {"type", "title", "status", "detail", "code"}
    return problem


# Uploads


class Sender:
    """A scene of 300 MB, generated during the upload; observes the server and the proxy's disk."""

    def __init__(self, server, proxy):
        self._server, self._proxy = server, proxy
        self.head = striped_tiff_start(
            (ROWS, COLS, len(WAVELENGTHS)), rows_per_strip=100, description=wavelength_tags(WAVELENGTHS)
        )
        self.length = len(self.head) + ROWS * COLS * len(WAVELENGTHS)
        self.arrived, self.kept = [], set()

    def __iter__(self):
        yield self.head
        for number, piece in enumerate(zeros(self.length - len(self.head))):
            yield piece
            self.kept |= set(self._proxy.buffered())
            if number % 100 == 99:  # of the last 100 MB, most must have arrived
                least = (number - 20) * len(piece)
                self.arrived.append(wait_for(lambda least=least: incoming_bytes(self._server) > least))


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_upload_is_streamed_through_the_proxy(server, proxy, client, is_chunked):
    sender = Sender(server, proxy)
    headers = {"Content-Type": "image/tiff"} | ({} if is_chunked else {"Content-Length": str(sender.length)})
    response = client.post("/scenes", content=iter(sender), headers=headers)
    assert response.status_code == 201, response.text
    assert response.json()["size_bytes"] == sender.length > 290 * MB
    assert len(sender.arrived) >= 2
    assert sender.kept == set()
    assert response.headers["location"].startswith(f"{proxy.url}/scenes/")
    assert client.delete(response.headers["location"]).status_code == 204


def test_the_server_refuses_a_scene_during_its_upload(server, proxy, client):
    sent = 0

    def body():
        nonlocal sent
        for piece in zeros(3 * MOST_BYTES):
            sent += len(piece)
            yield piece

    # Chunked, so that the length is not known in advance.
    response = client.post("/scenes", content=body(), headers={"Content-Type": "image/tiff"})
    assert str(MOST_BYTES) in refused(response, 413, "scene_too_large")["detail"]
    assert sent > MOST_BYTES
    assert proxy.buffered() == []


def test_a_stalled_upload_gets_the_servers_timeout_error(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--upload-idle-s", 1)
    with (
        running_server(tmp_path / "data", *options) as server,
        running_proxy(tmp_path / "nginx", server.url) as proxy,
        proxy.connected() as connection,
    ):
        connection.sendall(request_head("/classify", 10 * MB) + form_part(b"II*\0"))
        refused(RawResponse(connection), 408, "upload_too_slow")


# Slow responses


def test_events_arrive_immediately(server, client, slow_job):
    seen = []
    for _, job in events_of(client, slow_job):
        seen.append(job)
        if job["status"] == "running" and job["patches_done"] > seen[0].get("patches_done", 0):
            assert server.job(slow_job)["status"] == "running"  # the event arrived before the end
            server.client.delete(f"/jobs/{slow_job}")
    assert seen[-1]["status"] == "dismissed"
    assert len(seen) >= 3


def test_the_jobs_url_arrives_before_the_map(proxy, client, large, unoccupied):
    form = {"model": "demo", "stride_px": "1"}
    with client.stream("POST", "/classify", files={"scene": part(large)}, data=form) as response:
        assert response.status_code == 200
        url = response.headers["location"]
        assert url.startswith(f"{proxy.url}/jobs/")
        with httpx.Client(verify=proxy.tls, headers=WITH_KEY, trust_env=False) as other:
            assert other.get(url).json()["status"] == "running"
            assert other.delete(url).json()["status"] == "dismissed"
        with pytest.raises(httpx.RemoteProtocolError):  # cut off, not a complete map
            response.read()


def test_a_synchronous_request_returns_the_map(server, client, tif, job_id):
    response = client.post("/classify", files={"scene": part(tif)})
    assert response.status_code == 200
    assert response.content == server.client.get(f"/jobs/{job_id}/results/classes.tif").content


# Files


def test_a_range_request_returns_only_that_range(server, client, job_id):
    url = f"/jobs/{job_id}/results/probabilities.tif"
    whole = server.client.get(url)
    some = client.get(url, headers={"Range": "bytes=4-1003"})
    assert some.status_code == 206
    assert some.content == whole.content[4:1004]
    assert some.headers["content-range"] == f"bytes 4-1003/{len(whole.content)}"
    assert some.headers["etag"] == whole.headers["etag"]
    changed = client.get(url, headers={"Range": "bytes=4-1003", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, whole.content)
    assert client.get(url, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


def test_head_returns_the_size(server, client, job_id):
    url = f"/jobs/{job_id}/results/probabilities.tif"
    head = client.head(url)
    assert head.headers["content-length"] == str(len(server.client.get(url).content))
    assert head.headers["accept-ranges"] == "bytes"


def test_gdal_reads_a_result_in_place(server, proxy, job_id):
    options = {
        "GDAL_HTTP_UNSAFESSL": "YES",
        "GDAL_HTTP_HEADERS": f"X-API-Key: {KEY}",
        "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    }
    with rasterio.Env(**options), rasterio.open(f"/vsicurl/{proxy.url}/jobs/{job_id}/results/classes.tif") as remote:
        seen = remote.read(1)
    with rasterio.open(server.data / "jobs" / job_id / "results" / "classes.tif") as local:
        np.testing.assert_array_equal(seen, local.read(1))


# Links


def hrefs(document):
    """Every URL in a document."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("href", "tiles"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from hrefs(value)
    elif isinstance(document, list):
        for value in document:
            yield from hrefs(value)


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/jobs/{job}", "/jobs/{job}/results", "/jobs/{job}/tilejson.json", "/models"]
)
def test_links_begin_with_the_public_url(proxy, client, job_id, path):
    found = [href for href in hrefs(client.get(path.format(job=job_id)).json()) if "opengis.net" not in href]
    assert found
    assert [href for href in found if not href.startswith(f"{proxy.url}/")] == []


def test_forwarded_headers_of_clients_do_not_change_links(proxy, client, job_id):
    claims = {
        "X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example", "X-Forwarded-For": "192.0.2.7",
        "Forwarded": "host=evil.example;proto=http",
    }  # fmt: skip
    links = client.get(f"/jobs/{job_id}", headers=claims).json()["links"]
    assert {link["href"].split("/jobs/")[0] for link in links} == {proxy.url}


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ((), "http://localhost:{port}/"),  # an untrusted proxy's Host is used, its scheme is not
        (("--public-url", "https://maps.example/"), "https://maps.example/"),
    ],
)
def test_behind_an_untrusted_proxy_links_need_the_public_url_setting(tmp_path, bundle_folder, options, start):
    options = ("--bundles", bundle_folder, "--device", "cpu", "--trusted-proxies", "192.0.2.1", *options)
    with running_server(tmp_path / "data", *options) as server, running_proxy(tmp_path / "nginx", server.url) as proxy:
        assert proxy.client.get("/").json()["links"][0]["href"] == start.format(port=proxy.port)


def test_the_service_can_be_served_under_a_path(tmp_path, bundle_folder):
    port = free_port()
    public = f"https://localhost:{port}/maps/"
    options = ("--bundles", bundle_folder, "--device", "cpu", "--public-url", public)
    with (
        running_server(tmp_path / "data", *options) as server,
        running_proxy(tmp_path / "nginx", server.url, port, "/maps/") as proxy,
    ):
        assert proxy.client.get("/maps/").json()["links"][0]["href"] == public
        page = proxy.client.get("/maps/", headers={"Accept": "text/html"}).text
        files = re.findall(r'(?:src|href)="(page/[^"]+)"', page)
        assert len(files) >= 3
        for file in files:
            assert proxy.client.get(f"/maps/{file}").status_code == 200
        refused(proxy.client.get("/maps/metrics"), 403, "forbidden")


# The page


def test_a_browser_gets_the_page_and_its_files(proxy):
    response = proxy.client.get("/", headers={"Accept": "text/html"})
    assert response.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in response.headers["content-security-policy"]
    assert f"{proxy.url}/classify" in response.text
    for path in ("page/main.js", "page/style.css", "page/leaflet/leaflet.js"):
        assert proxy.client.get(f"/{path}").status_code == 200


@pytest.mark.chromium
def test_the_page_maps_a_scene_through_the_proxy(proxy, tif):
    faults = []
    with running_browser() as browser:
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None,
        )
        page.goto(proxy.url)
        page.get_by_label("API key", exact=True).fill(KEY)
        page.get_by_role("button", name="Use this key").click()
        page.set_input_files("#files", str(tif))
        page.get_by_role("button", name="Map it").click()
        page.locator(".legend").wait_for()
        page.locator(".leaflet-tile-loaded").first.wait_for()
    assert faults == []


# Access


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_http_is_redirected_to_https_with_path_and_method(proxy, method):
    response = httpx.request(method, f"{proxy.http_url}/jobs?limit=3&status=failed", trust_env=False)
    assert response.status_code == 308
    assert response.headers["location"] == f"{proxy.url}/jobs?limit=3&status=failed"


def test_https_responses_have_hsts(client):
    for path in ("/livez", "/metrics", "/nothing"):
        assert client.get(path).headers["strict-transport-security"] == "max-age=31536000"


def test_old_versions_of_tls_are_refused(proxy):
    spoken = {version: accepts_tls(proxy, version) for version in ("tls1", "tls1_1", "tls1_2", "tls1_3")}
    assert spoken == {"tls1": False, "tls1_1": False, "tls1_2": True, "tls1_3": True}


@pytest.mark.parametrize("path", ["/metrics", "/metrics?x=1", "//metrics", "/x/../metrics", "/%6Detrics", "/metrics#x"])
def test_metrics_are_available_inside_only(server, proxy, path):
    with proxy.connected() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n".encode())
        refused(RawResponse(connection), 403, "forbidden")
    assert "hyperscene_jobs_pending" in server.client.get("/metrics").text


def test_a_key_is_accepted_in_either_header(proxy):
    assert proxy.client.get("/models", headers=WITH_KEY).status_code == 200
    assert proxy.client.get("/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


# Errors


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/models", {"X-API-Key": "wrong"}, 401),
        ("GET", "/nothing", {}, 404),
        ("PUT", "/classify", {}, 405),
        ("GET", "/jobs?limit=many", {}, 422),
    ],
)
def test_error_responses_of_the_server_pass_unchanged(server, client, method, path, headers, status):
    outside, inside = (caller.request(method, path, headers=headers) for caller in (client, server.client))
    assert outside.status_code == inside.status_code == status
    assert outside.content == inside.content
    for name in ("content-type", "www-authenticate", "allow", "x-content-type-options"):
        assert outside.headers.get(name) == inside.headers.get(name)


@pytest.mark.parametrize("key", [KEY, "wrong"])
def test_the_server_refuses_an_upload_before_its_body(proxy, key):
    with proxy.connected() as connection:
        connection.sendall(request_head("/classify", MOST_BYTES + MB, X_API_Key=key))
        response = RawResponse(connection)
    if key == KEY:
        assert str(MOST_BYTES) in refused(response, 413, "scene_too_large")["detail"]
    else:
        refused(response, 401, "unauthorized")


def test_a_body_above_the_proxys_limit_gets_a_problem_document(proxy):
    with proxy.connected() as connection:
        connection.sendall(request_head("/classify", 61 << 30, X_API_Key=KEY))
        assert "proxy" in refused(RawResponse(connection), 413, "scene_too_large")["detail"]


def test_an_upload_of_fifty_gigabytes_reaches_the_server(proxy):
    with proxy.connected() as connection:
        connection.sendall(request_head("/classify", 50 * 10**9 + MB, X_API_Key=KEY))
        assert str(MOST_BYTES) in refused(RawResponse(connection), 413, "scene_too_large")["detail"]


# An unreachable server


def test_an_unreachable_server_gets_a_problem_document_and_the_client_retries(tmp_path, tif, bundle_folder):
    port = free_port()
    with running_proxy(tmp_path / "nginx", f"127.0.0.1:{port}") as proxy:
        response = proxy.client.get("/readyz")
        assert "try again" in refused(response, 503, "not_ready")["detail"]
        assert response.headers["retry-after"] == "10"
        assert refused(proxy.client.post("/classify", files={"scene": part(tif)}), 503, "not_ready")
        command = [sys.executable, "-m", "hyperscene.service.cli", "classify", str(tif), "-o", str(tmp_path / "map")]
        waiting = subprocess.Popen(
            [*command, "--server", proxy.url], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"SSL_CERT_FILE": str(proxy.certificate)},
        )  # fmt: skip
        wait_for(lambda: (proxy.folder / "access.log").read_text().count("POST /classify") >= 2)
        with running_server(tmp_path / "data", "--port", port, "--bundles", bundle_folder, "--model", "pixel"):
            output = waiting.communicate(timeout=120)
        assert waiting.returncode == 0, output
        assert "the service does not respond" in "".join(output)
        assert {path.name for path in (tmp_path / "map").iterdir()} == set(RESULTS)
