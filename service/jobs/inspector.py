"""Reads the header of uploaded and remote files for the first time, in sandbox processes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree
from typing import Any

from hyperscene.errors import SceneUnreadable
from hyperscene.model.bundle import DEMO_BUNDLE, BundleRefused, Manifest, read_bundle
from hyperscene.model.onnx_file import has_external_data
from hyperscene.service.jobs.sandbox import Sandbox, SandboxLimits, serve
from hyperscene.service.mapping.describe import describe_ground, describe_header, mask_shares
from hyperscene.service.mapping.engine_health import checking_device
from hyperscene.service.mapping.grids import make_grid
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.products.containers import ArchiveLimits
from hyperscene.service.mapping.products.finding import find_product, unpack_all
from hyperscene.service.mapping.scene_files import FORMATS
from hyperscene.service.mapping.scenes import open_scene

# Reading the header of a scene of 2,000 bands, or of one with lists of 900,000 numbers, takes 213 MB of address space.
LIMITS = SandboxLimits(seconds=60.0, memory_bytes=1 << 30)
PROCESSES = 4
# Deflated data unpack at about 200 MB/s: 100 GB in this time.
UNPACK_LIMITS = SandboxLimits(
    seconds=600.0, memory_bytes=1 << 30, doing="the archive could not be unpacked", reason="send its files unpacked"
)
UNPACK_PROCESSES = 2
# A bundle's check runs its network: 606 MB for the demo bundle with OpenVINO.
BUNDLE_LIMITS = SandboxLimits(seconds=60.0, memory_bytes=4 << 30)
# Remote scenes have separate processes: uploads do not wait for a host that does not respond.
REMOTE_LIMITS = SandboxLimits(
    seconds=45.0,
    memory_bytes=1 << 30,
    doing="the scene could not be read",
    reason="its host does not respond, or is too slow; try again later, or upload it with POST /scenes",
)
MAX_REMOTE = 4


class Inspector:
    """Inspects files without opening them in this process."""

    def __init__(self) -> None:
        self._sandbox = Sandbox(__name__, PROCESSES, LIMITS)
        self._remote_sandbox = Sandbox(__name__, MAX_REMOTE, REMOTE_LIMITS)
        self._unpack_sandbox = Sandbox(__name__, UNPACK_PROCESSES, UNPACK_LIMITS)
        self._bundle_sandbox = Sandbox(__name__, 1, BUNDLE_LIMITS)

    def inspect_scene(self, path: Path, limits: Limits) -> dict[str, Any]:
        """The document of an uploaded scene."""
        return self._sandbox.run({"scene": str(path), "limits": asdict(limits)})

    def unpack(self, archive: Path, folder: Path, limits: ArchiveLimits) -> int:
        """Unpack an uploaded archive into a new folder; returns the bytes of its files."""
        response = self._unpack_sandbox.run({"archive": str(archive), "folder": str(folder), "limits": asdict(limits)})
        return int(response["bytes"])

    def inspect_remote_scene(self, path: Path, limits: Limits) -> dict[str, Any]:
        """The document of a scene that stays on another host."""
        return self._remote_sandbox.run({"scene": str(path), "limits": asdict(limits)})

    def inspect_bundle(self, path: Path) -> tuple[Manifest, str]:
        """The manifest and sha256 of a bundle that passed its check."""
        response = self._bundle_sandbox.run({"bundle": str(path), "device": checking_device(read_bundle(path))})
        return Manifest.model_validate(response["manifest"]), str(response["sha256"])

    def inspect_upload(self, path: Path) -> tuple[Manifest, str]:
        """The manifest and sha256 of a bundle that someone sent, which is not even parsed in this process."""
        device = checking_device(read_bundle(DEMO_BUNDLE))
        response = self._bundle_sandbox.run({"bundle": str(path), "device": device, "is_upload": True})
        return Manifest.model_validate(response["manifest"]), str(response["sha256"])

    def close(self) -> None:
        """Kill the processes."""
        for sandbox in (self._sandbox, self._remote_sandbox, self._unpack_sandbox, self._bundle_sandbox):
            sandbox.close()


def _inspect(request: dict[str, Any]) -> dict[str, Any]:
    if "bundle" in request:
        from hyperscene.service.mapping.engines import (
            check_bundle,  # not imported by the server, which imports this module
        )

        bundle = read_bundle(Path(request["bundle"]))
        if request.get("is_upload") and has_external_data(bundle.content):
            raise BundleRefused(f"{bundle.path.name} refers to data in other files: export it as one file")
        check_bundle(bundle, request["device"])
        return {"manifest": bundle.manifest.model_dump(mode="json"), "sha256": bundle.sha256}
    if "archive" in request:
        folder = Path(request["folder"])
        rmtree(folder, ignore_errors=True)  # of an attempt whose process was killed
        return {"bytes": unpack_all(Path(request["archive"]), folder, ArchiveLimits(**request["limits"]))}
    limits, path = Limits(**request["limits"]), Path(request["scene"])
    if path.is_dir() and find_product(path) is None:
        raise SceneUnreadable(f"this is no product of a known sensor: send it complete, or {FORMATS}")
    scene = open_scene(path, limits, counts_packed=False)
    # Whatever a job reads of a product is read here first: its layers, and its way to the ground.
    document = describe_header(scene) | describe_ground(scene, limits)
    document |= {"mask_shares": shares} if (shares := mask_shares(scene)) else {}
    with suppress(Exception):  # a georeference that crashes PROJ crashes this process, not the server
        make_grid(scene.rows, scene.cols, scene.crs, scene.transform, scene.gcps)
    return document | ({"version": scene.version} if scene.version else {})


if __name__ == "__main__":
    serve(_inspect)
