"""The bundle: one .onnx file whose manifest says everything that serving needs to know."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# Answers a cube (rows, cols, bands) and centers (n, 2) with probabilities.
Ask = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float32]]

FORMAT_VERSION = 1
DEMO_BUNDLE = Path(__file__).parent / "bundles" / "demo.onnx"
MANIFEST_KEY = "hyperscene"
NO_DIGEST = "0" * 64
# Other processors and engines round differently; a wrong weight or a wrong order of bands is far above this.
CHECK_TOLERANCE = 1e-4

Color = Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]


class BundleRefused(ValueError):
    """A file that is no sound bundle; the message says why and what to do."""


class Check(BaseModel):
    """A small question and its answer, asked again whenever the bundle is loaded."""

    model_config = ConfigDict(frozen=True)

    seed: int
    rows: int = Field(ge=1)
    cols: int = Field(ge=1)
    centers: list[tuple[int, int]] = Field(min_length=1)
    probabilities: list[Any] = Field(repr=False)  # nested like the graph's output


class Manifest(BaseModel):
    """What the network expects and what its answers mean."""

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
    temperature: float = Field(1.0, gt=0)  # by which the graph divides its logits, so that confidence can be trusted
    nodata_fill: list[FiniteFloat]  # per band, in the scene's units: what invalid pixels hold inside a patch
    training: dict[str, Any]
    check: Check
    # The file's sha256, taken with zeros in the place of these 64 letters: any later change to the file shows.
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
    """A bundle that was read, validated and self-checked, ready to answer."""

    path: Path
    manifest: Manifest
    sha256: str
    content: bytes = field(repr=False)  # the file's, for engines that open it in a way of their own
    session: InferenceSession = field(repr=False)

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Probabilities of the patches round `centers` (n, 2) of `cube` (rows, cols, bands)."""
        return run_graph(self.session, cube, centers)


def load_bundle(path: Path) -> Bundle:
    """Read, validate and self-check a bundle on the CPU."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BundleRefused(f"the bundle {path} cannot be read: {error.strerror}") from error
    return parse_bundle(content, Path(path))


def parse_bundle(content: bytes, path: Path) -> Bundle:
    """Validate and self-check a bundle's bytes, which came from `path`."""
    session = open_session(content, path.name)
    manifest = _read_manifest(session, content, path.name)
    _check_graph(session, manifest, path.name)
    bundle = Bundle(path, manifest, hashlib.sha256(content).hexdigest(), content, session)
    replay_check(bundle.probabilities, manifest, path.name)
    return bundle


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
    options.log_severity_level = 4  # what goes wrong is raised; nothing else belongs on a user's terminal
    options.intra_op_num_threads = threads
    try:
        session: InferenceSession = onnxruntime.InferenceSession(
            content, sess_options=options, providers=["CPUExecutionProvider"]
        )
        return session
    except Exception as error:  # onnxruntime's own classes share no base below this one
        reason = type(error).__name__  # InvalidProtobuf, say, or NotImplemented where this ONNX Runtime is too old
        raise BundleRefused(
            f"{name} is cut short or no ONNX file ({reason}): copy it again, or export it anew"
        ) from error


def run_graph(session: InferenceSession, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
    """One call of the graph every bundle holds."""
    answer: NDArray[np.float32] = session.run(["probabilities"], {"cube": cube, "centers": centers})[0]
    return answer


def check_cube(manifest_mean: list[float], manifest_std: list[float], check: Check) -> NDArray[np.float32]:
    """The cube of the self-check; RandomState's streams are frozen by numpy, its Generator's are not."""
    noise = np.random.RandomState(check.seed).standard_normal((check.rows, check.cols, len(manifest_mean)))
    return (np.asarray(manifest_mean) + np.asarray(manifest_std) * noise).astype(np.float32)


def replay_check(ask: Ask, manifest: Manifest, name: str) -> None:
    """Ask the manifest's question and compare the answer."""
    try:
        cube = check_cube(manifest.band_mean, manifest.band_std, manifest.check)
        expected = np.array(manifest.check.probabilities, np.float32)
        found = ask(cube, np.array(manifest.check.centers, np.int64))
    except Exception as error:  # a question that cannot be asked: numpy's or onnxruntime's own classes
        raise BundleRefused(f"{name} holds a self-check that cannot be asked: export it anew") from error
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=0, atol=CHECK_TOLERANCE):
        raise BundleRefused(f"{name} fails its self-check: its answers are not those it had when made; export it anew")


def sealed(content: bytes) -> bytes:
    """The file's bytes with its digest in place of the zeros it was serialised with."""
    if content.count(NO_DIGEST.encode()) != 1:
        raise ValueError("a bundle is sealed once, from bytes that hold one empty digest")
    return content.replace(NO_DIGEST.encode(), hashlib.sha256(content).hexdigest().encode())


def _read_manifest(session: InferenceSession, content: bytes, name: str) -> Manifest:
    metadata = session.get_modelmeta().custom_metadata_map
    if MANIFEST_KEY not in metadata:
        raise BundleRefused(f"{name} is an ONNX file without a hyperscene manifest: make one with hyperscene train")
    try:
        document = json.loads(metadata[MANIFEST_KEY])
        version = int(document["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleRefused(f"the manifest of {name} was edited and cannot be read: export the bundle anew") from error
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
            f"the manifest of {name} is not valid at {where}: {first['msg']}; export it anew"
        ) from error
    if manifest.digest is not None and _digest_of(content, manifest.digest) != manifest.digest:
        raise BundleRefused(f"{name} was edited after it was made (its digest differs): export it anew")
    return manifest


def _digest_of(content: bytes, digest: str) -> str:
    return hashlib.sha256(content.replace(digest.encode(), NO_DIGEST.encode(), 1)).hexdigest()


def _check_graph(session: InferenceSession, manifest: Manifest, name: str) -> None:
    """The graph has the inputs and the output that the manifest speaks of."""
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    if set(inputs) != {"cube", "centers"} or set(outputs) != {"probabilities"}:
        raise BundleRefused(f"{name} is not a bundle's graph: it needs inputs cube and centers, output probabilities")
    if inputs["cube"].type != "tensor(float)" or inputs["centers"].type != "tensor(int64)":
        raise BundleRefused(f"{name} is not a bundle's graph: cube must be float32 and centers int64")
    rank = 4 if manifest.head == "token" else 2
    for what, found, expected in (
        ("bands", inputs["cube"].shape[-1], manifest.bands),
        ("classes", outputs["probabilities"].shape[-1], manifest.classes),
        ("output dimensions", len(outputs["probabilities"].shape), rank),
    ):
        if isinstance(found, int) and found != expected:
            raise BundleRefused(f"the graph of {name} has {found} {what}, its manifest {expected}: export it anew")
