"""Bundles built from ONNX operators, so that serving is tested without torch and binary files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hyperscene.model.bundle import (
    MANIFEST_KEY,
    NO_DIGEST,
    Manifest,
    ReferenceCheck,
    check_cube,
    open_session,
    run_graph,
    sealed,
)


def pixel_graph(bands: int = 5, classes: int = 3, seed: int = 0) -> onnx.ModelProto:
    """A graph that predicts from the centre pixel's spectrum: softmax(weights . spectrum)."""
    weights = np.random.default_rng(seed).normal(size=(bands, classes)).astype(np.float32)
    nodes = [
        helper.make_node("GatherND", ["cube", "centers"], ["spectra"]),
        helper.make_node("MatMul", ["spectra", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "pixel",
        [
            helper.make_tensor_value_info("cube", TensorProto.FLOAT, ["rows", "cols", bands]),
            helper.make_tensor_value_info("centers", TensorProto.INT64, ["n", 2]),
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(weights, "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def patch_graph(
    bands: int = 5, classes: int = 3, patch_px: int = 16, head: str = "pooled", seed: int = 0
) -> onnx.ModelProto:
    """A graph that weights every pixel by its position in the patch; the head `token` predicts each pixel separately.

    It needs the whole patch inside the cube, as mapping guarantees.
    """
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(bands, classes)).astype(np.float32)
    factors = generator.uniform(0.5, 1.5, (patch_px, patch_px, 1)).astype(np.float32)
    offsets = np.stack(np.indices((patch_px, patch_px)), axis=-1)[None] - patch_px // 2
    nodes = [
        helper.make_node("Unsqueeze", ["centers", "axes"], ["corners"]),
        helper.make_node("Add", ["corners", "offsets"], ["pixels"]),  # (n, patch, patch, 2)
        helper.make_node("GatherND", ["cube", "pixels"], ["patches"]),
        helper.make_node("Mul", ["patches", "factors"], ["weighted"]),
    ]
    spectra = "weighted"
    if head != "token":
        nodes.append(helper.make_node("ReduceMean", ["weighted", "sides"], ["spectra"], keepdims=0))
        spectra = "spectra"
    nodes += [
        helper.make_node("MatMul", [spectra, "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    inner = [patch_px, patch_px] if head == "token" else []
    graph = helper.make_graph(
        nodes,
        "patch",
        [
            helper.make_tensor_value_info("cube", TensorProto.FLOAT, ["rows", "cols", bands]),
            helper.make_tensor_value_info("centers", TensorProto.INT64, ["n", 2]),
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", *inner, classes])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(factors, "factors"),
            numpy_helper.from_array(offsets.astype(np.int64), "offsets"),
            numpy_helper.from_array(np.array([1, 2]), "axes"),
            numpy_helper.from_array(np.array([1, 2]), "sides"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def write_patch_bundle(
    path: Path, bands: int = 5, classes: int = 3, patch_px: int = 16, head: str = "pooled", **changes: Any
) -> Path:
    """A valid bundle whose predictions depend on the whole patch."""
    graph = patch_graph(bands, classes, patch_px, head)
    # The reference input contains the whole patch, because this graph does not reflect.
    inside = ReferenceCheck(seed=1, rows=patch_px + 3, cols=patch_px + 2, centers=[(patch_px // 2, patch_px // 2 + 1)],
                   probabilities=[])  # fmt: skip
    manifest = describe(graph, bands, classes, inside, **{"patch_px": patch_px, "head": head} | changes)
    write_with(path, graph, manifest.model_dump_json())
    return path


def describe(
    graph: onnx.ModelProto, bands: int = 5, classes: int = 3, check: ReferenceCheck | None = None, **changes: Any
) -> Manifest:
    """A manifest that fits the graph, with some fields changed."""
    check = check or ReferenceCheck(seed=1, rows=4, cols=5, centers=[(0, 0), (3, 2)], probabilities=[])
    mean, std = [0.3] * bands, [0.1] * bands
    if len(changes.get("band_mean", [])) == bands:
        mean, std = changes["band_mean"], changes.get("band_std", std)
    probabilities = run_graph(
        open_session(graph.SerializeToString(), "test"), check_cube(mean, std, check), np.array(check.centers)
    )
    fields: dict[str, Any] = {
        "name": "test",
        "class_names": [f"class {number}" for number in range(1, classes + 1)],
        "class_colors": ["#102030"] * classes,
        "wavelengths_nm": np.linspace(450, 900, bands).tolist(),
        "fwhm_nm": None,
        "band_mean": mean,
        "band_std": std,
        "value_range": (0.0, 1.0),
        "patch_px": 16,
        "attention": "cosine_squared",
        "head": "pooled",
        "architecture": {},
        "nodata_fill": mean,
        "training": {},
        "digest": NO_DIGEST,
        "check": check.model_copy(update={"probabilities": probabilities.tolist()}),
    }
    return Manifest(**(fields | changes))


def write_bundle(path: Path, bands: int = 5, classes: int = 3, **changes: Any) -> Path:
    """A valid bundle, unless a change makes it invalid."""
    graph = pixel_graph(bands, classes)
    write_with(path, graph, describe(graph, bands, classes, **changes).model_dump_json())
    return path


def write_root_bundle(path: Path) -> Path:
    """A valid bundle that predicts NaN for negative values."""
    graph = pixel_graph()
    graph.graph.node[1].input[0] = "roots"
    graph.graph.node.insert(1, helper.make_node("Sqrt", ["spectra"], ["roots"]))
    write_with(path, graph, describe(graph).model_dump_json())
    return path


def write_with(path: Path, graph: onnx.ModelProto, manifest: str) -> None:
    """Write the graph with any text as manifest, sealed if that has an empty digest."""
    helper.set_model_props(graph, {MANIFEST_KEY: manifest})
    content = graph.SerializeToString()
    path.write_bytes(sealed(content) if NO_DIGEST in manifest else content)
