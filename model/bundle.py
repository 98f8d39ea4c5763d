"""The bundle: one .onnx file with the network and a manifest of everything that mapping needs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from hyperscene.errors import class_words
from hyperscene.model.onnx_file import FLOAT32, INT64, NotOnnx, OnnxFile, read_onnx

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# From a cube (rows, cols, bands) and centers (n, 2) to probabilities.
Predict = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float32]]

FORMAT_VERSION = 1
DEMO_BUNDLE = Path(__file__).parent / "bundles" / "demo.onnx"
MANIFEST_KEY = "hyperscene"
NO_DIGEST = "0" * 64
# Processors and engines round differently; a wrong weight or a wrong order of bands is far above this.
CHECK_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 0.1  # the largest difference on noise was 0.03, of three bundles of real scenes

Color = Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]


class BundleRefused(ValueError):
    """A file that is not a valid bundle; the message says why and what to do."""


class ReferenceCheck(BaseModel):
    """Reference input and output, verified at load."""

    model_config = ConfigDict(frozen=True)

    seed: int
    rows: int = Field(ge=1)
    cols: int = Field(ge=1)
    centers: list[tuple[int, int]] = Field(min_length=1)
    probabilities: list[Any] = Field(repr=False)  # nested like the graph's output


class Applicability(BaseModel):
    """Where the training pixels lie in spectral space, and how far from them the model still applies."""

    model_config = ConfigDict(frozen=True)

    components: int = Field(ge=1)
    projection: str = Field(repr=False)  # base64 of float32 (bands, components), from standardised bands
    prototypes: str = Field(repr=False)  # base64 of float32 (n, components)
    window_px: int = Field(ge=1)  # components are averaged over so many pixels in both directions
    threshold: float = Field(gt=0)  # distance from the nearest prototype
    share: float = Field(gt=0, lt=1)  # of the held-out training pixels that lie within the threshold
    held_out: Literal["clusters", "pixels"]


class Manifest(BaseModel):
    """What the network expects and what its output means."""

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    name: str = Field(min_length=1)
    class_names: list[str] = Field(min_length=1)
    class_colors: list[Color]
    wavelengths_nm: list[FiniteFloat] | None = None
    fwhm_nm: list[FiniteFloat] | None = None
    band_mean: list[FiniteFloat] = Field(min_length=1)
    band_std: list[FiniteFloat]
    value_range: tuple[FiniteFloat, FiniteFloat]
    patch_px: int = Field(ge=2)
    attention: str
    head: Literal["pooled", "centre", "token"]
    architecture: dict[str, Any]
    temperature: float = Field(1.0, gt=0)  # divides the logits, so that confidence is calibrated
    nodata_fill: list[FiniteFloat]  # per band, in the scene's units: replaces invalid pixels inside a patch
    training: dict[str, Any]
    applicability: Applicability | None = None  # of older bundles, which do not have it
    check: ReferenceCheck
    # The file's sha256, computed with zeros instead of these 64 characters; reveals any later change to the file.
    digest: str | None = Field(None, pattern="^[0-9a-f]{64}$")

    @property
    def bands(self) -> int:
        return len(self.band_mean)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @model_validator(mode="after")
    def _counts_agree(self) -> Manifest:
        for name in ("wavelengths_nm", "fwhm_nm", "band_std", "nodata_fill"):
            values = getattr(self, name)
            if values is not None and len(values) != self.bands:
                raise ValueError(f"{name} has {len(values)} values for {self.bands} bands")
        if len(self.class_colors) != self.classes:
            raise ValueError(f"{len(self.class_colors)} colours for {self.classes} classes")
        if min(self.band_std) <= 0:
            raise ValueError("band_std must be above zero")
        return self


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest fits its graph."""

    path: Path
    manifest: Manifest
    sha256: str
    content: bytes = field(repr=False)  # the file's, for engines to open
    structure: str  # of the graph: bundles that differ in weights only share it

    @cached_property
    def session(self) -> InferenceSession:
        """A CPU session of ONNX Runtime, opened at first use."""
        return open_session(self.content, self.path.name)

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Probabilities of the patches round `centers` (n, 2) of `cube` (rows, cols, bands), by ONNX Runtime."""
        return run_graph(self.session, cube, centers)


def load_bundle(path: Path) -> Bundle:
    """Read, validate and self-check a bundle with ONNX Runtime."""
    bundle = read_bundle(path)
    replay_check(bundle.probabilities, bundle.manifest, bundle.path.name)
    return bundle


def read_bundle(path: Path) -> Bundle:
    """Read and validate a bundle without an engine; the engine that runs it must call `replay_check`."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BundleRefused(f"the bundle {path} cannot be read: {error.strerror}") from error
    return parse_bundle(content, Path(path))


def parse_bundle(content: bytes, path: Path) -> Bundle:
    """Validate the content of the file `path` without an engine."""
    try:
        file = read_onnx(content)
    except NotOnnx as error:
        raise BundleRefused(
            f"{path.name} is cut short or not an ONNX file ({error}): copy it again, or export it again"
        ) from error
    manifest = _read_manifest(file, content, path.name)
    _check_graph(file, manifest, path.name)
    return Bundle(path, manifest, hashlib.sha256(content).hexdigest(), content, file.structure)


def import_onnxruntime() -> Any:
    """ONNX Runtime without its telemetry, which writes a device id into the home folder on import (1.31 does)."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise BundleRefused(
            "ONNX Runtime is not installed: pip install 'hyperscene[cpu]' or 'hyperscene[gpu]'"
        ) from error


def open_session(content: bytes, name: str, threads: int = 0) -> InferenceSession:
    """A CPU session of ONNX Runtime; `threads` 0 takes all cores."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; nothing else belongs on a user's terminal
    options.intra_op_num_threads = threads
    try:
        session: InferenceSession = onnxruntime.InferenceSession(
            content, sess_options=options, providers=["CPUExecutionProvider"]
        )
        return session
    except Exception as error:  # onnxruntime's own classes share no base below this one
        # The class is such as InvalidProtobuf, or NotImplemented if this ONNX Runtime is too old.
        raise BundleRefused(
            f"{name} is cut short or not an ONNX file ({class_words(error)}): copy it again, or export it again"
        ) from error


def run_graph(session: InferenceSession, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
    """One call of a bundle's graph."""
    probabilities: NDArray[np.float32] = session.run(["probabilities"], {"cube": cube, "centers": centers})[0]
    return probabilities


def check_cube(manifest_mean: list[float], manifest_std: list[float], check: ReferenceCheck) -> NDArray[np.float32]:
    """The cube of the self-check; numpy guarantees the streams of RandomState, not those of its Generator."""
    noise = np.random.RandomState(check.seed).standard_normal((check.rows, check.cols, len(manifest_mean)))
    return (np.asarray(manifest_mean) + np.asarray(manifest_std) * noise).astype(np.float32)


def replay_check(predict: Predict, manifest: Manifest, name: str, tolerance: float = CHECK_TOLERANCE) -> None:
    """Predict the manifest's reference input and compare the output."""
    try:
        cube = check_cube(manifest.band_mean, manifest.band_std, manifest.check)
        expected = np.array(manifest.check.probabilities, np.float32)
        found = predict(cube, np.array(manifest.check.centers, np.int64))
    except Exception as error:  # numpy's or onnxruntime's own classes
        raise BundleRefused(f"{name} has a self-check that cannot be run: export it again") from error
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=0, atol=tolerance):
        raise BundleRefused(f"{name} fails its self-check: its output differs from that at export; export it again")


def sealed(content: bytes) -> bytes:
    """The file's bytes, with its digest instead of the zeros of NO_DIGEST."""
    if content.count(NO_DIGEST.encode()) != 1:
        raise ValueError("a bundle is sealed once, from bytes with one empty digest")
    return content.replace(NO_DIGEST.encode(), hashlib.sha256(content).hexdigest().encode())


def _read_manifest(file: OnnxFile, content: bytes, name: str) -> Manifest:
    if MANIFEST_KEY not in file.metadata:
        raise BundleRefused(f"{name} is an ONNX file without a hyperscene manifest: make one with hyperscene train")
    try:
        document = json.loads(file.metadata[MANIFEST_KEY])
        version = int(document["format_version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BundleRefused(f"the manifest of {name} was edited and cannot be read: export the bundle again") from error
    if version > FORMAT_VERSION:
        raise BundleRefused(
            f"{name} has bundle format {version}; this version reads up to {FORMAT_VERSION}: upgrade hyperscene"
        )
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its counts"
        raise BundleRefused(
            f"the manifest of {name} is not valid at {where}: {first['msg']}; export it again"
        ) from error
    if manifest.digest is not None and _digest_of(content, manifest.digest) != manifest.digest:
        raise BundleRefused(f"{name} was edited after it was made (its digest differs): export it again")
    return manifest


def _digest_of(content: bytes, digest: str) -> str:
    return hashlib.sha256(content.replace(digest.encode(), NO_DIGEST.encode(), 1)).hexdigest()


def _check_graph(file: OnnxFile, manifest: Manifest, name: str) -> None:
    """Refuse a graph whose inputs or output do not fit the manifest."""
    if set(file.inputs) != {"cube", "centers"} or set(file.outputs) != {"probabilities"}:
        raise BundleRefused(f"{name} is not a bundle: it needs inputs cube and centers, output probabilities")
    cube, centers, probabilities = file.inputs["cube"], file.inputs["centers"], file.outputs["probabilities"]
    if cube.element != FLOAT32 or centers.element != INT64:
        raise BundleRefused(f"{name} is not a bundle: cube must be float32 and centers int64")
    if not cube.shape or not probabilities.shape:
        raise BundleRefused(f"{name} is not a bundle: cube and probabilities must have dimensions")
    rank = 4 if manifest.head == "token" else 2
    for what, found, expected in (
        ("bands", cube.shape[-1], manifest.bands),
        ("classes", probabilities.shape[-1], manifest.classes),
        ("output dimensions", len(probabilities.shape), rank),
    ):
        if found is not None and found != expected:
            raise BundleRefused(f"the graph of {name} has {found} {what}, its manifest {expected}: export it again")
