"""The files of a scene: the driver by content, and the pair of ENVI data and header."""

from __future__ import annotations

from pathlib import Path

from hyperscene.errors import SceneIncomplete, SceneUnreadable
from hyperscene.service.mapping.remote import is_remote

TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # classic and BigTIFF, both byte orders
JPEG_2000_MAGIC = (b"\0\0\0\x0c", b"\xff\x4f\xff\x51")  # of a file, and of a bare codestream
ENVI_SUFFIXES = (".img", ".bsq", ".bil", ".bip", ".dat", ".raw")
FORMATS = "GeoTIFF, or ENVI (a data file and its .hdr)"


def scene_files(path: Path) -> list[Path]:
    """The files that make up a scene: one GeoTIFF, or ENVI data and header."""
    data, driver = locate(path)
    header = header_of(data) if driver == "ENVI" else None
    return [data] if header is None else [data, header]


def locate(path: Path) -> tuple[Path, str]:
    """The data file, and the driver for its content."""
    if is_remote(path):
        return path, "GTiff"
    try:
        if path.is_dir():
            raise SceneUnreadable(f"{path} is a folder without a product of a known sensor: give the path of {FORMATS}")
        start = _start_of(path)
        if start in TIFF_MAGIC:
            return path, "GTiff"
        if start == b"ENVI":
            return _data_of(path), "ENVI"
        if header_of(path) is not None:
            return path, "ENVI"
    except FileNotFoundError as error:
        raise SceneUnreadable(f"there is no file {path}: give the path of {FORMATS}") from error
    except OSError as error:
        raise SceneUnreadable(f"{path} cannot be read ({error.strerror}): check its name and permissions") from error
    if path.suffix.lower() in ENVI_SUFFIXES:
        raise SceneIncomplete(f"{path.name} has no ENVI header: add {path.with_suffix('.hdr').name}")
    raise SceneUnreadable(f"{path.name} is neither GeoTIFF nor ENVI: send {FORMATS}")


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def header_of(path: Path) -> Path | None:
    """The header that GDAL uses for a data file, named after its stem or its full name."""
    names = (path.stem + ".hdr", path.stem + ".HDR", path.name + ".hdr", path.name + ".HDR")
    for header in map(path.with_name, names):
        if header.is_file() and _start_of(header) == b"ENVI":
            return header
    return None


def _data_of(header: Path) -> Path:
    """The data file beside a header, unless it belongs to another header."""
    stem = header.name[: -len(header.suffix)] if header.suffix else header.name
    names = {stem.lower(), *(stem.lower() + suffix for suffix in ENVI_SUFFIXES)}
    for candidate in sorted(header.parent.iterdir()):
        has_its_name = candidate.name.lower() in names and candidate != header
        if has_its_name and candidate.is_file() and header_of(candidate) == header:
            return candidate
    raise SceneIncomplete(f"{header.name} is an ENVI header without its data: add {stem}.img")
