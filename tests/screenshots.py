"""Screenshots of the web page with the demo scene, wide and narrow, light and dark.

python -m tests.screenshots pictures/
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from hyperscene.service.commands.demo import SCENE
from hyperscene.training.data.synthetic import DEMO_SCENE, MATERIALS, make_scene, write_scene
from tests.labelling import STROKES, add_class, places, stroke, try_it, wait_for_live_map
from tests.programs import running_browser
from tests.server import RunningServer, running_server

JPEG = {"type": "jpeg", "quality": 70}  # those of the documentation
LABEL_SIZE = {"width": 1040, "height": 660}
SIZES = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 380, "height": 800}}


def main(folder: Path) -> None:
    """Take all screenshots."""
    folder.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=60_000)
    with tempfile.TemporaryDirectory() as work, running_server(Path(work) / "data") as server:
        scene = Path(work) / "scene.tif"
        write_scene(SCENE, scene, None)
        job_id = server.submit(scene)
        server.finished(job_id)
        with running_browser() as browser:
            take_labelling(browser, server, folder)
            for size in SIZES:
                for scheme in ("light", "dark"):
                    take(browser, server, job_id, folder, size, scheme)


def take(browser: Browser, server: RunningServer, job_id: str, folder: Path, size: str, scheme: str) -> None:
    """The start view, the map, and the map with swipe and a selected pixel."""
    page = browser.new_page(viewport=SIZES[size], color_scheme=scheme, device_scale_factor=1.5)
    name = f"{size}-{scheme}.png"
    page.goto(server.url)
    page.locator(".jobs a").first.scroll_into_view_if_needed()
    expect(page.locator(".jobs img").first).to_be_visible()
    page.evaluate("() => scrollTo(0, 0)")
    page.screenshot(path=folder / f"start-{name}", full_page=True)
    page.goto(f"{server.url}/#/jobs/{job_id}")
    expect(page.locator(".legend")).to_be_visible()
    settle(page)
    page.screenshot(path=folder / f"map-{name}")
    page.get_by_label("Swipe: scene left, map right").check()
    page.get_by_label("Row", exact=True).fill("92")
    page.get_by_label("Column", exact=True).fill("205")
    page.keyboard.press("Enter")
    expect(page.locator(".spectrum")).to_be_visible()
    settle(page)
    page.screenshot(path=folder / f"pixel-{name}", full_page=size == "narrow")
    page.close()


def take_labelling(browser: Browser, server: RunningServer, folder: Path) -> None:
    """Marking the demo scene: the first strokes, the map of all of them, and places to label next."""
    truth = make_scene(DEMO_SCENE)[1]
    page = browser.new_page(viewport=LABEL_SIZE)
    try_it(page, server)
    for material in MATERIALS:
        add_class(page, material.name)
    page.locator("h1").click()
    page.wait_for_timeout(15_000)  # the features are ready
    for strokes in ((0, 1), (1, STROKES)):
        for value in range(1, 9):
            page.keyboard.press(str(value))
            for row, col in places(truth, value)[slice(*strokes)]:
                stroke(page, row, col)
        wait_for_live_map(page)
        page.wait_for_timeout(2000)
        page.screenshot(path=folder / f"label-{'first' if strokes[0] == 0 else 'more'}.jpg", **JPEG)
    expect(page.locator(".estimate")).to_contain_text("right (")
    page.get_by_label("Opacity of the live map").fill("100")
    page.get_by_role("button", name="Where next?").click()
    expect(page.get_by_text("Place 1 of 10")).to_be_visible()
    page.wait_for_timeout(2000)
    page.screenshot(path=folder / "label-next.jpg", **JPEG)
    fragment = page.url.partition("#")[2]
    for size, scheme in (("narrow", "light"), ("wide", "dark")):
        other = browser.new_page(viewport=SIZES[size], color_scheme=scheme)
        other.goto(f"{server.url}/#{fragment}")
        expect(other.locator(".class-pick")).to_have_count(8)
        wait_for_live_map(other, is_full=size == "wide")
        other.wait_for_timeout(2000)
        other.screenshot(path=folder / f"label-{size}-{scheme}.png", full_page=size == "narrow")


def settle(page: Page) -> None:
    """Wait until all tiles are loaded and have faded in."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(800)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
