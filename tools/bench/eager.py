#!/usr/bin/env python3
"""What small operations cost in Python: building nodes, running them, replaying a jitted function.

    python tools/bench/eager.py [--rounds 300] [--json]

Everything is warm: what is compiled was compiled before. A round is a good many calls; the figures
are microseconds of one call in the best round, on the clock and of the calling thread's processor
time. `DEV` and `CPU_THREADS` choose the device as ever.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

import gpu
from gpu import Tensor
from gpu.compiler.ir.graph import toposort

ROUND: Final = 0.0005  # seconds: short, so that some are not disturbed
KERNELS: Final = 100


class Times(NamedTuple):
    """Microseconds of a call on the clock, and of processor time."""

    wall: float
    cpu: float


class Row(NamedTuple):
    """What is measured, and how many units of work one call is."""

    name: str
    call: Callable[[], object]
    units: int = 1


def measure(call: Callable[[], object], rounds: int) -> Times:
    """The best round's microseconds of one call."""
    for _ in range(5):
        call()
    started = time.perf_counter()
    call()
    calls = max(1, int(ROUND / (time.perf_counter() - started)))
    found = [_round(call, calls) for _ in range(rounds)]
    return Times(min(t.wall for t in found), min(t.cpu for t in found))


def _round(call: Callable[[], object], calls: int) -> Times:
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(calls):
        call()
    passed = Times(time.perf_counter() - wall, time.thread_time() - cpu)
    return Times(*(seconds / calls * 1e6 for seconds in passed))


def _values(*shape: int) -> Tensor:
    return Tensor(np.arange(math.prod(shape), dtype=np.float32).reshape(shape))


def building() -> Iterator[Row]:
    """Expressions that are not computed."""
    a, b, block = _values(10), _values(1000), _values(4, 6, 8)
    yield Row("a + 1: build", lambda: a + 1)
    yield Row("a + b: build", lambda: b + b)
    yield Row("x.reshape().permute(): build", lambda: block.reshape(24, 8).permute(1, 0))
    yield Row("a[1:3]: build", lambda: a[1:3])
    yield Row("a.sum(): build", a.sum)
    forward = _transformer_block()
    nodes = len(toposort([forward()._node]))
    yield Row("each node of a transformer block: build", forward, nodes)


def running() -> Iterator[Row]:
    """Small computations, each with all of its launches."""
    a, b, c = _values(10), _values(1000), _values(1000) + 1
    c.realize()
    yield Row("a + 1 on 10 elements", lambda: Tensor.realize(a + 1))
    yield Row("a + b on 1,000 elements", lambda: Tensor.realize(b + c))
    yield Row("(a * b).sum()", lambda: (b * c).sum().realize())
    yield Row("a[1:3] computed", lambda: a[1:3].contiguous().realize())
    yield Row("Tensor([1, 2, 3])", lambda: Tensor([1, 2, 3]))
    yield Row("a.numpy()", a.numpy)
    one = Tensor(np.float32(3)).contiguous().realize()
    yield Row("one.item()", one.item)
    yield Row("(a + 1).numpy()", lambda: Tensor.numpy(a + 1))


def replaying() -> Iterator[Row]:
    """Calls of a jitted function."""
    a = _values(10)
    yield Row("jit: a call of 1 kernel", _jitted_chain(a, 1))
    yield Row(f"jit: each of {KERNELS} kernels", _jitted_chain(a, KERNELS), KERNELS)


def _jitted_chain(x: Tensor, kernels: int) -> Callable[[], object]:
    """A replay of kernels that cannot be one, as each writes memory of its own."""

    @gpu.jit
    def chain(x: Tensor) -> Tensor:
        for _ in range(kernels):
            x = (x + 1).contiguous()
        return x

    for _ in range(3):
        chain(x)
    return lambda: chain(x)


def _transformer_block() -> Callable[[], Tensor]:
    """The forward pass of one block: attention of 4 heads over 16 positions, then two layers."""
    length, width, heads = 16, 64, 4
    x = _values(1, length, width)
    queries, keys, values, out = (_values(width, width) for _ in range(4))
    up, down = _values(width, 4 * width), _values(4 * width, width)

    def split(y: Tensor) -> Tensor:
        return y.reshape(1, length, heads, width // heads).permute(0, 2, 1, 3)

    def forward() -> Tensor:
        y = x.layernorm()
        q, k, v = split(y @ queries), split(y @ keys), split(y @ values)
        seen = q.scaled_dot_product_attention(k, v, is_causal=True)
        y = x + seen.permute(0, 2, 1, 3).reshape(1, length, width) @ out
        return y + (y.layernorm() @ up).gelu() @ down

    return forward


def main() -> None:
    """Prints a line for each row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="one object of (wall, cpu) by name")
    arguments = parser.parse_args()
    found: dict[str, Times] = {}
    for rows in (building, running, replaying):
        for row in rows():
            times = measure(row.call, arguments.rounds)
            found[row.name] = Times(times.wall / row.units, times.cpu / row.units)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, times in found.items():
        print(f"{name:<48}{times.wall:8.2f} us,{times.cpu:8.2f} us of processor time")


if __name__ == "__main__":
    main()
