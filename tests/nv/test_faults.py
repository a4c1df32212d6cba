"""What a fault is told of, and going on after it in the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.core.errors import DeviceLost, GpuFault, RmError
from gpu.drivers.device import Rung
from gpu.drivers.nv.channel.all import GpuChannels, GpuQueues
from gpu.drivers.nv.device import RmDevice
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import Symbol
from nv.kernels import LAYOUTS, WRITTEN, cubin
from nv.rm_target import RmTarget

CHIPS = ["gh100", "ga102", "ad102", "gb202"]
BEHIND = 1 << 20  # bytes behind a buffer, where nothing is


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[RmTarget]:
    made = RmTarget(7, getattr(request, "param", "gh100"), "oldest")
    yield made
    assert made.complaints() == []
    made.close()


def load(device: RmDevice, name: str, stack: int = 0) -> HCQProgram:
    code = cubin(device.target.sm, name, stack=stack)
    return device.load(code, name, LAYOUTS[name], written=WRITTEN)


def fail(device: RmDevice, fill: HCQProgram) -> GpuFault:
    """Lets a kernel write behind its buffer."""
    buffer = upload(device, numbers(1))
    fill(buffer, vals=(7, BEHIND))
    with pytest.raises(GpuFault) as error:
        device.synchronize()
    return error.value


@pytest.mark.parametrize("target", CHIPS, indirect=True)
def test_a_fault_names_kernel_buffer_and_argument(target: RmTarget) -> None:
    with RmDevice.open(target.world) as device:
        fill, add = load(device, "fill"), load(device, "add")
        out, a = upload(device, numbers(0)), upload(device, numbers(1))
        add(out, a, a, vals=(WORDS,))
        device.synchronize()
        start = out.allocation.memory.address
        fill(out, vals=(7, BEHIND))
        add(out, a, a, vals=(WORDS,))
        with pytest.raises(GpuFault) as error:
            device.synchronize()
        told = str(error.value)
        assert error.value.address == start + (1 << 12)
        assert "Xid 31" in told and f"access to {start + (1 << 12):#x} refused" in told
        assert f"is 0x0 bytes behind buffer (0x1000 bytes) at {start:#x}" in told
        assert f"oldest first: fill (argument 0 is {start:#x}), add (argument 0 is" in told
        with pytest.raises(DeviceLost, match="recover"):
            device.synchronize()


def test_a_fault_in_freed_memory_says_so(target: RmTarget) -> None:
    with RmDevice.open(target.world) as device:
        fill, out = load(device, "fill"), Symbol("out")
        memory = device.exclusively(device.allocate, 1 << 16, MemoryKind.VRAM)
        device.exclusively(device.release, memory)
        args = fill.arguments(out, vals=(1, 4))
        bound = device.queue().exec(fill, args, (1, 1, 1), (1, 1, 1)).bind(device)
        bound.submit({out: memory.address + 256})
        with pytest.raises(GpuFault, match=r"0x0 into buffer .* at .*, which was freed") as error:
            device.synchronize()
        assert f"fill (argument 0 is {memory.address + 256:#x})" in str(error.value)
        bound.close()


@pytest.mark.parametrize("target", CHIPS, indirect=True)
def test_a_fault_within_a_chain_of_launches(target: RmTarget) -> None:
    """Only the first descriptor is sent; the others are found through it."""
    with RmDevice.open(target.world) as device:
        fill, add = load(device, "fill"), load(device, "add")
        out, a = upload(device, numbers(0)), upload(device, numbers(1))
        device.synchronize()
        start = out.allocation.memory.address
        steps = [GraphLaunch(add, (a, a, a), (WORDS,)), GraphLaunch(fill, (out,), (7, BEHIND))]
        graph = HCQGraph(device, steps)
        graph()
        with pytest.raises(GpuFault, match=rf"fill \(argument 0 is {start:#x}\)"):
            device.synchronize()
        device.recover()
        graph.close()


@pytest.mark.parametrize("target", CHIPS, indirect=True)
@pytest.mark.parametrize("rung", [rung for rung in Rung if rung is not Rung.PROCESSOR])  # AMD's
def test_going_on_after_faults(
    target: RmTarget, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory, programs, graphs, signals and local memory are as before."""
    with RmDevice.open(target.world) as device:
        fill, add = load(device, "fill", stack=100), load(device, "add")
        a, b, out = (upload(device, numbers(n)) for n in range(3))
        graph = HCQGraph(device, [GraphLaunch(add, (out, a, b), (WORDS,))])
        graph()
        device.synchronize()
        done = device.signal()
        assert device.recover() is None
        if rung is not Rung.QUEUES:
            refuse(Rung.QUEUES, monkeypatch)
        for round_ in range(2):
            fault = fail(device, fill)
            assert fault.address is not None
            assert device.recover() is rung
            add(a, a, b, vals=(WORDS,))
            graph()
            a_now = numbers(0) + (round_ + 1) * numbers(1)
            assert (download(device, a) == a_now).all()
            assert (download(device, out) == a_now + numbers(1)).all()
            fill(b, vals=(5, WORDS))
            assert (download(device, b) == 5).all()
            device.allocator.copy_in(b, numbers(1).tobytes())
            done.set(0)
            for index in range(2):
                device.queue("compute", index).signal(done, index + 1).submit(device)
                device.wait_signal(done, index + 1)
        graph.close()


def refuse(refused: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a rung fail where it has given the queues back."""
    renew = GpuChannels.renew

    def failing(self: GpuChannels, rung: Rung) -> GpuQueues:
        if rung is refused:
            self.close()
            raise RmError("alloc", 0x1A, "NV_ERR_INSUFFICIENT_RESOURCES")
        return renew(self, rung)

    monkeypatch.setattr(GpuChannels, "renew", failing)


def test_where_nothing_helps_the_device_is_opened_anew(
    target: RmTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = RmDevice.open(target.world)
    fail(device, load(device, "fill"))
    with monkeypatch.context() as patch:
        for rung in Rung:
            refuse(rung, patch)
        with pytest.raises(DeviceLost, match=r"queues and page tables: .*INSUFFICIENT"):
            device.recover()
        with pytest.raises(DeviceLost, match="do not help"):
            device.recover()
        device.close()
    with RmDevice.open(target.world) as device:
        out = upload(device, numbers(0))
        load(device, "fill")(out, vals=(3, WORDS))
        assert (download(device, out) == 3).all()


def test_a_fault_of_the_second_queue(target: RmTarget) -> None:
    with RmDevice.open(target.world) as device:
        fill, out = load(device, "fill"), upload(device, numbers(0))
        args = fill.arguments(out, vals=(1, BEHIND))
        device.queue("compute", 1).exec(fill, args, (1, 1, 1), (1, 1, 1)).submit(device)
        with pytest.raises(GpuFault, match=r"compute queue 1 failed .*oldest first: fill;"):
            device.synchronize()
        assert device.recover() is Rung.QUEUES
        fill(out, vals=(3, WORDS))
        assert (download(device, out) == 3).all()


def test_a_closed_device_is_not_recovered(target: RmTarget) -> None:
    device = RmDevice.open(target.world)
    device.close()
    with pytest.raises(DeviceLost, match="closed"):
        device.recover()
