"""What a compiled kernel is to the runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Program(ABC):
    """A kernel loaded on a device, ready to launch.

    Attributes:
        name: symbol of the kernel.
    """

    name: str

    @abstractmethod
    def __call__(self, *bufs: Any, vals: Sequence[int] = (), wait: bool = False) -> float | None:
        """Launches the kernel on memory of the device's allocator, in the kernel's order.

        Args:
            bufs: one allocation per parameter.
            vals: values of the kernel's index variables.
            wait: wait for it to finish and return the seconds it took.
        """
