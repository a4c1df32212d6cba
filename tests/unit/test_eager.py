"""Small operations cost little Python, and nodes that are equal are one node in all threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

import gpu
from gpu import Tensor
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from unit.python_calls import python_calls

A = Tensor(np.arange(10, dtype=np.float32), device="CPU")
BLOCK = Tensor(np.zeros((4, 6, 8), np.float32), device="CPU")


X = Tensor(np.ones((8, 8), np.float32), device="CPU")
LAYERS = [Tensor(np.eye(8, dtype=np.float32) + i, device="CPU").realize() for i in range(8)]
ROWS = itertools.count()


@gpu.jit
def add_one(x: Tensor) -> Tensor:
    return x + 1


@gpu.jit
def layers(x: Tensor) -> Tensor:
    for weight in LAYERS:
        x = (x @ weight).relu()
    return x


@cache
def parameters() -> tuple[Tensor, Tensor]:
    """Made when they are needed: where there are leaves, other operations take more calls."""
    weight = Tensor(np.eye(8, dtype=np.float32), device="CPU").requires_grad_()
    return weight, Tensor(np.ones(8, np.float32), device="CPU").requires_grad_()


def train() -> None:
    """A forward and backward pass, all of it computed."""
    weight, bias = parameters()
    weight.grad = bias.grad = None
    loss = (X @ weight + bias).relu().square().mean().backward()
    assert weight.grad is not None and bias.grad is not None
    Tensor.realize(loss, weight.grad, bias.grad)


def row() -> None:
    """An element that no call before had."""
    (A[next(ROWS) % 10] * 3).realize()


def warm_calls(run: Callable[[], object]) -> int:
    """How many functions written in Python `run` calls when everything is warm."""
    for _ in range(3):
        run()
    return python_calls(run)


# What is run, and how many calls of Python's it may take: each costs 0.1 to 0.3 us with its work.
OPERATIONS: Mapping[str, tuple[Callable[[], object], int]] = {
    "build": (lambda: A + 1, 50),
    "computed": (lambda: Tensor.realize(A + 1), 120),
    "views": (lambda: BLOCK.reshape(24, 8).permute(1, 0), 100),
    "index": (lambda: A[1:3], 60),
    "replay": (lambda: add_one(A), 85),
    "layers": (lambda: layers(X), 120),
    "row": (row, 220),
    "train": (train, 1420),
}

COUNTING = """
from unit.test_eager import OPERATIONS, warm_calls
print(*(warm_calls(run) for run, _ in OPERATIONS.values()))
"""


def test_small_operations_make_few_calls() -> None:
    """In a process of its own: tensors and devices that other tests left take some calls too."""
    ran = _run(COUNTING)
    assert ran.returncode == 0, ran.stderr
    counts = dict(zip(OPERATIONS, map(int, ran.stdout.split()), strict=True))
    assert not {name: n for name, n in counts.items() if n > OPERATIONS[name][1]}


def _run(code: str) -> subprocess.CompletedProcess[str]:
    folders = (Path(gpu.__file__).parents[1], Path(__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "DEV": "CPU"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def test_threads_find_one_node() -> None:
    count, threads = 400, 4
    found: list[list[Node]] = [[] for _ in range(threads)]
    begin = threading.Barrier(threads)

    def build(mine: list[Node]) -> None:
        begin.wait()
        mine.extend((A + number)._node for number in range(count))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=build, args=(mine,)) for mine in found]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(len(set(map(id, nodes))) == 1 for nodes in zip(*found, strict=True))


def test_constants_are_told_apart() -> None:
    def constant(value: float) -> Node:
        return G.const(value, (2,), dtypes.float32, "CPU")

    zero, minus_zero, nan = constant(0.0), constant(-0.0), constant(float("nan"))
    assert zero is not minus_zero and constant(-0.0) is minus_zero
    assert constant(float("nan")) is nan and constant(1.0) is not constant(-1.0)
    infinite = constant(float("inf"))
    assert constant(float("inf")) is infinite and constant(float("-inf")) is not infinite
    signs = Tensor._wrap(minus_zero).numpy(), Tensor._wrap(zero).numpy()
    assert np.signbit(signs[0]).all() and not np.signbit(signs[1]).any()
    inverse = 1 / (A * 0 + Tensor._wrap(minus_zero)[:1])
    assert np.isposinf(inverse.numpy()).all()  # 0.0 + -0.0


FORKING = """
import os, signal, threading
from gpu import Tensor
from gpu.core import weak

held, done = threading.Event(), threading.Event()

def hold():
    with weak._Guard.lock:
        held.set()
        done.wait()

x = Tensor([1.0, 2.0])
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(7 if (x + 1).shape == (2,) else 1)
status = os.waitpid(child, 0)[1]
done.set()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_builds_while_another_thread_did() -> None:
    ran = _run(FORKING)
    assert ran.stdout == "7\n", ran.stderr
