"""Registers that say the same whatever happens: a boot ends by a typed error, in bounded time."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Final

import pytest

from gpu.core.errors import GpuError
from gpu.drivers.nv.pci import boot, booter
from gpu.drivers.nv.pci.boot import STEPS, close_card
from gpu.drivers.nv.pci.vbios import Vbios, read_vbios
from gpu.sim.nv.pci.vbios import make_rom
from gpu.sim.nv.pci.world import NvPciWorld
from nv.test_pci_boot import machine, take

ONES: Final = 0xFFFFFFFF
PRIVILEGE: Final = 0xBADF5040
ROM: Final = range(0x300000, 0x400000)
LEAST: Final = {"ga102": 15, "gh100": 8}
"""How many of those that are tried end a boot; others are registers that nobody needs.

Of all three values of each, 70 of 102 and 37 of 45 did.
"""
LONGEST: Final = sum(step.seconds for step in STEPS) + 10.0


@cache
def vbios_of(chip: str) -> Vbios:
    """A card's, read once, as that takes most of a boot."""
    with machine(chip) as sim:
        data = make_rom(sim.gpus[0].chip.board).data
    return read_vbios(lambda at: int.from_bytes(data[at : at + 4], "little"))


def watch(sim: NvPciWorld, seen: set[int], stuck: dict[int, int]) -> None:
    """Notes which registers are read; some have a value that nothing changes."""
    regs = sim.gpus[0].chip.regs
    read = regs.read

    def watched(offset: int, width: int) -> int:
        seen.add(offset)
        return stuck[offset] if offset in stuck else read(offset, width)

    regs.read = watched  # type: ignore[method-assign]


def run(sim: NvPciWorld) -> GpuError | None:
    """A boot, and giving the card back; what ended it."""
    card = take(sim)
    ended = None
    try:
        for _ in boot.boot(card):
            pass
    except GpuError as error:
        ended = error
    try:
        close_card(card)
    except GpuError as error:
        ended = ended or error
    return ended


@pytest.mark.parametrize("chip", LEAST)
def test_each_register_that_is_stuck(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one of ones, zeros and what a card says that keeps a register to itself."""
    rng = Random(20_261_123)
    if chip == "ga102":
        monkeypatch.setattr(booter, "read_vbios", lambda word: vbios_of(chip))
    seen: set[int] = set()
    with machine(chip) as sim:
        watch(sim, seen, {})
        assert run(sim) is None
    ended = 0
    for offset in sorted(each for each in seen if each not in ROM):
        value = rng.choice((0, ONES, PRIVILEGE))
        with machine(chip) as sim:
            watch(sim, set(), {offset: value})
            before = sim.clock.now_ns
            error = run(sim)
            ended += error is not None
            assert sim.clock.now_ns - before < LONGEST * 1e9, (hex(offset), hex(value))
            assert error is None or error.message
    assert ended >= LEAST[chip], ended
