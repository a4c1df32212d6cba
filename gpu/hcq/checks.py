"""Arguments of what callers write into queues: numbers or symbols, sizes of launches, buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from gpu.core.arguments import WORD, whole
from gpu.core.errors import InvalidType, InvalidValue
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.commands import Block, Grid, HasAddress
from gpu.hcq.signal import Signal
from gpu.hcq.symbol import Symbol, Value

T = TypeVar("T")
MOST_GROUPS: Final = (1 << 32) - 1
"""No device counts groups, or threads of a group, along an axis in more bits."""


def number_or_symbol(value: object, name: str, least: int = 0, most: int = WORD) -> Value:
    """A field of a command. Raises InvalidType, InvalidValue."""
    return value if isinstance(value, Symbol) else whole(value, name, least, most)


def payload(signal: HasAddress, value: object) -> Value:
    """What a signal may hold, or wait for."""
    most = (1 << signal.bits) - 1 if isinstance(signal, Signal) else WORD
    return number_or_symbol(value, "the value of a signal", 0, most)


def signal_of(signal: HasAddress) -> HasAddress:
    """What has an address. Raises InvalidType."""
    try:
        _ = signal.address
    except AttributeError as error:
        raise InvalidType(f"{signal!r} is no signal: HCQDevice.signal() makes one") from error
    return signal


def buffer_of(value: object, name: str) -> HCQBuffer:
    """A buffer. Raises InvalidType."""
    if not isinstance(value, HCQBuffer):
        raise InvalidType(f"{name} must be a buffer, as of HCQAllocator.alloc(); got {value!r}")
    return value


def sequence_of(vals: Sequence[T], name: str, error: Exception | None = None) -> tuple[T, ...]:
    """The values that a kernel is called with. Raises InvalidType."""
    try:
        return tuple(vals)
    except TypeError:
        raise InvalidType(f"vals of {name} must be a sequence, got {vals!r}") from error


def launch_sizes(name: str, grid: Sequence[Value], block: Sequence[int]) -> tuple[Grid, Block]:
    """Groups of a launch and threads of a group along three axes, as plain numbers.

    Raises InvalidType and InvalidValue for what is not three whole numbers of at least 1 each.
    """
    groups = _three(f"the grid of {name}", grid)
    threads = _three(f"the block of {name}", block)
    x, y, z = (number_or_symbol(size, f"the grid of {name}", 1, MOST_GROUPS) for size in groups)
    a, b, c = (whole(size, f"the block of {name}", 1, MOST_GROUPS) for size in threads)
    return (x, y, z), (a, b, c)


def _three(name: str, sizes: Sequence[object]) -> list[object]:
    try:
        found = list(sizes)
    except TypeError as error:
        raise InvalidType(f"{name} must be three sizes, got {sizes!r}") from error
    if len(found) != 3:
        raise InvalidValue(f"{name} is {sizes!r}: give three sizes")
    return found
