"""Random graphs with symbolic axes, of whole numbers: whatever computes them must agree exactly."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import bound, has_symbols, upper, upper_shape
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.tensor.variable import Var
from prop.sizes import near_lanes

Array = npt.NDArray[Any]

MAX_SIZE = 3000
_OPS = ("add", "sub", "mul", "max", "min", "xor")


def variables(seed: int) -> tuple[Var, ...]:
    """The variables of program `seed`; the bounds of half of them are near a vector's lanes."""
    rng = np.random.default_rng([seed, 1])
    most = [near_lanes(rng, 70) if rng.random() < 0.5 else usual for usual in (13, 18, 24)]
    return (
        Var("p", 0, most[0]),
        Var("i", 1, most[1]),
        Var("m", 4, most[2] // 4 * 4 + 4, multiple_of=4),
    )


def random_values(rng: np.random.Generator, seed: int) -> tuple[int, ...]:
    """A value for each of the variables of program `seed`; bounds more often than others."""
    picked = []
    for var in variables(seed):
        inside = int(rng.integers(var.lo, var.hi + 1)) // var.multiple_of * var.multiple_of
        picked.append([var.lo, var.hi, inside, inside][int(rng.integers(0, 4))])
    return tuple(picked)


def symbolic_graph(seed: int, values: tuple[int, ...], depth: int = 12) -> list[Node]:
    """The roots of program `seed`, its variables bound to `values`; these change nothing else."""
    bound_to = zip(variables(seed), values, strict=True)
    maker = _Maker(np.random.default_rng(seed), [var.bind(value) for var, value in bound_to])
    for _ in range(3):
        maker.leaf()
    while not maker.pool:  # all were too large
        maker.leaf()
    for _ in range(depth):
        maker.step()
    return maker.pool[-3:]


def least(size: Any) -> int:
    """The smallest value of a size."""
    return int(size.lo if has_symbols(size) else size)


def memory_of(handle: Hashable, shape: tuple[int, ...]) -> Array:
    """The memory of a buffer, whose unused elements hold something too."""
    rng = np.random.default_rng(abs(hash(handle)) % 1000)
    return rng.integers(-9, 10, upper_shape(shape), np.int32)


def input_of(node: Node) -> Array:
    """The value of a buffer, of the sizes that its variables are bound to."""
    return cut(memory_of(node.attr[0], node.shape), node.shape)


def cut(memory: Array, shape: tuple[int, ...]) -> Array:
    """The elements of a tensor of `shape` in its memory."""
    whole = memory.reshape(upper_shape(shape))
    return np.asarray(whole[tuple(slice(n) for n in bound(shape))])


class _Maker:
    """A growing pool of nodes. Choices are made by bounds, never by values."""

    def __init__(self, rng: np.random.Generator, sizes: list[Any]):
        self.rng = rng
        self.sizes = sizes
        self.pool: list[Node] = []
        self.buffers = 0

    def below(self, limit: int) -> int:
        """A random integer from 0 to `limit` - 1."""
        return int(self.rng.integers(0, limit))

    def symbolic(self) -> Any:
        """A symbolic size."""
        p, i, m = self.sizes
        halves = (i + 1) // 2, m // 2, i - i // 2, m - m // 3, (p + i) // 2
        return [p, i, m, p + 1, i + 2, 3 * p, p.hi + 7 - p, *halves][self.below(12)]

    def any_size(self) -> Any:
        """A size; a small number as often as not."""
        return self.symbolic() if self.rng.random() < 0.5 else [1, 2, 3, 5, 8, 16][self.below(6)]

    def add(self, node: Node) -> None:
        """Puts a node into the pool unless it is too large."""
        if node.size <= MAX_SIZE:
            self.pool.append(node)

    def pick(self) -> Node:
        """A value; recent ones more often."""
        return self.pool[max(0, len(self.pool) - 1 - int(self.rng.exponential(1.5)))]

    def leaf(self) -> None:
        """A buffer of symbolic shape, or a symbolic part of one of a shape of numbers."""
        shape = tuple(self.any_size() for _ in range(1 + self.below(3)))
        if self.rng.random() < 0.5:
            self.add(self.buffer(shape))
            return
        starts = [[0, 0, 3, self.sizes[0]][self.below(4)] for _ in shape]
        wide = tuple(upper(start + size) for start, size in zip(starts, shape, strict=True))
        ranges = [(start, size, 1) for start, size in zip(starts, shape, strict=True)]
        self.add(G.slice_(self.buffer(wide), ranges))

    def buffer(self, shape: tuple[int, ...]) -> Node:
        """A new buffer."""
        self.buffers += 1
        return G.buffer(self.buffers, shape, dtypes.int32, "CPU")

    def like(self, shape: tuple[int, ...]) -> Node:
        """A value of this shape: from the pool if there is one."""
        fitting = [node for node in self.pool if node.shape == shape]
        if fitting and self.rng.random() < 0.8:
            return fitting[self.below(len(fitting))]
        if has_symbols(shape[-1:]) and self.rng.random() < 0.5:
            line = (1,) * (len(shape) - 1) + shape[-1:]
            return G.expand(G.reshape(G.iota(shape[-1], dtypes.int32, "CPU"), line), shape)
        return self.buffer(shape)

    def step(self) -> None:
        """One more operation."""
        kinds = ("alu", "alu", "alu", "reduce", "permute", "part", "pad", "group", "product",
                 "write", "index", "gather", "scan", "memory")  # fmt: skip
        getattr(self, kinds[self.below(len(kinds))])(self.pick())

    def alu(self, x: Node) -> None:
        """An operation on two values."""
        self.add(G.alu(_OPS[self.below(len(_OPS))], x, self.like(x.shape)))

    def reduce(self, x: Node) -> None:
        """A reduction, and perhaps its result at each element again."""
        axes = [a for a in range(len(x.shape)) if self.rng.random() < 0.6]
        result = G.reduce(("add", "max", "mul")[self.below(3)], x, axes)
        back = self.rng.random() < 0.5
        self.add(G.alu("sub", x, G.expand(result, x.shape)) if back else result)

    def permute(self, x: Node) -> None:
        """Axes in another order."""
        self.add(G.permute(x, [int(a) for a in self.rng.permutation(len(x.shape))]))

    def part(self, x: Node) -> None:
        """All of each axis, backwards, every other element, or without the first ones."""
        ranges = []
        for size in x.shape:
            choices = [(0, size, 1), (size - 1, size, -1), (0, (size + 1) // 2, 2)]
            choices += [(1, size - 1, 1), (0, 1, 1)] if least(size) else []
            ranges.append(choices[self.below(len(choices))])
        self.add(G.slice_(x, ranges))

    def pad(self, x: Node) -> None:
        """Zeros before and after."""
        counts = [0, 0, 1, 3, self.sizes[0], self.sizes[1]]
        sides = [(counts[self.below(6)], counts[self.below(6)], 0) for _ in x.shape]
        self.add(G.pad(x, sides))

    def group(self, x: Node) -> None:
        """An axis joined to the symbolic one before it, or a new axis of size 1."""
        for axis in range(len(x.shape) - 1):
            first, second = x.shape[axis : axis + 2]
            if not has_symbols(second):
                behind = x.shape[axis + 2 :]
                self.add(G.reshape(x, (*x.shape[:axis], first * second, *behind)))
                return
        self.add(G.reshape(x, (*x.shape[:1], 1, *x.shape[1:])))

    def product(self, x: Node) -> None:
        """x @ y, y with as many rows as x has columns."""
        if len(x.shape) != 2:
            return
        rows, depth = x.shape
        columns = self.any_size()
        whole = (rows, columns, depth)
        y = self.like((columns, depth))
        if upper(rows) * upper(columns) * upper(depth) > 10 * MAX_SIZE:
            return
        left = G.expand(G.reshape(x, (rows, 1, depth)), whole)
        right = G.expand(G.reshape(y, (1, columns, depth)), whole)
        total = G.reduce("add", G.alu("mul", left, right), (2,))
        self.add(G.reshape(total, (rows, columns)))

    def write(self, x: Node) -> None:
        """One element along each axis replaced, or all but the first."""
        if 0 in map(least, x.shape):
            return
        starts = [(size - 1) * self.below(2) for size in x.shape]
        self.add(G.write(x, self.like((1,) * len(x.shape)), [(start, 1) for start in starts]))

    def index(self, x: Node) -> None:
        """A size as a number."""
        value = G.index(self.symbolic(), dtypes.int32, "CPU")
        self.add(G.alu("add", x, G.expand(G.reshape(value, (1,) * len(x.shape)), x.shape)))

    def gather(self, x: Node) -> None:
        """Elements along the first axis, by an index that is out of range at times."""
        count = self.any_size()
        self.add(G.gather(x, self.like((count, *x.shape[1:])), 0))

    def scan(self, x: Node) -> None:
        """Running sums."""
        self.add(G.scan("add", x, self.below(len(x.shape))))

    def memory(self, x: Node) -> None:
        """Memory of its own."""
        self.add(G.contiguous(x))
