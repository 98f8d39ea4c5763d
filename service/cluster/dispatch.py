"""Dispatch: questions go to whoever is free; those of a worker that died go to another one, and some come to an end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from service.cluster.members import Member, Work
from service.cluster.roster import Roster, SchedulerLost, answer_aloud
from service.cluster.tasks import Answer, Missing, Refused, stop_run
from service.errors import InferenceFailed, ServiceError, in_words
from service.mapping.ahead import Cancelled
from service.mapping.classify import CrewLost

log = logging.getLogger("hyperscene.cluster")

LOOK_EVERY_S = 0.3
LISTEN_EVERY_S = 0.1  # to whether the job is over
LANES = 2  # questions a worker has at a time: while one is answered, the next is on its way
MOST_FAILURES = 3  # of workers that had begun with a question
MOST_LOSSES = 10  # of workers that had it, begun or not
MOST_BLUNDERS = 3  # of one worker: questions that it failed at and others answered
ALONE_S = 60.0  # that a job waits for a worker that runs what it began with, while there are only others

Note = Callable[[str], None]


@dataclass(frozen=True)
class Assignment:
    """One job's mapping, for as long as it lasts."""

    run_id: str
    sha256: str
    provider: str
    note: Note  # what happened, for the job's record
    is_over: Callable[[], bool]
    answered: Counter[str] = field(default_factory=Counter)  # strips by worker
    refused: set[str] = field(default_factory=set)  # workers that were noted


class Dispatcher:
    """Keeps a roster's workers busy; to be used in one event loop."""

    def __init__(self, roster: Roster, stall_s: float) -> None:
        self._roster = roster
        self._stall_s = stall_s
        self._assignment: Assignment | None = None
        self._waiting: deque[Work] = deque()
        self._gone: list[Member] = []  # that were lost, and whose questions are being looked after
        self._alone_since: float | None = None  # nobody runs what the job runs
        self._is_wanted = asyncio.Event()  # something is wrong: look now
        self._is_closed = False
        self._background: set[asyncio.Task[None]] = set()

    def begin(self, assignment: Assignment) -> None:
        """From now on, questions of this job are sent."""
        self._assignment, self._alone_since = assignment, None

    def enqueue(self, work: Work) -> None:
        """One more question."""
        if self._assignment is None:
            work.answer.set_exception(Cancelled())
        else:
            self._waiting.append(work)
            self._fill()

    def end(self) -> None:
        """The job is over: what is not answered yet is not wanted any more."""
        assignment, self._assignment = self._assignment, None
        if assignment is None:
            return
        members = [member for member in (*self._roster.members.values(), *self._gone) if member.in_flight]
        unanswered = [*self._waiting, *(work for member in members for work in member.in_flight)]
        self._waiting.clear()
        for member in members:
            member.in_flight.clear()
        for work in unanswered:
            self._let_go(work)
            work.answer.set_exception(Cancelled())
        if members:
            self._start(self._roster.tell(members, stop_run, assignment.run_id))
        if assignment.answered:
            shares = ", ".join(f"{name} {count}" for name, count in sorted(assignment.answered.items()))
            assignment.note(f"strips by worker: {shares}")

    def close(self) -> None:
        """Look no more."""
        self.end()
        self._is_closed = True
        self._is_wanted.set()

    async def watch(self) -> None:
        """Look at the cluster, over and over, and put right what can be."""
        self._start(self._listen())
        while not self._is_closed:
            try:
                await self._look()
            except SchedulerLost as error:
                await self._lose_scheduler(str(error))
            except Exception:
                log.exception("the cluster could not be looked at")
            try:
                await asyncio.wait_for(self._is_wanted.wait(), LOOK_EVERY_S)
            except TimeoutError:
                continue
            self._is_wanted.clear()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._roster.disconnect()

    async def _listen(self) -> None:
        """End a job as soon as it is over, however long a look takes."""
        while not self._is_closed:
            if self._assignment is not None and self._assignment.is_over():
                self.end()
            await asyncio.sleep(LISTEN_EVERY_S)

    async def _look(self) -> None:
        if not self._roster.is_connected:
            if self._roster.members:
                raise SchedulerLost("the connection broke")
            if await self._roster.connect():
                self._note(f"connected with {self._roster.address}", logging.INFO)
        else:
            self._gone += await self._roster.look()
            while self._gone:
                await self._lose(self._gone[0])
                del self._gone[0]
            for member in list(self._roster.members.values()):
                await self._look_after(member)
        self._fill()
        self._begin_anew_if_alone()

    def _begin_anew_if_alone(self) -> None:
        """A job whose kind of worker has gone for good goes on with others, from its beginning: they may round
        differently."""
        assignment = self._assignment
        is_alone = assignment is not None and bool(self._waiting) and not self._roster.trouble and not self._fit()
        if not is_alone:
            self._alone_since = None
            return
        self._alone_since = self._alone_since or time.monotonic()
        if assignment is not None and time.monotonic() - self._alone_since > ALONE_S:
            self._note(f"no worker is left that runs {assignment.provider}: the job begins anew with what there is")
            while self._waiting:
                self._waiting.popleft().answer.set_exception(CrewLost())

    async def _lose_scheduler(self, reason: str) -> None:
        """Nobody is to blame; everything under way is sent again when there is a scheduler."""
        count = 0
        for member in self._roster.members.values():
            count += len(member.in_flight)
            self._take_back(member)
        self._note(f"the scheduler was lost ({reason}) with {count} strips under way, which are sent again")
        await self._roster.disconnect()

    async def _lose(self, member: Member) -> None:
        if not member.in_flight:
            return
        is_leaving = await self._roster.is_leaving(member)
        what = "was stopped" if is_leaving else "was lost"
        self._note(f"worker {member.name} {what} with {_list(member.in_flight)} under way, sent again")
        # The question that it was at may be another job's, or an answered one.
        begun = None if is_leaving else await self._roster.last_begun(member)
        guilty = next((work for work in member.in_flight if work.id == begun), None)
        self._take_back(member, guilty, f"worker {member.name} was lost")

    async def _look_after(self, member: Member) -> None:
        for work in [work for work in member.in_flight if work.trouble is not None]:
            member.in_flight.remove(work)
            self._fail_at(member, work, str(work.trouble) or type(work.trouble).__name__)
        if not self._is_stuck(member):
            return
        begun = await self._roster.last_begun(member)  # another job's question may be what it hangs at
        if not self._is_stuck(member):  # any more
            return
        guilty = next((work for work in member.in_flight if work.id == begun), None)
        silence = f"worker {member.name} did not answer for {in_words(self._stall_s)}"
        self._note(f"{silence} with {_list(member.in_flight)} under way, sent again; the worker is restarted")
        self._roster.avoid(member)
        self._take_back(member, guilty, silence)
        self._start(self._roster.restart(member))

    def _is_stuck(self, member: Member) -> bool:
        began = member.in_flight[0].began if member.in_flight else None
        return began is not None and time.monotonic() - began > self._stall_s

    def _fail_at(self, member: Member, work: Work, reason: str, refusal: ServiceError | None = None) -> None:
        """A worker that lives on could not answer: others may. What all of them refuse, or three, is the scene's."""
        _promote(member)
        work.tried.add(member.address)
        others = [other for other in self._fit() if other.address not in work.tried]
        if refusal is not None and (not others or len(work.tried) >= MOST_FAILURES):
            work.answer.set_exception(refusal)
            return
        self._note(f"worker {member.name} failed at {work}, sent again: {reason}")
        self._send_again(work, f"worker {member.name} failed: {reason}")

    def _take_back(self, member: Member, guilty: Work | None = None, blame: str = "") -> None:
        """Send a worker's questions to others; the one that it was at bears the blame."""
        for work in reversed([*member.in_flight]):
            work.losses += bool(blame)
            self._send_again(work, blame if work is guilty else None)
        member.in_flight.clear()

    def _send_again(self, work: Work, blame: str | None) -> None:
        self._let_go(work)
        work.began = work.trouble = None
        if self._assignment is None or work.question.run_id != self._assignment.run_id:  # it ended meanwhile
            work.answer.set_exception(Cancelled())
            return
        if blame is not None:
            work.failures.append(blame)
        if len(work.failures) < MOST_FAILURES and work.losses < MOST_LOSSES:
            self._waiting.appendleft(work)
            return
        count = len(work.failures) if len(work.failures) >= MOST_FAILURES else work.losses
        reasons = f" ({'; '.join(work.failures)})" if work.failures else ""
        work.answer.set_exception(
            InferenceFailed(
                f"{work} of the scene ended {count} workers{reasons}: crop the scene there, or report the job's id"
            )
        )

    def _fill(self) -> None:
        """Give everybody who has room a question."""
        if self._assignment is None:
            return
        sha256, provider = self._assignment.sha256, self._assignment.provider
        for member in self._roster.members.values():
            refusal = member.refusal(sha256, provider)
            if refusal and member.name not in self._assignment.refused:
                self._assignment.refused.add(member.name)
                self._note(f"worker {member.name} is not used: {refusal}")
        fit = self._fit()
        for work in [*self._waiting]:
            free = [member for member in fit if len(member.in_flight) < LANES]
            if not free:
                return
            fresh = [member for member in free if member.address not in work.tried]
            if not fresh and any(member.address not in work.tried for member in fit):
                continue  # somebody who has not tried it will be free
            member = min(fresh or free, key=lambda member: len(member.in_flight))
            self._waiting.remove(work)
            member.in_flight.append(work)
            _promote(member)
            work.sending = asyncio.create_task(self._send(member, work))

    def _fit(self) -> list[Member]:
        """Workers that questions of the job may be sent to."""
        if self._assignment is None:
            return []
        sha256, provider = self._assignment.sha256, self._assignment.provider
        return [member for member in self._roster.members.values() if member.is_fit(sha256, provider)]

    async def _send(self, member: Member, work: Work) -> None:
        assignment = self._assignment
        try:
            question = await self._roster.send(member, work.question)
            found = await self._roster.call(member, answer_aloud, question, work.id)
        except Exception as error:  # of the worker, of the network, of Dask: the watch finds out what it was
            work.trouble = error
            self._is_wanted.set()
            return
        if assignment is None or self._assignment is not assignment:
            return
        member.in_flight.remove(work)
        _promote(member)
        if isinstance(found, Answer):
            assignment.answered[member.name] += 1
            work.answer.set_result(found)
            self._remember_blunders(work)
        elif isinstance(found, Missing):
            self._roster.forget_bundle(member, assignment.sha256)
            self._send_again(work, None)
        elif isinstance(found, Refused) and found.code == InferenceFailed.code:
            self._fail_at(member, work, found.detail, found.error)
        else:
            work.answer.set_exception(found.error if isinstance(found, Refused) else TypeError(found))
        self._fill()

    def _remember_blunders(self, work: Work) -> None:
        """Whoever failed at a question that another worker answered was to blame itself."""
        for member in [self._roster.members[place] for place in work.tried if place in self._roster.members]:
            member.blunders += 1
            if member.blunders >= MOST_BLUNDERS:
                self._roster.set_aside(
                    member, f"it failed at {member.blunders} strips that others answered: see its log, and restart it"
                )

    def _let_go(self, work: Work) -> None:
        if work.sending is not None:
            work.sending.cancel()
            work.sending = None

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _note(self, text: str, level: int = logging.WARNING) -> None:
        log.log(level, "%s", text)
        if self._assignment is not None:
            self._assignment.note(text)


def _promote(member: Member) -> None:
    """A worker's first question is the one that it is at."""
    if member.in_flight and member.in_flight[0].began is None:
        member.in_flight[0].began = time.monotonic()


def _list(works: deque[Work]) -> str:
    return " and ".join(map(str, works))
