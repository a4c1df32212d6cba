"""What a device leaves in video memory for whoever opens the card next: nothing."""

from __future__ import annotations

import gc

import pytest

from am.pci_target import PciTarget
from gpu.drivers.am.pci import port as port_module
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.port import PciPort, close_chip

MARK = b"\x5a\xa5" * 32


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_freed_memory_is_cleared_too(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = PciTarget(2, chip)
    vram = target.sim.gpus[0].chip.vram
    device = target.open_gpu(0)
    assert isinstance(device.port, PciPort)
    start = device.port.chip.vram.take(4096)
    device.port.chip.vram.free(start)
    left: list[bytes] = []

    def close(chip: Chip) -> None:  # VFIO resets the card then, other roads do not
        left.append(vram.load(start, 8 << 20))
        close_chip(chip)

    monkeypatch.setattr(port_module, "close_chip", close)
    buffers = [device.allocator.alloc(size) for size in (4096, 300_000, 70_000)]
    for buffer in buffers:
        device.allocator.copy_in(buffer, (MARK * (buffer.size // len(MARK) + 1))[: buffer.size])
    device.synchronize()
    assert MARK in vram.load(start, 2 << 20)
    del buffers[1], buffer
    gc.collect()
    device.allocator.free_cache()
    device.close()
    assert len(left) == 1 and MARK not in left[0]
    assert target.complaints() == []
    target.close()
