"""RM's objects on the card: calls by messages, what a channel must be given, and what is refused.

Structures: g_rpc-structures.h, alloc_channel.h, ctrl2080gpu.h of open-gpu-kernel-modules 570.144.
"""

from __future__ import annotations

import struct

import pytest

from sim.nv_pci.client import Client

ALLOC, CONTROL, FREE, SET_DIRECTORY, UNSET_DIRECTORY = 103, 76, 10, 54, 79
OK, INVALID_ADDRESS, INVALID_ARGUMENT = 0, 0x1E, 0x1F
INVALID_STATE, INVALID_PARAM_STRUCT, NOT_SUPPORTED, IN_USE = 0x40, 0x3A, 0x56, 0x17
STATE_IN_USE = 0x63
CLIENT, DEVICE, SUBDEVICE, SPACE, GROUP, CHANNEL = 0xC1D00001, 2, 3, 4, 5, 6
COMPUTE, CHANNEL_CLASS = 0xCEC0, 0xCA6F
ROOT_AT, FREE_AT = 16 << 20, 32 << 20


class Rm:
    """Calls about objects, as a driver makes them."""

    def __init__(self, booted: Client):
        self.client = booted
        units = booted.card.gpu.chip.copy_engines
        self.engine = 9 + next(unit.index for unit in units if not unit.graphics)

    def alloc(self, parent: int, handle: int, number: int, params: bytes = b"") -> int:
        head = struct.pack("<7I4x", CLIENT, parent, handle, number, 0, len(params), 0)
        return self._status(ALLOC, head + params, 16)

    def control(self, handle: int, command: int, params: bytes) -> int:
        head = struct.pack("<6I", CLIENT, handle, command, 0, len(params), 0)
        return self._status(CONTROL, head + params, 12)

    def free(self, handle: int) -> int:
        return self._status(FREE, struct.pack("<4I", CLIENT, 0, handle, 0), 12)

    def set_directory(self, address: int = ROOT_AT, entries: int = 2, flags: int = 0) -> int:
        head = struct.pack("<3I4xQ6I", CLIENT, DEVICE, 0, address, entries, flags, SPACE, 0, 0, 0)
        reply = self.client.call(SET_DIRECTORY, head)
        assert reply is not None
        return reply.result

    def _status(self, function: int, payload: bytes, at: int) -> int:
        reply = self.client.call(function, payload)
        assert reply is not None and reply.result == 0 and len(reply.payload) == len(payload)
        (status,) = struct.unpack_from("<I", reply.payload, at)
        return int(status)

    def tree(self) -> None:
        """Client, device, subdevice."""
        root = struct.pack("<II100x4xQ", CLIENT, 1, 0)
        assert self.alloc(CLIENT, CLIENT, 0, root) == OK
        assert self.alloc(CLIENT, DEVICE, 0x80, struct.pack("<II48x", 0, CLIENT)) == OK
        assert self.alloc(DEVICE, SUBDEVICE, 0x2080, bytes(4)) == OK

    def space(self) -> None:
        """A VA space of the driver's tables, and a group of a copy engine in it."""
        self.tree()
        assert self.alloc(DEVICE, SPACE, 0x90F1, struct.pack("<II40x", 0, 1 << 3)) == OK
        assert self.set_directory() == OK
        group = struct.pack("<5I", 0, 0, SPACE, self.engine, 0)
        assert self.alloc(DEVICE, GROUP, 0xA06C, group) == OK

    def channel(self, handle: int = CHANNEL, number: int = 5, **parts: tuple[int, int, int]) -> int:
        """A channel; ``parts`` are (base, size, address space) instead of good ones."""
        params = bytearray(368)
        flags = 1 << 21 | number % 8 << 8 | number // 8 << 12
        struct.pack_into("<QII", params, 8, 1 << 36, 64, flags)
        struct.pack_into("<I", params, 128, self.engine)
        good = {
            "instance": (FREE_AT, 0x1000, 2),
            "userd": (FREE_AT + 0x1000, 0x200, 2),
            "ramfc": (FREE_AT, 0x200, 2),
            "methods": (FREE_AT + 0x2000, 0x5000, 2),
        }
        places = {"instance": 144, "userd": 168, "ramfc": 192, "methods": 216}
        for name, (base, size, where) in (good | parts).items():
            struct.pack_into("<QQI", params, places[name], base, size, where)
        return self.alloc(GROUP, handle, CHANNEL_CLASS, bytes(params))


@pytest.fixture
def rm(booted: Client) -> Rm:
    return Rm(booted)


def test_what_a_channel_must_be_given(rm: Rm) -> None:
    rm.space()
    for name, part, status in (
        ("instance", (0, 0, 0), INVALID_ARGUMENT),
        ("instance", (FREE_AT + 0x200, 0x1000, 2), INVALID_ADDRESS),
        ("instance", (1 << 50, 0x1000, 2), INVALID_ADDRESS),
        ("ramfc", (FREE_AT, 0x100, 2), INVALID_ARGUMENT),
        ("methods", (FREE_AT, 0x1000, 2), INVALID_ARGUMENT),
        ("userd", (FREE_AT + 0x100, 0x200, 2), INVALID_ADDRESS),
        ("userd", (FREE_AT, 0x200, 7), INVALID_ARGUMENT),
    ):
        assert rm.channel(**{name: part}) == status, (name, part)
    assert rm.channel(number=4000) != OK
    assert rm.channel() == OK
    assert rm.channel(CHANNEL + 1) == IN_USE  # the same number on one runlist
    assert rm.channel(CHANNEL + 1, 6, userd=(FREE_AT + 0x1200, 0x200, 2)) == OK
    assert rm.control(GROUP, 0xA06C0101, bytes(3)) == INVALID_ARGUMENT  # 2 at 570.144
    assert rm.control(GROUP, 0xA06C0101, b"\1\0") == OK
    tokens = [channel.token for channel in rm.client.card.gpu.channels]
    runlist = rm.client.card.gpu.runlist(rm.engine)
    assert tokens == [1 << 30 | runlist << 16 | 5, 1 << 30 | runlist << 16 | 6]
    assert rm.free(CLIENT) == OK and not rm.client.card.gpu.channels
    assert not rm.client.violations


def test_sizes_are_exact_and_the_kernels_own_is_refused(rm: Rm) -> None:
    rm.tree()
    assert rm.alloc(DEVICE, SPACE, 0x90F1, bytes(56)) == INVALID_PARAM_STRUCT  # 48 at 570.144
    for number in (0x3E, 0x40, 0xC661):  # memory and the doorbell's page
        assert rm.alloc(DEVICE, 9, number, bytes(128)) == NOT_SUPPORTED
    for command in (0x20801201, 0x2080014A, 0x20802A03):  # GR_GET_INFO, GID, CE_GET_CAPS_V2
        assert rm.control(SUBDEVICE, command, bytes(32)) == NOT_SUPPORTED


def test_page_directories(rm: Rm) -> None:
    rm.tree()
    assert rm.alloc(DEVICE, SPACE, 0x90F1, struct.pack("<II40x", 0, 0)) == OK
    assert rm.set_directory() == INVALID_ARGUMENT  # its tables are RM's
    assert rm.free(SPACE) == OK
    assert rm.alloc(DEVICE, SPACE, 0x90F1, struct.pack("<II40x", 0, 1 << 3)) == OK
    assert rm.set_directory(entries=4) == INVALID_ARGUMENT
    assert rm.set_directory(address=ROOT_AT + 8) == INVALID_ADDRESS
    assert rm.set_directory() == OK


def test_no_engine_without_a_context(rm: Rm) -> None:
    rm.space()
    group = struct.pack("<5I", 0, 0, SPACE, 1, 0)
    assert rm.free(GROUP) == OK
    assert rm.alloc(DEVICE, GROUP, 0xA06C, group) == OK
    params = bytearray(368)
    struct.pack_into("<QII", params, 8, 1 << 36, 64, 1 << 21)
    struct.pack_into("<I", params, 128, 1)
    for at, part in (
        (144, (FREE_AT, 0x1000, 2)),
        (168, (FREE_AT + 0x1000, 0x200, 2)),
        (192, (FREE_AT, 0x200, 2)),
        (216, (FREE_AT + 0x2000, 0x5000, 2)),
    ):
        struct.pack_into("<QQI", params, at, *part)
    assert rm.alloc(GROUP, CHANNEL, CHANNEL_CLASS, bytes(params)) == OK
    assert rm.alloc(CHANNEL, 7, COMPUTE) == INVALID_STATE
    entry = struct.pack("<QQQIHBB", FREE_AT, 1 << 36, 0x200000, 4, 0, 1, 0)
    head = struct.pack("<6IQQI4x", 1, 0, 0, CLIENT, CHANNEL, 0, 0, 0, 1)
    unmapped = (head + entry).ljust(560, b"\0")
    assert rm.control(SUBDEVICE, 0x2080012B, unmapped) == INVALID_ADDRESS
    small = bytearray(unmapped)
    struct.pack_into("<Q", small, 48 + 16, 0x1000)
    assert rm.control(SUBDEVICE, 0x2080012B, bytes(small)) == INVALID_ARGUMENT
    assert rm.alloc(CHANNEL, 7, COMPUTE) == INVALID_STATE


def test_directories_in_use_are_not_taken_away(rm: Rm) -> None:
    rm.space()
    call = struct.pack("<4I", CLIENT, DEVICE, SPACE, 0)

    def unset() -> int:
        reply = rm.client.call(UNSET_DIRECTORY, call)
        assert reply is not None
        return reply.result

    assert rm.channel() == OK
    assert unset() == STATE_IN_USE
    assert rm.free(CHANNEL) == OK
    assert unset() == OK
    assert unset() == INVALID_STATE


def test_lists_that_are_asked_for_wrongly(rm: Rm) -> None:
    rm.space()
    assert rm.channel() == OK
    for engine, handle, count in ((9, CHANNEL, 1), (1, CHANNEL, 1)):
        head = struct.pack("<6IQQI4x", engine, 0, 0, CLIENT, handle, 0, 0, 0, count)
        assert rm.control(SUBDEVICE, 0x2080012B, head.ljust(560, b"\0")) == INVALID_ARGUMENT
    table = struct.pack("<I", 5).ljust(3212, b"\0")
    assert rm.control(SUBDEVICE, 0x20801112, table) == INVALID_ARGUMENT


def test_messages_about_objects_have_their_sizes(rm: Rm) -> None:
    head = struct.pack("<7I4x", CLIENT, CLIENT, CLIENT, 0, 0, 4, 0)
    assert rm._status(ALLOC, head + bytes(8), 16) == INVALID_PARAM_STRUCT
    reply = rm.client.call(FREE, bytes(8))
    assert reply is not None and reply.result == INVALID_PARAM_STRUCT
    assert rm.client.told(f"call {FREE}", "16 bytes wanted")
