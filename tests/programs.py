"""The folder of the repository, and programs that some tests drive; each test that needs one has its marker."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
# The PYTHONPATH of processes that simulate faults.
POISON_PATH = os.pathsep.join(filter(None, [str(ROOT / "tests" / "poison"), os.environ.get("PYTHONPATH")]))

COMMANDS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "nginx": ("nginx", "/usr/sbin/nginx"),
    "containers": ("docker-compose",),
    "docker": ("docker",),
    "prometheus": ("promtool",),
    "strace": ("strace",),
    "kubectl": ("kubectl",),
    "hadolint": ("hadolint", str(Path(sys.executable).with_name("hadolint"))),
}
# Where the name is another than the marker's.
PACKAGES = {"nginx": "nginx-light", "containers": "docker-compose", "docker": "docker.io"}
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def find_program(marker: str) -> str | None:
    """The path of a marker's program, if it is installed."""
    return next((found for command in COMMANDS[marker] if (found := shutil.which(command))), None)


def missing_reason(marker: str) -> str | None:
    """Why tests with this marker cannot run here."""
    if find_program(marker):
        return None
    return f"{COMMANDS[marker][0]} is not installed: install the package {PACKAGES.get(marker, marker)}"


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_program("chromium"), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()
