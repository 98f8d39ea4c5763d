"""What many tests share: a labelled scene, a bundle that needs no torch, and a server with its client."""

from __future__ import annotations

import os
from pathlib import Path

# Networks as small as the tests' lose more time to waiting threads than they win; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator

import httpx
import pytest

from tests import bundles, scenes
from tests.server import RunningServer, running_server
from training.datasets import LabelledScene


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
