"""Barriers of a block. "PTX ISA", section 9.7.13.1, BAR."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.sim.isa import layout
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.waves import Wave


def has_come(warp: Wave, count: int) -> bool:
    """Whether the barrier that a warp has come to is one of the `count` that its block has."""
    threads, kind = warp.word(layout.BARRIER_THREADS), warp.word(layout.BARRIER_KIND)
    is_whole = not threads % wave.LANES and (threads or kind != wave.ARRIVE)
    return bool(is_whole and warp.word(layout.BARRIER_ID) < count)


def all_at_one(warps: Sequence[Wave]) -> bool:
    """Whether warps that wait do so at one barrier, which is for all threads."""
    number = warps[0].word(layout.BARRIER_ID)
    return all(
        each.word(layout.BARRIER_ID) == number and not each.word(layout.BARRIER_THREADS)
        for each in warps
    )


def result_of(warp: Wave, warps: Sequence[Wave]) -> int | None:
    """What a reducing barrier gives a warp of those that meet at it; None for others."""
    kind = warp.word(layout.BARRIER_KIND)
    votes = [(each.word(wave.BARRIER_VALUE), each.word(wave.ALIVE)) for each in warps]
    if kind == wave.RED_POPC:
        return sum(vote.bit_count() for vote, _ in votes)
    if kind == wave.RED_OR:
        return 0xFFFFFFFF * any(vote for vote, _ in votes)
    if kind == wave.RED_AND:
        return 0xFFFFFFFF * all(vote & alive == alive for vote, alive in votes)
    return None
