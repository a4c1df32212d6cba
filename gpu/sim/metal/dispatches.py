"""What a dispatch of a kernel is, and what stands between several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gpu.sim.metal.chips import BUFFERS, THREADGROUP_ALIGN, THREADGROUP_BYTES
from gpu.sim.metal.methods import Misuse, Size
from gpu.sim.metal.programs import ComputePipelineState
from gpu.sim.metal.resources import Buffer
from gpu.sim.metal.source import Parameter

_MOST_GRID: Final = 1 << 32

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

    @property
    def groups(self) -> Three:
        """Threadgroups of the grid."""
        x, y, z = (-(-a // b) for a, b in zip(self.threads, self.threadgroup, strict=True))
        return x, y, z

    def check(self, what: str) -> None:
        """Raises Misuse where sizes or arguments are not what the pipeline takes."""
        pipeline = self.pipeline
        if not all(1 <= size < _MOST_GRID for size in self.threads):
            raise Misuse(
                "grid-size", f"{what} a grid of {self.threads} threads: 1 to 2^32 - 1 an axis"
            )
        if not 1 <= math.prod(self.threadgroup) <= pipeline.most_threads:
            raise Misuse(
                "threadgroup-size",
                f"{what} {self.threadgroup} threads a threadgroup: the pipeline of"
                f" {pipeline.kernel.name} takes {pipeline.most_threads} in all",
            )
        if math.prod(self.groups) >= _MOST_GRID:
            raise Misuse("grid-size", f"{what} {self.groups} threadgroups: 2^32 - 1 in all")
        local = pipeline.static_bytes
        for each in pipeline.kernel.parameters:
            told = f"{what} {pipeline.kernel.name}: {each.name} (index {each.index})"
            if each.kind == "threadgroup":
                if not self.local.get(each.index):
                    raise Misuse("no-threadgroup-memory", f"{told} has no length")
                local += self.local[each.index]
            elif each.kind != "number":
                self._check_bound(each, told)
        if local > THREADGROUP_BYTES:
            raise Misuse(
                "too-much-threadgroup-memory", f"{what} {local} bytes of {THREADGROUP_BYTES}"
            )

    def _check_bound(self, each: Parameter, told: str) -> None:
        bound = self.bound.get(each.index)
        if bound is None:
            raise Misuse("nothing-bound", f"{told} has nothing bound")
        align = each.align
        if each.kind == "constant":
            align = max(align, self.pipeline.device.chip.constant_alignment)
        if bound.buffer is not None and bound.offset % align:
            raise Misuse("offset-alignment", f"{told}: offset {bound.offset} % {align} != 0")


def check_index(index: int) -> None:
    """Raises Misuse for what is no index of the argument table."""
    if index >= BUFFERS:
        raise Misuse("argument-index", f"index {index}: there are {BUFFERS}")


def check_offset(buffer: Buffer, offset: int) -> None:
    """Raises Misuse for an offset that is not in a buffer."""
    if offset >= buffer.length:
        raise Misuse("out-of-range", f"offset {offset} in a buffer of {buffer.length} bytes")


def check_local(length: int) -> None:
    """Raises Misuse for what is no length of threadgroup memory."""
    if length % THREADGROUP_ALIGN:
        raise Misuse(
            "threadgroup-alignment", f"{length} bytes: not a multiple of {THREADGROUP_ALIGN}"
        )


def in_threads(groups: Size, threadgroup: Size) -> Three:
    """The threads of a grid that is so many threadgroups."""
    x, y, z = (a * b for a, b in zip(groups.three, threadgroup.three, strict=True))
    return x, y, z


@dataclass(frozen=True)
class Barrier:
    """What was accessed before is accessed before what comes; all buffers, or some."""

    buffers: tuple[Buffer, ...] | None
