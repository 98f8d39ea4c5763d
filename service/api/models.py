"""Models: the registered bundles, each as a STAC Item with the MLM extension."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import FileResponse

from hyperscene.model.bundle import Manifest
from hyperscene.service.api import examples
from hyperscene.service.api.context import BaseDep, OwnerDep, ServiceDep
from hyperscene.service.api.documents import Link, ModelList
from hyperscene.service.api.problems import problems
from hyperscene.service.jobs.models import ServedModel

router = APIRouter(tags=["models"])

STAC_EXTENSIONS = [
    "https://stac-extensions.github.io/mlm/v1.4.0/schema.json",
    "https://stac-extensions.github.io/classification/v2.0.0/schema.json",
    "https://stac-extensions.github.io/file/v2.1.0/schema.json",
]
MLM_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-\s]+[a-zA-Z0-9]")  # from the schema of MLM
ONNX_TYPE = "application/octet-stream; application=onnx"

ModelName = Annotated[str, Path(max_length=100, examples=["demo"])]


@router.get("/models", summary="List the models", responses=problems())
async def list_models(service: ServiceDep, owner: OwnerDep, base: BaseDep) -> ModelList:
    """Every model with its classes and the wavelengths it needs."""
    return ModelList(
        models=[_summary(model, base) for model in service.models.by_name.values()],
        default=service.models.default.name,
        links=[Link(href=f"{base}/models", rel="self", type="application/json", title="this list")],
    )


@router.get(
    "/models/{name}",
    summary="A model as a STAC Item with the MLM extension",
    responses={200: {"content": {"application/json": {"example": examples.MODEL}}}, **problems(404)},
)
async def show_model(name: ModelName, service: ServiceDep, owner: OwnerDep, base: BaseDep) -> dict[str, Any]:
    """The model's input, classes, training and accuracy."""
    return model_item(service.models.find(name), base)


@router.get(
    "/models/{name}/bundle.onnx",
    summary="Download a model's bundle",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {ONNX_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        **problems(404),
    },
)
async def read_bundle(name: ModelName, service: ServiceDep, owner: OwnerDep) -> FileResponse:
    """The .onnx file, for `hyperscene classify --bundle`, which needs no server."""
    model = service.models.find(name)
    return FileResponse(model.path, media_type=ONNX_TYPE, filename=f"{model.name}.onnx")


def _summary(model: ServedModel, base: str) -> dict[str, Any]:
    manifest = model.manifest
    nm = manifest.wavelengths_nm
    return {
        "name": model.name,
        "title": manifest.name,
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


def model_item(model: ServedModel, base: str) -> dict[str, Any]:
    """A model as a STAC Item. It covers no area, so its geometry is null."""
    manifest = model.manifest
    modified = datetime.fromtimestamp(model.path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    url = f"{base}/models/{model.name}"
    # MLM requires the bands in the properties; STAC allows them there only if an asset has them too.
    bands = [{"name": name} for name in _band_names(manifest)]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": STAC_EXTENSIONS,
        "id": model.name,
        "geometry": None,
        "properties": {
            "datetime": modified.replace("+00:00", "Z"),
            "title": manifest.name,
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
