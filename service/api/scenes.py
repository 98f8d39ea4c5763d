"""Scenes: upload once, map often."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from python_multipart.multipart import parse_options_header

from hyperscene.errors import RequestUnusable
from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import ID_EXAMPLE, SceneDocument, SceneList, scene_of, time_of
from hyperscene.service.api.problems import JsonResponse, problems
from hyperscene.service.api.uploads import (
    MAX_FILES,
    content_length,
    read_json,
    receive_file,
    receive_form,
    upload_folder,
)
from hyperscene.service.jobs.demo_scenes import demo_scene
from hyperscene.service.jobs.records import SceneRecord

router = APIRouter(tags=["scenes"])

SceneId = Annotated[str, Path(max_length=100, description="from POST /scenes", examples=[ID_EXAMPLE])]
BINARY = {"type": "string", "format": "binary"}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/tiff": {"schema": BINARY, "example": "(the bytes of scene.tif)"},
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["href"],
                    "properties": {
                        "href": {"type": "string", "description": "URL of a COG on a host that this server may read"}
                    },
                },
                "example": {"href": "https://example.org/scenes/line-7.tif"},
            },
            "application/octet-stream": {"schema": BINARY},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["scene"],
                    "properties": {
                        "scene": {
                            "type": "array",
                            "maxItems": MAX_FILES,
                            "items": BINARY,
                        }
                    },
                }
            },
        },
    }
}


@router.post(
    "/scenes",
    summary="Upload a scene",
    status_code=201,
    responses={201: {"model": SceneDocument}, **problems(400, 408, 413, 429, 507)},
    openapi_extra=BODY,
)
async def upload_scene(
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    content_disposition: Annotated[str | None, Header(description="filename= is the name of a raw body")] = None,
) -> Response:
    """Upload a scene and map it later: one file as the body, or all its files in the multipart field `scene`.

    A scene is a GeoTIFF, ENVI data and header, or a product: a zip, a tar.gz, an HDF5 or netCDF file, or its own files.
    A scene on another host is not uploaded: send its URL as JSON, {"href": ...}.
    """
    admission = service.admission
    if request.headers.get("content-type", "").startswith("application/json"):
        href = _href(await read_json(request, service))
        scene = await asyncio.to_thread(admission.reference_scene, href, owner, is_temporary=False)
        return await _created_response(scene, service, base)
    with admission.upload_slot(owner, is_job=False):
        await asyncio.to_thread(admission.require_capacity, content_length(request), owner, is_job=False)
        async with upload_folder(service) as folder:
            if request.headers.get("content-type", "").startswith("multipart/"):
                upload = await receive_form(request, service, folder)
            else:
                _, options = parse_options_header(content_disposition or "")
                name = options.get(b"filename", b"scene.tif").decode("utf-8", "replace")
                upload = await receive_file(request, service, folder, name)
            if upload.fields:
                raise RequestUnusable("POST /scenes takes files only: send options with the job")
            scene = await asyncio.to_thread(admission.receive_scene, folder, upload.files, owner, is_temporary=False)
    return await _created_response(scene, service, base)


def _href(body: Any) -> str:
    if not isinstance(body, dict) or set(body) != {"href"} or not isinstance(body["href"], str):
        raise RequestUnusable('the JSON body of POST /scenes must be {"href": URL}')
    return str(body["href"])


async def _created_response(scene: SceneRecord, service: Service, base: str) -> Response:
    def store() -> Response:
        with service.admission.removed_on_error(scene):  # nothing is kept that the client does not learn about
            document = scene_of(scene, service.admission.matches(scene), base)
            headers = {"Location": f"{base}/scenes/{scene.id}"}
            response = JsonResponse(document.model_dump(mode="json", exclude_none=True), 201, headers)
            service.admission.store_scene(scene)
        return response

    return await asyncio.to_thread(store)


@router.post(
    "/demo-scene",
    summary="Make the demo scene",
    status_code=201,
    responses={
        200: {"model": SceneDocument, "description": "Your demo scene, which was made before"},
        201: {"model": SceneDocument, "description": "Your new demo scene"},
        **problems(413, 429, 507),
    },
)
async def make_demo_scene(service: ServiceDep, owner: OwnerDep, base: BaseDep) -> Response:
    """A synthetic scene of 240 x 240 pixels and 64 bands with eight classes, to try the service: one for each key."""
    scene, is_new = await asyncio.to_thread(demo_scene, service.admission, service.store, owner)
    document = scene_of(scene, await asyncio.to_thread(service.admission.matches, scene), base)
    headers = {"Location": f"{base}/scenes/{scene.id}"}
    return JsonResponse(document.model_dump(mode="json", exclude_none=True), 201 if is_new else 200, headers)


@router.get(
    "/scenes",
    summary="Your scenes",
    response_class=JsonResponse,
    responses={200: {"model": SceneList}, **problems()},
)
async def list_scenes(
    service: ServiceDep,
    owner: OwnerDep,
    base: BaseDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="largest number of scenes", examples=[12])] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1, description="number of newer scenes to leave out")] = 0,
) -> Response:
    """The newest first, with the number of labelled pixels. Scenes that belong to a job only are not listed."""
    scenes = await asyncio.to_thread(service.store.scenes, owner, limit, offset)

    def describe(scene: SceneRecord) -> dict[str, Any]:
        labels = service.labels.read(scene.id, owner, (scene.document["rows"], scene.document["cols"]))
        return {
            "id": scene.id,
            "name": scene.name,
            "created": time_of(scene.created),
            "expires": time_of(scene.expires),
            "rows": scene.document["rows"],
            "cols": scene.document["cols"],
            "labelled_pixels": len(labels.pixels),
            "links": [{"href": f"{base}/scenes/{scene.id}", "rel": "item", "type": "application/json"}],
        }

    listed = await asyncio.to_thread(lambda: [describe(scene) for scene in scenes])
    return JsonResponse({"scenes": listed}, headers={"Cache-Control": "no-store"})


@router.get("/scenes/{scene_id}", summary="Metadata of a scene", responses=problems(404))
async def show_scene(scene_id: SceneId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> SceneDocument:
    """Size, bands, wavelengths, CRS, product, masks, warnings, and whether each model matches its bands."""
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    return scene_of(scene, service.admission.matches(scene), base)


@router.delete("/scenes/{scene_id}", summary="Remove a scene", status_code=204, responses=problems(404, 409))
async def delete_scene(scene_id: SceneId, service: ServiceDep, owner: OwnerDep) -> Response:
    """Delete the scene's files. Refused (409) while a job still needs them."""
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    await asyncio.to_thread(service.admission.delete_scene, scene)
    return Response(status_code=204)
