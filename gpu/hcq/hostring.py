"""Publishing in a ring that is mapped into this process, in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from gpu.core.errors import InvalidValue
from gpu.core.hoststore import KICK_BLOCK, KICK_CHANGES, kick_block


@dataclass(frozen=True, slots=True)
class HostRing:
    """A ring, its put pointer and its doorbell, as host addresses.

    The put pointer counts units of ``unit`` bytes: dwords (PM4: 4), bytes (SDMA: 1), packets (AQL:
    64), entries (GP entries: 8); modulo the ring if it ``wraps``. The doorbell gets ``token``, or
    without one the put pointer plus ``bias`` (AQL: -1, the last packet written).
    Sources: dossier of PM4, SDMA and AQL rings (amdgpu), `clc86f.h` for GPPut.
    """

    address: int
    size: int
    put: int
    put_width: int
    unit: int
    doorbell: int
    doorbell_width: int
    wraps: bool = False
    token: int | None = None
    bias: int = 0

    def __post_init__(self) -> None:
        if self.size <= 0 or self.size % 4 or self.size % self.unit:
            raise InvalidValue(
                f"ring of {self.size} bytes: it must be a positive multiple of 4 and of its unit,"
                f" {self.unit}"
            )

    def publisher(self) -> Callable[[int, int, int, int, int], None]:
        """A function that is `QueuePort.publish`, for one caller at a time."""
        unit, units = self.unit, self.size // self.unit if self.wraps else 0
        token, bias = self.token, self.bias
        unchanging = (self.address, self.size >> 2, self.put, self.put_width)
        packed = KICK_BLOCK.pack(*[0] * 7, *unchanging, self.doorbell, self.doorbell_width)
        block = ctypes.create_string_buffer(packed, len(packed))
        at, set_changes = ctypes.addressof(block), KICK_CHANGES.pack_into

        def publish(position: int, words: int, count: int, last: int, value: int, /) -> None:
            put = (position + count) // unit
            if units:
                put %= units
            rung = put + bias if token is None else token
            set_changes(block, 0, position >> 2, words, count >> 2, put, rung, last, value)
            kick_block(at)

        return publish
