"""Instructions of the vector ALU and of LDS against oracles of their own, on random operands.

The oracles follow the text of AMD's "RDNA3 Instruction Set Architecture", section 16, in Python's
integers, fractions and numpy; for V_DIV_SCALE they follow AMD's open emulator (rocjitsu).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE
from sim.isa.amdgpu import Launcher, compile_ir
from sim.isa.asm import END, EXEC, VCC, V, evaluate, op, words
from sim.isa.bare import run_asm
from sim.isa.kernels import elementwise

Array = npt.NDArray[Any]
LANES = 32
BATCHES = 24
NO_IEEE = DEFAULT_MODE & ~(1 << 9)


def special(dtype: Any) -> Array:
    """Zeros, denormals, limits, infinities and NaN, with both signs."""
    info = np.finfo(dtype)
    some = [0.0, info.smallest_subnormal, info.tiny / 2, info.tiny, 1.0, 1.5, info.max, np.inf]
    values = np.array([*some, np.nan], dtype)
    return np.concatenate([values, -values])


def bits_of(values: Array) -> Array:
    return values.view(f"u{values.dtype.itemsize}")


# Division


def exponents(dtype: Any, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """Denominators and numerators: any bits, special ones, and exponents at each limit."""
    fraction, most = (23, 255) if dtype is np.float32 else (52, 2047)
    far = 96 if dtype is np.float32 else 768
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    limits = (0, 1, fraction, fraction + 1, fraction + 2, far, most // 2, most - 3, most - 2)
    for _ in range(BATCHES):
        yield tuple(rng.integers(0, np.iinfo(word).max, LANES, word).view(dtype) for _ in "xy")
        yield tuple(rng.choice(special(dtype), LANES) for _ in "xy")
        d = rng.choice([*limits, *(rng.integers(0, most) for _ in range(8))], LANES)
        n = np.where(
            rng.random(LANES) < 0.5,
            rng.choice(limits, LANES),
            np.clip(
                d + rng.choice([-far - 1, -far, 1 - far, far - 1, far, far + 1], LANES), 0, most
            ),
        )
        pair = []
        for exponent in (d, n):
            low = rng.integers(0, 1 << fraction, LANES, np.int64).astype(word)
            sign = rng.integers(0, 2, LANES).astype(word) << word.type(8 * word.itemsize - 1)
            pair.append((sign | exponent.astype(word) << word.type(fraction) | low).view(dtype))
        yield pair[0], pair[1]


def scaled(x: Any, d: Any, n: Any) -> tuple[Any, bool]:
    """What V_DIV_SCALE makes of one of a denominator and a numerator, and its mask's bit."""
    dtype = type(x)
    single = dtype is np.float32
    bias, fraction = (127, 23) if single else (1023, 52)
    by, far = (64, 96) if single else (128, 768)
    de, ne = (int(bits_of(np.array(v))) >> fraction & 2 * bias + 1 for v in (d, n))
    is_denominator = bits_of(np.array(x)) == bits_of(np.array(d))
    shift = 0
    if ne - de >= far:
        shift = by if is_denominator else 0
    elif de == 0:
        shift = by
    elif de >= 2 * bias - 1:
        shift = 0 if ne - de <= -far and not is_denominator else -by
    elif ne - de <= -far:
        shift = 0 if is_denominator else by
    elif ne <= fraction + 1:
        shift = by
    marked = abs(ne - de) >= far
    if d == 0 or n == 0:
        return dtype(-np.nan), marked
    return np.ldexp(x, shift).astype(dtype) if shift else x, marked


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_div_scale(dtype: Any) -> None:
    name = f"v_div_scale_f{8 * np.dtype(dtype).itemsize}"
    rng, seen = np.random.default_rng(0), set()
    for d, n in exponents(dtype, rng):
        role = rng.integers(0, 2, LANES).astype(bool)
        x = np.where(role, n, d)
        how: dict[str, Any] = {"form": "vop3sd", "sdst": VCC}
        got = evaluate(name, x, d, n, result=dtype, **how)
        mask = evaluate(name, x, d, n, observe=VCC, **how)[0]
        with np.errstate(all="ignore"):
            want = [scaled(*each) for each in zip(x, d, n, strict=True)]
        for lane, (value, marked) in enumerate(want):
            assert bool(mask >> lane & 1) == marked, (d[lane], n[lane])
            if np.isnan(value):
                assert np.isnan(got[lane])
                if d[lane] == 0 or n[lane] == 0:
                    assert np.signbit(got[lane])
            else:
                assert bits_of(got[lane : lane + 1]) == bits_of(np.array(value)), (x, d, n, lane)
            seen.add((marked, bool(np.isnan(value)), bool(value == x[lane])))
    assert len(seen) > 4


# Output modifiers


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("ieee", [False, True])
@pytest.mark.parametrize("omod", [1, 2, 3])
def test_output_modifiers(omod: int, ieee: bool, flush: bool) -> None:
    """They are ignored with IEEE or denormal results; otherwise results are flushed, also -0."""
    mode = (DEFAULT_MODE if ieee else NO_IEEE) & ~(0x30 if flush else 0)
    rng = np.random.default_rng(omod)
    x = np.concatenate([special(np.float32), rng.normal(size=14).astype(np.float32)])
    y = np.float32([1.0])
    form: dict[str, Any] = {"form": "vop3", "result": np.float32, "mode": mode}
    plain = evaluate("v_mul_f32", x, y, **form)
    got = evaluate("v_mul_f32", x, y, omod=omod, **form)
    if flush and not ieee:
        with np.errstate(all="ignore"):
            plain = plain * np.float32({1: 2, 2: 4, 3: 0.5}[omod])
        plain[np.abs(plain) < np.finfo(np.float32).tiny] = 0
    np.testing.assert_array_equal(got, plain)
    zeros = got == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(plain[zeros]))


def test_output_modifiers_of_doubles_and_halves_are_ignored() -> None:
    """Their denormals are always on here."""
    x = np.array([1.5, -0.0, 5e-324])
    got = evaluate("v_add_f64", x, -x * 0, form="vop3", result=np.float64, mode=NO_IEEE, omod=1)
    np.testing.assert_array_equal(got[:3], x)
    half = x[:2].astype(np.float16)
    got = evaluate(
        "v_add_f16", half, half * 0, form="vop3", result=np.float16, mode=NO_IEEE, omod=2
    )
    np.testing.assert_array_equal(got[:2], half)


# Sines of large numbers


def two_over_pi() -> int:
    """The first 1201 bits of 2 / pi behind the point, by Gauss and Legendre's iteration."""
    with decimal.localcontext(prec=420):
        a, b = decimal.Decimal(1), 1 / decimal.Decimal(2).sqrt()
        t, p = decimal.Decimal(1) / 4, decimal.Decimal(1)
        for _ in range(10):
            a, b, t, p = (a + b) / 2, (a * b).sqrt(), t - p * ((a - b) / 2) ** 2, 2 * p
        return int((2 * 4 * t / (a + b) ** 2) * 2**1201)


def trig_preop(x: float, segment: int, bits: int) -> float:
    exponent = int(bits_of(np.array(x))) >> 52 & 2047
    shift = 53 * (segment & 31) + max(exponent - 1077, 0)
    result = (bits << shift) % (1 << 1201 + shift) & (1 << 1201) - 1
    result >>= 1201 - 53
    return math.ldexp(result, -53 - shift + (128 if exponent >= 1968 else 0))


def test_trig_preop() -> None:
    bits, rng = two_over_pi(), np.random.default_rng(1)
    launcher = Launcher(
        compile_ir(
            elementwise(
                ["double", "i32"],
                "double",
                "  %r = call double @llvm.amdgcn.trig.preop.f64(double %x0, i32 %x1)",
            )
            + "declare double @llvm.amdgcn.trig.preop.f64(double, i32)\n"
        )
    )
    x = rng.integers(0, 1 << 64, 64 * 20, np.uint64).view(np.float64)
    x[:18] = special(np.float64)
    edges = np.repeat([1076, 1077, 1078, 1967, 1968, 1969, 2045, 2046], 40)
    x[40 : 40 + len(edges)] = np.ldexp(1.0, edges - 1023)
    segment = rng.integers(0, 64, len(x), np.int32) % rng.choice([3, 64], len(x)).astype(np.int32)
    got = np.zeros(len(x))
    launcher.run("k", (20, 1, 1), (64, 1, 1), x, segment, got)
    want = [trig_preop(v, int(s), bits) for v, s in zip(x, segment, strict=True)]
    np.testing.assert_array_equal(got, want)
    # The segments of a small number make 2 / pi.
    parts = [Fraction(trig_preop(1.0, n, bits)) for n in range(5)]
    assert abs(sum(parts) - Fraction(bits, 1 << 1201)) < Fraction(1, 1 << 5 * 53)


# Integers that saturate


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("name", ["add", "sub", "subrev"])
def test_carries_with_clamp(name: str, carries: bool) -> None:
    rng = np.random.default_rng(2)
    edges = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
    x, y = (rng.choice([*edges, *rng.integers(0, 1 << 32, 6)], LANES) for _ in "xy")
    carry = int(rng.integers(0, 1 << 32)) if carries else 0
    options: dict[str, Any] = {"form": "vop3sd", "sdst": VCC, "vcc": carry, "clamp": 1}
    if carries:
        options["src2"] = VCC
    instruction = f"v_{name}_co_{'ci_' if carries else ''}u32"
    sources = words(x.tolist()), words(y.tolist())
    got = evaluate(instruction, *sources, **options)
    mask = int(evaluate(instruction, *sources, observe=VCC, **options)[0])
    for lane in range(LANES):
        first, second, one = int(x[lane]), int(y[lane]), carry >> lane & 1
        if name == "subrev":
            first, second = second, first
        exact = first + second + one if name == "add" else first - second - one
        assert got[lane] == min(max(exact, 0), 0xFFFFFFFF)
        assert bool(mask >> lane & 1) == (not 0 <= exact <= 0xFFFFFFFF)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_short_multiply_adds_with_clamp(dtype: Any) -> None:
    name = f"v_mad_{'u' if dtype is np.uint16 else 'i'}16"
    rng, info = np.random.default_rng(3), np.iinfo(dtype)
    edges = [info.min, info.max, 1, 0, 255, 256]
    for _ in range(4):
        x, y, z = (rng.choice(edges, LANES).astype(dtype) for _ in "xyz")
        x[::2] = rng.integers(info.min, info.max, LANES // 2, dtype, endpoint=True)
        exact = x.astype(np.int64) * y.astype(np.int64) + z
        got = evaluate(name, x, y, z, form="vop3", result=dtype, clamp=1)
        np.testing.assert_array_equal(got, np.clip(exact, info.min, info.max).astype(dtype))
        got = evaluate(name, x, y, z, form="vop3", result=dtype)
        np.testing.assert_array_equal(got, exact.astype(dtype))


# Products


def test_lit_products() -> None:
    rng, lowest = np.random.default_rng(4), -np.finfo(np.float32).max
    for _ in range(BATCHES):
        x, y, z = (rng.choice([*special(np.float32), *rng.normal(size=9)], LANES) for _ in "xyz")
        x, y, z = (v.astype(np.float32) for v in (x, y, z))
        with np.errstate(all="ignore"):
            lit = np.where((x == 0) | (y == 0), np.float32(0), x * y)
            unlit = (y <= lowest) | np.isnan(y) | (z <= 0) | np.isnan(z)
        want = np.where(unlit, lowest, lit)
        got = evaluate("v_mullit_f32", x, y, z, form="vop3", result=np.float32)
        np.testing.assert_array_equal(got, want)


DOTS = {
    "f16": ("half", "<2 x half>", "fdot2.f16.f16", ""),
    "f32": ("float", "<2 x bfloat>", "fdot2.f32.bf16", ", i1 false"),
}


@pytest.mark.parametrize("kind", DOTS)
def test_products_of_pairs(kind: str) -> None:
    result, pair, intrinsic, tail = DOTS[kind]
    types = f"{pair}, {pair}, {result}" + (", i1" if tail else "")
    body = "\n".join(
        [
            f"  %a = bitcast i32 %x0 to {pair}",
            f"  %b = bitcast i32 %x1 to {pair}",
            f"  %r = call {result} @llvm.amdgcn.{intrinsic}({pair} %a, {pair} %b,"
            f" {result} %x2{tail})",
        ]
    )
    declared = f"declare {result} @llvm.amdgcn.{intrinsic}({types})\n"
    launcher = Launcher(compile_ir(elementwise(["i32", "i32", result], result, body) + declared))
    rng = np.random.default_rng(5)
    x, y = (rng.normal(size=(640, 2)) for _ in "xy")
    if kind == "f16":
        z = rng.normal(size=640).astype(np.float16)
        packed = [v.astype(np.float16).view(np.uint32).reshape(640) for v in (x, y)]
        exact = [v.astype(np.float16).astype(np.float64) for v in (x, y)]
    else:
        z = rng.normal(size=640).astype(np.float32)
        high = [v.astype(np.float32).view(np.uint32) >> 16 for v in (x, y)]
        packed = [v.astype(np.uint16).view(np.uint32).reshape(640) for v in high]
        exact = [(v << 16).view(np.float32).astype(np.float64) for v in high]
    want = (exact[0] * exact[1]).sum(1) + z
    got = np.zeros(640, z.dtype)
    launcher.run("k", (10, 1, 1), (64, 1, 1), *packed, z, got)
    if kind == "f16":
        np.testing.assert_array_equal(got, want.astype(np.float16))
    else:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize(
    ("name", "form", "half"),
    [
        ("v_dot2_f16_f16", "vop3", 0x3C00),
        ("v_dot2_bf16_bf16", "vop3", 0x3F80),
        ("v_dot2_f32_bf16", "vop3p", 0x3F80),
    ],
)
def test_constants_and_halves_of_pairs(name: str, form: str, half: int) -> None:
    """1.0 as a source is one half of a pair; OP_SEL chooses halves of packed ones."""
    pair = words([half | half + 0x80 << 16])  # 1, and some more
    zero = words([0])
    chosen = {"opsel_hi": 3, "opsel_hi2": 1} if form == "vop3p" else {}
    got = evaluate(name, pair, zero, zero, form=form, src1=242, **chosen)[0]
    assert got == (half << 16 if form == "vop3p" else half)
    if form == "vop3p":  # the high half is taken for both products
        got = evaluate(name, pair, zero, zero, form=form, src1=242, opsel=1, **chosen)[0]
        assert got == half + 0x80 << 16
    else:
        got = evaluate(name, pair, zero, zero, form=form, src1=242, opsel=8, start=words([5]))[0]
        assert got == half << 16 | 5


def test_products_of_pairs_into_bfloat16() -> None:
    rng = np.random.default_rng(8)
    high = [rng.normal(size=(LANES, 2)).astype(np.float32).view(np.uint32) >> 16 for _ in "xy"]
    start = rng.normal(size=LANES).astype(np.float32).view(np.uint32) >> 16
    packed = [v.astype(np.uint16).view(np.uint32).reshape(LANES) for v in high]
    x, y, z = ((v << 16).view(np.float32).astype(np.float64) for v in (*high, start))
    got = evaluate("v_dot2_bf16_bf16", *packed, start.astype(np.uint16), form="vop3")
    found = (got.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(found, (x * y).sum(1) + z, rtol=2**-8, atol=1e-6)


# Between lanes, and LDS


def test_permlane64_does_nothing_in_waves_of_32() -> None:
    start = np.arange(100, 132, dtype=np.uint32)
    got = evaluate("v_permlane64_b32", np.arange(32, dtype=np.uint32), start=start)
    np.testing.assert_array_equal(got, start)


def test_permlane64_swaps_halves_of_waves_of_64() -> None:
    """Also what inactive lanes hold is read; they keep what they have."""
    code = op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)  # 4 * lane
    code += op("s_load_b64", sdata=4, sbase=0) + op("v_add_nc_u32", vdst=2, src0=V, vsrc1=1)
    code += op("v_mov_b32", vdst=3, src0=V + 1)
    code += op("s_mov_b32", sdst=EXEC, ssrc0=193)  # lanes 0 to 31, and with the next two more
    code += op("s_mov_b32", sdst=EXEC + 1, ssrc0=131)
    code += op("v_permlane64_b32", vdst=3, src0=V + 2)
    code += op("s_mov_b64", sdst=EXEC, ssrc0=193)
    code += op("global_store_b32", addr=1, data=3, saddr=4) + END
    out, lanes = np.zeros(64, np.uint32), np.arange(64)
    run_asm(code, (1, 1, 1), (64, 1, 1), [out], dispatch=lambda usual: replace(usual, lanes=64))
    want = np.where(lanes < 34, 5 * (lanes ^ 32), 4 * lanes)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("stride", [False, True])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("same", [False, True])
def test_two_places_are_swapped(bits: int, stride: bool, same: bool) -> None:
    """Both are read before either is written, also where they are one."""
    rng = np.random.default_rng(6)
    dtype, wide = np.dtype(f"u{bits // 8}"), bits // 32
    step = bits // 8 * (64 if stride else 1)
    offsets = (1, 1) if same else (0, 1)
    spacing = wide + (1 if stride else 2)  # the places of lanes do not meet: a power of two
    before = rng.integers(0, np.iinfo(dtype).max, (2, LANES), dtype)
    first, second = (rng.integers(0, np.iinfo(dtype).max, LANES, dtype) for _ in "ab")
    out = np.zeros((4, LANES), np.uint64)
    arrays = [v.astype(np.uint64) for v in (before[0], before[1], first, second)]
    name = f"ds_storexchg_2addr{'_stride64' if stride else ''}_rtn_b{bits}"
    b = f"b{bits}"
    at = {"addr": 2}
    code = op("v_lshlrev_b32", vdst=1, src0=131, vsrc1=0)  # 8 * lane
    code += op("v_lshlrev_b32", vdst=2, src0=128 + spacing, vsrc1=0)
    for number in range(5):
        code += op("s_load_b64", sdata=4 + 2 * number, sbase=0, offset=8 * number)
    for number in range(4):
        code += op("global_load_b64", vdst=10 + 2 * number, addr=1, saddr=4 + 2 * number)
    for number, offset in enumerate(offsets):
        place = offset * step
        fields = {"offset0": place & 255, "offset1": place >> 8}
        code += op(f"ds_store_{b}", **at, data0=10 + 2 * number, **fields)
    code += op(name, **at, vdst=20, data0=14, data1=16, offset0=offsets[0], offset1=offsets[1])
    for number, offset in enumerate(offsets):
        fields = {"offset0": offset * step & 255, "offset1": offset * step >> 8}
        code += op(f"ds_load_{b}", **at, vdst=24 + 2 * number, **fields)
    stored = "global_store_b64" if wide == 2 else "global_store_b32"
    for number, register in enumerate((20, 20 + wide, 24, 26)):
        code += op(stored, addr=1, data=register, saddr=12, offset=256 * number)
    run_asm(code + END, (1, 1, 1), (32, 1, 1), [*arrays, out], lds=4096)
    got = out.astype(dtype)
    old = (before[1], before[1]) if same else (before[0], before[1])
    new = (second, second) if same else (first, second)
    np.testing.assert_array_equal(got[:2], old)
    np.testing.assert_array_equal(got[2:], new)
