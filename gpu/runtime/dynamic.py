"""Numbers that change from one graph to the next, which become arguments of its kernels.

Where slices, pads and writes start, and what constants are, is no part of a graph's form. Graphs
of one form are a `Family`. The first is compiled with its numbers in the code. Where another one's
differ, those places vary from then on, and a graph is compiled that takes them at launch: it serves
all values. A graph that was compiled for just these numbers goes first.

A place varies unless its value chooses what code is made; docs/architecture.md has the rule. Places
that vary and have equal values take one argument, so that what is read and written at one offset is
still known to be; where other places are equal, it is another program.

`general` makes that graph: offsets are symbols (`gpu/compiler/ir/dims.py`) and constants the bits
of such symbols, so that nothing behind it, and no device, knows of either.
"""

from __future__ import annotations

import itertools
import math
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from gpu.compiler.ir.dims import Symbol, dimension, is_symbolic
from gpu.compiler.ir.graph import LOOPING, MOVEMENT, Node, make, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.index.expression import Expr, expr
from gpu.compiler.ir.optable import constant_key
from gpu.core.dtype import DType, dtypes
from gpu.runtime.device import Device

# Of each node that has numbers: that of a constant, one for each axis of others.
Numbers: TypeAlias = tuple[Any, ...]

WITH_NUMBERS: Final = frozenset({"const", "slice", "pad", "write"})
# Operations that are other code for other constants, to shift by.
_BY_VALUE: Final = frozenset({"shl", "shr"})
# What has the values of its first source; a rule of gradients has other sources besides.
_SHOWING: Final = MOVEMENT | {"barrier", "custom_grad", "detach"}
# What else reads a constant as a value like others. Positions say what is read.
_VALUES: Final = LOOPING | {
    "write",
    "cast",
    "bitcast",
    "reduce",
    "pad",
    "contiguous",
    "copy",
    "loop",
    "kernel",
    "host",
}
_INTS: Final = frozenset({int})
_WORD: Final = dtypes.int32  # what every device takes
_FORMATS: Final = {("float", 1): "f", ("float", 2): "d", ("int", 1): "i", ("int", 2): "q",
                   ("uint", 1): "I", ("uint", 2): "Q"}  # fmt: skip


class Offset(NamedTuple):
    """A place where a slice, pad or write starts, and between what bounds."""

    lo: int
    hi: int

    @property
    def width(self) -> int:
        """Words that a value takes."""
        return 1

    def chooses(self, value: int) -> bool:
        """Whether this value chooses the code: none does."""
        return False

    def words(self, value: int) -> tuple[int, ...]:
        """The value as it is passed."""
        return (value,)


class Number(NamedTuple):
    """A place that is a constant's value, which is passed as its bits."""

    dtype: DType

    @property
    def lo(self) -> int:
        """The smallest word."""
        return int(_WORD.min)

    @property
    def hi(self) -> int:
        """The largest word."""
        return int(_WORD.max)

    @property
    def width(self) -> int:
        """Words of 32 bits that a value takes."""
        return 1 if self.dtype.bits <= _WORD.bits else 2

    def chooses(self, value: Any) -> bool:
        """Whether this value, as `constant_key` has it, may make other code."""
        return isinstance(value, str) or abs(value) in (1, math.inf)

    def words(self, value: float) -> tuple[int, ...]:
        """The bits of the value, the lowest word first; narrow floats as float32."""
        packed = struct.pack("<" + _FORMATS[self.dtype.kind, self.width], value)
        return struct.unpack(f"<{self.width}i", packed)


Place: TypeAlias = Offset | Number


def without_numbers(node: Node, numbers: list[Any]) -> tuple[Any, ...]:
    """What the form of a graph has for the attributes of a node, whose numbers go to `numbers`."""
    if node.kind == "const":
        numbers.append(constant_key(*node.attr))
        return ()
    starts = tuple([attr[0] for attr in node.attr])
    if not _INTS.issuperset(map(type, starts)):
        return node.attr
    if node.kind != "pad":
        numbers.append(starts)
        return tuple([step for _, step in node.attr])
    if not _INTS.issuperset([type(after) for _, after, _ in node.attr]):
        return node.attr
    numbers.append(starts)  # the shapes tell how much comes after
    return tuple([gap for _, _, gap in node.attr])


class Arguments(NamedTuple):
    """What a graph of a family passes to the program that serves all values.

    Attributes:
        pattern: which of the family's programs it is: the numbers that do not vary, and which of
            the others are equal.
        passed: which argument each number takes, both counted from 0.
        places: what kind of place each argument is for.
        words: the arguments' values.
    """

    pattern: Numbers
    passed: dict[int, int]
    places: tuple[Offset | Number, ...]
    words: tuple[int, ...]


class Family:
    """Graphs that differ in numbers alone.

    Attributes:
        first: the numbers of the one that came first.
    """

    def __init__(self, first: Numbers):
        self.first = first
        self._flat = _flat(first)
        self._places: list[Place | None] | None = None
        self._varying: dict[int, Place] = {}

    def arguments(
        self, numbers: Numbers, roots: Sequence[Node], is_leaf: Callable[[Node], bool]
    ) -> Arguments | None:
        """What a graph with these numbers passes; None if all that differs is part of the code."""
        flat = _flat(numbers)
        if self._places is None:
            self._places = [place for _, _, place in _sites(roots, is_leaf)]
        for i, (place, a, b) in enumerate(zip(self._places, flat, self._flat, strict=True)):
            if a != b and place is not None and i not in self._varying:
                self._varying = {**self._varying, i: place}  # threads may be going through it
        pattern: list[Any] = list(flat)
        known: dict[tuple[Place, Any], int] = {}
        passed: dict[int, int] = {}
        for i, place in self._varying.items():
            if not place.chooses(flat[i]):
                passed[i] = known.setdefault((place, flat[i]), len(known))
                pattern[i] = ("argument", passed[i])
        if not passed:
            return None
        words = tuple([word for place, value in known for word in place.words(value)])
        return Arguments(tuple(pattern), passed, tuple([place for place, _ in known]), words)


def general(
    roots: Sequence[Node],
    is_leaf: Callable[[Node], bool],
    arguments: Arguments,
    symbols: Sequence[Symbol],
) -> dict[Node, Node]:
    """Each node of a graph with arguments in the places of numbers.

    Programs take them after the graph's `symbols`.
    """
    terms = _terms(arguments, symbols)
    chosen: dict[Node, dict[int, int]] = {}
    for i, (node, axis, _) in enumerate(_sites(roots, is_leaf)):
        if i in arguments.passed:
            chosen.setdefault(node, {})[axis] = arguments.passed[i]
    new: dict[Node, Node] = {}
    for node in toposort(roots, is_leaf):
        if is_leaf(node):
            new[node] = node
            continue
        sources = tuple([new[source] for source in node.src])
        own = chosen.get(node)
        if own and node.kind == "const":
            new[node] = _constant(node, terms[own[0]])
        elif own or any(map(operator.is_not, sources, node.src)):
            attr = list(node.attr)
            for axis, argument in (own or {}).items():
                attr[axis] = _moved(node.attr[axis], terms[argument][0])
            new[node] = make(node.kind, sources, tuple(attr), node.shape, node.dtype, node.device)
        else:
            new[node] = node
    return new


def _terms(arguments: Arguments, symbols: Sequence[Symbol]) -> list[list[Expr]]:
    """For each argument the symbols of its words, which come after `symbols` in programs."""
    # In the order of names; see `gpu/compiler/ir/dims.py:ordered`.
    after = symbols[-1].name.replace(".", "_") + "_" if symbols else ""
    width = len(str(len(arguments.words)))
    words = enumerate(arguments.words)
    return [
        [
            Symbol(f"{after}number{position:0{width}}", place.lo, place.hi, word).as_expr
            for position, word in itertools.islice(words, place.width)
        ]
        for place in arguments.places
    ]


def _moved(attr: Any, start: Expr) -> tuple[Any, ...]:
    """The attribute of an axis with another start; that of a pad keeps its size."""
    if len(attr) == 2:
        return (start, attr[1])
    before, after, gap = attr
    return (start, dimension(expr(before + after) - start), gap)


def _constant(node: Node, words: Sequence[Expr]) -> Node:
    """A constant whose bits are in words, the lowest first."""
    given = [G.index(dimension(word), _WORD, node.device) for word in words]
    bits, wide = given[0], dtypes.float32
    if len(given) > 1:
        low, high = (G.cast(G.bitcast(w, dtypes.uint32), dtypes.uint64) for w in given)
        shift = G.const(_WORD.bits, (), dtypes.uint64, node.device)
        bits, wide = G.alu("or", G.alu("shl", high, shift), low), dtypes.float64
    value = G.cast(G.bitcast(bits, wide) if node.dtype.is_float else bits, node.dtype)
    return G.expand(G.reshape(value, (1,) * len(node.shape)), node.shape)


def _flat(numbers: Numbers) -> list[Any]:
    flat: list[Any] = []
    for each in numbers:
        flat.extend(each) if type(each) is tuple else flat.append(each)
    return flat


def _sites(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> Iterator[tuple[Node, int, Place | None]]:
    """Where the numbers of a graph stand, in their order: node, axis, and what may vary there."""
    order = toposort(roots, is_leaf)
    fixed = {
        _shown(source, is_leaf)
        for node in order
        if not is_leaf(node) and node.kind not in _SHOWING
        for operand, source in enumerate(node.src)
        if _is_coded(node, operand)
    }
    for node in order:
        numbers: list[Any] = []
        if is_leaf(node) or node.kind not in WITH_NUMBERS:
            continue
        without_numbers(node, numbers)
        if node.kind == "const":
            yield (
                node,
                0,
                None if node in fixed or node.dtype is dtypes.bool else Number(node.dtype),
            )
        elif numbers:
            yield from ((node, axis, _offset(node, axis)) for axis in range(len(node.attr)))


def _shown(node: Node, is_leaf: Callable[[Node], bool]) -> Node:
    """The node whose values `node` has, wherever they are and whatever that is to gradients."""
    while node.kind in _SHOWING and not is_leaf(node):
        node = node.src[0]
    return node


def _is_coded(node: Node, operand: int) -> bool:
    """Whether a constant that `node` reads chooses what code it becomes."""
    if node.kind == "alu":
        return operand == 1 and node.attr[0] in _BY_VALUE
    return node.kind not in _VALUES or (node.kind in ("scatter", "reorder") and operand == 1)


def _offset(node: Node, axis: int) -> Offset | None:
    """What the start along an axis can be where sizes stay; None where there is no choice."""
    start, step, *_ = node.attr[axis]
    if node.src[0].kind == "as_real" and axis == len(node.shape) - 1:
        return None  # the real or the imaginary part, which are other code
    if node.kind == "pad":
        lo, hi = 0, start + step  # what is before, and after
    else:
        size, available = node.src[-1].shape[axis], node.src[0].shape[axis]
        if node.kind == "slice":
            size = node.shape[axis]
        if is_symbolic(size) or is_symbolic(available):
            return None
        span = (size - 1) * abs(step)
        lo = span if step < 0 else 0
        hi = lo + available - 1 - span
    if hi > _WORD.max and Device[node.device].renderer.target.native.paired:
        return None  # that device counts in 32 bits, which hold only what is in the code
    return Offset(lo, hi) if lo < hi else None
