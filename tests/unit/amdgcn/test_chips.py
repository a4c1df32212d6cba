"""Kernels of all kinds for each chip: what their descriptors say, and that all of them is code.

Descriptors are read here by offsets and bits of LLVM's "User Guide for AMDGPU Backend" ("Kernel
Descriptor"), and compared with what LLVM's assembler directives say of the same kernel.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import gpu
from gpu import Tensor, dtypes
from gpu.backends.amd.chips import is_supported
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets.amd import CHIPS, amd_target
from gpu.compiler.toolchain.amdgcn import AMDCompiler, amd_machine
from gpu.compiler.toolchain.amdgcn_link import link
from gpu.compiler.toolchain.llvm import emit_assembly, emit_object
from gpu.core import elf
from gpu.core.dtype import DType
from gpu.core.errors import Unsupported
from gpu.drivers.am.code.object import read_code_object
from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.decode.sdma import decode_sdma
from gpu.drivers.am.encode.dispatch import AmProgram, LoadedKernel, dispatch_state
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.encode.pm4_encoder import Pm4Encoder
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.encode.sdma_builder import SdmaBuilder
from gpu.drivers.am.encode.tmpring import Scratch, scratch_size, tmpring_size
from gpu.drivers.am.target import Target, generation_of, parse_gfx_name
from gpu.hcq.commands import Launch
from gpu.hcq.device import HCQDevice
from gpu.hcq.encoder import Encoder
from gpu.hcq.nulldevice import open_null
from gpu.hcq.symbol import GpuVA, Symbol, segment_address
from gpu.runtime.crosscompile import CompiledKernel
from unit.linear_kernels import scratch_kernel

_WORDS = {"lds": 0x00, "scratch": 0x04, "kernarg": 0x08, "rsrc3": 0x2C, "rsrc1": 0x30}
_WORDS |= {"rsrc2": 0x34, "properties": 0x38}
# Directive -> word, lowest bit, width; of all generations.
_EVERYWHERE = {
    "group_segment_fixed_size": ("lds", 0, 32),
    "private_segment_fixed_size": ("scratch", 0, 32),
    "kernarg_size": ("kernarg", 0, 32),
    "float_round_mode_32": ("rsrc1", 12, 2),
    "float_round_mode_16_64": ("rsrc1", 14, 2),
    "float_denorm_mode_32": ("rsrc1", 16, 2),
    "float_denorm_mode_16_64": ("rsrc1", 18, 2),
    "fp16_overflow": ("rsrc1", 26, 1),
    "user_sgpr_count": ("rsrc2", 1, 5),
    "system_sgpr_workgroup_id_x": ("rsrc2", 7, 1),
    "system_sgpr_workgroup_id_y": ("rsrc2", 8, 1),
    "system_sgpr_workgroup_id_z": ("rsrc2", 9, 1),
    "system_vgpr_workitem_id": ("rsrc2", 11, 2),
    "user_sgpr_dispatch_ptr": ("properties", 1, 1),
    "user_sgpr_queue_ptr": ("properties", 2, 1),
    "user_sgpr_kernarg_segment_ptr": ("properties", 3, 1),
    "user_sgpr_dispatch_id": ("properties", 4, 1),
    "user_sgpr_private_segment_size": ("properties", 6, 1),
    "uses_dynamic_stack": ("properties", 11, 1),
}
_GFX9 = {"tg_split": ("rsrc3", 16, 1)}
_GFX9_TO_11 = {"dx10_clamp": ("rsrc1", 21, 1), "ieee_mode": ("rsrc1", 23, 1)}
_GFX10_ON = {
    "workgroup_processor_mode": ("rsrc1", 29, 1),
    "memory_ordered": ("rsrc1", 30, 1),
    "forward_progress": ("rsrc1", 31, 1),
    "wavefront_size32": ("properties", 10, 1),
}
_GFX10 = {
    "user_sgpr_private_segment_buffer": ("properties", 0, 1),
    "user_sgpr_flat_scratch_init": ("properties", 5, 1),
    "system_sgpr_private_segment_wavefront_offset": ("rsrc2", 0, 1),
}
_ARCHITECTED = {"enable_private_segment": ("rsrc2", 0, 1)}
_GFX11 = {"inst_pref_size": ("rsrc3", 4, 6)}
_GFX12 = {"inst_pref_size": ("rsrc3", 4, 8), "round_robin_scheduling": ("rsrc1", 21, 1)}
_FIELDS = {
    9: _EVERYWHERE | _GFX9 | _GFX9_TO_11 | _ARCHITECTED,
    10: _EVERYWHERE | _GFX9_TO_11 | _GFX10_ON | _GFX10,
    11: _EVERYWHERE | _GFX9_TO_11 | _GFX10_ON | _ARCHITECTED | _GFX11,
    12: _EVERYWHERE | _GFX10_ON | _ARCHITECTED | _GFX12,
}


def numbers(dtype: DType, *shape: int) -> Tensor:
    values = np.random.default_rng(0).integers(1, 9, shape)
    return Tensor(values).cast(dtype).realize()


def elementwise(dtype: DType) -> Tensor:
    x, y = numbers(dtype, 700), numbers(dtype, 700)
    return (x * y + 1).maximum(y) - x


def quotients(dtype: DType) -> Tensor:
    x, y = numbers(dtype, 300), numbers(dtype, 300)
    return x // y if dtype.is_int else x / y


def reduction(dtype: DType) -> Tensor:
    return numbers(dtype, 8, 4000).sum(1)


def product(dtype: DType) -> Tensor:
    return numbers(dtype, 64, 64) @ numbers(dtype, 64, 64)


SAMPLE: list[tuple[Callable[[DType], Tensor], DType]] = [
    (elementwise, dtypes.float32),
    (elementwise, dtypes.int8),
    (elementwise, dtypes.bfloat16),
    (quotients, dtypes.int64),
    (quotients, dtypes.float64),
    (reduction, dtypes.float32),
    (reduction, dtypes.float16),
    (product, dtypes.float32),
    (product, dtypes.float16),
    (product, dtypes.bfloat16),
]


def directives(source: str, chip: str) -> dict[str, int]:
    """LLVM's own words on a kernel's descriptor."""
    text = emit_assembly(source, amd_machine(chip))
    found = re.findall(r"^\s*\.amdhsa_(\w+) (\d+)$", text, re.MULTILINE)
    return {name: int(value) for name, value in found}


def descriptor(lib: bytes) -> dict[str, int]:
    (start,) = (s.value for s in elf.parse_shared(lib).symbols if s.name.endswith(".kd"))
    return {
        name: struct.unpack_from("<H" if name == "properties" else "<I", lib, start + offset)[0]
        for name, offset in _WORDS.items()
    }


@pytest.mark.parametrize("name", CHIPS)
def test_a_sample_of_kernels(name: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    assert is_supported(parse_gfx_name(name))
    for make, dtype in SAMPLE:
        kernels = gpu.compile_for(f"AMD::{name}", make(dtype))
        assert kernels
        for kernel in kernels:
            check_descriptor(name, kernel)
        found = read_code_object(kernels[-1].lib).kernels["kernel"].descriptor
        assert bool(found.group_size) == (make is not elementwise and make is not quotients)


def check_descriptor(name: str, kernel: CompiledKernel) -> None:
    chip, major = CHIPS[name], parse_gfx_name(name)[0]
    assert struct.unpack_from("<I", kernel.lib, 48)[0] & 0xFF == chip.machine
    told, words = directives(kernel.source, name), descriptor(kernel.lib)
    for directive, (word, lowest, width) in _FIELDS[major].items():
        assert words[word] >> lowest & (1 << width) - 1 == told.pop(directive), (name, directive)
    assert words["rsrc1"] & 63 == -(-max(told.pop("next_free_vgpr"), 1) // 8) - 1
    assert bool(words["properties"] >> 10 & 1) == (chip.wave == 32)
    assert words["lds"] <= chip.shared and words["scratch"] <= chip.private + 1024
    if major == 9:
        assert words["rsrc3"] & 63 == told.pop("accum_offset") // 4 - 1
        # With VCC, and what XNACK and flat scratch take where they do.
        assert (words["rsrc1"] >> 6 & 15) // 2 * 16 + 16 >= told.pop("next_free_sgpr") + 2
    else:
        assert words["rsrc1"] >> 6 & 15 == 0
        del told["next_free_sgpr"]
    # What is left says nothing of a descriptor, or that something else is off.
    silent = {"reserve_vcc", "reserve_xnack_mask", "code_object_version"}
    assert not any(told[directive] for directive in told.keys() - silent), told
    driver = read_code_object(kernel.lib).kernels["kernel"].descriptor
    assert driver.wave32 == (chip.wave == 32)
    assert driver.rsrc1["GRANULATED_WORKITEM_VGPR_COUNT"] == words["rsrc1"] & 63
    generation = generation_of(driver.version)
    assert generation.lds_size == chip.shared and generation.has_wave32 == (chip.wave == 32)


@pytest.mark.parametrize("name", CHIPS)
def test_all_of_a_kernel_is_code(name: str) -> None:
    texts = []
    for make in (product, reduction):
        for kernel in gpu.compile_for(f"AMD::{name}", make(dtypes.float32)):
            try:
                texts.append(kernel.disassembly())
            except Unsupported as error:
                pytest.skip(error.message)
    assert all("s_endpgm" in text and ".long" not in text for text in texts)
    assert "s_barrier" in texts[-1]  # workgroups of 256


COPIERS = {
    "gfx9": (4, 4, 5),
    "gfx103": (5, 2, 6),
    "gfx110": (6, 0, 3),
    "gfx115": (6, 1, 3),
    "gfx120": (7, 0, 1),
}
"""Copy engines beside the graphics cores whose names begin so."""


@pytest.mark.parametrize("name", CHIPS)
def test_the_driver_launches_them(name: str, need: Callable[[str], None]) -> None:
    """Registers of a dispatch, for a kernel with local memory and one with a stack."""
    need("llvmlite")
    version = parse_gfx_name(name)
    sdma = next(found for prefix, found in COPIERS.items() if name.startswith(prefix))
    target = Target(version, sdma, compute_units=CHIPS[name].units)
    generation, packets = target.generation, packets_of(target.generation)
    (product_kernel,) = gpu.compile_for(f"AMD::{name}", product(dtypes.float32))
    shared = read_code_object(product_kernel.lib).kernels["kernel"]
    state = dispatch_state(target, LoadedKernel(shared, 1 << 20))
    block = 1280 if name == "gfx950" else 512
    size = packets.registers["COMPUTE_PGM_RSRC2"].parse(state.rsrc2)["LDS_SIZE"]
    assert size == -(-shared.descriptor.group_size // block) > 0
    compiler = AMDCompiler(name)
    stacked = compiler.compile(AMDRenderer(name).render(scratch_kernel(300).program()))
    private = read_code_object(stacked).kernels["kernel"]
    memory = Scratch(GpuVA(1 << 30), scratch_size(target, private.descriptor.private_size))
    state = dispatch_state(target, LoadedKernel(private, 1 << 20, memory))
    ring = packets.registers["COMPUTE_TMPRING_SIZE"].parse(state.tmpring_size)
    granule = 256 if version >= (11, 0, 0) else 1024
    assert ring["WAVESIZE"] * granule >= 64 * private.descriptor.private_size
    assert generation.architected_scratch == (version[0] != 10)
    check_packets(target, AmProgram(null_device(target), LoadedKernel(private, 1 << 20, memory)))
    push = SdmaBuilder(sdma)
    push.copy(GpuVA(1 << 20), GpuVA(1 << 21), 64)
    shown = decode_sdma(struct.pack(f"<{len(push.words)}I", *push.words), sdma)
    assert shown[0].text.startswith("COPY_LINEAR")


def null_device(target: Target) -> HCQDevice:
    encoders: dict[str, Encoder] = {"compute": Pm4Encoder(target), "copy": SdmaEncoder(target)}
    return open_null(encoders, ring_size=1 << 16, capacity=1 << 24)


def check_packets(target: Target, program: AmProgram) -> None:
    """A launch's packets: registers by their numbers in the kernel's headers, and no others."""
    loaded: LoadedKernel = program.info
    major, generation = target.version[0], target.generation
    args = program.arguments(*[Symbol(f"a{i}") for i in range(program.layout.pointers)])
    encoded = Pm4Encoder(target).encode([Launch(program, args, (3, 2, 1), (1, 1, 1))])
    places = {segment_address(i): (1 << 32) + (i << 16) for i in range(len(encoded.segments))}
    data = encoded.resolve({**places, **{patch.symbol: 0 for patch in args.patches}})[0]
    lines = decode_pm4(data, generation)
    assert not any("unknown" in line.text for line in lines)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    registers = sh_registers(words)
    descriptor, scratch = loaded.kernel.descriptor, loaded.scratch
    assert scratch is not None
    assert registers[0x2E0C] | registers[0x2E0D] << 32 == loaded.code >> 8
    assert registers[0x2E12] == descriptor.rsrc1.value | (1 << 20 if major == 11 else 0)
    assert registers[0x2E13] == descriptor.rsrc2.value
    assert registers[0x2E2D if major == 9 else 0x2E28] == descriptor.rsrc3.value
    assert registers[0x2E18] == tmpring_size(target, scratch.size)
    if major == 10:
        user = [scratch.address, 0x8000_0000, scratch.size.total, 0x21C1_4FAC]
        assert [registers[0x2E40 + place] for place in range(4)] == user
        assert 0x2E10 not in registers
    else:
        assert registers[0x2E10] | registers[0x2E11] << 32 == scratch.address >> 8
    initiator = words[-3]  # with the event behind it
    assert initiator == (0x8005 if generation.has_wave32 else 5)


def sh_registers(words: Sequence[int]) -> dict[int, int]:
    """What SET_SH_REG packets write, by the registers' numbers."""
    found, at = dict[int, int](), 0
    while at < len(words):
        count = (words[at] >> 16 & 0x3FFF) + 1
        if words[at] >> 8 & 0xFF == 0x76:
            values = words[at + 2 : at + 1 + count]
            found |= {0x2C00 + words[at + 1] + i: value for i, value in enumerate(values)}
        at += 1 + count
    return found


PRESSURE = """
declare i32 @llvm.amdgcn.workitem.id.x()
define amdgpu_kernel void @f(ptr addrspace(1) %a) #0 {{
  %id = call i32 @llvm.amdgcn.workitem.id.x()
{body}
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" "amdgpu-waves-per-eu"="{waves},{waves}" }}
"""


@pytest.mark.parametrize("name", CHIPS)
def test_registers_of_so_many_waves(name: str, need: Callable[[str], None]) -> None:
    """LLVM, asked for so many waves of a SIMD, uses all registers that they can have."""
    need("llvmlite")
    count, waves = 130, 8 if CHIPS[name].wave == 64 else 12
    lines = []
    for number in range(count):
        place = f"getelementptr i32, ptr addrspace(1) %a, i32 {64 * number}"
        lines += [f"  %p{number} = {place}"]
        lines += [f"  %q{number} = getelementptr i32, ptr addrspace(1) %p{number}, i32 %id"]
        lines += [f"  %v{number} = load volatile i32, ptr addrspace(1) %q{number}"]
    lines += [f"  store volatile i32 %v{n}, ptr addrspace(1) %q{n}" for n in range(count)]
    source = PRESSURE.format(body="\n".join(lines), waves=waves)
    assert directives(source, name)["next_free_vgpr"] == CHIPS[name].registers(waves) < count
    assert amd_target(name).registers == 128


def test_an_llvm_that_is_too_old_is_named() -> None:
    source = "define amdgpu_kernel void @f() {\n  ret void\n}\n"
    machine = amd_machine("gfx1153")
    link(emit_object(source, machine))
    with pytest.raises(Unsupported, match=r"gfx1153 is known to LLVM 99 and newer, and llvmlite"):
        emit_object(source, machine._replace(oldest=99))


def test_a_disassembler_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = AMDCompiler("gfx1100")
    lib = compiler.compile("define amdgpu_kernel void @f() {\n  ret void\n}\n")
    try:
        compiler.disassemble(lib)
    except Unsupported as error:
        pytest.skip(error.message)
    monkeypatch.setitem(CHIPS, "gfx1100", CHIPS["gfx1100"]._replace(llvm=99))
    with pytest.raises(Unsupported, match="gfx1100 is known to LLVM 99 and newer"):
        compiler.disassemble(lib)
