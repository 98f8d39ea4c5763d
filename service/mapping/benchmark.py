"""Mapping speed of this machine, compared with its matrix products and two simple ways to run the same network."""

from __future__ import annotations

import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import from_origin
from threadpoolctl import threadpool_limits

from hyperscene.errors import OutputUnwritable
from hyperscene.model.bundle import Bundle, Manifest, open_session, run_graph
from hyperscene.service.mapping.engine_health import is_installed
from hyperscene.service.mapping.engines import Engine, cores, make_engine
from hyperscene.service.mapping.lattice import Lattice, plan_mapping
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene

STAGES = ("read", "network", "blend", "write", "optimise", "total")
GEMM_SIDE = 2048
EAGER_BATCH, PLAIN_BATCH = 128, 64
# Read by the process itself: a child's ru_maxrss starts with that of its parent.
STATUS_CODE = """
import sys
from pathlib import Path
from hyperscene.service.cli import main
main(sys.argv[1:]) and sys.exit(1)
print(Path("/proc/self/status").read_text())
"""
FIRST_STRIP_CODE = """
import sys, time
from hyperscene.service.cli import main
from hyperscene.service.mapping.rasters import MapWriter
write = MapWriter.write
def write_and_tell(*arguments):
    write(*arguments)
    print(time.time(), flush=True)
MapWriter.write = write_and_tell
main(sys.argv[1:]) and sys.exit(1)
"""
FIELD_PX = 24  # side of the square fields in the synthetic scene


@dataclass(frozen=True)
class BenchOptions:
    """How much to measure."""

    device: Any = "auto"
    threads: int = 0
    batch: int = 0
    rounds: int = 3
    patches: int = 4096  # of each map
    loop_s: float = 2.0  # how long each loop without a scene runs in a round
    precision: Any = "auto"


@dataclass
class Measurements:
    """Measured numbers by name, one per round."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.rounds.setdefault(name, []).append(value)

    def median(self, name: str) -> float | None:
        return statistics.median(self.rounds[name]) if name in self.rounds else None

    def ratio(self, name: str, to: str, factor: float = 1.0) -> float | None:
        """The median of the ratios within each round, because load on the machine slows both down."""
        if name not in self.rounds or to not in self.rounds:
            return None
        return statistics.median(factor * a / b for a, b in zip(self.rounds[name], self.rounds[to], strict=True))


def measure(bundle: Bundle, options: BenchOptions, folder: Path, report: Callable[[int, int], None]) -> dict[str, Any]:
    """Run all candidates in interleaved rounds; returns a document of medians and ratios."""
    manifest, measured = bundle.manifest, Measurements()
    engine = make_engine(bundle, options.device, options.threads, options.batch, options.precision)
    strides = [stride for stride in (1, 2, 4, 8) if stride <= manifest.patch_px // 2]
    scenes = write_scenes(folder, manifest, strides, options.patches)
    candidates = _candidates(bundle, engine, options, measured, folder, scenes)
    steps = (options.rounds + 1) * len(candidates)
    for round_number in range(options.rounds + 1):
        for index, candidate in enumerate(candidates.values(), start=1):
            candidate()
            report(round_number * len(candidates) + index, steps)
        if round_number == 0:  # warm-up: compiling, allocating, reading from disk
            measured.rounds.clear()
    document = _document(bundle, engine, measured, strides, scenes)
    return document | {"peak_memory_mb": peak_memory_mb(bundle, engine, scenes)}


def _candidates(
    bundle: Bundle, engine: Engine, options: BenchOptions, measured: Measurements, folder: Path, scenes: dict[int, Path]
) -> dict[str, Callable[[], None]]:
    """The calls of a round by name; each adds its own measurements."""
    candidates: dict[str, Callable[[], None]] = {
        "gemm": lambda: measured.add("gemm", gemm_gflops(options.loop_s, engine.callers)),
    }
    if find_spec("torch") is not None and bundle.manifest.architecture:
        eager = eager_network(bundle.manifest)
        candidates["eager"] = lambda: measured.add("eager", _rate(eager, EAGER_BATCH, options.loop_s))
    other = engine if engine.device == "cpu" else make_engine(bundle, "cpu", options.threads, options.batch)
    session = open_session(bundle.content, bundle.path.name, engine.callers)
    patches = _stacked_patches(bundle.manifest)
    candidates["plain"] = lambda: measured.add(
        "plain", _rate(lambda: run_graph(session, *patches), PLAIN_BATCH, options.loop_s)
    )
    if other is not engine:
        candidates["other"] = partial(_map_once, "onnxruntime", bundle, other, measured, folder, scenes[1], 1)
    if engine.device == "fused" and is_installed("openvino"):
        graph = make_engine(bundle, "openvino", options.threads, options.batch)
        candidates["openvino"] = partial(_map_once, "openvino", bundle, graph, measured, folder, scenes[1], 1)
    candidates["start"] = lambda: measured.add("start", first_strip_s(bundle, engine, scenes[1]))
    for stride, path in scenes.items():
        candidates[f"network {stride}"] = partial(
            _run_engine, bundle.manifest, engine, measured, stride, options.loop_s
        )
        name = f"stride {stride}"
        candidates[name] = partial(_map_once, name, bundle, engine, measured, folder, path, stride)
    return candidates


def _map_once(
    name: str, bundle: Bundle, engine: Engine, measured: Measurements, folder: Path, path: Path, stride: int
) -> None:
    """A whole run, from the file to the last of the seven results."""
    options = MapOptions(stride, "none" if stride == 1 else "angle")
    summary = map_scene(open_scene(path), bundle, engine, folder / "map", options)
    total = summary["seconds"]["total"]
    measured.add(name, summary["patches"] / total)
    measured.add(f"{name} pixels", summary["valid_pixels"] / total)
    for stage, seconds in summary["seconds"].items():
        measured.add(f"{name} {stage}", seconds)


def gemm_gflops(loop_s: float, threads: int) -> float:
    """The rate of float32 matrix products with numpy's BLAS, on as many threads as the engine uses."""
    a = np.random.default_rng(0).random((GEMM_SIDE, GEMM_SIDE), np.float32)
    with threadpool_limits(threads, user_api="blas"):
        return _rate(lambda: a @ a, 1, loop_s) * 2 * GEMM_SIDE**3 / 1e9


def _run_engine(manifest: Manifest, engine: Engine, measured: Measurements, stride: int, loop_s: float) -> None:
    """The engine alone, called with the same window from as many threads as it needs."""
    plan = plan_mapping(Lattice(1, 1, stride, manifest.patch_px), is_voting=True, batch=engine.batch, strip_px=1)
    (top, bottom), (left, right) = plan.window_rows(0), plan.window_cols(0)
    cube = _noise(manifest, bottom - top, right - left)
    cells = np.argwhere(np.ones((plan.batch_cell_rows, plan.batch_cell_cols), bool))
    centers = cells * stride + stride // 2 + manifest.patch_px // 2
    with ThreadPoolExecutor(engine.callers) as callers:
        rates = callers.map(
            lambda _: _rate(lambda: engine.probabilities(cube, centers), len(centers), loop_s), range(engine.callers)
        )
        measured.add(f"network {stride}", sum(rates))


def eager_network(manifest: Manifest) -> Callable[[], object]:
    """A call of the same network in torch on EAGER_BATCH patches; the weights are random."""
    import torch

    from hyperscene.model.architecture import ModelConfig, Transformer

    network = Transformer(ModelConfig(**manifest.architecture)).eval()
    patches = torch.zeros(EAGER_BATCH, manifest.patch_px, manifest.patch_px, manifest.bands).normal_()

    def run() -> object:
        with torch.inference_mode():
            return torch.softmax(network(patches), dim=-1)

    return run


def useful_flops(manifest: Manifest) -> float:
    """Floating point operations of the encoder's products for one patch, without the embedding."""
    shape = manifest.architecture
    tokens, width = manifest.patch_px**2, shape["width"]
    projections = 2 * tokens * width * 4 * width
    attention = 2 * 2 * tokens * tokens * width
    mlp = 2 * 2 * tokens * width * shape["mlp_width"]
    return float(shape["depth"] * (projections + attention + mlp))


def write_scenes(folder: Path, manifest: Manifest, strides: list[int], patches: int) -> dict[int, Path]:
    """A synthetic scene, cropped so that every stride has about `patches` patches."""
    side = int(patches**0.5)
    generator = np.random.default_rng(0)
    fields = -(-side * max(strides) // FIELD_PX)
    materials = np.repeat(np.repeat(generator.integers(0, 12, (fields, fields)), FIELD_PX, axis=0), FIELD_PX, axis=1)
    library = _noise(manifest, 12, 1)[:, 0]  # (materials, bands)
    paths = {}
    for stride in strides:
        size = side * stride
        paths[stride] = folder / f"scene_{size}.tif"
        _write_scene(paths[stride], library, materials[:size, :size], manifest)
    return paths


def _write_scene(path: Path, library: NDArray[np.float32], materials: NDArray[np.int64], manifest: Manifest) -> None:
    rows, cols = materials.shape
    generator = np.random.default_rng(1)
    noise = 0.1 * np.array(manifest.band_std, np.float32)
    with rasterio.open(
        path, "w", driver="GTiff", height=rows, width=cols, count=manifest.bands, dtype="float32",
        crs=CRS.from_epsg(32633), transform=from_origin(380_000, 5_820_000, 30, 30), bigtiff="if_safer",
    ) as file:  # fmt: skip
        for band in range(manifest.bands):
            values = library[materials, band] + noise[band] * generator.standard_normal(materials.shape, np.float32)
            file.write(values, band + 1)
            if manifest.wavelengths_nm is not None:
                tags = {"wavelength": str(manifest.wavelengths_nm[band]), "wavelength_units": "Nanometers"}
                file.update_tags(band + 1, **tags)


def peak_memory_mb(bundle: Bundle, engine: Engine, scenes: dict[int, Path]) -> float | None:
    """Peak memory of a separate process that maps the largest scene; None if the system does not report it."""
    stride, path = max(scenes.items())
    with tempfile.TemporaryDirectory() as output:
        arguments = ["classify", path, "-o", output, "--bundle", bundle.path, "--stride", stride, "--device",
                     engine.device, "--threads", engine.callers, "--batch", engine.batch]  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-c", STATUS_CODE, *map(str, arguments)], capture_output=True, text=True
        )
    return peak_in(ended.stdout)


def peak_in(status: str) -> float | None:
    """The peak memory in /proc/self/status, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else None


def first_strip_s(bundle: Bundle, engine: Engine, scene: Path) -> float:
    """Seconds from the command `hyperscene classify` in a new process until its first strip is written."""
    with tempfile.TemporaryDirectory() as output:
        arguments = ["classify", scene, "-o", output, "--bundle", bundle.path, "--device", engine.device]
        began = time.time()
        ended = subprocess.run(
            [sys.executable, "-c", FIRST_STRIP_CODE, *map(str, arguments)], capture_output=True, text=True, check=True
        )
    return float(ended.stdout.split()[0]) - began


def _document(
    bundle: Bundle, engine: Engine, measured: Measurements, strides: list[int], scenes: dict[int, Path]
) -> dict[str, Any]:
    gflop = useful_flops(bundle.manifest) / 1e9 if bundle.manifest.architecture else None
    names = {
        "eager": "eager",
        "plain": "plain",
        "onnxruntime": "onnxruntime",
        "openvino": "openvino",
        "network": "network 1",
        "ours": "stride 1",
    }
    return {
        "machine": machine(),
        "provider": engine.provider,
        "threads": engine.callers,
        "batch": engine.batch,
        "bundle": bundle.manifest.name,
        "bands": bundle.manifest.bands,
        "scenes": {str(stride): path.name for stride, path in scenes.items()},
        "rounds": len(measured.rounds["gemm"]),
        "first_strip_s": measured.median("start"),
        "gemm_gflops": measured.median("gemm"),
        "mflop_per_patch": None if gflop is None else gflop * 1000,
        "patches_per_s": {name: measured.median(key) for name, key in names.items()},
        "share_of_gemm": {
            name: None if gflop is None else measured.ratio(key, "gemm", gflop) for name, key in names.items()
        },
        "ours_to": {name: measured.ratio("stride 1", name) for name in ("eager", "plain", "onnxruntime", "openvino")},
        "strides": {
            str(stride): {
                "pixels_per_s": measured.median(f"stride {stride} pixels"),
                "patches_per_s": measured.median(f"stride {stride}"),
                "round_the_network": _rest(measured.ratio(f"stride {stride}", f"network {stride}")),
                "seconds": {stage: measured.median(f"stride {stride} {stage}") for stage in STAGES},
            }
            for stride in strides
        },
        "all_rounds": measured.rounds,
    }


def _rest(share: float | None) -> float | None:
    return None if share is None else max(0.0, 1 - share)


def machine() -> dict[str, Any]:
    """The machine of the measurement."""
    return {"processor": _processor(), "cores": cores(), "system": platform.system(),
            "python": platform.python_version()}  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _noise(manifest: Manifest, rows: int, cols: int) -> NDArray[np.float32]:
    """Random pixels with the bundle's mean and standard deviation."""
    spread = np.random.default_rng(0).standard_normal((rows, cols, manifest.bands), np.float32)
    return np.array(manifest.band_mean, np.float32) + np.array(manifest.band_std, np.float32) * spread


def _stacked_patches(manifest: Manifest) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """PLAIN_BATCH patches, one below the other, as a program would send that cuts patches itself."""
    side = manifest.patch_px
    centers = np.array([(index * side + side // 2, side // 2) for index in range(PLAIN_BATCH)])
    return _noise(manifest, PLAIN_BATCH * side, side), centers


def _rate(call: Callable[[], object], count: int, loop_s: float) -> float:
    """Units per second; each call does `count` of them."""
    began, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < loop_s:
        call()
        calls += 1
    return calls * count / elapsed


@contextmanager
def bench_folder(given: Path | None) -> Iterator[Path]:
    """The given folder, or a temporary one."""
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputUnwritable(f"{given} cannot be created ({error.strerror}): choose another folder") from error
        yield given
    else:
        with tempfile.TemporaryDirectory(prefix="hyperscene-bench-") as temporary:
            yield Path(temporary)
