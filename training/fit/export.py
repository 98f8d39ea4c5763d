"""Export of a trained network as a bundle: the graph, its comparison with torch, and the manifest."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.export import Dim

from hyperscene.errors import BundleUnfaithful, OutputUnwritable, TrainingFailed
from hyperscene.model.architecture import SceneClassifier
from hyperscene.model.bundle import (
    CHECK_TOLERANCE,
    MANIFEST_KEY,
    NO_DIGEST,
    Applicability,
    Bundle,
    Manifest,
    ReferenceCheck,
    check_cube,
    load_bundle,
    open_session,
    run_graph,
    sealed,
)
from hyperscene.service.mapping.engine_health import engine_report
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.fit.network import Fitted

PROBABILITY_TOLERANCE = 1e-5
# Where a network's rounding errors are larger, the tolerance is so many times the difference between torch in single
# and in double precision.
ROUNDINGS = 4
# Where the two highest probabilities differ by less, either class may be the first.
TIE = 1e-4
# Rows, cols and centres of the cubes for the comparison of torch and ONNX Runtime: one pixel, one line, smaller than a
# patch, exactly a patch, and larger; one centre and many.
PARITY_CASES = ((16, 16, 1), (1, 1, 1), (1, 9, 4), (7, 5, 3), (16, 16, 9), (33, 21, 40))


def export_graph(fitted: Fitted, scene: LabelledScene) -> onnx.ModelProto:
    """The graph of SceneClassifier; raises if its results differ from those of torch."""
    mean, std = torch.from_numpy(scene.band_mean), torch.from_numpy(scene.band_std)
    classifier = SceneClassifier(fitted.network.cpu(), mean, std, fitted.temperature).eval()
    graph = _trace(classifier, fitted.network.config.bands)
    _strip_source_paths(graph)
    compare_with_torch(classifier, graph.SerializeToString())
    return graph


def _trace(classifier: SceneClassifier, bands: int) -> onnx.ModelProto:
    # All sizes differ and are at least 2: the exporter would treat a 1, or two equal sizes, as constants.
    example = (torch.zeros(18, 19, bands), torch.tensor([[3, 4], [5, 6], [7, 8]]))
    dynamic = {"cube": {0: Dim("rows"), 1: Dim("cols")}, "centers": {0: Dim("n")}}
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        # torch 2.13's exporter triggers one of torch's own deprecations (`isinstance(treespec, LeafSpec)`).
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            classifier,
            example,
            dynamo=True,
            external_data=False,
            input_names=["cube", "centers"],
            output_names=["probabilities"],
            dynamic_shapes=dynamic,
            verbose=False,
        )
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    return graph


def _strip_source_paths(graph: onnx.ModelProto) -> None:
    """Remove stack traces with local paths from the nodes; they are half of the file's text."""
    del graph.metadata_props[:]
    del graph.graph.metadata_props[:]
    for part in (*graph.graph.node, *graph.graph.value_info, *graph.graph.input, *graph.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]


def compare_with_torch(classifier: SceneClassifier, content: bytes) -> None:
    """Raise unless probabilities and classes agree for cubes of many sizes."""
    session = open_session(content, "the exported graph")
    config = classifier.network.config
    exact = copy.deepcopy(classifier).double()
    generator = np.random.default_rng(0)
    for rows, cols, count in PARITY_CASES:
        noise = generator.standard_normal((rows, cols, config.bands))
        cube = (classifier.band_mean.numpy() + classifier.band_std.numpy() * noise).astype(np.float32)
        centers = generator.integers(0, (rows, cols), (count, 2))
        with torch.inference_mode():
            expected = classifier(torch.from_numpy(cube), torch.from_numpy(centers)).numpy()
            rounding = np.abs(
                exact(torch.from_numpy(cube).double(), torch.from_numpy(centers)).numpy() - expected
            ).max()
        tolerance = min(max(PROBABILITY_TOLERANCE, ROUNDINGS * float(rounding)), CHECK_TOLERANCE / 2)
        found = run_graph(session, cube, centers)
        difference = float(np.abs(found - expected).max()) if found.shape == expected.shape else np.inf
        first, second = np.moveaxis(np.sort(expected, axis=-1)[..., :-3:-1], -1, 0)
        other_class = (found.argmax(axis=-1) != expected.argmax(axis=-1)) & (first - second > max(TIE, 2 * tolerance))
        if not difference <= tolerance or other_class.any():
            raise BundleUnfaithful(
                f"the exported graph differs from torch by {difference:.1e} on a {rows} x {cols} cube; at most "
                f"{tolerance:.0e} is allowed, so nothing was written: please report the options you used"
            )


def require_onnxruntime() -> None:
    """Refuse to train for hours if ONNX Runtime, which checks and scores the bundle, would then crash this process."""
    report = engine_report("cpu")
    if report.is_broken and not report.has_hung:
        raise TrainingFailed(
            f"ONNX Runtime, which checks and scores the bundle, does not work here ({report.failure}): reinstall "
            "onnxruntime, and report the output of hyperscene doctor"
        )


def write_bundle(
    graph: onnx.ModelProto,
    fitted: Fitted,
    scene: LabelledScene,
    name: str,
    training: dict[str, Any],
    output: Path,
    applicability: Applicability | None = None,
) -> Bundle:
    """Add the manifest and the digest, write the file, and load it as the service does; never leaves a partial file."""
    unfinished = output.with_name(output.name + ".part")
    content = bundle_content(graph, fitted, scene, name, training, applicability)
    try:
        unfinished.write_bytes(content)
        load_bundle(unfinished)
        unfinished.replace(output)
    except OSError as error:
        raise OutputUnwritable(f"{output} cannot be written ({error.strerror}): choose another folder") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return load_bundle(output)


def bundle_content(
    graph: onnx.ModelProto,
    fitted: Fitted,
    scene: LabelledScene,
    name: str,
    training: dict[str, Any],
    applicability: Applicability | None = None,
) -> bytes:
    """The bytes of a bundle's file: the graph with manifest and digest."""
    manifest = _describe(graph.SerializeToString(), fitted, scene, name, training, applicability)
    # In the order of its fields, so that the same training gives the same bytes.
    onnx.helper.set_model_props(graph, {MANIFEST_KEY: manifest.model_dump_json()})
    return sealed(graph.SerializeToString())


def _describe(
    content: bytes,
    fitted: Fitted,
    scene: LabelledScene,
    name: str,
    training: dict[str, Any],
    applicability: Applicability | None,
) -> Manifest:
    config = fitted.network.config
    mean, std = scene.band_mean.tolist(), scene.band_std.tolist()
    half = config.patch_px // 2
    # Corner, edge and middle of a cube slightly larger than a patch.
    centers = [(0, 0), (half, 0), (half + 1, half)]
    check = ReferenceCheck(
        seed=0, rows=config.patch_px + 3, cols=config.patch_px + 1, centers=centers, probabilities=[]
    )
    session = open_session(content, name)
    probabilities = run_graph(session, check_cube(mean, std, check), np.array(centers, np.int64))
    return Manifest(
        name=name,
        class_names=[entry.name for entry in scene.legend],
        class_colors=[entry.color for entry in scene.legend],
        wavelengths_nm=None if scene.wavelengths_nm is None else scene.wavelengths_nm.tolist(),
        fwhm_nm=None if scene.fwhm_nm is None else scene.fwhm_nm.tolist(),
        band_mean=mean,
        band_std=std,
        value_range=scene.value_range,
        patch_px=config.patch_px,
        attention=config.attention,
        head=config.head,
        architecture=asdict(config),
        temperature=fitted.temperature,
        nodata_fill=mean,
        training=training,
        applicability=applicability,
        digest=NO_DIGEST,
        check=check.model_copy(update={"probabilities": np.round(probabilities, 7).astype(float).round(7).tolist()}),
    )


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Hide the exporter's warnings about packages that it does not need."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(level)
