"""A server as a child process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.lifetimes import ends_with_parent

START_S = 60
NO_TRAINING = {"HYPERSCENE_TRAIN_WORKERS": "0"}  # most tests need no such process
PROGRAM = str(Path(sys.executable).with_name("hyperscene"))


class RunningServer:
    """A server process; its log is in the file `log`."""

    def __init__(
        self,
        data: Path,
        *options: object,
        cwd: Path | None = None,
        within: tuple[str, ...] = (),  # a command that runs the server
        **environment: str,
    ) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self._log = self.log.open("ab")
        command = [*within, PROGRAM, "serve", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=cwd,
            env=NO_TRAINING | os.environ | environment, preexec_fn=ends_with_parent(accepts_ctrl_c=True),
        )  # fmt: skip
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, self.log.read_text()
        self.url = found[0]
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def wait_until_ready(self) -> RunningServer:
        """Return when a worker has loaded the bundle."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.client.get("/readyz").status_code == 200:
                return self
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def submit(self, scene: Path, headers: dict[str, str] | None = None, **fields: str) -> str:
        """Send a scene without waiting for its map; returns the job's id."""
        response = self.client.post(
            "/classify", files={"scene": part(scene)}, data=fields,
            headers={"Prefer": "respond-async"} | (headers or {}),
        )  # fmt: skip
        assert response.status_code == 201, response.text
        job_id: str = response.json()["jobID"]
        return job_id

    def job(self, job_id: str) -> dict:
        """The job's document."""
        return self.client.get(f"/jobs/{job_id}").json()

    def finished(self, job_id: str, within_s: float = 120, **headers: str) -> dict:
        """The job's document once it is finished."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            job = self.client.get(f"/jobs/{job_id}", headers=headers).json()
            if job["status"] in ("successful", "failed", "dismissed"):
                return job
            time.sleep(0.05)
        raise AssertionError(f"{job}\n{self.log.read_text()[-5000:]}")

    def workers(self) -> list[int]:
        """The process ids of the live workers."""
        return [worker["pid"] for worker in self.client.get("/health").json()["workers"]]

    def stop(self, sign: signal.Signals = signal.SIGTERM, within_s: float = 15) -> int:
        """Stop the server and return its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(sign)
        code = self.process.wait(within_s)
        self.process.stdout.close()
        self._log.close()
        return code


@contextmanager
def running_server(
    data: Path, *options: object, cwd: Path | None = None, **environment: str
) -> Iterator[RunningServer]:
    """A server that is ready, and stopped afterwards."""
    server = RunningServer(data, *options, cwd=cwd, **environment)
    try:
        yield server.wait_until_ready()
    finally:
        if server.process.returncode is None:
            server.stop()


@contextmanager
def sleeping_workers(server: RunningServer) -> Iterator[None]:
    """Stop the workers for a moment."""
    pids = server.workers()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def wait_for(condition: Callable[[], Any], within_s: float = 60) -> Any:
    """Wait until the condition is true; returns its value."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def part(path: Path) -> tuple[str, bytes]:
    """A file as httpx expects it in a form."""
    return path.name, path.read_bytes()
