"""Constructors of graph nodes: each returns the simplest equal node, or raises as `make` does.

Simplification is O(1) per call and looks one node down, never further: a movement of a movement of
the same kind merges, a movement that does nothing vanishes, constants fold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from gpu.compiler.ir import optable
from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.dims import Dim, dimension, has_symbols, is_many, reshape_groups
from gpu.compiler.ir.graph import Node, Place, Shape, make
from gpu.compiler.ir.graph.body import Body
from gpu.compiler.ir.graph.grid import Layout, axes_of, cut_shape, cuts_of
from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.compiler.ir.graph.images import as_image, plain, rounded
from gpu.compiler.ir.graph.userkernel import Array, UserKernel, results_of
from gpu.core.dtype import DType, ImageDType, Number, PyScalar, complex_of, dtypes
from gpu.core.errors import DTypeError, ShapeError, Unsupported


def buffer(handle: Hashable, shape: Shape, dtype: DType, device: Place) -> Node:
    """Memory owned by the runtime; `handle` is any hashable object that stands for it."""
    return make("buffer", (), (handle,), shape, dtype, device)


def const(value: Number, shape: Shape, dtype: DType, device: Place) -> Node:
    """One value everywhere, rounded or wrapped to `dtype`; of floats as `cast` makes integers."""
    dtype = dtype.element
    if isinstance(value, float) and dtype.is_int:
        value = 0 if math.isnan(value) else max(dtype.min, min(value, dtype.max))
    return make("const", (), (optable.rounded(value, dtype),), shape, dtype, device)


def iota(size: Dim, dtype: DType, device: Place) -> Node:
    """0, 1, ..., size - 1."""
    return make("iota", (), (), (size,), dtype, device)


def index(value: Dim, dtype: DType, device: Place) -> Node:
    """A dimension as a number, 0-d."""
    if not has_symbols(value):
        return const(value, (), dtype, device)
    return make("index", (), (value,), (), dtype, device)


def alu(name: str, *src: Node) -> Node:
    """A scalar operation on operands of one shape."""
    for s in src:
        if s.dtype.is_image:
            return alu(name, *map(plain, src))
    dtype = optable.result_dtype(name, tuple([s.dtype for s in src]))
    node = make("alu", src, (name,), src[0].shape, dtype, src[0].device)
    constants = [s.attr[0] for s in src if s.kind == "const"]
    if not constants and src[0] is not src[-1] and name != "where":
        return node
    if len(constants) == len(src):
        value = optable.fold(name, dtype, src[-1].dtype, tuple(constants))
        return const(value, node.shape, dtype, node.device)
    return _identity(name, src) or node


def _is(node: Node, value: Number) -> bool:
    return node.kind == "const" and bool(node.attr[0] == value)


def _identity(name: str, src: tuple[Node, ...]) -> Node | None:
    """The operand an operation reduces to, where it does so for every value, -0.0 and NaN too."""
    if name == "where":
        if src[0].kind == "const":
            return src[1] if src[0].attr[0] else src[2]
        return src[1] if src[1] is src[2] else None
    if len(src) != 2 or src[0].dtype.is_complex:  # of infinities, 1 is not neutral there
        return None
    a, b = src
    exact = not a.dtype.is_float
    if name in ("mul", "div") and _is(b, 1):
        return a
    if name == "mul" and _is(a, 1):
        return b
    if name == "add" and exact and (_is(a, 0) or _is(b, 0)):
        return b if _is(a, 0) else a
    if name == "sub" and _is(b, 0) and (exact or math.copysign(1.0, b.attr[0]) > 0):
        return a
    if name == "mul" and exact and (_is(a, 0) or _is(b, 0)):
        return a if _is(a, 0) else b
    if name in ("and", "or") and a.dtype is dtypes.bool:
        return _bool_identity(name, a, b)
    return None


def _bool_identity(name: str, a: Node, b: Node) -> Node | None:
    for constant, other in ((a, b), (b, a)):
        if constant.kind == "const":
            neutral = constant.attr[0] == (name == "and")
            return other if neutral else constant
    return a if a is b else None


def cast(x: Node, dtype: DType) -> Node:
    """`x` converted by value; to an image, written there."""
    if x.dtype is dtype:
        return x
    x = plain(x)
    if isinstance(dtype, ImageDType):
        exact = x.dtype is dtype.stored
        return as_image(x if exact else rounded(cast(x, dtypes.float32), dtype), dtype)
    if x.dtype is dtype:
        return x
    if x.dtype.is_complex and not dtype.is_complex:
        if dtype is dtypes.bool:
            return alu("ne", x, const(0, x.shape, x.dtype, x.device))
        raise DTypeError(
            f"{x.dtype.name} does not convert to {dtype.name}, which would lose the imaginary"
            " part: take .real, .imag or .abs()"
        )
    if x.kind == "const":
        value = optable.fold_cast(x.attr[0], x.dtype, dtype, bits=False)
        return const(value, x.shape, dtype, x.device)
    return make("cast", (x,), (), x.shape, dtype, x.device)


def bitcast(x: Node, dtype: DType) -> Node:
    """The bits of `x` as another dtype of the same width."""
    if x.dtype is dtype:
        return x
    x = plain(x)
    if x.dtype.is_complex or dtype.is_complex:
        raise DTypeError(
            f"bits of {x.dtype.name} are not read as {dtype.name}: view_as_real and"
            " view_as_complex show the parts of complex numbers"
        )
    if x.kind == "bitcast":
        return bitcast(x.src[0], dtype)
    return make("bitcast", (x,), (), x.shape, dtype, x.device)


def reduce(monoid: str, x: Node, axes: Sequence[int]) -> Node:
    """`x` with `axes` combined by a monoid and kept with size 1."""
    x = plain(x)
    kept = tuple(sorted([a for a in axes if x.shape[a] != 1]))
    if not kept:
        return x
    shape = tuple([1 if a in kept else d for a, d in enumerate(x.shape)])
    if 0 in x.shape and any(x.shape[a] == 0 for a in kept):
        return flat(const(optable.MONOIDS[monoid].identity(x.dtype), shape, x.dtype, x.device), x)
    if x.kind == "const" and not has_symbols(x.shape) and not x.dtype.is_complex:
        count = math.prod(x.shape[a] for a in kept)
        return const(_repeated(monoid, x.attr[0], count, x.dtype), shape, x.dtype, x.device)
    if x.kind == "reduce" and x.attr[0] == monoid:
        merged = tuple(sorted({*kept, *x.attr[1]}))
        return make("reduce", x.src, (monoid, merged), shape, x.dtype, x.device)
    return make("reduce", (x,), (monoid, kept), shape, x.dtype, x.device)


def _repeated(monoid: str, value: PyScalar, count: int, dtype: DType) -> PyScalar:
    """`count` copies of a constant combined, rounded or wrapped once at the end."""
    if monoid == "add":
        return value * count
    if monoid == "mul":
        if not dtype.is_float:
            return pow(int(value), count, 1 << dtype.bits)
        with np.errstate(all="ignore"):
            return float(np.float64(value) ** count)
    return value


def _move(kind: str, x: Node, attr: tuple[Any, ...], shape: Shape) -> Node:
    """A movement that only rearranges or repeats elements; of a constant, a constant."""
    if kind != "reshape":
        x = plain(x)
    node = make(kind, (x,), attr, shape, x.dtype, x.device)
    return const(x.attr[0], shape, x.dtype, x.device) if x.kind == "const" else node


def reshape(x: Node, shape: Shape) -> Node:
    """The same elements in row-major order under another shape."""
    if x.shape == shape:
        return x
    shape = tuple(map(dimension, shape))
    if x.kind == "reshape" and _is_one_reshape(x.src[0].shape, shape):
        x = x.src[0]
    if x.shape == shape:
        return x
    if 0 in x.shape and 0 in shape and has_symbols(x.shape + shape):
        return _reshape_of_nothing(x, shape)
    return _move("reshape", x, (), shape)


def _reshape_of_nothing(x: Node, shape: Shape) -> Node:
    """An empty value under an empty shape: their symbolic axes need not correspond."""
    nothing = slice_(x, [(0, 0, 1)] * len(x.shape))
    fixed = tuple(1 if has_symbols(size) else size for size in shape)
    return expand(_move("reshape", nothing, (), fixed), shape)


def _is_one_reshape(old: Shape, new: Shape) -> bool:
    """Whether two reshapes in a row can be one, which is so unless an axis is symbolic."""
    return not has_symbols(old + new) or reshape_groups(old, new) is not None


def expand(x: Node, shape: Shape) -> Node:
    """Dimensions of size 1 repeated."""
    if x.kind == "expand":
        x = x.src[0]
    if x.shape == shape:
        return x
    return _move("expand", x, (), shape)


def permute(x: Node, order: Sequence[int]) -> Node:
    """Dimension i of the result is dimension order[i] of `x`."""
    if sorted(order) != list(range(len(x.shape))):
        raise ShapeError(f"the order {tuple(order)} must name each of {len(x.shape)} axes once")
    if x.kind == "permute":
        order = [x.attr[0][a] for a in order]
        x = x.src[0]
    if list(order) == list(range(len(order))):
        return x
    shape = tuple([x.shape[a] for a in order])
    return _move("permute", x, (tuple(order),), shape)


def slice_(x: Node, ranges: Sequence[tuple[int, int, int]]) -> Node:
    """Elements start, start + step, ... of each axis; `ranges` holds (start, size, step)."""
    shape = tuple([dimension(size) for _, size, _ in ranges])
    # The step of an axis with at most one element means nothing: 1 keeps equal nodes equal.
    attr = tuple(
        [
            (dimension(start), step if is_many(size) else 1)
            for (start, _, step), size in zip(ranges, shape, strict=True)
        ]
    )
    if x.kind == "slice" and len(attr) == len(x.attr) and 0 not in shape:
        _move("slice", x, attr, shape)  # the inner range must fit before the two are merged
        attr = tuple(
            (dimension(outer[0] + outer[1] * inner[0]), outer[1] * inner[1])
            for outer, inner in zip(x.attr, attr, strict=True)
        )
        x = x.src[0]
    if shape == x.shape and attr.count((0, 1)) == len(attr):
        return x
    return _move("slice", x, attr, shape)


def pad(x: Node, padding: Sequence[tuple[int, int, int]]) -> Node:
    """Zeros around each axis and between its elements; `padding` holds (before, after, gap)."""
    x = plain(x)
    attr = tuple(
        (dimension(before), dimension(after), gap if is_many(size) else 0)
        for (before, after, gap), size in zip(padding, x.shape, strict=True)
    )
    if all(a == (0, 0, 0) for a in attr):
        return x
    shape = tuple(
        dimension(before + size + (max(size - 1, 0) * gap if gap else 0) + after)
        for (before, after, gap), size in zip(attr, x.shape, strict=True)
    )
    key = optable.constant_key
    zero = x.kind == "const" and key(x.attr[0]) == key(optable.rounded(0, x.dtype))
    if zero or 0 in x.shape:
        return flat(const(0, shape, x.dtype, x.device), x)
    return make("pad", (x,), attr, shape, x.dtype, x.device)


def skew(x: Node, axis: int, tap: int, stride: int, dilation: int, windows: int) -> Node:
    """Element (o, k) of axes (axis, tap) is element (o * stride + k * dilation, k) of `x`."""
    shape = (*x.shape[:axis], windows, *x.shape[axis + 1 :])
    return _move("skew", x, (axis, tap, stride, dilation), shape)


def unskew(x: Node, axis: int, tap: int, stride: int, dilation: int, size: int) -> Node:
    """The reverse of `skew`, with `size` elements along `axis` and zeros where nothing lands."""
    x = plain(x)
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    if 0 in x.shape:
        return flat(const(0, shape, x.dtype, x.device), x)
    if x.kind == "alu" and x.attr == ("mul",):
        # The gradient of a convolution: a factor that is the same for all windows stays outside,
        # so that one product is left to sum over. Zeros times an infinite factor become NaN: to
        # mask the products, as the rest of the gradient would need, takes tiles away from them.
        for a, b in (x.src, x.src[::-1]):
            if b.kind == "expand" and b.src[0].shape[axis] == 1:
                wide = expand(b.src[0], shape)
                return alu("mul", unskew(a, axis, tap, stride, dilation, size), wide)
    return make("unskew", (x,), (axis, tap, stride, dilation), shape, x.dtype, x.device)


def gather(x: Node, index: Node, axis: int) -> Node:
    """Along `axis` the elements of `x` that `index` names; zero where it is out of range."""
    x = plain(x)
    if x.shape[axis] == 0:
        return flat(const(0, index.shape, x.dtype, x.device), x)
    return make("gather", (x, index), (axis,), index.shape, x.dtype, x.device)


def scatter(x: Node, index: Node, updates: Node, axis: int, monoid: str) -> Node:
    """`x` with each update combined into the element `index` names; `set` keeps the last one."""
    x, updates = plain(x), plain(updates)
    if 0 in index.shape or x.size == 0:
        return flat(x, updates)
    return make("scatter", (x, index, updates), (axis, monoid), x.shape, x.dtype, x.device)


def scan(monoid: str, x: Node, axis: int) -> Node:
    """The running combination of `x` along `axis`."""
    x = plain(x)
    if not is_many(x.shape[axis]):
        return x
    return make("scan", (x,), (monoid, axis), x.shape, x.dtype, x.device)


def cumcount(index: Node, bins: int, axis: int) -> Node:
    """How many indices before each one along `axis` are equal, as int32; 0 where not in 0..bins-1.

    `bins` counters stand beside a line, so they should be few.
    """
    if not is_many(index.shape[axis]):
        return const(0, index.shape, dtypes.int32, index.device)
    return make("cumcount", (index,), (bins, axis), index.shape, dtypes.int32, index.device)


def reorder(x: Node, index: Node, axis: int) -> Node:
    """Each element of `x` at the place along `axis` that `index` says.

    `index` holds each place of a line once: where it does not, elements are undefined.
    """
    x = plain(x)
    if not is_many(x.shape[axis]) or 0 in x.shape:
        return x
    return make("reorder", (x, index), (axis,), x.shape, x.dtype, x.device)


def write(x: Node, value: Node, ranges: Sequence[tuple[int, int]]) -> Node:
    """`x` with the region that starts and steps as `ranges` say replaced by `value`."""
    x, value = plain(x), plain(value)
    if 0 in value.shape:
        return flat(x, value)
    attr = tuple((s, d if is_many(n) else 1) for (s, d), n in zip(ranges, value.shape, strict=True))
    node = make("write", (x, value), attr, x.shape, x.dtype, x.device)
    return value if value.shape == x.shape else node


def as_real(x: Node) -> Node:
    """Complex numbers as pairs of floats along a new last axis."""
    if x.kind == "as_complex":
        return x.src[0]
    if x.kind == "const":
        return interleave(real(x), imag(x))
    return make("as_real", (x,), (), (*x.shape, 2), x.dtype.real, x.device)


def as_complex(x: Node) -> Node:
    """Pairs of floats, along the last axis, as complex numbers."""
    if x.kind == "as_real":
        return x.src[0]
    shape, dtype = x.shape[:-1], complex_of(x.dtype)
    if x.kind == "const":
        return const(complex(*x.attr, *x.attr), shape, dtype, x.device)
    return make("as_complex", (x,), (), shape, dtype, x.device)


def interleave(first: Node, second: Node, is_stored: bool = False) -> Node:
    """Two values of one shape and dtype as the last axis of one.

    What reads one of them again reads that of memory if `is_stored`; see `component`.
    """
    return interleave_all((first, second), {len(first.shape): 2}, is_stored)


def interleave_all(
    sources: Sequence[Node], sizes: Mapping[int, int], is_stored: bool = False
) -> Node:
    """Values of one shape and dtype side by side along new axes, which have these sizes.

    The first axis of the result that is new counts slowest.
    """
    first = sources[0]
    shape = list(first.shape)
    for axis in sorted(sizes):
        shape.insert(axis, sizes[axis])
    if 0 in shape:
        return flat(const(0, tuple(shape), first.dtype, first.device), *sources)
    attr = (int(is_stored), tuple(sorted(sizes)))
    return make("interleave", tuple(sources), attr, tuple(shape), first.dtype, first.device)


def fft(
    pairs: Node,
    axis: int,
    radices: Sequence[int],
    factors: Node | None = None,
    inverse: bool = False,
    scale: float = 1.0,
) -> Node:
    """The Fourier transform of pairs along an axis, by passes of these radices.

    `factors` are what `gpu/compiler/ir/graph/fft.py:factors_of` gives for them, None where it
    gives none.
    """
    pairs = plain(pairs)
    if 0 in pairs.shape:
        return pairs
    attr = (axis, tuple(radices), int(inverse), float(scale))
    sources = (pairs,) if factors is None else (pairs, factors)
    return make("fft", sources, attr, pairs.shape, pairs.dtype, pairs.device)


def complex_number(re: Node, im: Node) -> Node:
    """Complex numbers of their parts."""
    return as_complex(interleave(re, im))


def complex_operand(value: Number, shape: Shape, dtype: DType, device: Place) -> Node:
    """A complex number that an operation takes, made of its parts: a kernel serves all of them."""
    parts = (const(part, shape, dtype.real, device) for part in (value.real, value.imag))
    return complex_number(*parts)


def real(x: Node) -> Node:
    """The real part of complex numbers."""
    return _half(x, 0)


def imag(x: Node) -> Node:
    """The imaginary part of complex numbers."""
    return _half(x, 1)


def conj(x: Node) -> Node:
    """Complex numbers with their imaginary parts negated."""
    return complex_number(real(x), alu("neg", imag(x)))


def _half(x: Node, which: int) -> Node:
    if x.kind == "const":
        value = x.attr[0].imag if which else x.attr[0].real
        return const(value, x.shape, x.dtype.real, x.device)
    return component(as_real(x), which)


def component(pairs: Node, which: int) -> Node:
    """The first or second elements of pairs, which are the last axis."""
    if pairs.kind == "interleave" and not pairs.attr[0]:
        return pairs.src[which]
    ranges = [(0, size, 1) for size in pairs.shape[:-1]]
    return reshape(slice_(pairs, [*ranges, (which, 1, 1)]), pairs.shape[:-1])


def places(x: Node, axes: Sequence[int]) -> list[Node]:
    """What `x` has at each place of these axes, the last of which counts fastest."""
    kept = tuple([size for axis, size in enumerate(x.shape) if axis not in axes])
    found = []
    for place in itertools.product(*(range(x.shape[axis]) for axis in axes)):
        ranges = [(0, size, 1) for size in x.shape]
        for axis, number in zip(axes, place, strict=True):
            ranges[axis] = (number, 1, 1)
        found.append(reshape(slice_(x, ranges), kept))
    return found


def random_bits(state: Node, shape: Shape) -> Node:
    """Random bits as uint32; `state` is uint32[4]: two words of key, then the counter."""
    return make("random", (state,), (), shape, dtypes.uint32, state.device)


def contiguous(x: Node, identity: int = 0) -> Node:
    """`x` placed in memory of its own; nodes of different `identity` are different tensors."""
    x = plain(x)
    if not identity and x.kind in ("buffer", "contiguous"):
        return x
    return make("contiguous", (x,), (identity,), x.shape, x.dtype, x.device)


def detach(x: Node) -> Node:
    """`x`, through which no gradient flows."""
    x = plain(x)
    if x.kind in ("const", "iota", "index", "detach"):
        return x
    return make("detach", (x,), (), x.shape, x.dtype, x.device)


def custom_grad(rule: str, x: Node, operands: Sequence[Node], *numbers: int) -> Node:
    """`x`, whose gradient goes to `operands` by a rule that `gpu/tensor/customgrad.py` names.

    Only a rule that says so lets it go on to `x` itself.
    """
    x = plain(x)
    return make("custom_grad", (x, *operands), (rule, *numbers), x.shape, x.dtype, x.device)


def flat(x: Node, *operands: Node) -> Node:
    """`x`, with gradients for `operands` too, on which it does not depend: they are zeros."""
    others = [node for node in operands if has_gradient(node.dtype) and node.kind != "const"]
    return custom_grad("flat", x, others) if others else x


def copy(x: Node, device: Place, layout: Layout | None = None) -> Node:
    """`x` on another device, or on each of several; with a layout it is cut so there.

    Where it is on these devices already, that is another way to lie on them.
    """
    if layout is not None:
        return make("copy", (plain(x),), (layout,), x.shape, x.dtype.element, device)
    if x.device == device:
        return x
    x = plain(x)
    if x.kind == "const":
        return const(x.attr[0], x.shape, x.dtype, device)
    return make("copy", (x,), (), x.shape, x.dtype, device)


def multi(parts: Sequence[Node], layout: Layout, shape: Shape, device: Place = None) -> Node:
    """A value of `shape` on the devices of `parts`, which lie side by side along an axis.

    Where its place is a grid, which is `device` then, the layout says that of each axis of this.
    None stands for the same value everywhere.
    """
    devices = tuple(part.device for part in parts) if device is None else device
    return make("multi", tuple(parts), (layout,), shape, parts[0].dtype, devices)


def part(x: Node, number: int, layout: Layout) -> Node:
    """What device `number` has of a value on several devices if it is cut so."""
    shape = cut_shape(x.shape, cuts_of(layout), axes_of(x.device))
    return make("part", (x,), (number, layout), shape, x.dtype, x.device[number])


def loop(body: Body, length: int, reverse: bool, operands: Sequence[Node]) -> Node:
    """So many steps of `body`; see `result`. Raises Unsupported for complex numbers."""
    _refuse_complex("a loop of gpu.scan", (*operands, *body.results))
    floats = any(has_gradient(node.dtype) for node in operands)
    dtype = dtypes.float32 if floats else dtypes.int32  # says whether a gradient may go through
    return make("loop", tuple(operands), (body, length, reverse), (), dtype, operands[0].device)


def kernel(kernel: UserKernel, gradient: object, operands: Sequence[Node], device: Place) -> Node:
    """A kernel that a user wrote, with the rule of its gradient; see `result`.

    Raises Unsupported for complex numbers.
    """
    _refuse_complex(f"the kernel {kernel.name}", (*operands, *kernel.outputs))
    floats = any(has_gradient(each.dtype) for each in kernel.outputs)
    dtype = dtypes.float32 if floats else dtypes.int32  # says whether a gradient may go through
    return make("kernel", tuple(operands), (kernel, gradient), (), dtype, device)


def host(call: HostCall, gradient: object, operands: Sequence[Node]) -> Node:
    """A call of a function of the host, with the rule of its gradient; see `result`."""
    first = operands[0]
    return make("host", tuple(operands), (call, gradient), (), first.dtype, first.device)


def _refuse_complex(what: str, values: Sequence[Node | Array]) -> None:
    if any(value.dtype.is_complex for value in values):
        raise Unsupported(
            f"{what} takes no complex numbers, and gives none: pass x.view_as_real(), whose last"
            " axis has both parts"
        )


def result(x: Node, number: int) -> Node:
    """One of the results of a node that has some, in the order of `results_of`."""
    shape, dtype = results_of(x)[number]
    return make("result", (x,), (number,), shape, dtype, x.device)


class GraphBuilder(Builder[Node]):
    """Scalar operations over graph nodes of one shape on one device."""

    def __init__(self, shape: Shape, device: Place):
        self.shape, self.device = shape, device

    def op(self, name: str, *args: Node) -> Node:
        """See `alu`."""
        return alu(name, *args)

    def const(self, dtype: DType, value: PyScalar) -> Node:
        """A constant of this builder's shape."""
        return const(value, self.shape, dtype, self.device)

    def cast(self, x: Node, dtype: DType) -> Node:
        """See `cast`."""
        return cast(x, dtype)

    def bitcast(self, x: Node, dtype: DType) -> Node:
        """See `bitcast`."""
        return bitcast(x, dtype)

    def dtype(self, x: Node) -> DType:
        """The node's dtype."""
        return x.dtype
