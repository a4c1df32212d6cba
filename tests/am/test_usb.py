"""A card behind a bridge on USB: booted, computing, conforming, and what goes wrong on the way.

Bridge and card are models that were written by someone else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from am.usb_target import UsbTarget
from bounded import bounded
from gpu.backends.amd import device as amd
from gpu.backends.amd import find_usb
from gpu.cli.main import main
from gpu.core.config import Context
from gpu.core.errors import DeviceError, DeviceLost, TransportError, Unsupported
from gpu.core.firmware import Wanted
from gpu.drivers.am.pci.port import boot, close_chip
from gpu.drivers.am.pci.usb import open_usb, take_card
from gpu.hcq.conformance import CHECKS, peers
from gpu.hcq.conformance.kit import download, numbers, upload
from gpu.hcq.ports import MemoryKind
from gpu.sim.usb.world import UsbWorld
from gpu.transport.world import World

# Nothing of this machine's memory is reached.
NAMES = [
    name
    for name, check in CHECKS.items()
    if check not in peers.CHECKS and name != "mapped_host_memory"
]
QUICK = ("copies", "bound_queues")


def world_of(machine: UsbWorld) -> World:
    return World(machine.os, machine.waiter, usb=machine.usb)


@pytest.fixture
def machine() -> Iterator[UsbWorld]:
    with closing(UsbWorld()) as machine:
        yield machine


@pytest.mark.sampled(34)
@pytest.mark.parametrize(
    ("chip", "coherence", "name"),
    [
        pytest.param(
            *(chip, coherence, name),
            marks=() if name in QUICK and chip == "gfx1201" else pytest.mark.slow,
        )
        for chip, coherence, names in (
            ("gfx1100", "check", sorted({*QUICK, *NAMES[::4]})),
            ("gfx1201", "oldest", sorted({*QUICK, *NAMES[2::4]})),
        )
        for name in names
    ],
)
def test_card(chip: str, coherence: str, name: str) -> None:
    target = UsbTarget(3, chip, "oldest" if coherence == "oldest" else "check")
    with bounded(120):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()


@pytest.mark.slow
def test_memory_of_this_machine_is_not_reached() -> None:
    target = UsbTarget()
    with target.open() as device, pytest.raises(Unsupported, match="no memory of this machine"):
        CHECKS["mapped_host_memory"](target)
        upload(device, numbers(1), MemoryKind.SYSTEM)
    target.close()


@pytest.mark.sampled(34)
@pytest.mark.parametrize(
    "chip", ["gfx1100", pytest.param("gfx1102", marks=pytest.mark.slow), "gfx1201"]
)
def test_transfers_of_a_boot_are_counted(chip: str) -> None:
    with closing(UsbWorld(chip=chip)) as machine:
        card = take_card(world_of(machine), 0, lambda wanted: machine.firmware[wanted.name])
        for _ in boot(card):
            pass
        count = machine.bridges[0].transfers
        assert count.control + count.bulk < 2_000
        close_chip(card)
        assert not machine.debug.violations


@pytest.mark.sampled(25)
@pytest.mark.parametrize(
    ("trouble", "number"),
    [
        *(("unplug", 250), ("link_dies", 300), ("stall", 400), ("short", 10)),
        *(
            pytest.param(trouble, number, marks=pytest.mark.slow)
            for trouble in ("unplug", "link_dies", "stall")
            for number in (40, 230, 251, 500, 777, 1_100, 1_500)
        ),
    ],
)
def test_trouble_at_any_transfer_is_typed_and_the_next_open_works(
    trouble: str, number: int
) -> None:
    with closing(UsbWorld(seed=number, **{trouble: number})) as machine:

        def load(wanted: Wanted) -> bytes:
            return machine.firmware[wanted.name]

        kind = DeviceLost if trouble == "unplug" else DeviceError
        with bounded(60), pytest.raises(kind):
            open_usb(world_of(machine), load=load)
        if trouble == "link_dies":
            machine.bridges[0].power_cycle()
        if trouble != "unplug":  # nothing of it is left
            open_usb(world_of(machine), load=load).close()


def test_no_card(machine: UsbWorld) -> None:
    with (
        closing(UsbWorld(no_card=True)) as empty,
        pytest.raises(DeviceLost, match="is a card in it"),
    ):
        open_usb(world_of(empty))
    with pytest.raises(DeviceError, match="no bridge from USB to PCI"):
        open_usb(World(machine.os, machine.waiter))


@pytest.mark.sampled(50)
@pytest.mark.parametrize("speed", [480, pytest.param(5_000, marks=pytest.mark.slow)])
def test_other_speeds(speed: int) -> None:
    with closing(UsbWorld(speed=speed)) as machine:
        load = lambda wanted: machine.firmware[wanted.name]  # noqa: E731
        with open_usb(world_of(machine), load=load) as device:
            wanted = numbers(7)
            assert np.array_equal(download(device, upload(device, wanted)), wanted)
        assert not machine.debug.violations


def test_stock_firmware_reaches_the_card() -> None:
    with closing(UsbWorld(firmware="stock", kernel_driver="usb-storage")) as machine:
        card = take_card(world_of(machine), 0, lambda wanted: machine.firmware[wanted.name])
        for _ in boot(card, "discovery"):
            pass
        assert card.gc == (11, 0, 0)
        close_chip(card)
        with pytest.raises(Unsupported, match="maker's firmware"):
            open_usb(world_of(machine))
        assert not machine.debug.violations


def test_a_second_process_is_refused(machine: UsbWorld) -> None:
    load = lambda wanted: machine.firmware[wanted.name]  # noqa: E731
    with (
        open_usb(world_of(machine), load=load),
        pytest.raises(TransportError, match="in use"),
    ):
        open_usb(world_of(machine), load=load)


def test_tensors_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(SIM="gfx1100"):
        assert "GC[0] 11.0.0" in find_usb.probe(0)
        amd.usb_world.cache_clear()
        assert main(["regs", "USB+AMD", "get", "GC.CP_STAT"]) == 0
        assert "GC.CP_STAT = 0x" in capsys.readouterr().out
        amd.usb_world.cache_clear()
        assert main(["boot", "USB+AMD", "--until", "gmc"]) == 0
        assert "discovery" in capsys.readouterr().out
        amd.usb_world.cache_clear()
