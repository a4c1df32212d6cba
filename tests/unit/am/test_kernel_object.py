"""Code objects: real ones, linked here, and damaged ones; descriptors and metadata by hand."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.autogen import amdhsa
from gpu.core.errors import FormatError, GpuError, InvalidValue, Unsupported
from gpu.drivers.am.code.descriptor import parse_descriptor
from gpu.drivers.am.code.metadata import parse_target
from gpu.drivers.am.code.msgpack import unpack
from gpu.drivers.am.code.object import CodeObject, read_code_object
from gpu.drivers.am.decode.descriptor import decode_code_object, decode_descriptor
from gpu.drivers.am.target import Version
from unit.am.code_objects import ADD, CURIOUS, HUNGRY, code_object, compile_object

CPUS: dict[str, Version] = {
    "gfx90a": (9, 0, 10),
    "gfx942": (9, 4, 2),
    "gfx950": (9, 5, 0),
    "gfx1030": (10, 3, 0),
    "gfx1100": (11, 0, 0),
    "gfx1201": (12, 0, 1),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_real_objects_of_every_generation(cpu: str) -> None:
    found = read_code_object(code_object(ADD + HUNGRY, cpu))
    assert found.version == CPUS[cpu]
    add, hungry = found.kernels["add"], found.kernels["hungry"]
    assert [(a.offset, a.size, a.kind) for a in add.metadata.arguments] == [
        *((0, 8, "global_buffer"), (8, 8, "global_buffer"), (16, 4, "by_value")),
    ]
    assert add.metadata.kernarg_size == add.descriptor.kernarg_size == 20
    assert hungry.descriptor.group_size == 1200
    assert hungry.descriptor.private_size >= 256
    assert add.descriptor.private_size == add.descriptor.group_size == 0
    assert add.descriptor.wave32 == (cpu >= "gfx10" and not cpu.startswith("gfx9"))
    assert add.metadata.max_workgroup == 256
    # s_endpgm is 0xBF81_0000 up to GFX10, 0xBFB0_0000 from GFX11 on.
    code = found.image(0)[add.entry_offset :]
    end = 0xBFB0_0000 if cpu > "gfx11" and not cpu.startswith("gfx9") else 0xBF81_0000
    assert struct.pack("<I", end) in code[:256]


@pytest.mark.parametrize("abi", [400, 500, 600])
def test_versions_of_code_objects(abi: int) -> None:
    assert read_code_object(code_object(ADD, abi=abi)).kernels["add"].name == "add"


def test_hidden_arguments_are_named() -> None:
    kernel = read_code_object(code_object(ADD, plain=False)).kernels["add"]
    hidden = {a.kind: (a.offset, a.size) for a in kernel.metadata.arguments if "hidden" in a.kind}
    # LLVM's guide: implicit arguments of code object 5, from the first multiple of 8 on.
    assert hidden["hidden_block_count_x"] == (24, 4)
    assert hidden["hidden_group_size_y"] == (24 + 14, 2)
    assert hidden["hidden_grid_dims"] == (24 + 64, 2)


def test_targets() -> None:
    assert parse_target("amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-") == (9, 0, 10)
    assert parse_target("amdgcn-amd-amdhsa-unknown-gfx1151") == (11, 5, 1)
    for name in ("amdgcn-amd-amdhsa--gfx11-generic", "x86_64", ""):
        with pytest.raises(FormatError):
            parse_target(name)


def test_objects_of_other_machines_say_so() -> None:
    data = code_object(ADD)
    with pytest.raises(FormatError, match="machine 62"):
        read_code_object(data[:18] + b"\x3e" + data[19:])
    with pytest.raises(Unsupported, match="graphics core"):
        read_code_object(code_object(ADD, "gfx906"))
    with pytest.raises(FormatError, match="shared objects"):
        read_code_object(compile_object(ADD))


def test_images_hold_addresses_of_where_they_are() -> None:
    data = code_object(ADD)
    assert read_code_object(data).image(0x1000) == read_code_object(data).image(0)
    with pytest.raises(InvalidValue):
        read_code_object(data).image(0x800)
    plain = read_code_object(data)
    related = CodeObject(
        *(plain.target, plain.version, plain.kernels, plain.size), b"\0" * 32, ((8, -4), (16, 5))
    )
    assert related.image(0x3000) == struct.pack("<4Q", 0, 0x2FFC, 0x3005, 0)


# Damage


def attempt(data: bytes) -> None:
    """Reading may succeed; what it raises must be one of ours."""
    try:
        found = read_code_object(data)
        found.image(0x1000)
        decode_code_object(data)
    except GpuError:
        pass


@pytest.mark.parametrize("seed", range(4))
def test_damaged_objects_raise_typed_errors(seed: int) -> None:
    rng = random.Random(seed)
    real = code_object(ADD + HUNGRY + CURIOUS, plain=seed % 2 == 0)
    note = real.index(b"amdhsa.kernels")
    for _ in range(250):
        data = bytearray(real)
        for _ in range(rng.choice([1, 1, 2, 8])):
            # Half of the damage goes where lengths and offsets are.
            spots = [rng.randrange(len(data)), rng.randrange(64), note + rng.randrange(-40, 600)]
            spots.append(len(data) - 1 - rng.randrange(64 * 7))
            at = rng.choice(spots)
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        attempt(bytes(data))


def test_cut_off_objects_raise_typed_errors() -> None:
    data = code_object(ADD)
    for size in range(0, len(data), 37):
        with pytest.raises(GpuError):
            read_code_object(data[:size])


def test_what_contradicts_itself_is_refused() -> None:
    data = code_object(HUNGRY)
    kernel = read_code_object(data).kernels["hungry"]
    raw = struct.pack("<3I", 1200, kernel.descriptor.private_size, 12)
    at = data.index(raw)
    for change, match in (
        (struct.pack("<I", 1204), "LDS"),
        (struct.pack("<2I", 1200, 4), "scratch"),
        (struct.pack("<3I", 1200, kernel.descriptor.private_size, 16), "arguments"),
        (raw + b"\1", "reserved"),
        (raw + bytes(4) + struct.pack("<q", 3), "begins at"),
        (raw + bytes(4) + struct.pack("<q", 1 << 40), "begins at"),
    ):
        with pytest.raises(FormatError, match=match):
            read_code_object(data[:at] + change + data[at + len(change) :])


# Descriptors


def descriptor(**fields: int) -> bytes:
    return bytes(amdhsa.kernel_descriptor_t(**fields))


def test_bits_of_descriptors_by_generation() -> None:
    rsrc1 = 1 << 21 | 1 << 23 | 1 << 29
    raw = descriptor(compute_pgm_rsrc1=rsrc1, compute_pgm_rsrc3=0x21, kernel_code_properties=0x408)
    eleven = parse_descriptor(raw, (11, 0, 0))
    assert (eleven.rsrc1["ENABLE_DX10_CLAMP"], eleven.rsrc1["WGP_MODE"]) == (1, 1)
    assert (eleven.rsrc3["SHARED_VGPR_COUNT"], eleven.rsrc3["INST_PREF_SIZE"]) == (1, 2)
    assert eleven.wave32
    assert eleven.properties["ENABLE_SGPR_KERNARG_SEGMENT_PTR"]
    with pytest.raises(FormatError, match="0x1"):  # RSRC3.RESERVED0
        parse_descriptor(raw, (12, 0, 0))
    twelve = parse_descriptor(raw, (12, 0, 0), strict=False)
    assert twelve.rsrc1["ENABLE_WG_RR_EN"] == 1
    assert twelve.rsrc3["INST_PREF_SIZE"] == 2
    nine = parse_descriptor(descriptor(compute_pgm_rsrc3=3), (9, 4, 2))
    assert nine.rsrc3["ACCUM_OFFSET"] == 3
    with pytest.raises(FormatError, match="63 bytes"):
        parse_descriptor(raw[:63], (11, 0, 0))


def test_descriptors_as_text() -> None:
    raw = bytearray(descriptor(kernarg_size=20, compute_pgm_rsrc2=2 << 1))
    texts = [line.text for line in decode_descriptor(bytes(raw), (11, 0, 0))]
    assert "kernarg_size 0x14" in texts
    assert "COMPUTE_PGM_RSRC2: USER_SGPR_COUNT 2" in texts
    raw[12] = 1
    texts = [line.text for line in decode_descriptor(bytes(raw) + b"\5", (11, 0, 0))]
    assert "reserved0, which should be 0" in texts
    assert texts[-1] == "behind the descriptor"


@given(st.binary(max_size=80), st.sampled_from(list(CPUS.values())))
def test_any_bytes_can_be_shown(data: bytes, version: Version) -> None:
    decode_descriptor(data, version)


def test_code_objects_as_text() -> None:
    lines = decode_code_object(code_object(ADD))
    assert lines[0].startswith("amdgcn-amd-amdhsa--gfx1100")
    assert any("argument 0x10, 4 bytes, by_value n" in line for line in lines)


# MessagePack


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xc0", None),
        (b"\xc2", False),
        (b"\x7f", 127),
        (b"\xe0", -32),
        (b"\xcd\x01\x02", 0x102),
        (b"\xcf" + b"\xff" * 8, (1 << 64) - 1),
        (b"\xd1\xff\xfe", -2),
        (b"\xa2hi", "hi"),
        (b"\xd9\x02hi", "hi"),
        (b"\x92\x01\xa1a", [1, "a"]),
        (b"\xdc\x00\x01\x05", [5]),
        (b"\x81\xa1a\x01", {"a": 1}),
        (b"\xde\x00\x01\xa1a\x90", {"a": []}),
    ],
)
def test_messagepack(data: bytes, value: object) -> None:
    found = unpack(data, "test")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x02",  # more than one value
        b"\xa2h",  # cut off
        b"\x81\x01\x02",  # a key that is no text
        b"\x82\xa1a\x01\xa1a\x02",  # a key twice
        b"\xca\0\0\0\0",  # a fraction
        b"\xc4\x01a",  # bytes
        b"\xa1\xff",  # no UTF-8
        b"\xdd\xff\xff\xff\xff",  # more values than bytes
        b"\x91" * 40 + b"\x01",  # too deep
        b"\xc1",
    ],
)
def test_other_messagepack_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        unpack(data, "test")


@given(st.binary(max_size=60))
def test_any_messagepack_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        unpack(data, "test")
