"""A card behind the bridge from power-on to copies, by the protocol alone."""

from __future__ import annotations

import random
import struct

import pytest

from sim.amd_pci.client import MAPPED, MIB
from sim.usb.client import BULK_IN, BULK_OUT, SRAM_AT, UsbClient

SIZE, PAGE = 64 << 10, 0x1000
RING, DATA = 9 * MIB, 32 * MIB
VA = 0x4000_0000
RING_VA, RPTR, DATA_VA, SRAM_VA, PAGE_VA = (VA + n * MIB for n in range(5))
SYSTEM = MAPPED | 2
POLL_EQUAL = 3 << 28 | 1 << 31 | 8
GO = 0x100
FENCE_AT, COMPLETION_PAGE = 0x820000, 0x822000


def pair(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_64_kib_from_the_host_through_the_card_and_back(chip: str) -> None:
    """Bulk OUT to SRAM, which a copy engine waits for; to VRAM, back to SRAM, bulk IN."""
    client = UsbClient(chip, seed=len(chip), train_ns=50_000_000)
    bridge = client.bridge
    client.boot()
    client.start_engines()
    root = client.start_memory(1)
    client.map(root, RING_VA, RING)
    client.map(root, RPTR, RING + PAGE)
    for at in range(0, SIZE, PAGE):
        client.map(root, DATA_VA + at, DATA + at)
    for at in range(0, 2 * SIZE, PAGE):
        client.map(root, SRAM_VA + at, SRAM_AT + at, SYSTEM)
    client.map(root, PAGE_VA, FENCE_AT, SYSTEM)
    client.map(root, PAGE_VA + PAGE, COMPLETION_PAGE, SYSTEM)
    client.invalidate("GFXHUB", 1)
    doorbell = client.make_copy_queue(RING_VA, RPTR, vmid=1)
    data = random.Random(chip).randbytes(SIZE - 4) + struct.pack("<I", 0x51000001)
    wait = [POLL_EQUAL, *pair(SRAM_VA + SIZE - 4), 0x51000001, 0xFFFFFFFF, 0xFFF << 16 | 4]
    inward = [1, SIZE - 1, 0, *pair(SRAM_VA), *pair(DATA_VA)]
    outward = [1, SIZE - 1, 0, *pair(DATA_VA), *pair(SRAM_VA + SIZE)]
    fence = [5, *pair(PAGE_VA + 0x800), 7]
    go = [POLL_EQUAL, *pair(RPTR + GO), 1, 0xFFFFFFFF, 0xFFF << 16 | 4]
    packets = [*wait, *inward, *outward, *fence, *go, 5, *pair(PAGE_VA + PAGE + 12), 0]
    client.vram.store(RING, struct.pack(f"<{len(packets)}I", *packets))
    client.flush()
    client.ring_doorbell(doorbell, 4 * len(packets))
    assert bridge.read(0xA800) == b"\0"
    bridge.arm(SIZE)
    bridge.device.bulk_out(BULK_OUT, data)
    while bridge.read(0xA800) != b"\7":
        client.world.waiter.idle(10_000)
    assert client.vram.load(DATA, SIZE) == data
    bridge.arm(SIZE, slot=4, to_host=True)
    client.vram.write(RING + PAGE + GO, 4, 1)
    client.flush()
    assert bridge.device.bulk_in(BULK_IN, SIZE) == data
    assert not bridge.violations and not client.world.debug.faults
    client.close()
