"""Label files that someone sends: recognised by content, opened with one driver each, and checked against a scene.

GDAL has drivers that read other files or addresses named in a file, so all but four are unregistered in the process
that calls `describe_labels`; a service calls it in a sandbox.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperscene.errors import LabelsUnusable
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.scene_files import TIFF_MAGIC
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data import classes
from hyperscene.training.data.label_files import LabelList, SceneGrid, list_labels
from hyperscene.training.data.swath_labels import ground_grid

# Format, and the name under which a file of it is opened, by the first bytes.
GEOPACKAGE, FLATGEOBUF, GEOJSON = (
    ("GeoPackage", "labels.gpkg"),
    ("FlatGeobuf", "labels.fgb"),
    ("GeoJSON", "labels.geojson"),
)
SHAPEFILE, TABLE, RASTER = ("Shapefile", "labels.shp"), ("CSV", "labels.csv"), ("GeoTIFF", "labels.tif")
DRIVERS = {"GPKG", "FlatGeobuf", "GeoJSON", "ESRI Shapefile"}
SQLITE_MAGIC, GEOPACKAGE_IDS, GEOPACKAGE_ID_AT = b"SQLite format 3\0", (b"GPKG", b"GP10", b"GP11"), 68
FLATGEOBUF_MAGIC, SHAPE_MAGIC, ZIP_MAGIC = b"fgb\x03fgb", b"\0\0\x27\x0a", b"PK\3\4"
SHAPEFILE_PARTS = (".shp", ".shx", ".dbf", ".prj", ".cpg")
FORMATS = "GeoPackage, GeoJSON, FlatGeobuf, a zipped Shapefile, CSV, or a GeoTIFF on the scene's grid"

MAX_BYTES = 64 << 20  # of a file, and of an archive's members together
MAX_SHAPES, MAX_VERTICES, MAX_CLASSES = 100_000, 500_000, 1_000
SHOWN_VALUES = 5
LIKELY_CLASSES = 200
# Words in the names of fields that hold classes, the likeliest first.
LIKELY_FIELDS = ("class", "label", "categ", "species", "crop", "cover", "type", "name")


@dataclass(frozen=True)
class _Fields:
    """The columns of a vector file or table, and what its shapes are."""

    columns: dict[str, list[str]]
    shapes: int
    empty: int = 0
    crs: str | None = None


def describe_labels(path: Path, scene_path: Path, class_field: str | None, limits: Limits) -> dict[str, Any]:
    """What a label file contains, and its classes on the scene's grid if their field is given or can be guessed.

    The file gets a name that tells its format, beside `path`; the document has it as `file`.
    """
    kind, named = name_by_content(path)
    document: dict[str, Any] = {"format": kind, "file": named.name, "fields": [], "class_field": None}
    warnings: list[str] = []
    if kind != RASTER[0]:
        fields = _read_fields(named, kind)
        class_field = class_field or likely_field(fields.columns)
        document |= {"class_field": class_field, "shapes": fields.shapes, "crs": fields.crs}
        document["fields"] = [_field(name, values) for name, values in fields.columns.items()]
        if fields.empty:
            warnings.append(f"{fields.empty} shapes have no geometry and are left out")
        if class_field is None:
            return document | {"classes": [], "pixels": 0, "warnings": warnings}
        _require_few_classes(named, class_field, fields.columns)
    labels = _drawn(named, scene_path, class_field, limits)
    return document | {"classes": (found := _classes(labels)), "pixels": _total(found), "warnings": warnings}


def name_by_content(path: Path) -> tuple[str, Path]:
    """The format of a file, and the path under which it now stands; refuses what is no label file."""
    size_bytes = path.stat().st_size
    if size_bytes > MAX_BYTES:
        raise LabelsUnusable(f"{path.name} has {size_bytes} bytes, and at most {MAX_BYTES} are accepted: simplify it")
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(ZIP_MAGIC):
        return SHAPEFILE[0], _unpack_shapefile(path)
    kind, name = _kind_of(start, path)
    named = path.with_name(name)
    if kind == GEOJSON[0]:
        _check_geojson(path)
    path.rename(named)
    return kind, named


def _kind_of(start: bytes, path: Path) -> tuple[str, str]:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(SQLITE_MAGIC) and start[GEOPACKAGE_ID_AT:][:4] in GEOPACKAGE_IDS:
        return GEOPACKAGE
    if start.startswith(FLATGEOBUF_MAGIC):
        return FLATGEOBUF
    if start[:4] in TIFF_MAGIC:
        return RASTER
    if start.startswith(SHAPE_MAGIC):
        raise LabelsUnusable(f"{path.name} is one file of a Shapefile: send its .shp, .shx, .dbf and .prj as one zip")
    if text.startswith(b"{"):
        return GEOJSON
    if b"," in text.partition(b"\n")[0] and b"\0" not in start and not text.startswith(b"<"):
        return TABLE
    raise LabelsUnusable(f"{path.name} is no label file: send {FORMATS}")


def _unpack_shapefile(path: Path) -> Path:
    """The files of the only Shapefile in a zip, under names of ours."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [entry for entry in archive.infolist() if Path(entry.filename).suffix.lower() in SHAPEFILE_PARTS]
            stems = {
                Path(entry.filename).with_suffix("") for entry in members if entry.filename.lower().endswith("shp")
            }
            if len(stems) != 1:
                raise LabelsUnusable(f"{path.name} contains {len(stems)} Shapefiles: pack exactly one")
            chosen = [entry for entry in members if Path(entry.filename).with_suffix("") in stems]
            if sum(entry.file_size for entry in chosen) > MAX_BYTES:
                raise LabelsUnusable(f"{path.name} unpacks to more than {MAX_BYTES} bytes: simplify its shapes")
            for entry in chosen:
                with archive.open(entry) as packed:
                    content = packed.read(MAX_BYTES + 1)
                path.with_name("labels").with_suffix(Path(entry.filename).suffix.lower()).write_bytes(content)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise LabelsUnusable(f"{path.name} is a damaged or encrypted archive ({error}): pack it again") from error
    missing = [part for part in SHAPEFILE_PARTS[:3] if not path.with_name("labels").with_suffix(part).exists()]
    if missing:
        raise LabelsUnusable(f"the Shapefile in {path.name} lacks its {', '.join(missing)}: pack it, too")
    path.unlink()
    return path.with_name(SHAPEFILE[1])


def _check_geojson(path: Path) -> None:
    """Refuse too many vertices before GDAL reads them, and coordinate systems by address, which GDAL would fetch."""
    content = path.read_bytes()
    if content.count(b"[") > 2 * MAX_VERTICES:  # each vertex has one bracket, and rings have few more
        raise _too_detailed(path, f"more than {MAX_VERTICES}")

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, value in pairs:
            kind = value.get("type") if isinstance(value, dict) else value
            if name == "crs" and kind not in (None, "name"):
                raise LabelsUnusable(f"{path.name} names its coordinate system by address: write its EPSG code instead")
        return dict(pairs)

    try:
        document = json.loads(content, object_pairs_hook=check)
    except (ValueError, RecursionError) as error:
        raise LabelsUnusable(f"{path.name} is not valid JSON ({error}): write it again") from error
    if document.get("type") != "FeatureCollection":
        raise LabelsUnusable(f"{path.name} is no FeatureCollection of GeoJSON: save it as one")


def pin_drivers() -> Any:
    """pyogrio with the drivers of label files only, and without a network."""
    os.environ["GDAL_HTTP_PROXY"] = "127.0.0.1:9"  # a closed port
    import pyogrio

    others = set(pyogrio.list_drivers()) - DRIVERS
    if others:
        pyogrio.set_gdal_config_options({"OGR_SKIP": ",".join(sorted(others)), "GDAL_HTTP_PROXY": "127.0.0.1:9"})
        pyogrio._ogr._register_drivers()
        if not set(pyogrio.list_drivers()) <= DRIVERS:
            raise LabelsUnusable("this server cannot limit the drivers of GDAL: report the version of pyogrio")
    return pyogrio


def _read_fields(path: Path, kind: str) -> _Fields:
    if kind == TABLE[0]:
        return _read_columns(path)
    pyogrio = pin_drivers()
    import shapely

    try:
        info = pyogrio.read_info(path, force_feature_count=True)
        if info["features"] > MAX_SHAPES:
            raise LabelsUnusable(f"{path.name} has {info['features']} shapes, and at most {MAX_SHAPES} are accepted")
        meta, _, geometries, columns = pyogrio.raw.read(path)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, pyogrio.errors.FieldError) as error:
        raise LabelsUnusable(f"{path.name} cannot be read as labels ({error}): send {FORMATS}") from error
    if geometries is None or not len(geometries):
        raise LabelsUnusable(f"{path.name} contains no shapes: draw some")
    shapes = shapely.from_wkb(geometries)
    vertices = int(shapely.get_num_coordinates(shapes).sum())
    if vertices > MAX_VERTICES:
        raise _too_detailed(path, str(vertices))
    is_empty = shapely.is_missing(shapes) | shapely.is_empty(shapes)
    if is_empty.all():
        raise LabelsUnusable(f"all {len(shapes)} shapes of {path.name} are empty: draw them again")
    values = {str(name): [str(value) for value in column] for name, column in zip(meta["fields"], columns, strict=True)}
    return _Fields(values, len(shapes), int(is_empty.sum()), meta["crs"] and str(meta["crs"])[:200])


def _read_columns(path: Path) -> _Fields:
    """The columns of a table; `list_labels` refuses one that is none."""
    import csv

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelsUnusable(f"{path.name} cannot be read as a table ({error}): save it as CSV in UTF-8") from error
    if len(lines) - 1 > MAX_SHAPES:
        raise LabelsUnusable(f"{path.name} has {len(lines) - 1} lines, and at most {MAX_SHAPES} are accepted")
    names = [name.strip() for name in lines[0]]
    columns = {name: [line[at] for line in lines[1:] if at < len(line)] for at, name in enumerate(names)}
    return _Fields(columns, len(lines) - 1)


def likely_field(columns: dict[str, list[str]]) -> str | None:
    """The field that seems to hold the classes: by its name, or the only one whose values repeat."""
    distinct = {name: len(set(values)) for name, values in columns.items()}
    few = [name for name, count in distinct.items() if 2 <= count <= LIKELY_CLASSES]
    for word in LIKELY_FIELDS:
        named = [name for name in few if word in name.lower()]
        if named:
            return named[0]
    repeated = [name for name in few if distinct[name] < len(columns[name])]
    return repeated[0] if len(repeated) == 1 else None


def _field(name: str, values: list[str]) -> dict[str, Any]:
    distinct = sorted(set(values))
    return {"name": name, "values": len(distinct), "examples": [value[:100] for value in distinct[:SHOWN_VALUES]]}


def _require_few_classes(path: Path, class_field: str, columns: dict[str, list[str]]) -> None:
    count = len(set(columns.get(class_field, [])))
    if count > MAX_CLASSES:
        raise LabelsUnusable(
            f"the field {class_field!r} of {path.name} has {count} different values, and at most {MAX_CLASSES} classes "
            "are accepted: choose the field with the classes"
        )


def _drawn(path: Path, scene_path: Path, class_field: str | None, limits: Limits) -> LabelList:
    """The labels on the scene's grid; the scene's pixels are not read."""
    scene = open_scene(scene_path, limits, counts_packed=False)
    shape = (scene.rows, scene.cols, len(scene.bands))
    grid = SceneGrid(scene.name, shape, scene.crs, scene.transform, ground_grid(scene))
    labels = list_labels(path, grid, class_field, None)
    found = np.unique(labels.values)
    if len(found) < 2:
        raise LabelsUnusable(
            f"the labels contain {len(found)} class{'es' * (len(found) != 1)} and at least two are needed: label more"
        )
    if len(found) > MAX_CLASSES:
        raise LabelsUnusable(f"{path.name} has {len(found)} classes, and at most {MAX_CLASSES} are accepted")
    return labels


def _classes(labels: LabelList) -> list[dict[str, Any]]:
    """Name, colour, pixels and shapes of each class."""
    values, pixels = np.unique(labels.values, return_counts=True)
    legend = classes.make_legend([int(value) for value in values], labels.in_file, None)
    return [
        {"value": entry.value, "name": entry.name, "color": entry.color, "pixels": int(count)}
        | ({} if labels.shapes is None else {"shapes": len(np.unique(labels.shapes[labels.values == entry.value]))})
        for entry, count in zip(legend, pixels, strict=True)
    ]


def _total(found: Iterable[dict[str, Any]]) -> int:
    return sum(entry["pixels"] for entry in found)


def _too_detailed(path: Path, vertices: str) -> LabelsUnusable:
    return LabelsUnusable(
        f"the shapes of {path.name} have {vertices} vertices, and at most {MAX_VERTICES} are accepted: simplify them"
    )
