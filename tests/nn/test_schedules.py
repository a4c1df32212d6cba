"""Schedules of learning rates step by step beside torch's, and clipped gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.core.errors import GpuError, InvalidType, InvalidValue, NonFinite, Unsupported
from gpu.nn.optim import SGD, OptimizerGroup, lr_scheduler
from gpu.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from tensor.reference import rng_for, torch

Make = Callable[[Any, Any], Any]
SCHEDULES: Final[dict[str, Make]] = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda n: 1 / (n + 2)),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda n: 1 - n / 20),
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 5, 5], 0.5),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, 0.9, 4),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 4, 0.01),
    "warm restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
    "warm restarts of one length": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.8, 12, cycle_momentum=False),
    "OneCycleLR of three": lambda s, o: s.OneCycleLR(
        o, 0.8, epochs=4, steps_per_epoch=3, pct_start=0.4, anneal_strategy="linear",
        cycle_momentum=False, div_factor=5, three_phase=True),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.1, 0.7, 3, 2, cycle_momentum=False),
    "CyclicLR of halves": lambda s, o: s.CyclicLR(
        o, 0.1, 0.7, 2, mode="triangular2", cycle_momentum=False),
    "CyclicLR that shrinks": lambda s, o: s.CyclicLR(
        o, 0.1, 0.7, 3, mode="exp_range", gamma=0.9, cycle_momentum=False),
    "CyclicLR by a function": lambda s, o: s.CyclicLR(
        o, 0.1, 0.7, 2, 3, scale_fn=lambda n: 1 / (n + 1), scale_mode="iterations",
        cycle_momentum=False),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.5, 4), s.ExponentialLR(o, 0.9)]),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 3), s.CosineAnnealingLR(o, 5), s.ExponentialLR(o, 0.5)],
        [3, 8]),
}  # fmt: skip


def optimizers() -> tuple[SGD, Any]:
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    return SGD([Tensor([0.0], requires_grad=True)], lr=0.4), theirs


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    ours, theirs = optimizers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of steps of a schedule without an optimiser's
        wanted = SCHEDULES[name](torch.optim.lr_scheduler, theirs)
        found = SCHEDULES[name](lr_scheduler, ours)
        for number in range(12):
            rate = wanted.get_last_lr()[0]
            assert math.isclose(found.get_last_lr()[0], rate, rel_tol=1e-5, abs_tol=1e-7), number
            if number == 4:  # another one goes on from here
                state = found.state_dict()
                ours = optimizers()[0]
                found = SCHEDULES[name](lr_scheduler, ours)
                found.load_state_dict(state)
            if number < 11:
                wanted.step()
                found.step()
    assert ours.lr.item() == found.get_last_lr()[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 1, "cooldown": 1, "factor": 0.5},
        {"patience": 0, "mode": "max", "min_lr": 0.01, "threshold": 0.3},
        {"patience": 0, "threshold_mode": "abs", "threshold": 0.2},
    ],
)
def test_reduce_on_plateau(settings: dict[str, Any]) -> None:
    ours, theirs = optimizers()
    found = lr_scheduler.ReduceLROnPlateau(ours, **settings)
    wanted = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **settings)
    for figure in rng_for("plateau").uniform(0.5, 1.5, 10):
        found.step(Tensor([figure]))
        wanted.step(figure)
        assert math.isclose(found.get_last_lr()[0], theirs.param_groups[0]["lr"], rel_tol=1e-5)
    assert found.state_dict()["num_bad_epochs"] == wanted.num_bad_epochs


def test_a_schedule_of_a_group_changes_each_rate() -> None:
    one, other = (SGD([Tensor([0.0], requires_grad=True)], lr=lr) for lr in (0.5, 0.25))
    schedule = lr_scheduler.LambdaLR(OptimizerGroup(one, other), [lambda n: 1, lambda n: 0.5**n])
    schedule.step()
    assert schedule.get_last_lr() == [0.5, 0.125] and other.lr.item() == 0.125


def gradients() -> tuple[list[Tensor], list[Any]]:
    rng = rng_for("clip")
    ours, theirs = [], []
    for shape in ((3, 2), (4,), ()):
        grad = rng.normal(size=shape).astype("float32")
        x, t = Tensor.zeros(shape), torch.zeros(shape)
        x.grad, t.grad = Tensor(grad), torch.tensor(grad)
        ours.append(x)
        theirs.append(t)
    return [*ours, Tensor([1.0])], theirs


@pytest.mark.parametrize(("limit", "order"), [(0.5, 2.0), (9.0, 2.0), (0.5, math.inf), (1.0, 1)])
def test_clipping_by_norm(limit: float, order: float) -> None:
    ours, theirs = gradients()
    total = clip_grad_norm_(ours, limit, order)
    wanted = torch.nn.utils.clip_grad_norm_(theirs, limit, order)
    total.realize(*(x.grad for x in ours[:-1] if x.grad is not None))
    np.testing.assert_allclose(total.numpy(), wanted.numpy(), 1e-5)
    for x, t in zip(ours, theirs, strict=False):
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), 1e-5)
    assert ours[-1].grad is None


def test_clipping_by_value_and_of_what_is_not_finite() -> None:
    ours, theirs = gradients()
    clip_grad_value_(ours, 0.3)
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    for x, t in zip(ours, theirs, strict=False):
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), t.grad.numpy())
    ours[1].grad = Tensor([math.nan])
    with pytest.raises(NonFinite, match="is nan"):
        clip_grad_norm_(ours[1], 1.0, error_if_nonfinite=True)
    assert get_total_norm([]).item() == 0


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidType, lambda o: lr_scheduler.StepLR(nn.Linear(1, 1), 3)),
        (InvalidValue, lambda o: lr_scheduler.StepLR(o, 0)),
        (InvalidValue, lambda o: lr_scheduler.LinearLR(o, 0.0)),
        (InvalidValue, lambda o: lr_scheduler.SequentialLR(o, [], [1])),
        (InvalidValue, lambda o: lr_scheduler.ChainedScheduler([])),
        (InvalidValue, lambda o: lr_scheduler.LambdaLR(o, [abs, abs])),
        (InvalidValue, lambda o: lr_scheduler.OneCycleLR(o, 0.1)),
        (Unsupported, lambda o: lr_scheduler.OneCycleLR(o, 0.1, 3, cycle_momentum=True)),
        (InvalidValue, lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=1.0)),
        (InvalidValue, lambda o: clip_grad_value_([], -1.0)),
    ],
)
def test_what_is_refused(error: type[GpuError], call: Any) -> None:
    with pytest.raises(error):
        call(optimizers()[0])
