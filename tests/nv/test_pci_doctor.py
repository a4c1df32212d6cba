"""What doctor says of NVIDIA's cards on the bus is what opening one says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu.backends.nv import find_pci, simulated
from gpu.cli import doctor
from gpu.cli.doctor import Finding
from gpu.core import firmware as files
from gpu.core.errors import FirmwareError, GpuError
from gpu.drivers.nv.pci.boot import BootCard, boot, take_card
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.transport.missing import NO_PCI_NVIDIA
from nv.test_pci_boot import load_of, world_of
from unit.made_up import BUS, MadeUp
from unit.test_default_device import Machine

AT = "0000:03:00.0"
DRIVERS = "/sys/bus/pci/drivers"


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Iterator[NvPciWorld]:
    """A card on vfio-pci, whose firmware is there."""
    sim = NvPciWorld(chip="ga102")
    monkeypatch.setattr(simulated, "card_world", lambda setting: (world_of(sim), load_of(sim)))
    monkeypatch.setattr(find_pci, "load", load_of(sim))
    yield sim
    sim.close()


def findings(
    system: object, opens: Callable[[str], Finding] = doctor.opened
) -> tuple[Finding, ...]:
    report = doctor.examine(system, lambda name: opens(name) if "PCI" in name else Finding("", ""))  # type: ignore[arg-type]
    return next(each for each in report.interfaces if str(each) == "PCI+NV").findings


def nvidia(sim: NvPciWorld) -> None:
    sim.tree.remove(f"{DRIVERS}/vfio-pci/{AT}")
    sim.tree.add(f"{DRIVERS}/nvidia/{AT}", "")


def test_a_card_that_is_ready_is_looked_at(sim: NvPciWorld) -> None:
    (found,) = findings(Machine(sim.os))
    assert found.status == "found"
    where = f"{AT} (vfio-pci, IOMMU group 7, BAR 1 of 256 MiB)"
    assert found.told.startswith(f"DEV=PCI+NV: {where}: taken: GA102, cold, and its firmware")
    assert not sim.debug.violations


def test_a_card_on_which_somebody_runs_rm(sim: NvPciWorld) -> None:
    """It is told, and no reset."""
    left = take_card(world_of(sim), 0, load_of(sim))
    for _ in boot(left):
        pass
    told = find_pci.tell(BootCard(left.function, sim.waiter, load=load_of(sim)), load_of(sim))
    assert "somebody's GSP runs on it" in told


def test_doctor_and_opening_say_the_same(sim: NvPciWorld) -> None:
    """Of a card that its kernel driver has."""
    nvidia(sim)
    (found,) = findings(Machine(sim.os))
    assert found.status == "missing" and f"`sudo gpu pci take {AT}`" in found.fix
    with pytest.raises(GpuError) as caught:
        take_card(world_of(sim), 0)
    said = found.told.partition("): ")[2]
    assert caught.value.message == f"{AT}: {said}: {found.fix}"


def test_firmware_that_is_not_there_is_told_before_a_card_is_taken(
    sim: NvPciWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(find_pci, "load", files.load)
    monkeypatch.setattr(files, "folders", lambda: [tmp_path])
    (found,) = findings(Machine(sim.os))
    assert found.status == "missing" and "gsp-570.144.bin is not there" in found.told
    assert "gpu fw add" in found.told


def test_firmware_of_the_chip_is_looked_for(
    sim: NvPciWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Behind RM's image, which all have."""
    monkeypatch.setattr(files, "folders", lambda: [tmp_path])
    with pytest.raises(FirmwareError, match=r"ga102/gsp/gsp-570\.144\.bin is not there"):
        find_pci.tell(take_card(world_of(sim), 0, files.load), files.load)


def test_a_machine_without_a_card() -> None:
    assert findings(MadeUp(BUS)) == (Finding("missing", *NO_PCI_NVIDIA),)
