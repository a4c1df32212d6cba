from __future__ import annotations

import ctypes
import functools
import platform
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core import elf
from gpu.core.elf import parse_object
from gpu.core.errors import CompileError, FormatError, GpuError, InvalidValue
from gpu.core.objload import Linker, LoadedObject, load_object
from gpu.core.relocate import MACHINES

IR = """
@table = internal constant [4 x double] [double 1.0, double 2.0, double 4.0, double 8.0]
@counter = global i32 5
@zeros = internal global [100 x i64] zeroinitializer
@pointers = global [2 x ptr] [ptr @counter, ptr @outside]
@bytes = internal constant [5 x i8] c"hello"
@halves = internal global [3 x i16] [i16 7, i16 8, i16 9]
declare ptr @outside(ptr, i32, i64)

define double @look_up(i64 %i) {
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %v = load double, ptr %p
  ret double %v
}
define i32 @bump() {
  %v = load i32, ptr @counter
  %w = add i32 %v, 1
  store i32 %w, ptr @counter
  %z = load i64, ptr getelementptr (i64, ptr @zeros, i64 99)
  %zz = add i64 %z, 10
  store i64 %zz, ptr getelementptr (i64, ptr @zeros, i64 99)
  %t = trunc i64 %zz to i32
  %s = add i32 %t, %w
  ret i32 %s
}
define i8 @byte() {
  %v = load volatile i8, ptr @bytes
  ret i8 %v
}
define i16 @half() {
  %v = load volatile i16, ptr @halves
  ret i16 %v
}
define void @fill(ptr %p, i64 %n) {
  call ptr @outside(ptr %p, i32 7, i64 %n)
  ret void
}
define void @scale(ptr %p) {
  %x = load <4 x float>, ptr %p
  %y = fmul <4 x float> %x, <float 1.5, float 2.5, float 3.5, float 4.5>
  store <4 x float> %y, ptr %p
  ret void
}
define ptr @address_of_outside() { ret ptr @outside }
define ptr @address_of_table() { ret ptr @table }
define i32 @choose(i32 %x, ptr %q) {
  switch i32 %x, label %other [ i32 0, label %a  i32 1, label %b  i32 2, label %c
                                i32 3, label %d  i32 4, label %e ]
a:
  call void @fill(ptr %q, i64 1)
  ret i32 17
b:
  call void @fill(ptr %q, i64 2)
  ret i32 3
c:
  call void @fill(ptr %q, i64 3)
  ret i32 99
d:
  store i8 1, ptr %q
  ret i32 -1
e:
  ret i32 -7
other:
  ret i32 0
}
"""
TARGETS = {"x86-64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}
HOST = {"x86_64": "x86-64", "aarch64": "arm64"}[platform.machine()]
MEMSET = ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value or 0
SYMBOLS = {"outside": MEMSET}


@functools.cache
def emit(machine: str, ir: str = IR, relocation_model: str = "pic") -> bytes:
    binding = pytest.importorskip("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = binding.parse_assembly(ir)
    module.triple = TARGETS[machine]
    target = binding.Target.from_triple(module.triple)
    made = target.create_target_machine(opt=1, reloc=relocation_model, codemodel="small")
    module.data_layout = str(made.target_data)
    return bytes(made.emit_object(module))


@pytest.fixture
def loaded() -> LoadedObject:
    return load_object(emit(HOST), SYMBOLS)


def function(loaded: LoadedObject, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(result, *arguments)(loaded.address(name))


def test_constants_and_variables(loaded: LoadedObject) -> None:
    look_up = function(loaded, "look_up", ctypes.c_double, ctypes.c_int64)
    assert [look_up(i) for i in range(4)] == [1.0, 2.0, 4.0, 8.0]
    bump = function(loaded, "bump", ctypes.c_int32)
    assert [bump(), bump(), bump()] == [16, 27, 38]
    assert ctypes.c_int32.from_address(loaded.address("counter")).value == 8
    assert function(loaded, "byte", ctypes.c_int8)() == ord("h")
    assert function(loaded, "half", ctypes.c_int16)() == 7


def test_variables_are_of_one_object(loaded: LoadedObject) -> None:
    function(loaded, "bump", ctypes.c_int32)()
    again = load_object(emit(HOST), SYMBOLS)
    assert ctypes.c_int32.from_address(again.address("counter")).value == 5


def test_vector_constants(loaded: LoadedObject) -> None:
    values = np.array([1, 2, 3, 4], np.float32)
    function(loaded, "scale", None, ctypes.c_void_p)(values.ctypes.data)
    assert values.tolist() == [1.5, 5.0, 10.5, 18.0]


def test_switch_table_and_external_calls(loaded: LoadedObject) -> None:
    choose = function(loaded, "choose", ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    for case, want, filled in [(0, 17, 1), (1, 3, 2), (2, 99, 3), (4, -7, 0), (9, 0, 0)]:
        buffer = np.zeros(4, np.uint8)
        assert choose(case, buffer.ctypes.data) == want
        assert buffer.tolist() == [7] * filled + [0] * (4 - filled)


def test_addresses_in_code_and_data(loaded: LoadedObject) -> None:
    assert function(loaded, "address_of_outside", ctypes.c_void_p)() == MEMSET
    pointers = (ctypes.c_uint64 * 2).from_address(loaded.address("pointers"))
    assert list(pointers) == [loaded.address("counter"), MEMSET]
    table = function(loaded, "address_of_table", ctypes.c_void_p)()
    assert table == loaded.address("table")


def test_unknown_names(loaded: LoadedObject) -> None:
    with pytest.raises(InvalidValue, match="did you mean look_up"):
        loaded.address("lookup")
    loaded.close()
    with pytest.raises(InvalidValue):
        loaded.address("look_up")


def test_undefined_symbols_are_named() -> None:
    with pytest.raises(CompileError, match="undefined symbol 'outside'"):
        load_object(emit(HOST), {"memcpy": 1})
    with pytest.raises(InvalidValue, match="not 64-bit"):
        load_object(emit(HOST), {"outside": -1})


def test_objects_of_another_machine_are_refused() -> None:
    other = next(name for name in TARGETS if name != HOST)
    with pytest.raises(CompileError, match=f"for {other}"):
        load_object(emit(other), SYMBOLS)


def test_non_pic_code_out_of_reach_is_refused() -> None:
    ir = "@x = external dso_local global i32\ndefine ptr @f() { ret ptr @x }"
    with pytest.raises(CompileError, match=r"R_X86_64_32S?|R_X86_64_PC32"):
        load_object(emit("x86-64", ir, "static"), {"x": 1 << 40})


def test_thread_locals_are_refused() -> None:
    ir = "@t = thread_local global i32 1\ndefine i32 @f() {\n %v = load i32, ptr @t\n ret i32 %v\n}"
    with pytest.raises(CompileError, match=r"thread-local|relocation type"):
        load_object(emit(HOST, ir), {"__tls_get_addr": 1})


def linked(machine: str, bases: list[int], symbols: dict[str, int]) -> Image:
    return Image(emit(machine), bases, symbols)


class Image:
    """An object linked at made-up addresses, with the bytes of each address at hand."""

    def __init__(self, data: bytes, bases: list[int], symbols: dict[str, int]):
        linker = Linker(data)
        assert len(linker.segments) == len(bases)
        self.exports = linker.exports(bases)
        self.memory: dict[int, int] = {}
        for piece in linker.link(bases, symbols):
            start = bases[piece.segment] + piece.offset
            assert start not in self.memory
            self.memory.update(
                zip(range(start, start + len(piece.content)), piece.content, strict=True)
            )

    def word(self, address: int, size: int = 4) -> int:
        return int.from_bytes(bytes(self.memory[address + i] for i in range(size)), "little")

    def adrp(self, address: int) -> int:
        """The page an ADRP at `address` computes."""
        word = self.word(address)
        assert word & 0x9F000000 == 0x90000000
        pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        pages -= (pages & 1 << 20) << 1
        return (address & ~0xFFF) + (pages << 12)

    def branch(self, address: int) -> int:
        """Where a B or BL at `address` goes."""
        word = self.word(address)
        assert word & 0x7C000000 == 0x14000000
        offset = word & 0x3FFFFFF
        return address + 4 * (offset - ((offset & 1 << 25) << 1))

    def slot_of_stub(self, stub: int) -> int:
        ldr, br = self.word(stub + 4), self.word(stub + 8)
        assert self.word(stub) & 31 == 16 and ldr & 0xFFC003FF == 0xF9400210 and br == 0xD61F0200
        return self.adrp(stub) + (ldr >> 10 & 0xFFF) * 8


ARM_BASES = [0x7F0012340000, 0x7F0012350000, 0x7F000F000000]
FAR = {"outside": 0x123456789ABCDEF0}


def arm_relocations() -> list[tuple[str, elf.Relocation, elf.Symbol]]:
    parsed = parse_object(emit("arm64"))
    rules = MACHINES[elf.EM_AARCH64].rules
    text = next(s.index for s in parsed.sections if s.name == ".text")
    return [
        (rules[r.type].name.removeprefix("R_AARCH64_"), r, parsed.symbols[r.symbol])
        for r in parsed.relocations
        if r.section == text
    ]


def test_arm_immediates_decode_to_the_symbols() -> None:
    image = linked("arm64", ARM_BASES, FAR)
    seen = set()
    pages: dict[int, int] = {}
    for name, relocation, symbol in arm_relocations():
        place = ARM_BASES[0] + relocation.offset
        word = image.word(place)
        seen.add(name)
        if name.startswith(("ADR_",)):
            pages[word & 31] = image.adrp(place)
        elif name == "LD64_GOT_LO12_NC":
            slot = pages[word >> 5 & 31] + (word >> 10 & 0xFFF) * 8
            want = FAR.get(symbol.name) or image.exports[symbol.name]
            assert image.word(slot, 8) == want
        elif name in ("CALL26", "JUMP26"):
            target = image.branch(place)
            if symbol.name in FAR:
                assert image.word(image.slot_of_stub(target), 8) == FAR[symbol.name]
            else:
                assert target == image.exports[symbol.name]
        elif name.startswith("LDST"):
            scale = int(name[4:].removesuffix("_ABS_LO12_NC")).bit_length() - 4
            address = pages[word >> 5 & 31] + ((word >> 10 & 0xFFF) << scale)
            if symbol.name == ".bss":
                assert address == image.exports["zeros"] + relocation.addend
            if name == "LDST8_ABS_LO12_NC":
                assert bytes(image.memory[address + i] for i in range(5)) == b"hello"
            if name == "LDST128_ABS_LO12_NC":
                assert struct.pack("<ff", 1.5, 2.5) == image.word(address, 8).to_bytes(8, "little")
        elif name == "ADD_ABS_LO12_NC":
            address = pages[word >> 5 & 31] + (word >> 10 & 0xFFF)
            assert address in image.memory
    assert seen >= {
        "ADR_PREL_PG_HI21", "ADR_GOT_PAGE", "LD64_GOT_LO12_NC", "CALL26", "ADD_ABS_LO12_NC",
        "LDST8_ABS_LO12_NC", "LDST16_ABS_LO12_NC", "LDST64_ABS_LO12_NC", "LDST128_ABS_LO12_NC",
    }  # fmt: skip


@given(
    stub=st.integers(0, 1 << 47).map(lambda a: a & ~3), distance=st.integers(-(1 << 28), 1 << 28)
)
def test_call_stubs_reach_their_slots(stub: int, distance: int) -> None:
    slot = (stub + distance + (1 << 32)) & ~7
    stub += 1 << 32
    image = Image.__new__(Image)
    arm = MACHINES[elf.EM_AARCH64].make_stub(stub, slot)
    image.memory = dict(enumerate(arm, stub))
    assert image.slot_of_stub(stub) == slot
    x86 = MACHINES[elf.EM_X86_64].make_stub(stub, slot)
    assert x86[:2] == b"\xff\x25" and stub + 6 + struct.unpack_from("<i", x86, 2)[0] == slot


def test_arm_out_of_reach_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"ADR_\w+ at \.text.*out of range"):
        linked("arm64", [0x1000, 1 << 40, 1 << 41], FAR)


@pytest.mark.parametrize("machine", sorted(TARGETS))
def test_damaged_objects_never_raise_anything_else(machine: str) -> None:
    good = emit(machine)
    chooser = random.Random(1)
    failures = 0
    for _ in range(1500):
        bad = bytearray(good)
        for _ in range(chooser.randint(0, 4)):
            # Mostly in the tables, where the structure is.
            low = chooser.choice([0, len(bad) // 3, len(bad) - 15 * 64])
            bad[chooser.randrange(low, len(bad))] ^= 1 << chooser.randrange(8)
        if chooser.random() < 0.2:
            del bad[chooser.randrange(len(bad)) :]
        try:
            linker = Linker(bytes(bad))
            bases = [0x10000000 * (i + 1) for i in range(len(linker.segments))]
            linker.link(bases, FAR)
            linker.exports(bases)
        except GpuError:
            failures += 1
    assert failures > 300


@pytest.mark.parametrize("size", [0, 1, 15, 63, 64, 100])
def test_truncated_headers(size: int) -> None:
    with pytest.raises(FormatError):
        parse_object(emit("x86-64")[:size])


def test_unknown_relocation_type_names_everything() -> None:
    data = bytearray(emit("x86-64"))
    parsed = parse_object(bytes(data))
    rela = next(s for s in parsed.sections if s.name == ".rela.text")
    start = bytes(data).index(rela.content)
    struct.pack_into("<I", data, start + 8, 77)
    with pytest.raises(CompileError, match=r"section \.text at 0x.*symbol.*relocation type 77"):
        Linker(bytes(data))


def test_relocation_past_its_section() -> None:
    data = bytearray(emit("x86-64"))
    rela = next(s for s in parse_object(bytes(data)).sections if s.name == ".rela.text")
    start = bytes(data).index(rela.content)
    text = next(s for s in parse_object(bytes(data)).sections if s.name == ".text")
    struct.pack_into("<Q", data, start, text.size - 3)
    with pytest.raises(FormatError, match="is past the"):
        Linker(bytes(data))


def test_strings_of_an_elf_file_do_not_multiply() -> None:
    """Names that all are nearly the whole of one long string are refused, not read."""
    names = b"\0" + b"x" * (1 << 20) + b"\0"
    symbols = b"".join(elf.SYMBOL.pack(1 + n, 0, 0, 0, 0, 0) for n in range(5000))
    at = elf.HEADER.size
    sections = [
        elf.SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        elf.SECTION.pack(0, 3, 0, 0, at, len(names), 0, 0, 1, 0),
        elf.SECTION.pack(
            *(0, elf.SHT_SYMTAB, 0, 0, at + len(names), len(symbols), 1, 0, 1, elf.SYMBOL.size)
        ),
    ]
    header = elf.HEADER.pack(
        *(elf.IDENT.ljust(16, b"\0"), elf.ET_REL, 62, 1, 0, 0, at + len(names) + len(symbols)),
        *(0, at, 0, 0, elf.SECTION.size, len(sections), 1),
    )
    with pytest.raises(FormatError, match=r"symbol 16: strings .* over 16 times their table"):
        parse_object(header + names + symbols + b"".join(sections))
