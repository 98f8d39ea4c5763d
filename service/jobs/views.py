"""Views: pictures of scenes, made once when they are asked for, beside the scene, and gone with it."""

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

from service.errors import NoSuchScene, QueueFull, RequestUnusable, ServiceError, StorageFull, error_of, unwritten
from service.jobs.children import Bounds, Children, serve, shuts_down
from service.jobs.disk import data_path, version_of
from service.jobs.records import SceneRecord, new_id
from service.jobs.store import Store
from service.mapping.engines import cores
from service.mapping.pictures import Bands, choose_bands, write_picture
from service.mapping.scenes import Limits, open_scene
from service.settings import VIEWS_FOLDER, Settings

log = logging.getLogger("hyperscene.views")

BOUNDS = Bounds(seconds=900.0, memory_bytes=4 << 30)
MOST_CHILDREN = 2
MOST_WAITING = 32  # views; more are told to come back
# Of views in bands that somebody chose: one owner's that wait, and all that are made at a time, so that there is always
# a process for what others look at first.
MOST_CUSTOM_WAITING = 2
MOST_CUSTOM = MOST_CHILDREN - 1
KEPT_VIEWS = 8  # of a scene
# A smaller scene's view is made when somebody looks at it; a page waits a moment for it.
AHEAD_PIXELS = 1_000_000
REMEMBERED_S = 30.0  # a refusal: a page asks for many tiles
PICTURE_BYTES = 3 * 3  # a pixel at most, while the plain and the packed picture lie beside each other


@dataclass(order=True)
class _Task:
    """A view to be made; those of a lower rank come first."""

    rank: tuple[bool, int, int]  # whether somebody chose the bands; the scene's pixels; the order of asking
    scene: SceneRecord = field(compare=False)
    bands: Bands = field(compare=False)
    path: Path = field(compare=False)
    future: Future[Path] = field(compare=False, default_factory=Future)

    @property
    def is_custom(self) -> bool:
        return self.rank[0]


class Views:
    """Every view that is being made, once at a time: what a scene is first looked at with, and small scenes, first."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._children = Children(__name__, MOST_CHILDREN, BOUNDS)
        self._threads = ThreadPoolExecutor(MOST_CHILDREN, "hyperscene-view")
        self._lock = threading.Lock()
        self._making: dict[Path, Future[Path]] = {}  # waiting ones too
        self._waiting: list[_Task] = []  # a heap
        self._custom = 0  # being made
        self._numbers = itertools.count()
        self._is_closed = False
        self._refused: dict[Path, tuple[float, tuple[str, str]]] = {}  # when, and with which code and words

    def find(self, scene: SceneRecord, bands: Bands) -> Path | None:
        """A view that is there, which counts as used."""
        path = self._path(scene, bands)
        if not path.is_file():
            return None
        with suppress(OSError):
            os.utime(path)
        return path

    def make(self, scene: SceneRecord, bands: Bands) -> Future[Path]:
        """The view, when it is there; whoever asks meanwhile waits for the same. To be shielded from cancellation."""
        path = self._path(scene, bands)
        with self._lock:
            if path in self._making:
                return self._making[path]
            # A place that stalls takes no more than those who choose bands may: others' first views go on.
            is_custom = bands != default_bands(scene) or scene.href is not None
            self._require_sense(path, scene.owner if is_custom else None)
            pixels = scene.document["rows"] * scene.document["cols"]
            task = _Task((is_custom, pixels, next(self._numbers)), scene, bands, path)
            heapq.heappush(self._waiting, task)
            self._making[path] = task.future
        task.future.add_done_callback(lambda done: self._is_made(path, done))
        with suppress(RuntimeError):  # of a server that has just stopped, which cancels the task
            self._threads.submit(self._work)
        return task.future

    def _work(self) -> None:
        """Make views until there is none that may be made now; who makes a custom one comes back for the next."""
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
            # Custom views have the highest ranks: where one is first, there are no others.
            if not self._waiting or (self._waiting[0].is_custom and self._custom >= MOST_CUSTOM):
                return None
            task = heapq.heappop(self._waiting)
            self._custom += task.is_custom
            task.future.set_running_or_notify_cancel()
            return task

    def make_ahead(self, scene: SceneRecord) -> None:
        """Begin the view that a page will ask for first, where it takes time; nobody waits for it."""
        if scene.href is not None or scene.document["rows"] * scene.document["cols"] < AHEAD_PIXELS:
            return  # what lies elsewhere is not read a second time unless somebody looks at it
        with suppress(ServiceError):
            if self.find(scene, default_bands(scene)) is None:
                self.make(scene, default_bands(scene))

    def close(self) -> None:
        """End what is being made."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.future.cancel()
        self._children.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _path(self, scene: SceneRecord, bands: Bands) -> Path:
        return self._settings.views_folder(scene.id) / f"{'-'.join(map(str, bands))}.tif"

    def _require_sense(self, path: Path, custom_of: str | None) -> None:
        """Refuse what was refused a moment ago, and more than can be made soon; of one owner's custom views too."""
        if self._is_closed:
            raise shuts_down()
        since, refusal = self._refused.get(path, (0.0, None))
        if refusal is not None and time.monotonic() - since < REMEMBERED_S:
            raise error_of(*refusal)
        if len(self._making) >= MOST_WAITING:
            raise _come_back(f"{len(self._making)} views of scenes are being made")
        if sum(task.is_custom and task.scene.owner == custom_of for task in self._waiting) >= MOST_CUSTOM_WAITING:
            raise _come_back(f"{MOST_CUSTOM_WAITING} views in bands that you chose wait to be made")

    def _is_made(self, path: Path, done: Future[Path]) -> None:
        error = None if done.cancelled() else done.exception()
        with self._lock:
            del self._making[path]
            if isinstance(error, ServiceError) and error.status == 422:  # the scene's own fault
                now = time.monotonic()
                self._refused = {other: told for other, told in self._refused.items() if now - told[0] < REMEMBERED_S}
                self._refused[path] = now, (error.code, str(error))
        if error is not None:
            log.warning("no view: %s", error, exc_info=None if isinstance(error, ServiceError) else error)

    def _make(self, scene: SceneRecord, bands: Bands, path: Path) -> Path:
        if path.is_file():
            return path
        self._require_room(scene)
        half = path.parent / f"half-{new_id()}"
        began = time.monotonic()
        try:
            self._require_scene(scene)
            half.mkdir(parents=True, exist_ok=True)
            question = {
                "scene": str(data_path(self._settings, scene)),
                "limits": asdict(self._settings.limits),
                "version": version_of(scene),
                "bands": bands,
                "folder": str(half),
            }
            Path(self._children.ask(question)["picture"]).rename(path)
            self._require_scene(scene)
        except OSError as error:
            self._require_scene(scene)  # its folder may have gone meanwhile
            raise unwritten(error) from error
        except ServiceError:
            self._require_scene(scene)
            raise
        finally:
            rmtree(half, ignore_errors=True)
            self._drop_orphan(scene)
        self._drop_old(scene, path)
        log.info("view made", extra={"seconds": round(time.monotonic() - began, 2)})
        return path

    def _require_room(self, scene: SceneRecord) -> None:
        needed = PICTURE_BYTES * scene.document["rows"] * scene.document["cols"]
        free = disk_usage(self._settings.data).free
        if needed + self._settings.min_free_bytes > free:
            raise StorageFull(
                f"a view of the scene needs {needed} bytes beside the {int(self._settings.min_free_bytes)} that stay "
                f"free, and {free} are free: try again later, or ask the operator to make room"
            )

    def _require_scene(self, scene: SceneRecord) -> None:
        if self._store.scene(scene.id) is None:
            raise scene_is_gone(scene.id)

    def _drop_orphan(self, scene: SceneRecord) -> None:
        """A scene that went while its view was being made may have left its folder behind."""
        if self._store.scene(scene.id) is None:
            rmtree(self._settings.scene_folder(scene.id), ignore_errors=True)

    def _drop_old(self, scene: SceneRecord, newest: Path) -> None:
        """Drop what was not looked at for longest; never what the scene is first looked at with."""
        kept = {newest, self._path(scene, default_bands(scene))}
        with suppress(OSError):
            found = sorted(newest.parent.glob("*.tif"), key=lambda path: path.stat().st_mtime)
            for path in [other for other in found if other not in kept][: max(0, len(found) - KEPT_VIEWS)]:
                path.unlink(missing_ok=True)


def is_view(path: Path) -> bool:
    """Whether a file of ours is a view, which can be made again."""
    return path.parent.name == VIEWS_FOLDER


def _come_back(why: str) -> QueueFull:
    full = QueueFull(f"{why}: try again in 5 s")
    full.headers = {"Retry-After": "5"}
    return full


def scene_is_gone(scene_id: str) -> NoSuchScene:
    """What to say where a job's scene is not there any more."""
    return NoSuchScene(
        f"the scene {scene_id} was removed or has expired, so it cannot be shown; the map's own layers stay as long as "
        "the job: send the scene again to see it"
    )


def band_numbers(scene: SceneRecord) -> list[int]:
    """The file's numbers of the good bands."""
    numbers: list[int] = scene.document.get("band_numbers") or [*range(1, scene.document["bands"] + 1)]
    return numbers


def default_bands(scene: SceneRecord) -> Bands:
    """What a scene is looked at with."""
    return choose_bands(band_numbers(scene), scene.document["wavelengths_nm"])


def chosen_bands(scene: SceneRecord, bands: Bands | None) -> Bands:
    """The bands asked for, if the scene has them."""
    known = band_numbers(scene)
    for band in bands or ():
        if band not in known:
            raise RequestUnusable(
                f"the scene has no good band {band}: choose three of its {len(known)}, whose numbers lie between "
                f"{known[0]} and {known[-1]}; GET /scenes/{scene.id} lists them as band_numbers"
            )
    return bands or default_bands(scene)


def _picture(question: dict[str, Any]) -> dict[str, Any]:
    scene = open_scene(
        Path(question["scene"]), Limits(**question["limits"]), counts_packed=False, version=question["version"]
    )
    red, green, blue = question["bands"]
    return {"picture": str(write_picture(scene, (red, green, blue), Path(question["folder"]), cores()))}


if __name__ == "__main__":
    os.nice(5)  # as the workers: the server's answers come first
    serve(_picture, BOUNDS)
