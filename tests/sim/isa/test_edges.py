"""Edge cases of single instructions, worked out by hand from AMD's RDNA3 manual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE
from sim.isa.asm import evaluate, words

QNAN, SNAN, INF = 0x7FC00000, 0x7F800001, 0x7F800000
ONE, MINUS_ZERO, DENORMAL = 0x3F800000, 0x80000000, 0x00000001
NO_IEEE = DEFAULT_MODE & ~(1 << 9)
FLUSH_32 = DEFAULT_MODE & ~0x30


def f32(values: list[float]) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("name", "x", "y", "mode", "want"),
    [
        ("v_min_f32", QNAN, ONE, DEFAULT_MODE, ONE),
        ("v_min_f32", ONE, QNAN, DEFAULT_MODE, ONE),
        ("v_max_f32", SNAN, ONE, DEFAULT_MODE, SNAN | 0x400000),  # IEEE: quieted
        ("v_max_f32", SNAN, ONE, NO_IEEE, ONE),
        ("v_min_f32", 0, MINUS_ZERO, DEFAULT_MODE, MINUS_ZERO),
        ("v_min_f32", MINUS_ZERO, 0, DEFAULT_MODE, MINUS_ZERO),
        ("v_max_f32", MINUS_ZERO, 0, DEFAULT_MODE, 0),
        ("v_add_f32", MINUS_ZERO, MINUS_ZERO, DEFAULT_MODE, MINUS_ZERO),
        ("v_add_f32", DENORMAL, DENORMAL, DEFAULT_MODE, 2 * DENORMAL),
        ("v_add_f32", DENORMAL, DENORMAL, FLUSH_32, 0),
        ("v_mul_f32", 0x00800000, 0x3F000000, FLUSH_32, 0),  # a denormal result
        ("v_mul_dx9_zero_f32", INF, 0, DEFAULT_MODE, 0),
        ("v_lshlrev_b32", 33, 1, DEFAULT_MODE, 2),  # shifts take 5 bits
        ("v_ashrrev_i32", 63, 0x80000000, DEFAULT_MODE, 0xFFFFFFFF),
        ("v_mul_hi_u32_u24", 0xFFFFFFFF, 0xFFFFFFFF, DEFAULT_MODE, 0xFFFF),
        ("v_mul_i32_i24", 0x00800000, 2, DEFAULT_MODE, 0xFF000000),  # bit 23 is the sign
    ],
)
def test_two_sources(name: str, x: int, y: int, mode: int, want: int) -> None:
    assert hex(evaluate(name, words([x]), words([y]), mode=mode)[0]) == hex(want)


@pytest.mark.parametrize(
    ("rounding", "want"), [(0, 0x3F800000), (1, 0x3F800001), (2, 0x3F800000), (3, 0x3F800000)]
)
def test_rounding_modes(rounding: int, want: int) -> None:
    tiny = np.float32(1e-10)
    got = evaluate("v_add_f32", f32([1]), f32([tiny]), mode=DEFAULT_MODE & ~3 | rounding)
    assert got[0] == want
    down = evaluate("v_sub_f32", f32([1]), f32([tiny]), mode=DEFAULT_MODE & ~3 | rounding)
    assert down[0] == (0x3F7FFFFF if rounding in (2, 3) else 0x3F800000)


def test_modes_of_wide_floats_are_their_own() -> None:
    mode = DEFAULT_MODE & ~0xF | 1 << 2  # 32-bit floats to nearest, 64-bit ones up
    tiny = np.array([1e-30])
    one = np.array([1.0])
    got = evaluate("v_add_f64", one, tiny, form="vop3", result=np.float64, mode=mode)
    assert got[0] == np.nextafter(1.0, 2.0)
    assert evaluate("v_add_f32", f32([1]), f32([1e-30]), mode=mode, result=np.float32)[0] == 1


def test_flushed_singles_leave_doubles_alone() -> None:
    tiny = np.array([5e-324])
    got = evaluate("v_add_f64", tiny, tiny, form="vop3", result=np.float64, mode=FLUSH_32)
    assert got[0] == 1e-323


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("v_cvt_i32_f32", 3e9, 0x7FFFFFFF),
        ("v_cvt_i32_f32", -3e9, 0x80000000),
        ("v_cvt_i32_f32", float("nan"), 0),
        ("v_cvt_i32_f32", -1.9, 0xFFFFFFFF),
        ("v_cvt_u32_f32", -5, 0),
        ("v_cvt_u32_f32", 5e9, 0xFFFFFFFF),
        ("v_cvt_nearest_i32_f32", -2.5, 0xFFFFFFFE),
        ("v_cvt_nearest_i32_f32", 2.5, 3),
        ("v_cvt_floor_i32_f32", -2.5, 0xFFFFFFFD),
        ("v_rndne_f32", 2.5, 0x40000000),
        ("v_fract_f32", -1e-10, 0x3F7FFFFF),
        ("v_frexp_exp_i32_f32", 1e-45, 0xFFFFFF6C),  # 2**-149 = 0.5 * 2**-148
        ("v_frexp_mant_f32", 1e-45, 0x3F000000),
        ("v_frexp_exp_i32_f32", float("inf"), 0),
        ("v_rcp_f32", 0.0, INF),
        ("v_rcp_f32", -0.0, 0xFF800000),
        ("v_rsq_f32", 4.0, 0x3F000000),
        ("v_log_f32", 8.0, 0x40400000),
        ("v_exp_f32", -1.0, 0x3F000000),
        ("v_cos_f32", 0.5, 0xBF800000),  # operands count revolutions
    ],
)
def test_one_source(name: str, value: float, want: int) -> None:
    assert hex(evaluate(name, f32([value]))[0]) == hex(want)


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        *[("v_clz_i32_u32", 0, -1), ("v_clz_i32_u32", 1, 31), ("v_ctz_i32_b32", 0, -1)],
        *[("v_cls_i32", 0, -1), ("v_cls_i32", -1, -1), ("v_cls_i32", 0x40000000, 1)],
        *[("v_cls_i32", -2, 31), ("v_bfrev_b32", 1, -(2**31)), ("v_not_b32", 0, -1)],
    ],
)
def test_bit_counts(name: str, value: int, want: int) -> None:
    assert evaluate(name, np.array([value], np.int32), result=np.int32)[0] == want


@pytest.mark.parametrize(
    ("name", "x_sign", "y_sign"),
    [("v_add_co_ci_u32", 1, 1), ("v_sub_co_ci_u32", 1, -1), ("v_subrev_co_ci_u32", -1, 1)],
)
def test_carries(name: str, x_sign: int, y_sign: int) -> None:
    x, y = [0xFFFFFFFE, 5, 0xFFFFFFFF, 0x80000000], [1, 5, 0, 0x7FFFFFFF]
    carry_in = 0b0111  # of lanes 0 to 2; a borrow where something is subtracted
    step = 1 if x_sign == y_sign else -1
    exact = [x_sign * x[n] + y_sign * y[n] + step * (carry_in >> n & 1) for n in range(4)]
    options: dict[str, Any] = {"vcc": carry_in, "form": "vop2"}
    got = evaluate(name, words(x), words(y), **options)
    assert list(got[:4]) == [value & 0xFFFFFFFF for value in exact]
    mask = evaluate(name, words(x), words(y), observe=106, **options)[0]
    assert mask & 15 == sum(1 << n for n in range(4) if not 0 <= exact[n] < 1 << 32)


def test_comparisons_of_nan() -> None:
    x, y = f32([1, np.nan, 2, -0.0]), f32([1, 1, np.nan, 0.0])
    masks = {"lt": 0b0000, "eq": 0b1001, "le": 0b1001, "lg": 0b0000, "o": 0b1001, "u": 0b0110}
    masks |= {"nge": 0b0110, "neq": 0b0110, "nlt": 0b1111, "ngt": 0b1111, "nlg": 0b1111}
    for name, want in masks.items():
        got = evaluate(f"v_cmp_{name}_f32", x, y)[0]
        assert got & 15 == want, name


def test_classes() -> None:
    values = words([SNAN, QNAN, 0xFF800000, 0xBF800000, 0x80000001, MINUS_ZERO, 0, 1, ONE, INF])
    for number in range(10):
        got = evaluate("v_cmp_class_f32", values, words([1 << number]))[0]
        assert got & 0x3FF == 1 << number


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"neg": 1}, -1.5),
        ({"abs": 2}, 6.5),
        ({"neg": 2, "abs": 2}, -1.5),
        ({"clamp": 1}, 0.0),
        ({"omod": 1}, -1.5),  # ignored, as MODE.IEEE is set
    ],
)
def test_modifiers(fields: dict[str, int], want: float) -> None:
    x, y = (2.5, -4.0) if fields != {"neg": 1} else (-2.5, -4.0)
    got = evaluate("v_add_f32", f32([x]), f32([y]), form="vop3", result=np.float32, **fields)
    assert got[0] == want


def test_halves_of_registers() -> None:
    pair = np.array([1.0, 10.0], np.float16).view(np.uint32)
    other = np.array([2.0, 20.0], np.float16).view(np.uint32)
    start = words([0xAAAABBBB])
    low = evaluate("v_add_f16", pair, other, form="vop3", opsel=0b0001, start=start)[0]
    assert low == 0xAAAA0000 | int(np.float16(12).view(np.uint16))
    high = evaluate("v_add_f16", pair, other, form="vop3", opsel=0b1010, start=start)[0]
    assert high == int(np.float16(21).view(np.uint16)) << 16 | 0xBBBB


def test_half_fma_is_rounded_once() -> None:
    """Products halfway between two halves, and an addend that decides and that singles lose."""
    rng = np.random.default_rng(5)
    x, y = (rng.integers(1024, 2048, 100_000).astype(np.int64) for _ in range(2))
    product = x * y  # in units of 2**-20, from 1 up
    halfway = (product < 1 << 21) & (product % 1024 == 512)
    x, y, below = (v[halfway][:32] for v in (x, y, product // 1024))
    assert len(x) == 32
    sources = ((x / 1024).astype(np.float16), (y / 1024).astype(np.float16))
    for addend, step in ((2.0**-24, 1), (-(2.0**-24), 0)):
        z = np.full(32, addend, np.float16)
        got = evaluate("v_fma_f16", *sources, z, form="vop3", result=np.float16)
        np.testing.assert_array_equal(got, ((below + step) / 1024).astype(np.float16))


def test_float_constants_take_the_width_of_integers() -> None:
    got = evaluate("v_lshrrev_b64", words([4]), form="vop3", src1=242, result=np.uint64)
    assert got[0] == 0x3FF0000000000000 >> 4


def test_permute_bytes() -> None:
    selectors = words([0x07060100, 0x0C0D0803, 0x0B0A0908])
    got = evaluate("v_perm_b32", words([0x81223344]), words([0x55E67788]), selectors, form="vop3")
    assert [hex(v) for v in got[:3]] == ["0x81227788", "0xff0055", "0xff000000"]


def test_bit_fields() -> None:
    source, offset, width = words([0xF0F0F0F0]), words([4]), words([8, 0, 4])
    assert list(evaluate("v_bfe_u32", source, offset, width, form="vop3")[:3]) == [0x0F, 0, 0xF]
    signed = evaluate("v_bfe_i32", source, offset, width, form="vop3")
    assert list(signed[:3]) == [0x0F, 0, 0xFFFFFFFF]


def test_saturating_integers() -> None:
    got = evaluate("v_add_nc_u32", words([0xFFFFFFF0]), words([0x20]), form="vop3", clamp=1)
    assert got[0] == 0xFFFFFFFF
    got = evaluate("v_sub_nc_i32", words([0x80000000]), words([1]), form="vop3", clamp=1)
    assert got[0] == 0x80000000
