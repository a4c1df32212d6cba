"""Mistakes that were put in are found by the conformance suite or by the checks of this driver."""

from __future__ import annotations

import pytest

from am.kfd_target import KfdTarget
from am.mutations import MUTATIONS
from bounded import bounded
from mutating import assert_finds
from simulated import own_machines

LIMIT = 3.0  # seconds of the processor: a check that hangs has found its mistake


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str) -> None:
    apply, found_by, compute = MUTATIONS[name]
    check = MUTATIONS.checks[found_by]

    def run() -> None:
        with own_machines(), bounded(LIMIT):
            target = KfdTarget(1, "gfx1100", compute, "oldest")
            target.repeats = 60
            check(target)
            assert target.complaints() == []

    assert_finds((found_by, compute), run, apply)
