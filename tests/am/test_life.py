"""Interrupts in waits, threads, memory of many kinds, and the model's own mischief."""

from __future__ import annotations

import errno
import threading

import numpy as np
import pytest

from am.kernels import LAYOUTS, PythonKernels, code_object
from am.kfd_target import KfdTarget, open_device
from am.systems import WAIT_EVENTS, Failure, SteppedOs
from gpu.core.errors import (
    DeviceHang,
    FormatError,
    HwTimeout,
    InvalidIndex,
    InvalidValue,
    OutOfMemory,
    Unsupported,
)
from gpu.drivers.am.kfd import drm as render
from gpu.drivers.am.kfd.memory import PAGE, Use
from gpu.drivers.am.kfd.port import ComputeKind, KfdWaiter, QueueOptions, open_kfd
from gpu.drivers.am.kfd.process import session_of
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.hostdevice import HostMemory
from gpu.hcq.ports import MemoryKind
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.transport.world import World


def test_interrupted_sleep() -> None:
    """Ctrl-C while the kernel sleeps ends the wait and nothing else."""
    sim = KfdWorld(seed=1, executor=PythonKernels(steps=500))
    struck: list[str] = []

    def strike(call: str) -> None:
        if call == f"ioctl {WAIT_EVENTS:#x}" and armed and len(struck) < 3:
            struck.append(call)
            raise KeyboardInterrupt

    armed = False
    world = World(SteppedOs(sim.os, strike), sim.waiter)
    with open_kfd(world) as device:
        fill = device.load(
            code_object("fill", device.target.version), "fill", LAYOUTS["fill"], written=(0,)
        )
        out = upload(device, numbers(0))
        device.synchronize()
        armed = True
        for number in range(1, 4):
            fill(out, vals=(number, WORDS))
            with pytest.raises(KeyboardInterrupt):
                device.synchronize()
        assert (download(device, out) == 3).all()
    assert len(struck) == 3 and sim.debug.violations == []
    sim.close()


def test_two_threads() -> None:
    """Two threads allocate, copy, launch and wait on one device."""
    target = KfdTarget(3)
    with open_device(target, small=True) as device:
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for number in range(25):
                    data = np.random.default_rng(100 * seed + number).bytes(3000 + number)
                    buffer = device.allocator.alloc(len(data))
                    device.allocator.copy_in(buffer, data)
                    assert device.allocator.copy_out(buffer) == data
                    buffer.free()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
    assert target.complaints() == []
    target.close()


@pytest.mark.parametrize("seed", range(2))
def test_processes_share_a_gpu(seed: int) -> None:
    """Each has addresses, queues and a session of its own; one may die amid its work."""
    sim = KfdWorld(seed=seed, executor=PythonKernels(20))
    processes = [sim.process, sim.new_process(), sim.new_process()]
    devices = [open_kfd(World(process.os, sim.waiter)) for process in processes]
    code = code_object("add", devices[0].target.version)
    adds = [device.load(code, "add", LAYOUTS["add"], written=(0,)) for device in devices]
    sums = [upload(device, numbers(number)) for number, device in enumerate(devices)]
    for _ in range(5):
        for add, total in zip(adds, sums, strict=True):
            add(total, total, total, vals=(WORDS,))
    assert any("queue" in left for left in processes[2].exit())
    for number in range(2):
        assert (download(devices[number], sums[number]) == 32 * numbers(number)).all()
        devices[number].close()
    left = [thing for process in processes[:2] for thing in process.exit()]
    assert all(thing.startswith("fd ") for thing in left)
    assert sim.debug.violations == [] and sim.gpus[0].vram_used == 0
    sim.close()


@pytest.mark.parametrize("seed", range(3))
def test_lost_interrupts_cost_time_only(seed: int) -> None:
    sim = KfdWorld(seed=seed, faults=["lost-interrupt@1+"])
    with open_kfd(World(sim.os, sim.waiter)) as device:
        for number in range(5):
            assert (download(device, upload(device, numbers(number))) == numbers(number)).all()
    sim.close()


def test_lost_completions_are_hangs() -> None:
    """A timeline that is never written is a hang, and closing tells it too."""
    sim = KfdWorld(seed=1, faults=["stuck-fence@1+"])
    device = open_kfd(World(sim.os, sim.waiter))
    point = device.queue().submit(device)
    with pytest.raises(DeviceHang, match="compute queue 0"):
        device.wait(point)
    with pytest.raises(DeviceHang):
        device.close()
    assert [left for left in sim.process.exit() if not left.startswith("fd ")] == []
    sim.close()


def test_late_doorbells() -> None:
    sim = KfdWorld(seed=1, faults=["late-doorbell:3000000@1+"])
    with open_kfd(World(sim.os, sim.waiter)) as device:
        assert (download(device, upload(device, numbers(1))) == numbers(1)).all()
    sim.close()


class _Stuck:
    """A model's waiter that has nothing to run."""

    spin_ns = 0

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def idle(self, timeout_ns: int) -> None:
        raise HwTimeout("model", None, "anything to do", 0)


def test_a_stuck_model_is_told_once_it_was_stuck_before() -> None:
    """In between another thread may have run what this one waits for."""
    sim = KfdWorld(seed=1)
    with open_kfd(World(sim.os, sim.waiter)) as device:
        inner = _Stuck()
        waiter = KfdWaiter(session_of(sim.os), device.port.waiter.event, inner)
        waiter.idle(1)
        inner.now += 1  # something ran
        waiter.idle(1)
        with pytest.raises(HwTimeout):
            waiter.idle(1)
        waiter.idle(1)
        waiter.begin()  # another wait
        waiter.idle(1)
        with pytest.raises(HwTimeout):
            waiter.idle(1)
    sim.close()


def test_what_memory_refuses() -> None:
    target = KfdTarget(1)
    with open_device(target, 0) as device, open_device(target, 1) as other:
        memory = device.port.memory
        with pytest.raises(InvalidValue, match="at least 1"):
            memory.allocate(0, MemoryKind.VRAM)
        with pytest.raises(OutOfMemory, match=r"0x\w+ bytes of the GPU's own memory are left"):
            memory.allocate(1 << 40, MemoryKind.VRAM)
        mine = memory.allocate(100, MemoryKind.VRAM)
        with pytest.raises(InvalidValue, match="not of this device"):
            other.port.memory.free(mine)
        with pytest.raises(InvalidValue, match="is not mapped into"):
            other.port.memory.unmap_peer(mine)
        with pytest.raises(Unsupported, match="in the same KFD only"):
            memory.map_peer(mine, HostMemory(1 << 20))
        foreign = KfdTarget(2)
        with open_device(foreign) as stranger, pytest.raises(Unsupported, match="systems"):
            memory.map_peer(mine, stranger.port.memory)
        foreign.close()
        with pytest.raises(InvalidIndex, match="no kernel 'x'; there are add"):
            device.load(code_object("add", device.target.version), "x")
    target.close()


def test_peers_without_a_link() -> None:
    """Where the kernel refuses, the message says what else can be done."""
    sim = KfdWorld(seed=1, chip=("gfx1100", "gfx1100"))
    failure = Failure(1 << 30, errno.EINVAL)
    world = World(SteppedOs(sim.os, failure), sim.waiter)
    with open_kfd(world, 0) as owner, open_kfd(world, 1) as peer:
        buffer = upload(owner, numbers(1))
        failure.left = 0
        with pytest.raises(Unsupported, match="Copy through system memory"):
            buffer.map_to(peer)
    sim.close()


def test_large_buffers_are_aligned() -> None:
    target = KfdTarget(1)
    with open_device(target) as device:
        memory = device.port.memory
        for size in (1, PAGE + 1, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20):
            bo = memory.hold(size, Use.DATA)
            assert bo.size % PAGE == 0 <= bo.size - size < PAGE
            assert bo.address % (PAGE if bo.size < 2 << 20 else 2 << 20) == 0
        top = memory.describe(max(memory._live) + (64 << 20))
        assert "bytes behind" in top and memory.describe(0) == "before all buffers"
    target.close()


def test_addresses_outside_of_the_aperture() -> None:
    target = KfdTarget(1)
    with open_device(target) as device:
        memory = device.port.memory
        memory._aperture = (0, 0xFFFF)
        with pytest.raises(OutOfMemory, match="which has 0x0 to 0xffff"):
            memory.allocate(1, MemoryKind.SYSTEM)
    assert target.complaints() == []
    target.close()


@pytest.mark.parametrize("compute", ["pm4", "aql"])
def test_pointers_go_on_for_ever(compute: ComputeKind) -> None:
    """Queues run all that was published, also after their rings went round."""
    sim = KfdWorld(seed=1)
    options = QueueOptions(compute=compute, compute_ring=4096, copy_ring=4096)
    with open_kfd(World(sim.os, sim.waiter), options=options) as device:
        for kind in ("compute", "copy"):
            for _ in range(300):
                device.wait(device.queue(kind).submit(device))
    assert sim.debug.violations == []
    sim.close()


@pytest.mark.parametrize("compute", ["pm4", "aql"])
def test_filler_is_read_before_its_place_is_used_again(compute: ComputeKind) -> None:
    """What fills up a ring comes behind the submission whose value frees it."""
    for seed in range(3):
        sim = KfdWorld(seed=seed, executor=PythonKernels(1))
        options = QueueOptions(compute=compute, compute_ring=4096)
        with open_kfd(World(sim.os, sim.waiter), options=options) as device:
            code = code_object("fill", device.target.version)
            fill = device.load(code, "fill", LAYOUTS["fill"], written=(0,))
            out = upload(device, numbers(0))
            for number in range(300):
                fill(out, vals=(number, WORDS))
        assert sim.debug.violations == []
        sim.close()


def test_clock_rate_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = KfdWorld(seed=1)
    info = render.drm.drm_amdgpu_info_device()
    monkeypatch.setattr(render, "device_info", lambda os, fd: info)
    with pytest.raises(FormatError, match="0 kHz"):
        open_kfd(World(sim.os, sim.waiter))
    assert all(left.startswith("fd ") for left in sim.process.exit())
    sim.close()
