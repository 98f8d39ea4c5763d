"""The files beside the rasters: summary with counts and areas, QGIS style, preview and STAC Item."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar
from xml.sax.saxutils import quoteattr

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.warp import transform as transform_points

from hyperscene.errors import write_error
from hyperscene.json_text import json_text
from hyperscene.model.bundle import Bundle, Manifest
from hyperscene.service.mapping.classify import RemoteEngine
from hyperscene.service.mapping.describe import describe_product
from hyperscene.service.mapping.devices import precision_of
from hyperscene.service.mapping.engines import Engine
from hyperscene.service.mapping.footprints import find_footprint
from hyperscene.service.mapping.gdal import GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.grids import is_on_earth
from hyperscene.service.mapping.rasters import GDAL_ENV
from hyperscene.service.mapping.scenes import Scene
from hyperscene.service.mapping.strips import StoredStrip

log = logging.getLogger("hyperscene.mapping")

Found = TypeVar("Found")

PREVIEW_PX = 1024
# WGS 84: the equator's radius, and the square of the eccentricity.
RADIUS_M, ECCENTRICITY_2 = 6_378_137.0, 6.694379990141e-3
LARGEST_HECTARES = 1e12  # of a pixel: more than the surface of the Earth, 5.1e10


class Tally:
    """Pixels, hectares and confidence, added up strip by strip."""

    def __init__(self, scene: Scene, manifest: Manifest) -> None:
        self._scene = scene
        self._values = manifest.classes + 1
        self.pixels = np.zeros(self._values, np.int64)  # by class value, 0 for no data
        self.hectares: NDArray[np.float64] | None = np.zeros(self._values)
        self.patches = 0
        self._confidence = 0.0
        self._absurd_pixels = 0

    def add(self, strip: StoredStrip) -> None:
        """Count a strip."""
        classes = strip.classes.astype(np.int64)
        bins = classes + self._values * np.arange(len(classes))[:, None]
        counts = np.bincount(bins.ravel(), minlength=self._values * len(classes)).reshape(len(classes), -1)
        self.pixels += counts.sum(axis=0)
        area = pixel_hectares(self._scene, strip.top, strip.top + len(classes))
        self.hectares = None if area is None or self.hectares is None else self.hectares + area @ counts
        self._confidence += strip.confidence_sum
        self._absurd_pixels += strip.absurd_pixels
        self.patches += strip.patches

    @property
    def valid_pixels(self) -> int:
        return int(self.pixels[1:].sum())

    @property
    def mean_confidence(self) -> float | None:
        return self._confidence / self.valid_pixels if self.valid_pixels else None

    def move(self, moved: NDArray[np.int64]) -> None:
        """Count pixels (rows, classes with 0) as the last class instead."""
        total = moved.sum(axis=0)
        self.pixels[: len(total)] -= total
        self.pixels[-1] += total.sum()
        area = pixel_hectares(self._scene, 0, len(moved))
        if self.hectares is not None and area is not None:
            self.hectares[: len(total)] -= area @ moved
            self.hectares[-1] += (area @ moved).sum()

    def warnings(self) -> list[str]:
        """Warnings about the counts."""
        found = []
        if self._absurd_pixels:
            found.append(
                f"{self._absurd_pixels} pixels hold values that no sensor measures and were treated as missing data: "
                "declare them as the file's no-data value"
            )
        if not self.valid_pixels:
            found.append("the scene holds no valid pixel: the whole map is class 0")
        return found


class Placed(Protocol):
    """A raster with a georeference: a scene or a map."""

    @property
    def cols(self) -> int: ...
    @property
    def crs(self) -> CRS | None: ...
    @property
    def transform(self) -> Affine: ...
    @property
    def gcps(self) -> Sequence[Any]: ...
    @property
    def is_georeferenced(self) -> bool: ...


def pixel_hectares(scene: Placed, top: int, bottom: int) -> NDArray[np.float64] | None:
    """The area of a pixel in each of the rows top..bottom; None if it is unknown."""
    try:
        with np.errstate(all="ignore"):
            area = _pixel_hectares(scene, top, bottom)
    except GDAL_ERRORS:  # a reference system that PROJ does not know
        return None
    return area if area is not None and (area < LARGEST_HECTARES).all() else None


def _pixel_hectares(scene: Placed, top: int, bottom: int) -> NDArray[np.float64] | None:
    if scene.crs is None or scene.gcps or not scene.is_georeferenced:
        return None
    square_units = abs(scene.transform.determinant)
    # In the middle column: the latitude hardly changes along a row.
    points = [scene.transform @ (scene.cols / 2, row + 0.5) for row in range(top, bottom)]
    if not is_on_earth(points):
        return None
    if scene.crs.is_projected:
        metres = np.float64(scene.crs.linear_units_factor[1])
        area = np.full(bottom - top, square_units * metres**2 / 10_000)
        # Mercator is true to scale at the equator only; other projections of images are true to a few parts in 1000.
        return area * _mercator_shrinkage(scene, points) if scene.crs.to_dict().get("proj") == "merc" else area
    latitude = np.radians([y for _, y in points])
    if not scene.crs.is_geographic or np.abs(latitude).max() > math.pi / 2:
        return None
    degree = math.radians(1)
    flattened = 1 - ECCENTRICITY_2 * np.sin(latitude) ** 2
    square_m = RADIUS_M**2 * (1 - ECCENTRICITY_2) / flattened**2 * np.cos(latitude) * degree**2
    hectares: NDArray[np.float64] = square_units * square_m / 10_000
    return hectares


def _mercator_shrinkage(scene: Placed, points: list[tuple[float, float]]) -> NDArray[np.float64]:
    _, latitudes = transform_points(scene.crs, "EPSG:4326", *zip(*points, strict=True))
    shrinkage: NDArray[np.float64] = np.cos(np.radians(latitudes)) ** 2
    return shrinkage


def legend(manifest: Manifest) -> list[tuple[int, str, str]]:
    """Value, name and colour of every class."""
    return [
        (value, name, color)
        for value, (name, color) in enumerate(zip(manifest.class_names, manifest.class_colors, strict=True), start=1)
    ]


def make_summary(
    scene: Scene,
    bundle: Bundle,
    engine: Engine | RemoteEngine,
    tally: Tally,
    warnings: list[str],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """The summary: scene, counts, settings, bundle and engine."""
    manifest = bundle.manifest
    total = max(tally.valid_pixels, 1)
    classes = [
        {
            "value": value,
            "name": name,
            "color": color,
            "pixels": int(tally.pixels[value]),
            "share": round(float(tally.pixels[value] / total), 6),
            "hectares": None if tally.hectares is None else round(float(tally.hectares[value]), 4),
        }
        for value, name, color in legend(manifest)
    ]
    return {
        "scene": {
            "name": scene.name,
            "rows": scene.rows,
            "cols": scene.cols,
            "bands": len(scene.bands),
            **describe_product(scene),
        },
        "crs": scene.crs.to_string() if scene.crs is not None else None,
        "is_georeferenced": scene.is_georeferenced,
        "classes": classes,
        "valid_pixels": tally.valid_pixels,
        "no_data_pixels": int(tally.pixels[0]),
        "mean_confidence": None if tally.mean_confidence is None else round(tally.mean_confidence, 6),
        "warnings": warnings,
        "settings": settings | {"batch": engine.batch, "threads": engine.callers},
        "bundle": {"name": manifest.name, "sha256": bundle.sha256},
        "device": engine.device,
        "provider": engine.provider,
        "precision": precision_of(engine.provider),
        "patches": tally.patches,
        "version": version("hyperscene"),
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document as indented JSON."""
    _write_text(path, json_text(document, indent=2) + "\n")


def _write_text(path: Path, text: str) -> None:
    try:
        # A file name may hold bytes that are not valid text; JSON and XML may not.
        path.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise write_error(error) from error


def write_style(path: Path, manifest: Manifest) -> None:
    """A QGIS style; QGIS loads it automatically, because it has the name of classes.tif."""
    entries = "\n".join(
        f'        <paletteEntry value="{value}" color="{color}" alpha="255" label={quoteattr(_printable(name))}/>'
        for value, name, color in legend(manifest)
    )
    _write_text(
        path,
        f"""<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="paletted" band="1" opacity="1" alphaBand="-1" nodataColor="">
      <colorPalette>
{entries}
      </colorPalette>
    </rasterrenderer>
    <rasterresampler maxOversampling="2"/>
  </pipe>
  <blendMode>0</blendMode>
</qgis>
""",
    )


def write_preview(path: Path, classes: Path) -> None:
    """The class map in its colours, at most PREVIEW_PX on its longer side; transparent without data."""
    try:
        _write_picture(path, classes)
    except GDAL_ERRORS as error:
        raise write_error(error) from error


def _write_picture(path: Path, classes: Path) -> None:
    with rasterio.Env(**GDAL_ENV), ignore_missing_georeference():
        with rasterio.open(classes, driver="GTiff") as raster:
            shrink = max(1.0, max(raster.shape) / PREVIEW_PX)
            shape = tuple(max(1, round(size / shrink)) for size in raster.shape)
            values = raster.read(1, out_shape=shape, resampling=Resampling.nearest)
            colors = raster.colormap(1)
        table = np.array([colors.get(value, (0, 0, 0, 0)) for value in range(int(values.max()) + 1)], np.uint8)
        picture = np.moveaxis(table[values], -1, 0)
        with rasterio.open(path, "w", driver="PNG", height=shape[0], width=shape[1], count=4, dtype="uint8") as file:
            file.write(picture)


def make_item(scene: Scene, bundle: Bundle, name: str) -> dict[str, Any]:
    """The result as a STAC Item; its geometry is null without a position on Earth."""
    footprint = _or_none(find_footprint, scene)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    properties: dict[str, Any] = {
        "datetime": now,
        "created": now,
        "description": f"Class map of {scene.name} by the bundle {bundle.manifest.name}",
        "proj:shape": [scene.rows, scene.cols],
        "hyperscene:bundle_sha256": bundle.sha256,
    }
    properties |= _or_none(_projection, scene) or {}
    item: dict[str, Any] = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [
            "https://stac-extensions.github.io/projection/v2.0.0/schema.json",
            "https://stac-extensions.github.io/classification/v2.0.0/schema.json",
        ],
        "id": name or Path(scene.name).stem,
        "geometry": None if footprint is None else footprint[0],
        "properties": properties,
        "links": [],
        "assets": _assets(bundle.manifest),
    }
    if footprint is not None:
        item["bbox"] = footprint[1]
    if bundle.manifest.applicability is not None:
        item["assets"]["applicability"] = dict(item["assets"]["confidence"]) | {
            "href": "./applicability.tif",
            "title": "Distance from the training pixels, as a share of the threshold",
        }
    if scene.masks:
        item["assets"]["mask"] = dict(item["assets"]["confidence"]) | {
            "href": "./mask.tif",
            "title": "Why a pixel has no class: no data, or a mask",
        }
    return item


def _or_none(work: Callable[[Scene], Found], scene: Scene) -> Found | None:
    """None after an error: a strange georeference must not fail the map."""
    try:
        return work(scene)
    except Exception:
        log.warning("the STAC Item has no position: the scene's georeference cannot be used", exc_info=True)
        return None


def _projection(scene: Scene) -> dict[str, Any]:
    if scene.crs is None:
        return {}
    found: dict[str, Any] = {}
    if not scene.gcps and is_on_earth(list(scene.transform)[:6]):  # JSON has finite numbers only
        found["proj:transform"] = list(scene.transform)[:6]
    epsg = scene.crs.to_epsg()
    if epsg is None:
        found["proj:wkt2"] = scene.crs.to_wkt(version="WKT2_2019")
    return found | {"proj:code": f"EPSG:{epsg}" if epsg else None}


def _slug(name: str) -> str:
    return re.sub("[^0-9A-Za-z]+", "-", name).strip("-").lower() or "class"


def _printable(name: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(character if character.isprintable() else " " for character in name)


def _assets(manifest: Manifest) -> dict[str, Any]:
    cog = "image/tiff; application=geotiff; profile=cloud-optimized"
    classes = [
        # `name` is an identifier in this extension; `title` is for display.
        {"value": value, "name": f"{value}_{_slug(name)}", "title": name, "color_hint": color[1:].upper()}
        for value, name, color in legend(manifest)
    ]
    described = {
        "classes": ("classes.tif", cog, "Class map", "data"),
        "probabilities": ("probabilities.tif", cog, "Probability of each class", "data"),
        "confidence": ("confidence.tif", cog, "The largest probability", "data"),
        "style": ("classes.qml", "application/xml", "QGIS style of the class map", "metadata"),
        "preview": ("preview.png", "image/png", "The class map as a picture", "thumbnail"),
        "summary": ("summary.json", "application/json", "Pixels, areas, settings and warnings", "metadata"),
    }
    assets: dict[str, Any] = {
        key: {"href": f"./{href}", "type": kind, "title": title, "roles": [role]}
        for key, (href, kind, title, role) in described.items()
    }
    assets["classes"]["classification:classes"] = classes
    return assets
