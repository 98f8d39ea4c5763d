"""Scenes and jobs keep a record beside their files, from which a store that lost them takes them in again."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hyperscene.service.jobs.database import StoreDamaged
from hyperscene.service.jobs.disk import RECORD, drop_job, drop_work, flush, our_folders
from hyperscene.service.jobs.records import FINISHED, JobRecord, ModelRecord, SceneRecord, new_id
from hyperscene.service.jobs.store import RELEASED, Store
from hyperscene.service.jobs.wal import find_wal_damage
from hyperscene.service.settings import PREVIEWS_FOLDER, Settings

log = logging.getLogger("hyperscene.store")

SCENES: TypeAdapter[SceneRecord] = TypeAdapter(SceneRecord)
JOBS: TypeAdapter[JobRecord] = TypeAdapter(JobRecord)
MODELS: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)
LOST = "it was damaged, or an older copy was restored"


def write_record(folder: Path, record: SceneRecord | JobRecord | ModelRecord) -> None:
    """Write a record beside its files, flushed to disk. A failure is logged: the store has the record as well."""
    try:
        unfinished = folder / f".{RECORD}"
        with unfinished.open("w") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / RECORD)
        flush(folder)
    except OSError as error:
        log.warning("no record beside the files of %s: %s", record.id, error)


def write_new_records(settings: Settings, *records: SceneRecord | JobRecord) -> None:
    """Write the records of a new scene or job, in folders that may not exist yet."""
    for record in records:
        is_scene = isinstance(record, SceneRecord)
        folder = settings.scene_folder(record.id) if is_scene else settings.job_folder(record.id)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, record)


# At start


def open_store(settings: Settings) -> Store:
    """The store, if it is sound; what is in danger of being lost is copied first."""
    database = settings.database
    remedy = f"or run hyperscene adopt --data {settings.data}, which rebuilds it from the folders"
    if not database.exists() and any(any((settings.data / name).glob("*")) for name in ("scenes", "jobs", "models")):
        raise StoreDamaged(
            f"{settings.data} holds scenes, jobs or models, but {database.name} is missing: restore a backup, {remedy}"
        )
    if damage := find_wal_damage(_beside(database, "-wal")):
        kept = _quarantined(settings, "store")
        kept.mkdir(parents=True)
        for path in _store_files(settings):
            shutil.copy2(path, kept)
        log.error("%s-wal is damaged (%s): later changes are lost. A copy is in %s", database.name, damage, kept)
    try:
        return Store(database, is_checked=True)
    except StoreDamaged as error:
        raise StoreDamaged(f"{error}, {remedy}") from error


def rebuild_store(settings: Settings) -> Store:
    """Move a damaged store aside and make a new one from the records in the folders."""
    kept = _quarantined(settings, "store")
    kept.mkdir(parents=True)
    for path in _store_files(settings):
        path.rename(kept / path.name)
    store = Store(settings.database)
    sweep(settings, store)
    return store


def sweep(settings: Settings, store: Store) -> None:
    """Remove unfinished uploads and previews and files of finished jobs; adopt folders that the store does not know."""
    for folder in our_folders(settings.data / "incoming"):
        shutil.rmtree(folder, ignore_errors=True)
    known = store.ids("scenes")
    for folder in our_folders(settings.data / "scenes"):
        for unfinished in settings.previews_folder(folder.name).glob("half-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        if folder.name not in known:
            _adopt_scene(settings, store, folder)
    for scene_id in known:  # of older versions, or after a full disk
        if not (settings.scene_folder(scene_id) / RECORD).exists() and (scene := store.scene(scene_id)):
            write_new_records(settings, scene)
    jobs = store.ids("jobs")
    for folder in our_folders(settings.data / "jobs"):
        _sweep_job(settings, store, folder, jobs.get(folder.name))
    models = store.model_ids()
    for folder in our_folders(settings.data / "models"):
        _sweep_model(settings, store, folder, models.get(folder.name))


def _sweep_job(settings: Settings, store: Store, folder: Path, status: str | None) -> None:
    if status in ("failed", "dismissed") and (job := store.job(folder.name)):
        drop_job(settings, store, job)
        return
    if status is None:
        _adopt_job(settings, store, folder)
        return
    record = _read(folder, JOBS)
    is_finished = record is not None and record.status == "successful"
    if status != "successful" and is_finished and settings.results_folder(folder.name).is_dir():
        _adopt_job(settings, store, folder)
        return
    if (record is None or (status == "successful" and not is_finished)) and (job := store.job(folder.name)):
        write_record(folder, job)
    if status == "successful":
        drop_work(settings, folder.name)


def _sweep_model(settings: Settings, store: Store, folder: Path, is_removed: bool | None) -> None:
    if is_removed is False:
        return
    model = _read(folder, MODELS)
    job = store.job(model.job_id) if model is not None and model.job_id else None
    if is_removed or (job is not None and job.status != "successful"):  # its training will make it again
        shutil.rmtree(folder, ignore_errors=True)
    elif model is not None and settings.bundle_of(model.id).exists():
        store.adopt(model)
        log.error("the store did not know the model %s (%s): adopted from its folder", model.id, LOST)
    else:
        _quarantine(settings, folder)


def _adopt_scene(settings: Settings, store: Store, folder: Path) -> None:
    scene = _read(folder, SCENES)
    if scene is not None and (scene.href is not None or (folder / scene.file).exists()):
        store.adopt(scene)
        log.error("the store did not know the scene %s (%s): adopted from its folder", scene.id, LOST)
    elif all(path.name == PREVIEWS_FOLDER for path in folder.iterdir()):  # a preview of a scene that was removed
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _quarantine(settings, folder)


def _adopt_job(settings: Settings, store: Store, folder: Path) -> None:
    job = _read(folder, JOBS)
    if job is not None and job.status == "successful" and settings.results_folder(job.id).is_dir():
        store.adopt(replace(job, token=None, lease_until=None))
    elif job is not None and job.status not in FINISHED:
        store.adopt(replace(job, **RELEASED))
    else:
        _quarantine(settings, folder)
        return
    log.error("the store did not know the state of job %s (%s): adopted from its folder", job.id, LOST)


def _read(folder: Path, adapter: TypeAdapter[Any]) -> Any:
    """The record in a folder; None if it is missing or damaged."""
    try:
        record = adapter.validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None
    return record if record.id == folder.name else None


# Quarantine


def _quarantine(settings: Settings, folder: Path) -> None:
    target = _quarantined(settings, f"{folder.parent.name}-{folder.name}")
    target.parent.mkdir(exist_ok=True)
    folder.rename(target)
    os.utime(target)
    log.error(
        "the store does not know %s (%s), and the folder has no sound record: moved to %s, where it is kept for %.0f s",
        folder, LOST, target, settings.keep_results_s,
    )  # fmt: skip


def _quarantined(settings: Settings, name: str) -> Path:
    return settings.data / "quarantine" / f"{name}-{new_id()[:8]}"


def expire_quarantine(settings: Settings) -> None:
    """Remove what has been in quarantine for as long as results are kept."""
    for path in (settings.data / "quarantine").glob("*"):
        if time.time() - path.stat().st_mtime > settings.keep_results_s:
            log.warning("removed from quarantine: %s", path)
            shutil.rmtree(path, ignore_errors=True)


def _store_files(settings: Settings) -> list[Path]:
    found = (_beside(settings.database, suffix) for suffix in ("", "-wal", "-shm"))
    return [path for path in found if path.exists()]


def _beside(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)
