"""Kills workers and the scheduler of a cluster while a service maps with it, and checks that nothing is lost.

Run by the suite once, and by hand with many rounds: python -m tests.cluster_faults --rounds 10
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.cluster import RunningCluster
from tests.faults import COMPARED, undisturbed
from tests.server import RunningServer

WORKERS = 4


@dataclass
class ClusterReport:
    """What happened."""

    jobs: int = 0
    worker_kills: int = 0
    scheduler_kills: int = 0
    strips: int = 0
    completed: int = 0  # strips over all jobs: more than `strips` if one was computed twice
    history: list[str] = field(default_factory=list)  # of the last job


def strips_by_worker(job: dict) -> dict[str, int]:
    """How many strips each worker completed, from the job's history."""
    last = next(event["text"] for event in reversed(job["history"]) if event["text"].startswith("strips by worker"))
    return {name: int(count) for name, count in re.findall(r"(\S+) (\d+)", last.partition(": ")[2])}


class ClusterAttack:
    """A cluster of four workers, a service that maps with it, and random kills."""

    def __init__(self, folder: Path, seed: int, rows: int = 480, cols: int = 160) -> None:
        self._random = random.Random(seed)
        self._scene = folder / "scene.tif"
        write_scene(SyntheticScene(rows=rows, cols=cols, seed=5), self._scene, None)
        self._expected = undisturbed(self._scene, folder / "undisturbed")
        self._cluster = RunningCluster(folder / "cluster")
        for _ in range(WORKERS):
            self._cluster.add_worker()
        self._cluster.wait_for_workers()
        self._server = RunningServer(folder / "data", "--cluster", self._cluster.address).wait_until_ready()
        self._strips = self._map()[1]
        self.report = ClusterReport()

    def run(self, rounds: int) -> ClusterReport:
        """In each round, a job is mapped while two workers are killed at random times, and then the scheduler."""
        try:
            for _ in range(rounds):
                self._attack()
        finally:
            self._server.stop()
            self._cluster.stop()
        return self.report

    def _attack(self) -> None:
        # The last job may have ended without the scheduler, which its service has not found again yet.
        job_id = self._server.wait_until_ready().submit(self._scene)
        for worker in self._random.sample(self._cluster.workers, 2):
            self._wait_for_progress(job_id, self._random.randint(5, 30))
            worker.kill_child()
            self.report.worker_kills += 1
        self._wait_for_progress(job_id, self._random.randint(35, 60))
        self._cluster.kill_scheduler()
        self.report.scheduler_kills += 1
        time.sleep(self._random.uniform(0, 3))
        self._cluster.start_scheduler()
        self._check(job_id)

    def _wait_for_progress(self, job_id: str, percent: int) -> None:
        while (job := self._server.job(job_id))["progress"] < percent and job["status"] in ("accepted", "running"):
            time.sleep(0.02)

    def _map(self) -> tuple[dict, int]:
        job = self._server.finished(self._server.submit(self._scene), within_s=300)
        assert job["status"] == "successful", job
        return job, sum(strips_by_worker(job).values())

    def _check(self, job_id: str) -> None:
        job = self._server.finished(job_id, within_s=300)
        assert job["status"] == "successful", job
        for name in COMPARED:
            content = self._server.client.get(f"/jobs/{job_id}/results/{name}").content
            assert content == self._expected[name], f"{name} differs from an undisturbed run"
        completed = sum(strips_by_worker(job).values())
        assert completed == self._strips, f"{completed} strips were completed, not {self._strips}"
        self.report.jobs += 1
        self.report.strips += self._strips
        self.report.completed += completed
        self.report.history = [event["text"] for event in job["history"]]


def main() -> int:
    """Run the attack and print a report."""
    parser = argparse.ArgumentParser(description="Kill workers and the scheduler of a cluster; nothing may be lost.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        report = ClusterAttack(Path(folder), options.seed).run(options.rounds)
        print(f"{report} in {time.monotonic() - began:.0f} s: every job successful, the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
