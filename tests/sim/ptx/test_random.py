"""Random programs on the host and on the lane engine; see random_run for more of them."""

from __future__ import annotations

import pytest

from sim.ptx.random_run import differences


@pytest.mark.parametrize("chip", ["sm_70", "sm_80", "sm_90"])
def test_random_programs_agree_with_the_host(chip: str) -> None:
    first = 100 * int(chip[3:])
    found = list(differences(range(first, first + 8), chip=chip))
    assert not found, "\n".join(found)
