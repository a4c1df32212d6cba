"""Packets of the copy engine against words written by hand, and as text.

The words follow the kernel's sdma_v*_pkt_open.h and sdma_v4_4_2.c, sdma_v5_0.c, sdma_v6_0.c.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.decode.sdma import decode_sdma
from gpu.drivers.am.encode.sdma import RING_ALIGN, SdmaEncoder
from gpu.drivers.am.encode.sdma_builder import SdmaBuilder
from gpu.drivers.am.encode.sdma_packets import sdma_version
from gpu.drivers.am.target import Target, Version, Wake
from gpu.hcq.commands import (
    Barrier,
    Command,
    Copy,
    PollMem,
    Signal,
    SymbolicSignal,
    Timestamp,
    Wait,
    WriteMem,
)
from gpu.hcq.encoder import Encoded
from gpu.hcq.signal import OWN_TIMELINE
from gpu.hcq.symbol import TIMELINE_ADDRESS, TIMELINE_VALUE, GpuVA, Symbol, segment_address

V4, V5, V6, V7 = (4, 4, 2), (5, 2, 0), (6, 0, 0), (7, 0, 0)
ADDRESS = 0x7F12_3456_7000
LO, HI = 0x3456_7000, 0x7F12
OTHER = 0x7F22_0000_1000
OLO, OHI = 0x0000_1000, 0x7F22
Build = Callable[[SdmaBuilder], None]
EVERYWHERE: list[tuple[Build, list[int]]] = [
    (lambda p: p.nop(1), [0]),
    (lambda p: p.nop(3), [0x0002_0000, 0, 0]),
    (lambda p: p.copy(ADDRESS, OTHER, 100), [1, 99, 0, OLO, OHI, LO, HI]),
    (lambda p: p.copy(ADDRESS, OTHER, 0), []),
    (lambda p: p.fill(ADDRESS, 5, 64), [0x8000_000B, LO, HI, 5, 60]),
    (lambda p: p.clear(ADDRESS, 65), [0x0000_000B, LO, HI, 0, 64]),
    (lambda p: p.trap(7), [6, 7]),
    (
        lambda p: p.poll(ADDRESS, 9, 5, 0xFF),
        [0xD000_0008, LO, HI, 9, 0xFF, 0x0FFF_000A],
    ),
    (lambda p: p.timestamp(ADDRESS), [0x20D, LO, HI]),
    (lambda p: p.write(ADDRESS, [5, 6]), [2, LO, HI, 1, 5, 6]),
    (lambda p: p.call(ADDRESS, 16), [4, LO, HI, 16, 0, 0]),
]


def words_of(build: Build, version: Version) -> list[int]:
    push = SdmaBuilder(version)
    build(push)
    return push.words


@pytest.mark.parametrize("version", [V4, (5, 0, 0), V5, V6, V7])
@pytest.mark.parametrize("number", range(len(EVERYWHERE)))
def test_packets_of_all_versions(number: int, version: Version) -> None:
    build, words = EVERYWHERE[number]
    assert words_of(build, version) == words


def test_fences_are_uncached_where_they_can_say_so() -> None:
    assert words_of(lambda p: p.fence(ADDRESS, 9), V4) == [5, LO, HI, 9]
    for version in (V5, V6, V7):
        assert words_of(lambda p: p.fence(ADDRESS, 9), version) == [0x0003_0005, LO, HI, 9]


def test_caches_are_refreshed_where_the_engine_has_the_packet() -> None:
    assert words_of(lambda p: p.refresh(), V4) == []
    # GL2_INV 14, GL2_WB 15, GLM_INV 5, GL1_INV 9, GLV_INV 8, GLK_INV 7, GLI_INV 0.
    assert words_of(lambda p: p.refresh(), V5) == [0x11, 0, 0xC3A1_0000, 0, 0]


@pytest.mark.parametrize(("version", "most"), [(V4, 1 << 22), ((5, 0, 0), 1 << 22), (V6, 1 << 30)])
def test_long_copies_are_split(version: Version, most: int) -> None:
    size = 2 * most + 5
    words = words_of(lambda p: p.copy(ADDRESS, OTHER, size), version)
    packets = [words[at : at + 7] for at in range(0, len(words), 7)]
    assert [packet[1] + 1 for packet in packets] == [most, most, 5]
    for number, (*_, src_lo, src_hi, dst_lo, dst_hi) in enumerate(packets):
        assert src_hi << 32 | src_lo == OTHER + number * most
        assert dst_hi << 32 | dst_lo == ADDRESS + number * most


def test_long_fills_are_split() -> None:
    words = words_of(lambda p: p.fill(ADDRESS, 5, (1 << 22) + 8), V6)
    assert [words[4], words[9]] == [(1 << 22) - 4, 4]
    assert words[6] == LO + (1 << 22)


def test_what_does_not_fit_is_refused() -> None:
    push = SdmaBuilder(V6)
    refused: list[Callable[[], None]] = [
        lambda: push.fence(ADDRESS + 2, 1),
        lambda: push.fence(ADDRESS, 1 << 32),
        lambda: push.timestamp(ADDRESS + 4),
        lambda: push.fill(ADDRESS, 1, 6),
        lambda: push.copy(1 << 48, 0, 4),
        lambda: push.call(ADDRESS + 16, 4),
        lambda: push.call(ADDRESS, 1 << 20),
    ]
    for wrong in refused:
        with pytest.raises(InvalidValue):
            wrong()
    assert push.words == []


@pytest.mark.parametrize("version", [(3, 0, 0), (4, 0, 0), (5, 1, 0), (6, 2, 0), (7, 1, 0)])
def test_other_versions_are_refused(version: Version) -> None:
    with pytest.raises(Unsupported, match=r"known are 4\.4, 5\.0, 5\.2, 6\.0, 6\.1, 7\.0 "):
        sdma_version(version)


# The encoder


def encoder(version: Version = V6, wake: Wake | None = None) -> SdmaEncoder:
    return SdmaEncoder(Target((11, 0, 0), version), wake)


class At:
    def __init__(self, address: int):
        self.address = address


def packets(encoded: Encoded, version: Version = V6, **values: int) -> list[str]:
    known = {TIMELINE_ADDRESS: 0x5000, TIMELINE_VALUE: 9, segment_address(1): 0x6000}
    data = encoded.resolve(known)[0]
    assert len(data) % RING_ALIGN == 0
    texts = [line.text for line in decode_sdma(data, version)]
    return [text.partition(",")[0] for text in texts if not text.startswith("  ")]


def test_every_command() -> None:
    commands: list[Command] = [
        Barrier(),
        Wait(At(ADDRESS), 3),
        PollMem(ADDRESS, 3, 0xF, "!="),
        Copy(ADDRESS, OTHER, 64),
        WriteMem(ADDRESS + 0x100, b"abcdefgh"),
        Timestamp(At(ADDRESS)),
        Signal(At(ADDRESS), 4),
    ]
    found = packets(encoder().encode(commands))
    assert [name for name in found if name != "NOP"] == [
        *("GCR_REQ", "POLL_REGMEM", "POLL_REGMEM", "COPY_LINEAR"),
        *("WRITE_UNTILED", "TIMESTAMP_GET_GLOBAL", "FENCE"),
    ]


def test_a_timestamp_is_behind_the_value() -> None:
    data = encoder().encode([Timestamp(At(ADDRESS))]).segments[0].data
    assert struct.unpack_from("<3I", data) == (0x20D, LO + 24, HI)


def test_only_the_own_timeline_wakes_the_host() -> None:
    enc = encoder(wake=Wake(GpuVA(OTHER), 5))
    assert packets(enc.encode([Signal(At(ADDRESS), 1)])) == ["FENCE", "NOP"]
    assert packets(enc.encode([Signal(OWN_TIMELINE, TIMELINE_VALUE)])) == [
        *("FENCE", "FENCE", "TRAP", "NOP"),
    ]


@pytest.mark.parametrize(
    ("second", "fenced"),
    [
        (Copy(0x9000, 0x3000, 0x100), False),
        (Copy(0x9000, 0x10FF, 0x10), True),  # reads what the first writes
        (Copy(0x1080, 0x9000, 0x10), True),  # writes it too
        (Copy(0x20FF, 0x9000, 0x10), True),  # writes what the first reads
        (Copy(0x1100, 0x2100, 0x10), False),
        (Copy(0x9000, 0x2000, 0x10), False),  # both read it
        (Copy(Symbol("anywhere"), 0x9000, 0x10), True),
        (WriteMem(0x10FC, b"abcd"), True),
        (WriteMem(0x1100, b"abcd"), False),
    ],
)
def test_a_fence_parts_copies_that_depend(second: Command, fenced: bool) -> None:
    encoded = encoder().encode([Copy(0x1000, 0x2000, 0x100), second])
    texts = [line.text for line in decode_sdma(encoded.segments[0].data, V6)]
    assert any(text.startswith("FENCE") for text in texts) == fenced
    assert len(encoded.segments) == 1 + fenced
    # What is signalled in between is done.
    parted = encoder().encode([Copy(0x1000, 0x2000, 0x100), Signal(At(0x5000), 1), second])
    assert len(parted.segments) == 1


def test_a_size_that_comes_late_is_one_packet() -> None:
    size, place = Symbol("size"), Symbol("place")
    encoded = encoder(V4).encode([Copy(place, 0x2000, size)])
    plain = encoder(V4).encode([Copy(ADDRESS, 0x2000, 4096)])
    assert encoded.resolve({size: 4096, place: ADDRESS})[0] == plain.segments[0].data
    for wrong in (0, (1 << 22) + 1):
        with pytest.raises(InvalidValue):
            encoded.resolve({size: wrong, place: ADDRESS})


def test_a_call_ends_on_eight_words() -> None:
    target = Symbol("target")
    encoded = encoder().call(target, 0x40, 0x100)
    (data,) = encoded.resolve({target: ADDRESS})
    assert struct.unpack("<8I", data) == (0x0001_0000, 0, 4, LO + 0x40, HI, 0x40, 0, 0)


def test_filler_is_nops() -> None:
    for size in (4, 32, 4096, 1 << 17):
        data = encoder().filler(size)
        assert len(data) == size
        assert all(line.text.startswith(("NOP", "  DATA0")) for line in decode_sdma(data, V6))


def test_launches_are_for_compute_queues() -> None:
    signal = SymbolicSignal(Symbol("s"))
    for wrong in (Signal(signal, 1 << 32), Wait(signal, 1 << 32)):
        with pytest.raises(InvalidValue):
            encoder().encode([wrong])


# As text


@pytest.mark.parametrize("version", [V4, V5, V6])
def test_random_packets_come_back(version: Version) -> None:
    rng = random.Random(version[0])
    kinds = sdma_version(version)
    push, names = SdmaBuilder(version), []
    for _ in range(300):
        name = rng.choice(sorted(kinds.packets))
        kind = kinds.packets[name]
        words = [rng.getrandbits(32) for _ in kind.words[1:]]
        if name == "NOP":
            push.packet(name, *words, count=len(words))
        elif name == "WRITE_UNTILED":
            words[2] = words[2] & ~0xF_FFFF | 1  # two words
            push.packet(name, *words, 7)
        else:
            push.packet(name, *words)
        names.append(name)
    lines = decode_sdma(push.data, version)
    assert struct.pack(f"<{len(lines)}I", *(line.number for line in lines)) == push.data
    found = [line.text.partition(",")[0] for line in lines if not line.text.startswith("  ")]
    assert found == names


@given(st.binary(max_size=200), st.sampled_from([V4, V5, V6]))
def test_garbage_is_shown_whole(data: bytes, version: Version) -> None:
    lines = decode_sdma(data, version)
    assert b"".join(line.number.to_bytes(line.size, "little") for line in lines) == data


def test_after_an_unknown_packet_nothing_is_guessed() -> None:
    texts = [line.text for line in decode_sdma(struct.pack("<4I", 0, 0x7F, 1, 5), V6)]
    assert texts == ["NOP", "not known: operation 0x7f, sub-operation 0x0", "  ?", "  ?"]
