"""GPUs behind a simulated KFD pass the conformance suite, on every kind of queue."""

from __future__ import annotations

import gc
from typing import Literal

import pytest

from am.kfd_target import KfdTarget
from bounded import bounded
from gpu.drivers.am.kfd.port import ComputeKind
from gpu.hcq.conformance import CHECKS, commands

Coherence = Literal["check", "oldest"]

# Chip, what its compute queues read, seed of the model's choices, how caches behave.
WORLDS: list[tuple[str, ComputeKind, int, Coherence]] = [
    ("gfx1100", "pm4", 1, "oldest"),
    ("gfx1201", "aql", 4, "oldest"),
    ("gfx942", "aql", 2, "oldest"),
    ("gfx1030", "aql", 5, "oldest"),
]
# These do commands alone.
OTHER_WORLDS: list[tuple[str, ComputeKind, int, Coherence]] = [
    ("gfx1030", "pm4", 3, "check"),
    ("gfx1201", "pm4", 6, "oldest"),
    ("gfx950", "aql", 7, "oldest"),
]
COMMANDS = [check.__name__ for check in commands.CHECKS]


@pytest.mark.parametrize(
    "name, world",
    [(name, world) for world in WORLDS for name in CHECKS]
    + [(name, world) for world in OTHER_WORLDS for name in COMMANDS],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_kfd(name: str, world: tuple[str, ComputeKind, int, Coherence]) -> None:
    chip, compute, seed, coherence = world
    if name == "interrupts":
        gc.collect()  # a finalizer of what other tests left would swallow the one interrupt
    target = KfdTarget(seed, chip, compute, coherence)
    with bounded(30):
        CHECKS[name](target)
    assert target.complaints() == []
    target.close()
