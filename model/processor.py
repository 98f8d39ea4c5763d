"""What the processor claims, what the kernel supports of it, and a cap on instruction sets if the two differ.

Some virtual machines (Firecracker among them) list AMX in the processor's flags, but do not let tile data be used.
oneDNN, inside torch and OpenVINO, trusts the flags and is killed by an illegal instruction. The kernel reports
it: bit 18 of its supported state components is tile data (Linux, Documentation/arch/x86/xstate.rst).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path

SYS_ARCH_PRCTL = 158  # on x86-64
ARCH_GET_XCOMP_SUPP = 0x1021
TILE_DATA = 1 << 18

# oneDNN reads the first; the second is its older name.
CAP_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WITHOUT_AMX = "AVX512_CORE_FP16"  # everything below AMX


@cache
def cpu_info() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty if the file is missing."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def cpu_name() -> str:
    """The processor's name for display."""
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """The instruction sets that the processor claims to have."""
    return frozenset(cpu_info().get("flags", "").split())


def supported_states() -> int:
    """Bit mask of the extended states that the kernel supports; 0 if unknown."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return 0
    states = ctypes.c_uint64()
    failed = ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_GET_XCOMP_SUPP, ctypes.byref(states))
    return 0 if failed else states.value


def is_amx_broken() -> bool:
    """Whether the processor claims AMX and the kernel does not support it."""
    return "amx_tile" in cpu_flags() and not supported_states() & TILE_DATA


def cap_instruction_set(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep oneDNN from using AMX if that is broken, unless the user has set a cap; call before torch or OpenVINO load.

    Child processes inherit the cap.
    """
    if not any(variable in environment for variable in CAP_VARIABLES) and is_amx_broken():
        environment[CAP_VARIABLES[0]] = WITHOUT_AMX


def instruction_cap() -> str | None:
    """The cap in force, set by us or by the user."""
    return next((os.environ[variable] for variable in CAP_VARIABLES if variable in os.environ), None)
