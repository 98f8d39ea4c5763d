"""What goes with the rasters: counts and areas, the summary, a QGIS style, a preview, a STAC Item."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from xml.sax.saxutils import quoteattr

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.warp import transform as transform_points

from model.bundle import Bundle, Manifest
from service.errors import unwritten
from service.mapping.classify import Crew
from service.mapping.engines import Engine
from service.mapping.footprints import find_footprint
from service.mapping.grids import is_near
from service.mapping.rasters import GDAL_ENV
from service.mapping.scenes import GDAL_ERRORS, Scene, unplaced_is_fine
from service.mapping.strips import StoredStrip

log = logging.getLogger("hyperscene.mapping")

Found = TypeVar("Found")

PREVIEW_PX = 1024
# WGS 84: the equator's radius, and the square of the eccentricity.
RADIUS_M, ECCENTRICITY_2 = 6_378_137.0, 6.694379990141e-3


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
        places = classes + self._values * np.arange(len(classes))[:, None]
        counts = np.bincount(places.ravel(), minlength=self._values * len(classes)).reshape(len(classes), -1)
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

    def warnings(self) -> list[str]:
        """What a person should hear about the counts."""
        told = []
        if self._absurd_pixels:
            told.append(
                f"{self._absurd_pixels} pixels hold values that no sensor measures and were taken for missing data: "
                "declare them as the file's no-data value"
            )
        if not self.valid_pixels:
            told.append("the scene holds no valid pixel: the whole map is class 0")
        return told


def pixel_hectares(scene: Scene, top: int, bottom: int) -> NDArray[np.float64] | None:
    """The area of a pixel in each of the rows top..bottom; None where the scene does not say."""
    if scene.crs is None or scene.gcps or not scene.is_georeferenced:
        return None
    square_units = abs(scene.transform.determinant)
    # Of the middle column: rows of a scene hardly change their latitude.
    places = [scene.transform @ (scene.cols / 2, row + 0.5) for row in range(top, bottom)]
    if not is_near(places):
        return None
    if scene.crs.is_projected:
        metres = float(scene.crs.linear_units_factor[1])
        area = np.full(bottom - top, square_units * metres**2 / 10_000)
        # Mercator's metres are those of the equator; other projections in use for images are true to a few parts in
        # a thousand.
        return area * _mercator_shrinkage(scene, places) if scene.crs.to_dict().get("proj") == "merc" else area
    latitude = np.radians([place[1] for place in places])
    if not scene.crs.is_geographic or np.abs(latitude).max() > math.pi / 2:
        return None
    degree = math.radians(1)
    flattened = 1 - ECCENTRICITY_2 * np.sin(latitude) ** 2
    square_m = RADIUS_M**2 * (1 - ECCENTRICITY_2) / flattened**2 * np.cos(latitude) * degree**2
    hectares: NDArray[np.float64] = square_units * square_m / 10_000
    return hectares


def _mercator_shrinkage(scene: Scene, places: list[tuple[float, float]]) -> NDArray[np.float64]:
    _, latitudes = transform_points(scene.crs, "EPSG:4326", *zip(*places, strict=True))
    shrinkage: NDArray[np.float64] = np.cos(np.radians(latitudes)) ** 2
    return shrinkage


def legend(manifest: Manifest) -> list[tuple[int, str, str]]:
    """Value, name and colour of every class."""
    return [
        (value, name, color)
        for value, (name, color) in enumerate(zip(manifest.class_names, manifest.class_colors, strict=True), start=1)
    ]


def make_summary(
    scene: Scene, bundle: Bundle, engine: Engine | Crew, tally: Tally, warnings: list[str], settings: dict[str, Any]
) -> dict[str, Any]:
    """What was mapped, with what, and what came out."""
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
        "scene": {"name": scene.name, "rows": scene.rows, "cols": scene.cols, "bands": len(scene.bands)},
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
        "patches": tally.patches,
        "version": version("hyperscene"),
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    """A document as people and programs like it."""
    _write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    try:
        # A file's name may hold bytes that are no letters; JSON and XML may not.
        path.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise unwritten(error) from error


def write_style(path: Path, manifest: Manifest) -> None:
    """A QGIS style: QGIS takes it up by itself, since it lies beside classes.tif under the same name."""
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
    """The class map in its colours, at most PREVIEW_PX on its longer side; clear where there is no data."""
    try:
        _write_picture(path, classes)
    except GDAL_ERRORS as error:
        raise unwritten(error) from error


def _write_picture(path: Path, classes: Path) -> None:
    with rasterio.Env(**GDAL_ENV), unplaced_is_fine():
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
    """The result as a STAC Item; its geometry is null where the scene has no place on Earth."""
    footprint = _or_nothing(find_footprint, scene)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    properties: dict[str, Any] = {
        "datetime": now,
        "created": now,
        "description": f"Class map of {scene.name} by the bundle {bundle.manifest.name}",
        "proj:shape": [scene.rows, scene.cols],
        "hyperscene:bundle_sha256": bundle.sha256,
    }
    properties |= _or_nothing(_projection, scene) or {}
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
    return item


def _or_nothing(work: Callable[[Scene], Found], scene: Scene) -> Found | None:
    """What is found of a scene's place: a georeference of any kind may not cost the map."""
    try:
        return work(scene)
    except Exception:
        log.warning("the scene's place is left out of its STAC Item", exc_info=True)
        return None


def _projection(scene: Scene) -> dict[str, Any]:
    if scene.crs is None:
        return {}
    found: dict[str, Any] = {}
    if not scene.gcps and is_near(list(scene.transform)[:6]):  # JSON knows finite numbers alone
        found["proj:transform"] = list(scene.transform)[:6]
    epsg = scene.crs.to_epsg()
    if epsg is None:
        found["proj:wkt2"] = scene.crs.to_wkt(version="WKT2_2019")
    return found | {"proj:code": f"EPSG:{epsg}" if epsg else None}


def _slug(name: str) -> str:
    return re.sub("[^0-9A-Za-z]+", "-", name).strip("-").lower() or "class"


def _printable(name: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() else " " for letter in name)


def _assets(manifest: Manifest) -> dict[str, Any]:
    cog = "image/tiff; application=geotiff; profile=cloud-optimized"
    classes = [
        # The extension's names are for programs; people read the title.
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
