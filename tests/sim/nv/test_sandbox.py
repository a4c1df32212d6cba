"""Calls that gVisor keeps from the driver, and what it asks of those that it lets through."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator

import pytest

from gpu.sim.nv.world import NvSimWorld
from sim.nv.methods import release
from sim.nv.numbers import INVALID_CLASS, NOT_SUPPORTED, OK
from sim.nv.raw_nv import RawNv, fails, pack


@pytest.fixture(params=["gh100", "gb202"])
def boxed(request: pytest.FixtureRequest) -> Iterator[RawNv]:
    world = NvSimWorld(seed=4, chip=request.param, sandboxed=True)
    yield RawNv(world.process)
    world.close()


def test_it_works_inside(boxed: RawNv) -> None:
    assert not boxed.os.exists("/proc/driver/nvidia/version")
    semaphore = boxed.buffer()
    boxed.ring.submit(*release(semaphore.va, 5))
    boxed.run()
    assert semaphore.host.read(0, 4) == 5


@pytest.mark.parametrize(("number", "size"), [(0x52, 16), (211, 16), (0x57, 64), (255, 16)])
def test_escapes(boxed: RawNv, number: int, size: int) -> None:
    data = bytearray(size)
    if number == 211:  # around one that is let through
        inner = (ctypes.c_uint8 * 72)(ord("2"))
        data = pack(16, ("I", 0, 210), ("I", 4, 72), ("Q", 8, ctypes.addressof(inner)))
    with fails(errno.EINVAL):
        boxed.escape(number, data)


@pytest.mark.parametrize(("branch", "known"), [(535, False), (550, True), (580, True)])
def test_waiting_for_an_open_came_later(branch: int, known: bool) -> None:
    world = NvSimWorld(branch=branch, sandboxed=True)
    user = RawNv(world.process, upto="objects")
    if known:
        user.escape(218, bytearray(8), user.dev)
    else:
        with fails(errno.EINVAL):
            user.escape(218, bytearray(8), user.dev)
    world.close()


def test_commands(boxed: RawNv) -> None:
    """Versions and PCE masks for graphics alone, L2 flushes for profilers, faults for nobody."""
    sub, ring = boxed.subdevice, boxed.ring.handle
    params = pack(12, ("I", 4, boxed.client), ("I", 8, boxed.objects["compute"]))
    debugger = boxed.alloc(0x83DE, params, parent=boxed.device)
    for target, command, size in (
        (boxed.client, 0x13E, 1032),
        (sub, 0x20802A02, 8),
        (sub, 0x2080130E, 4024),
        (debugger, 0x83DE0328, 72),
        (ring, 0xA06F0104, 4),
    ):
        assert boxed.control(target, command, bytearray(size)) == NOT_SUPPORTED, hex(command)
    assert boxed.control(sub, 0x20802A0A, bytearray(136)) == OK
    for params, stated in ((bytearray(), 8), (bytearray(8), 0)):
        with fails(errno.EINVAL):
            boxed.control(sub, 0x20802A0A, params, stated)


def test_classes(boxed: RawNv) -> None:
    """Of the usermode pages before Hopper's, Turing's alone."""
    for number, status in ((0xC361, INVALID_CLASS), (0xC561, INVALID_CLASS), (0xC461, OK)):
        assert boxed.try_alloc(number, parent=boxed.subdevice)[0] == status
    assert boxed.try_alloc(0x70, bytearray(24), parent=boxed.device)[0] == INVALID_CLASS


@pytest.mark.parametrize(("branch", "size"), [(535, 48), (575, 48), (580, 56), (595, 56)])
def test_sizes_of_parameters(branch: int, size: int) -> None:
    """paramsSize is that of the driver's own structure, or 0."""
    world = NvSimWorld(branch=branch, sandboxed=True)
    user = RawNv(world.process, upto="objects")
    params = (ctypes.c_uint8 * 64)()
    for stated in (0, 48, 56, 64):
        data = pack(48, ("I", 0, user.client), ("I", 4, user.device), ("I", 12, 0x90F1))
        struct.pack_into("<Q", data, 16, ctypes.addressof(params))
        struct.pack_into("<I", data, 32, stated)
        if stated in (0, size):
            user.escape(0x2B, data)
            assert struct.unpack_from("<I", data, 40)[0] == OK
        else:
            with fails(errno.EINVAL):
                user.escape(0x2B, data)
    world.close()
