"""The web page over HTTP: content negotiation, security policy and files."""

import re

import pytest

from hyperscene.service.api.page import WEB, prefers_html
from tests.server import running_server

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.fixture(scope="module")
def response(server):
    return server.client.get("/", headers={"Accept": BROWSER})


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html;q=0.5", False),
        ("text/html;q=nonsense", False),
        ("TEXT/HTML", True),
    ],
)
def test_the_page_is_for_clients_that_prefer_html(accept, is_page):
    assert prefers_html(accept) is is_page


def test_browsers_get_the_page_and_other_clients_the_landing_document(client, response):
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    landing = client.get("/")
    assert landing.json()["title"] == "hyperscene"
    assert response.headers["vary"] == landing.headers["vary"] == "Accept"


def test_the_policy_allows_our_own_scripts_and_nothing_inline(response):
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"


def test_the_page_has_no_inline_script_style_or_handler(response):
    assert not re.search(r"<script(?![^>]*\ssrc=)", response.text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", response.text)


def test_every_file_of_the_page_has_a_relative_url(client, response):
    urls = re.findall(r'(?:src|href)="(page/[^"]+)"', response.text)
    assert len(urls) >= 5
    assert not re.search(r'(?:src|href)="(?:https?:)?/', response.text)
    for url in urls:
        found = client.get(f"/{url}")
        assert found.status_code == 200
        assert found.headers["cache-control"] == "no-cache"


def test_every_imported_module_exists(client):
    for module in WEB.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', module.read_text()):
            assert client.get(f"/page/{name}").headers["content-type"].startswith("text/javascript")


def test_a_file_outside_of_the_page_is_not_served(client):
    for name in ("../settings.py", "%2e%2e/settings.py", "leaflet/../../settings.py", "nothing.js"):
        response = client.get(f"/page/{name}")
        assert response.status_code == 404
        assert "HYPERSCENE" not in response.text


def test_html_in_the_host_header_is_escaped(client):
    response = client.get("/", headers={"Accept": BROWSER, "Host": 'x"><script>alert(1)</script>'})
    assert "<script>alert" not in response.text


@pytest.mark.slow
def test_the_page_needs_no_key_but_its_requests_do(tmp_path):
    with running_server(tmp_path / "data", HYPERSCENE_API_KEYS="right") as server:
        assert server.client.get("/", headers={"Accept": BROWSER}).status_code == 200
        assert server.client.get("/page/main.js").status_code == 200
        assert server.client.get("/").status_code == 401
        assert server.client.get("/models").status_code == 401


@pytest.mark.slow
def test_the_page_is_the_same_in_an_ascii_locale(tmp_path, response):
    with running_server(tmp_path / "data", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as server:
        found = server.client.get("/", headers={"Accept": BROWSER})
        assert found.status_code == 200
        assert found.text.replace(server.url, "") == response.text.replace(str(response.url).rstrip("/"), "")


def test_a_file_of_the_page_lists_its_methods(client):
    response = client.post("/page/main.js")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert response.json()["code"] == "method_not_allowed"


def test_the_policy_allows_images_of_the_basemaps_origin_only(tmp_path, client, response):
    assert "img-src 'self' blob: data:;" in response.headers["content-security-policy"]
    options = ("--basemap", "https://tiles.example.org:8443/a/{z}/{x}/{y}.png?k=1", "--basemap-attribution", "<b>A</b>")
    with running_server(tmp_path / "data", *options) as server:
        page = server.client.get("/", headers={"Accept": BROWSER})
        for answer in (page, server.client.get("/livez")):
            assert (
                "img-src 'self' blob: data: https://tiles.example.org:8443;"
                in answer.headers["content-security-policy"]
            )
        assert 'content="https://tiles.example.org:8443/a/{z}/{x}/{y}.png?k=1"' in page.text
        assert "&lt;b&gt;A&lt;/b&gt;" in page.text
        assert "<b>A" not in page.text
