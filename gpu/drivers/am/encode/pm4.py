"""PM4 packets, built one after the other.

    push = Pm4Builder(target)
    push.acquire(Caches.ALL)
    push.set_registers("COMPUTE_PGM_LO", *pair(code, 8))
    push.dispatch((4, 1, 1), wave32=True)
    push.release(signal, 3)
    push.data, push.patches

Numbers may be symbols. What the packets mean is in `encode/pm4_packets.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.core.regs import Register
from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode import pm4_packets as pm4
from gpu.drivers.am.target import Generation, Target
from gpu.drivers.dwords import WORD, Word, WordList, check_address, check_word, low, pair
from gpu.hcq.symbol import Value

_ALL: Final = 0xFFFF_FFFF
_POLL_INTERVAL: Final = 4
_COHERENCE_INTERVAL: Final = 0xA  # as amdgpu has it
_WRITE_PIECE: Final = 0x3F00  # words of one WRITE_DATA
MAX_BUFFER_WORDS: Final = 0xF_FFFF


class Caches(Enum):
    """What has to be done to caches before something reads."""

    UNITS = "units"
    """Drop what the units hold: for what an earlier launch of the queue wrote."""
    ALL = "all"
    """Drop all, L2 and instructions too: for what the host or another engine wrote."""


class Pm4Builder(WordList):
    """Packets of a compute queue."""

    def __init__(self, target: Target):
        super().__init__()
        self._generation = target.generation
        self._packets = packets_of(self._generation)
        self._dies = target.xccs

    def packet(self, kind: pm4.Packet, *words: Word | Register, compute: bool = False) -> None:
        """Any packet; ``compute`` marks it as one for compute shaders."""
        least = len(kind.words)
        fits = least <= len(words) <= pm4.MAX_BODY if kind.repeats else len(words) == least
        assert fits, f"{kind.name} with {len(words)} words"
        header = fields.Header(
            SHADER_TYPE=int(compute), OPCODE=kind.opcode, COUNT=len(words) - 1, TYPE=pm4.TYPE
        )
        self.words.append(header.value)
        self.append(word.value if isinstance(word, Register) else word for word in words)

    @contextmanager
    def once(self) -> Iterator[None]:
        """What the block adds the first XCC alone carries out, where a queue runs on several.

        Packets but launches are carried out by each of them, which tinygrad's ops_amd.py heeds in
        the same way.
        """
        if self._dies == 1:
            yield
            return
        self.packet(pm4.PRED_EXEC, fields.PredicateControl(XCC_MASK=1))
        at = len(self.words) - 1
        yield
        count = len(self.words) - at - 1
        self.words[at] = fields.PredicateControl(XCC_MASK=1, COUNT=count).value

    def nop(self, words: int) -> None:
        """Does nothing for a number of words, the header included."""
        while words:
            some = min(words, pm4.MAX_BODY)
            if some == 1:
                self.words.append(pm4.SINGLE_NOP)
            else:
                self.packet(pm4.NOP, *[0] * (some - 1))
            words -= some

    def set_registers(self, first: str, *values: Word) -> None:
        """Writes compute registers from ``first`` on."""
        offset = self._packets.number(first) - pm4.SH_REGISTERS[0]
        self.packet(pm4.SET_SH_REG, fields.RegisterStart(OFFSET=offset), *values)

    def dispatch(self, groups: Sequence[Value], *, wave32: bool) -> None:
        """Starts so many groups of what the registers describe. Nothing waits for them."""
        for size in groups:
            check_word("number of groups", size)
        bits = {"COMPUTE_SHADER_EN": 1, "FORCE_START_AT_000": 1}
        if wave32:
            bits["CS_W32_EN"] = 1
        initiator = self._packets.initiator(**bits)
        sizes = [low(size) for size in groups]
        self.packet(self._packets.dispatch_direct, *sizes, initiator, compute=True)

    def wait_for_shaders(self) -> None:
        """Goes on when all that was dispatched is done."""
        event = fields.EventControl(
            TYPE=fields.Event.CS_PARTIAL_FLUSH, INDEX=fields.EventIndex.PARTIAL_FLUSH
        )
        self.packet(pm4.EVENT_WRITE, event)

    def acquire(self, caches: Caches) -> None:
        """What starts after it reads memory anew."""
        coherence, control = _acquire_controls(self._generation, caches)
        interval = fields.WaitInterval(INTERVAL=_COHERENCE_INTERVAL)
        everything = (_ALL, fields.SizeHigh(SIZE_HI=0xFF_FFFF), 0, 0)
        tail = () if control is None else (control,)
        self.packet(self._packets.acquire_mem, coherence, *everything, interval, *tail)

    def release(
        self,
        address: Value,
        value: Value = 0,
        *,
        data: fields.DataSel = fields.DataSel.LOW_32,
        interrupt: int | None = None,
        flush: bool = True,
    ) -> None:
        """Writes when all before it is done, and with ``flush`` visible to everybody.

        ``data`` is what is written: the value, or a clock. ``interrupt`` is what an interrupt
        carries that follows; by default there is none.
        """
        align = WORD if data is fields.DataSel.LOW_32 else 2 * WORD
        check_address("what a release writes", address, align)
        words = pair(value)
        if data is fields.DataSel.LOW_32:
            check_word("released value", value)
            words = (low(value), 0)
        tells = (
            fields.IntSel.NOTHING if interrupt is None else fields.IntSel.INTERRUPT_AFTER_CONFIRM
        )
        select = fields.ReleaseSelect(DATA_SEL=data, INT_SEL=tells)
        event = _release_event(self._generation, flush)
        self.packet(
            self._packets.release_mem, event, select, *pair(address), *words, interrupt or 0
        )

    def wait_memory(
        self, address: Value, value: Value, function: fields.Function, mask: int = _ALL
    ) -> None:
        """Goes on when ``word & mask`` compares with the value, 32 bits unsigned."""
        check_address("what is waited for", address, WORD)
        check_word("value that is waited for", value)
        check_word("mask of a wait", mask)
        control = fields.WaitControl(FUNCTION=function, SPACE=fields.Space.MEMORY)
        interval = fields.WaitInterval(INTERVAL=_POLL_INTERVAL)
        self.packet(pm4.WAIT_REG_MEM, control, *pair(address), low(value), mask, interval)

    def write_data(self, address: Value, words: Sequence[int]) -> None:
        """Writes words to memory; goes on when they are there."""
        check_address("what is written", address, WORD)
        control = fields.WriteControl(DST_SEL=fields.WriteDestination.MEMORY, CONFIRM=1)
        self.packet(pm4.WRITE_DATA, control, *pair(address), *words)

    def copy_data(
        self, destination: Value, source: Value, *, from_: fields.CopySource, all_64: bool = True
    ) -> None:
        """Copies 4 or 8 bytes to L2: from there, an immediate, the clock (0), a counter."""
        align = 2 * WORD if all_64 else WORD
        check_address("what is copied to", destination, align)
        if from_ in (fields.CopySource.L2, fields.CopySource.MEMORY):
            check_address("what is copied", source, align)
        control = fields.CopyControl(
            SRC_SEL=from_, DST_SEL=fields.CopyDestination.L2, ALL_64=int(all_64), CONFIRM=1
        )
        self.packet(pm4.COPY_DATA, control, *pair(source), *pair(destination))

    def call(self, address: Value, words: int) -> None:
        """Runs packets elsewhere, then goes on behind.

        Raises InvalidValue for an empty buffer or one of more than 20 bits of words.
        """
        check_address("indirect buffer", address, WORD)
        if not 1 <= words <= MAX_BUFFER_WORDS:
            raise InvalidValue(
                f"indirect buffer of {words} words: 1 to {MAX_BUFFER_WORDS}; bind less at once"
            )
        control = fields.BufferControl(SIZE=words, VALID=1)
        self.packet(pm4.INDIRECT_BUFFER, *pair(address), control)


def write_pieces(data: bytes) -> Mapping[int, Sequence[int]]:
    """Bytes as words, by the offset of where each WRITE_DATA of them begins.

    Raises InvalidValue for no bytes, and for a number of them that is no multiple of 4.
    """
    if not data or len(data) % WORD:
        raise InvalidValue(f"writing {len(data)} bytes: give a positive multiple of {WORD}")
    words = struct.unpack(f"<{len(data) // WORD}I", data)
    return {
        WORD * start: words[start : start + _WRITE_PIECE]
        for start in range(0, len(words), _WRITE_PIECE)
    }


@cache
def packets_of(generation: Generation) -> pm4.Packets:
    """The packets of a generation."""
    return pm4.Packets(generation)


@cache
def _acquire_controls(
    generation: Generation, caches: Caches
) -> tuple[fields.CoherenceControl, fields.CacheControl | None]:
    """As gfx_v9_0.c and gfx_v11_0.c synchronise memory, or the part that units need."""
    everything = caches is Caches.ALL
    if not generation.has_gcr:
        units = {"SH_KCACHE_ACTION": 1, "TCL1_ACTION": 1}
        rest = {"SH_ICACHE_ACTION": 1, "TC_ACTION": 1, "TC_WB_ACTION": 1}
        return fields.CoherenceControl(**units, **(rest if everything else {})), None
    # gfx_v12_0.c names caches that GFX12 is said not to have, as gfx_v11_0.c does.
    bits = {"GLK_INV": 1, "GLV_INV": 1, "GL1_INV": 1}
    if everything:
        bits |= {"GLI_INV": 1, "GL2_INV": 1, "GL2_WB": 1, "GLM_INV": 1, "GLM_WB": 1}
    return fields.CoherenceControl(), fields.CacheControl(**bits)


@cache
def _release_event(generation: Generation, flush: bool) -> fields.EventControl:
    """As gfx_v9_4_3.c, gfx_v11_0.c and gfx_v12_0.c write fences."""
    bits: dict[str, int] = {
        "TYPE": fields.Event.CACHE_FLUSH_AND_INV_TS,
        "INDEX": fields.EventIndex.END_OF_PIPE,
    }
    if not generation.has_gcr:
        if flush:
            bits |= {"TCL1_ACTION": 1, "TC_ACTION": 1, "TC_WB_ACTION": 1, "TC_MD_ACTION": 1}
        return fields.ReleaseEventGfx9(**bits)
    if flush:
        bits |= {"GL2_WB": 1, "SEQ": 1, "CACHE_POLICY": 3}
    if flush and generation.has_glm:
        bits |= {"GLM_WB": 1, "GLM_INV": 1}
    return fields.ReleaseEvent(**bits)
