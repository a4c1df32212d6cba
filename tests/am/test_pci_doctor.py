"""What doctor says of cards on the bus is what opening one says, where something is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from am.test_pci_boot import firmware, world_of
from gpu.backends.amd import device as amd
from gpu.backends.amd import find_pci, find_usb
from gpu.cli import doctor
from gpu.cli.doctor import Finding
from gpu.core import firmware as files
from gpu.core.errors import DeviceError, FirmwareError, GpuError, Unsupported
from gpu.drivers.am.pci.discovery import HwId, IpBlock
from gpu.drivers.am.pci.ip.claim import check_core
from gpu.drivers.am.pci.port import choose, take_card
from gpu.runtime.default import Found
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.transport.missing import NO_PCI_GPU
from unit.made_up import BUS, MadeUp
from unit.test_default_device import Machine

AT = "0000:03:00.0"
GROUP, NODE = "/sys/kernel/iommu_groups/7", "/dev/vfio/7"
DRIVERS, DEVICE = "/sys/bus/pci/drivers", f"/sys/bus/pci/devices/{AT}"


@pytest.fixture
def sim() -> Iterator[AmPciWorld]:
    sim = AmPciWorld()
    yield sim
    sim.close()


def finding(system: object, opens: Callable[[str], Finding] = doctor.opened) -> Finding:
    report = doctor.examine(system, lambda name: opens(name) if "PCI" in name else Finding("", ""))  # type: ignore[arg-type]
    (found,) = next(each for each in report.interfaces if str(each) == "PCI+AMD").findings
    return found


def no_iommu(sim: AmPciWorld) -> None:
    for name in (f"{GROUP}/devices/{AT}", f"{GROUP}/devices/0000:03:00.1", f"{GROUP}/type"):
        sim.tree.remove(name)


def amdgpu(sim: AmPciWorld) -> None:
    sim.tree.remove(f"{DRIVERS}/vfio-pci/{AT}")
    sim.tree.add(f"{DRIVERS}/amdgpu/{AT}", "")


def display(sim: AmPciWorld) -> None:
    amdgpu(sim)
    sim.tree.add(f"{DEVICE}/boot_vga", "1\n")


def strangers(sim: AmPciWorld) -> None:
    amdgpu(sim)
    sim.tree.add(f"{GROUP}/devices/0000:00:01.1", "")
    sim.tree.add("/sys/bus/pci/devices/0000:00:01.1/class", "0x010802\n")
    sim.tree.add(f"{DRIVERS}/nvme/0000:00:01.1", "")


LACKING = {
    "no IOMMU": (no_iommu, "behind no IOMMU", "intel_iommu=on or amd_iommu=on"),
    "amdgpu has it": (amdgpu, "not handed over", f"`sudo gpu pci take {AT}`"),
    "a display": (display, "boot_vga", "use another card"),
    "strangers": (strangers, r"0000:00:01.1 (nvme)", ""),
}


@pytest.mark.parametrize("name", LACKING)
def test_doctor_and_opening_say_the_same(name: str, sim: AmPciWorld) -> None:
    change, told, fix = LACKING[name]
    change(sim)
    found = finding(Machine(sim.os))
    assert found.status == "missing" and AT in found.told
    assert told in found.told and fix in found.fix
    with pytest.raises(GpuError) as caught:
        take_card(world_of(sim), 0)
    said = found.told.partition(": ")[2]
    assert caught.value.message == f"{AT}: {said}{': ' if found.fix else ''}{found.fix}"


def test_a_node_that_may_not_be_opened(sim: AmPciWorld) -> None:
    found = finding(Machine(sim.os, denied=(NODE,)))
    assert found.told == f"{AT} (vfio-pci): taken, but not for this user"
    assert found.fix == f"access to {NODE} was denied: run `this`"


def test_a_card_that_is_ready_is_looked_at(
    sim: AmPciWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(amd, "card_world", lambda setting: (world_of(sim), firmware(sim)))
    found = finding(Machine(sim.os))
    assert found.status == "found"
    assert found.told.startswith(f"DEV=PCI+AMD: {AT} (vfio-pci): taken: GC[0] 11.0.0, 24576 MiB")
    assert not sim.debug.violations
    monkeypatch.setattr(files, "folders", lambda: [tmp_path])
    monkeypatch.setattr(amd, "card_world", lambda setting: (world_of(sim), files.load))
    found = finding(Machine(sim.os))
    assert found.status == "missing" and "psp_13_0_0_sos.bin is not there" in found.told
    assert "install firmware-amd-graphics" in found.told


def _told_by_amdgpu(sim: AmPciWorld, **versions: tuple[int, int, int]) -> None:
    amdgpu(sim)
    for name, version in versions.items():
        folder = f"{DEVICE}/ip_discovery/die/0/{int(HwId[name])}/0"
        for part, value in zip(("major", "minor", "revision"), version, strict=True):
            sim.tree.add(f"{folder}/{part}", f"{value}\n")


def test_what_no_firmware_is_there_for_is_told_before_it_is_taken(
    sim: AmPciWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "folders", lambda: [tmp_path])
    _told_by_amdgpu(sim, GC=(11, 0, 0), SDMA0=(6, 0, 0), MP0=(13, 0, 0), MP1=(13, 0, 0))
    (look,) = find_pci.looks(Machine(sim.os))
    with pytest.raises(FirmwareError) as caught:
        files.load(files.Wanted("amdgpu/psp_13_0_0_sos.bin", (), _package()))
    assert look.told == f"{AT} (amdgpu): {caught.value.message}"


def _package() -> str:
    from gpu.drivers.am.firmware import WANTED

    return WANTED[0].package


@pytest.mark.parametrize("core", [(9, 4, 3), (10, 3, 0), (11, 5, 0)])
def test_chips_that_are_refused_are_sent_to_kfd(
    core: tuple[int, int, int], sim: AmPciWorld
) -> None:
    _told_by_amdgpu(sim, GC=core, SDMA0=(6, 0, 0), MP0=(13, 0, 0), MP1=(13, 0, 0))
    (look,) = find_pci.looks(Machine(sim.os))
    with pytest.raises(Unsupported, match=r"DEV=KFD\+AMD") as caught:
        check_core(IpBlock(HwId.GC, 0, core, ()))
    assert look.told == f"{AT} (amdgpu): {caught.value.message}"


def test_a_machine_without_a_card() -> None:
    assert finding(MadeUp(BUS)) == Finding("missing", *NO_PCI_GPU)
    sim = AmPciWorld(chip=())
    with pytest.raises(DeviceError) as caught:
        choose(world_of(sim), 0)
    assert caught.value.message == str(NO_PCI_GPU)
    sim.close()


BRIDGE = "/sys/bus/usb/devices/2-1.4"


def _bridge(sim: AmPciWorld, vendor: str, product: str) -> None:
    told = {
        "idVendor": vendor,
        "idProduct": product,
        "speed": "10000",
        "busnum": "2",
        "devnum": "9",
    }
    for name, text in told.items():
        sim.tree.add(f"{BRIDGE}/{name}", f"{text}\n")


def test_bridges_on_usb(sim: AmPciWorld) -> None:
    (look,) = find_usb.looks(Machine(sim.os))
    assert look.found is Found.NOTHING and "add1:0001" in look.fix and "DEV=PCI+AMD" in look.fix
    _bridge(sim, "add1", "0001")
    (look,) = find_usb.looks(Machine(sim.os))
    assert look == (Found.USABLE, "bridge add1:0001 at 2-1.4, 10000 Mbit/s", 0, "")
    (look,) = find_usb.looks(Machine(sim.os, denied=("/dev/bus/usb/002/009",)))
    assert look.found is Found.UNUSABLE and "run `this`" in look.told


def test_stock_bridges_and_others(sim: AmPciWorld) -> None:
    _bridge(sim, "174c", "2464")
    (look,) = find_usb.looks(Machine(sim.os))
    assert look.found is Found.NOTHING and "maker's firmware" in look.told


def test_an_enclosure_on_usb4_is_on_the_pci_bus(sim: AmPciWorld) -> None:
    _bridge(sim, "1d6b", "0003")
    for name, device in (("0-0", "This laptop"), ("0-1", "AS2464")):
        sim.tree.add(f"/sys/bus/thunderbolt/devices/{name}/device_name", f"{device}\n")
    (look,) = find_usb.looks(Machine(sim.os))
    assert (
        look.told == "AS2464 is connected by USB4, so that its card is on the PCI bus: use PCI+AMD"
    )
