"""Views: made once at a time, refused in time, and gone with their scene."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from threading import Event

import pytest

from service.errors import NoSuchScene, QueueFull, RequestUnusable, SceneUnreadable
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
def scene(settings, store):
    found = SceneRecord(new_id(), "", "s.tif", "scene.tif", 10, time.time(), time.time() + 1000, DOCUMENT)
    settings.scene_folder(found.id).mkdir()
    store.add_scene(found)
    return found


class Maker:
    """In the place of the child processes: makes a file where it should be, when it is told to go on."""

    def __init__(self):
        self.asked = []
        self.goes_on = Event()
        self.goes_on.set()
        self.error = None

    def ask(self, question):
        self.asked.append(question)
        assert self.goes_on.wait(10)
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
