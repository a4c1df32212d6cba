"""All that is known of a GPU's channels, as text for a file: what is read after a failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpu.core.errors import GpuError
from gpu.drivers.nv.channel.channel import (
    ENTRY_SIZE,
    NOTIFICATION_SIZE,
    NOTIFICATIONS,
    USERD_SIZE,
    GpfifoChannel,
)
from gpu.drivers.nv.fault.pushbuf_text import bound_classes
from gpu.drivers.nv.rm.gpu import NvDevice
from tools.hw_acceptance.dumping import describe_entries, hex_lines, ring_entries
from tools.hw_acceptance.steplog import StepLog

DUMP: Final = "state.txt"
"""The file that it goes to."""
_SHOWN: Final = 16  # ring entries


def describe_state(gpu: NvDevice, channels: Iterable[GpfifoChannel], log: StepLog) -> Iterator[str]:
    """Lines about channels and faults, as they are now. What notifiers say is told as well."""
    channels = tuple(channels)
    yield f"{gpu!r}, clock {gpu.clock()}"
    for channel in channels:
        if (fault := channel.fault()) is not None:
            yield f"notifier: {fault} at {fault.timestamp}"
            log.notified(fault.number)
    try:
        details = gpu.fault_details()
    except GpuError as error:
        yield f"errors of SMs and MMU could not be read: {error.message}"
    else:
        yield f"errors of SMs and MMU: {details}"
    for channel in channels:
        yield from _describe_channel(gpu, channel)


def _describe_channel(gpu: NvDevice, channel: GpfifoChannel) -> Iterator[str]:
    put = channel.put()
    yield f"{channel.name}: token {channel.token:#x}, get {channel.get()}, put {put}"
    yield "  USERD"
    yield from hex_lines(channel.userd.load(0, USERD_SIZE))
    yield "  notifier"
    yield from hex_lines(channel.notifier.load(0, NOTIFICATIONS * NOTIFICATION_SIZE))
    ring = channel.ring.load(0, channel.entries * ENTRY_SIZE)
    classes = bound_classes(gpu.classes.compute, gpu.classes.dma)
    yield from describe_entries(gpu.memory.extents.read, ring_entries(ring, put, _SHOWN), classes)
