"""Bit fields and alignment against arithmetic that is plainly right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core import bits as b
from gpu.core.errors import InvalidValue

NUMBERS = st.integers(0, 2**80)
BIT = st.integers(0, 79)


@given(NUMBERS, BIT, BIT)
def test_bits_are_the_digits_of_the_binary_number(value: int, one: int, other: int) -> None:
    hi, lo = max(one, other), min(one, other)
    digits = f"{value:0100b}"[::-1]
    assert b.bits(value, hi, lo) == int(digits[lo : hi + 1][::-1], 2)


@given(NUMBERS, BIT, BIT, st.data())
def test_insert_changes_the_field_alone(
    value: int, one: int, other: int, data: st.DataObject
) -> None:
    hi, lo = max(one, other), min(one, other)
    field = data.draw(st.integers(0, 2 ** (hi - lo + 1) - 1))
    changed = b.insert(value, hi, lo, field)
    assert b.bits(changed, hi, lo) == field
    assert changed & ~b.mask(hi, lo) == value & ~b.mask(hi, lo)


@pytest.mark.parametrize("field", [-1, 16, 1 << 70])
def test_insert_refuses_what_does_not_fit(field: int) -> None:
    with pytest.raises(InvalidValue, match="bits 7:4: give 0 to 0xf"):
        b.insert(0, 7, 4, field)


@given(NUMBERS, st.integers(1, 2**40))
def test_alignment_finds_the_nearest_multiples(value: int, align: int) -> None:
    down, up = b.align_down(value, align), b.align_up(value, align)
    assert down % align == up % align == 0
    assert value - align < down <= value <= up < value + align


@given(NUMBERS)
def test_halves_of_64_bits(value: int) -> None:
    assert b.hi32(value) << 32 | b.lo32(value) == value % 2**64


def test_powers_of_two() -> None:
    assert [v for v in range(-5, 40) if b.is_power_of_two(v)] == [1, 2, 4, 8, 16, 32]
    for value in range(200):
        assert b.round_up_power_of_two(value) == next(1 << k for k in range(10) if 1 << k >= value)
    assert b.round_up_power_of_two(2**64 + 1) == 2**65
