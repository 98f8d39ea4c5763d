"""Programs that some tests drive; each test that needs one has the marker of that name."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

COMMANDS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "nginx": ("nginx", "/usr/sbin/nginx"),
    "containers": ("docker-compose",),
    "prometheus": ("promtool",),
    "kubectl": ("kubectl",),
    "hadolint": ("hadolint", str(Path(sys.executable).with_name("hadolint"))),
}
PACKAGES = {"nginx": "nginx-light", "containers": "docker-compose"}  # where the name is another than the marker's


def find_program(marker: str) -> str | None:
    """The path of a marker's program, if it is installed."""
    return next((found for command in COMMANDS[marker] if (found := shutil.which(command))), None)


def missing_reason(marker: str) -> str | None:
    """Why tests with this marker cannot run here."""
    if find_program(marker):
        return None
    return f"{COMMANDS[marker][0]} is not installed: install the package {PACKAGES.get(marker, marker)}"
