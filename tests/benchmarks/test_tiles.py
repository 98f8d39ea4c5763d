"""Time for a tile and for a pixel, of a result of 10,000 x 10,000 pixels and of scenes of 5 GB.

As a test: the same with small ones. Measured: pytest tests/benchmarks/test_tiles.py --benchmark-enable -s
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import httpx
import numpy as np
import pytest
import rasterio
from rasterio.windows import Window

from hyperscene.service.jobs.records import JobRecord, SceneRecord, new_id
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.describe import describe_header
from hyperscene.service.mapping.metadata import write_json
from hyperscene.service.mapping.rasters import RASTERS, MapWriter, optimise
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.mapping.strips import StoredStrip
from hyperscene.service.settings import Settings
from tests.bundles import describe, pixel_graph
from tests.scenes import GRID, UTM, write_tif
from tests.server import RunningServer, running_server
from tests.tiles import lon_lats, tile_pixels

CLASSES = 16


@pytest.fixture(scope="module")
def is_measured(request):
    return request.config.getoption("--benchmark-enable")


class DataFolder:
    """A data folder that is filled before a server uses it."""

    def __init__(self, data: Path) -> None:
        self.settings = Settings(data=data)
        for name in ("scenes", "jobs", "incoming"):
            (data / name).mkdir(parents=True)
        self._store = Store(self.settings.database)

    def add_scene(self, write: Callable[[Path], Path]) -> SceneRecord:
        """Add a scene without an upload."""
        scene_id = new_id()
        folder = self.settings.scene_folder(scene_id)
        folder.mkdir()
        path = write(folder)
        document = describe_header(open_scene(path))
        expires = time.time() + 10_000
        scene = SceneRecord(scene_id, "", path.name, path.name, path.stat().st_size, time.time(), expires, document)
        self._store.add_scene(scene)
        return scene

    def file_of(self, scene: SceneRecord) -> Path:
        """The path of a scene's data."""
        return self.settings.scene_folder(scene.id) / scene.file

    def add_job(self, scene: SceneRecord, write: Callable[[Path], None]) -> str:
        """Add a finished job without running it."""
        now = time.time()
        job = JobRecord(new_id(), "", scene.id, scene.name, "demo", {}, "successful", now, now, expires=now + 10_000)
        folder = self.settings.results_folder(job.id)
        folder.mkdir(parents=True)
        write(folder)
        self._store.add_job(job, 100)
        return job.id


def write_results(scene: Path, folder: Path) -> None:
    """A map of patches and noise, as our rasters."""
    opened = open_scene(scene)
    colors = [f"#{40 + 9 * value:02x}8040" for value in range(CLASSES)]
    manifest = describe(pixel_graph(classes=CLASSES), classes=CLASSES, class_colors=colors)
    generator = np.random.default_rng(0)
    with MapWriter(folder, opened, manifest, "uint8") as writer:
        for top in range(0, opened.rows, 200):
            shape = min(200, opened.rows - top), opened.cols
            shares = generator.integers(0, 60, (*shape, CLASSES), np.uint8)
            patches = generator.integers(0, CLASSES, (25, -(-opened.cols // 8)))
            winners = np.kron(patches, np.ones((8, 8), int))[: shape[0], : shape[1], None]
            np.put_along_axis(shares, winners, generator.integers(40, 250, (*shape, 1), np.uint8), axis=-1)
            classes = shares.argmax(axis=-1).astype(np.uint8) + np.uint8(1)
            writer.write(StoredStrip(top, classes, shares, shares.max(axis=-1), 0.0, 0, 0))
    for name in RASTERS:
        optimise(folder, name, 2)
    legend = enumerate(zip(manifest.class_names, colors, strict=True), start=1)
    classes = [{"value": value, "name": name, "color": color} for value, (name, color) in legend]
    write_json(folder / "summary.json", {"classes": classes, "bundle": {"sha256": ""}})


def taken_ms(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    response = client.get(path)
    assert response.status_code == 200, response.text
    return 1000 * (time.perf_counter() - began)


def quantiles(numbers: list[float]) -> str:
    return f"median {statistics.median(numbers):5.0f} ms, longest {max(numbers):5.0f} ms"


def tiles_at(rows: int, zoom: int, count: int) -> list[tuple[int, int]]:
    """Random tiles (x, y) that show a part of the scene."""
    generator = np.random.default_rng(zoom)
    lon, lat = lon_lats(100, 100, UTM, GRID @ rasterio.Affine.scale(rows / 100))
    indices = generator.integers(0, 100, (2, count))
    x, y, _, _ = tile_pixels(lon[tuple(indices)], lat[tuple(indices)], zoom)
    return list(zip(x.tolist(), y.tolist(), strict=True))


@pytest.mark.slow
def test_tiles_of_a_large_result_are_fast(tmp_path, is_measured):
    side, count = (10_000, 15) if is_measured else (600, 2)
    generator = np.random.default_rng(1)
    values = generator.integers(1, 4000, (side // 20, side // 20, 3), "uint16")
    values = np.kron(values, np.ones((20, 20, 1), "uint16")) + generator.integers(0, 900, (side, side, 1), "uint16")
    nm = np.array([460, 550, 640])
    folder = DataFolder(tmp_path / "data")
    scene = folder.add_scene(lambda folder: write_tif(folder / "scene.tif", values, wavelengths_nm=nm, tiled=True))
    job = folder.add_job(scene, partial(write_results, folder.file_of(scene)))
    with running_server(tmp_path / "data", "--device", "cpu") as server:
        document = server.client.get(f"/jobs/{job}/tilejson.json").json()
        least, most = document["minzoom"], document["maxzoom"]
        first_ms = taken_ms(server.client, f"/jobs/{job}/tiles/scene/0/0/0.png")
        if is_measured:
            print(f"\n{side} x {side} pixels, {CLASSES} classes; the scene's view takes {first_ms / 1000:.1f} s, once")
        zooms = range(least - 1, most + 3) if is_measured else (most,)
        for layer, sharp, zoom in product(("classes", "confidence", "probability-9", "scene"), ("", "@2x"), zooms):
            address = f"/jobs/{job}/tiles/{layer}/{zoom}"
            numbers = [taken_ms(server.client, f"{address}/{x}/{y}{sharp}.png") for x, y in tiles_at(side, zoom, count)]
            if is_measured:
                print(f"{layer:14} zoom {zoom:2} {sharp or '   '}: {quantiles(numbers)}")
        tiles = tiles_at(side, most, 200 if is_measured else 8)
        numbers, seconds = get_concurrently(server, [f"/jobs/{job}/tiles/classes/{most}/{x}/{y}.png" for x, y in tiles])
        if is_measured:
            print(f"six at a time, as in a browser: {len(tiles) / seconds:.0f} tiles per second; {quantiles(numbers)}")


def get_concurrently(server: RunningServer, paths: list[str]) -> tuple[list[float], float]:
    """Milliseconds of each call, and seconds of all."""
    with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(6) as pool:
        began = time.perf_counter()
        numbers = list(pool.map(lambda path: taken_ms(client, path), paths))
        return numbers, time.perf_counter() - began


def write_sparse_envi(folder: Path, interleave: str, rows: int, cols: int, nm: np.ndarray) -> Path:
    """A sparse ENVI scene of zeros, which needs no disk space."""
    lines = {
        "samples": cols, "lines": rows, "bands": len(nm), "header offset": 0, "file type": "ENVI Standard",
        "data type": 2, "interleave": interleave, "byte order": 0, "wavelength units": "Nanometers",
        "wavelength": "{" + ", ".join(f"{value:.2f}" for value in nm) + "}",
    }  # fmt: skip
    text = "".join(f"{key} = {value}\n" for key, value in lines.items())
    (folder / "scene.hdr").write_text(f"ENVI\n{text}")
    with (folder / "scene.img").open("wb") as file:
        file.truncate(2 * rows * cols * len(nm))
    return folder / "scene.img"


def write_tiled(
    folder: Path, interleave: str, compress: str, rows: int, cols: int, nm: np.ndarray, pixels: list[tuple[int, int]]
) -> Path:
    """A sparse tiled GeoTIFF; only the given tiles are written."""
    generator = np.random.default_rng(0)
    with rasterio.open(
        folder / "scene.tif", "w", driver="GTiff", height=rows, width=cols, count=len(nm), dtype="int16", tiled=True,
        blockxsize=256, blockysize=256, interleave=interleave, compress=compress, bigtiff="yes", sparse_ok=True,
        crs=UTM, transform=GRID, photometric="minisblack",
    ) as file:  # fmt: skip
        for top, left in {(row // 256 * 256, col // 256 * 256) for row, col in pixels}:
            height, width = min(256, rows - top), min(256, cols - left)
            numbers = generator.integers(0, 9999, (len(nm), height, width), "int16")
            file.write(numbers, window=Window(left, top, width, height))
        for band, value in enumerate(nm, start=1):
            file.update_tags(band, wavelength=str(value), wavelength_units="Nanometers")
    return folder / "scene.tif"


@pytest.mark.slow
def test_pixels_of_a_large_scene_are_fast(tmp_path, is_measured):
    rows, cols, bands, count = (3600, 3500, 200, 12) if is_measured else (60, 50, 12, 2)  # int16: 5 GB
    nm = np.linspace(420, 2450, bands)
    generator = np.random.default_rng(2)
    pixels = list(zip(*(generator.integers(0, size, count).tolist() for size in (rows, cols)), strict=True))
    writers = {f"ENVI {kind}": partial(write_sparse_envi, interleave=kind) for kind in ("bsq", "bil", "bip")}
    for kind, pack in product(("band", "pixel"), ("none", "deflate")):
        name = f"GeoTIFF, tiles by {kind}, {pack}"
        writers[name] = partial(write_tiled, interleave=kind, compress=pack, pixels=pixels)
    folder = DataFolder(tmp_path / "data")
    jobs = {}
    for name, write in writers.items():
        scene = folder.add_scene(partial(write, rows=rows, cols=cols, nm=nm))
        jobs[name] = folder.add_job(scene, partial(write_results, folder.file_of(scene)))
    with running_server(tmp_path / "data", "--device", "cpu") as server:
        taken_ms(server.client, f"/jobs/{next(iter(jobs.values()))}/pixel?row=0&col=0")  # starts who looks
        for name, job in jobs.items():
            numbers = [taken_ms(server.client, f"/jobs/{job}/pixel?row={row}&col={col}") for row, col in pixels]
            if is_measured:
                print(f"\npixel of {name:32}: {quantiles(numbers)}", end="")
