"""Memory and copies: what is asked of libcuda, and in which order."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from gpu.backends.cuda.exchange import CudaExchange
from gpu.backends.cuda.memory import SLOT_BYTES, SLOTS
from gpu.core.errors import DeviceError, InvalidValue, OutOfMemory
from libcuda.conftest import Opened
from libcuda.stand_in import NOT_READY

ENQUEUED = (
    *("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernelEx", "cuEventRecord"),
    *("cuStreamWaitEvent", "cuEventSynchronize"),
)


@pytest.mark.parametrize("size", [1, 3, SLOT_BYTES - 1, SLOT_BYTES, 7 * SLOT_BYTES + 5])
def test_copies_of_any_size_arrive(cuda: Opened, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    memory, back = cuda.filled(data), bytearray(size)
    cuda.allocator.copy_out(memoryview(back), memory)
    assert back == data
    assert len(cuda.stand_in.given("cuMemHostAlloc")) == min(SLOTS, 2 * -(-size // SLOT_BYTES))


def test_a_slot_is_used_again_when_its_event_was_reached(cuda: Opened) -> None:
    cuda.filled(bytes(SLOT_BYTES * (SLOTS + 2)))
    calls = [c for c in cuda.stand_in.calls if c[0] in ENQUEUED and c[0] != "cuStreamWaitEvent"]
    copies = [(name, args) for name, args in calls if name == "cuMemcpyHtoDAsync_v2"]
    slots = [args[1] for _, args in copies]
    assert len(set(slots)) == SLOTS and slots[SLOTS:] == slots[:2]
    # Event of slot 0: recorded behind its copy, waited for before it is filled again.
    names = [name for name, _ in calls]
    assert "cuEventSynchronize" in names
    first = names.index("cuEventSynchronize")
    assert names[:first].count("cuMemcpyHtoDAsync_v2") == SLOTS
    assert calls[first][1] == calls[names.index("cuEventRecord")][1][:1]


def test_copies_wait_for_launches_on_that_memory_alone(cuda: Opened) -> None:
    program = cuda.program()
    used, other = cuda.allocator.alloc(64), cuda.allocator.alloc(64)
    program(used, used)
    streams = cuda.context.streams
    for memory, waits in ((other, False), (used, True)):
        cuda.stand_in.calls.clear()
        cuda.allocator.copy_in(memory, memoryview(bytes(64)))
        before = cuda.stand_in.calls[: _first(cuda, "cuMemcpyHtoDAsync_v2")]
        assert ("cuStreamWaitEvent" in [name for name, _ in before]) == waits
        # Launches wait for the copy in any case.
        (waiting, _, _) = cuda.stand_in.given("cuStreamWaitEvent")[-1]
        assert waiting == streams.launches
    cuda.context.synchronize()
    cuda.stand_in.calls.clear()
    cuda.allocator.copy_out(memoryview(bytearray(64)), used)
    assert not cuda.stand_in.named("cuStreamWaitEvent")


def _first(cuda: Opened, name: str) -> int:
    return [called for called, _ in cuda.stand_in.calls].index(name)


def test_a_failed_copy_leaves_nothing_under_way(cuda: Opened) -> None:
    memory = cuda.allocator.alloc(64)
    cuda.stand_in.fails["cuEventRecord"] = 1
    with pytest.raises(DeviceError, match="record an event"):
        cuda.allocator.copy_in(memory, memoryview(bytes(64)))
    assert cuda.stand_in.calls[-1] == ("cuStreamSynchronize", (cuda.context.streams.copies,))


def test_a_freed_allocation_is_kept_and_given_again(cuda: Opened) -> None:
    memory = cuda.allocator.alloc(100)
    cuda.allocator.free(memory, 100)
    assert cuda.allocator.alloc(100) is memory
    assert len(cuda.stand_in.given("cuMemAlloc_v2")) == 1


def test_memory_in_use_is_freed_when_it_is_done(cuda: Opened) -> None:
    memory = cuda.allocator.alloc(100)
    cuda.program()(memory, memory)
    cuda.allocator.free(memory, 100)
    cuda.allocator.free_cache()
    names = cuda.stand_in.named("cuStreamSynchronize", "cuMemFree_v2")
    assert names == ["cuStreamSynchronize", "cuMemFree_v2"]


def test_memory_that_was_lent_is_freed_when_all_is_done(cuda: Opened) -> None:
    exchange, memory = CudaExchange(cuda.context), cuda.allocator.alloc(100)
    exchange.lend(memory, 0x77, None)
    cuda.allocator.free(memory, 100)
    cuda.allocator.free_cache()
    names = cuda.stand_in.named("cuCtxSynchronize", "cuEventDestroy_v2", "cuMemFree_v2")
    assert names == ["cuCtxSynchronize", "cuEventDestroy_v2", "cuMemFree_v2"]


def test_a_stream_that_was_destroyed_makes_all_be_waited_for(cuda: Opened) -> None:
    exchange, memory = CudaExchange(cuda.context), cuda.allocator.alloc(100)
    _, held = exchange.lend(memory, 0x77, None)
    cuda.stand_in.fails["cuEventRecord"] = 400
    del held
    cuda.stand_in.fails.clear()
    cuda.allocator.free(memory, 100)
    assert cuda.allocator.alloc(100) is memory
    assert cuda.stand_in.named("cuCtxSynchronize")
    cuda.stand_in.fails["cuStreamWaitEvent"] = 400
    with pytest.raises(InvalidValue, match=r"0x77 is no stream .* destroyed"):
        exchange.lend(memory, 0x77, None)


def test_no_room_says_how_much_there_is(cuda: Opened) -> None:
    kept = cuda.allocator.alloc(100)
    cuda.allocator.free(kept, 100)
    with pytest.raises(OutOfMemory, match=r"600,000,000 bytes.*12,345 of 1,073,741,824.*0 kept"):
        cuda.allocator.alloc(600_000_000)
    assert len(cuda.stand_in.given("cuMemAlloc_v2")) == 3  # what was kept was given up first
    for size in (1 << 40, 1 << 70):
        with pytest.raises(OutOfMemory, match="Stand-in has 1,073,741,824"):
            cuda.allocator.alloc(size)


def test_an_owner_is_kept_while_his_memory_is_used(cuda: Opened) -> None:
    class Owner:
        """Someone else."""

    owner, theirs = Owner(), cuda.allocator.alloc(64)
    kept = weakref.ref(owner)
    memory, held = CudaExchange(cuda.context).adopt(theirs.address, 64, owner)
    cuda.program()(memory, memory)
    del owner
    cuda.stand_in.fails["cuEventQuery"] = NOT_READY
    assert kept() is not None
    del held
    cuda.program()(theirs, theirs)
    assert kept() is not None  # the launch may run
    cuda.context.synchronize()
    assert kept() is None


def test_memory_of_others_must_be_there_and_long_enough(cuda: Opened) -> None:
    exchange, theirs = CudaExchange(cuda.context), cuda.allocator.alloc(64)
    for address, nbytes in ((theirs.address, 65), (theirs.address + 16, 64), (1, 1)):
        with pytest.raises(InvalidValue, match="cannot be used on Stand-in"):
            exchange.adopt(address, nbytes, None)
    assert exchange.adopt(theirs.address + 16, 48, None)[0].nbytes == 48
