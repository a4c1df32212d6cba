"""A table that forgets what has not been asked for in a while."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, of which those asked for last are kept.

    There are two generations. When the young one is full, the old one is forgotten and the young
    one takes its place; what is asked for comes back into the young one. So a hit costs one look
    into a dict, which counts where keys are long: a tuple is hashed anew each time.

    Threads may use it at once. What one adds while another one starts a generation may be lost,
    which costs making it again.
    """

    def __init__(self, most: int):
        """`most` is the weight of one generation; up to twice that is kept."""
        self.most = most
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._weight = 0

    def get(self, key: K) -> V | None:
        """The value of `key`, None where there is none or it was forgotten."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.keep(key, *found)
        return found[0]

    def keep(self, key: K, value: V, weight: int = 1) -> None:
        """Has `key` stand for `value`, which weighs as much as `weight` others of 1."""
        if self._weight + weight > self.most:
            self._old, self._young, self._weight = self._young, {}, 0
        self._young[key] = (value, weight)
        self._weight += weight

    def forget(self, key: K) -> None:
        """Has `key` stand for nothing any more; its weight counts until the next generation."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def values(self) -> list[V]:
        """What is kept, in no order that means anything."""
        return [value for value, _ in {**self._old, **self._young}.values()]

    def clear(self) -> None:
        """Forgets everything."""
        self._young, self._old, self._weight = {}, {}, 0

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
