"""How to judge what a pass or a device makes of a random program.

A deep random program amplifies rounding without limit: a sum cancels, a
comparison flips, a float one ulp below an integer truncates to another integer. No fixed tolerance
separates that from a bug. So the program itself is asked how much it amplifies, by Monte Carlo
arithmetic (Parker 1997; CESTAC by Vignes and La Porte is the same idea): `expect` evaluates the
graph a few more times, and each time disturbs at random, by as much as implementations may differ,
the result of every operation that the op table leaves open:

- exp, exp2, expm1, log2, sin: 4 units in the last place;
- fma: the rounding of the product;
- float sums and products, running ones too: the bound of reordering, n * eps * sum |x| (and where a
  partial result could overflow in one order but not in another, anything);
- Fourier transforms: a few ulps of the sum of all magnitudes;
- max and min of zeros of unlike sign: either zero;
- the bits of a NaN under a bitcast: anything;
- complex sums, products and quotients: each part by a few ulps of the magnitude;
- with `flushes`, whether subnormal floats are zero, as operands and as results, in half of these
  evaluations;
- with `exact=False`, also every +, -, *, /, sqrt and cast to a float, for devices that contract or
  round these otherwise.

The largest deviation seen is the slack of an element. An element whose deviation has no measure (an
integer, bool or NaN that changed) is not settled, and not compared. Whatever does not depend on the
operations above has no slack and must be equal to within the few ulps that `compare` grants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir import evaluate
from gpu.compiler.ir.graph import Node, accumulate_as, toposort
from gpu.compiler.ir.graph.interp import RUN
from gpu.core.dtype import DType, dtypes

Array = npt.NDArray[Any]
SAMPLES = 6
ULPS = 4.0
_MARGIN = 4.0


def eps(dtype: DType) -> float:
    """The distance from 1.0 to the next number of a float dtype."""
    return {
        dtypes.fp8e4m3: 2.0**-3, dtypes.fp8e5m2: 2.0**-2, dtypes.float16: 2.0**-10,
        dtypes.bfloat16: 2.0**-7, dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52,
    }[dtype]  # fmt: skip


def tiny(dtype: DType) -> float:
    """The smallest positive number of a float dtype, a subnormal one."""
    return {
        dtypes.fp8e4m3: 2.0**-9, dtypes.fp8e5m2: 2.0**-16, dtypes.float16: 2.0**-24,
        dtypes.bfloat16: 2.0**-133, dtypes.float32: 2.0**-149, dtypes.float64: 2.0**-1074,
    }[dtype]  # fmt: skip


class Expected(NamedTuple):
    """What a root should be.

    Attributes:
        value: by the interpreter.
        slack: how far a correct result may be from it, for floats.
        settled: where a correct result is determined at all.
    """

    value: Array
    slack: Array
    settled: Array


def compare(
    got: Array,
    want: Array,
    dtype: DType,
    slack: Array | float = 0.0,
    settled: Array | bool = True,
) -> None:
    """Raises AssertionError showing the worst element unless `got` is `want`.

    Integers and bools must be equal. Floats may differ by 4 ulps and `slack`; NaN equals NaN, and
    zeros of unlike sign are equal. Elements that are not `settled` may be anything.
    """
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    assert got.dtype == dtype.np, f"dtype {got.dtype}, expected {dtype.np}"
    if dtype.is_complex:
        return compare(floats(got), floats(want), dtype.real, slack, settled)
    if not dtype.is_float:
        wrong = (got != want) & settled
    else:
        a, b = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(all="ignore"):
            allowed = slack + 4 * eps(dtype) * np.abs(b) + 4 * tiny(dtype)
            near = (a == b) | (np.isnan(a) & np.isnan(b))
            near |= np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= allowed)
        wrong = ~near & settled
    if np.any(wrong):
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        limit = np.broadcast_to(slack, want.shape)[at]
        raise AssertionError(
            f"{np.count_nonzero(wrong)} of {want.size} elements of {dtype.name} are wrong, first"
            f" {list(at)}: {got[at]!r}, expected {want[at]!r} (slack {limit})"
        )


def flushed(value: Array, dtype: DType) -> Array:
    """Floats, of which those below the smallest normal one are zero; others as they are."""
    if dtype.is_complex:
        return flushed(floats(value), dtype.real).view(dtype.np)[..., 0]
    if not dtype.is_float:
        return value
    wide = np.abs(value.astype(np.float64))
    return np.where(wide < tiny(dtype) / eps(dtype), np.zeros_like(value), value)


def floats(value: Array) -> Array:
    """Complex numbers as pairs of floats, a last axis of two; others as they are."""
    if value.dtype.kind != "c":
        return value
    return np.stack([value.real, value.imag], -1)


def check(got: Sequence[Array], expected: Sequence[Expected], roots: Sequence[Node]) -> None:
    """Compares the results of all roots; raises as `compare` does."""
    assert len(got) == len(roots)
    for number, (result, want, root) in enumerate(zip(got, expected, roots, strict=True)):
        try:
            compare(result, want.value, root.dtype, want.slack, want.settled)
        except AssertionError as error:
            raise AssertionError(f"root {number}: {error}") from None


def expect(
    roots: Sequence[Node],
    inputs: Mapping[Hashable, Array],
    rng: np.random.Generator,
    exact: bool = True,
    flushes: bool = False,
) -> list[Expected]:
    """What the roots should be, and how sure that is; see the head of this module."""
    values = run(roots, inputs)
    disturbers = [_disturber(rng, exact, number) for number in range(SAMPLES)]
    samples = [run(roots, inputs, disturb) for disturb in disturbers]
    if flushes:
        given = {root.attr[0]: root for root in toposort(roots) if root.kind == "buffer"}
        zeros = {name: flushed(inputs[name], node.dtype) for name, node in given.items()}

        def flushing(disturb: Disturb) -> Disturb:
            return lambda node, args, value: flushed(disturb(node, args, value), node.dtype)

        samples += [run(roots, zeros, flushing(disturb)) for disturb in disturbers]
    return [
        _expected(value, [s[number] for s in samples], root.dtype)
        for number, (root, value) in enumerate(zip(roots, values, strict=True))
    ]


def _expected(value: Array, samples: list[Array], dtype: DType) -> Expected:
    if dtype.is_complex:
        pairs = _expected(floats(value), [floats(sample) for sample in samples], dtype.real)
        return pairs._replace(value=value)
    if not dtype.is_float:
        settled = np.all([s == value for s in samples], axis=0)
        return Expected(value, np.zeros(value.shape), np.asarray(settled))
    center = value.astype(np.float64)
    slack = np.zeros(value.shape)
    settled = np.ones(value.shape, np.bool_)
    with np.errstate(all="ignore"):
        for sample in samples:
            other = sample.astype(np.float64)
            same = (other == center) | (np.isnan(other) & np.isnan(center))
            distance = np.where(same, 0.0, np.abs(other - center))
            settled &= np.isfinite(distance)
            slack = np.maximum(slack, _MARGIN * np.where(np.isfinite(distance), distance, 0.0))
    return Expected(value, slack, settled)


Disturb = Callable[[Node, tuple[Array, ...], Array], Array]


def run(
    roots: Sequence[Node], inputs: Mapping[Hashable, Array], disturb: Disturb | None = None
) -> list[Array]:
    """The values of `roots`; `disturb` may replace each result, given the node and its operands."""
    values: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in toposort(roots):
            if node.kind == "buffer":
                values[node] = inputs[node.attr[0]]
                continue
            args = tuple(values[s] for s in node.src)
            value = RUN[node.kind](node, args)
            values[node] = value if disturb is None else disturb(node, args, value)
    return [values[root] for root in roots]


def _disturber(rng: np.random.Generator, exact: bool, number: int) -> Disturb:
    def anything(like: Array) -> Array:
        return _anything(rng, like, number)

    def near(value: Array, error: Array | float, dtype: DType) -> Array:
        wide = value.astype(np.float64)
        moved = wide + rng.uniform(-1, 1, value.shape) * error
        return evaluate.cast(np.where(np.isfinite(moved), moved, wide), dtypes.float64, dtype)

    def ulps(value: Array, count: float, dtype: DType) -> Array:
        size = np.abs(value.astype(np.float64))
        return near(value, count * (eps(dtype) * size + tiny(dtype)), dtype)

    def disturb(node: Node, args: tuple[Array, ...], value: Array) -> Array:
        if node.kind == "bitcast" and node.src[0].dtype.is_float:
            noise = rng.integers(0, 256, value.size * node.dtype.itemsize, dtype=np.uint8)
            if node.dtype is dtypes.bool:
                noise &= 1
            random = noise.view(node.dtype.np).reshape(value.shape)
            return np.where(np.isnan(args[0]), random, value)
        if node.dtype.is_complex:
            return _disturb_complex(node, args, value, anything, rng)
        if not node.dtype.is_float:
            return value
        if node.kind in ("reduce", "scan") and node.attr[0] in ("add", "mul"):
            return _disturb_reduction(node, args[0], value, near, anything)
        if node.kind == "scan" and node.attr[0] == "add":
            finite = np.where(np.isfinite(args[0]), args[0], 0).astype(np.float64)
            size = np.abs(finite).cumsum(axis=node.attr[1])
            error = 2 * args[0].shape[node.attr[1]] * eps(accumulate_as(node.dtype)) * size
            return near(value, error + eps(node.dtype) * size, node.dtype)
        if node.kind == "fft":
            axis, *_, scale = node.attr
            size = np.abs(args[0].astype(np.float64)).sum((axis, -1), keepdims=True)
            return near(value, 2 * eps(node.dtype) * scale * size, node.dtype)
        if node.kind == "cast":
            return (
                value if exact or node.src[0].dtype is dtypes.bool else ulps(value, 1, node.dtype)
            )
        if node.kind != "alu":
            return value
        match node.attr[0]:
            case "exp" | "exp2" | "expm1" | "log2" | "sin":
                return ulps(value, ULPS, node.dtype)
            case "fma":
                product = np.abs(args[0].astype(np.float64) * args[1].astype(np.float64))
                overflows = (product > largest(node.dtype)) & np.isfinite(product)
                moved = near(value, 2 * eps(node.dtype) * product + tiny(node.dtype), node.dtype)
                return np.where(overflows, anything(value), moved)
            case "max" | "min":
                zeros = (args[0] == 0) & (args[1] == 0)
                return np.where(zeros, np.where(rng.random(value.shape) < 0.5, *args), value)
            case "add" | "sub" | "mul" | "div" | "sqrt" if not exact:
                return ulps(value, ULPS, node.dtype)
        return value

    return disturb


def _disturb_reduction(
    node: Node,
    source: Array,
    value: Array,
    near: Callable[[Array, Array, DType], Array],
    anything: Callable[[Array], Array],
) -> Array:
    monoid, along = node.attr
    axes = along if node.kind == "reduce" else (along,)
    count = math.prod(source.shape[a] for a in axes)
    accumulator = accumulate_as(node.dtype)

    def summed(x: Array) -> Array:
        return x.sum(axes, keepdims=True) if node.kind == "reduce" else x.cumsum(along)

    finite = np.where(np.isfinite(source), source, np.zeros((), source.dtype)).astype(np.float64)
    if monoid == "add":
        size = summed(np.abs(finite))
        risky = size > largest(accumulator) / 2
    else:
        size = np.abs(value.astype(np.float64))
        factors = np.where(finite == 0, 1.0, np.abs(finite))
        exponents = summed(np.abs(np.log2(factors)))
        risky = exponents > -math.log2(tiny(accumulator)) - 30
    # One more rounding to the node's dtype for each partial result that is kept in it.
    error = 2 * eps(node.dtype) * size + count * eps(accumulator) * size
    moved = near(value, error + tiny(node.dtype) * (count > 1), node.dtype)
    return np.where(risky, anything(value), moved)


def _disturb_complex(
    node: Node,
    args: tuple[Array, ...],
    value: Array,
    anything: Callable[[Array], Array],
    rng: np.random.Generator,
) -> Array:
    """Sums, products and quotients, of which each part may err by the magnitude.

    Where a product of parts may over- or underflow, what is left depends on how it is rounded.
    """
    part = node.dtype.real
    kind = node.kind if node.kind in ("reduce", "scan") else node.kind == "alu" and node.attr[0]
    if kind not in ("reduce", "scan", "mul", "div") and kind not in ("add", "sub"):
        return value
    sizes = [np.abs(floats(arg).astype(np.float64)) for arg in args]
    multiplies = kind in ("mul", "div") or node.attr[0] == "mul"
    far = largest(part) ** 0.25
    extreme = np.any([(s > far) | ((s < 1 / far) & (s > 0)) for s in sizes], axis=(0, -1))
    count, size = 1.0, np.abs(value.astype(np.complex128))
    if kind in ("reduce", "scan"):
        axes = node.attr[1] if kind == "reduce" else (node.attr[1],)
        count = math.prod(args[0].shape[a] for a in axes)
        total = np.add.reduce if kind == "reduce" else np.add.accumulate
        how = {"axis": axes, "keepdims": True} if kind == "reduce" else {"axis": axes[0]}
        each = np.hypot(*np.moveaxis(np.where(np.isfinite(sizes[0]), sizes[0], 0), -1, 0))
        extreme = total(extreme.astype(np.int64), **how) > 0
        if multiplies:
            extreme |= (total(np.abs(np.log2(np.where(each > 0, each, 1))), **how) > 60) | (
                count > 1
            ) & ~np.isfinite(value)
        else:
            size = total(each, **how)
            extreme = size > largest(part) / 4  # a partial sum may overflow in one order alone
    error = (8 * count * eps(part) * size + count * tiny(part))[..., None]
    pairs = floats(value).astype(np.float64)
    moved = pairs + rng.uniform(-1, 1, pairs.shape) * error
    moved = np.where(np.isfinite(moved), moved, pairs)
    if multiplies or kind in ("reduce", "scan"):
        moved = np.where(extreme[..., None], anything(pairs), moved)
    numbers: Array = moved.astype(part.np).view(node.dtype.np)[..., 0]
    return numbers


def largest(dtype: DType) -> float:
    """The largest finite number of a float dtype, or a little less."""
    if dtype is dtypes.fp8e4m3:
        return 448.0
    return {
        dtypes.fp8e5m2: 57344.0, dtypes.float16: 65504.0, dtypes.bfloat16: 3.38e38,
        dtypes.float32: 3.4e38, dtypes.float64: 1.79e308,
    }[dtype]  # fmt: skip


def _anything(rng: np.random.Generator, like: Array, number: int) -> Array:
    """NaN in every other evaluation, and a number in the rest: none is settled by chance."""
    choices = (0.0, 1.0) if number % 2 else (np.nan,)
    return rng.choice(choices, like.shape).astype(like.dtype)
