"""What many tests share: a labelled scene, a bundle that needs no torch, and a server with its client."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Networks as small as the tests' lose more time to waiting threads than they win; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What this machine can do is tried once, and not remembered in the developer's own cache folder.
os.environ.setdefault("HYPERSCENE_CACHE", str(Path(sys.prefix) / "hyperscene-cache"))

from collections.abc import Iterator

import httpx
import pytest

from hyperscene.training.data.datasets import LabelledScene
from tests import bundles, scenes
from tests.programs import COMMANDS, missing_reason
from tests.server import RunningServer, running_server


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose program is missing, with the package to install."""
    reasons = {marker: missing_reason(marker) for marker in COMMANDS}
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("chromium")
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def scene() -> LabelledScene:
    """A small labelled scene whose classes lie in rectangles."""
    return scenes.labelled_scene()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A sound bundle on disk."""
    return bundles.write_bundle(tmp_path / "test.onnx")


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles to serve: `pixel` (the default), `patch`, and `root`, which gives no numbers for negative values."""
    folder = tmp_path_factory.mktemp("bundles")
    bundles.write_bundle(folder / "pixel.onnx")
    bundles.write_patch_bundle(folder / "patch.onnx")
    bundles.write_root_bundle(folder / "root.onnx")
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, bundle_folder: Path) -> Iterator[RunningServer]:
    """One server for all tests that do no harm to it."""
    data = tmp_path_factory.mktemp("server") / "data"
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(data, *options) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> httpx.Client:
    """Asks that server."""
    return server.client
