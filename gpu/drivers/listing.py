"""What decoders give: a line for each number of a packet. Registers as text, the short way.

Decoders are made for bytes that may be damaged: what makes no sense is shown with its bytes and
said not to be known, and nothing raises or guesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpu.core.regs import Register

_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Line:
    """A number at ``offset``, ``size`` bytes, little-endian, and what it means."""

    offset: int
    size: int
    number: int
    text: str

    def __str__(self) -> str:
        number = f"{self.number:0{2 * self.size}x}"
        return f"{self.offset:6x}  {number:>{_DIGITS}}  {self.text}".rstrip()


def raw(data: bytes, offset: int, text: str, size: int = 4) -> Iterator[Line]:
    """Bytes as numbers of ``size`` bytes, with the same text for each; the last may be shorter."""
    for start in range(0, len(data), size):
        some = data[start : start + size]
        yield Line(offset + start, len(some), int.from_bytes(some, "little"), text)


def register_text(register: Register) -> str:
    """A register by name, with the fields that are not 0; one of a single number as that."""
    cls = type(register)
    fields = list(cls.fields.values())
    if len(fields) == 1 and fields[0].mask == (1 << cls.bits) - 1:
        return f"{cls.__name__} {register.value:#x}"
    shown = [f"{f.name} {f.show(n)}" for f in fields if (n := f.extract(register.value))]
    rest = register.value & ~sum(f.mask for f in fields)
    if rest:
        shown.append(f"bits without a name {rest:#x}")
    return f"{cls.__name__}: {', '.join(shown)}" if shown else f"{cls.__name__} 0"
