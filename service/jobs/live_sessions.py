"""Live sessions: a bounded pool of processes, one for each label set that is worked on; a dropped one is started again.

All that a session needs is on disk: the features of its scene, and the labels. So the least recently used session ends
when another one is needed, and any session ends when nobody used it for some time.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import select
import subprocess
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

from hyperscene.child_process import module_command
from hyperscene.errors import (
    LiveNotReady,
    LiveSuperseded,
    LiveUnavailable,
    NotReady,
    ServiceError,
    StorageFull,
    error_from_code,
    write_error,
)
from hyperscene.service.jobs import live_features
from hyperscene.service.jobs.disk import data_path, version_of
from hyperscene.service.jobs.label_sets import LabelStore
from hyperscene.service.jobs.records import SceneRecord, new_id
from hyperscene.service.jobs.sandbox import Sandbox, shutting_down
from hyperscene.service.jobs.store import Store
from hyperscene.service.settings import Settings, child_environment

log = logging.getLogger("hyperscene.live")

WORKER = "hyperscene.service.jobs.live_worker"
NEEDED = ("sklearn", "scipy", "numba")
FOLDER = "live"  # in a scene's folder
COMPONENTS, BYTES_PER_VALUE, PYRAMID = 30, 2, 4 / 3
REQUEST_S = 60.0
START_S = 120.0  # includes compiling the solver when it runs for the first time on a machine
SWEEP_S = 5.0


def missing_packages() -> list[str]:
    """Packages of the extra `labels` that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class LiveSessions:
    """The live sessions of this server."""

    def __init__(self, settings: Settings, store: Store, labels: LabelStore) -> None:
        self._settings = settings
        self._store = store
        self._labels = labels
        self._sandbox = Sandbox(live_features.__name__, 1, live_features.LIMITS)
        self._threads = ThreadPoolExecutor(1, "hyperscene-live")
        self._lock = threading.Lock()
        self._computing: dict[str, Future[None]] = {}  # by scene
        self._sessions: dict[tuple[str, str], LiveSession] = {}  # by scene and owner
        self._missing = missing_packages()
        self._closed = threading.Event()
        threading.Thread(target=self._sweep, name="hyperscene-live-sweep", daemon=True).start()

    # Features

    def folder(self, scene_id: str) -> Path:
        """The folder of a scene's features."""
        return self._settings.scene_folder(scene_id) / FOLDER

    def state(self, scene: SceneRecord) -> dict[str, Any]:
        """Whether the features are ready, with the progress in percent, or why they are not."""
        if (self.folder(scene.id) / live_features.DESCRIPTION).is_file():
            return {"state": "ready", "progress": 100}
        task = self._computing.get(scene.id)
        if task is None:
            return {"state": "not started", "progress": 0}
        if task.done() and (error := task.exception()) is not None:
            return {"state": "failed", "progress": 0, "detail": str(error)}
        progress = 0
        with suppress(OSError, ValueError):
            progress = int((self._unfinished(scene.id) / live_features.PROGRESS).read_text())
        return {"state": "computing", "progress": min(progress, 99)}

    def prepare(self, scene: SceneRecord) -> None:
        """Start computing the features, unless they exist or are being computed."""
        if self._missing:
            raise LiveUnavailable(
                f"this server has no live map, since {', '.join(self._missing)} is not installed: ask its operator to "
                "install hyperscene[labels]; labels can be drawn and exported all the same"
            )
        with self._lock:
            if (self.folder(scene.id) / live_features.DESCRIPTION).is_file():
                return
            task = self._computing.get(scene.id)
            if task is not None and not (task.done() and task.exception() is not None):
                return
            self._require_room(scene)
            try:
                self._computing[scene.id] = self._threads.submit(self._compute, scene)
            except RuntimeError:
                raise shutting_down() from None

    def _require_room(self, scene: SceneRecord) -> None:
        pixels = scene.document["rows"] * scene.document["cols"]
        needed = int(PYRAMID * BYTES_PER_VALUE * min(COMPONENTS, scene.document["bands"]) * pixels)
        free = disk_usage(self._settings.data).free
        if needed + self._settings.min_free_bytes > free:
            raise StorageFull(
                f"the live map of the scene needs {needed} bytes and {int(self._settings.min_free_bytes)} must stay "
                f"free, but {free} are free: ask the operator to make room"
            )

    def _unfinished(self, scene_id: str) -> Path:
        return self._settings.scene_folder(scene_id) / f"half-{FOLDER}"

    def _compute(self, scene: SceneRecord) -> None:
        folder, began = self._unfinished(scene.id), time.monotonic()
        try:
            rmtree(folder, ignore_errors=True)  # of a server that was killed
            folder.mkdir(mode=0o700)
            request = {
                "scene": str(data_path(self._settings, scene)),
                "limits": asdict(self._settings.limits),
                "version": version_of(scene),
                "folder": str(folder),
            }
            self._sandbox.run(request, lambda: self._store.scene(scene.id) is None)
            folder.rename(self.folder(scene.id))
        except OSError as error:
            raise write_error(error) from error
        finally:
            rmtree(folder, ignore_errors=True)
        log.info("features computed", extra={"seconds": round(time.monotonic() - began, 2)})

    # Sessions

    def request(
        self, scene: SceneRecord, owner: str, request: dict[str, Any], place: str = ""
    ) -> tuple[dict[str, Any], bytes]:
        """The response of a session. A newer request of the same `place` overtakes one that still waits."""
        if self.state(scene)["state"] != "ready":
            raise LiveNotReady(
                f"the live map is not prepared: send POST /scenes/{scene.id}/live, and wait until GET says ready"
            )
        return self._session(scene, owner).request(request, place)

    def _session(self, scene: SceneRecord, owner: str) -> LiveSession:
        with self._lock:
            if self._closed.is_set():
                raise shutting_down()
            key = (scene.id, owner)
            session = self._sessions.pop(key, None)
            if session is None or session.has_ended:
                while len(self._sessions) >= self._settings.live_sessions:
                    oldest = next(iter(self._sessions))
                    self._sessions.pop(oldest).close()
                session = LiveSession(self._settings, self.folder(scene.id), self._labels.path(scene.id, owner))
            self._sessions[key] = session  # the most recently used one is the last
            return session

    @property
    def pids(self) -> list[int]:
        """The processes of the sessions."""
        with self._lock:
            return [session.pid for session in self._sessions.values()]

    def _sweep(self) -> None:
        """End sessions that nobody uses, and those of scenes that were removed."""
        while not self._closed.wait(SWEEP_S):
            with self._lock, suppress(ServiceError):
                for key, session in [*self._sessions.items()]:
                    if session.idle_s > self._settings.live_idle_s or self._store.scene(key[0]) is None:
                        self._sessions.pop(key).close()

    def close(self) -> None:
        """End all processes."""
        self._closed.set()
        with self._lock:
            for session in self._sessions.values():
                session.close()
        self._sandbox.close()
        self._threads.shutdown(wait=True, cancel_futures=True)


@dataclass
class LiveSession:
    """The process of one label set; requests come one after the other."""

    settings: Settings
    features: Path
    labels: Path
    _used: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _latest: dict[str, str] = field(default_factory=dict)  # the newest request of each place
    _is_first: bool = True

    def __post_init__(self) -> None:
        environment = child_environment() | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if not os.access(Path(__file__).parent, os.W_OK):  # numba keeps machine code beside its source, if it can
            environment.setdefault("NUMBA_CACHE_DIR", str(self.settings.data / "numba"))
        arguments = (str(int(self.settings.live_memory_bytes)), str(self.features), str(self.labels))
        self._child = subprocess.Popen(
            module_command(WORKER, *arguments),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment, start_new_session=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        return self._child.poll() is not None

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._used

    def request(self, request: dict[str, Any], place: str) -> tuple[dict[str, Any], bytes]:
        """The response; an error if a newer request of the same place came while this one waited."""
        ticket = new_id()
        if place:
            self._latest[place] = ticket
        with self._lock:
            if place and self._latest.get(place) != ticket:
                raise LiveSuperseded("a newer request for the same view has overtaken this one: use its response")
            self._used = time.monotonic()
            limit_s, self._is_first = START_S if self._is_first else REQUEST_S, False
            response, content = self._exchange(json.dumps(request).encode() + b"\n", time.monotonic() + limit_s)
            self._used = time.monotonic()
        if "code" in response:
            raise error_from_code(response["code"], response["detail"])
        return response, content

    def _exchange(self, request: bytes, deadline: float) -> tuple[dict[str, Any], bytes]:
        try:
            self._child.stdin.write(request)  # type: ignore[union-attr]
            head = bytearray()
            while b"\n" not in head:
                head += self._read(1 << 16, deadline)
            line, _, content = bytes(head).partition(b"\n")
            response = json.loads(line)
            parts, missing = [content], response["bytes"] - len(content)
            while missing > 0:
                parts.append(self._read(min(missing, 1 << 20), deadline))
                missing -= len(parts[-1])
        except (OSError, EOFError):
            self.close()
            ended = NotReady("the live session ended and is started again: try again in 1 s")
            ended.headers = {"Retry-After": "1"}
            raise ended from None
        return response, b"".join(parts)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(pipe, size) if ready else b""
        if not part:
            raise EOFError
        return part

    def close(self) -> None:
        """Kill the process."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None and not self._lock.locked():
                pipe.close()
