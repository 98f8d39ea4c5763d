"""A cluster worker: a Dask nanny that keeps a process running, and joins again when the scheduler is back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dask
from distributed import Nanny
from distributed.core import Status

from hyperscene.service.cluster.tasks import EngineOptions, version_tag
from hyperscene.service.cluster.worker_pool import LEAVING_KEY, adopt_logs, error_line, tls_security
from hyperscene.service.cluster.worker_state import CPU, GPU
from hyperscene.service.health_check import HEARTBEAT_VARIABLE
from hyperscene.service.settings import check_certificates

log = logging.getLogger("hyperscene.worker")

RETRY_S = 1.0
JOIN_S = 10.0
LEAVE_S = 2.0
POLL_EVERY_S = 0.2
REMIND_EVERY_S = 60.0
# Dask monitors itself more than fifty times a second, which takes 5 % of a core from each worker.
DASK_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "10s",
    "distributed.admin.system-monitor.interval": "5s",
}


@dataclass(frozen=True)
class WorkerConfig:
    """The scheduler that a worker joins, what it computes with, and how it is reached."""

    scheduler: str
    engine: EngineOptions
    has_gpu: bool = False
    name: str | None = None
    host: str | None = None
    port: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def resources(self) -> dict[str, float]:
        """Dask resources: the version, and GPU or CPU."""
        return {version_tag(): 1, GPU if self.has_gpu else CPU: 1}

    def nanny(self) -> Nanny:
        """Dask's nanny, which replaces a worker process that died."""
        return Nanny(
            self.scheduler,
            name=self.name or f"{socket.gethostname()}-{os.getpid()}",
            nthreads=1,  # one task at a time: the engine has its own threads
            resources=self.resources,
            memory_limit=0,  # tasks are few and of known size: spilling them to disk would only be slow
            host=self.host,
            worker_port=self.port or 0,
            security=tls_security(self.ca, self.cert, self.key),
            env=self.engine.to_variable(),
            death_timeout=JOIN_S,
            dashboard_address="127.0.0.1:0",  # Dask's pages need no certificate, so they are local
            preload=[__name__],
        )


def dask_setup(worker: object) -> None:
    """Called by Dask in a worker's process: Ctrl-C, which a terminal sends to all, is handled by the nanny."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def run_worker(config: WorkerConfig) -> None:
    """Work for the cluster until SIGTERM or Ctrl-C."""
    adopt_logs()
    dask.config.set(DASK_SETTINGS)
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")  # for the nanny's process
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    warned_at = -REMIND_EVERY_S
    while not stopped.is_set():
        try:
            await _join_once(config, stopped)
            warned_at = -REMIND_EVERY_S
        except Exception as error:  # the scheduler is not running (yet)
            if time.monotonic() - warned_at >= REMIND_EVERY_S:
                log.warning("cannot join %s (%s): trying again", config.scheduler, error_line(error))
                warned_at = time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), RETRY_S)


async def _join_once(config: WorkerConfig, stopped: asyncio.Event) -> None:
    if config.ca and config.cert and config.key:
        check_certificates(config.ca, config.cert, config.key)  # they may have changed since the start
    nanny = config.nanny()
    joining = asyncio.ensure_future(nanny.start())
    leaving = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((joining, leaving), timeout=JOIN_S, return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            raise TimeoutError(f"{config.scheduler} does not respond")
        await joining
        await _record_leaving(nanny, False)  # an earlier worker may have left this address
        log.info("joined %s as %s", config.scheduler, nanny.worker_address)
        while nanny.status in (Status.running, Status.init, Status.starting) and not stopped.is_set():
            _beat()
            await asyncio.sleep(POLL_EVERY_S)
        if stopped.is_set():
            await _record_leaving(nanny, True)
        else:
            log.warning("the scheduler %s was lost", config.scheduler)
    finally:
        joining.cancel()
        leaving.cancel()
        with suppress(Exception):
            await nanny.close(timeout=LEAVE_S)


def _beat() -> None:
    """Tell the container's health check that the worker is in the cluster."""
    if file := os.environ.get(HEARTBEAT_VARIABLE):
        with suppress(OSError):  # the check then says that the worker is not connected
            Path(file).touch()


async def _record_leaving(nanny: Nanny, is_leaving: bool) -> None:
    """Record that the worker stops on purpose, so that no task is blamed, or that it is back."""
    with suppress(Exception):
        recorded = nanny.scheduler.set_metadata(keys=[LEAVING_KEY, nanny.worker_address], value=is_leaving)
        await asyncio.wait_for(recorded, LEAVE_S)
