"""Packets of Adreno's command processor, from the fifth generation on: types 4 and 7.

A packet is a header and words. Type 4 writes registers one after the other; type 7 is a command. A
header says how many words follow, and covers each of its two numbers by a bit that makes the count
of their ones odd, so that words which are no header are told from one (Mesa, `adreno_pm4.xml` and
`freedreno_pm4.h`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue

REGISTER_WRITE: Final = 4
COMMAND: Final = 7


class _Form(NamedTuple):
    """How a type of header lies in its word.

    Attributes:
        count_bits: of the number of words that follow; the bit that covers it is next to them, but
            for type 7, where it is bit 15.
        count_parity: that bit.
        place: lowest bit of the register, or of the opcode.
        bits: how many those are.
        parity: the bit that covers them.
    """

    count_bits: int
    count_parity: int
    place: int
    bits: int
    parity: int


_FORMS: Final = {
    REGISTER_WRITE: _Form(7, 7, 8, 18, 27),
    COMMAND: _Form(14, 15, 16, 7, 23),
}


class Header(NamedTuple):
    """The first word of a packet.

    Attributes:
        type: `REGISTER_WRITE` or `COMMAND`.
        number: the first register, counted in dwords, or the opcode.
        words: how many follow.
    """

    type: int
    number: int
    words: int

    @property
    def word(self) -> int:
        """The header as it lies in memory. Raises InvalidValue for a number that does not fit."""
        form = _FORMS.get(self.type)
        if form is None:
            raise InvalidValue(f"packets have type 4 or 7, not {self.type}")
        for what, value, bits in (("count", self.words, form.count_bits),
                                  ("number", self.number, form.bits)):  # fmt: skip
            if not 0 <= value < 1 << bits:
                raise InvalidValue(
                    f"{what} {value:#x} of a packet of type {self.type}: {bits} bits"
                )
        return (
            self.type << 28
            | self.words
            | _odd(self.words) << form.count_parity
            | self.number << form.place
            | _odd(self.number) << form.parity
        )

    @classmethod
    def parse(cls, word: int) -> Header | None:
        """The header that a word is; None for one that no packet begins with."""
        form = _FORMS.get(word >> 28)
        if form is None:
            return None
        count = word & (1 << form.count_bits) - 1
        found = cls(word >> 28, word >> form.place & (1 << form.bits) - 1, count)
        return found if found.word == word else None


def write_registers(first: int, *values: int) -> list[int]:
    """The words that write registers from the first on, which is counted in dwords."""
    return [Header(REGISTER_WRITE, first, len(values)).word, *values]


def command(opcode: int, *words: int) -> list[int]:
    """The words of a command."""
    return [Header(COMMAND, opcode, len(words)).word, *words]


def _odd(value: int) -> int:
    """The bit that makes the number of ones odd."""
    return ~value.bit_count() & 1
