"""What a compiled kernel is to the runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Program(ABC):
    """A kernel loaded on a device, ready to launch.

    It is let go of when no compiled graph has it any more, which may be while launches of it wait
    or run: a device keeps what those need until they have finished.

    Attributes:
        name: symbol of the kernel.
        weight: how much memory a loaded kernel takes, where a CPU's, some 20 KiB, is 1. The more,
            the fewer are kept for graphs that may be computed again.
    """

    name: str
    weight = 1

    @abstractmethod
    def __call__(self, *bufs: Any, vals: Sequence[int] = (), wait: bool = False) -> float | None:
        """Launches the kernel on memory of the device's allocator, in the kernel's order.

        Args:
            bufs: one allocation per parameter.
            vals: values of the kernel's index variables.
            wait: wait for it to finish and return the seconds it took.
        """
