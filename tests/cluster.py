"""A real cluster on this machine: a Dask scheduler and our workers, each in a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.lifetimes import ends_with_parent

START_S = 60


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RunningWorker:
    """A `hyperscene worker`: a nanny and its worker process."""

    def __init__(self, address: str, name: str, log: Path, *options: object, **environment: str) -> None:
        self.name, self.log = name, log
        command = [sys.executable, "-m", "hyperscene.service.cli", "worker", "--scheduler", address, "--name", name]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*command, "--device", "cpu", "--threads", "1", *map(str, options)], stderr=file,
                stdout=file, env=os.environ | environment, preexec_fn=ends_with_parent(),
            )  # fmt: skip

    def child(self) -> psutil.Process | None:
        """The process that computes."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                if any("spawn_main" in word for word in child.cmdline()):
                    return child
        return None

    def kill_child(self) -> None:
        """Kill the worker process, as a crash does."""
        if (child := self.child()) is not None:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def kill(self) -> None:
        """Kill both processes, as if the machine were switched off."""
        child = self.child()
        self.process.kill()
        self.process.wait()
        if child is not None:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(30)


class RunningCluster:
    """A scheduler and workers, with logs in `folder`."""

    def __init__(self, folder: Path, *scheduler_options: object, scheme: str = "tcp") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.address = f"{scheme}://127.0.0.1:{self.port}"
        self._options = scheduler_options
        self.workers: list[RunningWorker] = []
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """Start it, or start it again."""
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", self.address.rsplit(":", 1)[0]]
        with (self.folder / "scheduler.log").open("ab") as file:
            self.scheduler = subprocess.Popen(
                [*command, "--port", str(self.port), "--no-dashboard", *map(str, self._options)], stdout=file,
                stderr=file, preexec_fn=ends_with_parent(),
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "scheduler.log").read_text())

    def add_worker(self, *options: object, **environment: str) -> RunningWorker:
        """Start another worker."""
        name = f"w{len(self.workers) + 1}"
        worker = RunningWorker(self.address, name, self.folder / f"{name}.log", *options, **environment)
        self.workers.append(worker)
        return worker

    def wait_for_workers(self) -> RunningCluster:
        """Return when every worker has joined."""
        for worker in self.workers:
            deadline = time.monotonic() + START_S
            while "joined" not in worker.log.read_text():
                has_ended = worker.process.poll() is not None
                assert not has_ended, worker.log.read_text()
                assert time.monotonic() < deadline, worker.log.read_text()
                time.sleep(0.05)
        return self

    def kill_scheduler(self) -> None:
        """Kill the scheduler, which loses its state."""
        self.scheduler.kill()
        self.scheduler.wait()

    def stop(self) -> None:
        """End all processes."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.process.terminate()
        for worker in self.workers:
            try:
                worker.process.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
        self.kill_scheduler()


@contextmanager
def running_cluster(folder: Path, workers: int = 0, **environment: str) -> Iterator[RunningCluster]:
    """A cluster that is stopped at the end."""
    cluster = RunningCluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker(**environment)
        yield cluster.wait_for_workers()
    finally:
        cluster.stop()
