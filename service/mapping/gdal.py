"""GDAL as this package uses it: errors, sample types, and how scenes are opened."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from hyperscene.service.mapping.remote_file import RemoteFile

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
JPEG_2000 = "JP2OpenJPEG"  # the driver
# rasterio lets some of GDAL's own errors through.
GDAL_ERRORS = (RasterioError, CPLE_BaseError)
# The next strip reads some blocks of a tiled file again: enough for a row of them in most scenes, and a limit.
CACHE_BYTES = 192 << 20
OPENED = count()  # rasterio finds the opener of a file by its name


@contextmanager
def ignore_missing_georeference() -> Iterator[None]:
    """Silence rasterio's warning about a raster without georeference: the scene has its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


@contextmanager
def open_dataset(path: Path, driver: str, remote: RemoteFile | None = None) -> Iterator[Any]:
    """A scene's file, opened by one driver only; a remote one is read through `remote`, whose errors are raised."""
    # No other file may change what is read: no .aux.xml (PAM), and for a TIFF no mask, overview or world file, because
    # each may be a VRT that points to other files. ENVI needs its folder to find the header.
    siblings = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"} if driver in ("GTiff", JPEG_2000) else {}
    source = str(path) if remote is None else f"/remote-{next(OPENED)}"
    with rasterio.Env(GDAL_PAM_ENABLED="NO", GDAL_CACHEMAX=CACHE_BYTES, **siblings):
        try:
            # numpy reports no-data values beyond float32.
            with ignore_missing_georeference(), np.errstate(over="ignore"):
                dataset = rasterio.open(source, driver=driver, opener=remote)
            with dataset:
                yield dataset
        except GDAL_ERRORS as error:
            if remote is None or remote.error is None:
                raise
            raise remote.error from error
        if remote is not None and remote.error is not None:  # GDAL continues without some tags
            raise remote.error


def envi_header(dataset: Any) -> dict[str, str]:
    """An ENVI header by lower-case key: GDAL keeps keys in upper case as they are. Empty for other drivers."""
    return {key.lower(): text for key, text in dataset.tags(ns="ENVI").items()} if dataset.driver == "ENVI" else {}


def row_of_blocks_bytes(dataset: Any) -> int:
    """Bytes of a row of the file's blocks, unpacked."""
    block_rows, block_cols = dataset.block_shapes[0]
    cols = -(-dataset.width // block_cols) * block_cols
    return int(block_rows * cols * dataset.count * np.dtype(dataset.dtypes[0]).itemsize)


def gdal_message(error: Exception, path: Path) -> str:
    """GDAL's message without the folder, which is not for the user."""
    return str(error).replace(f"{path.parent}/", "")
