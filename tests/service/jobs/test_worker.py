"""A worker's parts, with a store that fails on purpose."""

import struct
import time

import pytest

from hyperscene.errors import StorageFull
from hyperscene.service.jobs.in_flight import InFlight, read_in_flight
from hyperscene.service.jobs.job_progress import JobProgress
from hyperscene.service.jobs.records import JobRecord, SceneRecord, new_id
from hyperscene.service.jobs.store import Store
from hyperscene.service.jobs.worker import Worker
from hyperscene.service.mapping.classify import MapProgress
from hyperscene.service.settings import Settings

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
            arguments[-1](self.job(arguments[0].id))  # published, but the disk is full before the commit
            raise StorageFull("the disk is full")
        return succeed(self, *arguments)

    monkeypatch.setattr(Store, "succeed", full_at_first)
    assert worker._retry_write(lambda: worker._succeed(job, SUMMARY, attempt))
    assert (tmp_path / "jobs" / job.id / "results" / "classes.tif").read_bytes() == b"a map"
    assert worker._store.job(job.id).status == "successful"


def test_progress_of_an_earlier_run_is_shown():
    progress = JobProgress(MapProgress(500, 1000, 400))
    progress.report(MapProgress(16, 1000, 16))
    assert progress.reached == MapProgress(500, 1000, 400)


def test_positions_in_flight_belong_to_the_attempt_that_recorded_them(tmp_path):
    job = tmp_path / "job"
    job.mkdir()
    in_flight = InFlight(job, "first")
    assert read_in_flight(tmp_path) == {"first": set()}
    in_flight.record([16, 48, 32])
    in_flight.record([48])
    assert read_in_flight(tmp_path) == {"first": {48}}
    InFlight(job, "second")
    assert read_in_flight(tmp_path) == {"second": set()}


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 16, struct.pack("<qq", 120, 32)])
def test_a_damaged_record_of_positions_is_empty(tmp_path, content):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "in-flight-a").write_bytes(content)
    assert read_in_flight(tmp_path) == {"a": set()}


def test_a_network_without_progress_is_stalled_from_the_start():
    progress = JobProgress(MapProgress())
    time.sleep(0.02)
    assert progress.stalled_s >= 0.02
    progress.report(MapProgress(10, 10, 10))
    assert progress.stalled_s == 0
