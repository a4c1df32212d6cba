"""Our launch descriptors against those that Mesa makes of the same launch, field by field.

Fields that differ on purpose are listed with the reason, and every other one must be the same.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import pytest

from gpu.autogen import mesa
from gpu.compiler.toolchain.mesalib import find_mesa, offset
from gpu.compiler.toolchain.nak import describe_device
from gpu.drivers.nv.qmd import ConstantBuffer, DecodedQmd, Launch, build_qmd, decode_qmd

VERSIONS = {80: 3, 86: 3, 89: 3, 90: 4, 120: 5}
SHARED = 0x2300
LAUNCH = Launch(
    program=0x12_3456_7800,
    grid=(0x11223, 0x44, 0x55),
    block=(32, 4, 2),
    registers=57,
    sass_version=0x90,
    barriers=3,
    shared=SHARED,
    local_low=0x260,
    constants=(ConstantBuffer(0, 0xAB_0000_4000, 0x240), ConstantBuffer(3, 0x8000, 64)),
)
"""A launch in which no two numbers are alike."""

OURS_ALONE = {
    "SASS_VERSION": "Mesa leaves it 0; libcuda sets it",
    "CWD_MEMBAR_TYPE": "signals of ours are written by release methods behind it",
    "INVALIDATE_TEXTURE_HEADER_CACHE": "Mesa invalidates by methods in front of a launch",
    "INVALIDATE_TEXTURE_SAMPLER_CACHE": "as above",
    "INVALIDATE_TEXTURE_DATA_CACHE": "as above",
    "INVALIDATE_SHADER_DATA_CACHE": "as above",
    "INVALIDATE_SHADER_CONSTANT_CACHE": "as above",
}
DIFFER = {
    "QMD_GROUP_ID": "any will do",
    "SM_GLOBAL_CACHING_ENABLE": "any will do",
}


@pytest.fixture
def library(need: Callable[[str], None]) -> ctypes.CDLL:
    need("tinymesa")
    return find_mesa().load()


def put(block: ctypes.Array[ctypes.c_char], base: int, member: str, value: int | bytes) -> None:
    size = mesa.FIELDS[member][1]
    data = value if isinstance(value, bytes) else value.to_bytes(size, "little")
    at = base + offset(member)
    block[at : at + len(data)] = data


def mesas(library: ctypes.CDLL, sm: int, launch: Launch) -> bytes:
    """The descriptor that nak_fill_qmd makes."""
    info = ctypes.create_string_buffer(mesa.SIZES["nak_shader_info"])
    for member, value in (
        ("stage", mesa.CONSTANTS["MESA_SHADER_COMPUTE"]),
        ("sm", sm),
        ("num_gprs", launch.registers),
        ("num_control_barriers", launch.barriers),
        ("slm_size", launch.local_low),
    ):
        put(info, 0, f"nak_shader_info.{member}", value)
    compute = offset("nak_shader_info.__bindgen_anon_1")
    put(info, compute, "nak_shader_info_cs.local_size", struct.pack("<3H", *launch.block))
    put(info, compute, "nak_shader_info_cs.smem_size", launch.shared)
    what = ctypes.create_string_buffer(mesa.SIZES["nak_qmd_info"])
    for member, value in (
        ("addr", launch.program),
        ("smem_size", launch.shared),
        ("smem_max", 100 << 10 if sm in (86, 89, 120) else 0xFC00),
        ("global_size", struct.pack("<3I", *launch.grid)),
        ("num_cbufs", len(launch.constants)),
    ):
        number = min(value, 0xFFFF) if member == "smem_max" else value
        put(what, 0, f"nak_qmd_info.{member}", number)
    for place, bank in enumerate(launch.constants):
        base = offset("nak_qmd_info.cbufs") + place * mesa.SIZES["nak_qmd_cbuf"]
        for member, value in (("index", bank.bank), ("size", bank.size), ("addr", bank.address)):
            put(what, base, f"nak_qmd_cbuf.{member}", value)
    size = 256 if VERSIONS[sm] == 3 else 384
    made = ctypes.create_string_buffer(size)
    library.nak_fill_qmd.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
    library.nak_fill_qmd(describe_device(f"sm_{sm}"), info, what, made, size)
    return made.raw


def fields(decoded: DecodedQmd) -> dict[str, int]:
    assert not decoded.reserved
    return decoded.fields


@pytest.mark.parametrize("sm", VERSIONS)
def test_mesa_sets_the_same_fields(sm: int, library: ctypes.CDLL) -> None:
    ours = fields(decode_qmd(build_qmd(VERSIONS[sm], sm, LAUNCH).data))
    theirs = fields(decode_qmd(mesas(library, sm, LAUNCH)))
    different = {
        name: (ours.get(name, 0), theirs.get(name, 0))
        for name in ours | theirs
        if ours.get(name, 0) != theirs.get(name, 0)
    }
    print(sm, different)
    assert not different
