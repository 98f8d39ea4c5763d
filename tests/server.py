"""A real server in a process of its own, on a real port, with a data folder of its own."""

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

START_S = 60


class RunningServer:
    """A server that can be asked, stopped and killed; its log is in `log`."""

    def __init__(self, data: Path, *options: object, **environment: str) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self._log = self.log.open("ab")
        command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=os.environ | environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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
        """Send a scene without waiting for its map; the job's id."""
        answer = self.client.post(
            "/classify", files={"scene": part(scene)}, data=fields,
            headers={"Prefer": "respond-async"} | (headers or {}),
        )  # fmt: skip
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["jobID"]
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
        """The process ids of the workers that are alive."""
        return [worker["pid"] for worker in self.client.get("/health").json()["workers"]]

    def stop(self, sign: signal.Signals = signal.SIGTERM, within_s: float = 15) -> int:
        """End the server and answer its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(sign)
        code = self.process.wait(within_s)
        self.process.stdout.close()
        self._log.close()
        return code


@contextmanager
def running_server(data: Path, *options: object, **environment: str) -> Iterator[RunningServer]:
    """A server that is ready, and gone afterwards."""
    server = RunningServer(data, *options, **environment)
    try:
        yield server.wait_until_ready()
    finally:
        if server.process.returncode is None:
            server.stop()


def wait_for(condition: Callable[[], Any], within_s: float = 60) -> Any:
    """What the condition gives once it gives something."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def part(path: Path) -> tuple[str, bytes]:
    """A file as httpx sends it in a form."""
    return path.name, path.read_bytes()
