"""What many tests share: a labelled scene, and a bundle that needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

# Networks as small as the tests' lose more time to waiting threads than they win; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests import bundles, scenes
from training.datasets import LabelledScene


@pytest.fixture
def scene() -> LabelledScene:
    """A small labelled scene whose classes lie in rectangles."""
    return scenes.labelled_scene()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A sound bundle on disk."""
    return bundles.write_bundle(tmp_path / "test.onnx")
