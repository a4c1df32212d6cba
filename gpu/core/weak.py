"""The weak table behind hash-consing: one live object per key, forgotten when nothing holds it."""

from __future__ import annotations

import os
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


class _Guard:
    """The lock of all tables, which is held for moments."""

    lock: threading.RLock

    @classmethod
    def renew(cls) -> None:
        """As at the beginning, and in a forked child, in which whoever held the lock is not."""
        # Reentrant: a collection that runs while an entry is filed may forget one in this thread.
        cls.lock = threading.RLock()


_Guard.renew()
os.register_at_fork(after_in_child=_Guard.renew)


class WeakTable(Generic[KeyT, ValueT]):
    """Live objects by key; unlike WeakValueDictionary, two threads cannot file two for one key.

    A key must not hold its own value, however indirectly, or the two keep each other alive.

    Attributes:
        count: gives how many are filed, as `len` does, without a function of Python's.
        entry: gives a reference to what is filed under a key, or None; as `get`, without one.
    """

    def __init__(self) -> None:
        entries: dict[KeyT, _Entry[ValueT]] = {}
        guard = _Guard  # known here, as names of a module may be gone when Python exits

        def forget(entry: _Entry[ValueT]) -> None:
            key = entry.key
            with guard.lock:
                if entries.get(key) is entry:
                    del entries[key]

        self._entries = entries
        self.count, self.entry = entries.__len__, entries.get
        self._forget = forget

    def get(self, key: KeyT) -> ValueT | None:
        """The live object filed under `key`, or None."""
        entry = self.entry(key)
        return None if entry is None else entry()

    def file(self, key: KeyT, value: ValueT) -> ValueT:
        """The object filed under `key`: `value`, unless another thread was faster."""
        entry = _Entry(value, self._forget)
        entry.key = key
        # One step of the dict's own: of two threads one is told of the other's entry.
        if self._entries.setdefault(key, entry) is entry:
            return value
        with _Guard.lock:
            present = self._entries.get(key)
            found = None if present is None else present()
            if found is None:
                found = value
                self._entries[key] = entry
            return found

    def values(self) -> list[ValueT]:
        """The live objects, in the order in which they were filed."""
        # In one step of the list's own: objects may go at any moment.
        entries = list(self._entries.values())
        return [value for entry in entries if (value := entry()) is not None]

    def __len__(self) -> int:
        return len(self._entries)
