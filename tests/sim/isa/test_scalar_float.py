"""The scalar float unit of RDNA3.5 and later, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.isa.asm import op
from sim.isa.bare import run_asm

Array = npt.NDArray[Any]
CHIPS = ("gfx1151", "gfx1201")
COUNT = 40


def scalars(name: str, chip: str, *sources: Array, scc: bool = False, **fields: int) -> Array:
    """What an instruction makes of dwords, one after the other: s12 of s[8:10], or SCC."""
    out = np.zeros(len(sources[0]), np.uint32)
    arrays = [np.ascontiguousarray(source.astype(np.uint32)) for source in sources]

    def emit(name: str, **more: int) -> bytes:
        return op(name, chip=chip, **more)

    code = emit("v_mov_b32", vdst=1, src0=128)
    for number in range(len(arrays) + 1):
        code += emit("s_load_b64", sdata=16 + 2 * number, sbase=0, offset=8 * number)
    registers = [12 if number == 2 else 8 + number for number in range(len(arrays))]
    for place in range(len(out)):
        for number, register in enumerate(registers):
            fields_ = {"sbase": 8 + number, "offset": 4 * place}
            code += emit("s_load_b32", sdata=register, **fields_)
        used = {f"ssrc{n}": 8 + n for n in range(min(len(arrays), 2))}
        code += emit(name, **used, **({} if scc else {"sdst": 12}), **fields)
        if scc:
            code += emit("s_cselect_b32", sdst=12, ssrc0=129, ssrc1=128)
        code += emit("v_mov_b32", vdst=2, src0=12)
        target = {"saddr": 16 + 2 * len(arrays), "offset": 4 * place}
        code += emit("global_store_b32", addr=1, data=2, **target)
    run_asm(code + emit("s_endpgm"), (1, 1, 1), (1, 1, 1), [*arrays, out], chip=chip)
    return out


def drawn(kind: Any, seed: int) -> Array:
    """Special values and any bits, of a float type."""
    rng, info = np.random.default_rng(seed), np.finfo(kind)
    some = [0.0, -0.0, 1.0, -1.5, info.max, info.tiny, info.smallest_subnormal, np.inf, -np.inf]
    some = np.array([*some, np.nan], kind)
    word = f"u{info.bits // 8}"
    free = rng.integers(0, 1 << info.bits, COUNT // 2, np.uint64).astype(word).view(kind)
    near = rng.normal(size=COUNT // 4).astype(kind)
    return rng.permutation(np.concatenate([free, near, some])).astype(kind)


def words(values: Array) -> Array:
    """Their bits as dwords; with halves something in the upper ones, which nobody must read."""
    bits = values.view(f"u{values.itemsize}").astype(np.uint32)
    return bits | (0xABCD0000 if values.itemsize == 2 else 0)


def same(got: Array, want: Array) -> None:
    """Equal bits, or NaN both; the upper half of what has 16 bits is zero."""
    bits = got.astype(f"u{want.itemsize}")
    np.testing.assert_array_equal(got, bits)
    np.testing.assert_array_equal(np.isnan(bits.view(want.dtype)), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(bits[numbers], want.view(bits.dtype)[numbers])


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
UNARY = {"ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "rndne": np.rint}
COMPARES = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda x, y: (x < y) | (x > y),
    "ge": np.greater_equal,
    "o": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "u": lambda x, y: np.isnan(x) | np.isnan(y),
    "nge": lambda x, y: ~(x >= y),
    "nlg": lambda x, y: ~((x < y) | (x > y)),
    "ngt": lambda x, y: ~(x > y),
    "nle": lambda x, y: ~(x <= y),
    "neq": lambda x, y: ~(x == y),
    "nlt": lambda x, y: ~(x < y),
}
KINDS = {"f32": np.float32, "f16": np.float16}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic(kind: str, chip: str) -> None:
    x, y = drawn(KINDS[kind], 1), drawn(KINDS[kind], 2)
    with np.errstate(all="ignore"):
        for name, function in BINARY.items():
            same(scalars(f"s_{name}_{kind}", chip, words(x), words(y)), function(x, y))
        for name, function in UNARY.items():
            same(scalars(f"s_{name}_{kind}", chip, words(x)), function(x))
    for name, choose in (("min", np.minimum), ("max", np.maximum)):
        got = scalars(f"s_{name}_{kind}", chip, words(x), words(y)).astype(words(x).dtype)
        numbers = ~(np.isnan(x) | np.isnan(y)) & ~((x == 0) & (y == 0))
        want = words(choose(x, y)) & (0xFFFF if kind == "f16" else 0xFFFFFFFF)
        np.testing.assert_array_equal(got[numbers], want[numbers])


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_comparisons(kind: str, chip: str) -> None:
    x, y = drawn(KINDS[kind], 3), drawn(KINDS[kind], 4)
    y[::3] = x[::3]
    for name, function in COMPARES.items():
        got = scalars(f"s_cmp_{name}_{kind}", chip, words(x), words(y), scc=True)
        np.testing.assert_array_equal(got, function(x, y), err_msg=name)


@pytest.mark.parametrize("chip", CHIPS)
def test_multiply_adds(chip: str) -> None:
    rng = np.random.default_rng(5)
    x, y, z = (rng.integers(-999, 999, COUNT).astype(np.float32) for _ in "xyz")
    same(scalars("s_fmac_f32", chip, words(x), words(y), words(z)), x * y + z)
    constant = int(np.float32(2.5).view(np.uint32))
    two = np.float32(2.5)
    same(scalars("s_fmaak_f32", chip, words(x), words(y), literal=constant), x * y + two)
    same(scalars("s_fmamk_f32", chip, words(x), words(y), literal=constant), x * two + y)
    x, y, z = ((v % 32).astype(np.float16) for v in (x, y, z))
    same(scalars("s_fmac_f16", chip, words(x), words(y), words(z)), x * y + z)


@pytest.mark.parametrize("chip", CHIPS)
def test_conversions(chip: str) -> None:
    single, half = drawn(np.float32, 6), drawn(np.float16, 7)
    whole = np.random.default_rng(8).integers(0, 1 << 32, COUNT, np.uint64).astype(np.uint32)
    with np.errstate(all="ignore"):
        same(scalars("s_cvt_f16_f32", chip, words(single)), single.astype(np.float16))
        same(scalars("s_cvt_f32_f16", chip, words(half)), half.astype(np.float32))
        high = half.view(np.uint16).astype(np.uint32) << 16 | 0x1234
        same(scalars("s_cvt_hi_f32_f16", chip, high), half.astype(np.float32))
        same(scalars("s_cvt_f32_u32", chip, whole), whole.astype(np.float32))
        same(scalars("s_cvt_f32_i32", chip, whole), whole.view(np.int32).astype(np.float32))
        exact = np.nan_to_num(single.astype(np.float64), posinf=1e30, neginf=-1e30)
        signed = np.clip(np.trunc(exact), -(2**31), 2**31 - 1).astype(np.int64)
        unsigned = np.clip(np.trunc(exact), 0, 2**32 - 1).astype(np.int64)
    got = scalars("s_cvt_i32_f32", chip, words(single))
    np.testing.assert_array_equal(got, (signed & 0xFFFFFFFF).astype(np.uint32))
    got = scalars("s_cvt_u32_f32", chip, words(single))
    np.testing.assert_array_equal(got, unsigned.astype(np.uint32))
    pair = scalars("s_cvt_pk_rtz_f16_f32", chip, words(np.float32([1 + 2**-11, -(2 - 2**-12)])),
                   words(np.float32([2.0, 0.5])))  # fmt: skip
    assert [hex(v) for v in pair] == ["0x40003c00", "0x3800bfff"]


def test_chips_without_it_know_none_of_it() -> None:
    with pytest.raises(IndexError):
        op("s_add_f32", chip="gfx1100")
