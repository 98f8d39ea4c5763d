"""What of a job can be shown: the layers of its map tiles, and single pixels with their spectrum."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.errors import BandsMissing, NoSuchJob, NoSuchResult, RequestUnusable
from hyperscene.service.jobs.admission import match_model
from hyperscene.service.jobs.bounded_pool import BoundedPool
from hyperscene.service.jobs.disk import data_path, version_of
from hyperscene.service.jobs.models import Models
from hyperscene.service.jobs.pixels import PixelReader
from hyperscene.service.jobs.previews import Previews, band_numbers, chosen_bands, is_preview, scene_gone
from hyperscene.service.jobs.records import JobRecord, SceneRecord
from hyperscene.service.jobs.store import Store
from hyperscene.service.mapping.engines import cores
from hyperscene.service.mapping.gdal import GDAL_ERRORS
from hyperscene.service.mapping.grids import MAX_ZOOM, TILE_PX, Grid, Tile, make_grid
from hyperscene.service.mapping.orientation import describe_orientation
from hyperscene.service.mapping.pictures import Bands
from hyperscene.service.mapping.rasters import RASTERS
from hyperscene.service.mapping.tiles import RAMP, Kind, read_header, read_pixel, render_tile
from hyperscene.service.settings import Settings

# Re-exported for the tile routes, which must not import the mapping layer.
__all__ = [
    "MAX_ZOOM",
    "SCENE_LAYER",
    "TILE_PX",
    "Bands",
    "Grid",
    "JobView",
    "Layer",
    "LayerReader",
    "Tile",
    "describe_orientation",
    "needs_preview",
    "pixel_of",
]  # fmt: skip

log = logging.getLogger("hyperscene.layers")

Result = TypeVar("Result")

SCENE_LAYER = "scene"
KEPT_SUMMARIES = 128
MAX_TILES = 64  # waiting, per core; more are refused
QUICK_THREADS, MAX_QUICK = 2, 256  # for work of milliseconds: grids, and pixels of maps


@dataclass(frozen=True)
class Layer:
    """A layer of a job's tiles."""

    id: str
    title: str
    kind: Kind
    file: str = ""  # of the results
    band: int = 1
    facts: dict[str, Any] = field(default_factory=dict)  # for the legend


@dataclass(frozen=True)
class JobView:
    """A job with its layers."""

    job: JobRecord
    summary: dict[str, Any] | None  # None until the map is finished
    scene: SceneRecord | None  # None if it was removed or has expired
    bands: Bands | None  # of the scene's preview
    layers: tuple[Layer, ...]

    def layer(self, layer_id: str) -> Layer:
        """The layer of this name."""
        for layer in self.layers:
            if layer.id == layer_id:
                return layer
        if layer_id == SCENE_LAYER:
            raise scene_gone(self.job.scene_id)
        if self.job.status == "successful" and self.summary is None:
            raise NoSuchJob(f"the results of job {self.job.id} were removed: send the scene again")
        raise NoSuchResult(
            f"there is no layer {layer_id[:100]!r}; there are {', '.join(layer.id for layer in self.layers)}"
        )


class LayerReader:
    """Reads tiles and pixels: our own files in a few threads, uploaded and remote ones in sandbox processes."""

    def __init__(self, settings: Settings, store: Store, models: Models, previews: Previews) -> None:
        self._settings = settings
        self._store = store
        self._models = models
        self._previews = previews
        self._pixels = PixelReader()
        self._tiles = BoundedPool(cores(), cores() * MAX_TILES, "tile")
        self._quick = BoundedPool(QUICK_THREADS, MAX_QUICK, "quick")

    def close(self) -> None:
        """Refuse new requests."""
        for part in (self._tiles, self._quick, self._pixels):
            part.close()

    def view(self, job: JobRecord, bands: Bands | None = None) -> JobView:
        """A job's layers, with the scene in these bands."""
        summary = self._summary(job)
        scene = self._store.scene(job.scene_id)
        shown = None if scene is None else chosen_bands(scene, bands)
        layers = [] if summary is None else _map_layers(summary)
        if scene is not None and shown is not None:
            layers.append(_scene_layer(scene, shown))
        return JobView(job, summary, scene, shown, tuple(layers))

    def _summary(self, job: JobRecord) -> dict[str, Any] | None:
        if job.status != "successful":
            return None
        try:
            return _read_json(self._settings.results_folder(job.id) / "summary.json")
        except OSError:  # the results were removed
            return None

    def file(self, view: JobView, layer: Layer) -> Future[Path]:
        """The raster of a layer; a preview may have to be made first."""
        if layer.kind != "picture":
            return _done(self._settings.results_folder(view.job.id) / layer.file)
        assert view.scene is not None
        assert view.bands is not None
        path = self._previews.find(view.scene, view.bands)
        return self._previews.make(view.scene, view.bands) if path is None else _done(path)

    def tile(self, view: JobView, path: Path, layer: Layer, tile: Tile) -> Future[bytes]:
        """A tile as PNG."""
        return self._tiles.submit(_read_own, view.job, (path,), lambda: render_tile(path, layer.kind, tile, layer.band))

    def picture(self, scene: SceneRecord, bands: Bands | None) -> Future[Path]:
        """The picture of a scene in three of its bands, which may have to be made first."""
        shown = chosen_bands(scene, bands)
        path = self._previews.find(scene, shown)
        return self._previews.make(scene, shown) if path is None else _done(path)

    def picture_tile(self, path: Path, tile: Tile) -> Future[bytes]:
        """A tile of a scene's picture on the scene's own grid, as PNG."""
        return self._tiles.submit(_read_picture, path, tile)

    def scene_grid(self, scene: SceneRecord) -> Future[Grid]:
        """The grid of a scene's map."""
        return self._quick.submit(_document_grid, scene.document)

    def scene_values(self, scene: SceneRecord, pixels: list[tuple[int, int]]) -> Future[list[list[float | None]]]:
        """The values of some pixels in the scene's good bands."""
        path = data_path(self._settings, scene)
        return self._pixels.read_many(path, self._settings.limits, version_of(scene), pixels)

    def grid(self, view: JobView) -> Future[Grid]:
        """The grid of the job's tiles; use `grid_of` with the preview's file if `needs_preview`."""
        if view.summary is not None:
            return self.grid_of(view, self._settings.results_folder(view.job.id) / "classes.tif")
        assert view.scene is not None
        return self._quick.submit(_document_grid, view.scene.document)

    def grid_of(self, view: JobView, path: Path) -> Future[Grid]:
        """The grid of a raster's tiles."""
        return self._quick.submit(_read_own, view.job, (path,), lambda: read_header(path).grid)

    def map_at(self, view: JobView, row: int, col: int) -> Future[dict[str, Any]]:
        """The class, confidence and probabilities of a pixel."""
        folder = self._settings.results_folder(view.job.id)
        paths = tuple(folder / name for name in RASTERS)
        return self._quick.submit(_read_own, view.job, paths, lambda: self._map_at(view, paths, row, col))

    def _map_at(self, view: JobView, paths: tuple[Path, ...], row: int, col: int) -> dict[str, Any]:
        if view.summary is None:
            return {"class": None, "confidence": None, "probabilities": []}
        (value,), shares, (confidence,) = (
            [None if number != number else round(number, 6) for number in read_pixel(path, row, col).tolist()]
            for path in paths
        )
        legend = _legend(view.summary)
        found = None if value is None else legend[int(value) - 1]
        known = legend[: len(shares)]  # the class "unknown" has no probability
        shown = [entry | {"probability": share} for entry, share in zip(known, shares, strict=True)]
        return {"class": found, "confidence": confidence, "probabilities": [] if found is None else shown}

    def values_at(self, view: JobView, row: int, col: int) -> Future[list[float | None]]:
        """A pixel's values in the scene's good bands."""
        scene = view.scene
        if scene is None:
            raise scene_gone(view.job.scene_id)
        return self._pixels.read(data_path(self._settings, scene), self._settings.limits, version_of(scene), row, col)

    def spectrum(self, view: JobView, values: list[float | None]) -> dict[str, Any]:
        """A pixel's values with their bands and wavelengths."""
        assert view.scene is not None
        return {
            "bands": band_numbers(view.scene),
            "wavelengths_nm": view.scene.document["wavelengths_nm"],
            "values": values,
            "used": self._used_bands(view, view.scene),
        }

    def _used_bands(self, view: JobView, scene: SceneRecord) -> list[bool]:
        """Which good bands the job's bundle uses; none if that bundle is no longer served."""
        used = [False] * scene.document["bands"]
        model = self._models.of_job(view.job)
        sha256 = None if view.summary is None else view.summary["bundle"]["sha256"]
        if model is None or sha256 not in (None, model.sha256):
            return used
        try:
            for index in match_model(scene, model).bands:
                used[index] = True
        except BandsMissing:  # the bundle has changed since the job was submitted
            return used
        return used


def needs_preview(view: JobView) -> bool:
    """Whether the grid must be read from the preview: ground control points are not in the scene's document."""
    return view.summary is None and view.scene is not None and view.scene.document["ground_control_points"] > 0


def pixel_of(grid: Grid, row: int | None, col: int | None, lon: float | None, lat: float | None) -> tuple[int, int]:
    """The requested pixel (row, col)."""
    given = tuple(number is not None for number in (row, col, lon, lat))
    if given == (True, True, False, False):
        assert row is not None
        assert col is not None
        found: tuple[int, int] | None = row, col
    elif given == (False, False, True, True):
        assert lon is not None
        assert lat is not None
        found = grid.pixel_at(lon, lat)
    else:
        raise RequestUnusable("a pixel is named by row and col, or by lon and lat: give one of the two pairs")
    if found is None:
        raise RequestUnusable("the scene is not georeferenced: name a pixel by row and col")
    if not (0 <= found[0] < grid.rows and 0 <= found[1] < grid.cols):
        raise RequestUnusable(_outside(grid, by_lon_lat=lon is not None))
    return found


def _outside(grid: Grid, *, by_lon_lat: bool) -> str:
    if by_lon_lat and grid.bounds is not None:
        west, south, east, north = grid.bounds
        return (
            f"the point is outside of the scene, which reaches from lon {west:.6f} to {east:.6f} and from lat "
            f"{south:.6f} to {north:.6f}: choose one inside"
        )
    return (
        f"the pixel is outside of the scene: row is 0 to {grid.rows - 1}, col is 0 to {grid.cols - 1}; choose one "
        "inside"
    )


def _map_layers(summary: dict[str, Any]) -> list[Layer]:
    legend = _legend(summary)
    colors = {"ramp": list(RAMP)}
    return [
        Layer("classes", "Class map", "classes", "classes.tif", facts={"legend": legend}),
        Layer("confidence", "Confidence", "share", "confidence.tif", facts=colors),
        *(
            Layer(
                f"probability-{entry['value']}", f"Probability of {entry['name']}", "share", "probabilities.tif",
                entry["value"], colors | {"value": entry["value"]},
            )
            for entry in legend[: len(legend) - bool(summary.get("settings", {}).get("unknown"))]
        ),
    ]  # fmt: skip


def _scene_layer(scene: SceneRecord, bands: Bands) -> Layer:
    nm = scene.document["wavelengths_nm"]
    indexes = [band_numbers(scene).index(band) for band in bands]
    facts = {"bands": list(bands), "wavelengths_nm": None if nm is None else [nm[index] for index in indexes]}
    return Layer(SCENE_LAYER, "Scene", "picture", facts=facts)


def _legend(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: entry[name] for name in ("value", "name", "color")} for entry in summary["classes"]]


@lru_cache(KEPT_SUMMARIES)
def _read_json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def _document_grid(document: dict[str, Any]) -> Grid:
    grid = document.get("map", document)  # of a scene in sensor geometry: the grid of its map
    crs = None if grid["crs"] is None else CRS.from_string(grid["crs"])
    return make_grid(grid["rows"], grid["cols"], crs, Affine(*grid["transform"]))


def _read_own(job: JobRecord, paths: tuple[Path, ...], work: Callable[[], Result]) -> Result:
    """Read our own files, which may be removed at any time."""
    try:
        return work()
    except (*GDAL_ERRORS, OSError) as error:
        gone = NoSuchJob("the file was removed a moment ago: try again, or send the scene again")
        if not all(path.is_file() for path in paths):
            raise gone from error
        names = ", ".join(path.name for path in paths)
        log.warning("cannot read %s: %s", names, error, extra={"job_id": job.id})
        if is_preview(paths[0]):  # the next request makes it again
            paths[0].unlink(missing_ok=True)
            raise gone from error
        raise NoSuchResult(
            f"{names} of job {job.id} are damaged on the server's disk: send the scene again, and tell the operator"
        ) from error


def _read_picture(path: Path, tile: Tile) -> bytes:
    try:
        return render_tile(path, "picture", tile, in_pixels=True)
    except (*GDAL_ERRORS, OSError) as error:
        path.unlink(missing_ok=True)  # the next request makes it again
        raise NoSuchResult("the picture of the scene was removed a moment ago: try again") from error


def _done(path: Path) -> Future[Path]:
    future: Future[Path] = Future()
    future.set_result(path)
    return future
