"""Command buffers without a Mac; and the tests of them find mistakes that are put in."""

from __future__ import annotations

import pytest

from mutating import assert_finds
from unit.metal.checks import CHECKS
from unit.metal.mutations import MUTATIONS


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_promised(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str) -> None:
    apply, found_by, _ = MUTATIONS[name]
    assert_finds(("metal", found_by), CHECKS[found_by], apply)


def test_there_are_enough_and_every_check_finds_some() -> None:
    assert len(MUTATIONS) >= 30
    assert {each.found_by for each in MUTATIONS.values()} == CHECKS.keys()
