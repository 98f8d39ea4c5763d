"""JSON that can always be written and read: numbers that JSON does not have become null."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(document: Any, indent: int | None = None) -> str:
    """A document as JSON, compact without an indent; NaN and infinity become null."""
    try:
        return _dumped(document, indent)
    except ValueError:
        return _dumped(_finite(document), indent)


def _dumped(document: Any, indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(document, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
