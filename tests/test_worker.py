"""A worker's own promises, with a store that fails on purpose."""

import struct
import time

import pytest

from service.errors import StorageFull
from service.jobs.records import JobRecord, SceneRecord, new_id
from service.jobs.store import Store
from service.jobs.worker import Mark, Progress, Worker
from service.settings import Settings

SUMMARY = {"patches": 5, "valid_pixels": 7, "no_data_pixels": 2, "seconds": {"read": 0.1, "total": 0.3}}


@pytest.fixture
def worker(tmp_path):
    return Worker(Settings(data=tmp_path), "cpu-0", "cpu", 1, {})


@pytest.fixture
def job(worker, tmp_path):
    store = Store(tmp_path / "hyperscene.sqlite")
    store.add_scene(SceneRecord("scene", "", "field.tif", "scene.tif", 10, 0.0, 1e12, {}, False))
    now = time.time()
    store.add_job(JobRecord(new_id(), "", "scene", "field.tif", "demo", {}, "accepted", now, now), 10)
    held = store.claim("cpu-0", 10)
    (tmp_path / "jobs" / held.id).mkdir(parents=True)
    return held


def test_a_map_survives_a_disk_that_is_full_when_it_is_recorded(worker, job, tmp_path, monkeypatch):
    attempt = tmp_path / "jobs" / job.id / "attempt"
    attempt.mkdir()
    (attempt / "classes.tif").write_bytes(b"a map")
    succeed, tries = Store.succeed, []

    def full_at_first(self, *arguments):
        tries.append(arguments)
        if len(tries) == 1:
            arguments[-1]()  # published, but the record finds no room
            raise StorageFull("the disk is full")
        return succeed(self, *arguments)

    monkeypatch.setattr(Store, "succeed", full_at_first)
    assert worker._insist(lambda: worker._succeed(job, SUMMARY, attempt))
    assert (tmp_path / "jobs" / job.id / "results" / "classes.tif").read_bytes() == b"a map"
    assert worker._store.job(job.id).status == "successful"


def test_progress_of_an_earlier_run_is_shown():
    progress = Progress(500, 1000)
    progress.report(16, 1000)
    assert progress.done == 500


def test_a_mark_says_what_was_asked_about_when_its_worker_died(tmp_path):
    assert Mark.read(tmp_path) == set()
    mark = Mark(tmp_path)
    mark.set([16, 48, 32])
    assert Mark.read(tmp_path) == {16, 32, 48}
    mark.set([48])
    assert Mark.read(tmp_path) == {48}
    Mark(tmp_path)  # the next worker, who has not asked anything yet
    assert Mark.read(tmp_path) == {48}


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 16, struct.pack("<qq", 120, 32)])
def test_a_mark_that_cannot_be_read_says_nothing(tmp_path, content):
    (tmp_path / "mark").write_bytes(content)
    assert Mark.read(tmp_path) == set()


def test_a_network_that_never_answers_is_quiet_from_the_start():
    progress = Progress(0, 0)
    time.sleep(0.02)
    assert progress.quiet_s >= 0.02
    progress.report(10, 10)
    assert progress.quiet_s == 0
