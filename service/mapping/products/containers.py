"""Zip and tar archives of products: only regular files with plain names, within limits, written into a new folder."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from hyperscene.errors import SceneTooLarge, SceneUnreadable, StorageFull, write_error

NAME_BYTES = 255  # of a file, on the usual file systems
ZIP_MAGIC = b"PK\x03\x04"
PART_BYTES = 1 << 20
Report = Callable[[int, int], None]  # bytes done, of how many
# What a product may hold; pictures, documents and programs stay packed.
WANTED = re.compile(
    r"\.(tiff?|geotiff|jp2|jpeg2000|xml|hdr|bsq|bil|bip|img|dat|gain|he5|h5|hdf5?|nc|nc4|zip)$|/[^./]+$|^[^./]+$",
    re.IGNORECASE,
)
# A service stores uploads under names of its own, none of which is one of these.
ARCHIVE_NAME = re.compile(r".+\.(zip|tar|tgz|tar\.gz)", re.IGNORECASE | re.DOTALL)
ARCHIVE_ERRORS = (zipfile.BadZipFile, zipfile.LargeZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError,
                  RuntimeError, ValueError)  # fmt: skip


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits on what an archive may unpack to."""

    members: int = 10_000
    unpacked_bytes: int = 64 << 30
    ratio: int = 200  # unpacked to packed; an image of one value reaches 1,000, so small members are exempt
    exempt_bytes: int = 64 << 20
    path_length: int = 512
    depth: int = 8
    kept_bytes: int = 0  # of the disk, that must stay free


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    packed: int
    is_file: bool
    handle: zipfile.ZipInfo | tarfile.TarInfo


def is_archive(path: Path) -> bool:
    """Whether a file is a zip, or a tar that may be packed by gzip, by its name and its content."""
    if not ARCHIVE_NAME.fullmatch(path.name):
        return False
    with path.open("rb") as file:
        start = file.read(4)
    if start == ZIP_MAGIC:
        return True
    try:
        return tarfile.is_tarfile(path)
    except ARCHIVE_ERRORS:  # packed data of something else, and damaged
        return False


def unpack(path: Path, folder: Path, limits: ArchiveLimits | None = None, report: Report | None = None) -> int:
    """Unpack the files of a product into a new folder and return their bytes.

    Raises before anything is written if a name is not plain.
    """
    limits = limits or ArchiveLimits()
    folder.mkdir(parents=True)
    try:
        with _opened(path) as archive:
            wanted = _checked(path, archive, limits)
            total, done = sum(member.size for member in wanted), 0
            if total > (free := max(0, shutil.disk_usage(folder).free - limits.kept_bytes)):
                raise StorageFull(
                    f"{path.name} unpacks to {total >> 20} MB and {free >> 20} MB are free: free the disk, or set "
                    "TMPDIR to another folder"
                )
            for member in wanted:
                target = folder.joinpath(*PurePosixPath(member.name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                for size in _copy(archive, member, target):
                    done += size
                    if report is not None:
                        report(done, total)
            return done
    except ARCHIVE_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise SceneUnreadable(f"{path.name} is a damaged archive ({reason}): copy it again") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:  # a file and a folder of one name
        raise SceneUnreadable(f"{path.name} has two members of one name: pack it again") from error
    except OSError as error:
        raise write_error(error) from error


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile | tarfile.TarFile]:
    with path.open("rb") as file:
        is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    if is_zip and not zipfile.is_zipfile(path):
        raise SceneUnreadable(f"{path.name} is cut short: the list of its members at its end is missing; copy it again")
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            yield archive
    else:
        with tarfile.open(path) as tar:
            yield tar


def _checked(path: Path, archive: zipfile.ZipFile | tarfile.TarFile, limits: ArchiveLimits) -> list[_Member]:
    """The wanted members, by the list of names alone."""
    members, total, names = [], 0, set[str]()
    for number, member in enumerate(_members(archive), start=1):
        if number > limits.members:
            raise SceneTooLarge(f"{path.name} has more than {limits.members} members: it is no product")
        if not member.is_file:
            continue
        _check_name(path, member, limits)
        total += member.size
        if total > limits.unpacked_bytes:
            raise SceneTooLarge(
                f"{path.name} unpacks to more than {limits.unpacked_bytes >> 20} MB: unpack it and send what is needed"
            )
        if member.size > limits.exempt_bytes and member.size > limits.ratio * max(member.packed, 1):
            raise SceneTooLarge(f"{member.name} of {path.name} unpacks to more than {limits.ratio} times its size")
        if WANTED.search(member.name):
            if member.name.lower() in names:
                raise SceneUnreadable(f"{path.name} has two members of the name {member.name}: pack it again")
            names.add(member.name.lower())
            members.append(member)
    if total > limits.exempt_bytes and total > limits.ratio * path.stat().st_size:
        raise SceneTooLarge(f"{path.name} unpacks to more than {limits.ratio} times its size: it is no product")
    return members


def _members(archive: zipfile.ZipFile | tarfile.TarFile) -> Iterator[_Member]:
    if isinstance(archive, zipfile.ZipFile):
        for entry in archive.infolist():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            is_file = not entry.is_dir() and kind in (0, stat.S_IFREG)
            if entry.flag_bits & 1:
                raise SceneUnreadable(
                    f"{Path(archive.filename or '').name} is protected by a password: unpack it and give the folder"
                )
            yield _Member(entry.filename, entry.file_size, entry.compress_size, is_file, entry)
    else:
        for info in cast(Iterable[tarfile.TarInfo], archive):
            yield _Member(info.name, info.size, info.size, info.isreg(), info)


def _check_name(path: Path, member: _Member, limits: ArchiveLimits) -> None:
    parts = PurePosixPath(member.name).parts
    is_plain = not ("\\" in member.name or ":" in member.name or ".." in parts or member.name.startswith("/"))
    if not (is_plain and member.name.isprintable() and len(member.name) <= limits.path_length and _is_short(parts)):
        raise SceneUnreadable(f"{path.name} has a member whose name leads outside its folder or is not plain text")
    if len(parts) > limits.depth:
        raise SceneUnreadable(f"{path.name} nests its folders deeper than {limits.depth}: pack the product alone")


def _is_short(parts: tuple[str, ...]) -> bool:
    return all(len(os.fsencode(part)) <= NAME_BYTES for part in parts)


def _copy(archive: zipfile.ZipFile | tarfile.TarFile, member: _Member, target: Path) -> Iterator[int]:
    """Write a member and give the size of each part; at most as much is unpacked as its list entry says."""
    source: IO[bytes] | None
    if isinstance(archive, zipfile.ZipFile):
        source = archive.open(cast(zipfile.ZipInfo, member.handle))
    else:
        source = archive.extractfile(cast(tarfile.TarInfo, member.handle))
    assert source is not None  # of a regular file
    with source, target.open("xb") as file:
        while part := source.read(PART_BYTES):
            file.write(part)
            yield len(part)
