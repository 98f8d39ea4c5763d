"""The roster: the connection with a Dask scheduler, the workers that it lists, and the bundle that they are given."""

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

from model.bundle import Bundle
from service.cluster.members import Member
from service.cluster.tasks import Answer, Missing, Question, Ready, Refused, answer_question, equip, keep_bundle
from service.settings import Settings

log = logging.getLogger("hyperscene.cluster")

Result = TypeVar("Result")

ANSWER_S = 5.0  # of a scheduler
EQUIP_S = 120.0  # until a worker has loaded and tried a bundle, at least
GATHER_S = 5.0  # once a worker is ready, others that are given the bundle as well are waited for so long
BEGUN = "hyperscene-begun"  # where workers write what they begin with
LEAVING = "hyperscene-leaving"  # where workers write that they were told to stop


class SchedulerLost(Exception):
    """The scheduler is gone, or another one has taken its place: everything under way is lost."""


def security_of(ca: Path | None, cert: Path | None, key: Path | None) -> Security | None:
    """Encryption with these files, where they are given; everybody shows a certificate of the same authority."""
    if ca is None or cert is None or key is None:
        return None
    return Security(
        tls_ca_file=str(ca), tls_client_cert=str(cert), tls_client_key=str(key), tls_worker_cert=str(cert),
        tls_worker_key=str(key), require_encryption=True,
    )  # fmt: skip


def adopt_logs() -> None:
    """Have Dask log with us, and no more than matters: on import it begins a log of its own."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.getLogger("distributed").setLevel(logging.ERROR)  # what becomes of a connection, we tell ourselves


def answer_aloud(question: Question, work_id: str) -> Answer | Missing | Refused:
    """Answer a question, and say so first: should it end the worker, others know which one it was."""
    worker = get_worker()
    with suppress(Exception):  # the scheduler is gone: the answer will not be asked for
        sync(worker.loop, worker.scheduler.set_metadata, keys=[BEGUN, worker.address], value=work_id)
    return answer_question(question)


class Roster:
    """Who is there; to be used in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.address = settings.cluster or ""
        self._security = security_of(settings.cluster_ca, settings.cluster_cert, settings.cluster_key)
        self._client: Client | None = None
        self._scheduler_id: str | None = None
        self._devices = {device.partition(":")[0] for device in settings.devices} - {"auto"}
        self._bundle: Bundle | None = None  # that everybody is given
        self._avoided: set[str] = set()  # addresses of workers that hang
        self._equipping: set[asyncio.Task[None]] = set()
        self._equip_s = max(EQUIP_S, settings.stall_s)  # a worker may have to finish somebody's strip first
        self._ready_since: dict[str, float] = {}  # by the bundle's sha256
        self._undisturbed: set[asyncio.Task[Any]] = set()
        self.members: dict[str, Member] = {}
        self.trouble: str | None = f"the scheduler {self.address} has not answered yet"  # why nothing can be computed

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.status == "running"

    async def connect(self) -> bool:
        """Find the scheduler; whether it answered."""
        await self._close()
        client = Client(
            self.address, asynchronous=True, direct_to_workers=True, set_as_default=False, timeout=ANSWER_S,
            security=self._security, name="hyperscene",
        )  # fmt: skip
        try:
            self._client = await client
        except Exception as error:  # of the network, of TLS, of Dask itself
            reason = words(error)
            self.trouble = f"the scheduler {self.address} cannot be reached ({reason}): start it, or check the address"
            with suppress(Exception):
                await client.close(timeout=0)
            return False
        self._scheduler_id = None
        await self.look()
        return True

    async def disconnect(self) -> None:
        """Forget everybody."""
        self.trouble = f"the scheduler {self.address} does not answer: start it, or check the address"
        await self._close()

    async def _close(self) -> None:
        client, self._client = self._client, None
        self.members.clear()
        if client is not None:
            with suppress(Exception):
                await asyncio.wait_for(client.close(), ANSWER_S)
        left = [*self._undisturbed]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def look(self) -> list[Member]:
        """See who has come; answers who has gone."""
        assert self._client is not None
        try:
            identity = await asyncio.wait_for(self._client.scheduler.identity(n_workers=-1), ANSWER_S)
        except Exception as error:
            raise SchedulerLost(str(error)) from error
        if self._scheduler_id not in (None, identity["id"]):
            raise SchedulerLost("another scheduler has taken its place")
        self._scheduler_id = identity["id"]
        listed = identity["workers"]
        self._avoided &= set(listed)
        gone = [self.members.pop(address) for address in list(self.members) if address not in listed]
        for address in set(listed) - set(self.members) - self._avoided:
            self.members[address] = Member.introduce(address, listed[address])
            if reason := self.members[address].reason:
                log.warning("worker %s is not used: %s", self.members[address].name, reason)
        self._equip_all()
        self.trouble = self._reason()
        return gone

    def _reason(self) -> str | None:
        """Why none of the workers can be used, whatever the bundle."""
        if not self.members:
            return f"no worker has joined {self.address}: start some with hyperscene worker --scheduler {self.address}"
        return self._all_refuse({member.name: member.reason for member in self.members.values()})

    def listed(self) -> list[dict[str, Any]]:
        """Everybody by name, and why they are not used for the bundle that everybody is given. By any thread."""
        sha256 = self._bundle.sha256 if self._bundle else ""
        found = sorted(self.members.values(), key=lambda member: member.name)
        return [{"name": member.name, "reason": member.refusal(sha256)} for member in found]

    def refusal(self, sha256: str) -> str | None:
        """Why none of the workers can be used for a bundle."""
        return self._all_refuse({member.name: member.refusal(sha256) for member in list(self.members.values())})

    @staticmethod
    def _all_refuse(refusals: dict[str, str | None]) -> str | None:
        if not refusals or None in refusals.values():
            return None
        return "; ".join(f"worker {name} is not used: {reason}" for name, reason in list(refusals.items())[:3])

    # Bundles

    def want(self, bundle: Bundle) -> None:
        """Give everybody this bundle, now and when they come."""
        self._bundle = bundle
        self._equip_all()

    def choice(self, sha256: str) -> Ready | None:
        """What a job's workers have to run: GPUs before processors, and of those what most have; None while nobody
        is ready, or somebody may be in a moment. Asked by another thread than the loop's."""
        found = [(member.has_gpu, found) for member in list(self.members.values())
                 if isinstance(found := member.ready.get(sha256), Ready) and not member.reason]  # fmt: skip
        if not found:
            self._ready_since.pop(sha256, None)
            return None
        since = self._ready_since.setdefault(sha256, time.monotonic())
        if self._equipping and time.monotonic() - since < GATHER_S:
            return None
        kinds = Counter(ready for has_gpu, ready in found if has_gpu or not any(gpu for gpu, _ in found))
        return max(kinds, key=lambda ready: (kinds[ready], ready.provider))

    def _equip_all(self) -> None:
        if self._bundle is None:
            return
        busy = {task.get_name() for task in self._equipping}
        for member in self.members.values():
            name = f"{member.address} {self._bundle.sha256}"
            if member.reason is None and self._bundle.sha256 not in member.ready and name not in busy:
                task = asyncio.create_task(self._equip(member, self._bundle), name=name)
                self._equipping.add(task)
                task.add_done_callback(self._equipping.discard)

    async def _equip(self, member: Member, bundle: Bundle) -> None:
        """Send a worker the bundle, unless it has it from an earlier job."""
        sha256, name = bundle.sha256, bundle.path.name
        try:
            found = await asyncio.wait_for(self.call(member, equip, sha256), self._equip_s)
            if isinstance(found, Missing):
                content = await asyncio.wait_for(self.send(member, bundle.content), self._equip_s)
                found = await asyncio.wait_for(self.call(member, keep_bundle, content, sha256, name), self._equip_s)
            if isinstance(found, Ready) and self._devices and found.device not in self._devices:
                found = Refused("not_ready", f"it computes on {found.device}, and the service asks for another device")
        except TimeoutError:  # it is busy, or hangs: it is asked again
            log.warning("worker %s has not taken the bundle %s within %.0f s", member.name, name, self._equip_s)
            return
        except Exception as error:  # it died, or speaks another language
            found = Refused("not_ready", f"it cannot be given a bundle ({words(error)})")
        if isinstance(found, Refused):
            log.warning("worker %s is not used: %s", member.name, found.detail)
        member.ready[sha256] = found.detail if isinstance(found, Refused) else found

    def forget_bundle(self, member: Member, sha256: str) -> None:
        """It was restarted and has lost what it was given."""
        member.ready.pop(sha256, None)

    def set_aside(self, member: Member, reason: str) -> None:
        """Use a worker no more, until it is started anew."""
        log.warning("worker %s is not used: %s", member.name, reason)
        member.reason = reason

    # Calls

    async def send(self, member: Member, value: Any) -> Any:
        """Put a value into a worker's memory, past the scheduler."""
        assert self._client is not None
        return await self._to_its_end(
            self._client.scatter(value, workers=[member.address], direct=True, hash=False), f"sending to {member.name}"
        )

    async def call(self, member: Member, function: Callable[..., Any], *values: Any) -> Any:
        """Have a worker, and no other, call a function; its answer comes past the scheduler."""
        assert self._client is not None
        future = self._client.submit(
            function, *values, workers=[member.address], allow_other_workers=False, pure=False, retries=0
        )
        return await self._to_its_end(self._client.gather(future, direct=True), f"asking {member.name}")

    async def _to_its_end(self, doing: Coroutine[Any, Any, Result], what: str) -> Result:
        """Let something of Dask's come to its end, even where nobody waits for it any more: a scatter that is cancelled
        leaves its data on the worker for ever, and a gather that is, leaves all later ones cancelled."""
        task = asyncio.ensure_future(doing)
        self._undisturbed.add(task)
        task.add_done_callback(self._is_done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by Dask, whose client was closed under it
                raise ConnectionError(f"{what} was broken off") from None
            raise

    def _is_done(self, task: asyncio.Task[Any]) -> None:
        self._undisturbed.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits hears of it; if nobody does, it is not worth a word

    async def tell(self, members: list[Member], function: Callable[..., Any], *values: Any) -> None:
        """Have workers call a function at once, whatever else they do."""
        if self._client is not None and members:
            with suppress(Exception):  # who does not hear it is busy, or gone
                addresses = [member.address for member in members]
                call = self._client.run(function, *values, workers=addresses, on_error="ignore")
                await asyncio.wait_for(call, ANSWER_S)

    def avoid(self, member: Member) -> None:
        """Ask a worker that hangs nothing more, from this moment on."""
        self.members.pop(member.address, None)
        self._avoided.add(member.address)

    async def restart(self, member: Member) -> None:
        """End a worker that hangs; its nanny starts another one."""
        try:
            assert self._client is not None
            await self._client.restart_workers([member.address], timeout=self._equip_s, raise_for_error=False)
        except Exception as error:  # it has no nanny, or the whole machine hangs
            log.warning("worker %s cannot be restarted: %s", member.name, error)

    async def last_begun(self, member: Member) -> str | None:
        """The question that a worker was at when it was last heard of."""
        found: str | None = await self._said(BEGUN, member)
        return found

    async def is_leaving(self, member: Member) -> bool:
        """Whether a worker was told to stop, and said so."""
        return bool(await self._said(LEAVING, member))

    async def _said(self, about: str, member: Member) -> Any:
        """What a worker left with the scheduler."""
        try:
            assert self._client is not None
            asked = self._client.scheduler.get_metadata(keys=[about, member.address], default=None)
            return await asyncio.wait_for(asked, ANSWER_S)
        except Exception:  # the next look finds out that the scheduler is lost
            return None


def words(error: BaseException) -> str:
    """What went wrong, in a line; Dask often says it in the cause only."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]
