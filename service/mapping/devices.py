"""Names of devices and precisions. Imports no engine, because the settings need the names."""

from __future__ import annotations

from typing import Literal, get_args

Device = Literal["auto", "cpu", "openvino", "fused", "cuda", "tensorrt"]
DEVICES: tuple[Device, ...] = get_args(Device)

Precision = Literal["auto", "float32", "bfloat16"]
UsedPrecision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def precision_of(provider: str) -> UsedPrecision:
    """The precision that an engine computes in, which its provider ends with unless it is float32."""
    return "bfloat16" if provider.endswith(" bfloat16") else "float32"
