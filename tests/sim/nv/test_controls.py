"""RM_CONTROL: sizes, objects, and what the driver tells of a GPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import pytest

from sim.nv.numbers import (
    COPY0,
    GRAPHICS,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_CLIENT,
    INVALID_STATE,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    PARAM_STRUCT,
)
from sim.nv.raw_nv import RawNv, pack

Case = Callable[[RawNv], int]

CONTROLS: dict[str, tuple[int, Case]] = {
    "unknown client": (
        INVALID_CLIENT,
        lambda u: _control_of(u, 0x77, u.subdevice),
    ),
    "unknown object": (NOT_FOUND, lambda u: u.control(0x77, 0x2080014A, bytearray(268))),
    "unknown command": (
        NOT_SUPPORTED,
        lambda u: u.control(u.subdevice, 0x20801FFF, bytearray(8)),
    ),
    "command of another class": (
        NOT_SUPPORTED,
        lambda u: u.control(u.device, 0x2080014A, bytearray(268)),
    ),
    "too few bytes": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x2080014A, bytearray(264)),
    ),
    "too many bytes": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.client, 0x205, bytearray(36)),
    ),
    "bytes without an address": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.client, 0x205, bytearray(), size=32),
    ),
    "an address without bytes": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.client, 0x205, bytearray(32), size=0),
    ),
    "unknown GPU": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.client, 0x205, pack(32, ("I", 0, 0x9999))),
    ),
    "room for too few classes": (
        PARAM_STRUCT,
        lambda u: u.control(u.device, 0x800201, _room_for_classes(3)),
    ),
    "list that cannot be read": (
        INVALID_ADDRESS,
        lambda u: u.control(u.device, 0x800201, pack(16, ("I", 0, 99), ("Q", 8, 0x10000))),
    ),
    "list of more than 1 MiB": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.device, 0x800201, pack(16, ("I", 0, 1 << 19), ("Q", 8, 0x10000))),
    ),
    "GPC that is not there": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x2080122B, pack(24, ("I", 16, 8))),
    ),
    "copy engine that is fused off": (
        NOT_SUPPORTED,
        lambda u: u.control(u.subdevice, 0x20802A02, pack(8, ("I", 0, COPY0 + 2))),
    ),
    "copy engine that is graphics": (
        NOT_SUPPORTED,
        lambda u: u.control(u.subdevice, 0x20802A03, pack(8, ("I", 0, GRAPHICS))),
    ),
    "no GR infos": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x20801201, bytearray(32)),
    ),
    "GR infos of which there are none": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x20801201, pack(32, ("Q", 8, _gr_infos(1)[2]))),
    ),
    "GR infos that are nowhere": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x20801201, pack(32, ("I", 0, 1))),
    ),
    "more GR infos than there are": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x20801201, _gr_infos(*range(0x39), 0, 0)[0]),
    ),
    "parameters that cannot be read": (
        INVALID_ADDRESS,
        lambda u: _control_at(u, 0x1000),
    ),
    "a GR info beyond the last": (
        INVALID_ARGUMENT,
        lambda u: u.control(u.subdevice, 0x20801201, _gr_infos(0x3A)[0]),
    ),
}


def _control_of(user: RawNv, client: int, target: int) -> int:
    data = pack(32, ("I", 0, client), ("I", 4, target), ("I", 8, 0x205))
    user.escape(0x2A, data)
    return int(struct.unpack_from("<I", data, 28)[0])


def _control_at(user: RawNv, address: int) -> int:
    fields = (("I", 0, user.client), ("I", 4, user.client), ("I", 8, 0x205))
    data = pack(32, *fields, ("Q", 16, address), ("I", 24, 32))
    user.escape(0x2A, data)
    return int(struct.unpack_from("<I", data, 28)[0])


_KEEP: list[object] = []  # what the model reads by address


def _gr_infos(*indices: int) -> tuple[bytearray, memoryview, int]:
    table = (ctypes.c_uint32 * (2 * len(indices)))()
    for i, index in enumerate(indices):
        table[2 * i] = index
    _KEEP.append(table)
    params = pack(32, ("I", 0, len(indices)), ("Q", 8, ctypes.addressof(table)))
    return params, memoryview(table).cast("B").cast("I"), ctypes.addressof(table)


def _room_for_classes(count: int) -> bytearray:
    table = (ctypes.c_uint32 * count)()
    _KEEP.append(table)
    return pack(16, ("I", 0, count), ("Q", 8, ctypes.addressof(table)))


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_that_are_refused(opened: RawNv, name: str) -> None:
    status, case = CONTROLS[name]
    assert case(opened) == status


def test_controls_of_channels_are_another_size_error(user: RawNv) -> None:
    """0xA06F is no class that RM knows by number, so the object's own table finds the mistake."""
    assert user.control(user.ring.handle, 0xA06F0103, bytearray(2)) == PARAM_STRUCT
    assert user.control(user.last_group, 0xA06C0101, bytearray(2)) == INVALID_ARGUMENT


def test_binding_a_channel_to_an_engine(user: RawNv) -> None:
    answers = {GRAPHICS: OK, COPY0: OK, COPY0 + 4: INVALID_STATE, COPY0 + 2: INVALID_ARGUMENT}
    for engine, status in answers.items():
        assert user.control(user.ring.handle, 0xA06F0104, pack(4, ("I", 0, engine))) == status


def test_what_a_gpu_tells(each: RawNv) -> None:
    chip = each.gpu.chip
    params, table, _ = _gr_infos(0x0C, 0x0D, 0x14, 0x17, 0x20)
    assert each.control(each.subdevice, 0x20801201, params) == OK
    told = list(table)[1::2]
    assert told == [chip.sm_version, chip.warps, chip.litter_gpcs, chip.litter_tpcs, 2]
    mask = bytearray(24)
    assert each.control(each.subdevice, 0x2080122A, mask) == OK
    tpcs = 0
    for gpc in range(struct.unpack_from("<I", mask, 16)[0].bit_count()):
        params = pack(24, ("I", 16, gpc))
        assert each.control(each.subdevice, 0x2080122B, params) == OK
        tpcs += struct.unpack_from("<I", params, 20)[0].bit_count()
    assert 2 * tpcs == {"ga102": 82, "ad102": 128, "gh100": 132, "gb202": 170}[each.chip]
    caps = bytearray(136)
    assert each.control(each.subdevice, 0x20802A0A, caps) == OK
    present = struct.unpack_from("<Q", caps, 128)[0]
    assert present == {"gh100": 0x53, "gb202": 0x31}.get(each.chip, 0x1F)
    assert caps[0] & 1 and not caps[8] & 1  # LCE 0 is a GRCE, LCE 4 is none
    better = [(caps[2 * i] & 4, caps[2 * i] & 8) for i in (4, 5)]  # at reading, at writing
    assert better == ([(4, 0), (0, 8)] if each.chip == "gb202" else [(0, 0), (0, 0)])


def test_the_older_form_of_the_version(opened: RawNv) -> None:
    texts = [(ctypes.c_uint8 * 32)() for _ in range(3)]
    places = [ctypes.addressof(text) for text in texts]
    for room, missing, status in ((32, 0, OK), (12, 0, OK), (11, 0, PARAM_STRUCT), (0, 1, OK)):
        fields = [("Q", 8 + 8 * i, place) for i, place in enumerate(places) if not missing or i]
        params = pack(40, ("I", 0, room), *fields)
        assert opened.control(opened.client, 0x101, params) == status
        assert not missing or params[0] == 12  # the title is the longest, with its end
    assert [bytes(text).split(b"\0")[0] for text in texts] == [
        b"580.142",
        b"580.142",
        b"Open Kernel",
    ]


def test_version_and_ids(opened: RawNv) -> None:
    version = bytearray(1032)
    assert opened.control(opened.client, 0x13E, version) == OK
    assert version[:7] == b"580.142"
    ids = bytearray(128)
    assert opened.control(opened.client, 0x201, ids) == OK
    assert struct.unpack_from("<II", ids) == (opened.gpu.gpu_id, 0xFFFFFFFF)
    info = pack(32, ("I", 0, opened.gpu.gpu_id))
    assert opened.control(opened.client, 0x205, info) == OK
    assert struct.unpack_from("<II", info, 8) == (0, 0)
    text = pack(268, ("I", 8, 256))
    assert opened.control(opened.subdevice, 0x2080014A, text) == OK
    assert text[12:16] == b"GPU-" and len(text[12:].split(b"\0")[0]) == 40
