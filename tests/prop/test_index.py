"""Index arithmetic against brute force: every expression is evaluated over its whole domain."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.compiler.ir.index import (
    ALWAYS,
    Expr,
    Mask,
    Var,
    at_least,
    at_most,
    expr,
    parse_expr,
    parse_mask,
    simplify_under,
    split_hint,
)
from gpu.compiler.ir.index.expression import IntArray, _exprs

Grid = dict[Var, IntArray]
Reference = Callable[[Grid], IntArray]
Pair = tuple[Expr, Reference]
T = TypeVar("T")


class Draw(Protocol):
    """What draws from a strategy: a composite's `draw`, or `data.draw`."""

    def __call__(self, strategy: st.SearchStrategy[T]) -> T: ...


examples = settings(deadline=None, max_examples=120)


def grid(variables: Sequence[Var]) -> Grid:
    """Every point of the domain: one array for each variable, all of one shape."""
    axes = np.meshgrid(*[np.arange(v.lo, v.hi + 1) for v in variables], indexing="ij")
    return dict(zip(variables, axes, strict=True))


def values(value: Expr | Mask, points: Grid) -> IntArray:
    shape = next(iter(points.values())).shape
    return np.broadcast_to(np.asarray(value.evaluate(points)), shape)


@st.composite
def variables(draw: st.DrawFn) -> list[Var]:
    lows = draw(st.lists(st.sampled_from([0, 0, 0, -5, -1, 3]), min_size=1, max_size=4))
    extents = [draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])) for _ in lows]
    return [
        Var(name, low, low + extent - 1)
        for name, low, extent in zip("abcd", lows, extents, strict=False)
    ]


def mixed(left: Reference, scale: int, right: Reference) -> Reference:
    return lambda points: left(points) * scale + right(points)


def scaled(reference: Reference, factor: int) -> Reference:
    return lambda points: reference(points) * factor


def floored(reference: Reference, den: int) -> Reference:
    return lambda points: reference(points) // den


def wrapped(reference: Reference, den: int) -> Reference:
    return lambda points: reference(points) % den


def leaf(draw: Draw, known: list[Var]) -> Pair:
    choice = draw(st.one_of(st.sampled_from(known), st.integers(-20, 20)))
    if isinstance(choice, Var):
        return expr(choice), lambda points: points[choice]
    return expr(choice), lambda points: np.full_like(points[known[0]], choice)


def tree(draw: Draw, known: list[Var], depth: int) -> Pair:
    """An expression built with the operators under test, and as a plain function of arrays."""
    operator = draw(st.sampled_from(["leaf", "+", "-", "*", "//", "//", "%", "%"]))
    if depth == 0 or operator == "leaf":
        return leaf(draw, known)
    left, reference = tree(draw, known, depth - 1)
    if operator in "+-":
        right, right_reference = tree(draw, known, depth - 1)
        if operator == "+":
            return left + right, mixed(right_reference, 1, reference)
        return left - right, mixed(right_reference, -1, reference)
    if operator == "*":
        factor = draw(st.sampled_from([-6, -2, -1, 0, 2, 3, 4, 12]))
        return left * factor, scaled(reference, factor)
    den = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 24]))
    if operator == "//":
        return left // den, floored(reference, den)
    return left % den, wrapped(reference, den)


@st.composite
def problems(draw: st.DrawFn, depth: int = 5) -> tuple[list[Var], Expr, Reference]:
    known = draw(variables())
    return known, *tree(draw, known, depth)


@examples
@given(problems())
def test_value_and_bounds_over_the_whole_domain(
    problem: tuple[list[Var], Expr, Reference],
) -> None:
    known, value, reference = problem
    points = grid(known)
    wanted = reference(points)
    np.testing.assert_array_equal(values(value, points), wanted)
    assert value.lo <= wanted.min()
    assert wanted.max() <= value.hi
    if value.is_affine:
        assert (value.lo, value.hi) == (wanted.min(), wanted.max())
    if value.gcd():
        assert not (wanted % value.gcd()).any()
    for var in set(known) - value.vars:
        along = np.take(wanted, [0], axis=known.index(var))
        np.testing.assert_array_equal(wanted, np.broadcast_to(along, wanted.shape))


@st.composite
def mixed_radix_pools(draw: st.DrawFn) -> tuple[list[Var], list[Pair]]:
    """Expressions made of each other with few related factors, where most rules for sums meet."""
    known = draw(variables())
    radices = draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=3, max_size=3))
    scales = st.sampled_from([*radices, math.prod(radices[:2]), math.prod(radices), 1, -1])
    pool = [leaf(draw, known) for _ in range(3)]
    for _ in range(10):
        (left, left_ref), (right, right_ref) = (draw(st.sampled_from(pool)) for _ in range(2))
        scale = draw(scales)
        den = abs(scale)
        operator = draw(st.sampled_from(["+", "//", "%", "join"]))
        if operator == "+":
            pair = left * scale + right, mixed(left_ref, scale, right_ref)
        elif operator == "//":
            pair = left // den, floored(left_ref, den)
        elif operator == "%":
            pair = left % den, wrapped(left_ref, den)
        else:
            joined = left // den * den + right % den
            pair = joined, mixed(floored(left_ref, den), den, wrapped(right_ref, den))
        pool.append(pair)
    return known, pool


@examples
@given(mixed_radix_pools())
def test_related_sums_keep_their_values(problem: tuple[list[Var], list[Pair]]) -> None:
    known, pool = problem
    points = grid(known)
    for value, reference in pool:
        np.testing.assert_array_equal(values(value, points), reference(points))


@examples
@given(problems())
def test_text_reads_back_as_the_same_object(problem: tuple[list[Var], Expr, Reference]) -> None:
    known, value, _ = problem
    assert parse_expr(str(value), {var.name: var for var in known}) is value


@examples
@given(problems(depth=4), st.data())
def test_subst_commutes_with_evaluate(
    problem: tuple[list[Var], Expr, Reference], data: st.DataObject
) -> None:
    known, value, _ = problem
    replaced = data.draw(st.lists(st.sampled_from(known), unique=True))
    # x -> lo + t % extent stays within the bounds of x, as subst asks.
    env = {var: tree(data.draw, known, 2)[0] % (var.hi - var.lo + 1) + var.lo for var in replaced}
    points = grid(known)
    moved = points | {var: values(by, points) for var, by in env.items()}
    np.testing.assert_array_equal(values(value.subst(env), points), values(value, moved))


def test_equal_expressions_are_one_object_and_die_unused() -> None:
    x, y = Var("x", 0, 99), Var("y", 0, 99)
    assert (x + y) * 3 + 1 is 3 * y + 1 + (x + x * 2)
    assert (x + y) % 7 is (y + x + 7) % 7
    assert x - x is expr(0)
    assert Var("x", 0, 99) + 0 is not x + 0
    gc.collect()
    before = len(_exprs)
    kept = [x * 1000 + n for n in range(1, 50)]
    assert len(_exprs) >= before + 49
    del kept
    gc.collect()
    assert len(_exprs) <= before + 1


def test_a_variable_with_one_value_is_a_constant() -> None:
    assert Var("n", 4, 4) * 3 + 1 is expr(13)


def test_divisible_terms_and_constants_leave() -> None:
    x, y = Var("x", -50, 50), Var("y", -50, 50)
    assert (12 * x + y + 30) // 12 is x + 2 + (y + 6) // 12
    assert (12 * x + y + 30) % 12 is (y + 6) % 12
    assert (x - 1) // 4 is (x + 3) // 4 - 1
    assert x // 1 is x + 0
    assert x % 1 is expr(0)


def test_bounds_decide_division_and_modulus() -> None:
    i = Var("i", 0, 11)
    assert i // 12 is expr(0)
    assert i % 12 is i + 0
    assert (i - 12) // 12 is expr(-1)
    assert (i - 12) % 12 is i + 0
    assert (i + 24) % 12 is i + 0


def test_common_factors_leave() -> None:
    x, y = Var("x", 0, 99), Var("y", 0, 3)
    assert (4 * x + y) // 48 is x // 12
    assert (4 * x + y) % 48 is 4 * (x % 12) + y
    assert (4 * x + 3 - y) // 48 is x // 12
    assert (8 * x + 6) % 20 is 4 * ((2 * x + 1) % 5) + 2
    too_wide = Var("w", 0, 4)
    assert (4 * x + too_wide) // 48 is not x // 12
    assert ((4 * x + too_wide) // 48).evaluate({x: 11, too_wide: 4}) == 1


def test_nested_divisions_and_moduli_merge() -> None:
    x, y = Var("x", -999, 999), Var("y", 0, 9)
    assert x // 4 // 6 is x // 24
    assert x % 24 % 6 is x % 6
    assert x % 24 // 6 is (x // 6) % 4
    assert (x // 4 + y) // 6 is (x + 4 * y) // 24
    assert (3 - x // 4) // 6 is (15 - x) // 24
    assert (5 * (x % 24) + y) % 6 is (5 * x + y) % 6


def test_sums_recombine() -> None:
    x, y = Var("x", -999, 999), Var("y", 0, 9)
    assert x // 12 * 12 + x % 12 is x + 0
    assert x // 12 * -36 + y - x % 12 * 3 is y - 3 * x
    assert (y + x // 12 * 12) + (5 - y + x % 12) is x + 5
    assert x // 12 % 4 * 12 + x % 12 is x % 48
    assert x // 48 * 48 + (x // 12 % 4 * 12 + x % 12) is x + 0
    assert x // 48 * 4 + x // 12 % 4 is x // 12
    assert x - x // 12 * 12 is x % 12
    assert x - x % 12 is x // 12 * 12


def test_scaling_does_not_hide_a_recombination() -> None:
    b = Var("b", 0, 99)
    names = {"b": b}
    for value in ((b + b % 12) // 6 * 3 + b % 3, (b + b % 6) // 2 + b):
        doubled = value * 2
        assert doubled is value + value
        assert parse_expr(str(doubled), names) is doubled
    half = (b + b % 6) // 2
    assert half * 2 + b - b is half * 2


def flatten(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    flat = expr(0)
    for position, extent in zip(index, shape, strict=True):
        flat = flat * extent + position
    return flat


def unflatten(flat: Expr, shape: Sequence[int], style: int) -> list[Expr]:
    """The three ways people write it; all must meet in one form."""
    index = []
    size = math.prod(shape)
    for extent in shape:
        inner = size // extent
        if style == 0:
            index.append(flat // inner)
            flat = flat % inner
        elif style == 1:
            index.append(flat // inner % extent)
        else:
            index.append(flat % size // inner)
        size = inner
    return index


@st.composite
def shapes(draw: st.DrawFn, size: int) -> list[int]:
    shape = []
    while size > 1:
        divisors = [extent for extent in range(2, size + 1) if size % extent == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return draw(st.permutations([*shape, 1]))


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([24, 60, 96, 180, 210, 384, 480, 720, 1024]), st.data())
def test_reshape_chains_cancel(size: int, data: st.DataObject) -> None:
    first = data.draw(shapes(size))
    loops = [expr(Var(f"i{axis}", 0, extent - 1)) for axis, extent in enumerate(first)]
    index, shape = loops, first
    between_shapes = data.draw(st.lists(shapes(size), max_size=3))
    for following in [*between_shapes, first]:
        index = unflatten(flatten(index, shape), following, data.draw(st.integers(0, 2)))
        shape = following
    assert all(back is loop for back, loop in zip(index, loops, strict=True))


@pytest.mark.parametrize(
    ("read", "loops"),
    [
        ((12, 32), (384,)),
        ((6, 8, 10), (48, 10)),
        ((48, 10), (8, 60)),
        ((2, 3, 4, 5), (120,)),
        ((4, 6, 5), (2, 12, 5)),
    ],
)
def test_split_hints_remove_every_division(read: tuple[int, ...], loops: tuple[int, ...]) -> None:
    axes = [Var(f"i{axis}", 0, extent - 1) for axis, extent in enumerate(loops)]
    index = unflatten(flatten([expr(axis) for axis in axes], loops), read, 1)
    splits = 0
    while True:
        hints = [hint for hint in map(split_hint, index) if hint is not None]
        if not hints:
            break
        var, factor = hints[0]
        assert (var.hi + 1) % factor == 0
        outer = Var(f"{var.name}o", 0, (var.hi + 1) // factor - 1)
        inner = Var(f"{var.name}i", 0, factor - 1)
        index = [position.subst({var: outer * factor + inner}) for position in index]
        splits += 1
    assert splits > 0
    assert all(position.is_affine for position in index)


def test_split_hint_offers_exact_splits_only() -> None:
    i, j, k = Var("i", 0, 383), Var("j", 0, 382), Var("k", 1, 384)
    assert split_hint(i // 32) == (i, 32)
    assert split_hint((383 - i) % 32) == (i, 32)
    assert split_hint(j // 32) is None
    assert split_hint(k // 32) is None
    assert split_hint((i + k) // 32) is None
    assert split_hint(3 * i + j) is None


@st.composite
def masks(draw: st.DrawFn) -> tuple[list[Var], Mask, Callable[[Grid], IntArray]]:
    known = draw(variables())
    made = ALWAYS
    checks: list[tuple[Reference, int, bool]] = []
    for _ in range(draw(st.integers(0, 4))):
        value, reference = tree(draw, known, 3)
        bound = draw(st.integers(-8, 20))
        lower = draw(st.booleans())
        made = made & (at_least(value, bound) if lower else at_most(value, bound))
        checks.append((reference, bound, lower))

    def wanted(points: Grid) -> IntArray:
        holds = np.ones_like(points[known[0]], dtype=bool)
        for reference, bound, lower in checks:
            holds &= reference(points) >= bound if lower else reference(points) <= bound
        return holds

    return known, made, wanted


@examples
@given(masks())
def test_masks_hold_where_their_constraints_do(
    problem: tuple[list[Var], Mask, Callable[[Grid], IntArray]],
) -> None:
    known, mask, reference = problem
    points = grid(known)
    np.testing.assert_array_equal(values(mask, points), reference(points))
    assert parse_mask(str(mask), {var.name: var for var in known}) is mask
    shift = {known[0]: known[0].hi + known[0].lo - known[0]}
    moved = points | {known[0]: values(shift[known[0]], points)}
    np.testing.assert_array_equal(values(mask.subst(shift), points), values(mask, moved))


@examples
@given(masks(), st.data())
def test_simplify_under_agrees_where_the_mask_holds(
    problem: tuple[list[Var], Mask, Callable[[Grid], IntArray]], data: st.DataObject
) -> None:
    known, mask, _ = problem
    value, reference = tree(data.draw, known, 4)
    points = grid(known)
    holds = values(mask, points)
    simplified = values(simplify_under(value, mask), points)
    np.testing.assert_array_equal(simplified[holds], reference(points)[holds])
