"""What all optimisers do: own state, apply updates to parameters, and compute all of it at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np

from gpu.compiler.ir.graph.node import place
from gpu.core.dtype import DType, dtypes, promote
from gpu.core.errors import DeviceMismatch, InvalidType, InvalidValue
from gpu.tensor.tensor import Tensor


class Optimizer(ABC):
    """Changes parameters by their gradients.

    Parameters with `requires_grad` None get True. Those with False, such as the running statistics
    of a `BatchNorm`, are not changed, but computed with each step, so that what was assigned to
    them does not pile up. All state is in memory when the constructor returns.

    Attributes:
        params: the parameters that are changed.
        buffers: the other tensors that were given.
        lr: the learning rate, a tensor of one element: a schedule assigns to it, as in
            ``optimizer.lr.assign([0.01])``, and nothing is compiled anew.
    """

    def __init__(self, params: Iterable[Tensor], lr: float):
        if not isinstance(params, Iterable):
            raise InvalidType(
                f"an optimiser takes tensors, got {type(params).__name__}: pass what "
                "nn.state.get_parameters() finds in it"
            )
        given = list(params)
        _check(given)
        for tensor in given:
            if tensor.requires_grad is None:
                tensor.requires_grad = True
        self.params = [tensor for tensor in given if tensor.requires_grad]
        self.buffers = [tensor for tensor in given if not tensor.requires_grad]
        if not self.params:
            raise InvalidValue("none of the parameters has requires_grad=True: nothing to optimise")
        self.device = self.params[0].device
        given[0].realize(*given[1:])
        self.lr = self._scalar(lr)

    def zero_grad(self) -> None:
        """Forgets the gradients of the parameters."""
        for param in self.params:
            param.grad = None

    def step(self, *others: Tensor) -> None:
        """Changes every parameter that has a gradient, and computes `others` along with it.

        Parameters, state and `others`, such as the loss, come out of one graph: what they share is
        computed once. Raises InvalidValue where no parameter has a gradient.
        """
        changed = self.schedule_step()
        changed[0].realize(*changed[1:], *others)
        for param in self.params:
            # Gradients of what is computed from now on end at the new value: how it came about,
            # and the memory it came from, are not needed any more.
            param._replace(param._node)

    def schedule_step(self) -> list[Tensor]:
        """Assigns new values to parameters and state, and returns all that has to be realised."""
        with_gradient = [i for i, param in enumerate(self.params) if param.grad is not None]
        if not with_gradient:
            raise InvalidValue(
                f"none of {len(self.params)} parameters has a gradient: call backward() on "
                "something computed from them before step()"
            )
        return [*self._update(with_gradient), self.lr, *self.params, *self.buffers]

    @abstractmethod
    def _update(self, chosen: Sequence[int]) -> list[Tensor]:
        """Assigns to the parameters of these numbers and to their state; returns the state."""

    def _scalar(self, value: float) -> Tensor:
        """State of one element, as precise as the parameters and float32."""
        dtype: DType = dtypes.float32
        for param in self.params:
            dtype = promote(dtype, param.dtype)
        return Tensor(np.full((1,), value, dtype.np), device=self.device)

    def _zeros(self) -> list[Tensor]:
        """State of the shape of each parameter, in float32 at least, that lies as that does."""
        found = []
        for p in self.params:
            zeros = np.zeros(p.shape, promote(p.dtype, dtypes.float32).np)
            found.append(Tensor(zeros, device=p.device).shard_like(p).realize())
        return found

    def _operands(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """A parameter, its gradient and the learning rate, in one dtype of float32 at least."""
        param = self.params[number]
        assert param.grad is not None
        wide = promote(param.dtype, dtypes.float32)
        rate = self.lr.reshape(()).cast(wide)
        return param.detach().cast(wide), param.grad.detach().cast(wide), rate

    def _subtract(self, number: int, change: Tensor) -> None:
        """Takes `change` from a parameter."""
        param = self.params[number]
        wide = param.detach().cast(change.dtype)
        param.assign((wide - change).cast(param.dtype))


class OptimizerGroup(Optimizer):
    """Several optimisers that step together: each has its parameters and settings.

    >>> from gpu import Tensor
    >>> from gpu.nn.optim import SGD, Adam, OptimizerGroup
    >>> weight, bias = Tensor([1.0]), Tensor([0.0])
    >>> group = OptimizerGroup(Adam([weight]), SGD([bias], lr=0.1))
    >>> len(group.params), group[1].lr.item() > 0
    (2, True)
    """

    def __init__(self, *optimizers: Optimizer):
        if not optimizers:
            raise InvalidValue("an OptimizerGroup needs at least one optimiser")
        self.optimizers = optimizers
        self.params = [param for o in optimizers for param in o.params]
        self.buffers = [tensor for o in optimizers for tensor in o.buffers]
        _check_distinct(self.params)

    def __getitem__(self, index: int) -> Optimizer:
        return self.optimizers[index]

    def schedule_step(self) -> list[Tensor]:
        """See `Optimizer`; optimisers without any gradient are left out."""
        ready = [o for o in self.optimizers if any(p.grad is not None for p in o.params)]
        if not ready:
            return super().schedule_step()
        return [tensor for optimizer in ready for tensor in optimizer.schedule_step()]

    def _update(self, chosen: Sequence[int]) -> list[Tensor]:
        raise AssertionError("a group leaves updates to its optimisers")


def at_least(value: float, least: float, name: str) -> float:
    """A setting. Raises InvalidValue where it is less than `least`, or NaN."""
    if not value >= least:
        raise InvalidValue(f"{name} must be at least {least}, got {value!r}")
    return value


def decay(value: float, name: str) -> float:
    """The factor of a running mean. Raises InvalidValue unless it is in 0..1, 1 excluded."""
    if not 0 <= value < 1:
        raise InvalidValue(f"{name} must be in 0..1 and less than 1, got {value!r}")
    return value


def _check(params: Sequence[Tensor]) -> None:
    for param in params:
        if not isinstance(param, Tensor):
            raise InvalidType(f"parameters must be tensors, got {type(param).__name__} {param!r}")
    if not params:
        raise InvalidValue("an optimiser needs at least one parameter, got none")
    _check_distinct(params)
    devices = sorted({place(param.device) for param in params})
    if len(devices) > 1:
        raise DeviceMismatch(
            f"the parameters are on {' and on '.join(devices)}; make an optimiser for each and "
            "join them to an OptimizerGroup"
        )


def _check_distinct(params: Sequence[Tensor]) -> None:
    first: dict[int, int] = {}
    for number, param in enumerate(params):
        earlier = first.setdefault(id(param), number)
        if earlier != number:
            raise InvalidValue(
                f"parameters {earlier} and {number} are the same tensor, of shape "
                f"{list(param.shape)}: give it once, as get_parameters does"
            )
