"""Class shares and areas of polygons that the user gives, with intervals where a checked sample has enough points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.features import geometry_mask
from rasterio.transform import Affine
from rasterio.windows import Window

from hyperscene.errors import SampleUnusable
from hyperscene.service.assessment.accuracy import assess_points
from hyperscene.service.assessment.finished_map import BLOCK_PIXELS, FinishedMap, Totals
from hyperscene.service.assessment.samples import Answers
from hyperscene.service.assessment.vector_files import Features
from hyperscene.service.mapping.metadata import pixel_hectares

LEAST_POINTS = 30  # of a zone: fewer give intervals that say nothing
POLYGONS = (3, 6)


def zone_records(
    finished: FinishedMap, zones: Features, answers: Answers | None, name_field: str | None = None
) -> list[dict[str, Any]]:
    """One record for each polygon, in the order of the file; a pixel belongs to it if its centre does."""
    import shapely

    if not np.isin(shapely.get_type_id(zones.shapes), POLYGONS).all():
        raise SampleUnusable("zones are polygons, and the file holds other shapes: save the polygons alone")
    if name_field is not None and name_field not in zones.attributes:
        raise SampleUnusable(
            f"the zones have no field {name_field!r}; their fields are {', '.join(zones.attributes) or 'none'}"
        )
    names = [str(number) for number in range(1, len(zones.shapes) + 1)]
    if name_field is not None:
        names = [str(value) for value in zones.attributes[name_field]]
    return [
        {"zone": name, **_zone_record(finished, shape, answers)}
        for name, shape in zip(names, zones.shapes, strict=True)
    ]


def _zone_record(finished: FinishedMap, shape: Any, answers: Answers | None) -> dict[str, Any]:
    totals = _totals(finished, shape)
    weights = totals.weights
    shares = weights / weights.sum() if weights.any() else weights
    record: dict[str, Any] = {
        "pixels": int(totals.pixels.sum()),
        "no_data_pixels": totals.no_data_pixels,
        "hectares": None if totals.hectares is None else round(float(totals.hectares.sum()), 4),
        "classes": [
            {"name": name, "share": round(float(share), 6), **entry}
            for name, share, entry in zip(finished.class_names, shares, totals.record(), strict=True)
        ],
        "points": 0,
        "estimates": None,
    }
    if answers is not None:
        inside = _inside(shape, answers)
        record["points"] = int(inside.sum())
        if record["points"] >= LEAST_POINTS:
            record["estimates"] = _estimates(finished, answers, inside, totals)
    return record


def _inside(shape: Any, answers: Answers) -> NDArray[np.bool_]:
    """Which answers lie in a zone and name a class."""
    import shapely

    centers = shapely.points(answers.pixels[:, ::-1] + 0.5)
    return np.asarray(shapely.contains(shape, centers)) & (answers.classes > 0)


def _estimates(
    finished: FinishedMap, answers: Answers, inside: NDArray[np.bool_], totals: Totals
) -> list[dict[str, Any]]:
    """Areas of the classes in a zone: its points weighted by the map's classes within it."""
    pixels = answers.pixels[inside]
    mapped = finished.classes_at(pixels)
    found, _ = assess_points(mapped - 1, mapped, answers.classes[inside], totals, len(finished.class_names))
    factor = None if totals.hectares is None else float(totals.hectares.sum())
    return [
        {
            "name": name,
            "area_share": entry.area_share.record(8),
            "area_hectares": None if factor is None else entry.area_share.scaled(factor).record(4),
            "remarks": list(entry.remarks),
        }
        for name, entry in zip(finished.class_names, found.classes, strict=True)
    ]


def _totals(finished: FinishedMap, shape: Any) -> Totals:
    """The map's classes in a zone, read in windows around it."""
    count = len(finished.class_names) + 1
    pixels = np.zeros(count, np.int64)
    hectares: NDArray[np.float64] | None = np.zeros(count)
    with finished.open() as raster:
        for window in _windows(finished, shape):
            place = Affine.translation(window.col_off, window.row_off)
            size = (window.height, window.width)
            outside = geometry_mask([shape], size, place)
            classes = raster.read(1, window=window)
            bins = np.where(outside, count, classes).astype(np.int64) + (count + 1) * np.arange(len(classes))[:, None]
            by_row = np.bincount(bins.ravel(), minlength=(count + 1) * len(classes)).reshape(-1, count + 1)[:, :count]
            pixels += by_row.sum(axis=0)
            area = pixel_hectares(finished, window.row_off, window.row_off + window.height)
            hectares = None if area is None or hectares is None else hectares + area @ by_row
    return Totals(pixels[1:], None if hectares is None else hectares[1:], int(pixels[0]))


def _windows(finished: FinishedMap, shape: Any) -> Iterator[Window]:
    """Windows of bounded size over a shape's bounds within the map."""
    left, top, right, bottom = shape.bounds
    first_col, end_col = max(0, int(np.floor(left))), min(finished.cols, int(np.ceil(right)))
    first_row, end_row = max(0, int(np.floor(top))), min(finished.rows, int(np.ceil(bottom)))
    if first_col >= end_col:
        return
    rows = max(1, BLOCK_PIXELS // (end_col - first_col))
    for row in range(first_row, end_row, rows):
        yield Window(first_col, row, end_col - first_col, min(rows, end_row - row))
