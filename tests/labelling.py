"""Marking the demo scene in the page, for tests, pictures and measurements."""

from __future__ import annotations

import re

import numpy as np
from playwright.sync_api import Page, expect

from tests.server import RunningServer

STROKES = 5  # in each class
REACH = 4  # columns on each side of a stroke's middle
SAVED = "All labels are saved."


def places(truth: np.ndarray, value: int) -> list[tuple[int, int]]:
    """Middles of strokes that stay inside fields of a class, at random."""
    own = np.pad(truth == value, ((2, 2), (REACH + 2, REACH + 2)))
    rows, cols = truth.shape
    parts = [own[r : r + rows, c : c + cols] for r in range(5) for c in range(2 * REACH + 5)]
    inside = np.argwhere(np.logical_and.reduce(parts))
    return [(int(row), int(col)) for row, col in np.random.default_rng(value).permutation(inside)[:STROKES]]


def point(page: Page, row: float, col: float) -> tuple[float, float]:
    """Where a pixel of the scene is on the screen, while the whole scene is shown."""
    box = page.locator("canvas.labels").bounding_box()
    return box["x"] + box["width"] * (col + 0.5) / 240, box["y"] + box["height"] * (row + 0.5) / 240


def stroke(page: Page, row: int, col: int, reach: int = REACH) -> None:
    page.mouse.move(*point(page, row, col - reach))
    page.mouse.down()
    page.mouse.move(*point(page, row, col + reach), steps=3)
    page.mouse.up()


def try_it(page: Page, server: RunningServer) -> None:
    scene = server.client.post("/demo-scene").json()["id"]  # one for all tests of a server: without old labels
    labels = f"/scenes/{scene}/labels"
    etag = server.client.get(labels, params={"format": "json"}).headers["etag"]
    server.client.put(labels, json={"classes": []}, headers={"If-Match": etag}).raise_for_status()
    page.goto(server.url)
    page.get_by_role("button", name="Label the demo scene").click()
    expect(page.get_by_role("heading", name="Label demo.tif")).to_be_visible()
    expect(page.locator(".saved")).to_have_text(SAVED)


def add_class(page: Page, name: str) -> None:
    page.get_by_label("New class").fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name=re.compile(f"^{name}"))).to_be_visible()


def wait_for_live_map(page: Page, *, is_full: bool = True) -> None:
    """Wait until the live map shows the saved labels, at the scene's resolution if `is_full`."""
    expect(page.locator(".saved")).to_have_text(SAVED)
    etag = page.locator(".saved").get_attribute("data-etag")
    expect(page.locator(".leaflet-container")).to_have_attribute("data-etag", etag)
    if is_full:
        expect(page.locator(".leaflet-container")).to_have_attribute("data-scale", "1")
