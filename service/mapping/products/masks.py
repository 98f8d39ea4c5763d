"""The layers of a product that make pixels invalid: clouds, shadows and others, read by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import OptionsUnusable
from hyperscene.service.mapping.products.image_files import open_image
from hyperscene.service.mapping.products.planes import open_plane
from hyperscene.service.mapping.products.product import DEFAULT_MASKS, MASK_KINDS, MaskLayer, Plane

NONE = "none"
# Values of mask.tif: 0 is a mapped pixel, 1 one without data, then the kinds in this order.
MISSING = 1
CODES = {kind: code for code, kind in enumerate(MASK_KINDS, start=MISSING + 1)}

Mask = NDArray[np.bool_]
_Read = Callable[[Window], Mask]


def parse_masks(text: str | None) -> tuple[str, ...] | None:
    """The kinds of `cloud,shadow`; none of them for `none`; None, which is the default, for nothing."""
    if text is None:
        return None
    kinds = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if kinds == (NONE,):
        return ()
    for kind in kinds:
        if kind not in MASK_KINDS:
            raise OptionsUnusable(f"{kind!r} is no mask: use {NONE}, or some of {', '.join(MASK_KINDS)} with commas")
    return kinds


def choose_layers(layers: Sequence[MaskLayer], kinds: tuple[str, ...] | None) -> tuple[MaskLayer, ...]:
    """The layers of these kinds, and those of missing data; refuses a kind that the product does not have."""
    available = sorted({layer.kind for layer in layers} - {"missing"}, key=MASK_KINDS.index)
    wanted = choose_kinds(available, kinds)
    return tuple(layer for layer in layers if layer.kind == "missing" or layer.kind in wanted)


def choose_kinds(available: Sequence[str], kinds: tuple[str, ...] | None) -> tuple[str, ...]:
    """These kinds of masks, or the default ones that are available; refuses a kind that is not."""
    for kind in kinds or ():
        if kind not in available:
            found = f"has {', '.join(available)}" if available else "has no masks"
            raise OptionsUnusable(f"the scene has no mask {kind}; it {found}: choose another mask, or none")
    return tuple(kind for kind in DEFAULT_MASKS if kind in available) if kinds is None else kinds


class MaskReader:
    """Reads all layers of a scene; made by `open_masks`."""

    def __init__(self, layers: Sequence[tuple[str, _Read]]) -> None:
        self._layers = layers

    def is_masked(self, window: Window) -> Mask:
        """Pixels (rows, cols) that any layer masks."""
        masked = np.zeros((int(window.height), int(window.width)), bool)
        for _, read in self._layers:
            masked |= read(window)
        return masked

    def codes(self, window: Window, has_class: Mask) -> NDArray[np.uint8]:
        """Values of mask.tif; a pixel of several kinds has the first one in the order of CODES."""
        codes = np.zeros(has_class.shape, np.uint8)
        for kind, read in sorted(self._layers, key=lambda layer: CODES.get(layer[0], MISSING)):
            codes[read(window) & ~has_class & (codes == 0)] = CODES.get(kind, MISSING)
        codes[~has_class & (codes == 0)] = MISSING
        return codes


@contextmanager
def open_masks(layers: Sequence[MaskLayer], bands: Sequence[int], work: Path | None = None) -> Iterator[MaskReader]:
    """A reader of the layers, for one thread; flags of samples count in these bands of the image."""
    with ExitStack() as stack:
        yield MaskReader([(layer.kind, _reader(layer, bands, work, stack)) for layer in layers])


def _reader(layer: MaskLayer, bands: Sequence[int], work: Path | None, stack: ExitStack) -> _Read:
    top, left = layer.first
    if isinstance(layer.source, Plane):
        read = stack.enter_context(open_plane(layer.source)).read
        return lambda window: _matches(layer, read(_moved(window, top, left)))
    flags = stack.enter_context(open_image(layer.source.image, work))
    return lambda window: np.asarray(_matches(layer, flags.read(bands, window=_moved(window, top, left))).any(axis=0))


def _moved(window: Window, down: int, right: int) -> Window:
    return Window(window.col_off + right, window.row_off + down, window.width, window.height)


def _matches(layer: MaskLayer, samples: NDArray[Any]) -> Mask:
    if layer.bits:
        return np.asarray((samples.astype(np.int64) & layer.bits) != 0)
    return np.isin(samples, layer.values) if layer.values else np.asarray((samples != 0) & np.isfinite(samples))
