"""Measures the gain and the cost of a cluster on this machine, as ratios to one machine alone, interleaved.

Run by the suite on a small scene, and by hand: python -m tests.scaling --rounds 5 --json FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.cluster.remote_engine import Cluster
from hyperscene.service.cluster.tasks import find_engine
from hyperscene.service.jobs.admission import SHARED_STRIP_PX
from hyperscene.service.mapping.benchmark import machine
from hyperscene.service.mapping.classify import RemoteEngine
from hyperscene.service.mapping.engines import Engine, make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.settings import Settings
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.bundles import write_bundle
from tests.cluster import RunningCluster

SENDS, CALLS = 20, 200
STAGES = ("read", "network", "blend", "write", "optimise", "total")


@contextmanager
def connected(folder: Path, workers: int, device: str) -> Iterator[Cluster]:
    """A connection to a new cluster of workers with one thread each."""
    cluster = RunningCluster(folder)
    connection = None
    try:
        for _ in range(workers):
            cluster.add_worker("--device", device)
        cluster.wait_for_workers()
        connection = Cluster(Settings(cluster=cluster.address))
        yield connection
    finally:
        if connection is not None:
            connection.close()
        cluster.stop()


def measure(folder: Path, rows: int, cols: int, rounds: int, device: str = "auto") -> dict:
    """Map one scene at stride 4 with one thread, one worker and two workers, in each round."""
    scene_path = folder / "scene.tif"
    write_scene(SyntheticScene(rows=rows, cols=cols, seed=3), scene_path, None)
    bundle, scene = load_bundle(DEMO_BUNDLE), open_scene(scene_path)
    options = MapOptions(stride_px=4, strip_px=SHARED_STRIP_PX)
    engine = make_engine(bundle, device, 1)  # type: ignore[arg-type]
    found: dict[str, list[dict]] = {"one thread": [], "one worker": [], "two workers": []}
    links: dict[str, float] = {}
    for number in range(rounds):
        for workers, name in enumerate(found):
            with ExitStack() as stack:
                runner: Engine | RemoteEngine = engine
                if workers:  # a new cluster: an idle one would take its share of the two cores
                    cluster = stack.enter_context(connected(folder / f"{number}-{workers}", workers, device))
                    runner = cluster.engine(bundle, lambda text: None, lambda: False)
                summary = map_scene(scene, bundle, runner, folder / name, options)
                if workers == 1:
                    links = link_speed(cluster)
            assert summary["provider"] == engine.provider
            found[name].append(summary["seconds"])
    contents = {name: (folder / name / "probabilities.tif").read_bytes() for name in found}
    assert len(set(contents.values())) == 1, "the same bytes"
    return report(found, rows * cols, engine.provider) | links | {"pixels_per_s": stage_speed(folder, rows, cols)}


def link_speed(cluster: Cluster) -> dict[str, float]:
    """Bytes sent to a worker per second, and empty calls per second."""
    pool, pixels = cluster._pool, np.zeros((32, 1024, 64), np.float32)
    (worker,) = pool.workers.values()

    async def send() -> float:
        began = time.perf_counter()
        for _ in range(SENDS):
            await pool.send(worker, pixels)
        return SENDS * pixels.nbytes / (time.perf_counter() - began)

    async def call() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(pool.call(worker, find_engine, "") for _ in range(CALLS)))
        return CALLS / (time.perf_counter() - began)

    def measured(run: Callable[[], Coroutine[None, None, float]]) -> float:
        return asyncio.run_coroutine_threadsafe(run(), cluster._loop).result()

    return {"bytes_per_s": measured(send), "calls_per_s": measured(call)}


def stage_speed(folder: Path, rows: int, cols: int, bands: int = 200, classes: int = 9) -> dict[str, float]:
    """Pixels per second by stage without the network: the bundle's network takes almost no time."""
    scene_path = folder / f"{bands}.tif"
    write_scene(SyntheticScene(rows=rows, cols=cols, bands=bands, seed=4), scene_path, None)
    scene = open_scene(scene_path)
    assert scene.wavelengths_nm is not None
    nm = scene.wavelengths_nm.tolist()
    bundle = load_bundle(write_bundle(folder / "product.onnx", bands, classes, wavelengths_nm=nm))
    options = MapOptions(stride_px=4, strip_px=SHARED_STRIP_PX)
    seconds = map_scene(scene, bundle, make_engine(bundle, "cpu", 1), folder / "product", options)["seconds"]
    return {stage: rows * cols / seconds[stage] for stage in STAGES if stage != "network"}


def report(found: dict[str, list[dict]], pixels: int, provider: str) -> dict:
    """Medians of the measurements, and of ratios within each round."""
    one, two = found["one worker"], found["two workers"]
    return {
        "machine": machine(),
        "provider": provider,
        "pixels": pixels,
        "rounds": len(one),
        "seconds": {
            name: {stage: statistics.median(run[stage] for run in runs) for stage in STAGES}
            for name, runs in found.items()
        },
        "two_to_one": statistics.median(a["total"] / b["total"] for a, b in zip(one, two, strict=True)),
        # The share of a job's time that the only worker did not spend in the network.
        "overhead": statistics.median(1 - run["network"] / run["total"] for run in one),
        "one_to_thread": statistics.median(
            a["total"] / b["total"] for a, b in zip(one, found["one thread"], strict=True)
        ),
        "all": found,
    }


def main() -> int:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description="Measure the gain and the cost of a cluster on this machine.")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--cols", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.rows, options.cols, options.rounds, options.device)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    print(f"{figures['machine']['processor']}, {figures['machine']['cores']} cores, {figures['provider']}")
    print(f"{figures['pixels']} pixels at stride 4, medians of {figures['rounds']} interleaved rounds")
    for name, seconds in figures["seconds"].items():
        print(f"{name:12}", "  ".join(f"{stage} {value:.2f}" for stage, value in seconds.items()))
    print(f"two workers against one: {figures['two_to_one']:.2f} x")
    print(f"one worker against one thread of this process: {figures['one_to_thread']:.3f} x the time")
    print(f"outside of the network, of one worker's time: {100 * figures['overhead']:.1f} %")
    print(f"to a worker: {figures['bytes_per_s'] / 1e6:.0f} MB/s, {figures['calls_per_s']:.0f} calls/s")
    speeds = "  ".join(f"{stage} {speed:,.0f}" for stage, speed in figures["pixels_per_s"].items())
    print(f"the service's own part, 200 bands, in pixels/s by stage: {speeds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
