"""Two maps of the same place: which pixels changed, from what to what, and whether the maps lie on each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.shutil import copy as copy_raster
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from hyperscene.errors import MapUnusable, write_error
from hyperscene.service.assessment.finished_map import FinishedMap, raster_blocks
from hyperscene.service.assessment.registration import Shift, find_shift
from hyperscene.service.mapping.gdal import GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.metadata import pixel_hectares
from hyperscene.service.mapping.rasters import GDAL_ENV, rgb

CHANGES = "changes.tif"
UNCHANGED, FIRST_CHANGE = 1, 2  # 0 is no data in one of the maps
SHIFT_WARNING_PX = 0.75
MAX_CLASSES = 250  # so that every transition has a value of 16 bits


@dataclass(frozen=True)
class Comparison:
    """Pixels and hectares of each transition: classes of the first map in rows, of the second in columns."""

    first: FinishedMap
    second: FinishedMap
    class_names: tuple[str, ...]  # of both maps
    pixels: NDArray[np.int64]  # (K, K)
    hectares: NDArray[np.float64] | None
    left_out_pixels: int  # without a class in one of the maps
    shift: Shift | None
    is_resampled: bool

    def warnings(self) -> list[str]:
        """What a reader has to know before believing a change."""
        found = ["changes are counted pixels, not an area estimate: errors of both maps look like change"]
        if self.shift is not None and self.shift.length_px >= SHIFT_WARNING_PX:
            found.append(
                f"the maps seem to be shifted by {self.shift.rows_px:+.1f} rows and {self.shift.cols_px:+.1f} columns "
                f"(found in {self.shift.windows} windows): register the scenes first, or edges will appear as change"
            )
        if self.shift is None:
            found.append("whether the maps are shifted could not be found: they have too few edges in common")
        if self.is_resampled:
            found.append("the second map was resampled to the pixels of the first (nearest neighbour)")
        return found

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        total, same = int(self.pixels.sum()), int(np.trace(self.pixels))
        return {
            "first": {"name": self.first.name, "classes_sha256": self.first.sha256},
            "second": {"name": self.second.name, "classes_sha256": self.second.sha256},
            "class_names": list(self.class_names),
            "compared_pixels": total,
            "left_out_pixels": self.left_out_pixels,
            "changed_pixels": total - same,
            "changed_share": round((total - same) / total, 6) if total else None,
            "changed_hectares": None if self.hectares is None else round(
                float(self.hectares.sum() - np.trace(self.hectares)), 4),
            "transition_pixels": self.pixels.tolist(),
            "transition_hectares": None if self.hectares is None else np.round(self.hectares, 4).tolist(),
            "change_values": self._values(),
            "shift_px": None if self.shift is None else self.shift.record(),
            "warnings": self.warnings(),
            "version": version("hyperscene"),
        }  # fmt: skip

    def _values(self) -> list[dict[str, Any]]:
        """The meaning of the values of changes.tif, of the transitions that occur."""
        values: list[dict[str, Any]] = [{"value": UNCHANGED, "from": None, "to": None, "text": "unchanged"}]
        for before, after in np.argwhere(self.pixels > 0).tolist():
            if before != after:
                names = self.class_names[before], self.class_names[after]
                value = change_value(before, after, len(self.class_names))
                values.append({"value": int(value), "from": names[0], "to": names[1], "text": " -> ".join(names)})
        return values


def change_value(before: Any, after: Any, classes: int) -> Any:
    """The value of a transition between the classes 0..K-1."""
    return FIRST_CHANGE + before * classes + after


def compare_maps(first: FinishedMap, second: FinishedMap, output: Path | None = None) -> Comparison:
    """Compare two maps block by block, and write the change raster if there is an output."""
    names = tuple(dict.fromkeys((*first.class_names, *second.class_names)))
    if len(names) > MAX_CLASSES:
        raise MapUnusable(f"the maps have {len(names)} classes together, and at most {MAX_CLASSES} can be compared")
    is_resampled = not _same_grid(first, second)
    if is_resampled and (first.crs is None or second.crs is None or first.gcps or second.gcps):
        raise MapUnusable(
            f"the maps have {first.rows} x {first.cols} and {second.rows} x {second.cols} pixels and no coordinates "
            "that relate them: compare maps on one grid, or georeferenced ones"
        )
    count = len(names)
    pixels, left_out = np.zeros((count, count), np.int64), 0
    hectares: NDArray[np.float64] | None = np.zeros((count, count))
    with ExitStack() as stack:
        readers = _readers(stack, first, second, is_resampled)
        target = None if output is None else stack.enter_context(_open_changes(output, first))
        for top, before, after in _block_pairs(*readers, first, second, names):
            both = (before >= 0) & (after >= 0)
            left_out += int(both.size - both.sum())
            moves = (before * count + after)[both]
            pixels += np.bincount(moves, minlength=count**2).reshape(count, count)
            area = pixel_hectares(first, top, top + len(both))
            if area is None or hectares is None:
                hectares = None
            else:
                weights = np.broadcast_to(area[:, None], both.shape)[both]
                hectares += np.bincount(moves, weights, count**2).reshape(count, count)
            if target is not None:
                _write_changes(target, top, before, after, count)
        shift = find_shift(*readers)
    if output is not None:
        _optimise(output)
    if not pixels.any():
        raise MapUnusable("the maps have no pixel in common: compare maps of the same place")
    return Comparison(first, second, names, pixels, hectares, left_out, shift, is_resampled)


def _same_grid(first: FinishedMap, second: FinishedMap) -> bool:
    same_size = (first.rows, first.cols) == (second.rows, second.cols)
    return same_size and first.crs == second.crs and first.transform.almost_equals(second.transform, 1e-6)


def _readers(stack: ExitStack, first: FinishedMap, second: FinishedMap, is_resampled: bool) -> tuple[Any, Any]:
    """Both class rasters on the grid of the first."""
    before, after = (stack.enter_context(each.open()) for each in (first, second))
    if is_resampled:
        after = stack.enter_context(
            WarpedVRT(
                after, crs=first.crs, transform=first.transform, width=first.cols, height=first.rows,
                resampling=Resampling.nearest, nodata=0,
            )
        )  # fmt: skip
    return before, after


def _block_pairs(
    before: Any, after: Any, first: FinishedMap, second: FinishedMap, names: tuple[str, ...]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Blocks of both maps in numbers of the common classes, 0..K-1, or -1 without a class."""
    tables = [np.array([-1, *(names.index(name) for name in each.class_names)]) for each in (first, second)]
    for top, classes in raster_blocks(before):
        others = after.read(1, window=Window(0, top, first.cols, len(classes)))
        yield top, tables[0][classes], tables[1][others]


def _write_changes(target: Any, top: int, before: NDArray[Any], after: NDArray[Any], classes: int) -> None:
    values = np.where(before == after, UNCHANGED, change_value(before, after, classes))
    values[(before < 0) | (after < 0)] = 0
    try:
        target.write(values.astype(np.uint16), 1, window=Window(0, top, values.shape[1], len(values)))
    except GDAL_ERRORS as error:
        raise write_error(error) from error


def _open_changes(output: Path, finished: FinishedMap) -> Any:
    georeference: dict[str, Any] = {"crs": finished.crs, "transform": finished.transform}
    if finished.gcps:
        georeference = {"crs": finished.crs, "gcps": list(finished.gcps)}
    try:
        output.mkdir(parents=True, exist_ok=True)
        with rasterio.Env(**GDAL_ENV), ignore_missing_georeference():
            file = rasterio.open(
                output / f"plain_{CHANGES}", "w", driver="GTiff", height=finished.rows, width=finished.cols, count=1,
                dtype="uint16", nodata=0, bigtiff="if_safer", **georeference,
            )  # fmt: skip
    except (*GDAL_ERRORS, OSError) as error:
        raise write_error(error) from error
    file.write_colormap(1, {0: (0, 0, 0, 0), UNCHANGED: (*rgb("#d9dde3"), 255)})
    file.set_band_description(1, "change")
    return file


def _optimise(output: Path) -> None:
    plain = output / f"plain_{CHANGES}"
    try:
        with rasterio.Env(**GDAL_ENV), ignore_missing_georeference():
            copy_raster(
                plain, output / CHANGES, driver="COG", compress="DEFLATE", overview_resampling="MODE", strict=True
            )
    except GDAL_ERRORS as error:
        raise write_error(error) from error
    finally:
        plain.unlink(missing_ok=True)
