"""A program with vectors written out lane by lane, for devices that schedule well by them.

A CPU that poses as a GPU, as Mesa's llvmpipe does, runs the invocations of a launch in the lanes of
its vectors, so that a lane of ours is a scalar there. Tiles of vectors are then tiles of registers,
which load an element once and use it often.
"""

from __future__ import annotations

from functools import reduce

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.lower.legalize import Legalizer
from gpu.compiler.targets import Native
from gpu.core.dtype import dtypes

Lanes = list[Inst]


def scalarize(program: Program, native: Native) -> Program:
    """The same program without vectors."""
    return _Scalarizer(program, native).run()


class _Scalarizer:
    def __init__(self, program: Program, native: Native):
        self.program = program
        self.emitter = Emitter()
        self.builder = Legalizer(self.emitter, native)
        self.values: dict[Inst, Lanes] = {}
        self.carried: dict[Inst, list[Lanes]] = {}
        self.guards: list[int] = []

    def run(self) -> Program:
        for inst in self.program.body:
            getattr(self, f"_{inst.op}", self._one)(inst)
        return self.program._replace(body=self.emitter.body())

    def lanes(self, inst: Inst, lanes: int) -> Lanes:
        """A value in every one of `lanes` lanes."""
        value = self.values[inst]
        return value * lanes if len(value) == 1 else value

    def flat(self, values: tuple[Inst, ...]) -> tuple[Inst, ...]:
        return tuple(lane for value in values for lane in self.values[value])

    def joined(self, likes: tuple[Inst, ...], parts: list[Inst]) -> list[Lanes]:
        """Values with as many lanes as `likes`: what `flat` took apart."""
        waiting = iter(parts)
        return [[next(waiting) for _ in range(like.lanes)] for like in likes]

    # Values.

    def _one(self, inst: Inst) -> None:
        """A leaf: a parameter, or a value of the launch."""
        self.values[inst] = [self.emitter.pure(inst.op, inst.dtype, attr=inst.attr)]

    def _const(self, inst: Inst) -> None:
        scalar = self.emitter.pure("const", inst.dtype, attr=inst.attr)
        self.values[inst] = [scalar] * inst.lanes

    def _local(self, inst: Inst) -> None:
        self.values[inst] = [self.emitter.effect("local", inst.dtype, attr=inst.attr)]

    def _alu(self, inst: Inst) -> None:
        args = [self.lanes(arg, inst.lanes) for arg in inst.args]
        (name,) = inst.attr
        self.values[inst] = [self.emitter.op(name, *each) for each in zip(*args, strict=True)]

    def _cast(self, inst: Inst) -> None:
        self.values[inst] = [self.emitter.cast(x, inst.dtype) for x in self.values[inst.args[0]]]

    def _bitcast(self, inst: Inst) -> None:
        self.values[inst] = [self.emitter.bitcast(x, inst.dtype) for x in self.values[inst.args[0]]]

    def _splat(self, inst: Inst) -> None:
        self.values[inst] = self.lanes(inst.args[0], inst.lanes)

    def _ramp(self, inst: Inst) -> None:
        (base,), (step,) = self.values[inst.args[0]], inst.attr
        self.values[inst] = [self.after(base, step * lane) for lane in range(inst.lanes)]

    def after(self, index: Inst, distance: int) -> Inst:
        """An index further on."""
        if not distance:
            return index
        return self.emitter.op("add", index, self.emitter.const(dtypes.int64, distance))

    def _extract(self, inst: Inst) -> None:
        self.values[inst] = [self.values[inst.args[0]][inst.attr[0]]]

    def _pack(self, inst: Inst) -> None:
        self.values[inst] = list(self.flat(inst.args))

    def _shuffle(self, inst: Inst) -> None:
        both = self.flat(inst.args)
        self.values[inst] = [both[lane] for lane in inst.attr[0]]

    def _fold(self, inst: Inst) -> None:
        combine = MONOIDS[inst.attr[0]].combine
        lanes = self.values[inst.args[0]]
        self.values[inst] = [reduce(lambda a, b: self.builder.op(combine, a, b), lanes)]

    # Memory.

    def accesses(self, inst: Inst, lanes: int, masks: tuple[Inst, ...]) -> list[tuple[Inst, ...]]:
        """Of each lane the index and, if there is one, the mask."""
        index = self.values[inst.args[1]]
        if len(index) == 1:
            index = [self.after(index[0], lane) for lane in range(lanes)]
        return list(zip(index, *(self.lanes(mask, lanes) for mask in masks), strict=True))

    def _load(self, inst: Inst) -> None:
        pointer = inst.args[0]
        (place,) = self.values[pointer]
        constant = pointer.op == "param" and not self.program.params[pointer.attr[0]].written
        self.values[inst] = [
            self.emitter.pure("load", inst.dtype, 1, (place, *at), guarded=True)
            if constant
            else self.emitter.effect("load", inst.dtype, 1, (place, *at))
            for at in self.accesses(inst, inst.lanes, inst.args[2:])
        ]

    def _store(self, inst: Inst) -> None:
        pointer, _, value, *masks = inst.args
        (place,) = self.values[pointer]
        at = self.accesses(inst, value.lanes, tuple(masks))
        for (index, *mask), lane in zip(at, self.values[value], strict=True):
            if mask and mask[0].op == "const" and not mask[0].attr[0]:
                continue  # a lane that never writes
            self.emitter.effect("store", inst.dtype, 1, (place, index, lane, *mask), inst.attr)

    # Control.

    def _loop(self, inst: Inst) -> None:
        kind, _, stop, _ = inst.attr
        if not isinstance(stop, int):
            stop = stop._replace(value=self.values[stop.value][0])
        counter, carries = self.emitter.open_loop(kind, stop, self.flat(inst.args))
        self.values[inst] = [counter]
        self.carried[inst] = self.joined(inst.args, carries)

    def _carry(self, inst: Inst) -> None:
        self.values[inst] = self.carried[inst.args[0]][inst.attr[0]]

    def _end(self, inst: Inst) -> None:
        results = self.emitter.close_loop(self.flat(inst.args))
        self.carried[inst] = self.joined(inst.args, results)

    def _result(self, inst: Inst) -> None:
        self.values[inst] = self.carried[inst.args[0]][inst.attr[0]]

    def _if(self, inst: Inst) -> None:
        self.guards.append(self.emitter.open_if(self.values[inst.args[0]][0]))

    def _endif(self, inst: Inst) -> None:
        self.emitter.close_if(self.guards.pop())

    def _barrier(self, inst: Inst) -> None:
        self.emitter.effect("barrier", inst.dtype)

    def _shuffle_xor(self, inst: Inst) -> None:
        args = self.flat(inst.args)
        self.values[inst] = [self.emitter.effect(inst.op, inst.dtype, 1, args, inst.attr)]
