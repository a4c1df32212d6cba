"""What a fault is told of, and going on after faults and hangs in the same process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from am.kfd_target import KfdTarget, open_device
from gpu.core import hostmem
from gpu.core.errors import DeviceHang, DeviceLost, GpuFault, OutOfMemory, Unsupported
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.port import KfdPort
from gpu.drivers.device import Rung
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, download, numbers, system, upload
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.ports import MemoryKind
from gpu.hcq.symbol import Symbol

TARGETS = [
    ("gfx1100", "pm4"),
    ("gfx1100", "aql"),
    ("gfx1201", "pm4"),
    ("gfx1030", "pm4"),
]
HOLE = hostmem.reserve(1 << 16)  # addresses that no GPU has


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[KfdTarget]:
    chip, compute = getattr(request, "param", ("gfx1100", "pm4"))
    made = KfdTarget(7, chip, compute, "oldest")
    yield made
    assert made.complaints() == []
    made.close()


class At(HCQBuffer):
    """An address as a buffer."""

    def __init__(self, device: AmDevice, address: int):
        view = device.allocator.alloc(64)
        super().__init__(view.allocation, address - view.allocation.memory.address, 64)


def fill(device: AmDevice, target: KfdTarget, out: HCQBuffer, value: int) -> None:
    target.program(device, "fill")(out, vals=(value, WORDS))
    assert (download(device, out) == value).all()


def fail(device: AmDevice, target: KfdTarget) -> GpuFault:
    """Lets a kernel write behind its buffer."""
    target.program(device, "fill")(At(device, HOLE), vals=(7, 4))
    with pytest.raises(GpuFault) as error:
        device.synchronize()
    return error.value


several = pytest.mark.parametrize("target", TARGETS, indirect=True)


@several
def test_a_fault_names_kernel_buffer_and_argument(target: KfdTarget) -> None:
    with open_device(target) as device:
        fill, add = target.program(device, "fill"), target.program(device, "add")
        out, a = upload(device, numbers(0)), upload(device, numbers(1))
        for _ in range(40):  # several laps of the ring
            add(out, a, a, vals=(WORDS,))
        device.synchronize()
        fill(At(device, HOLE), vals=(7, 4))
        add(out, a, a, vals=(WORDS,))
        with pytest.raises(GpuFault) as error:
            device.synchronize()
        told = str(error.value)
        assert error.value.address == HOLE and f"page {HOLE:#x}, which is not mapped" in told
        assert "bytes behind" in told
        assert f"oldest first: fill (argument 0 is {HOLE:#x})" in told
        assert "recover() makes the device usable" in told
        with pytest.raises(DeviceLost, match="recover"):
            device.synchronize()


@several
def test_a_fault_in_a_graph(target: KfdTarget) -> None:
    """What is called by the ring is read too; launches that are done are not under way."""
    with open_device(target) as device:
        fill, add = target.program(device, "fill"), target.program(device, "add")
        out, a = upload(device, numbers(0)), upload(device, numbers(1))
        place = Symbol("place")
        args = fill.arguments(place, vals=(1, 4))
        bound = device.queue().exec(fill, args, (1, 1, 1), (1, 1, 1)).bind(device)
        add(out, a, a, vals=(WORDS,))
        device.wait(bound.submit({place: out.address}))
        bound.submit({place: HOLE})
        with pytest.raises(GpuFault, match=r"first: fill \(argument 0 is 0x\w+\); rec"):
            device.synchronize()
        bound.close()


def test_code_that_was_freed(target: KfdTarget) -> None:
    with open_device(target) as device:
        memory = device.exclusively(device.allocate, 1 << 16, MemoryKind.VRAM)
        device.exclusively(device.release, memory)
        target.program(device, "fill")(At(device, memory.address), vals=(1, 4))
        with pytest.raises(GpuFault, match=r"0x0 into .* at .*, which was freed; under way"):
            device.synchronize()


@several
def test_going_on_after_faults(target: KfdTarget) -> None:
    """Memory, programs, graphs and signals are as before; nothing is left behind."""
    with open_device(target) as device:
        add = target.program(device, "add")
        a, b, out = (upload(device, numbers(n)) for n in range(3))
        shared, signal = system(device, numbers(9)), device.signal(5)
        graph = HCQGraph(device, [GraphLaunch(add, (out, a, b), (WORDS,))])
        graph()
        device.synchronize()
        assert device.recover() is None
        descriptors: list[int] = []
        for round_ in range(4):
            fail(device, target)
            assert device.recover() is Rung.ADDRESS_SPACE
            descriptors.append(len(os.listdir("/proc/self/fd")))
            add(a, a, b, vals=(WORDS,))
            graph()
            a_now = numbers(0) + (round_ + 1) * numbers(1)
            assert (download(device, a) == a_now).all()
            assert (download(device, out) == a_now + numbers(1)).all()
            assert (download(device, shared) == numbers(9)).all() and signal.value == 5
            for kind in ("compute", "copy"):
                for index in range(2):
                    queue = device.queue(kind, index).copy(out, b, b.size)
                    device.wait(queue.signal(signal, 5).submit(device))
        assert len(set(descriptors)) == 1
        assert device.recover() is None
        graph.close()


def test_waking_after_a_fault(target: KfdTarget) -> None:
    """What was encoded before wakes the host still: the event has the number it had."""
    target.kernels.steps = 400
    with open_device(target, 0) as other, open_device(target, 0) as device:
        event = device.port.waiter.event.number
        program, out = target.program(device, "fill"), upload(device, numbers(0))
        program(out, vals=(3, WORDS))
        device.synchronize()
        fail(device, target)
        device.recover()
        assert device.port.waiter.event.number == event
        outcomes: list[bool] = []
        session = device.port.link.session
        sleep = session.sleep
        session.sleep = lambda *args: outcomes.append(sleep(*args)) or outcomes[-1]  # type: ignore
        program(out, vals=(4, WORDS))
        device.synchronize()
        assert outcomes[-1]
        session.sleep = sleep  # type: ignore[method-assign]
        with pytest.raises(GpuFault):  # the GPU was lost to all devices of the process
            other.synchronize()
            other.queue().submit(other)
            other.synchronize()
        assert other.recover() is Rung.ADDRESS_SPACE
        fill(other, target, upload(other, numbers(0)), 6)
        fill(device, target, out, 8)


@several
def test_an_endless_kernel(target: KfdTarget) -> None:
    """It is a hang in bounded time; the queue is taken off, what waits for it too."""
    with open_device(target) as device:
        spin, add = target.program(device, "spin"), target.program(device, "add")
        word, out, a = (upload(device, numbers(n)) for n in range(3))
        device.allocator.copy_in(word, np.full(WORDS, 1, np.int32).tobytes())
        device.synchronize()
        spin(word, vals=(1, 4))
        copied = device.queue("copy").copy(out, a, 64).submit(device)
        add(out, a, a, vals=(WORDS,))
        device.allocator.copy(out, a)  # on another queue, after it
        device.wait(copied)
        with pytest.raises(DeviceHang):
            device.synchronize(timeout=0.2)
        assert device.recover() is Rung.QUEUES
        assert target.sim.debug.faults == []
        fill(device, target, out, 3)
        assert (download(device, a) == numbers(2)).all()
        assert device.recover() is None


def test_a_wait_for_a_signal_that_never_comes(target: KfdTarget) -> None:
    with open_device(target) as device:
        never, out = device.signal(3), upload(device, numbers(0))
        device.queue().wait(never, 5).copy(out, out, 4).signal(never, 6).submit(device)
        device.queue("copy").wait(never, 7).submit(device)
        with pytest.raises(DeviceHang):
            device.synchronize()
        assert device.recover() is Rung.QUEUES and never.value == 3
        assert target.sim.debug.faults == []
        fill(device, target, out, 9)


def test_a_bad_packet() -> None:
    target = KfdTarget(7)
    device = open_device(target)
    channel = device.channel("compute")
    words = np.array([0xC000FF00, 0], np.uint32)  # no such opcode
    with device.lock:
        value = channel.next_value()
        channel.publish(channel.reserve(8, value), words.ctypes.data, 8, value)
    with pytest.raises(DeviceHang):
        device.synchronize()
    assert device.recover() is Rung.QUEUES
    fill(device, target, upload(device, numbers(0)), 4)
    device.close()
    assert "opcode 0xff" in target.complaints()[0]
    target.sim.close()


def test_after_a_reset_memory_is_gone(target: KfdTarget) -> None:
    """A poll cannot be satisfied: taking it off resets the GPU, which is opened anew."""
    device = open_device(target, 0)
    word = system(device, np.zeros(1, np.int32))
    device.queue().poll(word.address, 1).submit(device)
    with pytest.raises(DeviceHang):
        device.synchronize()
    with pytest.raises(DeviceLost, match=r"memory lost. Close it, and open it anew \(at"):
        device.recover()
    with pytest.raises(DeviceLost, match="memory lost"):
        device.recover()
    device.close()
    with open_device(target, 0) as fresh:
        fill(fresh, target, upload(fresh, numbers(0)), 2)


def test_old_kernels_keep_the_gpu() -> None:
    """Linux 6.12 has one context for a process; a hang is no loss there either."""
    target = KfdTarget(1, interface=17)
    device = open_device(target, 0)
    spin, word = target.program(device, "spin"), upload(device, np.ones(WORDS, np.int32))
    spin(word, vals=(1, 4))
    with pytest.raises(DeviceHang):
        device.synchronize(timeout=0.2)
    assert device.recover() is Rung.QUEUES
    told = str(fail(device, target))
    assert "first: fill (argument" in told and "open it in a new one" in told
    for _ in range(2):
        with pytest.raises(DeviceLost, match="new processes only"):
            device.recover()
    device.close()
    with pytest.raises(DeviceLost, match="new processes only"):
        open_device(target, 0)
    assert target.complaints() == []
    target.close()


def test_what_cannot_go_to_another_context(target: KfdTarget) -> None:
    """Arrays of the process and peers stand in the way, until they are given back."""
    with open_device(target, 0) as device, open_device(target, 1) as peer:
        kept, shared, theirs = (upload(each, numbers(3)) for each in (device, device, peer))
        peer.synchronize()
        array = np.zeros(WORDS, np.int32)
        mapped = device.allocator.map_host(array)
        shared.map_to(peer)
        theirs.map_to(device)
        fail(device, target)
        with pytest.raises(DeviceLost, match="1 arrays of this process are mapped"):
            device.recover()
        mapped.free()
        with pytest.raises(DeviceLost, match=f"at {shared.address:#x} is mapped between this GPU"):
            device.recover()
        shared.free()
        with pytest.raises(DeviceLost, match=f"at {theirs.address:#x} is mapped between this GPU"):
            device.recover()
        theirs.free()
        upload(peer, numbers(1))  # whose submission takes back what was freed
        peer.synchronize()
        assert device.recover() is Rung.ADDRESS_SPACE
        assert (download(device, kept) == numbers(3)).all()
        with pytest.raises(Unsupported, match="one of them recovered from a fault"):
            kept.map_to(peer)


@pytest.mark.parametrize("failing", ["open_queue", "_move"])
def test_failures_of_recovery(
    target: KfdTarget, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without queues the device is lost; where memory stayed, one may try again."""
    with open_device(target, 0) as device:
        kept = upload(device, numbers(3))
        fail(device, target)

        def refuse(self: KfdPort, *_: object) -> None:
            raise OutOfMemory("no more queues of type 0")

        with monkeypatch.context() as patch:
            patch.setattr(KfdPort, failing, refuse)
            with pytest.raises(DeviceLost, match="no more queues"):
                device.recover()
        if failing == "open_queue":
            with pytest.raises(DeviceLost, match="do not help"):
                device.recover()
        else:
            assert device.recover() is Rung.ADDRESS_SPACE
            assert (download(device, kept) == numbers(3)).all()


def test_a_closed_device_is_not_recovered(target: KfdTarget) -> None:
    device = open_device(target)
    device.close()
    with pytest.raises(DeviceLost, match="closed"):
        device.recover()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_peer_does_not_wait_for_who_failed(target: KfdTarget, failing: int) -> None:
    """Of two that wait for each other on the device, the other one goes on, with its memory."""
    with open_device(target, 0) as owner, open_device(target, 1) as peer:
        devices = owner, peer
        there, here = upload(owner, numbers(1)), upload(peer, numbers(2))
        for device, buffer, other in ((owner, there, peer), (peer, here, owner)):
            buffer.map_to(other)
            device.synchronize()
        hurt, well = devices[failing], devices[1 - failing]
        target.program(hurt, "fill")(At(hurt, HOLE), vals=(7, 4))
        peer.allocator.copy(here, there)  # behind the fault of either
        for device, buffer in ((owner, there), (peer, here)):
            target.program(device, "fill")(buffer, vals=(5, WORDS))
        with pytest.raises(GpuFault):
            hurt.synchronize()
        assert (download(well, (there, here)[1 - failing]) == 5).all()
        for buffer in (there, here):
            buffer.free()
        upload(well, numbers(1))  # whose submission takes back what was freed
        well.synchronize()
        assert hurt.recover() is Rung.ADDRESS_SPACE
        fill(hurt, target, upload(hurt, numbers(3)), 6)
