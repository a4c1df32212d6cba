"""What a warp asks of memory: the addresses of each access, counted in what hardware moves.

Memory of a GPU moves in sectors of 32 bytes, whatever part of one is wanted (NVIDIA, "CUDA C++ Best
Practices Guide", "Coalesced Access to Global Memory"; AMD's lines are two or four of these). Memory
that the threads of a block share has 32 banks of 4 bytes, each of which gives one word at a time:
32 lanes go at once where they ask for up to 4 bytes each, 16 where for 8, 8 where for 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from gpu.compiler.ir import evaluate, matrix, optable
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.linear import Inst, Limit, Program, block_size

Masked: TypeAlias = "np.ma.MaskedArray[Any, Any]"

SECTOR: Final = 32
BANKS: Final = 32
BANK_BYTES: Final = 4


class WarpAccess(NamedTuple):
    """An access of a warp to memory, once.

    Attributes:
        op: `load` or `store`; a fragment is a load.
        space: `param`, or `team` for memory of a block.
        name: of the parameter, or the number of the local.
        lane_bytes: what each thread moves at once.
        times: how often a block does it, in all its warps.
        moved: sectors that it touches; or rounds that it takes of the banks. 0 where data says
            which elements it is of, or no lane asks for one.
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

    Counters and carries of serial loops are where they start. Under a mask or a condition that
    depends on data all lanes count. A `copy` is a load of the parameter and a store to team memory.
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
            yield from self.of(inst)
            self.values[inst] = self.value(inst)

    def of(self, inst: Inst) -> Iterator[WarpAccess]:
        """What an instruction asks of memory that is not a thread's own."""
        match inst.op, inst.args:
            case "load", (pointer, index, *masks):
                yield from self.access("load", pointer, index, inst.lanes, masks)
            case "store", (pointer, index, value, *masks):
                yield from self.access("store", pointer, index, value.lanes, masks)
            case "copy", (target, to, source, at, *masks):
                yield from self.access("load", source, at, inst.attr[0], masks)
                yield from self.access("store", target, to, inst.attr[0], ())
            case "fragment", (pointer, index):
                # The threads in turn say where a row of each part begins.
                rows = inst.lanes // matrix.HELD * matrix.SIDE
                yield from self.access("load", pointer, index, matrix.SIDE, (), rows)

    def access(
        self,
        op: str,
        pointer: Inst,
        index: Inst,
        lanes: int,
        masks: Sequence[Inst],
        threads: int | None = None,
    ) -> Iterator[WarpAccess]:
        """The access by the first `threads` of a warp, by all if none are given."""
        if pointer.op == "local" and pointer.attr[1] != "team":
            return
        space = "param" if pointer.op == "param" else "team"
        name = (
            self.locals[pointer] if space == "team" else self.program.params[pointer.attr[0]].name
        )
        itemsize = pointer.dtype.itemsize
        where = self.places(index, lanes, masks)
        moved = least = 0
        if where is not None:
            where = where[:threads]
            count = sectors if space == "param" else rounds
            moved = count(where, itemsize)
            distinct = np.unique(where.compressed())
            close = np.ma.array(np.arange(len(distinct)).reshape(-1, _across(where, distinct)))
            least = count(close, itemsize)
        wide = 1 if index.lanes > 1 else lanes
        yield WarpAccess(op, space, name, wide * itemsize, self.times(), moved, least)

    def places(self, index: Inst, lanes: int, masks: Sequence[Inst]) -> Masked | None:
        """The elements that each lane of each thread asks for, (threads, lanes).

        Masked out are those that it does not: where a mask says so, or a condition around.
        """
        first = self.values[index]
        if first is None:
            return None
        where = first if first.shape[1] == lanes else first + np.arange(lanes)
        shape = (self.lanes, lanes)
        reached = np.ones(shape, np.bool_)
        conditions = [opened.args[0] for opened in self.opened if opened.op == "if"]
        for mask in (*masks, *conditions):
            known = self.values[mask]
            if known is not None:
                reached = reached & known
        return np.ma.array(np.broadcast_to(where, shape), mask=~reached)

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
            case "carry":
                return self.values[inst.args[0].args[inst.attr[0]]]
        args = [self.values.get(arg) for arg in inst.args]
        known = [arg for arg in args if arg is not None]
        return self.computed(inst, known) if len(known) == len(args) else None

    def counter(self, loop: Inst) -> Array:
        kind, start, _, step = loop.attr
        if kind == "thread":
            return next(self.counters)[:, None]
        middle = _count(loop) // 2 if kind == "grid" else 0
        return np.full((1, 1), start + step * middle, np.int64)

    def computed(self, inst: Inst, args: list[Array]) -> Array | None:
        """What an instruction gives that depends on its operands alone; None of others."""
        match inst.op:
            case "alu":
                with np.errstate(all="ignore"):
                    return optable.apply_bare(inst.attr[0], inst.dtype, tuple(args))
            case "cast":
                return evaluate.cast(args[0], inst.args[0].dtype, inst.dtype)
            case "bitcast":
                return evaluate.bitcast(args[0], inst.dtype)
            case "splat":
                return np.repeat(args[0], inst.lanes, axis=1)
            case "ramp":
                return np.asarray(args[0] + inst.attr[0] * np.arange(inst.lanes))
            case "extract":
                return args[0][:, inst.attr[0]][:, None]
            case "pack" | "shuffle":
                rows = max(len(arg) for arg in args)
                joined = [np.broadcast_to(arg, (rows, arg.shape[1])) for arg in args]
                beside = np.concatenate(joined, axis=1)
                return beside if inst.op == "pack" else beside[:, inst.attr[0]]
        return None


def _count(loop: Inst) -> int:
    _, start, stop, step = loop.attr
    return len(range(start, stop.most if isinstance(stop, Limit) else stop, step))


def _across(where: Masked, distinct: Array) -> int:
    """Lanes of an access, or one where several threads ask for parts of the same."""
    return where.shape[1] if len(distinct) % where.shape[1] == 0 else 1


def sectors(where: Masked, itemsize: int) -> int:
    """Sectors that hold the elements that lanes ask for."""
    return len(np.unique(where.compressed() * itemsize // SECTOR))


def rounds(where: Masked, itemsize: int) -> int:
    """Rounds in which banks give the elements that lanes ask for, a row for each thread."""
    lane_bytes = where.shape[1] * itemsize
    together = BANKS * BANK_BYTES // max(lane_bytes, BANK_BYTES)
    total = 0
    for first in range(0, len(where), together):
        asked = where[first : first + together].compressed()
        words = np.unique(asked * itemsize // BANK_BYTES)
        total += int(np.bincount(words % BANKS, minlength=1).max())
    return total
