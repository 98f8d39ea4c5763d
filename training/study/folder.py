"""A study's files: a folder with a file for each cell, shared by processes through locks, or one packed file."""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import OptionsUnusable, OutputUnwritable, write_error
from hyperscene.training.study.plan import Cell

FORMAT = 2
PACKED = ".jsonl"
LOCK_POLL_S = 0.05  # study.json is written within milliseconds
# The fields that every cell has.
REQUIRED = ("id", "part", "name", "label", "group", "recipe", "amount", "seed", "split", "scores", "mapped")

Document = dict[str, Any]


@dataclass(frozen=True)
class StudyFolder:
    """The paths inside a study's folder."""

    path: Path

    @property
    def study(self) -> Path:
        return self.path / "study.json"

    @property
    def study_lock(self) -> Path:
        return self.path / "study.lock"

    @property
    def cells(self) -> Path:
        return self.path / "cells"

    def cell(self, cell: Cell) -> Path:
        return self.cells / f"{cell.id}.json"

    def lock(self, cell: Cell) -> Path:
        return self.cells / f"{cell.id}.lock"

    def pending(self, cells: list[Cell]) -> list[Cell]:
        """The cells that have no file yet."""
        return [cell for cell in cells if not self.cell(cell).exists()]


def study_name(path: Path) -> str:
    """The name of a study's folder, or of its packed file without the suffix."""
    return path.resolve().name.removesuffix(PACKED)


def read_study(path: Path) -> Document:
    """What all cells of a study have in common; the path is that of its folder or of its packed file."""
    return _read_header(path, _packed_lines(path)[0]) if path.is_file() else _read_header(*_study_json(path))


def read_cells(path: Path) -> list[Document]:
    """The finished cells of a study, by id; the path is that of its folder or of its packed file."""
    if path.is_file():
        lines = [(f"{path}, line {number}", text) for number, text in enumerate(_packed_lines(path), 1)][1:]
    else:
        lines = [(str(file), _read_text(file)) for file in sorted(StudyFolder(path).cells.glob("*.json"))]
    return [_read_cell(source, text) for source, text in lines]


def _study_json(directory: Path) -> tuple[Path, str]:
    path = StudyFolder(directory).study
    if not path.exists():
        raise OptionsUnusable(
            f"{directory} holds no study (no study.json): give a folder that `hyperscene study` was run with as --out"
        )
    return path, _read_text(path)


def _packed_lines(path: Path) -> list[str]:
    return _read_text(path).splitlines() or [""]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), error) from error


def _read_header(path: Path, text: str) -> Document:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _unreadable(str(path), error) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise OptionsUnusable(f"{path} was written by another version of hyperscene: choose another folder with --out")
    return found


def _read_cell(source: str, text: str) -> Document:
    try:
        cell: Document = json.loads(text)
        missing = [key for key in REQUIRED if key not in cell]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
    except (ValueError, TypeError) as error:
        raise _unreadable(source, error) from error
    return cell


def _unreadable(source: str, error: Exception) -> OptionsUnusable:
    return OptionsUnusable(f"{source} cannot be read ({error}): delete it and run the same command again")


def pack_study(directory: Path, file: Path) -> None:
    """Write a study into one file of JSON Lines: the study, then its cells by id."""
    documents = [read_study(directory), *read_cells(directory)]
    write_text(file, "".join(_json_line(document) for document in documents))


def unpack_study(file: Path, directory: Path) -> None:
    """Make a study's folder from its packed file, to continue it."""
    folder = StudyFolder(directory)
    study, cells = read_study(file), read_cells(file)
    if folder.study.exists():
        raise OptionsUnusable(f"{directory} holds a study already: choose another folder with --out")
    make_folder(folder)
    for cell in cells:
        write_json(folder.cells / f"{cell['id']}.json", cell)
    write_json(folder.study, study)


def make_folder(folder: StudyFolder) -> None:
    """Make a study's folder where there is none."""
    try:
        folder.cells.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputUnwritable(
            f"the folder {folder.path} cannot be made ({error.strerror}): choose another with --out"
        ) from error


def encode_arrays(arrays: Mapping[str, Any]) -> str:
    """Arrays as text for a cell's file: a compressed .npz in base64."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return base64.b64encode(buffer.getvalue()).decode()


def decode_arrays(cell: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays in a cell's document; empty where it has none."""
    text = cell.get("arrays")
    if text is None:
        return {}
    try:
        with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise _unreadable(f"the arrays of cell {cell['id']}", error) from error


def note_work(
    directory: Path, command: str | None = None, machine: Document | None = None, title: str | None = None
) -> None:
    """Add a command and a machine to study.json, once each, and set the scene's title; None changes nothing."""
    folder = StudyFolder(directory)
    while True:  # other processes may do the same
        with locked(folder.study_lock) as is_ours:
            if is_ours:
                study = read_study(directory)
                noted = study | {
                    "commands": _with(study["commands"], command),
                    "machines": _with(study["machines"], machine),
                    "title": title or study["title"],
                }
                if noted != study:
                    write_json(folder.study, noted)
                return
        time.sleep(LOCK_POLL_S)


def _with(known: list[Any], new: Any) -> list[Any]:
    return known if new is None or new in known else [*known, new]


@contextmanager
def locked(lock: Path) -> Iterator[bool]:
    """Whether this process holds the lock now; another one may hold it.

    The kernel releases the lock of a process that dies. The file is deleted while the lock is held.
    """
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise write_error(error) from error
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
        if not _is_still(lock, handle):  # its holder deleted it between our opening and locking
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
    """Whether this process has to make the result: it holds the lock, and the result does not exist yet."""
    with locked(lock) as is_ours:
        yield is_ours and not result.exists()


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _json_line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document completely or not at all."""
    write_text(path, _json_line(document))


def write_text(path: Path, text: str) -> None:
    """Write a text completely or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise write_error(error) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
