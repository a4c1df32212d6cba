"""Walks of a card's page tables: in its process, in reports of faults, and by `gpu pagetable`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from am.pci_target import PciTarget
from am.test_pci_boot import booted
from am.test_pci_commands import call
from am.test_recovery import At
from gpu.core import hostmem
from gpu.core.crashfiles import CrashFolder
from gpu.core.errors import GpuFault, InvalidValue, Unsupported
from gpu.drivers.am.pci.ip.gmc import VMIDS, hubs_of
from gpu.drivers.am.pci.port import PciPort
from gpu.drivers.am.pci.translation import Translation, contexts, translate
from gpu.drivers.crash import parse_crash
from gpu.hcq.conformance.kit import numbers, system, upload
from gpu.sim.amd.pci.world import AmPciWorld

HOLE = hostmem.reserve(1 << 16)  # addresses that no GPU has


@pytest.fixture(params=["gfx1100", "gfx1201"])
def target(request: pytest.FixtureRequest) -> Iterator[PciTarget]:
    made = PciTarget(5, request.param)
    yield made
    assert made.complaints() == []
    made.close()


def walked(port: PciPort, address: int) -> Translation:
    return translate(port.chip, hubs_of(port.chip)[0], port.memory.vmid, address)


def last_entry(port: PciPort, address: int) -> int:
    """Where in video memory the entry is that a walk read last, by what it tells."""
    name, _, table, *_ = walked(port, address).lines[-1].split()
    slot = int(name.partition("[")[2][:-1])
    return int(table[:-1], 16) - port.chip.pa_base + 8 * slot


def test_it_leads_to_the_bytes(target: PciTarget) -> None:
    """Of buffers of drawn sizes, large pages and small ones, where the card has them itself."""
    draw = Random(3)
    with target.open_gpu(0) as device:
        port = device.port
        assert isinstance(port, PciPort)
        vram = target.sim.gpus[0].chip.vram
        for size in (4096, draw.randrange(4097, 1 << 20), draw.randrange(2 << 20, 6 << 20)):
            data = draw.randbytes(size)
            buffer = device.allocator.alloc(size)
            device.allocator.copy_in(buffer, data)
            device.synchronize()
            for at in (0, size - 8, draw.randrange(size - 8)):
                lines, is_mapped = walked(port, buffer.address + at)
                way, _, access = lines[-1].partition(" of video memory: ")
                assert is_mapped and access.startswith("read, write, run of ")
                assert vram.load(int(way.rpartition(" ")[2], 16), 8) == data[at : at + 8]
        shared = system(device, numbers(1))
        assert " of the bus: read, write" in walked(port, shared.address).lines[-1]
        code = device.exclusively(port.memory.allocate_code, 4096)
        assert "of video memory: read, execute, run" in walked(port, code.address).lines[-1]
        port.memory.free(code)
        lines, is_mapped = walked(port, code.address)
        assert not is_mapped and lines[-1].endswith("nothing is mapped")


def test_damaged_tables_are_told(target: PciTarget) -> None:
    with target.open_gpu(0) as device:
        port = device.port
        assert isinstance(port, PciPort)
        window, pa_base = port.chip.vram.window, port.chip.pa_base
        buffer = upload(device, numbers(1))
        address = buffer.address
        at = last_entry(port, address)
        entry = window.read(at, 8)
        window.write(at, 8, entry | 1 << 59)
        lines, is_mapped = walked(port, address)
        assert not is_mapped and "bits 0x800000000000000" in lines[-1]
        window.write(at, 8, entry)
        root = hubs_of(port.chip)[0].context(port.memory.vmid).root - pa_base
        slot = root + 8 * (address >> 39 & 511)
        top = window.read(slot, 8)
        window.write(slot, 8, pa_base + window.size | 1)
        lines, is_mapped = walked(port, address)
        assert not is_mapped and "the host sees video memory from" in lines[-1]
        window.write(slot, 8, top | 2)
        lines, is_mapped = walked(port, address)
        assert not is_mapped and "of the machine, which is not read" in lines[-1]
        window.write(slot, 8, top)
        assert walked(port, address).is_mapped
        for vmid, where in ((VMIDS, address), (-1, address), (8, 1 << 48), (8, -1)):
            with pytest.raises(InvalidValue, match=r"there are 0 to 15|tables cover 0 to"):
                translate(port.chip, hubs_of(port.chip)[0], vmid, where)


def test_a_report_of_a_fault_has_it(target: PciTarget, tmp_path: Path) -> None:
    with target.open_gpu(0) as device:
        folder = CrashFolder(tmp_path, 4)
        device.report_to(folder, None)
        target.program(device, "fill")(At(device, HOLE + 4096), vals=(7, 4))
        with pytest.raises(GpuFault):
            device.synchronize()
        (path,) = folder.reports()
        crash = parse_crash(path.name, path.read_bytes())
        vmid = 0 if device.target.version[0] >= 12 else 8
        assert crash.translation[0].startswith(f"GC VMID {vmid}: 0x0 to 0xffffffffffff, tables at ")
        assert crash.translation[-1].endswith(": 0x0000000000000000, nothing is mapped")
        assert crash.translation[-1] in path.with_suffix(".txt").read_text()
        assert device.recover() is not None


def test_contexts_of_a_card_that_boots() -> None:
    sim = AmPciWorld()
    with booted(sim, "discovery") as chip:
        assert not list(contexts(chip))
        regs = sim.gpus[0].chip.regs  # what the card's own start has set, elsewhere
        regs.set("MMMC_VM_FB_OFFSET", 3)
        start = (regs.value("MMMC_VM_FB_LOCATION_BASE") & 0xFF_FFFF) << 24
        place = translate(chip, hubs_of(chip)[0], 0, start + 0x5000).lines[-1]
        assert place == "0x5000 of video memory"
    with booted(sim, "gfx") as chip:
        assert [(hub.prefix, vmid) for hub, vmid, _ in contexts(chip)] == [("GC", 0), ("MM", 0)]
        _, hub = hubs_of(chip)
        inside = translate(chip, hub, 0, chip.mc(0x5000))
        assert inside.is_mapped and inside.lines[-1] == "0x5000 of video memory"
        hub.block.update("MMVM_CONTEXT0_CNTL", PAGE_TABLE_DEPTH=1)
        with pytest.raises(Unsupported, match="1 levels above pages: this version walks 3"):
            translate(chip, hub, 0, 0x1000)
    sim.close()


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no context is on" in call(capsys, "pagetable", "PCI+AMD")
    out = call(capsys, "pagetable", "PCI+AMD", "--until", "gmc")
    assert out.startswith("MM VMID 0: 0x0 to 0xffffffffffff")
    out = call(capsys, "pagetable", "PCI+AMD", "0x1000", wanted=1)
    assert "GC VMID 8 is off" in out
    walk = ("--vmid", "0", "--hub", "MM", "--until", "gmc")
    out = call(capsys, "pagetable", "PCI+AMD", "0x1000", *walk, wanted=1)
    assert "PDB2[0] at" in out and "nothing is mapped" in out
    assert "0x10 of video memory" in call(capsys, "pagetable", "PCI+AMD", "0x8000000010", *walk)
    told = call(capsys, "pagetable", "PCI+AMD", "0x1000", "--until", "claim", wanted=1)
    assert "discovery" in told
    assert "there are 0 to 15" in call(
        capsys, "pagetable", "PCI+AMD", "0x1000", "--vmid", "16", wanted=1
    )
