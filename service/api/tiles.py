"""Map tiles of a job, and single pixels."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.api.caching import is_kept, kept_headers
from service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from service.api.documents import PixelDocument, TileJson
from service.api.jobs import JobId
from service.api.problems import problems
from service.api.results import BINARY, require_results
from service.api.watch import Answer, Stopping
from service.errors import NoSuchJob, NotReady, ServiceError
from service.jobs.layers import (
    MOST_ZOOM,
    SCENE_LAYER,
    TILE_PX,
    Bands,
    Grid,
    Layer,
    Looked,
    Tile,
    needs_view,
    pixel_of,
)
from service.jobs.records import JobRecord

router = APIRouter(tags=["tiles"])

PNG_TYPE = "image/png"
MOST_NUMBER = 2**31 - 1
# A view may take minutes: whoever waits for it with all of a browser's six connections would not get anything else.
VIEW_WAIT_S = 2
CALLER_GONE = 499  # as nginx writes it in its log; nobody hears it

LayerId = Annotated[
    str,
    Path(max_length=100, description="classes, confidence, scene, or probability-1 and so on", examples=["classes"]),
]
Zoom = Annotated[int, Path(ge=0, le=MOST_ZOOM, description="zoom", examples=[0])]
Column = Annotated[int, Path(ge=-MOST_NUMBER, le=MOST_NUMBER, description="tiles to the right", examples=[0])]
Row = Annotated[int, Path(ge=-MOST_NUMBER, le=MOST_NUMBER, description="tiles down", examples=[0])]
BandsText = Annotated[
    str | None,
    Query(
        pattern="^[0-9]{1,6},[0-9]{1,6},[0-9]{1,6}$",
        description="the scene's bands for red, green and blue: the file's numbers, from 1 (true colours)",
        examples=["29,20,12"],
    ),
]
TILE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The tile; clear where the scene does not reach", "content": {PNG_TYPE: BINARY}},
    304: {"description": "The caller has it already (If-None-Match)"},
    **problems(404, 413, 429, 507),
}


@router.get(
    "/jobs/{job_id}/tilejson.json",
    summary="Where a job's map tiles are",
    response_class=JSONResponse,
    responses={200: {"model": TileJson}, **problems(404, 413, 429, 507)},
)
async def show_tiles(
    job_id: JobId,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    layer: Annotated[
        str | None, Query(max_length=100, description="whose `tiles` are told", examples=["classes"])
    ] = None,
    bands: BandsText = None,
) -> Response:
    """TileJSON 3.0.0 of a layer (the class map; the scene while it is being mapped), and every layer with its legend.

    Scenes with a place on Earth have tiles in Web Mercator, which QGIS, Leaflet and others take as they are. Others
    have no `bounds`, `crs` is null, and their tiles count pixels: at `maxzoom` one of a tile is one of the scene.
    """
    job = await service.job(job_id, owner)
    looked = await _look(service, job, base, layer, bands)
    chosen = looked.layers[0] if layer is None else looked.layer(layer)
    grid = await _grid(service, looked)
    query = "" if bands is None else f"?bands={bands}"
    document = _tilejson(looked, chosen, grid, f"{base}/jobs/{job.id}/tiles", query)
    return JSONResponse(document, headers={"Cache-Control": "no-store"})


@router.get(
    "/jobs/{job_id}/tiles/{layer}/{z}/{x}/{y}@2x.png",
    summary="A map tile for sharp screens",
    response_class=Response,
    responses=TILE_ANSWERS,
)
async def read_large_tile(
    job_id: JobId, layer: LayerId, z: Zoom, x: Column, y: Row, request: Request, service: ServiceDep, owner: OwnerDep,
    base: BaseDep, bands: BandsText = None,
) -> Response:  # fmt: skip
    """The same place in 512 x 512 pixels."""
    job = await service.job(job_id, owner)
    return await _tile(service, job, layer, Tile(z, x, y, 2 * TILE_PX), bands, request, base)


@router.get(
    "/jobs/{job_id}/tiles/{layer}/{z}/{x}/{y}.png",
    summary="A map tile",
    response_class=Response,
    responses=TILE_ANSWERS,
)
async def read_tile(
    job_id: JobId, layer: LayerId, z: Zoom, x: Column, y: Row, request: Request, service: ServiceDep, owner: OwnerDep,
    base: BaseDep, bands: BandsText = None,
) -> Response:  # fmt: skip
    """256 x 256 pixels of a layer, in the XYZ scheme; it never changes, so keep it."""
    job = await service.job(job_id, owner)
    return await _tile(service, job, layer, Tile(z, x, y), bands, request, base)


@router.get(
    "/jobs/{job_id}/pixel",
    summary="One pixel: spectrum, probabilities, class",
    response_class=JSONResponse,
    responses={200: {"model": PixelDocument}, **problems(404, 413, 429, 507)},
)
async def show_pixel(
    job_id: JobId,
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    row: Annotated[int | None, Query(ge=0, le=MOST_NUMBER, description="from the top, from 0", examples=[0])] = None,
    col: Annotated[int | None, Query(ge=0, le=MOST_NUMBER, description="from the left, from 0", examples=[0])] = None,
    lon: Annotated[float | None, Query(ge=-360, le=360, description="instead of row and col")] = None,
    lat: Annotated[float | None, Query(ge=-90, le=90, description="instead of row and col")] = None,
) -> Response:
    """Asked for by `row` and `col`, or by `lon` and `lat`. While the scene is being mapped there is a spectrum only."""
    job = await service.job(job_id, owner)
    looked = await _look(service, job, base)
    grid = await _grid(service, looked)
    place = await asyncio.to_thread(pixel_of, grid, row, col, lon, lat)
    spectrum = await _spectrum(service, looked, place, request)
    mapped = await _waited(service, service.layers.map_at(looked, *place))
    found = await asyncio.to_thread(grid.lon_lat, *place)
    document = {
        "row": place[0],
        "col": place[1],
        "lon": None if found is None else round(found[0], 8),
        "lat": None if found is None else round(found[1], 8),
        "is_valid": _is_valid(looked, mapped, spectrum),
        **mapped,
        **spectrum,
    }
    return JSONResponse(document, headers={"Cache-Control": "no-store"})


def _is_valid(looked: Looked, mapped: dict[str, Any], spectrum: dict[str, Any]) -> bool | None:
    """Whether the pixel holds data in the bands that count; None where neither map nor spectrum can tell."""
    if looked.summary is not None:
        return mapped["class"] is not None
    read = spectrum["spectrum"]
    if read is None:
        return None
    of_use = [value for value, used in zip(read["values"], read["used"], strict=True) if used] or read["values"]
    return bool(of_use) and None not in of_use


def _is_of_map(layer: str) -> bool:
    return layer in ("classes", "confidence") or layer.startswith("probability-")


def _bands(text: str | None) -> Bands | None:
    if text is None:
        return None
    red, green, blue = map(int, text.split(","))
    return red, green, blue


async def _look(
    service: Service, job: JobRecord, base: str, layer: str | None = None, bands: str | None = None
) -> Looked:
    """What there is of a job, or the refusal: of this layer, and of a job of which there is nothing."""
    looked = await asyncio.to_thread(service.layers.look, job, _bands(bands))
    if layer == SCENE_LAYER:
        return looked
    if not looked.layers or (layer is not None and _is_of_map(layer)):
        require_results(service, job, f"{base}/jobs/{job.id}")
    if not looked.layers:
        raise NoSuchJob(f"the results of job {job.id} were removed: send the scene again")
    return looked


async def _spectrum(service: Service, looked: Looked, place: tuple[int, int], request: Request) -> dict[str, Any]:
    """A pixel's spectrum, or why there is none."""
    try:
        values = await _heard(service, service.layers.values_at(looked, *place), request)
    except NotReady:
        raise
    except ServiceError as error:
        return {"spectrum": None, "spectrum_missing": str(error)}
    return {"spectrum": await asyncio.to_thread(service.layers.spectrum, looked, values)}


async def _heard(service: Service, future: Future[Answer], request: Request) -> Answer:
    """What a thread answers; not begun where the caller has gone by then."""
    gone = asyncio.ensure_future(_gone(request))
    gone.add_done_callback(lambda done: done.cancelled() or future.cancel())
    try:
        return await _waited(service, future)
    except NotReady:
        if gone.done():
            raise HTTPException(CALLER_GONE, "the caller has gone") from None
        raise
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    """Return when the caller has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _waited(service: Service, future: Future[Answer], within_s: float | None = None) -> Answer:
    """What a thread answers."""
    try:
        return await service.watch.answer(future, within_s)
    except Stopping:
        error = NotReady("the server shuts down: ask again when it is back")
        error.headers = {"Retry-After": "10"}
        raise error from None


async def _file(service: Service, looked: Looked, layer: Layer) -> FilePath:
    """The raster behind a layer, or the word that it is being made."""
    try:
        return await _waited(service, service.layers.file(looked, layer), VIEW_WAIT_S)
    except TimeoutError:
        error = NotReady(f"the picture of the scene is being made: try again in {VIEW_WAIT_S} s")
        error.headers = {"Retry-After": str(VIEW_WAIT_S)}
        raise error from None


async def _grid(service: Service, looked: Looked) -> Grid:
    if needs_view(looked):
        path = await _file(service, looked, looked.layer(SCENE_LAYER))
        return await _waited(service, service.layers.grid_of(looked, path))
    return await _waited(service, service.layers.grid(looked))


async def _tile(
    service: Service, job: JobRecord, layer_id: str, tile: Tile, bands: str | None, request: Request, base: str
) -> Response:
    looked = await _look(service, job, base, layer_id, bands)
    layer = looked.layer(layer_id)  # before the tag: callers may have made up the name
    shown = "-".join(map(str, looked.bands)) if looked.bands and layer.id == SCENE_LAYER else ""
    etag = f'"{job.id}-{layer.id}-{shown}-{tile.zoom}-{tile.x}-{tile.y}-{tile.px}"'
    headers = kept_headers(etag)
    if is_kept(request, etag):
        return Response(status_code=304, headers=headers)
    try:
        png = await _read(service, looked, layer, tile, request)
    except NoSuchJob:  # a view may be dropped for another one between finding and reading it
        png = await _read(service, looked, layer, tile, request)
    return Response(png, headers=headers, media_type=PNG_TYPE)


async def _read(service: Service, looked: Looked, layer: Layer, tile: Tile, request: Request) -> bytes:
    path = await _file(service, looked, layer)
    return await _heard(service, service.layers.tile(looked, path, layer, tile), request)


def _tilejson(looked: Looked, chosen: Layer, grid: Grid, tiles: str, query: str) -> dict[str, Any]:
    layers = [_layer(layer, tiles, query if layer.id == SCENE_LAYER else "") for layer in looked.layers]
    document: dict[str, Any] = {
        "tilejson": "3.0.0",
        "name": f"{looked.job.scene_name}: {chosen.title}",
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


def _layer(layer: Layer, tiles: str, query: str) -> dict[str, Any]:
    address = f"{tiles}/{layer.id}/{{z}}/{{x}}/{{y}}"
    return {
        "id": layer.id,
        "title": layer.title,
        "tiles": [f"{address}.png{query}"],
        "tiles_2x": [f"{address}@2x.png{query}"],
        **layer.facts,
    }
