"""Views: made once at a time, refused in time, and gone with their scene."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from threading import Event, Lock

import pytest

from service.errors import NoSuchScene, NotReady, QueueFull, RequestUnusable, SceneUnreadable
from service.jobs import views as module
from service.jobs.records import SceneRecord, new_id
from service.jobs.store import Store
from service.jobs.views import Views, chosen_bands, default_bands
from service.settings import Settings
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


class Maker:
    """In the place of the child processes: makes a file where it should be, when it is told to go on."""

    def __init__(self):
        self.asked = []
        self.goes_on = Event()
        self.goes_on.set()
        self.error = None
        self.turn = Lock()
        self.has_turns = False

    def one_by_one(self):
        """From here on, one picture after the other, and only when the other process has asked for its next."""
        self.has_turns = True
        self.goes_on.set()

    def ask(self, question):
        self.asked.append(question)
        assert self.goes_on.wait(10)
        if self.has_turns:
            with self.turn:
                time.sleep(0.05)
        if self.error:
            raise self.error
        picture = Path(question["folder"]) / "picture.tif"
        picture.write_bytes(b"a picture")
        return {"picture": str(picture)}

    def close(self):
        self.goes_on.set()


@pytest.fixture
def maker():
    return Maker()


@pytest.fixture
def views(settings, store, maker, monkeypatch):
    monkeypatch.setattr(module, "Children", lambda *_: maker)
    made = Views(settings, store)
    yield made
    made.close()


def test_a_view_lies_beside_its_scene_and_is_found_there(views, settings, scene):
    assert views.find(scene, (3, 2, 1)) is None
    path = views.make(scene, (3, 2, 1)).result(10)
    assert path == settings.scene_folder(scene.id) / "views" / "3-2-1.tif"
    assert views.find(scene, (3, 2, 1)) == path
    assert [found.name for found in path.parent.iterdir()] == ["3-2-1.tif"]


def test_a_view_is_made_once_for_all_who_wait(views, maker, scene):
    maker.goes_on.clear()
    futures = [views.make(scene, (3, 2, 1)) for _ in range(5)]
    maker.goes_on.set()
    assert len({future.result(10) for future in futures}) == 1
    assert len(maker.asked) == 1


def test_other_bands_are_another_view(views, maker, scene):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda bands: views.make(scene, bands).result(10), [(3, 2, 1), (1, 2, 3)]))
    assert sorted(question["bands"] for question in maker.asked) == [(1, 2, 3), (3, 2, 1)]


def test_a_refusal_is_remembered_for_a_while(views, maker, scene, monkeypatch):
    maker.error = SceneUnreadable("it is damaged")
    for _ in range(3):
        with pytest.raises(SceneUnreadable, match="damaged"):
            views.make(scene, (3, 2, 1)).result(10)
        wait_for(lambda: not views._making)
    assert len(maker.asked) == 1
    monkeypatch.setattr(module, "REMEMBERED_S", 0)
    maker.error = None
    assert views.make(scene, (3, 2, 1)).result(10).is_file()


def test_more_views_than_can_be_made_soon_are_told_to_come_back(views, maker, scene, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    maker.goes_on.clear()
    waiting = [views.make(scene, (1, 1, band)) for band in (1, 2)]
    with pytest.raises(QueueFull) as caught:
        views.make(scene, (1, 1, 3))
    assert caught.value.headers["Retry-After"]
    maker.goes_on.set()
    assert all(future.result(10).is_file() for future in waiting)


def order_of(maker, count):
    """Which scene and bands were asked for, in their order."""
    wait_for(lambda: len(maker.asked) == count)
    return [(Path(question["scene"]).parent.name, question["bands"]) for question in maker.asked]


def test_what_scenes_are_first_looked_at_with_goes_before_what_somebody_chose_and_small_before_large(
    views, maker, add_scene, monkeypatch
):
    monkeypatch.setattr(module, "MOST_CUSTOM", 2)
    busy, large, small, other = add_scene(), add_scene(rows=10_000), add_scene(), add_scene("other")
    maker.goes_on.clear()
    futures = [views.make(busy, (1, 1, 1)), views.make(busy, (1, 1, 2))]  # take both processes
    wait_for(lambda: len(maker.asked) == 2)
    futures += [views.make(large, (5, 5, 5)), views.make(other, (5, 5, 5)), views.make(large, (3, 2, 1))]
    futures += [views.make(small, (3, 2, 1))]
    maker.one_by_one()
    for future in futures:
        future.result(10)
    assert order_of(maker, 6)[2:] == [
        (small.id, (3, 2, 1)), (large.id, (3, 2, 1)), (other.id, (5, 5, 5)), (large.id, (5, 5, 5)),
    ]  # fmt: skip


def test_there_is_always_a_process_for_what_others_look_at_first(views, maker, add_scene):
    mine, other = add_scene(), add_scene("other")
    maker.goes_on.clear()
    views.make(mine, (1, 1, 1)), views.make(mine, (1, 1, 2))
    wait_for(lambda: maker.asked)
    views.make(other, (3, 2, 1))
    assert order_of(maker, 2) == [(mine.id, (1, 1, 1)), (other.id, (3, 2, 1))]
    maker.goes_on.set()
    wait_for(lambda: not views._making)
    assert len(maker.asked) == 3


def test_one_owner_has_two_chosen_views_waiting_at_most(views, maker, add_scene):
    mine, other = add_scene("me"), add_scene("other")
    maker.goes_on.clear()
    views.make(mine, (1, 1, 1))
    wait_for(lambda: maker.asked)
    views.make(mine, (1, 1, 2)), views.make(mine, (1, 1, 3))
    with pytest.raises(QueueFull, match="that you chose") as caught:
        views.make(mine, (1, 1, 4))
    assert caught.value.headers["Retry-After"]
    futures = [views.make(mine, (1, 1, 3)), views.make(mine, (3, 2, 1)), views.make(other, (1, 1, 4))]
    maker.goes_on.set()
    assert all(future.result(10).is_file() for future in futures)
    assert views.make(mine, (1, 1, 4)).result(10).is_file()


def test_the_first_view_stays_and_of_others_what_was_not_looked_at_for_longest_goes(views, scene, monkeypatch):
    monkeypatch.setattr(module, "KEPT_VIEWS", 3)
    for age, bands in ((50, (3, 2, 1)), (40, (1, 1, 1)), (30, (1, 1, 2))):
        path = views.make(scene, bands).result(10)
        os.utime(path, (time.time() - age,) * 2)
    assert views.find(scene, (1, 1, 1))
    newest = views.make(scene, (1, 1, 3)).result(10)
    wait_for(lambda: len(list(newest.parent.glob("*.tif"))) == 3)
    assert sorted(path.name for path in newest.parent.iterdir()) == ["1-1-1.tif", "1-1-3.tif", "3-2-1.tif"]


def test_at_the_end_who_waits_is_sent_home(views, maker, scene):
    maker.goes_on.clear()
    futures = [views.make(scene, (1, 1, band)) for band in (1, 2, 3)]
    wait_for(lambda: maker.asked)
    views.close()
    assert [future.cancelled() for future in futures] == [False, True, True]
    with pytest.raises(NotReady):
        views.make(scene, (1, 1, 4))


def test_a_scene_that_goes_while_its_view_is_made_leaves_nothing(views, maker, settings, store, scene):
    maker.goes_on.clear()
    future = views.make(scene, (3, 2, 1))
    wait_for(lambda: maker.asked)
    assert store.remove_scene(scene.id)
    maker.goes_on.set()
    with pytest.raises(NoSuchScene, match="send the scene again"):
        future.result(10)
    assert not settings.scene_folder(scene.id).exists()


def test_a_scenes_folder_that_goes_first_is_told_as_a_scene_that_is_gone(views, maker, settings, store, scene):
    maker.goes_on.clear()
    future = views.make(scene, (3, 2, 1))
    wait_for(lambda: maker.asked)
    store.remove_scene(scene.id)
    rmtree(settings.scene_folder(scene.id))
    maker.goes_on.set()
    with pytest.raises(NoSuchScene):
        future.result(10)
    assert not settings.scene_folder(scene.id).exists()


def test_only_large_scenes_have_their_view_made_ahead(views, maker, scene, monkeypatch):
    views.make_ahead(scene)
    assert not maker.asked
    monkeypatch.setattr(module, "AHEAD_PIXELS", 100)
    views.make_ahead(scene)
    wait_for(lambda: views.find(scene, default_bands(scene)))


def test_a_scene_is_shown_in_its_own_bands(scene):
    assert chosen_bands(scene, None) == (3, 2, 1)
    assert chosen_bands(scene, (5, 5, 4)) == (5, 5, 4)
    with pytest.raises(RequestUnusable, match="no good band 6"):
        chosen_bands(scene, (1, 2, 6))
