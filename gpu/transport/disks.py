"""Which disks of a device are in use, so that nobody takes them from under a file system.

Formats: Linux 6.12, Documentation/filesystems/proc.rst (3.5, mountinfo) and
Documentation/ABI/stable/sysfs-block (``dev``, ``holders``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.transport.files import Files
from gpu.transport.machine import names_in, text_in

_MOUNTS: Final = "/proc/self/mountinfo"
_SWAPS: Final = "/proc/swaps"
_DEVICE: Final = 2  # the field of a mount that has the device's numbers


def disks_in_use(system: Files, folder: str) -> list[str]:
    """Names of disks, of partitions too, below a device's folder in sysfs that something uses.

    That is a file system, swap, or another device upon them (LVM, RAID, encryption).
    """
    mounts = (text_in(system, _MOUNTS) or "").splitlines()
    mounted = {words[_DEVICE] for words in map(str.split, mounts) if len(words) > _DEVICE}
    swaps = (text_in(system, _SWAPS) or "").splitlines()[1:]
    swapped = {words[0] for words in map(str.split, swaps) if words}
    found = []
    for place in _blocks(system, folder):
        name = place.rpartition("/")[2]
        numbers = text_in(system, f"{place}/dev")
        held = names_in(system, f"{place}/holders")
        if numbers in mounted or f"/dev/{name}" in swapped or held:
            found.append(name)
    return found


def _blocks(system: Files, folder: str) -> Iterator[str]:
    """Folders of the disks of a device, and of their partitions: hostN/targetN/N:N:N:N/block/*."""
    for host in _within(system, folder, "host"):
        for target in _within(system, host, "target"):
            for unit in _within(system, target, ""):
                for disk in _within(system, f"{unit}/block", ""):
                    yield disk
                    name = disk.rpartition("/")[2]
                    yield from _within(system, disk, name)


def _within(system: Files, folder: str, start: str) -> Iterator[str]:
    for name in names_in(system, folder) or []:
        if name.startswith(start):
            yield f"{folder}/{name}"
