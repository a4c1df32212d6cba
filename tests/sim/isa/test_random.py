"""Random programs on the host and on the lane engine; see random_run for more of them."""

from __future__ import annotations

import pytest

from sim.isa.random_run import PACK, differences

SAMPLE = 96
"""Programs that are run here; ``python -m sim.isa.random_run`` runs as many as one likes."""


PLACES = [
    *((first, 32, "gfx1100") for first in range(0, SAMPLE, PACK)),
    *((first, 64, "gfx1100") for first in range(SAMPLE, SAMPLE + SAMPLE // 2, PACK)),
    *((first, 32, "gfx1201") for first in range(SAMPLE, SAMPLE + SAMPLE // 4, PACK)),
    *((2 * SAMPLE, lanes, chip) for lanes, chip in ((64, "gfx1201"), (32, "gfx1151"))),
    (3 * SAMPLE, 32, "gfx1030"),
    (4 * SAMPLE, 64, "gfx942"),
    (5 * SAMPLE, 64, "gfx950"),
]


@pytest.mark.parametrize(("first", "lanes", "chip"), PLACES)
def test_random_programs_agree_with_the_host(first: int, lanes: int, chip: str) -> None:
    assert not list(differences(range(first, first + PACK), lanes=lanes, chip=chip))
