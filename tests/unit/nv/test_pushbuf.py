"""Pushbuffers against words put together by hand, and dumps of them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.autogen.nv import classes as ids
from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.nv.encode.methods import compute, copy, host
from gpu.drivers.nv.encode.methods.compute import COMPUTE_CLASSES
from gpu.drivers.nv.encode.methods.copy import COPY_CLASSES
from gpu.drivers.nv.encode.methods.method import HOST_METHODS_END, Engine, MethodSet
from gpu.drivers.nv.encode.pushbuf import Pushbuffer, gp_entry, methods_of
from gpu.drivers.nv.encode.semaphore import acquire, membar, release, wait_for_idle
from gpu.drivers.nv.fault.pushbuf_text import (
    bound_classes,
    decode_gp_entries,
    decode_pushbuffer,
)
from gpu.drivers.nv.rm.classes import GENERATIONS
from gpu.hcq.symbol import Symbol

HOPPER = ids.HOPPER_COMPUTE_A


def words(push: Pushbuffer) -> list[int]:
    return list(struct.unpack(f"<{len(push.data) // 4}I", push.data))


def hopper() -> Pushbuffer:
    return Pushbuffer(compute=HOPPER, copy=ids.HOPPER_DMA_COPY_A)


def test_binding_goes_to_the_engines_subchannel() -> None:
    push = hopper().bind(Engine.COMPUTE).bind(Engine.COPY)
    assert words(push) == [0x2001_2000, 0xCBC0, 0x2001_8000, 0xC8B5]


def test_a_release_is_five_methods_under_one_header() -> None:
    push = Pushbuffer().write(*release(0x12_3456_7890, 0x1_0000_0007, timestamp=True))
    # release 1, WFI bit 20, 64 bits bit 24, timestamp bit 25
    assert words(push) == [0x2005_0017, 0x3456_7890, 0x12, 7, 1, 0x0310_0001]


def test_other_semaphores() -> None:
    push = Pushbuffer().write(*release(0x1004, 5, bits=32, wait=False))
    assert words(push) == [0x2005_0017, 0x1004, 0, 5, 0, 1]
    push = Pushbuffer().write(*acquire(0x2008, 9))  # at least, switching bit 12, 64 bits
    assert words(push) == [0x2005_0017, 0x2008, 0, 9, 0, 0x0100_1002]


def test_waiting_and_barriers() -> None:
    assert words(Pushbuffer().write(*wait_for_idle())) == [0x2001_001E, 1]
    assert words(Pushbuffer().write(*membar())) == [0x2004_000A, 0, 0, 0, 5 << 27]


def test_methods_that_do_not_follow_each_other_have_headers_of_their_own() -> None:
    push = hopper().write(
        compute.SEND_PCAS_A(QMD_ADDRESS_SHIFTED8=0x1234),
        compute.SEND_SIGNALING_PCAS2_B(PCAS_ACTION=10),
        copy.LINE_LENGTH_IN(VALUE=1),
        copy.LINE_COUNT(VALUE=2),
    )
    assert words(push) == [0x2001_20AD, 0x1234, 0x2001_20B0, 10, 0x2002_8106, 1, 2]


def test_methods_at_one_address_of_two_engines_are_kept_apart() -> None:
    push = hopper().write(host.YIELD(OP=3), compute.NO_OPERATION(V=1), copy.NOP(PARAMETER=2))
    assert words(push) == [0x2001_0020, 3, 0x2001_2040, 1, 0x2001_8040, 2]
    lines = compute.INVALIDATE_TEXTURE_HEADER_CACHE_NO_WFI(LINES=1)
    push = hopper().write(copy.SET_SEMAPHORE_A(UPPER=2), lines)  # at 0x240 and 0x244
    assert words(push) == [0x2001_8090, 2, 0x2001_2091, 1]


def test_symbols_become_patches() -> None:
    address, value = Symbol("address"), Symbol("value")
    push = Pushbuffer().write(*wait_for_idle(), *release(address, value))
    fixed = Pushbuffer().write(*wait_for_idle(), *release(0xAB_1234_5678, 0x1_2222_3333))
    data = bytearray(push.data)
    for patch in push.patches:
        patch.apply(data, {address: 0xAB_1234_5678, value: 0x1_2222_3333}[patch.symbol])
    assert data == fixed.data
    assert len(push.patches) == 4


def test_entries() -> None:
    assert gp_entry(0x12_3456_7890, 5) == 0x3456_7890 | (0x12 | 5 << 10) << 32
    assert gp_entry(4, 0x1F_FFFF, wait=True) == 4 | (0x1F_FFFF << 10 | 1 << 31) << 32
    for address, dwords in ((1 << 40, 1), (2, 1), (-4, 1), (4, 0), (4, 1 << 21)):
        with pytest.raises(InvalidValue):
            gp_entry(address, dwords)


@pytest.mark.parametrize(
    "arguments",
    [
        {"address": 0x1008, "payload": 1, "timestamp": True},
        {"address": 0x1004, "payload": 1},
        {"address": 0x1002, "payload": 1, "bits": 32},
        {"address": 1 << 40, "payload": 1},
        {"address": 0x1000, "payload": 1 << 32, "bits": 32},
        {"address": 0x1000, "payload": -1},
        {"address": 0x1000, "payload": 1, "bits": 16},
    ],
)
def test_releases_that_no_hardware_takes(arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidValue):
        release(**arguments)  # type: ignore[arg-type]


def test_what_a_channel_lacks_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"INVALIDATE_SKED_CACHES.*BLACKWELL_COMPUTE_B"):
        Pushbuffer(compute=ids.BLACKWELL_COMPUTE_B).write(compute.INVALIDATE_SKED_CACHES())
    with pytest.raises(Unsupported, match="SET_SEMAPHORE_PAYLOAD_UPPER"):
        Pushbuffer(copy=ids.AMPERE_DMA_COPY_A).write(copy.SET_SEMAPHORE_PAYLOAD_UPPER())
    with pytest.raises(Unsupported, match="without copy"):
        Pushbuffer(compute=HOPPER).write(copy.LINE_COUNT())
    with pytest.raises(Unsupported, match="0x90c0"):
        Pushbuffer(compute=0x90C0)


def test_every_generation_has_its_methods() -> None:
    for row in GENERATIONS.values():
        assert compute.SEND_PCAS_A in methods_of(row.compute)
        assert copy.LAUNCH_DMA in methods_of(row.dma)


@pytest.mark.parametrize(
    "methods", [host.HOST, *COMPUTE_CLASSES.values(), *COPY_CLASSES.values()], ids=lambda m: m.name
)
def test_no_two_methods_of_a_class_share_an_address(methods: MethodSet) -> None:
    taken: set[int] = set()
    for method in methods.methods:
        places = {method.address + 4 * index for index in range(method.count)}
        assert method.address % 4 == 0
        assert (method.address < HOST_METHODS_END) == (methods is host.HOST)
        assert not places & taken
        taken |= places


def test_a_dump_names_methods_and_fields() -> None:
    push = hopper().bind(Engine.COMPUTE)
    push.write(*release(0x1000, 7, timestamp=True), compute.SEND_PCAS_A(QMD_ADDRESS_SHIFTED8=0x42))
    # Headers that others write: one with its data, and one that increments once.
    others = struct.pack("<5I", 0x8000_2044, 0xA003_206C, 0, 5, 6)
    text = "\n".join(map(str, decode_pushbuffer(bytes(push.data) + others)))
    for expected in (
        "SET_OBJECT(NVCLASS=0xcbc0",
        "INC subchannel 0, 5 words",
        "OPERATION=RELEASE",
        "RELEASE_TIMESTAMP=1",
        "SEND_PCAS_A(QMD_ADDRESS_SHIFTED8=0x42)",
        "IMMD WAIT_FOR_IDLE(V=0)",
        "LOAD_INLINE_DATA(V=6)",
    ):
        assert expected in text
    assert text.count("LOAD_INLINE_DATA") == 2


def test_a_dump_shows_what_makes_no_sense() -> None:
    data = struct.pack("<7I2s", 0x2001_2080, 1, 0x2001_0001, 2, 0xC000_0000, 0x2005_2044, 3, b"xy")
    lines = decode_pushbuffer(data, bound_classes(compute=HOPPER))
    texts = [line.text for line in lines]
    assert "method 0x200" in texts[1]
    assert "method 0x4" in texts[3]
    assert texts[4] == "unknown opcode 6"
    assert "cut off after 1" in texts[5]
    assert "2 bytes are no word" in texts[7]
    assert "no class" in decode_pushbuffer(struct.pack("<II", 0x2001_4044, 1))[1].text
    assert "unknown here" in decode_pushbuffer(struct.pack("<II", 0x2001_4044, 1), {2: 0x1})[1].text


@given(st.binary(max_size=400))
def test_dumps_of_anything(data: bytes) -> None:
    lines = decode_pushbuffer(data, bound_classes(HOPPER, ids.HOPPER_DMA_COPY_A))
    assert [line.offset for line in lines] == list(range(0, len(data), 4))
    assert len(decode_gp_entries(data)) == -(-len(data) // 8)


def test_entries_in_dumps() -> None:
    data = struct.pack("<3Q", gp_entry(0x1234, 7, wait=True), 0, 4 << 32)
    lines = [line.text for line in decode_gp_entries(data)]
    assert lines == [
        "7 words at 0x1234, waits",
        "control entry NOP",
        "control entry SET_EXTENDED_BASE",
    ]
