"""Which product a path is: a file of it, its folder, or an archive of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hyperscene.errors import SceneIncomplete, SceneTooLarge, SceneUnreadable
from hyperscene.service.mapping.products import aviris, cubes, desis, emit, enmap, neon, pace, prisma, tanager
from hyperscene.service.mapping.products.containers import ArchiveLimits, Report, is_archive, unpack
from hyperscene.service.mapping.products.cube_files import process_folder
from hyperscene.service.mapping.products.hdf5 import hdf5_errors, is_hdf5, open_hdf5
from hyperscene.service.mapping.products.product import Product

MAX_ENTRIES, MAX_DEPTH = 10_000, 6
MAX_NESTED = 2  # DLR packs zips into a tar.gz


class FileFamily(Protocol):
    """A sensor module whose products are several files; a key is the file that describes the others."""

    NAMES: re.Pattern[str]  # of the files that such a product may be opened by

    def key_of(self, path: Path, siblings: Sequence[Path]) -> Path | None:
        """The key file of the product that a file belongs to."""

    def describe(self, key: Path, siblings: Sequence[Path]) -> Product:
        """The product of a key file."""


class _AvirisInEnvi:
    NAMES = aviris.NAMES
    key_of = staticmethod(aviris.key_of)
    describe = staticmethod(aviris.describe_envi)


class _InOneFile:
    """Products of one HDF5 file, which are recognised by their content."""

    NAMES = re.compile(r".+\.(he5|h5|hdf5?|nc4?)", re.IGNORECASE)

    @staticmethod
    def key_of(path: Path, siblings: Sequence[Path]) -> Path | None:
        """The file itself, if a sensor module knows it."""
        return path if is_hdf5(path) and describe_hdf5(path) is not None else None

    @staticmethod
    def describe(key: Path, siblings: Sequence[Path]) -> Product:
        """The product of a file."""
        product = describe_hdf5(key)
        assert product is not None
        return product


def describe_hdf5(path: Path) -> Product | None:
    """The product of an HDF5 or netCDF-4 file; None if no sensor module knows it."""
    with open_hdf5(path) as file, hdf5_errors(path):
        return next((product for family in HDF5_FAMILIES if (product := family.describe(file)) is not None), None)


HDF5_FAMILIES = (prisma, emit, neon, tanager, pace, aviris)
FAMILIES: tuple[FileFamily, ...] = (enmap, desis, _AvirisInEnvi, _InOneFile)


def find_product(
    path: Path, work: Path | None = None, report: Report | None = None, variable: str | None = None
) -> Product | None:
    """The product at a path; None if it is none. Archives are unpacked into the folder `work`, once."""
    if path.is_dir():
        return _in_folder(path, list_files(path))
    if path.is_file() and is_archive(path):
        folder = unpacked(path, work or process_folder(), report)
        found = _in_folder(folder, list_files(folder), path.name)
        if found is None:
            raise SceneUnreadable(f"{path.name} holds no product of a known sensor: unpack it and give its image")
        return found
    for family in FAMILIES:
        if family.NAMES.fullmatch(path.name) and path.is_file():
            siblings = _siblings(path)
            if (key := family.key_of(path, siblings)) is not None:
                return family.describe(key, siblings)
    if not path.is_file():
        return None
    emit.require_image(path)
    return cubes.describe(path, variable, work)


def unpacked(path: Path, work: Path, report: Report | None = None) -> Path:
    """The folder of an archive's files; archives inside it are unpacked too."""
    status = path.stat()
    key = repr((str(path.resolve()), status.st_size, status.st_mtime_ns))
    target = work / f"unpacked-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    if target.exists():
        return target
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        unpack_all(path, unfinished, ArchiveLimits(), report)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def unpack_all(
    path: Path, folder: Path, limits: ArchiveLimits, report: Report | None = None, levels: int = MAX_NESTED
) -> int:
    """Unpack an archive, and the zips in it, into a new folder; the limit on their bytes is one for all of them."""
    total = unpack(path, folder, limits, report)
    for file in list_files(folder) if levels > 1 else ():
        if file.suffix.lower() == ".zip" and is_archive(file):
            left = replace(limits, unpacked_bytes=limits.unpacked_bytes - total)
            total += unpack_all(file, file.with_suffix(".unpacked"), left, report, levels - 1)
            file.unlink()
    return total


def list_files(folder: Path) -> list[Path]:
    """Regular files in a folder and its folders; links are left out, because they may lead elsewhere."""
    found, waiting = list[Path](), [(folder, 0)]
    seen = 0
    while waiting:
        current, depth = waiting.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_ENTRIES:
                    raise SceneTooLarge(
                        f"{folder.name} has more than {MAX_ENTRIES} files: give the folder of one product"
                    )
                if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                    waiting.append((Path(entry.path), depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
    return sorted(found)


def _in_folder(folder: Path, files: Sequence[Path], name: str = "") -> Product | None:
    """The only product in a folder; several are refused."""
    found: dict[Path, tuple[FileFamily, list[Path]]] = {}
    for file in files:
        siblings = [other for other in files if other.parent == file.parent]
        for family in FAMILIES:
            if family.NAMES.fullmatch(file.name) and (key := family.key_of(file, siblings)) is not None:
                found[key] = (family, siblings)
    if len(found) > 1:
        names = ", ".join(sorted(key.name for key in found)[:4])
        raise SceneUnreadable(f"{name or folder.name} holds {len(found)} products ({names}): give one of them")
    if not found and (lacking := next(filter(None, map(lacking_metadata, files)), "")):
        raise SceneIncomplete(lacking)
    return next((family.describe(key, siblings) for key, (family, siblings) in found.items()), None)


def lacking_metadata(path: Path) -> str:
    """What the image of a product lacks without the file that describes it; nothing for other files."""
    return enmap.lacking_metadata(path) or desis.lacking_metadata(path)


def _siblings(path: Path) -> list[Path]:
    """Regular files beside a file; a folder with too many is no product's."""
    found = []
    with os.scandir(path.parent) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_ENTRIES:
                return [path]
            if entry.is_file(follow_symlinks=False):
                found.append(Path(entry.path))
    return sorted(found)
