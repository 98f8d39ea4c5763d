"""axe-core checks every view of the page, light and dark, wide and narrow."""

from __future__ import annotations

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.scenes import quadrants, spectra_of, write_tif
from tests.server import running_server

pytestmark = pytest.mark.slow

WIDTHS = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 380, "height": 800}}


@pytest.fixture(scope="module")
def mapped(colored, tmp_path_factory):
    """A job whose map has a warning."""
    scene = write_tif(
        tmp_path_factory.mktemp("scene") / "field.tif", spectra_of(quadrants(40, 33), 5), crs=None,
        wavelengths_nm=np.linspace(450, 900, 5),
    )  # fmt: skip
    job_id = colored.submit(scene)
    assert colored.finished(job_id)["status"] == "successful"
    return job_id


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture(params=list(WIDTHS))
def view(request, scheme, open_page):
    return open_page(viewport=WIDTHS[request.param], color_scheme=scheme)


def findings(page: Page) -> list[str]:
    """Serious and critical violations of WCAG 2.2 A and AA, and of axe's best practices."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']} {[node['target'] for node in each['nodes']]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_axe_finds_nothing_serious_on_the_start_page(view, colored, mapped):
    view.goto(colored.url)
    view.locator(".jobs a").first.scroll_into_view_if_needed()
    expect(view.locator(".jobs img").first).to_be_visible()
    view.set_input_files("#files", {"name": "holiday.jpg", "mimeType": "image/jpeg", "buffer": b"no scene"})
    expect(view.locator("#file-check")).to_contain_text("holiday.jpg")
    assert findings(view) == []


def test_axe_finds_nothing_serious_on_a_map(view, colored, mapped):
    view.goto(f"{colored.url}/#/jobs/{mapped}")
    expect(view.locator(".legend")).to_be_visible()
    view.get_by_label("Row", exact=True).fill("5")
    view.get_by_label("Column", exact=True).fill("5")
    view.keyboard.press("Enter")
    expect(view.locator(".spectrum")).to_be_visible()
    view.get_by_label("Swipe: scene left, map right").check()
    view.get_by_label("Shown on the map").select_option("confidence")
    assert findings(view) == []
    view.get_by_role("button", name="Show only water").click()
    view.get_by_label("Second map beside it").check()
    view.get_by_text("Advanced").click()
    expect(view.locator(".map.second img").first).to_be_visible()
    assert findings(view) == []
    view.get_by_role("button", name="Dismiss this map").click()
    expect(view.get_by_role("dialog")).to_be_visible()
    assert findings(view) == []


def test_axe_finds_nothing_serious_while_a_scene_is_mapped(view, slow_server, large):
    job_id = slow_server.submit(large, stride_px="1")
    view.goto(f"{slow_server.url}/#/jobs/{job_id}")
    expect(view.locator("#progress-text")).to_contain_text("% mapped")
    expect(view.locator(".leaflet-tile-pane img").first).to_be_visible()
    assert findings(view) == []
    slow_server.client.delete(f"/jobs/{job_id}")
    expect(view.locator("main")).to_contain_text("This job was dismissed")
    assert findings(view) == []


def test_axe_finds_nothing_serious_on_an_error(view, colored):
    view.goto(f"{colored.url}/#/jobs/{'0' * 32}")
    expect(view.get_by_role("alert")).to_be_visible()
    assert findings(view) == []


def test_axe_finds_nothing_serious_in_the_key_dialog(view, tmp_path):
    with running_server(tmp_path / "data", HYPERSCENE_API_KEYS="right") as server:
        view.goto(server.url)
        expect(view.get_by_label("API key", exact=True)).to_be_visible()
        assert findings(view) == []


def test_axe_finds_nothing_serious_without_javascript(view, colored):
    view.route("**/page/main.js", lambda route: route.abort())  # axe is a script itself, so scripts have to run
    view.goto(colored.url)
    view.evaluate(
        "() => { const noscript = document.querySelector('noscript'); noscript.outerHTML = noscript.textContent; }"
    )
    expect(view.get_by_role("heading", name="Map a scene without JavaScript")).to_be_visible()
    assert findings(view) == []
