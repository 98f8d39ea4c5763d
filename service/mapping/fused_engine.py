"""The fused engine: the whole network as one compiled kernel, which takes its weights from the bundle's graph.

The kernel is an optional extension in C, `fused/fused.c`. Where it was not built, where the processor lacks the
instructions, and for networks of another kind, the other engines are used.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import NotReady
from hyperscene.model.bundle import Bundle, Manifest, check_cube
from hyperscene.model.onnx_file import NotOnnx, read_weights
from hyperscene.model.probing import machine_key, read_cached, write_cache
from hyperscene.service.mapping.devices import Precision, UsedPrecision

Array = NDArray[np.float32]

KERNEL_MODULE = "hyperscene.service.mapping._fused"
SIDE_PX, TOKENS, HEAD_WIDTH, CHUNK, MAX_DEPTH = 16, 256, 16, 128, 16  # as in fused.c
HEADS = ("pooled", "centre", "token")


@dataclass(frozen=True)
class Kernel:
    """One of the compiled variants."""

    number: int
    name: str
    precision: UsedPrecision
    rows: int  # of weights that are packed together
    lane: int = 1  # factors of a sum in four bytes


# For each precision the fastest first.
KERNELS = (
    Kernel(2, "AVX-512", "float32", 8),
    Kernel(1, "AVX2", "float32", 4),
    Kernel(4, "NEON", "float32", 8),
    Kernel(3, "AVX-512", "bfloat16", 8, 2),
)
# `auto` computes in bfloat16 where this share of pixels keeps its class, and the kernel is so many times as fast.
LEAST_AGREEMENT, LEAST_GAIN = 0.999, 1.1
CHECK_PX, CHECK_STRIDE_PX, TIMED_CALLS = 72, 8, 12
BLOCK, ROWS = 32, 8  # the largest of any kernel
# What the kernel computes; networks with other values, or described by other settings, are left to other engines.
REQUIRED = {"patch_px": SIDE_PX, "attention": "cosine_squared", "normalise": "both"}
KNOWN = {"bands", "classes", "width", "depth", "heads", "mlp_width", "dropout", "squaring", "positions", "head",
         "spectral_path", *REQUIRED}  # fmt: skip


class _Layer(ctypes.Structure):
    _names = ("project", "project_bias", "merge", "widen", "widen_bias", "narrow", "narrow_bias")
    _fields_ = [(name, ctypes.c_void_p) for name in _names]


class _Net(ctypes.Structure):
    _sizes = ("bands", "width", "mlp_width", "depth", "classes", "padded_classes", "embedded", "head")
    _names = ("mean", "deviation", "embed", "embed_bias", "positions", "classifier", "classifier_bias")
    _fields_ = [
        *((name, ctypes.c_int32) for name in _sizes),
        ("cooling", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in _names),
        ("layers", _Layer * MAX_DEPTH),
    ]


class _Window(ctypes.Structure):
    _fields_ = [
        ("cube", ctypes.c_void_p),
        ("centers", ctypes.c_void_p),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
        ("count", ctypes.c_int32),
    ]


class _Scratch(ctypes.Structure):
    _names = ("embedded", "standard", "x", "qkv", "fresh", "block", "wide", "weights", "logits", "pixels")
    _fields_ = [(name, ctypes.c_void_p) for name in _names]


@cache
def _library() -> Any | None:
    """The compiled kernel; None where it was not built."""
    spec = find_spec(KERNEL_MODULE)
    return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)


@cache
def kernel_for(precision: UsedPrecision) -> Kernel | None:
    """The kernel of this processor; None if there is none."""
    library = _library()
    if library is None:
        return None
    kernels = (kernel for kernel in KERNELS if kernel.precision == precision)
    return next((kernel for kernel in kernels if library.hyperscene_has(ctypes.c_int32(kernel.number))), None)


def unsuitable(manifest: Manifest) -> str | None:
    """Why the kernel does not run a network; None if it does."""
    shape = manifest.architecture
    if shape.keys() != KNOWN:
        return "its network is described by other settings than the kernel knows"
    if not all(type(shape[name]) is int and shape[name] > 0 for name in ("width", "depth", "heads", "mlp_width")):
        return "the sizes of its network are not whole numbers above 0"
    for name, value in REQUIRED.items():
        if shape[name] != value:
            return f"it needs {name} {value}, not {shape[name]}"
    if shape["squaring"] not in (None, "squared"):
        return f"it squares cosines, and the network's squaring is {shape['squaring']}"
    if shape["width"] != HEAD_WIDTH * shape["heads"] or shape["mlp_width"] % ROWS or shape["depth"] > MAX_DEPTH:
        return f"it needs heads of {HEAD_WIDTH} features, at most {MAX_DEPTH} layers, and an MLP width of whole {ROWS}s"
    return None


def require_kernel(manifest: Manifest, precision: UsedPrecision = "float32") -> Kernel:
    """The kernel for a network; raises NotReady if it was not built, or suits neither processor nor network."""
    if _library() is None:
        raise NotReady("the fused kernel was not built: install a C compiler, then hyperscene again")
    kernel = kernel_for(precision)
    if kernel is None:
        needed = "AVX2, AVX-512 or NEON" if precision == "float32" else "AVX-512 BF16"
        raise NotReady(f"the fused kernel needs a processor with {needed} for {precision}")
    if reason := unsuitable(manifest):
        raise NotReady(f"the fused kernel does not run this bundle: {reason}")
    return kernel


@dataclass
class FusedEngine:
    """The kernel with a bundle's weights; each caller's thread runs it by itself, with scratch memory of its own."""

    manifest: Manifest
    callers: int
    batch: int
    kernel: Kernel
    net: _Net
    weights: list[Array]  # that the net points to
    device: str = "fused"
    _local: threading.local = field(default_factory=threading.local)

    @classmethod
    def open(cls, bundle: Bundle, callers: int, batch: int, precision: UsedPrecision = "float32") -> FusedEngine:
        """Take the weights from the bundle's graph; raises NotReady."""
        kernel = require_kernel(bundle.manifest, precision)
        try:
            weights = _Weights(bundle, kernel)
            net = weights.net()
        except (KeyError, IndexError, TypeError, ValueError, NotOnnx) as error:
            raise NotReady(f"the fused kernel does not find its weights in the bundle ({error})") from error
        return cls(bundle.manifest, callers, batch, kernel, net, weights.kept)

    @property
    def provider(self) -> str:
        return f"fused kernel {version('hyperscene')} {self.kernel.name} {self.kernel.precision}"

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """One call of the kernel, in the caller's thread."""
        cube, centers = np.ascontiguousarray(cube, np.float32), np.ascontiguousarray(centers, np.int64)
        rows, cols, bands = cube.shape
        if bands != self.net.bands or centers.shape[1:] != (2,) or min(rows, cols) < 1:
            raise ValueError(f"a cube of {cube.shape} and centres of {centers.shape} do not fit {self.net.bands} bands")
        inner = (SIDE_PX, SIDE_PX) if self.manifest.head == "token" else ()
        found = np.empty((len(centers), *inner, self.manifest.classes), np.float32)
        window = _Window(cube.ctypes.data, centers.ctypes.data, rows, cols, len(centers))
        library = _library()
        assert library is not None
        library.hyperscene_run(
            ctypes.byref(self.net),
            ctypes.byref(window),
            ctypes.byref(self._scratch(rows * cols)),
            ctypes.c_void_p(found.ctypes.data),
            ctypes.c_int32(self.kernel.number),
        )
        return found

    def _scratch(self, pixels: int) -> _Scratch:
        """This thread's memory, enlarged for a larger window."""
        local = self._local.__dict__
        if local.get("pixels", 0) < pixels:
            net = self.net
            sizes = (
                pixels * net.embedded,
                ROWS * net.bands,
                net.width * TOKENS,
                3 * net.width * TOKENS,
                max(3 * net.width, net.mlp_width) * BLOCK,
                net.width * BLOCK,
                net.mlp_width * BLOCK,
                CHUNK * BLOCK,
                net.padded_classes * TOKENS,
                TOKENS,
            )
            local["memory"] = [_aligned(np.zeros(size, np.float32)) for size in sizes]
            local["scratch"] = _Scratch(*(part.ctypes.data for part in local["memory"]))
            local["pixels"] = pixels
        scratch: _Scratch = local["scratch"]
        return scratch


def settle_precision(bundle: Bundle, precision: Precision) -> UsedPrecision:
    """The precision to compute a bundle in; `auto` compares both once, and keeps the result in the user's cache."""
    if precision != "auto":
        return precision
    # A patch of another head predicts one pixel: a comparison of enough of them would take seconds.
    if bundle.manifest.head != "token" or kernel_for("bfloat16") is None or unsuitable(bundle.manifest):
        return "float32"
    name, key = f"precision-{bundle.sha256[:16]}", machine_key(KERNEL_MODULE, probe=__file__)
    found = read_cached(name, key)
    if found is None:
        found = compare_precisions(bundle)
        write_cache(name, key, found)
    is_better = found["agreement"] >= LEAST_AGREEMENT and found["gain"] >= LEAST_GAIN
    return "bfloat16" if is_better else "float32"


def compare_precisions(bundle: Bundle) -> dict[str, float]:
    """The share of pixels with the same class in a map of noise at the default stride, and the gain in speed."""
    manifest = bundle.manifest
    check = manifest.check.model_copy(update={"rows": CHECK_PX, "cols": CHECK_PX})
    cube = check_cube(manifest.band_mean, manifest.band_std, check)
    steps = np.arange(SIDE_PX // 2, CHECK_PX - SIDE_PX // 2 + 1, CHECK_STRIDE_PX)
    centers = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    engines = [FusedEngine.open(bundle, 1, len(centers), precision) for precision in ("float32", "bfloat16")]
    seconds, classes = np.zeros((TIMED_CALLS, 2)), []
    for engine in engines:
        total = np.zeros((CHECK_PX, CHECK_PX, manifest.classes), np.float32)
        for (row, col), votes in zip(centers - SIDE_PX // 2, engine.probabilities(cube, centers), strict=True):
            total[row : row + SIDE_PX, col : col + SIDE_PX] += votes
        classes.append(total.argmax(axis=-1))
    for call in range(TIMED_CALLS):
        for index, engine in enumerate(engines):
            began = time.perf_counter()
            engine.probabilities(cube, centers[:2])
            seconds[call, index] = time.perf_counter() - began
    single, half = seconds.min(axis=0)
    return {"agreement": float((classes[0] == classes[1]).mean()), "gain": float(single / half)}


class _Weights:
    """The weights of a bundle's graph, as the kernel wants them."""

    def __init__(self, bundle: Bundle, kernel: Kernel) -> None:
        self._manifest = bundle.manifest
        self._kernel = kernel
        # Layers are found by their operators: equal initializers, such as zeros, are stored once, under one name.
        self._named, operators = read_weights(bundle.content)
        products = [names[1] for names in operators.get("MatMul", [])]
        self._products = [self._named[name] for name in products if name in self._named]
        self._norms = [tuple(map(self._named.__getitem__, names[1:])) for names in operators["LayerNormalization"]]
        self.kept: list[Array] = []  # what the net points to

    def net(self) -> _Net:
        """The kernel's description of the network; raises KeyError or ValueError if the graph is another one."""
        manifest, named = self._manifest, self._named
        shape, classes = manifest.architecture, manifest.classes
        width, depth = shape["width"], shape["depth"]
        if len(self._products) != 4 * depth + (manifest.head == "token"):
            raise ValueError(f"{len(self._products)} products for {depth} layers")
        if len(self._norms) != 2 * depth + 1:
            raise ValueError(f"{len(self._norms)} norms for {depth} layers")
        # The pixels' logits of the spectral path stand beside their embedding.
        columns = _padded(width + classes, BLOCK)
        embed, embed_bias = np.zeros((manifest.bands, columns), np.float32), np.zeros(columns, np.float32)
        embed[:, :width] = named["network.stream.spectral.weight"].T
        if shape["spectral_path"]:
            embed[:, width : width + classes] = named["network.spectral_path.weight"].T
            embed_bias[width : width + classes] = named["network.spectral_path.bias"]
        # The kernel trusts all sizes: arrays of another size are refused here.
        standards = [np.broadcast_to(named[name], (manifest.bands,)) for name in ("band_mean", "band_std")]
        positions = np.broadcast_to(named["network.stream.positions"], (TOKENS, width))
        padded = _padded(classes, ROWS)
        classifier, classifier_bias = np.zeros((width, padded), np.float32), np.zeros(padded, np.float32)
        # Of one token per patch the exporter makes another operator, with the weight as it is.
        weight = self._products[-1] if manifest.head == "token" else named["network.classifier.weight"].T
        classifier[:, :classes] = weight
        classifier_bias[:classes] = named["network.classifier.bias"]
        return _Net(
            manifest.bands, width, shape["mlp_width"], depth, classes, padded, columns, HEADS.index(manifest.head),
            1 / manifest.temperature, *map(self._keep, standards), self._keep(embed),
            self._keep(embed_bias), self._keep(positions.T),
            *self._linear(classifier, classifier_bias, 2 * depth, lane=1),
            (_Layer * MAX_DEPTH)(*(self._layer(index, width, shape["mlp_width"]) for index in range(depth))),
        )  # fmt: skip

    def _layer(self, index: int, width: int, mlp_width: int) -> _Layer:
        name = f"network.blocks.{index}"
        project, merge, widen, narrow = products = self._products[4 * index : 4 * index + 4]
        expected = [(width, 3 * width), (width, width), (width, mlp_width), (mlp_width, width)]
        if [product.shape for product in products] != expected:
            raise ValueError(f"products of {[product.shape for product in products]} instead of {expected}")
        return _Layer(
            *self._linear(project, None, 2 * index),
            self._linear(merge)[0],
            *self._linear(widen, self._named[f"{name}.mlp.0.bias"], 2 * index + 1),
            *self._linear(narrow, self._named[f"{name}.mlp.2.bias"]),
        )

    def _linear(
        self, weight: Array, bias: Array | None = None, norm: int | None = None, lane: int = 0
    ) -> tuple[int, int]:
        """A packed layer (in, out) and its bias; they take over scale and shift of the norm before it."""
        exact, lane = weight.astype(np.float64), lane or self._kernel.lane
        offset = np.zeros(weight.shape[1]) if bias is None else bias.astype(np.float64)
        if norm is not None:
            scale, shift = (part.astype(np.float64) for part in self._norms[norm])
            offset = offset + shift @ exact
            exact = scale[:, None] * exact
        offset = np.broadcast_to(offset, weight.shape[1:])  # raises if the file has another number of them
        groups = exact.astype(np.float32).reshape(len(exact) // lane, lane, -1, self._kernel.rows)
        packed = np.ascontiguousarray(groups.transpose(2, 0, 3, 1))  # (groups, lanes, rows, in a lane)
        if lane == 2:
            packed = _bfloat16(packed).view(np.float32)
        return self._keep(packed), self._keep(offset.astype(np.float32))

    def _keep(self, array: Array) -> int:
        self.kept.append(_aligned(array))
        return int(self.kept[-1].ctypes.data)


def _bfloat16(values: Array) -> NDArray[np.uint16]:
    """The upper half of each float's bits, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _aligned(array: Array) -> Array:
    """A contiguous copy that starts at a cache line."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy: Array = memory[start : start + array.nbytes].view(np.float32).reshape(array.shape)
    copy[...] = array
    return copy
