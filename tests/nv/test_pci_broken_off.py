"""A boot that ends in the midst of any step, by an exception or with its process, and the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from am.test_pci_broken_off import Broken, breaking
from gpu.drivers.boot import walk
from gpu.drivers.nv.pci.boot import STEPS, BootCard, boot, close_card, take_card
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.sim.process import SimOs
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World
from nv.test_pci_boot import CHIPS, NAMES, load_of, machine


def taken(sim: NvPciWorld) -> tuple[BootCard, Callable[[], object]]:
    """The card as a process of its own has it, and what kills that."""
    process = sim.new_process()
    system = SimOs(process)
    world = World(system, sim.waiter, HostPci(system))
    return take_card(world, 0, load_of(sim)), process.exit


@cache
def accesses(chip: str) -> dict[str, int]:
    """How many each step has."""
    with machine(chip) as sim:
        card, _ = taken(sim)
        counts = {done.name: done.accesses for done in boot(card)}
        close_card(card)
    return counts


@pytest.mark.parametrize("by_kill", [False, True], ids=["exception", "kill"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chip", CHIPS)
def test_what_was_broken_off_boots_again(chip: str, name: str, by_kill: bool) -> None:
    """At the beginning of a step, within it, and behind it; nothing of it is left."""
    count = accesses(chip)[name]
    with machine(chip) as sim:
        for at in sorted({0, count // 2, count}):
            card, kill = taken(sim)
            with pytest.raises(Broken):
                list(walk(card, [breaking(s, at) if s.name == name else s for s in STEPS]))
            if by_kill:
                kill()
            else:
                close_card(card)
            card, _ = taken(sim)
            assert [done.name for done in boot(card)] == NAMES
            close_card(card)
        assert not sim.debug.violations
