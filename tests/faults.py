"""Kills the processes of a running service at random points, and checks that nothing is lost.

Three API keys upload, map, look at, read and dismiss scenes at the same time. Run by the suite with a few kills, and by
hand with many: python -m tests.faults --kills 500 --seed 1 --spinners 2
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.lifetimes import ends_with_parent
from tests.server import RunningServer, part

COMPARED = ("classes.tif", "probabilities.tif", "confidence.tif", "classes.qml", "preview.png")
STRIP_PX = 16
KEYS = ("first-key", "second-key", "third-key")
# Victims, and the modules of the child processes that are killed.
VICTIMS = {
    "worker": "hyperscene.service.jobs.worker",
    "server": "",
    "both": "hyperscene.service.jobs.worker",
    "inspector": "hyperscene.service.jobs.inspector",
    "preview": "hyperscene.service.jobs.previews",
}
MAX_UNFINISHED, MAX_SCENES = 2, 8  # of each key
PATIENCE_S = 300.0


@dataclass
class Report:
    """What happened; any finding is a fault."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    processes: int = 0  # killed
    jobs: int = 0  # acknowledged and not dismissed, as are the scenes
    scenes: int = 0
    dismissed: int = 0
    previews: int = 0
    resumes: int = 0
    findings: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Sample:
    """A sound scene's files, the first of them the data, and the files of its undisturbed map."""

    files: tuple[Path, ...]
    expected: dict[str, bytes]

    @property
    def parts(self) -> list[tuple[str, tuple[str, bytes]]]:
        return [("scene", part(file)) for file in self.files]


def undisturbed(scene: Path, folder: Path) -> dict[str, bytes]:
    """The files that the library writes for the scene."""
    bundle = load_bundle(DEMO_BUNDLE)
    map_scene(open_scene(scene), bundle, make_engine(bundle, "cpu", 2), folder, MapOptions(strip_px=STRIP_PX))
    return {name: (folder / name).read_bytes() for name in COMPARED}


def make_samples(folder: Path) -> list[Sample]:
    """A GeoTIFF and an ENVI pair, some seconds of work each."""
    samples = []
    for name, rows in (("scene.tif", 144), ("scene.img", 112)):
        path = folder / name
        write_scene(SyntheticScene(rows=rows, cols=96, seed=5), path, None)
        files = (path,) if path.suffix == ".tif" else (path, path.with_suffix(".hdr"))
        samples.append(Sample(files, undisturbed(path, folder / f"undisturbed-{name}")))
    return samples


class Owner:
    """One API key: acts at random, and remembers what the service acknowledged."""

    def __init__(self, attack: Attack, key: str, seed: int) -> None:
        self._attack = attack
        self._key = key
        self._random = random.Random(f"{seed}-{key}")
        self._client = httpx.Client(timeout=120, headers={"X-API-Key": key})
        self._submissions = 0
        self.jobs: dict[str, Sample] = {}
        self.scenes: dict[str, Sample] = {}

    def act(self) -> None:
        """Fill the queue, then do one thing."""
        if sum(not self._is_finished(job) for job in self.jobs) < MAX_UNFINISHED:
            self._random.choice((self._classify, self._map_stored))()
        actions = (self._upload, self._look, self._read, self._dismiss) if self.jobs else (self._upload,)
        self._random.choices(actions, (4, 4, 2, 0.3)[: len(actions)])[0]()

    def _ask(self, method: str, path: str, **request: object) -> httpx.Response:
        """The first response that asks for nothing to be repeated; a kill may come at any moment."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                response = self._client.request(method, self._attack.url + path, **request)
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if response.status_code not in (429, 503):
                if response.status_code in (408, 413, 422, 500, 507):
                    self._attack.found(f"{method} {path}: {response.status_code} {response.text}")
                return response
            time.sleep(0.1)
        raise AssertionError(f"{method} {path}: no response in {PATIENCE_S:.0f} s")

    def _classify(self) -> None:
        sample = self._attack.choose_sample(self._random)
        self._add_job(self._ask("POST", "/classify", files=sample.parts, headers=self._job_headers()), sample)

    def _map_stored(self) -> None:
        if not self.scenes:
            self._upload()
        scene = self._random.choice(list(self.scenes))
        body = {"inputs": {"scene": {"href": f"/scenes/{scene}"}}}
        address = "/processes/classify-scene/execution"
        self._add_job(self._ask("POST", address, json=body, headers=self._job_headers()), self.scenes[scene])

    def _job_headers(self) -> dict[str, str]:
        self._submissions += 1
        return {"Prefer": "respond-async", "Idempotency-Key": f"submission-{self._submissions}"}

    def _add_job(self, response: httpx.Response, sample: Sample) -> None:
        if response.status_code != 201:
            self._attack.found(f"a job was refused: {response.status_code} {response.text}")
        elif self.jobs.setdefault(job := response.json()["jobID"], sample) is not sample:
            self._attack.found(f"two keys made one job, {job}")

    def _upload(self) -> None:
        sample = self._attack.choose_sample(self._random)
        response = self._ask("POST", "/scenes", files=sample.parts)
        if response.status_code == 201:
            self.scenes[response.json()["id"]] = sample
        for scene in list(self.scenes)[:-MAX_SCENES]:
            if self._ask("DELETE", f"/scenes/{scene}").status_code != 409:  # a job needs it
                del self.scenes[scene]

    def _look(self) -> None:
        """A picture of a job's scene in some bands, which a preview process makes."""
        job, bands = self._random.choice(list(self.jobs)), self._random.sample(range(1, 20), 3)
        path = f"/jobs/{job}/tiles/scene/0/0/0.png?bands={','.join(map(str, bands))}"
        response = self._ask("GET", path)
        if response.status_code == 200:
            self._attack.report.previews += 1
        elif "deleted" not in response.text and "removed" not in response.text:  # a stored scene may be gone
            self._attack.found(f"GET {path}: {response.status_code} {response.text}")

    def _read(self) -> None:
        job = self._random.choice(list(self.jobs))
        if self._is_finished(job):
            self._compare(job)

    def _dismiss(self) -> None:
        job = self._random.choice(list(self.jobs))
        self._ask("DELETE", f"/jobs/{job}")
        del self.jobs[job]
        self._attack.report.dismissed += 1
        if (status := self._ask("GET", f"/jobs/{job}").json().get("status")) != "dismissed":
            self._attack.found(f"the job {job} was dismissed and is {status}")

    def _is_finished(self, job: str) -> bool:
        response = self._ask("GET", f"/jobs/{job}")
        status = response.json().get("status")
        if response.status_code != 200 or status in ("failed", "dismissed"):
            self._attack.found(f"the job {job}: {response.status_code} {response.text}")
        return status not in ("accepted", "running")

    def _compare(self, job: str) -> None:
        for name in COMPARED:
            content = self._ask("GET", f"/jobs/{job}/results/{name}").content
            if content != self.jobs[job].expected[name]:
                self._attack.found(f"{name} of {job} differs from an undisturbed run")

    def check(self) -> None:
        """Everything acknowledged is there and right."""
        report = self._attack.report
        for job in self.jobs:
            deadline = time.monotonic() + PATIENCE_S
            while not self._is_finished(job):
                assert time.monotonic() < deadline, f"the job {job} does not end"
                time.sleep(0.1)
            report.resumes += self._ask("GET", f"/jobs/{job}").json().get("resumes", 0)
            self._compare(job)
        for scene, sample in self.scenes.items():
            stored = self._attack.data / "scenes" / scene / sample.files[0].name
            if self._ask("GET", f"/scenes/{scene}").status_code != 200 or not stored.is_file():
                self._attack.found(f"the scene {scene} is lost")
            elif stored.read_bytes() != sample.files[0].read_bytes():
                self._attack.found(f"the scene {scene} has other bytes")
        report.jobs += len(self.jobs)
        report.scenes += len(self.scenes)
        self._client.close()


class Attack:
    """A server, three owners that use it, and random kills."""

    def __init__(self, folder: Path, seed: int, spinners: int = 0) -> None:
        self._folder = folder
        self.data = folder / "data"
        self._random = random.Random(seed)
        self._spinners = spinners
        self._samples = make_samples(folder)
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._server = self._start()
        self._owners = [Owner(self, key, seed) for key in KEYS]
        self.report = Report()

    @property
    def url(self) -> str:
        return self._server.url

    def choose_sample(self, generator: random.Random) -> Sample:
        """One of the scenes."""
        return generator.choice(self._samples)

    def found(self, finding: str) -> None:
        """Note a fault, once."""
        with self._lock:
            if finding not in self.report.findings:
                self.report.findings.append(finding)
                print(f"found: {finding}", file=sys.stderr, flush=True)

    def _start(self) -> RunningServer:
        options = ("--device", "cpu", "--strip-px", STRIP_PX, "--lease-s", 5)
        return RunningServer(self.data, *options, HYPERSCENE_API_KEYS=",".join(KEYS))

    def run(self, kills: int) -> Report:
        """Kill processes while the owners act, then check everything that was acknowledged."""
        threads = [threading.Thread(target=self._act, args=(owner,), daemon=True) for owner in self._owners]
        try:
            with ExitStack() as stack:
                for _ in range(self._spinners):
                    stack.enter_context(spinner())
                for thread in threads:
                    thread.start()
                self._kill_repeatedly(kills)
                self._is_over.set()
                for thread in threads:
                    thread.join(PATIENCE_S)
                for owner in self._owners:
                    owner.check()
            errors = [line for line in self._server.log.read_text().splitlines() if "unexpected error" in line]
            self.report.findings += errors
        finally:
            self._is_over.set()
            self._server.stop()
        return self.report

    def _act(self, owner: Owner) -> None:
        while not self._is_over.is_set():
            try:
                owner.act()
            except Exception as error:
                self.found(f"an owner stopped: {error!r}")
                raise

    def _kill_repeatedly(self, kills: int) -> None:
        for number in range(kills):
            time.sleep(self._random.uniform(0.2, 3.0))
            self._kill(self._random.choice(list(VICTIMS)))
            if number % 50 == 49:
                print(self.report, file=sys.stderr, flush=True)

    def _kill(self, victim: str) -> None:
        """Kill all processes of a kind; a server that ends is started again."""
        self.report.kills[victim] += 1
        children = processes_of(self._server, VICTIMS[victim])
        if is_server := victim in ("server", "both"):
            self._server.process.kill()
            self._server.process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.report.processes += is_server + len(children)
        if is_server:
            self._server.stop()
            self._server = self._start()


def processes_of(server: RunningServer, module: str) -> list[psutil.Process]:
    """The child processes of a server that run a module."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if module in child.cmdline():
                found.append(child)
    return found


@contextmanager
def spinner():
    """A process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=ends_with_parent())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Run the attack and print a report."""
    parser = argparse.ArgumentParser(description="Kill a running service at random points; nothing may be lost.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spinners", type=int, default=0, help="processes that keep the machine busy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        report = Attack(Path(folder), options.seed, options.spinners).run(options.kills)
        print(f"{report} in {time.monotonic() - began:.0f} s")
    if report.findings:
        print(f"{len(report.findings)} FINDINGS", *report.findings, sep="\n")
        return 1
    print("every acknowledged job and scene is there, no sound scene failed, the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
