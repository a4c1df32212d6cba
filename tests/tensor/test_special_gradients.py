"""Gradients at ties, zeros, infinities and NaNs, and of what folds to constants, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.compiler.ir.graph import toposort
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.runtime.prepared import Counters
from tensor.reference import assert_gradients, rng_for, torch

F = torch.nn.functional
Function = Callable[..., Any]
INF, NAN = float("inf"), float("nan")
POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "beside": ((2, 3, 6, 8), {"kernel_size": 2}),
    "overlapping": ((2, 2, 7, 6), {"kernel_size": 3, "stride": 1, "padding": 1}),
    "apart": ((1, 2, 9, 8), {"kernel_size": 2, "stride": 3, "dilation": 2}),
    "hanging over": ((1, 2, 7, 7), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "oblong": ((2, 1, 5, 9), {"kernel_size": (2, 4), "stride": (1, 3), "padding": (1, 2)}),
}


def with_ties(rng: np.random.Generator, shape: tuple[int, ...], *others: float) -> Any:
    """Few whole numbers, and each of `others` at a tenth of the places."""
    x = rng.integers(0, 3, shape).astype(np.float32)
    for other in others:
        x[rng.random(shape) < 0.1] = other
    return x


@pytest.mark.parametrize("others", [(), (-INF,), (NAN, INF)], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_the_first_of_equal_maxima_in_a_window_has_its_gradient(
    name: str, others: tuple[float, ...], device: str
) -> None:
    shape, options = POOLS[name]
    x = with_ties(rng_for(name, others), shape, *others)
    kernel = options["kernel_size"]
    rest = {key: value for key, value in options.items() if key != "kernel_size"}
    assert_gradients(
        device,
        lambda t: t.max_pool2d(kernel, **rest),
        lambda t: F.max_pool2d(t, kernel, **rest),
        [x],
    )
    found = Tensor(x, device=device).max_pool2d(kernel, **rest, return_indices=True)[1]
    wanted = F.max_pool2d(torch.tensor(x), kernel, **rest, return_indices=True)[1]
    assert found.tolist() == wanted.tolist()


def test_windows_of_nothing_but_minus_infinity(device: str) -> None:
    x = np.full((1, 1, 5, 5), -INF, np.float32)
    assert_gradients(
        device,
        lambda t: t.max_pool2d(2, padding=1),
        lambda t: F.max_pool2d(t, 2, padding=1),
        [x],
    )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["amax", "amin", "prod", "mean"])
def test_ties_of_what_is_scattered(reduce: str, include_self: bool, device: str) -> None:
    rng = rng_for(reduce, include_self)
    index = rng.integers(0, 3, (6, 4))
    x, updates = with_ties(rng, (4, 5)), with_ties(rng, (6, 4))
    assert_gradients(
        device,
        lambda a, b: a.scatter_reduce(0, Tensor(index, device=device), b, reduce, include_self),
        lambda a, b: a.scatter_reduce(0, torch.tensor(index), b, reduce, include_self=include_self),
        [x, updates],
    )


BASES = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1e-10, 1e10]
POWERS = [0.0, 1.0, -1.0, 2.0, 3.0, -2.0, -3.0, 0.5, -0.5, 1.5, 20.0]


def grid(bases: list[float], powers: list[float]) -> list[Any]:
    """Every base with every power, whose results and slopes are floats that no device takes for 0.

    torch gives such a grid no special treatment; a device may flush what is subnormal.
    """
    pairs = np.array([(b, p) for b in bases for p in powers], np.float32)
    with np.errstate(all="ignore"):
        size = np.abs(pairs[:, 0].astype(np.float64)) ** (pairs[:, 1] - 1)
    usual = (size == 0) | ~np.isfinite(size) | ((size > 1e-30) & (size < 1e30))
    return list(pairs[usual].T.copy())


def test_powers_of_zero_and_of_negatives(device: str) -> None:
    """The exponent's gradient is NaN below zero, 0 or infinite at zero."""
    assert_gradients(device, lambda x, y: x.pow(y), torch.pow, grid(BASES, POWERS), LOOSE)


def test_powers_of_special_values(device: str) -> None:
    bases = [*BASES, -0.0, INF, -INF, NAN]
    powers = [*POWERS, -0.0, INF, -INF, NAN]
    assert_gradients(device, lambda x, y: x.pow(y), torch.pow, grid(bases, powers), LOOSE)


LOOSE: Any = (5e-5, 1e-30)  # 2 ** (y * log2(x)) has an error that grows with the exponent


@pytest.mark.parametrize("base", [0.0, -2.0, 2.0, 0.5])
def test_powers_of_a_number(base: float, device: str) -> None:
    y = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], np.float32)
    assert_gradients(device, lambda t: base**t, lambda t: base**t, [y], LOOSE)


def test_powers_have_the_slopes_of_torch_wherever_they_are_special() -> None:
    bases = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, INF, -INF, NAN, 1e-310, -1e-310, 3.7]
    powers = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, -1.5, 2.5, INF, -INF]
    x = np.array(bases)
    for power in [*powers, NAN, 1e-310, 0.25, -2.5, 17.0, -18.0]:
        both = []
        for make in (Tensor, torch.tensor):
            of_number = make(x, requires_grad=True)
            (of_number**power).sum().backward()
            a = make(x, requires_grad=True)
            exponent = make(np.full(len(x), power), requires_grad=True)
            (a**exponent).sum().backward()
            results = (of_number.grad, a.grad, exponent.grad, (of_number**power).detach())
            both.append([np.asarray(each.numpy()) for each in results])
        for got, want in zip(*both, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, err_msg=f"to the power {power}")
            np.testing.assert_array_equal(
                np.signbit(got[got == 0]), np.signbit(want[want == 0]), err_msg=f"{power}"
            )


@pytest.mark.parametrize("power", [0, 0.0, 0.25, 1.5, 17, 20.0, -21.0])
def test_a_power_that_is_a_number(power: float, device: str) -> None:
    x = np.array([0.0, 0.5, 1.0, 2.0, 3.0, -1.0 if power == int(power) else 4.0], np.float32)
    assert_gradients(device, lambda t: t**power, lambda t: t**power, [x], LOOSE)


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("name", ["var", "std"])
def test_spread_beside_an_infinity(name: str, correction: int, device: str) -> None:
    rows = np.array([[1, 2, INF], [-INF, 2, INF], [1, NAN, 2], [3, 3, 3], [1, 5, 2]], np.float32)
    assert_gradients(
        device,
        lambda t: getattr(t, name)(1, correction=correction),
        lambda t: getattr(t, name)(1, correction=correction),
        [rows],
    )


def test_second_gradients_of_var() -> None:
    """The rule for var says how its gradient depends on the mean."""
    x = rng_for("second").normal(size=(3, 4)).astype(np.float64)

    def twice(t: Any, first: Any) -> Any:
        return (first(t.var(1).sum(), t) * t * t).sum(1)

    assert_gradients(
        "CPU",
        lambda t: twice(t, lambda y, to: y.gradient(to)[0]),
        lambda t: twice(t, lambda y, to: torch.autograd.grad(y, to, create_graph=True)[0]),
        [x],
    )


CONSTANTS: dict[str, tuple[Function, Function]] = {
    "times zero": (lambda x: (x * 0).sum(), lambda x: 0 * x),
    "square": (lambda x: (x * x).sum(), lambda x: 2 * x),
    "of sums": (
        lambda x: (x.sum() + x).sum() * x.sum(),
        lambda x: 0 * x + 2 * (x.size + 1) * x.sum(),
    ),
    "power": (lambda x: (x**3).sum(), lambda x: 3 * x * x),
    "minimum": (lambda x: x.max(), lambda x: 0 * x + 1 / x.size),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_gradients_of_a_constant_tensor(name: str, device: str) -> None:
    """What is computed from constants alone still knows what it was computed from."""
    ours, slope = CONSTANTS[name]
    for x in (Tensor.full((3,), 1.5, device=device), Tensor.ones(2, 2, device=device)):
        (found,) = ours(x).gradient(x)
        np.testing.assert_allclose(found.numpy(), slope(x.numpy()), 1e-6)
    x = Tensor(2.5, device=device)
    np.testing.assert_allclose(ours(x).gradient(x)[0].numpy(), slope(np.float32(2.5)), 1e-6)


def test_equal_constants_are_different_tensors(device: str) -> None:
    a, b = Tensor.ones(2, device=device), Tensor.ones(2, device=device)
    found = (a * 3 + b * 2).sum().gradient(a, b)
    assert [g.tolist() for g in found] == [[3, 3], [2, 2]]


def test_constants_with_and_without_identity_share_their_kernels() -> None:
    (Tensor.full((5,), 1.25) + Tensor([1.0, 2, 3, 4, 5])).realize()
    before = Counters.compiled
    (Tensor.full((5,), 1.25) + Tensor([5.0, 4, 3, 2, 1])).realize()
    assert Counters.compiled == before


EMPTY: dict[str, Function] = {
    "sum": lambda x: x[0:0].sum(),
    "prod": lambda x: x[0:0].prod() * 2,
    "mean": lambda x: x.reshape(1, 3)[0:0].mean(),
    "pad": lambda x: x[0:0].pad((1, 2)).sum(),
    "gather": lambda x: x[0:0].gather(0, Tensor([0], device=x.device)).sum(),
    "scatter": lambda x: (
        Tensor([1.0], device=x.device)
        .scatter(0, Tensor(np.zeros(0, np.int32), device=x.device), x)
        .sum()
    ),
    "cat": lambda x: x[0:0].cat(Tensor([1.0, 2], device=x.device)).sum(),
    "power": lambda x: (x**0).sum(),
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_does_not_depend_on_values_has_a_gradient_of_zeros(name: str, device: str) -> None:
    x = Tensor([1.0, 2, 3], device=device)
    assert EMPTY[name](x).gradient(x)[0].tolist() == [0, 0, 0]
    x.requires_grad = True
    EMPTY[name](x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0]


def test_a_write_of_nothing(device: str) -> None:
    x, nothing = Tensor([1.0, 2], device=device), Tensor([7.0], device=device)
    y = x * 2
    y[0:0] = nothing[0:0]
    found = (y * y).sum().gradient(x, nothing)
    assert [g.tolist() for g in found] == [[8, 16], [0]]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_an_empty_tensor(shape: tuple[int, ...]) -> None:
    for x in (Tensor(np.zeros(shape, np.float32)), Tensor.zeros(shape)):
        (found,) = (x * 2).sum().gradient(x)
        assert found.shape == shape


def test_rules_of_gradients_have_a_text_and_cost_no_kernel(device: str) -> None:
    x = Tensor([[1.0, 2, 2, 0]], device=device)
    root = (x.max_pool2d((1, 2)) + x.var() + x[0:0].sum())._node
    kinds = [node.kind for node in toposort([root])]
    assert kinds.count("custom_grad") == 3
    handles = handles_of([root])
    assert parse_graph(print_graph([root]), handles) == [root]
    x.sum().realize()
    before = Counters.launches
    (x * x).pow(x).realize()
    assert Counters.launches == before + 1
