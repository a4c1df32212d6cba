"""Faults and hangs of cards that this process has booted: what is told, and going on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from am.pci_target import PciTarget
from am.test_recovery import At
from am.usb_target import UsbTarget
from bounded import bounded
from gpu.core import hostmem
from gpu.core.errors import DeviceHang, DeviceLost, GpuFault
from gpu.drivers.am.device import AmDevice
from gpu.drivers.device import Rung
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.sim.amd.pci.gfx import GraphicsCore
from gpu.sim.faults import Faults

HOLE = hostmem.reserve(1 << 16)  # addresses that no GPU has


@pytest.fixture(params=["gfx1100", "gfx1201", "gfx1100 over USB"])
def target(request: pytest.FixtureRequest) -> Iterator[PciTarget]:
    chip, _, usb = request.param.partition(" over ")
    made = UsbTarget(11, chip) if usb else PciTarget(11, chip)
    yield made
    assert made.complaints() == []
    made.close()


def faults_of(target: PciTarget) -> Faults:
    return target.machine.faults if isinstance(target, UsbTarget) else target.sim.faults


def still_works(device: AmDevice, target: PciTarget) -> None:
    add = target.program(device, "add")
    a, b, out = (upload(device, numbers(n)) for n in range(3))
    add(out, a, b, vals=(WORDS,))
    assert np.array_equal(download(device, out), numbers(0) + numbers(1))


def test_a_fault_names_page_client_kernel_and_argument(target: PciTarget) -> None:
    with target.open_gpu(0) as device:
        vmid = 0 if device.target.version[0] >= 12 else 8
        target.program(device, "fill")(At(device, HOLE + 4096), vals=(7, 4))
        with pytest.raises(GpuFault) as error:
            device.synchronize()
        told = str(error.value)
        assert error.value.address == HOLE + 4096
        assert f"page {HOLE + 4096:#x} was written and may not be: VMID {vmid}," in told
        assert "(TCP, data of kernels)" in told and "bytes behind" in told
        assert f"fill (argument 0 is {HOLE + 4096:#x})" in told
        assert device.recover() is Rung.ADDRESS_SPACE
        still_works(device, target)
        source = upload(device, numbers(1))
        device.queue("copy").copy(source, HOLE, 4).submit(device)
        with pytest.raises(GpuFault, match=rf"page {HOLE:#x} was read .* \(SDMA0\)"):
            device.synchronize()
        assert device.recover() is Rung.ADDRESS_SPACE
        still_works(device, target)


@pytest.mark.parametrize(
    "target",
    ["gfx1100", "gfx1201", pytest.param("gfx1100 over USB", marks=pytest.mark.slow)],
    indirect=True,
)
def test_a_kernel_that_cannot_be_taken_off_costs_the_processor(target: PciTarget) -> None:
    """Memory, programs and signals are as before, on all queues."""
    with target.open_gpu(0) as device:
        kept, out = upload(device, numbers(5)), upload(device, numbers(0))
        fill, signal = target.program(device, "fill"), device.signal(7)
        device.wait(device.queue("compute", 1).submit(device))
        device.synchronize()
        device.timeout = 0.05
        for _ in range(2):
            faults_of(target).add("hang:hard")
            fill(out, vals=(7, 4))
            with bounded(60), pytest.raises(DeviceHang):
                device.synchronize()
            assert device.recover() is Rung.PROCESSOR
            still_works(device, target)
        device.wait(device.queue("compute", 1).signal(signal, 8).submit(device))
        assert signal.value == 8
        assert np.array_equal(download(device, kept), numbers(5))


def test_where_that_does_not_help_the_device_is_lost_and_opens_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GraphicsCore, "_soft_reset", lambda self, value: None)
    target = PciTarget(12)
    device = target.open_gpu(0)
    fill, out = target.program(device, "fill"), upload(device, numbers(0))
    device.synchronize()
    device.timeout = 0.05
    faults_of(target).add("hang:hard")
    fill(out, vals=(7, 4))
    with bounded(60), pytest.raises(DeviceHang):
        device.synchronize()
    with bounded(60), pytest.raises(DeviceLost, match=r"did not stop .* open the device anew"):
        device.recover()
    device.close()
    with target.open_gpu(0) as fresh:  # the card is reset first
        still_works(fresh, target)
    target.close()
