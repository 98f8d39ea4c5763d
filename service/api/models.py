"""Models: the operator's bundles and those of owners, in versions, each as a STAC Item with the MLM extension."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from hyperscene.errors import NoSuchModel, NoSuchResult
from hyperscene.model.bundle import Manifest
from hyperscene.service.api import examples
from hyperscene.service.api.context import BaseDep, OwnerDep, Service, ServiceDep
from hyperscene.service.api.documents import Link, ModelList
from hyperscene.service.api.problems import JsonResponse, problems
from hyperscene.service.api.uploads import content_length, receive_file, upload_folder
from hyperscene.service.jobs.models import ServedModel

router = APIRouter(tags=["models"])

STAC_EXTENSIONS = [
    "https://stac-extensions.github.io/mlm/v1.4.0/schema.json",
    "https://stac-extensions.github.io/classification/v2.0.0/schema.json",
    "https://stac-extensions.github.io/file/v2.1.0/schema.json",
]
MLM_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-\s]+[a-zA-Z0-9]")  # from the schema of MLM
ONNX_TYPE = "application/octet-stream; application=onnx"

PNG = {"schema": {"type": "string", "format": "binary"}}
BUNDLE_FILE = {"description": "The file", "content": {ONNX_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
FILE_TYPES = {
    "bundle.onnx": ONNX_TYPE, "report.json": "application/json", "network.png": "image/png",
    "propagation.png": "image/png",
}  # fmt: skip

ModelName = Annotated[str, Path(max_length=100, examples=["demo"])]
Version = Annotated[int, Path(ge=1, le=10**9, description="from 1", examples=[1])]
ModelFile = Annotated[Literal["bundle.onnx", "report.json", "network.png", "propagation.png"], Path()]


@router.get("/models", summary="List the models", responses=problems())
async def list_models(service: ServiceDep, owner: OwnerDep, base: BaseDep) -> ModelList:
    """The operator's models and yours, each in its latest version, with classes and the wavelengths it needs."""
    found = await asyncio.to_thread(service.models.visible, owner)
    return ModelList(
        models=[_summary(model, base) for model in found],
        default=service.models.default.name,
        links=[Link(href=f"{base}/models", rel="self", type="application/json", title="this list")],
    )


@router.get(
    "/models/{name}",
    summary="A model as a STAC Item with the MLM extension",
    responses={200: {"content": {"application/json": {"example": examples.MODEL}}}, **problems(404)},
)
async def show_model(name: ModelName, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> dict[str, Any]:
    """Input, classes, training and accuracy of the model's latest version, and links to all versions."""
    versions = await asyncio.to_thread(service.models.versions, name, owner)
    return model_item(versions[0], base, versions)


@router.put(
    "/models/{name}",
    summary="Upload a bundle as a model",
    status_code=201,
    response_class=Response,
    responses={
        201: {
            "description": "The new version, ready for mapping",
            "content": {"application/geo+json": {"schema": {"type": "object"}, "example": examples.MODEL}},
            "headers": {"Location": {"description": "URL of the version", "schema": {"type": "string"}}},
        },
        **problems(400, 408, 409, 413, 429, 507),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {
                    "schema": {"type": "string", "format": "binary"},
                    "example": "(the bytes of bundle.onnx)",
                }
            },
        }
    },
)
async def upload_model(
    name: ModelName, request: Request, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> Response:
    """Send a bundle that `hyperscene train` wrote, as the body. It becomes the next version of your model `name`."""
    admission, models = service.admission, service.model_admission
    models.require_name(name)
    with admission.upload_slot(owner, is_job=False):
        await asyncio.to_thread(admission.require_capacity, content_length(request), owner, is_job=False)
        async with upload_folder(service) as folder:
            upload = await receive_file(request, service, folder, f"{name}.onnx")
            model = await asyncio.to_thread(models.upload, folder, upload.files[0], name, owner)
    headers = {"Location": f"{base}/models/{name}/versions/{model.version}"}
    return JsonResponse(model_item(model, base), 201, headers, media_type="application/geo+json")


@router.delete(
    "/models/{name}", summary="Remove a model with all versions", status_code=204, responses=problems(404, 409)
)
async def delete_model(name: ModelName, service: ServiceDep, owner: OwnerDep) -> Response:
    """Delete all versions of a model of yours. Jobs that wait for one of them fail with `no_such_model`."""
    await asyncio.to_thread(service.model_admission.remove, name, owner)
    return Response(status_code=204)


@router.get(
    "/models/{name}/versions/{version}",
    summary="A version of a model as a STAC Item",
    responses={200: {"content": {"application/json": {"example": examples.MODEL}}}, **problems(404)},
)
async def show_version(
    name: ModelName, version: Version, service: ServiceDep, owner: OwnerDep, base: BaseDep
) -> dict[str, Any]:
    """Like the model itself, for one version. Models of the operator have version 1 only."""
    return model_item(await asyncio.to_thread(_version, service, name, version, owner), base)


@router.delete(
    "/models/{name}/versions/{version}", summary="Remove a version", status_code=204, responses=problems(404, 409)
)
async def delete_version(name: ModelName, version: Version, service: ServiceDep, owner: OwnerDep) -> Response:
    """Delete one version of a model of yours; its number is not given again."""
    await asyncio.to_thread(service.model_admission.remove, name, owner, version)
    return Response(status_code=204)


@router.get(
    "/models/{name}/versions/{version}/{file}",
    summary="A file of a version",
    response_class=FileResponse,
    responses={
        200: {
            "description": "The file",
            "content": {
                ONNX_TYPE: PNG,
                "image/png": PNG,
                "application/json": {"schema": {"type": "object"}, "example": examples.TRAINING_REPORT},
            },
        },
        **problems(404),
    },
)
async def read_version_file(
    name: ModelName, version: Version, file: ModelFile, service: ServiceDep, owner: OwnerDep
) -> FileResponse:
    """The bundle; of a model that was trained here also its report, its map, and that of label propagation."""
    model = await asyncio.to_thread(_version, service, name, version, owner)
    path = model.path if file == "bundle.onnx" else model.path.with_name(file)
    if not path.is_file() or (model.record is None and file != "bundle.onnx"):
        raise NoSuchResult(f"version {version} of {name} has no {file}: only models that were trained here have one")
    return FileResponse(path, media_type=FILE_TYPES[file], filename=f"{name}.onnx" if path == model.path else file)


def _version(service: Service, name: str, version: int, owner: str) -> ServedModel:
    found = next((model for model in service.models.versions(name, owner) if model.version == version), None)
    if found is None:
        raise NoSuchModel(f"the model {name[:100]} has no version {version}: GET /models/{name[:100]} lists them")
    return found


@router.get(
    "/models/{name}/bundle.onnx",
    summary="Download a model's bundle",
    response_class=FileResponse,
    responses={200: BUNDLE_FILE, **problems(404)},
)
async def read_bundle(name: ModelName, service: ServiceDep, owner: OwnerDep) -> FileResponse:
    """The .onnx file of the latest version, for `hyperscene classify --bundle`, which needs no server."""
    model = await asyncio.to_thread(service.models.find, name, owner)
    return FileResponse(model.path, media_type=ONNX_TYPE, filename=f"{model.name}.onnx")


def _summary(model: ServedModel, base: str) -> dict[str, Any]:
    manifest = model.manifest
    nm = manifest.wavelengths_nm
    return {
        "name": model.name,
        "title": manifest.name,
        "version": model.version,
        "is_yours": model.record is not None,
        **{key: text for key, text in _about(manifest.training).items() if isinstance(text, str)},
        "classes": [
            {"value": value, "name": name, "color": color}
            for value, (name, color) in enumerate(zip(manifest.class_names, manifest.class_colors, strict=True), 1)
        ],
        "bands": manifest.bands,
        "wavelengths_nm": None if nm is None else [min(nm), max(nm)],
        "patch_px": manifest.patch_px,
        "head": manifest.head,
        "sha256": model.sha256,
        "links": [{"href": f"{base}/models/{model.name}", "rel": "self", "type": "application/geo+json"}],
    }


def _about(training: dict[str, Any]) -> dict[str, Any]:
    """What the training record says for people, as its writer gave it."""
    data = training.get("data")
    known = data if isinstance(data, dict) else {}
    return {"description": training.get("description"), **{key: known.get(key) for key in ("sensor", "acquired")}}


def _version_links(model: ServedModel, versions: list[ServedModel], base: str) -> list[dict[str, Any]]:
    """Links to the report of a version that was trained here, and to all versions."""
    url = f"{base}/models/{model.name}/versions"
    here, kind = f"{url}/{model.version}", "application/geo+json"
    is_trained = model.record is not None and model.record.job_id is not None
    report = {"href": f"{here}/report.json", "rel": "related", "type": "application/json", "title": "training report"}
    return [
        *([report] if is_trained else []),
        *({"href": f"{url}/{each.version}", "rel": "item", "type": kind, "title": f"version {each.version}"}
          for each in versions),
    ]  # fmt: skip


def model_item(model: ServedModel, base: str, versions: list[ServedModel] | None = None) -> dict[str, Any]:
    """A model as a STAC Item, with links to its versions. It covers no area, so its geometry is null."""
    manifest = model.manifest
    modified = datetime.fromtimestamp(model.path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    url = (
        f"{base}/models/{model.name}"
        if versions or model.record is None
        else (f"{base}/models/{model.name}/versions/{model.version}")
    )
    # MLM requires the bands in the properties; STAC allows them there only if an asset has them too.
    bands = [{"name": name} for name in _band_names(manifest)]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": STAC_EXTENSIONS,
        "id": model.name if model.record is None else f"{model.name}-{model.version}",
        "geometry": None,
        "properties": {
            "datetime": modified.replace("+00:00", "Z"),
            "title": manifest.name,
            "version": str(model.version),
            "bands": bands,
            "mlm:name": _mlm_name(manifest.name),
            "mlm:architecture": "Transformer",
            "mlm:framework": "ONNX",
            "mlm:tasks": ["semantic-segmentation", "classification"],
            "mlm:accelerator_constrained": False,
            "mlm:input": [_input(model)],
            "mlm:output": [_output(model)],
            "mlm:hyperparameters": {
                "attention": manifest.attention,
                "head": manifest.head,
                "patch_px": manifest.patch_px,
                **manifest.architecture,
            },
            "hyperscene:wavelengths_nm": manifest.wavelengths_nm,
            "hyperscene:value_range": list(manifest.value_range),
            "hyperscene:training": manifest.training,
        },
        "links": [
            {"href": url, "rel": "self", "type": "application/geo+json"},
            {"href": f"{base}/models", "rel": "parent", "type": "application/json"},
            *_version_links(model, versions or [], base),
        ],
        "assets": {
            "bundle": {
                "href": f"{url}/bundle.onnx",
                "type": ONNX_TYPE,
                "title": "The bundle: weights, standardisation and manifest in one file",
                "roles": ["mlm:model", "mlm:weights", "data"],
                "mlm:artifact_type": "onnx",
                "bands": bands,
                "file:checksum": "1220" + model.sha256,  # a multihash: sha2-256, 32 bytes
            }
        },
    }


def _mlm_name(name: str) -> str:
    """The bundle's name with the characters that MLM allows."""
    text = re.sub(r"[^a-zA-Z0-9_.\s-]+", "-", name).strip("-_. ")
    return text if MLM_NAME.fullmatch(text) else f"model {text}".strip()


def _band_names(manifest: Manifest) -> list[str]:
    nm = manifest.wavelengths_nm
    return [f"{value:g} nm" for value in nm] if nm else [f"band {n + 1}" for n in range(manifest.bands)]


def _input(model: ServedModel) -> dict[str, Any]:
    manifest = model.manifest
    return {
        "name": "cube",
        "bands": _band_names(manifest),
        "input": {
            "shape": [-1, -1, manifest.bands],
            "dim_order": ["height", "width", "channel"],
            "data_type": "float32",
        },
        "value_scaling": [
            {"type": "z-score", "mean": mean, "stddev": std}
            for mean, std in zip(manifest.band_mean, manifest.band_std, strict=True)
        ],
        "description": "Values in the scene's units; the graph standardises them.",
    }


def _output(model: ServedModel) -> dict[str, Any]:
    manifest = model.manifest
    inner = [manifest.patch_px] * 2 if manifest.head == "token" else []
    return {
        "name": "probabilities",
        "tasks": ["semantic-segmentation", "classification"],
        "result": {
            "shape": [-1, *inner, manifest.classes],
            "dim_order": ["batch", *(["height", "width"] if inner else []), "class"],
            "data_type": "float32",
        },
        "classification:classes": [
            # MLM refers to version 1.1.0 of the classification extension, which requires the description.
            {
                "value": value,
                "name": f"class_{value}",
                "title": name,
                "description": name,
                "color_hint": color[1:].upper(),
            }
            for value, (name, color) in enumerate(zip(manifest.class_names, manifest.class_colors, strict=True), 1)
        ],
    }
