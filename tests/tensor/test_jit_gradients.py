"""Gradients and jitted functions: those of tensors from outside, and those that cannot flow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gpu
from gpu import Tensor

Step = Callable[[Tensor, Tensor], Tensor]


def vector(*values: float, leaf: bool = False) -> Tensor:
    return Tensor(np.array(values, np.float32), requires_grad=leaf or None)


def adds(w: Tensor, x: Tensor) -> Tensor:
    loss = (w * w * x).sum()
    loss.backward()
    return loss


def trains(w: Tensor, x: Tensor) -> Tensor:
    loss = adds(w, x)
    assert w.grad is not None
    w.assign((w - w.grad * 0.125).detach())
    return loss


def trains_and_forgets(w: Tensor, x: Tensor) -> Tensor:
    loss = trains(w, x)
    w.grad = None
    return loss


def forgets_and_trains(w: Tensor, x: Tensor) -> Tensor:
    w.grad = None
    return trains(w, x)


def looks(w: Tensor, x: Tensor) -> Tensor:
    return x if w.grad is None else x + w.grad


def gives(w: Tensor, x: Tensor) -> Tensor:
    w.grad = KEPT
    return x * w


KEPT = vector(7, 7)
CHANGES: dict[str, Callable[[Tensor, int], object]] = {
    "nothing": lambda w, call: None,
    "forgotten": lambda w, call: setattr(w, "grad", None),
    "forgotten later": lambda w, call: call == 3 and setattr(w, "grad", None),
    "given": lambda w, call: call == 3 and setattr(w, "grad", vector(5, 5)),
    "assigned": lambda w, call: w.assign(vector(call, 1)),
}


@pytest.mark.parametrize("as_argument", [False, True])
@pytest.mark.parametrize("start", [None, 3.0])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "step", [adds, trains, trains_and_forgets, forgets_and_trains, looks, gives]
)
def test_gradients_are_those_of_the_function(
    step: Step, change: str, start: float | None, as_argument: bool
) -> None:
    """Whatever `grad` is before a call, and whoever changes it between calls."""
    found: list[list[object]] = []
    for jitted in (False, True):
        w, seen = vector(1, 2, leaf=True), []
        w.grad = None if start is None else vector(start, start)
        whole = gpu.jit(step)
        part = gpu.jit(lambda x, w=w: step(w, x))
        for call in range(7):
            x = vector(call + 1, 2)
            if not jitted:
                result = step(w, x)
            else:
                result = whole(w, x) if as_argument else part(x)
            seen += [result.tolist(), w.tolist(), None if w.grad is None else w.grad.tolist()]
            CHANGES[change](w, call)
        found.append(seen)
    np.testing.assert_equal(found[1], found[0])


def test_a_parameter_that_is_frozen_later() -> None:
    a, b = vector(1, 2, leaf=True), vector(3, 4, leaf=True)

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        a.grad = b.grad = None
        return (a * b * x).sum().backward()

    for frozen in (False, True, False):
        b.requires_grad = not frozen
        for _ in range(4):
            f(vector(1, 1))
            assert a.grad is not None and a.grad.tolist() == [3, 4]
            assert (b.grad is None) == frozen


def test_a_parameter_on_another_device(device: str) -> None:
    w = vector(1, 2)
    f = gpu.jit(lambda x: x.to("PYTHON") * w.to("PYTHON"))
    for _ in range(3):
        assert f(vector(1, 2)).tolist() == [1, 4]
    w.to_("PYTHON")
    w.assign(w * 2)
    for _ in range(3):
        assert f(vector(1, 2)).tolist() == [2, 8]


FLOWS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "backward": lambda f, w: f(w).sum().backward(),
    "gradient": lambda f, w: f(w).sum().gradient(w),
    "of something computed": lambda f, w: ((f(w) * 2).sum() + (w * w).sum()).backward(),
    "of something in memory": lambda f, w: (f(w).sum().realize() + (w * w).sum()).backward(),
    "of no leaf": lambda f, w: f(w * 2).sum().backward(),
    "of a view": lambda f, w: f(w[:1]).sum().backward(),
    "through two": lambda f, w: f(f(w)).sum().backward(),
}


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("state", [False, True])
def test_a_gradient_through_a_replay_is_refused(flow: str, call: int, state: bool) -> None:
    """By its name, be the function captured yet or not."""
    w = vector(1, 2, leaf=True)

    @gpu.jit
    def squared(x: Tensor) -> Tensor:
        return x * x if not state else x.detach() * w[: x.shape[0]]

    for _ in range(call):
        squared(w)
    with pytest.raises(gpu.JitError, match=r"jitted .*squared, and gradients do not go.*inside"):
        FLOWS[flow](squared, w)
    assert w.grad is None


def test_what_needs_no_gradient_through_a_replay_has_one() -> None:
    w, head = vector(1, 2, leaf=True), vector(3, 4, leaf=True)
    f = gpu.jit(lambda x: x * x)
    whole = gpu.jit(lambda x: x)
    for _ in range(4):
        assert (f(w).detach() * head).sum().gradient(head)[0].tolist() == [1, 4]
        assert (f(vector(1, 2)) * head).sum().gradient(head)[0].tolist() == [1, 4]
        assert f(w.detach()).sum().item() == 5
        result = f(w)
        assert (result * result).sum().gradient(result)[0].tolist() == [2, 8]
        assert whole(w).sum().gradient(w)[0].tolist() == [1, 1]


def test_results_of_a_function_that_trains_can_be_added_up() -> None:
    w = vector(1, 2, leaf=True)
    step = gpu.jit(lambda x: forgets_and_trains(w, x))
    total = Tensor(0.0)
    for _ in range(5):
        total = (total + step(vector(1, 1))).realize()
    assert not total._has_gradient()
    with pytest.raises(gpu.core.errors.InvalidValue, match="jitted functions that train"):
        total.backward()
