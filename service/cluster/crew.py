"""A crew: the workers of a cluster as one engine, and a classifier that sends them blocks instead of windows."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.bundle import Bundle
from service.cluster.dispatch import Assignment, Dispatcher, Note
from service.cluster.members import Work
from service.cluster.roster import Roster, adopt_logs
from service.cluster.tasks import Answer, Question, Ready
from service.errors import NotReady, unwritten
from service.mapping.ahead import Cancelled
from service.mapping.classify import Block, Classifier, Crew, Milestone, Pending, PendingGroup, Run
from service.mapping.engines import cores
from service.mapping.lattice import Plan
from service.mapping.view import Pixels
from service.settings import Settings

LOOK_EVERY_S = 0.1


class Cluster:
    """A cluster for one job at a time, spoken to by a thread of its own; several jobs have a connection each."""

    def __init__(self, settings: Settings) -> None:
        adopt_logs()
        self.memory_bytes = int(settings.cluster_memory_bytes)
        self._loop = asyncio.new_event_loop()
        self._roster = Roster(settings)
        self._dispatcher = Dispatcher(self._roster, settings.stall_s)
        self._thread = threading.Thread(target=self._run, name="hyperscene-cluster", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._dispatcher.watch())
        self._loop.close()

    def close(self) -> None:
        """Leave the cluster."""
        self._loop.call_soon_threadsafe(self._dispatcher.close)
        self._thread.join()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be computed right now."""
        return self._roster.trouble

    def members(self) -> list[dict[str, Any]]:
        """Every worker that the scheduler lists, by name, and why it is not used."""
        return self._roster.listed()

    def choice(self, bundle: Bundle) -> Ready | None:
        """What the workers run, once they have the bundle; None until then."""
        self._loop.call_soon_threadsafe(self._roster.want, bundle)
        return None if self.trouble else self._roster.choice(bundle.sha256)

    def refusal(self, bundle: Bundle) -> str | None:
        """Why no worker can run this bundle, where there are some that run others."""
        return self._roster.refusal(bundle.sha256)

    def crew(self, bundle: Bundle, note: Note, is_over: Callable[[], bool]) -> ClusterCrew:
        """The workers for a job; waits until there are some."""
        while (found := self.choice(bundle)) is None:
            if is_over():
                raise Cancelled
            if not self.trouble and (reason := self.refusal(bundle)):
                raise NotReady(f"no worker of the cluster runs the bundle {bundle.manifest.name}: {reason}")
            time.sleep(LOOK_EVERY_S)
        return ClusterCrew(self, bundle, found, note)

    def begin(self, assignment: Assignment) -> None:
        """From now on, questions of this job are sent."""
        self._loop.call_soon_threadsafe(self._dispatcher.begin, assignment)

    def ask(self, work: Work) -> Future[Answer]:
        """Have a question answered by whoever is free."""
        self._loop.call_soon_threadsafe(self._dispatcher.enqueue, work)
        return work.answer

    def end(self) -> None:
        """The job is over; returns when nothing of it is on its way any more."""
        ended = threading.Event()

        def end() -> None:
            self._dispatcher.end()
            ended.set()

        self._loop.call_soon_threadsafe(end)
        ended.wait()


class ClusterCrew(Crew):
    """Workers that all run the same, for one job."""

    device = "cluster"

    def __init__(self, cluster: Cluster, bundle: Bundle, found: Ready, note: Note) -> None:
        self._cluster = cluster
        self._bundle = bundle
        self._note = note
        self.provider, self.batch = found.provider, found.batch
        self.callers = cores()

    def classifier(self, run: Run) -> Classifier:
        """Whoever sends a run's blocks to the workers."""
        run_id = secrets.token_hex(8)
        self._cluster.begin(Assignment(run_id, self._bundle.sha256, self.provider, self._note, run.stop.is_set))
        return ClusterClassifier(self._cluster, run, run_id, self._bundle.sha256)


class ClusterClassifier(Classifier):
    """Sends each block to a worker; as many are under way as their pixels fit into the memory set for them."""

    def __init__(self, cluster: Cluster, run: Run, run_id: str, sha256: str) -> None:
        super().__init__(run)
        self._cluster = cluster
        self._run_id, self._sha256 = run_id, sha256
        self._bare_plan = replace(run.plan, strips=())  # workers need none, and there may be thousands
        self._receiver = ThreadPoolExecutor(1, "hyperscene-receiver")

    def _begin(self, block: Block) -> list[PendingGroup]:
        expected: list[ExpectedGroup] = []
        pending = []
        for group in block.groups:
            asked = self._asked(block.pixels, group)
            calls: list[tuple[int, Future[NDArray[np.float32]]]] = [(tile, Future()) for tile in asked.tiles]
            tiles = [(tile, call, self._expect(asked, tile)) for tile, call in calls]
            self._expect_end(group)
            found = PendingGroup(asked, calls)
            pending.append(found)
            if not self._resolve_kept(found, tiles):
                expected.append((found, tiles))
        if expected:
            self._ask(block.pixels, expected)
        return pending

    def _resolve_kept(self, group: PendingGroup, tiles: ExpectedTiles) -> bool:
        """Answer a group from the checkpoint; whether all of it was there."""
        kept = [self._load(group.asked, tile) for tile, _, _ in tiles]
        if any(answer is None for answer in kept):
            return False
        for (_, call, milestone), answer in zip(tiles, kept, strict=True):
            assert answer is not None
            call.set_result(answer)
            self._progress.reach(milestone)
        return True

    def _ask(self, pixels: Pixels, expected: list[ExpectedGroup]) -> None:
        groups = [group.asked.group for group, _ in expected]
        top, bottom = rows_of(self._plan, groups)
        part = Pixels(top, pixels.cube[top - pixels.top : bottom - pixels.top],
                      pixels.valid[top - pixels.top : bottom - pixels.top])  # fmt: skip
        question = Question(self._run_id, self._sha256, self._bare_plan, groups, part)
        first = groups[0] * self._plan.group_px
        last = min((groups[-1] + 1) * self._plan.group_px, self._plan.lattice.rows)
        answer = self._cluster.ask(Work(question, range(first, last)))
        # Not in the thread that talks to the cluster: answers are written to disk.
        answer.add_done_callback(lambda answer: self._receiver.submit(self._receive, expected, answer))

    def _receive(self, expected: list[ExpectedGroup], answer: Future[Answer]) -> None:
        try:
            found = answer.result()
            self._run.clock.add("network", found.seconds)
            for (group, tiles), probabilities in zip(expected, found.probabilities, strict=True):
                for tile, call, milestone in tiles:
                    cells = self._plan.tile_cells(tile)
                    told = probabilities[:, cells][group.asked.is_asked[:, cells]]
                    if self._run.checkpoint is not None:
                        self._run.checkpoint.save_answer(group.asked.group, tile, told)
                    # Blocks are sent far ahead: where the job is, is what was answered last, which is kept and never
                    # asked about again.
                    self._run.asking([milestone.cells])
                    call.set_result(told)
                    self._progress.reach(milestone)
        except BaseException as error:
            reason = unwritten(error) if isinstance(error, OSError) else error
            for call in (call for _, tiles in expected for _, call, _ in tiles if not call.done()):
                call.set_exception(reason)

    def _is_enough(self, pending: Pending) -> bool:
        return sum(block.pixels.cube.nbytes for block, _ in pending) >= self._cluster.memory_bytes

    def _close(self) -> None:
        self._cluster.end()
        self._receiver.shutdown(wait=True)


ExpectedTiles = list[tuple[int, Future[NDArray[np.float32]], Milestone]]
ExpectedGroup = tuple[PendingGroup, ExpectedTiles]


def rows_of(plan: Plan, groups: list[int]) -> tuple[int, int]:
    """The scene's rows that the patches of some groups cover."""
    top, bottom = plan.window_rows(groups[0])[0], plan.window_rows(groups[-1])[1]
    return max(0, top), min(plan.lattice.rows, bottom)
