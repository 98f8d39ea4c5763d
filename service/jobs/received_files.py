"""The files of an upload, and the names under which GDAL opens them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hyperscene.errors import SceneIncomplete, SceneUnreadable
from hyperscene.service.mapping.scene_files import ENVI_SUFFIXES, FORMATS, JPEG_2000_MAGIC, TIFF_MAGIC

MAX_NAME_LENGTH = 255
HEADER_NAME = "scene.hdr"  # every ENVI header is stored under this name
# Sensor modules recognise a product by the names of its files: these are kept, if they are plain, in a folder of ours.
PRODUCT_FOLDER = "product"
PRODUCT_FILE = re.compile(
    r"[A-Za-z0-9][\w.+-]{0,200}\.(tiff?|geotiff|jp2|jpeg2000|bsq|bil|bip|xml|hdr|h5|he5|hdf5?|nc4?)",
    re.ASCII | re.IGNORECASE,
)
PRODUCT_KEY = re.compile(r".+(METADATA\.XML|SPECTRAL_IMAGE\.HDR)", re.IGNORECASE)
HDF5_SUFFIXES = (".h5", ".he5", ".hdf", ".hdf5", ".nc", ".nc4")
ARCHIVES = {"zip": "scene.zip", "tar": "scene.tar", "gzip": "scene.tar.gz"}  # the name of each kind on disk
ZIP_MAGIC, GZIP_MAGIC, HDF5_MAGIC = b"PK\3\4", b"\x1f\x8b", b"\x89HDF"
ARRAY_MAGIC = (b"\x93NUM", b"MATL")
PRODUCTS = "or a product: a zip, a tar.gz, an .h5, .he5 or .nc file, or the image with METADATA.XML and its other files"


@dataclass(frozen=True)
class ReceivedFile:
    """A file of an upload, on disk under a name that the server chose."""

    path: Path
    name: str  # as sent
    start: bytes  # its first four bytes
    size_bytes: int


def name_scene_files(files: list[ReceivedFile]) -> ReceivedFile:
    """Give the files of a scene the names that its reader expects; returns what to open. Sidecars are refused."""
    for file in files:
        if file.size_bytes == 0:
            raise SceneUnreadable(f"{clean_name(file.name)} is empty: send {FORMATS}")
        if file.start in ARRAY_MAGIC or Path(file.name).suffix.lower() in (".npy", ".mat"):
            raise SceneUnreadable(
                f"{clean_name(file.name)} is a plain array, which is mapped by `hyperscene classify` only: save it as "
                f"{FORMATS}"
            )
    ordered = sorted(files, key=_kind)
    match [_kind(file) for file in ordered]:
        case ["GeoTIFF"]:
            return _renamed(ordered[0], "scene.tif")
        case ["zip" | "tar" | "gzip" as kind]:
            return _renamed(ordered[0], ARCHIVES[kind])
        case ["HDF5"] if not (PRODUCT_FILE.fullmatch(ordered[0].name) and _has_hdf5_name(ordered[0])):
            return _renamed(ordered[0], "scene.h5")
        case ["ENVI data", "ENVI header"] | ["ENVI header", "other" | "gzip" | "HDF5" | "tar" | "zip"]:
            header, data = sorted(ordered, key=lambda file: file.start != b"ENVI")
            _renamed(header, HEADER_NAME)
            return _renamed(data, "scene.img")
        case ["ENVI header"]:
            raise SceneIncomplete(
                f"{clean_name(files[0].name)} is an ENVI header without its data: send both as `scene`"
            )
        case ["ENVI data"]:
            raise SceneIncomplete(f"{clean_name(files[0].name)} is ENVI data without its header: send both as `scene`")
    if _is_product(ordered):
        return _in_product_folder(ordered)
    names = ", ".join(clean_name(file.name) for file in files[:4]) or "nothing"
    raise SceneUnreadable(
        f"a scene is one GeoTIFF, or ENVI data and its header, {PRODUCTS}, and nothing else; found {names}"
    )


def _is_product(files: list[ReceivedFile]) -> bool:
    """Whether the files may be one product: plain names, at least one that describes the others, or all HDF5."""
    names = {file.name.lower() for file in files}
    are_plain = len(names) == len(files) > 0 and all(PRODUCT_FILE.fullmatch(file.name) for file in files)
    kinds = {_kind(file) for file in files}
    rasters = {"GeoTIFF", "JPEG 2000", "ENVI data", "ENVI header"}
    is_described = kinds <= rasters | {"XML"} and any(PRODUCT_KEY.fullmatch(name) for name in names)
    return are_plain and (kinds == {"HDF5"} or is_described)


def _in_product_folder(files: list[ReceivedFile]) -> ReceivedFile:
    """Move the files into a folder under their own names.

    Returns a single file, or the folder under the name of its largest file.
    """
    folder = files[0].path.with_name(PRODUCT_FOLDER)
    folder.mkdir()
    for file in files:
        file.path.rename(folder / file.name)
    largest = max(files, key=lambda file: file.size_bytes)
    opened = folder / largest.name if len(files) == 1 and _has_hdf5_name(largest) else folder
    return ReceivedFile(opened, largest.name, b"", sum(file.size_bytes for file in files))


def _kind(file: ReceivedFile) -> str:
    """What the file seems to be; ENVI data may have any name if their header is sent, too."""
    if file.start in TIFF_MAGIC:
        return "GeoTIFF"
    if file.start == b"ENVI":
        return "ENVI header"
    if file.start in JPEG_2000_MAGIC:
        return "JPEG 2000"
    suffix = Path(file.name).suffix.lower()
    if file.start == ZIP_MAGIC:
        return "zip"
    if file.start.startswith(GZIP_MAGIC) and suffix not in ENVI_SUFFIXES:
        return "gzip"
    if file.start == HDF5_MAGIC or _has_hdf5_name(file):
        return "HDF5"
    if suffix == ".xml" and PRODUCT_KEY.fullmatch(file.name):
        return "XML"
    if suffix == ".tar":
        return "tar"
    return "ENVI data" if suffix in ENVI_SUFFIXES else "other"


def _has_hdf5_name(file: ReceivedFile) -> bool:
    return Path(file.name).suffix.lower() in HDF5_SUFFIXES


def with_sent_names(text: str, data: ReceivedFile, files: list[ReceivedFile]) -> str:
    """A message with the file names as they were sent."""
    if data.path.name in ARCHIVES.values():
        return text.replace(data.path.name, clean_name(data.name))
    for file in [] if data.path.name == PRODUCT_FOLDER else files:
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
