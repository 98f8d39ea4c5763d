"""Names of the devices. Imports no engine, because the settings need the names."""

from __future__ import annotations

from typing import Literal, get_args

Device = Literal["auto", "cpu", "openvino", "fused", "cuda", "tensorrt"]
DEVICES: tuple[Device, ...] = get_args(Device)
