"""Cards that no kernel driver has pass the conformance suite, on every generation."""

from __future__ import annotations

import pytest

from gpu.hcq.conformance import CHECKS, peers
from nv.rm_target import CardTarget, Coherence
from nv.test_conformance import conforms

# Chip, seed of the model's choices, how caches behave.
WORLDS: list[tuple[str, int, Coherence]] = [
    ("gh100", 11, "check"),
    ("ga102", 13, "oldest"),
    ("ad102", 14, "check"),
    ("gb202", 15, "oldest"),
]
# Two cards copy through the machine's memory.
NAMES = [name for name, check in CHECKS.items() if check not in peers.CHECKS]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)))
@pytest.mark.parametrize("name", NAMES)
def test_cards(name: str, world: tuple[str, int, Coherence]) -> None:
    chip, seed, coherence = world
    conforms(CardTarget, name, chip, seed, coherence)
