"""The folder of a map's results: checked first, written in a temporary folder, moved into place when complete."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from hyperscene.errors import OutputUnwritable, StorageFull, write_error
from hyperscene.model.bundle import Manifest
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.rasters import RASTERS
from hyperscene.service.mapping.scenes import Scene

RESULTS = (*RASTERS, "classes.qml", "preview.png", "summary.json", "item.json")
# For products with masks, and for bundles with statistics of what they learnt from.
OPTIONAL_RESULTS = ("mask.tif", "applicability.tif")


def check_output(scene: Path, output: Path) -> None:
    """Refuse to overwrite the scene itself or a folder; and GDAL writes only names in UTF-8."""
    if not str(output).isprintable():
        raise OutputUnwritable(f"{str(output)!r} contains characters that cannot be printed: choose another folder")
    for target in (output / name for name in (*RESULTS, *OPTIONAL_RESULTS)):
        try:
            if target.is_dir():
                raise OutputUnwritable(f"{target} is a folder: remove it, or choose another output folder")
            if target.exists() and target.samefile(scene):
                raise OutputUnwritable(f"{target} is the scene itself and would be overwritten: choose another folder")
        except OSError as error:
            raise _unusable(output, error) from error


def _unusable(output: Path, error: OSError) -> OutputUnwritable:
    return OutputUnwritable(f"{output} cannot be written ({error.strerror}): choose another folder")


@contextmanager
def temporary_output(output: Path) -> Generator[Path, None, None]:
    """A folder inside `output` for unfinished results; removed at the end, also after an error."""
    try:
        was_there = output.exists()
        output.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=output))
    except OSError as error:
        raise _unusable(output, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not was_there:
            with suppress(OSError):  # not empty, or removed
                output.rmdir()


def move_results(folder: Path, output: Path) -> None:
    """Replace earlier results by the finished ones."""
    try:
        for name in RESULTS:
            (folder / name).replace(output / name)
        for name in OPTIONAL_RESULTS:
            if (folder / name).exists():
                (folder / name).replace(output / name)
            else:
                (output / name).unlink(missing_ok=True)  # of an earlier map
    except OSError as error:
        raise write_error(error) from error


def require_space(folder: Path, scene: Scene, manifest: Manifest, options: MapOptions, checkpoint: Path | None) -> None:
    """Refuse if the disk is too small: the rasters, their compressed copies and the checkpoint exist side by side."""
    item_bytes = 1 if options.probability_type == "uint8" else 4
    needed = (2 if checkpoint is None else 3) * scene.rows * scene.cols * (2 + item_bytes * (manifest.classes + 1))
    if checkpoint is not None:
        needed -= sum(file.stat().st_size for file in checkpoint.rglob("*.npz"))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageFull(
            f"the results may need {needed >> 20} MB and {free >> 20} MB are free: free the disk, choose another "
            "folder, or crop the scene"
        )
