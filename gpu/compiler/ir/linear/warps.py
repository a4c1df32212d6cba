"""What a warp asks of memory: the addresses of each access, counted in what hardware moves.

Memory of a GPU moves in sectors of 32 bytes, whatever part of one is wanted (NVIDIA, "CUDA C++ Best
Practices Guide", "Coalesced Access to Global Memory"; AMD's lines are two or four of these). Memory
that the threads of a block share has 32 banks of 4 bytes, each of which gives one word at a time:
32 lanes go at once where they ask for up to 4 bytes each, 16 where for 8, 8 where for 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir import evaluate, optable
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.linear import Inst, Limit, Program, block_size

SECTOR: Final = 32
BANKS: Final = 32
BANK_BYTES: Final = 4


class WarpAccess(NamedTuple):
    """An access of a warp to memory, once.

    Attributes:
        op: `load` or `store`.
        space: `param`, or `team` for memory of a block.
        name: of the parameter, or the number of the local.
        lane_bytes: what each thread moves at once.
        times: how often a block does it, in all its warps.
        moved: sectors that it touches; or rounds that it takes of the banks. 0 where data says
            which elements it is of.
        least: how many there would be if all lanes were side by side.
    """

    op: str
    space: str
    name: str
    lane_bytes: int
    times: int
    moved: int
    least: int

    @property
    def is_coalesced(self) -> bool:
        """Whether it moves what it has to, and of parameters at most a quarter, or one, more:

        where rows of 128 bytes begin inside a sector each takes one more.
        """
        more = max(self.least // 4, 1) if self.space == "param" else 0
        return self.moved <= self.least + more


def warp_accesses(program: Program, warp: int = 32) -> list[WarpAccess]:
    """All accesses to parameters and team memory, by the first warp of a block in the middle.

    Counters of serial loops are where they start. Under a condition that depends on data all lanes
    count.
    """
    return list(_Warp(program, warp).accesses())


class _Warp:
    """The values that the lanes of a warp have; None where they depend on data."""

    def __init__(self, program: Program, warp: int):
        self.program = program
        sizes = block_size(program)
        self.lanes = min(warp, math.prod(sizes))
        self.warps = max(-(-math.prod(sizes) // max(self.lanes, 1)), 1)
        self.counters: Iterator[Array] = iter(
            np.unravel_index(np.arange(self.lanes), sizes or (1,))
        )
        self.values: dict[Inst, Array | None] = {}
        self.locals: dict[Inst, str] = {}
        self.opened: list[Inst] = []

    def accesses(self) -> Iterator[WarpAccess]:
        """The accesses, in order."""
        for inst in self.program.body:
            if inst.op in ("loop", "if"):
                self.opened.append(inst)
            elif inst.op in ("end", "endif"):
                self.opened.pop()
            if inst.op == "local":
                self.locals[inst] = f"local {len(self.locals)}"
            elif inst.op in ("load", "store"):
                access = self.access(inst)
                if access is not None:
                    yield access
            self.values[inst] = self.value(inst)

    def access(self, inst: Inst) -> WarpAccess | None:
        """A load or store of memory that is not a thread's own."""
        pointer = inst.args[0]
        if pointer.op == "local" and pointer.attr[1] != "team":
            return None
        value, masks = (inst, inst.args[2:]) if inst.op == "load" else (inst.args[2], inst.args[3:])
        space = "param" if pointer.op == "param" else "team"
        name = (
            self.locals[pointer] if space == "team" else self.program.params[pointer.attr[0]].name
        )
        itemsize = inst.dtype.itemsize
        where = self.places(inst.args[1], value.lanes, masks)
        moved = least = 0
        if where is not None and where.size:
            count = sectors if space == "param" else rounds
            moved = count(where, itemsize)
            distinct = np.unique(where)
            least = count(np.arange(len(distinct)).reshape(-1, _across(where, distinct)), itemsize)
        wide = 1 if inst.args[1].lanes > 1 else value.lanes
        return WarpAccess(inst.op, space, name, wide * itemsize, self.times(), moved, least)

    def places(self, index: Inst, lanes: int, masks: tuple[Inst, ...]) -> Array | None:
        """The elements that each lane asks for that is not masked, a row for each lane."""
        first = self.values[index]
        if first is None:
            return None
        where = first if first.shape[1] == lanes else first + np.arange(lanes)
        reached = np.ones((self.lanes, 1), np.bool_)
        conditions = [opened.args[0] for opened in self.opened if opened.op == "if"]
        for mask in (*masks, *conditions):
            known = self.values[mask]
            if known is not None:
                reached = reached & known[:, :1]
        return np.asarray(np.broadcast_to(where, (self.lanes, lanes))[reached[:, 0]])

    def times(self) -> int:
        """How often a block does what stands here, in warps."""
        loops = (opened for opened in self.opened if opened.op == "loop")
        return self.warps * math.prod(_count(loop) for loop in loops if loop.attr[0] == "serial")

    def value(self, inst: Inst) -> Array | None:
        """What an instruction gives in each lane, (threads, lanes) or what broadcasts to it."""
        match inst.op:
            case "const":
                return np.full((1, inst.lanes), inst.attr[0], inst.dtype.np)
            case "val":
                return np.full((1, 1), self.program.vals[inst.attr[0]].hi, np.int64)
            case "loop":
                return self.counter(inst)
            case "alu" | "cast" | "splat" | "ramp":
                args = [self.values.get(arg) for arg in inst.args]
                known = [arg for arg in args if arg is not None]
                return self.computed(inst, known) if len(known) == len(args) else None
        return None

    def counter(self, loop: Inst) -> Array:
        kind, start, _, step = loop.attr
        if kind == "thread":
            return next(self.counters)[:, None]
        middle = _count(loop) // 2 if kind == "grid" else 0
        return np.full((1, 1), start + step * middle, np.int64)

    def computed(self, inst: Inst, args: list[Array]) -> Array:
        match inst.op:
            case "alu":
                with np.errstate(all="ignore"):
                    return optable.apply_bare(inst.attr[0], inst.args[-1].dtype, tuple(args))
            case "cast":
                return evaluate.cast(args[0], inst.args[0].dtype, inst.dtype)
            case "splat":
                return np.repeat(args[0], inst.lanes, axis=1)
        return np.asarray(args[0] + inst.attr[0] * np.arange(inst.lanes))


def _count(loop: Inst) -> int:
    _, start, stop, step = loop.attr
    return len(range(start, stop.most if isinstance(stop, Limit) else stop, step))


def _across(where: Array, distinct: Array) -> int:
    """Lanes of an access, or one where several threads ask for parts of the same."""
    return where.shape[1] if len(distinct) % where.shape[1] == 0 else 1


def sectors(where: Array, itemsize: int) -> int:
    """Sectors that hold the elements of all lanes."""
    return len(np.unique(where * itemsize // SECTOR))


def rounds(where: Array, itemsize: int) -> int:
    """Rounds in which banks give the elements of all lanes, a row for each lane."""
    lane_bytes = where.shape[1] * itemsize
    together = BANKS * BANK_BYTES // max(lane_bytes, BANK_BYTES)
    total = 0
    for first in range(0, len(where), together):
        words = np.unique(where[first : first + together] * itemsize // BANK_BYTES)
        total += int(np.bincount(words % BANKS).max())
    return total
