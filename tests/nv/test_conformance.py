"""GPUs behind NVIDIA's simulated kernel driver pass the conformance suite, on every generation."""

from __future__ import annotations

import gc
from typing import Literal

import pytest

from bounded import bounded
from gpu.core.errors import Unsupported
from gpu.hcq.conformance import CHECKS
from nv.rm_target import RmTarget

Coherence = Literal["check", "oldest"]

# Chip, seed of the model's choices, how caches behave.
WORLDS: list[tuple[str, int, Coherence]] = [
    ("gh100", 1, "oldest"),
    ("ga102", 3, "oldest"),
    ("ad102", 4, "check"),
    ("gb202", 5, "oldest"),
]

NOT_RUN = {
    "memory_commands": "polling with == and mask 0xf0",  # semaphores compare whole words
}
"""Checks that this driver cannot pass, and what it says instead; `test_polls` has whole words."""


def conforms(kind: type[RmTarget], name: str, chip: str, seed: int, coherence: Coherence) -> None:
    """Devices of a target pass a check, or say what they cannot do."""
    if name == "interrupts":
        gc.collect()  # a finalizer of what other tests left would swallow the one interrupt
    target = kind(seed, chip, coherence)
    with bounded(30):
        if name in NOT_RUN:
            with pytest.raises(Unsupported, match=NOT_RUN[name]):
                CHECKS[name](target)
        else:
            CHECKS[name](target)
    assert target.complaints() == []
    target.close()


@pytest.mark.sampled(60)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)))
@pytest.mark.parametrize("name", CHECKS)
def test_rm(name: str, world: tuple[str, int, Coherence]) -> None:
    chip, seed, coherence = world
    conforms(RmTarget, name, chip, seed, coherence)
