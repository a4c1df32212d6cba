"""What a device leaves in video memory for whoever opens the card next: nothing."""

from __future__ import annotations

import gc

import pytest

from gpu.core.errors import OutOfMemory
from gpu.drivers.boot import Done
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.pci import gpu as gpu_module
from gpu.drivers.nv.pci.boot import BootCard, close_card
from gpu.drivers.nv.pci.boot import boot as boot_card
from gpu.drivers.nv.pci.gpu import open_card
from gpu.drivers.nv.pci.memory import Vram
from gpu.drivers.nv.port import QueueOptions, port_of
from gpu.hcq.ports import MemoryKind
from gpu.sim.kernel import data_pieces
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.sim.physical import Extent
from gpu.sim.process import SimOs, SimProcess
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World
from nv.test_pci_boot import CHIPS, load_of, machine

MARK = b"\x5a\xa5" * 32
SIZES = (4096, 300_000, 3 << 20)


def opened(sim: NvPciWorld, world: World | None = None) -> RmDevice:
    world = world or World(sim.os, sim.waiter, HostPci(sim.os))
    return RmDevice(port_of(open_card(world, 0, load=load_of(sim)), QueueOptions()))


def another(sim: NvPciWorld) -> tuple[RmDevice, SimProcess]:
    """A device of a process of its own."""
    process = sim.new_process()
    system = SimOs(process)
    return opened(sim, World(system, sim.waiter, HostPci(system))), process


def fill(device: RmDevice) -> list[object]:
    """Buffers of all sizes that are full of a mark, on the card."""
    buffers = [device.allocator.alloc(size) for size in SIZES]
    for buffer in buffers:
        marks = MARK * (buffer.size // len(MARK) + 1)
        device.allocator.copy_in(buffer, marks[: buffer.size])
    device.synchronize()
    return list(buffers)


def marked(sim: NvPciWorld) -> bool:
    """Whether the mark is anywhere in video memory."""
    vram = sim.gpus[0].chip.vram
    pieces = data_pieces(vram._fd, 0, vram.size)
    return any(MARK in vram.load(offset, size) for offset, size in pieces)


def remember(sim: NvPciWorld) -> None:
    """Resets of the card leave its memory as it was: whether they do nobody publishes."""
    vram = sim.gpus[0].chip.vram
    forget, whole = vram.forget, (Extent(0, vram.size),)

    def forget_part(extents: tuple[Extent, ...]) -> None:
        if extents != whole:
            forget(extents)

    vram.forget = forget_part  # type: ignore[method-assign]


def check_zeros(device: RmDevice) -> None:
    """What is allocated holds nothing."""
    for size in (*SIZES, *SIZES):
        assert not any(device.allocator.copy_out(device.allocator.alloc(size)))


@pytest.mark.sampled(25)
@pytest.mark.parametrize("chip", CHIPS)
def test_what_is_given_back_is_cleared(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed before, and still there when the device is closed."""
    left = []

    def close(card: BootCard) -> None:  # VFIO resets the card then, other roads do not
        left.append(marked(sim))
        close_card(card)

    monkeypatch.setattr(gpu_module, "close_card", close)
    with machine(chip) as sim:
        device = opened(sim)
        buffers = fill(device)
        assert marked(sim)
        del buffers[1]
        gc.collect()
        device.allocator.free_cache()
        device.close()
        assert left == [False]
        assert not sim.debug.violations
        assert not sim.gpus[0].gpu.channels


@pytest.mark.sampled(25)
@pytest.mark.parametrize("chip", CHIPS)
def test_who_opens_a_card_after_a_kill_sees_zeros(chip: str) -> None:
    with machine(chip) as sim:
        remember(sim)
        device, process = another(sim)
        buffers = fill(device)
        process.exit()
        assert buffers and marked(sim)
        device, _ = another(sim)
        check_zeros(device)
        device.close()
        assert not sim.debug.violations


RECORD = {"opening": 141, "first allocation": 44, "allocation": 5, "free": 5}
"""Accesses of registers behind a boot; the first allocation opens what clears memory."""


@pytest.mark.parametrize("chip", ["ga102", "gb202"])
def test_nothing_has_more_accesses_than_it_had(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than a tenth; fewer are a record to be written down."""
    cards: list[tuple[BootCard, int]] = []

    def boot(card: BootCard) -> list[Done]:
        done = list(boot_card(card))
        cards.append((card, card.accesses))
        return done

    monkeypatch.setattr(gpu_module, "boot", boot)
    with machine(chip, seed=7) as sim:
        device = opened(sim)
        ((card, before),) = cards
        found = {}

        def count(name: str) -> None:
            nonlocal before
            found[name], before = card.accesses - before, card.accesses

        count("opening")
        for name in ("first allocation", "allocation"):
            memory = device.exclusively(device.allocate, 4096, MemoryKind.VRAM)
            count(name)
        device.exclusively(device.release, memory)
        count("free")
        device.close()
    assert found.keys() == RECORD.keys()
    assert {name for name, times in found.items() if times > 1.1 * RECORD[name]} == set()


def test_what_there_is_no_room_for_is_not_cleared_at_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has used it; where BAR 1 shows all memory that would be all of the card's."""
    cleared = 0
    clear = Vram.clear

    def counted(self: Vram, place: int, size: int) -> None:
        nonlocal cleared
        cleared += size
        if cleared < 1 << 30:  # the model's memory would fill the machine's
            clear(self, place, size)

    with machine("gh100") as sim:
        device = opened(sim)
        monkeypatch.setattr(Vram, "clear", counted)
        with pytest.raises(OutOfMemory):
            device.exclusively(device.allocate, 2 * sim.gpus[0].chip.vram.size, MemoryKind.VRAM)
        device.close()
    assert cleared < 1 << 30
