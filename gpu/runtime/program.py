"""What a compiled kernel is to the runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gpu.core.arguments import whole
from gpu.core.errors import InvalidType
from gpu.core.unpicklable import Unpicklable

_LARGEST: Final = (1 << 63) - 1


class LaunchSize(NamedTuple):
    """How many groups a launch has in each dimension, and how many threads each of them."""

    grid: tuple[int, ...]
    block: tuple[int, ...]


class Program(Unpicklable, ABC):
    """A kernel loaded on a device, ready to launch.

    It is let go of when no compiled graph has it any more, which may be while launches of it wait
    or run: a device keeps what those need until they have finished.

    Attributes:
        name: symbol of the kernel.
        origin: what it computed first and the lines of the user's code that asked for it, or "".
        launch_size: of its launches; None where a kernel is a function of the host's.
        weight: how much memory a loaded kernel takes, where a CPU's, some 20 KiB, is 1. The more,
            the fewer are kept for graphs that may be computed again.
    """

    name: str
    origin: object = ""
    weight = 1

    @property
    def launch_size(self) -> LaunchSize | None:
        """See the class."""
        return None

    @abstractmethod
    def __call__(self, *bufs: Any, vals: Sequence[int] = (), wait: bool = False) -> float | None:
        """Launches the kernel on memory of the device's allocator, in the kernel's order.

        Args:
            bufs: one allocation per parameter.
            vals: values of the kernel's index variables.
            wait: wait for it to finish and return the seconds it took.
        """


def check_values(name: str, vals: Sequence[int]) -> tuple[int, ...]:
    """The values of a kernel as Python's integers. Raises InvalidType, InvalidValue for others."""
    try:
        values = tuple(vals)
    except TypeError as error:
        raise InvalidType(f"vals of {name} must be a sequence of ints, got {vals!r}") from error
    return tuple(
        whole(value, f"value {number} of {name}", -_LARGEST - 1, _LARGEST)
        for number, value in enumerate(values)
    )


def check_memory_of(name: str, bufs: Sequence[object], kind: type) -> None:
    """Raises InvalidType for the first buffer of a kernel that is no memory of its device's."""
    for number, memory in enumerate(bufs):
        if not isinstance(memory, kind):
            raise InvalidType(
                f"buffer {number} of {name} must be memory of its device's allocator, got"
                f" {type(memory).__name__} {memory!r}"
            )
