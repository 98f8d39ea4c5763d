"""Kills a running service at random points, and checks that nothing is lost.

Run by the suite with a few kills, and by hand with many: python -m tests.faults --kills 50
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.server import RunningServer, part

COMPARED = ("classes.tif", "probabilities.tif", "confidence.tif", "classes.qml", "preview.png")
STRIP_PX = 16
VICTIMS = ("worker", "server", "both")


@dataclass
class Report:
    """What happened."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    jobs: int = 0
    resumes: int = 0


def undisturbed(scene: Path, folder: Path) -> dict[str, bytes]:
    """The files that the library writes for the scene."""
    bundle = load_bundle(DEMO_BUNDLE)
    map_scene(open_scene(scene), bundle, make_engine(bundle, "cpu", 2), folder, MapOptions(strip_px=STRIP_PX))
    return {name: (folder / name).read_bytes() for name in COMPARED}


class Attack:
    """Submits jobs to a server and kills its processes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._scene = folder / "scene.tif"
        write_scene(SyntheticScene(rows=144, cols=96, seed=5), self._scene, None)
        self._expected = undisturbed(self._scene, folder / "undisturbed")
        self._server = self._start()
        self._keys: list[str] = []  # of jobs that were sent, accepted or not
        self._jobs: list[str] = []
        self.report = Report()

    def _start(self) -> RunningServer:
        options = ("--device", "cpu", "--strip-px", STRIP_PX, "--lease-s", 5)
        return RunningServer(self._folder / "data", *options)

    def run(self, kills: int) -> Report:
        """Keep the queue filled, kill processes, and check every accepted job."""
        try:
            for _ in range(kills):
                self._fill_queue()
                time.sleep(self._random.uniform(0.2, 3.0))
                self._kill(self._random.choice(VICTIMS))
            self._check()
        finally:
            self._server.stop()
        return self.report

    def _fill_queue(self) -> None:
        """Submit until two jobs are unfinished."""
        self._restart_if_ended()
        unfinished = [job for job in self._jobs if not self._is_finished(job)]
        while len(unfinished) < 2:
            self._keys.append(f"key-{len(self._keys)}")
            unfinished.append(self._send(self._keys[-1]))

    def _send(self, key: str) -> str:
        """A job's id; the same key is sent until there is a response, since a kill may come after it was stored."""
        while True:
            try:
                answer = self._server.client.post(
                    "/classify",
                    files={"scene": part(self._scene)},
                    headers={"Prefer": "respond-async", "Idempotency-Key": key},
                )
            except httpx.HTTPError:
                self._restart_if_ended()
                continue
            if answer.status_code == 201:
                job: str = answer.json()["jobID"]
                self._jobs.append(job)
                return job
            assert answer.status_code == 503, answer.text  # still loading
            time.sleep(0.1)

    def _is_finished(self, job: str) -> bool:
        status = self._server.client.get(f"/jobs/{job}").json()["status"]
        return status in ("successful", "failed", "dismissed")

    def _restart_if_ended(self) -> None:
        if self._server.process.poll() is not None:
            self._server.stop()
            self._server = self._start()

    def _kill(self, victim: str) -> None:
        self.report.kills[victim] += 1
        workers = self._server.workers() if victim != "server" else []
        if victim in ("server", "both"):
            self._server.process.kill()
            self._server.process.wait()
        for worker in workers:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _check(self) -> None:
        self._restart_if_ended()
        assert len(set(self._jobs)) == len(self._keys), "a key made two jobs, or a job was lost"
        for job in self._jobs:
            status = self._server.finished(job, within_s=300)
            assert status["status"] == "successful", status
            self.report.resumes += status["resumes"]
            for name in COMPARED:
                content = self._server.client.get(f"/jobs/{job}/results/{name}").content
                assert content == self._expected[name], f"{name} of {job} differs from an undisturbed run"
        self.report.jobs = len(self._jobs)


def main() -> int:
    """Run the attack and print a report."""
    parser = argparse.ArgumentParser(description="Kill a running service at random points; nothing may be lost.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        report = Attack(Path(folder), options.seed).run(options.kills)
        print(f"{report} in {time.monotonic() - began:.0f} s: every job successful, the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
