"""A worker's life: a nanny joins the cluster, keeps a process at work, and joins again when the scheduler is back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dask
from distributed import Nanny
from distributed.core import Status

from service.cluster.members import CPU, GPU
from service.cluster.roster import LEAVING, adopt_logs, security_of, words
from service.cluster.tasks import Equipment, tag
from service.mapping.gpu import PROVIDERS

log = logging.getLogger("hyperscene.worker")

RETRY_S = 1.0
JOIN_S = 10.0
LEAVE_S = 2.0
LOOK_EVERY_S = 0.2
# Dask watches itself fifty times a second and more, which takes a twentieth of a core from each worker.
SELDOM = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "10s",
    "distributed.admin.system-monitor.interval": "5s",
}


@dataclass(frozen=True)
class Membership:
    """Whom a worker joins, with what, and how it is reached."""

    scheduler: str
    equipment: Equipment
    name: str | None = None
    host: str | None = None
    port: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def resources(self) -> dict[str, float]:
        """The tags that others know the worker by."""
        return {tag(): 1, GPU if self.equipment.device in PROVIDERS else CPU: 1}

    def nanny(self) -> Nanny:
        """Whoever keeps a process at work: one that dies, or hangs, is followed by another."""
        return Nanny(
            self.scheduler,
            name=self.name or f"{socket.gethostname()}-{os.getpid()}",
            nthreads=1,  # one question at a time: its engine has threads of its own
            resources=self.resources,
            memory_limit=0,  # questions are few and of a known size; spilling them to disk would only be slow
            host=self.host,
            worker_port=self.port or 0,
            security=security_of(self.ca, self.cert, self.key),
            env=self.equipment.to_variable(),
            death_timeout=JOIN_S,
            dashboard_address="127.0.0.1:0",  # pages of Dask's that want no certificate are for this machine
            preload=[__name__],
        )


def dask_setup(worker: object) -> None:
    """Called by Dask in a worker's process: Ctrl-C, which a terminal sends to all, is for the nanny, who ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def lend(membership: Membership) -> None:
    """Work for the cluster until SIGTERM or Ctrl-C."""
    adopt_logs()
    dask.config.set(SELDOM)
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")  # for the process that the nanny keeps
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    was_told = False
    while not stopped.is_set():
        try:
            await _join_once(membership, stopped)
            was_told = False
        except Exception as error:  # the scheduler is not there (yet)
            if not was_told:
                log.warning("cannot join %s (%s): trying again", membership.scheduler, words(error))
            was_told = True
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), RETRY_S)


async def _join_once(membership: Membership, stopped: asyncio.Event) -> None:
    nanny = membership.nanny()
    joining = asyncio.ensure_future(nanny.start())
    leaving = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((joining, leaving), timeout=JOIN_S, return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            raise TimeoutError(f"{membership.scheduler} does not answer")
        await joining
        await _tell_leaving(nanny, False)  # an earlier worker may have left from the same address
        log.info("joined %s as %s", membership.scheduler, nanny.worker_address)
        while nanny.status in (Status.running, Status.init, Status.starting) and not stopped.is_set():
            await asyncio.sleep(LOOK_EVERY_S)
        if stopped.is_set():
            await _tell_leaving(nanny, True)
        else:
            log.warning("the scheduler %s was lost", membership.scheduler)
    finally:
        joining.cancel()
        leaving.cancel()
        with suppress(Exception):
            await nanny.close(timeout=LEAVE_S)


async def _tell_leaving(nanny: Nanny, is_leaving: bool) -> None:
    """Tell that this is no accident, so that no strip is blamed for it; or that it is to come back."""
    with suppress(Exception):
        told = nanny.scheduler.set_metadata(keys=[LEAVING, nanny.worker_address], value=is_leaving)
        await asyncio.wait_for(told, LEAVE_S)
