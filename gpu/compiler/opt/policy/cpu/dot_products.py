"""Tiles for sums of products whose lanes have to run along the sum.

Where no output loop walks memory as vectors do (the weights of a convolution, a matrix times a
vector, a product with a transposed matrix) the partial sums are the lanes. Output loops are written
out around them, so that each vector that is loaded is used several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var, divides
from gpu.compiler.ir.kernel.tree import allocated, loads_of
from gpu.compiler.opt.analysis.lanes import fitting, lanes_of
from gpu.compiler.opt.analysis.loop_nest import scattered, sum_of_products
from gpu.compiler.opt.opts import Bind, Opt, Reorder, Rfactor, Split
from gpu.compiler.targets import Target

# Vectors of a sum that are written out, where its last one is not whole.
MOST_ROUNDS: Final = 8


class Dots(NamedTuple):
    """The loops of a tile of dot products.

    Attributes:
        outer: output loops around the tiles.
        near: output loops inside them: all their iterations read about the same memory, as the taps
            of a convolution do.
        first: the output loop that only one operand depends on, and how many steps are written out.
        second: the same for the other operand, or None.
        along: the innermost loop of the sum.
        lanes: partial sums of each dot product.
    """

    outer: tuple[Var, ...]
    near: tuple[Var, ...]
    first: tuple[Var, int]
    second: tuple[Var, int] | None
    along: Var
    lanes: int


def match(kernel: K.Kernel, target: Target) -> Dots | None:
    """The tile for a kernel that is one sum of products, or None.

    What the loops around make for each of their iterations is memory, which no loop that is written
    out has.
    """
    found = sum_of_products(kernel)
    if found is None or _reads_what_is_made(found.update.value, kernel):
        return None
    along, product = found.reduction[-1], found.update.value
    lanes = fitting(lanes_of(target, product.dtype.itemsize), along.extent)
    if along.extent < lanes or scattered(found.update, along):
        return None
    return _tile(found.independent, product, along, lanes, target.registers)


def _reads_what_is_made(value: K.Value, kernel: K.Kernel) -> bool:
    made = set(allocated(kernel.body))
    return any(load.attr[0] in made for load in loads_of(value))


def _tile(
    independent: tuple[Var, ...], product: K.Value, along: Var, lanes: int, registers: int
) -> Dots | None:
    a, b = product.args
    only_a = [v for v in independent if v in a.vars and v not in b.vars]
    only_b = [v for v in independent if v in b.vars and v not in a.vars]
    if len(only_a) < len(only_b) or not only_a:
        only_a, only_b = only_b, only_a
    if not only_a:
        return None
    first = max(only_a, key=lambda v: v.extent)
    second: tuple[Var, int] | None = None
    if only_b:
        # The narrow loop whole if it fits, then as many of the other as registers allow: sums,
        # a vector for each step of one operand, and one for the other.
        narrow = min(only_b, key=lambda v: v.extent)
        inner = _divisor(narrow, 4)
        second = narrow, inner
        steps = _divisor(first, (registers - inner - 1) // inner)
    else:
        steps = _divisor(first, registers // 4)
    tiled = {first} | ({second[0]} if second else set())
    shortest = min(_step(product, v) for v in tiled)
    others = [v for v in independent if v not in tiled]
    near = tuple(v for v in others if _step(product, v) < shortest)
    outer = tuple(v for v in others if v not in near)
    return Dots(outer, near, (first, steps), second, along, lanes)


def _step(product: K.Value, var: Var) -> int:
    """The most elements that an iteration of `var` moves on in memory."""
    places = (i for load in loads_of(product) for i in load.attr[1])
    return max((abs(i.coeff(var)) for i in places), default=0)


def _divisor(var: Var, most: int) -> int:
    """The largest number up to `most` that divides the iterations of `var` in every launch."""
    return max(d for d in range(1, max(most, 1) + 1) if divides(d, var))


def tile(dots: Dots) -> Iterator[Opt]:
    """The transformations that make the tile."""
    tiled = [pair for pair in (dots.first, dots.second) if pair is not None]
    names = [var.name for var, _ in tiled]
    outer, near = ([v.name for v in loops] for loops in (dots.outer, dots.near))
    yield Reorder((*outer, *names, *near))
    counted, written_out = [], []
    for var, steps in tiled:
        if steps == var.extent and var.stop is None:
            written_out.append(var.name)
        elif steps == 1:
            counted.append(var.name)
        else:
            yield Split(var.name, steps)
            counted.append(f"{var.name}o")
            written_out.append(f"{var.name}i")
    yield Reorder((*counted, *near, *written_out))
    along = dots.along.name
    if _ends_in_zeros(dots):
        # The last vector is filled up with zeros; one by one, its elements would cost more.
        yield Split(along, dots.lanes, tail="zero")
        written_out.append(f"{along}o")
        along = f"{along}i"
    yield Rfactor(along, dots.lanes)
    for part in "zif":
        yield Bind(f"{along}{part}", "vector")
    for name in written_out:
        yield Bind(name, "unroll")


def _ends_in_zeros(dots: Dots) -> bool:
    """Whether the sum is a few vectors and a rest that is longer than one element."""
    if dots.along.stop is not None:
        return False
    rounds, rest = divmod(dots.along.extent, dots.lanes)
    return rest > 1 and rounds < MOST_ROUNDS
