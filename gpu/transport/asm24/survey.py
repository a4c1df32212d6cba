"""What sysfs tells of bridges and of USB4, without opening anything.

Formats: Linux 6.12, Documentation/ABI/testing/sysfs-bus-usb (``busnum``, ``devnum``, ``speed``) and
sysfs-bus-thunderbolt (``device_name``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.transport.asm24.find import OPEN, STOCK
from gpu.transport.files import Files
from gpu.transport.machine import names_in, number_in, text_in

_USB: Final = "/sys/bus/usb/devices"
_THUNDERBOLT: Final = "/sys/bus/thunderbolt/devices"


class SeenBridge(NamedTuple):
    """A bridge that is plugged in.

    Attributes:
        name: for messages.
        is_open: whether it has the open firmware, not its maker's.
        node: what has to be opened for it.
        speed: of its link, Mbit/s.
    """

    name: str
    is_open: bool
    node: str
    speed: int


def seen_bridges(system: Files) -> Iterator[SeenBridge]:
    """Bridges in order of their ports."""
    for port in names_in(system, _USB) or []:
        folder = f"{_USB}/{port}"
        ids = _hex(system, f"{folder}/idVendor"), _hex(system, f"{folder}/idProduct")
        if ids in (*OPEN, *STOCK):
            bus, device = (number_in(system, f"{folder}/{n}") or 0 for n in ("busnum", "devnum"))
            yield SeenBridge(
                f"bridge {ids[0]:04x}:{ids[1]:04x} at {port}",
                ids in OPEN,
                f"/dev/bus/usb/{bus:03d}/{device:03d}",
                number_in(system, f"{folder}/speed") or 0,
            )


def _hex(system: Files, path: str) -> int:
    """The number that a file has without a prefix; 0 where there is none."""
    try:
        return int(text_in(system, path) or "0", 16)
    except ValueError:
        return 0


def tunnelled(system: Files) -> str:
    """What is connected by USB4 or Thunderbolt, which tunnel PCI; empty where nothing is."""
    for name in names_in(system, _THUNDERBOLT) or []:
        device = text_in(system, f"{_THUNDERBOLT}/{name}/device_name")
        if device and not name.endswith("-0"):  # what ends so is this machine itself
            return device
    return ""
