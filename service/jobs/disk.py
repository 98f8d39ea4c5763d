"""The data folder: flushing files to disk, and removing them."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from hyperscene.service.jobs.records import JobRecord, ModelRecord, SceneRecord
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.remote import allowed_path
from hyperscene.service.settings import Settings

log = logging.getLogger("hyperscene.store")

OUR_NAMES = re.compile("[0-9a-f]{32}")  # other files in the data folder are not ours to remove
RECORD = "record.json"  # of a scene or job, in its folder


def data_path(settings: Settings, scene: SceneRecord) -> Path:
    """The path that opens a scene's data: a local file, or an address that is still allowed."""
    if scene.href is not None:
        return allowed_path(scene.href, settings.hrefs, settings.href_networks)
    return settings.scene_folder(scene.id) / scene.file


def version_of(scene: SceneRecord) -> str:
    """Identifies the content of a remote file; another file at its address has another version."""
    return str(scene.document.get("version", ""))


def drop_job(settings: Settings, store: Store, job: JobRecord) -> None:
    """Remove the folder and the temporary scene of a job that was dismissed, failed or expired."""
    rmtree(settings.job_folder(job.id), ignore_errors=True)
    scene = store.scene(job.scene_id)
    if scene is not None and scene.is_temporary:
        drop_scene(settings, store, scene.id)


def drop_scene(settings: Settings, store: Store, scene_id: str) -> bool:
    """Remove a scene and its files, unless a job still has to read it; whether it was removed."""
    folder = settings.scene_folder(scene_id)

    def drop_record() -> None:
        """The record first, so that what is left after a crash or a power cut is not adopted."""
        with suppress(OSError):  # a folder that is gone
            (folder / RECORD).unlink(missing_ok=True)
            flush(folder)

    is_removed = store.remove_scene(scene_id, drop_record)
    if is_removed:
        rmtree(folder, ignore_errors=True)
    return is_removed


def drop_model(settings: Settings, store: Store, model: ModelRecord) -> None:
    """Remove a version of a model and its files; a job that waits for it fails."""
    store.remove_model(model)
    rmtree(settings.model_folder(model.id), ignore_errors=True)


def drop_work(settings: Settings, job_id: str) -> None:
    """Remove all files of a finished job but its results and its record."""
    for path in settings.job_folder(job_id).glob("*"):
        if path not in (settings.results_folder(job_id), settings.job_folder(job_id) / RECORD):
            rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def our_folders(folder: Path) -> list[Path]:
    """The folders in it that we made."""
    return [path for path in folder.glob("*") if OUR_NAMES.fullmatch(path.name)]


def flush_folder(folder: Path) -> None:
    """Flush the files of a folder, and of the folders in it, to disk, so that they survive a power cut."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def close_to_others(settings: Settings) -> None:
    """Tighten the modes of the store and our folders, which older versions left open to other users of the machine.

    The data folder itself is left as it is, if it was there before: it may be a volume that belongs to someone else.
    """
    database = settings.database
    closed = [settings.data / name for name in ("scenes", "jobs", "models", "incoming", "workers", "quarantine")]
    closed += [database, *database.parent.glob(f"{database.name}-*")]
    for path in closed:
        try:
            if path.exists() and path.stat().st_mode & 0o077:
                path.chmod(0o700 if path.is_dir() else 0o600)
                log.warning("%s was open to other users: closed to them", path)
        except OSError as error:
            log.warning("%s is open to other users (%s): change its mode", path, error.strerror)
