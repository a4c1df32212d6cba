"""What each rank compiles of a step of training: ``compiling.py``.

Each prints a line of JSON with the sources, shortened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from gpu import Device, Mesh, Tensor, distributed, jit, nn

group = distributed.init()
mesh, compiled = Mesh((group.size,), ("data",)), []
compiler = Device["CPU"].compiler
compile_many = compiler.compile_many


def noted(sources: Sequence[str]) -> list[bytes]:
    compiled.extend(blake2b(source.encode(), digest_size=8).hexdigest() for source in sources)
    return compile_many(sources)


compiler.compile_many = noted  # type: ignore[method-assign]
weights = [Tensor(np.eye(16, dtype=np.float32), requires_grad=True) for _ in range(2)]
for weight in weights:
    weight.shard_(mesh, ())
optimizer = nn.optim.Adam(weights)


@jit
def step(x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = ((x @ weights[0]).tanh() @ weights[1]).square().mean()
    loss.backward()
    optimizer.step()
    return loss


with Tensor.train():
    for _ in range(3):
        step(Tensor(np.ones((8, 16), np.float32)).shard(mesh, ("data",))).item()
sys.stdout.write(json.dumps({"rank": group.rank, "compiled": compiled}) + "\n")
