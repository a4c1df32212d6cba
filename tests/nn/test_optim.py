"""Optimisers: 20 steps against torch, or against the formulas in numpy, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Tensor
from gpu.core.errors import GpuError, InvalidType, InvalidValue, ShapeError
from gpu.nn.optim import LAMB, LARS, SGD, Adam, AdamW, Muon, Optimizer, OptimizerGroup
from gpu.nn.state import get_state_dict
from gpu.runtime.prepared import Counters
from tensor.reference import rng_for, torch

Array = npt.NDArray[np.float64]
SHAPES = ((3, 4), (2, 3, 2), (4, 2))
STEPS = 20


def start(*names: object) -> list[Array]:
    return [rng_for(*names, shape).normal(size=shape) for shape in SHAPES]


def gradient(p: Any) -> Any:
    """The gradient of `loss`, by hand."""
    return p**3 - p


def loss(params: list[Tensor]) -> Tensor:
    total = Tensor(0.0, dtype="float64")
    for p in params:
        total = total + (p.square().square() / 4 - p.square() / 2).sum()
    return total


def train(optimizer: Optimizer, params: list[Tensor], steps: int = STEPS) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(params).backward()
        optimizer.step()


OPTIM = torch.optim
AGAINST_TORCH: dict[str, tuple[Callable[..., Optimizer], Callable[..., Any]]] = {
    "SGD": (lambda p: SGD(p, 0.1), lambda p: OPTIM.SGD(p, 0.1)),
    "momentum": (
        lambda p: SGD(p, 0.05, 0.9, 0.01),
        lambda p: OPTIM.SGD(p, 0.05, 0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda p: SGD(p, 0.05, 0.9, nesterov=True),
        lambda p: OPTIM.SGD(p, 0.05, 0.9, nesterov=True),
    ),
    "Adam": (lambda p: Adam(p, 0.03, 0.8, 0.95), lambda p: OPTIM.Adam(p, 0.03, (0.8, 0.95))),
    "AdamW": (
        lambda p: AdamW(p, 0.03, weight_decay=0.2),
        lambda p: OPTIM.AdamW(p, 0.03, weight_decay=0.2),
    ),
}


@pytest.mark.parametrize("name", AGAINST_TORCH)
def test_against_torch(name: str) -> None:
    ours, theirs = AGAINST_TORCH[name]
    params = [Tensor(p) for p in start(name)]
    tensors = [torch.tensor(p, requires_grad=True) for p in start(name)]
    train(ours(params), params)
    optimizer = theirs(tensors)
    for _ in range(STEPS):
        for t in tensors:
            t.grad = gradient(t.detach())
        optimizer.step()
    for param, tensor in zip(params, tensors, strict=True):
        np.testing.assert_allclose(param.numpy(), tensor.detach().numpy(), 1e-10)


# A formula yields the parameter after each step.
Formula = Callable[[Array], Iterator[Array]]


def lars(lr: float, c: float, w: float, tcoef: float, nesterov: bool, classic: bool) -> Formula:
    def run(p: Array) -> Iterator[Array]:
        b = np.zeros_like(p)
        while True:
            g = gradient(p)
            size = np.linalg.norm(p)
            rate = lr * tcoef * size / (np.linalg.norm(g) + w * size) if tcoef else lr
            g = g + w * p
            if classic:
                g = rate * g
            b = c * b + g
            change = g + c * b if nesterov else b
            p = p - (change if classic else rate * change)
            yield p

    return run


def lamb(lr: float, b1: float, b2: float, eps: float, w: float) -> Formula:
    def run(p: Array) -> Iterator[Array]:
        m, v, t = np.zeros_like(p), np.zeros_like(p), 0
        while True:
            t, g = t + 1, gradient(p)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            u = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps) + w * p
            p = p - lr * np.linalg.norm(p) / np.linalg.norm(u) * u
            yield p

    return run


def muon(lr: float, c: float, w: float, nesterov: bool) -> Formula:
    def run(p: Array) -> Iterator[Array]:
        b = np.zeros_like(p)
        while True:
            g = gradient(p)
            b = c * b + g
            x = (g + c * b if nesterov else b).reshape(len(p), -1)
            x = x / (np.linalg.norm(x) + 1e-7)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x - 4.775 * a @ x + 2.0315 * a @ a @ x
            p = p - lr * (x.reshape(p.shape) + w * p)
            yield p

    return run


AGAINST_FORMULAS: dict[str, tuple[Callable[..., Optimizer], Formula]] = {
    "LARS": (lambda p: LARS(p, 0.5, tcoef=0.1), lars(0.5, 0.9, 1e-4, 0.1, False, True)),
    "LARS nesterov": (
        lambda p: LARS(p, 0.5, 0.8, 0.01, nesterov=True, classic=False, tcoef=0.1),
        lars(0.5, 0.8, 0.01, 0.1, True, False),
    ),
    "classic": (
        lambda p: SGD(p, 0.05, 0.9, 0.01, classic=True),
        lars(0.05, 0.9, 0.01, 0, False, True),
    ),
    "LAMB": (
        lambda p: LAMB(p, 0.02, 0.8, 0.95, weight_decay=0.1),
        lamb(0.02, 0.8, 0.95, 1e-6, 0.1),
    ),
    "Muon": (lambda p: Muon(p, 0.02), muon(0.02, 0.95, 0.1, True)),
    "Muon plain": (
        lambda p: Muon(p, 0.02, 0.8, 0, nesterov=False),
        muon(0.02, 0.8, 0, False),
    ),
}


@pytest.mark.parametrize("name", AGAINST_FORMULAS)
def test_against_formula(name: str) -> None:
    make, formula = AGAINST_FORMULAS[name]
    params = [Tensor(p) for p in start(name)]
    train(make(params), params)
    for param, p in zip(params, start(name), strict=True):
        wanted = formula(p)
        for _ in range(STEPS - 1):
            next(wanted)
        np.testing.assert_allclose(param.numpy(), next(wanted), 1e-8, 1e-10)


def test_a_rate_that_changes_compiles_nothing() -> None:
    param = Tensor([1.0, 2.0])
    optimizer = SGD([param], 0.5)
    values = []
    for rate in (0.5, 0.25, 0.125):
        optimizer.lr.assign(Tensor([rate]))
        optimizer.zero_grad()
        param.sum().backward()
        compiled = Counters.compiled
        optimizer.step()
        values.append(param.tolist())
    assert Counters.compiled == compiled
    assert values == [[0.5, 1.5], [0.25, 1.25], [0.125, 1.125]]


def test_parameters_stay_leaves_and_ask_for_gradients() -> None:
    a, b, frozen = Tensor([1.0, 2.0]), Tensor([1.0, 2.0]), Tensor([3.0])
    frozen.requires_grad = False
    optimizer = SGD([a, b, frozen], 1.0)
    assert a.requires_grad and optimizer.params == [a, b] and optimizer.buffers[0] is frozen
    for _ in range(2):
        optimizer.zero_grad()
        (a.square().sum() + b.sum()).backward()
        optimizer.step()
    assert a.grad is not None and b.grad is not None
    assert a.tolist() == [1.0, 2.0] and a.grad.tolist() == [-2.0, -4.0]
    assert b.tolist() == [-1.0, 0.0] and a.requires_grad and frozen.tolist() == [3.0]


def test_a_parameter_without_gradient_is_skipped() -> None:
    a, b = Tensor([1.0]), Tensor([1.0])
    optimizer = Adam([a, b], 0.5)
    a.sum().backward()
    optimizer.step()
    assert a.item() == pytest.approx(0.5) and b.item() == 1 and optimizer.m[1].item() == 0
    optimizer.zero_grad()
    with pytest.raises(InvalidValue, match="none of 2 parameters has a gradient"):
        optimizer.step()


def test_the_loss_comes_from_the_same_graph() -> None:
    param = Tensor([1.0, 2.0])
    optimizer = SGD([param], 1.0)
    value = param.square().sum()
    value.backward()
    optimizer.step(value)
    before = Counters.launches
    assert value.item() == 5 and param.tolist() == [-1.0, -2.0]
    assert Counters.launches == before


def test_schedule_step_computes_nothing() -> None:
    """However many parameters there are: the next one is read when the first has changed."""
    params = [Tensor([1.0]), Tensor([2.0]), Tensor([3.0])]
    optimizer = SGD(params, 0.5, momentum=0.9)
    (params[0] + params[1] + params[2]).sum().backward()
    before = Counters.launches
    changed = optimizer.schedule_step()
    assert Counters.launches == before
    changed[0].realize(*changed[1:])
    assert [param.item() for param in params] == [0.5, 1.5, 2.5]
    assert [state.item() for state in optimizer.b] == [1, 1, 1]


def test_narrow_parameters_keep_wide_state() -> None:
    param = Tensor([1.0, 2.0], dtype="float16")
    optimizer = AdamW([param], 0.25, weight_decay=0)
    param.sum().backward()
    optimizer.step()
    assert param.dtype.name == "float16" and optimizer.v[0].dtype.name == "float32"
    assert param.tolist() == [0.75, 1.75]


def test_group() -> None:
    a, b = Tensor([1.0]), Tensor([1.0])
    group = OptimizerGroup(SGD([a], 0.5), SGD([b], 0.25))
    (a + b).sum().backward()
    group.step()
    group.zero_grad()
    assert (a.item(), b.item()) == (0.5, 0.75) and a.grad is None and b.grad is None
    b.sum().backward()
    group.step()
    assert (a.item(), b.item(), group[1].lr.item()) == (0.5, 0.5, 0.25)


def test_state_dict_holds_the_state() -> None:
    optimizer = Adam([Tensor([1.0])])
    names = {"lr", "m.0", "v.0", "share1", "share2", "params.0"}
    assert set(get_state_dict(optimizer)) == names


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: SGD([]), InvalidValue, "at least one parameter"),
        (lambda p: SGD([p, p]), InvalidValue, "parameters 0 and 1 are the same"),
        (lambda p: SGD([1.0]), InvalidType, "must be tensors"),
        (lambda p: SGD([p.detach()], momentum=-1), InvalidValue, "momentum must be at least 0"),
        (lambda p: SGD([p], nesterov=True), InvalidValue, "nesterov needs"),
        (lambda p: Adam([p], b1=1), InvalidValue, "b1 must be in 0..1"),
        (lambda p: Muon([p]), ShapeError, "no matrices"),
        (lambda p: OptimizerGroup(SGD([p]), SGD([p])), InvalidValue, "same tensor"),
        (lambda p: OptimizerGroup(), InvalidValue, "at least one optimiser"),
    ],
)
def test_bad_arguments(call: Callable[[Tensor], object], error: type[GpuError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(Tensor([1.0, 2.0]))


def test_nothing_to_optimise() -> None:
    frozen = Tensor([1.0])
    frozen.requires_grad = False
    with pytest.raises(InvalidValue, match="nothing to optimise"):
        SGD([frozen])
