"""Scenes: upload once, map often."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from python_multipart.multipart import parse_options_header

from service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from service.api.documents import ID_EXAMPLE, SceneDocument, scene_of
from service.api.problems import problems
from service.api.uploads import content_length, incoming, read_json, receive_file, receive_form
from service.errors import RequestUnusable
from service.jobs.records import SceneRecord

router = APIRouter(tags=["scenes"])

SceneId = Annotated[str, Path(max_length=100, description="from POST /scenes", examples=[ID_EXAMPLE])]
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/tiff": {"schema": {"type": "string", "format": "binary"}, "example": "(the bytes of scene.tif)"},
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["href"],
                    "properties": {
                        "href": {"type": "string", "description": "address of a COG in a place that this server reads"}
                    },
                },
                "example": {"href": "https://example.org/scenes/line-7.tif"},
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["scene"],
                    "properties": {
                        "scene": {"type": "array", "maxItems": 2, "items": {"type": "string", "format": "binary"}}
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
    content_disposition: Annotated[str | None, Header(description="filename= names a raw body")] = None,
) -> Response:
    """Send a GeoTIFF as the body, or GeoTIFF or ENVI files as multipart field `scene`; it is kept to be mapped.

    Or name one that stays where it is: {"href": ...} as JSON.
    """
    admission = service.admission
    if request.headers.get("content-type", "").startswith("application/json"):
        href = _href(await read_json(request, service))
        scene = await asyncio.to_thread(admission.refer, href, owner, is_temporary=False)
        return await _kept(scene, service, base)
    with admission.slot(is_job=False):
        await asyncio.to_thread(admission.require_place, content_length(request), is_job=False)
        async with incoming(service) as folder:
            if request.headers.get("content-type", "").startswith("multipart/"):
                upload = await receive_form(request, service, folder)
            else:
                _, options = parse_options_header(content_disposition or "")
                name = options.get(b"filename", b"scene.tif").decode("utf-8", "replace")
                upload = await receive_file(request, service, folder, name)
            if upload.fields:
                raise RequestUnusable("POST /scenes takes files only: options belong to the job")
            scene = await asyncio.to_thread(admission.take_in, folder, upload.files, owner, is_temporary=False)
    return await _kept(scene, service, base)


def _href(body: Any) -> str:
    if not isinstance(body, dict) or set(body) != {"href"} or not isinstance(body["href"], str):
        raise RequestUnusable('as JSON, POST /scenes takes {"href": ADDRESS} and nothing else')
    return str(body["href"])


async def _kept(scene: SceneRecord, service: Service, base: str) -> Response:
    document = _document(scene, service, base)
    await asyncio.to_thread(service.admission.keep_scene, scene)
    return JSONResponse(document, 201, {"Location": f"{base}/scenes/{scene.id}"})


@router.get("/scenes/{scene_id}", summary="What was understood of a scene", responses=problems(404))
async def show_scene(scene_id: SceneId, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> SceneDocument:
    """Size, bands, wavelengths, CRS, warnings, and what each model says to it."""
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    return scene_of(scene, service.admission.matches(scene), base)


@router.delete("/scenes/{scene_id}", summary="Remove a scene", status_code=204, responses=problems(404, 409))
async def delete_scene(scene_id: SceneId, service: ServiceDep, owner: OwnerDep) -> Response:
    """Free its disk; jobs that still have to read it come first."""
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    await asyncio.to_thread(service.admission.delete_scene, scene)
    return Response(status_code=204)


def _document(scene: SceneRecord, service: Service, base: str) -> dict[str, Any]:
    return scene_of(scene, service.admission.matches(scene), base).model_dump(mode="json", exclude_none=True)
