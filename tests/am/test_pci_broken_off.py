"""A boot that ends in the midst of any step, by an exception or with its process, and the next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import TypeVar

import pytest

from am.test_pci_boot import SMALL, booted, firmware
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.pci import port
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.port import boot, cards, open_pci
from gpu.drivers.am.pci.steps import STEPS
from gpu.drivers.boot import BootTimeout, Step, walk
from gpu.drivers.card import PciCard
from gpu.hcq.conformance.kit import download, expect_equal, numbers, upload
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.sim.process import SimOs
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World

C = TypeVar("C", bound=PciCard)

# Chip, and who has its sound: without vfio-pci there the card is not reset when it is closed.
CASES = [("gfx1100", "vfio-pci"), ("gfx1100", ""), ("gfx1201", "")]


class Broken(BaseException):
    """What ends a boot; as Ctrl-C no error of this package."""


def breaking(step: Step[C], after: int) -> Step[C]:
    """A step that ends so after some accesses of registers, or when it is over."""

    def run(chip: C) -> None:
        left = after

        def count(_: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                chip.listener = None
                raise Broken

        chip.listener = count
        step.run(chip)
        chip.listener = None
        raise Broken

    return replace(step, run=run)


def broken_in(name: str, at: int) -> list[Step[Chip]]:
    """The steps of a boot that ends within one of them."""
    return [breaking(step, at) if step.name == name else step for step in STEPS]


@cache
def places(chip: str) -> dict[str, list[int]]:
    """After how many accesses each step is broken off: at its beginning, within, behind."""
    with closing(AmPciWorld(chip=chip)) as sim, booted(sim, "claim") as card:
        counts = {done.name: done.accesses for done in boot(card)}
    return {name: sorted({0, count // 3, count}) for name, count in counts.items()}


def world_of(sim: AmPciWorld) -> tuple[World, Callable[[], object]]:
    """The machine as a process of its own sees it, and what kills that."""
    process = sim.new_process()
    system = SimOs(process)
    return World(system, sim.waiter, HostPci(system)), process.exit


def open_gpu(sim: AmPciWorld, world: World) -> AmDevice:
    small = {"command_memory": 8192, "staging": 8192}
    return open_pci(world, 0, options=SMALL, load=firmware(sim), **small)


@pytest.mark.sampled(34)
@pytest.mark.parametrize("name", [step.name for step in STEPS])
@pytest.mark.parametrize("chip, sound_driver", CASES)
def test_after_an_exception_it_opens(
    chip: str, name: str, sound_driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was open is closed by whoever opened it."""
    for at in places(chip)[name]:
        with closing(AmPciWorld(chip=chip, sound_driver=sound_driver)) as sim:
            world, _ = world_of(sim)
            with monkeypatch.context() as patch, pytest.raises(Broken):
                patch.setattr(port, "STEPS", broken_in(name, at))
                open_gpu(sim, world)
            _use(sim, world, name == "psp" and not sound_driver)


@pytest.mark.sampled(34)
@pytest.mark.parametrize("name", [step.name for step in STEPS])
@pytest.mark.parametrize("chip, sound_driver", CASES)
def test_after_a_kill_it_opens(chip: str, name: str, sound_driver: str) -> None:
    """The kernel closes what the process had; nothing of the driver's runs any more."""
    for at in places(chip)[name]:
        with closing(AmPciWorld(chip=chip, sound_driver=sound_driver)) as sim:
            world, kill = world_of(sim)
            card = Chip(world.pci.open(cards(world)[0]), sim.waiter, load=firmware(sim))
            with pytest.raises(Broken):
                list(walk(card, broken_in(name, at)))
            kill()
            _use(sim, world_of(sim)[0], name == "psp" and not sound_driver)


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_after_a_reset_that_was_broken_off_it_opens(chip: str, at: int) -> None:
    """A card that runs is reset: it is killed there, when nothing of the card answers too."""
    with closing(AmPciWorld(chip=chip, sound_driver="")) as sim:
        world, kill = world_of(sim)
        open_gpu(sim, world).close()
        card = Chip(world.pci.open(cards(world)[0]), sim.waiter, load=firmware(sim))
        with pytest.raises(Broken):
            list(walk(card, broken_in("reset", at)))
        assert card.state == "alive"
        kill()
        sim.waiter.idle(1_000_000)  # no other process starts sooner
        _use(sim, world_of(sim)[0], False)


def _use(sim: AmPciWorld, world: World, is_left_so: bool) -> None:
    """Opens it, computes, and closes it; `is_left_so` is in the midst of the boot loader's work."""
    try:
        device = open_gpu(sim, world)
    except BootTimeout as error:
        # Its boot loader was left in the midst of a start, and nothing had it reset.
        assert is_left_so and "C2PMSG_35" in error.register
        assert "gpu pci take" in error.message and "switch" in error.message
        return
    with device:
        expect_equal(download(device, upload(device, numbers(6))), numbers(6), "a copy")
    loader = "PSP bootloader" if is_left_so else None  # from MP0 14 on it goes on, with others
    assert not [each for each in sim.debug.violations if not (loader and loader in each)]
