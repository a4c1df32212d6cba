"""Copies of what a reduction reads, in memory near by, packed by lanes.

The last axis of a copy is that of the lanes, with zeros where a vector is not whole; where tiles
take parts of it, these are an axis of their own. So vectors inside are whole, and lie together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, NEVER, Expr, Mask, Var, at_least, at_most, expr
from gpu.compiler.ir.kernel.tree import Substitution, as_block, loads_of
from gpu.compiler.opt.analysis.lanes import fitting
from gpu.compiler.opt.analysis.reduction_nest import Axis, Operand
from gpu.compiler.opt.primitives.predication import masked_loads, zero

# Vectors of a row that a copy writes without a loop.
WRITTEN_OUT: Final = 8

Loops = tuple[tuple[Var, str], ...]


def rounded_up(extent: int, lanes: int) -> int:
    """As many iterations as whole vectors have."""
    return -(-extent // lanes) * lanes


def nested(loops: Iterable[tuple[Var, str]], body: K.Stmt) -> K.Stmt:
    """`body` inside loops of these kinds, of which some are run once, or perhaps once."""
    for var, kind in reversed(list(loops)):
        if var.extent > 1:
            body = K.Loop(var, kind, as_block(body))
        elif var.stop is not None:
            # What does not depend on a loop may be computed even if the loop never runs.
            body = K.If(at_least(var.stop, 1), as_block(body))
    return body


class OperandCopy(NamedTuple):
    """Memory with a copy of an operand.

    Attributes:
        buf: what it is in; its axes are numbers of tiles along the lanes, if there are any, and
            then those of the operand.
        axes: axes of the operand.
        start: where the loops began where it was made.
        tile: lanes of a tile, where numbers of tiles are an axis; else 0.
    """

    buf: K.Buf
    axes: Sequence[Axis]
    start: Mapping[Var, Expr]
    tile: int

    def load(self, at: Mapping[Var, Expr]) -> K.Value:
        """The element where the variables have the values `at`."""
        local = {var: value - self.start.get(var, 0) for var, value in at.items()}
        return K.load(self.buf, self.indices([axis.place(local) for axis in self.axes]))

    def indices(self, places: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where in memory the element at places of the axes is."""
        if not self.tile:
            return tuple(places)
        *rows, last = places
        return (last // self.tile, *rows, last % self.tile)


class _Run(NamedTuple):
    """Part of an axis of a copy.

    Attributes:
        place: where on the axis an element is.
        loops: variables in it, with the kinds of their loops.
        lane: its loop of lanes, if it has one.
        mask: where the axis has an element.
    """

    place: Expr
    loops: Loops = ()
    lane: Loops = ()
    mask: Mask = ALWAYS


class Copier:
    """Makes copies for tiles of some lanes.

    Attributes:
        lane: the loop of lanes.
        lanes: lanes of a vector.
        tile: how much of the loop of lanes a tile has.
    """

    def __init__(self, lane: Var, lanes: int, tile: int):
        self.lane, self.lanes, self.tile = lane, lanes, tile

    def memory(
        self, number: str, operand: Operand, start: Mapping[Var, Expr], extents: Mapping[Var, int]
    ) -> OperandCopy | None:
        """Memory for what is used of an operand by loops of these extents that begin at `start`.

        None for a single element, as what is left over of loops may have.
        """
        axes, lanes, tile = operand.axes(extents, self.lane), self.lanes, 0
        if not axes:
            return None
        shape = [axis.size for axis in axes]
        if self.lane in operand.moves:
            size = extents[self.lane]
            shape[-1] += rounded_up(size, lanes) - size
            if len(axes[-1].steps) == 1 and shape[-1] > self.tile:
                tile = self.tile
                shape = [-(-shape[-1] // tile), *shape[:-1], tile]
        buf = K.Buf(f"near{number}", operand.value.dtype, tuple(shape), "team")
        return OperandCopy(buf, axes, start, tile)

    def filled(self, number: str, operand: Operand, copied: OperandCopy) -> Iterator[K.Stmt]:
        """The loops that copy an operand: along its last axis in vectors."""
        suffix = f"_{number}"
        *rows, row = copied.axes
        yield from self.cleared(rows, row, copied.buf, suffix)
        whole = {
            axis: axis.size if self.is_padded(axis) else _whole(operand, axis, copied.start)
            for axis in copied.axes
        }
        for run in self.runs(row, whole[row], copied.tile, suffix):
            square = self.square(operand, rows, row, run, whole)
            order = sorted(enumerate(rows), key=lambda numbered: numbered[1] == square)
            each = []
            for n, axis in order:
                parts = [*_squares(whole[axis], run, suffix)] if axis == square else []
                counter = Var(f"c{n}{suffix}", 0, whole[axis] - 1)
                parts = parts or [_Run(expr(counter), ((counter, "serial"),))]
                last = [_Run(expr(whole[axis]))] if whole[axis] < axis.size else []
                each.append([*parts, *last])
            for chosen in itertools.product(*each):
                at = {row: run.place} | {
                    axis: part.place for (_, axis), part in zip(order, chosen, strict=True)
                }
                outer = [loop for part in chosen for loop in part.loops if loop[1] == "serial"]
                turned = [loop for part in chosen for loop in part.loops if loop[1] == "unroll"]
                inner = [(var, "serial" if turned else kind) for var, kind in run.loops]
                loops = [*outer, *inner, *turned, *run.lane]
                yield nested(loops, self.element(operand, copied, at, run.mask))

    def cleared(self, rows: Sequence[Axis], row: Axis, buf: K.Buf, suffix: str) -> Iterator[K.Stmt]:
        """Zeros behind the last axis, where lanes that are no elements read on.

        What they compute is not stored, but floats below the normal ones, as old memory may hold,
        take CPUs of Intel's a hundred times as long.
        """
        if self.is_padded(row) or buf.shape[-1] == row.size or not buf.dtype.is_float:
            return
        lane = Var(f"l{suffix}", 0, self.lanes - 1)
        counters = [Var(f"c{n}{suffix}", 0, axis.size - 1) for n, axis in enumerate(rows)]
        at = (*map(expr, counters), lane + (buf.shape[-1] - self.lanes))
        loops = [*((counter, "serial") for counter in counters), (lane, "vector")]
        yield nested(loops, K.Update(buf, at, None, zero(buf.dtype)))

    def runs(self, row: Axis, size: int, tile: int, suffix: str) -> Iterator[_Run]:
        """The vectors along the last axis of a copy: of whole tiles, then of what is left.

        What is behind the first `size` places is done alone.
        """
        padded = self.is_padded(row)
        lanes = self.lanes if padded else fitting(self.lanes, size)
        if size < row.size:
            yield _Run(expr(size))
        if not padded and size < lanes:
            one = Var(f"e{suffix}", 0, size - 1)
            yield _Run(expr(one), ((one, "unroll"),))
            return
        lane = Var(f"l{suffix}", 0, lanes - 1)
        tiles, left = divmod(size, tile) if tile else (0, size)
        if tiles:
            number = Var(f"t{suffix}", 0, tiles - 1)
            vectors = _vectors(f"v{suffix}", tile // lanes)
            place = number * tile + vectors[0] * lanes + lane
            yield _Run(place, ((number, "serial"), vectors), ((lane, "vector"),))
        first, (whole, rest) = expr(tiles * tile), divmod(left, lanes)
        if whole:
            vectors = _vectors(f"w{suffix}", whole)
            place = first + vectors[0] * lanes + lane
            yield _Run(place, (vectors,), ((lane, "vector"),))
        if rest and padded:
            place = first + whole * lanes + lane
            yield _Run(place, (), ((lane, "vector"),), at_most(place, size - 1))
        elif rest:
            # The last vector begins where it ends with the axis.
            yield _Run(first + left - lanes + lane, (), ((lane, "vector"),))

    def is_padded(self, axis: Axis) -> bool:
        """Whether an axis, that of the lanes, has whole vectors."""
        return axis.steps[0][0] is self.lane and len(axis.steps) == 1

    def square(
        self,
        operand: Operand,
        rows: Sequence[Axis],
        row: Axis,
        run: _Run,
        whole: Mapping[Axis, int],
    ) -> Axis | None:
        """The axis along which memory is loaded, and then transposed, where lanes lie apart."""
        unmasked = {axis.steps[0][0] for axis, size in whole.items() if size < axis.size}
        if not run.lane or run.mask is not ALWAYS or operand.masked - unmasked:
            return None
        if operand.steps[row.steps[0][0]] in (0, 1, -1):
            return None
        lanes = run.lane[0][0].extent
        beside = (a for a in rows if operand.steps[a.steps[0][0]] == a.steps[0][1])
        return next((axis for axis in beside if whole[axis] >= lanes), None)

    def element(
        self,
        operand: Operand,
        copied: OperandCopy,
        at: Mapping[Axis, Expr],
        mask: Mask,
    ) -> K.Update:
        """Copies the element at places of the axes."""
        env: dict[Var, Expr | int] = dict.fromkeys(operand.moves, 0) | dict(copied.start)
        for axis, where in at.items():
            for var, local in axis.reach(where).items():
                env[var] = copied.start.get(var, expr(0)) + local
        indices = copied.indices([at[axis] for axis in copied.axes])
        value = masked_loads(Substitution(env).value(operand.value), mask)
        return K.Update(copied.buf, indices, None, _without_unread(value))


def _whole(operand: Operand, axis: Axis, start: Mapping[Var, Expr]) -> int:
    """How many places of an axis there are before a last one alone that masks depend on."""
    (var, step), *others = axis.steps
    if others or step != 1 or axis.size < 2 or var not in operand.masked:
        return axis.size
    masked = operand.is_masked_inside(var, start.get(var, expr(0)), axis.size)
    return axis.size if masked else axis.size - 1


def _without_unread(value: K.Value) -> K.Value:
    """A value with zeros for what is never read."""
    unread = (load for load in loads_of(value) if load.attr[2] is NEVER)
    zeros = {load: zero(load.dtype) for load in unread}
    return Substitution({}, values=zeros).value(value) if zeros else value


def _vectors(name: str, count: int) -> tuple[Var, str]:
    """A loop over vectors, written out where it is short."""
    return Var(name, 0, count - 1), "unroll" if count <= WRITTEN_OUT else "serial"


def _squares(size: int, run: _Run, suffix: str) -> Iterator[_Run]:
    """The parts of an axis that make squares with the lanes of a run; the last one may overlap."""
    side = run.lane[0][0].extent
    inner = Var(f"q{suffix}", 0, side - 1)
    whole, rest = divmod(size, side)
    counter = Var(f"p{suffix}", 0, whole - 1)
    yield _Run(counter * side + inner, ((counter, "serial"), (inner, "unroll")))
    if rest:
        yield _Run(expr(size - side) + inner, ((inner, "unroll"),))
