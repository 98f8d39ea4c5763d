"""Simulates a power cut at every point of a recorded run, and checks that nothing acknowledged is lost.

strace records what a real server and its processes write, rename, remove and flush in the data folder while scenes are
uploaded and mapped, and when responses are sent. The disk is then rebuilt as a power cut at each point may leave it,
and a start of the service from there must know every scene and job that was acknowledged: the scene's bytes, the job's
status, the bytes of its results. What was deleted or dismissed stays so. Run by the suite on a sample, and by hand on
all: python -m tests.power_cuts

What is covered. A response counts as sent when its system call starts, a write as done when its call returns, and a
flush covers what had returned before it started. Four disks are built at each point:
- `lost`: only what was flushed. Bytes need an fsync of the file, names one of their folder (POSIX promises no more).
- `names`: all names, but only flushed bytes: a file system that writes its journal before the data (ext4 without
  data=ordered, XFS). Renamed files may be empty.
- `kept`: everything, in order: the processes were killed, the machine was not.
- `mixed`: what was flushed, a random part of the other names (in order) and a random subset of the other writes.
Assumed: a rename is atomic, also between folders; a write is whole or absent (no torn sectors; SQLite and checkpoints
have checksums, but that is not tested here); a disk that reports a flush has done it. SQLite's shared memory (-shm) is
left out, as SQLite rebuilds it. The parent of the data folder exists before.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import hashlib
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np

from hyperscene.model.bundle import load_bundle
from hyperscene.service import app
from hyperscene.service.jobs.disk import data_path
from hyperscene.service.jobs.models import Models, load_models
from hyperscene.service.jobs.supervisor import Supervisor
from hyperscene.service.mapping.classify import RunControl
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.settings import Settings
from tests.bundles import write_patch_bundle
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import RunningServer, wait_for

CALLS = (
    "open,openat,creat,close,read,readv,write,writev,pwrite64,pwritev,pwritev2,lseek,ftruncate,truncate,fallocate,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync,"
    "sendto,sendmsg,sendfile,copy_file_range,mmap,clone,clone3,fork,vfork"
)
# The server is the child of the caller (-D), -y shows the path of each descriptor, contents of reads are left out.
STRACE = ("strace", "-D", "-f", "--seccomp-bpf", "-y", "-s", "100000000", "-e", f"trace={CALLS}",
          "-e", "raw=read,readv", "-e", "signal=none")  # fmt: skip
NOT_MODELLED = {"truncate", "fallocate", "pwritev", "pwritev2", "link", "linkat", "symlink", "symlinkat", "sendfile",
                "copy_file_range"}  # fmt: skip
KINDS = ("lost", "names", "kept", "mixed")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<((?:[^>\\]|\\.)*)>")
RESULTS = ("classes.tif", "probabilities.tif", "confidence.tif", "summary.json", "item.json", "preview.png")


# The record


@dataclass(frozen=True)
class Call:
    """A system call of the record: its place when it started and ended, and its text."""

    start: int
    end: int
    process: int
    name: str
    arguments: str
    result: str

    @property
    def returned(self) -> int:
        return first_number(self.result)

    @property
    def strings(self) -> list[bytes]:
        return [codecs.escape_decode(text.encode("latin-1"))[0] for text in STRING.findall(self.arguments)]

    def paths(self) -> list[str]:
        """The path arguments, absolute: each is relative to the descriptor before it."""
        bare = STRING.sub(lambda found: f'"{len(found[0])}"', self.arguments)
        folders = [path for _, path in DESCRIPTOR.findall(bare)]
        given = [text.decode() for text in self.strings]
        folders = folders + [""] * (len(given) - len(folders))
        return [path if path.startswith("/") else f"{folders[number]}/{path}" for number, path in enumerate(given)]


def first_number(text: str) -> int:
    """The number at the start of a text, in hexadecimal where strace was told to leave out what is read; or -1."""
    found = re.match(r"0x[0-9a-f]+|-?\d+", text)
    return int(found[0], 0) if found else -1


def read_record(path: Path) -> list[Call]:
    """The calls of a record in the order in which they ended; threads have the number of their process."""
    begun: dict[int, tuple[int, str]] = {}
    calls, leaders = [], {}
    for place, line in enumerate(path.read_text("latin-1").splitlines()):
        number, _, text = line.partition(" ")
        thread, text, start = int(number), text.strip(), place
        if text.endswith("<unfinished ...>"):
            begun[thread] = place, text.removesuffix("<unfinished ...>")
            continue
        if (resumed := re.match(r"<\.\.\. \w+ resumed>", text)) and thread in begun:
            start, before = begun.pop(thread)
            text = before + text[resumed.end() :]
        found = re.fullmatch(r"(\w+)\((.*)\)\s+= (.*)", text, re.DOTALL)
        if found is None:  # an exit
            continue
        call = Call(start, place, thread, *found.groups())
        if call.name.startswith("clone") and "CLONE_THREAD" in call.arguments:
            leaders[call.returned] = thread
        calls.append(call)

    def leader(thread: int) -> int:
        return leader(leaders[thread]) if thread in leaders else thread

    return [Call(call.start, call.end, leader(call.process), call.name, call.arguments, call.result) for call in calls]


# The disk


@dataclass(eq=False)
class File:
    """Flushed bytes, and later writes: where, and what; None cuts the file there."""

    flushed: bytes = b""
    writes: list[tuple[int, int, bytes | None]] = field(default_factory=list)  # (when, offset, bytes)

    def content(self, chosen: list[tuple[int, int, bytes | None]]) -> bytes:
        """The file after some of the writes."""
        data = bytearray(self.flushed)
        for _, offset, written in chosen:
            if written is None:
                data[offset:] = bytes(max(0, offset - len(data)))
            else:
                data.extend(bytes(max(0, offset - len(data))))
                data[offset : offset + len(written)] = written
        return bytes(data)

    @property
    def size(self) -> int:
        size = len(self.flushed)
        for _, offset, written in self.writes:
            size = offset if written is None else max(size, offset + len(written))
        return size

    def flush(self, before: int) -> None:
        """Make the writes durable that ended before a place."""
        self.flushed = self.content([write for write in self.writes if write[0] < before])
        self.writes = [write for write in self.writes if write[0] >= before]


@dataclass(eq=False)
class Folder:
    """Names now, and those that were flushed."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    flushed: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Change:
    """Names that change at once: a folder, a name, and what is there afterwards."""

    when: int
    updates: tuple[tuple[Folder, str, File | Folder | None], ...]

    def touches(self, other: Change) -> bool:
        """Whether both change the same name."""
        return any(one[0] is two[0] and one[1] == two[1] for one in self.updates for two in other.updates)


def update(names: dict[str, File | Folder], name: str, node: File | Folder | None) -> None:
    """Set or remove a name."""
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


@dataclass(eq=False)
class OpenFile:
    """An open file and its position."""

    node: File | Folder
    offset: int = 0
    appends: bool = False


class Disk:
    """The folder `top` as a sequence of calls leaves it, with what was flushed."""

    def __init__(self, top: Path) -> None:
        self._top = str(top)
        self._root = Folder()
        self._changes: list[Change] = []  # not flushed
        self._open: dict[tuple[int, int], OpenFile] = {}

    def apply(self, call: Call) -> bool:
        """Apply a call; whether it changed anything."""
        if call.returned < 0:
            return False
        if call.name in ("open", "openat", "creat"):
            return self._on_open(call)
        if call.name in ("mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2"):
            return self._on_names(call)
        file = self._open.get((call.process, first_number(call.arguments)))
        if self._top in call.arguments and "-shm" not in call.arguments:
            assert call.name not in NOT_MODELLED, f"{call.name} is not modelled"
            assert not (call.name == "mmap" and "MAP_SHARED" in call.arguments and "PROT_WRITE" in call.arguments)
        return file is not None and self._on_descriptor(call, file)

    def _on_open(self, call: Call) -> bool:
        found = DESCRIPTOR.match(call.result)
        path = found[2] if found else ""
        self._open.pop((call.process, call.returned), None)
        if path == self._top:
            self._open[call.process, call.returned] = OpenFile(self._root)
        if not path.startswith(self._top + "/") or path.endswith("-shm"):
            return False
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if is_new := node is None:
            node = File()
            self._change(call.end, (folder, name, node))
        if "O_TRUNC" in call.arguments and isinstance(node, File):
            node.writes.append((call.end, 0, None))
        self._open[call.process, call.returned] = OpenFile(node, 0, "O_APPEND" in call.arguments)
        return is_new or "O_TRUNC" in call.arguments

    def _on_names(self, call: Call) -> bool:
        paths = call.paths()
        if not paths[0].startswith(self._top + "/") or paths[0].endswith("-shm"):
            return False
        folder, name = self._parent(paths[0])
        if call.name.startswith("rename"):
            target, new_name = self._parent(paths[1])
            self._change(call.end, (folder, name, None), (target, new_name, folder.names[name]))
        else:
            self._change(call.end, (folder, name, Folder() if call.name.startswith("mkdir") else None))
        return True

    def _on_descriptor(self, call: Call, file: OpenFile) -> bool:
        node = file.node
        if call.name == "close":
            self._open.pop((call.process, first_number(call.arguments)))
        elif call.name in ("fsync", "fdatasync"):
            node.flush(call.start) if isinstance(node, File) else self._flush_folder(node, call.start)
            return True
        elif call.name == "lseek":
            file.offset = call.returned
        elif call.name in ("read", "readv"):
            file.offset += call.returned
        elif call.name == "ftruncate":
            node.writes.append((call.end, int(call.arguments.rsplit(", ", 1)[1]), None))
            return True
        elif call.name in ("write", "writev", "pwrite64"):
            data = b"".join(call.strings)[: call.returned]
            if call.name == "pwrite64":
                node.writes.append((call.end, int(call.arguments.rsplit(", ", 1)[1]), data))
                return True
            start = node.size if file.appends else file.offset
            node.writes.append((call.end, start, data))
            file.offset = start + len(data)
            return True
        return False

    def _parent(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.removeprefix(self._top + "/").split("/")
        node = self._root
        for folder in folders:
            node = node.names[folder]
        return node, name

    def _change(self, when: int, *updates: tuple[Folder, str, File | Folder | None]) -> None:
        for folder, name, node in updates:
            update(folder.names, name, node)
        self._changes.append(Change(when, updates))

    def _flush_folder(self, folder: Folder, before: int) -> None:
        """Make a folder's names durable, and with a rename the other name as well, after what happened to it before."""
        wanted = [
            change for change in self._changes
            if change.when < before and any(changed is folder for changed, _, _ in change.updates)
        ]  # fmt: skip
        for change in reversed(self._changes):
            if change not in wanted and any(change.when < later.when and change.touches(later) for later in wanted):
                wanted.append(change)
        for change in self._changes:
            if change in wanted:
                for changed, name, node in change.updates:
                    update(changed.flushed, name, node)
        self._changes = [change for change in self._changes if change not in wanted]

    def state(self, kind: str, generator: random.Random) -> dict[str, bytes | None]:
        """A disk after a power cut now: each path and its bytes, None for a folder."""
        names: dict[int, dict[str, File | Folder]] = {}
        if kind == "mixed":
            kept = self._changes[: generator.randint(0, len(self._changes))]
            for change in kept:
                for folder, name, node in change.updates:
                    update(names.setdefault(id(folder), dict(folder.flushed)), name, node)
        found: dict[str, bytes | None] = {}

        def walk(folder: Folder, prefix: str) -> None:
            here = folder.names if kind in ("names", "kept") else names.get(id(folder), folder.flushed)
            for name, node in here.items():
                if isinstance(node, Folder):
                    found[prefix + name] = None
                    walk(node, f"{prefix}{name}/")
                else:
                    found[prefix + name] = node.content(chosen(node))

        def chosen(file: File) -> list[tuple[int, int, bytes | None]]:
            if kind == "mixed":
                return [write for write in file.writes if generator.random() < 0.5]
            return file.writes if kind == "kept" else []

        walk(self._root, "")
        return found


# What was acknowledged, and whether a state keeps it


@dataclass
class Promises:
    """Scenes and jobs that responses acknowledged so far."""

    scenes: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    successful: set[str] = field(default_factory=set)
    dismissed: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)  # scenes

    @property
    def count(self) -> int:
        return sum(map(len, vars(self).values()))

    def add(self, call: Call) -> bool:
        """Add what a sent response acknowledges; whether it was something."""
        if call.name not in ("sendto", "sendmsg", "write", "writev") or "socket:" not in call.arguments:
            return False
        sent = b"".join(call.strings).decode("latin-1")
        before = self.count
        if sent.startswith("HTTP/1.1 201") and (found := re.search(r"location: \S+/(scenes|jobs)/(\w{32})", sent)):
            getattr(self, found[1]).add(found[2])
        if (job := re.search(r'"jobID":"(\w{32})"', sent)) and (status := re.search(r'"status":"(\w+)"', sent)):
            {"successful": self.successful, "dismissed": self.dismissed}.get(status[1], set()).add(job[1])
        if sent.startswith("HTTP/1.1 204") and (found := re.search(r"x-request-id: delete-(\w{32})", sent)):
            self.deleted.add(found[1])
        return self.count > before


@dataclass
class Run:
    """A recorded run: its calls, its data folder and what is expected."""

    calls: list[Call]
    top: Path
    bundles: Path
    scene: bytes
    results: dict[str, bytes]  # of a job
    deleted: str  # a scene
    strip_px: int = 16


def record(folder: Path) -> Run:
    """Upload, map, look at and dismiss on a server under strace."""
    (folder / "bundles").mkdir()
    write_patch_bundle(folder / "bundles" / "patch.onnx")
    values = np.random.default_rng(0).uniform(0.1, 0.9, (64, 48, 5)).astype("float32")
    scene = write_tif(folder / "scene.tif", values, wavelengths_nm=WAVELENGTHS)
    (folder / "disk").mkdir()
    options = ("--bundles", folder / "bundles", "--device", "cpu", "--strip-px", Run.strip_px)
    server = RunningServer(folder / "disk" / "data", *options, within=(*STRACE, "-o", str(folder / "record")))
    try:
        server.wait_until_ready()
        stored, deleted = (server.client.post("/scenes", content=scene.read_bytes()).json()["id"] for _ in range(2))
        server.client.delete(f"/scenes/{deleted}", headers={"X-Request-ID": f"delete-{deleted}"})
        first = server.submit(scene)
        body = {"inputs": {"scene": {"href": f"/scenes/{stored}"}}}
        headers = {"Prefer": "respond-async"}
        second = server.client.post("/processes/classify-scene/execution", json=body, headers=headers).json()["jobID"]
        for job in (first, second):
            assert server.finished(job)["status"] == "successful"
        third = server.submit(scene)
        server.client.delete(f"/jobs/{third}")
        results = {name: server.client.get(f"/jobs/{first}/results/{name}").content for name in RESULTS[:3]}
        wait_for(lambda: not (server.data / "jobs" / second / "strips").exists())  # the worker has cleaned up
    finally:
        server.stop(within_s=60)
    end = re.compile(rf"^{server.process.pid} +\+\+\+ ", re.MULTILINE)
    wait_for(lambda: end.search((folder / "record").read_text("latin-1")))
    calls = read_record(folder / "record")
    return Run(calls, folder / "disk", folder / "bundles", scene.read_bytes(), results, deleted)


class Checker:
    """Starts the service from a state, without workers, and looks for what was acknowledged."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run = run
        self._folder = folder
        inspector = app.Inspector()
        self._models: Models = load_models(run.bundles, None, inspector.inspect_bundle)
        inspector.close()
        self._bundle = load_bundle(run.bundles / "patch.onnx")
        self._engine = make_engine(self._bundle, "cpu", 1)

    def check(self, state: dict[str, bytes | None], promises: Promises) -> list[str]:
        """What is lost."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        for path, content in state.items():
            if content is None:
                (self._folder / path).mkdir()
            else:
                (self._folder / path).write_bytes(content)
        settings = Settings(data=self._folder / "data", bundles=self._run.bundles, strip_px=self._run.strip_px)
        with patch.object(app, "load_models", lambda *_: self._models), patch.object(Supervisor, "start"):
            return asyncio.run(self._start(settings, promises))

    async def _start(self, settings: Settings, promises: Promises) -> list[str]:
        try:
            with app.open_resources(settings) as resources:
                async with app.running_service(settings, resources):
                    return [*self._lost(settings, resources, promises)]
        except Exception as error:
            return [f"the service does not start: {error!r}"]

    def _lost(self, settings: Settings, resources: app.Resources, promises: Promises) -> Iterator[str]:
        store = resources.store
        for scene_id in promises.deleted:
            if store.scene(scene_id) is not None:
                yield "the deletion of a scene"
        for scene_id in promises.scenes - promises.deleted:
            scene = store.scene(scene_id)
            if scene_id == self._run.deleted and scene is None:
                continue  # its deletion has begun
            if scene is None or not self._is_whole(data_path(settings, scene)):
                yield f"a scene ({'its bytes' if scene else 'unknown'})"
        for job_id in promises.jobs:
            job = store.job(job_id)
            if job is None or job.status == "failed" or (job_id in promises.successful and job.status != "successful"):
                yield f"a job ({job.status if job else 'unknown'})"
            elif job.status == "successful":
                yield from self._wrong_results(settings.results_folder(job_id))
            elif job.status == "dismissed":
                continue
            elif job_id in promises.dismissed:
                yield f"the dismissal of a job ({job.status})"
            elif (scene := store.scene(job.scene_id)) is None or not self._is_whole(data_path(settings, scene)):
                yield f"the scene of a job ({job.status})"
            elif settings.strips_folder(job_id).is_dir():
                yield from self._resume(data_path(settings, scene), settings.strips_folder(job_id), job.options)

    def _is_whole(self, path: Path) -> bool:
        return path.is_file() and path.read_bytes() == self._run.scene

    def _wrong_results(self, results: Path) -> Iterator[str]:
        for name in RESULTS:
            if not (results / name).is_file():
                yield f"a result ({name})"
            elif (content := (results / name).read_bytes()) != self._run.results.get(name, content or None):
                yield f"a result's bytes ({name})"

    def _resume(self, scene: Path, strips: Path, options: dict) -> Iterator[str]:
        """Finish a job from its strips, as a worker does."""
        control = RunControl(checkpoint=strips)
        out = self._folder / "resumed"
        map_scene(open_scene(scene), self._bundle, self._engine, out, MapOptions(**options), control)
        for name, content in self._run.results.items():
            if (out / name).read_bytes() != content:
                yield f"a resumed result's bytes ({name})"


@dataclass
class Report:
    """What was checked; any finding is a fault."""

    calls: int = 0  # that changed the disk or acknowledged something
    states: Counter[str] = field(default_factory=Counter)
    same: int = 0  # states equal to one that was checked
    acknowledged: Promises = field(default_factory=Promises)
    findings: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # the call after which each was found first


def replay(run: Run, folder: Path, share: float = 1.0, seed: int = 0) -> Report:
    """Check states after each call, or after a random share of them; all after a flush or an acknowledgement."""
    disk, generator, report = Disk(run.top), random.Random(seed), Report()
    checker, seen = Checker(run, folder), set()
    for call in sorted(run.calls, key=lambda call: call.start if "socket:" in call.arguments else call.end):
        is_sent = report.acknowledged.add(call)
        if not disk.apply(call) and not is_sent:
            continue
        report.calls += 1
        for kind in KINDS:
            if not is_sent and generator.random() >= share:
                continue
            state = disk.state(kind, generator)
            if "data" not in state and not report.acknowledged.jobs | report.acknowledged.scenes:
                continue
            key = digest(state, report.acknowledged)
            report.same += key in seen
            if key in seen:
                continue
            seen.add(key)
            report.states[kind] += 1
            for lost in checker.check(state, report.acknowledged):
                report.findings[f"{kind}: {lost}"] += 1
                report.first.setdefault(f"{kind}: {lost}", f"{call.name}({STRING.sub(_short, call.arguments)})")
    rebuilt, real = disk.state("kept", generator), real_state(run.top)
    differing = [path for path in rebuilt.keys() | real.keys() if rebuilt.get(path, 0) != real.get(path, 0)]
    assert not differing, f"the record does not explain the disk: {differing}"
    return report


def real_state(top: Path) -> dict[str, bytes | None]:
    """Each path below a folder and its bytes, None for a folder; without SQLite's shared memory."""
    paths = [path for path in (top / "data", *(top / "data").rglob("*")) if not path.name.endswith("-shm")]
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in paths}


def _short(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) < 200 else '"..."'


def digest(state: dict[str, bytes | None], promises: Promises) -> bytes:
    """Identifies a state and what was acknowledged by then."""
    found = hashlib.sha256(repr(sorted(map(sorted, vars(promises).values()))).encode())
    for path, content in sorted(state.items()):
        found.update(path.encode() + b"\0" + hashlib.sha256(content or b"").digest())
    return found.digest()


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory, where flushing takes no time, or else on disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def cannot_trace() -> str | None:
    """Why strace does not work here."""
    done = subprocess.run([*STRACE, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else None


def main() -> int:
    """Record a run, check its states and print a report."""
    parser = argparse.ArgumentParser(description="Simulate power cuts; nothing acknowledged may be lost.")
    parser.add_argument("--share", type=float, default=1.0, help="of the calls after which states are checked")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each start tells what it recovers
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, memory_folder() as states:
        report = replay(record(Path(folder)), states / "state", options.share, options.seed)
    print(f"{report.calls} calls, states {dict(report.states)}, {report.same} equal ones", end=" ")
    print(f"in {time.monotonic() - began:.0f} s")
    for finding, count in report.findings.items():
        print(f"FOUND {count} times, {finding}; first after {report.first[finding]}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
