"""Views: how one tensor shows the elements of another, and how writing to it reaches them.

A view is a chain of steps from a base, the tensor that owns the value. Graph nodes are immutable,
so nothing is ever written in place here: a step has a forward direction, `apply`, and a backward
one, `write`, which gives the source with the elements that the step shows replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue

if TYPE_CHECKING:
    from gpu.tensor.handle import Handle

Range = tuple[int, int, int]  # start, size, step


class Step(Protocol):
    """One movement of a view."""

    def apply(self, source: Node) -> Node:
        """What the step shows of `source`."""

    def write(self, source: Node, value: Node) -> Node:
        """`source` with what the step shows of it replaced by `value`.

        Raises InvalidValue where the step shows an element more than once.
        """


class View:
    """The steps that lead from a base to a view of it; the last one, and the view before it.

    Attributes:
        base: the tensor whose elements are shown; not a view itself.
        step: the last step.
        before: the steps before it, None if there are none.
    """

    __slots__ = ("base", "before", "step")

    def __init__(self, base: Handle, step: Step, before: View | None = None):
        self.base, self.step, self.before = base, step, before

    def then(self, step: Step) -> View:
        """A view of this view; two slices in a row are one."""
        if isinstance(step, Slice) and isinstance(self.step, Slice):
            return View(self.base, self.step.then(step), self.before)
        return View(self.base, step, self)

    def of(self, base: Handle) -> View:
        """The same view of another base."""
        return View(base, self.step, None if self.before is None else self.before.of(base))

    def derive(self) -> Node:
        """The view's value, from the value that the base has now."""
        node = self.base._node
        for step in self._steps():
            node = step.apply(node)
        return node

    def write(self, value: Node) -> Node:
        """The base's value after the view's has been replaced by `value`."""
        steps = self._steps()
        sources = [self.base._node]
        for step in steps[:-1]:
            sources.append(step.apply(sources[-1]))
        for step, source in zip(reversed(steps), reversed(sources), strict=True):
            value = step.write(source, value)
        return value

    @property
    def detached(self) -> bool:
        """Whether gradients stop on the way to the base."""
        return any(isinstance(step, Detach) for step in self._steps())

    def _steps(self) -> list[Step]:
        steps = []
        view: View | None = self
        while view is not None:
            steps.append(view.step)
            view = view.before
        return steps[::-1]


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in row-major order under another shape."""

    shape: Shape

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.reshape(source, self.shape)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        return G.reshape(value, source.shape)


@dataclass(frozen=True, slots=True)
class Permute:
    """Axis i is axis order[i] of the source."""

    order: tuple[int, ...]

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.permute(source, self.order)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        return G.permute(value, [self.order.index(axis) for axis in range(len(self.order))])


@dataclass(frozen=True, slots=True)
class Slice:
    """Of each axis the elements start, start + step, ..., `size` of them."""

    ranges: tuple[Range, ...]

    def then(self, inner: Slice) -> Slice:
        """This and then `inner` in one step."""
        return Slice(
            tuple(
                (start + step * at, size, step * by)
                for (start, _, step), (at, size, by) in zip(self.ranges, inner.ranges, strict=True)
            )
        )

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.slice_(source, self.ranges)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        if 0 in value.shape:
            return G.flat(source, value)
        upwards = G.slice_(
            value,
            [(0, size, 1) if step > 0 else (size - 1, size, -1) for _, size, step in self.ranges],
        )
        region = [
            (start if step > 0 else start + (size - 1) * step, abs(step))
            for start, size, step in self.ranges
        ]
        return G.write(source, upwards, region)


@dataclass(frozen=True, slots=True)
class Expand:
    """Axes of size 1 repeated."""

    shape: Shape

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.expand(source, self.shape)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`; only where nothing is repeated."""
        if 0 in value.shape:
            return source
        if source.shape != value.shape:
            raise InvalidValue(
                f"a tensor expanded from shape {list(source.shape)} to {list(value.shape)} shows "
                "elements more than once and cannot be written to; write to its .clone()"
            )
        return value


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `size` elements along an axis, `step` apart; their elements are the last axis."""

    axis: int
    size: int
    step: int

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        repeated = G.expand(G.reshape(source, (*source.shape, 1)), (*source.shape, self.size))
        count = (source.shape[self.axis] - self.size) // self.step + 1
        return G.skew(repeated, self.axis, len(source.shape), self.step, 1, count)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`; only where windows do not overlap."""
        if 0 in value.shape:
            return source
        axis, last = self.axis, value.shape[self.axis] - 1
        if last and self.step < self.size:
            raise InvalidValue(
                f"windows of {self.size} elements {self.step} apart overlap and cannot be "
                "written to; write to their .clone()"
            )
        # Every window but the last one is the start of a row of `step` elements.
        value = G.permute(value, _moved_behind(axis, len(source.shape)))
        if last:
            body = _along(source.shape, axis, 0, last * self.step)
            rows = Reshape((*source.shape[:axis], last, self.step, *source.shape[axis + 1 :]))
            block = rows.apply(body.apply(source))
            starts = _along(block.shape, axis + 1, 0, self.size)
            heads = _along(value.shape, axis, 0, last).apply(value)
            block = starts.write(block, heads)
            source = body.write(source, rows.write(body.apply(source), block))
        end = _along(source.shape, axis, last * self.step, self.size)
        tail = _along(value.shape, axis, last, 1).apply(value)
        return end.write(source, G.reshape(tail, end.apply(source).shape))


@dataclass(frozen=True, slots=True)
class AsReal:
    """Complex numbers as pairs of floats, which are a last axis."""

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.as_real(source)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        return G.as_complex(value)


@dataclass(frozen=True, slots=True)
class AsComplex:
    """Pairs of floats as complex numbers."""

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.as_complex(source)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        return G.as_real(value)


@dataclass(frozen=True, slots=True)
class Part:
    """The real parts of complex numbers for 0, the imaginary parts for 1."""

    which: int

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.imag(source) if self.which else G.real(source)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        region = [*((0, 1) for _ in source.shape), (self.which, 1)]
        column = G.reshape(value, (*value.shape, 1))
        return G.as_complex(G.write(G.as_real(source), column, region))


@dataclass(frozen=True, slots=True)
class Detach:
    """The same elements, through which no gradient flows."""

    def apply(self, source: Node) -> Node:
        """See `Step`."""
        return G.detach(source)

    def write(self, source: Node, value: Node) -> Node:
        """See `Step`."""
        return value


def whole(shape: Sequence[int]) -> list[Range]:
    """The ranges that take all of every axis."""
    return [(0, size, 1) for size in shape]


def _along(shape: Shape, axis: int, start: int, count: int) -> Slice:
    """`count` elements of one axis from `start` on, and all of the others."""
    ranges = whole(shape)
    ranges[axis] = (start, count, 1)
    return Slice(tuple(ranges))


def _moved_behind(axis: int, rank: int) -> list[int]:
    """The order that brings the last of `rank` + 1 axes to the place behind `axis`."""
    order = list(range(rank))
    order.insert(axis + 1, rank)
    return order
