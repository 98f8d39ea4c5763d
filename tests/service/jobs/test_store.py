"""The store: jobs, leases, crash counts and counters."""

import sqlite3
import time
from dataclasses import replace

import pytest

from hyperscene.errors import InferenceFailed, NoSuchScene, QueueFull
from hyperscene.service.jobs.database import StoreBusy, StoreUnusable
from hyperscene.service.jobs.records import JobRecord, SceneRecord, new_id
from hyperscene.service.jobs.schema import MIGRATIONS
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.classify import MapProgress

KEEP_S = 100.0
SUMMARY = {"patches": 5, "valid_pixels": 7, "no_data_pixels": 2, "seconds": {"read": 0.1, "total": 0.3}}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    store.add_scene(SceneRecord("scene", "", "field.tif", "scene.tif", 10, 0.0, 1e12, {}, False))
    return store


def a_job(owner="", key=None, created=None):
    now = created or time.time()
    return JobRecord(
        id=new_id(), owner=owner, scene_id="scene", scene_name="field.tif", model="demo", options={"stride_px": 4},
        status="accepted", created=now, updated=now, idempotency_key=key,
    )  # fmt: skip


def a_scene(owner="", expires=1e12):
    return SceneRecord(new_id(), owner, "field.tif", "scene.tif", 10, time.time(), expires, {"rows": 3}, False)


def test_a_job_is_read_as_it_was_written(store):
    job = store.add_job(a_job(), 100)
    assert store.job(job.id) == job


def test_cells_are_counted_once_while_a_job_runs(store):
    def cells():
        return sum(value for name, _, value in store.counts() if name == "cells_total")

    store.add_job(a_job(), 100)
    held = store.claim("worker", 10)
    store.renew(held, 10, MapProgress(30, 100, 3), None)
    store.renew(held, 10, MapProgress(50, 100, 4), None)
    assert cells() == 50
    store.release(held)
    again = store.claim("worker", 10)
    store.renew(again, 10, MapProgress(50, 100, 4), None)  # reported until the run is past it
    assert cells() == 50
    store.renew(again, 10, MapProgress(60, 100, 4), None)
    store.succeed(again, SUMMARY, KEEP_S)
    assert cells() == 100


def test_a_finished_job_has_as_many_patches_as_its_summary_says(store):
    store.add_job(a_job(), 100)
    held = store.claim("worker", 10)
    store.renew(held, 10, MapProgress(60, 100, 4), None)
    assert store.job(held.id).progress.patches_total == 44
    store.succeed(held, SUMMARY, KEEP_S)
    progress = store.job(held.id).progress
    assert progress.patches_done == progress.patches_total == SUMMARY["patches"]


def test_the_oldest_job_is_claimed_first_and_by_one_worker_only(store):
    second, first = store.add_job(a_job(created=20), 100), store.add_job(a_job(created=10), 100)
    assert store.claim("a", 10).id == first.id
    assert store.claim("b", 10).id == second.id
    assert store.claim("c", 10) is None


def test_a_job_with_an_expired_lease_is_claimed_by_another_worker(store):
    store.add_job(a_job(), 100)
    lost = store.claim("a", 0.01)
    time.sleep(0.02)
    taken = store.claim("b", 10)
    assert taken.id == lost.id
    assert taken.resumes == 1
    assert not store.renew(lost, 10, MapProgress(1, 2, 1), None)
    assert not store.succeed(lost, SUMMARY, KEEP_S)
    assert store.renew(taken, 10, MapProgress(1, 2, 1), None)


def test_every_change_raises_the_version(store):
    job = store.add_job(a_job(), 100)
    held = store.claim("a", 10)
    assert held.version > job.version
    store.renew(held, 10, MapProgress(1, 2, 1), 3.0)
    assert store.versions([job.id])[job.id] == (held.version + 1, False)


def test_a_released_job_is_claimed_again_without_a_crash_count(store):
    store.add_job(a_job(), 100)
    for _ in range(5):
        held = store.claim("a", 10)
        store.release(held)
    assert store.job(held.id).status == "accepted"
    assert store.job(held.id).worker_crashes == 0


def test_a_job_whose_worker_crashes_three_times_at_one_position_fails(store):
    store.add_job(a_job(), 100)
    for _ in range(3):
        held = store.claim("a", 10)
        store.release_after_worker_crash("a", {held.token: frozenset({50, 60})}, KEEP_S)
    job = store.job(held.id)
    assert (job.status, job.error_code) == ("failed", "inference_failed")
    assert job.id in job.error_detail


@pytest.mark.parametrize(
    "crashes",
    [
        ({0, 120}, {120, 136}, {16, 120}),  # other threads were at other positions
        ({0, 120}, {136}, {120}, {120}),  # one crashed before it recorded its position
        ({100}, {120}, {100}, {120}, {100}),  # alternating between two devices with other batches
        ({-1}, {-1}, {-1}),  # while the scene is opened
        ({16}, {-2}, {16}, {-2}, {16}),  # the file is read ahead of the network, which is not always called yet
    ],
)
def test_three_crashes_at_the_same_position_fail_a_job(store, crashes):
    store.add_job(a_job(), 100)
    for positions in crashes:
        held = store.claim("a", 10)
        store.release_after_worker_crash("a", {held.token: frozenset(positions)}, KEEP_S)
    assert store.job(held.id).status == "failed"


def test_the_record_of_an_earlier_attempt_does_not_count_for_a_later_one(store):
    store.add_job(a_job(), 100)
    first = store.claim("a", 10)
    for _ in range(4):
        store.release_after_worker_crash("a", {first.token: frozenset({50})}, KEEP_S)
        held = store.claim("a", 10)
    assert held.status == "running"
    assert held.worker_crashes == 1


@pytest.mark.parametrize(
    "crashes",
    [
        [{16 * batch, 16 * batch + 16} for batch in range(8)],  # one batch further each time
        [{-1}, {0}, {0}, {16}, {16}, {32}, {32}],  # twice at each position, or before the next batch
        [set()] * 5,  # before any work was begun
        [{-1}, {-1}, {0}, {-1}, {-1}, {16}, {-1}],  # never three times without reaching a batch
    ],
)
def test_a_job_that_advances_between_crashes_does_not_fail(store, crashes):
    store.add_job(a_job(), 100)
    for positions in crashes:
        held = store.claim("a", 10)
        store.release_after_worker_crash("a", {held.token: frozenset(positions)}, KEEP_S)
    assert store.job(held.id).status == "accepted"


def test_a_job_fails_after_six_server_crashes_at_one_position(store):
    store.add_job(a_job(), 100)
    for crash in range(5):
        held = store.claim("a", 10)
        assert store.release_after_server_crash({held.token: frozenset({50})}, KEEP_S) == [], crash
    assert store.job(held.id).status == "accepted"
    assert not store.succeed(held, SUMMARY, KEEP_S)
    held = store.claim("a", 10)
    failed = store.release_after_server_crash({held.token: frozenset({50})}, KEEP_S)  # it takes the machine down
    assert [job.id for job in failed] == [held.id]
    assert store.job(held.id).error_code == "inference_failed"


def test_results_are_published_only_by_the_worker_that_holds_the_job(store):
    store.add_job(a_job(), 100)
    lost = store.claim("a", 0.01)
    time.sleep(0.02)
    taken = store.claim("b", 10)
    published = []
    assert not store.succeed(lost, SUMMARY, KEEP_S, lambda _: published.append("lost"))
    assert store.succeed(taken, SUMMARY, KEEP_S, lambda _: published.append("taken"))
    assert published == ["taken"]


def test_a_job_for_a_removed_scene_is_refused(store):
    store.remove_scene("scene")
    with pytest.raises(NoSuchScene):
        store.add_job(a_job(), 100)


def test_a_full_queue_refuses_a_job(store):
    store.add_job(a_job(), 1)
    with pytest.raises(QueueFull, match="1 jobs are waiting"):
        store.add_job(a_job(), 1)


def test_the_key_of_a_dismissed_job_makes_a_new_job(store):
    first = store.add_job(a_job("ann", "k"), 100)
    store.dismiss(first.id, KEEP_S)
    assert store.add_job(a_job("ann", "k"), 100).id != first.id


def test_a_locked_store_is_busy_and_not_writable(store, tmp_path, monkeypatch):
    monkeypatch.setattr("hyperscene.service.jobs.database.PROBE_S", 0.05)
    store._connection().execute("PRAGMA busy_timeout = 50")
    holder = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        store.claim("a", 10)
    assert not store.is_writable()
    holder.execute("ROLLBACK")
    holder.close()
    assert store.is_writable()


def test_a_worker_loses_a_dismissed_job(store):
    store.add_job(a_job(), 100)
    held = store.claim("a", 10)
    store.dismiss(held.id, KEEP_S)
    assert not store.renew(held, 10, MapProgress(1, 2, 1), None)
    assert not store.fail(held, InferenceFailed("no"), KEEP_S)
    assert store.job(held.id).status == "dismissed"


def test_an_idempotency_key_makes_one_job_for_each_owner(store):
    first = store.add_job(a_job("ann", "k"), 100)
    assert store.add_job(a_job("ann", "k"), 100).id == first.id
    assert store.add_job(a_job("bob", "k"), 100).id != first.id
    assert store.job_by_key("ann", "k").id == first.id


def test_jobs_are_listed_in_pages_newest_first(store):
    made = [store.add_job(a_job("ann", created=created), 100).id for created in range(1, 6)]
    store.add_job(a_job("bob"), 100)
    assert [job.id for job in store.jobs("ann", [], 2, 0)] == made[:2:-1]
    assert [job.id for job in store.jobs("ann", [], 10, 3)] == made[1::-1]
    assert store.jobs("ann", ["failed"], 10, 0) == []


def test_a_scene_that_a_job_needs_is_not_removed(store):
    scene = a_scene(expires=0)
    job = a_job()
    store.add_job(JobRecord(**{**vars(job), "scene_id": scene.id}), 100, scene)
    assert not store.remove_scene(scene.id)
    assert store.expired_scenes(time.time()) == []
    store.dismiss(job.id, KEEP_S)
    assert store.expired_scenes(time.time()) == [scene.id]
    assert store.remove_scene(scene.id)
    assert store.scene(scene.id) is None


def test_finished_jobs_expire(store):
    store.add_job(a_job(), 100)
    held = store.claim("a", 10)
    store.succeed(held, SUMMARY, KEEP_S)
    assert store.expired_jobs(time.time()) == []
    assert store.expired_jobs(time.time() + KEEP_S + 1) == [held.id]


def test_counters_survive_a_restart(store, tmp_path):
    store.add_job(a_job(), 100)
    store.succeed(store.claim("a", 10), SUMMARY, KEEP_S)
    counts = {(name, tuple(labels.items())): value for name, labels, value in Store(tmp_path / "store.sqlite").counts()}
    assert counts["jobs_submitted_total", ()] == 1
    assert counts["jobs_finished_total", (("reason", ""), ("status", "successful"))] == 1
    assert counts["pixels_total", (("kind", "valid"),)] == 7
    assert counts["stage_seconds_sum", (("stage", "read"),)] == pytest.approx(0.1)


def test_a_store_of_a_later_version_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "store.sqlite") as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(StoreUnusable, match="upgrade"):
        Store(tmp_path / "store.sqlite")


def test_a_damaged_store_is_refused(tmp_path):
    (tmp_path / "store.sqlite").write_bytes(b"this is not a database, but long enough to be read" * 100)
    with pytest.raises(StoreUnusable, match="backup"):
        Store(tmp_path / "store.sqlite")


def backdate(store, job, seconds):
    """Make a job's last change lie back in time, as if it had run since then."""
    with store.transaction() as db:
        db.execute("UPDATE jobs SET updated = updated - ? WHERE id = ?", (seconds, job.id))


def run_for(store, seconds):
    """Claim the next job and run it for some time; returns its owner."""
    held = store.claim("a", 10)
    backdate(store, held, seconds)
    store.succeed(held, SUMMARY, KEEP_S)
    return held.owner


def test_several_workers_take_jobs_of_different_owners(store):
    for number, owner in enumerate(["ann", "ann", "ann", "ben"]):
        store.add_job(a_job(owner, created=number + 1), 100)
    assert [store.claim(worker, 10).owner for worker in "abcd"] == ["ann", "ben", "ann", "ann"]


def test_one_worker_takes_the_job_of_the_owner_who_computed_least(store):
    for number, owner in enumerate(["ann", "ann", "ann", "ben", "ben", "cid"]):
        store.add_job(a_job(owner, created=number + 1), 100)
    assert [run_for(store, seconds) for seconds in (30, 10, 50, 5, 5, 5)] == ["ann", "ben", "cid", "ben", "ann", "ann"]


def test_seconds_are_charged_once_however_often_a_job_reports(store):
    store.add_job(a_job("ann"), 100)
    held = store.claim("a", 10)
    for _ in range(3):
        backdate(store, held, 10)
        store.renew(held, 10, MapProgress(1, 2, 1), None)
    store.release(held)
    backdate(store, held, 10)
    store.dismiss(held.id, KEEP_S)
    assert store._rows("SELECT SUM(seconds) FROM running_seconds")[0][0] == pytest.approx(30, abs=5)


def test_jobs_of_an_owner_who_computed_too_long_today_wait(store):
    for owner in ("ann", "ann", "", ""):
        store.add_job(a_job(owner), 100)
    for _ in range(2):
        held = store.claim("a", 10, max_running_s=20)
        backdate(store, held, 30)
        store.release(held)
    assert {store.claim(worker, 10, max_running_s=20).owner for worker in "bc"} == {""}  # nobody in particular
    assert store.claim("d", 10, max_running_s=20) is None
    assert 86400 - 1200 < store.seconds_until_start("ann", 1, max_running_s=20) <= 86400
    assert store.claim("d", 10).owner == "ann"


def test_an_owner_cannot_take_the_places_that_are_kept_for_others(store):
    for _ in range(2):
        store.add_job(a_job("ann"), 3, max_of_owner=2)
    with pytest.raises(QueueFull, match="2 jobs of your API key"):
        store.add_job(a_job("ann"), 3, max_of_owner=2)
    store.add_job(a_job("ben"), 3, max_of_owner=2)
    with pytest.raises(QueueFull, match="3 jobs are waiting"):
        store.add_job(a_job("cid"), 3, max_of_owner=2)


def test_the_expected_start_counts_the_turns_of_others(store):
    store.add_job(a_job("ann"), 100)
    held = store.claim("a", 10)
    backdate(store, held, 1)
    store.renew(held, 10, MapProgress(1, 2, 1), 40.0)  # so a job takes 40 s
    for owner in ("ann", "ann", "ben", "ben", "cid"):
        store.add_job(a_job(owner), 100)
    assert store.seconds_until_start(None, 1) == pytest.approx(40, abs=1)
    waits = [store.seconds_until_start(owner, 1) for owner in ("ben", "cid", "ann")]
    assert waits == pytest.approx([40, 80, 120], abs=5)
    assert store.seconds_until_start("ben", 2) == 0


def test_the_unfinished_jobs_of_an_owner_are_limited_by_their_estimates(store):
    def add(owner, seconds):
        return store.add_job(replace(a_job(), owner=owner, estimated_s=seconds), 100, max_owner_s=100)

    first = add("ann", 60.0)
    with pytest.raises(QueueFull, match="about 1 minute and this one 50 seconds; 1 minute and 40 seconds are accepted"):
        add("ann", 50.0)
    add("bob", 50.0)
    store.dismiss(first.id, 60)
    add("ann", 50.0)


def test_the_speed_of_a_model_is_that_of_its_last_jobs(store):
    assert store.measured_patches_per_s("pixel") is None
    for patches, seconds in ((100, 1.0), (300, 1.0)):
        store.add_job(a_job(), 100)
        job = store.claim("w", 60)
        summary = {"patches": patches, "valid_pixels": 1, "no_data_pixels": 0, "seconds": {"network": seconds}}
        assert store.succeed(job, summary, 60)
    assert store.measured_patches_per_s(job.model) == 200
