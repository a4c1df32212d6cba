"""Commands as packets of the copy engine: the encoder of copy queues.

What the engine does may overlap, so that a copy of what another one writes needs a fence between
them, which is done when all before it is. (The kernel polls the fence besides, in its
`emit_pipeline_sync`; whether a fence alone stops what follows is not documented.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.encode.pm4 import write_pieces
from gpu.drivers.am.encode.sdma_builder import CALL_ALIGN, FUNCTIONS, SdmaBuilder
from gpu.drivers.am.target import Target, Wake
from gpu.drivers.dwords import WORD
from gpu.hcq import commands as hcq
from gpu.hcq.encoder import Encoded, Segment
from gpu.hcq.registers import ReadRegister, WriteRegister, no_registers
from gpu.hcq.signal import OWN_TIMELINE
from gpu.hcq.symbol import Symbol, Value, offset, plus, segment_address

RING_ALIGN: Final = CALL_ALIGN
"""Bytes that all that is published is a multiple of: calls must end at one of them.

Kernel: sdma_v5_0_ring_emit_ib, "IB packet must end on a 8 DW boundary".
"""
_CALL_WORDS: Final = 6


class _Hazards:
    """What has been read and written since the last fence."""

    def __init__(self) -> None:
        self._reads: list[tuple[Value, Value]] = []
        self._writes: list[tuple[Value, Value]] = []

    def clear(self) -> None:
        self._reads, self._writes = [], []

    def add(self, dst: Value, src: Value | None, size: Value) -> bool:
        """Remembers a command; whether it has to wait for those before."""
        reads = [] if src is None else [(src, size)]
        others = (*self._reads, *self._writes)
        waits = _overlap([(dst, size)], others) or _overlap(reads, self._writes)
        if waits:
            self.clear()
        self._writes.append((dst, size))
        self._reads += reads
        return waits


def _overlap(ours: Sequence[tuple[Value, Value]], others: Sequence[tuple[Value, Value]]) -> bool:
    """Whether ranges may overlap; what is a symbol may be anywhere."""
    for start, size in ours:
        for other, other_size in others:
            known = isinstance(start, int) and isinstance(size, int)
            if not known or not isinstance(other, int) or not isinstance(other_size, int):
                return True
            assert isinstance(start, int) and isinstance(size, int)
            if start < other + other_size and other < start + size:
                return True
    return False


class _Submission:
    """The packets of one submission in the making."""

    def __init__(self, target: Target, wake: Wake | None):
        self.push = SdmaBuilder(target.sdma)
        self._target = target
        self._wake = wake
        self._hazards = _Hazards()
        self._fenced = False

    def command(self, command: hcq.Command) -> None:
        """Any command but launches, which are Unsupported."""
        push = self.push
        match command:
            case hcq.Copy(dst, src, size):
                self._order(dst, src, size)
                push.copy(dst, src, size)
            case hcq.WriteMem(address, data):
                self._order(address, None, len(data))
                for start, words in write_pieces(data).items():
                    push.write(plus(address, start), words)
            case hcq.Signal(signal, value):
                self._signal(signal, value)
            case hcq.Timestamp(signal):
                push.timestamp(plus(signal.address, hcq.TIMESTAMP))
            case hcq.Wait(signal, value):
                push.poll(signal.address, value, FUNCTIONS[">="])
            case hcq.PollMem(address, value, mask, op):
                push.poll(address, value, FUNCTIONS[op], mask)
            case hcq.Barrier():
                push.refresh()
            case WriteRegister() | ReadRegister():
                raise no_registers(command, "a copy queue")
            case hcq.Launch(program):
                raise Unsupported(f"{program.name} on a copy queue: give it to a compute queue")

    def _order(self, dst: Value, src: Value | None, size: Value) -> None:
        """Lets a command that needs it wait for those before."""
        if self._hazards.add(dst, src, size):
            self.push.fence(segment_address(1), 0)
            self._fenced = True

    def _signal(self, signal: hcq.HasAddress, value: Value) -> None:
        self.push.fence(signal.address, value)
        self._hazards.clear()
        if self._wake is not None and signal is OWN_TIMELINE:
            self.push.fence(self._wake.slot, self._wake.event)
            self.push.trap(self._wake.event)

    def finish(self) -> Encoded:
        """The words, filled up to what the ring wants; and a word that fences write."""
        self.push.nop(-len(self.push) % (RING_ALIGN // WORD))
        first = Segment("ring", CALL_ALIGN, "ring", self.push.data)
        fenced = [Segment("ib", WORD, "memory", bytes(WORD))] if self._fenced else []
        return Encoded((first, *fenced), tuple(self.push.patches))


class SdmaEncoder:
    """The `Encoder` of copy queues. All that it gives has a multiple of `RING_ALIGN` bytes.

    ``wake`` wakes the host after the queue's own timeline was written. Raises Unsupported for a
    version of the engine that is not known.
    """

    def __init__(self, target: Target, wake: Wake | None = None):
        SdmaBuilder(target.sdma)
        self.target = target
        self.wake = wake

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`. Launches are Unsupported: compute queues do them."""
        submission = _Submission(self.target, self.wake)
        for command in commands:
            submission.command(command)
        return submission.finish()

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`: an INDIRECT packet that ends where it must."""
        if size % WORD:
            raise InvalidValue(f"indirect buffer of {size} bytes: give a multiple of {WORD}")
        push = SdmaBuilder(self.target.sdma)
        push.nop(RING_ALIGN // WORD - _CALL_WORDS)
        push.call(offset(target, addend), size // WORD)
        return Encoded((Segment("ring", CALL_ALIGN, "ring", push.data),), tuple(push.patches))

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`: NOP packets."""
        if size % WORD:
            raise InvalidValue(f"filler of {size} bytes: give a multiple of {WORD}")
        push = SdmaBuilder(self.target.sdma)
        push.nop(size // WORD)
        return push.data
