"""Label files for the scene of the training tests: GeoJSON by hand, others written from it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import shapely

from tests.scenes import GRID

# Class, and first row, first column, last row and last column (exclusive) of a rectangle; the scene has quadrants.
RECTANGLES = (
    ("wheat", (2, 2, 6, 6)), ("wheat", (10, 3, 14, 8)), ("soil", (3, 20, 7, 25)), ("soil", (11, 26, 14, 30)),
    ("water", (20, 3, 24, 8)), ("water", (28, 10, 31, 14)), ("road", (20, 20, 24, 24)), ("road", (27, 26, 30, 31)),
)  # fmt: skip


def ring(rows_cols: tuple[float, float, float, float], shift: float = 0.0) -> list[list[float]]:
    """The outline of a rectangle in the scene's coordinates."""
    top, left, bottom, right = rows_cols
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return [[x + shift, y] for x, y in (GRID @ corner for corner in corners)]


def collection(
    rectangles: Any = RECTANGLES, *, crs: str | None = "EPSG:32633", shift: float = 0.0, field: str = "crop"
) -> dict[str, Any]:
    """A FeatureCollection of rectangles."""
    features = [
        {
            "type": "Feature",
            "properties": {"id": number, field: name},
            "geometry": {"type": "Polygon", "coordinates": [ring(corners, shift)]},
        }
        for number, (name, corners) in enumerate(rectangles)
    ]
    named = {"crs": {"type": "name", "properties": {"name": crs}}} if crs else {}
    return {"type": "FeatureCollection", **named, "features": features}


def write_geojson(path: Path, **changes: Any) -> Path:
    """The label file of most tests."""
    path.write_text(json.dumps(collection(**changes)))
    return path


def write_vectors(path: Path, driver: str) -> Path:
    """The same labels in another format; a Shapefile is zipped."""
    shapes = shapely.polygons([ring(corners) for _, corners in RECTANGLES])
    target = path.with_suffix(".shp") if path.suffix == ".zip" else path
    names = np.array([name for name, _ in RECTANGLES], object)
    pyogrio.raw.write(
        target, shapely.to_wkb(shapes), [names], np.array(["crop"]), geometry_type="Polygon", crs="EPSG:32633",
        driver=driver,
    )  # fmt: skip
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for part in target.parent.glob(f"{target.stem}.*"):
                if part != path:
                    archive.write(part, f"folder/{part.name}")
    return path


def many_vertices(count: int) -> str:
    """GeoJSON with a polygon of so many vertices."""
    x, y = GRID @ (4, 4)
    document = json.dumps(collection((*RECTANGLES[2:], ("wheat", (2, 2, 6, 6)))))
    first = json.dumps(ring((2, 2, 6, 6))[0])
    head, found, tail = document.rpartition(first)
    return head + found + f", [{x}, {y}]" * count + tail
