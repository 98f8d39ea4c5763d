"""A cache that drops what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Up to `size` values by key; callers in several threads need a lock."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """A kept value, which counts as used."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """A kept value, or a new one; room is made first, so that never more than `size` are in memory."""
        if (kept := self.get(key)) is not None:
            return kept
        while len(self._values) >= self._size:
            self._values.popitem(last=False)
        self._values[key] = make()
        return self._values[key]
