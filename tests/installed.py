"""The service as in a container: installed from the wheel, unprivileged user, only the data folder writable."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.lifetimes import ends_with_parent
from tests.programs import ROOT

SOURCES = ("hyperscene", "model", "service", "training", "pyproject.toml", "README.md", "LICENSE")
USER = 10001  # has neither a name nor a home
START_S = 90
# Makes every file system read-only in a mount namespace of its own, then changes to an unprivileged user. If the
# interpreter is in a home folder, only its own files are made visible there.
READ_ONLY = r"""
set -euo pipefail
mount --make-rprivate /
mount --bind "$DATA" "$DATA"
if [ -n "$HIDDEN" ]; then
    mount --bind "$INTERPRETER" "$SHELF"
    mount -t tmpfs -o mode=755 tmpfs "$HIDDEN"
    mkdir -p "$INTERPRETER"
    mount --move "$SHELF" "$INTERPRETER"
fi
while read -r _ _ _ _ mount _; do
    [ "$mount" = "$DATA" ] || mount -o remount,bind,ro "$mount" 2>/dev/null || true
done < <(tac /proc/self/mountinfo)
# Changing the user clears the parent death signal, so it is set again.
exec setpriv --pdeathsig KILL --reuid "$WHO" --regid "$WHO" --clear-groups --no-new-privs --inh-caps=-all "$@"
"""


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, since building leaves files beside them."""
    copy = folder / "sources"
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(copy)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def reaches_an_index() -> bool:
    """Whether pip reaches a package index."""
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--no-cache-dir", "--retries", "0", "--timeout", "10"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "tqdm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Installation:
    """A virtual environment with the wheel and its dependencies."""

    def __init__(self, folder: Path, wheel: Path, extras: str) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
        self.run("python", "-m", "pip", "install", "--quiet", f"{wheel}[{extras}]", timeout_s=600)

    def run(self, program: str, *arguments: object, timeout_s: float = 120) -> str:
        """Run a program of the environment outside of the repository; returns its output."""
        done = subprocess.run(
            [str(self.folder / "bin" / program), *map(str, arguments)], capture_output=True, text=True, cwd="/",
            timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def has_own_mounts() -> bool:
    """Whether this user may create a mount namespace."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "setpriv"))):
        return False
    trial = ["unshare", "--mount", "sh", "-c", "mount --make-rprivate / && mount -o remount,bind,ro /"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def closed_folder(path: Path) -> Path | None:
    """The outermost parent folder that other users cannot enter."""
    return next((each for each in reversed([path, *path.parents]) if not each.stat().st_mode & 0o001), None)


class PlainServer:
    """`hyperscene serve` of an installation, as a user who can write to the data folder only."""

    def __init__(self, installation: Installation, data: Path, shelf: Path) -> None:
        self.log = data.with_name("log")
        self._log = self.log.open("ab")
        interpreter = Path(sys.base_prefix)
        environment = {
            "PATH": os.environ["PATH"], "HYPERSCENE_PORT": "0", "HYPERSCENE_DATA": str(data),
            "DATA": str(data), "SHELF": str(shelf), "INTERPRETER": str(interpreter), "WHO": str(USER),
            "HIDDEN": str(closed_folder(interpreter) or ""),
        }  # fmt: skip
        program = [str(installation.folder / "bin" / "hyperscene"), "serve"]
        self.process = subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", READ_ONLY, "bash", *program],
            stdout=subprocess.PIPE, stderr=self._log, text=True, cwd="/", env=environment,
            preexec_fn=ends_with_parent(),
        )  # fmt: skip
        self.client = httpx.Client(timeout=60, trust_env=False)
        found = re.search(r"http://\S+", self.process.stdout.readline())
        if not found:
            self.close()
        assert found, self.log.read_text()
        self.url = found[0]
        self.client.base_url = self.url

    def wait_until_ready(self) -> PlainServer:
        """Return when a worker has loaded the bundle."""
        deadline = time.monotonic() + START_S
        while (answer := self.client.get("/readyz")).status_code != 200:
            assert time.monotonic() < deadline, answer.text + self.log.read_text()
            time.sleep(0.1)
        return self

    def ids(self) -> set[str]:
        """User and group ids of the process: real, effective, saved, file system."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return set(re.findall(r"\d+", "".join(re.findall(r"^(?:Uid|Gid|Groups):(.*)$", status, re.MULTILINE))))

    def can_write(self, folder: Path) -> bool:
        """Whether root can create a file there in the server's mount namespace."""
        script = 'touch "$0/a-trial" && rm "$0/a-trial"'
        command = ["nsenter", "--mount", "--target", str(self.process.pid), "sh", "-c", script, str(folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def stop(self) -> tuple[int, float]:
        """Stop it as a container engine does; returns the exit code and the seconds."""
        self.client.close()
        began = time.monotonic()
        self.process.terminate()
        code = self.process.wait(30)
        return code, time.monotonic() - began

    def close(self) -> None:
        """Kill what is left."""
        self.client.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()


@contextmanager
def plain_server(installation: Installation, data: Path, shelf: Path) -> Iterator[PlainServer]:
    """A server that is ready; stopped at the end."""
    server = PlainServer(installation, data, shelf)
    try:
        yield server.wait_until_ready()
    finally:
        server.close()
