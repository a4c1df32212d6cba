from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.compiler.ir import evaluate
from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.optable import OPS, apply, result_dtype, scalar
from gpu.compiler.lower import narrow_floats
from gpu.compiler.lower.legalize import DERIVATIONS, Legalizer, round_to_odd
from gpu.compiler.targets import Native
from gpu.core.dtype import ALL, DType, PyScalar, dtypes
from gpu.core.errors import DTypeError, InvalidValue, Unsupported

Array = npt.NDArray[Any]

# numpy warns of overflow and NaN in casts and comparisons, which are the point here.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NARROW = tuple(narrow_floats.FORMATS)
MINIMAL = frozenset(OPS) - frozenset(DERIVATIONS)
STORAGE = Native(MINIMAL, storage_only=frozenset(NARROW))
CONVERTING = Native(MINIMAL, compute_as_float32=frozenset(NARROW))
FLOAT_EDGES = np.array([
    0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5, 255.5, 2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**23 + 1, 2.0**31,
    2.0**52 - 0.5, 2.0**63, 2.0**64, 1e-45, 5e-324, 1e300, np.inf, np.nan,
])  # fmt: skip
TRANSCENDENTAL = ("exp", "exp2", "expm1", "log2", "sin")


class NumpyBuilder(Builder[Array]):
    """Evaluates at once, and fails on anything that `native` lacks."""

    def __init__(self, native: Native):
        self.native = native
        self.indirect = native.storage_only | native.compute_as_float32

    def op(self, name: str, *args: Array) -> Array:
        operands = tuple(self.dtype(a) for a in args)
        assert name in self.native.ops, f"{name} is not native"
        assert not self.indirect & set(operands), f"{name} on {operands}"
        return apply(name, result_dtype(name, operands), args)

    def const(self, dtype: DType, value: PyScalar) -> Array:
        assert dtype not in self.indirect, f"constant of {dtype}"
        return scalar(dtype)(value)

    def cast(self, x: Array, dtype: DType) -> Array:
        ends = {self.dtype(x), dtype}
        assert not ends & self.native.storage_only, f"cast of {ends}"
        assert not ends & self.native.compute_as_float32 or dtypes.float32 in ends, (
            f"cast of {ends}"
        )
        return evaluate.cast(x, self.dtype(x), dtype)

    def bitcast(self, x: Array, dtype: DType) -> Array:
        return evaluate.bitcast(x, dtype)

    def dtype(self, x: Array) -> DType:
        return dtypes.from_numpy(x.dtype)


def legalizer(native: Native) -> Legalizer[Array]:
    return Legalizer(NumpyBuilder(native), native)


def uint_of(dtype: DType) -> DType:
    return dtypes.from_numpy(f"uint{dtype.bits}")


def assert_same(got: Array, want: Array, any_zero: bool = False) -> None:
    """Equal in type and bits; a NaN equals any NaN and, if `any_zero`, 0 equals -0."""
    assert got.dtype == want.dtype
    got, want = np.broadcast_arrays(got, want)
    same = got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}")
    if dtypes.from_numpy(want.dtype).is_float:
        same |= np.isnan(got) & np.isnan(want)
        same |= any_zero & (got == 0) & (want == 0)
    bad = np.flatnonzero(~same)
    assert bad.size == 0, f"{bad.size} differ, e.g. {got[bad[:4]]} instead of {want[bad[:4]]}"


def every_pattern(dtype: DType) -> Array:
    return np.arange(1 << dtype.bits, dtype=uint_of(dtype).np).view(dtype.np)


def around_narrow_values(dtype: DType) -> Array:
    """Images of all `dtype` values and the midpoints between them, and what is 1 ulp off them."""
    finite = every_pattern(dtype).astype(np.float64)
    finite = np.sort(finite[np.isfinite(finite)])
    beyond = finite[-1] + (finite[-1] - finite[-2]) * np.array([0.5, 1.0])
    points = np.concatenate(
        [finite, (finite[1:] + finite[:-1]) / 2, beyond, -beyond, [np.nan, np.inf]]
    )
    bits = points.astype(np.float32).view(np.uint32)
    return np.concatenate([bits - np.uint32(1), bits, bits + np.uint32(1)]).view(np.float32)


def inputs(dtype: DType, rng: np.random.Generator, count: int = 300) -> Array:
    """Edge values and random ones, in random order."""
    if dtype is dtypes.bool:
        return rng.integers(0, 2, count).astype(np.bool_)
    unsigned = uint_of(dtype)
    bits = rng.integers(0, 1 << dtype.bits, count, unsigned.np).view(dtype.np)
    if dtype.is_float:
        edges = np.concatenate(
            [FLOAT_EDGES, -FLOAT_EDGES, rng.normal(0, 3, count), rng.normal(0, 3e4, count)]
        )
    else:
        edges = np.array(
            [dtype.min, dtype.min + 1, 0, 1, dtype.bits, dtype.max, dtype.max - 1], dtype.np
        )
        edges = np.concatenate([edges, rng.integers(0, dtype.bits + 2, count).astype(dtype.np)])
    return np.asarray(rng.permutation(np.concatenate([edges.astype(dtype.np), bits])))


def domain(name: str) -> list[DType]:
    return [d for d in ALL if d.kind in OPS[name].domain]


EXACT = [(name, d) for name in OPS if name not in TRANSCENDENTAL for d in domain(name)]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_to_float32_is_exact_for_every_pattern(dtype: DType) -> None:
    values = every_pattern(dtype)
    assert_same(narrow_floats.to_float32(legalizer(STORAGE), values), values.astype(np.float32))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_from_float32_rounds_as_numpy(dtype: DType) -> None:
    random = np.random.default_rng(1).integers(0, 1 << 32, 1_000_000, np.uint32).view(np.float32)
    for values in (around_narrow_values(dtype), random):
        want = values.astype(dtype.np)
        assert_same(narrow_floats.from_float32(legalizer(STORAGE), values, dtype), want)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_nan_becomes_the_quiet_nan_of_its_sign(dtype: DType) -> None:
    values = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    fmt = narrow_floats.FORMATS[dtype]
    got = narrow_floats.from_float32(legalizer(STORAGE), values, dtype).view(fmt.bits.np)
    assert got.tolist() == [fmt.nan, fmt.nan | 1 << (dtype.bits - 1)]


def test_narrow_rejects_other_dtypes() -> None:
    b = legalizer(STORAGE)
    with pytest.raises(DTypeError, match="float64 is not a narrow float"):
        narrow_floats.to_float32(b, np.zeros(1))
    with pytest.raises(DTypeError, match="takes a float32, got float64"):
        narrow_floats.from_float32(b, np.zeros(1), dtypes.float16)


@pytest.mark.parametrize(
    "native", [STORAGE, CONVERTING], ids=["storage_only", "compute_as_float32"]
)
@pytest.mark.parametrize(
    ("name", "dtype"), EXACT, ids=lambda p: p if isinstance(p, str) else p.name
)
def test_op_is_bit_equal_to_its_meaning(native: Native, name: str, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    args = [inputs(dtype, rng) for _ in range(OPS[name].arity)]
    if name == "where":
        args[0] = rng.integers(0, 2, args[0].size).astype(np.bool_)
    want = apply(
        name, result_dtype(name, tuple(dtypes.from_numpy(a.dtype) for a in args)), tuple(args)
    )
    got = legalizer(native).op(name, *args)
    assert_same(got, want, any_zero=name in ("max", "min"))


@pytest.mark.parametrize("name", ["rint", "floor", "trunc"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_rounding_to_integers_at_every_exponent(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    exponents = np.repeat(np.arange(-3, 66), 200)
    halves = np.arange(-20, 20) / 2
    values = np.concatenate([np.ldexp(rng.uniform(-2, 2, exponents.size), exponents), halves])
    values = values.astype(dtype.np)
    values = np.concatenate([values, np.nextafter(values, values.dtype.type(0)), np.round(values)])
    assert_same(legalizer(STORAGE).op(name, values), apply(name, dtype, (values,)))


@pytest.mark.parametrize("name", TRANSCENDENTAL)
@pytest.mark.parametrize("dtype", [*NARROW, dtypes.float32, dtypes.float64], ids=str)
def test_transcendentals_are_close(name: str, dtype: DType) -> None:
    values = inputs(dtype, np.random.default_rng(4), 2000)
    wide = values.astype(np.float64)
    values = values[(np.abs(wide) < 100) | ~np.isfinite(wide)]
    got = legalizer(STORAGE).op(name, values)
    want = apply(name, dtype, (values,))
    assert got.dtype == want.dtype
    # Here only that they are wired right: a narrow result is a float32 one rounded once more, so at
    # most its last place differs; the accuracy itself is the transcendentals' own test's.
    one = np.ones(1, dtype.np).view(uint_of(dtype).np)
    eps = float((one + one.dtype.type(1)).view(dtype.np)[0]) - 1
    tiny = float(np.ones(1, uint_of(dtype).np).view(dtype.np)[0])
    places = 1 if dtype in NARROW else 4
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=places * eps, atol=places * tiny)


@pytest.mark.parametrize(
    "native", [STORAGE, CONVERTING], ids=["storage_only", "compute_as_float32"]
)
@pytest.mark.parametrize(("source", "target"), list(product(ALL, ALL)), ids=lambda d: d.name)
def test_cast_is_bit_equal_to_its_meaning(native: Native, source: DType, target: DType) -> None:
    values = inputs(source, np.random.default_rng(5), 1000)
    assert_same(legalizer(native).cast(values, target), evaluate.cast(values, source, target))


def test_float64_to_float16_rounds_once() -> None:
    points = around_narrow_values(dtypes.float16).astype(np.float64)
    nudged = [np.nextafter(points, toward) for toward in (-np.inf, np.inf)]
    values = np.concatenate([points, *nudged])
    want = values.astype(np.float16)
    twice = values.astype(np.float32).astype(np.float16)
    assert ((want != twice) & ~np.isnan(want)).sum() > 50_000  # else this would test nothing
    for native in (STORAGE, CONVERTING):
        assert_same(legalizer(native).cast(values, dtypes.float16), want)


def test_round_to_odd_truncates_and_marks_inexact_values() -> None:
    values = np.array([1.0, 1.0 + 2.0**-52, 1.0 - 2.0**-53, -1.0 + 2.0**-53, 1e300, 1e-300, -0.0])
    below_one, smallest = np.float32(1) - np.float32(2**-24), np.float32(1e-45)
    above_one, largest = np.float32(1) + np.float32(2**-23), np.finfo(np.float32).max
    want = [1.0, above_one, below_one, -below_one, largest, smallest, -0.0]
    assert_same(round_to_odd(legalizer(STORAGE), values), np.array(want, np.float32))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_constants_of_narrow_floats(dtype: DType) -> None:
    for value in (0.0, -0.0, 0.1, -3.5, 1e9, float("inf"), float("nan")):
        want = np.array([value]).astype(np.float32).astype(dtype.np)
        with warnings.catch_warnings(action="error"):
            got = legalizer(STORAGE).const(dtype, value)
        assert_same(got.reshape(1), want)


def test_native_operations_pass_straight_through() -> None:
    native = Native(frozenset({"fma", "sub"}))
    calls = []

    class Recording(NumpyBuilder):
        def op(self, name: str, *args: Array) -> Array:
            calls.append((name, args[0].dtype.name))
            return super().op(name, *args)

    b = Legalizer(Recording(native), native)
    one = np.ones(1, np.float32)
    b.op("fma", one, one, one)
    b.sub(one.astype(dtypes.bfloat16.np), one.astype(dtypes.bfloat16.np))
    assert calls == [("fma", "float32"), ("sub", "bfloat16")]


@pytest.mark.parametrize("name", sorted(MINIMAL))
def test_missing_core_operations_are_unsupported(name: str) -> None:
    dtype = domain(name)[0]
    operand = np.zeros(1, dtype.np)
    args = [operand] * OPS[name].arity
    if name == "where":
        args[0] = np.zeros(1, np.bool_)
    with pytest.raises(Unsupported, match=f"{name} on {dtype.name}"):
        legalizer(Native(MINIMAL - {name})).op(name, *args)


def test_operands_outside_the_domain_are_refused() -> None:
    b = legalizer(STORAGE)
    with pytest.raises(DTypeError, match="neg is not defined for bool"):
        b.neg(np.zeros(1, np.bool_))
    half = np.zeros(1, np.float16)
    with pytest.raises(DTypeError, match="and is not defined for float16"):
        b.op("and", half, half)


def test_contradictory_descriptions_are_refused() -> None:
    half = frozenset({dtypes.float16})
    with pytest.raises(InvalidValue, match="'cosh'"):
        Native(frozenset({"cosh"}))
    with pytest.raises(InvalidValue, match="int8"):
        Native(MINIMAL, storage_only=frozenset({dtypes.int8}))
    with pytest.raises(InvalidValue, match="as storage_only and as compute_as_float32"):
        Native(MINIMAL, storage_only=half, compute_as_float32=half)
