"""A card from power-on to running firmware, through VFIO, on each chip."""

from __future__ import annotations

import pytest

from gpu.sim.amd.pci.boards import BOARDS
from sim.amd_pci.client import Client


@pytest.mark.parametrize("coherence", ["check", "oldest"])
@pytest.mark.parametrize("chip", BOARDS)
def test_cold_boot(chip: str, coherence: str) -> None:
    client = Client(chip, coherence=coherence)  # type: ignore[arg-type]
    client.boot()
    assert not client.violations
    assert client.message(1, 41) == (1, 42)
    client.close()
