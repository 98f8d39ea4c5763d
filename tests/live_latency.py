"""Time from the end of a stroke to the new map on the screen, in Chromium, alone and beside a mapping job.

python -m tests.live_latency --strokes 40
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import psutil
import rasterio
from playwright.sync_api import Page, expect

from hyperscene.training.data.synthetic import MATERIALS, SyntheticScene, write_scene
from tests.programs import running_browser
from tests.server import RunningServer, running_server

SIZE_PX, BANDS, LABELS = 1000, 200, 300
READ = "() => document.querySelector('.leaflet-container').dataset.strokeMs ?? ''"
CLEAR = "() => { delete document.querySelector('.leaflet-container').dataset.strokeMs; }"


def prepare(server: RunningServer, scene: Path, truth: np.ndarray) -> tuple[str, float]:
    """Send the scene, label it and compute its features; returns its address and the seconds that these took."""
    with scene.open("rb") as file:
        sent = server.client.post("/scenes", content=file, headers={"Content-Type": "image/tiff"})
    address = f"/scenes/{sent.raise_for_status().json()['id']}"
    generator = np.random.default_rng(0)
    classes = [{"value": k, "name": each.name, "color": each.color} for k, each in enumerate(MATERIALS, start=1)]
    strokes = []
    for value in range(1, 9):
        own = np.argwhere(truth == value)
        for row, col in generator.permutation(own)[: LABELS // 8].tolist():
            strokes.append({"class": value, "runs": [[row, col, 1]]})
    etag = server.client.get(f"{address}/labels", params={"format": "json"}).headers["etag"]
    body = {"classes": classes, "set": strokes}
    server.client.patch(f"{address}/labels", json=body, headers={"If-Match": etag}).raise_for_status()
    began = time.monotonic()
    server.client.post(f"{address}/live").raise_for_status()
    while (found := server.client.get(f"{address}/live").json())["state"] != "ready":
        assert found["state"] == "computing", found
        time.sleep(0.1)
    return address, time.monotonic() - began


def measure(page: Page, strokes: int, zoom: int, seed: int) -> list[float]:
    """Milliseconds of each stroke."""
    for _ in range(zoom):
        page.locator(".leaflet-control-zoom-in").click()
    page.wait_for_timeout(3000)
    box = page.locator(".leaflet-container").bounding_box()
    generator, found = np.random.default_rng(seed), []  # other places each time: an old stroke changes nothing
    for number in range(strokes):
        page.keyboard.press(str(number % 8 + 1))
        x, y = (box[side] + generator.uniform(0.2, 0.8) * box[size] for side, size in (("x", "width"), ("y", "height")))
        page.evaluate(CLEAR)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 12, y, steps=3)
        page.mouse.up()
        page.wait_for_function(f"() => ({READ})() !== ''", polling=20, timeout=60_000)
        found.append(float(page.evaluate(READ)))
        page.wait_for_timeout(700)
    return found


def report(what: str, times: list[float]) -> None:
    """One line of figures."""
    median, most = np.percentile(times, [50, 95])
    print(f"{what}: median {median:.0f} ms, 95th percentile {most:.0f} ms, {len(times)} strokes", flush=True)


def session_bytes(server: RunningServer) -> int:
    """Memory of the live session that is its own."""
    children = psutil.Process(server.process.pid).children()
    own = [each for each in children if "live_worker" in " ".join(each.cmdline())]
    return max((each.memory_info().rss - each.memory_info().shared for each in own), default=0)


def main() -> None:
    """Measure, and print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strokes", type=int, default=40, help="strokes in each case (%(default)s)")
    parser.add_argument("--scene", type=Path, help="keeps scene.tif and truth.tif in this folder, and uses them again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, running_server(Path(work) / "data") as server:
        folder = options.scene or Path(work)
        if not (folder / "truth.tif").exists():
            scene = SyntheticScene(rows=SIZE_PX, cols=SIZE_PX, bands=BANDS, seed=7)
            write_scene(scene, folder / "scene.tif", folder / "truth.tif")
        with rasterio.open(folder / "truth.tif") as file:
            address, seconds = prepare(server, folder / "scene.tif", file.read(1))
        print(f"features of {SIZE_PX} x {SIZE_PX} x {BANDS}: {seconds:.1f} s", flush=True)
        with running_browser() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(f"{server.url}/#{address}/label")
            expect(page.locator(".class-pick")).to_have_count(8)
            page.wait_for_timeout(5000)
            report("whole scene on screen", measure(page, options.strokes, 0, 1))
            report("zoomed in", measure(page, options.strokes, 2, 2))
            print(f"memory of the live session: {session_bytes(server) / 1e6:.0f} MB", flush=True)
            inputs = {"scene": {"href": address}, "stride_px": 1}
            sent = httpx.post(
                f"{server.url}/processes/classify-scene/execution", json={"inputs": inputs},
                headers={"Prefer": "respond-async"}, timeout=60,
            )  # fmt: skip
            report("beside a mapping job", measure(page, options.strokes, 0, 3))
            httpx.delete(f"{server.url}/jobs/{sent.raise_for_status().json()['jobID']}")


if __name__ == "__main__":
    main()
