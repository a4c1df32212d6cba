"""What tests run in other processes: spawned ones import it, so it cannot be in a test's module."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gpu import Tensor, jit
from gpu.core.errors import HwTimeout, RmError
from gpu.nn import Linear
from gpu.nn.optim import AdamW, Optimizer


class Named(Tensor):
    """A tensor with attributes."""

    label: str
    history: list[Any]


class Model:
    """Two layers, and a step that is jitted as a method."""

    def __init__(self) -> None:
        self.first, self.second = Linear(3, 8), Linear(8, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())

    @jit
    def predict(self, x: Tensor) -> Tensor:
        """What the model says of `x`."""
        return self(x).realize()


class Trainer:
    """A model with its optimiser, which refers to the model's parameters."""

    def __init__(self) -> None:
        self.model = Model()
        self.parameters = [
            tensor
            for layer in (self.model.first, self.model.second)
            for tensor in (layer.weight, layer.bias)
        ]
        self.optimizer: Optimizer = AdamW(self.parameters, lr=0.05)

    @jit
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step; the loss before it."""
        with Tensor.train():
            loss = ((self.model(x) - y) ** 2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step(loss)
        return loss

    def losses(self, count: int) -> list[float]:
        """Those of some steps on one batch."""
        x = Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
        y = Tensor([[0.0], [1.0], [0.5], [-1.0]])
        return [self.step(x, y).item() for _ in range(count)]


class Base:
    """A jitted method, and one of a derived class that calls it."""

    @jit
    def run(self, x: Tensor) -> Tensor:
        """One more."""
        return x + 1


class Derived(Base):
    """See `Base`; and two methods of one name."""

    @jit
    def run(self, x: Tensor) -> Tensor:
        """Ten times one more."""
        return super().run(x) * 10

    plus = jit(lambda self, x: x + 2)
    minus = jit(lambda self, x: x - 2)


def fail(number: int) -> None:
    """Raises as a driver would."""
    if number:
        raise HwTimeout("fence 7", number, "at least 0x9", 1.5)
    raise RmError("allocating a channel", 0x1F, "NV_ERR_INVALID_ARGUMENT")


def negated(value: Any) -> tuple[int, Any]:
    """The number of the process that runs this, and the negative of a tensor or array."""
    return os.getpid(), -value


def doubled(x: Tensor) -> Tensor:
    """Twice a tensor, which is not computed yet."""
    return x * 2


def answer(inbox: Any, outbox: Any) -> None:
    """Doubles what comes until None does, and ends at once."""
    while (x := inbox.get()) is not None:
        outbox.put((x, doubled(x)))


def trained(trainer: Trainer) -> tuple[Trainer, list[float]]:
    """A trainer after some steps."""
    return trainer, trainer.losses(4)


class Rows:
    """A data set: rows of a tensor, each a view of it."""

    def __init__(self, data: Tensor):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Tensor:
        if number >= len(self):
            raise IndexError(number)
        return self.data[number]


def stacked(rows: list[Tensor]) -> Tensor:
    """Rows as one tensor, which is not computed yet."""
    return rows[0].stack(*rows[1:]) * 2
