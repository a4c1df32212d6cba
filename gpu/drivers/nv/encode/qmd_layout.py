"""Fields of launch descriptors, made from the tables, and setting them.

A value may be a symbol: then the field is zero, and a patch of segment 0 puts it in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from gpu.core.bits import mask
from gpu.core.errors import InvalidIndex, InvalidValue, Unsupported
from gpu.drivers.nv.encode.qmd_tables import COMMON_NAMES, QMD_V3, QMD_V4, QMD_V5
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Symbol, Value

_ROW: Final = re.compile(r"(\w+) (\d+):(\d+)(?: x(\d+)\+(\d+))?")
_SHIFTED: Final = re.compile(r"_SHIFTED(\d*)(?=\[|$)")
_PLAIN_SHIFT: Final = 8  # of names that end in SHIFTED alone
_WORD_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Span:
    """Bits ``hi:lo`` of a descriptor; they hold a value without its lowest ``shift`` bits."""

    name: str
    hi: int
    lo: int
    shift: int

    @property
    def width(self) -> int:
        """How many bits it has."""
        return self.hi - self.lo + 1

    def extract(self, value: int) -> int:
        """Its number in a descriptor taken as one little-endian integer."""
        return value >> self.lo & mask(self.width - 1)


class QmdLayout:
    """The fields of one version, in ``size`` bytes.

    Fields of several are ``NAME[0]``, ``NAME[1]``; `span` also takes the names that all versions
    have in common.
    """

    def __init__(self, major: int, size: int, table: str):
        self.major = major
        self.size = size
        self._common = COMMON_NAMES[major]
        self.spans: Mapping[str, Span] = {span.name: span for span in _parse(table)}
        self._plain = {_SHIFTED.sub("", name): span for name, span in self.spans.items()}

    def span(self, name: str, index: int | None = None) -> Span:
        """A field, found without the SHIFTED of its name. Raises InvalidIndex."""
        name = self._common.get(name, name)
        if "{}" in name:
            name = name.format(index)
        elif index is not None:
            name = f"{name}[{index}]"
        if name not in self._plain:
            raise InvalidIndex(f"launch descriptors of version {self.major} have no field {name}")
        return self._plain[name]

    def has(self, name: str) -> bool:
        """Whether this version has a field that is one, by a name as of `span`."""
        return self._common.get(name, name) in self._plain

    def join(self, value: int, name: str, index: int | None = None) -> int:
        """What `QmdWriter.put_split` set, of a descriptor taken as one little-endian integer."""
        lower = self.span(f"{name}_LOWER", index)
        upper = self.span(f"{name}_UPPER", index)
        return (upper.extract(value) << lower.width | lower.extract(value)) << lower.shift

    @property
    def covered(self) -> int:
        """Ones in all bits that belong to a field."""
        return sum(mask(span.hi, span.lo) for span in self.spans.values())


def _parse(table: str) -> list[Span]:
    """The fields of a table, fields of several one by one."""
    spans = []
    for row in re.split(r"[;\n]\s*", table.strip().replace(";\n", "\n")):
        found = _ROW.fullmatch(row)
        assert found is not None, f"table row {row!r}"
        name, hi, lo = found[1], int(found[2]), int(found[3])
        shifted = _SHIFTED.search(name)
        shift = int(shifted[1] or _PLAIN_SHIFT) if shifted else 0
        if found[4] is None:
            spans.append(Span(name, hi, lo, shift))
            continue
        for index in range(int(found[4])):
            by = index * int(found[5])
            spans.append(Span(f"{name}[{index}]", hi + by, lo + by, shift))
    return spans


@cache
def qmd_layout(major: int) -> QmdLayout:
    """The layout of a major version. Raises Unsupported for one that is not known."""
    tables = {3: (256, QMD_V3), 4: (384, QMD_V4), 5: (384, QMD_V5)}
    if major not in tables:
        raise Unsupported(f"launch descriptors of version {major}: known are 3, 4 and 5")
    return QmdLayout(major, *tables[major])


class QmdWriter:
    """A descriptor in the making: all fields zero at first."""

    def __init__(self, layout: QmdLayout):
        self.layout = layout
        self.patches: list[Patch] = []
        self._value = 0

    def put(self, name: str, value: Value, index: int | None = None, *, shift: int = 0) -> None:
        """Sets a field to a value without its lowest ``shift`` bits and those its name tells.

        Raises InvalidValue for a value that does not fit, or that loses ones to the shift.
        """
        span = self.layout.span(name, index)
        shift += span.shift
        if isinstance(value, Symbol):
            self._late(span, value, shift)
            return
        if value < 0 or value >> shift >= 1 << span.width or value & ((1 << shift) - 1):
            raise InvalidValue(
                f"{span.name} = {value:#x} does not fit its {span.width} bits: give a multiple of"
                f" {1 << shift} up to {mask(span.width - 1) << shift:#x}"
            )
        self._set(span, value >> shift)

    def put_split(self, name: str, value: Value, index: int | None = None) -> None:
        """Sets ``name_LOWER`` and ``name_UPPER`` to the halves of an address or a payload.

        Raises as `put` does.
        """
        lower = self.layout.span(f"{name}_LOWER", index)
        upper = self.layout.span(f"{name}_UPPER", index)
        shift = lower.shift
        if isinstance(value, Symbol):
            self._late(lower, value, shift)
            self._late(upper, value, shift + lower.width)
            return
        width = lower.width + upper.width
        if value < 0 or value >> shift >= 1 << width or value & ((1 << shift) - 1):
            raise InvalidValue(
                f"{name} = {value:#x}: version {self.layout.major} takes multiples of {1 << shift}"
                f" up to {mask(width - 1) << shift:#x}"
            )
        self._set(lower, value >> shift & mask(lower.width - 1))
        self._set(upper, value >> shift + lower.width)

    def _set(self, span: Span, number: int) -> None:
        self._value = self._value & ~mask(span.hi, span.lo) | number << span.lo

    def _late(self, span: Span, symbol: Symbol, shift: int) -> None:
        word, position = divmod(span.lo, _WORD_BITS)
        patch = Patch(0, 4 * word, 4, shift, mask(span.width - 1), symbol, position=position)
        self.patches.append(patch)

    @property
    def data(self) -> bytes:
        """The descriptor."""
        return self._value.to_bytes(self.layout.size, "little")
