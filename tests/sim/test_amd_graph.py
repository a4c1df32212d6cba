"""Jitted functions on a simulated AMD GPU: their launches are submitted together and replayed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gpu
from gpu import Context, Tensor, Var
from gpu.backends.amd import device as amd
from gpu.backends.amd.device import AMDDevice
from gpu.backends.hcq import graph as queue_graph
from gpu.backends.hcq.graph import ONE_BY_ONE, QueueGraph
from gpu.backends.hcq.program import QueueProgram
from gpu.compiler.ir.linear import Program, Val
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidValue
from gpu.core.trace import read_trace
from gpu.drivers.am.kfd.port import open_kfd
from gpu.hcq.buffer import HCQBuffer
from gpu.runtime.device import Device
from gpu.transport.world import _recorder
from simulated import SIMULATED, own_machines
from unit.linear_kernels import Kernel, scratch_kernel

Ints = npt.NDArray[np.int64]
N = 48


@pytest.fixture(autouse=True)
def device(need: Callable[[str], None]) -> Iterator[AMDDevice]:
    need("llvmlite")
    with Context(SIM=SIMULATED["AMD"], DEV="AMD"):
        opened = Device["AMD"]
        assert isinstance(opened, AMDDevice)
        yield opened


@pytest.fixture
def doorbells(device: AMDDevice, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was written to the doorbell of the queue that launches go to.

    Without what skips the end of its ring, which comes when others have used the queue enough.
    """
    rung: list[int] = []
    channel = device.queues.channel("compute")
    publish, skip = channel._publish, channel._fill

    def skip_unseen(position: int, size: int) -> None:
        before = len(rung)
        skip(position, size)
        del rung[before:]

    def ring(position: int, words: int, size: int, last: int, value: int) -> None:
        rung.append(value)
        publish(position, words, size, last, value)

    monkeypatch.setattr(channel, "_fill", skip_unseen)
    monkeypatch.setattr(channel, "_publish", ring)
    return rung


def matrix(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.normal(size=shape).astype(np.float32)


# Jitted functions


def shuffle(x: Tensor, y: Tensor, rounds: int = 12) -> Tensor:
    """A kernel each round: each element needs one that another work-item computed."""
    for _ in range(rounds):
        x = (x * 0.5 + y).flip(0).contiguous()
    return x


def shuffled(x: Any, y: Any, rounds: int = 12) -> Any:
    for _ in range(rounds):
        x = (x * np.float32(0.5) + y)[::-1]
    return x


@pytest.mark.parametrize("at_once", [5, 512])
def test_a_replay_rings_once(
    doorbells: list[int], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Results of all replays are held, several replays are under way, inputs are always others."""
    monkeypatch.setattr(queue_graph, "AT_ONCE", at_once)
    rng, step = np.random.default_rng(at_once), gpu.jit(shuffle)
    rows = 7 + at_once % 2  # a graph of its own: what it lays out is kept
    expected, results, rung = [], [], []
    for _ in range(9):
        x, y = matrix(rng, rows, 5), matrix(rng, rows, 5)
        given = Tensor(x).realize(), Tensor(y).realize()
        before = len(doorbells)
        results.append(step(*given))
        rung.append(len(doorbells) - before)
        expected.append(shuffled(x, y))
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)
    assert rung[:ONE_BY_ONE] == [12] * ONE_BY_ONE
    assert rung[ONE_BY_ONE:] == [-(-12 // at_once)] * (9 - ONE_BY_ONE)


def test_state_that_is_written_and_given_again(doorbells: list[int]) -> None:
    """The output of a replay is the input of the next, and a tensor is written in place."""
    rng = np.random.default_rng(1)
    x, total = matrix(rng, 9, 4), matrix(rng, 9, 4)
    tensor, state = Tensor(x), Tensor(total).realize()

    @gpu.jit
    def step(a: Tensor) -> Tensor:
        state[2:7] = state[2:7] * 0.5 + shuffle(a, a, 4)[2:7]
        return shuffle(a, state, 4)

    for replay in range(7):
        before = len(doorbells)
        tensor = step(tensor)
        assert len(doorbells) == before + 1 or replay < ONE_BY_ONE
        total[2:7] = total[2:7] * np.float32(0.5) + shuffled(x, x, 4)[2:7]
        x = shuffled(x, total, 4)
        np.testing.assert_allclose(tensor.numpy(), x, rtol=1e-5)
        np.testing.assert_allclose(state.numpy(), total, rtol=1e-5)


def test_one_memory_as_two_inputs() -> None:
    rng, step = np.random.default_rng(2), gpu.jit(lambda a, b: shuffle(a, b.T.contiguous(), 4))
    for _ in range(5):
        x, y = matrix(rng, 6, 4), matrix(rng, 4, 6)
        first, second = Tensor(x).realize(), Tensor(y).realize()
        np.testing.assert_allclose(step(first, second).numpy(), shuffled(x, y.T, 4), rtol=1e-5)
        got = step(first, first.reshape(4, 6)).numpy()
        np.testing.assert_allclose(got, shuffled(x, x.reshape(4, 6).T, 4), rtol=1e-5)


def test_a_cache_at_changing_positions(doorbells: list[int]) -> None:
    """Each step writes a row of a cache in place and reads the rows so far."""
    rng, position = np.random.default_rng(3), Var("position", 0, 15)
    cache, expected = Tensor.zeros(16, 8).contiguous().realize(), np.zeros((16, 8), np.float32)

    @gpu.jit
    def attend(row: Tensor, p: Any) -> Tensor:
        cache[p : p + 1] = row
        seen = cache[: p + 1]
        return (seen @ row.T).softmax(0).T @ seen

    for i in [0, 1, 2, 3, 9, 4, 15, 5, 3]:
        row = matrix(rng, 1, 8)
        given = Tensor(row).realize()
        before = len(doorbells)
        got = attend(given, position.bind(i))
        rung = len(doorbells) - before
        expected[i] = row
        scores = np.exp(expected[: i + 1] @ row.T)
        want = (scores / scores.sum()).T @ expected[: i + 1]
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)
    assert rung == 1
    np.testing.assert_array_equal(cache.numpy(), expected)


# Graphs by themselves


def load(device: AMDDevice, program: Program, *, stack: int | None = None) -> QueueProgram:
    """A kernel; its local arrays are in a workspace where the `stack` is too small for them."""
    renderer = AMDRenderer("gfx1100")
    if stack is not None:
        renderer._chip = renderer._chip._replace(private=stack)
    lib = device.compiler.compile(renderer.render(program))
    loaded = device.runtime(program.name, lib, renderer.launch_data(program))
    assert isinstance(loaded, QueueProgram)
    return loaded


def mixing() -> Program:
    """``out = 3 * a + b + n``."""
    k = Kernel(**dict.fromkeys(("out", "a", "b"), (dtypes.int64, N)))
    n = k("val", dtypes.int64, attr=(0,))
    i = k.loop(N, kind="grid")
    total = k.alu("add", k.alu("mul", k.load(k.a, i), k.const(3)), k.load(k.b, i))
    k.store(k.out, i, k.alu("add", total, n))
    k.end(i)
    return k.program("mixing")._replace(vals=(Val("n", -(1 << 40), 1 << 40),))


def upload(device: AMDDevice, values: Ints) -> HCQBuffer:
    """Memory with these numbers, and some more behind them."""
    memory = device.allocator.alloc(values.nbytes + 8 * int(values[0] & 7))
    device.allocator.copy_in(memory, memoryview(values.tobytes()))
    return memory


def download(device: AMDDevice, memory: HCQBuffer) -> Ints:
    data = np.zeros(N, np.int64)
    device.allocator.copy_out(data.data.cast("B"), memory)
    return data


class RandomGraph:
    """Launches on slots of which the first few are only read: those may share memory."""

    INPUTS, SLOTS, VALS = 3, 6, 2

    def __init__(self, device: AMDDevice, rng: np.random.Generator):
        mix, fill = load(device, mixing()), load(device, scratch_kernel(N).program(), stack=0)
        assert fill.graph_item([], []).buffers, "it has a workspace"
        self.fill = fill
        self.launches: list[tuple[QueueProgram, tuple[int, ...], tuple[int, ...]]] = []
        for _ in range(20):
            out, *others = rng.permutation(self.SLOTS).tolist()
            if out < self.INPUTS:
                out, others[others.index(self.SLOTS - 1)] = self.SLOTS - 1, out
            if rng.random() < 0.2:
                self.launches.append((fill, (out,), ()))
            else:
                self.launches.append((mix, (out, *others[:2]), (int(rng.integers(self.VALS)),)))

    def run(self, values: list[Ints], vals: Sequence[int]) -> None:
        """Does with arrays what the launches do."""
        for program, (out, *sources), taken in self.launches:
            if program is self.fill:
                values[out] = np.arange(N)[::-1] + 1
            else:
                a, b = (values[source] for source in sources)
                values[out] = a * 3 + b + vals[taken[0]]


@pytest.mark.parametrize("seed", range(3))
def test_random_graphs(device: AMDDevice, seed: int) -> None:
    """Memory, its size and values change; one memory stands for several slots that are read."""
    rng = np.random.default_rng(seed)
    program = RandomGraph(device, rng)
    graph = QueueGraph(device.queues, program.launches, program.SLOTS)
    arrays = list(rng.integers(-99, 99, (8, N)))
    pool = [upload(device, array) for array in arrays]
    for _ in range(7):
        outputs = rng.choice(8, program.SLOTS - program.INPUTS, replace=False).tolist()
        unwritten = [number for number in range(8) if number not in outputs]
        chosen = [*rng.choice(unwritten, program.INPUTS).tolist(), *outputs]
        vals = rng.integers(-(1 << 40), 1 << 40, program.VALS).tolist()
        graph([pool[number] for number in chosen], vals)
        values = [arrays[number] for number in chosen]
        program.run(values, vals)
        for number, value in zip(chosen, values, strict=True):
            arrays[number] = value
    for memory, array in zip(pool, arrays, strict=True):
        np.testing.assert_array_equal(download(device, memory), array)


def test_a_graph_that_is_dropped_lets_go_of_memory(device: AMDDevice) -> None:
    """Also when it is dropped while it runs; nothing has to look for cycles."""
    program = RandomGraph(device, np.random.default_rng(0))
    (workspace,) = program.fill.graph_item([], []).buffers
    launches = [(program.fill, (0,), ())] * 3
    graph = QueueGraph(device.queues, launches, 1)
    memory = device.allocator.alloc(8 * N)
    for _ in range(ONE_BY_ONE + 2):
        graph([memory])
    assert workspace.allocation.pins == 1
    laid_out = weakref.ref(graph._submissions[0]._graph)
    del graph
    assert laid_out() is None
    np.testing.assert_array_equal(download(device, memory), np.arange(N)[::-1] + 1)
    assert workspace.allocation.pins == 0


def test_slots_that_there_are_not(device: AMDDevice) -> None:
    program = load(device, mixing())
    with pytest.raises(InvalidValue, match="graph of 2 slots"):
        QueueGraph(device.queues, [(program, (0, 1, 2), (0,))], 2)


def test_a_simulated_world_is_recorded(tmp_path: Path) -> None:
    """Drivers of simulated GPUs are recorded like others: one session, from opening to closing."""
    file = tmp_path / "trace"
    with own_machines(), Context(TRACE=str(file)), open_kfd(amd._world("gfx1100")):
        pass
    _recorder(str(file), os.getpid()).close()  # else it is open until the process ends
    assert {"Open", "Ioctl", "Map"} <= {type(event).__name__ for event in read_trace(file)}
