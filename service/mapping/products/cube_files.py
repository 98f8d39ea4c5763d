"""Rows of cubes: from HDF5 with a bounded cache of chunks, or from a file of our own that is written once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import SceneUnreadable, StorageFull, write_error
from hyperscene.service.mapping.products.hdf5 import Hdf5File, hdf5_errors, open_hdf5
from hyperscene.service.mapping.products.product import CubeDataset, CubeImage

# The chunks that a row of pixels touches are kept unpacked, up to this size; above it the cube is rewritten.
CACHE_BYTES = 96 << 20
# Samples in memory while a cube is rewritten.
PART_BYTES = 32 << 20
# h5py reads so many runs of neighbouring bands separately; for more, the bands between them are read too.
MAX_RUNS = 16
Report = Callable[[int, int], None]  # bytes done, of how many

_lock = threading.Lock()


class _Rows(Protocol):
    """Rows of a cube with all its columns."""

    def read_rows(self, bands: Sequence[int], top: int, bottom: int) -> NDArray[Any]:
        """Samples (bands, rows, cols) of bands counted from 0."""


@lru_cache(maxsize=1)
def process_folder() -> Path:
    """The folder for files of this process; removed when it ends."""
    return Path(_temporary().name)


@lru_cache(maxsize=1)
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="hyperscene-", ignore_cleanup_errors=True)


def cube_image(file: Hdf5File, datasets: Sequence[CubeDataset], nodata: float | None) -> CubeImage:
    """The image of datasets with three axes and the same rows, columns and type."""
    shapes = []
    for dataset in datasets:
        found = file.dataset(dataset.name)
        if found.ndim != 3 or 0 in found.shape:
            raise SceneUnreadable(f"{dataset.name} of {file.path.name} is no cube of rows, columns and bands")
        shapes.append({axis: int(found.shape[dataset.axes.index(axis)]) for axis in "rbc"})
    types = {file.dataset(dataset.name).dtype.newbyteorder("=") for dataset in datasets}
    if len(types) != 1 or len({(shape["r"], shape["c"]) for shape in shapes}) != 1:
        raise SceneUnreadable(f"the cubes of {file.path.name} differ in size or type: copy it again")
    chunks = [file.dataset(dataset.name).chunks or (0,) for dataset in datasets]
    dtype = types.pop()
    return CubeImage(
        path=file.path,
        datasets=tuple(datasets),
        rows=shapes[0]["r"],
        cols=shapes[0]["c"],
        bands=sum(shape["b"] for shape in shapes),
        dtype=str(dtype),
        nodata=nodata,
        chunk_bytes=max(int(np.prod(chunk, dtype=np.int64)) for chunk in chunks) * dtype.itemsize,
    )


def probe_bytes(image: CubeImage, cols: int) -> int:
    """Bytes that are unpacked to read some columns of one row in all bands."""
    total = 0
    with open_hdf5(image.path) as file, hdf5_errors(image.path):
        for dataset in image.datasets:
            found = None if dataset.offset else file.dataset(dataset.name)
            if found is not None and found.chunks is not None:
                chunk = dict(zip(dataset.axes, found.chunks, strict=True))
                samples = chunk["r"] * (image.bands + chunk["b"]) * (cols + chunk["c"])
                total += samples * int(found.dtype.itemsize)
    return total


@contextmanager
def open_in_place(image: CubeImage) -> Iterator[CubeReader]:
    """A reader of all cubes of an image for a few pixels; nothing is rewritten."""
    with ExitStack() as stack:
        parts: list[tuple[int, _Rows]] = []
        for dataset in image.datasets:
            if dataset.offset:
                parts.append(_open_dataset(image, dataset, process_folder(), None, stack))
            else:
                found = stack.enter_context(open_hdf5(image.path)).dataset(dataset.name)
                parts.append((found.shape[dataset.axes.index("b")], _ArrayRows(found, dataset, image.path)))
        yield CubeReader(image, parts)


@contextmanager
def open_cube(image: CubeImage, work: Path | None = None, report: Report | None = None) -> Iterator[CubeReader]:
    """A reader of all cubes of an image, for one thread; cubes that need it are rewritten into the folder `work`."""
    with ExitStack() as stack:
        parts: list[tuple[int, _Rows]] = []
        for dataset in image.datasets:
            parts.append(_open_dataset(image, dataset, work or process_folder(), report, stack))
        yield CubeReader(image, parts)


def _open_dataset(
    image: CubeImage, dataset: CubeDataset, work: Path, report: Report | None, stack: ExitStack
) -> tuple[int, _Rows]:
    """The number of bands, and the rows."""
    if dataset.offset:
        array = np.memmap(image.path, dataset.stored, "r", dataset.offset, _stored_shape(image, dataset))
        return image.bands, _ArrayRows(array, dataset, image.path)
    with open_hdf5(image.path) as file, hdf5_errors(image.path):
        found = file.dataset(dataset.name)
        bands, row_bytes = found.shape[dataset.axes.index("b")], chunk_row_bytes(found, dataset.axes)
        is_rewritten = row_bytes > CACHE_BYTES
        if is_rewritten:
            return bands, stack.enter_context(_rewritten(image, dataset, file, work, report))
    file = stack.enter_context(open_hdf5(image.path))
    rows = file.cached_dataset(dataset.name, max(1 << 20, row_bytes + row_bytes // 8))
    return bands, _ArrayRows(rows, dataset, image.path)


def _stored_shape(image: CubeImage, dataset: CubeDataset) -> tuple[int, ...]:
    sizes = {"r": image.rows, "b": image.bands, "c": image.cols}
    return tuple(sizes[axis] for axis in dataset.axes)


def chunk_row_bytes(dataset: Any, axes: str) -> int:
    """Bytes of the chunks that one row of pixels touches, unpacked; 0 if nothing has to be unpacked."""
    if dataset.chunks is None:
        return 0
    sizes = [
        chunk if axis == "r" else -(-size // chunk) * chunk
        for axis, size, chunk in zip(axes, dataset.shape, dataset.chunks, strict=True)
    ]
    return int(np.prod(sizes, dtype=np.int64)) * int(dataset.dtype.itemsize)


class CubeReader:
    """Reads the bands of all cubes of an image; answers the calls of a GDAL dataset that a scene uses."""

    def __init__(self, image: CubeImage, parts: Sequence[tuple[int, _Rows]]) -> None:
        self._image = image
        self._parts = parts
        self.block_shapes = [(1, image.cols)]  # parts of a row would be unpacked again and again
        self.count = image.bands

    def read(self, bands: Sequence[int], window: Window | None = None) -> NDArray[Any]:
        """Samples (bands, rows, cols) of bands counted from 1 across the cubes."""
        image = self._image
        window = window or Window(0, 0, image.cols, image.rows)
        top, left = int(window.row_off), int(window.col_off)
        rows, cols = int(window.height), int(window.width)
        samples = np.empty((len(bands), rows, cols), image.dtype)
        wanted, first = np.asarray(bands) - 1, 0
        for count, part in self._parts:
            places = np.flatnonzero((wanted >= first) & (wanted < first + count))
            if len(places):
                read = part.read_rows([int(wanted[place]) - first for place in places], top, top + rows)
                # A slice is copied twice as fast as a list of places.
                is_run = len(places) == places[-1] - places[0] + 1
                samples[slice(places[0], places[-1] + 1) if is_run else places] = read[:, :, left : left + cols]
            first += count
        return samples


class _ArrayRows:
    """Rows of an HDF5 dataset or an array in memory."""

    def __init__(self, array: Any, dataset: CubeDataset, path: Path) -> None:
        self._array = array
        self._axes = dataset.axes
        self._path = path

    def read_rows(self, bands: Sequence[int], top: int, bottom: int) -> NDArray[Any]:
        order = np.sort(bands)
        runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
        if len(runs) > MAX_RUNS:
            runs = [order]
        with hdf5_errors(self._path):
            parts = [self._read_run(int(run[0]), int(run[-1]) + 1, top, bottom) for run in runs]
        read = parts[0] if len(parts) == 1 else np.concatenate(parts)
        held = np.concatenate([np.arange(run[0], run[-1] + 1) for run in runs])
        if np.array_equal(held, bands):
            return read
        if np.array_equal(held[::-1], bands):
            return read[::-1]
        return np.asarray(read[np.searchsorted(held, bands)])

    def _read_run(self, first: int, last: int, top: int, bottom: int) -> NDArray[Any]:
        ranges = {"r": slice(top, bottom), "b": slice(first, last), "c": slice(None)}
        read = np.asarray(self._array[tuple(ranges[axis] for axis in self._axes)])
        return read.transpose([self._axes.index(axis) for axis in "brc"])


class _FileRows:
    """Rows of a file of our own: samples in the order rows, bands, columns, without a header."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any], bands: int, cols: int) -> None:
        self._file = file
        self._dtype = dtype
        self._bands, self._cols = bands, cols

    def read_rows(self, bands: Sequence[int], top: int, bottom: int) -> NDArray[Any]:
        row_samples = self._bands * self._cols
        self._file.seek(top * row_samples * self._dtype.itemsize)
        read = np.fromfile(self._file, self._dtype, (bottom - top) * row_samples)
        cube = read.reshape(bottom - top, self._bands, self._cols)
        return np.asarray(cube.transpose(1, 0, 2)[np.asarray(bands)])


@contextmanager
def _rewritten(
    image: CubeImage, dataset: CubeDataset, file: Hdf5File, work: Path, report: Report | None
) -> Iterator[_FileRows]:
    """The dataset as a file of our own; written by the first reader, used by all others."""
    found = file.dataset(dataset.name)
    shape = [found.shape[dataset.axes.index(axis)] for axis in "rbc"]
    status = image.path.stat()
    key = (str(image.path.resolve()), dataset.name, status.st_size, status.st_mtime_ns, str(found.dtype), shape)
    target = work / f"cube-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"
    try:
        with _lock:
            if not target.exists():
                _rewrite(_ArrayRows(found, dataset, image.path), found, dataset.axes, target, report)
        with target.open("rb") as cube:
            yield _FileRows(cube, found.dtype, shape[1], shape[2])
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno is None:
            raise SceneUnreadable(f"{image.path.name} is cut short or damaged ({error}): copy it again") from error
        raise write_error(error) from error


def _rewrite(source: _ArrayRows, dataset: Any, axes: str, target: Path, report: Report | None) -> None:
    """Write whole chunks at their place, at most PART_BYTES or one chunk's columns of them at a time."""
    rows, bands, cols = (dataset.shape[axes.index(axis)] for axis in "rbc")
    chunk_rows, chunk_bands, _ = (dataset.chunks[axes.index(axis)] for axis in "rbc")
    item_bytes = dataset.dtype.itemsize
    total = rows * bands * cols * item_bytes
    free = shutil.disk_usage(target.parent).free
    if total > free:
        raise StorageFull(
            f"the cube has to be rewritten by rows and needs {total >> 20} MB of {target.parent}; {free >> 20} MB are "
            "free: free the disk, or set TMPDIR to another folder"
        )
    step = max(1, PART_BYTES // (chunk_rows * cols * item_bytes * chunk_bands)) * chunk_bands
    done = 0
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            for top in range(0, rows, chunk_rows):
                bottom = min(top + chunk_rows, rows)
                for first in range(0, bands, step):
                    last = min(first + step, bands)
                    part = source.read_rows(range(first, last), top, bottom)
                    for row in range(top, bottom):
                        file.seek((row * bands + first) * cols * item_bytes)
                        file.write(np.ascontiguousarray(part[:, row - top]).data)
                    done += part.nbytes
                    if report is not None:
                        report(done, total)
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
