"""An encoder with packets like those of an AMD compute queue, to measure host cost with.

A launch is 80 dwords: cache invalidation, program, resources, scratch, arguments, sizes, dispatch,
and flush. Nothing runs it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gpu.hcq import commands as hcq
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.symbol import Symbol, Value, segment_address

_NOP, _CALL = 0x10, 0x3F
_LOW = 0xFFFF_FFFF


class _Packets:
    def __init__(self) -> None:
        self.words: list[int] = []
        self.patches: list[Patch] = []
        self.segments: list[Segment] = []

    def packet(self, opcode: int, *body: int) -> None:
        self.words += [3 << 30 | (len(body) - 1) << 16 | opcode << 8, *body]

    def low(self, value: Value, addend: int = 0) -> int:
        return self._part(value, 0, addend)

    def _part(self, value: Value, shift: int, at: int) -> int:
        if isinstance(value, Symbol):
            offset = 4 * (len(self.words) + at)
            self.patches.append(Patch(0, offset, 4, shift, _LOW, value))
            return 0
        return value >> shift & _LOW

    def pair(self, value: Value, at: int) -> tuple[int, int]:
        """Low and high dword of a value that begins `at` dwords behind the packet's header."""
        return self._part(value, 0, at), self._part(value, 32, at + 1)


class ToyEncoder:
    """Launches, copies, signals, waits and timestamps; more is not measured."""

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        out = _Packets()
        for command in commands:
            match command:
                case hcq.Launch():
                    self._launch(out, command)
                case hcq.Copy(dst, src, size):
                    out.packet(0x50, 0, *out.pair(src, 2), *out.pair(dst, 4), out.low(size, 6))
                case hcq.Signal(signal, value):
                    address, payload = out.pair(signal.address, 3), out.pair(value, 5)
                    out.packet(0x49, 0x14, 0x40, *address, *payload, 0)
                case hcq.Wait(signal, value):
                    address = out.pair(signal.address, 2)
                    out.packet(0x3C, 0x15, *address, out.low(value, 4), _LOW, 4)
                case hcq.Timestamp(signal):
                    out.packet(0x49, 0x14, 0x60, *out.pair(signal.address, 3), 0, 0, 0)
                case _:
                    out.packet(0x58, *[0] * 7)
        words = struct.pack(f"<{len(out.words)}I", *out.words)
        return Encoded((Segment("ring", 4, "ring", words), *out.segments), tuple(out.patches))

    def _launch(self, out: _Packets, launch: hcq.Launch) -> None:
        index = 1 + len(out.segments)
        out.segments.append(Segment("kernarg", 64, "memory", launch.args.data))
        for patch in launch.args.patches:
            mask = (1 << 8 * patch.width) - 1
            out.patches.append(Patch(index, patch.offset, patch.width, 0, mask, patch.symbol))
        start = len(out.words)
        out.packet(0x58, 0, _LOW, 0xFF, 0, 0, 0xA, 0x1234)
        out.packet(0x76, 0x20C, 0x1234, 0)
        out.packet(0x76, 0x212, 0xABCD, 0x40)
        out.packet(0x76, 0x218, 0)
        out.packet(0x76, 0x240, *out.pair(segment_address(index), 2), *[0] * 6)
        out.packet(0x76, 0x207, 0, 0, 0, *launch.block, 0, 0)
        grid = [out.low(size, 1 + axis) for axis, size in enumerate(launch.grid)]
        out.packet(0x15, *grid, 0x8005)
        out.packet(0x46, 0x407)
        used = len(out.words) - start
        out.packet(_NOP, *[0] * (80 - used - 1))

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        words = struct.pack("<4I", 3 << 30 | 2 << 16 | _CALL << 8, 0, 0, size // 4 | 1 << 23)
        patches = [Patch(0, 4 + 4 * i, 4, 32 * i, _LOW, target, addend) for i in (0, 1)]
        return Encoded((Segment("ring", 4, "ring", words),), tuple(patches))

    def filler(self, size: int) -> bytes:
        count = size // 4
        header = 0xFFFF_1000 if count == 1 else 3 << 30 | (count - 2) << 16 | _NOP << 8
        return struct.pack("<I", header).ljust(size, b"\0")
