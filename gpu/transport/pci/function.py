"""PCI functions as drivers see them: config space, BARs, memory for DMA, interrupts.

A driver is given a `PciFunction` and knows nothing of VFIO, sysfs, a USB bridge, a socket or a
model behind it. What such a way cannot do is `Unsupported`, which says what can. The order of use:

1. `PciBus.list_functions`, `PciBus.open`: from then on nobody else has the function.
2. `PciFunction.config` and `PciFunction.bars`: what it is.
3. `PciFunction.window` for registers, `PciFunction.map` for memory that native code writes.
4. `PciFunction.set_bus_master`, and `PciFunction.allocate` or `share` for what it may reach.
5. `PciFunction.interrupts`.
6. `PciFunction.close`: bus mastering ends before any memory is given back.

Errors: `AccessDenied` with what would let this user, `TransportError` with the errno (EBUSY:
someone else has it), `DeviceLost` for one that is gone, `InvalidValue` and `InvalidIndex` for wrong
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpu.core.errors import Unsupported
from gpu.core.pci import Bar, DmaPiece, PciAddress, PciIds
from gpu.core.window import MemoryWindow, Window


class DmaMemory(Protocol):
    """Memory of the machine that a function may read and write, until `close`."""

    @property
    def window(self) -> MemoryWindow:
        """The bytes, in this process."""
        ...

    @property
    def pieces(self) -> Sequence[DmaPiece]:
        """Where the function finds them, in order; together as many bytes as the window."""
        ...

    def close(self) -> None:
        """Takes it away from the function, then gives it back; again does nothing."""
        ...


class Interrupt(Protocol):
    """One message that a function may send."""

    def wait(self, timeout_ns: int) -> int:
        """How often it came since the last call; sleeps for it at most so long, 0 is not at all.

        Raises DeviceLost, and as `gpu.core.wait.Waiter.idle` does.
        """
        ...


class PciFunction(Protocol):
    """One function that this process has. Sizes and offsets are in bytes."""

    @property
    def address(self) -> PciAddress:
        """Where it is."""
        ...

    @property
    def ids(self) -> PciIds:
        """What it is."""
        ...

    @property
    def config(self) -> Window:
        """Config space: 256 bytes, or 4096 where all of it is reached; accesses of 1, 2 and 4.

        Command, BARs and MSI are changed by the methods below: a write to them may be refused.
        """
        ...

    @property
    def bars(self) -> Mapping[int, Bar]:
        """The ranges it decodes, by the number of the first register of each, 0 to 5."""
        ...

    def window(self, bar: int) -> Window:
        """Registers: each `read` and `write` is one access of the bus, seen by traces and models.

        Writes may be posted: a read of the same function comes back after them.
        """
        ...

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """Whole pages of a BAR as memory of this process, for doorbells and video memory.

        What is done there is in no trace. Raises Unsupported where there is no memory: over a USB
        bridge or a socket, and for a model's registers; then use `window`.
        """
        ...

    def set_bus_master(self, allowed: bool) -> None:
        """Whether it may reach memory and send interrupts; it may not when it is opened.

        When it may, its BARs are where they were, also after a reset that the card did by itself,
        which forgets that.
        """
        ...

    def allocate(self, size: int) -> DmaMemory:
        """Zeroed memory of whole pages. Raises OutOfMemory."""
        ...

    def share(self, address: int, size: int) -> DmaMemory:
        """Whole pages of this process, which stay where they are while it lasts."""
        ...

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        """So many messages (MSI or MSI-X), which the function may send from now on."""
        ...

    def check(self) -> None:
        """Raises DeviceLost where it is gone, failed, or the system wants it back: close it then.

        Waits of a driver call this, as those for interrupts do by themselves.
        """
        ...

    def resize(self, bar: int, size: int) -> None:
        """Gives a resizable BAR another size, a power of two; its windows must not be in use."""
        ...

    def reset(self) -> None:
        """Function level reset or what there is: config space is restored, the rest forgotten."""
        ...

    def close(self) -> None:
        """Gives it back; windows and memory of it must not be used any more. Again does nothing."""
        ...


class PciBus(Protocol):
    """The PCI functions of one machine."""

    def list_functions(self) -> Sequence[PciAddress]:
        """All that can be seen, in order; nothing is opened."""
        ...

    def ids(self, address: PciAddress) -> PciIds:
        """What a function is; nothing is opened."""
        ...

    def open(self, address: PciAddress) -> PciFunction:
        """Takes a function for this process."""
        ...


class NoPci:
    """A machine without PCI."""

    def list_functions(self) -> Sequence[PciAddress]:
        """None."""
        return ()

    def ids(self, address: PciAddress) -> PciIds:
        """Raises Unsupported."""
        raise Unsupported(f"PCI function {address}: this machine has no PCI functions")

    def open(self, address: PciAddress) -> PciFunction:
        """Raises Unsupported."""
        raise Unsupported(f"PCI function {address}: this machine has no PCI functions")
