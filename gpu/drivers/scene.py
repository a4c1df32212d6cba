"""What a device can tell after a failure, for messages and for `gpu.drivers.autopsy`.

What looks at failures is imported once there is one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu.hcq.channel import Channel

if TYPE_CHECKING:
    from gpu.drivers.crash import Buffer
    from gpu.drivers.fault_report import Suspect

Disassemble = Callable[[bytes, int], list[str]]
"""Machine code and its address as lines, each with its address in hexadecimal and a colon before.

Raises Unsupported where there is no disassembler."""


class Scene(ABC):
    """What a vendor's device can tell after a failure. All of it raises DeviceError.

    Attributes:
        name: of the device.
    """

    name: str

    @property
    def is_there(self) -> bool:
        """Whether the GPU is on its bus, so that its memory may be looked at."""
        return True

    @abstractmethod
    def launches(self) -> Sequence[Suspect]:
        """Launches that have not ended, the oldest first."""

    def under_way(self) -> str:
        """Those launches in words."""
        from gpu.drivers.fault_report import under_way

        return under_way(self.launches(), None, lambda pointer: False)

    @abstractmethod
    def place_of(self, address: int) -> str:
        """In or behind which buffer an address is."""

    def translation(self, address: int) -> Sequence[str]:
        """How page tables lead to an address, in words, where they can be read."""
        return ()

    @abstractmethod
    def buffers(self) -> Sequence[Buffer]:
        """All allocations."""

    @abstractmethod
    def packets(self, channel: Channel) -> Sequence[str]:
        """What a queue has not done, or is not known to have done, decoded; oldest first."""

    def waves(self) -> Sequence[str]:
        """What hardware tells of where waves stand."""
        return ()

    def evidence(self) -> Mapping[str, bytes]:
        """Bytes to be kept beside a report, by short names: logs of firmware."""
        return {}

    def stops(self) -> Sequence[int]:
        """Addresses of instructions that waves stopped at."""
        return ()
