#!/usr/bin/env python3
"""What compiling a training step of ResNet-18 costs: Python, code generation and kernels.

    python tools/bench/resnet18.py [--side 64] [--batch 4]

The step is one graph, compiled into an empty cache. Times are processor time of the main thread, so
that other processes on the machine do not count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu import Context, Tensor, nn
from gpu.compiler.toolchain.base import Compiler
from gpu.nn.optim import SGD
from gpu.nn.state import get_parameters
from gpu.runtime.prepared import Counters, Prepared

CLASSES = 1000
WIDTHS = (64, 128, 256, 512)


class Block:
    """Two convolutions beside a shortcut (He et al., "Deep Residual Learning", table 1)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: list[Callable[[Tensor], Tensor]] = []
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = [projection, nn.BatchNorm2d(outputs)]

    def __call__(self, x: Tensor) -> Tensor:
        """Images to images, smaller by the stride."""
        y = self.first_norm(self.first(x)).relu()
        for part in self.shortcut:
            x = part(x)
        return (self.second_norm(self.second(y)) + x).relu()


class ResNet18:
    """Images (n, 3, h, w) to scores (n, 1000)."""

    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.blocks: list[Block] = []
        inputs = 64
        for outputs in WIDTHS:
            stride = 1 if outputs == inputs else 2
            self.blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.scores = nn.Linear(inputs, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        """The scores."""
        y = self.norm(self.stem(x)).relu().max_pool2d(3, stride=2, padding=1)
        assert isinstance(y, Tensor)
        return self.scores(y.sequential(self.blocks).mean((2, 3)))


class Clock:
    """Adds up the time of calls of a method, which it takes the place of."""

    def __init__(self, owner: type, name: str):
        self.seconds = 0.0
        method = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.thread_time() - started

        setattr(owner, name, timed)


def main() -> None:
    """Compiles the step once and prints what it cost."""
    parser = argparse.ArgumentParser(description="what compiling a step of ResNet-18 costs")
    parser.add_argument("--side", type=int, default=64, help="of the images, in pixels")
    parser.add_argument("--batch", type=int, default=4, help="images in a step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Context(CACHE_DIR=folder):
        measure(arguments.batch, arguments.side)


def measure(batch: int, side: int) -> None:
    """Times the first step on `batch` random images of side x side."""
    model = ResNet18()
    optimizer = SGD(get_parameters(model), lr=0.01, momentum=0.9)
    images = np.random.default_rng(0).standard_normal((batch, 3, side, side), np.float32)
    x, y = Tensor(images).realize(), Tensor(np.arange(batch)).realize()
    Tensor.realize(*get_parameters(optimizer))
    compiling, running = Clock(Compiler, "compile_many_cached"), Clock(Prepared, "run")
    kernels, launches = Counters.kernels, Counters.launches
    started = time.thread_time()
    with Tensor.train():
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y).backward()
        optimizer.step(loss)
    total = time.thread_time() - started
    python = total - compiling.seconds - running.seconds
    print(f"python {python:.2f} s: graph, gradient, schedule, lowering, rendering")
    print(f"code generation {compiling.seconds:.2f} s, running {running.seconds:.2f} s")
    print(f"{Counters.kernels - kernels} kernels, {Counters.launches - launches} launches")
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
