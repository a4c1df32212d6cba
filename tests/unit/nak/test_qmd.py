"""Our launch descriptors against those that Mesa makes of the same launch, field by field.

Fields that differ on purpose are listed with the reason, and every other one must be the same.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np
import pytest

from gpu.autogen import mesa
from gpu.compiler.toolchain.mesalib import find_mesa, offset
from gpu.compiler.toolchain.nak import describe_device
from gpu.drivers.nv.encode.qmd import ConstantBuffer, Launch, build_qmd, decode_qmd

VERSIONS = {80: 3, 86: 3, 89: 3, 90: 4, 120: 5}
DIFFER = {
    "QMD_GROUP_ID": "any will do",
    "QMD_TYPE": "Mesa leaves it 0 on version 4, and such grids run",
    "SAMPLER_INDEX": "kernels have no samplers",
    "SASS_VERSION": "libcuda sets it, Mesa does not",
    "MAX_SM_CONFIG_SHARED_MEM_SIZE": "what tells Mesa of it has 16 bits: 64 KiB at most",
    "CWD_MEMBAR_TYPE": "Mesa has a membar method behind a launch",
    "INVALIDATE_TEXTURE_HEADER_CACHE": "Mesa invalidates by methods in front of a launch",
    "INVALIDATE_TEXTURE_SAMPLER_CACHE": "as above",
    "INVALIDATE_TEXTURE_DATA_CACHE": "as above",
    "INVALIDATE_SHADER_DATA_CACHE": "as above",
    "INVALIDATE_SHADER_CONSTANT_CACHE": "as above",
    "CONSTANT_BUFFER_INVALIDATE[0]": "as above",
    "CONSTANT_BUFFER_INVALIDATE[3]": "as above",
}
"""Fields that are not the same, and why; all others are."""


def random_launch(rng: np.random.Generator, sm: int) -> Launch:
    """Numbers of which no two are likely to be alike."""

    def below(limit: int, unit: int = 1) -> int:
        return unit * int(rng.integers(1, limit))

    return Launch(
        program=below(1 << 32, 256),
        grid=(below(1 << 31), below(1 << 16), below(1 << 16)),
        block=(below(33), below(5), below(3)),
        registers=below(200),
        sass_version=sm // 10 << 4 | sm % 10,
        barriers=below(17),
        shared=below(60 << 2, 256),  # Mesa rounds up to that
        local_low=below(1 << 10, 16),
        constants=(
            ConstantBuffer(0, below(1 << 32, 256), below(1 << 12, 16)),
            ConstantBuffer(3, below(1 << 32, 256), below(1 << 12, 16)),
        ),
    )


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
        ("smem_max", 0xFFFF),
        ("global_size", struct.pack("<3I", *launch.grid)),
        ("num_cbufs", len(launch.constants)),
    ):
        put(what, 0, f"nak_qmd_info.{member}", value)
    for place, bank in enumerate(launch.constants):
        base = offset("nak_qmd_info.cbufs") + place * mesa.SIZES["nak_qmd_cbuf"]
        for member, value in (("index", bank.bank), ("size", bank.size), ("addr", bank.address)):
            put(what, base, f"nak_qmd_cbuf.{member}", value)
    size = 256 if VERSIONS[sm] == 3 else 384
    made = ctypes.create_string_buffer(size)
    library.nak_fill_qmd.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
    library.nak_fill_qmd(describe_device(f"sm_{sm}"), info, what, made, size)
    return made.raw


@pytest.mark.parametrize("sm", VERSIONS)
def test_mesa_sets_the_same_fields(sm: int, library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(sm)
    for _ in range(30):
        launch = random_launch(rng, sm)
        ours = decode_qmd(build_qmd(VERSIONS[sm], sm, launch).data)
        theirs = decode_qmd(mesas(library, sm, launch))
        assert not theirs.reserved and theirs.layout.major == VERSIONS[sm]
        names = ours.fields.keys() | theirs.fields.keys()
        compared = names - DIFFER.keys()
        assert {name: ours.fields.get(name, 0) for name in compared} == {
            name: theirs.fields.get(name, 0) for name in compared
        }
        assert len(compared) >= 20, "grid, block, registers, memories, code, banks"
