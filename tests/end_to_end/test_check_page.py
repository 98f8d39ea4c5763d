"""A map is checked on the page in Chromium: sample, keys, progress, reports, comparison."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from rasterio.io import MemoryFile

from tests.scenes import WAVELENGTHS, quadrants, write_tif
from tests.server import wait_for

pytestmark = pytest.mark.slow

ROWS, COLS = 60, 50
TOTAL = 45


def values():
    """Spectra that the bundle of `colored` (tests/bundles.py) gives three classes, in quadrants."""
    weights = np.random.default_rng(0).normal(size=(5, 3))
    spectra = 0.5 + 0.3 * (weights / np.linalg.norm(weights, axis=0)).T
    noise = np.random.default_rng(1).normal(0, 0.02, (ROWS, COLS, 5))
    return (spectra[quadrants(ROWS, COLS, 3) - 1] + noise).astype(np.float32)


@pytest.fixture(scope="module")
def job(colored, tmp_path_factory):
    path = tmp_path_factory.mktemp("scene") / "field.tif"
    job_id = colored.submit(write_tif(path, values(), wavelengths_nm=WAVELENGTHS))
    assert colored.finished(job_id)["status"] == "successful"
    return job_id


@pytest.fixture(scope="module")
def truth(colored, job):
    """The true class of each pixel: that of the map, but for a tenth."""
    with MemoryFile(colored.client.get(f"/jobs/{job}/results/classes.tif").content) as file, file.open() as raster:
        classes = raster.read(1)
    generator = np.random.default_rng(3)
    return np.where(generator.random(classes.shape) < 0.1, generator.integers(1, 4, classes.shape), classes)


def status(page: Page):
    return page.locator(".check-status")


def test_a_map_is_mapped_sampled_checked_and_reported_with_the_true_areas_inside(colored, job, truth, page):
    page.goto(f"{colored.url}/#/jobs/{job}")
    page.get_by_role("link", name="Check this map").click()
    page.get_by_label("Your name").fill("anna")
    page.get_by_label("Number of places").fill(str(TOTAL))
    page.get_by_label("At least per class").fill("8")
    page.get_by_role("button", name="Draw the sample").click()
    expect(status(page)).to_have_text(f"Place 1 of {TOTAL}, 0 answered")
    expect(page.locator(".spectrum")).to_be_visible()
    points = colored.client.get(f"/jobs/{job}/sample").json()["points"]
    for point in points[:10]:
        page.keyboard.press(str(truth[point["row"], point["col"]]))
        expect(status(page)).to_contain_text(f"{point['number']} answered")
    page.reload()  # the progress is on the server
    page.get_by_role("button", name="Go on").click()
    expect(status(page)).to_have_text(f"Place 11 of {TOTAL}, 10 answered")
    for point in points[10:]:
        page.keyboard.press(str(truth[point["row"], point["col"]]))
        expect(status(page)).to_contain_text(f"{point['number']} answered")
    expect(status(page)).to_contain_text("all done")
    with page.expect_download() as download:
        page.get_by_role("button", name="Accuracy report").click()
    assert "Area of each class" in download.value.path().read_text()
    document = colored.client.get(f"/jobs/{job}/accuracy").json()
    true_hectares = [(truth == value).sum() * 0.09 for value in (1, 2, 3)]
    inside = [
        entry["area_hectares"]["low"] <= hectares <= entry["area_hectares"]["high"]
        for entry, hectares in zip(document["classes"], true_hectares, strict=True)
    ]
    assert sum(inside) >= 2  # each holds 95 times of 100


def test_an_answer_is_changed_and_cannot_tell_has_a_key(colored, job, truth, page):
    page.goto(f"{colored.url}/#/jobs/{job}/check")
    page.get_by_label("Your name").fill("ben")
    page.get_by_role("button", name="Go on").click()
    expect(status(page)).to_contain_text("Place 1 of")
    page.keyboard.press("0")
    expect(status(page)).to_contain_text("Place 2 of")
    page.keyboard.press("PageUp")
    expect(page.get_by_role("button", name="cannot tell")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="meadow").click()
    expect(status(page)).to_contain_text("Place 2 of")
    answers = colored.client.get(f"/jobs/{job}/sample/answers/ben").json()["answers"]
    assert answers == {"1": "meadow"}


def test_two_maps_are_compared_side_by_side_and_move_together(colored, job, page, tmp_path):
    changed = values()
    changed[10:20, 5:15] = changed[40, 10]
    other = colored.submit(write_tif(tmp_path / "later.tif", changed, wavelengths_nm=WAVELENGTHS))
    assert colored.finished(other)["status"] == "successful"
    page.goto(f"{colored.url}/#/jobs/{job}")
    page.get_by_label("Compare with").select_option(other)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", name="Compare two maps")).to_be_visible()
    found = colored.client.get(f"/jobs/{job}/comparison/{other}").json()
    expect(page.locator("main")).to_contain_text(f"{found['changed_pixels']} of {ROWS * COLS:,} pixels changed")
    maps = page.locator(".linked-maps .map")
    expect(maps).to_have_count(2)
    expect(maps.nth(1).locator(".leaflet-result-pane img").first).to_be_visible()
    place = "(image) => image.getBoundingClientRect().x"
    tile = maps.nth(1).locator(".leaflet-result-pane img").first
    before = tile.evaluate(place)
    maps.nth(0).focus()
    page.keyboard.press("ArrowRight")
    wait_for(lambda: abs(tile.evaluate(place) - before) > 20)
