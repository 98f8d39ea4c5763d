"""The device, the precision and the memory of training."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hyperscene.errors import OptionsUnusable, TrainingFailed
from hyperscene.training.fit.precision_health import Precision, fastest, probe_precisions

CPU_DEVICE = torch.device("cpu")

# From glibc's malloc.h. The upper limit of MMAP_THRESHOLD is 32 MB, see mallopt(3).
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
KEPT = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**30, TOP_PAD: 2**26}


@dataclass(frozen=True)
class Compute:
    """The device of training, and the precision of its steps; weights are always float32."""

    device: torch.device = CPU_DEVICE
    precision: Precision = "float32"

    def autocast(self) -> torch.autocast:
        """Context in which torch uses the precision for the operations where that is safe."""
        # Without the cache of rounded weights, which all threads would share; a step rounds each weight once anyway.
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16", cache_enabled=False
        )


def choose_compute(device: str, precision: str, say: Callable[[str], None] = lambda _: None) -> Compute:
    """Device and precision from the options; `auto` takes the fastest that works."""
    chosen = choose_device(device)
    return Compute(chosen, choose_precision(precision, chosen, say))


def choose_device(device: str) -> torch.device:
    """The torch device of an option; `auto` takes CUDA if available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionsUnusable("--device cuda was given, but torch finds no CUDA device: use --device cpu")
    return torch.device(device)


def choose_precision(option: str, device: torch.device, say: Callable[[str], None] = lambda _: None) -> Precision:
    """The precision to train in; `auto` takes the fastest that works."""
    if option == "float32":
        return "float32"
    if device.type == "cuda":
        # Without emulation: cards before Ampere compute bfloat16 in float32, more slowly.
        works = torch.cuda.is_bf16_supported(including_emulation=False)
        if option == "bfloat16" and not works:
            raise OptionsUnusable("this GPU does not support bfloat16: use --precision auto or float32")
        return "bfloat16" if works else "float32"
    reports = probe_precisions()
    exact, coarse = reports["float32"], reports["bfloat16"]
    if exact.is_crash:
        raise TrainingFailed(
            f"torch cannot run a training step on this processor (a probe {exact.failure}): set "
            "ONEDNN_MAX_CPU_ISA=AVX2 in the environment and try again, and report the output of hyperscene doctor"
        )
    if option == "bfloat16":
        if not coarse.works:
            raise OptionsUnusable(
                f"bfloat16 does not work on this processor (a probe {coarse.failure}): use --precision auto or float32"
            )
        return "bfloat16"
    if not coarse.works:
        say(f"training in float32: a probe of bfloat16 {coarse.failure}")
        return "float32"
    return fastest(reports)


def keep_freed_memory() -> bool:
    """Keep freed blocks of up to 32 MB in the heap; gives whether the C library supports it.

    A training step allocates and frees dozens of matrices of a few MB. By default glibc returns each to the system,
    which then has to zero new pages one by one.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(option, value) for option, value in KEPT.items())
