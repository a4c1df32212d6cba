"""Small networks learn, and memory stays what it is from step to step."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import Device, Tensor, nn
from gpu.nn.optim import SGD, Adam
from gpu.nn.state import get_parameters


class Perceptron:
    """Two linear maps, for rings around the origin."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(2, 16), nn.Linear(16, 2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class Convolutional:
    """A convolution, a batch norm, a pool and a linear map, for stripes across or along."""

    def __init__(self) -> None:
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4)
        self.out = nn.Linear(4 * 5 * 5, 2)

    def __call__(self, x: Tensor) -> Tensor:
        features = self.norm(self.conv(x)).relu().max_pool2d(2)
        return self.out(features.flatten(1))


def rings(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    label = rng.integers(0, 2, 64)
    angle = rng.uniform(0, 2 * np.pi, 64)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * (0.5 + label)[:, None]
    return Tensor(points.astype(np.float32)), Tensor(np.eye(2, dtype=np.float32)[label])


def stripes(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    label = rng.integers(0, 2, 32)
    lines = np.broadcast_to(rng.normal(size=(32, 1, 10, 1)), (32, 1, 10, 10))
    images = np.where(label[:, None, None, None], lines, lines.transpose(0, 1, 3, 2))
    return Tensor(images.astype(np.float32)), Tensor(np.eye(2, dtype=np.float32)[label])


@pytest.mark.parametrize("kind", ["perceptron", "convolutional"])
def test_training(kind: str) -> None:
    Tensor.manual_seed(7)
    rng = np.random.default_rng(7)
    model = Perceptron() if kind == "perceptron" else Convolutional()
    draw = rings if kind == "perceptron" else stripes
    params = get_parameters(model)
    optimizer = Adam(params, 0.05) if kind == "perceptron" else SGD(params, 0.1, 0.9)
    used: list[int] = []
    losses: list[float] = []
    for _ in range(40):
        x, y = draw(rng)
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(x).cross_entropy(y).backward()
            optimizer.step(loss)
        losses.append(loss.item())
        used.append(Device["CPU"].allocator.live)
    assert losses[0] > 0.4 and max(losses[-5:]) < 0.15
    assert len(set(used[3:])) == 1
    x, y = draw(rng)
    right = model(x).argmax(1).eq(y.argmax(1)).cast("float32").mean().item()
    assert right > 0.9
