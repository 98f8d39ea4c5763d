"""Damaged, older and missing stores: what was acknowledged is adopted from the folders, and nothing is deleted."""

import contextlib
import os
import shutil
import signal
import sqlite3
import time
from dataclasses import replace

import numpy as np
import pytest

from hyperscene.service.jobs.adoption import expire_quarantine, sweep, write_new_records, write_record
from hyperscene.service.jobs.records import JobRecord, SceneRecord, new_id
from hyperscene.service.jobs.store import Store
from hyperscene.service.jobs.wal import find_wal_damage
from hyperscene.service.mapping.output import RESULTS
from hyperscene.service.settings import Settings
from tests.command_line import refusal, run
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import part, running_server

KEYS = {"HYPERSCENE_API_KEYS": "anns,bobs"}
ANN, BOB = {"X-API-Key": "anns"}, {"X-API-Key": "bobs"}


@pytest.fixture
def settings(tmp_path):
    for name in ("scenes", "jobs", "incoming", "quarantine"):
        (tmp_path / name).mkdir()
    return Settings(data=tmp_path)


@pytest.fixture
def store(settings):
    return Store(settings.database)


def a_scene(**changes):
    return replace(SceneRecord(new_id(), "ann", "field.tif", "scene.tif", 10, 1.0, 1e12, {"rows": 3}), **changes)


def a_job(**changes):
    return replace(
        JobRecord(new_id(), "ann", "scene", "field.tif", "pixel", {"stride_px": 4}, "accepted", 1.0, 2.0), **changes
    )


def a_finished_job(settings, **changes):
    job = a_job(status="successful", finished=3.0, expires=1e12, seconds={"total": 0.5}, **changes)
    settings.results_folder(job.id).mkdir(parents=True)
    write_record(settings.job_folder(job.id), job)
    return job


def test_unknown_scenes_and_jobs_are_adopted_as_they_were(settings, store):
    scene, waiting = a_scene(), a_job(idempotency_key="k")
    write_new_records(settings, scene, waiting)
    (settings.scene_folder(scene.id) / "scene.tif").touch()
    finished = a_finished_job(settings)
    sweep(settings, store)
    assert store.scene(scene.id) == scene
    assert store.job(waiting.id) == waiting
    assert store.job(finished.id) == finished


def test_a_job_that_an_older_store_believes_unfinished_is_adopted(settings, store):
    store.add_scene(a_scene(id="scene"))
    job = a_finished_job(settings)
    store.add_job(replace(job, status="accepted", finished=None, expires=None), 10)
    sweep(settings, store)
    assert store.job(job.id) == job


def test_an_idempotency_key_that_is_taken_is_dropped(settings, store):
    store.add_scene(a_scene(id="scene"))
    first = store.add_job(a_job(idempotency_key="k"), 10)
    second = a_finished_job(settings, idempotency_key="k")
    sweep(settings, store)
    assert store.job_by_key("ann", "k").id == first.id
    assert store.job(second.id).idempotency_key is None


@pytest.mark.parametrize("record", [None, b"", b"{", b'{"id": 3}'])
def test_unknown_folders_without_a_sound_record_are_kept_in_quarantine_for_a_time(settings, store, record):
    for kind in ("scenes", "jobs"):
        folder = settings.data / kind / new_id()
        folder.mkdir()
        (folder / "content").write_text(kind)
        if record is not None:
            (folder / "record.json").write_bytes(record)
    sweep(settings, store)
    expire_quarantine(settings)
    kept = [*(settings.data / "quarantine").iterdir()]
    assert {(folder / "content").read_text() for folder in kept} == {"scenes", "jobs"}
    long_ago = time.time() - settings.keep_results_s - 1
    for folder in kept:
        os.utime(folder, (long_ago, long_ago))
    expire_quarantine(settings)
    assert not any((settings.data / "quarantine").iterdir())


def test_scenes_and_jobs_of_older_versions_get_records(settings, store):
    scene = a_scene(href="https://example.org/a.tif", file="")
    store.add_scene(scene)
    job = store.add_job(a_job(scene_id=scene.id), 10)
    settings.job_folder(job.id).mkdir()
    sweep(settings, store)
    sweep(settings, other := Store(settings.data / "other.sqlite"))
    assert other.scene(scene.id) == scene
    assert other.job(job.id) == job


@pytest.fixture
def wal(tmp_path):
    """A write-ahead log with three transactions, as a killed process leaves it."""
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for statement in ("CREATE TABLE a (b)", "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)"):
            db.execute(statement)
        return (tmp_path / "a.sqlite-wal").read_bytes()


@pytest.mark.parametrize("length", [0, None, -1, -5000])
def test_a_log_that_a_crash_can_leave_is_sound(tmp_path, wal, length):
    (tmp_path / "wal").write_bytes(wal[:length])
    assert find_wal_damage(tmp_path / "wal") is None
    assert find_wal_damage(tmp_path / "no such file") is None


@pytest.mark.parametrize(("at", "expected"), [(3, "header"), (25, "header"), (40, "frame 0"), (2000, "frame 0")])
def test_a_damaged_log_is_found(tmp_path, wal, at, expected):
    (tmp_path / "wal").write_bytes(wal[:at] + bytes([wal[at] ^ 1]) + wal[at + 1 :])
    assert expected in find_wal_damage(tmp_path / "wal")


def expiry(data, job):
    with contextlib.closing(sqlite3.connect(data / "hyperscene.sqlite")) as db:
        return db.execute("SELECT owner, expires FROM jobs WHERE id = ?", (job,)).fetchone()


@pytest.fixture(scope="module")
def lost(tmp_path_factory, bundle_folder):
    """The folder of a server that was killed after a job of Ann's, an older store, and what the job had."""
    data, before = tmp_path_factory.mktemp("lost") / "data", tmp_path_factory.mktemp("before") / "hyperscene.sqlite"
    values = np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")
    tif = write_tif(data.parent / "field.tif", values, wavelengths_nm=WAVELENGTHS)
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(data, *options, **KEYS) as server:
        with contextlib.closing(sqlite3.connect(server.data / "hyperscene.sqlite")) as db:
            db.execute("VACUUM INTO ?", (str(before),))
        scene = server.client.post("/scenes", files={"scene": part(tif)}, headers=ANN).json()["id"]
        job = server.submit(tif, ANN)
        assert server.finished(job, **ANN)["status"] == "successful"
        expires = expiry(data, job)
        server.stop(signal.SIGKILL)
    results = {name: (data / "jobs" / job / "results" / name).read_bytes() for name in RESULTS}
    return data, before, job, scene, results, expires


@pytest.fixture
def copied(lost, tmp_path):
    shutil.copytree(lost[0], tmp_path / "data")
    return tmp_path / "data"


def require_kept(lost, data, bundle_folder):
    """Ann's job and scene are served as before, to her alone; returns the log."""
    _, _, job, scene, results, _ = lost
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(data, *options, **KEYS) as server:
        assert server.client.get(f"/jobs/{job}", headers=ANN).json()["status"] == "successful"
        assert server.client.get(f"/scenes/{scene}", headers=ANN).json()["rows"] == 40
        for name, content in results.items():
            assert server.client.get(f"/jobs/{job}/results/{name}", headers=ANN).content == content
            assert server.client.get(f"/jobs/{job}/results/{name}", headers=BOB).status_code == 404
        return server.log.read_text()


@pytest.mark.slow
def test_results_outlive_a_store_that_was_restored_from_an_older_copy(lost, copied, bundle_folder):
    for suffix in ("-wal", "-shm"):
        (copied / f"hyperscene.sqlite{suffix}").unlink()
    shutil.copy(lost[1], copied / "hyperscene.sqlite")
    assert "adopted from its folder" in require_kept(lost, copied, bundle_folder)
    assert expiry(copied, lost[2]) == lost[5]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut in the middle", "cut in the header", "garbled header", "garbled frame"])
def test_results_outlive_a_damaged_log_of_the_store(lost, copied, bundle_folder, damage):
    path = copied / "hyperscene.sqlite-wal"
    content = bytearray(path.read_bytes())
    if damage.startswith("cut"):
        del content[len(content) // 2 if "middle" in damage else 10 :]
    else:
        at = 5 if "header" in damage else len(content) // 3
        content[at : at + 20] = bytes(value ^ 0xFF for value in content[at : at + 20])
    path.write_bytes(content)
    log = require_kept(lost, copied, bundle_folder)
    if damage != "cut in the middle":  # as a power cut leaves it
        assert "hyperscene.sqlite-wal is damaged" in log
        [kept] = (copied / "quarantine").glob("store-*")
        assert (kept / path.name).read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_store_is_refused_and_made_anew_by_command(lost, copied, bundle_folder, is_missing):
    path = copied / "hyperscene.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:  # writes the log into the file
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(value ^ 0xFF for value in content[4096:])
    path.unlink() if is_missing else path.write_bytes(content)
    folders = sorted(str(folder) for folder in copied.glob("*/*"))
    assert "hyperscene adopt --data" in refusal(run("serve", "--port", 0, "--data", copied))
    assert sorted(str(folder) for folder in copied.glob("*/*")) == folders
    done = run("adopt", "--data", copied)
    assert "a new store with 2 scenes and 1 jobs" in done.stdout, done.stderr
    require_kept(lost, copied, bundle_folder)
    assert "the store is sound" in run("adopt", "--data", copied).stdout


def test_adopting_in_a_folder_that_does_not_exist_is_refused(tmp_path):
    assert "no data folder" in refusal(run("adopt", "--data", tmp_path / "none"))


@pytest.mark.slow
def test_other_users_of_the_machine_read_nothing(lost, tmp_path, bundle_folder):
    data = tmp_path / "data"
    with running_server(data, "--bundles", bundle_folder, "--model", "pixel", "--device", "cpu") as server:
        job = server.submit(lost[0].parent / "field.tif")
        assert server.finished(job)["status"] == "successful"
        made = [data, *data.rglob("*")]
        assert {"hyperscene.sqlite-wal", "hyperscene.sqlite-shm", "classes.tif", "record.json"} <= {
            p.name for p in made
        }
        assert [str(path) for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.slow
def test_what_an_older_version_left_open_is_closed_at_start(copied, bundle_folder):
    for path in (copied, copied / "jobs", copied / "hyperscene.sqlite", copied / "hyperscene.sqlite-wal"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with running_server(copied, "--bundles", bundle_folder, "--model", "pixel", "--device", "cpu") as server:
        made = [path for path in copied.rglob("*") if len(path.relative_to(copied).parts) == 1]
        assert [path.name for path in made if path.stat().st_mode & 0o077] == []
        assert "open to other users" in server.log.read_text()
    assert copied.stat().st_mode & 0o777 == 0o755  # it may belong to someone else
