"""Random graphs of every kind of node; `tests/prop/judge.py` says what they should compute."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir import optable
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as graph_build
from gpu.core.dtype import ALL, COMPLEXES, DType, dtypes
from prop.judge import largest, tiny
from prop.sizes import near_lanes

Array = npt.NDArray[Any]


def random_shape(rng: np.random.Generator, max_size: int) -> tuple[int, ...]:
    """Sizes of 0 to 4 dimensions: small and odd, sometimes near a vector's lanes, seldom 0."""
    shape: list[int] = []
    for _ in range(int(rng.integers(0, 5))):
        size = int(rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 16, 17], p=[0.02, 0.18, *[0.1] * 8]))
        if rng.random() < 0.25:
            size = near_lanes(rng, max_size)
        if math.prod(shape) * size <= max_size:
            shape.append(size)
    return tuple(shape)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Ordinary values with one in ten at an edge: NaN, inf, -0.0, subnormals, extremes."""
    if dtype is dtypes.bool:
        return rng.random(shape) < 0.5
    if dtype.is_complex:
        return random_values(rng, (*shape, 2), dtype.real).view(dtype.np)[..., 0]
    if dtype.is_float:
        plain = np.where(
            rng.random(shape) < 0.5, rng.normal(0, 2, shape), rng.integers(-4, 5, shape)
        )
        edges = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, tiny(dtype), -3 * tiny(dtype)]
        edges += [largest(dtype), -largest(dtype), 2.5, 1e10]
    else:
        low, high = max(int(dtype.min), -20), 20
        plain = rng.integers(low, high, shape)
        edges = []
    with np.errstate(all="ignore"):
        values = np.asarray(plain).astype(dtype.np)
        if dtype.is_int:
            special = np.array([dtype.min, dtype.max, 0, 1, dtype.bits - 1, dtype.bits], dtype.np)
        else:
            special = np.array(edges).astype(dtype.np)
    return np.where(rng.random(shape) < 0.1, rng.choice(special, shape), values)


def random_graph(
    rng: np.random.Generator,
    depth: int = 30,
    max_size: int = 4096,
    build: Any = graph_build,
    has_complex: bool = False,
) -> tuple[list[Node], dict[Hashable, Array]]:
    """A random graph of about `depth` operations, as its roots and the values of its buffers.

    Kinds, dtypes and shapes of all sorts occur, complex numbers with `has_complex`, and values are
    shared. `build` makes the nodes; one `rng` state gives one program, whatever `build` simplifies.
    """
    maker = _Maker(rng, max_size, build, has_complex)
    for _ in range(int(rng.integers(2, 5))):
        maker.leaf(random_shape(rng, max_size), maker.any_dtype())
    for _ in range(depth):
        maker.step()
    unused = [p for p in range(len(maker.pool)) if p not in maker.used]
    chosen = unused[-int(rng.integers(1, 6)) :]
    if rng.random() < 0.2:
        chosen.append(int(rng.integers(0, len(maker.pool))))  # a root that another one reads
    return [maker.pool[p] for p in chosen], maker.inputs


class _Maker:
    """A growing pool of nodes; values are named by their position in it."""

    def __init__(self, rng: np.random.Generator, max_size: int, build: Any, has_complex: bool):
        self.rng, self.max_size, self.build = rng, max_size, build
        self.has_complex = has_complex
        self.pool: list[Node] = []
        self.used: set[int] = set()
        self.inputs: dict[Hashable, Array] = {}

    def below(self, limit: int) -> int:
        """A random integer from 0 to `limit` - 1."""
        return int(self.rng.integers(0, limit))

    def any_dtype(self, kinds: frozenset[str] = optable.ELEMENT) -> DType:
        """A dtype of one of the kinds; float32 and int32 more often than others."""
        if self.has_complex and "complex" in kinds and self.rng.random() < 0.7:
            return COMPLEXES[self.below(len(COMPLEXES))]
        common = [dtypes.float32, dtypes.float32, dtypes.int32, dtypes.bool]
        choices = [d for d in common * (self.rng.random() < 0.6) or ALL if d.kind in kinds]
        choices = choices or [d for d in ALL if d.kind in kinds]
        return choices[self.below(len(choices))]

    def add(self, node: Node, *used: int) -> int:
        """Puts a node into the pool."""
        self.used.update(used)
        self.pool.append(node)
        return len(self.pool) - 1

    def pick(self) -> int:
        """A value; recent ones more often, so that programs grow deep."""
        recent = self.rng.random() < 0.75
        first = max(0, len(self.pool) - 4) if recent else 0
        return first + self.below(len(self.pool) - first)

    def leaf(self, shape: tuple[int, ...], dtype: DType) -> int:
        """A new buffer, constant or iota."""
        choice = self.rng.random()
        if choice < 0.7:
            handle = f"b{len(self.inputs)}"
            self.inputs[handle] = random_values(self.rng, shape, dtype)
            return self.add(self.build.buffer(handle, shape, dtype, "CPU"))
        if choice < 0.8 and len(shape) == 1:
            return self.add(self.build.iota(shape[0], dtype, "CPU"))
        value = optable.to_python(random_values(self.rng, (), dtype), dtype)
        return self.add(self.build.const(value, shape, dtype, "CPU"))

    def step(self) -> None:
        """One more operation."""
        weights = {
            "alu": 12, "cast": 2, "bitcast": 1, "reduce": 3, "reshape": 2, "expand": 2,
            "permute": 2, "slice_": 2, "pad": 2, "contiguous": 1, "detach": 0.5, "leaf": 1,
        }  # fmt: skip
        chances = np.array([*weights.values()]) / sum(weights.values())
        name = str(self.rng.choice([*weights], p=chances))
        if self.has_complex and self.rng.random() < 0.15:
            self.parts(self.pick())
        elif name == "leaf":
            self.leaf(random_shape(self.rng, self.max_size), self.any_dtype())
        elif name == "alu":
            self.alu()
        else:
            getattr(self, name)(self.pick())

    def parts(self, x: int) -> None:
        """The parts of complex numbers, numbers of parts, or a running total."""
        node = self.pool[x]
        if not node.dtype.is_complex:
            x = self.fit(x, node.shape, COMPLEXES[self.below(len(COMPLEXES))])
            node = self.pool[x]
        choice = self.below(4)
        if choice == 0:
            self.add(self.build.as_real(node), x)
        elif choice == 1:
            pairs = self.build.alu("neg", self.build.as_real(node))
            self.add(self.build.as_complex(pairs), x)
        elif choice == 2:
            self.add(self.build.complex_number(self.build.imag(node), self.build.real(node)), x)
        elif node.shape:
            monoid = ["add", "mul"][self.below(2)]
            self.add(self.build.scan(monoid, node, self.below(len(node.shape))), x)

    def alu(self) -> None:
        """A scalar operation on a picked value and others made to fit it."""
        rows = [row for row in optable.OPS.values() if row.domain]  # not those of words
        if self.has_complex and self.rng.random() < 0.8:
            rows = [row for row in rows if "complex" in row.domain]
        row = rows[self.below(len(rows))]
        first = self.pick()
        dtype, shape = self.pool[first].dtype, self.pool[first].shape
        if dtype.kind not in row.domain:
            dtype = self.any_dtype(row.domain)
        kinds = [dtype] * row.arity
        if row.name == "where":
            kinds[0] = dtypes.bool
        slot = self.below(row.arity)
        picks = [first if n == slot else self.pick() for n in range(row.arity)]
        args = [self.fit(p, shape, kind) for p, kind in zip(picks, kinds, strict=True)]
        self.add(self.build.alu(row.name, *(self.pool[a] for a in args)), *args)

    def fit(self, position: int, shape: tuple[int, ...], dtype: DType) -> int:
        """A value of this shape and dtype, made from that at `position` if it can be."""
        node = self.pool[position]
        rank = len(shape)
        padded = (1,) * (rank - len(node.shape)) + node.shape
        if node.shape == shape:
            pass
        elif node.size == math.prod(shape):
            position = self.add(self.build.reshape(node, shape), position)
        elif len(padded) == rank and all(a in (1, b) for a, b in zip(padded, shape, strict=True)):
            position = self.add(self.build.reshape(node, padded), position)
            position = self.add(self.build.expand(self.pool[position], shape), position)
        else:
            return self.leaf(shape, dtype)
        if self.pool[position].dtype.is_complex and not dtype.is_complex:
            part = self.build.imag if self.below(2) else self.build.real
            position = self.add(part(self.pool[position]), position)
        if self.pool[position].dtype is not dtype:
            position = self.add(self.build.cast(self.pool[position], dtype), position)
        return position

    def cast(self, x: int) -> None:
        """A conversion by value."""
        self.fit(x, self.pool[x].shape, self.any_dtype())

    def bitcast(self, x: int) -> None:
        """A conversion by bits; bool is left out, whose bits are 0 and 1 only."""
        source = self.pool[x].dtype
        if source.is_complex:
            return
        same = [d for d in ALL if d.bits == source.bits and d is not dtypes.bool]
        self.add(self.build.bitcast(self.pool[x], same[self.below(len(same))]), x)

    def reduce(self, x: int) -> None:
        """A reduction over some axes."""
        node = self.pool[x]
        monoids = [m for m in optable.MONOIDS.values() if node.dtype.kind in m.domain]
        axes = [a for a in range(len(node.shape)) if self.rng.random() < 0.5]
        monoid = monoids[self.below(len(monoids))].name
        self.add(self.build.reduce(monoid, node, axes), x)

    def reshape(self, x: int) -> None:
        """The elements dealt out to random factors of their number."""
        left = self.pool[x].size
        shape: list[int] = []
        while left > 1 and len(shape) < 4:
            divisors = [d for d in range(2, left + 1) if left % d == 0]
            shape.append(divisors[self.below(len(divisors))])
            left //= shape[-1]
        shape += [1] * self.below(2) + ([left] if left != 1 else [])
        self.add(self.build.reshape(self.pool[x], tuple(shape)), x)

    def expand(self, x: int) -> None:
        """Size-1 dimensions repeated, after one was added in front."""
        node = self.pool[x]
        if self.rng.random() < 0.5 and len(node.shape) < 5:
            x = self.add(self.build.reshape(node, (1, *node.shape)), x)
        shape = list(self.pool[x].shape)
        for axis, size in enumerate(shape):
            wanted = int(self.rng.integers(0, 7))
            if size == 1 and math.prod(shape) * wanted <= self.max_size:
                shape[axis] = wanted if wanted else 1
        self.add(self.build.expand(self.pool[x], tuple(shape)), x)

    def permute(self, x: int) -> None:
        """Axes in another order."""
        order = self.rng.permutation(len(self.pool[x].shape))
        self.add(self.build.permute(self.pool[x], tuple(int(a) for a in order)), x)

    def slice_(self, x: int) -> None:
        """A range of each axis, with steps of both signs."""
        ranges = []
        for size in self.pool[x].shape:
            step = int(self.rng.choice([1, 1, 2, 3, -1, -2]))
            start = self.below(size) if size else 0
            room = (size - start if step > 0 else start + 1) if size else 0
            most = -(-room // abs(step))
            count = 0 if self.rng.random() < 0.02 else most - self.below(max(most // 2, 1))
            ranges.append((start, count, step))
        self.add(self.build.slice_(self.pool[x], ranges), x)

    def pad(self, x: int) -> None:
        """Zeros around and between."""
        node, padding, size = self.pool[x], [], self.pool[x].size
        for old in node.shape:
            before, after = self.below(3), self.below(3)
            gap = self.below(3) if self.rng.random() < 0.3 else 0
            new = before + old + max(old - 1, 0) * gap + after
            if (size // old if old else 1) * new > self.max_size:
                before = after = gap = 0
                new = old
            size = size // old * new if old else new
            padding.append((before, after, gap))
        self.add(self.build.pad(node, padding), x)

    def contiguous(self, x: int) -> None:
        """Memory of its own."""
        self.add(self.build.contiguous(self.pool[x], self.below(3)), x)

    def detach(self, x: int) -> None:
        """The same value, cut off from gradients."""
        self.add(self.build.detach(self.pool[x]), x)


def mutated(text: str, rng: np.random.Generator) -> str:
    """`text` with a piece removed, repeated or replaced by noise."""
    first = int(rng.integers(0, len(text)))
    stop = min(len(text), first + int(rng.integers(1, 9)))
    noise = "".join(chr(int(c)) for c in rng.choice([*range(32, 127), 10, 0x661, 0x2212], 3))
    middle = ["", text[first:stop] * 3, noise, "9" * 30][int(rng.integers(0, 4))]
    return text[:first] + middle + text[stop:]
