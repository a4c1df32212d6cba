"""Copies from GPU to GPU: past the host between peers, and through it between others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpu.backends.cuda.codes import Result
from gpu.backends.cuda.context import open_context
from gpu.backends.cuda.library import Library
from gpu.backends.cuda.memory import CudaAllocator, CudaMemory
from gpu.core.errors import DeviceError, DeviceLost
from gpu.sim.cuda.library import load
from libcuda.test_simulated import ADD, Simulated
from sim.cuda.raw_cuda import RawCuda


class Machine:
    """Several GPUs of a model, with an allocator each."""

    def __init__(self, chips: str, seed: int = 0):
        self.library = load(chips, seed=seed, recovers=True)
        self.functions = Library(self.library.functions)
        count = len(chips.split(","))
        self.contexts = [open_context(self.functions, i) for i in range(count)]
        self.allocators = [CudaAllocator(context) for context in self.contexts]

    def array(self, gpu: int, values: np.ndarray) -> CudaMemory:
        memory = self.allocators[gpu].alloc(values.nbytes)
        self.allocators[gpu].copy_in(memory, values.data)
        return memory

    def copy(self, to: tuple[int, CudaMemory], of: tuple[int, CudaMemory], size: int) -> bool:
        return self.allocators[to[0]].transfer(to[1], of[1], size, self.allocators[of[0]])

    def value(self, gpu: int, memory: CudaMemory, count: int) -> list[int]:
        result = np.empty(count, np.uint32)
        self.allocators[gpu].copy_out(result.data, memory)
        return result.tolist()


@pytest.fixture
def machine() -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(*args: object) -> Machine:
        made.append(Machine(*args))
        return made[-1]

    yield make
    for one in made:
        for context in one.contexts:
            context.close()
        one.library.check()


@pytest.mark.parametrize("seed", range(5))
def test_copies_between_peers_keep_the_order_of_both(
    machine: Callable[..., Machine], seed: int
) -> None:
    """Drawn copies, uploads, launches and frees; what two GPUs touch unordered would be told."""
    many, rng = machine("gh100,gh100,gh100", seed), np.random.default_rng(seed)
    adds = []
    for i in range(3):
        one = Simulated.__new__(Simulated)
        one.context, one.allocator = many.contexts[i], many.allocators[i]
        adds.append(one.program(ADD, "add", 2, 1))
    want = [rng.integers(0, 1000, 256).astype(np.uint32) for _ in range(6)]
    have = [many.array(i % 3, values) for i, values in enumerate(want)]
    for _ in range(60):
        i, j = (int(k) for k in rng.permutation(6)[:2])
        match rng.integers(5):
            case 0 | 1 if i % 3 != j % 3:
                assert many.copy((i % 3, have[i]), (j % 3, have[j]), 1024)
                want[i] = want[j].copy()
            case 2:
                adds[i % 3](have[i], have[i], vals=[3])
                want[i] = want[i] * 2 + 3
            case 3:
                many.allocators[i % 3].free(have[i], 1024)  # which another copy may still read
                want[i] = rng.integers(0, 1000, 256).astype(np.uint32)
                have[i] = many.array(i % 3, want[i])
            case _:
                assert many.value(i % 3, have[i], 256) == want[i].tolist()
    for i, values in enumerate(want):
        assert many.value(i % 3, have[i], 256) == values.tolist()
    del adds


@pytest.mark.parametrize("seed", range(5))
def test_the_source_may_change_when_the_copy_was_asked_for(
    machine: Callable[..., Machine], seed: int
) -> None:
    many, values = machine("gh100,gh100", seed), np.arange(256, dtype=np.uint32)
    source, target = many.array(0, values), many.allocators[1].alloc(1024)
    many.contexts[0].synchronize()
    assert many.copy((1, target), (0, source), 1024)
    many.allocators[0].copy_in(source, np.zeros(256, np.uint32).data)
    assert many.value(1, target, 256) == values.tolist()


def test_others_go_through_the_host_and_that_is_said(
    machine: Callable[..., Machine], caplog: pytest.LogCaptureFixture
) -> None:
    many, values = machine("gh100,ga102"), np.arange(9, dtype=np.uint32)
    source, target = many.array(0, values), many.allocators[1].alloc(36)
    with caplog.at_level(logging.INFO, "gpu"):
        assert not many.copy((1, target), (0, source), 36)
        assert not many.copy((1, target), (0, source), 36)
    assert caplog.text.count("from CUDA:0 to CUDA:1 go through the host: are no peers") == 1


@pytest.mark.parametrize("code", [217, 711])
def test_a_refusal_of_the_driver_is_the_way_through_the_host(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    many = machine("gh100,gh100")
    source, target = many.array(0, np.zeros(9, np.uint32)), many.allocators[1].alloc(36)
    monkeypatch.setattr(many.functions, "cuCtxEnablePeerAccess", lambda *_: code)
    assert not many.copy((1, target), (0, source), 36)


def test_another_code_is_an_error(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = machine("gh100,gh100")
    source, target = many.array(0, np.zeros(9, np.uint32)), many.allocators[1].alloc(36)
    with monkeypatch.context() as patch:
        patch.setattr(many.functions, "cuCtxEnablePeerAccess", lambda *_: 1)
        with pytest.raises(DeviceError, match="let CUDA:1 reach CUDA:0"):
            many.copy((1, target), (0, source), 36)


def test_another_library_may_have_made_them_peers(machine: Callable[..., Machine]) -> None:
    many, values = machine("gh100,gh100"), np.arange(9, dtype=np.uint32)
    source, target = many.array(0, values), many.allocators[1].alloc(36)
    raw = RawCuda(many.library.functions)
    raw.call("cuCtxSetCurrent", many.contexts[1].handle)
    raw.call("cuCtxEnablePeerAccess", many.contexts[0].handle, 0)
    assert raw.result("cuCtxEnablePeerAccess", many.contexts[0].handle, 0) == (
        Result.PEER_ACCESS_ALREADY_ENABLED
    )
    assert many.copy((1, target), (0, source), 36)
    assert many.value(1, target, 9) == values.tolist()


def test_memory_of_another_libcuda_is_no_peers(machine: Callable[..., Machine]) -> None:
    one, other = machine("gh100,gh100"), machine("gh100,gh100")
    source, target = one.array(0, np.zeros(4, np.uint32)), other.allocators[1].alloc(16)
    assert not other.allocators[1].transfer(target, source, 16, one.allocators[0])
    assert other.allocators[1].transfer(target, source, 0, other.allocators[0])


@pytest.mark.parametrize("which", [0, 1])
def test_a_context_that_was_made_anew_is_reached_again(
    machine: Callable[..., Machine], which: int
) -> None:
    many, values = machine("gh100,gh100"), np.arange(9, dtype=np.uint32)
    source, target = many.array(0, values), many.allocators[1].alloc(36)
    assert many.copy((1, target), (0, source), 36)
    many.contexts[1].synchronize()  # or it would read what the reset takes
    many.contexts[which].recover(force=True)
    with pytest.raises(DeviceLost, match="what this tensor held is lost"):
        many.copy((1, target), (0, source), 36)
    source, target = many.array(0, values), many.allocators[1].alloc(36)
    assert many.copy((1, target), (0, source), 36)
    assert many.value(1, target, 9) == values.tolist()
    assert many.contexts[1].handle in {
        each.handle for each in many.library.driver.context(many.contexts[0].handle).watchers
    }
