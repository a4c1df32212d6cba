"""Request numbers of ioctls: making them, and saying what one means.

A Linux request number packs how data flows, the size of the argument, a letter for the driver and a
number within it: from bit 0, 8 bits number, 8 bits type, 14 bits size, 2 bits direction
(include/uapi/asm-generic/ioctl.h; the same on x86-64 and arm64). Some drivers, such as NVIDIA's
UVM, use small plain numbers instead.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Final, NamedTuple, TypeAlias

from gpu.core.errors import InvalidValue

_Data: TypeAlias = "ctypes.Structure | ctypes.Union | ctypes._SimpleCData[Any]"

_TYPE_SHIFT: Final = 8
_SIZE_SHIFT: Final = 16
_DIRECTION_SHIFT: Final = 30
MAX_SIZE: Final = (1 << 14) - 1
"""Largest argument in bytes that a request number can tell."""


class Direction(enum.IntFlag):
    """How an ioctl's argument flows, seen from the program."""

    NONE = 0
    WRITE = 1
    """The kernel reads the argument."""
    READ = 2
    """The kernel fills it in."""


class Request(NamedTuple):
    """A request number taken apart; `type` is the driver's letter as a number."""

    direction: Direction
    type: int
    number: int
    size: int


def ioc(direction: Direction | int, letter: str | int, number: int, size: int) -> int:
    """A request number: the driver's letter, its own number, the argument's size in bytes.

    Raises InvalidValue for a part that does not fit its bits.
    """
    kind = _letter_number(letter)
    for name, value, limit in (
        ("direction", int(direction), 3),
        ("type", kind, 0xFF),
        ("number", number, 0xFF),
        ("size", size, MAX_SIZE),
    ):
        if not 0 <= value <= limit:
            raise InvalidValue(f"{name} {value} of an ioctl request: it must be 0 to {limit}")
    high = int(direction) << _DIRECTION_SHIFT | size << _SIZE_SHIFT
    return high | kind << _TYPE_SHIFT | number


def io(letter: str | int, number: int) -> int:
    """A request without an argument. Raises as `ioc` does."""
    return ioc(Direction.NONE, letter, number, 0)


def ior(letter: str | int, number: int, argument: type[_Data] | int) -> int:
    """A request whose argument, a ctypes type or a size, is filled in. Raises as `ioc` does."""
    return ioc(Direction.READ, letter, number, _size(argument))


def iow(letter: str | int, number: int, argument: type[_Data] | int) -> int:
    """A request whose argument, a ctypes type or a size, is only read. Raises as `ioc` does."""
    return ioc(Direction.WRITE, letter, number, _size(argument))


def iowr(letter: str | int, number: int, argument: type[_Data] | int) -> int:
    """A request whose argument, a ctypes type or a size, is read and filled in. Raises as `ioc`."""
    return ioc(Direction.WRITE | Direction.READ, letter, number, _size(argument))


def decode(request: int) -> Request:
    """The parts of a request number. A plain small number has no direction, type 0 and size 0.

    Raises InvalidValue for a number of more than 32 bits, which no ioctl takes.
    """
    check_request(request)
    return Request(
        Direction(request >> _DIRECTION_SHIFT),
        request >> _TYPE_SHIFT & 0xFF,
        request & 0xFF,
        request >> _SIZE_SHIFT & MAX_SIZE,
    )


def check_request(request: int) -> None:
    """Raises InvalidValue for what is no request number: it has 32 bits, unsigned."""
    if not 0 <= request < 1 << 32:
        raise InvalidValue(f"ioctl request {request:#x}: it must be 0 to 0xffffffff")


def describe(request: int) -> str:
    """A request number for people: ``0xc0184b02 (IOWR 'K' 0x02, 24 bytes)``, or ``0x19``."""
    direction, kind, number, size = decode(request)
    if not (direction or kind or size):
        return f"{request:#x}"
    name = {0: "IO", 1: "IOW", 2: "IOR", 3: "IOWR"}[int(direction)]
    letter = repr(chr(kind)) if 0x20 < kind < 0x7F else f"{kind:#04x}"
    return f"{request:#010x} ({name} {letter} {number:#04x}, {size} bytes)"


def _letter_number(letter: str | int) -> int:
    if isinstance(letter, int):
        return letter
    if len(letter) != 1:
        raise InvalidValue(f"type {letter!r} of an ioctl request: it must be one letter")
    return ord(letter)


def _size(argument: type[_Data] | int) -> int:
    return argument if isinstance(argument, int) else ctypes.sizeof(argument)
