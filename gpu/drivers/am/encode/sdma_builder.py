"""Packets of the copy engine, built one after the other.

    push = SdmaBuilder((6, 0, 0))
    push.copy(destination, source, 3 << 30)
    push.fence(signal, 1)
    push.data, push.patches

Numbers may be symbols. The order of words is that of the kernel's sdma_v5_0.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from gpu.autogen.amd import sdma_packets_v6
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.regs import Register
from gpu.drivers.am.encode.sdma_packets import SdmaPacket, sdma_version
from gpu.drivers.am.target import Version
from gpu.drivers.dwords import (
    WORD,
    Late,
    Word,
    WordList,
    check_address,
    check_word,
    low,
    pair,
)
from gpu.hcq.symbol import Derived, Symbol, Value, plus

CALL_ALIGN: Final = 32
"""Of the address of an indirect buffer, in bytes, and of where a call of it ends."""
_ALL: Final = 0xFFFF_FFFF
_UNCACHED: Final = 3  # MTYPE of what fences write
_POLL_INTERVAL: Final = 10  # as the kernel's sdma_v5_0.c
_FOREVER: Final = 0xFFF
_FILL_WORDS: Final = 2  # FILLSIZE: a pattern of 4 bytes
_WRITE_PIECE: Final = 0x8000  # words of one WRITE
_NOP_PIECE: Final = 0x3FFF
FUNCTIONS: Final = {"<": 1, "<=": 2, "==": 3, "!=": 4, ">=": 5, ">": 6}
# As sdma_v5_0_ring_emit_mem_sync has it: bits of GCR_REQ, by name.
_REFRESH: Final = sum(
    1 << sdma_packets_v6.GCR_CONTROL[name][0]
    for name in ("GL2_INV", "GL2_WB", "GLM_INV", "GL1_INV", "GLV_INV", "GLK_INV", "GLI_INV")
)


class SdmaBuilder(WordList):
    """Packets of a copy queue."""

    def __init__(self, version: Version):
        super().__init__()
        self.version = sdma_version(version)

    def packet(self, name: str, *words: Word | Register, **header: int) -> None:
        """Any packet; ``header`` are fields of its first word, a field is left out if 0.

        Raises Unsupported for one that the engine does not have.
        """
        kind = self.kind(name)
        least = len(kind.words) - 1
        assert len(words) == least or (kind.repeats and len(words) + 1 >= least)
        fields = {"op": kind.op, "sub_op": kind.sub_op, **header}
        first = kind.words[0](**{name: value for name, value in fields.items() if value})
        self.words.append(first.value)
        self.append(word.value if isinstance(word, Register) else word for word in words)

    def kind(self, name: str) -> SdmaPacket:
        """A packet's kind; Unsupported for one that the engine does not have."""
        found = self.version.packets.get(name)
        if found is None:
            raise Unsupported(f"{self.version.name} has no packet {name}")
        return found

    def nop(self, words: int) -> None:
        """Does nothing for a number of words."""
        while words:
            some = min(words, 1 + _NOP_PIECE)
            self.packet("NOP", *[0] * (some - 1), count=some - 1)
            words -= some

    def copy(self, dst: Value, src: Value, size: Value) -> None:
        """Copies bytes, in as many packets as it takes; one whose size is a symbol in one."""
        check_address("what is copied to", dst, 1)
        check_address("what is copied", src, 1)
        most = self.version.max_copy
        if isinstance(size, Symbol):
            checked = Derived(f"{size.name} - 1", (size,), partial(_less_one, most))
            self._copy(dst, src, Late(checked))
            return
        for start in range(0, size, most):
            count = min(most, size - start) - 1
            self._copy(plus(dst, start), plus(src, start), count)

    def _copy(self, dst: Value, src: Value, count: Word) -> None:
        self.packet("COPY_LINEAR", count, 0, *pair(src), *pair(dst))

    def fill(self, dst: Value, word: int, size: int) -> None:
        """Fills a multiple of 4 bytes with a word. Raises InvalidValue for other sizes."""
        check_address("what is filled", dst, WORD)
        check_word("word to fill with", word)
        if size % WORD:
            raise InvalidValue(f"filling {size} bytes: give a multiple of {WORD}")
        most = self.version.max_fill
        for start in range(0, size, most):
            # ROCr's amd_blit_sdma.cpp: words less one, times 4.
            count = min(most, size - start) - WORD
            place = pair(plus(dst, start))
            self.packet("CONSTANT_FILL", *place, word, count, fillsize=_FILL_WORDS)

    def clear(self, dst: Value, size: int) -> None:
        """Fills bytes with 0, as Linux does: sdma_v6_0_emit_fill_buffer, the count less one."""
        check_address("what is cleared", dst, 1)
        for start in range(0, size, self.version.max_fill):
            count = min(self.version.max_fill, size - start)
            self.packet("CONSTANT_FILL", *pair(plus(dst, start)), 0, count - 1)

    def fence(self, address: Value, value: Value) -> None:
        """Writes 32 bits when all before it is done."""
        check_address("what a fence writes", address, WORD)
        check_word("fence's value", value)
        fields = {"mtype": _UNCACHED} if "mtype" in self.kind("FENCE").words[0].fields else {}
        self.packet("FENCE", *pair(address), low(value), **fields)

    def poll(self, address: Value, value: Value, function: int, mask: int = _ALL) -> None:
        """Goes on when ``word & mask`` compares with the value, 32 bits unsigned."""
        check_address("what is waited for", address, WORD)
        check_word("value that is waited for", value)
        last = self.kind("POLL_REGMEM").words[5]
        interval = last(interval=_POLL_INTERVAL, retry_count=_FOREVER)
        words = (*pair(address), low(value), mask, interval)
        self.packet("POLL_REGMEM", *words, func=function, mem_poll=1)

    def timestamp(self, address: Value) -> None:
        """Writes the GPU's clock, 8 bytes, when all before it is done."""
        check_address("what a timestamp writes", address, 2 * WORD)
        self.packet("TIMESTAMP_GET_GLOBAL", *pair(address))

    def trap(self, context: int) -> None:
        """Interrupts the host."""
        self.packet("TRAP", self.kind("TRAP").words[1](int_context=context))

    def write(self, address: Value, words: Sequence[int]) -> None:
        """Writes words to memory."""
        check_address("what is written", address, WORD)
        last = self.kind("WRITE_UNTILED").words[3]
        for start in range(0, len(words), _WRITE_PIECE):
            some = words[start : start + _WRITE_PIECE]
            place = pair(plus(address, WORD * start))
            self.packet("WRITE_UNTILED", *place, last(count=len(some) - 1), *some)

    def refresh(self) -> None:
        """Drops and writes back what caches hold, where the engine can tell them to."""
        if not self.version.has_gcr:
            return
        _, first, second, third, fourth = self.kind("GCR_REQ").words
        self.packet(
            "GCR_REQ",
            first(),
            second(gcr_control_15_0=_REFRESH & 0xFFFF),
            third(gcr_control_18_16=_REFRESH >> 16),
            fourth(),
        )

    def call(self, address: Value, words: int) -> None:
        """Runs packets elsewhere, then goes on behind. The call must end at a multiple of 8 words.

        Raises InvalidValue for an empty buffer or one of more than 20 bits of words.
        """
        check_address("indirect buffer", address, CALL_ALIGN)
        size = self.kind("INDIRECT").words[3]
        largest = size.field("ib_size").largest
        if not 1 <= words <= largest:
            raise InvalidValue(
                f"indirect buffer of {words} words: 1 to {largest}; bind less at once"
            )
        self.packet("INDIRECT", *pair(address), size(ib_size=words), 0, 0)


def _less_one(most: int, size: int) -> int:
    """What a copy counts. Raises InvalidValue where that would not be one packet's."""
    if not 1 <= size <= most:
        raise InvalidValue(f"copy of {size} bytes: one of a size given late has 1 to {most}")
    return size - 1
