"""Training on all ranks of a cluster: each has a part of the batch, and a part of the weights.

    mpiexec -n 2 python examples/digits_ranks.py /tmp/digits
    mpiexec --with-ft ulfm --mca coll ^han,cuda -n 2 python examples/digits_ranks.py /tmp/digits
    python examples/digits_ranks.py /tmp/digits

A network learns to read digits, and tells how many of those that it never saw it reads right. The
folder keeps checkpoints: started again with it, the program goes on from the last one. With the
second command it does so by itself, on the ranks that are left, when one is killed.
"""

from __future__ import annotations

import sys

import numpy as np

from gpu import Mesh, Tensor, distributed, jit
from gpu.data import Loader, load_digits
from gpu.nn.optim import AdamW

HIDDEN, BATCH, STEPS, TRAINED = 64, 64, 120, 1500


def train(folder: str) -> tuple[float, float]:
    """The loss at the end, and the share of other digits that is read right, on all ranks."""
    group = distributed.init()
    mesh = Mesh((group.size,), ("data",))
    random = np.random.default_rng(0)
    images, labels = load_digits()
    x, y = (images.reshape(-1, 64) / 16).astype(np.float32), labels.astype(np.int32)
    loader = Loader((x[:TRAINED], y[:TRAINED]), BATCH, mesh=mesh)

    def weight(*shape: int) -> Tensor:
        """Rows of a weight on each rank, which are gathered where all of it is needed."""
        drawn = random.normal(size=shape) / shape[0] ** 0.5
        return Tensor(drawn.astype(np.float32)).shard(mesh, ("data", None)).requires_grad_()

    first, second = weight(64, HIDDEN), weight(HIDDEN, 10)
    optimizer = AdamW([first, second], lr=0.01)

    @jit
    def learn(rows: Tensor, digits: Tensor, weights: Tensor) -> None:
        optimizer.zero_grad()
        scores = (rows @ first).relu() @ second
        losses = scores.sparse_categorical_crossentropy(digits, reduction="none")
        loss = (losses * weights).sum()
        loss.backward()
        optimizer.step()

    def step(number: int) -> None:
        (rows, digits), weights = loader.take()
        learn(rows, digits, weights)

    state = {"first": first, "second": second, "optimizer": optimizer, "loader": loader}
    with Tensor.train():
        distributed.run(step, state, folder=folder, steps=STEPS, every=20)
    loader.close()
    scores = (Tensor(x).shard(mesh, ()) @ first.detach()).relu() @ second.detach()
    scores = Tensor(scores.numpy())
    loss = scores[:TRAINED].sparse_categorical_crossentropy(Tensor(y[:TRAINED]))
    right = (scores.numpy()[TRAINED:].argmax(1) == y[TRAINED:]).mean()
    return float(loss.item()), float(right)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name a folder for checkpoints, as in: digits_ranks.py /tmp/digits")
    loss, share = train(sys.argv[1])
    if distributed.init().rank == 0:
        print(f"loss {loss:.3f}, {share:.1%} of other digits read right")
