"""Screenshots of the web page with the demo scene, wide and narrow, light and dark.

python -m tests.screenshots pictures/
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from hyperscene.service.commands.demo import SCENE
from hyperscene.training.data.synthetic import write_scene
from tests.programs import running_browser
from tests.server import RunningServer, running_server

SIZES = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 380, "height": 800}}


def main(folder: Path) -> None:
    """Take all screenshots."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, running_server(Path(work) / "data") as server:
        scene = Path(work) / "scene.tif"
        write_scene(SCENE, scene, None)
        job_id = server.submit(scene)
        server.finished(job_id)
        with running_browser() as browser:
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


def settle(page: Page) -> None:
    """Wait until all tiles are loaded and have faded in."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(800)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
