"""Settings of a map: the stride of the lattice, blending, the type of probabilities and the height of strips."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperscene.errors import OptionsUnusable
from hyperscene.model.bundle import Manifest
from hyperscene.service.mapping.blend import BLENDS, Blend
from hyperscene.service.mapping.strips import PROBABILITY_TYPES, ProbabilityType

STRIDES = (1, 2, 4, 8, 16)
# A strip's pixels as float32. About eight strips are in the pipeline at once, as pixels, directions or copies.
STRIP_BYTES = 64 << 20
MAX_STRIP_PX = 128


@dataclass(frozen=True)
class MapOptions:
    """What decides the result, and how it is stored; a number of 0 is replaced by a default."""

    stride_px: int = 0
    blend: Blend = "angle"
    probability_type: ProbabilityType = "uint8"
    strip_px: int = 0
    unknown: bool = False  # pixels outside the area of applicability get a class of their own

    def settled(self, manifest: Manifest, cols: int, max_strip_px: int = MAX_STRIP_PX) -> MapOptions:
        """The same options with all defaults filled in; raises OptionsUnusable."""
        strides = allowed_strides(manifest)
        stride_px = self.stride_px or min(8 if manifest.head == "token" else 4, strides[-1])
        if stride_px not in strides:
            raise OptionsUnusable(
                f"stride must be one of {', '.join(map(str, strides))} for patches of {manifest.patch_px} pixels "
                f"and the head {manifest.head}, not {stride_px}"
            )
        if self.blend not in BLENDS:
            raise OptionsUnusable(f"blend must be one of {', '.join(BLENDS)}, not {self.blend}")
        if self.probability_type not in PROBABILITY_TYPES:
            raise OptionsUnusable(
                f"the probability type must be one of {', '.join(PROBABILITY_TYPES)}, not {self.probability_type}"
            )
        if self.unknown and manifest.applicability is None:
            raise OptionsUnusable(
                f"the bundle {manifest.name} carries no statistics of what it learnt from, so nothing can be called "
                "unknown: train it again, or leave out unknown"
            )
        if self.blend == "none" and stride_px != 1:
            raise OptionsUnusable(
                "blend none gives each pixel its own patch and needs stride 1; with a larger stride use linear or angle"
            )
        if self.strip_px < 0:
            raise OptionsUnusable(f"a strip's height must be 1 pixel or more, not {self.strip_px}")
        # A `token` patch votes once per pixel: so many votes per cell of the lattice.
        votes = (manifest.patch_px // stride_px) ** 2 if manifest.head == "token" and self.blend != "none" else 1
        strip_px = self.strip_px or _strip_px(cols * 4 * (manifest.bands + votes * manifest.classes), max_strip_px)
        return MapOptions(stride_px, self.blend, self.probability_type, strip_px, self.unknown)


def allowed_strides(manifest: Manifest) -> list[int]:
    """Strides at which patches cover every pixel."""
    # A patch covers half its side around its centre, which may lie anywhere in its cell; a `token` patch's centre is
    # fixed.
    widest = manifest.patch_px if manifest.head == "token" else manifest.patch_px // 2
    return [stride for stride in STRIDES if stride <= widest]


def _strip_px(row_bytes: int, max_strip_px: int) -> int:
    """Rows of a strip within STRIP_BYTES: at least 16, but few enough that even a small scene has several strips."""
    return int(np.clip(STRIP_BYTES // row_bytes // 16 * 16, 16, max_strip_px))
