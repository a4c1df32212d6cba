"""Neighbouring elements four at a time, for devices that move four words as fast as one.

A place in memory is taken apart into a sum of multiples and a constant. Where all the multiples are
of four, the constant tells in which quad the element is and where in it, and elements of one quad
are loaded once. Loads of other places take a quad too, and choose. Stores that fill a quad become
one where nothing comes between them.

A parameter that is loaded so is loaded in no other way; `elements` of it are whole quads then. A
quad may lie outside of it where a mask excluded the element: what is loaded there is not used, and
the device has to bear it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Limit, Param, Program
from gpu.compiler.ir.linear.affine import Sum, taken_apart
from gpu.compiler.lower.dce import PURE, used
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.targets import WORD
from gpu.core.dtype import dtypes

QUAD: Final = 4
# Loads that a kernel does at least of a parameter, and one more for so many of its words, before
# it is worth having the parameter where quads are: a copy of it is made there.
MANY_LOADS: Final = 4096
WORDS_PER_LOAD: Final = 12

Terms = frozenset[tuple[Inst, int]]


def quads(program: Program) -> Program:
    """The same scalar program with vectors of four elements in memory where that pays.

    Elements have a word or less.
    """
    return _Quads(program).run()


def loads_of(program: Program) -> dict[int, int]:
    """How often a launch loads from each parameter, at most."""
    counts: dict[int, int] = {}
    rounds = [1]
    for inst in program.body:
        if inst.op == "loop":
            stop = inst.attr[2]
            rounds.append(rounds[-1] * max(stop.most if isinstance(stop, Limit) else stop, 1))
        elif inst.op == "end":
            rounds.pop()
        elif inst.op == "load" and inst.args[0].op == "param":
            (number,) = inst.args[0].attr
            counts[number] = counts.get(number, 0) + rounds[-1]
    return counts


def _words(param: Param) -> int:
    return param.elements * param.dtype.bits // WORD


class _Waiting(NamedTuple):
    """A store that may become part of a quad."""

    at: Sum
    store: Inst
    masks: tuple[Inst, ...]


class _Quads:
    def __init__(self, program: Program):
        self.program = program
        self.emitter = Emitter()
        self.values: dict[Inst, Inst] = {}
        self.carried: dict[Inst, list[Inst]] = {}
        self.guards: list[int] = []
        self.sums: dict[Inst, Sum] = {}
        self.old_sums: dict[Inst, Sum] = {}
        self.neighbours = self.near_each_other()
        self.waiting: dict[Inst, list[_Waiting]] = {}
        counts = loads_of(program)
        self.near = {
            number
            for number, param in enumerate(program.params)
            if not param.written
            and param.dtype.bits <= WORD
            and counts.get(number, 0) >= MANY_LOADS + _words(param) // WORDS_PER_LOAD
        }

    def run(self) -> Program:
        for inst in self.program.body:
            if inst.op in PURE:
                self.values[inst] = self.emitter.pure(
                    inst.op, inst.dtype, inst.lanes, self.args(inst), inst.attr
                )
            else:
                getattr(self, f"_{inst.op}")(inst)
        self.flush_all()
        params = tuple(
            param._replace(elements=-(-param.elements // QUAD) * QUAD)
            if number in self.near
            else param
            for number, param in enumerate(self.program.params)
        )
        return self.program._replace(params=params, body=used(self.emitter.body()))

    def place(self, load: Inst) -> tuple[Inst, Terms]:
        """What the places of loads have in common that are a known distance apart."""
        return load.args[0], frozenset(taken_apart(load.args[1], self.old_sums).terms)

    def near_each_other(self) -> dict[tuple[Inst, Terms], set[int]]:
        """The constants in the places of loads that have all else in common."""
        found: dict[tuple[Inst, Terms], set[int]] = {}
        for inst in self.program.body:
            if inst.op == "load":
                at = taken_apart(inst.args[1], self.old_sums)
                found.setdefault(self.place(inst), set()).add(at.constant)
        return found

    def args(self, inst: Inst) -> tuple[Inst, ...]:
        return tuple(self.values[arg] for arg in inst.args)

    def const(self, value: int) -> Inst:
        return self.emitter.const(dtypes.int32, value)

    # Loads.

    def _load(self, inst: Inst) -> None:
        pointer, index, *mask = self.args(inst)
        number = pointer.attr[0] if pointer.op == "param" else None
        if number in self.near:
            value = self.part_of_quad(inst, pointer, index)
            if mask:
                zero = self.emitter.const(inst.dtype, 0)
                value = self.emitter.op("where", mask[0], value, zero)
            self.values[inst] = value
            return
        self.flush(pointer)
        args = (pointer, index, *mask)
        if number is not None and not self.program.params[number].written:
            self.values[inst] = self.emitter.pure("load", inst.dtype, 1, args, guarded=True)
        else:
            self.values[inst] = self.emitter.effect("load", inst.dtype, 1, args)

    def part_of_quad(self, inst: Inst, pointer: Inst, index: Inst) -> Inst:
        """The element at an index, of the quad it lies in."""
        at = taken_apart(index, self.sums)
        part = at.modulo(QUAD)
        if part is not None:
            start = self.index(at._replace(constant=at.constant - part))
            return self.extract(self.quad(pointer, start, inst), part)
        shared = len(self.neighbours[self.place(inst)]) > 1
        distance = at.constant % QUAD if shared else 0
        base = at._replace(constant=0 if shared else at.constant)
        first = at.constant - distance if shared else 0
        return self.part_behind(inst, pointer, base, first, distance)

    def part_behind(self, inst: Inst, pointer: Inst, base: Sum, first: int, distance: int) -> Inst:
        """The element `first + distance` behind a place that may be any in its quad.

        `first` is a multiple of four, and `distance` less than four: the element is `first` behind
        the quad of that place, or in the next one. Elements that lie around it share these two.
        """
        op = self.emitter.op
        word = self.emitter.cast(self.index(base), dtypes.int32)
        start, part = op("and", word, self.const(-QUAD)), op("and", word, self.const(QUAD - 1))
        both: list[Inst] = []
        for behind in (first, first + QUAD)[: 2 if distance else 1]:
            at = op("add", start, self.const(behind)) if behind else start
            four = self.quad(pointer, self.emitter.cast(at, dtypes.int64), inst)
            both += [self.extract(four, lane) for lane in range(QUAD)]
        value = both[distance + QUAD - 1]
        for number in reversed(range(QUAD - 1)):
            is_it = op("eq", part, self.const(number))
            value = op("where", is_it, both[distance + number], value)
        return value

    def quad(self, pointer: Inst, start: Inst, like: Inst) -> Inst:
        return self.emitter.pure("load", like.dtype, QUAD, (pointer, start), guarded=True)

    def extract(self, four: Inst, lane: int) -> Inst:
        return self.emitter.pure("extract", four.dtype, 1, (four,), (lane,))

    def index(self, at: Sum) -> Inst:
        """A sum as instructions: what changes in the outermost loops first."""
        op = self.emitter.op
        total: Inst | None = None
        for value, count in sorted(at.terms, key=lambda term: self.emitter.depth(term[0])):
            word = (
                self.emitter.bitcast(value, dtypes.int32)
                if value.dtype is dtypes.uint32
                else self.emitter.cast(value, dtypes.int32)
            )
            term = word if count == 1 else op("mul", word, self.const(count))
            total = term if total is None else op("add", total, term)
        if total is None:
            total = self.const(at.constant)
        elif at.constant:
            total = op("add", total, self.const(at.constant))
        return self.emitter.cast(total, dtypes.int64)

    # Stores.

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *masks = self.args(inst)
        at = taken_apart(index, self.sums)
        if pointer.op != "param" or value.dtype.bits > WORD or at.modulo(QUAD) is None:
            self.flush(pointer)
            self.emitter.effect("store", inst.dtype, 1, (pointer, index, value, *masks), inst.attr)
            return
        waiting = self.waiting.setdefault(pointer, [])
        if any(
            set(one.at.terms) != set(at.terms) or one.at.constant == at.constant for one in waiting
        ):
            self.flush(pointer)  # the same element, for all that is known
            waiting = self.waiting.setdefault(pointer, [])
        waiting.append(_Waiting(at, inst, tuple(masks)))
        first = at.constant // QUAD * QUAD
        quad = [
            one
            for one in waiting
            if one.masks == tuple(masks) and first <= one.at.constant < first + QUAD
        ]
        if len(quad) == QUAD:
            self.waiting[pointer] = [one for one in waiting if one not in quad]
            self.store_quad(pointer, sorted(quad, key=lambda one: one.at.constant))

    def store_quad(self, pointer: Inst, quad: list[_Waiting]) -> None:
        first, store = quad[0], quad[0].store
        values = tuple(self.values[one.store.args[2]] for one in quad)
        four = self.emitter.pure("pack", values[0].dtype, QUAD, values)
        masks = tuple(self.emitter.widen(mask, QUAD) for mask in first.masks)
        args = (pointer, self.index(first.at), four, *masks)
        self.emitter.effect("store", store.dtype, 1, args, store.attr)

    def flush(self, pointer: Inst) -> None:
        """Stores one by one what waits for the rest of its quad."""
        for one in self.waiting.pop(pointer, ()):
            args = self.args(one.store)
            self.emitter.effect("store", one.store.dtype, 1, args, one.store.attr)

    def flush_all(self) -> None:
        for pointer in list(self.waiting):
            self.flush(pointer)

    # Control.

    def _local(self, inst: Inst) -> None:
        self.values[inst] = self.emitter.effect("local", inst.dtype, attr=inst.attr)

    def _loop(self, inst: Inst) -> None:
        self.flush_all()
        kind, _, stop, _ = inst.attr
        if isinstance(stop, Limit):
            stop = stop._replace(value=self.values[stop.value])
        counter, carries = self.emitter.open_loop(kind, stop, self.args(inst))
        self.values[inst] = counter
        self.carried[inst] = carries

    def _carry(self, inst: Inst) -> None:
        self.values[inst] = self.carried[inst.args[0]][inst.attr[0]]

    def _end(self, inst: Inst) -> None:
        self.flush_all()
        self.carried[inst] = self.emitter.close_loop(self.args(inst))

    def _result(self, inst: Inst) -> None:
        self.values[inst] = self.carried[inst.args[0]][inst.attr[0]]

    def _if(self, inst: Inst) -> None:
        self.flush_all()
        self.guards.append(self.emitter.open_if(self.values[inst.args[0]]))

    def _endif(self, inst: Inst) -> None:
        del inst
        self.flush_all()
        self.emitter.close_if(self.guards.pop())

    def _shuffle_xor(self, inst: Inst) -> None:
        args = self.args(inst)
        self.values[inst] = self.emitter.effect(inst.op, inst.dtype, 1, args, inst.attr)

    def _barrier(self, inst: Inst) -> None:
        self.flush_all()
        self.emitter.effect("barrier", inst.dtype)
