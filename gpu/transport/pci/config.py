"""Config space as drivers use it: the command register, and walking the lists of capabilities.

PCI Local Bus 3.0, 6.2 and 6.7; PCI Express Base 4.0, 7.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.core.window import Window

COMMAND: Final = 0x04
FIRST_BAR, BARS_SIZE = 0x10, 6 * 4
MEMORY: Final = 1 << 1
MASTER: Final = 1 << 2
_STATUS: Final = 0x06
_HAS_CAPABILITIES: Final = 1 << 4
_FIRST: Final = 0x34
_EXTENDED: Final = 0x100
_HEADER: Final = 0x40  # bytes, and of what the first list never points into


def change(config: Window, offset: int, add: int = 0, remove: int = 0) -> None:
    """Sets and clears bits of a register of 16 bits; does nothing where they are as wanted."""
    before = config.read(offset, 2)
    after = before & ~remove | add
    if after != before:
        config.write(offset, 2, after)


def set_master(config: Window, allowed: bool) -> None:
    """Whether a function is a bus master; when it is it decodes its BARs as well."""
    change(config, COMMAND, add=MASTER | MEMORY if allowed else 0, remove=0 if allowed else MASTER)


def capabilities(config: Window) -> Iterator[tuple[int, int]]:
    """Number and place of each capability in the first 256 bytes; a damaged list just ends."""
    if config.size <= _HEADER or not config.read(_STATUS, 2) & _HAS_CAPABILITIES:
        return
    at, seen = config.read(_FIRST, 1) & ~3, set[int]()
    while _HEADER <= at < min(config.size, _EXTENDED) and at not in seen:
        seen.add(at)
        yield config.read(at, 1), at
        at = config.read(at + 1, 1) & ~3


def extended_capabilities(config: Window) -> Iterator[tuple[int, int]]:
    """Number and place of each capability of PCI Express beyond the first 256 bytes."""
    at, seen = _EXTENDED, set[int]()
    while _EXTENDED <= at <= config.size - 4 and at not in seen:
        seen.add(at)
        head = config.read(at, 4)
        if head in (0, 0xFFFFFFFF):
            return
        yield head & 0xFFFF, at
        at = head >> 20 & ~3
