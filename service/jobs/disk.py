"""The data folder: what survives a power cut, and what is removed when it is over."""

from __future__ import annotations

import os
import re
from pathlib import Path
from shutil import rmtree

from service.jobs.records import JobRecord, SceneRecord
from service.jobs.store import Store
from service.mapping.remote import allowed_path
from service.settings import Settings

OURS = re.compile("[0-9a-f]{32}")  # the names that we give; whatever else lies in the data folder is somebody's own


def data_path(settings: Settings, scene: SceneRecord) -> Path:
    """The name under which a scene's data are opened: here, or in another place that may still be read from."""
    if scene.href is not None:
        return allowed_path(scene.href, settings.hrefs)
    return settings.scene_folder(scene.id) / scene.file


def version_of(scene: SceneRecord) -> str:
    """What tells a file in another place from one that has taken its place."""
    return str(scene.document.get("version", ""))


def drop_job(settings: Settings, store: Store, job: JobRecord) -> None:
    """Everything of a job that was dismissed, failed or expired: its folder, and the scene that came with it."""
    rmtree(settings.job_folder(job.id), ignore_errors=True)
    scene = store.scene(job.scene_id)
    if scene is not None and scene.is_temporary and store.remove_scene(scene.id):
        rmtree(settings.scene_folder(scene.id), ignore_errors=True)


def drop_work(settings: Settings, job_id: str) -> None:
    """What only the work needed: strips, answers, attempts."""
    for path in settings.job_folder(job_id).glob("*"):
        if path != settings.results_folder(job_id):
            rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def sweep(settings: Settings, store: Store) -> None:
    """What a killed server left: uploads that were not taken in, stray folders, half-made views, finished work."""
    for folder in _ours(settings.data / "incoming"):
        rmtree(folder, ignore_errors=True)
    scenes, jobs = store.known("scenes"), store.known("jobs")
    for folder in _ours(settings.data / "scenes"):
        if folder.name not in scenes:
            rmtree(folder, ignore_errors=True)
        for half_made in settings.views_folder(folder.name).glob("half-*"):
            rmtree(half_made, ignore_errors=True)
    for folder in _ours(settings.data / "jobs"):
        if folder.name not in jobs:
            rmtree(folder, ignore_errors=True)
        elif jobs[folder.name] == "successful":
            drop_work(settings, folder.name)
        elif jobs[folder.name] in ("failed", "dismissed") and (job := store.job(folder.name)):
            drop_job(settings, store, job)


def _ours(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if OURS.fullmatch(path.name)]


def flush_folder(folder: Path) -> None:
    """What lies in a folder survives a power cut from here on."""
    for path in [*folder.iterdir(), folder]:
        flush(path)


def flush(path: Path) -> None:
    """A file, or the names in a folder, survive a power cut from here on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
