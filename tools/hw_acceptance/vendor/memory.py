"""Memory of this process, read where it can be, and what the vendor's channels hold in it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpu.drivers.nv.channel.channel import ENTRY_SIZE, GP_PUT
from gpu.drivers.nv.fault.pushbuf_text import bound_classes
from gpu.transport import nvidia as nodes
from tools.hw_acceptance.dumping import describe_entries, ring_entries
from tools.hw_acceptance.vendor.recording import Recording, VendorChannel

_COMPUTE_KIND: Final = 0xC0
_RECENT: Final = 64  # entries of a channel that were not shown before


def readable(maps: str, address: int, size: int) -> bool:
    """Whether all of a range may be read, by the text of /proc/self/maps.

    Ranges of UVM are taken for unreadable: touching them would move pages between host and GPU.
    """
    end = address + size
    for line in maps.splitlines():
        words = line.split(maxsplit=5)
        low, high = (int(each, 16) for each in words[0].split("-"))
        if low <= address < high:
            if "r" not in words[1] or (len(words) > 5 and words[5] == nodes.UVM):
                return False
            address = high
            if address >= end:
                return True
    return False


class ProcessReader:
    """A `dumping.Reader` over this process, by GPU addresses."""

    def __init__(self, recording: Recording):
        self._recording = recording

    def __call__(self, address: int, size: int, /) -> bytes | None:
        """The bytes, at the same address for the host or where their object is mapped."""
        for place in (self._recording.host_address(address, size), address):
            if (found := self.at(place, size)) is not None:
                return found
        return None

    def at(self, place: int | None, size: int = 4) -> bytes | None:
        """The bytes at an address of the host's; None where there are none to be read."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        if place is None or not readable(maps, place, size):
            return None  # what was mapped once may be gone
        return ctypes.string_at(place, size)


class ChannelDumper:
    """Shows what channels were given since it was last asked."""

    def __init__(self) -> None:
        self._shown: dict[int, int] = {}

    def describe(self, recording: Recording) -> Iterator[str]:
        """Lines about all channels."""
        read = ProcessReader(recording)
        for channel in recording.channels.values():
            engines = recording.engines.get(channel.handle, [])
            names = ", ".join(f"{each:#x}" for each in engines)
            yield f"channel {channel.handle:#x} of class {channel.class_id:#x}, engines {names}"
            yield f"  ring of {channel.entries} entries at {channel.ring:#x}"
            yield from self._describe(read, recording, channel, engines)

    def _describe(
        self, read: ProcessReader, recording: Recording, channel: VendorChannel, engines: list[int]
    ) -> Iterator[str]:
        ring = read(channel.ring, ENTRY_SIZE * channel.entries)
        pointer = read.at(recording.host_address_of(channel.userd[0], channel.userd[1] + GP_PUT, 4))
        if ring is None or pointer is None:
            yield "  the host cannot see its " + ("ring" if ring is None else "pointers")
            return
        put = int.from_bytes(pointer, "little")
        since = self._shown.get(channel.handle, 0)
        self._shown[channel.handle] = put
        count = min((put - since) % channel.entries, _RECENT)
        yield f"  put is {put}, {count} entries are new"
        compute = next((each for each in engines if each & 0xFF == _COMPUTE_KIND), None)
        copy = next((each for each in engines if each & 0xFF != _COMPUTE_KIND), None)
        classes = bound_classes(compute, copy)
        yield from describe_entries(read, ring_entries(ring, put, count), classes)
