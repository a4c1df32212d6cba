"""Integers are what Python's are: totals, comparisons, numbers beside them, positions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.dtype import INTS, DType
from gpu.core.errors import NumberOverflow
from tensor.reference import Array, rng_for, torch

WHOLE = (dtypes.bool, *INTS)
COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")
SIZES = (0, 1, 17, 130)


def edges(dtype: DType) -> list[int]:
    """Numbers at and around the limits of a dtype, which it holds."""
    near = [dtype.min, dtype.min + 1, -2, -1, 0, 1, 2, dtype.max // 2, dtype.max - 1, dtype.max]
    return sorted({int(n) for n in near if dtype.min <= n <= dtype.max})


def drawn(dtype: DType, shape: tuple[int, ...], *names: object) -> Array:
    """Numbers of the whole range of a dtype, of which a quarter are its extremes."""
    rng = rng_for(dtype.name, shape, *names)
    if dtype is dtypes.bool:
        return rng.random(shape) < 0.7
    whole = rng.integers(int(dtype.min), int(dtype.max), shape, dtype.np, endpoint=True)
    extreme = rng.choice(np.array([dtype.min, dtype.max], dtype.np), shape)
    return np.where(rng.random(shape) < 0.25, extreme, whole)


def wrapped(value: int, dtype: DType) -> int:
    """What a dtype keeps of a whole number."""
    return (value - int(dtype.min)) % (1 << dtype.bits) + int(dtype.min)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_totals_are_pythons(dtype: DType, device: str) -> None:
    total = dtypes.uint64 if dtype is dtypes.uint64 else dtypes.int64
    for size in SIZES:
        x = drawn(dtype, (3, size))
        lines = x.astype(object).astype(int) if dtype is dtypes.bool else x.tolist()
        lines = [[int(n) for n in line] for line in lines]
        t = Tensor(x, device=device)
        found = [t.sum(1), t.prod(1), t.cumsum(1), t.cumprod(1), t.sum(), t.sum(0), t.cumsum(0)]
        assert {f.dtype for f in found} == {total}
        sums, products = [sum(line) for line in lines], [math.prod(line) for line in lines]
        assert found[0].tolist() == [wrapped(n, total) for n in sums]
        assert found[1].tolist() == [wrapped(n, total) for n in products]
        for name, running in ((sum, found[2]), (math.prod, found[3])):
            wanted = [[wrapped(name(line[: i + 1]), total) for i in range(size)] for line in lines]
            assert running.tolist() == wanted
        assert found[4].item() == wrapped(sum(sums), total)
        columns = list(zip(*lines, strict=True))
        assert found[5].tolist() == [wrapped(sum(column), total) for column in columns]
        for i in range(3):
            assert found[6][i].tolist() == [wrapped(sum(c[: i + 1]), total) for c in columns]


def test_totals_that_int32_does_not_hold(device: str) -> None:
    # The interpreter takes its time; elsewhere sums are cut into parts.
    count = 1 << (9 if device.startswith("PYTHON") else 18)
    step = 1 << 15
    line = Tensor.arange(0, count * step, step, device=device)
    assert line.sum().item() == step * (count * (count - 1) // 2)
    for dtype in ("int16", "uint16", "int32", "uint32"):
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        for value in {low, high}:
            full = Tensor.full((count,), value, dtype=dtype, device=device).contiguous().realize()
            assert full.sum().item() == value * count
    image = Tensor.full((3, count // 2), 255, dtype="uint8", device=device).contiguous().realize()
    assert image.sum().item() == image.cast("int64").sum().item() == 255 * 3 * count // 2
    assert image.cumsum(1)[:, -1].tolist() == [255 * count // 2] * 3
    assert (image > 254).sum().item() == 3 * count // 2


@pytest.mark.parametrize("method", ["sum", "prod"])
def test_a_dtype_that_is_asked_for_wins(method: str, device: str) -> None:
    x = Tensor([200, 100], dtype="uint8", device=device)
    found = getattr(x, method)(dtype="uint8")
    assert found.dtype is dtypes.uint8
    assert found.item() == {"sum": 300, "prod": 20_000}[method] % 256


def test_products_keep_their_dtype_and_sums_of_one_operand_do_not(device: str) -> None:
    x = np.full((2, 3), 100, np.int8)
    t, theirs = Tensor(x, device=device), torch.tensor(x)
    for formula, count in (("ij->i", 1), ("ij->ij", 1), ("ij,ij->", 2), ("ij,kj->ik", 2)):
        found = Tensor.einsum(formula, *[t] * count)
        wanted = torch.einsum(formula, *[theirs] * count)
        assert found.dtype.np == wanted.numpy().dtype and found.tolist() == wanted.tolist()
    assert (t @ t.T).dtype is dtypes.int8 and (t @ t.T).tolist() == (theirs @ theirs.T).tolist()


def test_gradients_pass_through_wide_totals(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    count = (x > 1.5).sum()
    (x * count).sum().backward()
    assert count.dtype is dtypes.int64 and x.grad is not None and x.grad.tolist() == [2, 2, 2]


def numbers(dtype: DType) -> list[int | float]:
    """Numbers to compare with: some that a dtype holds, some that it does not."""
    near = edges(dtype)
    beyond = [int(dtype.min) - 1, int(dtype.max) + 1, -1, 2, 200, 1 << 40, -(1 << 40), 1 << 63]
    large = [1 << 64, 1 << 70, -(1 << 70), 10**400, -(10**400)]
    floats = [0.5, -0.5, -0.0, 1.0, 1.5, 2.0**24 + 1, 1e30, -1e30, math.inf, -math.inf, math.nan]
    return [*near, *beyond, *large, *floats, float(dtype.max), int(dtype.max) - 0.5, True]


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_comparisons_with_numbers_are_pythons(dtype: DType, device: str) -> None:
    whole = edges(dtype)
    x = Tensor(np.array(whole, dtype.np), device=device)
    found, wanted = [], []
    for number in numbers(dtype):
        for name in COMPARISONS:
            compare = getattr(operator, name)
            found.append(compare(x, number))
            wanted.append([compare(n, number) for n in whole])
    assert Tensor.stack(*found).tolist() == wanted


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_integers_of_all_dtypes_compare_as_pythons(dtype: DType, device: str) -> None:
    left = edges(dtype)
    for other in WHOLE:
        right = edges(other)
        x = Tensor(np.array(left, dtype.np).reshape(-1, 1), device=device)
        y = Tensor(np.array(right, other.np), device=device)
        ways = [getattr(operator, name) for name in COMPARISONS]
        found = Tensor.stack(*(compare(x, y) for compare in ways)).tolist()
        for name, compare, answers in zip(COMPARISONS, ways, found, strict=True):
            wanted = [[compare(a, b) for b in right] for a in left]
            assert answers == wanted, (name, dtype, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "fp8e4m3"])
def test_floats_compare_with_numbers_beyond_them(dtype: str) -> None:
    values = [-math.inf, -448.0, -1.0, 0.0, 2.0, 448.0, math.inf, math.nan]
    if dtype == "fp8e4m3":
        values = [v for v in values if not math.isinf(v)]
    x = Tensor(values).cast(dtype)
    for number in (10**400, -(10**400), 1 << 2000, math.inf, -math.inf, math.nan, 2, 2.0):
        for name in COMPARISONS:
            compare = getattr(operator, name)
            assert compare(x, number).tolist() == [compare(v, number) for v in values], number
    if dtype == "float16":
        assert (x < 70000).tolist() == [v < 70000 for v in values]
        assert (x == 1e6).tolist() == [False] * len(values)


ARITHMETIC: dict[str, Callable[[Tensor, int], Any]] = {
    "add": lambda x, n: x + n,
    "radd": lambda x, n: n + x,
    "sub": lambda x, n: x - n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "floordiv": lambda x, n: x // n,
    "rfloordiv": lambda x, n: n // x,
    "mod": lambda x, n: x % n,
    "rmod": lambda x, n: n % x,
    "pow": lambda x, n: x ** abs(n),
    "rpow": lambda x, n: n**x,
    "and": lambda x, n: x & n,
    "lshift": lambda x, n: x << n,
    "rlshift": lambda x, n: n << x,
    "iadd": operator.iadd,
    "maximum": lambda x, n: x.maximum(n),
    "minimum": lambda x, n: x.minimum(n),
    "clamp": lambda x, n: x.clamp(min_=n),
    "clip": lambda x, n: x.clip(max_=n),
    "full_like": lambda x, n: x.full_like(n),
    "masked_fill": lambda x, n: x.masked_fill(x == 1, n),
    "where": lambda x, n: (x == 1).where(x, n),
    "where of a number first": lambda x, n: (x == 1).where(n, x),
    "setitem": lambda x, n: operator.setitem(x, 0, n),
    "setitem by a mask": lambda x, n: operator.setitem(x, x == 1, n),
    "setitem at positions": lambda x, n: operator.setitem(x, [0, 1], n),
    "assign": lambda x, n: x.assign(n),
    "pad": lambda x, n: x.pad((1, 1), value=n),
    "scatter": lambda x, n: x.scatter(0, Tensor([0]), n),
    "masked_select": lambda x, n: x.masked_select(x == 1, 3, n),
    "a number": lambda x, n: Tensor(n, dtype=x.dtype),
    "a list": lambda x, n: Tensor([[0], [n]], dtype=x.dtype),
    "full": lambda x, n: Tensor.full((2,), n, dtype=x.dtype),
    "arange": lambda x, n: Tensor.arange(n, n + 2, dtype=x.dtype),
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_numbers_that_do_not_fit_are_refused(name: str, dtype: DType) -> None:
    for number in (int(dtype.min) - 1, int(dtype.max) + 1, 1 << 70):
        if name == "pow" and abs(number) <= dtype.max:
            continue
        x = Tensor([1, 2], dtype=dtype).contiguous().realize()
        with pytest.raises(
            NumberOverflow, match=f"^{abs(number) if name == 'pow' else number} does"
        ):
            ARITHMETIC[name](x, number)
        assert x.tolist() == [1, 2]


def test_the_message_names_number_dtype_and_way_out() -> None:
    says = r"^300 does not fit uint8, which holds 0 to 255; cast the tensor to int32 first"
    with pytest.raises(NumberOverflow, match=says):
        Tensor([1], dtype="uint8") + 300
    with pytest.raises(NumberOverflow, match="give int64 as the dtype"):
        Tensor([1]) + 2**40
    with pytest.raises(NumberOverflow, match=r"^1e\+30 does not fit int32; clamp it"):
        Tensor([1])[0] = 1e30


def test_numbers_take_the_dtype_that_holds_them() -> None:
    assert Tensor([2**40]).dtype is Tensor([-(2**40), 1]).dtype is dtypes.int64
    large = Tensor([2**63, 1])
    assert large.dtype is dtypes.uint64 and large.tolist() == [2**63, 1]
    with pytest.raises(NumberOverflow, match=r"^9223372036854775808 does not fit int64"):
        Tensor([2**63, -1])
    assert Tensor([2**63, 0.5]).tolist() == [2.0**63, 0.5]
    high = Tensor.arange(2**63, 2**63 + 3)
    assert high.dtype is dtypes.uint64 and high.tolist() == [2**63, 2**63 + 1, 2**63 + 2]
    assert Tensor([2**63, 3], dtype="uint64").tolist() == [2**63, 3]
    wide = Tensor([True, False]) + 2**40
    assert wide.dtype is dtypes.int64 and wide.tolist() == [2**40 + 1, 2**40]
    chosen = Tensor([True, False]).where(1, 2**40)
    assert chosen.dtype is dtypes.int64 and chosen.tolist() == [1, 2**40]
    random = Tensor.randint(64, low=2**64 - 3, high=2**64, dtype="uint64").tolist()
    assert set(random) <= {2**64 - 3, 2**64 - 2, 2**64 - 1}


BEYOND = 2**31 + 10


def test_places_beyond_31_bits(device: str) -> None:
    line = Tensor.arange(BEYOND, device=device)
    assert line.dtype is dtypes.int64
    assert line[-3:].tolist() == [BEYOND - 3, BEYOND - 2, BEYOND - 1]
    part = Tensor.arange(-5, BEYOND, 2, device=device)[-2:]
    assert part.tolist() == [BEYOND - 3, BEYOND - 1]
    assert Tensor.eye(BEYOND, device=device)[-2:, -3:].tolist() == [[0, 1, 0], [0, 0, 1]]
    lower = Tensor([[1.0]], device=device).expand(BEYOND, BEYOND).tril()[-2:, -2:]
    assert lower.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("name", ["argmax", "argmin", "argsort", "topk", "cummax", "nonzero"])
def test_positions_are_int64(name: str, device: str) -> None:
    x = Tensor([3, 1, 2], device=device)
    found = x.topk(2) if name == "topk" else getattr(x, name)()
    places = found[1] if isinstance(found, tuple) else found
    assert places.dtype is dtypes.int64


def toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted(a: int, count: int, bits: int) -> int:
    """`a` moved up by `count` bits; all of them go where the count is no place of one."""
    return a << count if 0 <= count < bits else 0


def shifted_down(a: int, count: int, bits: int) -> int:
    return a >> count if 0 <= count < bits else -(a < 0)


def power(a: int, b: int, bits: int) -> int:
    """As in torch: negative powers are 0 but of 1 and -1."""
    if b < 0:
        return {1: 1, -1: 1 - 2 * (b % 2)}.get(a, 0)
    return pow(a, b, 1 << bits)


EDGE_CASES: dict[str, tuple[Callable[..., Tensor], Callable[[int, int, int], int]]] = {
    "//": (operator.floordiv, lambda a, b, bits: a // b if b else 0),
    "%": (operator.mod, lambda a, b, bits: a % b if b else 0),
    "trunc": (
        lambda x, y: x.div(y, rounding_mode="trunc"),
        lambda a, b, bits: toward_zero(a, b) if b else 0,
    ),
    "fmod": (Tensor.fmod, lambda a, b, bits: a - b * toward_zero(a, b) if b else 0),
    "<<": (operator.lshift, shifted),
    ">>": (operator.rshift, shifted_down),
    "**": (operator.pow, power),
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_edge_cases_of_arithmetic(dtype: DType, device: str) -> None:
    counts = {n for n in (3, 7, 8, 31, 32, 63, 64, dtype.bits) if n <= dtype.max}
    whole = sorted({*edges(dtype), *counts})
    line = np.array(whole, dtype.np)
    x = Tensor(line.reshape(-1, 1), device=device)
    y = Tensor(line, device=device)
    for name, (ours, pythons) in EDGE_CASES.items():
        wanted = [[wrapped(pythons(a, b, dtype.bits), dtype) for b in whole] for a in whole]
        assert ours(x, y).tolist() == wanted, name
    for ours_alone in (operator.neg, abs, operator.invert):
        assert ours_alone(y).tolist() == [wrapped(ours_alone(n), dtype) for n in whole]


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_casts_of_floats_saturate(dtype: DType, device: str) -> None:
    steps = (-1, -0.5, 0, 0.5, 1)
    near = [float(limit) + step for limit in (dtype.min, dtype.max) for step in steps]
    values = np.array([*near, math.nan, math.inf, -math.inf, -0.0, 1e-40, 1e30, -1e30], np.float32)

    def held(value: float) -> int:
        if math.isnan(value):
            return 0
        inside = min(max(value, float(dtype.min)), float(dtype.max))
        return min(int(inside), int(dtype.max))

    found = Tensor(values, device=device).cast(dtype)
    assert found.tolist() == [held(value) for value in values.tolist()]


def test_counts_of_many_rows(device: str) -> None:
    """They are formed in int32, and a thread may store several of them in one access."""
    rng = rng_for("counts", device)
    rows = int(rng.integers(20_000, 24_000)) & ~1
    a, b = (rng.random(shape).astype(np.float32) for shape in ((2, rows, 1), (2, 1, 6)))
    found = (Tensor(a, device=device) > Tensor(b, device=device)).sum(2)
    np.testing.assert_array_equal(found.numpy(), (a > b).sum(2))
