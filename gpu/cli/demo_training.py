"""What `gpu demo` trains: a small convolutional network on images of handwritten digits.

All numbers here were chosen by cross-validation among the training images; the images to test with
were used for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu import nn
from gpu.data import Bytes, load_digits, split_digits
from gpu.nn.optim import Adam
from gpu.nn.state import get_parameters
from gpu.runtime.prepared import Counters
from gpu.tensor.jit import jit
from gpu.tensor.tensor import Tensor

BATCH: Final = 64
_RATE: Final = 0.01
_DROPOUT: Final = 0.5


class Network:
    """Two convolutions, a pool and a linear map: (n, 8, 8) to a score for each of ten digits."""

    def __init__(self) -> None:
        self.strokes = nn.Conv2d(1, 8, 3, padding=1)
        self.shapes = nn.Conv2d(8, 32, 3, padding=1)
        self.scores = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, images: Tensor) -> Tensor:
        """Scores of shape (n, 10), the largest of which is the answer, of images 0..16."""
        x = images.unsqueeze(1) / 16
        x = self.shapes(self.strokes(x).relu()).relu()
        pooled = x.max_pool2d(2)
        assert isinstance(pooled, Tensor)  # it was not asked for indices
        scores: Tensor = self.scores(pooled.flatten(1).dropout(_DROPOUT))
        return scores


class Digits(NamedTuple):
    """Images of shape (n, 8, 8), 0..16, and their labels of shape (n,)."""

    images: Bytes
    labels: Bytes

    def at(self, numbers: npt.NDArray[np.int64]) -> Digits:
        """Those of these numbers."""
        return Digits(self.images[numbers], self.labels[numbers])

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both on the default device."""
        return Tensor(self.images), Tensor(self.labels)


class StepReport(NamedTuple):
    """How one step of training went.

    Attributes:
        number: of this step, from 1.
        loss: the mean loss of its batch.
        accuracy: the share of its batch that was answered rightly, before the step.
        seconds: how long it took.
        launches: kernels launched in it.
    """

    number: int
    loss: float
    accuracy: float
    seconds: float
    launches: int


def batches(count: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers below `count`, `BATCH` at a time, without end; each epoch in another order.

    What is left at the end of an epoch is less than a batch, and left out.
    """
    random = np.random.default_rng(seed)
    while True:
        shuffled = random.permutation(count)
        for start in range(0, count - BATCH + 1, BATCH):
            yield shuffled[start : start + BATCH]


class Training:
    """A network and its optimiser, which learn in steps.

    Attributes:
        training, testing: the digits to learn from, and those to be tested on.
        seed: fixes the first weights, the order of images and what dropout leaves out.
        steps: how many there will be; the learning rate falls evenly, to 0 at the end.
    """

    def __init__(self, seed: int, steps: int):
        Tensor.manual_seed(seed)
        self.seed, self.steps = seed, steps
        self.training, self.testing = map(Digits(*load_digits()).at, split_digits())
        self.network = Network()
        self.optimizer = Adam(get_parameters(self.network), lr=_RATE)
        self._step = jit(self._learn)

    def run(self, report: Callable[[StepReport], None]) -> None:
        """Trains, and reports each step."""
        chosen = batches(len(self.training.labels), self.seed)
        for number in range(1, self.steps + 1):
            launches, start = Counters.launches, time.perf_counter()
            loss, right = self._step(*self.training.at(next(chosen)).tensors())
            values = float(loss.item()), float(right.item())
            seconds = time.perf_counter() - start
            report(StepReport(number, *values, seconds, Counters.launches - launches))

    def test(self) -> npt.NDArray[np.int64]:
        """What the network takes each digit of `testing` for."""
        images, _ = self.testing.tensors()
        return self.network(images).argmax(1).numpy().astype(np.int64)

    def _learn(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """One step; the mean loss, and the share of right answers."""
        with Tensor.train():
            self.optimizer.zero_grad()
            scores = self.network(images)
            loss = scores.cross_entropy(labels).backward()
            self.optimizer.step()
            self.optimizer.lr.assign(self.optimizer.lr - _RATE / self.steps)
        return loss, scores.argmax(1).eq(labels).cast("float32").mean()
