"""Recorded calls written by hand: bytes by offset, from the layouts of driver 580.142."""

from __future__ import annotations

import os
import struct

from gpu.core.traceevent import Close, Event, Ioctl, Map, Memory, Open, Unmap
from gpu.transport.os import Os
from gpu.transport.replay import ReplayOs

CTL, CARD, UVM = "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"
CTL_FD, CARD_FD, UVM_FD = 50, 51, 52
CLIENT = 0xC1D00001
RDWR = os.O_RDWR


def image(size: int, *fields: tuple[int, str, object]) -> bytes:
    """``size`` zero bytes with fields: (offset, struct format, value)."""
    data = bytearray(size)
    for offset, code, value in fields:
        struct.pack_into("<" + code, data, offset, value)
    return bytes(data)


def call(
    fd: int,
    request: int,
    before: bytes,
    answer: tuple[tuple[int, str, object], ...] = (),
    *pointed: tuple[tuple[int, ...], bytes, bytes],
) -> Ioctl:
    """An ioctl with its argument before, what the kernel changes, and blocks behind pointers."""
    after = bytearray(before)
    for offset, code, value in answer:
        struct.pack_into("<" + code, after, offset, value)
    path = {CTL_FD: CTL, CARD_FD: CARD, UVM_FD: UVM}.get(fd, CARD)
    memory = (Memory((), before, bytes(after)), *(Memory(*each) for each in pointed))
    return Ioctl(fd, path, request, memory, 0)


def replay(*events: Event) -> ReplayOs:
    """An `Os` that expects just these calls."""
    found = ReplayOs(events)
    as_os: Os = found
    assert as_os is found
    return found


def opened(path: str, fd: int) -> Open:
    return Open(path, RDWR, fd)


def closed(fd: int, path: str) -> Close:
    return Close(fd, path)


def mapped(fd: int, path: str, size: int, address: int) -> Map:
    """A shared mapping for reads and writes, wherever the kernel likes."""
    return Map(fd, path, size, 3, 1, 0, 0, address)


def unmapped(address: int, size: int) -> Unmap:
    return Unmap(address, size)
