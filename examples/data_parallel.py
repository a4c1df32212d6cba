"""Training on several GPUs: each has the weights and a part of the batch.

    python examples/data_parallel.py CPU CPU:1
    SIM=gfx1100,gfx1100 python examples/data_parallel.py AMD AMD:1

A network learns a smooth function. `GPU_PROFILE=step.json` records what the devices do: kernels
side by side, and the gradients that go around between them.
"""

from __future__ import annotations

import sys

import numpy as np

from gpu import Tensor, jit

WIDTH, HIDDEN, ROWS, STEPS, RATE = 8, 32, 32, 6, 0.2


def train(devices: tuple[str, ...]) -> list[float]:
    """The loss of each step; the same on any number of devices, up to rounding."""
    random = np.random.default_rng(0)
    spread = devices if len(devices) > 1 else devices[0]

    def place(array: np.ndarray, axis: int | None = None) -> Tensor:
        """A value on all devices: whole, or cut along an axis."""
        value = Tensor(array.astype(np.float32), device=devices[0])
        return value.shard(spread, axis) if len(devices) > 1 else value

    first = place(random.standard_normal((WIDTH, HIDDEN)) / WIDTH**0.5).requires_grad_()
    second = place(random.standard_normal((HIDDEN, 1)) / HIDDEN**0.5).requires_grad_()

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = ((x @ first).tanh() @ second - y).square().mean()
        loss.backward()
        for weight in (first, second):
            assert weight.grad is not None
            weight.assign(weight.detach() - RATE * weight.grad)
            weight.grad = None
        return loss

    rows = random.standard_normal((ROWS, WIDTH))
    x, y = place(rows, 0), place(np.sin(rows[:, :1]), 0)
    return [float(step(x, y).item()) for _ in range(STEPS)]


if __name__ == "__main__":
    for number, loss in enumerate(train(tuple(sys.argv[1:]) or ("CPU", "CPU:1"))):
        print(f"step {number}: loss {loss:.5f}")
