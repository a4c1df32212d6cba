"""The commands of the host device as words in memory: its encoder, and reading them back.

A record is 8-byte words: opcode | number of words << 8, then operands. Everything a real encoder
does is done here too: records in the ring, arguments in segments of their own, calls, patches.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, assert_never

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.hcq import commands as hcq
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.registers import ReadRegister, WriteRegister, no_registers
from gpu.hcq.symbol import Symbol, Value, segment_address

WORD: Final = 8
_ALL: Final = (1 << 64) - 1


class Op(enum.IntEnum):
    """What a record asks for."""

    NOP = 1
    CALL = 2
    LAUNCH = 3
    COPY = 4
    SIGNAL = 5
    WAIT = 6
    BARRIER = 7
    TIMESTAMP = 8
    WRITE = 9
    POLL = 10


COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": int.__eq__,
    "!=": int.__ne__,
    "<": int.__lt__,
    "<=": int.__le__,
    ">=": int.__ge__,
    ">": int.__gt__,
}
_COMPARISON_NAMES: Final = tuple(COMPARISONS)


class HostKernel(NamedTuple):
    """A program of the host device, the ``info`` of its `HCQProgram`.

    ``run(memory, grid, block, *arguments)`` computes it; arguments are addresses and numbers.
    ``number`` is what records call it by.
    """

    number: int
    run: Callable[..., None]
    layout: ArgumentLayout


class Record(NamedTuple):
    """One command as the device reads it, and the bytes that followed it where it has any."""

    op: Op
    operands: tuple[int, ...]


class _Writer:
    """The words of one segment, and the patches of operands that are symbols."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.patches: list[Patch] = []
        self.segments: list[Segment] = []

    def record(self, op: Op, *operands: Value) -> None:
        """Append a record."""
        self._word(op | (1 + len(operands)) << 8)
        for operand in operands:
            if isinstance(operand, Symbol):
                self.patches.append(Patch(0, len(self.data), 8, 0, _ALL, operand))
                self._word(0)
            else:
                self._word(operand)

    def _word(self, value: int) -> None:
        self.data += (value & _ALL).to_bytes(WORD, "little")

    def arguments(self, launch: hcq.Launch[HostKernel]) -> Symbol:
        """Put the arguments of a launch into a segment; the symbol of its address."""
        index = 1 + len(self.segments)
        args = launch.args
        self.segments.append(Segment("kernarg", 64, "memory", args.data))
        for patch in args.patches:
            mask = (1 << 8 * patch.width) - 1
            self.patches.append(Patch(index, patch.offset, patch.width, 0, mask, patch.symbol))
        return segment_address(index)


class HostEncoder:
    """The `Encoder` of the host device."""

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`; all queues of the host device run all commands."""
        writer = _Writer()
        for command in commands:
            _encode(writer, command)
        records = Segment("ring", WORD, "ring", bytes(writer.data))
        return Encoded((records, *writer.segments), tuple(writer.patches))

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`."""
        writer = _Writer()
        writer.record(Op.CALL, target, size)
        (patch,) = writer.patches
        patch = Patch(0, patch.offset, 8, 0, _ALL, target, addend)
        return Encoded((Segment("ring", WORD, "ring", bytes(writer.data)),), (patch,))

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`: one record over all of it."""
        return struct.pack("<Q", Op.NOP | size // WORD << 8).ljust(size, b"\0")


def _encode(writer: _Writer, command: hcq.Command) -> None:
    match command:
        case hcq.Launch(program, _, grid, block):
            kernel: HostKernel = program.info
            arguments = writer.arguments(command)
            writer.record(Op.LAUNCH, kernel.number, arguments, *grid, *block)
        case hcq.Copy(dst, src, size):
            writer.record(Op.COPY, dst, src, size)
        case hcq.Signal(signal, value):
            writer.record(Op.SIGNAL, signal.address, value)
        case hcq.Wait(signal, value):
            writer.record(Op.WAIT, signal.address, value)
        case hcq.Timestamp(signal):
            writer.record(Op.TIMESTAMP, signal.address)
        case hcq.Barrier():
            writer.record(Op.BARRIER)
        case hcq.WriteMem(address, data):
            if not data or len(data) % 4:
                raise InvalidValue(f"writing {len(data)} bytes: give a positive multiple of 4")
            padded = data.ljust(align_up(len(data), WORD), b"\0")
            words = struct.unpack(f"<{len(padded) // WORD}Q", padded)
            writer.record(Op.WRITE, address, len(data), *words)
        case hcq.PollMem(address, value, mask, op):
            writer.record(Op.POLL, address, value, mask, _COMPARISON_NAMES.index(op))
        case WriteRegister() | ReadRegister():
            raise no_registers(command, "the host's queue")
        case _:
            assert_never(command)


def decode(data: bytes) -> list[Record]:
    """The records of some words. Raises `InvalidValue` for what is no record."""
    words = struct.unpack(f"<{len(data) // WORD}Q", data)
    records = []
    at = 0
    while at < len(words):
        head = words[at]
        size = head >> 8
        if head & 0xFF not in Op.__members__.values() or not 0 < size <= len(words) - at:
            raise InvalidValue(f"word {head:#x} at {at * WORD:#x} begins no record")
        records.append(Record(Op(head & 0xFF), words[at + 1 : at + size]))
        at += size
    return records


def compares(index: int, left: int, right: int) -> bool:
    """The comparison of a `Op.POLL` record."""
    return COMPARISONS[_COMPARISON_NAMES[index]](left, right)
