"""What the conformance suite does not ask of this driver's devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from am.systems import Failure, SteppedOs
from gpu.core.errors import (
    DeviceHang,
    GpuError,
    GpuFault,
    HwTimeout,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.wait import PatientWaiter
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.create import QueueMaker
from gpu.drivers.nv.channel.ground import ChannelMemory
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.port import MAX_RING, QueueOptions
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.conformance.kit import WORDS, download, numbers, peek, system, upload
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.sim.nv.chip.compute import ComputeEngine
from gpu.sim.nv.chip.copyunits import SYSMEM
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from nv.kernels import LAYOUTS, PythonKernels, cubin
from nv.rm_target import COPYING, RmTarget

CHIPS = ["gh100", "ga102", "ad102", "gb202"]


_HALF = 64 * 8 // 2
POLLS: list[tuple[Literal["==", ">="], int, int, int]] = [("==", 5, 4, 5), (">=", 8, 7, 9)]


def opened(target: RmTarget) -> RmDevice:
    return RmDevice.open(target.world)


# Which engines copy to the device, from it, and within it: what RM's tables give these chips.
ENGINES = {"gh100": (4, 6, 4), "ga102": (2, 3, 2), "ad102": (2, 3, 2), "gb202": (4, 5, 4)}


@pytest.mark.parametrize("chip", CHIPS)
def test_copies_are_on_the_engines_that_are_good_at_them(chip: str) -> None:
    target = RmTarget(4, chip)
    with opened(target) as device:
        source, other = device.allocator.alloc(4096), device.allocator.alloc(4096)
        groups = target.sim.gpus[0].groups
        used = []
        for copy in (
            lambda: device.allocator.copy_in(source, bytes(4096)),
            lambda: device.allocator.copy_out(source),
            lambda: device.allocator.copy(other, source),
        ):
            rings = {channel: channel.get for group in groups for channel in group.channels}
            copy()
            device.synchronize()
            moved = [channel for channel, get in rings.items() if channel.get != get]
            used += [channel.group.engine - 9 for channel in moved]
        assert tuple(used) == ENGINES[chip]
    assert target.complaints() == []
    target.close()


def test_an_engine_that_reaches_no_host_memory_is_not_taken() -> None:
    target = RmTarget(4, "ga102")
    gpu = target.sim.gpus[0]
    poor = [replace(each, caps=each.caps & ~SYSMEM) for each in gpu.chip.copy_engines[2:4]]
    units = (*gpu.chip.copy_engines[:2], *poor, gpu.chip.copy_engines[4])
    gpu.chip = replace(gpu.chip, copy_engines=units)
    with opened(target) as device:
        assert device.port.queue_counts["copy"] == 1
        buffer = upload(device, numbers(1))
        assert (download(device, buffer) == numbers(1)).all()
    assert target.complaints() == []
    target.close()


@pytest.mark.parametrize("kind", ["compute", "copy"])
def test_a_full_ring_is_not_taken_for_empty(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = QueueMaker.channel_memory

    def small(self: QueueMaker, name: str, undo: Undo) -> ChannelMemory:
        return make(self, name, undo, 64)

    monkeypatch.setattr(QueueMaker, "channel_memory", small)
    target = RmTarget(1)
    with RmDevice.open(target.world, options=QueueOptions(ring=_HALF)) as device:
        done, channel = device.signal(), device.channel(kind)
        for _ in range(7):  # by and by the ring begins anywhere
            for _ in range(150):  # the model does not look before it is waited for
                last = device.submit(channel, [])
            device.wait(device.queue(kind).signal(done, last.value).submit(device))
            assert done.value == last.value
    assert target.complaints() == []
    target.close()


def test_polls_of_whole_words() -> None:
    target = RmTarget(2)
    with opened(target) as device:
        word, out = system(device, np.zeros(1, np.int32)), system(device, np.zeros(3, np.int32))
        data = np.array([1, -2, 3], np.int32)
        for op, wanted, low, met in POLLS:
            device.allocator.copy_in(out, bytes(12))
            queue = device.queue().poll(word.address, wanted, op=op)
            point = queue.write(out.address, data.tobytes()).submit(device)
            device.queue("compute", 1).write(word.address, bytes([low, 0, 0, 0])).submit(device)
            with pytest.raises(DeviceHang):
                device.wait(point, 0.01)
            assert not peek(out).any()
            device.queue("copy").write(word.address, bytes([met, 0, 0, 0])).submit(device)
            device.wait(point)
            assert peek(out).tolist() == data.tolist()
    assert target.complaints() == []
    target.close()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("index", [0, 1])
def test_launches_and_copies_of_one_submission(chip: str, index: int) -> None:
    target = RmTarget(3, chip, "oldest")
    target.kernels.steps = 40  # so that what does not wait for them is too early
    with RmDevice.open(target.world, force=COPYING) as device:
        names = ("add", "fill")
        add, fill = (device.load(cubin(device.target.sm, n), n, LAYOUTS[n]) for n in names)
        a, b, c = (upload(device, numbers(n)) for n in range(3))
        device.synchronize()  # what copies in is another queue
        one = (1, 1, 1)
        queue = device.queue("compute", index)
        for _ in range(3):  # c = a + b; a = c; b = c, but its first two words 7
            queue.exec(add, add.arguments(c, a, b, vals=(WORDS,)), one, one)
            queue.copy(a, c, c.size).copy(b, c, c.size)
            queue.exec(fill, fill.arguments(b, vals=(7, 2)), one, one)
        device.wait(queue.submit(device))
        x, y = numbers(0), numbers(1)
        for _ in range(3):
            x = x + y
            y = x.copy()
            y[:2] = 7
        assert (download(device, a) == x).all() and (download(device, b) == y).all()
    assert target.complaints() == []
    target.close()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("chaining", ["copied", "scheduled", "none"])
def test_launches_of_one_submission_start_each_other(
    chip: str, chaining: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bool] = []
    pcas = ComputeEngine._pcas

    def counted(self: ComputeEngine, invalidate: bool, schedule: bool) -> None:
        sent.append(schedule)
        pcas(self, invalidate, schedule)

    monkeypatch.setattr(ComputeEngine, "_pcas", counted)
    target = RmTarget(3, chip)
    target.kernels.steps = 20  # so that what is too early shows
    with RmDevice.open(target.world, force={"chaining": chaining}) as device:
        names = ("add", "fill")
        add, fill = (device.load(cubin(device.target.sm, n), n, LAYOUTS[n]) for n in names)
        a, b = (upload(device, numbers(n)) for n in range(2))
        device.synchronize()
        steps = [GraphLaunch(add, (a, a, b), (WORDS,)), GraphLaunch(fill, (b,), (7, 2))] * 3
        graph = HCQGraph(device, steps)
        x, y = numbers(0), numbers(1)
        for _ in range(3):
            device.wait(graph())
            for _ in range(3):
                x = x + y
                y[:2] = 7
            assert (download(device, a) == x).all() and (download(device, b) == y).all()
        assert len(sent) == (18 if chaining == "none" else 3)
        graph.close()
    assert target.complaints() == []
    target.close()


def test_local_memory_only_grows() -> None:
    target = RmTarget(4)
    with opened(target) as device:
        out, given = upload(device, numbers(0)), []
        for stack in (48, 16, 1000):
            code = cubin(device.target.sm, "fill", stack=stack)
            fill = device.load(code, "fill", LAYOUTS["fill"])
            fill(out, vals=(stack, WORDS))
            device.synchronize()
            launch = target.kernels.seen[-1]
            given.append((launch.local_memory, launch.local_per_tpc))
            assert fill.private_size >= stack
            assert (download(device, out) == stack).all()
        assert given[0] == given[1] and given[2][1] > given[0][1]
        assert given[0][0] != given[2][0]
    assert target.complaints() == []
    target.close()


def test_programs_are_checked() -> None:
    target = RmTarget(5)
    with opened(target) as device:
        code = cubin(device.target.sm, "fill")
        with pytest.raises(InvalidIndex, match="nothing"):
            device.load(code, "nothing", LAYOUTS["fill"])
        with pytest.raises(InvalidValue, match="its parameters are at"):
            device.load(code, "fill", ArgumentLayout(2, ["I"]))
    target.close()


def test_closing_a_queue_that_waits() -> None:
    target = RmTarget(6)
    device = RmDevice.open(target.world, timeout=0.01)
    out = system(device, numbers(0))
    device.queue().wait(device.signal(), 1).write(out.address, b"late").submit(device)
    with pytest.raises(DeviceHang, match="compute queue 0"):
        device.close()
    device.close()
    assert target.complaints() == []
    target.close()


def test_faults_of_the_second_queue() -> None:
    target = RmTarget(7)
    with opened(target) as device:
        point = device.queue("compute", 1).write(0x1000, bytes(4)).submit(device)
        with pytest.raises(GpuFault, match="compute queue 1 failed with"):
            device.wait(point)
    assert target.complaints() == []
    target.close()


def test_compute_queues_do_not_copy_unless_they_shall() -> None:
    target = RmTarget(8)
    with RmDevice.open(target.world) as device:
        a, b = upload(device, numbers(0)), upload(device, numbers(1))
        with pytest.raises(Unsupported, match="give them to a copy queue"):
            device.queue().copy(a, b, a.size).submit(device)
        device.allocator.copy(a, b)
        assert (download(device, a) == numbers(1)).all()
    assert target.complaints() == []
    target.close()


def test_options_are_checked() -> None:
    with pytest.raises(InvalidValue, match="0 compute queues"):
        QueueOptions(compute_queues=0)
    for ring in (0, 32, 96, 2 * MAX_RING):
        with pytest.raises(InvalidValue, match=f"ring of {ring} bytes"):
            QueueOptions(ring=ring)


def test_an_opening_that_fails_leaves_nothing() -> None:
    sim = NvSimWorld(1, executor=PythonKernels())
    number, failures = 0, 0
    while True:
        failure = Failure(number)
        before = sim.usage()
        try:
            device = RmDevice.open(World(SteppedOs(sim.os, failure), sim.waiter))
        except TransportError:
            failures += 1
            assert sim.usage() == before, failure.failed
        except GpuError as error:
            raise AssertionError(f"{failure.failed} gave {error!r}") from error
        else:  # the driver can do without some calls
            was_last, failure.left = failure.left >= 0, -1
            device.close()
            assert sim.usage() == before, failure.failed
            if was_last:
                break
        number += 1
    assert failures > 50
    sim.close()


class _Stuck:
    """A waiter of a model that has nothing to do; time goes by where another thread ran it."""

    spin_ns = 0

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def idle(self, timeout_ns: int) -> None:
        raise HwTimeout("model", None, "anything to do", 0)


def test_a_stuck_model_is_told_to_who_looked_again() -> None:
    model = _Stuck()
    waiter = PatientWaiter(model)
    waiter.idle(1)
    model.now += 1
    waiter.idle(1)
    with pytest.raises(HwTimeout):
        waiter.idle(1)
