"""Training that goes on: ``going_on.py FOLDER HOW STEP RANK``; the rank fails in that step.

Each rank that is left prints in a line of JSON its losses by step, and the weights' sum.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

from gpu import Mesh, Tensor, distributed, jit
from gpu.data import Loader
from gpu.nn.optim import AdamW

FOLDER, HOW, AT, WHO = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
STEPS = 14
group = distributed.init()
first = group.rank
mesh = Mesh((group.size,), ("data",))
draws = np.random.default_rng(4)
rows = draws.normal(size=(30, 6))
loader = Loader((rows, rows.sum(1, keepdims=True)), 8, mesh=mesh, seed=1)
weights = [
    Tensor(draws.normal(size=shape)).shard(mesh, spec).requires_grad_()
    for shape, spec in [((6, 12), (None, "data")), ((12, 1), ())]
]
optimizer = AdamW(weights, lr=0.05)
state = {"weights": weights, "optimizer": optimizer, "loader": loader}
losses = {}


@jit
def train(x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    optimizer.zero_grad()
    wrong = ((x @ weights[0]).tanh() @ weights[1] - y).square().sum(1)
    loss = (wrong * share).sum()
    loss.backward()
    optimizer.step()
    return loss


def fail() -> None:
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "raise":
        raise ValueError("the data has ended")
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "hang":
        time.sleep(100)
    if HOW == "other":
        group.barrier()


def step(number: int) -> None:
    (x, y), share = loader.take()
    if (number, first) == (AT, WHO) and group.size > 1:
        fail()
    losses[number] = train(x, y, share).item()


with Tensor.train():
    distributed.run(step, state, folder=FOLDER, steps=STEPS, every=4, check=3)
total = float(weights[0].numpy().sum())
told = {"rank": group.rank, "size": group.size, "losses": [*losses.items()], "total": total}
sys.stdout.write(json.dumps(told) + "\n")
sys.stdout.flush()
