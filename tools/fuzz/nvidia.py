"""Readers of what NVIDIA's cards and their firmware say: ROMs, files, messages, programs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Final

from gpu.core.errors import HwTimeout
from gpu.core.window import MemoryWindow
from gpu.drivers.nv.pci import images
from gpu.drivers.nv.pci.chips import AD10X, GA10X, GB20X, GH100, Chip
from gpu.drivers.nv.pci.events import describe_error
from gpu.drivers.nv.pci.msgq import ELEMENT, HEAD, SIZE, Queues, checksum
from gpu.drivers.nv.pci.sequencer import parse
from gpu.drivers.nv.pci.vbios import FRTS, SB, find_fwsec, read_vbios, with_command

_CHIPS: Final[tuple[Chip, ...]] = (GA10X, AD10X, GH100, GB20X)
_BAR: Final = 16 << 20
_PAGE: Final = 4096
_CHECKSUM_AT, _COUNT_AT = 32, 40
_MOST: Final = 16


def read_rom(data: bytes) -> None:
    """A ROM, whose end reads as ones."""

    def word(at: int) -> int:
        return int.from_bytes(data[at : at + 4].ljust(4, b"\xff"), "little")

    fwsec = find_fwsec(read_vbios(word))
    for command in (FRTS, SB):
        with_command(fwsec, command, 1 << 32)


def read_bootloader(data: bytes) -> None:
    """The file of a bootloader."""
    images.parse_bootloader(data)


def read_falcon(data: bytes) -> None:
    """A file of signed code."""
    images.parse_falcon(data, "booter_load")


def read_gsp(data: bytes) -> None:
    """RM's file, for each family."""
    for chip in _CHIPS:
        images.parse_gsp(data, chip)


def read_fmc(data: bytes) -> None:
    """An FMC's file."""
    images.parse_fmc(data, GH100)


def read_queue(data: bytes) -> None:
    """A status queue as GSP left it, which is read until it is empty or refused."""
    _read_all(data)


def read_summed_queue(data: bytes) -> None:
    """The same with right sums of its elements, as most of what is behind a sum is else not met."""
    fixed = bytearray(data)
    for at in range(_PAGE, len(fixed) - ELEMENT + 1, ELEMENT):
        (count,) = struct.unpack_from("<I", fixed, at + _COUNT_AT)
        length = HEAD + int.from_bytes(fixed[at + HEAD + 8 : at + HEAD + 12], "little")
        if 1 <= count <= _MOST and length <= count * ELEMENT:
            struct.pack_into("<I", fixed, at + _CHECKSUM_AT, 0)
            total = checksum(bytes(fixed[at : at + length]))
            struct.pack_into("<I", fixed, at + _CHECKSUM_AT, total)
    _read_all(bytes(fixed))


def _read_all(data: bytes) -> None:
    memory = ctypes.create_string_buffer(SIZE)
    window = MemoryWindow(ctypes.addressof(memory), SIZE, memory)
    pages = [(n + 1) * _PAGE for n in range(SIZE // _PAGE)]
    queues = Queues(window, pages, _wait, lambda: None)
    at = queues.arguments.statQueueOffset
    window.store(at, data[: SIZE - at])
    queues.link(1.0)
    for _ in range(_MOST * _MOST):
        if queues.receive() is None:
            return


def _wait(
    read: Callable[[], int], accepts: Callable[[int], bool], title: str, wanted: str, most: float
) -> int:
    value = read()
    if not accepts(value):
        raise HwTimeout(title, value, wanted, most)
    return value


def read_program(data: bytes) -> None:
    """A program for the driver's CPU."""
    list(parse(data, _BAR))


def read_error(data: bytes) -> None:
    """An error in words."""
    describe_error(data)
