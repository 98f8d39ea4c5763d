"""The page over HTTP: who gets it, with which policy, and the files that it is made of."""

import re

import pytest

from service.api.page import WEB, wants_page
from tests.server import running_server

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.fixture(scope="module")
def answer(server):
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
def test_the_page_is_for_those_who_would_rather_have_html(accept, is_page):
    assert wants_page(accept) is is_page


def test_a_browser_gets_the_page_and_everybody_else_the_landing_document(client, answer):
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    landing = client.get("/")
    assert landing.json()["title"] == "hyperscene"
    assert answer.headers["vary"] == landing.headers["vary"] == "Accept"


def test_the_policy_allows_our_own_scripts_and_nothing_inline(answer):
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"


def test_the_page_holds_no_inline_script_style_or_handler(answer):
    assert not re.search(r"<script(?![^>]*\ssrc=)", answer.text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", answer.text)


def test_every_file_of_the_page_is_served_from_here_by_a_relative_address(client, answer):
    addresses = re.findall(r'(?:src|href)="(page/[^"]+)"', answer.text)
    assert len(addresses) >= 5
    assert not re.search(r'(?:src|href)="(?:https?:)?/', answer.text)
    for address in addresses:
        found = client.get(f"/{address}")
        assert found.status_code == 200
        assert found.headers["cache-control"] == "no-cache"


def test_every_module_that_a_module_imports_is_there(client):
    for module in WEB.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', module.read_text()):
            assert client.get(f"/page/{name}").headers["content-type"].startswith("text/javascript")


def test_a_file_outside_of_the_page_is_not_served(client):
    for name in ("../settings.py", "%2e%2e/settings.py", "leaflet/../../settings.py", "nothing.js"):
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 404
        assert "HYPERSCENE" not in answer.text


def test_an_address_that_holds_html_stays_text(client):
    answer = client.get("/", headers={"Accept": BROWSER, "Host": 'x"><script>alert(1)</script>'})
    assert "<script>alert" not in answer.text


def test_the_page_is_open_where_its_calls_want_a_key(tmp_path):
    with running_server(tmp_path / "data", HYPERSCENE_API_KEYS="right") as server:
        assert server.client.get("/", headers={"Accept": BROWSER}).status_code == 200
        assert server.client.get("/page/main.js").status_code == 200
        assert server.client.get("/").status_code == 401
        assert server.client.get("/models").status_code == 401


def test_the_page_is_the_same_on_a_machine_that_knows_ascii_alone(tmp_path, answer):
    with running_server(tmp_path / "data", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as server:
        found = server.client.get("/", headers={"Accept": BROWSER})
        assert found.status_code == 200
        assert found.text.replace(server.url, "") == answer.text.replace(str(answer.url).rstrip("/"), "")


def test_a_file_of_the_page_says_which_methods_it_knows(client):
    answer = client.post("/page/main.js")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json()["code"] == "method_not_allowed"
