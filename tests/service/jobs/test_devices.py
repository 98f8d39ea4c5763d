"""Bundles and engines that a worker keeps loaded."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hyperscene.service.jobs import devices
from hyperscene.service.settings import Settings

NAMES = [f"model-{number}" for number in range(devices.KEPT_ENGINES + 1)]


@pytest.fixture
def loaded(monkeypatch):
    """What is loaded, in order."""
    found = []

    def read_bundle(path):
        found.append(f"bundle {path}")
        return SimpleNamespace(sha256=str(path))

    def choose_engine(bundle, *_):
        found.append(f"engine {bundle.sha256}")
        return SimpleNamespace(device="cpu", provider="ONNX Runtime"), []

    monkeypatch.setattr(devices, "read_bundle", read_bundle)
    monkeypatch.setattr(devices, "choose_engine", choose_engine)
    return found


def test_the_least_recently_used_bundle_and_engine_are_dropped(loaded, tmp_path):
    device = devices.open_device(Settings(data=tmp_path), "cpu", 1, {name: Path(name) for name in NAMES})
    for name in (*NAMES[:-1], NAMES[0], NAMES[-1]):  # the first one is used once more before the last one is loaded
        device.check(name)
    loaded.clear()
    device.check(NAMES[0])
    assert loaded == []
    device.check(NAMES[1])
    assert loaded == [f"bundle {NAMES[1]}", f"engine {NAMES[1]}"]
