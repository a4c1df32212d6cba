"""Opening: what is refused with what advice, and that no failure leaves anything behind."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from am.systems import Failure, SteppedOs
from gpu.core.errors import (
    AccessDenied,
    DeviceError,
    DeviceLost,
    GpuError,
    InvalidIndex,
    InvalidValue,
    OutOfMemory,
    TransportError,
    Unsupported,
)
from gpu.core.trace import Recorder, read_trace
from gpu.drivers.am.device import AmDevice, reads
from gpu.drivers.am.kfd.ioctls import Kfd
from gpu.drivers.am.kfd.port import QueueOptions, open_kfd, open_port
from gpu.drivers.am.kfd.process import session_of
from gpu.drivers.am.queue import QueueKind
from gpu.hcq.conformance.kit import download, numbers, upload
from gpu.hcq.ports import MemoryKind
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.transport.os import Os
from gpu.transport.replay import ReplayOs
from gpu.transport.traced import TracedOs
from gpu.transport.world import World

SMALL = QueueOptions(compute_ring=4096, copy_ring=4096)


@pytest.fixture
def sim() -> Iterator[KfdWorld]:
    sim = KfdWorld(seed=5)
    yield sim
    sim.close()


def _open(world: World, index: int = 0) -> AmDevice:
    """A device with all its queues; closed where one does not open."""
    device = open_kfd(world, index, options=SMALL, command_memory=8192, staging=8192)
    try:
        for kind, count in device.port.queue_counts.items():
            device.channel(kind, count - 1)
    except GpuError:
        device.close()
        raise
    return device


def _held() -> tuple[int, int]:
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("\n")
    return len(os.listdir("/proc/self/fd")), maps


def _works(device: AmDevice) -> None:
    assert (download(device, upload(device, numbers(1))) == numbers(1)).all()


@pytest.mark.parametrize(("number", "step"), [(errno.EIO, 1), (errno.ENOMEM, 6)])
def test_each_call_may_fail(number: int, step: int) -> None:
    """Whatever call fails, the error is typed, nothing is left, and the next opening succeeds."""
    failed: list[str] = []
    while True:
        sim = KfdWorld(seed=1)
        failure = Failure(step * len(failed), number)
        system = SteppedOs(sim.os, failure)
        world = World(system, sim.waiter)
        try:
            device = _open(world)
        except GpuError as error:
            assert isinstance(error, (TransportError, OutOfMemory, DeviceError)), error
        else:
            assert not failure.failed, f"{failure.failed} failed, and nothing was raised"
            system.before = lambda call: None
            device.close()
            sim.close()
            break
        failed.append(failure.failed)
        system.before = lambda call: None
        with _open(world) as device:
            _works(device)
        left = sorted(thing.split()[-1] for thing in sim.process.exit())
        assert left == ["/dev/dri/renderD128", "/dev/kfd"], f"after a failing {failed[-1]}: {left}"
        sim.close()
    assert len(failed) >= 60 // step and (step > 1 or "ioctl 0x2" in failed)


def test_failing_again_and_again_holds_nothing(sim: KfdWorld) -> None:
    """In one process: descriptors and mappings stay as they are."""
    system = SteppedOs(sim.os, lambda call: None)
    world = World(system, sim.waiter)
    for _ in range(3):
        _open(world).close()
    before = _held()
    for at in range(3, 50):
        system.before = Failure(at)
        with pytest.raises(GpuError):
            _open(world)
    system.before = lambda call: None
    _open(world).close()
    descriptors, maps = _held()
    # Mappings of Python's own memory come and go; of the 47 failures each would leave one.
    assert descriptors == before[0] and maps < before[1] + 20, f"{before} became {maps}"


def test_each_call_of_closing_may_fail() -> None:
    """An error while closing is told after all else was given back."""
    at, failure = 0, Failure(0)
    while at == 0 or failure.failed:
        sim = KfdWorld(seed=1)
        system = SteppedOs(sim.os, lambda call: None)
        device = _open(World(system, sim.waiter))
        upload(device, numbers(1))
        system.before = failure = Failure(at)
        try:
            device.close()
        except GpuError as error:
            assert failure.failed in str(error) or any(
                failure.failed in note for note in error.__notes__
            )
        left = [thing for thing in sim.process.exit() if not thing.startswith("fd ")]
        # A queue that stays keeps what it is made of.
        assert len(left) <= (1 if failure.failed != "ioctl 0x3" else 5), (failure.failed, left)
        sim.close()
        at += 1
    assert at > 20


def test_what_a_gpu_must_be(sim: KfdWorld) -> None:
    world = World(sim.os, sim.waiter)
    with pytest.raises(InvalidIndex, match=r"there are 1: DEV=AMD:0 is AMD gfx 11\.0\.0"):
        _open(world, 1)
    with pytest.raises(InvalidValue, match="'pm4' or 'aql'"):
        QueueOptions(compute="pm5")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="at least one of each"):
        QueueOptions(compute_queues=0)
    with pytest.raises(InvalidValue, match="ring of 5000 bytes"):
        open_kfd(world, options=replace(SMALL, compute_ring=5000))
    other = sim.new_process()
    session = session_of(other.os)
    session.gpus = (replace(session.gpus[0], num_sdma_engines=0),)
    with pytest.raises(Unsupported, match="no copy engine"):
        _open(World(other.os, sim.waiter))


def test_many_dies_read_aql() -> None:
    sim = KfdWorld(seed=1, chip="gfx942")
    world = World(sim.os, sim.waiter)
    with pytest.raises(Unsupported, match="a PM4 queue on 8 XCCs: open an AQL queue"):
        open_kfd(world, options=replace(SMALL, compute="pm4"))
    with _open(world) as device:
        assert reads(device.channel("compute", 1), QueueKind.AQL)
        _works(device)
    sim.close()


def test_a_recorded_opening_is_replayed(sim: KfdWorld, tmp_path: Path) -> None:
    """All pointers of all calls are told, so that a recording can stand in for the kernel."""
    recorder = Recorder(tmp_path / "open.trace")

    def use(system: Os) -> int:
        port = open_port(World(system, sim.waiter), 0, SMALL)
        for kind, count in port.queue_counts.items():
            for number in range(count):
                port.open_queue(kind, number)
        session_of(system).sleep(port.waiter.event, 1)
        ticks = port.clock()
        port.close()
        return ticks

    ticks = use(TracedOs(sim.os, recorder))
    recorder.close()
    events = read_trace(tmp_path / "open.trace")
    assert use(ReplayOs(events)) == ticks and len(events) > 100


def test_others_in_this_process(sim: KfdWorld) -> None:
    """Another user of KFD in the process, such as ROCm, has the GPU's address space."""
    rocm = Kfd(sim.os)
    fd = sim.os.open("/dev/dri/renderD128", os.O_RDWR)
    rocm.acquire_vm(fd, sim.gpus[0].gpu_id)
    with pytest.raises(DeviceError, match="use it in a process of its own"):
        _open(World(sim.os, sim.waiter))


def test_the_session_is_one(sim: KfdWorld) -> None:
    """Files are opened once a process; what a forked child inherits it replaces."""
    first = session_of(sim.os)
    _open(World(sim.os, sim.waiter)).close()
    assert session_of(sim.os) is first
    descriptors = _held()[0]
    first.pid += 1  # as if this were a child
    assert session_of(sim.os) is not first
    assert _held()[0] == descriptors - 1  # the render node was the parent's
    child = sim.process.fork()
    with _open(World(child.os, sim.waiter)) as device:
        _works(device)


def test_worlds_go_with_their_sessions() -> None:
    """The table of sessions keeps no system alive."""
    import weakref

    sim = KfdWorld(seed=1)
    _open(World(sim.os, sim.waiter)).close()
    gone = weakref.ref(session_of(sim.os))
    sim.close()
    del sim
    gc.collect()
    gc.collect()  # what the first one has taken from the table
    assert gone() is None


def test_old_kernels(sim: KfdWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.drivers.am.kfd.ioctls.OLDEST", (1, 90))
    with pytest.raises(Unsupported, match=r"interface 1.19: 1.90 or a later 1.x is needed"):
        _open(World(sim.os, sim.waiter))
    assert sim.process.exit() == []


def test_no_driver(sim: KfdWorld) -> None:
    def missing(call: str) -> None:
        if call == "open /dev/kfd":
            raise TransportError("no such file", errno.ENOENT)

    with pytest.raises(DeviceError, match=r"modprobe amdgpu.*SIM=gfx1100"):
        _open(World(SteppedOs(sim.os, missing), sim.waiter))

    def denied(call: str) -> None:
        if call.startswith("open"):
            raise AccessDenied(call[5:], "join the group render")

    with pytest.raises(AccessDenied, match="join the group render"):
        _open(World(SteppedOs(sim.os, denied), sim.waiter))


def test_small_bars(sim: KfdWorld) -> None:
    """Where the host sees a part of the memory only, code lies in system memory."""
    session = session_of(sim.os)
    session.gpus = (replace(session.gpus[0], hidden_vram=1 << 30),)
    with _open(World(sim.os, sim.waiter)) as device:
        with pytest.raises(Unsupported, match="Resizable BAR"):
            device.allocator.alloc(64, MemoryKind.VISIBLE)
        memory = device.port.memory.allocate_code(100)
        assert memory.window is not None and device.port.memory.in_use >= 4096
        device.port.memory.free(memory)
        with pytest.raises(InvalidValue, match="was freed"):
            device.port.memory.free(memory)
        _works(device)


@pytest.mark.parametrize("after", range(1, 120, 7))
def test_unplugging(after: int) -> None:
    """A GPU that goes is lost, with a typed error wherever that is seen; closing is no error."""
    sim = KfdWorld(seed=1, faults=[f"remove@{after + 1}"])
    try:
        device = _open(World(sim.os, sim.waiter))
    except (DeviceLost, TransportError):
        sim.close()
        return
    with pytest.raises(DeviceLost):
        for _ in range(200):
            _works(device)
    device.close()
    sim.close()
