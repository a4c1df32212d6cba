"""Channels: a ring of entries that the GPU fetches, its pointers, its doorbell, its notifier.

To submit: write an entry at ``ring[put]``, store the next index in USERD's GPPut, fence, then
store the token in the doorbell. RM writes the notifier when the channel fails. Layouts:
clc86f.h (USERD) and clc661.h (doorbell) of open-gpu-doc, nvgputypes.h (notifier) of
open-gpu-kernel-modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import rm
from gpu.autogen.nv.layout import offset_of
from gpu.core.errors import GpuFault, InvalidValue
from gpu.core.window import Window
from gpu.drivers.nv.rm.object import RmObject
from gpu.hcq.symbol import GpuVA

ENTRY_SIZE: Final = 8  # bytes of a ring entry
USERD_SIZE: Final = 512
GP_GET: Final = 0x88
GP_PUT: Final = 0x8C
NOTIFICATION_SIZE: Final = 16
NOTIFICATIONS: Final = 3
DOORBELL: Final = 0x90  # within the usermode page
TIME_LOW: Final = 0x80
TIME_HIGH: Final = 0x84

_INFO: Final = offset_of(rm.NvNotification, "info32")
_STATUS: Final = offset_of(rm.NvNotification, "status")
_ERROR_SLOT: Final = NOTIFICATION_SIZE * rm.NV_CHANNELGPFIFO_NOTIFICATION_TYPE_ERROR
_NO_FIRMWARE: Final = (
    "its firmware does not answer any more: whoever owns the machine resets the GPU"
    " (nvidia-smi --gpu-reset), or restarts the machine"
)
GONE: Final = 79
"""The number that a channel gets when its GPU is not on the bus any more."""
_LOSSES: Final = {
    GONE: "it is gone from its bus: look at power and slot, and restart the machine",
    119: _NO_FIRMWARE,
    120: _NO_FIRMWARE,
}
_ERROR_STATUS: Final = 0xFFFF  # what RM stores when it has written an error


@dataclass(frozen=True, slots=True)
class ChannelFault:
    """What RM wrote about a failed channel.

    Attributes:
        channel: the name of the channel.
        number: ROBUST_CHANNEL_* number, which the kernel log calls Xid.
        timestamp: of the GPU's clock, in nanoseconds.
    """

    channel: str
    number: int
    timestamp: int

    @property
    def loss(self) -> str:
        """Why the GPU is lost to everybody with it; empty where the channel's group alone is.

        Those that `kgspRcAndNotifyAllChannels` gives (kernel_gsp.c, osapi.c).
        """
        return _LOSSES.get(self.number, "")

    @property
    def error(self) -> str:
        """The name of the number; "unknown" for one that has none here."""
        return rm.ROBUST_CHANNEL_ERRORS.get(self.number, "unknown")

    def __str__(self) -> str:
        return f"{self.channel} failed with {self.error} (Xid {self.number})"


@dataclass(frozen=True, slots=True, eq=False)
class GpfifoChannel:
    """A channel that runs once its group is scheduled.

    Attributes:
        name: what it is for.
        object: the channel in RM's tree; its parent is the group.
        engine: the compute or copy object on it.
        entries: how many entries the ring has, a power of two.
        ring: the entries, `ENTRY_SIZE` bytes each.
        ring_address: where the GPU fetches them.
        userd: the ring's pointers; only GP_PUT is the host's to write.
        notifier: `NOTIFICATIONS` slots that RM writes.
        token: what the doorbell takes for this channel.
        doorbell: a window of its 4 bytes, shared by all channels of the GPU.
    """

    name: str
    object: RmObject
    engine: RmObject
    entries: int
    ring: Window
    ring_address: GpuVA
    userd: Window
    notifier: Window
    token: int
    doorbell: Window

    @property
    def group(self) -> RmObject:
        """The channel group, which is what is scheduled and what dies with a fault."""
        assert self.object.parent is not None, "channels are allocated below a group"
        return self.object.parent

    @property
    def class_id(self) -> int:
        """The class that SET_OBJECT takes on this channel."""
        return self.engine.class_id

    def get(self) -> int:
        """Index of the entry to be fetched next, as the GPU last told; it may lag."""
        return self.userd.read(GP_GET, 4)

    def put(self) -> int:
        """Index behind the last entry published."""
        return self.userd.read(GP_PUT, 4)

    def set_put(self, index: int) -> None:
        """Publishes the entries before ``index``, once the doorbell rings. Raises InvalidValue."""
        if not 0 <= index < self.entries:
            raise InvalidValue(f"put index {index} of {self.name}: it has {self.entries} entries")
        self.userd.write(GP_PUT, 4, index)

    def ring_doorbell(self) -> None:
        """Tells the GPU to look at GP_PUT; stores before must be fenced by the caller."""
        self.doorbell.write(0, 4, self.token)

    def fault(self) -> ChannelFault | None:
        """What RM wrote if the channel has failed."""
        if self.notifier.read(_ERROR_SLOT + _STATUS, 2) != _ERROR_STATUS:
            return None
        number = self.notifier.read(_ERROR_SLOT + _INFO, 4)
        return ChannelFault(self.name, number, self.notifier.read(_ERROR_SLOT, 8))

    def check(self) -> None:
        """Raises GpuFault if the channel has failed."""
        fault = self.fault()
        if fault is not None:
            raise GpuFault(f"{fault}; its channel group is dead: open the device anew")


def read_time(usermode: Window) -> int:
    """The GPU's clock in nanoseconds, from its usermode page; read again until the halves fit."""
    while True:
        high = usermode.read(TIME_HIGH, 4)
        low = usermode.read(TIME_LOW, 4)
        if usermode.read(TIME_HIGH, 4) == high:
            return high << 32 | low
