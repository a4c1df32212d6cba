#!/usr/bin/env python3
"""Training steps by data over ranks, beside the same work without the others, in turn, in one run.

    mpiexec -n 2 --bind-to none python -m tools.bench.distributed_training [--gigabits 10] [--torch]

Prints for each model milliseconds of a step, the least of all rounds: over all ranks, of each rank
alone with its part of the batch, at once, and of torch's DDP over gloo; and the share of the time
of collectives that was hidden. With --gigabits no collective ends before a network of that speed
would have moved it, in both directions at once: the network is delayed, not measured. One thread
computes on each rank.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

os.environ.setdefault("CPU_THREADS", "1")

import numpy as np

from gpu import Mesh, Tensor, distributed, jit, nn
from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.distributed import plans
from gpu.distributed.exchange import Bytes, Steps, Wire
from tools.bench.resnet18 import WIDTHS, ResNet18

Step = Callable[[], object]
MLP: Final = (784, 2048, 2048, 10)
SIDE: Final = 64  # pixels of ResNet-18's images


class LocalNorm:
    """Batch norm in training, of each rank's part of the batch by itself, as DDP has it."""

    def __init__(self, channels: int, ranks: int):
        self.ranks = ranks
        self.weight = Tensor.ones(channels, requires_grad=True)
        self.bias = Tensor.zeros(channels, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        apart = x.reshape(self.ranks, -1, *x.shape[1:])
        mean = apart.mean((1, 3, 4), keepdim=True)
        apart = apart - mean
        apart = apart * (apart.square().mean((1, 3, 4), keepdim=True) + 1e-5).rsqrt()
        shape = (1, -1, 1, 1)
        return apart.reshape(x.shape) * self.weight.reshape(shape) + self.bias.reshape(shape)


def resnet18(ranks: int) -> ResNet18:
    """That of the other tool, with local norms."""
    model = ResNet18()
    model.norm = LocalNorm(64, ranks)
    for block, width in zip(
        model.blocks, [width for width in WIDTHS for _ in range(2)], strict=True
    ):
        block.first_norm, block.second_norm = LocalNorm(width, ranks), LocalNorm(width, ranks)
        block.shortcut[1:] = [LocalNorm(width, ranks)] * bool(block.shortcut)
    return model


class Layers:
    """One after the other."""

    def __init__(self, layers: list[Any]):
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


def mlp(ranks: int) -> Any:
    """Layers from rows of 784 to 10 scores."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(MLP):
        layers += [nn.Linear(inputs, outputs), Tensor.relu]
    return Layers(layers[:-1])


def our_step(model: Any, x: np.ndarray, y: np.ndarray, mesh: Mesh | None) -> Step:
    """One step of SGD, compiled once; its result is read."""
    parameters = nn.state.get_parameters(model)
    if mesh is not None:
        for parameter in parameters:
            parameter.shard_(mesh, ())
    optimizer = nn.optim.SGD(parameters, lr=0.01, momentum=0.9)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    images, classes = Tensor(x), Tensor(y)
    if mesh is not None:
        images, classes = images.shard(mesh, ("data",)), classes.shard(mesh, ("data",))
    images.realize(classes)

    def run() -> object:
        with Tensor.train():
            return step(images, classes).numpy()

    return run


def their_step(name: str, x: np.ndarray, y: np.ndarray, group: distributed.Group) -> Step:
    """The same in torch, by DDP over gloo."""
    import torch
    from torch import nn as layers

    from tools.bench import torch_models

    torch.set_num_threads(1)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:29517", rank=group.rank, world_size=group.size
        )
    model: Any
    if name == "mlp":
        parts: list[Any] = []
        for inputs, outputs in pairwise(MLP):
            parts += [layers.Linear(inputs, outputs), layers.ReLU()]
        model = layers.Sequential(*parts[:-1])
    else:
        model, _ = torch_models.resnet18()
    wrapped = layers.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    size = len(x) // group.size
    own = slice(group.rank * size, (group.rank + 1) * size)
    images, classes = torch.from_numpy(x[own]), torch.from_numpy(y[own]).long()

    def run() -> object:
        optimizer.zero_grad()
        loss = layers.functional.cross_entropy(wrapped(images), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def delay(gigabits: float) -> None:
    """Has collectives of plans end no sooner than over a network of that speed."""
    real = plans._steps

    def delayed(call: HostCall, wire: Wire, own: Bytes, out: Bytes) -> Steps:
        began = time.monotonic()
        yield from real(call, wire, own, out)
        share = (wire.size - 1) / wire.size
        moved = (
            2 * share * own.size if call.name == "all_reduce" else share * max(own.size, out.size)
        )
        time.sleep(max(0.0, began + moved * 8e-9 / gigabits - time.monotonic()))

    plans._steps = delayed


def main() -> None:
    """Measures both models; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--models", nargs="+", choices=("mlp", "resnet18"), default=["mlp", "resnet18"]
    )
    parser.add_argument("--batch", type=int, default=32, help="rows or images of a rank")
    parser.add_argument(
        "--gigabits", type=float, help="a second, of the network that is delayed to"
    )
    parser.add_argument("--torch", action="store_true", help="beside DDP over gloo")
    arguments = parser.parse_args()
    group = distributed.init()
    if group.size == 1:
        parser.error("start it with mpiexec")
    if arguments.gigabits:
        delay(arguments.gigabits)
    mesh, draws = Mesh((group.size,), ("data",)), np.random.default_rng(0)
    for name in arguments.models:
        rows, make = arguments.batch * group.size, mlp if name == "mlp" else resnet18
        shape = (MLP[0],) if name == "mlp" else (3, SIDE, SIDE)
        x = draws.normal(size=(rows, *shape)).astype(np.float32)
        y = draws.integers(10, size=rows)
        steps = {
            "together": our_step(make(group.size), x, y, mesh),
            "alone": our_step(make(1), x[: arguments.batch], y[: arguments.batch], None),
        }
        if arguments.torch:
            steps["DDP"] = their_step(name, x, y, group)
        report(group, name, steps, arguments.rounds)


def report(group: distributed.Group, name: str, steps: dict[str, Step], rounds: int) -> None:
    """Times steps in turn, and has rank 0 print them."""
    for step in steps.values():
        for _ in range(3):
            step()
    best, shares = dict.fromkeys(steps, float("inf")), []
    for _ in range(rounds):
        for which, step in steps.items():
            group.barrier()
            group.traffic()
            began = time.perf_counter()
            step()
            group.barrier()
            best[which] = min(best[which], time.perf_counter() - began)
            if which == "together":
                shares.append(group.traffic())
    if group.rank == 0:
        text = ", ".join(f"{which} {seconds * 1e3:.1f} ms" for which, seconds in best.items())
        hidden = sorted(each.hidden for each in shares)
        middle = shares[len(shares) // 2]
        print(
            f"{name}: {text}; hidden {hidden[len(hidden) // 2]:.0%} (median; most"
            f" {hidden[-1]:.0%}) of {middle.seconds * 1e3:.1f} ms in {middle.calls} collectives",
            flush=True,
        )


if __name__ == "__main__":
    main()
