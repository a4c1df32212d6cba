"""Times of the kernels of a compiled graph."""

from __future__ import annotations

import numpy as np

from gpu import Tensor, Var
from gpu.runtime.execute import is_computed, prepare
from gpu.runtime.launch_time import SHORTEST
from gpu.runtime.timing import time_kernels


def test_each_kernel_is_timed_and_nothing_is_kept(device: str) -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    y = (x.softmax(1).contiguous() @ x.T.contiguous()).relu()
    times = time_kernels([y._node], samples=1)
    assert times and all(each.name and each.seconds > 0 for each in times)
    assert not is_computed(y._node)
    assert (x.numpy() == np.arange(12).reshape(3, 4)).all()


def test_memory_that_a_graph_changes_is_copied(device: str) -> None:
    x = Tensor(np.zeros(20_000, np.float32)).contiguous().realize()
    x[1:3] += 1
    assert prepare([x._node]).schedule.writes
    time_kernels([x._node], samples=2)
    assert x.numpy()[:4].tolist() == [0, 1, 1, 0]


def test_more_work_takes_longer() -> None:
    times = []
    for side in (16, 512):
        x = Tensor(np.ones((side, side), np.float32)).realize()
        times.append(sum(each.seconds for each in time_kernels([(x @ x)._node])))
    assert times[0] < SHORTEST
    assert times[1] > 50 * times[0]


def test_symbolic_sizes_have_their_values() -> None:
    n = Var("n", 1, 10).bind(4)
    x = Tensor(np.ones((10, 3), np.float32)).realize()[:n]
    (time,) = time_kernels([(x + 1).contiguous()._node], samples=1)
    assert time.seconds > 0
