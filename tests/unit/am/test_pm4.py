"""PM4 packets against words written by hand, and as text.

The words follow nvd.h, soc15d.h and the code of amdgpu that is named beside them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode import pm4_packets as pm4
from gpu.drivers.am.encode.pm4 import Caches, Pm4Builder, packets_of, write_pieces
from gpu.drivers.am.target import Target, generation_of, parse_gfx_name
from gpu.hcq.symbol import Symbol, offset

VERSIONS = {9: (9, 4, 2), 10: (10, 3, 0), 11: (11, 0, 0), 12: (12, 0, 0)}
ADDRESS = 0x7F12_3456_7000
LO, HI = 0x3456_7000, 0x7F12


def builder(major: int = 11) -> Pm4Builder:
    return Pm4Builder(Target(VERSIONS[major], (6, 0, 0)))


Build = Callable[[Pm4Builder], None]
EVERYWHERE: list[tuple[Build, list[int]]] = [
    (lambda p: p.nop(1), [0xFFFF_1000]),
    (lambda p: p.nop(3), [0xC001_1000, 0, 0]),
    # COMPUTE_PGM_LO is register 0x2E0C, SH registers begin at 0x2C00.
    (lambda p: p.set_registers("COMPUTE_PGM_LO", 1, 2), [0xC002_7600, 0x20C, 1, 2]),
    (lambda p: p.set_registers("COMPUTE_PGM_RSRC1", 7), [0xC001_7600, 0x212, 7]),
    (lambda p: p.set_registers("COMPUTE_TMPRING_SIZE", 7), [0xC001_7600, 0x218, 7]),
    (lambda p: p.set_registers("COMPUTE_USER_DATA_0", 7), [0xC001_7600, 0x240, 7]),
    (lambda p: p.set_registers("COMPUTE_START_X", 7), [0xC001_7600, 0x204, 7]),
    (lambda p: p.set_registers("COMPUTE_RESTART_X", 7), [0xC001_7600, 0x21B, 7]),
    (lambda p: p.set_registers("COMPUTE_RESOURCE_LIMITS", 7), [0xC001_7600, 0x215, 7]),
    (lambda p: p.dispatch((4, 3, 2), wave32=False), [0xC003_1502, 4, 3, 2, 5]),
    (lambda p: p.wait_for_shaders(), [0xC000_4600, 0x407]),
    (
        lambda p: p.wait_memory(ADDRESS, 9, fields.Function.GREATER_EQUAL),
        [0xC005_3C00, 0x15, LO, HI, 9, 0xFFFF_FFFF, 4],
    ),
    (
        lambda p: p.wait_memory(ADDRESS, 9, fields.Function.NOT_EQUAL, 0xFF),
        [0xC005_3C00, 0x14, LO, HI, 9, 0xFF, 4],
    ),
    (
        lambda p: p.write_data(ADDRESS, [5, 6]),
        [0xC004_3700, 0x0010_0500, LO, HI, 5, 6],
    ),
    (
        lambda p: p.copy_data(ADDRESS, 0, from_=fields.CopySource.CLOCK),
        [0xC004_4000, 0x0011_0209, 0, 0, LO, HI],
    ),
    (
        lambda p: p.copy_data(ADDRESS + 4, ADDRESS, from_=fields.CopySource.L2, all_64=False),
        [0xC004_4000, 0x0010_0202, LO, HI, LO + 4, HI],
    ),
    (lambda p: p.call(ADDRESS, 16), [0xC002_3F00, LO, HI, 0x0080_0010]),
]
COHERENCE = [0xFFFF_FFFF, 0x00FF_FFFF, 0, 0, 0xA]
DIFFERING: list[tuple[int, Build, list[int]]] = [
    *(
        (major, lambda p: p.dispatch((4, 3, 2), wave32=True), [0xC003_1502, 4, 3, 2, 0x8005])
        for major in (10, 11, 12)
    ),
    # gfx_v9_0_emit_mem_sync, gfx_v11_0_emit_mem_sync, gfx_v12_0_emit_mem_sync.
    (9, lambda p: p.acquire(Caches.ALL), [0xC005_5800, 0x28C4_0000, *COHERENCE]),
    (9, lambda p: p.acquire(Caches.UNITS), [0xC005_5800, 0x0840_0000, *COHERENCE]),
    (10, lambda p: p.acquire(Caches.ALL), [0xC006_5800, 0, *COHERENCE, 0xC3B1]),
    (11, lambda p: p.acquire(Caches.ALL), [0xC006_5800, 0, *COHERENCE, 0xC3B1]),
    (11, lambda p: p.acquire(Caches.UNITS), [0xC006_5800, 0, *COHERENCE, 0x380]),
    (12, lambda p: p.acquire(Caches.ALL), [0xC006_5800, 0, *COHERENCE, 0xC3B1]),
    (12, lambda p: p.acquire(Caches.UNITS), [0xC006_5800, 0, *COHERENCE, 0x380]),
    # ring_emit_fence of gfx_v9_4_3.c, gfx_v10_0.c, gfx_v11_0.c, gfx_v12_0.c.
    (9, lambda p: p.release(ADDRESS, 7), [0xC006_4900, 0x0023_8514, 1 << 29, LO, HI, 7, 0, 0]),
    (10, lambda p: p.release(ADDRESS, 7), [0xC006_4900, 0x0660_3514, 1 << 29, LO, HI, 7, 0, 0]),
    (11, lambda p: p.release(ADDRESS, 7), [0xC006_4900, 0x0660_3514, 1 << 29, LO, HI, 7, 0, 0]),
    (12, lambda p: p.release(ADDRESS, 7), [0xC006_4900, 0x0660_0514, 1 << 29, LO, HI, 7, 0, 0]),
    (
        11,
        lambda p: p.release(ADDRESS, 7, interrupt=3, flush=False),
        [0xC006_4900, 0x514, 1 << 29 | 2 << 24, LO, HI, 7, 0, 3],
    ),
    (
        11,
        lambda p: p.release(ADDRESS, data=fields.DataSel.CLOCK, flush=False),
        [0xC006_4900, 0x514, 3 << 29, LO, HI, 0, 0, 0],
    ),
    (
        11,
        lambda p: p.release(ADDRESS, 0x1_0000_0002, data=fields.DataSel.ALL_64),
        [0xC006_4900, 0x0660_3514, 2 << 29, LO, HI, 2, 1, 0],
    ),
]


@pytest.mark.parametrize("major", VERSIONS)
@pytest.mark.parametrize("number", range(len(EVERYWHERE)))
def test_packets_of_all_generations(number: int, major: int) -> None:
    build, words = EVERYWHERE[number]
    push = builder(major)
    build(push)
    assert push.words == words


@pytest.mark.parametrize("number", range(len(DIFFERING)))
def test_packets_that_differ(number: int) -> None:
    major, build, words = DIFFERING[number]
    push = builder(major)
    build(push)
    assert push.words == words


def test_a_symbol_gives_the_words_of_its_value() -> None:
    place, value = Symbol("place"), Symbol("value")
    plain, late = builder(), builder()
    for push, at, number in ((plain, ADDRESS, 77), (late, place, value)):
        push.release(at, number)
        push.wait_memory(at, number, fields.Function.LESS)
        push.write_data(at, [1])
        push.dispatch((number, 1, number), wave32=True)
        push.call(offset(at, 8) if isinstance(at, Symbol) else at + 8, 3)
    data = bytearray(late.data)
    for patch in late.patches:
        base = {place: ADDRESS, value: 77}
        number = base.get(patch.symbol, ADDRESS + 8)
        patch.apply(data, number)
    assert bytes(data) == plain.data != late.data


def test_what_does_not_fit_is_refused() -> None:
    push = builder()
    for wrong in (
        lambda: push.release(ADDRESS + 2, 1),
        lambda: push.release(ADDRESS + 4, data=fields.DataSel.CLOCK),
        lambda: push.release(ADDRESS, 1 << 32),
        lambda: push.wait_memory(ADDRESS, 1 << 32, fields.Function.EQUAL),
        lambda: push.wait_memory(ADDRESS, -1, fields.Function.EQUAL),
        lambda: push.wait_memory(1 << 48, 1, fields.Function.EQUAL),
        lambda: push.call(ADDRESS, 0),
        lambda: push.call(ADDRESS, 1 << 20),
        lambda: push.dispatch((1 << 32, 1, 1), wave32=True),
        lambda: write_pieces(b""),
        lambda: write_pieces(b"abc"),
    ):
        with pytest.raises(InvalidValue):
            wrong()
    assert push.words == []


def test_long_writes_are_split() -> None:
    words = list(range(0x3F00 + 2))
    pieces = write_pieces(struct.pack(f"<{len(words)}I", *words))
    assert [(start, len(some)) for start, some in pieces.items()] == [(0, 0x3F00), (0xFC00, 2)]
    assert [word for some in pieces.values() for word in some] == words


@pytest.mark.parametrize("count", [1, 2, 3, 0x3FFF, 0x4000, 0x7FFF])
def test_nops_fill_exactly(count: int) -> None:
    push = builder()
    push.nop(count)
    assert len(push) == count
    lines = decode_pm4(push.data, generation_of(VERSIONS[11]))
    assert all(line.text.startswith(("NOP", "  DATA")) for line in lines)


def test_compute_registers_are_where_all_generations_have_them() -> None:
    # Bytes, as Mesa's sid.h has them for all of GFX7 to GFX11: 0xB800 on, kept by GFX12.
    known = {
        "COMPUTE_DISPATCH_INITIATOR": 0xB800,
        "COMPUTE_NUM_THREAD_X": 0xB81C,
        "COMPUTE_PGM_LO": 0xB830,
        "COMPUTE_PGM_RSRC1": 0xB848,
        "COMPUTE_TMPRING_SIZE": 0xB860,
        "COMPUTE_USER_DATA_0": 0xB900,
    }
    for version in VERSIONS.values():
        packets = packets_of(generation_of(version))
        assert {name: 4 * packets.number(name) for name in known} == known


@pytest.mark.parametrize("name", ["gfx906", "gfx803", "gfx1250", "gfx700"])
def test_other_chips_are_unsupported(name: str) -> None:
    with pytest.raises(Unsupported):
        generation_of(parse_gfx_name(name))


@pytest.mark.parametrize("major", VERSIONS)
def test_random_packets_come_back(major: int) -> None:
    """Each is decoded under its own name, with every word, none of them unknown."""
    rng = random.Random(major)
    generation = generation_of(VERSIONS[major])
    kinds = list(packets_of(generation).by_opcode.values())
    push, names = builder(major), []
    for _ in range(300):
        kind = rng.choice(kinds)
        count = len(kind.words) + (rng.randrange(5) if kind.repeats else 0)
        words = [rng.getrandbits(32) for _ in range(count)]
        if kind is pm4.SET_SH_REG:
            words[0] = 0x200
        push.packet(kind, *words)
        names.append(kind.name)
    lines = decode_pm4(push.data, generation)
    assert struct.pack(f"<{len(lines)}I", *(line.number for line in lines)) == push.data
    headers = [line.text for line in lines if not line.text.startswith("  ")]
    assert headers == names
    assert not any("known" in line.text or "?" in line.text for line in lines)


@given(st.binary(max_size=400), st.sampled_from(sorted(VERSIONS)))
def test_garbage_is_shown_whole(data: bytes, major: int) -> None:
    lines = decode_pm4(data, generation_of(VERSIONS[major]))
    assert b"".join(line.number.to_bytes(line.size, "little") for line in lines) == data
    assert [line.offset for line in lines] == sorted(line.offset for line in lines)


def test_what_is_not_known_is_said_so() -> None:
    data = struct.pack("<6I", 0xC001_7D00, 1, 2, 0x4000_0000, 0xC001_4600, 7)
    texts = [line.text for line in decode_pm4(data, generation_of((11, 0, 0)))]
    assert texts == [
        "SCRATCH_RAM_WRITE, whose words are not known here",
        *("  ?", "  ?", "not known: packet of type 1"),
        "EVENT_WRITE, cut off: 2 words should follow",
        "  ?",
    ]


def test_fields_are_shown_by_name() -> None:
    push = builder()
    push.release(ADDRESS, 7, interrupt=3)
    push.set_registers("COMPUTE_PGM_RSRC2", 1 << 15 | 2 << 1)
    texts = [line.text for line in decode_pm4(push.data, generation_of((11, 0, 0)))]
    assert texts[1].endswith(
        "TYPE CACHE_FLUSH_AND_INV_TS, INDEX END_OF_PIPE, GLM_WB 1, GLM_INV 1, GL2_WB 1, SEQ 1,"
        " CACHE_POLICY 3"
    )
    assert texts[2].endswith("INT_SEL INTERRUPT_AFTER_CONFIRM, DATA_SEL LOW_32")
    assert texts[-1] == "  COMPUTE_PGM_RSRC2: USER_SGPR 2, LDS_SIZE 1"
