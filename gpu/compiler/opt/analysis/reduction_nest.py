"""What each operand of a reduction depends on, whatever the reduction computes.

A kernel that is one reduction inside independent loops reads operands: the largest parts of what it
combines that stand still in some of its loops. They are values, not buffers: a product of a matrix
with itself has two, `(a + c) @ b` has two as well. Each is read again in the loops in which it
stands still, and where loops move it in the same direction, as pixels and taps of a convolution do:
then few of its elements are distinct.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var, expr
from gpu.compiler.ir.kernel.tree import in_order, loads_of, values, writes
from gpu.compiler.ir.kernel.words import neighbours
from gpu.compiler.ir.optable import COSTLY_OPS, DOTS
from gpu.compiler.opt.analysis.loop_nest import outer_nest, perfect_nest


class Axis(NamedTuple):
    """Places of an operand that follow each other in one direction.

    Its value differs between iterations of the loops in `steps` by their sum alone, each times its
    step. The step of the first one is 1 or -1, so that a place is reached by that loop's variable.

    Attributes:
        steps: variables, and how many places an iteration of each moves on.
        low: the least sum.
        size: how many places there are.
    """

    steps: tuple[tuple[Var, int], ...]
    low: int
    size: int

    def place(self, at: Mapping[Var, Expr]) -> Expr:
        """The place, from 0, where the variables have the values `at`."""
        return sum((at[var] * step for var, step in self.steps), expr(-self.low))

    def reach(self, place: Expr) -> dict[Var, Expr]:
        """Values of the variables that lead to a place; the first one may leave its bounds."""
        (unit, sign), *others = self.steps
        return {unit: (place + self.low) * sign, **{var: expr(0) for var, _ in others}}


class Operand:
    """A part of what a reduction combines that stands still, or moves together, in some loops.

    Attributes:
        value: what it is.
        loads: the loads in it.
        moves: for each variable of the nest how far an iteration moves each place and each mask of
            the loads; None for one that is inside a division.
        steps: for each variable how many elements an iteration moves the loads on in memory, or
            words of neighbours if it is one; None where they disagree.
        masked: the variables that masks of the loads depend on.
    """

    def __init__(self, value: K.Value, own: frozenset[Var]):
        """`own` are the variables of the nest; others stand still."""
        self.value = value
        self.loads = loads_of(value)
        self.moves = _moves(value, self.loads, own)
        together = len(self.loads) if neighbours(value) else 1
        self.steps = {var: _step(self.loads, var, together) for var in self.moves}
        self.masked = frozenset[Var]().union(*(load.attr[2].vars for load in self.loads))
        self._reach = {var: sum(map(abs, own or ())) for var, own in self.moves.items()}
        self._ratios: dict[tuple[Var, Var], int] = {}

    def is_masked_inside(self, var: Var, start: Expr | int = 0, count: int = 0) -> bool:
        """Whether masks ask for `var` before the last of `count` iterations from `start` on.

        Without a count, before its own last one.
        """
        before = Var(var.name, 0, (count or var.extent) - 2)
        masks = (load.attr[2].subst({var: start + before}) for load in self.loads)
        return any(before in mask.vars for mask in masks)

    def axes(self, extents: Mapping[Var, int], lane: Var | None = None) -> list[Axis]:
        """The axes of the places reached while each variable has so many values; larger steps in
        memory first.

        That of `lane` is the last one. It has other loops in it only where that makes it smaller,
        and then an iteration of `lane` moves on by one place.
        """
        moving = [v for v in self.moves if extents[v] > 1 and v is not lane]
        moving.sort(key=self._reach.__getitem__)
        lanes: list[Axis] = []
        if lane is not None and lane in self.moves:
            lanes = [self._joined(lane, moving, extents)]
        found: list[Axis] = []
        while moving:
            found.append(self._joined(moving.pop(0), moving, extents, fused=True))
        found.sort(key=lambda axis: -abs(self.steps[axis.steps[0][0]] or 0))
        return found + lanes

    def _joined(
        self, unit: Var, others: list[Var], extents: Mapping[Var, int], fused: bool = False
    ) -> Axis:
        """The axis in which `unit` moves by one, with those of `others`, which leave the list, that
        reach places between its own or, if `fused`, next to them."""
        steps, low, size = [(unit, 1)], 0, extents[unit]
        for var in tuple(others):
            step = self._ratio(var, unit)
            if step and abs(step) < size + fused:
                steps.append((var, step))
                low += min(step, 0) * (extents[var] - 1)
                size += abs(step) * (extents[var] - 1)
                others.remove(var)
        return Axis(tuple(steps), low, size)

    def _ratio(self, var: Var, unit: Var) -> int:
        """How many iterations of `unit` one of `var` equals; 0 where it equals no number."""
        if (var, unit) not in self._ratios:
            own, one = self.moves[var] or (), self.moves[unit] or ()
            ratio = next((a // b for a, b in zip(own, one, strict=False) if b), 0)
            equal = len(own) == len(one) and all(
                a == b * ratio for a, b in zip(own, one, strict=False)
            )
            self._ratios[var, unit] = ratio if equal else 0
        return self._ratios[var, unit]


class Nest(NamedTuple):
    """A kernel that is one reduction, inside independent loops.

    Attributes:
        independent: variables of the independent loops, outermost first.
        before: statements before the reduction, which set its accumulator.
        reduction: variables of the loops of the reduction, outermost first.
        update: what combines.
        taken: what a sum of integers takes off of each step, which some results have in common.
        after: statements after it, which store results.
        accumulators: the private memory of an iteration.
        operands: what is combined, in parts that stand still in some loop.
        operations: arithmetic of a step that depends on all loops, the combination included, as
            `work_of` counts it.
    """

    independent: tuple[Var, ...]
    before: tuple[K.Update, ...]
    reduction: tuple[Var, ...]
    update: K.Update
    after: tuple[K.Update, ...]
    accumulators: tuple[K.Buf, ...]
    operands: tuple[Operand, ...]
    operations: int
    taken: K.Value | None = None

    @property
    def added(self) -> K.Update:
        """`update` without what is `taken`."""
        taken = self.taken is not None
        return self.update._replace(value=self.update.value.args[0]) if taken else self.update

    @property
    def steps(self) -> int:
        """Steps of the reduction."""
        return math.prod(var.extent for var in self.reduction)

    @property
    def all_steps(self) -> int:
        """Steps of the reductions of all results."""
        return self.steps * math.prod(var.extent for var in self.independent)

    @property
    def stores(self) -> list[K.Update]:
        """The statements that write results."""
        return [stmt for stmt in self.after if stmt.buf.space != "private"]


def reduction_nest(body: K.Block) -> Nest | None:
    """The kernel as a reduction of operands, or None where it is something else.

    That is also where an operand is written in the kernel. How often a loop runs may be known at
    launch only; the extent of its variable is then the most.
    """
    nest = outer_nest(body)
    if not nest or not all(map(_counts_up, nest)):
        return None
    stmts = list(in_order(nest[-1].body))
    loops = [number for number, stmt in enumerate(stmts) if isinstance(stmt, K.Loop)]
    allocated = [stmt.buf for stmt in stmts if isinstance(stmt, K.Alloc)]
    if len(loops) != 1 or any(buf.shape or buf.space != "private" for buf in allocated):
        return None
    first = stmts[loops[0]]
    assert isinstance(first, K.Loop)
    inner = perfect_nest(first)
    (update, *more) = inner[-1].body.body
    others = [stmt for stmt in stmts if not isinstance(stmt, K.Alloc | K.Loop)]
    if more or any(not isinstance(s, K.Update) or s.lets for s in (update, *others)):
        return None
    if not all(map(_counts_up, inner)):
        return None
    assert isinstance(update, K.Update)
    if update.monoid is None or update.buf not in allocated or update.mask is not ALWAYS:
        return None
    if update.buf in update.value.bufs:
        return None
    halves = stmts[: loops[0]], stmts[loops[0] + 1 :]
    before, after = (tuple(s for s in half if isinstance(s, K.Update)) for half in halves)
    own = frozenset(loop.var for loop in (*nest, *inner))
    step, taken = _separated(update, frozenset(loop.var for loop in nest))
    operands = tuple(_operands(step.value, own))
    written = {buf for buf, _, _ in writes(body)}
    if not operands or any(operand.value.bufs & written for operand in operands):
        return None
    return Nest(
        tuple(loop.var for loop in nest),
        before,
        tuple(loop.var for loop in inner),
        update,
        after,
        tuple(allocated),
        operands,
        _operations(step, operands),
        taken,
    )


def _separated(update: K.Update, independent: frozenset[Var]) -> tuple[K.Update, K.Value | None]:
    """What a step of a sum adds, and what it takes off if results have that in common."""
    value = update.value
    if update.monoid == "add" and value.dtype.is_int and value.attr == ("sub",):
        added, taken = value.args
        if added.vars & independent - taken.vars:
            return update._replace(value=added), taken
    return update, None


def _counts_up(loop: K.Loop) -> bool:
    return loop.kind == "serial" and loop.var.lo == 0


def _operands(value: K.Value, own: frozenset[Var]) -> Iterator[Operand]:
    """The largest parts of `value` that do not depend on all variables, of `own`, that it does.

    A load that does is one itself.
    """
    all_vars, seen = value.vars & own, set[K.Value]()
    stack = [value]
    while stack:
        part = stack.pop()
        if part in seen or part.kind in ("const", "index"):
            continue
        seen.add(part)
        loads = loads_of(part) if part.kind == "load" or part.vars & own != all_vars else []
        if loads:
            yield Operand(part, own)
        else:
            stack.extend(reversed(part.args))


def _moves(
    value: K.Value, loads: list[K.Value], own: frozenset[Var]
) -> dict[Var, tuple[int, ...] | None]:
    places = [place for load in loads for place in load.attr[1]]
    places += [constraint for load in loads for constraint in load.attr[2].constraints]
    places += [part.attr[0] for part in values(value, set()) if part.kind == "index"]
    plain = [None if place.is_affine else _divided(place) for place in places]
    divided = frozenset[Var]().union(*(found for found in plain if found))
    ordered = sorted(value.vars & own, key=lambda var: var.key)
    return {v: None if v in divided else tuple(p.coeff(v) for p in places) for v in ordered}


def _divided(place: Expr) -> frozenset[Var]:
    """The variables inside divisions."""
    return frozenset[Var]().union(*(a.num.vars for a, _ in place.terms if not isinstance(a, Var)))


def _step(loads: list[K.Value], var: Var, together: int) -> int | None:
    """How many elements all loads that depend on `var` move on with it; whole words of them as
    such, if so many are `together`."""
    places = [load.attr[1][-1] for load in loads if var in load.vars]
    steps = {None if var in _divided(place) else place.coeff(var) for place in places}
    if len(steps) != 1:
        return None if steps else 0
    (step,) = steps
    return step // together if step and step % together == 0 else step


def work_of(parts: Iterable[K.Value]) -> int:
    """Arithmetic that computes parts of a value, in operations like an addition."""
    return sum(
        COSTLY_OPS.get(part.attr[0], 1) if part.kind == "alu" else part.kind == "cast"
        for part in parts
    )


def _operations(update: K.Update, operands: tuple[Operand, ...]) -> int:
    """Arithmetic that depends on all loops; a product that is added to a sum is one with it."""
    inside: set[K.Value] = set()
    for operand in operands:
        inside |= set(values(operand.value, set()))
    count, value = work_of(values(update.value, inside)), update.value
    name = value.attr[0] if update.monoid == "add" and value.kind == "alu" else ""
    return count + 1 - (name in DOTS or (name == "mul" and value.dtype.is_float))
