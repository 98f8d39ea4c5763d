"""Plain cubes without a sensor: .npy, MATLAB's .mat, HDF5 and netCDF, found by their three axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hyperscene.errors import SceneUnreadable, SceneUnusable
from hyperscene.model.spectra import Wavelengths, parse_list, to_nm
from hyperscene.service.mapping.products.cube_files import cube_image, process_folder
from hyperscene.service.mapping.products.hdf5 import MAGIC, MAX_LIST, Hdf5File, hdf5_errors, open_hdf5
from hyperscene.service.mapping.products.netcdf3 import is_netcdf3, read_variables
from hyperscene.service.mapping.products.product import CubeDataset, CubeImage, Numbers, Product

NPY_MAGIC = b"\x93NUMPY"
MAT_5_MAGIC = b"MATLAB 5.0"
MAT_73_OFFSET = 512  # MATLAB's own text stands before the HDF5 signature
WAVELENGTH_NAMES = ("wavelength", "wavelengths", "wavelengths_nm", "wavelength_3d", "wl", "lambda")
MAX_OBJECTS = 1_000
# A service stores uploads under names of its own, none of which is one of these.
NAMES = re.compile(r".+\.(npy|mat|h5|hdf5?|he5|nc4?)", re.IGNORECASE | re.DOTALL)


def describe(path: Path, variable: str | None, work: Path | None) -> Product | None:
    """The cube of a file; None if it is no array file. MATLAB's older files are copied into the folder `work`."""
    if not NAMES.fullmatch(path.name):
        return None
    with path.open("rb") as file:
        start = file.read(MAT_73_OFFSET + len(MAGIC))
    if start.startswith(NPY_MAGIC):
        return _product(path, _npy_image(path))
    if start.startswith(MAT_5_MAGIC):
        return _product(path, _mat_image(path, variable, work or process_folder()))
    if MAGIC in (start[: len(MAGIC)], start[MAT_73_OFFSET:]):
        with open_hdf5(path) as opened, hdf5_errors(path):
            return _hdf5_product(opened, variable, is_matlab=path.suffix.lower() == ".mat")
    return _netcdf3_product(path, variable) if is_netcdf3(start) else None


def read_wavelengths(path: Path) -> Wavelengths:
    """Wavelengths in nm from a text file with one number for each band."""
    try:
        found = to_nm(parse_list(path.read_text(encoding="utf-8")), None)
    except (OSError, ValueError) as error:
        raise SceneUnusable(f"{path} cannot be read as wavelengths ({error}): write one number per line") from error
    if found is None:
        raise SceneUnusable(f"{path.name} contains no wavelengths: write one number above 0 for each band")
    return found


def _product(
    path: Path, image: CubeImage, nm: Numbers | None = None, scale: float | None = None, offset: float | None = None
) -> Product:
    return Product(
        sensor="",
        level="",
        name=path.name,
        image=image,
        wavelengths_nm=nm,
        scales=np.full(image.bands, 1.0 if scale is None else scale),
        offsets=np.full(image.bands, offset or 0.0),
    )


def _npy_image(path: Path) -> CubeImage:
    """An array (rows, cols, bands) in memory-mapped reading; objects are refused unread."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SceneUnreadable(f"{path.name} cannot be read ({error}): save it again as .npy") from error
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "iuf":
        raise SceneUnreadable(
            f"{path.name} has no cube but {_shape(array.shape)} of {array.dtype}: save numbers as rows x cols x bands"
        )
    rows, cols, bands = (int(size) for size in array.shape)
    # A Fortran array has its axes in reverse order on disk.
    axes = "rcb" if array.flags.c_contiguous else "bcr"
    dataset = CubeDataset("", axes, int(array.offset), array.dtype.str)
    return CubeImage(path, (dataset,), rows, cols, bands, str(array.dtype.newbyteorder("=")))


def _mat_image(path: Path, variable: str | None, work: Path) -> CubeImage:
    """The cube of a MATLAB file before v7.3, which has no part that could be read alone: copied once as .npy."""
    try:
        from scipy.io import loadmat, whosmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise SceneUnreadable(f'{path.name} needs scipy: install "hyperscene[train]", or save it as .npy') from error
    status = path.stat()
    try:
        shapes = {name: shape for name, shape, kind in whosmat(path) if len(shape) == 3 and kind != "cell"}
        name = _chosen(path, shapes, variable)
        target = work / f"{path.stem}-{status.st_size}-{status.st_mtime_ns}-{name}.npy"
        if not target.exists():
            np.save(target, loadmat(path, variable_names=[name])[name])
    except (ValueError, OSError, TypeError, KeyError, EOFError, NotImplementedError, MatReadError) as error:
        raise SceneUnreadable(f"{path.name} cannot be read ({error}): save it again as .mat or .npy") from error
    return _npy_image(target)


def _chosen(path: Path, shapes: Mapping[str, tuple[int, ...]], variable: str | None) -> str:
    """The wanted cube, or the only one."""
    listed = ", ".join(f"{name} {_shape(shape)}" for name, shape in shapes.items()) or "no cube"
    if variable is not None:
        if variable not in shapes:
            raise SceneUnreadable(
                f"{path.name} has no variable {variable!r}; it contains {listed}: choose with --variable"
            )
        return variable
    if not shapes:
        raise SceneUnreadable(f"{path.name} has no cube of rows x cols x bands and is no product of a known sensor")
    if len(shapes) > 1:
        raise SceneUnreadable(f"{path.name} contains several cubes, {listed}: choose with --variable")
    return next(iter(shapes))


def _hdf5_product(file: Hdf5File, variable: str | None, *, is_matlab: bool) -> Product:
    shapes: dict[str, tuple[int, ...]] = {}
    lists: dict[str, tuple[Numbers, str]] = {}
    for name in file.members("") if is_matlab else _datasets(file):
        if not file.is_own(name) or file.is_group(name):
            continue
        dataset = file.dataset(name)
        if dataset.ndim == 3 and min(dataset.shape) > 0 and dataset.dtype.kind in "iuf":
            shapes[name] = dataset.shape
        elif dataset.ndim == 1 and _is_wavelengths(name) and (values := file.values(name)) is not None:
            lists[name] = values, file.text("units", name)
    name, nm, axes = _understood(file.path, shapes, lists, variable, is_matlab=is_matlab)
    nodata, scale, offset = (file.number(key, name) for key in ("_FillValue", "scale_factor", "add_offset"))
    return _product(file.path, cube_image(file, [CubeDataset(name, axes)], nodata), nm, scale, offset)


def _netcdf3_product(path: Path, variable: str | None) -> Product:
    variables = read_variables(path)
    shapes = {
        name: found.shape
        for name, found in variables.items()
        if len(found.shape) == 3 and min(found.shape) > 0 and np.dtype(found.stored).kind in "iuf"
    }
    lists = {
        name: (found.values(path), str(found.attributes.get("units", "")))
        for name, found in variables.items()
        if len(found.shape) == 1 and found.shape[0] <= MAX_LIST and _is_wavelengths(name)
    }
    name, nm, axes = _understood(path, shapes, lists, variable)
    cube = variables[name]
    rows, cols, bands = (cube.shape[axes.index(axis)] for axis in "rcb")
    dataset = CubeDataset("", axes, cube.offset, cube.stored)
    scale, offset = cube.number("scale_factor"), cube.number("add_offset")
    dtype = str(np.dtype(cube.stored).newbyteorder("="))
    return _product(path, CubeImage(path, (dataset,), rows, cols, bands, dtype, cube.fill), nm, scale, offset)


def _is_wavelengths(name: str) -> bool:
    return name.rsplit("/", 1)[-1].lower() in WAVELENGTH_NAMES


def _understood(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    lists: Mapping[str, tuple[Numbers, str]],
    variable: str | None,
    *,
    is_matlab: bool = False,
) -> tuple[str, Numbers | None, str]:
    """The cube's name, its wavelengths, and its axes: that of the bands has a wavelength for each entry.

    In HDF5, MATLAB's axes are reversed.
    """
    name = _chosen(path, shapes, variable)
    known = (to_nm(values.tolist(), units or None) for values, units in lists.values())
    nm = next((found for found in known if found is not None and len(found) in shapes[name]), None)
    band_axis = shapes[name].index(len(nm)) if nm is not None else (0 if is_matlab else 2)
    others = "cr" if is_matlab else "rc"
    return name, nm, others[:band_axis] + "b" + others[band_axis:]


def _datasets(file: Hdf5File) -> list[str]:
    """The paths of all datasets; links are left out."""
    found, waiting = list[str](), [""]
    seen = 0
    while waiting:
        group = waiting.pop()
        for member in file.members(group):
            seen += 1
            if seen > MAX_OBJECTS:
                raise SceneUnreadable(f"{file.path.name} has more than {MAX_OBJECTS} objects: it is no cube")
            name = f"{group}/{member}".lstrip("/")
            if file.is_own(name):
                (waiting if file.is_group(name) else found).append(name)
    return sorted(found)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
