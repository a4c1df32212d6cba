"""Random programs on the host and on the lane engine; see random_run for more of them."""

from __future__ import annotations

import pytest

from sim.isa.random_run import PACK, differences

SAMPLE = 224
"""Programs that are run here; ``python -m sim.isa.random_run`` runs as many as one likes."""


PLACES = [
    *((first, 32) for first in range(0, SAMPLE, PACK)),
    *((first, 64) for first in range(SAMPLE, SAMPLE + SAMPLE // 2, PACK)),
]


@pytest.mark.parametrize(("first", "lanes"), PLACES)
def test_random_programs_agree_with_the_host(first: int, lanes: int) -> None:
    assert not list(differences(range(first, first + PACK), lanes=lanes))
