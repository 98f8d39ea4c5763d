"""What of a job can be looked at: the layers of its map tiles, and single pixels with their spectrum."""

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

from service.errors import BandsMissing, NoSuchJob, NoSuchResult, RequestUnusable
from service.jobs.admission import match_model
from service.jobs.disk import data_path, version_of
from service.jobs.models import Models
from service.jobs.pixels import Pixels
from service.jobs.readers import Readers
from service.jobs.records import JobRecord, SceneRecord
from service.jobs.store import Store
from service.jobs.views import Views, band_numbers, chosen_bands, is_view, scene_is_gone
from service.mapping.engines import cores
from service.mapping.grids import MOST_ZOOM, TILE_PX, Grid, Tile, lay_grid
from service.mapping.pictures import Bands
from service.mapping.rasters import RASTERS
from service.mapping.scenes import GDAL_ERRORS
from service.mapping.tiles import RAMP, Kind, read_header, read_pixel, render_tile
from service.settings import Settings

# What a call needs to ask for a tile.
__all__ = ["MOST_ZOOM", "SCENE_LAYER", "TILE_PX", "Bands", "Grid", "Layer", "Layers", "Looked", "Tile", "needs_view",
           "pixel_of"]  # fmt: skip

log = logging.getLogger("hyperscene.layers")

Answer = TypeVar("Answer")

SCENE_LAYER = "scene"
KEPT_SUMMARIES = 128
MOST_TILES = 64  # asked for, a core; more are told to come back
LOOKERS, MOST_LOOKS = 2, 256  # threads for what takes milliseconds: grids, and pixels of maps


@dataclass(frozen=True)
class Layer:
    """A layer of a job's tiles."""

    id: str
    title: str
    kind: Kind
    file: str = ""  # of the results
    band: int = 1
    facts: dict[str, Any] = field(default_factory=dict)  # what a legend needs


@dataclass(frozen=True)
class Looked:
    """A job with what there is to look at."""

    job: JobRecord
    summary: dict[str, Any] | None  # None until the map is there
    scene: SceneRecord | None  # None where it was removed or has expired
    bands: Bands | None  # of the scene's view
    layers: tuple[Layer, ...]

    def layer(self, layer_id: str) -> Layer:
        """The layer of this name."""
        for layer in self.layers:
            if layer.id == layer_id:
                return layer
        if layer_id == SCENE_LAYER:
            raise scene_is_gone(self.job.scene_id)
        if self.job.status == "successful" and self.summary is None:
            raise NoSuchJob(f"the results of job {self.job.id} were removed: send the scene again")
        raise NoSuchResult(
            f"there is no layer {layer_id[:100]!r}; there are {', '.join(layer.id for layer in self.layers)}"
        )


class Layers:
    """Reads tiles and pixels; files of ours in a few threads, files from outside in other processes."""

    def __init__(self, settings: Settings, store: Store, models: Models, views: Views) -> None:
        self._settings = settings
        self._store = store
        self._models = models
        self._views = views
        self._pixels = Pixels()
        self._tiles = Readers(cores(), cores() * MOST_TILES, "tile")
        self._looks = Readers(LOOKERS, MOST_LOOKS, "look")

    def close(self) -> None:
        """Nothing more is read."""
        for part in (self._tiles, self._looks, self._pixels):
            part.close()

    def look(self, job: JobRecord, bands: Bands | None = None) -> Looked:
        """What there is of a job, with the scene in these bands."""
        summary = self._summary(job)
        scene = self._store.scene(job.scene_id)
        shown = None if scene is None else chosen_bands(scene, bands)
        layers = [] if summary is None else _map_layers(summary)
        if scene is not None and shown is not None:
            layers.append(_scene_layer(scene, shown))
        return Looked(job, summary, scene, shown, tuple(layers))

    def _summary(self, job: JobRecord) -> dict[str, Any] | None:
        if job.status != "successful":
            return None
        try:
            return _read_json(self._settings.results_folder(job.id) / "summary.json")
        except OSError:  # the results were removed
            return None

    def file(self, looked: Looked, layer: Layer) -> Future[Path]:
        """The raster behind a layer, when it is there."""
        if layer.kind != "picture":
            return _done(self._settings.results_folder(looked.job.id) / layer.file)
        assert looked.scene is not None
        assert looked.bands is not None
        path = self._views.find(looked.scene, looked.bands)
        return self._views.make(looked.scene, looked.bands) if path is None else _done(path)

    def tile(self, looked: Looked, path: Path, layer: Layer, tile: Tile) -> Future[bytes]:
        """A tile as PNG."""
        return self._tiles.ask(_or_gone, looked.job, (path,), lambda: render_tile(path, layer.kind, tile, layer.band))

    def grid(self, looked: Looked) -> Future[Grid]:
        """Where the job's tiles lie; to be asked of a view's file where `needs_view`."""
        if looked.summary is not None:
            return self.grid_of(looked, self._settings.results_folder(looked.job.id) / "classes.tif")
        assert looked.scene is not None
        return self._looks.ask(_document_grid, looked.scene.document)

    def grid_of(self, looked: Looked, path: Path) -> Future[Grid]:
        """Where a raster's tiles lie."""
        return self._looks.ask(_or_gone, looked.job, (path,), lambda: read_header(path).grid)

    def map_at(self, looked: Looked, row: int, col: int) -> Future[dict[str, Any]]:
        """What the map says of a pixel."""
        folder = self._settings.results_folder(looked.job.id)
        paths = tuple(folder / name for name in RASTERS)
        return self._looks.ask(_or_gone, looked.job, paths, lambda: self._map_at(looked, paths, row, col))

    def _map_at(self, looked: Looked, paths: tuple[Path, ...], row: int, col: int) -> dict[str, Any]:
        if looked.summary is None:
            return {"class": None, "confidence": None, "probabilities": []}
        (value,), shares, (confidence,) = (
            [None if number != number else round(number, 6) for number in read_pixel(path, row, col).tolist()]
            for path in paths
        )
        legend = _legend(looked.summary)
        found = None if value is None else legend[int(value) - 1]
        shown = [entry | {"probability": share} for entry, share in zip(legend, shares, strict=True)]
        return {"class": found, "confidence": confidence, "probabilities": [] if found is None else shown}

    def values_at(self, looked: Looked, row: int, col: int) -> Future[list[float | None]]:
        """A pixel's values in the scene's good bands."""
        scene = looked.scene
        if scene is None:
            raise scene_is_gone(looked.job.scene_id)
        return self._pixels.read(data_path(self._settings, scene), self._settings.limits, version_of(scene), row, col)

    def spectrum(self, looked: Looked, values: list[float | None]) -> dict[str, Any]:
        """A pixel's values, and what they are values of."""
        assert looked.scene is not None
        return {
            "bands": band_numbers(looked.scene),
            "wavelengths_nm": looked.scene.document["wavelengths_nm"],
            "values": values,
            "used": self._used_bands(looked, looked.scene),
        }

    def _used_bands(self, looked: Looked, scene: SceneRecord) -> list[bool]:
        """Which good bands the job's bundle looks at; none where that bundle is not served any more."""
        used = [False] * scene.document["bands"]
        model = self._models.by_name.get(looked.job.model)
        sha256 = None if looked.summary is None else looked.summary["bundle"]["sha256"]
        if model is None or sha256 not in (None, model.sha256):
            return used
        try:
            for place in match_model(scene, model).bands:
                used[place] = True
        except BandsMissing:  # the bundle is another one than when the job was taken
            return used
        return used


def needs_view(looked: Looked) -> bool:
    """Whether only a view knows where the scene lies: ground control points are not in its document."""
    return looked.summary is None and looked.scene is not None and looked.scene.document["ground_control_points"] > 0


def pixel_of(grid: Grid, row: int | None, col: int | None, lon: float | None, lat: float | None) -> tuple[int, int]:
    """The pixel asked for, or the refusal."""
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
        raise RequestUnusable("a pixel is asked for by row and col, or by lon and lat: give one of the two pairs")
    if found is None:
        raise RequestUnusable("the scene has no place on Earth: ask for a pixel by row and col")
    if not (0 <= found[0] < grid.rows and 0 <= found[1] < grid.cols):
        raise RequestUnusable(_outside(grid, by_place=lon is not None))
    return found


def _outside(grid: Grid, *, by_place: bool) -> str:
    if by_place and grid.bounds is not None:
        west, south, east, north = grid.bounds
        return (
            f"the place lies outside of the scene, which reaches from lon {west:.6f} to {east:.6f} and from lat "
            f"{south:.6f} to {north:.6f}: choose one inside"
        )
    return (
        f"the pixel lies outside of the scene: row is 0 to {grid.rows - 1}, col is 0 to {grid.cols - 1}; choose one "
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
            for entry in legend
        ),
    ]  # fmt: skip


def _scene_layer(scene: SceneRecord, bands: Bands) -> Layer:
    nm = scene.document["wavelengths_nm"]
    places = [band_numbers(scene).index(band) for band in bands]
    facts = {"bands": list(bands), "wavelengths_nm": None if nm is None else [nm[place] for place in places]}
    return Layer(SCENE_LAYER, "Scene", "picture", facts=facts)


def _legend(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: entry[name] for name in ("value", "name", "color")} for entry in summary["classes"]]


@lru_cache(KEPT_SUMMARIES)
def _read_json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def _document_grid(document: dict[str, Any]) -> Grid:
    crs = None if document["crs"] is None else CRS.from_string(document["crs"])
    return lay_grid(document["rows"], document["cols"], crs, Affine(*document["transform"]))


def _or_gone(job: JobRecord, paths: tuple[Path, ...], work: Callable[[], Answer]) -> Answer:
    """Read files of ours, which may go at any time."""
    try:
        return work()
    except (*GDAL_ERRORS, OSError) as error:
        gone = NoSuchJob("what was asked for was removed a moment ago: ask again, or send the scene again")
        if not all(path.is_file() for path in paths):
            raise gone from error
        names = ", ".join(path.name for path in paths)
        log.warning("cannot read %s: %s", names, error, extra={"job_id": job.id})
        if is_view(paths[0]):  # is made anew for who asks next
            paths[0].unlink(missing_ok=True)
            raise gone from error
        raise NoSuchResult(
            f"what was asked for is damaged on the server's disk ({names} of job {job.id}): send the scene again, and "
            "tell the operator"
        ) from error


def _done(path: Path) -> Future[Path]:
    future: Future[Path] = Future()
    future.set_result(path)
    return future
