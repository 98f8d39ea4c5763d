"""Previews: pictures of scenes in three bands, made on request and kept in the scene's folder."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

from hyperscene.errors import (
    NoSuchScene,
    QueueFull,
    RequestUnusable,
    ServiceError,
    StorageFull,
    error_from_code,
    write_error,
)
from hyperscene.service.jobs.disk import data_path, version_of
from hyperscene.service.jobs.records import SceneRecord, new_id
from hyperscene.service.jobs.sandbox import Sandbox, SandboxLimits, serve, shutting_down
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.engines import cores
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.pictures import Bands, choose_bands, write_picture
from hyperscene.service.mapping.products.product import ReadOptions
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.settings import PREVIEWS_FOLDER, Settings

log = logging.getLogger("hyperscene.previews")

LIMITS = SandboxLimits(seconds=900.0, memory_bytes=4 << 30)
PROCESSES = 2
MAX_WAITING = 32  # previews; more are refused
# Previews in bands that a user chose: those of one owner that wait, and all that are made at the same time. One process
# is always left for the first previews of other scenes.
MAX_CUSTOM_WAITING = 2
MAX_CUSTOM = PROCESSES - 1
KEPT_PREVIEWS = 8  # of a scene
# The preview of a smaller scene is made when it is requested; that takes a moment only.
EARLY_PIXELS = 1_000_000
REMEMBERED_S = 30.0  # how long a refusal is kept: a page requests many tiles
PICTURE_BYTES = 3 * 3  # per pixel at most, while both the plain and the compressed picture exist


@dataclass(order=True)
class _Task:
    """A preview to make; lower ranks come first."""

    rank: tuple[bool, int, int]  # whether a user chose the bands, the scene's pixels, the order of requests
    scene: SceneRecord = field(compare=False)
    bands: Bands = field(compare=False)
    path: Path = field(compare=False)
    future: Future[Path] = field(compare=False, default_factory=Future)

    @property
    def is_custom(self) -> bool:
        return self.rank[0]


class Previews:
    """Makes previews, each only once: first those in default bands, and of small scenes."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._sandbox = Sandbox(__name__, PROCESSES, LIMITS)
        self._threads = ThreadPoolExecutor(PROCESSES, "hyperscene-preview")
        self._lock = threading.Lock()
        self._making: dict[Path, Future[Path]] = {}  # including waiting ones
        self._waiting: list[_Task] = []  # a heap
        self._custom = 0  # being made now
        self._numbers = itertools.count()
        self._is_closed = False
        self._refused: dict[Path, tuple[float, tuple[str, str]]] = {}  # when, error code and message

    def find(self, scene: SceneRecord, bands: Bands) -> Path | None:
        """A preview that exists; this counts as use."""
        path = self._path(scene, bands)
        if not path.is_file():
            return None
        with suppress(OSError):
            os.utime(path)
        return path

    def make(self, scene: SceneRecord, bands: Bands) -> Future[Path]:
        """The future of a preview, shared by all that request it, so callers must not cancel it."""
        path = self._path(scene, bands)
        with self._lock:
            if path in self._making:
                return self._making[path]
            # Remote scenes count as custom: a host that does not respond must not block all first previews.
            is_custom = bands != default_bands(scene) or scene.href is not None
            self._require_allowed(path, scene.owner if is_custom else None)
            pixels = scene.document["rows"] * scene.document["cols"]
            task = _Task((is_custom, pixels, next(self._numbers)), scene, bands, path)
            heapq.heappush(self._waiting, task)
            self._making[path] = task.future
        task.future.add_done_callback(lambda done: self._on_done(path, done))
        with suppress(RuntimeError):  # the server has just stopped, and cancels the task
            self._threads.submit(self._work)
        return task.future

    def _work(self) -> None:
        """Make previews while there is one that may be made now."""
        while (task := self._next()) is not None:
            try:
                task.future.set_result(self._make(task.scene, task.bands, task.path))
            except BaseException as error:
                task.future.set_exception(error)
            finally:
                with self._lock:
                    self._custom -= task.is_custom

    def _next(self) -> _Task | None:
        with self._lock:
            # Custom previews have the highest ranks: if one is first, there are no others.
            if not self._waiting or (self._waiting[0].is_custom and self._custom >= MAX_CUSTOM):
                return None
            task = heapq.heappop(self._waiting)
            self._custom += task.is_custom
            task.future.set_running_or_notify_cancel()
            return task

    def make_early(self, scene: SceneRecord) -> None:
        """Start the preview in default bands of a large scene before it is requested."""
        if scene.href is not None or scene.document["rows"] * scene.document["cols"] < EARLY_PIXELS:
            return  # a remote scene is not read again unless the preview is requested
        with suppress(ServiceError):
            if self.find(scene, default_bands(scene)) is None:
                self.make(scene, default_bands(scene))

    def close(self) -> None:
        """Cancel waiting previews and kill the processes."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.future.cancel()
        self._sandbox.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _path(self, scene: SceneRecord, bands: Bands) -> Path:
        return self._settings.previews_folder(scene.id) / f"{'-'.join(map(str, bands))}.tif"

    def _require_allowed(self, path: Path, custom_of: str | None) -> None:
        """Refuse what was refused a moment ago, and what exceeds the limits."""
        if self._is_closed:
            raise shutting_down()
        since, refusal = self._refused.get(path, (0.0, None))
        if refusal is not None and time.monotonic() - since < REMEMBERED_S:
            raise error_from_code(*refusal)
        if len(self._making) >= MAX_WAITING:
            raise _come_back(f"{len(self._making)} previews of scenes are being made")
        if sum(task.is_custom and task.scene.owner == custom_of for task in self._waiting) >= MAX_CUSTOM_WAITING:
            raise _come_back(f"{MAX_CUSTOM_WAITING} previews in bands that you chose are waiting")

    def _on_done(self, path: Path, done: Future[Path]) -> None:
        error = None if done.cancelled() else done.exception()
        with self._lock:
            del self._making[path]
            if isinstance(error, ServiceError) and error.status == 422:  # caused by the scene
                now = time.monotonic()
                recent = {other: entry for other, entry in self._refused.items() if now - entry[0] < REMEMBERED_S}
                self._refused = recent | {path: (now, (error.code, str(error)))}
        if error is not None:
            log.warning("no preview: %s", error, exc_info=None if isinstance(error, ServiceError) else error)

    def _make(self, scene: SceneRecord, bands: Bands, path: Path) -> Path:
        if path.is_file():
            return path
        self._require_room(scene)
        unfinished = path.parent / f"half-{new_id()}"
        began = time.monotonic()
        try:
            self._require_scene(scene)
            unfinished.mkdir(parents=True, exist_ok=True)
            request = {
                "scene": str(data_path(self._settings, scene)),
                "limits": asdict(self._settings.limits),
                "version": version_of(scene),
                "bands": bands,
                "folder": str(unfinished),
            }
            # The process of a scene that was removed is killed: it would read on, and keep the file on the disk.
            made = self._sandbox.run(request, lambda: self._store.scene(scene.id) is None)
            Path(made["picture"]).rename(path)
            self._require_scene(scene)
        except OSError as error:
            self._require_scene(scene)  # its folder may have been removed meanwhile
            raise write_error(error) from error
        except ServiceError:
            self._require_scene(scene)
            raise
        finally:
            rmtree(unfinished, ignore_errors=True)
            self._drop_orphan(scene)
        self._drop_old(scene, path)
        log.info("preview made", extra={"seconds": round(time.monotonic() - began, 2)})
        return path

    def _require_room(self, scene: SceneRecord) -> None:
        needed = PICTURE_BYTES * scene.document["rows"] * scene.document["cols"]
        free = disk_usage(self._settings.data).free
        if needed + self._settings.min_free_bytes > free:
            raise StorageFull(
                f"a preview of the scene needs {needed} bytes and {int(self._settings.min_free_bytes)} must stay "
                f"free, but {free} are free: try again later, or ask the operator to make room"
            )

    def _require_scene(self, scene: SceneRecord) -> None:
        if self._store.scene(scene.id) is None:
            raise scene_gone(scene.id)

    def _drop_orphan(self, scene: SceneRecord) -> None:
        """Remove the folder of a scene that was removed while its preview was made."""
        if self._store.scene(scene.id) is None:
            rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)

    def _drop_old(self, scene: SceneRecord, newest: Path) -> None:
        """Drop the least recently used previews; never the one in default bands."""
        kept = {newest, self._path(scene, default_bands(scene))}
        with suppress(OSError):
            found = sorted(newest.parent.glob("*.tif"), key=lambda path: path.stat().st_mtime)
            for path in [other for other in found if other not in kept][: max(0, len(found) - KEPT_PREVIEWS)]:
                path.unlink(missing_ok=True)


def is_preview(path: Path) -> bool:
    """Whether a file is a preview, which can be made again."""
    return path.parent.name == PREVIEWS_FOLDER


def _come_back(why: str) -> QueueFull:
    full = QueueFull(f"{why}: try again in 5 s")
    full.headers = {"Retry-After": "5"}
    return full


def scene_gone(scene_id: str) -> NoSuchScene:
    """The error for a job whose scene was removed."""
    return NoSuchScene(
        f"the scene {scene_id} was removed or has expired, so it cannot be shown; the map's layers are kept as long as "
        "the job: send the scene again to see it"
    )


def band_numbers(scene: SceneRecord) -> list[int]:
    """Numbers of the good bands in the file, from 1."""
    numbers: list[int] = scene.document.get("band_numbers") or [*range(1, scene.document["bands"] + 1)]
    return numbers


def default_bands(scene: SceneRecord) -> Bands:
    """The bands of a scene's first preview."""
    return choose_bands(band_numbers(scene), scene.document["wavelengths_nm"])


def chosen_bands(scene: SceneRecord, bands: Bands | None) -> Bands:
    """The requested bands, or the default ones; refuses bands that the scene does not have."""
    known = band_numbers(scene)
    for band in bands or ():
        if band not in known:
            raise RequestUnusable(
                f"the scene has no good band {band}: choose three of its {len(known)}, whose numbers lie between "
                f"{known[0]} and {known[-1]}; GET /scenes/{scene.id} lists them as band_numbers"
            )
    return bands or default_bands(scene)


def _make_picture(request: dict[str, Any]) -> dict[str, Any]:
    scene = open_scene(
        Path(request["scene"]),
        Limits(**request["limits"]),
        counts_packed=False,
        version=request["version"],
        options=ReadOptions(masks=()),  # clouds are shown
        work=Path(request["folder"]),
    )
    red, green, blue = request["bands"]
    return {"picture": str(write_picture(scene, (red, green, blue), Path(request["folder"]), cores()))}


if __name__ == "__main__":
    os.nice(5)  # as the workers: the server's responses come first
    serve(_make_picture)
