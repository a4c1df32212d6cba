"""Jitted functions as CUDA graphs whose kernels run, in any order that their edges allow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Context, Tensor
from gpu.backends.cuda import device as cuda_device
from gpu.backends.cuda.library import Library
from gpu.runtime.device import Device
from libcuda.lanes import Lanes
from libcuda.stand_in import Launch

_NUMBERS = itertools.count(100)


class Shuffled(Lanes):
    """Runs the nodes of a graph in any order that its edges allow, as a GPU may."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)
        self.replays = 0

    def cuGraphLaunch(self, made: int, stream: int) -> None:
        self.replays += 1
        waiting, done = list(self.graphs[made]), set()
        while waiting:
            ready = [node for node in waiting if done.issuperset(self.nodes[node][1])]
            node = ready[int(self.rng.integers(len(ready)))]
            launch: Launch = self.nodes[node][0]
            self.run(launch)
            waiting.remove(node)
            done.add(node)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]) -> Iterator[Shuffled]:
    need("nvrtc")
    stand_in = Shuffled()
    library = Library(stand_in.functions())
    monkeypatch.setattr(cuda_device, "_library", lambda *_: library)
    # Compiled graphs are kept by the name of their device, with programs of this libcuda.
    index = next(_NUMBERS)
    stand_in.count = index + 1
    with Context(DEV=f"CUDA:{index}"):
        yield stand_in
    opened: Any = Device._open.pop(f"CUDA:{index}")
    opened.context.close()


def test_branches_and_state_of_a_replay_are_those_of_numpy(lanes: Shuffled) -> None:
    rng = np.random.default_rng(5)
    weights = [rng.normal(size=(12, 12)).astype(np.float32) for _ in range(3)]
    held = [Tensor(w).realize() for w in weights]
    total = Tensor.zeros(7, 12).contiguous().realize()

    @gpu.jit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (x @ w for w in held)
        mixed = (q @ k.permute(1, 0)).softmax(1) @ v
        total.assign(total + mixed)
        return mixed.relu().sum(0), (q - k).abs().max(1)

    want = np.zeros((7, 12))
    for _ in range(8):
        a = rng.normal(size=(7, 12)).astype(np.float32)
        q, k, v = (a.astype(np.float64) @ w for w in weights)
        scores = q @ k.T
        exp = np.exp(scores - scores.max(1, keepdims=True))
        mixed = exp / exp.sum(1, keepdims=True) @ v
        want += mixed
        first, second = step(Tensor(a))
        np.testing.assert_allclose(first.numpy(), np.maximum(mixed, 0).sum(0), 1e-3, 1e-3)
        np.testing.assert_allclose(second.numpy(), np.abs(q - k).max(1), 1e-3, 1e-3)
    np.testing.assert_allclose(total.numpy(), want, 1e-3, 1e-3)
    assert lanes.replays > 0
    edges = [len(lanes.nodes[node][1]) for nodes in lanes.graphs.values() for node in nodes]
    assert 0 in edges and max(edges) > 0


def test_sizes_are_values_of_a_replay(lanes: Shuffled) -> None:
    rows = gpu.Var("rows", 1, 12)
    data = np.random.default_rng(6).normal(size=(12, 9)).astype(np.float32)
    x = Tensor(data).realize()

    @gpu.jit
    def parts(x: Tensor, size: gpu.Var) -> tuple[Tensor, Tensor, Tensor]:
        part = x[:size]
        return part.sum(0), part.max(0), (part * part).sum(0)

    for count in (3, 12, 1, 7, 7, 12, 2, 5):
        sums, most, squares = (t.numpy() for t in parts(x, rows.bind(count)))
        part = data[:count]
        np.testing.assert_allclose(sums, part.sum(0), 1e-4, 1e-5)
        np.testing.assert_array_equal(most, part.max(0))
        np.testing.assert_allclose(squares, (part * part).sum(0), 1e-4, 1e-5)
