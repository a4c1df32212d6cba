#!/usr/bin/env python3
"""The most memory that a training step takes on a rank, with ZeRO 1, 2 and 3.

    mpiexec -n 4 --oversubscribe --bind-to none python -m tools.bench.distributed_memory

Prints a row for each: bytes of tensors at once, of a step that is replayed, beside the bytes of all
parameters; Adam, and layers of one size. What MPI's thread copies through is not counted.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

import numpy as np

import gpu
from gpu import Device, Mesh, Tensor, distributed, jit, nn

WAYS: Final = ("zero1", "zero2", "zero3")
ROWS: Final = 8  # of a rank


def main() -> None:
    """Measures all ways; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--size", type=int, default=1448, help="rows and columns of a layer")
    arguments = parser.parse_args()
    group = distributed.init()
    for how in WAYS:
        parameters = 4 * arguments.layers * arguments.size**2
        peak = measured(group, how, arguments.layers, arguments.size) / parameters
        if group.rank == 0:
            told = f"{peak:.2f} x the {parameters / 1e6:.0f} MB of parameters"
            print(f"{how}: {told}, of {group.size} ranks", flush=True)


def measured(group: distributed.Group, how: str, layers: int, size: int) -> int:
    """The most bytes in the third step."""
    mesh, draws = Mesh((group.size,), ("data",)), np.random.default_rng(0)
    before = Device[Device.DEFAULT].allocator.live
    weights = []
    for _ in range(layers):
        values = (draws.normal(size=(size, size)) / size**0.5).astype(np.float32)
        weight = Tensor(values, requires_grad=True)
        weights.append(weight.shard_(mesh, ("data",) if how == "zero3" else ()).realize())
    optimizer = nn.optim.Adam(weights)
    if how != "zero3":
        for state in (*optimizer.m, *optimizer.v):
            state.shard_(mesh, ("data",)).realize()
    step = jit(partial(trained, how, mesh, weights, optimizer))

    x = Tensor(draws.normal(size=(ROWS * group.size, size)).astype(np.float32))
    x = x.shard(mesh, ("data",)).realize()
    allocator = Device[Device.DEFAULT].allocator
    with Tensor.train():
        for _ in range(3):
            allocator.reset_peak()
            step(x).item()
    return allocator.peak - before


def hidden(weight: Tensor, x: Tensor) -> Tensor:
    """A layer."""
    return (x @ weight).tanh()


def trained(
    how: str, mesh: Mesh, weights: list[Tensor], optimizer: nn.optim.Optimizer, x: Tensor
) -> Tensor:
    """The loss of a step."""
    optimizer.zero_grad()
    for weight in weights:
        layer = partial(hidden, weight)
        x = gpu.checkpoint(layer)(x) if how == "zero3" else layer(x)
    loss = x.square().mean()
    loss.backward()
    if how == "zero2":
        for weight in weights:
            weight.grad = weight.grad.shard(mesh, ("data",))
    optimizer.step()
    return loss


if __name__ == "__main__":
    main()
