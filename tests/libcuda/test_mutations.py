"""Mistakes that were put into the CUDA backend are found, each by the test that is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libcuda.checks import CHECKS
from libcuda.mutations import MUTATIONS
from mutating import assert_finds


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistake_is_found(name: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    apply, found_by, _ = MUTATIONS[name]
    assert_finds(("libcuda", found_by), CHECKS[found_by], apply)


def test_there_are_enough_and_every_check_finds_some() -> None:
    assert len(MUTATIONS) >= 30
    assert {each.found_by for each in MUTATIONS.values()} == CHECKS.keys()
