"""Memory, queues and faults of an open GPU, on a kernel that keeps books."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu.core import hostmem
from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    GpuFault,
    InvalidValue,
    TransportError,
)
from gpu.core.wait import HostWaiter
from gpu.core.window import MemoryWindow
from gpu.drivers.nv.nvk.gpu import open_gpu
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.hcq.ports import MemoryKind, MemoryPort
from gpu.transport.os import Os
from gpu.transport.world import World
from unit.nv.fake_kernel import FakeKernel

INVALID_STATE = 0x40


def _world(kernel: FakeKernel) -> World:
    kernel_os: Os = kernel
    return World(kernel_os, HostWaiter())


def _open(kernel: FakeKernel, force: Mapping[str, str] | None = None) -> NvDevice:
    return open_gpu(_world(kernel), force=force)


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


def test_memory_is_mapped_where_its_kind_says(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        port: MemoryPort = gpu.memory
        device_only = gpu.alloc(100, MemoryKind.VRAM)
        visible = gpu.alloc(5000, MemoryKind.VISIBLE)
        system = gpu.alloc(9 << 20, MemoryKind.SYSTEM)
        huge = gpu.alloc(9 << 20, MemoryKind.VRAM)
        assert device_only.window is None and device_only.address >= 1 << 40
        assert huge.address % (2 << 20) == 0
        for memory in (visible, system):
            assert memory.window is not None and memory.address < 1 << 40
            memory.window.write(memory.size - 8, 8, 0x1234_5678_9ABC)
            assert memory.window.read(memory.size - 8, 8) == 0x1234_5678_9ABC
        pages = {device_only: 4096, visible: 8192, system: 9 << 20, huge: 10 << 20}
        for memory, size in pages.items():
            assert kernel.mapped[memory.address] == size
        port.free(visible)
        assert visible.address not in kernel.ranges
        with pytest.raises(InvalidValue, match="was freed before"):
            gpu.free(visible)
        with pytest.raises(InvalidValue, match="0 bytes"):
            gpu.alloc(0, MemoryKind.VRAM)
    assert kernel.held() == {}


@pytest.mark.parametrize(
    ("kind", "size", "contiguous", "wanted"),
    [
        # class, type, attr, attr2: bits of nvos.h, put together by hand
        (MemoryKind.VRAM, 4096, False, (0x40, 0, 3 << 27 | 1 << 23, 1 | 1 << 2)),
        (MemoryKind.VRAM, 8 << 20, False, (0x40, 0, 3 << 27 | 3 << 23, 1 | 1 << 2 | 1 << 20)),
        (MemoryKind.VISIBLE, 4096, True, (0x40, 0, 2 << 27 | 1 << 23, 1 | 1 << 2)),
        (MemoryKind.SYSTEM, 4096, False, (0x3E, 13, 1 << 29 | 3 << 27 | 1 << 25, 1 | 2 << 2)),
    ],
)
def test_memory_objects_have_these_attributes(
    kernel: FakeKernel,
    kind: MemoryKind,
    size: int,
    contiguous: bool,
    wanted: tuple[int, int, int, int],
) -> None:
    with _open(kernel) as gpu:
        memory = gpu.memory.allocate(size, kind, contiguous=contiguous)
        made = kernel.objects[gpu.memory.object_of(memory).handle]
        owner, type_, flags = struct.unpack_from("<III", made.params)
        attr, attr2, format_ = struct.unpack_from("<III", made.params, 24)
        assert (made.class_id, type_, attr, attr2) == wanted
        assert (owner, flags, format_) == (gpu.session.client.handle, 0xC101, 6)
        size_, align, _, limit = struct.unpack_from("<4Q", made.params, 64)
        assert (size_, limit) == (memory.size, memory.size - 1) and memory.address % align == 0


def test_freed_addresses_stay_reserved(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        memory = gpu.alloc(4096, MemoryKind.SYSTEM)
        gpu.free(memory)
        again = gpu.alloc(4096, MemoryKind.SYSTEM)
        assert again.address == memory.address
        gpu.free(again)
        flags = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_FIXED_NOREPLACE
        with pytest.raises(TransportError):
            hostmem.map_file(-1, 0, 4096, hostmem.PROT_NONE, flags, memory.address)


def test_a_failed_allocation_leaves_nothing_behind(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        before = {name: repr(what) for name, what in kernel.held().items()}
        kernel.calls.clear()
        gpu.free(gpu.alloc(4096, MemoryKind.SYSTEM))
        for index in range(kernel.calls.index("uvm 0x22")):
            kernel.calls.clear()
            kernel.fail_at, kernel.fail_status = index, INVALID_STATE
            with pytest.raises(DeviceError):
                gpu.alloc(4096, MemoryKind.SYSTEM)
            kernel.fail_at = None
            assert {name: repr(what) for name, what in kernel.held().items()} == before
    assert kernel.held() == {}


def test_host_memory_is_reached_at_its_own_address(kernel: FakeKernel) -> None:
    address = hostmem.map_anonymous(8192)
    with _open(kernel) as gpu:
        memory = gpu.memory.map_host(address, 8192)
        assert memory.address == address and kernel.mapped[address] == 8192
        gpu.memory.free(memory)
        part = gpu.memory.map_host(address + 8, 4096)  # lies on both pages
        assert part.address == address + 8 and kernel.mapped[address] == 8192
    assert kernel.held() == {}
    hostmem.unmap(address, 8192)


def test_queues_have_their_ring_pointers_and_token(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        for queue in gpu.channels:
            params = kernel.objects[queue.object.handle].params
            assert struct.unpack_from("<Q", params, 8)[0] == queue.ring_address
            assert struct.unpack_from("<I", params, 16)[0] == queue.entries == 8192
            share = struct.unpack_from("<I", params, 24)[0]
            if queue is gpu.compute_queue:
                made = kernel.objects[share]
                assert (made.class_id, made.parent) == (0x9067, queue.group.handle)
            else:  # groups of copy engines name the page tables themselves
                assert share == 0
            assert queue.ring.size == 8 * queue.entries and queue.userd.size == 512
            assert queue.token == 0x10000 | queue.object.handle & 0xFFF
            assert not any(queue.notifier.load(0, 48)), "what others left is cleared"
            queue.set_put(7)
            assert queue.put() == 7 == queue.userd.read(0x8C, 4) and queue.get() == 0
            with pytest.raises(InvalidValue, match="put index 8192"):
                queue.set_put(queue.entries)
            queue.ring_doorbell()
            assert gpu._usermode.read(0x90, 4) == queue.token


def test_a_forked_child_has_no_rings_and_no_doorbell(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        flags = _mapping_flags()
        for queue in gpu.channels:
            for window in (queue.ring, queue.doorbell, queue.notifier):
                assert isinstance(window, MemoryWindow)
                page = window.address // hostmem.page_size * hostmem.page_size
                (found,) = [flags[span] for span in flags if span[0] <= page < span[1]]
                assert "dc" in found  # "do not copy area on fork" in proc(5)


def _mapping_flags() -> dict[tuple[int, int], list[str]]:
    flags: dict[tuple[int, int], list[str]] = {}
    span = (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first == "VmFlags:":
            flags[span] = rest
        elif ":" not in first:
            start, _, end = first.partition("-")
            span = int(start, 16), int(end, 16)
    return flags


def test_the_clock_is_read_as_one_number(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        gpu._usermode.write(0x80, 4, 0x2000_0000)
        gpu._usermode.write(0x84, 4, 0x7)
        assert gpu.clock() == 0x7_2000_0000


def test_faults_are_read_from_the_notifiers(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        notifier = gpu.compute_queue.notifier
        notifier.store(0, struct.pack("<QIHH", 123, 31, 0, 0xFFFF))
        (fault,) = gpu.failed().values()
        assert (fault.number, fault.timestamp) == (31, 123)
        assert fault.error == "FIFO_ERROR_MMU_ERR_FLT"
        with pytest.raises(GpuFault, match=r"compute queue failed with .*Xid 31"):
            gpu.check()
        with pytest.raises(GpuFault, match="Xid 31"):
            gpu.compute_queue.check()


def test_mappings_hold_no_files(kernel: FakeKernel) -> None:
    """A process may open 1024, and each kernel that is loaded has memory of its own."""
    with _open(kernel) as gpu:
        before = len(kernel.fds)
        memories = [gpu.alloc(1, MemoryKind.VISIBLE) for _ in range(20)]
        memories += [gpu.alloc(1, MemoryKind.SYSTEM) for _ in range(20)]
        assert len(kernel.fds) == before == 4  # control, card, UVM's two
        for memory in memories:
            gpu.free(memory)


def test_a_fault_tells_address_and_program_counter(kernel: FakeKernel) -> None:
    kernel.gpc_tpcs = dict.fromkeys(range(8), 0x1FF)  # 144 SMs are read in two calls
    with _open(kernel) as gpu:
        details = gpu.fault_details()
        assert details is not None and not details.sms and not details.accesses
        kernel.sm_errors = {3: (0x10, 0x10_0000_0120), 140: (0x2, 0x10_0000_0200)}
        kernel.mmu_faults = [(0xDEAD_0000, 1, 0)]
        details = gpu.fault_details()
        assert details is not None
        assert [(each.sm, each.warp_error, each.pc) for each in details.sms] == [
            (3, 0x10, 0x10_0000_0120),
            (140, 0x2, 0x10_0000_0200),
        ]
        gpu.compute_queue.notifier.store(0, struct.pack("<QIHH", 1, 13, 0, 0xFFFF))
        with pytest.raises(GpuFault, match=r"Xid 13.*0xdead0000 refused.*SM 3 stopped") as caught:
            gpu.check()
        assert caught.value.address == 0xDEAD_0000


def test_errors_of_sms_are_told_where_addresses_are_not(kernel: FakeKernel) -> None:
    with _open(kernel) as gpu:
        kernel.sm_errors = {3: (0x10, 0x10_0000_0120)}
        kernel.mmu_faults = [(0xDEAD_0000, 1, 0)]
        kernel.unknown_commands.add(0x83DE0328)  # as in gVisor
        gpu.compute_queue.notifier.store(0, struct.pack("<QIHH", 1, 31, 0, 0xFFFF))
        wanted = r"Xid 31.*SM 3 stopped.*could not be read: .*NV_ERR_NOT_SUPPORTED"
        with pytest.raises(GpuFault, match=wanted) as caught:
            gpu.check()
        assert caught.value.address is None


@pytest.mark.parametrize("refused", [True, False])
def test_a_fault_without_details_is_still_told(kernel: FakeKernel, refused: bool) -> None:
    if refused:
        kernel.refuse[0x83DE] = 0x1B
    with _open(kernel) as gpu:
        assert ("debugger: none was taken" in str(gpu.report)) is refused
        assert (gpu.fault_details() is None) is refused
        gpu.compute_queue.notifier.store(0, struct.pack("<QIHH", 1, 31, 0, 0xFFFF))
        kernel.calls.clear()
        kernel.fail_at, kernel.fail_status = 0, INVALID_STATE
        wanted = "Xid 31.*open" if refused else "Xid 31.*could not be read.*NV_ERR_INVALID_STATE"
        with pytest.raises(GpuFault, match=wanted):
            gpu.check()
        kernel.fail_at = None


def test_a_forked_child_touches_nothing_of_its_parent(kernel: FakeKernel) -> None:
    gpu = _open(kernel)
    child = os.fork()
    if child == 0:
        calls, failures = len(kernel.calls), 0
        for use in (gpu.clock, gpu.check, lambda: gpu.alloc(1, MemoryKind.VRAM)):
            try:
                use()
            except DeviceLost:
                failures += 1
        gpu.close()
        os._exit(0 if failures == 3 and len(kernel.calls) == calls else 1)
    assert os.waitpid(child, 0)[1] == 0
    gpu.close()
    assert kernel.held() == {}
