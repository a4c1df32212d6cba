"""Launch descriptors against bit positions written down a second time, and limits."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import FormatError, InvalidIndex, InvalidValue, Unsupported
from gpu.drivers.nv.encode.qmd import (
    ConstantBuffer,
    Dependent,
    DependentAction,
    Launch,
    Release,
    build_qmd,
    decode_qmd,
)
from gpu.drivers.nv.encode.qmd_layout import QmdWriter, qmd_layout
from gpu.drivers.nv.encode.sm_limits import sm_limits
from gpu.hcq.symbol import Symbol

# Written from the documentation of the fields that a launch needs, not from the tables.
# fmt: off
POSITIONS: dict[int, dict[str, tuple[int, int]]] = {
    3: {
        "QMD_GROUP_ID": (133, 128), "SM_GLOBAL_CACHING_ENABLE": (134, 134),
        "INVALIDATE_TEXTURE_HEADER_CACHE": (186, 186),
        "INVALIDATE_TEXTURE_SAMPLER_CACHE": (187, 187),
        "INVALIDATE_TEXTURE_DATA_CACHE": (188, 188), "INVALIDATE_SHADER_DATA_CACHE": (189, 189),
        "INVALIDATE_INSTRUCTION_CACHE": (190, 190),
        "INVALIDATE_SHADER_CONSTANT_CACHE": (191, 191),
        "PROGRAM_PREFETCH_ADDR_LOWER": (287, 256), "CWD_MEMBAR_TYPE": (369, 368),
        "API_VISIBLE_CALL_LIMIT": (378, 378), "SAMPLER_INDEX": (382, 382),
        "GRID_WIDTH": (415, 384), "GRID_HEIGHT": (431, 416), "GRID_DEPTH": (463, 448),
        "DEPENDENT_QMD_POINTER/0": (511, 480), "DEPENDENT_QMD_ENABLE/0": (512, 512),
        "DEPENDENT_QMD_ACTION/0": (515, 513), "DEPENDENT_QMD_PREFETCH/0": (516, 516),
        "SHARED_MEMORY_SIZE": (561, 544), "MIN_SM_CONFIG_SHARED_MEM_SIZE": (567, 562),
        "MAX_SM_CONFIG_SHARED_MEM_SIZE": (574, 569),
        "TARGET_SM_CONFIG_SHARED_MEM_SIZE": (662, 657), "QMD_MINOR_VERSION": (579, 576),
        "QMD_MAJOR_VERSION": (583, 580), "CTA_THREAD_DIMENSION0": (607, 592),
        "CTA_THREAD_DIMENSION1": (623, 608), "CTA_THREAD_DIMENSION2": (639, 624),
        "CONSTANT_BUFFER_VALID/0": (640, 640), "CONSTANT_BUFFER_VALID/7": (647, 647),
        "REGISTER_COUNT": (656, 648), "SHADER_LOCAL_MEMORY_LOW_SIZE": (759, 736),
        "BARRIER_COUNT": (767, 763), "RELEASE_ADDR_LOWER/0": (799, 768),
        "RELEASE_ADDR_UPPER/0": (807, 800), "RELEASE_ENABLE/0": (823, 823),
        "RELEASE_STRUCTURE_SIZE/0": (831, 830), "RELEASE_PAYLOAD_LOWER/0": (863, 832),
        "RELEASE_PAYLOAD_UPPER/0": (895, 864), "RELEASE_ADDR_LOWER/1": (927, 896),
        "RELEASE_ENABLE/1": (951, 951), "CONSTANT_BUFFER_ADDR_LOWER/0": (1055, 1024),
        "CONSTANT_BUFFER_ADDR_UPPER/0": (1072, 1056), "CONSTANT_BUFFER_INVALIDATE/0": (1074, 1074),
        "CONSTANT_BUFFER_SIZE/0": (1087, 1075), "CONSTANT_BUFFER_SIZE/3": (1279, 1267),
        "PROGRAM_ADDRESS_LOWER": (1567, 1536), "PROGRAM_ADDRESS_UPPER": (1584, 1568),
        "SHADER_LOCAL_MEMORY_HIGH_SIZE": (1623, 1600),
        "PROGRAM_PREFETCH_ADDR_UPPER": (1640, 1632), "PROGRAM_PREFETCH_SIZE": (1649, 1641),
        "SASS_VERSION": (1663, 1656), "RELEASE_ADDR_LOWER/2": (1695, 1664),
    },
    4: {
        "DEPENDENCE_COUNTER": (15, 0), "QMD_GROUP_ID": (21, 16), "QMD_TYPE": (25, 23),
        "RELEASE_ENABLE/0": (320, 320), "RELEASE_ENABLE/2": (352, 352),
        "RELEASE_STRUCTURE_SIZE/1": (338, 337), "RELEASE_MEMBAR_TYPE/0": (323, 323),
        "RELEASE_REDUCTION_ENABLE/0": (324, 324), "RELEASE_REDUCTION_OP/0": (327, 325),
        "RELEASE_REDUCTION_FORMAT/0": (329, 328), "RELEASE_PAYLOAD64B/0": (332, 332),
        "DEPENDENT_QMD_ENABLE/0": (368, 368), "DEPENDENT_QMD_ENABLE/1": (373, 373),
        "DEPENDENT_QMD_ACTION/0": (371, 369), "DEPENDENT_QMD_PREFETCH/0": (372, 372),
        "CONSTANT_BUFFER_VALID/0": (416, 416), "CONSTANT_BUFFER_VALID/7": (444, 444),
        "CONSTANT_BUFFER_PREFETCH/0": (418, 417), "CONSTANT_BUFFER_INVALIDATE/1": (423, 423),
        "DEPENDENT_QMD_POINTER/0": (479, 448), "DEPENDENT_QMD_POINTER/1": (511, 480),
        "SHADER_LOCAL_MEMORY_LOW_SIZE": (535, 512), "SASS_VERSION": (543, 536),
        "SHADER_LOCAL_MEMORY_HIGH_SIZE": (567, 544), "API_VISIBLE_CALL_LIMIT": (568, 568),
        "SAMPLER_INDEX": (569, 569), "QMD_MINOR_VERSION": (579, 576),
        "QMD_MAJOR_VERSION": (583, 580), "SHARED_MEMORY_SIZE": (601, 584),
        "INVALIDATE_TEXTURE_HEADER_CACHE": (602, 602),
        "INVALIDATE_TEXTURE_SAMPLER_CACHE": (603, 603),
        "INVALIDATE_TEXTURE_DATA_CACHE": (604, 604), "INVALIDATE_SHADER_DATA_CACHE": (605, 605),
        "INVALIDATE_INSTRUCTION_CACHE": (606, 606),
        "INVALIDATE_SHADER_CONSTANT_CACHE": (607, 607),
        "MIN_SM_CONFIG_SHARED_MEM_SIZE": (613, 608), "MAX_SM_CONFIG_SHARED_MEM_SIZE": (619, 614),
        "TARGET_SM_CONFIG_SHARED_MEM_SIZE": (625, 620), "RELEASE_ADDR_LOWER/0": (671, 640),
        "RELEASE_ADDR_UPPER/0": (696, 672), "RELEASE_PAYLOAD_LOWER/0": (735, 704),
        "RELEASE_PAYLOAD_UPPER/0": (767, 736), "RELEASE_ADDR_LOWER/1": (799, 768),
        "RELEASE_PAYLOAD_UPPER/2": (1023, 992), "GRID_WIDTH": (1055, 1024),
        "GRID_HEIGHT": (1071, 1056), "GRID_DEPTH": (1103, 1088), "CWD_MEMBAR_TYPE": (1137, 1136),
        "CTA_THREAD_DIMENSION0": (1167, 1152), "CTA_THREAD_DIMENSION1": (1183, 1168),
        "CTA_THREAD_DIMENSION2": (1199, 1184), "REGISTER_COUNT": (1208, 1200),
        "BARRIER_COUNT": (1215, 1211), "PROGRAM_ADDRESS_LOWER": (1247, 1216),
        "PROGRAM_ADDRESS_UPPER": (1272, 1248), "PROGRAM_PREFETCH_ADDR_LOWER": (1375, 1344),
        "PROGRAM_PREFETCH_ADDR_UPPER": (1392, 1376), "PROGRAM_PREFETCH_SIZE": (1401, 1393),
        "PROGRAM_PREFETCH_TYPE": (1403, 1402), "CONSTANT_BUFFER_ADDR_LOWER/0": (1567, 1536),
        "CONSTANT_BUFFER_ADDR_UPPER/0": (1586, 1568), "CONSTANT_BUFFER_SIZE/0": (1599, 1587),
        "CONSTANT_BUFFER_SIZE/7": (2047, 2035), "GPC_CGA_WIDTH": (2149, 2144),
        "GPC_CGA_HEIGHT": (2157, 2152), "GPC_CGA_DEPTH": (2165, 2160),
        "CGA_CTA_DISTRIBUTION_MODE": (2207, 2207), "GPU_CGA_WIDTH": (2223, 2208),
        "OUTER_PUT": (3038, 3008), "OUTER_GET": (3070, 3040),
        "OUTER_STICKY_OVERFLOW": (3071, 3071),
    },
    5: {
        "QMD_GROUP_ID": (149, 144), "QMD_TYPE": (153, 151), "RELEASE_ENABLE/0": (288, 288),
        "RELEASE_STRUCTURE_SIZE/0": (290, 289), "RELEASE_MEMBAR_TYPE/0": (291, 291),
        "RELEASE_PAYLOAD64B/0": (300, 300), "RELEASE_ENABLE/1": (304, 304),
        "DEPENDENT_QMD_ENABLE/0": (336, 336), "DEPENDENT_QMD_ACTION/0": (339, 337),
        "DEPENDENT_QMD_ENABLE/1": (344, 344), "DEPENDENT_QMD_POINTER/0": (415, 384),
        "DEPENDENT_QMD_POINTER/1": (447, 416), "SASS_VERSION": (455, 448),
        "API_VISIBLE_CALL_LIMIT": (456, 456), "SAMPLER_INDEX": (457, 457),
        "QMD_MINOR_VERSION": (467, 464), "QMD_MAJOR_VERSION": (471, 468),
        "INVALIDATE_TEXTURE_HEADER_CACHE": (472, 472),
        "INVALIDATE_SHADER_CONSTANT_CACHE": (477, 477), "RELEASE_ADDR_LOWER/0": (511, 480),
        "RELEASE_ADDR_UPPER/0": (536, 512), "RELEASE_PAYLOAD_LOWER/0": (575, 544),
        "RELEASE_PAYLOAD_UPPER/0": (607, 576), "CWD_MEMBAR_TYPE": (625, 624),
        "PROGRAM_ADDRESS_LOWER": (1055, 1024), "PROGRAM_ADDRESS_UPPER": (1076, 1056),
        "PROGRAM_PREFETCH_SIZE": (1085, 1077), "PROGRAM_PREFETCH_TYPE": (1087, 1086),
        "CTA_THREAD_DIMENSION0": (1103, 1088), "CTA_THREAD_DIMENSION1": (1119, 1104),
        "CTA_THREAD_DIMENSION2": (1127, 1120), "REGISTER_COUNT": (1136, 1128),
        "BARRIER_COUNT": (1141, 1137), "SHARED_MEMORY_SIZE": (1162, 1152),
        "MIN_SM_CONFIG_SHARED_MEM_SIZE": (1168, 1163),
        "MAX_SM_CONFIG_SHARED_MEM_SIZE": (1174, 1169),
        "TARGET_SM_CONFIG_SHARED_MEM_SIZE": (1180, 1175),
        "SHADER_LOCAL_MEMORY_LOW_SIZE": (1199, 1184),
        "SHADER_LOCAL_MEMORY_HIGH_SIZE": (1215, 1200), "GRID_WIDTH": (1279, 1248),
        "GRID_HEIGHT": (1295, 1280), "GRID_DEPTH": (1327, 1312),
        "CONSTANT_BUFFER_ADDR_LOWER/0": (1375, 1344),
        "CONSTANT_BUFFER_ADDR_UPPER/0": (1394, 1376), "CONSTANT_BUFFER_SIZE/0": (1407, 1395),
        "CONSTANT_BUFFER_ADDR_LOWER/2": (1503, 1472), "CONSTANT_BUFFER_VALID/0": (1856, 1856),
        "CONSTANT_BUFFER_VALID/7": (1884, 1884), "CONSTANT_BUFFER_PREFETCH/0": (1858, 1857),
        "CONSTANT_BUFFER_INVALIDATE/0": (1859, 1859),
        "PROGRAM_PREFETCH_ADDR_LOWER": (1919, 1888),
        "PROGRAM_PREFETCH_ADDR_UPPER": (1936, 1920), "GPC_CGA_WIDTH": (2053, 2048),
        "GPC_CGA_HEIGHT": (2061, 2056), "GPC_CGA_DEPTH": (2069, 2064),
        "CGA_CTA_DISTRIBUTION_MODE": (2111, 2111), "GPU_CGA_WIDTH": (2127, 2112),
    },
}
# fmt: on
SMS = {3: 86, 4: 90, 5: 120}
SHIFTS = {
    "PROGRAM_PREFETCH_ADDR_LOWER": {3: 8, 4: 8, 5: 8},
    "PROGRAM_ADDRESS_LOWER": {3: 0, 4: 0, 5: 4},
    "CONSTANT_BUFFER_ADDR_LOWER/0": {3: 0, 4: 6, 5: 6},
    "CONSTANT_BUFFER_SIZE/0": {3: 4, 4: 4, 5: 4},
    "SHARED_MEMORY_SIZE": {3: 0, 4: 0, 5: 7},
    "SHADER_LOCAL_MEMORY_HIGH_SIZE": {3: 0, 4: 0, 5: 4},
}
MAJORS = pytest.mark.parametrize("major", [3, 4, 5])

LAUNCH = Launch(
    program=0x12_3456_7800,
    program_size=0x345,
    grid=(0x11223, 0x44, 0x55),
    block=(32, 4, 2),
    registers=57,
    sass_version=0x90,
    barriers=3,
    shared=0x1480,
    local=0x260,
    constants=(ConstantBuffer(0, 0xAB_0000_4000, 0x234), ConstantBuffer(3, 0x8000, 64, False)),
    releases=(Release(0xCD_0000_1230, 0x9_0000_0008, timestamp=True),),
    dependents=(Dependent(0x12_0000_4500),),
)


def named(name: str) -> tuple[str, int | None]:
    base, _, index = name.partition("/")
    return base, int(index) if index else None


@MAJORS
def test_fields_are_where_the_documentation_has_them(major: int) -> None:
    layout = qmd_layout(major)
    found = {}
    for name in POSITIONS[major]:
        span = layout.span(*named(name))
        found[name] = (span.hi, span.lo)
    assert found == POSITIONS[major]
    for name, shifts in SHIFTS.items():
        assert layout.span(*named(name)).shift == shifts[major], name


@MAJORS
def test_no_field_overlaps_another_or_crosses_a_word(major: int) -> None:
    layout = qmd_layout(major)
    assert sum(span.width for span in layout.spans.values()) == layout.covered.bit_count()
    assert layout.covered < 1 << 8 * layout.size
    assert all(span.lo // 32 == span.hi // 32 for span in layout.spans.values())


@MAJORS
@given(data=st.data())
def test_each_field_reads_back_alone(major: int, data: st.DataObject) -> None:
    layout = qmd_layout(major)
    span = data.draw(st.sampled_from(list(layout.spans.values())))
    number = data.draw(st.integers(1, (1 << span.width) - 1))
    raw = number << span.lo
    version = layout.span("QMD_MAJOR_VERSION")
    if span is not version:
        raw |= major << version.lo
        decoded = decode_qmd(raw.to_bytes(layout.size, "little"), major)
        assert decoded.fields == {span.name: number, version.name: major}
        assert not decoded.reserved
    writer = QmdWriter(layout)
    name, _, index = span.name.rstrip("]").partition("[")
    plain = name.partition("_SHIFTED")[0]
    writer.put(plain, number << span.shift, int(index) if index else None)
    assert int.from_bytes(writer.data, "little") == number << span.lo


def test_the_words_of_a_hopper_launch() -> None:
    words = struct.unpack("<96I", build_qmd(4, 90, LAUNCH).data)
    expected = {
        0: 0x3F << 16 | 2 << 23,
        10: 1 | 1 << 3 | 1 << 12,  # one release of four words, behind a barrier, 64 bits
        11: (1 | 1 << 1 | 1 << 4) << 16,  # one dependent, scheduled, prefetched
        13: 1 | 1 << 3 | 1 << 12,  # banks 0 (invalidated) and 3
        14: 0x1200_0045,
        16: 0x90 << 24,
        17: 0x260 | 1 << 24 | 1 << 25,
        18: 4 << 4 | 0x1480 << 8 | 0b10_1111 << 26,
        19: 3 | 0x3A << 6 | 3 << 12,
        20: 0x1230,
        21: 0xCD,
        22: 8,
        23: 9,
        32: 0x11223,
        33: 0x44,
        34: 0x55,
        35: 1 << 16,
        36: 32 | 4 << 16,
        37: 2 | 57 << 16 | 3 << 27,
        38: 0x3456_7800,
        39: 0x12,
        42: 0x1234_5678,
        43: 4 << 17,
        48: (0xAB_0000_4000 >> 6) & 0xFFFF_FFFF,
        49: 0xAB_0000_4000 >> 38 | 0x24 << 19,
        54: 0x8000 >> 6,
        55: 4 << 19,
    }
    assert {index: word for index, word in enumerate(words) if word} == expected


@MAJORS
def test_all_versions_tell_the_same_launch(major: int) -> None:
    built = build_qmd(major, SMS[major], LAUNCH)
    decoded = decode_qmd(built.data)
    assert not built.patches
    assert not decoded.reserved
    assert decoded.layout.major == major
    assert decoded.layout.size == {3: 256, 4: 384, 5: 384}[major]

    def value(name: str) -> int:
        span = decoded.layout.span(*named(name))
        return decoded.fields.get(span.name, 0) << span.shift

    def split(name: str, index: str = "") -> int:
        layout = decoded.layout
        lower, upper = (layout.span(*named(f"{name}_{half}{index}")) for half in ("LOWER", "UPPER"))
        low, high = (decoded.fields.get(span.name, 0) for span in (lower, upper))
        return (high << 32 | low) << lower.shift

    assert split("PROGRAM_ADDRESS") == LAUNCH.program
    assert split("CONSTANT_BUFFER_ADDR", "/0") == 0xAB_0000_4000
    assert split("RELEASE_ADDR", "/0") == 0xCD_0000_1230
    assert split("RELEASE_PAYLOAD", "/0") == 0x9_0000_0008
    assert split("PROGRAM_PREFETCH_ADDR") == LAUNCH.program
    expected = {
        "GRID_WIDTH": 0x11223,
        "GRID_HEIGHT": 0x44,
        "GRID_DEPTH": 0x55,
        **{f"CTA_THREAD_DIMENSION{axis}": size for axis, size in enumerate(LAUNCH.block)},
        "REGISTER_COUNT": 57,
        "BARRIER_COUNT": 3,
        "SHARED_MEMORY_SIZE": 0x1480,
        "SHADER_LOCAL_MEMORY_HIGH_SIZE": 0x260,
        "SHADER_LOCAL_MEMORY_LOW_SIZE": 0,
        "SASS_VERSION": 0x90,
        "CONSTANT_BUFFER_SIZE/0": 0x240,
        "CONSTANT_BUFFER_VALID/1": 0,
        "CONSTANT_BUFFER_VALID/3": 1,
        "CONSTANT_BUFFER_INVALIDATE/0": 1,
        "CONSTANT_BUFFER_INVALIDATE/3": 0,
        "RELEASE_ENABLE/0": 1,
        "RELEASE_ENABLE/1": 0,
        "RELEASE_STRUCTURE_SIZE/0": 0,
        "DEPENDENT_QMD_POINTER/0": 0x12_0000_4500 >> 8,
        "DEPENDENT_QMD_ACTION/0": DependentAction.SCHEDULE,
        "MIN_SM_CONFIG_SHARED_MEM_SIZE": 3,
    }
    assert {name: value(name) for name in expected} == expected


@MAJORS
def test_symbols_become_patches(major: int) -> None:
    bank, grid, payload = Symbol("bank"), Symbol("grid"), Symbol("payload")
    late = replace(
        LAUNCH,
        grid=(grid, 0x44, 0x55),
        constants=(ConstantBuffer(0, bank, 0x234), LAUNCH.constants[1]),
        releases=(Release(0xCD_0000_1230, payload, timestamp=True),),
    )
    built = build_qmd(major, SMS[major], late)
    data = bytearray(built.data)
    values = {bank: 0xAB_0000_4000, grid: 0x11223, payload: 0x9_0000_0008}
    for patch in built.patches:
        patch.apply(data, values[patch.symbol])
    assert data == build_qmd(major, SMS[major], LAUNCH).data


def test_clusters() -> None:
    launch = replace(LAUNCH, grid=(8, 4, 2), cluster=(4, 2, 1))
    fields = decode_qmd(build_qmd(4, 90, launch).data).fields
    names = ("QMD_TYPE", "GPC_CGA_WIDTH", "GPC_CGA_HEIGHT", "GPC_CGA_DEPTH")
    assert [fields[name] for name in names] == [3, 4, 2, 1]
    with pytest.raises(Unsupported, match="clusters on sm_86"):
        build_qmd(3, 86, launch)
    changes: tuple[dict[str, Any], ...] = (
        {"grid": (9, 4, 2)},
        {"cluster": (4, 4, 2)},
        {"cluster": (0, 1, 1)},
    )
    for change in changes:
        with pytest.raises(InvalidValue):
            build_qmd(4, 90, replace(launch, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (1 << 31, 1, 1)}, "grid of 2147483648 in x: give 1 to 2147483647"),
        ({"grid": (1, 65536, 1)}, "grid of 65536 in y: give 1 to 65535"),
        ({"grid": (1, 1, 0)}, "grid of 0 in z"),
        ({"block": (1025, 1, 1)}, "block of 1025 in x: give 1 to 1024"),
        ({"block": (1, 1, 65)}, "block of 65 in z: give 1 to 64"),
        ({"block": (64, 32, 1)}, "2048 threads of a block: give 1 to 1024"),
        ({"registers": 256}, "256 registers of a thread: give 1 to 255"),
        ({"block": (1024, 1, 1), "registers": 65}, "take 73728 registers: an SM has 65536"),
        ({"block": (320, 1, 1), "registers": 176}, "take 67584 registers"),  # 10 warps as 12
        ({"barriers": 17}, "17 barriers: give 0 to 16"),
        ({"shared": 228 * 1024 + 1}, "sm_90 has at most 233472"),
        ({"local": (512 << 10) + 1}, "524289 bytes of local memory"),
        ({"program": 0x1040}, "program at 0x1040: give a multiple of 128"),
        ({"constants": (ConstantBuffer(8, 0, 16),)}, "bank 8: give 0 to 7"),
        ({"constants": (ConstantBuffer(1, 0x20, 16),)}, "at 0x20: give a multiple of 64"),
        ({"constants": (ConstantBuffer(1, 0, 65537),)}, "of 65537 bytes"),
        ({"constants": (ConstantBuffer(1, 0, 16),) * 2}, "given twice"),
        ({"releases": (Release(0x1008, 1, timestamp=True),)}, "0x1008: give a multiple of 16"),
        ({"releases": (Release(0, 1),) * 4}, "4 releases: give 0 to 3"),
        ({"releases": (Release(0, 1 << 32, bits=32),)}, "0x100000000 does not fit its 32 bits"),
        ({"dependents": (Dependent(0x1080),)}, "DEPENDENT_QMD0_POINTER = 0x1080"),
        ({"sass_version": 256}, "SASS_VERSION = 0x100"),
    ],
)
def test_limits_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        build_qmd(4, 90, replace(LAUNCH, **change))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("sm", "shared", "config"),
    [(90, 1024, 8), (90, 8193, 16), (90, 228 << 10, 228), (86, 100 << 10, 100), (80, 120000, 132)],
)
def test_the_smallest_carve_out_that_holds_a_block(sm: int, shared: int, config: int) -> None:
    major = {80: 3, 86: 3, 90: 4}[sm]
    fields = decode_qmd(build_qmd(major, sm, replace(LAUNCH, shared=shared)).data).fields
    assert fields["MIN_SM_CONFIG_SHARED_MEM_SIZE"] == config // 4 + 1
    assert fields["TARGET_SM_CONFIG_SHARED_MEM_SIZE"] == config // 4 + 1
    largest = sm_limits(sm).carve_outs[-1]
    assert fields["MAX_SM_CONFIG_SHARED_MEM_SIZE"] == largest // 4 + 1


def test_what_is_not_known() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        build_qmd(2, 70, LAUNCH)
    with pytest.raises(Unsupported, match="sm_75"):
        build_qmd(3, 75, LAUNCH)
    with pytest.raises(InvalidIndex, match="version 3 have no field QMD_TYPE"):
        qmd_layout(3).span("QMD_TYPE")


@given(st.one_of(st.binary(max_size=64), st.binary(min_size=256, max_size=256)))
def test_decoding_anything(data: bytes) -> None:
    try:
        decoded = decode_qmd(data)
    except FormatError:
        return
    assert decoded.lines()


def test_a_dump_shows_reserved_bits() -> None:
    data = bytearray(build_qmd(4, 90, LAUNCH).data)
    data[3] |= 1 << 2  # bit 26
    lines = decode_qmd(bytes(data)).lines()
    assert lines[-1] == f"  reserved bits {1 << 26:#x}"
    assert any("CTA_THREAD_DIMENSION0 = 0x20" in line for line in lines)
