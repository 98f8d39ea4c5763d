"""Labelling in Chromium: marks become a map at once, survive a reload and a kill, and work by keyboard and touch."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from hyperscene.training.data.synthetic import DEMO_SCENE, MATERIALS, make_scene
from tests.labelling import SAVED, add_class, places, point, stroke, try_it, wait_for_live_map
from tests.server import running_server

pytestmark = pytest.mark.slow

READ_CANVAS = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return { width: canvas.width, height: canvas.height, data: Array.from(data) };
}"""


@pytest.fixture(scope="module")
def truth():
    return make_scene(DEMO_SCENE)[1]


@pytest.fixture(scope="module")
def options(bundle_folder):
    return ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory, options):
    with running_server(tmp_path_factory.mktemp("labels") / "data", *options) as running:
        yield running


def counts(page: Page) -> list[str]:
    return page.locator(".class-pick").all_inner_texts()


def shown_classes(page: Page) -> np.ndarray:
    """The class at each pixel of the live map, from its colours on the screen."""
    found = page.locator("canvas.live").evaluate(READ_CANVAS)
    colors = np.array(found["data"]).reshape(found["height"], found["width"], 4)
    swatches = page.locator(".class-pick .swatch").evaluate_all(
        "all => all.map(e => getComputedStyle(e).backgroundColor)"
    )
    classes = np.zeros(colors.shape[:2], int)
    for value, text in enumerate(swatches, start=1):
        classes[(colors[..., :3] == [int(part) for part in re.findall(r"\d+", text)]).all(axis=-1)] = value
    return classes


def test_eight_classes_with_five_strokes_each_give_the_map(page, server, truth):
    try_it(page, server)
    for material in MATERIALS:
        add_class(page, material.name)
    page.locator("h1").click()
    for value in range(1, 9):
        page.keyboard.press(str(value))
        for row, col in places(truth, value):
            stroke(page, row, col)
    expect(page.locator(".saved")).to_have_text(SAVED)
    expect(page.locator(".estimate")).to_contain_text("right (")
    wait_for_live_map(page)
    classes = shown_classes(page)
    assert classes.shape == truth.shape
    assert (classes == truth)[truth > 0].mean() >= 0.85
    before = counts(page)
    page.get_by_role("button", name="Where next?").click()
    expect(page.get_by_text("Place 1 of 10")).to_be_visible()
    page.reload()
    expect(page.locator(".class-pick").first).to_contain_text("water")
    assert counts(page) == before


def test_what_was_shown_as_saved_survives_a_kill_between_two_strokes(page, options, tmp_path):
    with running_server(tmp_path / "data", *options) as first:
        try_it(page, first)
        add_class(page, "reed")
        stroke(page, 100, 120)
        expect(page.locator(".saved")).to_have_text(SAVED)
        before = counts(page)
        assert before[0].startswith("reed")
        assert " 0 px" not in before[0]
        first.stop(signal.SIGKILL)
        stroke(page, 150, 120)
        expect(page.locator(".saved")).to_contain_text("not saved yet")
    fragment = page.url.partition("#")[2]
    with running_server(tmp_path / "data", *options) as second:
        page.goto("about:blank")
        page.goto(f"{second.url}/#{fragment}")
        expect(page.locator(".class-pick")).to_have_count(1)
        assert counts(page) == before


def test_strokes_are_undone_erased_and_redone(page, server):
    try_it(page, server)
    add_class(page, "reed")
    page.locator("h1").click()
    stroke(page, 100, 120)
    drawn = counts(page)
    page.keyboard.press("e")
    stroke(page, 100, 120)
    expect(page.locator(".class-pick")).to_contain_text("0 px")
    page.keyboard.press("Control+z")
    assert counts(page) == drawn
    page.keyboard.press("Control+y")
    expect(page.locator(".class-pick")).to_contain_text("0 px")
    expect(page.locator(".saved")).to_have_text(SAVED)


def test_shapes_are_filled(page, server):
    try_it(page, server)
    add_class(page, "reed")
    page.get_by_role("button", name="Rectangle").click()
    page.mouse.move(*point(page, 50, 50))
    page.mouse.down()
    page.mouse.move(*point(page, 54, 59), steps=2)
    page.mouse.up()
    expect(page.locator(".class-pick")).to_contain_text("50 px")
    page.get_by_role("button", name="Polygon").click()
    for row, col in ((100.0, 100.0), (100.0, 110.0), (110.0, 110.0), (110.0, 100.0)):
        page.mouse.click(*point(page, row - 0.5, col - 0.5))
    page.keyboard.press("Enter")
    expect(page.locator(".class-pick")).to_contain_text("150 px")
    page.get_by_role("button", name="Point", exact=True).click()
    page.mouse.click(*point(page, 200, 200))
    expect(page.locator(".class-pick")).to_contain_text("151 px")


def test_classes_are_renamed_merged_and_removed(page, server):
    try_it(page, server)
    for name in ("reed", "sedge", "water"):
        add_class(page, name)
    page.get_by_label("Row", exact=True).fill("5")
    page.get_by_label("Column", exact=True).fill("50")
    page.get_by_role("button", name="Mark it").click()
    expect(page.locator(".class-pick").nth(2)).to_contain_text("1 px")
    page.get_by_role("button", name="Edit sedge").click()
    page.get_by_label("Name", exact=True).fill("rush")
    page.keyboard.press("Tab")
    expect(page.locator(".class-pick").nth(1)).to_contain_text("rush")
    page.get_by_role("button", name="Edit water").click()
    page.get_by_label("Merge into").select_option(label="reed")
    expect(page.locator(".class-pick")).to_have_count(2)
    expect(page.locator(".class-pick").first).to_contain_text("1 px")
    page.keyboard.press("Control+z")
    expect(page.locator(".class-pick")).to_have_count(3)
    expect(page.locator(".saved")).to_have_text(SAVED)


def test_two_tabs_do_not_overwrite_each_other(open_page, server):
    one, other = open_page(), open_page()
    try_it(one, server)
    add_class(one, "reed")
    expect(one.locator(".saved")).to_have_text(SAVED)
    other.goto(one.url)
    expect(other.locator(".class-pick")).to_have_count(1)
    stroke(one, 100, 120)
    expect(one.locator(".saved")).to_have_text(SAVED)
    stroke(other, 150, 120)
    expect(other.get_by_role("alert")).to_contain_text("changed elsewhere")
    other.get_by_role("button", name="Show the other labels").click()
    expect(other.locator(".saved")).to_have_text(SAVED)
    assert counts(other) == counts(one)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 380)])
def test_axe_finds_nothing_serious_in_the_label_view(open_page, server, scheme, width):
    page = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=width < 500)
    try_it(page, server)
    for name in ("reed", "water"):
        add_class(page, name)
        stroke(page, 100 if name == "reed" else 150, 120)
    page.get_by_role("button", name="Edit reed").click()
    expect(page.locator(".leaflet-tile-pane img").first).to_be_visible()
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in serious] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
