"""The labels that a caller draws on a scene."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hyperscene.errors import RequestUnusable
from hyperscene.service.api import examples
from hyperscene.service.api.context import OwnerDep, Service, ServiceDep, is_not_modified
from hyperscene.service.api.documents import LabelDocument
from hyperscene.service.api.problems import JsonResponse, invalid_request, problems
from hyperscene.service.api.scenes import SceneId
from hyperscene.service.api.uploads import read_json, receive_file, upload_folder
from hyperscene.service.jobs.label_files import FORMATS, MAX_FILE_BYTES, SUFFIXES, LabelGrid
from hyperscene.service.jobs.label_sets import Change, LabelClass, LabelSet, require_match
from hyperscene.service.jobs.records import SceneRecord

router = APIRouter(tags=["labels"])

BINARY = {"type": "string", "format": "binary"}
PLAIN = "application/json"
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
Run = tuple[Index, Index, Index]  # row, first column, number of pixels
IfMatch = Annotated[str | None, Header(description="the ETag of the labels that were read; required")]


class ClassBody(BaseModel):
    """A class of the labels."""

    model_config = ConfigDict(extra="ignore")

    value: int
    name: str
    color: str
    runs: list[Run] = Field(default_factory=list)


class ChangeBody(BaseModel):
    """Pixels for one class: runs on the scene's grid, or a GeoJSON geometry in longitude and latitude."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    value: int = Field(alias="class")
    runs: list[Run] | None = None
    geometry: dict[str, Any] | None = None


class PatchBody(BaseModel):
    """Changes of labels, in their order; `classes` replaces the list of classes."""

    model_config = ConfigDict(extra="forbid")

    classes: list[ClassBody] | None = None
    set: list[ChangeBody] = Field(default_factory=list)


class WholeBody(BaseModel):
    """All labels, as GET gives them with `format=json`."""

    model_config = ConfigDict(extra="ignore")

    classes: list[ClassBody]


READ: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The labels, with their ETag",
        "content": {
            "application/geo+json": {"schema": {"type": "object"}, "example": examples.LABEL_FEATURES},
            PLAIN: {"schema": {"$ref": "#/components/schemas/LabelDocument"}, "example": examples.LABELS},
            "application/geopackage+sqlite3": {"schema": BINARY},
            "image/tiff": {"schema": BINARY},
        },
    },
    304: {"description": "The cached copy is current (If-None-Match)"},
    **problems(404),
}
CHANGED: dict[int | str, dict[str, Any]] = {
    200: {"model": LabelDocument},
    **problems(400, 404, 408, 412, 413, 428, 507),
}
CLASSES = {
    "type": "object",
    "required": ["classes"],
    "properties": {"classes": {"type": "array", "items": {"type": "object"}}},
}
PUT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            PLAIN: {"schema": CLASSES, "example": {"classes": examples.LABELS["classes"]}},
            "application/geo+json": {"schema": {"type": "object"}, "example": examples.LABEL_FEATURES},
            **{media_type: {"schema": BINARY} for media_type in SUFFIXES if media_type != "application/geo+json"},
        },
    }
}
PATCH_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            PLAIN: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "classes": {"type": "array", "items": {"type": "object"}},
                        "set": {"type": "array", "items": {"type": "object"}},
                    },
                },
                "example": examples.LABEL_CHANGE,
            }
        },
    }
}


@router.get("/scenes/{scene_id}/labels", summary="Your labels of a scene", response_class=Response, responses=READ)
async def read_labels(
    scene_id: SceneId,
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    format: Annotated[
        Literal["geojson", "json", "gpkg", "tif"],
        Query(description="GeoJSON in longitude and latitude; the classes with their pixels as runs; a GeoPackage in "
              "the scene's reference system; or a raster of class values", examples=["json"]),
    ] = "geojson",
) -> Response:  # fmt: skip
    """Every format is one that training takes. A scene without labels has an empty set; its ETag starts with "0-".

    Features are connected areas of one class. Their properties are `class`, `value`, `color`, and `runs`: the exact
    pixels as [row, first column, number]. Without a position on Earth, coordinates are columns and rows.
    """
    scene, labels = await _labels(service, scene_id, owner)
    headers = {"ETag": labels.etag, "Cache-Control": "no-cache", "Vary": "X-API-Key, Authorization"}
    if is_not_modified(request, labels.etag):
        return Response(status_code=304, headers=headers)
    if format == "json":
        return JsonResponse(_document(labels, with_runs=True), headers=headers)
    grid = LabelGrid.of(scene.document)
    async with upload_folder(service) as folder:
        path = folder / f"labels.{format}"
        await asyncio.to_thread(service.label_converter.write, labels, grid, path)
        content = await asyncio.to_thread(path.read_bytes)
    headers["Content-Disposition"] = f'attachment; filename="labels.{format}"'
    return Response(content, headers=headers, media_type=FORMATS[format])


@router.put(
    "/scenes/{scene_id}/labels",
    summary="Replace your labels of a scene",
    responses=CHANGED,
    openapi_extra=PUT_BODY,
    response_class=JsonResponse,
)
async def replace_labels(
    scene_id: SceneId,
    request: Request,
    service: ServiceDep,
    owner: OwnerDep,
    if_match: IfMatch = None,
    class_field: Annotated[
        str | None, Query(max_length=100, description="the field of a vector file that holds the class")
    ] = None,
) -> Response:
    """Import a file that `hyperscene train` takes, or the document of `format=json`. Stored before the response."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == PLAIN:
        body = _parsed(WholeBody, await read_json(request, service, MAX_FILE_BYTES))
        classes = [LabelClass(each.value, each.name, each.color) for each in body.classes]
        changes = [Change(each.value, tuple(each.runs)) for each in body.classes]
    elif media_type in SUFFIXES:
        async with upload_folder(service) as folder:
            upload = await receive_file(request, service, folder, "labels", MAX_FILE_BYTES)
            path = upload.files[0].path.rename(folder / f"labels{SUFFIXES[media_type]}")
            scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
            grid = LabelGrid.of(scene.document)
            classes, changes = await asyncio.to_thread(service.label_converter.read, path, grid, class_field)
    else:
        raise RequestUnusable(
            f"labels have the Content-Type {', '.join([PLAIN, *SUFFIXES])}, not {media_type[:50]!r}: send one of them"
        )

    def replaced(labels: LabelSet) -> LabelSet:
        return labels.changed([], []).changed(changes, classes)

    return await _change(service, scene_id, owner, if_match, replaced)


@router.patch(
    "/scenes/{scene_id}/labels",
    summary="Change your labels of a scene",
    responses=CHANGED,
    openapi_extra=PATCH_BODY,
    response_class=JsonResponse,
)
async def change_labels(
    scene_id: SceneId, request: Request, service: ServiceDep, owner: OwnerDep, if_match: IfMatch = None
) -> Response:
    """A stroke: pixels that get a class, or lose theirs (class 0), as runs or a geometry. On disk before the response.

    `classes` adds, renames, recolours and removes classes; pixels of a class that is left out lose their label.
    """
    body = _parsed(PatchBody, await read_json(request, service))
    scene = await asyncio.to_thread(service.admission.find_scene, scene_id, owner)
    changes = [await _drawn(each, service, LabelGrid.of(scene.document)) for each in body.set]
    classes = None if body.classes is None else [LabelClass(each.value, each.name, each.color) for each in body.classes]
    return await _change(service, scene_id, owner, if_match, lambda labels: labels.changed(changes, classes))


async def _drawn(change: ChangeBody, service: Service, grid: LabelGrid) -> Change:
    if (change.runs is None) == (change.geometry is None):
        raise RequestUnusable("a change has either `runs` or a `geometry`: give one of them")
    if change.geometry is None:
        return Change(change.value, tuple(change.runs or ()))

    def draw(folder: FilePath) -> Change:
        return Change(change.value, service.label_converter.draw(change.geometry or {}, grid, folder))

    async with upload_folder(service) as folder:
        return await asyncio.to_thread(draw, folder)


def _parsed(kind: type[Any], body: Any) -> Any:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error.errors()[0]) from None


async def _labels(service: Service, scene_id: str, owner: str) -> tuple[SceneRecord, LabelSet]:
    def read() -> tuple[SceneRecord, LabelSet]:
        scene = service.admission.find_scene(scene_id, owner)
        grid = LabelGrid.of(scene.document)
        return scene, service.labels.read(scene.id, owner, (grid.rows, grid.cols))

    return await asyncio.to_thread(read)


async def _change(
    service: Service, scene_id: str, owner: str, if_match: str | None, change: Callable[[LabelSet], LabelSet]
) -> Response:
    scene, found = await _labels(service, scene_id, owner)

    def store() -> LabelSet:
        require_match(found, if_match)
        changed = service.labels.change(scene.id, owner, found, change(found))
        service.store.prolong_scene(scene.id, service.settings.keep_scenes_s)
        return changed

    labels = await asyncio.to_thread(store)
    return JsonResponse(_document(labels, with_runs=False), headers={"ETag": labels.etag})


def _document(labels: LabelSet, *, with_runs: bool) -> dict[str, Any]:
    counts = labels.counts
    return {
        "version": labels.version,
        "rows": labels.rows,
        "cols": labels.cols,
        "pixels": len(labels.pixels),
        "classes": [
            vars(each) | {"pixels": counts[each.value]} | ({"runs": labels.runs(each.value)} if with_runs else {})
            for each in labels.classes
        ],
    }
