"""What a dispatch of a kernel is."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.sim.metal.programs import ComputePipelineState
from gpu.sim.metal.resources import Buffer

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Bound:
    """What an index of the argument table has: a buffer from an offset on, or bytes."""

    buffer: Buffer | None
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True)
class Dispatch:
    """A kernel with all that it is given.

    Attributes:
        threads: of the grid; threadgroup: of a threadgroup.
        local: bytes of each piece of threadgroup memory that the pass sets.
        declared: resources that it may reach though they are not bound.
    """

    pipeline: ComputePipelineState
    threads: Three
    threadgroup: Three
    bound: dict[int, Bound]
    local: dict[int, int]
    declared: tuple[Buffer, ...]
