"""How learning rates change from step to step: torch's schedules, by torch's names.

A schedule is a function of the number of steps and the rate that the optimiser began with. It
assigns to `lr` of the optimiser, a tensor, so that nothing is compiled anew. Of an `OptimizerGroup`
each optimiser's rate is changed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.tensor.arguments import choice
from gpu.tensor.nn.optimizer import Optimizer, OptimizerGroup
from gpu.tensor.nn.parameters import count, share

Lambda = Callable[[int], float]


def _members(optimizer: Optimizer) -> list[Optimizer]:
    """The optimisers that have a rate."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidType(f"a schedule takes an optimiser, got {type(optimizer).__name__}")
    if isinstance(optimizer, OptimizerGroup):
        return [member for each in optimizer.optimizers for member in _members(each)]
    return [optimizer]


class LRScheduler(ABC):
    """A rate for each step. `step` goes on to the next; a schedule begins at step 0.

    Attributes:
        optimizer: whose rates it changes.
        base_lrs: those that it began with.
        last_epoch: the number of the step, from 0 on.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        self.optimizer = optimizer
        self.base_lrs = [float(member.lr.item()) for member in _members(optimizer)]
        self.last_epoch = last_epoch
        self.step()

    @abstractmethod
    def rate(self, base: float, number: int, step: int) -> float:
        """The rate at a step, of optimiser `number`, which began with the rate `base`."""

    def get_last_lr(self) -> list[float]:
        """The rates of the optimisers now."""
        return [float(member.lr.item()) for member in _members(self.optimizer)]

    def step(self) -> None:
        """Goes on to the next step, and sets the rates of it."""
        self.last_epoch += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from where another schedule with the same arguments was."""
        self.last_epoch = state_dict["last_epoch"]
        self.base_lrs = list(state_dict["base_lrs"])
        self._set()

    def _set(self) -> None:
        for number, member in enumerate(_members(self.optimizer)):
            value = self.rate(self.base_lrs[number], number, self.last_epoch)
            member.lr.assign(member.lr.full_like(value)).realize()


class LambdaLR(LRScheduler):
    """base * lr_lambda(step); one function, or one for each optimiser of a group."""

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Lambda | Sequence[Lambda], last_epoch: int = -1
    ):
        self.lr_lambdas = _lambdas(optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return base * self.lr_lambdas[number](step)


class MultiplicativeLR(LambdaLR):
    """base * lr_lambda(1) * lr_lambda(2) * ... * lr_lambda(step)."""

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return base * math.prod(self.lr_lambdas[number](n) for n in range(1, step + 1))


class StepLR(LRScheduler):
    """base, times `gamma` after each `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ):
        self.step_size, self.gamma = count(step_size, "step_size"), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """base, times `gamma` at each step of `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return base * self.gamma ** bisect_right(self.milestones, step)


class ExponentialLR(LRScheduler):
    """base * gamma**step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return base * self.gamma**step


class ConstantLR(LRScheduler):
    """base * factor in the first `total_iters` steps, then base."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ):
        self.factor, self.total_iters = share(factor, "factor"), total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return base * self.factor if step < self.total_iters else base


class LinearLR(LRScheduler):
    """base * start_factor, in `total_iters` equal changes to base * end_factor."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ):
        if not start_factor > 0:
            raise InvalidValue(f"start_factor must be in 0..1 and more than 0, got {start_factor}")
        self.start_factor = share(start_factor, "start_factor")
        self.end_factor = share(end_factor, "end_factor")
        self.total_iters = count(total_iters, "total_iters")
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        done = min(step, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class PolynomialLR(LRScheduler):
    """base * (1 - step / total_iters)**power, and 0 from then on."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ):
        self.total_iters, self.power = count(total_iters, "total_iters"), power
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        left = 1 - min(step, self.total_iters) / self.total_iters
        return base * math.pow(left, self.power)


class CosineAnnealingLR(LRScheduler):
    """From base to `eta_min` in `T_max` steps, and back, along half a wave of the cosine."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ):
        self.T_max, self.eta_min = count(T_max, "T_max"), eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        return _cosine(base, self.eta_min, step / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """From base to `eta_min` along half a wave of the cosine, again and again (arXiv 1608.03983).

    The first wave takes `T_0` steps, each further one `T_mult` times as many as the one before.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ):
        self.T_0, self.T_mult = count(T_0, "T_0"), count(T_mult, "T_mult")
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.T_mult
        return _cosine(base, self.eta_min, step / length)


class CyclicLR(LRScheduler):
    """From `base_lr` up to `max_lr` and down again, over and over (arXiv 1506.01186).

    Args:
        optimizer: whose rates are changed; what they are does not matter.
        base_lr: the lowest rate, one or one for each optimiser of a group.
        max_lr: the highest rate likewise.
        step_size_up: how many steps it goes up.
        step_size_down: how many down; as many as up if None.
        mode: "triangular", "triangular2" where each cycle is half as high as the one before, or
            "exp_range" where the height shrinks by `gamma` with each step.
        gamma: as told.
        scale_fn: the height in the place of `mode`, of the cycle's number from 1 or of the step.
        scale_mode: which of both `scale_fn` takes: "cycle" or "iterations".
        cycle_momentum: raises Unsupported if set: the momentum of an optimiser is fixed.
        last_epoch: the step before the first.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[int], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = False,
        *,
        last_epoch: int = -1,
    ):
        if cycle_momentum:
            raise Unsupported("cycle_momentum: the momentum of an optimiser here is fixed")
        choice(mode, "mode", ("triangular", "triangular2", "exp_range"))
        choice(scale_mode, "scale_mode", ("cycle", "iterations"))
        self.up = count(step_size_up, "step_size_up")
        self.total = self.up + count(
            step_size_up if step_size_down is None else step_size_down, "step_size_down"
        )
        self.low_lrs = _rates(optimizer, base_lr, "base_lr")
        self.max_lrs = _rates(optimizer, max_lr, "max_lr")
        by_mode: dict[str, Lambda] = {
            "triangular": lambda cycle: 1.0,
            "triangular2": lambda cycle: 0.5 ** (cycle - 1),
            "exp_range": lambda step: gamma**step,
        }
        self.scale_fn = by_mode[mode] if scale_fn is None else scale_fn
        self.by_cycle = scale_mode == "cycle" if scale_fn is not None else mode != "exp_range"
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        cycle, place = divmod(step, self.total)
        done = (
            place / self.up if place <= self.up else (self.total - place) / (self.total - self.up)
        )
        height = done * self.scale_fn(cycle + 1 if self.by_cycle else step)
        low = self.low_lrs[number]
        return low + (self.max_lrs[number] - low) * height


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down to almost nothing (arXiv 1708.07120).

    Args:
        optimizer: whose rates are changed; what they are does not matter.
        max_lr: the highest rate, one or one for each optimiser of a group.
        total_steps: how many steps there are, or else epochs * steps_per_epoch.
        epochs, steps_per_epoch: as told.
        pct_start: the share of the steps in which the rate grows.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: raises Unsupported if set: the momentum of an optimiser is fixed.
        div_factor: the first rate is max_lr / div_factor.
        final_div_factor: the last one is that over `final_div_factor`.
        three_phase: goes down to the first rate in as many steps as up, and then to the last.
        last_epoch: the step before the first.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = False,
        *,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ):
        if cycle_momentum:
            raise Unsupported("cycle_momentum: the momentum of an optimiser here is fixed")
        choice(anneal_strategy, "anneal_strategy", ("cos", "linear"))
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise InvalidValue("OneCycleLR needs total_steps, or epochs and steps_per_epoch")
            total_steps = count(epochs, "epochs") * count(steps_per_epoch, "steps_per_epoch")
        self.total_steps = count(total_steps, "total_steps")
        self.max_lrs = _rates(optimizer, max_lr, "max_lr")
        first, last = 1 / div_factor, 1 / (div_factor * final_div_factor)
        up = share(pct_start, "pct_start") * self.total_steps - 1
        phases = [(0.0, first), (up, 1.0)]
        phases += [(2 * up, first)] if three_phase else []
        self.phases = [*phases, (self.total_steps - 1.0, last)]
        self.mix = _cosine if anneal_strategy == "cos" else _line
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`. Raises InvalidValue for a step behind the last."""
        if step >= self.total_steps:
            raise InvalidValue(f"step {step} of OneCycleLR: there are {self.total_steps} steps")
        for (start, low), (end, high) in pairwise(self.phases):
            if step <= end or end == self.phases[-1][0]:
                done = (step - start) / (end - start) if end > start else 1.0
                return self.max_lrs[number] * self.mix(low, high, done)
        raise AssertionError("the last phase ends with the last step")


class ChainedScheduler(LRScheduler):
    """base times what each of several schedules of one optimiser makes of a rate of 1.

    Raises InvalidValue for schedules of different optimisers.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None):
        self.schedulers = list(schedulers)
        super().__init__(_begun_anew(self.schedulers, optimizer))

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        factors = (each.rate(base, number, step) / base for each in self.schedulers)
        return base * math.prod(factors) if base else 0.0


class SequentialLR(LRScheduler):
    """Schedules one behind the other: the next one begins at each step of `milestones`.

    Raises InvalidValue unless there is one milestone less than schedules, all of one optimiser.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ):
        if len(milestones) != len(schedulers) - 1:
            raise InvalidValue(
                f"{len(schedulers)} schedules need {len(schedulers) - 1} milestones between them, "
                f"got {len(milestones)}"
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(_begun_anew(self.schedulers, optimizer), last_epoch)

    def rate(self, base: float, number: int, step: int) -> float:
        """See `LRScheduler`."""
        which = bisect_right(self.milestones, step)
        start = self.milestones[which - 1] if which else 0
        return self.schedulers[which].rate(base, number, step - start)


class ReduceLROnPlateau:
    """The rate times `factor` where a figure has not become better for `patience` steps.

    Args:
        optimizer: whose rates are changed.
        mode: "min" where less is better, "max" where more is.
        factor: less than 1.
        patience: so many steps without a better figure are waited for.
        threshold: by how much a figure has to be better than the best one.
        threshold_mode: "rel" where `threshold` is a share of the best one, else "abs".
        cooldown: steps after a change that are not counted.
        min_lr: the least rate.
        eps: changes of less are not made.

    Attributes:
        best: the best figure.
        num_bad_epochs: steps since it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ):
        choice(mode, "mode", ("min", "max"))
        choice(threshold_mode, "threshold_mode", ("rel", "abs"))
        if not 0 <= factor < 1:
            raise InvalidValue(f"factor must be in 0..1 and less than 1, got {factor!r}")
        self.optimizer, self.factor, self.patience = optimizer, factor, patience
        self.sign = 1.0 if mode == "min" else -1.0
        self.threshold, self.relative = threshold, threshold_mode == "rel"
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = self.sign * math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def get_last_lr(self) -> list[float]:
        """The rates of the optimisers now."""
        return [float(member.lr.item()) for member in _members(self.optimizer)]

    def step(self, metrics: Any) -> None:
        """Takes the next figure, a number or a tensor of one element, and changes the rates."""
        figure = float(metrics.item() if hasattr(metrics, "item") else metrics)
        if self._is_better(figure):
            self.best, self.num_bad_epochs = figure, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from."""
        return {name: getattr(self, name) for name in _PLATEAU_STATE}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from where another one with the same arguments was."""
        self.best = state_dict["best"]
        self.num_bad_epochs = state_dict["num_bad_epochs"]
        self.cooldown_counter = state_dict["cooldown_counter"]

    def _is_better(self, figure: float) -> bool:
        if math.isinf(self.best):
            return self.sign * figure < self.sign * self.best
        by = self.threshold * (self.best if self.relative else 1.0)
        return self.sign * figure < self.sign * self.best - by

    def _reduce(self) -> None:
        for member in _members(self.optimizer):
            old = float(member.lr.item())
            new = max(old * self.factor, self.min_lr)
            if old - new > self.eps:
                member.lr.assign(member.lr.full_like(new)).realize()


_PLATEAU_STATE: Final = ("best", "num_bad_epochs", "cooldown_counter")


def _begun_anew(schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> Optimizer:
    """The optimiser of all schedules, with the rates that the first of them began with."""
    if not schedulers:
        raise InvalidValue("there has to be a schedule")
    shared = schedulers[0].optimizer if optimizer is None else optimizer
    if any(each.optimizer is not shared for each in schedulers):
        raise InvalidValue("the schedules must be of one optimiser")
    for member, base in zip(_members(shared), schedulers[0].base_lrs, strict=True):
        member.lr.assign(member.lr.full_like(base)).realize()
    for each in schedulers:
        each.base_lrs = schedulers[0].base_lrs
    return shared


def _rates(optimizer: Optimizer, given: float | Sequence[float], name: str) -> list[float]:
    """A rate for each optimiser."""
    members = len(_members(optimizer))
    rates = [given] * members if isinstance(given, int | float) else list(given)
    if len(rates) != members:
        raise InvalidValue(f"{name} has {len(rates)} rates for {members} optimisers")
    return rates


def _lambdas(optimizer: Optimizer, given: Lambda | Sequence[Lambda]) -> list[Lambda]:
    members = len(_members(optimizer))
    lambdas = list(given) if isinstance(given, Sequence) else [given] * members
    if len(lambdas) != members:
        raise InvalidValue(f"lr_lambda has {len(lambdas)} functions for {members} optimisers")
    return lambdas


def _cosine(start: float, end: float, done: float) -> float:
    """From `start` where 0 is done to `end` at 1, along the cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def _line(start: float, end: float, done: float) -> float:
    return start + (end - start) * done
