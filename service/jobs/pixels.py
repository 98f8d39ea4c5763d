"""Spectra of single pixels, read in separate sandbox processes so that uploads do not wait for them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rasterio.windows import Window

from hyperscene.errors import SceneUnreadable
from hyperscene.service.jobs.bounded_pool import BoundedPool
from hyperscene.service.jobs.sandbox import Sandbox, SandboxLimits, serve
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.remote import is_remote
from hyperscene.service.mapping.scene_header import Scene
from hyperscene.service.mapping.scenes import open_scene, read_spectrum

LIMITS = SandboxLimits(
    seconds=20.0,
    memory_bytes=4 << 30,
    doing="the pixel could not be read",
    reason="its file has blocks that must be unpacked whole, or is damaged; rewrite it in small tiles, such as with "
    "gdal_translate -co TILED=YES, to see its spectra",
)
REMOTE_REASON = "its host does not respond, or is too slow; try again later"
PROCESSES = 2
MAX_REQUESTS = 16


class PixelReader:
    """Reads spectra of scenes; a pixel of a scene in sensor geometry is that of its map."""

    def __init__(self) -> None:
        self._sandbox = Sandbox(__name__, PROCESSES, LIMITS)
        self._pool = BoundedPool(PROCESSES, MAX_REQUESTS, "pixel")
        self._remote_sandbox = Sandbox(__name__, PROCESSES, replace(LIMITS, reason=REMOTE_REASON))
        self._remote_pool = BoundedPool(PROCESSES, MAX_REQUESTS, "remote-pixel")

    def read(self, path: Path, limits: Limits, version: str, row: int, col: int) -> Future[list[float | None]]:
        """The values of a pixel in the scene's good bands and physical units; None where a band has no data."""
        request = {"scene": str(path), "limits": asdict(limits), "version": version, "pixel": [row, col]}
        return self._submit(path, request)

    def read_many(
        self, path: Path, limits: Limits, version: str, pixels: list[tuple[int, int]]
    ) -> Future[list[list[float | None]]]:
        """The values of several pixels."""
        return self._submit(path, {"scene": str(path), "limits": asdict(limits), "version": version, "pixels": pixels})

    def _submit(self, path: Path, request: dict[str, Any]) -> Future[Any]:
        if is_remote(path):  # local scenes do not wait for a host that does not respond
            return self._remote_pool.submit(lambda: self._remote_sandbox.run(request)["values"])
        return self._pool.submit(lambda: self._sandbox.run(request)["values"])

    def close(self) -> None:
        """Refuse new requests and kill the processes."""
        for part in (self._pool, self._remote_pool, self._sandbox, self._remote_sandbox):
            part.close()


def mean_spectrum(spectra: list[list[float | None]]) -> dict[str, list[float | None]]:
    """Mean and standard deviation in each band, without pixels that have no data in it."""
    values = np.array(spectra, float)
    known = np.isfinite(values)
    counts = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, values, 0).sum(axis=0) / counts
    deviation = np.sqrt(np.where(known, (values - mean) ** 2, 0).sum(axis=0) / counts)
    has_data = known.any(axis=0)
    return {
        name: [float(number) if is_known else None for number, is_known in zip(numbers, has_data, strict=True)]
        for name, numbers in (("mean", mean), ("deviation", deviation))
    }


def _read(request: dict[str, Any]) -> dict[str, Any]:
    scene = open_scene(
        Path(request["scene"]), Limits(**request["limits"]), counts_packed=False, version=request["version"]
    )
    if "pixels" in request:
        return {"values": [_values(scene, row, col) for row, col in request["pixels"]]}
    row, col = request["pixel"]
    return {"values": _values(scene, row, col)}


def _values(scene: Scene, row: int, col: int) -> list[float | None]:
    if scene.ground is not None:  # a pixel of the map
        from hyperscene.service.mapping.swaths import NONE, open_ground  # 6 MB, for swaths only

        with open_ground(scene) as (_, lookup):
            index = int(lookup.find(Window(col, row, 1, 1))[0, 0])
        if index == NONE:
            return [None] * len(scene.bands)
        row, col = divmod(index, scene.cols)
    values = read_spectrum(scene, row, col)
    if values is None:
        raise SceneUnreadable(f"{LIMITS.doing}: {LIMITS.reason}")
    return [value if value == value else None for value in values.tolist()]


if __name__ == "__main__":
    serve(_read)
