"""Views: pictures of scenes, made once when they are asked for, beside the scene, and gone with it."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

from service.errors import NoSuchScene, QueueFull, RequestUnusable, ServiceError, StorageFull, unwritten
from service.jobs.children import Bounds, Children, serve
from service.jobs.records import SceneRecord, new_id
from service.jobs.store import Store
from service.mapping.engines import cores
from service.mapping.pictures import Bands, choose_bands, write_picture
from service.mapping.scenes import Limits, open_scene
from service.settings import Settings

log = logging.getLogger("hyperscene.views")

BOUNDS = Bounds(seconds=900.0, memory_bytes=4 << 30)
MOST_CHILDREN = 2
MOST_WAITING = 32  # views; more are told to come back
KEPT_VIEWS = 8  # of a scene
# A smaller scene's view is made when somebody looks at it; a page waits a moment for it.
AHEAD_PIXELS = 1_000_000
REMEMBERED_S = 30.0  # a refusal: a page asks for many tiles
PICTURE_BYTES = 3 * 3  # a pixel at most, while the plain and the packed picture lie beside each other


class Views:
    """Every view that is being made, once at a time."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._children = Children(__name__, MOST_CHILDREN, BOUNDS)
        self._threads = ThreadPoolExecutor(MOST_CHILDREN, "hyperscene-view")
        self._lock = threading.Lock()
        self._making: dict[Path, Future[Path]] = {}
        self._refused: dict[Path, tuple[float, ServiceError]] = {}

    def find(self, scene: SceneRecord, bands: Bands) -> Path | None:
        """A view that is there."""
        path = self._path(scene, bands)
        return path if path.is_file() else None

    def make(self, scene: SceneRecord, bands: Bands) -> Future[Path]:
        """The view, when it is there; whoever asks meanwhile waits for the same. To be shielded from cancellation."""
        path = self._path(scene, bands)
        with self._lock:
            if path in self._making:
                return self._making[path]
            self._require_sense(path)
            future = self._threads.submit(self._make, scene, bands, path)
            self._making[path] = future
        future.add_done_callback(lambda done: self._is_made(path, done))
        return future

    def make_ahead(self, scene: SceneRecord) -> None:
        """Begin the view that a page will ask for first, where it takes time; nobody waits for it."""
        if scene.document["rows"] * scene.document["cols"] < AHEAD_PIXELS:
            return
        with suppress(ServiceError):
            if self.find(scene, default_bands(scene)) is None:
                self.make(scene, default_bands(scene))

    def close(self) -> None:
        """End what is being made."""
        self._children.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _path(self, scene: SceneRecord, bands: Bands) -> Path:
        return self._settings.views_folder(scene.id) / f"{'-'.join(map(str, bands))}.tif"

    def _require_sense(self, path: Path) -> None:
        """Refuse what was refused a moment ago, and more than can be made soon."""
        since, error = self._refused.pop(path, (0.0, None))
        if error is not None and time.monotonic() - since < REMEMBERED_S:
            self._refused[path] = since, error
            raise error
        if len(self._making) >= MOST_WAITING:
            full = QueueFull(f"{len(self._making)} views of scenes are being made: try again in 5 s")
            full.headers = {"Retry-After": "5"}
            raise full

    def _is_made(self, path: Path, done: Future[Path]) -> None:
        error = None if done.cancelled() else done.exception()
        with self._lock:
            del self._making[path]
            if isinstance(error, ServiceError) and error.status == 422:  # the scene's own fault
                if len(self._refused) > 1000:
                    self._refused.clear()
                self._refused[path] = time.monotonic(), error
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
                "scene": str(self._settings.scene_folder(scene.id) / scene.file),
                "limits": asdict(self._settings.limits),
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
        self._drop_old(path)
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

    def _drop_old(self, newest: Path) -> None:
        with suppress(OSError):
            others = sorted(newest.parent.glob("*.tif"), key=lambda path: path.stat().st_mtime)
            for path in [other for other in others if other != newest][: 1 - KEPT_VIEWS]:
                path.unlink(missing_ok=True)


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
    scene = open_scene(Path(question["scene"]), Limits(**question["limits"]), counts_packed=False)
    red, green, blue = question["bands"]
    return {"picture": str(write_picture(scene, (red, green, blue), Path(question["folder"]), cores()))}


if __name__ == "__main__":
    os.nice(5)  # as the workers: the server's answers come first
    serve(_picture, BOUNDS)
