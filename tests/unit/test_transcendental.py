"""The expansions of exp, exp2, log2 and sin, evaluated by numpy, against wider arithmetic."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest

from gpu.compiler.lower.transcendental import UlpBounds, exp, exp2, expm1, log2, sin
from gpu.compiler.lower.transcendental.formats import pi_fixed_point
from gpu.core.dtype import FLOATS, dtypes
from gpu.core.errors import DTypeError

FUNCTIONS = {"exp": exp, "exp2": exp2, "expm1": expm1, "log2": log2, "sin": sin}
SAMPLES = 1_000_000
DECIMAL_SAMPLES = 400
MANTISSA = {"float16": 10, "bfloat16": 7, "fp8e4m3": 3, "fp8e5m2": 2, "float32": 23, "float64": 52}
SMALLEST_EXPONENT = {
    "float16": -14, "bfloat16": -126, "fp8e4m3": -6, "fp8e5m2": -14,
    "float32": -126, "float64": -1022,
}  # fmt: skip


def split_halves(a):
    """Two float64 numbers of at most 26 bits that add up to `a` (Veltkamp), without overflow."""
    scaled = a * 2.0**-30
    shifted = scaled * (2.0**27 + 1)
    head = (shifted - (shifted - scaled)) * 2.0**30
    return head, a - head


def fused_float64(a, b, c):
    """a*b + c from error-free parts, so rounded nearly once; plain where those overflow."""
    product = a * b
    (ah, al), (bh, bl) = split_halves(a), split_halves(b)
    product_error = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = product + c
    shadow = total - product
    total_error = (product - (total - shadow)) + (c - shadow)
    result = total + (product_error + total_error)
    return np.where(np.isfinite(result), result, total)


class NumpyBuilder:
    """Evaluates each operation with numpy; `fused` says how `fma` rounds."""

    OPS = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "lt": np.less, "eq": np.equal,
        "ne": np.not_equal, "rint": np.rint, "where": np.where, "and": np.bitwise_and,
        "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    }  # fmt: skip

    def __init__(self, fused):
        self.fused = fused

    def op(self, name, *args):
        with np.errstate(all="ignore"):
            return self.fma(*args) if name == "fma" else self.OPS[name](*args)

    def fma(self, a, b, c):
        if not self.fused:
            return a * b + c
        if a.dtype == np.float64:
            return fused_float64(a, b, c)
        a, b, c = (v.astype(np.float64) for v in (a, b, c))
        return (a * b + c).astype(np.float32)

    def const(self, dtype, value):
        return np.array(value, dtype.np)[()]

    def cast(self, x, dtype):
        with np.errstate(all="ignore"):
            if not (self.dtype(x).is_float and dtype.is_int):
                return x.astype(dtype.np)
            in_range = (x > dtype.min - 1.0) & (x < dtype.max + 1.0)
            clipped = np.where(x > 0, self.const(dtype, dtype.max), self.const(dtype, dtype.min))
            result = np.where(in_range, np.where(in_range, x, 0).astype(dtype.np), clipped)
            return np.where(np.isnan(x), 0, result).astype(dtype.np)

    def bitcast(self, x, dtype):
        return x.view(dtype.np)

    def repeat(self, count, most, initial, step):
        assert count.min() >= 0 and count.max() <= most
        for _ in range(int(count.max())):
            initial = step(*initial)
        return initial

    def dtype(self, x):
        return dtypes.from_numpy(x.dtype)


def evaluate(name, x, fused):
    return FUNCTIONS[name](NumpyBuilder(fused), x)


def float64_reference(name, x):
    with np.errstate(all="ignore"):
        return getattr(np, name)(x.astype(np.float64))


def ulp(exact, dtype):
    """Spacing of the dtype's numbers at float64 values."""
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 1.0))
    return 2.0 ** (np.maximum(exponent - 1, SMALLEST_EXPONENT[dtype.name]) - MANTISSA[dtype.name])


def largest_error(got, exact, dtype):
    """In ulp; infinities and NaN must be where the reference, rounded, has them."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype.np).astype(np.float64)
        got = got.astype(np.float64)
        special = ~np.isfinite(rounded) | ~np.isfinite(got)
        np.testing.assert_array_equal(got[special], rounded[special])
        error = np.abs(got - exact) / ulp(exact, dtype)
    return error[~special].max(initial=0.0)


def random_bits(dtype, seed, count=SAMPLES):
    bits = np.random.default_rng(seed).integers(0, 1 << dtype.bits, count, np.uint64)
    return bits.astype(f"u{dtype.itemsize}").view(dtype.np)


class TypeBuilder:
    """Values are dtypes: checks each operation's operands, counts operations, notes the dtypes.

    Those in what runs once or not, as few numbers need it, are `rare`.
    """

    def __init__(self):
        self.count = self.rare = 0
        self.seen = set()

    def result(self, dtype):
        self.seen.add(dtype)
        self.count += 1
        return dtype

    def op(self, name, *args):
        if name == "where":
            assert args[0] is dtypes.bool
            args = args[1:]
        assert all(a is args[0] for a in args), (name, args)
        if name in ("and", "or", "xor", "shl", "shr"):
            assert args[0].is_int or args[0] is dtypes.bool
        if name in ("fma", "rint"):
            assert args[0].is_float
        return self.result(dtypes.bool if name in ("lt", "eq", "ne") else args[0])

    def const(self, dtype, value):
        assert isinstance(value, float) == dtype.is_float
        assert dtype.is_float or dtype.min <= value <= dtype.max
        return dtype

    def cast(self, x, dtype):
        return self.result(dtype)

    def bitcast(self, x, dtype):
        assert x.bits == dtype.bits
        return self.result(dtype)

    def repeat(self, count, most, initial, step):
        assert (count, most) == (dtypes.bool, 1)
        before = self.count
        assert step(*initial) == initial
        self.rare += self.count - before
        self.count = before
        return initial

    def dtype(self, x):
        return x


def near(centres, dtype, steps):
    """The numbers up to `steps` places from each centre."""
    unsigned = f"u{dtype.itemsize}"
    bits = centres.astype(dtype.np).view(unsigned)
    offsets = np.arange(-steps, steps + 1).astype(unsigned)
    return (bits[:, None] + offsets).ravel().view(dtype.np)


def uniform(low, high, count):
    return np.random.default_rng(5).uniform(low, high, count).astype(np.float32)


def float32_arguments():
    f32 = dtypes.float32
    quarter_turns = np.arange(1, 20_000) * (math.pi / 2)
    around_one = np.exp2(np.linspace(-0.6, 0.6, 100_000))
    return [
        *((name, "all exponents", random_bits(f32, 1)) for name in FUNCTIONS),
        ("exp", "normal", uniform(-88, 89, 200_000)),
        ("exp", "subnormal", uniform(-104, -87, 200_000)),
        ("exp", "ends", near(np.array([88.7228, -87.3365, -103.2789, -103.9721]), f32, 2000)),
        ("exp2", "normal", uniform(-128, 129, 200_000)),
        ("exp2", "subnormal", uniform(-151, -125, 200_000)),
        ("exp2", "ends", near(np.array([128.0, -126.0, -149.0, -150.0]), f32, 2000)),
        ("expm1", "normal", uniform(-20, 89, 200_000)),
        ("expm1", "around 0", uniform(-1, 1, 200_000)),
        (
            "expm1",
            "ends",
            near(np.array([88.7228, 88.3762, -16.6355, -17.3287, 0.3466]), f32, 2000),
        ),
        ("log2", "around 1", near(around_one, f32, 1)),
        ("log2", "next to 1", near(np.array([1.0]), f32, 50_000)),
        ("sin", "moderate", uniform(-8192, 8192, 300_000)),
        ("sin", "near quarter turns", near(quarter_turns, f32, 3)),
    ]


FLOAT32_ARGUMENTS = float32_arguments()


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize(
    ("name", "x"),
    [(name, x) for name, _, x in FLOAT32_ARGUMENTS],
    ids=[f"{name} {where}" for name, where, _ in FLOAT32_ARGUMENTS],
)
def test_float32_error(name, x, fused):
    got = evaluate(name, x, fused)
    assert got.dtype == np.float32
    error = largest_error(got, float64_reference(name, x), dtypes.float32)
    assert error <= UlpBounds[name, dtypes.float32]


def test_sin_float32_next_to_multiples_of_half_turns():
    """The hardest arguments: the fewest significant bits are left after the reduction."""
    candidates = [nearest_to_half_turn(24, e) for e in range(104)]
    x = np.array(candidates, np.float32)
    exact = np.array([float(decimal_sin(Decimal(float(v)))) for v in x])
    for fused in (False, True):
        error = largest_error(evaluate("sin", x, fused), exact, dtypes.float32)
        assert error <= UlpBounds["sin", dtypes.float32]


def nearest_to_half_turn(digits, exponent):
    """The ``M * 2**exponent``, M under ``2**digits``, nearest to a multiple of pi for its size.

    M / k must be close to pi / 2**exponent for an integer k: M is the numerator of a convergent of
    its continued fraction.
    """
    numerator, denominator = PI, 1 << (PI_BITS + exponent)
    previous, current = 0, 1
    while denominator:
        quotient, remainder = divmod(numerator, denominator)
        following = quotient * current + previous
        if following >= 1 << digits:
            break
        previous, current = current, following
        numerator, denominator = denominator, remainder
    return math.ldexp(current, exponent)


CONTEXT = decimal.Context(prec=60, Emin=-(10**6), Emax=10**6)
LN2 = CONTEXT.ln(Decimal(2))
PI_BITS = 2400  # twice what the largest exponent needs, as a continued fraction does
PI = pi_fixed_point(PI_BITS)
TURN_DIGITS = decimal.Context(prec=750)
TURN = TURN_DIGITS.divide(Decimal(2 * PI), Decimal(1 << PI_BITS))


def decimal_sin(x):
    """Taylor's series after an exact remainder by 2 pi."""
    x = CONTEXT.plus(TURN_DIGITS.remainder_near(x, TURN))
    term = total = x
    square, n = CONTEXT.multiply(x, x), 1
    while abs(term) > abs(total) * Decimal("1e-40"):
        n += 2
        term = CONTEXT.divide(CONTEXT.multiply(term, square), Decimal(n * (1 - n)))
        total = CONTEXT.add(total, term)
    return total


def decimal_reference(name, x):
    if name == "exp":
        return CONTEXT.exp(x)
    if name == "expm1":
        return CONTEXT.subtract(CONTEXT.exp(x), Decimal(1)) if abs(x) > 1e-20 else x
    if name == "exp2":
        return CONTEXT.exp(CONTEXT.multiply(x, LN2))
    return decimal_sin(x) if name == "sin" else CONTEXT.divide(CONTEXT.ln(x), LN2)


def decimal_error(name, x, got):
    """In ulp of float64, for one finite argument with a finite result."""
    exact = decimal_reference(name, Decimal(float(x)))
    spacing = ulp(np.array(float(exact)), dtypes.float64)
    return float(abs(Decimal(float(got)) - exact) / Decimal(float(spacing)))


def float64_arguments():
    f64, rng = dtypes.float64, np.random.default_rng(7)
    bits = random_bits(f64, 2, 4 * DECIMAL_SAMPLES)
    bits = bits[np.isfinite(bits)]
    hardest = np.array([nearest_to_half_turn(53, e) for e in range(-50, 971, 3)])
    quarter_turns = np.concatenate([np.arange(1, 40), rng.integers(1, 10**9, 60)]) * (math.pi / 2)
    return {
        "exp": np.concatenate([
            rng.uniform(-745, 709, DECIMAL_SAMPLES), rng.uniform(-1, 1, DECIMAL_SAMPLES),
            rng.uniform(-745, -707, DECIMAL_SAMPLES),
        ]),
        "exp2": np.concatenate([
            rng.uniform(-1075, 1024, DECIMAL_SAMPLES), rng.uniform(-1, 1, DECIMAL_SAMPLES),
            rng.uniform(-1075, -1020, DECIMAL_SAMPLES),
        ]),
        "expm1": np.concatenate([
            rng.uniform(-40, 709, DECIMAL_SAMPLES), rng.uniform(-1, 1, DECIMAL_SAMPLES),
            rng.uniform(-1, 1, DECIMAL_SAMPLES) ** 9, near(np.array([709.4, 0.3466]), f64, 30),
        ]),
        "log2": np.concatenate([
            np.abs(bits[bits != 0])[:DECIMAL_SAMPLES], rng.uniform(0.5, 2, DECIMAL_SAMPLES),
            near(np.array([1.0, 2**-0.5, 2**0.5]), f64, 30), np.arange(1, 40) * 2.0**-1074,
        ]),
        "sin": np.concatenate([
            bits[:DECIMAL_SAMPLES], rng.uniform(-8, 8, DECIMAL_SAMPLES), hardest,
            rng.uniform(-(2.0**40), 2.0**40, DECIMAL_SAMPLES), near(quarter_turns, f64, 1),
        ]),
    }  # fmt: skip


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_error(name, fused):
    x = float64_arguments()[name]
    x = x[x != 1.0] if name == "log2" else x
    got = evaluate(name, x, fused)
    assert np.isfinite(got).all()
    errors = [decimal_error(name, *pair) for pair in zip(x, got, strict=True)]
    assert max(errors) <= UlpBounds[name, dtypes.float64]


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.bits < 32], ids=lambda d: d.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_narrow_float(name, dtype):
    x = np.arange(1 << dtype.bits).astype(f"u{dtype.itemsize}").view(dtype.np)
    got = evaluate(name, x, fused=False)
    assert got.dtype == dtype.np
    error = largest_error(got, float64_reference(name, x), dtype)
    assert error <= UlpBounds[name, dtype]


WIDE = pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
INF, NAN = math.inf, math.nan


@WIDE
@pytest.mark.parametrize(
    ("name", "arguments", "results"),
    [
        ("exp", [0.0, -0.0, INF, -INF, NAN, 1e30, -1e30], [1, 1, INF, 0, NAN, INF, 0]),
        ("exp2", [0.0, -0.0, INF, -INF, NAN, 1e30, -1e30], [1, 1, INF, 0, NAN, INF, 0]),
        ("expm1", [0.0, -0.0, INF, -INF, NAN, 1e30], [0, -0.0, INF, -1, NAN, INF]),
        ("expm1", [1e-45, -1e-45, -1e-39], [1e-45, -1e-45, -1e-39]),
        ("log2", [0.0, -0.0, -1.0, -INF, INF, NAN, -1e-42], [-INF, -INF, NAN, NAN, INF, NAN, NAN]),
        ("log2", [1.0], [0.0]),
        ("sin", [0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, NAN, NAN, NAN]),
    ],
)
def test_edges(name, arguments, results, dtype):
    got = evaluate(name, np.array(arguments, dtype.np), fused=False)
    expected = np.array(results, dtype.np)
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@WIDE
def test_powers_of_two_are_exact_both_ways(dtype):
    largest = -SMALLEST_EXPONENT[dtype.name] + 1
    smallest = SMALLEST_EXPONENT[dtype.name] - MANTISSA[dtype.name]
    exponents = np.arange(smallest, largest + 1).astype(dtype.np)
    powers = np.ldexp(np.ones(1, dtype.np), exponents.astype(np.int32))
    for fused in (False, True):
        np.testing.assert_array_equal(evaluate("exp2", exponents, fused), powers)
        np.testing.assert_array_equal(evaluate("log2", powers, fused), exponents)


@WIDE
def test_ends_of_exp2(dtype):
    top, bottom = -SMALLEST_EXPONENT[dtype.name] + 2, SMALLEST_EXPONENT[dtype.name]
    lowest = bottom - MANTISSA[dtype.name] - 1
    x = np.array([top, lowest, lowest + 0.25], dtype.np)
    tiny = np.finfo(dtype.np).smallest_subnormal
    np.testing.assert_array_equal(evaluate("exp2", x, False), np.array([INF, 0, tiny], dtype.np))
    below_top = evaluate("exp2", np.nextafter(x[:1], np.zeros(1, dtype.np)), False)
    assert np.isfinite(below_top).all()


@WIDE
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_nothing_is_rounded_to_zero(name, dtype):
    """A product that is takes a CPU a hundred cycles: of masked scores it would be every one."""
    x = np.array([-INF, dtype.min, -1e30, -5000], dtype.np)
    with np.errstate(under="raise"):
        assert evaluate(name, x, False).tolist() == [0] * len(x)


@WIDE
def test_sin_is_odd_and_keeps_tiny_arguments(dtype):
    x = random_bits(dtype, 3, 10_000)
    x = x[np.isfinite(x)]
    np.testing.assert_array_equal(evaluate("sin", -x, False), -evaluate("sin", x, False))
    tiny = np.array([1, 2, 3, 1000]).astype(f"u{dtype.itemsize}").view(dtype.np)
    np.testing.assert_array_equal(evaluate("sin", tiny, False), tiny)


@pytest.mark.parametrize(
    ("name", "dtype", "operations", "rare"),
    [
        ("exp", dtypes.float32, 26, 0), ("exp", dtypes.float64, 31, 0),
        ("exp2", dtypes.float32, 26, 0), ("exp2", dtypes.float64, 31, 0),
        ("expm1", dtypes.float32, 30, 0), ("expm1", dtypes.float64, 35, 0),
        ("log2", dtypes.float32, 34, 0), ("log2", dtypes.float64, 45, 0),
        ("sin", dtypes.float32, 39, 76), ("sin", dtypes.float64, 45, 98),
        ("sin", dtypes.float16, 41, 76),
    ],
)  # fmt: skip
def test_cost_and_types(name, dtype, operations, rare):
    """Constants are free, conversions and bit casts are not; float32 needs nothing wider."""
    builder = TypeBuilder()
    assert FUNCTIONS[name](builder, dtype) is dtype
    assert (builder.count, builder.rare) == (operations, rare)
    if dtype is not dtypes.float64:
        assert max(seen.bits for seen in builder.seen) == 32


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_are_refused(name):
    with pytest.raises(DTypeError, match="int32"):
        FUNCTIONS[name](TypeBuilder(), dtypes.int32)


def test_bounds_cover_every_float():
    assert set(UlpBounds) == {(name, dtype) for name in FUNCTIONS for dtype in FLOATS}
