"""Registers as values, and maps of registers over a window."""

from __future__ import annotations

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import InvalidIndex, InvalidValue
from gpu.core.regs import (
    RegArray,
    Register,
    RegMap,
    RegTable,
    field,
    register_from_table,
)
from gpu.core.window import MemoryWindow, RecordingWindow, WindowAccess


class Mode(IntEnum):
    OFF = 0
    ON = 1
    AUTO = 3


class CNTL(Register):
    ENABLE = field(0, doc="fetch from the ring")
    SIZE = field(6, 1)
    MODE = field(9, 8, enum=Mode, doc="who decides")
    BUSY = field(30, access="ro")
    ERROR = field(31, access="w1c", doc="write 1 to clear")


class BASE(Register, bits=64):
    ADDRESS = field(47, 12)
    VALID = field(63)


class DATA(Register):
    WORD = field(31, 0)


def test_fields_are_placed_and_extracted() -> None:
    register = CNTL(ENABLE=1, SIZE=9, MODE=Mode.AUTO)
    assert register.value == 0x313
    assert (register.ENABLE, register.SIZE, register.MODE) == (1, 9, Mode.AUTO)
    assert isinstance(register.MODE, Mode)
    assert BASE(ADDRESS=(1 << 36) - 1).value == 0xFFFF_FFFF_F000
    assert CNTL(ENABLE=True, MODE=1) == CNTL.parse(0x101)
    assert CNTL().value == 0


@given(st.integers(0, 2**32 - 1), st.integers(0, 63))
def test_replace_keeps_all_other_bits(value: int, size: int) -> None:
    register = CNTL.parse(value)
    changed = register.replace(SIZE=size)
    assert changed["SIZE"] == size
    assert changed.value & ~0x7E == value & ~0x7E
    assert register.value == value


def test_registers_are_values() -> None:
    register = CNTL(SIZE=2)
    assert register == CNTL(SIZE=2) != CNTL(SIZE=3)
    assert register != register_from_table("CNTL", [("SIZE", 1, 6)]).parse(4)
    assert len({register, CNTL(SIZE=2)}) == 1
    for name in ("SIZE", "value", "OTHER"):
        with pytest.raises(AttributeError, match="registers are values; use replace"):
            setattr(register, name, 1)


def test_repr_shows_fields_by_name_and_what_has_none() -> None:
    assert repr(CNTL(ENABLE=1, SIZE=31, MODE=Mode.ON)) == (
        "CNTL(ENABLE=1, SIZE=0x1f, MODE=ON, BUSY=0, ERROR=0)"
    )
    assert repr(BASE.parse(0x5)) == "BASE(ADDRESS=0, VALID=0; unnamed bits 0x5)"


def test_describe_is_the_table_of_the_manual() -> None:
    assert CNTL.describe() == (
        "CNTL (32 bits)\n"
        "       31  w1c  ERROR   write 1 to clear\n"
        "       30  ro   BUSY\n"
        "      9:8  rw   MODE    who decides\n"
        "                        0x0 OFF\n"
        "                        0x1 ON\n"
        "                        0x3 AUTO\n"
        "      6:1  rw   SIZE\n"
        "        0  rw   ENABLE  fetch from the ring"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"SIZE": 64}, r"CNTL.SIZE = 0x40 does not fit 6 bits \(6:1\): give 0 to 0x3f"),
        ({"SIZE": -1}, r"CNTL.SIZE = -0x1 does not fit 6 bits"),
        ({"MODE": 2}, r"CNTL.MODE = 0x2, which is not one of Mode: OFF \(0x0\), ON"),
        ({"SIZES": 1}, "CNTL has no field SIZES; its fields are: ENABLE, SIZE, MODE"),
    ],
)
def test_wrong_values_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises((InvalidValue, InvalidIndex), match=message):
        CNTL(**fields)
    with pytest.raises((InvalidValue, InvalidIndex), match=message):
        CNTL.parse(0x313).replace(**fields)


def test_hardware_may_hold_what_an_enumeration_lacks() -> None:
    register = CNTL.parse(0x200)
    assert register["MODE"] == 2
    assert "MODE=2" in repr(register)
    with pytest.raises(InvalidValue, match=r"CNTL.MODE holds 0x2, .*register\['MODE'\]"):
        _ = register.MODE
    with pytest.raises(InvalidIndex, match="no field MODES"):
        _ = register["MODES"]


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_values_wider_than_the_register_are_refused(value: int) -> None:
    with pytest.raises(InvalidValue, match=r"CNTL of .*: it has 32 bits"):
        CNTL.parse(value)


def test_mistakes_fail_where_the_class_is_defined() -> None:
    with pytest.raises(InvalidValue, match=r"Bad.B \(bits 4:3\) overlaps Bad.A"):

        class Bad(Register):
            A = field(3, 0)
            B = field(4, 3)

    with pytest.raises(InvalidValue, match=r"Twice.A is defined twice"):

        class Twice(Register):
            A = field(3, 0)
            A = field(5, 4)  # noqa: PIE794

    with pytest.raises(InvalidValue, match=r"Wide.A \(bits 32:30\) is outside .*up to 31"):

        class Wide(Register):
            A = field(32, 30)

    with pytest.raises(InvalidValue, match=r"Taken.parse .*rename the field"):

        class Taken(Register):
            parse = field(0)

    with pytest.raises(InvalidValue, match="members of Mode do not fit its bits"):

        class Narrow(Register):
            A = field(0, enum=Mode)

    with pytest.raises(InvalidValue, match="give hi >= lo >= 0"):
        field(3, 4)


def test_a_derived_class_adds_and_redefines() -> None:
    class Newer(CNTL):
        SIZE = field(7, 1)
        FAST = field(10)

    assert Newer(SIZE=127, FAST=1, ENABLE=1).value == 0x4FF
    with pytest.raises(InvalidValue, match=r"Clash.MORE .*overlaps Clash.MODE"):

        class Clash(CNTL):
            MORE = field(8)


def test_tables_give_the_same_classes() -> None:
    made = register_from_table("CNTL", [("ENABLE", 0, 1), ("SIZE", 1, 6)])
    assert repr(made(ENABLE=1, SIZE=5)) == "CNTL(ENABLE=1, SIZE=5)"
    assert made(SIZE=5)["SIZE"] == 5
    with pytest.raises(InvalidValue, match=r"X.B \(bits 1:1\) overlaps X.A"):
        register_from_table("X", [("A", 0, 2), ("B", 1, 1)])
    with pytest.raises(InvalidValue, match=r"X.A is defined twice"):
        register_from_table("X", [("A", 0, 2), ("A", 2, 1)])
    with pytest.raises(InvalidValue, match="outside the register"):
        register_from_table("X", [("A", 60, 5)], bits=64)


BLOCK = {
    "CNTL": (0x0, CNTL),
    "BASE": (0x8, BASE),
    "ALIAS": (0x8, DATA),
    "DATA": RegArray(0x20, DATA, 4, 8),
    "OTHER_CNTL": (0x10, CNTL),
}


def block(base: int = 0x40) -> tuple[RegMap, list[WindowAccess]]:
    accesses: list[WindowAccess] = []
    window = RecordingWindow(MemoryWindow.over(bytearray(256)), accesses.append)
    return RegMap(window, BLOCK, base), accesses


def test_reads_and_writes_are_one_access_of_the_registers_width() -> None:
    regs, accesses = block()
    regs.write(CNTL(ENABLE=1))
    regs.write(BASE(VALID=1))
    regs.write(CNTL(SIZE=1), "OTHER_CNTL")
    regs.write(DATA(WORD=7), index=3)
    assert regs.read(CNTL).ENABLE == 1
    assert regs.read("OTHER_CNTL") == CNTL(SIZE=1)
    assert regs.read(DATA, 3).WORD == 7
    assert regs.at(0x58).read(DATA, 0).WORD == 7
    assert accesses == [
        ("write", 0x40, 4, 1),
        ("write", 0x48, 8, 1 << 63),
        ("write", 0x50, 4, 2),
        ("write", 0x78, 4, 7),
        ("read", 0x40, 4, 1),
        ("read", 0x50, 4, 2),
        ("read", 0x78, 4, 7),
        ("read", 0x78, 4, 7),
    ]


def test_modify_keeps_the_rest_and_clears_nothing_by_chance() -> None:
    regs, accesses = block()
    regs.window.write(0x40, 4, 0xC000_0400)  # an error is pending, bit 10 has no name
    regs.modify(CNTL, SIZE=3, ENABLE=1)
    assert accesses[1:] == [("read", 0x40, 4, 0xC000_0400), ("write", 0x40, 4, 0x4000_0407)]
    regs.window.write(0x40, 4, 0x8000_0000)
    regs.modify("CNTL", ERROR=1)
    assert regs.read(CNTL).ERROR == 1
    regs.modify(DATA, 2, WORD=5)
    assert regs.read(DATA, 2).WORD == 5


def test_a_refused_modification_writes_nothing() -> None:
    regs, accesses = block()
    for fields in ({"BUSY": 1}, {"SIZE": 64}, {"NONE": 1}):
        with pytest.raises((InvalidValue, InvalidIndex)):
            regs.modify("CNTL", **fields)
    assert "write" not in [access.kind for access in accesses]


def test_addresses_have_names() -> None:
    regs, _ = block()
    assert [regs.name_of(0x40 + o) for o in (0, 8, 0x10, 0x28, 0x24)] == [
        *("CNTL", "BASE", "OTHER_CNTL", "DATA[1]", None)
    ]
    assert regs.name_of(0) is None
    assert (regs.offset_of("DATA", 2), regs.offset_of(BASE)) == (0x70, 0x48)


def test_what_is_not_there_is_refused() -> None:
    regs, accesses = block()
    for which, index, message in (
        ("NOPE", None, "no register NOPE"),
        ("CNTL", 0, "CNTL is one register, not an array"),
        ("DATA", None, "DATA has 4 registers"),
        ("DATA", 4, "DATA has 4 registers: index 4"),
        ("DATA", -1, "DATA has 4 registers: index -1"),
    ):
        with pytest.raises(InvalidIndex, match=message):
            regs.read(which, index)
    with pytest.raises(InvalidValue, match="OTHER_CNTL is a CNTL, not a BASE"):
        regs.write(BASE(), "OTHER_CNTL")

    foreign = register_from_table("CNTL", [])
    with pytest.raises(InvalidValue, match="CNTL is another class"):
        regs.read(foreign)
    assert accesses == []


def test_generated_tables_are_maps_built_on_demand() -> None:
    table = RegTable({"A": (4, [("LOW", 0, 4), ("HIGH", 4, 28)]), "BROKEN": (8, [("X", 0, 33)])})
    regs = RegMap(MemoryWindow.over(bytearray(16)), table)
    regs.modify("A", HIGH=5)
    assert regs.read("A")["HIGH"] == 5
    assert type(regs.read("A")) is type(RegMap(regs.window, table).read("A"))
    assert regs.name_of(8) == "BROKEN"
    assert list(table) == ["A", "BROKEN"]
    with pytest.raises(InvalidValue, match=r"BROKEN.X .*outside the register"):
        regs.read("BROKEN")
