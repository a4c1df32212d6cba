"""Bit fields: ctypes puts them where a compiler does, whatever their types and neighbours."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.autogen import clang, emit
from tools.autogen.bitfields import Member, overlay, place
from tools.autogen.recipe import AutogenError, CTypes, Package


def _gnu(rng: random.Random, count: int) -> tuple[list[Member], int]:
    """Members at the places that the System V ABI gives them, and the structure's size.

    A bit field lies behind the last member, unless it would then cross a boundary of its type.
    """
    members, at, align = [], 0, 8
    for i in range(count):
        bits = rng.choice((8, 16, 32, 64))
        signed = rng.random() < 0.3
        align = max(align, bits)
        if rng.random() < 0.7:
            width = rng.randint(1, bits)
            if at // bits != (at + width - 1) // bits:
                at = -(-at // bits) * bits
            if rng.random() < 0.9:  # else it has no name
                members.append(Member(f"m{i}", at, width, signed=signed))
            at += width
        else:
            at = -(-at // bits) * bits
            sign = "" if signed else "u"
            members.append(Member(f"m{i}", at, bits, f"ctypes.c_{sign}int{bits}", "int"))
            at += bits
    return members, -(-at // align) * align // 8


def _structure(fields: object, members: list[Member], size: int, base: str) -> clang.Layouts:
    places = {one.name: (one.start, one.width) for one in members}
    return clang.Layouts({"S": clang.Structure("S", base, size, tuple(fields), (), places)}, {}, {})


def test_random_structures_are_laid_out_as_compilers_do() -> None:
    rng = random.Random(1)
    whole = 0
    for _ in range(400):
        members, size = _gnu(rng, rng.randint(1, 9))
        try:
            layouts = _structure(place("S", members, size), members, size, "Structure")
        except AutogenError:
            continue
        clang.verify(emit.structures(layouts, {}), layouts)
        whole += 1
    assert whole > 300, "most structures have a form in ctypes"


def test_signs_are_kept() -> None:
    members = [Member("s", 0, 3, signed=True), Member("u", 3, 5)]
    layouts = _structure(place("S", members, 4), members, 4, "Structure")
    found: dict[str, type[ctypes.Structure]] = {}
    exec(emit.structures(layouts, {}), found)
    value = found["S"].from_buffer_copy(b"\xff\0\0\0")
    assert (value.s, value.u) == (-1, 31)  # type: ignore[attr-defined]


def test_members_of_a_union_all_begin_with_it() -> None:
    members = [Member("a", 0, 5), Member("b", 0, 16, "ctypes.c_uint16"), Member("c", 0, 31)]
    layouts = _structure(overlay(members, 4), members, 4, "Union")
    clang.verify(emit.structures(layouts, {}), layouts)


def test_a_field_that_ctypes_cannot_have_is_refused() -> None:
    members = [Member("x", 0, 8, "ctypes.c_uint8"), Member("y", 8, 24)]
    with pytest.raises(AutogenError, match=r"S\.y: bits 8 to 31 are in no unit"):
        place("S", members, 4)


def test_a_layout_that_came_out_otherwise_is_noticed() -> None:
    members = [Member("a", 0, 3), Member("b", 3, 5)]
    fields = place("S", members, 1)
    for wrong, size, said in (
        ([Member("a", 0, 3), Member("b", 4, 4)], 1, r"S\.b: not 4 bits from bit 4 on"),
        (members, 2, "S is 1 bytes, not 2"),
    ):
        layouts = _structure(fields, wrong, size, "Structure")
        with pytest.raises(AutogenError, match=said):
            clang.verify(emit.structures(layouts, {}), layouts)


HEADER = """
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long u64;
struct mixed { u32 a:3; u8 b:4; u32 c:20; };
struct behind { u16 x; u32 a:8; u8 y; };
struct gaps { u32 a:3; u32 :5; int s:4; u32 :0; u64 w:40; u64 z:24; u8 tail[]; };
union header { struct { u32 type:4; u32 opcode:8; u32 :20; }; u32 word; };
struct __attribute__((packed)) packed { u8 p; u32 a:12; u32 b:20; u16 t; union header h; };
"""


def test_headers_with_bit_fields_are_read(need: Callable[[str], None], tmp_path: Path) -> None:
    need("autogen")
    (tmp_path / "a.h").write_text(HEADER)
    names = ("mixed", "behind", "gaps", "header", "packed")
    recipe = CTypes(
        module="a",
        about="A.",
        package=Package("p", "1", "0" * 64, "r"),
        headers=("a.h",),
        include=(".",),
        structs=names,
        constants=(),
    )
    layouts = clang.read(recipe, tmp_path)
    clang.verify(emit.structures(layouts, {}), layouts)
    sizes = {name: layouts.structures[name].size for name in names}
    assert sizes == {"mixed": 4, "behind": 4, "gaps": 16, "header": 4, "packed": 11}
    assert layouts.structures["gaps"].places["s"] == (8, 4)
    assert layouts.structures["behind"].places == {"x": (0, 16), "a": (16, 8), "y": (24, 8)}
