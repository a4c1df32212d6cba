"""A card that a driver brings up by itself: its function, registers, clock, memory for its DMA."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Final

from gpu.core.errors import DeviceError, HwTimeout, InvalidIndex, Unsupported
from gpu.core.firmware import Wanted
from gpu.core.pci import PciAddress
from gpu.core.wait import Waiter, wait_until
from gpu.core.window import TrappedWindow, Window
from gpu.drivers.boot import BootTimeout
from gpu.transport.missing import Lack
from gpu.transport.pci.function import DmaMemory, PciFunction
from gpu.transport.world import World

ALL_ONES: Final = 0xFFFF_FFFF
"""What a register reads as where nothing answers."""
_NANO: Final = 1_000_000_000
_DISPLAY, _ACCELERATOR = 0x03, 0x12  # base classes
Load = Callable[[Wanted], bytes]
"""Gives what a firmware file holds. Raises FirmwareError."""


def cards_of(world: World, vendor: int) -> Sequence[PciAddress]:
    """GPUs of a vendor on the bus, in order; none is opened."""
    found = []
    for address in world.pci.list_functions():
        ids = world.pci.ids(address)
        if ids.vendor == vendor and ids.class_code >> 16 in (_DISPLAY, _ACCELERATOR):
            found.append(address)
    return found


def choose_card(found: Sequence[PciAddress], name: str, index: int, lack: Lack) -> PciAddress:
    """One of them by its place. Raises InvalidIndex, DeviceError where there is none."""
    if not found:
        raise DeviceError(str(lack))
    if not 0 <= index < len(found):
        raise InvalidIndex(f"{name}:{index} by PCI: there are {', '.join(map(str, found))}")
    return found[index]


class PciCard:
    """What the steps of a boot work on, whosever card it is. See `gpu.drivers.boot.Booting`.

    Attributes:
        function: the card's PCI function, which is this process's.
        waiter: the clock, and how to wait.
        load: gives what a firmware file holds.
        mmio: its registers, each access counted and told.
        accesses: of registers, so far.
        step: what goes on, for errors.
        dma: memory of the machine that the card has until it is closed.
        done: names of boot steps that were walked.
        listener: is told each access of a register, in words.
    """

    def __init__(self, function: PciFunction, waiter: Waiter, bar: int, load: Load):
        """``bar`` is where its registers are."""
        self.function = function
        self.waiter = waiter
        self.load = load
        self.accesses = 0
        self.step = ""
        self._deadline = 0
        self._mmio: Window = function.window(bar)
        self.mmio = TrappedWindow(self._mmio.size, self._read, self._write, 4)
        self.dma: list[DmaMemory] = []
        self.done: list[str] = []
        self.listener: Callable[[str], None] | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"GPU {self.function.address}"

    def begin(self, step: str, deadline_ns: int) -> None:
        """A step begins, which has until then."""
        self.step, self._deadline = step, deadline_ns

    @property
    def seconds_left(self) -> float:
        """How much of its time the step still has."""
        return max(self._deadline - self.waiter.now_ns(), 0) / _NANO

    def _read(self, offset: int, width: int) -> int:
        self.accesses += 1
        value = self._mmio.read(offset, width)
        if self.listener is not None:
            self.listener(f"{self._title(offset)} -> {value:#010x}")
        return value

    def _write(self, offset: int, width: int, value: int) -> None:
        self.accesses += 1
        if self.listener is not None:
            self.listener(f"{self._title(offset)} <- {value:#010x}")
        self._mmio.write(offset, width, value)

    def _title(self, offset: int) -> str:
        """A register in words; by its address alone where it has no name."""
        return self.register_name(offset) or f"register {offset:#x}"

    def register_name(self, offset: int) -> str | None:
        """The name of a register, None where it has none or none is known yet."""
        raise NotImplementedError

    def wait_value(
        self,
        read: Callable[[], int],
        accepts: Callable[[int], bool],
        title: str,
        wanted: str,
        most: float = math.inf,
    ) -> int:
        """Re-reads until a value is accepted, within the step's time and at most so many seconds.

        ``wanted`` says in words what is. Raises BootTimeout, and DeviceLost where the card is gone.
        """
        try:
            return wait_until(
                *(self.waiter, read, accepts),
                what=title,
                timeout=min(self.seconds_left, most),
                wanted=wanted,
                check=self.function.check,
            )
        except HwTimeout as error:
            last = error.last if error.last is not None else 0
            raise BootTimeout(
                *(self.step, title, last, wanted, error.seconds, error.reason)
            ) from error

    def sleep(self, seconds: float) -> None:
        """Lets the card work for a while; a model that has nothing to do is not waited for."""
        until = self.waiter.now_ns() + round(seconds * _NANO)
        with contextlib.suppress(HwTimeout):
            while (left := until - self.waiter.now_ns()) > 0:
                self.waiter.idle(left)

    def hold_dma(self, size: int) -> DmaMemory:
        """Memory of the machine, in whatever pieces on the bus, until the card is closed."""
        memory = self.function.allocate(size)
        self.dma.append(memory)
        return memory

    def allocate_dma(self, size: int) -> DmaMemory:
        """The same in one piece. Raises Unsupported where it comes in several."""
        memory = self.hold_dma(size)
        if len(memory.pieces) > 1:
            raise Unsupported(f"{self.name}: {size} bytes of DMA memory came in pieces")
        return memory
