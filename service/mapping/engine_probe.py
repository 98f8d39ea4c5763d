"""The child process that tries an engine: `python -m hyperscene.service.mapping.engine_probe DEVICE`.

It reads a bundle from standard input, runs its self-check and then full batches for half a second, and prints one
JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hyperscene.errors import NotReady
from hyperscene.model.bundle import parse_bundle
from hyperscene.model.probing import confine_probe
from hyperscene.service.mapping.engine_health import PROBE_S
from hyperscene.service.mapping.engines import Engine, open_engine
from hyperscene.service.mapping.fused_engine import kernel_for

MEASURED_S = 0.5
STRIDE_PX = 4  # as in a default map


def main() -> None:
    """Try the engine named on the command line."""
    confine_probe(int(PROBE_S) + 10)
    device = sys.argv[1]
    bundle = parse_bundle(sys.stdin.buffer.read(), Path("the bundle"))
    try:
        engine = open_engine(bundle, device, 0, 0)
        if device == "fused" and kernel_for("bfloat16") is not None:
            open_engine(bundle, device, 1, 0, "bfloat16")  # runs its instructions here first, too
        rate = _patches_per_s(engine, bundle.manifest.bands, bundle.manifest.patch_px)
    except NotReady as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    print(json.dumps({"provider": engine.provider, "patches_per_s": round(rate, 1)}), flush=True)


def _patches_per_s(engine: Engine, bands: int, patch_px: int) -> float:
    """Patches per second with all callers."""
    side = round(engine.batch**0.5)
    size = patch_px + STRIDE_PX * (side - 1)
    steps = patch_px // 2 + STRIDE_PX * np.arange(side)
    centers = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.int64)
    cube = np.zeros((size, size, bands), np.float32)
    engine.probabilities(cube, centers)  # compiles

    def work(_: int) -> int:
        calls, until = 0, time.perf_counter() + MEASURED_S
        while time.perf_counter() < until:
            engine.probabilities(cube, centers)
            calls += 1
        return calls

    began = time.perf_counter()
    with ThreadPoolExecutor(engine.callers) as pool:
        calls = sum(pool.map(work, range(engine.callers)))
    return calls * len(centers) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
