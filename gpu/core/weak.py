"""The weak table behind hash-consing: one live object per key, forgotten when nothing holds it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar
from weakref import ref

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class _Entry(ref[ValueT]):
    """A weak reference that knows the key it is filed under."""

    __slots__ = ("key",)
    key: Any


class WeakTable(Generic[KeyT, ValueT]):
    """Live objects by key; unlike WeakValueDictionary, two threads cannot file two for one key.

    A key must not hold its own value, however indirectly, or the two keep each other alive.
    """

    def __init__(self) -> None:
        entries: dict[KeyT, _Entry[ValueT]] = {}
        # Reentrant: a collection that runs while an entry is filed may forget one in this thread.
        lock = threading.RLock()

        def forget(entry: _Entry[ValueT]) -> None:
            key = entry.key
            with lock:
                if entries.get(key) is entry:
                    del entries[key]

        self._entries = entries
        self._lock = lock
        self._forget = forget

    def get(self, key: KeyT) -> ValueT | None:
        """The live object filed under `key`, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def file(self, key: KeyT, value: ValueT) -> ValueT:
        """The object filed under `key`: `value`, unless another thread was faster."""
        with self._lock:
            present = self._entries.get(key)
            found = None if present is None else present()
            if found is None:
                found = value
                entry = _Entry(value, self._forget)
                entry.key = key
                self._entries[key] = entry
            return found

    def __len__(self) -> int:
        return len(self._entries)
