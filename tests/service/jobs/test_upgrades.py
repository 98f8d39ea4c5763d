"""Data folders of other versions: older ones are upgraded at start, newer ones are refused and not changed."""

import json
import shutil
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest

from hyperscene.service.jobs.records import new_id
from hyperscene.service.jobs.schema import MIGRATIONS
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.classify import MapProgress
from hyperscene.service.mapping.describe import describe_header
from hyperscene.service.mapping.output import RESULTS
from hyperscene.service.mapping.scenes import open_scene
from tests.command_line import refusal, run
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import running_server

pytestmark = pytest.mark.slow

DAY_S = 86400
# The store's first version as it was released.
FIRST_VERSION = """
    CREATE TABLE scenes (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        created REAL NOT NULL, expires REAL NOT NULL, document TEXT NOT NULL, is_temporary INTEGER NOT NULL
    );
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, scene_id TEXT NOT NULL, scene_name TEXT NOT NULL,
        model TEXT NOT NULL, options TEXT NOT NULL, status TEXT NOT NULL, created REAL NOT NULL,
        updated REAL NOT NULL, started REAL, finished REAL, expires REAL, version INTEGER NOT NULL,
        cells_done INTEGER NOT NULL, cells_total INTEGER NOT NULL, seconds_left REAL, worker TEXT, device TEXT,
        provider TEXT, token TEXT, lease_until REAL, resumes INTEGER NOT NULL, deaths INTEGER NOT NULL,
        crashes INTEGER NOT NULL, death_mark INTEGER NOT NULL, error_code TEXT, error_status INTEGER,
        error_detail TEXT, seconds TEXT NOT NULL, execution TEXT NOT NULL, idempotency_key TEXT, request_id TEXT
    );
    CREATE INDEX jobs_by_status ON jobs (status, created);
    CREATE INDEX jobs_by_owner ON jobs (owner, created);
    CREATE INDEX jobs_by_scene ON jobs (scene_id);
    CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE TABLE workers (
        name TEXT PRIMARY KEY, device TEXT NOT NULL, pid INTEGER NOT NULL, state TEXT NOT NULL, provider TEXT,
        reason TEXT, heartbeat REAL NOT NULL
    );
    CREATE TABLE counts (name TEXT NOT NULL, labels TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (name, labels));
    PRAGMA user_version = 1;
"""
OPTIONS = {"stride_px": 4, "blend": "angle", "probability_type": "uint8", "strip_px": 0}
SECONDS = {"read": 0.1, "network": 0.5, "total": 0.7}


class OldFolder:
    """A data folder of the first version: a scene with three jobs, one of them finished."""

    def __init__(self, data, tif, results):
        self.data, self._tif = data, tif
        self.scene, self.finished, self.waiting, self.running = (new_id() for _ in range(4))
        for folder in (data / "scenes" / self.scene, data / "jobs" / self.running, data / "incoming"):
            folder.mkdir(parents=True)
        shutil.copy(tif, data / "scenes" / self.scene / "scene.tif")
        shutil.copytree(results, data / "jobs" / self.finished / "results")
        (data / "lock").touch()
        with closing(sqlite3.connect(data / "hyperscene.sqlite")) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(FIRST_VERSION)
            self._fill(db)
            db.commit()

    def _fill(self, db):
        now = time.time()
        document = describe_header(open_scene(self._tif))
        del document["band_numbers"]  # came later
        _insert(
            db, "scenes", id=self.scene, owner="", name="field.tif", file="scene.tif", created=now - 60,
            size_bytes=self._tif.stat().st_size, expires=now + DAY_S, document=json.dumps(document), is_temporary=0,
        )  # fmt: skip
        done = {
            "started": now - 50,
            "finished": now - 49,
            "expires": now + DAY_S,
            "device": "cpu",
            "provider": "an old",
        }
        self._add_job(db, self.finished, "successful", now - 60, cells_done=9, cells_total=9, **done)
        self._add_job(
            db, self.running, "running", now - 40, started=now - 30, worker="0", token="t", lease_until=now - 9
        )
        self._add_job(db, self.waiting, "accepted", now - 20)
        _insert(db, "workers", name="0", device="cpu", pid=1, state="ready", heartbeat=now - 20)
        _insert(db, "counts", name="jobs_submitted_total", labels="{}", value=3)

    def _add_job(self, db, job_id, status, created, **more):
        zeros = dict.fromkeys(("cells_done", "cells_total", "resumes", "deaths", "crashes"), 0)
        facts = {
            "owner": "", "scene_id": self.scene, "scene_name": "field.tif", "model": "pixel", "created": created,
            "updated": created, "options": json.dumps(OPTIONS), "seconds": json.dumps(SECONDS), "execution": "{}",
            "version": 3, "death_mark": -1, "idempotency_key": f"key-{status}",
        }  # fmt: skip
        _insert(db, "jobs", id=job_id, status=status, **zeros | facts | more)


def _insert(db, table, **row):
    db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()])


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    values = np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", values, wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def results(server, tif):
    """The files of a map of the scene."""
    job_id = server.submit(tif)
    assert server.finished(job_id)["status"] == "successful"
    return server.data / "jobs" / job_id / "results"


@pytest.fixture(scope="module")
def old(tmp_path_factory, tif, results):
    return OldFolder(tmp_path_factory.mktemp("old") / "data", tif, results)


@pytest.fixture(scope="module")
def upgraded(old, bundle_folder):
    """The current server on the old folder."""
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(old.data, *options) as running:
        yield running


def store_version(data):
    with closing(sqlite3.connect(f"file:{data / 'hyperscene.sqlite'}?mode=ro", uri=True)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def test_an_older_store_is_upgraded_at_start(old, upgraded):
    assert store_version(old.data) == len(MIGRATIONS) > 1


def test_a_finished_job_of_an_older_version_keeps_its_results(old, upgraded, results):
    job = upgraded.job(old.finished)
    assert (job["status"], job["progress"]) == ("successful", 100)
    for name in RESULTS:
        answer = upgraded.client.get(f"/jobs/{old.finished}/results/{name}")
        assert answer.content == (results / name).read_bytes()


def test_a_finished_job_of_an_older_version_can_be_shown(old, upgraded):
    assert upgraded.client.get(f"/jobs/{old.finished}/tiles/classes/0/0/0.png").status_code == 200
    pixel = upgraded.client.get(f"/jobs/{old.finished}/pixel?row=3&col=4")
    assert pixel.status_code == 200, pixel.text
    assert len(pixel.json()["probabilities"]) == 3


@pytest.mark.parametrize("name", ["waiting", "running"])
def test_unfinished_jobs_of_an_older_version_are_run(old, upgraded, results, name):
    job_id = getattr(old, name)
    assert upgraded.finished(job_id)["status"] == "successful"
    mapped = upgraded.client.get(f"/jobs/{job_id}/results/classes.tif").content
    assert mapped == (results / "classes.tif").read_bytes()


def test_scenes_keys_and_counts_of_an_older_version_are_kept(old, upgraded, tif):
    assert upgraded.client.get(f"/scenes/{old.scene}").json()["rows"] == 40
    assert upgraded.submit(tif, {"Idempotency-Key": "key-successful"}) == old.finished
    assert "hyperscene_jobs_submitted_total 3.0" in upgraded.client.get("/metrics").text


def store_of_version(path, version):
    """A store as hyperscene wrote it when `version` was the newest."""
    with closing(sqlite3.connect(path)) as db:
        for step in MIGRATIONS[:version]:
            db.executescript(step)
        db.execute(f"PRAGMA user_version = {version}")


def test_events_crash_counts_and_error_codes_of_an_older_version_are_kept(tmp_path):
    path, events = tmp_path / "store.sqlite", [{"time": 1.0, "text": "worker cpu-0 died"}]
    store_of_version(path, 5)
    with closing(sqlite3.connect(path)) as db:
        _insert(
            db, "jobs", id="a", owner="", scene_id="s", scene_name="s.tif", model="m", options="{}", status="failed",
            created=1.0, updated=2.0, version=7, cells_done=60, cells_total=100, resumes=2, deaths=2, crashes=1,
            suspects='{"deaths": {"16": 2}, "crashes": {"0": 1}}', error_code="place_unreachable", error_status=503,
            error_detail="gone", seconds="{}", execution="{}", history=json.dumps(events),
        )  # fmt: skip
        _insert(db, "counts", name="jobs_finished_total", labels='{"reason": "place_unreachable"}', value=1.0)
        db.commit()
    job = Store(path).job("a")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT labels FROM counts").fetchall() == [('{"reason": "source_unreachable"}',)]
    assert job.events == events
    assert (job.worker_crashes, job.server_crashes) == (2, 1)
    assert job.crash_counts == {"worker": {"16": 2}, "server": {"0": 1}}
    assert job.error_code == "source_unreachable"
    assert job.progress == MapProgress(cells_done=60, cells_total=100, patches_done=60)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_a_newer_version_is_refused_and_not_changed(tmp_path, tif, results):
    old = OldFolder(tmp_path / "data", tif, results)
    newer = len(MIGRATIONS) + 1
    with closing(sqlite3.connect(old.data / "hyperscene.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {newer}")
    before = contents(old.data)
    message = refusal(run("serve", "--port", 0, "--data", old.data))
    assert "newer hyperscene" in message
    assert "upgrade" in message
    assert contents(old.data) == before
    assert store_version(old.data) == newer
