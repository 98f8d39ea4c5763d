"""The files of an upload, and the names under which GDAL opens them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hyperscene.errors import SceneIncomplete, SceneUnreadable
from hyperscene.service.mapping.scene_files import ENVI_SUFFIXES, FORMATS, TIFF_MAGIC

MAX_NAME_LENGTH = 255
HEADER_NAME = "scene.hdr"  # every ENVI header is stored under this name


@dataclass(frozen=True)
class ReceivedFile:
    """A file of an upload, on disk under a name that the server chose."""

    path: Path
    name: str  # as sent
    start: bytes  # its first four bytes
    size_bytes: int


def name_scene_files(files: list[ReceivedFile]) -> ReceivedFile:
    """Give the files of a scene the names that GDAL expects; returns the data file. Sidecars are refused."""
    for file in files:
        if file.size_bytes == 0:
            raise SceneUnreadable(f"{clean_name(file.name)} is empty: send {FORMATS}")
    ordered = sorted(files, key=_kind)
    match [_kind(file) for file in ordered]:
        case ["GeoTIFF"]:
            return _renamed(ordered[0], "scene.tif")
        case ["ENVI data", "ENVI header"] | ["ENVI header", "other"]:
            header, data = sorted(ordered, key=lambda file: file.start != b"ENVI")
            _renamed(header, HEADER_NAME)
            return _renamed(data, "scene.img")
        case ["ENVI header"]:
            raise SceneIncomplete(
                f"{clean_name(files[0].name)} is an ENVI header without its data: send both as `scene`"
            )
        case ["ENVI data"]:
            raise SceneIncomplete(f"{clean_name(files[0].name)} is ENVI data without its header: send both as `scene`")
    names = ", ".join(clean_name(file.name) for file in files[:4]) or "nothing"
    raise SceneUnreadable(f"a scene is one GeoTIFF, or ENVI data and its header, and nothing else; found {names}")


def _kind(file: ReceivedFile) -> str:
    """What the file seems to be; ENVI data may have any name if their header is sent, too."""
    if file.start in TIFF_MAGIC:
        return "GeoTIFF"
    if file.start == b"ENVI":
        return "ENVI header"
    return "ENVI data" if Path(file.name).suffix.lower() in ENVI_SUFFIXES else "other"


def with_sent_names(text: str, data: ReceivedFile, files: list[ReceivedFile]) -> str:
    """A message with the file names as they were sent."""
    for file in files:
        name = HEADER_NAME if file.start == b"ENVI" else data.path.name
        text = text.replace(name, clean_name(file.name))
    return text


def _renamed(file: ReceivedFile, name: str) -> ReceivedFile:
    path = file.path.with_name(name)
    file.path.rename(path)
    return ReceivedFile(path, file.name, file.start, file.size_bytes)


def clean_name(name: str) -> str:
    """A sent file name made safe to show: no folders, only printable characters, limited length."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(letter for letter in last if letter.isprintable())
    return shown[:MAX_NAME_LENGTH].strip() or "scene"
