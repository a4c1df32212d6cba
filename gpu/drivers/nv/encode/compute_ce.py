"""Compute queues that copy too: their channel also has the copy class, on a graphics copy engine.

One pushbuffer holds stretches for either engine. Between them the host engine waits until the
engine that it sent to is idle and its writes are visible, so that commands take effect in order;
each stretch of launches drops stale caches itself. Not tried on a card yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from gpu.drivers.nv.encode.compute import ComputeEncoder, CopyEncoder
from gpu.drivers.nv.encode.launch import Target
from gpu.drivers.nv.encode.pushbuf import Pushbuffer, moved
from gpu.drivers.nv.encode.semaphore import membar, wait_for_idle
from gpu.hcq.commands import Command, Copy
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.symbol import Offset, Symbol, offset, segment_address

_BETWEEN: Final = bytes(Pushbuffer().write(*wait_for_idle(), *membar()).data)


class MixedEncoder:
    """The `Encoder` of compute queues whose channel has the copy class besides its own."""

    def __init__(self, target: Target):
        self._compute = ComputeEncoder(target)
        self._copy = CopyEncoder(target)

    def encode(self, commands: Sequence[Command]) -> Encoded:
        """As `Encoder.encode`: launches and copies in any order."""
        stretches = [
            (self._copy if is_copy else self._compute).encode(list(some))
            for is_copy, some in groupby(commands, lambda command: isinstance(command, Copy))
        ]
        if len(stretches) == 1:
            return stretches[0]
        joined = _Joined()
        for stretch in stretches:
            joined.add(stretch)
        return joined.finish()

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`."""
        return self._compute.call(target, addend, size)

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`."""
        return self._compute.filler(size)


class _Joined:
    """Several encoded stretches as one: their pushbuffers in a row, all other segments behind."""

    def __init__(self) -> None:
        self._push = bytearray()
        self._segments: list[Segment] = []
        self._patches: list[Patch] = []

    def add(self, stretch: Encoded) -> None:
        """Appends a stretch, which starts when all before it is done."""
        if self._push:
            self._push += _BETWEEN
        start, by = len(self._push), len(self._segments)
        first, *others = stretch.segments
        names = {
            segment_address(index): segment_address(index + by)
            for index in range(1, len(stretch.segments))
        }
        for patch in stretch.patches:
            renamed = replace(patch, symbol=_renamed(patch.symbol, names))
            place = (patch.segment + by, 0) if patch.segment else (0, start)
            self._patches += moved([renamed], *place)
        self._push += first.data
        self._segments += others

    def finish(self) -> Encoded:
        first = Segment("pushbuf", 4, "memory", bytes(self._push))
        return Encoded((first, *self._segments), tuple(self._patches))


def _renamed(symbol: Symbol, names: Mapping[Symbol, Symbol]) -> Symbol:
    if isinstance(symbol, Offset):
        return offset(_renamed(symbol.base, names), symbol.addend)
    return names.get(symbol, symbol)
