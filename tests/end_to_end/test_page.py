"""The web page in Chromium: upload, progress, map, pixels, downloads, keys."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from hyperscene.model.bundle import DEMO_BUNDLE
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.bundles import write_bundle
from tests.products import ENMAP_STEM, enmap_values, write_enmap, zipped
from tests.scenes import WAVELENGTHS, quadrants, spectra_of, write_envi, write_tif
from tests.server import part, running_server, wait_for

pytestmark = pytest.mark.slow

ROWS, COLS = 40, 33


def values():
    return spectra_of(quadrants(ROWS, COLS), 5)


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", values(), wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """An ENVI data file with its header beside it."""
    header = f"wavelength = {{{', '.join(map(str, WAVELENGTHS))}}}\nwavelength units = Nanometers\n"
    return write_envi(tmp_path_factory.mktemp("pair") / "strip.img", values(), header)


@pytest.fixture(scope="module")
def unplaced(tmp_path_factory):
    path = tmp_path_factory.mktemp("unplaced") / "lab.tif"
    return write_tif(path, values(), wavelengths_nm=WAVELENGTHS, crs=None, transform=None)


@pytest.fixture(scope="module")
def mapped(colored, tif):
    """The id of a finished job."""
    job_id = colored.submit(tif)
    assert colored.finished(job_id)["status"] == "successful"
    return job_id


def send(page: Page, server, *files) -> None:
    """Choose files on the start page and send them."""
    page.goto(server.url)
    page.set_input_files("#files", [str(file) for file in files])
    page.get_by_role("button", name="Map it").click()


def wait_for_map(page: Page) -> None:
    expect(page.get_by_role("heading", name="Classes")).to_be_visible()
    expect(page.locator(".leaflet-result-pane img").first).to_be_visible()


def open_job(page: Page, server, job_id: str) -> None:
    page.goto(f"{server.url}/#/jobs/{job_id}")
    wait_for_map(page)


def click_pixel(page: Page, server, job_id: str, row: int, col: int) -> dict:
    """Click on a marked pixel; returns the pixel's document from the server."""
    select_pixel(page, row, col)
    box = page.locator(".leaflet-overlay-pane path").first.bounding_box()
    select_pixel(page, 0, 0)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.get_by_label("Row", exact=True)).to_have_value(str(row))
    expect(page.get_by_label("Column", exact=True)).to_have_value(str(col))
    return server.client.get(f"/jobs/{job_id}/pixel", params={"row": row, "col": col}).json()


def select_pixel(page: Page, row: int, col: int) -> None:
    """Select a pixel by row and column."""
    page.get_by_label("Row", exact=True).fill(str(row))
    page.get_by_label("Column", exact=True).fill(str(col))
    page.keyboard.press("Enter")
    expect(page.locator("#live")).to_contain_text(f"Row {row}, column {col}:")


# Sending


def test_a_geotiff_is_sent_and_its_map_is_shown(page, colored, tif):
    send(page, colored, tif)
    page.wait_for_url(re.compile(r"#/jobs/[0-9a-f]{32}$"))
    wait_for_map(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("field.tif")
    summary = colored.client.get(f"/jobs/{page.url[-32:]}/results/summary.json").json()
    shown = page.locator(".legend tbody tr").all_inner_texts()
    ordered = sorted(summary["classes"], key=lambda each: -each["pixels"])
    assert [line.split()[0] for line in shown] == [each["name"] for each in ordered]
    assert f"{100 * ordered[0]['share']:.1f} %" in shown[0]
    assert re.search(r"\d", shown[0].split("\t")[1])


def test_an_envi_pair_is_sent_and_its_map_is_shown(page, colored, pair):
    send(page, colored, pair, pair.with_suffix(".hdr"))
    wait_for_map(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("strip.img")


def test_files_can_be_dropped(page, colored, tif):
    page.goto(colored.url)
    expect(page.get_by_role("button", name="Map it")).to_be_disabled()
    page.evaluate(
        """([name, content]) => {
            const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name));
            const event = { dataTransfer: transfer, bubbles: true, cancelable: true };
            document.querySelector(".drop").dispatchEvent(new DragEvent("dragover", event));
            document.querySelector(".drop").dispatchEvent(new DragEvent("drop", event));
        }""",
        ["dropped.tif", base64.b64encode(tif.read_bytes()).decode()],
    )
    expect(page.locator(".files")).to_contain_text("dropped.tif")
    page.get_by_role("button", name="Map it").click()
    wait_for_map(page)


@pytest.mark.parametrize("given", ["folder", "files", "zip"])
def test_a_product_is_sent_with_its_files_and_shows_its_sensor_and_date(page, tmp_path, given):
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "broad.onnx", wavelengths_nm=[450.0, 560.0, 670.0, 860.0, 2200.0])
    product = write_enmap(tmp_path / ENMAP_STEM, enmap_values(ROWS, COLS))
    (product / "HISTORY.txt").write_text("not part of the product")
    (product / f"{ENMAP_STEM}-QL_VNIR.JPG").write_bytes(b"a picture")
    with running_server(tmp_path / "data", "--bundles", tmp_path / "bundles", "--device", "cpu") as server:
        page.goto(server.url)
        if given == "folder":
            page.set_input_files("#folder", str(product))
        elif given == "zip":
            page.set_input_files("#files", str(zipped(product, tmp_path / f"{ENMAP_STEM}.zip")))
        else:
            page.set_input_files("#files", [str(path) for path in product.iterdir()])
        expect(page.locator("#file-check")).to_have_text("EnMAP L2A of 2022-07-24, ready to send.")
        assert page.locator(".files li").count() == (1 if given == "zip" else 7)
        page.get_by_text("Advanced").click()
        page.get_by_label("Masks of a product").fill("cloud, cirrus")
        page.get_by_role("button", name="Map it").click()
        wait_for_map(page)
        details = page.locator("dl").first
        expect(details).to_contain_text("EnMAP L2A")
        expect(details).to_contain_text("2022-07-24 10:45")
        expect(details).to_contain_text(re.compile("cloud 15, cirrus 1|cirrus 1, cloud 15"))
        expect(page.locator(".downloads")).to_contain_text("mask.tif")
        assert server.job(page.url[-32:])["settings"]["mask"] == ["cloud", "cirrus"]


def test_the_files_of_a_dropped_folder_are_chosen(page, colored):
    page.goto(colored.url)
    page.locator(".drop").wait_for()
    page.evaluate(
        """() => {
            const entryOf = (name, content) => ({ isFile: true, file: (done) => done(new File([content], name)) });
            const folderOf = (entries) => {
                const parts = [entries, []];
                return { isDirectory: true, createReader: () => ({ readEntries: (done) => done(parts.shift()) }) };
            };
            const stem = "ENMAP01-____L2A-DT1_20220724T104526Z_1";
            const folder = folderOf([
                folderOf([entryOf(`${stem}-METADATA.XML`, "<x/>"), entryOf(`${stem}-SPECTRAL_IMAGE.TIF`, "II*\0")]),
                entryOf("notes.txt", "x"),
            ]);
            const transfer = { types: ["Files"], files: [], items: [{ webkitGetAsEntry: () => folder }] };
            const event = new Event("drop", { bubbles: true, cancelable: true });
            Object.defineProperty(event, "dataTransfer", { value: transfer });
            document.querySelector(".drop").dispatchEvent(event);
        }"""
    )
    expect(page.locator("#file-check")).to_have_text("EnMAP L2A of 2022-07-24, ready to send.")
    assert page.locator(".files li").count() == 2


def test_a_header_alone_names_the_missing_data_file(page, colored, pair):
    page.goto(colored.url)
    page.set_input_files("#files", str(pair.with_suffix(".hdr")))
    expect(page.locator("#file-check")).to_contain_text("strip.img")
    expect(page.get_by_role("button", name="Map it")).to_be_disabled()
    page.set_input_files("#files", str(pair))
    expect(page.get_by_role("button", name="Map it")).to_be_enabled()


def test_data_alone_name_the_missing_header(page, colored, pair):
    page.goto(colored.url)
    page.set_input_files("#files", str(pair))
    expect(page.locator("#file-check")).to_contain_text("strip.hdr")
    expect(page.get_by_role("button", name="Map it")).to_be_disabled()


def test_a_file_that_is_not_a_scene_is_rejected_before_the_upload(page, colored, tmp_path):
    other = tmp_path / "holiday.jpg"
    other.write_bytes(b"\xff\xd8\xff\xe0 no scene")
    page.goto(colored.url)
    page.set_input_files("#files", str(other))
    expect(page.locator("#file-check")).to_contain_text("holiday.jpg is neither a GeoTIFF")
    page.get_by_role("button", name="Remove holiday.jpg").click()
    expect(page.locator("#file-check")).to_be_empty()


def test_options_describe_their_cost_and_are_sent(page, colored, tif):
    page.goto(colored.url)
    page.set_input_files("#files", str(tif))
    expect(page.locator("#model-hint")).to_contain_text("water, meadow, roof")
    page.get_by_text("Advanced").click()
    page.select_option("#stride_px", "2")
    expect(page.locator("#stride_px-hint")).to_contain_text("about 4 times the work of stride 4")
    page.select_option("#blend", "none")
    expect(page.locator("#stride_px")).to_have_value("1")
    page.select_option("#blend", "linear")
    page.select_option("#stride_px", "8")
    page.get_by_role("button", name="Map it").click()
    wait_for_map(page)
    settings = colored.job(page.url[-32:])["settings"]
    assert (settings["stride_px"], settings["blend"]) == (8, "linear")


def test_a_newcomer_reads_no_technical_word_before_advanced(page, colored, mapped):
    for url in ("", f"#/jobs/{mapped}"):
        page.goto(f"{colored.url}/{url}")
        expect(page.get_by_text("Advanced")).to_be_visible()
        assert not re.search("bundle|stride|blend|patch", page.locator("main").inner_text(), re.IGNORECASE)
        page.get_by_text("Advanced").click()
        expect(page.locator("details")).to_contain_text(re.compile("stride", re.IGNORECASE))


def test_the_demo_scene_is_mapped_at_once_and_once_only(page, slow_server):
    for _ in range(2):
        page.goto(slow_server.url)
        page.get_by_role("button", name="Try it").click()
        page.wait_for_url(re.compile(r"#/jobs/[0-9a-f]{32}$"))
        expect(page.get_by_role("heading", level=1)).to_have_text("demo.tif")
        expect(page.locator(".leaflet-tile-pane img").first).to_be_visible()  # before it is mapped
    scene_id = slow_server.client.post("/demo-scene").json()["id"]
    jobs = [job for job in slow_server.client.get("/jobs").json()["jobs"] if job["scene_id"] == scene_id]
    jobs = [job for job in jobs if job["status"] != "dismissed"]
    assert [job["jobID"] for job in jobs] == [page.url[-32:]]
    slow_server.client.delete(f"/jobs/{jobs[0]['jobID']}")


def test_the_servers_error_message_is_shown(page, colored, tmp_path):
    other = write_tif(tmp_path / "two_bands.tif", values()[..., :2], wavelengths_nm=np.array([1500.0, 1600.0]))
    response = colored.client.post("/classify", files={"scene": part(other)})
    assert response.status_code == 422
    send(page, colored, other)
    expect(page.get_by_role("alert")).to_have_text(response.json()["detail"])
    expect(page.get_by_role("button", name="Map it")).to_be_enabled()


def test_an_unreachable_server_is_reported(page, tmp_path, tif):
    with running_server(tmp_path / "data") as server:
        page.goto(server.url)
        page.set_input_files("#files", str(tif))
        expect(page.get_by_role("button", name="Map it")).to_be_enabled()
    page.get_by_role("button", name="Map it").click()
    expect(page.get_by_role("alert")).to_contain_text("The connection broke")


def test_an_upload_continues_while_another_view_is_shown(open_page, colored, mapped, tif):
    page = open_page()
    slow = page.context.new_cdp_session(page)
    page.goto(colored.url)
    page.set_input_files("#files", str(tif))
    expect(page.locator(f".jobs a[href$='{mapped}']")).to_be_visible()
    network = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": tif.stat().st_size / 4}
    slow.send("Network.enable")
    slow.send("Network.emulateNetworkConditions", network)
    page.get_by_role("button", name="Map it").click()
    expect(page.locator("#sent")).to_be_visible()
    page.locator(f".jobs a[href$='{mapped}']").click()
    expect(page.locator(".legend")).to_be_visible()
    page.go_back()
    expect(page.locator("#sent")).to_be_visible()
    page.wait_for_url(re.compile(r"#/jobs/[0-9a-f]{32}$"))
    assert page.url[-32:] != mapped
    wait_for_map(page)


def test_sending_can_be_stopped(page, colored, tif):
    slow = page.context.new_cdp_session(page)
    page.goto(colored.url)
    before = colored.client.get("/jobs").json()["jobs"]
    page.set_input_files("#files", str(tif))
    slow.send("Network.enable")
    network = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": tif.stat().st_size / 20}
    slow.send("Network.emulateNetworkConditions", network)
    page.get_by_role("button", name="Map it").click()
    page.get_by_role("button", name="Stop sending").click()
    expect(page.locator("#sent")).to_have_count(0)
    expect(page.get_by_role("button", name="Map it")).to_be_enabled()
    assert colored.client.get("/jobs").json()["jobs"] == before


# Progress


def test_progress_is_shown_and_the_page_can_be_opened_again(page, open_page, slow_server, large):
    page.goto(slow_server.url)
    page.set_input_files("#files", str(large))
    page.get_by_text("Advanced").click()
    page.select_option("#stride_px", "1")
    page.get_by_role("button", name="Map it").click()
    text = page.locator("#progress-text")
    expect(text).to_contain_text(re.compile(r"\d+ % mapped, about \d+ (s|min) left"))
    first = text.inner_text()
    wait_for(lambda: text.inner_text() != first)
    page.reload()
    expect(text).to_contain_text("% mapped")
    again = open_page()
    again.goto(page.url)
    expect(again.locator("#progress-text")).to_contain_text("% mapped")
    expect(again.locator(".leaflet-tile-pane img").first).to_be_visible()  # the scene, while it is mapped

    job_id = page.url[-32:]
    page.get_by_role("button", name="Dismiss").click()
    page.get_by_role("button", name="Keep it").click()
    assert slow_server.job(job_id)["status"] == "running"
    page.get_by_role("button", name="Dismiss").click()
    page.get_by_role("button", name="Dismiss it").click()
    expect(page.locator("main")).to_contain_text("This job was dismissed")
    expect(again.locator("main")).to_contain_text("This job was dismissed")  # without reloading
    assert slow_server.job(job_id)["status"] == "dismissed"


def test_a_watched_job_becomes_a_map_when_it_ends(page, slow_server, tmp_path):
    path = tmp_path / "small.tif"
    write_scene(SyntheticScene(rows=48, cols=48, seed=3), path, None)
    send(page, slow_server, path)
    wait_for_map(page)
    expect(page.locator("#progress-text")).to_have_count(0)


def test_progress_continues_after_a_server_restart(page, tmp_path, large):
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    (bundles / "demo.onnx").write_bytes(DEMO_BUNDLE.read_bytes())
    options = ("--bundles", bundles, "--strip-px", 16)
    with running_server(tmp_path / "data", *options) as server:
        port = server.url.rsplit(":", 1)[1]
        page.goto(f"{server.url}/#/jobs/{server.submit(large, stride_px='2')}")
        expect(page.locator("#progress-text")).to_contain_text("% mapped")
    expect(page.locator("main")).to_contain_text("The connection is lost")
    with running_server(tmp_path / "data", *options, "--port", port):
        expect(page.locator("main")).to_contain_text("Resumed")


def test_events_of_a_running_job_are_shown(page, slow_server, large):
    job_id = slow_server.submit(large, stride_px="1")
    page.goto(f"{slow_server.url}/#/jobs/{job_id}")
    expect(page.locator("#progress-text")).to_contain_text("% mapped")
    for worker in slow_server.workers():
        os.kill(worker, signal.SIGKILL)
    expect(page.locator("main")).to_contain_text("crashed: the job continues from its finished strips")
    slow_server.client.delete(f"/jobs/{job_id}")


def test_focus_pixel_and_map_position_are_kept_when_the_job_ends(page, slow_server, tmp_path):
    path = tmp_path / "some.tif"
    write_scene(SyntheticScene(rows=90, cols=90, seed=3), path, None)
    send(page, slow_server, path)
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.get_by_label("Row", exact=True).fill("12")
    page.get_by_label("Column", exact=True).fill("34")
    page.keyboard.press("Enter")
    expect(page.locator(".pixel-class")).to_contain_text("not mapped yet")
    wait_for_map(page)
    expect(page.get_by_label("Column", exact=True)).to_be_focused()
    expect(page.get_by_label("Row", exact=True)).to_have_value("12")
    pixel = slow_server.client.get(f"/jobs/{page.url[-32:]}/pixel", params={"row": 12, "col": 34}).json()
    expect(page.locator(".pixel-class")).to_contain_text(pixel["class"]["name"])


def test_a_dialog_about_a_job_closes_when_the_job_ends(page, slow_server, large):
    job_id = slow_server.submit(large, stride_px="1")
    page.goto(f"{slow_server.url}/#/jobs/{job_id}")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    slow_server.client.delete(f"/jobs/{job_id}")
    expect(page.locator("main")).to_contain_text("This job was dismissed")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_hidden_tab_polls_instead_of_streaming(page, slow_server, tmp_path):
    path = tmp_path / "some.tif"
    write_scene(SyntheticScene(rows=64, cols=64, seed=3), path, None)
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => true })")
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{slow_server.url}/#/jobs/{slow_server.submit(path)}")
    wait_for_map(page)
    assert not [url for url in requested if url.endswith("/events")]


def test_a_failed_job_shows_its_error(page, server, tmp_path):
    bad = write_tif(tmp_path / "negative.tif", -values(), wavelengths_nm=WAVELENGTHS)
    job_id = server.submit(bad, model="root")
    why = server.finished(job_id)["problem"]["detail"]
    page.goto(f"{server.url}/#/jobs/{job_id}")
    expect(page.get_by_role("alert")).to_contain_text(why)


def test_an_unknown_job_is_reported(page, colored):
    page.goto(f"{colored.url}/#/jobs/{'0' * 32}")
    expect(page.get_by_role("alert")).to_contain_text("there is no job")
    page.get_by_role("link", name="Your maps").click()
    expect(page.get_by_role("heading", name="Your maps")).to_be_visible()


@pytest.mark.parametrize("url", ["#/jobs/..%2fmodels", "#/jobs/%E0%A4%A", "#nothing"])
def test_an_unknown_url_is_reported(page, colored, url):
    page.goto(f"{colored.url}/{url}")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()


# The map


def test_map_tiles_are_shown_over_scene_tiles(page, colored, mapped):
    open_job(page, colored, mapped)
    expect(page.locator(".leaflet-tile-pane img").first).to_be_visible()
    tiles = '[...document.querySelectorAll(".leaflet-result-pane img, .leaflet-tile-pane img")]'
    page.wait_for_function(f"() => {tiles}.length && {tiles}.every((image) => image.complete)")
    drawn = page.evaluate(f"() => {tiles}.map((image) => image.naturalWidth)")
    assert drawn
    assert set(drawn) == {256}


def test_a_dense_screen_gets_finer_tiles(open_page, colored, mapped):
    page = open_page(device_scale_factor=2)
    open_job(page, colored, mapped)
    width = page.evaluate("() => document.querySelector('.leaflet-result-pane img').naturalWidth")
    assert width == 512


def test_opacity_fades_the_map(page, colored, mapped):
    open_job(page, colored, mapped)
    page.get_by_label("Opacity over the scene").fill("30")
    expect(page.locator(".leaflet-result-pane .leaflet-layer")).to_have_css("opacity", "0.3")


def test_swipe_shows_the_map_right_of_a_line_that_keys_move(page, colored, mapped):
    open_job(page, colored, mapped)
    page.get_by_label("Swipe: scene left, map right").check()
    line = page.get_by_role("slider", name="Scene left of this line")
    expect(line).to_have_attribute("aria-valuenow", "50")
    clip = page.locator(".leaflet-result-pane").evaluate("(pane) => pane.style.clipPath")
    line.focus()
    page.keyboard.press("ArrowLeft")
    expect(line).to_have_attribute("aria-valuenow", "48")
    assert page.locator(".leaflet-result-pane").evaluate("(pane) => pane.style.clipPath") != clip
    box = line.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 50)
    page.mouse.up()
    assert int(line.get_attribute("aria-valuenow")) > 60
    page.get_by_label("Swipe: scene left, map right").uncheck()
    assert page.locator(".leaflet-result-pane").evaluate("(pane) => pane.style.clipPath") in ("", "none")


def test_another_layer_can_be_chosen_with_its_own_legend(page, colored, mapped):
    open_job(page, colored, mapped)
    expect(page.locator(".ramp")).to_be_hidden()
    with page.expect_response(re.compile("/tiles/confidence/")) as response:
        page.get_by_label("Shown on the map").select_option("confidence")
    assert response.value.ok
    expect(page.locator(".ramp-bar")).to_be_visible()
    with page.expect_response(re.compile("/tiles/probability-2/")) as response:
        page.get_by_label("Shown on the map").select_option("probability-2")
    assert response.value.ok
    assert "meadow" in page.get_by_label("Shown on the map").locator("option:checked").inner_text()


def test_the_scene_can_be_shown_in_other_bands(page, slow_server, tmp_path):
    path = tmp_path / "small.tif"
    write_scene(SyntheticScene(rows=32, cols=32, seed=3), path, None)
    job_id = slow_server.submit(path)
    job = slow_server.finished(job_id)
    open_job(page, slow_server, job_id)
    with page.expect_response(re.compile("/tiles/scene/.*bands=")) as response:
        page.get_by_label("Scene colours").select_option(label="near infrared, red, green")
    assert response.value.ok
    scene = slow_server.client.get(f"/scenes/{job['scene_id']}").json()
    bands = [int(band) for band in response.value.url.rsplit("=", 1)[1].split(",")]
    shown = [scene["wavelengths_nm"][scene["band_numbers"].index(band)] for band in bands]
    assert [abs(nm - target) < 30 for nm, target in zip(shown, (860, 650, 550), strict=True)] == [True] * 3


def test_a_click_shows_the_pixels_class_probabilities_and_spectrum(page, colored, mapped):
    open_job(page, colored, mapped)
    pixel = click_pixel(page, colored, mapped, 11, 7)
    expect(page.locator(".pixel-class")).to_contain_text(pixel["class"]["name"])
    bars = page.locator(".bars li").all_inner_texts()
    best = max(pixel["probabilities"], key=lambda each: each["probability"])
    assert len(bars) == 3
    assert best["name"] in bars[0]
    assert f"{100 * best['probability']:.1f} %" in bars[0]
    expect(page.locator(".spectrum .used")).to_have_count(5)
    assert page.locator(".spectrum").get_attribute("aria-label").startswith("Spectrum over 450 to 900 nm")


def test_a_layer_that_never_loaded_is_removed(page, colored, mapped):
    open_job(page, colored, mapped)
    page.route("**/tiles/confidence/**", lambda route: None)  # never completes
    page.get_by_label("Shown on the map").select_option("confidence")
    page.get_by_label("Shown on the map").select_option("probability-1")
    expect(page.locator(".leaflet-result-pane .leaflet-layer")).to_have_count(1)
    page.get_by_label("Opacity over the scene").fill("0")
    expect(page.locator(".leaflet-result-pane .leaflet-layer")).to_have_css("opacity", "0")


def test_a_double_click_zooms_and_selects_no_pixel(page, colored, mapped):
    open_job(page, colored, mapped)
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    box = page.locator(".map").bounding_box()
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".leaflet-result-pane img").first).to_be_visible()
    page.wait_for_timeout(600)
    assert not [url for url in requested if "/pixel" in url and "spectrum=false" not in url]


def test_a_click_outside_of_the_scene_removes_the_mark(page, colored, mapped):
    open_job(page, colored, mapped)
    select_pixel(page, 5, 5)
    expect(page.locator(".leaflet-tooltip")).to_be_visible()
    box = page.locator(".map").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + box["height"] - 60)
    expect(page.locator(".pixel [role=alert]")).to_contain_text("outside of the scene")
    expect(page.locator(".leaflet-tooltip")).to_have_count(0)


def test_failed_tiles_are_reported_and_can_be_retried(page, tmp_path, tif):
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    write_bundle(bundles / "crops.onnx")
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu") as server:
        port = server.url.rsplit(":", 1)[1]
        job_id = server.submit(tif)
        server.finished(job_id)
        open_job(page, server, job_id)
        expect(page.locator(".leaflet-tile-pane img").first).to_be_visible()
    page.get_by_label("Shown on the map").select_option("confidence")
    expect(page.locator(".map-note")).to_contain_text("The server cannot be reached")
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu", "--port", port):
        with page.expect_response(re.compile("/tiles/confidence/")) as response:
            page.locator(".map-note").get_by_role("button", name="Try again").click()
        assert response.value.ok
        expect(page.locator(".map-note")).to_be_empty()


def test_a_pixel_can_be_selected_with_the_keyboard(page, colored, mapped):
    open_job(page, colored, mapped)
    pixel = colored.client.get(f"/jobs/{mapped}/pixel", params={"row": 30, "col": 20}).json()
    page.get_by_label("Row", exact=True).focus()
    page.keyboard.type("30")
    page.keyboard.press("Tab")
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    expect(page.locator(".pixel-class")).to_contain_text(pixel["class"]["name"])


def test_a_scene_without_georeference_is_shown_in_pixel_coordinates(page, colored, unplaced):
    job_id = colored.submit(unplaced)
    colored.finished(job_id)
    open_job(page, colored, job_id)
    expect(page.get_by_role("alert")).to_contain_text("no georeference")
    expect(page.locator(".legend thead")).to_contain_text("Pixels")
    pixel = click_pixel(page, colored, job_id, 25, 30)
    expect(page.locator(".pixel-class")).to_contain_text(pixel["class"]["name"])
    expect(page.get_by_label("For QGIS")).to_have_count(0)


def test_every_result_can_be_downloaded(page, colored, mapped):
    open_job(page, colored, mapped)
    names = page.locator(".downloads a").evaluate_all("(links) => links.map((link) => link.getAttribute('download'))")
    assert set(names) == {
        "results.zip", "classes.tif", "probabilities.tif", "confidence.tif", "classes.qml", "preview.png",
        "summary.json", "item.json",
    }  # fmt: skip
    with page.expect_download() as download:
        page.get_by_role("link", name="Class map", exact=True).click()
    content = download.value.path().read_bytes()
    assert content == colored.client.get(f"/jobs/{mapped}/results/classes.tif").content


def test_the_url_for_qgis_serves_tiles(page, colored, mapped):
    open_job(page, colored, mapped)
    page.get_by_text("Advanced").click()
    url = page.get_by_label("For QGIS").input_value()
    assert "{z}/{x}/{y}" in url
    response = colored.client.get(unquote(url).format(z=0, x=0, y=0))
    assert response.headers["content-type"] == "image/png"


def test_a_map_without_its_scene_is_still_shown(page, colored, tif):
    scene = colored.client.post("/scenes", files={"scene": part(tif)}).json()
    execution = {"inputs": {"scene": {"href": f"/scenes/{scene['id']}"}}}
    response = colored.client.post(
        "/processes/classify-scene/execution", json=execution, headers={"Prefer": "respond-async"}
    )
    job_id = response.json()["jobID"]
    colored.finished(job_id)
    assert colored.client.delete(f"/scenes/{scene['id']}").status_code in (200, 204)
    open_job(page, colored, job_id)
    expect(page.locator(".layers")).to_contain_text("The scene was removed")


def test_a_finished_map_can_be_dismissed(page, colored, tif):
    job_id = colored.submit(tif)
    colored.finished(job_id)
    open_job(page, colored, job_id)
    page.get_by_role("button", name="Dismiss this map").click()
    page.get_by_role("button", name="Dismiss it").click()
    expect(page.locator("main")).to_contain_text("This job was dismissed")
    assert colored.job(job_id)["status"] == "dismissed"


# The list


def test_jobs_are_listed_with_status_and_thumbnail(page, colored, tif):
    job_id = colored.submit(tif)
    colored.finished(job_id)
    page.goto(colored.url)
    line = page.locator(f".jobs a[href$='{job_id}']")
    expect(line).to_contain_text("mapped")
    line.scroll_into_view_if_needed()
    expect(line.get_by_role("img", name="Class map of field.tif")).to_be_visible()
    line.click()
    wait_for_map(page)
    page.go_back()
    expect(page.get_by_role("heading", name="Your maps")).to_be_visible()


def test_the_list_updates_without_losing_the_focus(page, slow_server, large):
    job_id = slow_server.submit(large, stride_px="1")
    page.goto(slow_server.url)
    line = page.locator(f".jobs a[href$='{job_id}']")
    expect(line).to_contain_text("being mapped")
    line.focus()
    slow_server.client.delete(f"/jobs/{job_id}")
    expect(line).to_contain_text("dismissed")
    expect(line).to_be_focused()


def test_a_job_of_another_client_appears_in_the_list(page, colored, tif):
    page.goto(colored.url)
    expect(page.get_by_role("heading", name="Your maps")).to_be_visible()
    job_id = colored.submit(tif)
    expect(page.locator(f".jobs li:first-child a[href$='{job_id}']")).to_contain_text("mapped")


# Names with HTML


def test_class_and_file_names_that_hold_html_are_shown_as_text(page, tmp_path):
    nasty = ["<img src=x onerror=alert(1)>", "</td><script>alert(2)</script>", '"><b>bold</b>']
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    write_bundle(bundles / "nasty.onnx", class_names=nasty, class_colors=["#1f78b4", "#33a02c", "#e31a1c"])
    scene = write_tif(tmp_path / "<b>field<b>.tif", values(), wavelengths_nm=WAVELENGTHS)
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu") as server:
        page.goto(server.url)
        expect(page.locator("#model-hint")).to_contain_text(nasty[0])
        page.set_input_files("#files", str(scene))
        expect(page.locator(".files")).to_contain_text("<b>field<b>.tif")
        page.get_by_role("button", name="Map it").click()
        wait_for_map(page)
        expect(page.get_by_role("heading", level=1)).to_have_text("<b>field<b>.tif")
        for name in nasty:
            expect(page.locator(".legend")).to_contain_text(name)
        click_pixel(page, server, page.url[-32:], 5, 5)
        expect(page.locator(".bars")).to_contain_text(nasty[0])
        assert page.locator("main b, main script, main img[src='x']").count() == 0
        page.goto(server.url)
        expect(page.locator(".jobs")).to_contain_text("<b>field<b>.tif")
    assert dialogs == []


# Keys


def test_a_key_is_prompted_for_once_and_stored_for_the_tab(page, open_page, tmp_path, tif):
    with running_server(tmp_path / "data", HYPERSCENE_API_KEYS="right,other") as server:
        page.goto(server.url)
        page.get_by_label("API key", exact=True).fill("wrong")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("dialog")).to_contain_text("does not accept this key")
        page.get_by_label("API key", exact=True).fill("right")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("heading", name="Your maps")).to_be_visible()
        large = SyntheticScene(rows=48, cols=48, seed=3)
        scene = tmp_path / "keyed.tif"
        write_scene(large, scene, None)
        page.set_input_files("#files", str(scene))
        page.get_by_role("button", name="Map it").click()
        wait_for_map(page)
        page.reload()
        wait_for_map(page)
        assert page.get_by_role("dialog").count() == 0
        with page.expect_download() as download:
            page.get_by_role("link", name="Pixels, areas, settings and warnings").click()
        assert json.loads(download.value.path().read_text())["scene"]["name"] == "keyed.tif"
        another = open_page()
        another.goto(page.url)
        expect(another.get_by_label("API key", exact=True)).to_be_visible()
        another.get_by_role("button", name="Cancel").click()
        expect(another.get_by_role("alert")).to_contain_text("requires an API key")
        another.get_by_role("button", name="Enter a key").click()
        another.get_by_label("API key", exact=True).fill("other")
        another.get_by_role("button", name="Use this key").click()
        expect(another.get_by_role("alert")).to_contain_text("there is no job")  # another key's


def test_a_key_may_contain_any_characters(page, tmp_path):
    with running_server(tmp_path / "data", HYPERSCENE_API_KEYS="schlüssel-ключ") as server:
        page.goto(server.url)
        page.get_by_label("API key", exact=True).fill("schlüssel-ключ")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("heading", name="Your maps")).to_be_visible()
        assert page.get_by_role("dialog").count() == 0


# Accessibility


def test_without_javascript_the_page_shows_instructions(open_page, colored):
    page = open_page(java_script_enabled=False)
    page.goto(colored.url)
    expect(page.get_by_role("heading", name="Map a scene without JavaScript")).to_be_visible()
    expect(page.locator("pre").first).to_have_text(f"curl -F scene=@scene.tif {colored.url}/classify -o classes.tif")


@pytest.mark.parametrize("url", ["", "#/jobs/{job}"])
def test_a_narrow_screen_needs_no_scrolling_sideways(open_page, colored, mapped, url):
    page = open_page(viewport={"width": 380, "height": 800})
    page.goto(f"{colored.url}/{url.format(job=mapped)}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    if url:
        wait_for_map(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 380


def test_every_control_of_the_start_page_is_reached_by_tab_with_visible_focus(page, colored, mapped):
    page.goto(colored.url)
    expect(page.locator(".jobs a").first).to_be_visible()
    reached = []
    for _ in range(15):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.tagName") == "SUMMARY":
            page.keyboard.press("Enter")  # opens Advanced
        reached.append(
            page.evaluate(
                """() => {
                    const now = document.activeElement;
                    const seen = now.id === "files" ? now.nextElementSibling : now;
                    return [now.id || now.className || now.textContent, getComputedStyle(seen).outlineStyle];
                }"""
            )
        )
    outlines = dict(reached)
    for name in ("skip", "brand", "Maps", "files", "model", "Advanced", "stride_px", "blend", "Try it"):
        assert outlines[name] == "solid"


def test_nothing_is_loaded_from_other_hosts(page, colored, mapped):
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    open_job(page, colored, mapped)
    others = [url for url in requested if not url.startswith((colored.url, "blob:", "data:"))]
    assert requested
    assert others == []
