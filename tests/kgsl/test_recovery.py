"""Failures of a simulated Adreno GPU are typed and told, and another context helps after all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.errors import DeviceHang, DeviceLost, GpuFault
from gpu.drivers.device import Rung
from gpu.drivers.kgsl.device import KgslDevice
from gpu.hcq.channel import Point, Template
from gpu.hcq.commands import Launch
from gpu.hcq.encoder import Encoded, Segment
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.link import link
from gpu.hcq.program import HCQProgram, ProgramArguments
from kgsl.kernels import LAYOUTS
from kgsl.target import KgslTarget

NOWHERE = 0x1000
WORDS = 64


def store_nowhere(device: KgslDevice, add: HCQProgram) -> Point:
    """A kernel that writes where no memory is."""
    source = device.allocator.alloc(4 * WORDS).address
    args = ProgramArguments(LAYOUTS["add"], (NOWHERE, source, source), (WORDS,))
    return device.submit_in_order(device.channels()[0], [Launch(add, args, (1, 1, 1), (1, 1, 1))])


def write_nowhere(device: KgslDevice, add: HCQProgram) -> Point:
    """The command processor does."""
    return device.queue().write(NOWHERE, b"abcd").submit(device)


def wait_for_ever(device: KgslDevice, add: HCQProgram) -> Point:
    """A signal that nobody sets."""
    return device.queue().wait(device.signal(), 1).submit(device)


def bad_packet(device: KgslDevice, add: HCQProgram) -> Point:
    """Words that are no packet."""
    encoder = device.port.encoder
    packets = Encoded((Segment("ring", 4, "ring", encoder.filler(8) + b"\x12\x34\x56\x70"),))
    channel = device.channels()[0]
    return device.exclusively(device._send, channel, Template(link(packets, encoder)))


FAILURES: list[tuple[Callable[[KgslDevice, HCQProgram], Point], type[Exception], str]] = [
    (store_nowhere, GpuFault, r"page fault at 0x1000.*add \(argument 0 is 0x1000\)"),
    (write_nowhere, GpuFault, r"page fault at 0x1000"),
    (wait_for_ever, DeviceHang, r"compute queue 0.*recover\(\)"),
    (bad_packet, GpuFault, r"packets it does not take.*snapshot"),
]


@pytest.mark.parametrize(("provoke", "kind", "told"), FAILURES, ids=lambda each: each)
@pytest.mark.parametrize("kernel", ["2025", "4.9"])
def test_what_goes_wrong_is_told_and_recovered(
    provoke: Callable[[KgslDevice, HCQProgram], Point],
    kind: type[Exception],
    told: str,
    kernel: str,
    need: Callable[[str], None],
) -> None:
    need("tinymesa")
    target = KgslTarget(seed=1, kernel=kernel, page_faults="halt")
    waiter = target.sim.waiter
    with target.open_gpu() as device:
        add = target.program(device, "add")
        out, a, b = (device.allocator.alloc(4 * WORDS) for _ in range(3))
        data = np.arange(WORDS, dtype=np.int32)
        for buffer in (out, a, b):
            device.allocator.copy_in(buffer, data.tobytes())
        graph = HCQGraph(device, [GraphLaunch(add, (out, out, a), (WORDS,))])
        graph()
        device.synchronize()
        for _ in range(2):
            with pytest.raises(kind) as caught:
                device.wait(provoke(device, add))
            if kernel == "2025":  # others do not tell of page faults
                caught.match(told)
            if kind is GpuFault:
                with pytest.raises(DeviceLost):
                    device.synchronize()
            started = waiter.now_ns()
            assert device.recover() is Rung.QUEUES
            assert waiter.now_ns() - started < 40e9
            assert device.recover() is None
        # Memory, programs and graphs are as they were.
        graph()
        add(b, out, a, vals=(WORDS,))
        assert list(np.frombuffer(device.allocator.copy_out(b), np.int32)) == list(4 * data)
        graph.close()
    complaints = target.complaints()
    assert not [each for each in complaints if "parity" not in each], complaints
    target.close()


def test_page_faults_that_the_kernel_does_not_tell_leave_all_as_it_is(
    need: Callable[[str], None],
) -> None:
    need("tinymesa")
    target = KgslTarget(seed=1)
    with target.open_gpu() as device:
        device.wait(store_nowhere(device, target.program(device, "add")))
        assert device.recover() is None
    target.close()
