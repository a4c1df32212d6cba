"""The host device passes the conformance suite, whatever the order in which its queues run."""

from __future__ import annotations

import pytest

from gpu.hcq.conformance import CHECKS
from hcq.host_target import HostTarget

pytestmark = pytest.mark.timing  # threads, forks and interrupts are among the checks


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CHECKS)
def test_host_device(name: str, seed: int, bits: int) -> None:
    CHECKS[name](HostTarget(seed, bits))
