"""Models: the bundles that can be asked for, each as a STAC Item with the MLM extension."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import FileResponse

from service.api import examples
from service.api.context import BaseDep, OwnerDep, ServiceDep
from service.api.documents import Link, ModelList
from service.api.problems import problems
from service.jobs.models import ServedModel

router = APIRouter(tags=["models"])

MLM = "https://stac-extensions.github.io/mlm/v1.4.0/schema.json"
CLASSIFICATION = "https://stac-extensions.github.io/classification/v2.0.0/schema.json"
ONNX_TYPE = "application/octet-stream; application=onnx"

ModelName = Annotated[str, Path(max_length=100, examples=["demo"])]


@router.get("/models", summary="What can be asked for", responses=problems())
async def list_models(service: ServiceDep, owner: OwnerDep, base: BaseDep) -> ModelList:
    """Every bundle: its classes and the wavelengths it needs."""
    return ModelList(
        models=[_summary(model, base) for model in service.models.by_name.values()],
        default=service.models.default.name,
        links=[Link(href=f"{base}/models", rel="self", type="application/json", title="this list")],
    )


@router.get(
    "/models/{name}",
    summary="A bundle, as a STAC Item with the MLM extension",
    responses={200: {"content": {"application/json": {"example": examples.MODEL}}}, **problems(404)},
)
async def show_model(name: ModelName, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> dict[str, Any]:
    """Its input, its classes, how it was trained and how it scored."""
    return model_item(service.models.find(name), base)


@router.get(
    "/models/{name}/bundle.onnx",
    summary="The bundle itself",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {ONNX_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        **problems(404),
    },
)
async def read_bundle(name: ModelName, service: ServiceDep, owner: OwnerDep) -> FileResponse:
    """For `hyperscene classify --bundle`, which then needs no server."""
    model = service.models.find(name)
    return FileResponse(model.path, media_type=ONNX_TYPE, filename=f"{model.name}.onnx")


def _summary(model: ServedModel, base: str) -> dict[str, Any]:
    manifest = model.manifest
    nm = manifest.wavelengths_nm
    return {
        "name": model.name,
        "title": manifest.name,
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


def model_item(model: ServedModel, base: str) -> dict[str, Any]:
    """A bundle as a STAC Item; it belongs to no place, so its geometry is null."""
    manifest = model.manifest
    made = datetime.fromtimestamp(model.path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    here = f"{base}/models/{model.name}"
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [MLM, CLASSIFICATION],
        "id": model.name,
        "geometry": None,
        "properties": {
            "datetime": made.replace("+00:00", "Z"),
            "title": manifest.name,
            "mlm:name": manifest.name,
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
            {"href": here, "rel": "self", "type": "application/geo+json"},
            {"href": f"{base}/models", "rel": "parent", "type": "application/json"},
        ],
        "assets": {
            "bundle": {
                "href": f"{here}/bundle.onnx",
                "type": ONNX_TYPE,
                "title": "The bundle: weights, standardisation and manifest in one file",
                "roles": ["mlm:model", "mlm:weights", "data"],
                "mlm:artifact_type": "onnx",
                "file:checksum": "1220" + model.sha256,  # a multihash: sha2-256, 32 bytes
            }
        },
    }


def _input(model: ServedModel) -> dict[str, Any]:
    manifest = model.manifest
    nm = manifest.wavelengths_nm
    return {
        "name": "cube",
        "bands": [f"{value:g} nm" for value in nm] if nm else [f"band {n + 1}" for n in range(manifest.bands)],
        "input": {
            "shape": [-1, -1, manifest.bands],
            "dim_order": ["height", "width", "channel"],
            "data_type": "float32",
        },
        "value_scaling": [
            {"type": "z-score", "mean": mean, "stddev": std}
            for mean, std in zip(manifest.band_mean, manifest.band_std, strict=True)
        ],
        "description": "Standardised inside of the graph: values go in as the scene has them.",
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
            {"value": value, "name": f"class_{value}", "title": name, "color_hint": color[1:].upper()}
            for value, (name, color) in enumerate(zip(manifest.class_names, manifest.class_colors, strict=True), 1)
        ],
    }
