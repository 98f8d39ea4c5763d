"""The connection to a Dask scheduler: the workers it lists, and the bundle that they load."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from distributed import Client, get_worker
from distributed.security import Security
from distributed.utils import sync

from hyperscene.errors import error_text
from hyperscene.model.bundle import Bundle
from hyperscene.service.cluster.tasks import (
    BundleMissing,
    EngineInfo,
    Refusal,
    StripPrediction,
    StripRequest,
    find_engine,
    predict_strip,
    receive_bundle,
)
from hyperscene.service.cluster.worker_state import WorkerState
from hyperscene.service.settings import Settings

log = logging.getLogger("hyperscene.cluster")

Result = TypeVar("Result")

SCHEDULER_S = 5.0  # timeout of calls to the scheduler
LOAD_S = 120.0  # timeout for loading a bundle, at least
GATHER_S = 5.0  # wait for workers that are still loading, once the first one has loaded the bundle
STARTED_KEY = "hyperscene-started"  # metadata of the scheduler: the task that a worker started last
LEAVING_KEY = "hyperscene-leaving"  # metadata of the scheduler: whether a worker was told to stop


class SchedulerLost(Exception):
    """The scheduler is gone or was replaced: all tasks in flight are lost."""


def tls_security(ca: Path | None, cert: Path | None, key: Path | None) -> Security | None:
    """Mutual TLS with these files, if they are given."""
    if ca is None or cert is None or key is None:
        return None
    return Security(
        tls_ca_file=str(ca), tls_client_cert=str(cert), tls_client_key=str(key), tls_worker_cert=str(cert),
        tls_worker_key=str(key), require_encryption=True,
    )  # fmt: skip


def adopt_logs() -> None:
    """Send Dask's errors to our log: on import it sets up its own handlers."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.getLogger("distributed").setLevel(logging.ERROR)  # we log connections ourselves


def run_task(request: StripRequest, task_id: str) -> StripPrediction | BundleMissing | Refusal:
    """Record the task's id at the scheduler before running it, so that a crash can be attributed."""
    worker = get_worker()
    with suppress(Exception):  # the scheduler is gone: the result will not be collected
        sync(worker.loop, worker.scheduler.set_metadata, keys=[STARTED_KEY, worker.address], value=task_id)
    return predict_strip(request)


class WorkerPool:
    """The workers of a cluster; all methods run in one event loop unless they say otherwise."""

    def __init__(self, settings: Settings) -> None:
        self.address = settings.cluster or ""
        self._security = tls_security(settings.cluster_ca, settings.cluster_cert, settings.cluster_key)
        self._client: Client | None = None
        self._scheduler_id: str | None = None
        self._devices = {device.partition(":")[0] for device in settings.devices} - {"auto"}
        self._bundle: Bundle | None = None  # that all workers load
        self._ignored: set[str] = set()  # addresses of workers that hang
        self._loading: set[asyncio.Task[None]] = set()
        self._load_s = max(LOAD_S, settings.stall_s)  # a worker may have to finish another job's strip first
        self._loaded_since: dict[str, float] = {}  # by the bundle's sha256
        self._shielded: set[asyncio.Task[Any]] = set()
        self.workers: dict[str, WorkerState] = {}  # by address
        self.outage: str | None = f"the scheduler {self.address} has not responded yet"  # why nothing can be computed

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.status == "running"

    async def connect(self) -> bool:
        """Connect to the scheduler; whether it responded."""
        await self._close()
        client = Client(
            self.address, asynchronous=True, direct_to_workers=True, set_as_default=False, timeout=SCHEDULER_S,
            security=self._security, name="hyperscene",
        )  # fmt: skip
        try:
            self._client = await client
        except Exception as error:  # of the network, of TLS, of Dask itself
            reason = error_line(error)
            self.outage = f"the scheduler {self.address} cannot be reached ({reason}): start it, or check the address"
            with suppress(Exception):
                await client.close(timeout=0)
            return False
        self._scheduler_id = None
        await self.refresh()
        return True

    async def disconnect(self) -> None:
        """Close the connection and forget all workers."""
        self.outage = f"the scheduler {self.address} does not respond: start it, or check the address"
        await self._close()

    async def _close(self) -> None:
        client, self._client = self._client, None
        self.workers.clear()
        if client is not None:
            with suppress(Exception):
                await asyncio.wait_for(client.close(), SCHEDULER_S)
        left = [*self._shielded]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def refresh(self) -> list[WorkerState]:
        """Update the workers from the scheduler's list; returns those that are gone."""
        assert self._client is not None
        try:
            identity = await asyncio.wait_for(self._client.scheduler.identity(n_workers=-1), SCHEDULER_S)
        except Exception as error:
            raise SchedulerLost(str(error)) from error
        if self._scheduler_id not in (None, identity["id"]):
            raise SchedulerLost("another scheduler runs at its address")
        self._scheduler_id = identity["id"]
        listed = identity["workers"]
        self._ignored &= set(listed)
        gone = [self.workers.pop(address) for address in list(self.workers) if address not in listed]
        for address in set(listed) - set(self.workers) - self._ignored:
            self.workers[address] = WorkerState.from_identity(address, listed[address])
            if reason := self.workers[address].reason:
                log.warning("worker %s is not used: %s", self.workers[address].name, reason)
        self._load_everywhere()
        self.outage = self._find_outage()
        return gone

    def _find_outage(self) -> str | None:
        """Why none of the workers can be used, whatever the bundle."""
        if not self.workers:
            return f"no worker has joined {self.address}: start some with hyperscene worker --scheduler {self.address}"
        return _all_refuse({worker.name: worker.reason for worker in self.workers.values()})

    def list_workers(self) -> list[dict[str, Any]]:
        """Every worker by name, and why it is not used for the current bundle; called by any thread."""
        sha256 = self._bundle.sha256 if self._bundle else ""
        found = sorted(self.workers.values(), key=lambda worker: worker.name)
        return [{"name": worker.name, "reason": worker.refusal(sha256)} for worker in found]

    def refusal(self, sha256: str) -> str | None:
        """Why none of the workers can be used for a bundle; called by any thread."""
        return _all_refuse({worker.name: worker.refusal(sha256) for worker in list(self.workers.values())})

    # Bundles

    def load_bundle(self, bundle: Bundle) -> None:
        """Have all workers load this bundle, now and when they join."""
        self._bundle = bundle
        self._load_everywhere()

    def choose_engine(self, sha256: str) -> EngineInfo | None:
        """The engine that a job's workers have to run: GPUs before CPUs, then the most common one.

        None while no worker has loaded the bundle, or more may have in a moment. Called by any thread.
        """
        found = [(worker.has_gpu, found) for worker in list(self.workers.values())
                 if isinstance(found := worker.engines.get(sha256), EngineInfo) and not worker.reason]  # fmt: skip
        if not found:
            self._loaded_since.pop(sha256, None)
            return None
        since = self._loaded_since.setdefault(sha256, time.monotonic())
        if self._loading and time.monotonic() - since < GATHER_S:
            return None
        any_gpu = any(has_gpu for has_gpu, _ in found)
        engines = Counter(engine for has_gpu, engine in found if has_gpu or not any_gpu)
        return max(engines, key=lambda engine: (engines[engine], engine.provider))

    def _load_everywhere(self) -> None:
        if self._bundle is None:
            return
        busy = {task.get_name() for task in self._loading}
        for worker in self.workers.values():
            name = f"{worker.address} {self._bundle.sha256}"
            if worker.reason is None and self._bundle.sha256 not in worker.engines and name not in busy:
                task = asyncio.create_task(self._load(worker, self._bundle), name=name)
                self._loading.add(task)
                task.add_done_callback(self._loading.discard)

    async def _load(self, worker: WorkerState, bundle: Bundle) -> None:
        """Have a worker load the bundle; it is sent unless the worker kept it from an earlier job."""
        sha256, name = bundle.sha256, bundle.path.name
        try:
            found = await asyncio.wait_for(self.call(worker, find_engine, sha256), self._load_s)
            if isinstance(found, BundleMissing):
                content = await asyncio.wait_for(self.send(worker, bundle.content), self._load_s)
                found = await asyncio.wait_for(self.call(worker, receive_bundle, content, sha256, name), self._load_s)
            if isinstance(found, EngineInfo) and self._devices and found.device not in self._devices:
                found = Refusal("not_ready", f"it computes on {found.device}, and the service asks for another device")
        except TimeoutError:  # it is busy, or hangs: tried again at the next refresh
            log.warning("worker %s has not loaded the bundle %s within %.0f s", worker.name, name, self._load_s)
            return
        except Exception as error:  # it crashed, or runs incompatible code
            found = Refusal("not_ready", f"it cannot load a bundle ({error_line(error)})")
        if isinstance(found, Refusal):
            log.warning("worker %s is not used: %s", worker.name, found.detail)
        worker.engines[sha256] = found.detail if isinstance(found, Refusal) else found

    def forget_bundle(self, worker: WorkerState, sha256: str) -> None:
        """The worker was restarted and has lost the bundle."""
        worker.engines.pop(sha256, None)

    def exclude(self, worker: WorkerState, reason: str) -> None:
        """Stop using a worker until it is restarted."""
        log.warning("worker %s is not used: %s", worker.name, reason)
        worker.reason = reason

    # Calls

    async def send(self, worker: WorkerState, value: Any) -> Any:
        """Put a value into a worker's memory, without passing through the scheduler."""
        assert self._client is not None
        return await self._run_shielded(
            self._client.scatter(value, workers=[worker.address], direct=True, hash=False), f"sending to {worker.name}"
        )

    async def call(self, worker: WorkerState, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function on this worker; its result does not pass through the scheduler."""
        assert self._client is not None
        future = self._client.submit(
            function, *values, workers=[worker.address], allow_other_workers=False, pure=False, retries=0
        )
        return await self._run_shielded(self._client.gather(future, direct=True), f"the call to {worker.name}")

    async def _run_shielded(self, call: Coroutine[Any, Any, Result], what: str) -> Result:
        """Let a call of Dask finish even if its caller is cancelled: a cancelled scatter leaves its data on the worker
        for ever, and a cancelled gather cancels all later ones."""
        task = asyncio.ensure_future(call)
        self._shielded.add(task)
        task.add_done_callback(self._on_shielded_done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by Dask, whose client was closed
                raise ConnectionError(f"{what} was interrupted") from None
            raise

    def _on_shielded_done(self, task: asyncio.Task[Any]) -> None:
        self._shielded.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, so that asyncio does not log it when nobody awaits the task

    async def broadcast(self, workers: list[WorkerState], function: Callable[..., Any], *values: Any) -> None:
        """Call a function on workers at once, even if they are busy."""
        if self._client is not None and workers:
            with suppress(Exception):  # workers that do not receive it hang or are gone
                addresses = [worker.address for worker in workers]
                call = self._client.run(function, *values, workers=addresses, on_error="ignore")
                await asyncio.wait_for(call, SCHEDULER_S)

    def ignore(self, worker: WorkerState) -> None:
        """Send nothing more to a worker that hangs."""
        self.workers.pop(worker.address, None)
        self._ignored.add(worker.address)

    async def restart(self, worker: WorkerState) -> None:
        """Kill a worker that hangs; its nanny starts another one."""
        try:
            assert self._client is not None
            await self._client.restart_workers([worker.address], timeout=self._load_s, raise_for_error=False)
        except Exception as error:  # it has no nanny, or the whole machine hangs
            log.warning("worker %s cannot be restarted: %s", worker.name, error)

    async def last_started(self, worker: WorkerState) -> str | None:
        """The id of the task that a worker started last."""
        found: str | None = await self._metadata(STARTED_KEY, worker)
        return found

    async def is_leaving(self, worker: WorkerState) -> bool:
        """Whether a worker was told to stop."""
        return bool(await self._metadata(LEAVING_KEY, worker))

    async def _metadata(self, key: str, worker: WorkerState) -> Any:
        """What a worker has recorded at the scheduler."""
        try:
            assert self._client is not None
            found = self._client.scheduler.get_metadata(keys=[key, worker.address], default=None)
            return await asyncio.wait_for(found, SCHEDULER_S)
        except Exception:  # the next refresh finds out that the scheduler is lost
            return None


def _all_refuse(refusals: dict[str, str | None]) -> str | None:
    """The first reasons, if every worker has one."""
    if not refusals or None in refusals.values():
        return None
    return "; ".join(f"worker {name} is not used: {reason}" for name, reason in list(refusals.items())[:3])


def error_line(error: BaseException) -> str:
    """An error in one line; Dask's own errors often have the message in their cause only."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error_text(error).splitlines()[0]
