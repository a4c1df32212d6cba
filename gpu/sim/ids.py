"""Numbers for what the kernel keeps."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Generic, TypeVar

from gpu.sim.kernel import SysError

ItemT = TypeVar("ItemT")


class IdTable(Generic[ItemT]):
    """Numbers for things, the lowest free one first, as the kernel's idr gives them."""

    def __init__(self) -> None:
        self._items: dict[int, ItemT] = {}
        self._lowest: dict[int, int] = {}  # by where a range begins, what may be free there

    def add(self, item: ItemT, first: int = 0, limit: int = 1 << 31) -> int:
        """Gives a thing a number. Raises SysError(ENOSPC) when all up to `limit` are taken."""
        number = self._lowest.get(first, first)
        while number in self._items:
            number += 1
        self._lowest[first] = number
        if number >= limit:
            raise SysError(errno.ENOSPC, f"no free number from {first:#x} to {limit:#x}")
        self._items[number] = item
        return number

    def get(self, number: int) -> ItemT | None:
        """The thing of a number."""
        return self._items.get(number)

    def remove(self, number: int) -> None:
        """Frees a number."""
        del self._items[number]
        for first, lowest in self._lowest.items():
            if first <= number < lowest:
                self._lowest[first] = number

    def __iter__(self) -> Iterator[tuple[int, ItemT]]:
        return iter(sorted(self._items.items()))

    def __len__(self) -> int:
        return len(self._items)
