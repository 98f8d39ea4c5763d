"""Labels as files: GeoJSON, GeoPackage and raster, read and written in sandbox processes.

Polygons follow the edges of pixels, so that a file that was exported draws exactly the same pixels when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import LabelsUnusable
from hyperscene.service.jobs.label_sets import COLOR, Change, LabelClass, LabelSet, Run, runs_of
from hyperscene.service.jobs.sandbox import Sandbox, SandboxLimits, serve

LIMITS = SandboxLimits(
    seconds=60.0,
    memory_bytes=4 << 30,
    doing="the labels could not be converted",
    reason="the file is damaged, or has far too many shapes",
)
PROCESSES = 2
MAX_VERTICES = 1_000_000
MAX_FILE_BYTES = 64 << 20
CLASS_FIELD = "class"
# Name of the file on disk, by media type.
SUFFIXES = {
    "application/geo+json": ".geojson",
    "application/geopackage+sqlite3": ".gpkg",
    "image/tiff": ".tif",
    "text/csv": ".csv",
}
FORMATS = {suffix.removeprefix("."): media_type for media_type, suffix in SUFFIXES.items() if suffix != ".csv"}
SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True)
class LabelGrid:
    """The grid of a scene, as its document has it."""

    rows: int
    cols: int
    crs: str | None
    transform: tuple[float, ...]

    @classmethod
    def of(cls, document: dict[str, Any]) -> LabelGrid:
        """The grid that labels are drawn on; refuses scenes in sensor geometry."""
        if document.get("map"):
            raise LabelsUnusable(
                "this scene is in sensor geometry, and labels are drawn on the ground: lay it out on the ground with "
                "other software, and send it again"
            )
        has_points = document["ground_control_points"] > 0
        crs = None if has_points else document["crs"]
        return cls(document["rows"], document["cols"], crs, tuple(document["transform"]))


class LabelConverter:
    """Converts labels in sandbox processes."""

    def __init__(self) -> None:
        self._sandbox = Sandbox(__name__, PROCESSES, LIMITS)

    def read(self, path: Path, grid: LabelGrid, class_field: str | None) -> tuple[list[LabelClass], list[Change]]:
        """The classes and pixels of a label file."""
        found = self._sandbox.run({"read": str(path), "grid": vars(grid), "class_field": class_field})
        classes = [LabelClass(each["value"], each["name"], each["color"]) for each in found["classes"]]
        return classes, [Change(each["value"], tuple(map(tuple, each["runs"]))) for each in found["classes"]]

    def draw(self, geometry: dict[str, Any], grid: LabelGrid, folder: Path) -> tuple[Run, ...]:
        """The pixels of a GeoJSON geometry."""
        path = folder / "drawn.geojson"
        feature = {"type": "Feature", "properties": {CLASS_FIELD: "drawn"}, "geometry": geometry}
        path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
        return self.read(path, grid, CLASS_FIELD)[1][0].runs

    def write(self, labels: LabelSet, grid: LabelGrid, path: Path) -> None:
        """Write the labels in the format of the path's suffix."""
        self._sandbox.run({"write": str(path), "grid": vars(grid), "labels": labels.document()})

    def close(self) -> None:
        """Kill the processes."""
        self._sandbox.close()


def _convert(request: dict[str, Any]) -> dict[str, Any]:
    grid = LabelGrid(**request["grid"])
    if "read" in request:
        return _read(Path(request["read"]), grid, request["class_field"])
    labels, path = LabelSet.from_document(request["labels"]), Path(request["write"])
    if path.suffix == ".tif":
        _write_raster(labels, grid, path)
    elif path.suffix == ".gpkg":
        _write_geopackage(labels, grid, path)
    else:
        path.write_text(json.dumps(_geojson(labels, grid)))
    return {}


def _read(path: Path, grid: LabelGrid, class_field: str | None) -> dict[str, Any]:
    from rasterio.crs import CRS
    from rasterio.transform import Affine

    from hyperscene.training.data.classes import distinct_color
    from hyperscene.training.data.label_files import SceneGrid, list_labels

    _check_file(path)
    if path.suffix == ".geojson":
        own = _own_runs(json.loads(path.read_bytes()))
        if own is not None:
            return own
    transform = Affine(*grid.transform[:6])
    is_placed = grid.crs is not None and transform != Affine.identity()
    scene = SceneGrid(
        "the scene",
        (grid.rows, grid.cols, 1),
        CRS.from_string(grid.crs) if is_placed and grid.crs is not None else None,
        transform if is_placed else None,
    )
    found = list_labels(path, scene, class_field, None)
    entries = []
    for number, value in enumerate(map(int, np.unique(found.values))):
        pixels = np.sort(found.places[found.values == value] @ (grid.cols, 1))
        name = found.in_file.names.get(value, str(value))
        color = found.in_file.colors.get(value) or distinct_color(number)
        entries.append({"value": number + 1, "name": name, "color": color.lower(), "runs": runs_of(pixels, grid.cols)})
    if not entries:
        raise LabelsUnusable(f"{path.name} labels no pixel of the scene: check its coordinates")
    return {"classes": entries}


def _check_file(path: Path) -> None:
    """Refuse files whose content is not what the format says: GDAL would choose another driver."""
    if path.suffix == ".geojson":
        try:
            document = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise LabelsUnusable(f"the labels are not GeoJSON ({error}): send a FeatureCollection") from error
        if not isinstance(document, dict) or document.get("type") != "FeatureCollection":
            raise LabelsUnusable("the labels are not a GeoJSON FeatureCollection: send one")
        vertices = sum(_count_vertices(each.get("geometry")) for each in _features(document))
        if vertices > MAX_VERTICES:
            raise LabelsUnusable(f"the labels have {vertices} vertices; {MAX_VERTICES} are accepted: simplify them")
    elif path.suffix == ".gpkg" and path.read_bytes()[:16] != SQLITE_MAGIC:
        raise LabelsUnusable("the labels are not a GeoPackage: send GeoJSON, GeoPackage, GeoTIFF or CSV")


def _features(document: dict[str, Any]) -> list[dict[str, Any]]:
    features = document.get("features")
    if not isinstance(features, list) or not all(isinstance(each, dict) for each in features):
        raise LabelsUnusable("the FeatureCollection has no list of features: send one")
    return features


def _count_vertices(node: Any) -> int:
    """Positions in a geometry, at any depth."""
    count, waiting = 0, [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [each.get("coordinates"), each.get("geometries")]
        elif isinstance(each, list):
            if each and not isinstance(each[0], list | dict):
                count += 1
            else:
                waiting += each
    return count


def _own_runs(document: dict[str, Any]) -> dict[str, Any] | None:
    """Classes and exact pixels of a file that hyperscene exported; None for any other."""
    entries: dict[int, dict[str, Any]] = {}
    for feature in _features(document):
        known = feature.get("properties")
        if not isinstance(known, dict) or not {CLASS_FIELD, "value", "color", "runs"} <= set(known):
            return None
        value, runs = known["value"], known["runs"]
        is_sound = isinstance(value, int) and isinstance(runs, list) and COLOR.fullmatch(str(known["color"]))
        if not is_sound or not all(_is_run(run) for run in runs):
            raise LabelsUnusable("the property `runs` is not a list of [row, first column, number]: remove it")
        first = {"value": value, "name": str(known[CLASS_FIELD]), "color": str(known["color"]), "runs": []}
        entries.setdefault(value, first)["runs"] += runs
    return {"classes": list(entries.values())} if entries else None


def _is_run(run: Any) -> bool:
    return isinstance(run, list) and len(run) == 3 and all(type(number) is int for number in run)


def _areas(labels: LabelSet) -> Iterator[tuple[LabelClass, dict[str, Any], list[Run]]]:
    """The connected areas of each class as multipolygons in pixel coordinates (col, row), and their pixels.

    Pixels that touch at a corner belong together; their polygons are separate, or they would not be valid.
    """
    from rasterio.features import rasterize, shapes
    from rasterio.transform import Affine

    for each in labels.classes:
        own = labels.pixels[labels.values == each.value]
        if not len(own):
            continue
        rows, cols = np.divmod(own, labels.cols)
        top, left = int(rows.min()), int(cols.min())
        drawn = np.zeros((int(rows.max()) - top + 1, int(cols.max()) - left + 1), np.uint8)
        drawn[rows - top, cols - left] = 1
        whole = [shape for shape, _ in shapes(drawn, mask=drawn > 0, connectivity=8)]
        numbers = rasterize(list(zip(whole, range(1, len(whole) + 1), strict=True)), drawn.shape, dtype="int32")
        polygons: dict[int, list[Any]] = {number: [] for number in range(1, len(whole) + 1)}
        for shape, number in shapes(numbers, mask=drawn > 0, transform=Affine.translation(left, top)):
            polygons.setdefault(int(number), []).append(shape["coordinates"])
        number_of = numbers[rows - top, cols - left]
        for number, parts in polygons.items():
            pixels = own[number_of == number]
            if len(pixels):
                yield each, {"type": "MultiPolygon", "coordinates": parts}, runs_of(pixels, labels.cols)


def _placed(geometry: dict[str, Any], grid: LabelGrid, target: Any) -> dict[str, Any]:
    """A geometry in pixel coordinates, in the target system; unchanged if the scene has no position."""
    from rasterio.crs import CRS
    from rasterio.transform import Affine
    from rasterio.warp import transform as transform_points

    transform = Affine(*grid.transform[:6])
    if grid.crs is None or transform == Affine.identity():
        return geometry
    source = CRS.from_string(grid.crs)

    def move(ring: Any) -> list[list[float]]:
        points: NDArray[np.float64] = np.array(ring, float)
        x, y = transform @ (points[:, 0], points[:, 1])
        if source != target:
            x, y = map(np.array, transform_points(source, target, x, y))
        return np.column_stack([x, y]).round(9).tolist()  # type: ignore[no-any-return]

    moved = [[move(ring) for ring in polygon] for polygon in geometry["coordinates"]]
    return {"type": "MultiPolygon", "coordinates": moved}


def _geojson(labels: LabelSet, grid: LabelGrid) -> dict[str, Any]:
    """A feature for each area, in longitude and latitude, or in pixels if the scene has no position."""
    from rasterio.crs import CRS

    features = [
        {
            "type": "Feature",
            "properties": {CLASS_FIELD: each.name, "value": each.value, "color": each.color, "runs": runs},
            "geometry": _placed(shape, grid, CRS.from_epsg(4326)),
        }
        for each, shape, runs in _areas(labels)
    ]
    return {"type": "FeatureCollection", "features": features}


def _write_geopackage(labels: LabelSet, grid: LabelGrid, path: Path) -> None:
    """A layer `labels` in the scene's reference system."""
    try:
        import pyogrio
        import shapely
    except ImportError as error:
        raise LabelsUnusable("this server writes no GeoPackage, since pyogrio is missing: export GeoJSON") from error
    from rasterio.crs import CRS

    crs = None if grid.crs is None else CRS.from_string(grid.crs)
    found = [(each, json.dumps(_placed(shape, grid, crs))) for each, shape, _ in _areas(labels)]
    if not found:
        raise LabelsUnusable("nothing is labelled yet: a GeoPackage needs at least one label")
    shapes = shapely.from_geojson([shape for _, shape in found])
    columns = [
        np.array([each.name for each, _ in found], object),
        np.array([each.value for each, _ in found], np.int32),
        np.array([each.color for each, _ in found], object),
    ]
    pyogrio.raw.write(
        path, shapely.to_wkb(shapes), columns, [CLASS_FIELD, "value", "color"], layer="labels", driver="GPKG",
        geometry_type="MultiPolygon", crs=grid.crs,
    )  # fmt: skip


def _write_raster(labels: LabelSet, grid: LabelGrid, path: Path) -> None:
    """One band of class values, 0 for none, with names and colours as `train` reads them."""
    import rasterio
    from rasterio.crs import CRS
    from rasterio.transform import Affine

    from hyperscene.service.mapping.gdal import ignore_missing_georeference
    from hyperscene.service.mapping.rasters import rgb

    values = np.zeros(grid.rows * grid.cols, np.uint8)
    values[labels.pixels] = labels.values
    crs = None if grid.crs is None else CRS.from_string(grid.crs)
    names = {each.value: each.name for each in labels.classes}
    listed = ", ".join(names.get(value, "-") for value in range(1, max(names, default=0) + 1))
    with ignore_missing_georeference():
        file = rasterio.open(
            path, "w", driver="GTiff", height=grid.rows, width=grid.cols, count=1, dtype="uint8", nodata=0, crs=crs,
            transform=Affine(*grid.transform[:6]), compress="deflate", tiled=True, blockxsize=256, blockysize=256,
        )  # fmt: skip
    with file:
        file.update_tags(class_names=f"{{no data, {listed}}}")
        file.write_colormap(1, {each.value: rgb(each.color) for each in labels.classes})
        file.write(values.reshape(grid.rows, grid.cols), 1)


if __name__ == "__main__":
    os.environ["OGR_SKIP"] = os.environ["GDAL_SKIP"] = "OGR_VRT,VRT,SQLite,OGR_GMLAS"
    serve(_convert)
