"""Barriers of a block: who waits, and when all have come. "PTX ISA", section 9.7.13.1, BAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.sim.isa import layout
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.ptx.warps import Warp

_MOST: Final = 16


def arrive(warps: Sequence[Warp], arrived: dict[int, int], warp: Warp, count: int) -> bool:
    """A warp has come to a barrier; False for a barrier that cannot be.

    `arrived` counts the threads that have come to each barrier with a number of threads; there are
    `count` barriers. A block of a single warp needs none: ptxas leaves them out where it knows.
    """
    if len(warps) == 1:
        count = _MOST
    number, threads = warp.word(layout.BARRIER_ID), warp.word(layout.BARRIER_THREADS)
    kind = warp.word(layout.BARRIER_KIND)
    if number >= count or threads % layout.LANES or (kind == wave.ARRIVE and not threads):
        return False
    if kind != wave.ARRIVE:
        warp.barrier = number
    if threads:
        arrived[number] = arrived.get(number, 0) + layout.LANES
        if arrived[number] >= threads:
            arrived[number] = 0
            _release([each for each in warps if each.barrier == number])
    else:
        release_ended(warps)
    return True


def release_ended(warps: Sequence[Warp]) -> None:
    """Opens a barrier at which all warps wait that have not ended."""
    left = [warp for warp in warps if not warp.done]
    if not left or left[0].barrier is None:
        return
    number = left[0].barrier
    if all(w.barrier == number and not w.word(layout.BARRIER_THREADS) for w in left):
        _release(left)


def _release(warps: Sequence[Warp]) -> None:
    votes = [warp.word(wave.BARRIER_VALUE) for warp in warps]
    for warp in warps:
        warp.barrier = None
        kind, place = warp.word(layout.BARRIER_KIND), warp.word(wave.BARRIER_TARGET)
        if kind == wave.RED_POPC:
            warp.fill(place, sum(vote.bit_count() for vote in votes))
        elif kind == wave.RED_OR:
            warp.fill(place, 0xFFFFFFFF if any(votes) else 0)
        elif kind == wave.RED_AND:
            alive = [each.word(wave.ALIVE) for each in warps]
            every = all(v & a == a for v, a in zip(votes, alive, strict=True))
            warp.fill(place, 0xFFFFFFFF if every else 0)
