"""The data folder: flushing files to disk, and removing them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from shutil import rmtree

from hyperscene.service.jobs.records import JobRecord, SceneRecord
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.remote import allowed_path
from hyperscene.service.settings import Settings

OUR_NAMES = re.compile("[0-9a-f]{32}")  # other files in the data folder are not ours to remove


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
    if scene is not None and scene.is_temporary and store.remove_scene(scene.id):
        rmtree(settings.scene_folder(scene.id), ignore_errors=True)


def drop_work(settings: Settings, job_id: str) -> None:
    """Remove all files of a finished job but its results."""
    for path in settings.job_folder(job_id).glob("*"):
        if path != settings.results_folder(job_id):
            rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def sweep(settings: Settings, store: Store) -> None:
    """Remove what a killed server left: unfinished uploads and previews, unknown folders, files of finished jobs."""
    for folder in _ours(settings.data / "incoming"):
        rmtree(folder, ignore_errors=True)
    scenes, jobs = store.ids("scenes"), store.ids("jobs")
    for folder in _ours(settings.data / "scenes"):
        if folder.name not in scenes:
            rmtree(folder, ignore_errors=True)
        for unfinished in settings.previews_folder(folder.name).glob("half-*"):
            rmtree(unfinished, ignore_errors=True)
    for folder in _ours(settings.data / "jobs"):
        if folder.name not in jobs:
            rmtree(folder, ignore_errors=True)
        elif jobs[folder.name] == "successful":
            drop_work(settings, folder.name)
        elif jobs[folder.name] in ("failed", "dismissed") and (job := store.job(folder.name)):
            drop_job(settings, store, job)


def _ours(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if OUR_NAMES.fullmatch(path.name)]


def flush_folder(folder: Path) -> None:
    """Flush the files of a folder to disk, so that they survive a power cut."""
    for path in [*folder.iterdir(), folder]:
        flush(path)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
