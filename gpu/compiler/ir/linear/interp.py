"""Runs the linear IR in numpy: what every renderer's output is compared with.

A value is an array of shape (points, lanes), or (1, lanes) where all points agree; see
`gpu/compiler/ir/interp.py` for points. All points move together, so that a `barrier` has nothing to
wait for; what it must order is checked (`gpu/compiler/ir/races.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir import evaluate, matrix, optable
from gpu.compiler.ir.copies import Copies, Landing
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.interp import check_vals, flat_view, goes, owners, poison, repeated
from gpu.compiler.ir.linear import Inst, Limit, Program, block_size, tiles
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.races import TeamLog, check_alone, check_arrivals, exchanged
from gpu.core.errors import InvalidValue, VerifyError


class Memory(NamedTuple):
    """What a pointer points to.

    Attributes:
        name: for messages.
        flat: the elements; those of a local follow each other for all points that made it.
        elements: how many a pointer may reach.
        rows: how many points have memory of their own; 1 is shared by all.
        log: who touched it, where the threads of a block share it.
    """

    name: str
    flat: Array
    elements: int
    rows: int
    log: TeamLog | None = None


def interpret_linear(program: Program, buffers: Sequence[Array], vals: Sequence[int] = ()) -> None:
    """Runs a program on one array for each parameter; written ones are changed in place.

    `vals` are the values of the launch. Raises VerifyError for a program that breaks a rule or
    reaches outside a buffer, InvalidValue for arrays that do not fit the parameters, and for values
    outside of their bounds.
    """
    verify_linear(program)
    check_vals(program.name, program.vals, vals)
    if len(buffers) != len(program.params):
        raise InvalidValue(
            f"{program.name} takes {len(program.params)} buffers, got {len(buffers)}"
        )
    params = []
    for param, array in zip(program.params, buffers, strict=True):
        stored = param.image or param.dtype
        flat = flat_view(array, f"buffer {param.name} of {program.name}", stored)
        if flat.size < param.elements:
            raise InvalidValue(
                f"buffer {param.name} of {program.name} holds {flat.size} elements,"
                f" {param.elements} are needed"
            )
        params.append(Memory(param.name, flat, param.elements, 1))
    with np.errstate(all="ignore"):
        Machine(program, params, vals).run(0, len(program.body))


class Machine:
    """The state of a run: what each instruction gave, at which points, and which are active."""

    def __init__(self, program: Program, params: list[Memory], vals: Sequence[int]):
        self.body, self.params, self.vals = program.body, params, vals
        self.points = 1
        self.threads = 1
        self.active: Array | None = None
        self.values: dict[Inst, Array] = {}
        self.memory: dict[Inst, Memory] = {}
        self.carried: dict[Inst, tuple[Array, ...]] = {}
        self.closing, self.inner = _structure(program)
        self.inner_threads = math.prod(block_size(program))
        self.copies = Copies()

    def run(self, first: int, stop: int) -> None:
        """Runs the instructions from position `first` up to `stop`."""
        at = first
        while at < stop:
            inst = self.body[at]
            if inst.op == "loop":
                last = self.closing[inst]
                (self._serial if inst.attr[0] == "serial" else self._parallel)(inst, at, last)
                at = last
            elif inst.op == "if":
                self._if(inst, at, self.closing[inst])
                at = self.closing[inst]
            elif inst.op == "store":
                self._store(inst)
            elif inst.op in ("param", "local"):
                self.memory[inst] = self._pointer(inst)
            elif inst.op == "barrier":
                self._barrier()
            elif inst.op == "copy":
                self._copy(inst)
            elif inst.op == "commit":
                self.copies.commit()
            elif inst.op == "wait":
                self.copies.wait(inst.attr[0])
            elif inst.op == "store_tile":
                tiles.store_tile(self, inst)
            elif inst.op != "prefetch":
                self.values[inst] = VALUES[inst.op](self, inst)
            at += 1

    def _pointer(self, inst: Inst) -> Memory:
        if inst.op == "param":
            memory: Memory = self.params[inst.attr[0]]
            return memory
        elements, space = inst.attr
        flat = poison((self.points * elements,), inst.dtype)
        shared = space == "team" and self.inner_threads > 1
        log = TeamLog("team memory", elements, flat.size) if shared else None
        return Memory(f"{space} memory", flat, elements, self.points, log)

    def pointed(self, pointer: Inst) -> Memory:
        """What a pointer points to."""
        return self.memory[pointer]

    def _barrier(self) -> None:
        check_arrivals(self.active, self.threads)
        for memory in self.memory.values():
            if memory.log is not None:
                memory.log.barrier()

    def _counters(self, loop: Inst) -> range:
        _, start, stop, step = loop.attr
        if not isinstance(stop, Limit):
            return range(start, stop, step)
        value = int(self.values[stop.value].max())
        if value > stop.most:
            raise VerifyError(f"a loop stays below {value}, which must be {stop.most} at most")
        return range(start, value, step)

    def _serial(self, loop: Inst, first: int, last: int) -> None:
        end = self.body[last]
        self.carried[loop] = tuple(self.values[a] for a in loop.args)
        for counter in self._counters(loop):
            self.values[loop] = np.full((1, 1), counter, np.int64)
            self.run(first + 1, last)
            self.carried[loop] = tuple(self.values[a] for a in end.args)
        self.carried[end] = self.carried[loop]

    def _parallel(self, loop: Inst, first: int, last: int) -> None:
        points, active, values = self.points, self.active, self.values
        threads = self.threads
        counters = np.array(self._counters(loop), dtype=np.int64)
        together = loop.attr[0] == "thread"  # a block is never divided
        if together:
            self.threads *= len(counters)
        several = goes(len(counters), points, self.inner[loop])
        for begin, count in [(0, len(counters))] if together else several:
            self.points = points * count
            self.copies = Copies()
            self.values = {inst: repeated(value, count) for inst, value in values.items()}
            self.active = None if active is None else repeated(active, count)
            self.values[loop] = np.tile(counters[begin : begin + count], points)[:, None]
            self.run(first + 1, last)
        self.points, self.active, self.values = points, active, values
        self.threads = threads

    def _if(self, inst: Inst, first: int, last: int) -> None:
        active, condition = self.active, self.values[inst.args[0]]
        if not condition.all():
            inside = condition if active is None else condition & active
            self.active = np.broadcast_to(inside, (self.points, 1))
        if self.active is None or self.active.any():
            self.run(first + 1, last)
        self.active = active

    def locate(
        self,
        inst: Inst,
        lanes: int,
        masks: tuple[Inst, ...],
        first: int = 0,
        offsets: Array | None = None,
    ) -> tuple[Array, Array]:
        """Positions in memory an access reaches, and which of them it does reach.

        The pointer is operand `first` of `inst`, and its index the next. Where that is one for all
        lanes these follow each other, or are `offsets` from there.
        """
        memory, index = self.memory[inst.args[first]], self.values[inst.args[first + 1]]
        if index.shape[1] != lanes:
            index = index + (np.arange(lanes) if offsets is None else offsets)
        reached = np.ones((1, lanes), np.bool_)
        if self.active is not None:
            reached = reached & self.active
        for mask in masks:
            reached = reached & self.values[mask]
        outside = ((index < 0) | (index >= memory.elements)) & reached
        if outside.any():
            wrong = np.broadcast_to(index, outside.shape)[outside][0]
            raise VerifyError(
                f"{inst.op} at index {wrong} of {memory.name}, which has {memory.elements} elements"
            )
        if memory.rows > 1:
            index = index + (owners(self.points, memory.rows) * memory.elements)[:, None]
        position, reached = np.broadcast_arrays(index, reached)
        if memory.log is not None and inst.op in ("load", "store"):
            self._note(memory.log, inst.op, position, reached)
        return position, reached

    def _note(self, log: TeamLog, op: str, position: Array, reached: Array) -> None:
        """Tells the log of team memory which thread of its block touches which element."""
        shape = (self.points, position.shape[1])
        threads = np.broadcast_to((np.arange(self.points) % self.threads)[:, None], shape)
        touched = np.broadcast_to(reached, shape)
        note = log.load if op == "load" else log.store
        note(np.broadcast_to(position, shape)[touched], threads[touched])

    def load(self, inst: Inst) -> Array:
        """The elements at an index; zero where a mask is false."""
        memory = self.memory[inst.args[0]]
        position, reached = self.locate(inst, inst.lanes, inst.args[2:])
        if reached.all():
            return np.asarray(memory.flat[position], inst.dtype.np)
        result = np.zeros(position.shape, inst.dtype.np)
        result[reached] = memory.flat[position[reached]]
        return result

    def _store(self, inst: Inst) -> None:
        memory, value = self.memory[inst.args[0]], self.values[inst.args[2]]
        position, reached = self.locate(inst, inst.args[2].lanes, inst.args[3:])
        position, reached, value = np.broadcast_arrays(position, reached, value)
        memory.flat[position[reached]] = value[reached]
        if self.inner_threads > 1 and inst.args[0].op == "param":
            shape = (self.points, position.shape[1])
            touched = np.broadcast_to(reached, shape)
            point = np.broadcast_to(np.arange(self.points)[:, None], shape)[touched]
            check_alone(memory.name, np.broadcast_to(position, shape)[touched], point)

    def _copy(self, inst: Inst) -> None:
        (size,), memory = inst.attr, self.memory[inst.args[0]]
        source = self.memory[inst.args[2]].flat
        shape = (self.points, size)
        to, reached = self.locate(inst, size, ())
        position, reached = np.broadcast_to(to, shape), np.broadcast_to(reached, shape)
        read, wanted = self.locate(inst, size, inst.args[4:], 2)
        wanted = np.broadcast_to(wanted, shape)
        values = np.zeros(shape, source.dtype)
        values[wanted] = source[np.broadcast_to(read, shape)[wanted]]
        threads = np.broadcast_to((np.arange(self.points) % self.threads)[:, None], shape)
        landing = Landing(
            memory.flat, memory.log, position[reached], threads[reached], values[reached]
        )
        self.copies.start(landing, inst.args[0].dtype)

    def fragment(self, inst: Inst) -> Array:
        """Parts of a matrix, a thread's elements of them side by side."""
        check_arrivals(self.active, self.threads, "fragment")
        memory, count = self.memory[inst.args[0]], inst.lanes // matrix.HELD
        rows, _ = self.locate(inst, matrix.SIDE, ())
        own = matrix.by_warp(np.broadcast_to(rows, (self.points, matrix.SIDE)), self.threads, 1)
        parts = own[:, : count * matrix.SIDE].reshape(-1, count, matrix.SIDE, matrix.SIDE)
        if inst.attr[0]:
            parts = parts.transpose(0, 1, 3, 2)
        held = parts[:, :, matrix.PART_ROW, matrix.PART_COLUMN].transpose(0, 2, 1, 3)
        position = matrix.by_point(held, self.threads, 1).reshape(self.points, inst.lanes)
        if memory.log is not None:
            reached = np.ones((1, 1), np.bool_) if self.active is None else self.active
            self._note(memory.log, "load", position, reached)
        return np.asarray(memory.flat[position])

    def shuffle(self, inst: Inst) -> Array:
        """Lanes picked from two vectors, joined."""
        a, b = (self.values[arg] for arg in inst.args)
        rows = max(len(a), len(b))
        both = [np.broadcast_to(v, (rows, v.shape[1])) for v in (a, b)]
        return np.concatenate(both, axis=1)[:, inst.attr[0]]

    def shuffle_xor(self, inst: Inst) -> Array:
        """A value on another thread of the warp."""
        value = np.broadcast_to(self.values[inst.args[0]], (self.points, 1))
        return exchanged(value, self.active, (self.threads, 1), *inst.attr)

    def pack(self, inst: Inst) -> Array:
        """Scalars side by side."""
        lanes = np.broadcast_arrays(*(self.values[arg] for arg in inst.args))
        return np.concatenate(lanes, axis=1)

    def fold(self, inst: Inst) -> Array:
        """The lanes of a vector combined, from the first to the last."""
        vector = self.values[inst.args[0]]
        combine = optable.MONOIDS[inst.attr[0]].combine
        result = vector[:, :1]
        for lane in range(1, vector.shape[1]):
            result = optable.apply_bare(combine, inst.dtype, (result, vector[:, lane : lane + 1]))
        return result

    def alu(self, inst: Inst) -> Array:
        """A scalar operation in each lane."""
        args = tuple(self.values[arg] for arg in inst.args)
        return optable.apply_bare(inst.attr[0], inst.dtype, args)


def _const(machine: Machine, inst: Inst) -> Array:
    return np.full((1, inst.lanes), optable.scalar(inst.dtype)(inst.attr[0]), inst.dtype.np)


def _val(machine: Machine, inst: Inst) -> Array:
    return np.full((1, 1), machine.vals[inst.attr[0]], np.int64)


def _splat(machine: Machine, inst: Inst) -> Array:
    return np.repeat(machine.values[inst.args[0]], inst.lanes, axis=1)


def _ramp(machine: Machine, inst: Inst) -> Array:
    return np.asarray(machine.values[inst.args[0]] + inst.attr[0] * np.arange(inst.lanes))


def _extract(machine: Machine, inst: Inst) -> Array:
    lane = inst.attr[0]
    return machine.values[inst.args[0]][:, lane : lane + 1]


def _cast(machine: Machine, inst: Inst) -> Array:
    return evaluate.cast(machine.values[inst.args[0]], inst.args[0].dtype, inst.dtype)


def _bitcast(machine: Machine, inst: Inst) -> Array:
    return np.ascontiguousarray(machine.values[inst.args[0]]).view(inst.dtype.np)


def _carried(machine: Machine, inst: Inst) -> Array:
    value: Array = machine.carried[inst.args[0]][inst.attr[0]]
    # The loop may be further out than parallel loops that have multiplied the points since.
    return repeated(value, machine.points // len(value))


VALUES: Final[dict[str, Callable[[Machine, Inst], Array]]] = {
    "const": _const, "val": _val, "carry": _carried, "result": _carried, "load": Machine.load,
    "alu": Machine.alu, "cast": _cast, "bitcast": _bitcast, "splat": _splat, "ramp": _ramp,
    "extract": _extract, "pack": Machine.pack, "fold": Machine.fold, "shuffle": Machine.shuffle,
    "shuffle_xor": Machine.shuffle_xor, "fragment": Machine.fragment, "mma": tiles.mma,
    "load_tile": tiles.load_tile,
}  # fmt: skip


def _most(loop: Inst) -> int:
    """How many iterations a loop can have, 1 at least."""
    _, start, stop, step = loop.attr
    return max(1, len(range(start, stop.most if isinstance(stop, Limit) else stop, step)))


def _structure(program: Program) -> tuple[dict[Inst, int], dict[Inst, int]]:
    """Where each loop or if is closed, and into how many points an iteration of each loop grows."""
    closing: dict[Inst, int] = {}
    inner: dict[Inst, int] = {}
    stack: list[list[int]] = [[1]]
    for position, inst in enumerate(program.body):
        if inst.op in ("loop", "if"):
            stack.append([1])
        elif inst.op in ("end", "endif"):
            opened = inst.attr[0]
            closing[opened], inner[opened] = position, max(stack.pop())
            parallel = opened.op == "loop" and opened.attr[0] != "serial"
            stack[-1].append(inner[opened] * (_most(opened) if parallel else 1))
    return closing, inner
