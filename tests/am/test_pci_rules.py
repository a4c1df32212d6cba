"""What a card keeps until it is told: translations, faults; on the model of a chip."""

from __future__ import annotations

from contextlib import closing

import pytest

from am.test_pci_boot import booted, open_gpu
from gpu.core.errors import GpuFault
from gpu.core.pagetable import PageTable
from gpu.drivers.am.pci.entries import PAGE, ROOT, Access, format_of
from gpu.drivers.am.pci.ip.gmc import hubs_of
from gpu.drivers.am.pci.memory import BASE
from gpu.drivers.am.pci.port import PciPort
from gpu.drivers.am.pci.vram import VramTables
from gpu.hcq.conformance.kit import expect_equal, numbers, upload
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.sim.translate import PageFault

CHIPS = ["gfx1100", "gfx1102", "gfx1201"]


@pytest.mark.parametrize("chip", CHIPS)
def test_private_caches_forget(chip: str) -> None:
    """MMHUB has a cache that its invalidation does not reach: it is told by a register."""
    with closing(AmPciWorld(chip=chip)) as sim, booted(sim, "gmc") as card:
        hub, seen = hubs_of(card)[1], sim.gpus[0].mmhub.spaces[3]
        table = PageTable(VramTables(card.vram, card.pa_base), format_of(card.gc), ROOT)
        hub.set_context(3, table.root)
        card.begin("a change of tables", sim.waiter.now_ns() + 10**9)
        for number in range(1, 4):
            place, data = card.vram.allocate(PAGE), bytes([number]) * PAGE
            card.store(place, data)
            table.map(BASE, card.pa_base + place, PAGE, int(Access.READ))
            card.flush_hdp()
            hub.invalidate(3)
            assert seen.load(BASE, PAGE) == data
            table.release(table.unmap(BASE, PAGE))
        assert not sim.debug.violations


@pytest.mark.parametrize("chip", CHIPS)
def test_that_memory_was_not_there_is_forgotten(chip: str) -> None:
    """What was asked for too early is there once it is mapped."""
    with closing(AmPciWorld(chip=chip)) as sim, open_gpu(sim) as device:
        port = device.port
        assert isinstance(port, PciPort)
        seen = sim.gpus[0].gfxhub.spaces[port.memory.vmid]
        access = Access.READ | Access.WRITE
        held = port.memory.hold_video(PAGE, access, "a page")
        port.memory.drop(held)
        with pytest.raises(PageFault):  # as an engine that fetches ahead
            seen.translate(held.address, write=False)
        again = port.memory.hold_video(PAGE, access, "a page")
        assert again.address == held.address
        buffer = upload(device, numbers(3))
        device.wait(device.queue("copy").copy(again.address, buffer, 64).submit(device))
        expect_equal(again.window.load(0, 64), numbers(3).tobytes()[:64], "what was copied")
        assert not sim.debug.violations


@pytest.mark.parametrize("chip", CHIPS)
def test_each_fault_is_told_by_its_own_address(chip: str) -> None:
    with closing(AmPciWorld(chip=chip)) as sim, open_gpu(sim) as device:
        buffer = upload(device, numbers(4))
        for nowhere in (0x3000_0000_0000, 0x3100_0000_0000, 0x3000_0000_1000):
            point = device.queue("copy").copy(nowhere, buffer, 4).submit(device)
            with pytest.raises(GpuFault) as caught:
                device.wait(point)
            assert caught.value.address == nowhere
            device.recover()
