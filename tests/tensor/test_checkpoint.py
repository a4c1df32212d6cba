"""Activation checkpointing: gradients, random numbers and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, fft, func, nn
from gpu.core.errors import InvalidType
from gpu.runtime.prepared import Counters

Layers = list[nn.Linear]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _plain(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


def _drawn(rng: np.random.Generator, width: int) -> Callable[[Wrap], Callable[[Tensor], Tensor]]:
    """A random function of a matrix, of which some parts are checkpointed, some in others."""
    weights = [rng.normal(size=(width, width)) / width**0.5 for _ in range(8)]
    steps: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda x, w: (x @ w).relu(),
        lambda x, w: (x @ w).tanh() + x,
        lambda x, w: (x * w[0]).softmax(-1),
        lambda x, w: (x - x.mean(-1, keepdim=True)) * w.exp().sum(0),
        lambda x, w: x.sin() @ w.T,
        lambda x, w: x.dropout(0.3) * w[1],
        lambda x, w: (x.cumsum(0) @ w).sigmoid(),
        lambda x, w: x.max(-1, keepdim=True) + x * w.mean(),
    ]
    chosen = [int(n) for n in rng.integers(len(steps), size=6)]
    cuts = sorted(int(n) for n in rng.integers(1, 6, size=2))

    def make(wrap: Wrap) -> Callable[[Tensor], Tensor]:
        parameters = [Tensor(w, requires_grad=True) for w in weights[: len(chosen)]]

        def span(first: int, last: int) -> Callable[[Tensor], Tensor]:
            def run(x: Tensor) -> Tensor:
                for number in range(first, last):
                    x = steps[chosen[number]](x, parameters[number])
                return x

            return run

        outer = wrap(lambda x: wrap(span(cuts[0], cuts[1]))(span(0, cuts[0])(x)))

        def whole(x: Tensor) -> Tensor:
            return wrap(span(cuts[1], len(chosen)))(outer(x))

        whole.parameters = parameters  # type: ignore[attr-defined]
        return whole

    return make


def _gradients(fun: Any, x: np.ndarray, jitted: bool, early: bool = False) -> list[np.ndarray]:
    given = Tensor(x, requires_grad=True)

    def step(given: Tensor) -> Tensor:
        value = fun(given)
        if early:
            value.realize()
        loss = (value * value).sum()
        loss.backward()
        return loss

    Tensor.manual_seed(3)
    with Tensor.train():
        run = gpu.jit(step) if jitted else step
        for _ in range(3 if jitted else 1):
            loss = run(given)
    leaves = [given, *fun.parameters]
    return [loss.numpy(), *(np.zeros(1) if t.grad is None else t.grad.numpy() for t in leaves)]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(10))
def test_gradients_are_those_of_the_function(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 9))
    make = _drawn(rng, width)
    x = rng.normal(size=(int(rng.integers(1, 7)), width))
    wanted = _gradients(make(_plain), x, jitted=False)
    for early in (False, True):
        found = _gradients(make(gpu.checkpoint), x, jitted=False, early=early)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-12, 1e-12)


def test_in_a_jitted_step() -> None:
    rng = np.random.default_rng(11)
    make = _drawn(rng, 4)
    x = rng.normal(size=(3, 4))
    pairs = zip(*(_gradients(make(w), x, True) for w in (gpu.checkpoint, _plain)), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, 1e-12, 1e-12)


def _peak(depth: int, piece: int, jitted: bool) -> int:
    """Bytes at most in use at once, beyond the parameters and gradients, in a step of a chain."""
    rng = np.random.default_rng(depth)
    weights = [
        Tensor(rng.normal(size=(16, 16)).astype("float32") / 4, requires_grad=True).realize()
        for _ in range(depth)
    ]
    x = Tensor(rng.normal(size=(512, 16)).astype("float32")).realize()

    def through(part: list[Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for weight in part:
                x = (x @ weight).tanh()
            return x

        return run

    def step(x: Tensor) -> Tensor:
        for start in range(0, depth, piece or depth):
            fun = through(weights[start : start + (piece or depth)])
            x = (gpu.checkpoint(fun) if piece else fun)(x)
        loss = (x * x).mean()
        loss.backward()
        return loss

    run = gpu.jit(step) if jitted else step
    before = gpu.memory_stats()["CPU"].live
    gpu.reset_peak_memory_stats()
    for _ in range(3 if jitted else 1):
        for weight in weights:
            weight.grad = None
        loss = run(x)
        Tensor.realize(loss, *(w.grad for w in weights if w.grad is not None))
    return gpu.memory_stats()["CPU"].peak - before - depth * 16 * 16 * 4


@pytest.mark.parametrize("jitted", [False, True])
def test_memory_of_a_chain_grows_with_the_root_of_its_length(jitted: bool) -> None:
    activation = 512 * 16 * 4
    whole = [_peak(n, 0, jitted) / activation for n in (9, 36)]
    cut = [_peak(n, int(n**0.5), jitted) / activation for n in (9, 36)]
    assert whole[1] > 3.5 * whole[0]
    # Each piece keeps what it begins with, and one at a time what its layers need.
    assert cut[1] < 2.4 * cut[0]
    assert cut[1] < 0.25 * whole[1]


def test_it_is_computed_again_and_the_function_is_called_once() -> None:
    calls = []

    def fun(x: Tensor) -> Tensor:
        calls.append(x)
        return (x @ x).exp() @ x

    launches = []
    for wrap in (_plain, gpu.checkpoint):
        x = Tensor(np.random.default_rng(5).normal(size=(4, 4)), requires_grad=True).realize()
        loss = wrap(fun)(x).square().sum()
        loss.backward()
        before = Counters.launches
        Tensor.realize(loss, x.grad)
        launches.append(Counters.launches - before)
    assert len(calls) == 2
    assert launches[1] > launches[0]


def test_parameters_of_layers_are_reached_and_closures_too() -> None:
    Tensor.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    x = Tensor(np.random.default_rng(2).normal(size=(5, 3)).astype("float32"))
    grads = []
    for wrap in (_plain, gpu.checkpoint):
        for parameter in model.parameters():
            parameter.grad = None
        wrap(model)(x).square().sum().backward()
        grads.append([parameter.grad.numpy() for parameter in model.parameters()])
    for ours, theirs in zip(*grads, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-6, 1e-6)
    # A value from outside that is differentiated by, and is neither an argument nor in memory.
    w = Tensor([1.0, 2.0], dtype="float64", requires_grad=True)
    between = w * 3
    loss = (gpu.checkpoint(lambda x: x.exp() * between)(w) + between).sum()
    (slope,) = loss.gradient(between)
    np.testing.assert_allclose(slope.numpy(), np.exp([1.0, 2.0]) + 1)


def test_several_results_and_forms_of_arguments() -> None:
    x = np.random.default_rng(4).normal(size=(3, 3))

    def fun(pair: dict[str, Tensor], *, by: Tensor) -> tuple[Tensor, list[Any]]:
        hidden = (pair["a"] @ pair["b"]).exp()
        return hidden * by, [hidden.sum(0), hidden.argmax(-1), None]

    found = []
    for wrap in (_plain, gpu.checkpoint):
        a, b, by = (Tensor(x * n, requires_grad=True) for n in (1, 2, 3))
        first, (second, places, nothing) = wrap(fun)({"a": a, "b": b}, by=by)
        assert nothing is None and places.shape == (3,)
        ((first * second).sum() + second.sum()).backward()
        found.append([t.grad.numpy() for t in (a, b, by)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-12)


def test_with_transforms_and_second_order() -> None:
    x = Tensor(np.random.default_rng(6).normal(size=(4,)))

    def fun(x: Tensor) -> Tensor:
        return (x.sin() * x.exp()).sum()

    cut = gpu.checkpoint(fun)
    for transform in (
        func.grad,
        func.hessian,
        lambda f: func.vmap(func.grad(f)),
        lambda f: func.grad(lambda x: func.vmap(f)(x).square().sum()),
    ):
        of = x if transform in (func.grad, func.hessian) else x.reshape(2, 2)
        ours, theirs = transform(cut)(of), transform(fun)(of)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-12)


def _with_dropout(x: Tensor) -> Tensor:
    hidden = x.dropout(0.5)
    return (hidden @ hidden).exp() * x.dropout(0.5)


def _in_a_loop(x: Tensor) -> Tensor:
    step = gpu.checkpoint(lambda carry, row: (carry * row).sin().exp())
    return gpu.scan(lambda carry, row: (step(carry, row), carry), x[0], x)[0]


OTHERS = (_with_dropout, _in_a_loop, lambda x: fft.fft(x).abs() * x)


@pytest.mark.parametrize("fun", OTHERS, ids=["dropout", "loop", "complex"])
def test_random_numbers_loops_and_complex_ones(fun: Callable[[Tensor], Tensor]) -> None:
    given = np.random.default_rng(9).normal(size=(4, 4))
    found = []
    for wrap in (_plain, gpu.checkpoint):
        Tensor.manual_seed(1)
        x = Tensor(given, requires_grad=True)
        with Tensor.train():
            wrap(fun)(x).square().sum().backward()
        found.append(x.grad.numpy())
    np.testing.assert_allclose(*found, 1e-12)


@pytest.mark.parametrize("axis", [0, None])
def test_on_several_devices(axis: int | None) -> None:
    rng, devices = np.random.default_rng(8), ("CPU", "CPU:1")
    x, w = rng.normal(size=(4, 3)), rng.normal(size=(3, 3))
    found = []
    for wrap in (_plain, gpu.checkpoint):
        weight = Tensor(w).shard(devices).realize().requires_grad_()
        given = Tensor(x).shard(devices, axis)
        wrap(lambda x, weight=weight: (x @ weight).exp() @ weight)(given).sum().backward()
        found.append(weight.grad.numpy())
    np.testing.assert_allclose(*found, 1e-12)


def test_what_is_no_function_or_tensor_is_refused() -> None:
    with pytest.raises(InvalidType, match=r"gpu\.checkpoint\(f\)\(x\)"):
        gpu.checkpoint(Tensor([1.0]))  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="gave str 'no'"):
        gpu.checkpoint(lambda x: "no")(Tensor([1.0]))
