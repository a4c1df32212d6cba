"""Cards that the driver boots itself pass the conformance suite, on the model of a chip."""

from __future__ import annotations

import gc
from typing import Literal

import pytest

from am.pci_target import PciTarget
from bounded import bounded
from gpu.core.errors import Unsupported
from gpu.hcq.conformance import CHECKS, commands, peers
from gpu.hcq.conformance.kit import numbers, upload

Coherence = Literal["check", "oldest"]

# Chip, seed of the model's choices, how caches behave.
WORLDS: list[tuple[str, int, Coherence]] = [("gfx1100", 1, "oldest"), ("gfx1201", 4, "check")]
# These do commands alone.
OTHER_WORLDS: list[tuple[str, int, Coherence]] = [
    ("gfx1100", 2, "check"),
    ("gfx1101", 3, "oldest"),
    ("gfx1102", 5, "check"),
    ("gfx1200", 6, "oldest"),
    ("gfx1201", 7, "oldest"),
]
# Two cards copy through the machine's memory.
NAMES = [name for name, check in CHECKS.items() if check not in peers.CHECKS]
COMMANDS = [check.__name__ for check in commands.CHECKS]


@pytest.mark.sampled(60)
@pytest.mark.parametrize(
    "name, world",
    [(name, world) for world in WORLDS for name in NAMES]
    + [(name, world) for world in OTHER_WORLDS for name in COMMANDS],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_card(name: str, world: tuple[str, int, Coherence]) -> None:
    chip, seed, coherence = world
    if name == "interrupts":
        gc.collect()  # a finalizer of what other tests left would swallow the one interrupt
    target = PciTarget(seed, chip, coherence)
    with bounded(60):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()


def test_cards_do_not_reach_each_other() -> None:
    target = PciTarget()
    with target.open() as owner, target.open() as peer:
        there = upload(owner, numbers(1))
        with pytest.raises(Unsupported, match="does not reach memory of other cards"):
            there.map_to(peer)
    target.close()
