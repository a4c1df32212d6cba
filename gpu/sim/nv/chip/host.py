"""How engines see the channel whose methods they carry out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpu.sim.nv.chip.hardware import Hardware
from gpu.sim.nv.chip.port import Port


class Engine(Protocol):
    """What a subchannel leads to."""

    def method(self, address: int, value: int) -> None:
        """One method; raises what ends the channel."""
        ...


class Host(Protocol):
    """A channel.

    Attributes:
        gpu: the GPU it is on.
        number: its class.
        port: memory of its VA space.
    """

    gpu: Hardware
    number: int
    port: Port

    def engine_for(self, subchannel: int, value: int) -> Engine:
        """What SET_OBJECT puts on a subchannel. Raises ChannelError."""
        ...

    def wait(
        self, what: str, met: Callable[[], bool], then: Callable[[], None] | None = None
    ) -> None:
        """Go no further until something is there."""
        ...

    def wait_idle(self, what: str, then: Callable[[], None] | None = None) -> None:
        """Go no further until its grids are done."""
        ...

    def loses_completion(self) -> bool:
        """Whether a completion is lost on purpose."""
        ...

    def interrupt(self) -> None:
        """Tell of a non-stall interrupt of its engine."""
        ...
