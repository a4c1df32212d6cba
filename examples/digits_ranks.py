"""Training on all ranks of a cluster: each has a part of the batch, and a part of the weights.

    mpiexec -n 2 python examples/digits_ranks.py
    python examples/digits_ranks.py

A network learns to read digits, and tells how many of those that it never saw it reads right.
"""

from __future__ import annotations

import numpy as np

from gpu import Mesh, Tensor, distributed, jit
from gpu.data import load_digits
from gpu.nn.optim import AdamW

HIDDEN, BATCH, STEPS, TRAINED = 64, 64, 120, 1500


def train() -> tuple[float, float]:
    """The last loss, and the share of other digits that is read right; the same on all ranks."""
    group = distributed.init()
    mesh = Mesh((group.size,), ("data",))
    random = np.random.default_rng(0)
    images, labels = load_digits()
    x = (images.reshape(-1, 64) / 16).astype(np.float32)

    def weight(*shape: int) -> Tensor:
        """Rows of a weight on each rank, which are gathered where all of it is needed."""
        drawn = random.normal(size=shape) / shape[0] ** 0.5
        return Tensor(drawn.astype(np.float32)).shard(mesh, ("data", None)).requires_grad_()

    first, second = weight(64, HIDDEN), weight(HIDDEN, 10)
    optimizer = AdamW([first, second], lr=0.01)

    @jit
    def step(rows: Tensor, digits: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((rows @ first).relu() @ second).sparse_categorical_crossentropy(digits)
        loss.backward()
        optimizer.step()
        return loss

    def spread(array: np.ndarray) -> Tensor:
        return Tensor(array).shard(mesh, ("data",))

    with Tensor.train():
        for _ in range(STEPS):
            chosen = random.choice(TRAINED, BATCH, replace=False)
            loss = step(spread(x[chosen]), spread(labels[chosen].astype(np.int32)))
    scores = (Tensor(x[TRAINED:]).shard(mesh, ()) @ first.detach()).relu() @ second.detach()
    right = (scores.numpy().argmax(1) == labels[TRAINED:]).mean()
    return float(loss.item()), float(right)


if __name__ == "__main__":
    last, share = train()
    if distributed.init().rank == 0:
        print(f"loss {last:.3f}, {share:.1%} of other digits read right")
