"""Booting a card: every chip, what is found on it, what goes wrong, and what is left behind.

The chip is a model that was written by someone else, from the kernel's sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gpu.core.errors import (
    DeviceError,
    FirmwareError,
    FormatError,
    GpuError,
    GpuFault,
    OutOfMemory,
    TransportError,
    Unsupported,
)
from gpu.core.firmware import Wanted
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, Window
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import Access
from gpu.drivers.am.pci.port import PciPort, QueueOptions, boot, cards, close_chip, open_pci
from gpu.drivers.am.pci.steps import STEPS
from gpu.drivers.boot import BootError, BootTimeout
from gpu.hcq.conformance.kit import download, expect_equal, numbers, upload
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import DmaMemory, Interrupt, PciFunction
from gpu.transport.world import World

CHIPS = ("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201")
SMALL = QueueOptions(compute_ring=4096, copy_ring=4096)


def world_of(sim: AmPciWorld) -> World:
    return World(sim.os, sim.waiter, HostPci(sim.os))


def firmware(sim: AmPciWorld) -> Callable[[Wanted], bytes]:
    return lambda wanted: sim.firmware[wanted.name]


def card(sim: AmPciWorld) -> Chip:
    world = world_of(sim)
    return Chip(world.pci.open(cards(world)[0]), sim.waiter, load=firmware(sim))


@contextmanager
def booted(sim: AmPciWorld, until: str | None = None) -> Iterator[Chip]:
    chip = card(sim)
    try:
        for _ in boot(chip, until):
            pass
        yield chip
    finally:
        close_chip(chip)


def open_gpu(sim: AmPciWorld, **options: int) -> AmDevice:
    return open_pci(
        *(world_of(sim), 0),
        options=SMALL,
        load=firmware(sim),
        command_memory=8192,
        staging=8192,
    )


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_comes_up_cold(chip: str) -> None:
    sim = AmPciWorld(chip=chip, coherence="oldest")
    with booted(sim) as found:
        assert found.done == [step.name for step in STEPS]
        assert found.state == "cold"
        assert found.accesses <= 4000
    assert [str(each) for each in sim.debug.violations] == []
    sim.close()


@pytest.mark.parametrize("chip", CHIPS)
def test_a_card_that_runs_is_reset(chip: str) -> None:
    """As a card that another driver has left running, which does not take firmware again."""
    sim = AmPciWorld(chip=chip)
    with booted(sim) as first:
        second = Chip(first.function, sim.waiter, load=firmware(sim))
        before = sim.waiter.now_ns()
        for done in boot(second):
            if done.name == "reset":
                assert sim.waiter.now_ns() - before >= (500_000_000 if chip < "gfx12" else 10**9)
        assert second.state == "cold" and second.done[-1] == "clocks"
        for memory in second.dma:
            memory.close()
    assert [str(each) for each in sim.debug.violations] == []
    sim.close()


def test_blocks_may_lie_elsewhere() -> None:
    sim = AmPciWorld(moved=0x40)
    with booted(sim):
        pass
    assert not sim.debug.violations
    sim.close()


@pytest.mark.parametrize("chip", CHIPS)
def test_a_small_bar_costs_few_accesses_more(chip: str) -> None:
    """What no BAR shows is read a dword at a time: of the tables as much as their header says."""
    with closing(AmPciWorld(chip=chip, bar_size=256 << 20)) as sim, booted(sim) as found:
        assert found.accesses <= 4000
        assert not sim.debug.violations


def test_a_small_bar_is_enough_to_boot_and_to_work() -> None:
    sim = AmPciWorld(bar_size=256 << 20)
    with open_gpu(sim) as device:
        buffer = upload(device, numbers(3))
        expect_equal(download(device, buffer), numbers(3), "a copy")
        port = device.port
        assert isinstance(port, PciPort) and port.chip.vram.usable == 256 << 20
        with pytest.raises(OutOfMemory):
            device.allocator.alloc(200 << 20)
    assert not sim.debug.violations
    sim.close()


def test_a_card_that_still_starts_is_waited_for() -> None:
    sim = AmPciWorld(settle_ns=1_500_000_000)
    with booted(sim, "discovery"):
        assert sim.waiter.now_ns() >= 1_500_000_000
    sim.close()
    late = AmPciWorld(settle_ns=2_500_000_000)
    with pytest.raises(BootTimeout, match="MP0_SMN_C2PMSG_33") as caught, booted(late):
        pass
    assert (caught.value.step, caught.value.last) == ("discovery", 0)
    assert caught.value.seconds == pytest.approx(2, abs=0.1)
    late.close()


class Lying:
    """A function of which some registers read as something else."""

    def __init__(self, inner: PciFunction):
        self._inner = inner
        self.chip: Chip | None = None
        self.reads: dict[str, int] = {}
        self.lost: set[str] = set()
        self.damage: tuple[int, bytes] | None = None

    @property
    def address(self) -> PciAddress:
        return self._inner.address

    @property
    def ids(self) -> PciIds:
        return self._inner.ids

    @property
    def config(self) -> Window:
        return self._inner.config

    @property
    def bars(self) -> Mapping[int, Bar]:
        return self._inner.bars

    def window(self, bar: int) -> Window:
        inner = self._inner.window(bar)

        def read(offset: int, width: int) -> int:
            value = inner.read(offset, width)
            return self.reads.get(self._name(offset), value)

        def write(offset: int, width: int, value: int) -> None:
            if self._name(offset) not in self.lost:
                inner.write(offset, width, value)

        return TrappedWindow(inner.size, read, write, 4)

    def _name(self, offset: int) -> str:
        fixed = {0xDE3 * 4: "MEMSIZE", 0x16061 * 4: "C2PMSG_33"}
        registers = getattr(self.chip, "registers", None)
        known = registers.name_of(offset) if registers is not None else None
        return known.rpartition(".")[2] if known else fixed.get(offset, "")

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        return self._inner.map(bar, offset, size)

    def set_bus_master(self, allowed: bool) -> None:
        self._inner.set_bus_master(allowed)

    def allocate(self, size: int) -> DmaMemory:
        return self._inner.allocate(size)

    def share(self, address: int, size: int) -> DmaMemory:
        return self._inner.share(address, size)

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        return self._inner.interrupts(count)

    def check(self) -> None:
        self._inner.check()

    def resize(self, bar: int, size: int) -> None:
        self._inner.resize(bar, size)

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


ONES = 0xFFFF_FFFF
# What reads wrong, or whose writes are lost; the step that tells, the register, the last value.
WRONG: list[tuple[str, int | None, str, str, int | None]] = [
    ("C2PMSG_33", 0, "discovery", "C2PMSG_33", 0),
    ("C2PMSG_33", ONES, "discovery", "C2PMSG_33", ONES),
    ("MMMC_VM_FB_LOCATION_TOP", 0, "gmc", "FB_LOCATION_TOP", 0),
    ("MMVM_INVALIDATE_ENG17_SEM", 0, "gmc", "ENG17_SEM", 0),
    ("MMVM_INVALIDATE_ENG17_ACK", 0, "gmc", "ENG17_ACK", 0),
    ("MMVM_INVALIDATE_ENG17_ACK", ONES, "gmc", "ENG17_ACK", ONES),
    ("MP0_SMN_C2PMSG_35", 0, "psp", "C2PMSG_35", 0),
    ("MP0_SMN_C2PMSG_35", 0x8000_0005, "psp", "C2PMSG_35", 0x8000_0005),
    ("MP0_SMN_C2PMSG_35", None, "psp", "C2PMSG_81", 0),
    ("MP0_SMN_C2PMSG_81", 0, "psp", "C2PMSG_81", 0),
    ("MP0_SMN_C2PMSG_64", 0, "psp", "C2PMSG_64", 0),
    ("MP0_SMN_C2PMSG_64", 0x8000_0007, "psp", "C2PMSG_64", 0x8000_0007),
    ("MP0_SMN_C2PMSG_67", 3, "psp", "C2PMSG_67", 3),
    ("MP0_SMN_C2PMSG_67", None, "psp", "the fence of LOAD_TOC", 0),
    ("MP1_SMN_C2PMSG_90", 0, "smu", "C2PMSG_90", 0),
    ("MP1_SMN_C2PMSG_90", 0xFF, "smu", "C2PMSG_90", 0xFF),
    ("MP1_SMN_C2PMSG_90", 0xFD, "smu", "C2PMSG_90", 0xFD),
    ("MP1_SMN_C2PMSG_90", 0x77, "smu", "C2PMSG_90", 0x77),
    ("MP1_SMN_C2PMSG_66", None, "smu", "C2PMSG_90", 0),
    ("RLC_RLCS_BOOTLOAD_STATUS", 0, "gfx", "RLC_RLCS_BOOTLOAD_STATUS", 0),
    ("CP_STAT", 1 << 15, "gfx", "CP_STAT", 1 << 15),
    ("GCVM_INVALIDATE_ENG17_ACK", 0, "gfx", "GCVM_INVALIDATE_ENG17_ACK", 0),
]


@pytest.mark.parametrize("name, value, step, register, last", WRONG)
def test_what_goes_wrong_is_told_with_step_register_and_values(
    name: str, value: int | None, step: str, register: str, last: int | None
) -> None:
    sim = AmPciWorld()
    world = world_of(sim)
    lying = Lying(world.pci.open(cards(world)[0]))
    chip = lying.chip = Chip(lying, sim.waiter, load=firmware(sim))
    if value is None:
        lying.lost.add(name)
    else:
        lying.reads[name] = value
    before = sim.waiter.now_ns()
    with pytest.raises(BootError) as caught:
        for _ in boot(chip):
            pass
    error = caught.value
    assert error.step == step and register in error.register
    assert error.last == last and error.wanted
    assert f"during {step}" in str(error) and f"{last:#x}" in str(error)
    bound = next(each.seconds for each in STEPS if each.name == step)
    assert (sim.waiter.now_ns() - before) / 1e9 <= bound + 1
    lying.reads.clear()
    lying.lost.clear()
    close_chip(chip)
    with booted(sim):  # and the next one has it as if nothing had been
        pass
    sim.close()


def test_registers_of_ones_are_no_card() -> None:
    sim = AmPciWorld()
    world = world_of(sim)
    lying = Lying(world.pci.open(cards(world)[0]))
    lying.reads["MEMSIZE"] = ONES
    chip = Chip(lying, sim.waiter, load=firmware(sim))
    with pytest.raises(DeviceError, match=r"read as ones.*in boot step claim"):
        list(boot(chip))
    close_chip(chip)
    sim.close()


def test_a_damaged_table_is_told() -> None:
    sim = AmPciWorld()
    with booted(sim, "claim") as chip:
        size = chip.mmio.read(0xDE3 * 4, 4) << 20
        start = size - (64 << 10)
        window = chip.function.map(0, start, 4096)
        window.write(200, 1, window.read(200, 1) ^ 1)
        with pytest.raises(FormatError, match=r"add up to.*in boot step discovery"):
            list(boot(chip, "discovery"))
    sim.close()


def test_firmware_that_is_missing_or_damaged() -> None:
    sim = AmPciWorld()

    def open_with(change: Callable[[Wanted, bytes], bytes]) -> None:
        device = open_pci(
            *(world_of(sim), 0), load=lambda wanted: change(wanted, sim.firmware[wanted.name])
        )
        device.close()

    def missing(wanted: Wanted, data: bytes) -> bytes:
        raise FirmwareError(f"firmware {wanted.name} is not there")

    with pytest.raises(FirmwareError, match=r"psp_13_0_0_sos.*in boot step psp"):
        open_with(missing)
    for part in ("sos", "smu", "mec", "imu", "rlc", "sdma"):
        with pytest.raises(FormatError, match=rf"{part}.*its header says.*in boot step psp"):
            open_with(lambda wanted, data, part=part: data[: -4 if part in wanted.name else None])
    open_with(lambda wanted, data: data)
    sim.close()


def test_opening_twice_is_refused_and_the_first_goes_on() -> None:
    sim = AmPciWorld()
    with open_gpu(sim) as device:
        with pytest.raises(TransportError):
            open_gpu(sim)
        buffer = upload(device, numbers(4))
        expect_equal(download(device, buffer), numbers(4), "a copy")
    sim.close()


def test_nothing_is_left_behind() -> None:
    sim = AmPciWorld()

    def left() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("\n")

    def use() -> None:
        with open_gpu(sim) as device:
            device.channel("compute", 1)
            device.channel("copy", 1)
            buffer = upload(device, numbers(5))
            expect_equal(download(device, buffer), numbers(5), "a copy")
            buffer.free()

    use()
    before = left()
    for _ in range(8):
        use()
    assert left()[0] == before[0] and left()[1] <= before[1] + 2
    assert not sim.debug.violations
    sim.close()


@pytest.mark.parametrize("at", [step.name for step in STEPS])
def test_a_boot_that_is_broken_off_leaves_nothing(at: str) -> None:
    sim = AmPciWorld()
    with booted(sim, at):
        pass
    with open_gpu(sim) as device:
        expect_equal(download(device, upload(device, numbers(6))), numbers(6), "a copy")
    assert not sim.debug.violations
    sim.close()


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_memory_is_cleared_for_whoever_has_the_card_next(chip: str) -> None:
    sim = AmPciWorld(chip=chip, sound_driver="")  # and so not reset when it is closed
    secret = b"\xa7" * 4096
    with open_gpu(sim) as device:
        port = device.port
        assert isinstance(port, PciPort)
        held = port.memory.hold_video(8192, Access.READ | Access.WRITE, "a secret")
        held.window.store(0, secret)
        place = held.window.address - port.chip.vram.window.address
    with booted(sim, "discovery") as after:
        assert after.vram.window.load(place, 4096) == bytes(4096)
    sim.close()


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_faults_are_told_and_recovered_from(chip: str) -> None:
    sim = AmPciWorld(chip=chip)
    with open_gpu(sim) as device:
        buffer = upload(device, numbers(7))
        nowhere = 0x3000_0000_0000
        point = device.queue("copy").copy(nowhere, buffer, 4).submit(device)
        with pytest.raises(GpuFault, match=r"VMID.*status.*recover\(\)") as caught:
            device.wait(point)
        assert caught.value.address == nowhere
        device.recover()
        expect_equal(download(device, upload(device, numbers(8))), numbers(8), "after a fault")
        expect_equal(download(device, buffer), numbers(7), "memory from before")
    sim.close()


def test_what_was_freed_is_not_reached_any_more() -> None:
    """The TLB keeps what it knows until it is told to drop it."""
    sim = AmPciWorld()
    with open_gpu(sim) as device:
        port, buffer = device.port, upload(device, numbers(9))
        assert isinstance(port, PciPort)
        held = port.memory.hold_video(4096, Access.READ | Access.WRITE, "something")
        device.wait(device.queue("copy").copy(held.address, buffer, 4).submit(device))
        port.memory.drop(held)
        point = device.queue("copy").copy(held.address, buffer, 4).submit(device)
        with pytest.raises(GpuFault, match=r"something.*which was freed"):
            device.wait(point)
    sim.close()


@pytest.mark.parametrize("access", [Access.READ, Access.READ | Access.EXECUTE])
def test_what_may_only_be_read_is_not_written(access: Access) -> None:
    sim = AmPciWorld()
    with open_gpu(sim) as device:
        port, buffer = device.port, upload(device, numbers(9))
        assert isinstance(port, PciPort)
        held = port.memory.hold_video(4096, access, "code")
        point = device.queue("copy").copy(held.address, buffer, 4).submit(device)
        with pytest.raises(GpuFault, match=r"written.*PERMISSION_FAULTS"):
            device.wait(point)
    sim.close()


def test_compute_queues_that_do_not_stop_are_told() -> None:
    sim = AmPciWorld()
    world = world_of(sim)
    lying = Lying(world.pci.open(cards(world)[0]))
    chip = lying.chip = Chip(lying, sim.waiter, load=firmware(sim))
    list(boot(chip))
    port = PciPort(chip, SMALL)
    port.open_queue("compute", 0)
    lying.reads["CP_HQD_ACTIVE"] = 1
    with pytest.raises(BootTimeout, match=r"resetting the compute processor.*CP_HQD_ACTIVE"):
        port.close()
    sim.close()


def test_other_cards_are_refused() -> None:
    sim = AmPciWorld()
    world = world_of(sim)

    class Strange(Lying):
        @property
        def ids(self) -> PciIds:
            return PciIds(0x10DE, 1, 0, 0, 0, 0x030000)

    strange = Strange(world.pci.open(cards(world)[0]))
    with pytest.raises(Unsupported, match="0x10de, not AMD"):
        list(boot(Chip(strange, sim.waiter)))
    strange.close()
    with pytest.raises(GpuError, match="AMD:3 by PCI"):
        open_pci(world, 3)
    sim.close()
