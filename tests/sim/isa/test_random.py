"""Random programs on the host and on the lane engine; see random_run for more of them."""

from __future__ import annotations

import pytest

from sim.isa.random_run import difference


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_programs_agree_with_the_host(first: int) -> None:
    found = [difference(seed) for seed in range(first, first + 10)]
    assert not any(found), "\n".join(text for text in found if text)
