"""The checks of this driver, on two chips and both kinds of compute queue."""

from __future__ import annotations

import pytest

from am.checks import CHECKS
from am.kfd_target import KfdTarget
from gpu.drivers.am.kfd.port import ComputeKind


@pytest.mark.parametrize("chip, compute", [("gfx1100", "pm4"), ("gfx1201", "aql")])
@pytest.mark.parametrize("name", CHECKS)
def test_kfd(name: str, chip: str, compute: ComputeKind) -> None:
    target = KfdTarget(1, chip, compute, "oldest")
    CHECKS[name](target)
    left = [] if name == "resets_are_told" else target.complaints()  # a reset leaves the queue
    assert left == []
    target.close()
