"""`hyperscene demo`: the whole way in one command: a service, a scene, its map, and how right it is."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
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

from service.cli import DONE
from service.commands.classify import map_on_server, print_summary
from service.errors import NotReady
from service.mapping.pipeline import MapOptions
from service.mapping.rasters import rgb
from service.mapping.scenes import open_scene, read_cube, unplaced_is_fine
from training.synthetic import SyntheticScene, write_scene

SCENE = SyntheticScene(rows=240, cols=240, seed=7)
START_S = 60.0
STOP_S = 15.0
TRUE_COLOR_NM = (640, 550, 460)
GAP_PX = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene demo`."""
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="for scene and map (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Serve, make a scene, send it, and look at what comes back."""
    scene, truth = options.out / "scene.tif", options.out / "truth.tif"
    options.out.mkdir(parents=True, exist_ok=True)
    write_scene(SCENE, scene, truth)
    print(f"{scene}: {SCENE.rows} x {SCENE.cols} x {SCENE.bands}, synthetic, in {truth} is what it shows")
    with running_service() as address:
        print(f"a service with the demo bundle listens on {address}")
        summary = map_on_server(address, None, scene, options.out, None, MapOptions())
    print_summary(summary, options.out)
    right, known = score(options.out / "classes.tif", truth)
    print(f"{100 * right / known:.1f} % of {known} pixels are mapped as what they are")
    write_picture(options.out / "picture.png", scene, [options.out / "classes.tif", truth], summary)
    print(f"the map is {options.out / 'classes.tif'}; scene, map and truth side by side: {options.out / 'picture.png'}")
    return DONE


@contextmanager
def running_service() -> Generator[str, None, None]:
    """A service on a free port, with a data folder that is gone afterwards; its address."""
    with tempfile.TemporaryDirectory(prefix="hyperscene-demo-") as folder:
        command = [
            sys.executable,
            "-m",
            "service.cli",
            "serve",
            "--port",
            "0",
            "--data",
            folder,
            "--log-level",
            "error",
        ]
        # A demo of the demo bundle, whatever an operator has set for a service of their own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HYPERSCENE_")}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                raise NotReady("the service did not start: the line above says why")
            _wait_until_ready(found[0])
            yield found[0]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(address: str) -> None:
    answer, deadline = "", time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            response = httpx.get(f"{address}/readyz")
            if response.is_success:
                return
            answer = response.json()["detail"]
        except httpx.HTTPError as error:
            answer = str(error)
        time.sleep(0.1)
    raise NotReady(f"the service is not ready after {START_S:.0f} s: {answer}")


def score(classes: Path, truth: Path) -> tuple[int, int]:
    """Pixels whose class is the true one, of those with a truth and a class."""
    found, true = _read(classes), _read(truth)
    is_known = (found > 0) & (true > 0)
    return int((found == true)[is_known].sum()), int(is_known.sum())


def _read(path: Path) -> NDArray[Any]:
    with rasterio.open(path) as raster:
        values: NDArray[Any] = raster.read(1)
    return values


def write_picture(path: Path, scene: Path, maps: list[Path], summary: dict[str, Any]) -> None:
    """The scene in true colour and the maps in the classes' colours, side by side."""
    colors = np.array([(255, 255, 255), *(rgb(entry["color"]) for entry in summary["classes"])], np.uint8)
    panels = [true_color(scene), *(colors[_read(file)] for file in maps)]
    gap = np.full((panels[0].shape[0], GAP_PX, 3), 255, np.uint8)
    row = np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)
    row = row.repeat(2, axis=0).repeat(2, axis=1)
    with unplaced_is_fine(), rasterio.open(
        path, "w", driver="PNG", height=row.shape[0], width=row.shape[1], count=3, dtype="uint8"
    ) as file:  # fmt: skip
        file.write(np.moveaxis(row, -1, 0))


def true_color(path: Path) -> NDArray[np.uint8]:
    """A scene as the eye would see it: the bands nearest red, green and blue, stretched."""
    scene = open_scene(path)
    assert scene.wavelengths_nm is not None
    places = np.array([int(np.abs(scene.wavelengths_nm - nm).argmin()) for nm in TRUE_COLOR_NM])
    cube, valid = read_cube(scene.narrowed(places))
    low, high = np.percentile(cube[valid], [2, 98], axis=0)
    stretched = np.clip((cube - low) / (high - low), 0, 1) ** 0.8
    picture: NDArray[np.uint8] = np.where(valid[..., None], 255 * stretched, 255).astype(np.uint8)
    return picture
