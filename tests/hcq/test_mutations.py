"""Every check of the conformance suite can fail: mistakes that were put in are found."""

from __future__ import annotations

import pytest

from bounded import bounded
from gpu.hcq.conformance import CHECKS
from hcq.host_target import HostTarget
from hcq.mutations import MUTATIONS
from mutating import assert_finds

# Orders of execution, and widths of signals; some mistakes show in some of them only.
WORLDS = [(seed, bits) for seed in range(4) for bits in (32, 64)]


LIMIT = 3.0  # seconds of the processor: a check that hangs has found its mistake


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str) -> None:
    apply, found_by, _ = MUTATIONS[name]

    def run() -> None:
        for seed, bits in WORLDS:
            with bounded(LIMIT):
                CHECKS[found_by](HostTarget(seed, bits))

    assert_finds(found_by, run, apply)


def test_every_check_finds_something() -> None:
    idle = {"launches", "bound_copies", "mapped_host_memory", "threads", "collections", "profiles"}
    assert set(CHECKS) - {mutation.found_by for mutation in MUTATIONS.values()} == idle
