"""Which bridges are plugged in, and opening one by what firmware its USB id tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.core.errors import DeviceError, InvalidIndex
from gpu.transport.asm24.bridge import Bridge
from gpu.transport.asm24.open import OpenBridge
from gpu.transport.asm24.stock import StockBridge
from gpu.transport.missing import Lack
from gpu.transport.usb import UsbBus, UsbId

OPEN: Final = ((0xADD1, 0x0001), (0x3801, 0x0001))
"""Vendor and product of bridges with the open firmware."""
_ASMEDIA: Final = 0x174C
STOCK: Final = tuple(
    (_ASMEDIA, product) for product in (*range(0x2360, 0x2370), *range(0x2460, 0x2470))
)
"""The same with the maker's: ASM236x and ASM246x."""


NO_BRIDGE: Final = Lack(
    "no bridge from USB to PCI is plugged in",
    "`lsusb` shows an ASM2464PD as add1:0001 or 3801:0001 with open firmware, as 174c:246x with its"
    " maker's. In a USB4 or Thunderbolt port its card is on the PCI bus: DEV=PCI+AMD",
)


def list_bridges(bus: UsbBus) -> Sequence[UsbId]:
    """Bridges that are plugged in, in order; nothing is opened. Raises Unsupported."""
    known = (*OPEN, *STOCK)
    return [device for device in bus.list_devices() if (device.vendor, device.product) in known]


def is_stock(bus: UsbBus, index: int) -> bool:
    """Whether there is a bridge at a place that has its maker's firmware. Raises Unsupported."""
    found = list_bridges(bus)[index : index + 1]
    return any((device.vendor, device.product) in STOCK for device in found)


def open_bridge(bus: UsbBus, index: int) -> Bridge:
    """One of them, by its place. Raises DeviceError, InvalidIndex; what opening raises."""
    found = list_bridges(bus)
    if not found:
        raise DeviceError(str(NO_BRIDGE))
    if not 0 <= index < len(found):
        raise InvalidIndex(f"bridge {index}: there are {', '.join(map(str, found))}")
    chosen = found[index]
    device = bus.open(chosen)
    try:
        if (chosen.vendor, chosen.product) in OPEN:
            return OpenBridge(device)
        return StockBridge(device)
    except BaseException:
        device.close()
        raise
