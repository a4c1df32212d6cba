"""Fourier transforms as graphs: a kernel for each pass, which loads, combines and stores once.

A pass of radix r is an `interleave` of the real and imaginary parts of r results, all of which its
kernel computes of the same r numbers in registers. Between passes real and imaginary parts lie
apart, so that lanes load and store neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpu.compiler.ir.graph import LOOPING, MOVEMENT, NO_SOURCES, Node, Shape, in_memory
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.fft import passes
from gpu.compiler.ir.graph.rewrite import rewrite

Complex: TypeAlias = tuple[Node, Node]


def expand_transforms(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> list[Node]:
    """`roots` with the passes of each Fourier transform in its place.

    Of a transform that is a root itself it is the last pass, whose memory is the same.
    """

    def change(node: Node) -> Node | None:
        return _expanded(node, is_leaf) if node.kind == "fft" else None

    made = rewrite(roots, is_leaf, change)
    pairs = zip(roots, made, strict=True)
    return [new if new is old else in_memory(new, is_leaf) for old, new in pairs]


def _expanded(node: Node, is_leaf: Callable[[Node], bool]) -> Node:
    axis, radices, inverse, scale = node.attr
    source, *factors = node.src
    pairs = _stored_once(source, is_leaf)
    shape = node.shape[:-1]
    size = shape[axis]
    x = (G.component(pairs, 0), G.component(pairs, 1))
    # The inverse is the transform of the numbers with their parts exchanged, exchanged again.
    x = (x[1], x[0]) if inverse else x
    first = 0
    for done, radix in passes(radices):
        left = size // (done * radix)
        values = _split(x, axis, (radix, left, done))
        if done > 1:
            turn = _turns(factors[0], first, (radix - 1, done), values[0][0].shape, axis + 1)
            values = [values[0], *(_times(v, t) for v, t in zip(values[1:], turn, strict=True))]
            first += (radix - 1) * done
        values = butterfly(values)
        place = axis + 1  # of the results, behind what is left
        if left > 1:
            parts = [value[part] for part in (0, 1) for value in values]
            whole = G.interleave_all(parts, {0: 2, place + 1: radix})
            flat = G.reshape(whole, (2, *shape))
            re, im = G.places(flat, (0,))
            x = (re, im)
    order = (1, 0) if inverse else (0, 1)
    factor = G.const(scale, values[0][0].shape, node.dtype, node.device)
    parts = [value[part] for value in values for part in order]
    if scale != 1:
        parts = [G.alu("mul", part, factor) for part in parts]
    whole = G.interleave_all(parts, {place: radix, len(shape) + 2: 2})
    return G.reshape(whole, node.shape)


def _stored_once(pairs: Node, is_leaf: Callable[[Node], bool]) -> Node:
    """Pairs that the first pass reads at several places: parts that are computed, once and as one.

    What only shows memory in another way is read as it is.
    """
    if pairs.kind != "interleave" or pairs.attr[0] or all(_is_shown(p, is_leaf) for p in pairs.src):
        return pairs
    first, second = pairs.src
    return G.interleave(first, second, is_stored=True)


def _is_shown(part: Node, is_leaf: Callable[[Node], bool]) -> bool:
    base = part
    while base.kind in MOVEMENT and not is_leaf(base):
        base = base.src[0]
    return is_leaf(base) or base.kind in LOOPING | NO_SOURCES | {"contiguous"}


def _split(x: Complex, axis: int, sizes: tuple[int, int, int]) -> list[Complex]:
    """The numbers that a pass combines: an axis cut into three, of which the first is taken apart.

    The second counts the transforms that are left, the third what is done of each.
    """
    shape = x[0].shape
    cut = (*shape[:axis], *sizes, *shape[axis + 1 :])
    re, im = (G.places(G.reshape(part, cut), (axis,)) for part in x)
    return list(zip(re, im, strict=True))


def _turns(
    factors: Node, first: int, sizes: tuple[int, int], shape: Shape, axis: int
) -> list[Complex]:
    """The factors of a pass, which begin at `first`, along an axis of `shape`."""
    count, done = sizes
    own = G.slice_(factors, [(0, 2, 1), (first, count * done, 1)])
    line = tuple([done if a == axis else 1 for a in range(len(shape))])
    re, im = (
        [G.expand(G.reshape(each, line), shape) for each in G.places(part, (0,))]
        for part in G.places(G.reshape(own, (2, count, done)), (0,))
    )
    return list(zip(re, im, strict=True))


def _times(x: Complex, y: Complex) -> Complex:
    (a, b), (c, d) = x, y
    return (
        G.alu("sub", G.alu("mul", a, c), G.alu("mul", b, d)),
        G.alu("add", G.alu("mul", a, d), G.alu("mul", b, c)),
    )


def butterfly(x: Sequence[Complex]) -> list[Complex]:
    """The Fourier transform of a few numbers, written out."""
    size = len(x)
    if size == 1:
        return list(x)
    outer = next(p for p in range(2, size + 1) if size % p == 0)
    if outer == size:
        return [_plus(*x), _minus(*x)] if size == 2 else _of_prime(x)
    # J. W. Cooley and J. W. Tukey, "An algorithm for the machine calculation of complex Fourier
    # series", 1965.
    inner = size // outer
    parts = [butterfly(x[j::outer]) for j in range(outer)]
    rows = [
        butterfly([_turned(parts[j][k], j * k, size) for j in range(outer)]) for k in range(inner)
    ]
    return [rows[k % inner][k // inner] for k in range(size)]


def _plus(x: Complex, y: Complex) -> Complex:
    return G.alu("add", x[0], y[0]), G.alu("add", x[1], y[1])


def _minus(x: Complex, y: Complex) -> Complex:
    return G.alu("sub", x[0], y[0]), G.alu("sub", x[1], y[1])


def _scaled(x: Node, factor: float) -> Node:
    return G.alu("mul", x, G.const(factor, x.shape, x.dtype, x.device))


def _turned(x: Complex, number: int, size: int) -> Complex:
    """`x` times exp(-2 pi i number / size)."""
    re, im = x
    eighths, rest = divmod(8 * number, size)
    if rest == 0:
        match eighths % 8:
            case 0:
                return x
            case 2:
                return im, G.alu("neg", re)
            case 4:
                return G.alu("neg", re), G.alu("neg", im)
            case 6:
                return G.alu("neg", im), re
    angle = 2 * math.pi * number / size
    c, s = math.cos(angle), math.sin(angle)
    if rest == 0:
        plus, minus = G.alu("add", re, im), G.alu("sub", im, re)
        return (
            (_scaled(plus, c), _scaled(minus, c))
            if c * s > 0
            else (_scaled(minus, -c), _scaled(plus, c))
        )
    return (
        G.alu("add", _scaled(re, c), _scaled(im, s)),
        G.alu("sub", _scaled(im, c), _scaled(re, s)),
    )


def _of_prime(x: Sequence[Complex]) -> list[Complex]:
    """The transform of an odd prime number of numbers: cosines of sums, sines of differences."""
    size, half = len(x), (len(x) + 1) // 2
    first, sums = x[0], [_plus(x[j], x[size - j]) for j in range(1, half)]
    differences = [_minus(x[j], x[size - j]) for j in range(1, half)]
    result = [first] * size
    for total in sums:
        result[0] = _plus(result[0], total)
    for k in range(1, half):
        angles = [2 * math.pi * (j * k % size) / size for j in range(1, half)]
        even, odd = first, None
        for angle, total, difference in zip(angles, sums, differences, strict=True):
            even = _plus(even, _by(total, math.cos(angle)))
            own = _by(difference, math.sin(angle))
            odd = own if odd is None else _plus(odd, own)
        assert odd is not None
        turned = odd[1], G.alu("neg", odd[0])
        result[k], result[size - k] = _plus(even, turned), _minus(even, turned)
    return result


def _by(x: Complex, factor: float) -> Complex:
    return _scaled(x[0], factor), _scaled(x[1], factor)
