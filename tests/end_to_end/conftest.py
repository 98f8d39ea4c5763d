"""Fixtures with the system's Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.bundles import write_bundle
from tests.programs import running_browser
from tests.server import RunningServer, running_server

WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)
COLORS = ["#1f78b4", "#33a02c", "#e31a1c"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with running_browser() as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages; fails the test on script errors and violations of the content security policy."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_one(**options: object) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None,
        )
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    """A new page of desktop width for each test."""
    return open_page()


@pytest.fixture(scope="session")
def colored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose bundle has named and coloured classes."""
    folder = tmp_path_factory.mktemp("colored")
    bundles = folder / "bundles"
    bundles.mkdir()
    write_bundle(bundles / "crops.onnx", class_names=["water", "meadow", "roof"], class_colors=COLORS)
    with running_server(Path(folder) / "data", "--bundles", bundles, "--device", "cpu") as server:
        yield server


@pytest.fixture(scope="session")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the demo bundle, which is slow."""
    with running_server(tmp_path_factory.mktemp("slow") / "data", "--strip-px", 16) as server:
        yield server


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At least a minute of work at stride 1."""
    path = tmp_path_factory.mktemp("large") / "large.tif"
    write_scene(SyntheticScene(rows=220, cols=220, seed=3), path, None)
    return path
