"""The live map of a scene's labels: what is on screen, how good it is, and where to label next.

Windows and tiles are on the scene's own grid, in rows and columns.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from hyperscene.errors import NoSuchResult, NotReady, RequestUnusable
from hyperscene.service.api.context import OwnerDep, Service, ServiceDep, cache_headers, is_not_modified
from hyperscene.service.api.documents import LiveEstimate, LiveState, LiveSuggestions, ScenePixel, SceneSpectra
from hyperscene.service.api.problems import JsonResponse, problems
from hyperscene.service.api.results import BINARY
from hyperscene.service.api.scenes import SceneId
from hyperscene.service.api.tiles import MAX_INDEX, PNG_TYPE, PREVIEW_WAIT_S, BandsText, TileDep, bands_of, result_of
from hyperscene.service.jobs.label_files import LabelGrid
from hyperscene.service.jobs.layers import TILE_PX
from hyperscene.service.jobs.pixels import mean_spectrum
from hyperscene.service.jobs.previews import band_numbers
from hyperscene.service.jobs.records import SceneRecord

router = APIRouter(tags=["labels"])

MAX_SCREEN_PX = 4096
SPECTRA_OF_CLASS = 40  # pixels at random, for the mean spectrum of a class
ESTIMATE_WAIT_S = 20.0
PAUSE_S = 0.01  # between turns of the estimate: pictures come first

Index = Annotated[int, Query(ge=0, le=MAX_INDEX, examples=[0])]
Size = Annotated[int, Query(ge=1, le=MAX_INDEX, description="pixels of the scene", examples=[40])]
Screen = Annotated[int, Query(ge=1, le=MAX_SCREEN_PX, description="pixels of the screen", examples=[400])]
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture; X-Window has its rows and columns", "content": {PNG_TYPE: BINARY}},
    **problems(404, 409, 429, 507),
}
LiveLayer = Annotated[
    Literal["scene", "components", "classes", "confidence"],
    Path(description="the scene, its first components as colours, or a layer of the live map", examples=["scene"]),
]


def view_of(
    top: Index,
    left: Index,
    rows: Size,
    cols: Size,
    width: Screen,
    height: Screen,
    layer: Annotated[
        Literal["values", "classes", "confidence"],
        Query(
            description="colours of the classes, the confidence, or both as numbers: red is the class, green is the "
            "confidence in steps of 1/255",
            examples=["classes"],
        ),
    ] = "values",
) -> dict[str, Any]:
    """The window in the request's query."""
    return {"window": [top, left, rows, cols], "most_pixels": width * height, "layer": layer}


async def _scene(service: Service, scene_id: str, owner: str) -> SceneRecord:
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    LabelGrid.of(scene.document)  # refuses scenes in sensor geometry
    return scene


async def _ask(
    service: Service, scene: SceneRecord, owner: str, request: dict[str, Any], place: str = ""
) -> tuple[dict[str, Any], bytes]:
    return await asyncio.to_thread(partial(service.live.request, scene, owner, request, place))


@router.post(
    "/scenes/{scene_id}/live",
    summary="Prepare the live map",
    status_code=200,
    response_class=JsonResponse,
    responses={200: {"model": LiveState}, **problems(404, 507)},
)
async def prepare(scene_id: SceneId, service: ServiceDep, owner: OwnerDep) -> Response:
    """Compute the features of the live map, once for each scene. `GET` shows the progress."""
    scene = await _scene(service, scene_id, owner)
    await asyncio.to_thread(service.live.prepare, scene)
    return JsonResponse(await asyncio.to_thread(service.live.state, scene), headers={"Cache-Control": "no-store"})


@router.get(
    "/scenes/{scene_id}/live",
    summary="Progress of the live map's preparation",
    response_class=JsonResponse,
    responses={200: {"model": LiveState}, **problems(404)},
)
async def show_state(scene_id: SceneId, service: ServiceDep, owner: OwnerDep) -> Response:
    """`state` is "not started", "computing", "ready" or "failed"."""
    scene = await _scene(service, scene_id, owner)
    return JsonResponse(await asyncio.to_thread(service.live.state, scene), headers={"Cache-Control": "no-store"})


@router.get(
    "/scenes/{scene_id}/live/view.png",
    summary="The live map of a window",
    response_class=Response,
    responses=PICTURE,
)
async def draw_view(
    scene_id: SceneId,
    service: ServiceDep,
    owner: OwnerDep,
    view: Annotated[dict[str, Any], Depends(view_of)],
    place: Annotated[
        str, Query(max_length=64, description="a newer request with the same text overtakes one that still waits")
    ] = "",
) -> Response:
    """The classes that your labels give, at the resolution of the screen and no finer than the scene's.

    X-Window says which top, left, rows and columns of the scene are drawn; the ETag is that of the labels.
    """
    scene = await _scene(service, scene_id, owner)
    return await _picture(service, scene, owner, {"do": "classify", "view": view}, place)


async def _picture(
    service: Service, scene: SceneRecord, owner: str, request: dict[str, Any], place: str = ""
) -> Response:
    _require_inside(scene, *request["view"]["window"][:2])
    found, png = await _ask(service, scene, owner, request, place)
    headers = {"X-Window": ",".join(map(str, found["window"])), "Cache-Control": "no-store"}
    if "etag" in found:
        headers["ETag"] = found["etag"]
    return Response(png, headers=headers, media_type=PNG_TYPE)


def _require_inside(scene: SceneRecord, row: int, col: int) -> None:
    rows, cols = scene.document["rows"], scene.document["cols"]
    if not (row < rows and col < cols):
        raise RequestUnusable(f"row {row}, column {col} is outside of the scene of {rows} x {cols} pixels: move inside")


@router.get(
    "/scenes/{scene_id}/live/tiles/{layer}/{z}/{x}/{y}.png",
    summary="A tile of the live map, or of the scene below it",
    response_class=Response,
    responses={**PICTURE, 304: {"description": "The cached copy is current (If-None-Match)"}},
)
async def read_live_tile(
    scene_id: SceneId, layer: LiveLayer, tile: TileDep, request: Request, service: ServiceDep, owner: OwnerDep,
    bands: BandsText = None,
) -> Response:  # fmt: skip
    """256 x 256 pixels on the scene's grid. At the zoom ceil(log2(size / 256)) they are the scene's pixels."""
    scene = await _scene(service, scene_id, owner)
    if layer == "scene":
        return await _scene_tile(service, scene, tile, bands, request)
    max_zoom = max(0, (max(scene.document["rows"], scene.document["cols"]) - 1) // TILE_PX).bit_length()
    if not 0 <= tile.zoom <= max_zoom:
        raise NoSuchResult(f"the live map has tiles of zoom 0 to {max_zoom}: ask for one of these")
    span = TILE_PX * 2 ** (max_zoom - tile.zoom)
    if not (0 <= tile.x * span < scene.document["cols"] and 0 <= tile.y * span < scene.document["rows"]):
        raise NoSuchResult("the tile is outside of the scene: its upper left corner is that of tile 0, 0")
    view = {"window": [tile.y * span, tile.x * span, span, span], "most_pixels": TILE_PX**2, "layer": layer}
    return await _picture(
        service, scene, owner, {"do": "picture" if layer == "components" else "classify", "view": view}
    )


async def _scene_tile(service: Service, scene: SceneRecord, tile: Any, bands: str | None, request: Request) -> Response:
    etag = f'"{scene.id}-{bands}-{tile.zoom}-{tile.x}-{tile.y}"'
    if is_not_modified(request, etag):
        return Response(status_code=304, headers=cache_headers(etag))
    try:
        path = await result_of(service, service.layers.picture(scene, bands_of(bands)), PREVIEW_WAIT_S)
    except TimeoutError:
        error = NotReady(f"the picture of the scene is being rendered: try again in {PREVIEW_WAIT_S} s")
        error.headers = {"Retry-After": str(PREVIEW_WAIT_S)}
        raise error from None
    png = await result_of(service, service.layers.picture_tile(path, tile))
    return Response(png, headers=cache_headers(etag), media_type=PNG_TYPE)


@router.get(
    "/scenes/{scene_id}/live/estimate",
    summary="How good the live map is",
    response_class=JsonResponse,
    responses={200: {"model": LiveEstimate}, **problems(404, 409)},
)
async def estimate(
    scene_id: SceneId,
    service: ServiceDep,
    owner: OwnerDep,
    place: Annotated[str, Query(max_length=64, description="as for the view")] = "",
) -> Response:
    """Spatial cross-validation: connected areas of labels are held out and predicted from the others.

    Also labels that look like mistakes. It runs in short turns, so that the map can be drawn meanwhile.
    """
    scene = await _scene(service, scene_id, owner)
    ends = asyncio.get_running_loop().time() + ESTIMATE_WAIT_S
    while True:
        found, _ = await _ask(service, scene, owner, {"do": "estimate"}, place and f"estimate-{place}")
        if found["is_done"] or asyncio.get_running_loop().time() > ends:
            break
        await asyncio.sleep(PAUSE_S)
    return JsonResponse({name: value for name, value in found.items() if name != "bytes"})


@router.get(
    "/scenes/{scene_id}/live/suggestions",
    summary="Where to label next",
    response_class=JsonResponse,
    responses={200: {"model": LiveSuggestions}, **problems(404, 409)},
)
async def suggest(
    scene_id: SceneId,
    service: ServiceDep,
    owner: OwnerDep,
    count: Annotated[int, Query(ge=1, le=50, description="number of places", examples=[10])] = 10,
) -> Response:
    """Places whose label would help most: the live map is uncertain there, and no two are alike."""
    scene = await _scene(service, scene_id, owner)
    found, _ = await _ask(service, scene, owner, {"do": "suggest", "count": count})
    return JsonResponse({"etag": found["etag"], "places": found["places"]})


@router.get(
    "/scenes/{scene_id}/live/spectra",
    summary="Mean spectra of the labelled classes",
    response_class=JsonResponse,
    responses={200: {"model": SceneSpectra}, **problems(404)},
)
async def class_spectra(scene_id: SceneId, service: ServiceDep, owner: OwnerDep) -> Response:
    """Mean and standard deviation over labelled pixels of each class, at most 40 of them at random."""
    scene = await _scene(service, scene_id, owner)
    shape = (scene.document["rows"], scene.document["cols"])
    labels = await asyncio.to_thread(service.labels.read, scene.id, owner, shape)
    places = {each.value: labels.sample(each.value, SPECTRA_OF_CLASS) for each in labels.classes}
    wanted = [place for own in places.values() for place in own]
    values = await result_of(service, service.layers.scene_values(scene, wanted))
    read = iter(values)
    classes = []
    for each in labels.classes:
        spectra = [next(read) for _ in places[each.value]]
        if spectra:
            classes.append({**vars(each), "pixels": len(spectra), **mean_spectrum(spectra)})
    return JsonResponse({**_bands(scene), "classes": classes})


@router.get(
    "/scenes/{scene_id}/pixel",
    summary="A pixel's spectrum and position",
    response_class=JsonResponse,
    responses={200: {"model": ScenePixel}, **problems(404)},
)
async def show_scene_pixel(
    scene_id: SceneId, service: ServiceDep, owner: OwnerDep, row: Index = 0, col: Index = 0
) -> Response:
    """Values in the scene's good bands and physical units, with longitude and latitude."""
    scene = await _scene(service, scene_id, owner)
    _require_inside(scene, row, col)
    (values,) = await result_of(service, service.layers.scene_values(scene, [(row, col)]))
    grid = await result_of(service, service.layers.scene_grid(scene))
    lon_lat = await asyncio.to_thread(grid.lon_lat, row, col)
    lon, lat = (None, None) if lon_lat is None else (round(number, 8) for number in lon_lat)
    return JsonResponse({"row": row, "col": col, "lon": lon, "lat": lat, **_bands(scene), "values": values})


def _bands(scene: SceneRecord) -> dict[str, Any]:
    return {"bands": band_numbers(scene), "wavelengths_nm": scene.document["wavelengths_nm"]}
