"""What CDNA4 has beside CDNA3, and the 8-bit floats in which the two differ, against numpy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gpu.sim.isa.faults import IllegalInstruction
from sim.isa.asm import EXEC, V, op
from sim.isa.cdna import LANES, OUT, Array, brain, compute, drawn, operand, sums

CHIP = "gfx950"
emit = partial(op, chip=CHIP)
run = partial(compute, chip=CHIP)
SOURCES = {"src0": V + 8, "src1": V + 16, "src2": V + 24}

KINDS = {
    "f16": (np.float16, (32, 16)),
    "bf16": (np.uint16, (32, 16)),
    "i8": (np.int8, (64, 32)),
}


@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_products_have_twice_the_depth(kind: str, side: int) -> None:
    held, depths = KINDS[kind]
    depth, count = depths[side == 32], side * side // LANES
    rng = np.random.default_rng(11)
    a, b = rng.integers(-8, 9, (side, depth)), rng.integers(-8, 9, (depth, side))
    coded = [brain(m) if kind == "bf16" else m for m in (a, b.T)]
    name = f"v_mfma_{'i32' if kind == 'i8' else 'f32'}_{side}x{side}x{depth}_{kind}"
    body = emit(name, vdst=OUT, **{**SOURCES, "src2": 128})
    got = run(body, *(operand(m, held) for m in coded), results=count)
    found = sums(got.view(np.int32 if kind == "i8" else np.float32), side)
    np.testing.assert_array_equal(found, a @ b)


def values_of(exponent: int, mantissa: int, bias: int, special: str = "") -> Array:
    """What each pattern of a small float means; `special` says which are no finite numbers."""
    bits = 1 + exponent + mantissa
    patterns = np.arange(1 << bits)
    e, m = patterns >> mantissa & (1 << exponent) - 1, patterns & (1 << mantissa) - 1
    small = m * 2.0 ** (1 - bias - mantissa)
    found = np.where(e, (1 + m / (1 << mantissa)) * 2.0 ** (e - bias), small)
    found = np.where(patterns >> bits - 1, -found, found)
    if special == "ieee":
        found[e == (1 << exponent) - 1] = np.nan
        found[(e == (1 << exponent) - 1) & (m == 0)] = np.inf
        found[-4] = -np.inf
    elif special == "fn":
        found[(patterns & 0x7F) == 0x7F] = np.nan
    elif special == "fnuz":
        found[0x80] = np.nan
    return found


EIGHT = {
    ("fp8", "gfx950"): values_of(4, 3, 7, "fn"),
    ("bf8", "gfx950"): values_of(5, 2, 15, "ieee"),
    ("fp8", "gfx942"): values_of(4, 3, 8, "fnuz"),
    ("bf8", "gfx942"): values_of(5, 2, 16, "fnuz"),
}
"""FP8 and BF8 of each chip."""
BEHIND = {"gfx950": "", "gfx942": "_fnuz"}


@pytest.mark.parametrize(("kind", "chip"), EIGHT)
def test_bytes_mean_other_numbers_on_each_chip(kind: str, chip: str) -> None:
    values = EIGHT[kind, chip]
    name = f"v_cvt_f32_{kind}{BEHIND[chip]}"
    for first in range(0, 256, LANES):
        x = np.arange(first, first + LANES, dtype=np.uint32)
        body = op(name, "vop1", chip=chip, vdst=OUT, src0=V + 8)
        got = compute(body, x, chip=chip)[0].view(np.float32)
        np.testing.assert_array_equal(got, values[x].astype(np.float32))


def nearest(x: Array, values: Array, largest: float, overflow: int, nan: int) -> Array:
    """Patterns of the values nearest to some numbers, the even one of two as near."""
    patterns = np.flatnonzero(np.isfinite(values) & ((values != 0) | (np.arange(256) == 0)))
    patterns = patterns[np.argsort(patterns & 1, kind="stable")]
    distance = np.abs(np.abs(x.astype(np.float64))[:, None] - values[patterns])
    found = patterns[np.argmin(distance, axis=1)] & 0x7F
    found = np.where(np.abs(x) >= largest, overflow & 0x7F, found)
    signed = found | np.signbit(x).astype(int) << 7
    if nan == 0x80:
        signed = np.where(found == 0, np.where(np.abs(x) >= largest, 0x80, 0), signed)
        return np.where(np.isnan(x), nan, signed)
    return np.where(np.isnan(x), nan | np.signbit(x).astype(int) << 7, signed)


@pytest.mark.parametrize(("kind", "chip"), EIGHT)
def test_numbers_are_rounded_to_bytes(kind: str, chip: str) -> None:
    """From the middle between the largest and what would follow it on, they are NaN or infinite."""
    values = EIGHT[kind, chip]
    top = np.nanmax(np.where(np.isfinite(values), values, np.nan))
    below = np.sort(values[np.isfinite(values)])[-2]
    largest = top + (top - below) / 2
    rng = np.random.default_rng(12)
    exponents = rng.integers(-24, 18, (2, LANES))
    x = (rng.normal(size=(2, LANES)) * 2.0**exponents).astype(np.float32)
    x[:, :8] = [0.0, -0.0, np.inf, -np.inf, np.nan, top, -top, 1e30]
    x[:, 8:16] = rng.choice(values[np.isfinite(values)], (2, 8)).astype(np.float32)
    x[0, 16:20] = (values[1:5] + values[2:6]) / 2  # as near to one as to the other
    name = f"v_cvt_pk_{kind}_f32{BEHIND[chip]}"
    body = op(name, chip=chip, vdst=OUT, src0=V + 8, src1=V + 16)
    got = compute(body, x[0], x[1], chip=chip)[0]
    nan = 0x80 if chip == "gfx942" else 0x7F
    overflow = {"gfx942": 0x80}.get(chip, 0x7F if kind == "fp8" else 0x7C)
    for place in range(2):
        want = nearest(x[place], values, largest, overflow, nan)
        np.testing.assert_array_equal(got >> 8 * place & 0xFF, want)


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("a", "b"), [("fp8", "bf8"), ("bf8", "bf8")])
def test_products_of_bytes_take_the_chips_own(chip: str, a: str, b: str) -> None:
    rng = np.random.default_rng(13)
    codes = [rng.choice(np.flatnonzero(np.abs(EIGHT[k, chip]) < 16), (16, 32)) for k in (a, b)]
    left, right = (EIGHT[k, chip][code] for k, code in zip((a, b), codes, strict=True))
    name = f"v_mfma_f32_16x16x32_{a}_{b}{BEHIND[chip]}"
    body = op(name, chip=chip, vdst=OUT, **{**SOURCES, "src2": 128})
    got = compute(body, *(operand(c, np.uint8) for c in codes), results=4, chip=chip)
    np.testing.assert_allclose(sums(got.view(np.float32), 16), left @ right.T, rtol=1e-5, atol=1e-5)


FORMATS = {
    0: EIGHT["fp8", "gfx950"],
    1: EIGHT["bf8", "gfx950"],
    2: values_of(2, 3, 1),
    3: values_of(3, 2, 3),
    4: values_of(2, 1, 1),
}
"""By CBSZ and BLGP: FP8, BF8, FP6, BF6, FP4 ("OCP Microscaling Formats", section 5.3)."""


def packed(codes: Array, bits: int) -> Array:
    """Registers of a (side, depth) matrix of numbers of so many bits, 32 of them in each lane."""
    side = len(codes)
    held = codes.reshape(side, LANES // side, 32).transpose(1, 0, 2).reshape(LANES, 32)
    single = held[:, :, None] >> np.arange(bits) & 1
    return np.ascontiguousarray(
        np.packbits(single.reshape(LANES, -1).astype(np.uint8), axis=1, bitorder="little")
        .view(np.uint32)
        .T
    )


@pytest.mark.parametrize(("side", "a", "b"), [(16, 1, 0), (16, 2, 3), (16, 4, 4), (32, 3, 3)])
def test_products_of_8_6_and_4_bits(side: int, a: int, b: int) -> None:
    bits, depth = {0: 8, 1: 8, 2: 6, 3: 6, 4: 4}[a], 2048 // side
    rng = np.random.default_rng(14)
    codes = [rng.choice(np.flatnonzero(np.abs(FORMATS[k]) < 8), (side, depth)) for k in (a, b)]
    left, right = (FORMATS[k][code] for k, code in zip((a, b), codes, strict=True))
    name = f"v_mfma_f32_{side}x{side}x{depth}_f8f6f4"
    body = emit(name, vdst=OUT, **{**SOURCES, "src2": 128, "cbsz": a, "blgp": b})
    got = run(body, *(packed(code, bits) for code in codes), results=side * side // LANES)
    found = sums(got.view(np.float32), side)
    np.testing.assert_allclose(found, left @ right.T, rtol=1e-5, atol=1e-4)


def test_operands_of_different_widths_are_refused() -> None:
    fields = {**SOURCES, "src2": 128, "cbsz": 0, "blgp": 4}
    body = emit("v_mfma_f32_16x16x128_f8f6f4", vdst=OUT, **fields)
    with pytest.raises(IllegalInstruction, match="f8f6f4_0_4 has no semantics here"):
        run(body, np.zeros(LANES, np.uint32))


def test_any_function_of_three_bits() -> None:
    rng = np.random.default_rng(15)
    given = drawn(rng, 3, LANES)
    for table in (0x80, 0x96, 0xCA, int(rng.integers(256))):
        split = {"neg": table & 7, "abs": table >> 3 & 7, "omod": table >> 6}
        index = sum((given[n][:, None] >> np.arange(32) & 1) << 2 - n for n in range(3))
        want = ((table >> index & 1) << np.arange(32)).sum(1).astype(np.uint32)
        got = run(emit("v_bitop3_b32", vdst=OUT, **SOURCES, **split), *given)[0]
        np.testing.assert_array_equal(got, want)
        start = emit("v_mov_b32", vdst=OUT, src0=255, literal=0x12340000)
        low = start + emit("v_bitop3_b16", vdst=OUT, **SOURCES, **split)
        np.testing.assert_array_equal(run(low, *given)[0], want & 0xFFFF | 0x12340000)
        upper = emit("v_bitop3_b16", vdst=OUT, **SOURCES, **split, opsel=15)
        np.testing.assert_array_equal(run(upper, *given)[0] >> 16, want >> 16)


@pytest.mark.parametrize("span", [16, 32])
def test_rows_of_two_registers_are_swapped(span: int) -> None:
    x, y = drawn(np.random.default_rng(16), 2, LANES)
    body = emit(f"v_permlane{span}_swap_b32", "vop1", vdst=8, src0=V + 16)
    for n, register in enumerate((8, 16)):
        body += emit("v_mov_b32", vdst=OUT + n, src0=V + register)
    lane = np.arange(LANES)
    odd = lane // span % 2 == 1
    want = [np.where(odd, y[lane ^ span], x), np.where(odd, y, x[lane ^ span])]
    np.testing.assert_array_equal(run(body, x, y, results=2), want)


@pytest.mark.parametrize("chosen", [0, 1, 2, 3])
def test_rows_are_swapped_among_active_lanes(chosen: int) -> None:
    """With bit 0, FI, inactive lanes are read; with bit 1, BOUND_CTRL, they count as 0."""
    rng = np.random.default_rng(20)
    x, y = drawn(rng, 2, LANES)
    low, high = (int(word) for word in drawn(rng, 2))
    body = emit("s_mov_b32", sdst=EXEC, ssrc0=255, literal=low)
    body += emit("s_mov_b32", sdst=EXEC + 1, ssrc0=255, literal=high)
    body += emit("v_permlane16_swap_b32", "vop3", vdst=8, src0=V + 16, opsel=chosen)
    body += emit("s_mov_b64", sdst=EXEC, ssrc0=193)
    for n, register in enumerate((8, 16)):
        body += emit("v_mov_b32", vdst=OUT + n, src0=V + register)
    lane = np.arange(LANES)
    active = (np.uint64(high << 32 | low) >> lane.astype(np.uint64) & np.uint64(1)).astype(bool)
    readable = active[lane ^ 16] | bool(chosen & 1)
    odd, want = lane // 16 % 2 == 1, []
    for own, other, here in ((x, y, odd), (y, x, ~odd)):
        moved = np.where(readable, other[lane ^ 16], 0 if chosen & 2 else own)
        want.append(np.where(active & here, moved, own))
    np.testing.assert_array_equal(run(body, x, y, results=2), want)


def test_conversions_of_pairs() -> None:
    x, y = np.random.default_rng(17).normal(size=(2, LANES)).astype(np.float32) * 1000
    pair: dict[str, Any] = {"vdst": OUT, "src0": V + 8, "src1": V + 16}
    got = run(emit("v_cvt_pk_f16_f32", **pair), x, y)[0]
    halves = [v.astype(np.float16).view(np.uint16).astype(np.uint32) for v in (x, y)]
    np.testing.assert_array_equal(got, halves[0] | halves[1] << 16)
    got = run(emit("v_cvt_pk_bf16_f32", **pair), x, y)[0]
    wide = [v.view(np.uint32).astype(np.uint64) for v in (x, y)]
    rounded = [(w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in wide]
    np.testing.assert_array_equal(got, rounded[0] | rounded[1] << 16)
    back = run(emit("v_cvt_f32_bf16", "vop1", vdst=OUT, src0=V + 8), x)[0]
    np.testing.assert_array_equal(back, x.view(np.uint32) << 16)


@pytest.mark.parametrize(("name", "low", "high"), [("i8", -128, 127), ("u8", 0, 255)])
def test_shifted_pairs_are_limited_to_bytes(name: str, low: int, high: int) -> None:
    x, y, count = drawn(np.random.default_rng(18), 3, LANES)
    count = count & 31
    got = run(emit(f"v_ashr_pk_{name}_i32", vdst=OUT, **SOURCES), x, y, count)[0]
    first, second = (np.clip(v.view(np.int32) >> count, low, high) & 0xFF for v in (x, y))
    np.testing.assert_array_equal(got & 0xFFFF, first | second << 8)


def test_the_least_of_three_is_nan_where_one_is() -> None:
    given = np.random.default_rng(19).normal(size=(3, LANES)).astype(np.float32)
    given[1, 5] = np.nan
    got = run(emit("v_minimum3_f32", vdst=OUT, **SOURCES), *given)[0].view(np.float32)
    np.testing.assert_array_equal(got, given.min(0))
