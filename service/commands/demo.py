"""`hyperscene demo`: start a server, create a synthetic scene, map it, and measure the map's accuracy."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import rasterio
from numpy.typing import NDArray

from hyperscene.child_process import module_command
from hyperscene.errors import NotReady
from hyperscene.service.cli import DONE
from hyperscene.service.commands.classify import map_on_server, print_summary
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.rasters import rgb
from hyperscene.service.mapping.scenes import open_scene, read_cube
from hyperscene.training.data.synthetic import DEMO_SCENE, write_scene

SCENE = DEMO_SCENE
START_S = 60.0
STOP_S = 15.0
TRUE_COLOR_NM = (640, 550, 460)
GAP_PX = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the scene and its map (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Create the scene, map it on a server, and show the results."""
    scene, truth = options.out / "scene.tif", options.out / "truth.tif"
    options.out.mkdir(parents=True, exist_ok=True)
    write_scene(SCENE, scene, truth)
    print(f"{scene}: synthetic, {SCENE.rows} x {SCENE.cols} pixels, {SCENE.bands} bands; its true classes: {truth}")
    with running_server() as url:
        print(f"a server with the demo bundle listens on {url}")
        summary = map_on_server(url, None, scene, options.out, None, MapOptions())
    print_summary(summary, options.out)
    correct, known = score(options.out / "classes.tif", truth)
    print(f"{100 * correct / known:.1f} % of {known} pixels have their true class")
    write_picture(options.out / "picture.png", scene, [options.out / "classes.tif", truth], summary)
    print(f"the map: {options.out / 'classes.tif'}; scene, map and truth side by side: {options.out / 'picture.png'}")
    return DONE


@contextmanager
def running_server() -> Generator[str, None, None]:
    """A server on a free port with a temporary data folder; yields its URL."""
    with tempfile.TemporaryDirectory(prefix="hyperscene-demo-") as folder:
        command = module_command(
            "hyperscene.service.cli", "serve", "--port", "0", "--data", folder, "--log-level", "error"
        )
        # The demo ignores the settings of other servers on this machine.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HYPERSCENE_")}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                raise NotReady("the server did not start: the line above says why")
            _wait_until_ready(found[0])
            yield found[0]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(url: str) -> None:
    reason, deadline = "", time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            response = httpx.get(f"{url}/readyz")
            if response.is_success:
                return
            reason = response.json()["detail"]
        except httpx.HTTPError as error:
            reason = str(error)
        time.sleep(0.1)
    raise NotReady(f"the server is not ready after {START_S:.0f} s: {reason}")


def score(classes: Path, truth: Path) -> tuple[int, int]:
    """The number of pixels with their true class, and of pixels with a predicted and a true class."""
    predicted, true = _read(classes), _read(truth)
    is_known = (predicted > 0) & (true > 0)
    return int((predicted == true)[is_known].sum()), int(is_known.sum())


def _read(path: Path) -> NDArray[Any]:
    with rasterio.open(path) as raster:
        values: NDArray[Any] = raster.read(1)
    return values


def write_picture(path: Path, scene: Path, maps: list[Path], summary: dict[str, Any]) -> None:
    """Write the scene in true colours and the maps in their class colours, side by side."""
    colors = np.array([(255, 255, 255), *(rgb(entry["color"]) for entry in summary["classes"])], np.uint8)
    panels = [true_color(scene), *(colors[_read(file)] for file in maps)]
    gap = np.full((panels[0].shape[0], GAP_PX, 3), 255, np.uint8)
    row = np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)
    row = row.repeat(2, axis=0).repeat(2, axis=1)
    with ignore_missing_georeference(), rasterio.open(
        path, "w", driver="PNG", height=row.shape[0], width=row.shape[1], count=3, dtype="uint8"
    ) as file:  # fmt: skip
        file.write(np.moveaxis(row, -1, 0))


def true_color(path: Path) -> NDArray[np.uint8]:
    """A scene's bands nearest to red, green and blue, stretched."""
    scene = open_scene(path)
    assert scene.wavelengths_nm is not None
    bands = np.array([int(np.abs(scene.wavelengths_nm - nm).argmin()) for nm in TRUE_COLOR_NM])
    cube, valid = read_cube(scene.narrowed(bands))
    low, high = np.percentile(cube[valid], [2, 98], axis=0)
    stretched = np.clip((cube - low) / (high - low), 0, 1) ** 0.8
    picture: NDArray[np.uint8] = np.where(valid[..., None], 255 * stretched, 255).astype(np.uint8)
    return picture
