"""Methods: what a pushbuffer writes to the engines of a channel, by name and with their fields.

A method is a register class with an address; an instance is the method with its data::

    SEM_EXECUTE(OPERATION=SemOperation.RELEASE, RELEASE_WFI=1)

The classes are in `host`, `compute` and `copy`; this module knows which of
them a class of hardware has. Methods below 0x100 belong to the host engine on every subchannel.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final

from gpu.core.regs import Register

HOST_METHODS_END: Final = 0x100


class Engine(IntEnum):
    """Who executes a method; the value is the subchannel that we bind it to.

    Subchannels 0 to 4 are free to choose; 1 and 4 are what public drivers take for compute and
    copy. Host methods may go to any.
    """

    HOST = 0
    COMPUTE = 1
    COPY = 4


class Method(Register):
    """A method and its data of 32 bits. ``count`` of them stand one behind the other."""

    engine: ClassVar[Engine]
    address: ClassVar[int]
    count: ClassVar[int] = 1


class MethodSet:
    """The methods of one class of hardware, by type and by address."""

    def __init__(self, name: str, methods: tuple[type[Method], ...]):
        self.name = name
        self.methods = methods
        self._by_address: dict[int, tuple[type[Method], int]] = {}
        for method in methods:
            for index in range(method.count):
                self._by_address[method.address + 4 * index] = (method, index)

    def __contains__(self, method: type[Method]) -> bool:
        return method in self.methods

    def find(self, address: int) -> tuple[type[Method], int] | None:
        """The method at an address and, where it is one of several, its number; None if unknown."""
        return self._by_address.get(address)
