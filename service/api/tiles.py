"""Map tiles and single pixels of a job."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from hyperscene.errors import NoSuchJob, NotReady, ServiceError
from hyperscene.service.api.context import (
    CLIENT_CLOSED_REQUEST,
    BaseDep,
    OwnerDep,
    Service,
    ServiceDep,
    cache_headers,
    is_not_modified,
    until_disconnected,
)
from hyperscene.service.api.documents import PixelDocument, TileJson
from hyperscene.service.api.job_watcher import Result, ServerStopping
from hyperscene.service.api.jobs import JobId
from hyperscene.service.api.problems import JsonResponse, problems
from hyperscene.service.api.results import BINARY, require_results, results_removed
from hyperscene.service.jobs.layers import (
    MAX_ZOOM,
    SCENE_LAYER,
    TILE_PX,
    Bands,
    Grid,
    JobView,
    Layer,
    Tile,
    describe_orientation,
    needs_preview,
    pixel_of,
)
from hyperscene.service.jobs.records import JobRecord

router = APIRouter(tags=["tiles"])

PNG_TYPE = "image/png"
MAX_INDEX = 2**31 - 1
# A preview can take minutes: tile requests that wait for it would occupy all six connections of a browser.
PREVIEW_WAIT_S = 2

LayerId = Annotated[
    str,
    Path(max_length=100, description="classes, confidence, scene, or probability-1 and so on", examples=["classes"]),
]
BandsText = Annotated[
    str | None,
    Query(
        pattern="^[0-9]{1,6},[0-9]{1,6},[0-9]{1,6}$",
        description="the scene's bands for red, green and blue: numbers in the file, from 1 (default: true colours)",
        examples=["29,20,12"],
    ),
]
TILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The tile; transparent outside of the scene", "content": {PNG_TYPE: BINARY}},
    304: {"description": "The cached copy is current (If-None-Match)"},
    **problems(404, 413, 429, 507),
}


def tile_of(
    z: Annotated[int, Path(ge=0, le=MAX_ZOOM, description="zoom level", examples=[0])],
    x: Annotated[int, Path(ge=-MAX_INDEX, le=MAX_INDEX, description="tile column", examples=[0])],
    y: Annotated[int, Path(ge=-MAX_INDEX, le=MAX_INDEX, description="tile row", examples=[0])],
) -> Tile:
    """The tile of the request's path."""
    return Tile(z, x, y)


@dataclass(frozen=True)
class Position:
    """A pixel's position: row and column, or longitude and latitude."""

    row: int | None
    col: int | None
    lon: float | None
    lat: float | None


def position_of(
    row: Annotated[int | None, Query(ge=0, le=MAX_INDEX, description="from the top, from 0", examples=[0])] = None,
    col: Annotated[int | None, Query(ge=0, le=MAX_INDEX, description="from the left, from 0", examples=[0])] = None,
    lon: Annotated[float | None, Query(ge=-360, le=360, description="instead of row and col")] = None,
    lat: Annotated[float | None, Query(ge=-90, le=90, description="instead of row and col")] = None,
) -> Position:
    """The position in the request's query."""
    return Position(row, col, lon, lat)


TileDep = Annotated[Tile, Depends(tile_of)]
PositionDep = Annotated[Position, Depends(position_of)]


@router.get(
    "/jobs/{job_id}/tilejson.json",
    summary="TileJSON of a job's map tiles",
    response_class=JsonResponse,
    responses={200: {"model": TileJson}, **problems(404, 413, 429, 507)},
)
async def show_tiles(
    job_id: JobId,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    layer: Annotated[
        str | None, Query(max_length=100, description="the layer of `tiles`", examples=["classes"])
    ] = None,
    bands: BandsText = None,
) -> Response:
    """TileJSON 3.0.0 of a layer (default: the class map, or the scene until it is mapped), and all layers with legends.

    Georeferenced scenes have tiles in Web Mercator, for QGIS, Leaflet and others. Other scenes have no `bounds`, `crs`
    is null, and tiles are in pixel coordinates: at `maxzoom`, one tile pixel is one pixel of the scene.
    """
    job = await service.job(job_id, owner)
    view = await _job_view(service, job, base, layer, bands)
    chosen = view.layers[0] if layer is None else view.layer(layer)
    grid = await _grid(service, view)
    query = "" if bands is None else f"?bands={bands}"
    document = _tilejson(view, chosen, grid, f"{base}/jobs/{job.id}/tiles", query)
    document |= await asyncio.to_thread(describe_orientation, grid)
    return JsonResponse(document, headers={"Cache-Control": "no-store"})


@router.get(
    "/jobs/{job_id}/tiles/{layer}/{z}/{x}/{y}@2x.png",
    summary="A map tile for high-resolution screens",
    response_class=Response,
    responses=TILE_RESPONSES,
)
async def read_large_tile(
    job_id: JobId, layer: LayerId, tile: TileDep, request: Request, service: ServiceDep, owner: OwnerDep,
    base: BaseDep, bands: BandsText = None,
) -> Response:  # fmt: skip
    """The same area as the tile without @2x, in 512 x 512 pixels."""
    job = await service.job(job_id, owner)
    return await _tile_response(service, job, layer, replace(tile, px=2 * TILE_PX), bands, request, base)


@router.get(
    "/jobs/{job_id}/tiles/{layer}/{z}/{x}/{y}.png",
    summary="A map tile",
    response_class=Response,
    responses=TILE_RESPONSES,
)
async def read_tile(
    job_id: JobId, layer: LayerId, tile: TileDep, request: Request, service: ServiceDep, owner: OwnerDep,
    base: BaseDep, bands: BandsText = None,
) -> Response:  # fmt: skip
    """256 x 256 pixels of a layer, in the XYZ scheme. Tiles never change and can be cached."""
    job = await service.job(job_id, owner)
    return await _tile_response(service, job, layer, tile, bands, request, base)


@router.get(
    "/jobs/{job_id}/pixel",
    summary="A pixel's spectrum, probabilities and class",
    response_class=JsonResponse,
    responses={200: {"model": PixelDocument}, **problems(404, 413, 429, 507)},
)
async def show_pixel(
    job_id: JobId,
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    position: PositionDep,
    spectrum: Annotated[bool, Query(description="whether to read the scene: the map alone is faster")] = True,
) -> Response:
    """Select the pixel by `row` and `col`, or by `lon` and `lat`. Until there is a map, only the spectrum is known."""
    job = await service.job(job_id, owner)
    view = await _job_view(service, job, base)
    grid = await _grid(service, view)
    row, col = await asyncio.to_thread(pixel_of, grid, position.row, position.col, position.lon, position.lat)
    values = await _spectrum(service, view, row, col, request) if spectrum else {"spectrum": None}
    mapped = await result_of(service, service.layers.map_at(view, row, col))
    lon_lat = await asyncio.to_thread(grid.lon_lat, row, col)
    document = {
        "row": row,
        "col": col,
        "lon": None if lon_lat is None else round(lon_lat[0], 8),
        "lat": None if lon_lat is None else round(lon_lat[1], 8),
        "is_valid": _is_valid(view, mapped, values),
        **mapped,
        **values,
    }
    return JsonResponse(document, headers={"Cache-Control": "no-store"})


def _is_valid(view: JobView, mapped: dict[str, Any], spectrum: dict[str, Any]) -> bool | None:
    """Whether the pixel has data in the bands used; None if neither map nor spectrum is available."""
    if view.summary is not None:
        return mapped["class"] is not None
    known = spectrum["spectrum"]
    if known is None:
        return None
    used = [value for value, is_used in zip(known["values"], known["used"], strict=True) if is_used] or known["values"]
    return bool(used) and None not in used


def _is_map_layer(layer: str) -> bool:
    return layer in ("classes", "confidence") or layer.startswith("probability-")


def bands_of(text: str | None) -> Bands | None:
    """The bands of a request's query."""
    if text is None:
        return None
    red, green, blue = map(int, text.split(","))
    return red, green, blue


async def _job_view(
    service: Service, job: JobRecord, base: str, layer: str | None = None, bands: str | None = None
) -> JobView:
    """The job's layers; an error if it has none, or if a layer of its map is requested before there is a map."""
    view = await asyncio.to_thread(service.layers.view, job, bands_of(bands))
    if layer == SCENE_LAYER:
        return view
    if not view.layers or (layer is not None and _is_map_layer(layer)):
        require_results(service, job, f"{base}/jobs/{job.id}")
    if not view.layers:
        raise results_removed(job)
    return view


async def _spectrum(service: Service, view: JobView, row: int, col: int, request: Request) -> dict[str, Any]:
    """A pixel's spectrum, or why there is none."""
    try:
        values = await _result_unless_disconnected(service, service.layers.values_at(view, row, col), request)
    except NotReady:
        raise
    except ServiceError as error:
        return {"spectrum": None, "spectrum_missing": str(error)}
    return {"spectrum": await asyncio.to_thread(service.layers.spectrum, view, values)}


async def _result_unless_disconnected(service: Service, future: Future[Result], request: Request) -> Result:
    """The result of a thread's work, which is cancelled if the client disconnects before it starts."""
    disconnected = asyncio.ensure_future(until_disconnected(request.receive))
    disconnected.add_done_callback(lambda done: done.cancelled() or future.cancel())
    try:
        return await result_of(service, future)
    except NotReady:
        if disconnected.done():
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client closed the connection") from None
        raise
    finally:
        disconnected.cancel()


async def result_of(service: Service, future: Future[Result], timeout_s: float | None = None) -> Result:
    """The result of a thread's work."""
    try:
        return await service.job_watcher.result_of(future, timeout_s)
    except ServerStopping:
        error = NotReady("the server is shutting down: try again after its next start")
        error.headers = {"Retry-After": "10"}
        raise error from None


async def _raster_path(service: Service, view: JobView, layer: Layer) -> FilePath:
    """The raster of a layer; NotReady while the preview of the scene is being rendered."""
    try:
        return await result_of(service, service.layers.file(view, layer), PREVIEW_WAIT_S)
    except TimeoutError:
        error = NotReady(f"the preview of the scene is being rendered: try again in {PREVIEW_WAIT_S} s")
        error.headers = {"Retry-After": str(PREVIEW_WAIT_S)}
        raise error from None


async def _grid(service: Service, view: JobView) -> Grid:
    if needs_preview(view):
        path = await _raster_path(service, view, view.layer(SCENE_LAYER))
        return await result_of(service, service.layers.grid_of(view, path))
    return await result_of(service, service.layers.grid(view))


async def _tile_response(
    service: Service, job: JobRecord, layer_id: str, tile: Tile, bands: str | None, request: Request, base: str
) -> Response:
    view = await _job_view(service, job, base, layer_id, bands)
    layer = view.layer(layer_id)  # raises for an unknown layer, before the ETag is compared
    band_text = "-".join(map(str, view.bands)) if view.bands and layer.id == SCENE_LAYER else ""
    etag = f'"{job.id}-{layer.id}-{band_text}-{tile.zoom}-{tile.x}-{tile.y}-{tile.px}"'
    headers = cache_headers(etag)
    if is_not_modified(request, etag):
        return Response(status_code=304, headers=headers)
    try:
        png = await _render(service, view, layer, tile, request)
    except NoSuchJob:  # the preview was evicted between finding and reading it
        png = await _render(service, view, layer, tile, request)
    return Response(png, headers=headers, media_type=PNG_TYPE)


async def _render(service: Service, view: JobView, layer: Layer, tile: Tile, request: Request) -> bytes:
    path = await _raster_path(service, view, layer)
    return await _result_unless_disconnected(service, service.layers.tile(view, path, layer, tile), request)


def _tilejson(view: JobView, chosen: Layer, grid: Grid, tiles_url: str, query: str) -> dict[str, Any]:
    layers = [_layer(layer, tiles_url, query if layer.id == SCENE_LAYER else "") for layer in view.layers]
    document: dict[str, Any] = {
        "tilejson": "3.0.0",
        "name": f"{view.job.scene_name}: {chosen.title}",
        "scheme": "xyz",
        "tiles": next(layer["tiles"] for layer in layers if layer["id"] == chosen.id),
        "minzoom": grid.min_zoom,
        "maxzoom": grid.max_zoom,
        "crs": "EPSG:3857" if grid.is_mercator else None,
        "rows": grid.rows,
        "cols": grid.cols,
        "tile_px": TILE_PX,
        "layers": layers,
    }
    if grid.bounds is not None:
        west, south, east, north = (round(number, 8) for number in grid.bounds)
        document["bounds"] = [west, south, east, north]
        document["center"] = [round((west + east) / 2, 8), round((south + north) / 2, 8), grid.min_zoom]
    return document


def _layer(layer: Layer, tiles_url: str, query: str) -> dict[str, Any]:
    url = f"{tiles_url}/{layer.id}/{{z}}/{{x}}/{{y}}"
    return {
        "id": layer.id,
        "title": layer.title,
        "tiles": [f"{url}.png{query}"],
        "tiles_2x": [f"{url}@2x.png{query}"],
        **layer.facts,
    }
