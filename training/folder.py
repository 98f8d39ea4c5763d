"""A study's folder: its files, each written whole, and the locks by which processes share the work."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from service.errors import OptionsUnusable, OutputUnwritable, unwritten
from training.plan import Cell

FORMAT = 1
LOCK_POLL_S = 0.05  # study.json is written in no time


@dataclass(frozen=True)
class StudyFolder:
    """Where the files of a study lie."""

    path: Path

    @property
    def study(self) -> Path:
        return self.path / "study.json"

    @property
    def study_lock(self) -> Path:
        return self.path / "study.lock"

    def cell(self, cell: Cell) -> Path:
        return self.path / "cells" / f"{cell.id}.json"

    def arrays(self, cell: Cell) -> Path:
        return self.path / "cells" / f"{cell.id}.npz"

    def lock(self, cell: Cell) -> Path:
        return self.path / "cells" / f"{cell.id}.lock"

    def pending(self, cells: list[Cell]) -> list[Cell]:
        """The cells that have no file yet."""
        return [cell for cell in cells if not self.cell(cell).exists()]


def read_study(directory: Path) -> dict[str, Any]:
    """What a study's folder says it was made for."""
    path = StudyFolder(directory).study
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OptionsUnusable(
            f"{directory} holds no study (no study.json): give a folder that `hyperscene study` was run with as --out"
        ) from error
    except (OSError, ValueError) as error:
        raise OptionsUnusable(f"{path} cannot be read ({error}): delete it, and the same command goes on") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise OptionsUnusable(f"{path} was written by another version of hyperscene: choose another folder with --out")
    return found


def note_work(
    directory: Path, command: str | None = None, machine: dict[str, Any] | None = None, title: str | None = None
) -> None:
    """Write into study.json who works on it, once each, and how its scene is called from now on; None adds nothing.

    Other processes may do so at the same time. Folders of earlier versions do not have these fields yet.
    """
    folder = StudyFolder(directory)
    while True:
        with locked(folder.study_lock) as is_ours:
            if is_ours:
                study = read_study(directory)
                noted = study | {
                    "commands": _with(study.get("commands"), command),
                    "machines": _with(study.get("machines"), machine),
                    "title": title or study.get("title"),
                }
                if noted != study:
                    write_json(folder.study, noted)
                return
        time.sleep(LOCK_POLL_S)


def _with(known: list[Any] | None, new: Any) -> list[Any]:
    known = known or []
    return known if new is None or new in known else [*known, new]


@contextmanager
def locked(lock: Path) -> Iterator[bool]:
    """Whether the lock is ours now, or somebody else's.

    It is the kernel's, so that of a process that died is free. Its file is deleted while it is held.
    """
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise unwritten(error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise OutputUnwritable(
                f"{lock} cannot be locked ({error.strerror}): choose a folder on a disk of this machine with --out"
            ) from error
        if not _is_still(lock, handle):  # deleted between opening and locking, by the process that was done with it
            yield False
            return
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(handle)


@contextmanager
def claimed(lock: Path, result: Path) -> Iterator[bool]:
    """Whether the result is ours to make: nobody else holds its lock, and it is not there yet."""
    with locked(lock) as is_ours:
        yield is_ours and not result.exists()


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file whole, or not at all."""
    write_text(path, json.dumps(document) + "\n")


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """The same for arrays."""
    _write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def write_text(path: Path, text: str) -> None:
    """The same for text."""
    _write_whole(path, lambda file: file.write(text.encode()))


def _write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise unwritten(error) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
