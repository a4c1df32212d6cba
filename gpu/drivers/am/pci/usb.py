"""A card behind a bridge on USB: the same boot, with queues and what both sides see in VRAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Unpack

from gpu.core.errors import Unsupported
from gpu.core.firmware import load as load_firmware
from gpu.core.wait import PatientWaiter
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.port import AMD, PciPort, QueueOptions, bring_up
from gpu.drivers.am.pci.sectors import SectorAllocator
from gpu.drivers.am.queue import AmQueue, QueueKind
from gpu.drivers.card import Load
from gpu.hcq.device import DeviceOptions
from gpu.hcq.farchannel import FarChannel
from gpu.hcq.ports import QueuePort
from gpu.transport.asm24.find import is_stock
from gpu.transport.asm24.function import open_function
from gpu.transport.world import World

# Each byte of these is written by the host at first, at 3.6 MB/s.
OPTIONS: Final = QueueOptions(
    compute_queues=1, copy_queues=1, compute_ring=1 << 14, copy_ring=1 << 14
)
_COMMANDS, _STAGING = 1 << 16, 1 << 18


class UsbChannel(FarChannel):
    """A queue over USB."""

    def carries(self, port: QueuePort) -> int:
        """As `FarChannel.carries`: a NOP of PM4 has a body of any size."""
        far = port.far if isinstance(port, AmQueue) and port.kind is QueueKind.PM4 else None
        return far.address if far else 0


class UsbDevice(AmDevice):
    """An AMD GPU behind a bridge."""

    channel_type = UsbChannel

    def __init__(self, port: PciPort, **options: Unpack[DeviceOptions]):
        """As `AmDevice`; copies go through the bridge's memory."""
        super().__init__(port, **options)
        sram, staging = port.chip.sram, options.get("staging", _STAGING)
        assert sram is not None, "the open firmware gives it"
        self._sectors = SectorAllocator(self, port.memory, sram, staging, self._wait_for)
        self.allocator = self._sectors

    def restart(self) -> None:
        """As `HCQDevice.restart`."""
        super().restart()
        self._sectors.restart()

    def _wait_for(self, read: Callable[[], int], value: int, what: str) -> None:
        self._wait(read, value, f"{self.name}: {what}", None)


def take_card(world: World, index: int, load: Load = load_firmware) -> Chip:
    """A card by its bridge's place, nothing of it touched. Raises as `open_function`."""
    waiter = PatientWaiter(world.waiter)  # each transfer lets a model's time go on
    function = open_function(world.usb, waiter, index, AMD)
    return Chip(function, waiter, load=load, is_far=True, sram=function.sram)


def open_usb(
    world: World,
    index: int = 0,
    *,
    options: QueueOptions = OPTIONS,
    load: Load = load_firmware,
    **device: Unpack[DeviceOptions],
) -> AmDevice:
    """Opens a GPU by its bridge's place, and boots it; on an error nothing of it stays open.

    Raises as `gpu.drivers.am.pci.port.open_pci`, DeviceLost where no card is behind it, and
    Unsupported for a bridge with its maker's firmware, which takes a millisecond for each dword.
    """
    if is_stock(world.usb, index):
        raise Unsupported(
            f"AMD:{index} by USB is behind a bridge with its maker's firmware: `gpu regs USB+AMD`"
            " and `gpu boot USB+AMD --until discovery` work there; kernels want the open one"
        )
    device.setdefault("command_memory", _COMMANDS)
    device.setdefault("staging", _STAGING)
    return UsbDevice(bring_up(take_card(world, index, load), options), **device)
