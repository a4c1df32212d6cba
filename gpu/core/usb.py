"""What USB calls its things."""

from __future__ import annotations

from typing import NamedTuple


class UsbId(NamedTuple):
    """A device on a bus; `port` is where it is plugged in, such as ``2-1.4``."""

    vendor: int
    product: int
    port: str

    def __str__(self) -> str:
        return f"{self.vendor:04x}:{self.product:04x} at {self.port}"
