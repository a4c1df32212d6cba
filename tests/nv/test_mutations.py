"""Mistakes that were put in are found by the conformance suite or by the checks of this driver."""

from __future__ import annotations

import pytest

from bounded import bounded
from mutating import assert_finds
from nv.checks import OWN
from nv.mutations import MUTATIONS
from nv.rm_target import RmTarget
from simulated import own_machines

LIMIT = 6.0  # seconds of the processor: a check that hangs has found its mistake


def run(check: str) -> None:
    with own_machines(), bounded(LIMIT):
        target = RmTarget(1, "gh100", "oldest")
        MUTATIONS.checks[check](target)
        assert target.complaints() == []


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str) -> None:
    apply, found_by, _ = MUTATIONS[name]
    assert_finds(found_by, lambda: run(found_by), apply)


@pytest.mark.parametrize("name", OWN)
def test_check(name: str) -> None:
    run(name)


def test_driver_and_model_have_enough() -> None:
    assert len(MUTATIONS) >= 40
    assert set(OWN) <= {mutation.found_by for mutation in MUTATIONS.values()}
