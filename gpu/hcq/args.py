"""The arguments of a kernel: where each lies, and their values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpu.core.arguments import whole
from gpu.core.bits import align_up
from gpu.core.errors import InvalidType, InvalidValue
from gpu.hcq.symbol import Symbol, Value

_SIZES: Final = {"b": 1, "B": 1, "h": 2, "H": 2, "e": 2, "i": 4, "I": 4, "f": 4}
_SIZES_8: Final = {"q": 8, "Q": 8, "d": 8}
SCALARS: Final = _SIZES | _SIZES_8
_POINTER: Final = 8
MOST_BUFFERS: Final = 1 << 16
"""More are a mistake: no device has parameters of so many bytes."""


class Argument(NamedTuple):
    """Where an argument is: its offset from the first one and its format, as of `struct`."""

    offset: int
    code: str


class ArgumentLayout:
    """8-byte pointers first, then scalars at their natural alignment, little-endian.

    ``scalars`` are format characters of `struct`: b B h H i I q Q e f d. ``size`` is that of all
    arguments, a multiple of 8. What a vendor puts before them (constant bank 0) or after (hidden
    arguments) is its encoder's matter.
    """

    def __init__(self, pointers: int, scalars: Sequence[str] = ()):
        """Raises `InvalidValue` for a format that is no scalar's, `InvalidType`."""
        pointers = whole(pointers, "the number of buffers of a kernel", 0, MOST_BUFFERS)
        if not isinstance(scalars, Sequence):
            raise InvalidType(f"scalars are formats as of struct, such as ['I']; got {scalars!r}")
        places = [Argument(_POINTER * index, "Q") for index in range(pointers)]
        offset = _POINTER * pointers
        text = f"<{pointers}Q"
        for code in scalars:
            size = SCALARS.get(code) if isinstance(code, str) else None
            if size is None:
                raise InvalidValue(f"argument format {code!r}: give one of {' '.join(SCALARS)}")
            start = align_up(offset, size)
            text += "x" * (start - offset) + code
            places.append(Argument(start, code))
            offset = start + size
        self.pointers = pointers
        self.scalars = tuple(scalars)
        self.arguments = tuple(places)
        self.size = align_up(offset, 8)
        packer = struct.Struct(text + "x" * (self.size - offset))
        self.pack = packer.pack
        """All values in order, as bytes."""
        self.unpack = packer.unpack
        self.pack_into = packer.pack_into
        """The same into memory at an offset; only for memory that nobody polls."""


class ArgumentPatch(NamedTuple):
    """An argument that is a symbol: put its low ``width`` bytes at ``offset``."""

    offset: int
    width: int
    symbol: Symbol


@dataclass(frozen=True)
class KernelArguments:
    """Values for a layout: addresses, then scalars. Both may be symbols.

    Raises `InvalidValue` when there are not as many values as the layout has, and for one that
    does not fit its format.
    """

    layout: ArgumentLayout
    pointers: tuple[Value, ...]
    scalars: tuple[Value | float, ...] = ()
    data: bytes = field(init=False, repr=False)
    """The arguments with zeros where symbols are."""
    patches: tuple[ArgumentPatch, ...] = field(init=False)

    def __post_init__(self) -> None:
        layout = self.layout
        if (len(self.pointers), len(self.scalars)) != (layout.pointers, len(layout.scalars)):
            raise InvalidValue(
                f"{len(self.pointers)} buffers and {len(self.scalars)} values for a kernel that"
                f" takes {layout.pointers} and {len(layout.scalars)}"
            )
        values: list[int | float] = []
        patches = []
        given = (*self.pointers, *self.scalars)
        for place, value in zip(layout.arguments, given, strict=True):
            if not isinstance(value, Symbol):
                values.append(value)
                continue
            if place.code in "efd":
                raise InvalidType(f"symbol {value.name!r} for a floating-point argument")
            patches.append(ArgumentPatch(place.offset, SCALARS[place.code], value))
            values.append(0)
        object.__setattr__(self, "data", packed(layout, values))
        object.__setattr__(self, "patches", tuple(patches))


def packed(layout: ArgumentLayout, values: Sequence[int | float]) -> bytes:
    """The bytes of all arguments. Raises `InvalidValue` for values that do not fit."""
    try:
        return layout.pack(*values)
    except (struct.error, OverflowError) as error:
        raise misfit(layout, values, error) from error


def misfit(layout: ArgumentLayout, values: Sequence[int | float], error: Exception) -> InvalidValue:
    """What to raise when `struct` refused some values."""
    codes = "Q" * layout.pointers + "".join(layout.scalars)
    return InvalidValue(f"arguments {tuple(values)} do not fit the formats {codes!r}: {error}")
