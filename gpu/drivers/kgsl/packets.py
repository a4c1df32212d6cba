"""Packets of Adreno's command processor, built one after the other; numbers may be symbols.

    push = Packets()
    push.write(state.SP_CS_INSTRLEN(VALUE=2))
    push.exec((4, 1, 1))
    push.wait_for_idle()
    push.signal(address, 3)
    push.data, push.patches

Sources: Mesa's `adreno_pm4.xml` for what words there are; turnip and Qualcomm's kgsl for how they
are used, named where it is not plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.core.regs import Register, field
from gpu.drivers.dwords import WORD, Word, WordList, check_address, check_word, low, pair
from gpu.drivers.kgsl.pm4 import COMMAND, REGISTER_WRITE, Header
from gpu.drivers.kgsl.state import StateRegister
from gpu.hcq.symbol import Value

MAX_BODY: Final = 0x3FFF
"""Words behind the header of a command."""
MAX_BUFFER_WORDS: Final = 0xF_FFFF
"""Words of an indirect buffer: 20 bits, which KGSL checks too (adreno_dispatch.c)."""
_ALL: Final = 0xFFFF_FFFF
_CACHE_FLUSH_TS: Final = 4
_CACHE_INVALIDATE: Final = 49
_LABEL: Final = 63
_POLL_CYCLES: Final = 16  # as freedreno's computerator has it
_CP_ALWAYS_ON_COUNTER: Final = 0x980


class Op(IntEnum):
    """Commands (`adreno_pm4.xml`)."""

    NOP = 0x10
    WAIT_MEM_WRITES = 0x12
    WAIT_FOR_IDLE = 0x26
    EXEC_CS = 0x33
    LOAD_STATE6_FRAG = 0x34
    WAIT_REG_MEM = 0x3C
    MEM_WRITE = 0x3D
    REG_TO_MEM = 0x3E
    INDIRECT_BUFFER = 0x3F
    EVENT_WRITE = 0x46
    SET_MARKER = 0x65


class Function(IntEnum):
    """How a word that is polled compares with the reference, unsigned."""

    LESS = 1
    LESS_EQUAL = 2
    EQUAL = 3
    NOT_EQUAL = 4
    GREATER_EQUAL = 5
    GREATER = 6


class StateType(IntEnum):
    """What LOAD_STATE6 loads."""

    SHADER = 0
    CONSTANTS = 1


class StateSource(IntEnum):
    """Where LOAD_STATE6 takes it from."""

    DIRECT = 0
    INDIRECT = 2


class _WaitControl(Register):
    FUNCTION = field(2, 0, enum=Function)
    POLL_MEMORY = field(5, 4)


class _LoadState(Register):
    DST_OFF = field(13, 0, doc="in units: 16 bytes of constants, 128 of code")
    STATE_TYPE = field(15, 14, enum=StateType)
    STATE_SRC = field(17, 16, enum=StateSource)
    STATE_BLOCK = field(21, 18)
    NUM_UNIT = field(31, 22)


class _RegToMem(Register):
    REG = field(17, 0)
    CNT = field(29, 18)
    WIDE = field(30, doc="64B")


_CS_SHADER: Final = 13  # state block
_RM6_COMPUTE: Final = 8


class Packets(WordList):
    """Packets of one submission."""

    def command(self, op: Op, *words: Word) -> None:
        """Any command."""
        assert len(words) <= MAX_BODY, f"{op.name} with {len(words)} words"
        self.words.append(Header(COMMAND, op, len(words)).word)
        self.append(words)

    def write(self, first: StateRegister, *others: StateRegister | Word) -> None:
        """Writes registers that follow each other; those without fields are given as words."""
        self.write_at(type(first).OFFSET, first.value, *map(_word, others))

    def write_at(self, offset: int, *words: Word) -> None:
        """Writes registers from an offset in dwords on."""
        self.words.append(Header(REGISTER_WRITE, offset, len(words)).word)
        self.append(words)

    def nop(self, words: int) -> None:
        """Does nothing for a number of words, headers included."""
        while words:
            some = min(words, 1 + MAX_BODY)
            self.command(Op.NOP, *[0] * (some - 1))
            words -= some

    def wait_for_idle(self) -> None:
        """Goes on when all that was started is done."""
        self.command(Op.WAIT_FOR_IDLE)

    def wait_for_writes(self) -> None:
        """Goes on when what the command processor wrote itself is in memory."""
        self.command(Op.WAIT_MEM_WRITES)

    def invalidate(self) -> None:
        """Has caches forget what they hold, once all before it is done."""
        self.command(Op.EVENT_WRITE, _CACHE_INVALIDATE)
        self.wait_for_idle()

    def label(self) -> None:
        """An event that does nothing but to change over to another set of registers."""
        self.command(Op.EVENT_WRITE, _LABEL)

    def signal(self, address: Value, value: Value) -> None:
        """Writes 32 bits when all before it is done and caches have written back."""
        check_address("a signal", address, WORD)
        check_word("value of a signal", value)
        self.wait_for_idle()
        self.command(Op.EVENT_WRITE, _CACHE_FLUSH_TS, *pair(address), low(value))

    def wait_memory(
        self, address: Value, value: Value, function: Function, mask: int = _ALL
    ) -> None:
        """Goes on when ``word & mask`` compares with the value."""
        check_address("what is waited for", address, WORD)
        check_word("value that is waited for", value)
        check_word("mask of a wait", mask)
        control = _WaitControl(FUNCTION=function, POLL_MEMORY=1)
        self.command(
            *(Op.WAIT_REG_MEM, control.value, *pair(address), low(value), mask, _POLL_CYCLES)
        )

    def write_memory(self, address: Value, words: Sequence[int]) -> None:
        """Writes words to memory, behind what was started before, and not through caches."""
        check_address("what is written", address, WORD)
        self.command(Op.MEM_WRITE, *pair(address), *words)

    def timestamp(self, address: Value) -> None:
        """Writes the 64 bits of the clock that always runs (turnip's timestamp queries)."""
        check_address("a timestamp", address, 2 * WORD)
        control = _RegToMem(REG=_CP_ALWAYS_ON_COUNTER, CNT=2, WIDE=1)
        self.command(Op.REG_TO_MEM, control.value, *pair(address))

    def load_code(self, address: Value, units: int) -> None:
        """Loads code into the instruction cache, by units of 128 bytes."""
        self._load(StateType.SHADER, StateSource.INDIRECT, 0, units, *pair(address))

    def load_constants(self, address: Value, units: int) -> None:
        """Loads constants of 16 bytes from memory, from constant 0 on."""
        self._load(StateType.CONSTANTS, StateSource.INDIRECT, 0, units, *pair(address))

    def put_constants(self, first: int, words: Sequence[int]) -> None:
        """Loads constants that are here in the packet, from one on; 4 words each."""
        self._load(StateType.CONSTANTS, StateSource.DIRECT, first, len(words) // 4, 0, 0, *words)

    def _load(
        self, kind: StateType, source: StateSource, first: int, units: int, *words: Word
    ) -> None:
        state = _LoadState(
            DST_OFF=first,
            STATE_TYPE=kind,
            STATE_SRC=source,
            STATE_BLOCK=_CS_SHADER,
            NUM_UNIT=units,
        )
        self.command(Op.LOAD_STATE6_FRAG, state.value, *words)

    def mark_compute(self) -> None:
        """Says that compute follows."""
        self.command(Op.SET_MARKER, _RM6_COMPUTE)

    def exec(self, groups: Sequence[Value]) -> None:
        """Starts so many groups of what the registers describe. Nothing waits for them."""
        for size in groups:
            check_word("number of groups", size)
        self.command(Op.EXEC_CS, 0, *(low(size) for size in groups))

    def call(self, address: Value, words: int) -> None:
        """Runs packets elsewhere, then goes on behind.

        Raises InvalidValue for an empty buffer or one of more than 20 bits of words.
        """
        check_address("indirect buffer", address, WORD)
        if not 1 <= words <= MAX_BUFFER_WORDS:
            raise InvalidValue(
                f"indirect buffer of {words} words: 1 to {MAX_BUFFER_WORDS}; bind less at once"
            )
        self.command(Op.INDIRECT_BUFFER, *pair(address), words)


def _word(each: StateRegister | Word) -> Word:
    return each.value if isinstance(each, Register) else each


def commands_of(words: Sequence[int]) -> Iterator[tuple[Header, Sequence[int]]]:
    """Headers and words of packets, up to the first that is cut off or is none."""
    at = 0
    while at < len(words):
        header = Header.parse(words[at])
        if header is None or at + 1 + header.words > len(words):
            return
        at += 1 + header.words
        yield header, words[at - header.words : at]
