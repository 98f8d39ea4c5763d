"""Arrays in .npy and MATLAB .mat files (v5 and v7.3), found by their shape."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from hyperscene.errors import SceneUnreadable

HDF5_MAGIC = b"\x89HDF"
MAT_73_HEADER_BYTES = 512  # MATLAB puts its own text before the HDF5 signature


def read_array(
    path: Path, variable: str | None, option: str, wanted: str, fits: Callable[[tuple[int, ...]], bool]
) -> NDArray[Any]:
    """The numeric array whose shape fits; `option` is the command line option that selects one of several."""
    found = _read_all(path)
    if variable is not None:
        if variable not in found:
            raise SceneUnreadable(
                f"{path.name} has no variable {variable!r}; it contains {_listed(found)}: choose with {option}"
            )
        found = {variable: found[variable]}
    fitting = {name: array for name, array in found.items() if fits(array.shape)}
    if not fitting:
        raise SceneUnreadable(f"{path.name} contains no {wanted}; it contains {_listed(found)}")
    if len(fitting) > 1:
        raise SceneUnreadable(
            f"{path.name} contains several arrays that could be the {wanted}, {_listed(fitting)}: choose with {option}"
        )
    return next(iter(fitting.values()))


def _read_all(path: Path) -> dict[str, NDArray[Any]]:
    """Numeric arrays by name, in MATLAB's order of dimensions."""
    if not path.is_file():
        raise SceneUnreadable(f"there is no file {path}: check the path")
    try:
        if path.suffix.lower() == ".npy":
            found = {path.stem: np.load(path, allow_pickle=False)}
        elif _is_hdf5(path):
            found = _read_mat_73(path)
        else:
            found = _read_mat_5(path)
    except (ValueError, OSError, TypeError, KeyError, EOFError, NotImplementedError, MatReadError, zlib.error) as error:
        raise SceneUnreadable(f"{path.name} cannot be read ({error}): save it again as .mat or .npy") from error
    return {name: array for name, array in found.items() if array.dtype.kind in "biuf"}


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(MAT_73_HEADER_BYTES + 4)
    return start[:4] == HDF5_MAGIC or start[MAT_73_HEADER_BYTES:] == HDF5_MAGIC


def _read_mat_5(path: Path) -> dict[str, NDArray[Any]]:
    return {name: value for name, value in loadmat(path).items() if isinstance(value, np.ndarray)}


def _read_mat_73(path: Path) -> dict[str, NDArray[Any]]:
    import h5py

    with h5py.File(path) as file:
        # In HDF5, MATLAB's column-major arrays have their axes reversed.
        found = {name: value[()] for name, value in file.items() if isinstance(value, h5py.Dataset)}
    return {name: value.T for name, value in found.items() if isinstance(value, np.ndarray)}


def _listed(arrays: dict[str, NDArray[Any]]) -> str:
    return (
        ", ".join(f"{name} {' x '.join(map(str, array.shape))}" for name, array in arrays.items()) or "no numeric array"
    )
