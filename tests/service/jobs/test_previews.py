"""Previews of scenes: made once, limited in number, and removed with their scene."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree
from threading import Event, Lock

import numpy as np
import pytest

from hyperscene.errors import NoSuchScene, NotReady, QueueFull, RequestUnusable, SceneUnreadable
from hyperscene.service.jobs import previews
from hyperscene.service.jobs.previews import Previews, chosen_bands, default_bands
from hyperscene.service.jobs.records import SceneRecord, new_id
from hyperscene.service.jobs.sandbox import Sandbox
from hyperscene.service.jobs.store import Store
from hyperscene.service.settings import Settings
from tests.programs import POISON_PATH
from tests.scenes import write_tif
from tests.server import wait_for

DOCUMENT = {"rows": 10, "cols": 10, "bands": 5, "wavelengths_nm": [450.0, 562.5, 675.0, 787.5, 900.0]}


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "scenes").mkdir()
    return Settings(data=tmp_path)


@pytest.fixture
def store(settings):
    return Store(settings.database)


@pytest.fixture
def add_scene(settings, store):
    def add(owner="", **document):
        now = time.time()
        found = SceneRecord(new_id(), owner, "s.tif", "scene.tif", 10, now, now + 1000, DOCUMENT | document)
        settings.scene_folder(found.id).mkdir()
        store.add_scene(found)
        return found

    return add


@pytest.fixture
def scene(add_scene):
    return add_scene()


class FakeSandbox:
    """Writes a file instead of a picture, once `is_released` is set."""

    def __init__(self):
        self.requests = []
        self.is_released = Event()
        self.is_released.set()
        self.error = None
        self.turn = Lock()
        self.is_serial = False

    def release_one_by_one(self):
        """From now on make one picture at a time, slowly enough for the other thread to fetch its next task."""
        self.is_serial = True
        self.is_released.set()

    def run(self, request, is_over):
        self.requests.append(request)
        assert self.is_released.wait(10)
        self.was_over = is_over()
        if self.is_serial:
            with self.turn:
                time.sleep(0.05)
        if self.error:
            raise self.error
        picture = Path(request["folder"]) / "picture.tif"
        picture.write_bytes(b"a picture")
        return {"picture": str(picture)}

    def close(self):
        self.is_released.set()


@pytest.fixture
def sandbox():
    return FakeSandbox()


@pytest.fixture
def made(settings, store, sandbox, monkeypatch):
    monkeypatch.setattr(previews, "Sandbox", lambda *_: sandbox)
    made = Previews(settings, store)
    yield made
    made.close()


def test_a_preview_is_kept_in_its_scenes_folder(made, settings, scene):
    assert made.find(scene, (3, 2, 1)) is None
    path = made.make(scene, (3, 2, 1)).result(10)
    assert path == settings.scene_folder(scene.id) / "views" / "3-2-1.tif"
    assert made.find(scene, (3, 2, 1)) == path
    assert [found.name for found in path.parent.iterdir()] == ["3-2-1.tif"]


def test_a_preview_is_made_once_for_all_who_wait(made, sandbox, scene):
    sandbox.is_released.clear()
    futures = [made.make(scene, (3, 2, 1)) for _ in range(5)]
    sandbox.is_released.set()
    assert len({future.result(10) for future in futures}) == 1
    assert len(sandbox.requests) == 1


def test_other_bands_make_another_preview(made, sandbox, scene):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda bands: made.make(scene, bands).result(10), [(3, 2, 1), (1, 2, 3)]))
    assert sorted(request["bands"] for request in sandbox.requests) == [(1, 2, 3), (3, 2, 1)]


def test_a_refusal_is_remembered_for_a_while(made, sandbox, scene, monkeypatch):
    sandbox.error = SceneUnreadable("it is damaged")
    for _ in range(3):
        with pytest.raises(SceneUnreadable, match="damaged"):
            made.make(scene, (3, 2, 1)).result(10)
        wait_for(lambda: not made._making)
    assert len(sandbox.requests) == 1
    monkeypatch.setattr(previews, "REMEMBERED_S", 0)
    sandbox.error = None
    assert made.make(scene, (3, 2, 1)).result(10).is_file()


def test_previews_above_the_limit_are_refused(made, sandbox, scene, monkeypatch):
    monkeypatch.setattr(previews, "MAX_WAITING", 2)
    sandbox.is_released.clear()
    waiting = [made.make(scene, (1, 1, band)) for band in (1, 2)]
    with pytest.raises(QueueFull) as caught:
        made.make(scene, (1, 1, 3))
    assert caught.value.headers["Retry-After"]
    sandbox.is_released.set()
    assert all(future.result(10).is_file() for future in waiting)


def order_of(sandbox, count):
    """The scene and bands of each request, in order."""
    wait_for(lambda: len(sandbox.requests) == count)
    return [(Path(request["scene"]).parent.name, request["bands"]) for request in sandbox.requests]


def test_default_bands_come_before_chosen_ones_and_small_scenes_before_large_ones(
    made, sandbox, add_scene, monkeypatch
):
    monkeypatch.setattr(previews, "MAX_CUSTOM", 2)
    busy, large, small, other = add_scene(), add_scene(rows=10_000), add_scene(), add_scene("other")
    sandbox.is_released.clear()
    futures = [made.make(busy, (1, 1, 1)), made.make(busy, (1, 1, 2))]  # take both processes
    wait_for(lambda: len(sandbox.requests) == 2)
    futures += [made.make(large, (5, 5, 5)), made.make(other, (5, 5, 5)), made.make(large, (3, 2, 1))]
    futures += [made.make(small, (3, 2, 1))]
    sandbox.release_one_by_one()
    for future in futures:
        future.result(10)
    assert order_of(sandbox, 6)[2:] == [
        (small.id, (3, 2, 1)), (large.id, (3, 2, 1)), (other.id, (5, 5, 5)), (large.id, (5, 5, 5)),
    ]  # fmt: skip


def test_one_process_is_left_for_the_first_previews_of_others(made, sandbox, add_scene):
    mine, other = add_scene(), add_scene("other")
    sandbox.is_released.clear()
    made.make(mine, (1, 1, 1)), made.make(mine, (1, 1, 2))
    wait_for(lambda: sandbox.requests)
    made.make(other, (3, 2, 1))
    assert order_of(sandbox, 2) == [(mine.id, (1, 1, 1)), (other.id, (3, 2, 1))]
    sandbox.is_released.set()
    wait_for(lambda: not made._making)
    assert len(sandbox.requests) == 3


def test_one_owner_has_at_most_two_chosen_previews_waiting(made, sandbox, add_scene):
    mine, other = add_scene("me"), add_scene("other")
    sandbox.is_released.clear()
    made.make(mine, (1, 1, 1))
    wait_for(lambda: sandbox.requests)
    made.make(mine, (1, 1, 2)), made.make(mine, (1, 1, 3))
    with pytest.raises(QueueFull, match="that you chose") as caught:
        made.make(mine, (1, 1, 4))
    assert caught.value.headers["Retry-After"]
    futures = [made.make(mine, (1, 1, 3)), made.make(mine, (3, 2, 1)), made.make(other, (1, 1, 4))]
    sandbox.is_released.set()
    assert all(future.result(10).is_file() for future in futures)
    assert made.make(mine, (1, 1, 4)).result(10).is_file()


def test_the_first_preview_is_kept_and_the_least_recently_used_dropped(made, scene, monkeypatch):
    monkeypatch.setattr(previews, "KEPT_PREVIEWS", 3)
    for age, bands in ((50, (3, 2, 1)), (40, (1, 1, 1)), (30, (1, 1, 2))):
        path = made.make(scene, bands).result(10)
        os.utime(path, (time.time() - age,) * 2)
    assert made.find(scene, (1, 1, 1))
    newest = made.make(scene, (1, 1, 3)).result(10)
    wait_for(lambda: len(list(newest.parent.glob("*.tif"))) == 3)
    assert sorted(path.name for path in newest.parent.iterdir()) == ["1-1-1.tif", "1-1-3.tif", "3-2-1.tif"]


def test_closing_cancels_what_waits(made, sandbox, scene):
    sandbox.is_released.clear()
    futures = [made.make(scene, (1, 1, band)) for band in (1, 2, 3)]
    wait_for(lambda: sandbox.requests)
    made.close()
    assert [future.cancelled() for future in futures] == [False, True, True]
    with pytest.raises(NotReady):
        made.make(scene, (1, 1, 4))


def test_a_scene_removed_while_its_preview_is_made_leaves_nothing(made, sandbox, settings, store, scene):
    sandbox.is_released.clear()
    future = made.make(scene, (3, 2, 1))
    wait_for(lambda: sandbox.requests)
    assert store.remove_scene(scene.id)
    sandbox.is_released.set()
    with pytest.raises(NoSuchScene, match="send the scene again"):
        future.result(10)
    assert sandbox.was_over
    assert not settings.scene_folder(scene.id).exists()


def test_a_folder_removed_while_its_preview_is_made_means_no_such_scene(made, sandbox, settings, store, scene):
    sandbox.is_released.clear()
    future = made.make(scene, (3, 2, 1))
    wait_for(lambda: sandbox.requests)
    store.remove_scene(scene.id)
    rmtree(settings.scene_folder(scene.id))
    sandbox.is_released.set()
    with pytest.raises(NoSuchScene):
        future.result(10)
    assert not settings.scene_folder(scene.id).exists()


def test_a_process_whose_work_is_over_is_killed(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(POISON_PATH))
    scene = write_tif(tmp_path / "slow.tif", np.full((20, 20, 5), 78.0, "float32"))  # SLOW in poison/sitecustomize.py
    sandbox = Sandbox(previews.__name__, 1, previews.LIMITS)
    request = {"scene": str(scene), "limits": asdict(settings.limits), "version": "", "bands": [1, 2, 3]}
    with pytest.raises(SceneUnreadable):  # and not the picture
        sandbox.run(request | {"folder": str(tmp_path)}, lambda: True)
    sandbox.close()


def test_only_large_scenes_get_an_early_preview(made, sandbox, scene, monkeypatch):
    made.make_early(scene)
    assert not sandbox.requests
    monkeypatch.setattr(previews, "EARLY_PIXELS", 100)
    made.make_early(scene)
    wait_for(lambda: made.find(scene, default_bands(scene)))


def test_a_scene_is_shown_in_its_own_bands(scene):
    assert chosen_bands(scene, None) == (3, 2, 1)
    assert chosen_bands(scene, (5, 5, 4)) == (5, 5, 4)
    with pytest.raises(RequestUnusable, match="no good band 6"):
        chosen_bands(scene, (1, 2, 6))
