"""How the C library keeps the memory that a training step gives back, so that the next one has it at once."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h. For MMAP_THRESHOLD mallopt(3) names 32 MB as the upper limit.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
KEPT = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**30, TOP_PAD: 2**26}


def keep_freed_memory() -> bool:
    """Have blocks of up to 32 MB taken from a heap that stays, where the C library can; says whether it does so.

    A step makes and drops dozens of matrices of some MB. By default glibc returns each to the system, which then hands
    out pages of zeros one by one.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(option, value) for option, value in KEPT.items())
