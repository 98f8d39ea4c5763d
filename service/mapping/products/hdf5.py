"""HDF5 and netCDF-4 files, opened so that nothing outside the file is read and no foreign code runs.

The HDF5 library follows external links and virtual datasets into other files of the machine, and loads plugins for
unknown filters. All are refused by their description, before the object is opened or data are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.products.product import Numbers

if TYPE_CHECKING:  # otherwise loaded with the first HDF5 file, because it takes memory in each process
    import h5py

MAGIC = b"\x89HDF\r\n\x1a\n"
# HDF5 may begin after a block of another program: MATLAB's has 512 bytes.
MAGIC_OFFSETS = (0, 512, 1024, 2048)
FILTERS = {1, 2, 3, 4, 5, 6}  # deflate, shuffle, Fletcher 32, szip, n-bit, scale and offset: those of the library
MAX_ATTRIBUTE_BYTES = 1 << 20
SLOTS = 100_003  # of a cache: a prime, about a hundred for each chunk that fits
MAX_LIST = 100_000  # values of a list of wavelengths or flags
MAX_MEMBERS = 10_000  # of a group
# h5py raises these for damaged files.
HDF5_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)


def is_hdf5(path: Path) -> bool:
    """Whether a file has the signature of HDF5."""
    with path.open("rb") as file:
        for offset in MAGIC_OFFSETS:
            file.seek(offset)
            if file.read(len(MAGIC)) == MAGIC:
                return True
    return False


@contextmanager
def open_hdf5(path: Path, cache_bytes: int = 1 << 20) -> Iterator[Hdf5File]:
    """An open file; `cache_bytes` is the size of the cache of chunks of each dataset."""
    import h5py

    with hdf5_errors(path):
        file = h5py.File(path, "r", rdcc_nbytes=cache_bytes, rdcc_nslots=SLOTS, locking=False)
    with file:
        yield Hdf5File(path, file)


@contextmanager
def hdf5_errors(path: Path) -> Iterator[None]:
    """Raise SceneUnreadable for what h5py raises, and for metadata that cannot be parsed."""
    try:
        yield
    except HDF5_ERRORS as error:
        raise SceneUnreadable(f"{path.name} cannot be read as HDF5 ({_reason(error, path)}): copy it again") from error


def _reason(error: BaseException, path: Path) -> str:
    return str(error).replace(f"{path.parent}/", "").replace("\n", " ")[:200] or type(error).__name__


class Hdf5File:
    """Groups, datasets and attributes by path; made by `open_hdf5`."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path = path
        self._file = file

    def has(self, name: str) -> bool:
        """Whether there is a dataset or a group."""
        return self._find(name) is not None

    def dataset(self, name: str) -> h5py.Dataset:
        """A dataset that holds its own data; raises SceneUnreadable."""
        import h5py

        found = self._find(name)
        if not isinstance(found, h5py.Dataset):
            raise SceneUnreadable(
                f"{self.path.name} has no dataset {name}: it is not a complete product; copy it again"
            )
        return found

    def cached_dataset(self, name: str, cache_bytes: int) -> h5py.Dataset:
        """A dataset with a cache of its own for chunks; a file that is open twice keeps that of its first opening."""
        import h5py
        from h5py import h5d, h5p

        self.dataset(name)  # checked, and closed again
        access = h5p.create(h5p.DATASET_ACCESS)
        access.set_chunk_cache(SLOTS, cache_bytes, 0.75)
        return h5py.Dataset(h5d.open(self._file.id, name.encode(), access))

    def members(self, group: str) -> list[str]:
        """The names in a group; none if it does not exist."""
        import h5py

        found = self._find(group) if group else self._file
        if not isinstance(found, h5py.Group):
            return []
        if len(found) > MAX_MEMBERS:
            raise SceneUnreadable(
                f"{self.path.name} has more than {MAX_MEMBERS} objects in one group: it is no product"
            )
        return [str(name) for name in found]

    def is_group(self, name: str) -> bool:
        """Whether a path is a group."""
        import h5py

        return isinstance(self._find(name), h5py.Group)

    def is_own(self, name: str) -> bool:
        """Whether a path consists of hard links and its dataset, if it is one, holds its own data."""
        try:
            return self._find(name) is not None
        except SceneUnreadable:
            return False

    def attribute(self, name: str, of: str = "") -> Any:
        """An attribute of a group or dataset as text, number or array; None if there is none."""
        owner = self._find(of) if of else self._file
        if owner is None or name not in owner.attrs:
            return None
        if owner.attrs.get_id(name).get_storage_size() > MAX_ATTRIBUTE_BYTES:
            raise SceneUnreadable(f"the attribute {name} of {self.path.name} is longer than 1 MB: it is no product's")
        return _plain(owner.attrs[name])

    def text(self, name: str, of: str = "") -> str:
        """An attribute as text; empty if there is none."""
        value = self.attribute(name, of)
        return "" if value is None else str(value).strip()

    def number(self, name: str, of: str = "") -> float | None:
        """An attribute as a number; None if there is none or it is not a number."""
        try:
            return float(np.ravel(self.attribute(name, of))[0])
        except (TypeError, ValueError, IndexError):
            return None

    def attribute_list(self, name: str, of: str = "") -> Numbers | None:
        """An attribute with several numbers."""
        value = self.attribute(name, of)
        return None if value is None else np.atleast_1d(np.asarray(value, np.float64)).ravel()

    def values(self, name: str) -> Numbers | None:
        """The numbers of a short dataset; None if there is none."""
        return None if not self.has(name) else np.asarray(self._short(name), np.float64).ravel()

    def strings(self, name: str) -> list[str]:
        """The texts of a short dataset; none if it does not exist."""
        if not self.has(name):
            return []
        return [str(_plain(value)) for value in np.atleast_1d(self._short(name)).ravel()]

    def _short(self, name: str) -> Any:
        dataset = self.dataset(name)
        if dataset.size is None or dataset.size > MAX_LIST:
            raise SceneUnreadable(f"{name} of {self.path.name} holds more than {MAX_LIST} values: it is no product's")
        return dataset[()]

    def _find(self, name: str) -> h5py.Group | h5py.Dataset | None:
        """The object at a path of hard links; None if there is none. Other links are refused unread."""
        import h5py
        from h5py import h5g

        found: Any = self._file
        for part in name.strip("/").split("/"):
            if not isinstance(found, h5py.Group) or not found.id.links.exists(part.encode()):
                return None
            if found.id.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
                raise self._refusal(name, "is a link, which may lead to another file")
            if h5g.get_objinfo(found.id, part.encode()).type == h5g.DATASET:
                self._require_own_data(found, part, name)
            found = found[part]
        return found if isinstance(found, h5py.Group | h5py.Dataset) else None

    def _require_own_data(self, group: h5py.Group, part: str, name: str) -> None:
        """Refuse a dataset by its creation properties; opening it reads no data and no other file."""
        from h5py import h5d

        properties = h5d.open(group.id, part.encode()).get_create_plist()
        if properties.get_layout() == h5d.VIRTUAL:
            raise self._refusal(name, "is a virtual dataset, whose data are in other files")
        if properties.get_external_count():
            raise self._refusal(name, "keeps its data in other files")
        foreign = {properties.get_filter(index)[0] for index in range(properties.get_nfilters())} - FILTERS
        if foreign:
            raise self._refusal(name, f"is packed by the filter {min(foreign)}, which needs a plugin")

    def _refusal(self, name: str, reason: str) -> SceneUnreadable:
        return SceneUnreadable(
            f"{name} of {self.path.name} {reason}; only data in the file itself are read: write it with h5repack"
        )


def _plain(value: Any) -> Any:
    """Text for bytes, a number for an array of one."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    return value.decode("utf-8", "replace").rstrip("\0") if isinstance(value, bytes) else value
