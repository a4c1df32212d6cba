"""The linker for AMD kernels: the driver loads what it makes; what it refuses has an error."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets.amd import CHIPS
from gpu.compiler.toolchain.amdgcn import AMDCompiler, amd_machine
from gpu.compiler.toolchain.amdgcn_link import link
from gpu.compiler.toolchain.llvm import emit_object
from gpu.core import elf
from gpu.core.errors import CompileError, FormatError, GpuError, Unsupported
from gpu.drivers.am.code.object import read_code_object
from unit.linear_kernels import scratch_kernel

_DESCRIPTOR, _CODE = 256, 4096  # where the linker puts them


def relocatable(chip: str = "gfx1100", elements: int = 300) -> bytes:
    source = AMDRenderer(chip).render(scratch_kernel(elements).program())
    return emit_object(source, amd_machine(chip))


@pytest.mark.parametrize("chip", CHIPS)
def test_the_driver_reads_what_is_linked(chip: str) -> None:
    linked = link(relocatable(chip))
    code = read_code_object(linked)
    kernel = code.kernels["kernel"]
    assert f"-{chip}" in code.target
    assert kernel.entry_offset % 256 == 0
    assert kernel.descriptor.private_size >= 300 * 9 and kernel.metadata.kernarg_size == 8
    text = next(s for s in elf.parse_shared(linked).sections if s.name == ".text")
    assert kernel.entry_offset == text.address
    assert code.image(4096)[text.address : text.address + text.size] == text.content


def test_the_file_is_the_image() -> None:
    linked = link(relocatable())
    count, start = struct.unpack_from("<H", linked, 56)[0], struct.unpack_from("<Q", linked, 32)[0]
    headers = [elf.PROGRAM.unpack_from(linked, start + i * elf.PROGRAM.size) for i in range(count)]
    assert [h[1] for h in headers] == [elf.PF_R, elf.PF_R | elf.PF_X]
    assert all(h[0] == elf.PT_LOAD and h[2] == h[3] and h[3] % 4096 == 0 for h in headers)
    image = read_code_object(linked).image(0)
    for _, _, offset, _, _, size, _, _ in headers:
        start = max(offset, _DESCRIPTOR)  # what is in front of it are the ELF headers
        assert linked[start : offset + size] == image[start : offset + size]


@pytest.mark.parametrize(
    ("kind", "layout", "half"), [(4, "<i", 0), (5, "<q", 0), (10, "<I", 0), (11, "<I", 1)]
)
def test_relocations_relative_to_their_place(kind: int, layout: str, half: int) -> None:
    data = bytearray(relocatable())
    struct.pack_into("<I", data, _relocation_at(data) + 8, kind)
    value = _CODE - _DESCRIPTOR >> 32 * half
    assert struct.unpack_from(layout, link(bytes(data)), _DESCRIPTOR + 16)[0] == value


def _relocation_at(data: bytes | bytearray) -> int:
    """The file offset of the only relocation."""
    header = elf.HEADER.unpack_from(data)
    for index in range(header[12]):
        section = elf.SECTION.unpack_from(data, header[6] + index * elf.SECTION.size)
        if section[1] == elf.SHT_RELA:
            return section[4]
    raise AssertionError("no relocations")


def _patched(offset: int, layout: str, value: int) -> bytes:
    data = bytearray(relocatable())
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "text"),
    [
        (8, "<B", 9, "version 9"),
        (7, "<B", 0, "ABI 0"),
        (18, "<H", 62, "machine 62"),
        (48, "<I", 0x2A, "no chip"),
        (16, "<H", 3, "relocatable"),
    ],
)
def test_other_files_are_refused(offset: int, layout: str, value: int, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        link(_patched(offset, layout, value))


@pytest.mark.parametrize(
    ("field", "layout", "value", "text"),
    [
        (0, "<Q", 60, "relocation at 0x3c"),
        (0, "<Q", 1 << 63, "relocation at"),
        (8, "<I", 1, "relocation type 1"),
        (12, "<I", 0, "not defined"),
        (12, "<I", 999, "symbol 999"),
        (16, "<q", (1 << 63) - 1, "away"),
    ],
)
def test_bad_relocations_are_refused(field: int, layout: str, value: int, text: str) -> None:
    data = relocatable()
    with pytest.raises(FormatError, match=text):
        link(_patched(_relocation_at(data) + field, layout, value))


def test_damaged_objects_never_raise_anything_else() -> None:
    data, rng = relocatable(elements=4), np.random.default_rng(0)
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, len(data))] = rng.integers(0, 256)
        whole = damaged[: rng.integers(0, len(data))] if rng.random() < 0.2 else damaged
        try:
            read_code_object(link(bytes(whole)))
        except GpuError:
            continue


def test_compiling_disassembling_and_what_is_not_known() -> None:
    compiler = AMDCompiler("gfx1100")
    source = AMDRenderer("gfx1100").render(scratch_kernel(3).program())
    lib = compiler.compile_cached(source)
    assert compiler.compile_cached(source) is lib
    try:
        text = compiler.disassemble(lib)
    except Unsupported as error:
        assert "libllvm" in error.message
    else:
        assert text.startswith("kernel:\n") and "s_endpgm" in text
    with pytest.raises(CompileError, match="line 2"):
        compiler.compile("define amdgpu_kernel void @f() {\n  %x = add i32 1, %y\n  ret void\n}\n")
    # Another chip of AMD's is no slip of the pen: no near one would run its code.
    for make in (AMDCompiler, AMDRenderer):
        with pytest.raises(Unsupported, match=r"'gfx90a' .* is made for: gfx942, .*, gfx1201"):
            make("gfx90a")
