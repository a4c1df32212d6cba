"""Code objects for tests: compiled by llvmlite, and linked by the few lines that this takes."""

from __future__ import annotations

import struct
from functools import cache

from gpu.core.elf import SHF_ALLOC, SHN_LORESERVE, Section, parse_object

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REL64 = 5

ADD = """
define amdgpu_kernel void @add(ptr addrspace(1) %out, ptr addrspace(1) %in, i32 %n) ATTR {
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr float, ptr addrspace(1) %in, i32 %id
  %v = load float, ptr addrspace(1) %p
  %q = getelementptr float, ptr addrspace(1) %out, i32 %id
  store float %v, ptr addrspace(1) %q
  ret void
}
"""
# 300 floats of LDS, 260 bytes of scratch memory.
HUNGRY = """
@lds = internal addrspace(3) global [300 x float] undef
define amdgpu_kernel void @hungry(ptr addrspace(1) %out, i32 %n) ATTR {
  %s = alloca [64 x i32], addrspace(5)
  %e = getelementptr [64 x i32], ptr addrspace(5) %s, i32 0, i32 %n
  store volatile i32 3, ptr addrspace(5) %e
  %v = load volatile i32, ptr addrspace(5) %e
  %l = getelementptr [300 x float], ptr addrspace(3) @lds, i32 0, i32 %n
  %f = bitcast i32 %v to float
  store volatile float %f, ptr addrspace(3) %l
  store i32 %v, ptr addrspace(1) %out
  ret void
}
"""
# Reads its AQL packet.
CURIOUS = """
define amdgpu_kernel void @curious(ptr addrspace(1) %out) ATTR {
  %p = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %v = load i32, ptr addrspace(4) %p
  store i32 %v, ptr addrspace(1) %out
  ret void
}
"""
_PLAIN = (
    *("no-workgroup-id-y", "no-workgroup-id-z", "no-dispatch-id", "no-queue-ptr"),
    *("no-implicitarg-ptr", "no-lds-kernel-id", "no-hostcall-ptr", "no-heap-ptr"),
    *("no-default-queue", "no-completion-action", "no-multigrid-sync-arg"),
)
_MODULE = """
target triple = "amdgcn-amd-amdhsa"
{body}
declare i32 @llvm.amdgcn.workitem.id.x()
declare ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,256" {attributes} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 {abi}}}
"""


@cache
def compile_object(body: str, cpu: str = "gfx1100", *, plain: bool = True, abi: int = 500) -> bytes:
    """A relocatable object. ``plain`` kernels have no hidden arguments."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    names = [*_PLAIN, *([] if "dispatch.ptr" in body else ["no-dispatch-ptr"])]
    attributes = " ".join(f'"amdgpu-{name}"' for name in names) if plain else ""
    text = _MODULE.format(body=body.replace("ATTR", "#0"), attributes=attributes, abi=abi)
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    machine = target.create_target_machine(cpu=cpu, opt=3, reloc="pic")
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


@cache
def code_object(body: str, cpu: str = "gfx1100", *, plain: bool = True, abi: int = 500) -> bytes:
    """A linked code object."""
    return link(compile_object(body, cpu, plain=plain, abi=abi))


def link(data: bytes) -> bytes:
    """A shared object of the sections that are loaded, each at a page of its own."""
    elf = parse_object(data)
    loaded = [s for s in elf.sections if s.flags & SHF_ALLOC and s.size]
    address = {s.index: 0x1000 * number for number, s in enumerate(loaded, 1)}
    contents = {s.index: bytearray(s.content) for s in loaded}
    for r in elf.relocations:
        if r.section not in address:
            continue
        symbol = elf.symbols[r.symbol]
        value = address[symbol.section] + symbol.value + r.addend
        assert r.type == _REL64, "only what llvmlite emits is linked here"
        place = address[r.section] + r.offset
        contents[r.section][r.offset : r.offset + 8] = struct.pack("<q", value - place)
    symbols, names = bytearray(_SYMBOL.size), bytearray(b"\0")
    for s in elf.symbols:
        if s.name and s.section < SHN_LORESERVE and s.section in address:
            where = address[s.section] + s.value
            index = loaded.index(elf.sections[s.section]) + 1
            symbols += _SYMBOL.pack(len(names), s.binding << 4 | s.type, 0, index, where, 0)
            names += s.name.encode() + b"\0"
    return _write(elf.flags, elf.abi_version, loaded, address, contents, symbols, names)


def _write(
    flags: int,
    abi_version: int,
    loaded: list[Section],
    address: dict[int, int],
    contents: dict[int, bytearray],
    symbols: bytearray,
    names: bytearray,
) -> bytes:
    body, headers, titles = bytearray(_HEADER.size), bytearray(_SECTION.size), bytearray(b"\0")

    def add(name: str, kind: int, flag: int, at: int, data: bytes, link: int, entry: int) -> None:
        headers.extend(
            _SECTION.pack(len(titles), kind, flag, at, len(body), len(data), link, 1, 8, entry)
        )
        titles.extend(name.encode() + b"\0")
        body.extend(data)

    for s in loaded:
        add(s.name, s.type, s.flags, address[s.index], bytes(contents[s.index]), 0, 0)
    add(".dynsym", 11, 0, 0, bytes(symbols), len(loaded) + 2, _SYMBOL.size)
    add(".dynstr", 3, 0, 0, bytes(names), 0, 0)
    titles_at = len(loaded) + 3
    whole = bytes(titles) + b".shstrtab\0"
    add(".shstrtab", 3, 0, 0, whole, 0, 0)
    ident = b"\x7fELF\x02\x01\x01" + bytes([64, abi_version]) + bytes(7)
    body[: _HEADER.size] = _HEADER.pack(
        *(ident, 3, 224, 1, 0, 0, len(body), flags, _HEADER.size, 0, 0),
        *(_SECTION.size, titles_at + 1, titles_at),
    )
    return bytes(body + headers)
