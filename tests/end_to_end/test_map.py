"""The tools of a map in Chromium: fit, coordinates, scale, north, legend, second map, picture, basemap."""

from __future__ import annotations

import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
from onnx.numpy_helper import to_array
from playwright.sync_api import Page, expect
from rasterio.crs import CRS
from rasterio.transform import from_origin

from hyperscene.service.mapping.png import png_of_colors
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.bundles import pixel_graph, write_bundle
from tests.end_to_end.test_page import COLS, ROWS, open_job, send, values, wait_for_map
from tests.scenes import GRID, WAVELENGTHS, quadrants, write_tif
from tests.server import running_server, wait_for
from tests.tiles import rgba

pytestmark = pytest.mark.slow

REST_S = 0.12  # of the pointer, before the server is asked
PIXEL_M = 30.0  # of the scenes with GRID
TILES = '[...document.querySelectorAll(".leaflet-result-pane img")]'


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    return write_tif(tmp_path_factory.mktemp("map") / "field.tif", three_classes(), wavelengths_nm=WAVELENGTHS)


def three_classes() -> np.ndarray:
    """A cube in which the bundle of the tests finds all its classes."""
    spectra = np.random.default_rng(1).uniform(0.1, 0.9, (500, 5)).astype(np.float32)
    (weights,) = (to_array(each) for each in pixel_graph().graph.initializer)
    margins = [spectra @ (2 * weights[:, value] - weights.sum(axis=1)) for value in range(3)]
    library = np.array([spectra[margin.argmax()] for margin in margins])
    return library[quadrants(ROWS, COLS, 3) - 1]


@pytest.fixture(scope="module")
def mapped(colored, tif):
    """The id of a finished job."""
    return finished(colored, tif)


def finished(server, path) -> str:
    job_id = server.submit(path)
    assert server.finished(job_id)["status"] == "successful"
    return job_id


def point_at(page: Page, right: float, down: float) -> None:
    """Move the pointer to a part of the map's box."""
    box = page.locator(".map").bounding_box()
    page.mouse.move(box["x"] + right * box["width"], box["y"] + down * box["height"])


def read_out(page: Page) -> tuple[str, int, int]:
    """The line below the map, and its row and column."""
    text = page.locator(".readout .where").inner_text()
    row, col = re.search(r"row (\d+), column (\d+)", text).groups()
    return text, int(row), int(col)


# Fit


def test_a_button_fits_the_scene_again(page, colored, mapped):
    open_job(page, colored, mapped)
    before = page.locator(".scale-bar").inner_text()
    page.locator(".map").focus()
    for _ in range(4):
        page.keyboard.press("+")
        page.wait_for_timeout(300)
    expect(page.locator(".scale-bar")).not_to_have_text(before)
    page.get_by_role("button", name="Fit to scene").click()
    expect(page.locator(".scale-bar")).to_have_text(before)


def test_the_map_is_fitted_again_when_its_job_ends(page, slow_server, tmp_path):
    path = tmp_path / "some.tif"
    write_scene(SyntheticScene(rows=120, cols=120, seed=3), path, None)
    send(page, slow_server, path)
    expect(page.locator(".leaflet-tile-pane img").first).to_be_visible()
    fitted = page.locator(".scale-bar").inner_text()
    page.locator(".map").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(page.locator(".scale-bar")).not_to_have_text(fitted)
    wait_for_map(page)
    expect(page.locator(".scale-bar")).to_have_text(fitted)


# Coordinates


def test_the_pointer_reads_coordinates_and_the_class(page, colored, mapped):
    open_job(page, colored, mapped)
    point_at(page, 0.55, 0.4)
    expect(page.locator(".readout .what")).not_to_be_empty()
    text, row, col = read_out(page)
    known = colored.client.get(f"/jobs/{mapped}/pixel", params={"row": row, "col": col}).json()
    expect(page.locator(".readout .what")).to_have_text(f"{known['class']['name']}, {100 * known['confidence']:.1f} %")
    lat, lon = map(float, re.search(r"([\d.]+)° N, ([\d.]+)° E", text).groups())
    found = colored.client.get(f"/jobs/{mapped}/pixel", params={"lon": lon, "lat": lat}).json()
    assert (found["row"], found["col"]) == (row, col)
    x, y = map(float, re.search(r"EPSG:32633: ([\d.]+), ([\d.]+)", text).groups())
    left, top = GRID @ (col, row)
    assert left - 1 <= x <= left + PIXEL_M + 1
    assert top - PIXEL_M - 1 <= y <= top + 1


def test_a_pointer_that_moves_sends_few_requests(page, colored, mapped):
    open_job(page, colored, mapped)
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/pixel?" in request.url else None)
    point_at(page, 0.4, 0.3)
    began = time.monotonic()
    box = page.locator(".map").bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"], steps=100)
    expect(page.locator(".readout .what")).not_to_be_empty()
    assert 1 <= len(asked) <= 2 + (time.monotonic() - began) / REST_S
    assert all("spectrum=false" in url for url in asked)
    before = len(asked)
    point_at(page, 0.01, 0.01)
    expect(page.locator(".readout .where")).to_contain_text("outside of the scene")
    point_at(page, 0.6, 0.6)
    expect(page.locator(".readout .what")).not_to_be_empty()
    assert len(asked) == before  # it is known


# Scale and north


def screen_px_per_metre(page: Page) -> float:
    """By the coordinates that the page shows at two points."""
    box = page.locator(".map").bounding_box()
    found = []
    for right in (0.4, 0.6):
        point_at(page, right, 0.5)
        text = page.locator(".readout .where").inner_text()
        found.append(float(re.search(r"EPSG:\d+: (-?[\d.]+), ", text)[1]))
    return 0.2 * box["width"] / (found[1] - found[0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scale_bar_is_right_on_the_ground(open_page, colored, mapped, scheme):
    page = open_page(color_scheme=scheme)
    open_job(page, colored, mapped)
    bar = page.locator(".scale-bar")
    number, unit = bar.inner_text().split()
    metres = float(number) * {"m": 1, "km": 1000}[unit]
    assert bar.bounding_box()["width"] == pytest.approx(metres * screen_px_per_metre(page), rel=0.02)


def test_a_scene_without_georeference_has_a_scale_in_pixels_and_no_north(page, colored, tmp_path):
    path = write_tif(tmp_path / "lab.tif", values(), wavelengths_nm=WAVELENGTHS, crs=None, transform=None)
    open_job(page, colored, finished(colored, path))
    number, unit = page.locator(".scale-bar").inner_text().split()
    assert unit == "px"
    height = page.locator(".map").bounding_box()["height"]
    assert page.locator(".scale-bar").bounding_box()["width"] / float(number) * ROWS <= height
    point_at(page, 0.5, 0.5)
    assert re.fullmatch(r"row \d+, column \d+", page.locator(".readout .where").inner_text())
    expect(page.locator(".north")).to_have_count(0)


def test_a_polar_scene_has_an_arrow_to_the_north_and_a_scale_in_metres(page, colored, tmp_path):
    polar = from_origin(-200_000, 600, PIXEL_M, PIXEL_M)  # the pole is to the right
    path = write_tif(
        tmp_path / "ice.tif", values(), wavelengths_nm=WAVELENGTHS, crs=CRS.from_epsg(3413), transform=polar
    )
    open_job(page, colored, finished(colored, path))
    expect(page.get_by_role("img", name="North is 90 degrees clockwise from up")).to_be_visible()
    assert page.locator(".scale-bar").inner_text().endswith(" m")
    point_at(page, 0.5, 0.5)
    expect(page.locator(".readout .where")).to_contain_text("EPSG:3413: -19")


# Legend


def colors_on_screen(page: Page) -> set[tuple[int, ...]]:
    """The colours of the class map in the middle of the page, without the scene below."""
    page.evaluate("() => (document.querySelector('.leaflet-tile-pane').style.display = 'none')")
    page.wait_for_function(f"() => {TILES}.length && {TILES}.every((image) => image.complete)")
    box = page.locator(".map").bounding_box()
    clip = {
        "x": box["x"] + box["width"] / 2 - 150,
        "y": box["y"] + box["height"] / 2 - 150,
        "width": 300,
        "height": 300,
    }
    picture = rgba(page.screenshot(clip=clip))[..., :3].reshape(-1, 3)
    found, counts = np.unique(picture, axis=0, return_counts=True)
    return {tuple(map(int, color)) for color, count in zip(found, counts, strict=True) if count > 200}


WATER = (0x1F, 0x78, 0xB4)
NAMES = {WATER: "water", (0x33, 0xA0, 0x2C): "meadow", (0xE3, 0x1A, 0x1C): "roof"}


def test_classes_are_hidden_alone_and_shown_again_by_keyboard(page, colored, mapped):
    open_job(page, colored, mapped)
    wait_for(lambda: colors_on_screen(page) >= set(NAMES))
    requested = []
    page.on("request", lambda request: requested.append(request.url) if "/tiles/" in request.url else None)
    first, *others = NAMES
    switch = page.get_by_role("button", name=NAMES[first], exact=True)
    switch.focus()
    page.keyboard.press("Enter")
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#live")).to_have_text(f"{NAMES[first]} is hidden")
    wait_for(lambda: colors_on_screen(page) & set(NAMES) == set(others))
    page.get_by_role("button", name=f"Show only {NAMES[first]}").press("Enter")
    wait_for(lambda: colors_on_screen(page) & set(NAMES) == {first})
    page.get_by_role("button", name="Show all classes").press("Enter")
    wait_for(lambda: colors_on_screen(page) & set(NAMES) == set(NAMES))
    expect(page.get_by_role("button", name="Show all classes")).to_be_hidden()
    assert requested == []  # the tiles of the page are changed in place


# Two maps


def test_a_second_map_shows_the_same_place_in_another_layer(page, colored, mapped):
    open_job(page, colored, mapped)
    page.get_by_label("Second map beside it").check()
    expect(page.get_by_label("Shown on the second map")).to_have_value("scene")
    with page.expect_response(re.compile("/tiles/confidence/")) as response:
        page.get_by_label("Shown on the second map").select_option("confidence")
    assert response.value.ok
    bars = page.locator(".scale-bar")
    expect(bars).to_have_count(2)
    before = bars.first.inner_text()
    for name, other in (("Map. Arrow keys move it", 1), ("Second map. Arrow", 0)):
        page.get_by_role("application", name=name).focus()
        page.keyboard.press("+")
        expect(bars.nth(other)).not_to_have_text(before)
        expect(bars.nth(1 - other)).to_have_text(bars.nth(other).inner_text())
        before = bars.first.inner_text()
    page.get_by_label("Second map beside it").uncheck()
    expect(bars).to_have_count(1)


def test_another_map_of_the_scene_can_be_beside_and_no_map_of_others(page, colored, mapped, tif):
    scene = colored.client.post("/demo-scene").json()["id"]
    jobs = []
    for stride in (4, 8):
        execution = {"inputs": {"scene": {"href": f"/scenes/{scene}"}, "stride_px": stride}}
        response = colored.client.post(
            "/processes/classify-scene/execution", json=execution, headers={"Prefer": "respond-async"}
        )
        jobs.append(response.json()["jobID"])
        assert colored.finished(jobs[-1])["status"] == "successful"
    open_job(page, colored, jobs[0])
    page.get_by_label("Second map beside it").check()
    expect(page.get_by_label("Map of this scene").locator("option")).to_have_count(2)
    with page.expect_response(re.compile(f"{jobs[1]}/tiles/classes/")) as response:
        page.get_by_label("Map of this scene").select_option(jobs[1])
    assert response.value.ok
    expect(page.get_by_label("Shown on the second map")).to_have_value("classes")


# Picture


def picture_of(page: Page) -> np.ndarray:
    with page.expect_download() as download:
        page.get_by_role("button", name="Picture of what is shown").click()
    assert download.value.suggested_filename == "field-classes.png"
    return rgba(download.value.path().read_bytes())[..., :3]


def test_the_picture_has_what_is_shown_and_a_legend_of_it(page, colored, mapped):
    open_job(page, colored, mapped)
    wait_for(lambda: colors_on_screen(page) >= set(NAMES))
    box = page.locator(".map").bounding_box()
    picture = picture_of(page)
    assert picture.shape[1] == box["width"]
    assert picture.shape[0] > box["height"] + 40  # the legend is below
    middle = picture[int(box["height"]) // 2, int(box["width"]) // 2]
    assert tuple(map(int, middle)) in NAMES
    foot = {tuple(map(int, color)) for color in np.unique(picture[int(box["height"]) :].reshape(-1, 3), axis=0)}
    assert set(NAMES) <= foot
    page.get_by_role("button", name="water", exact=True).click()
    foot = picture_of(page)[int(box["height"]) :].reshape(-1, 3)
    assert WATER not in {tuple(map(int, color)) for color in np.unique(foot, axis=0)}


# Basemap

RED = (255, 0, 0)
TILE = png_of_colors(np.full((256, 256, 3), RED, np.uint8))


class TileHost(BaseHTTPRequestHandler):
    """Answers every request with one tile."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(TILE)

    def log_message(self, *_: object) -> None:
        """Keep the test's output short."""


@pytest.fixture
def tile_host():
    """The URL of another host's tiles."""
    with ThreadingHTTPServer(("127.0.0.1", 0), TileHost) as host:
        Thread(target=host.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{host.server_port}"
        host.shutdown()


def test_the_operators_basemap_is_the_only_other_host(page, tmp_path, tif, tile_host):
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "crops.onnx")
    options = ("--basemap", f"{tile_host}/{{z}}/{{x}}/{{y}}.png", "--basemap-attribution", "made by <b>Anna</b>")
    with running_server(tmp_path / "data", "--bundles", tmp_path / "bundles", "--device", "cpu", *options) as server:
        requested = []
        page.on("request", lambda request: requested.append(request.url))
        open_job(page, server, finished(server, tif))
        expect(page.locator(".leaflet-basemap-pane img").first).to_be_visible()
        expect(page.locator(".basemap-source")).to_have_text("made by <b>Anna</b>")
        others = [url for url in requested if not url.startswith((server.url, "blob:", "data:"))]
        assert others
        assert all(re.fullmatch(rf"{tile_host}/\d+/\d+/\d+\.png", url) for url in others)
        page.wait_for_function(
            "() => [...document.querySelectorAll('.leaflet-basemap-pane img')].every((image) => image.complete)"
        )
        assert tuple(picture_of(page)[5, 5]) == RED
        page.get_by_label("Background map around the scene").uncheck()
        expect(page.locator(".leaflet-basemap-pane img")).to_have_count(0)
