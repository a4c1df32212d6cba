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
from nv.test_pci_boot import NAMES, WITH_FALCONS, WITH_FSP, load_of, machine


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


RECORD = {
    **{
        chip: {"claim": 2, "state": 1, "ready": 2, "memory": 3, "arguments": 7, "protect": 144}
        for chip in WITH_FALCONS
    },
    **{
        chip: {"claim": 2, "state": 1, "ready": 1, "memory": 3, "arguments": 2, "protect": 248}
        for chip in WITH_FSP
    },
}
"""Accesses of registers that steps of a boot have; what FWSEC is takes one for each word of it."""
LAST = {"ga102": (2435, 237), "ad102": (2566, 238), "gh100": (0, 36), "gb202": (0, 36)}
"""Of the steps that differ from chip to chip: images, start."""


@pytest.mark.parametrize("chip", LAST)
def test_no_step_has_more_accesses_than_it_had(chip: str) -> None:
    """By more than a tenth; fewer are a record to be written down."""
    images, start = LAST[chip]
    record = {**RECORD[chip], "reset": 0, "images": images, "start": start, "init": 0}
    found = accesses(chip)
    assert found.keys() == record.keys()
    assert {name for name, count in found.items() if count > 1.1 * record[name]} == set()


WAYS = (*((chip, by_kill) for chip in WITH_FSP for by_kill in (False, True)), ("ga102", False))
"""Ada's boot is Ampere's with one step more, so that each has one of the two ends."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chip,by_kill", [*WAYS, ("ad102", True)])
def test_what_was_broken_off_boots_again(chip: str, name: str, by_kill: bool) -> None:
    """At the beginning of a step, within it, and behind it; nothing of it is left.

    Within it alone where a boot takes long, as with falcons.
    """
    count = accesses(chip)[name]
    places = {0, count // 2, count} if chip in WITH_FSP else {count // 2}
    with machine(chip) as sim:
        for at in sorted(places):
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
