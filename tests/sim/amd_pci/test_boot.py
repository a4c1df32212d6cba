"""A card from power-on to running firmware, through VFIO, on each chip."""

from __future__ import annotations

import pytest

from gpu.sim.amd.pci.boards import BOARDS
from gpu.sim.linecaches import Mode
from sim.amd_pci.client import Client


@pytest.mark.parametrize("coherence", ["check", "oldest"])
@pytest.mark.parametrize("chip", BOARDS)
def test_cold_boot(chip: str, coherence: Mode) -> None:
    client = Client(chip, coherence=coherence)
    client.boot()
    assert not client.violations
    assert client.message(1, 41) == (1, 42)
    client.close()


def test_cold_boot_where_blocks_are_elsewhere() -> None:
    client = Client(moved=0x40)
    client.boot()
    assert not client.violations
    client.registers.read(4 * (0xA000 + 0x4E82), 4)
    client.told("which this chip does not have")
    client.close()
