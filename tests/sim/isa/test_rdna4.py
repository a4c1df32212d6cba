"""What RDNA4 has and RDNA3 has not, against numpy and a second writing of the manual's tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.core.errors import DeviceHang
from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE
from sim.isa.asm import EXEC, V, evaluate, op, words
from sim.isa.bare import run_asm
from sim.isa.test_scalar_float import drawn, scalars

Array = npt.NDArray[Any]
CHIP = "gfx1201"
TTMP9 = 117
emit = partial(op, chip=CHIP)
run = partial(run_asm, chip=CHIP)
compute = partial(evaluate, chip=CHIP)
END = emit("s_endpgm")
LANES = 32


# Scalars


def test_whole_numbers_of_64_bits() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(0, 1 << 64, 20, np.uint64) for _ in "xy")
    out = np.zeros((3, 20), np.uint64)
    code = emit("s_load_b64", sdata=4, sbase=0) + emit("s_load_b64", sdata=6, sbase=0, offset=8)
    code += emit("s_load_b64", sdata=8, sbase=0, offset=16) + emit("v_mov_b32", vdst=1, src0=128)
    for place in range(20):
        at = {"offset": 8 * place}
        code += emit("s_load_b64", sdata=10, sbase=2, **at)
        code += emit("s_load_b64", sdata=12, sbase=3, **at)
        for row, name in enumerate(("s_add_nc_u64", "s_sub_nc_u64", "s_mul_u64")):
            code += emit(name, sdst=14, ssrc0=10, ssrc1=12)
            code += emit("v_mov_b32", vdst=2, src0=14) + emit("v_mov_b32", vdst=3, src0=15)
            code += emit("global_store_b64", addr=1, data=2, saddr=8, offset=8 * (20 * row + place))
    run(code + END, (1, 1, 1), (1, 1, 1), [x, y, out])
    np.testing.assert_array_equal(out, np.stack([x + y, x - y, x * y]))


@pytest.mark.parametrize("kind", ["u8", "i8", "u16", "i16"])
def test_small_scalar_loads(kind: str) -> None:
    """At the end of memory too, where a dword would reach beyond."""
    dtype = np.dtype({"u": "u", "i": "i"}[kind[0]] + str(int(kind[1:]) // 8))
    values = np.random.default_rng(2).integers(0, 1 << 16, 7, np.uint16).astype(dtype)
    out = np.zeros(7, np.uint32)
    code = emit("s_load_b64", sdata=4, sbase=0) + emit("s_load_b64", sdata=6, sbase=0, offset=8)
    code += emit("v_mov_b32", vdst=1, src0=128)
    for place in range(7):
        code += emit(f"s_load_{kind}", sdata=8, sbase=2, offset=dtype.itemsize * place)
        code += emit("v_mov_b32", vdst=2, src0=8)
        code += emit("global_store_b32", addr=1, data=2, saddr=6, offset=4 * place)
    run(code + END, (1, 1, 1), (1, 1, 1), [values, out])
    np.testing.assert_array_equal(out.view(np.int32), values.astype(np.int32))


# Floats


def least(x: float, y: float, sign: int) -> float:
    """minimum and maximum of IEEE 754-2019, by Python's comparison of tuples."""
    if math.isnan(x) or math.isnan(y):
        return math.nan
    choose = min if sign < 0 else max
    return choose((x, math.copysign(1, x)), (y, math.copysign(1, y)))[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_minimum_and_maximum(dtype: Any) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    x, y, z = (drawn(dtype, seed)[:LANES] for seed in (1, 2, 3))
    for name, chain in {
        "minimum": (-1,),
        "maximum": (1,),
        "minimum3": (-1, -1),
        "maximum3": (1, 1),
        "minimummaximum": (-1, 1),
        "maximumminimum": (1, -1),
    }.items():
        if bits == 64 and len(chain) > 1:
            continue
        sources = (x, y, z)[: 1 + len(chain)]
        got = compute(f"v_{name}_f{bits}", *sources, form="vop3", result=dtype)
        want = x.astype(np.float64)
        for sign, other in zip(chain, sources[1:], strict=True):
            pairs = zip(want, other.astype(np.float64), strict=True)
            want = np.array([least(a, b, sign) for a, b in pairs])
        np.testing.assert_array_equal(got, want.astype(dtype))
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


def test_min_num_takes_the_number_whatever_the_mode() -> None:
    """There is no MODE.IEEE: a signalling NaN is no result where the other is a number."""
    signalling, one = words([0x7F800001]), words([0x3F800000])
    for mode in (DEFAULT_MODE, DEFAULT_MODE & ~0x300):
        assert compute("v_min_f32", signalling, one, mode=mode)[0] == 0x3F800000
        quiet = compute("v_max_f32", signalling, signalling, mode=mode)[0]
        assert quiet == 0x7FC00001
        clamped = compute("v_mul_f32", signalling, one, form="vop3", clamp=1, mode=mode)[0]
        assert clamped == 0  # DX10_CLAMP, as if set


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_transcendental_scalars(kind: str) -> None:
    """They are done once, also where no lane is active."""
    dtype = np.float32 if kind == "f32" else np.float16
    x = np.abs(np.random.default_rng(3).normal(size=8)).astype(dtype) + dtype(0.1)
    functions: dict[str, Callable[[Array], Array]] = {
        "exp": np.exp2,
        "log": np.log2,
        "rcp": lambda v: 1 / v,
        "rsq": lambda v: 1 / np.sqrt(v),
        "sqrt": np.sqrt,
    }
    for name, function in functions.items():
        out = np.zeros(8, np.uint32)
        code = emit("s_load_b64", sdata=4, sbase=0) + emit("s_load_b64", sdata=6, sbase=0, offset=8)
        code += emit("v_mov_b32", vdst=1, src0=128)
        for place in range(8):
            code += emit("s_load_b32", sdata=8, sbase=2, offset=4 * place)
            code += emit("s_mov_b32", sdst=EXEC, ssrc0=128)
            code += emit(f"v_s_{name}_{kind}", vdst=9, src0=8, neg=1 if name == "rcp" else 0)
            code += emit("s_mov_b32", sdst=EXEC, ssrc0=129) + emit("v_mov_b32", vdst=2, src0=9)
            code += emit("global_store_b32", addr=1, data=2, saddr=6, offset=4 * place)
        given = x.view(f"u{x.itemsize}").astype(np.uint32)
        run(code + END, (1, 1, 1), (1, 1, 1), [given, out])
        got = out.astype(f"u{x.itemsize}").view(dtype)
        want = function(x.astype(np.float64)) * (-1 if name == "rcp" else 1)
        np.testing.assert_allclose(got, want, rtol=2e-7 if kind == "f32" else 1e-3)


# Floats of 8 bits

FORMATS = {"fp8": (4, 3, 7, 448.0), "bf8": (5, 2, 15, 57344.0)}


def value_of(byte: int, kind: str) -> float:
    """By the formula of the OCP's specification."""
    byte, (exponents, fraction, bias, _) = int(byte), FORMATS[kind]
    sign = -1.0 if byte >> 7 else 1.0
    exponent, low = byte >> fraction & (1 << exponents) - 1, byte & (1 << fraction) - 1
    if exponent == (1 << exponents) - 1:
        if kind == "bf8":
            return sign * math.inf if not low else math.nan
        if low == 7:
            return math.nan
    if exponent == 0:
        return sign * low * 2.0 ** (1 - bias - fraction)
    return sign * (1 + low / 2**fraction) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("kind", FORMATS)
def test_all_floats_of_8_bits(kind: str) -> None:
    want = np.array([value_of(byte, kind) for byte in range(256)], np.float32)
    for first in range(0, 256, LANES):
        byte = np.arange(first, first + LANES, dtype=np.uint32)
        expected = want[first : first + LANES]
        for opsel, shift in ((0, 0), (2, 8), (1, 16), (3, 24)):
            source = byte << np.uint32(shift) | np.uint32(0x5A5A5A5A & ~(0xFF << shift))
            how: dict[str, Any] = {"form": "vop3", "result": np.float32, "opsel": opsel}
            got = compute(f"v_cvt_f32_{kind}", source, **how)
            np.testing.assert_array_equal(got, expected)
            numbers = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])
        pair = byte | byte[::-1] << np.uint32(8)
        got = compute(f"v_cvt_pk_f32_{kind}", pair, form="vop3", result=np.uint64)
        np.testing.assert_array_equal(got.astype(np.uint32).view(np.float32), expected)
        high = (got >> np.uint64(32)).astype(np.uint32).view(np.float32)
        np.testing.assert_array_equal(high, expected[::-1])


def nearest(x: float, kind: str, clamped: bool) -> int:
    """The byte of a single: the nearest of all values, of two the one with an even fraction."""
    sign = 0x80 if math.copysign(1, x) < 0 else 0
    if math.isnan(x):
        return 0x7F
    _, fraction, _, largest = FORMATS[kind]
    over = 0x7F if kind == "fp8" else 0x7C
    if math.isinf(x):
        return sign | over
    step = 2.0 ** (math.floor(math.log2(largest)) - fraction)
    magnitude = abs(x)
    if magnitude >= largest + step / 2:  # what would round to the next one is too large
        return sign | ((0x7E if kind == "fp8" else 0x7B) if clamped else over)
    count = 0x7F if kind == "fp8" else 0x7C
    return sign | min(range(count), key=lambda b: (abs(value_of(b, kind) - magnitude), b & 1))


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_singles_as_floats_of_8_bits(kind: str, clamped: bool) -> None:
    rng = np.random.default_rng(4)
    largest = FORMATS[kind][3]
    values = np.array([value_of(b, kind) for b in range(0x78)])
    between = (values[1:] + values[:-1]) / 2  # ties
    edges = [0.0, np.inf, np.nan, largest, largest * 1.0625, largest * 1.07, largest * 1.2, 1e30]
    edges += [1e-45, 2.0**-10, 2.0**-17, largest * 1.124, largest * 1.126]
    free = rng.integers(0, 1 << 32, 64, np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.normal(size=64) * 2.0 ** rng.integers(-18, 12, 64)).astype(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaN become quiet
        x = np.concatenate([edges, between, between * (1 + 1e-6), free, near]).astype(np.float32)
    x = np.resize(np.concatenate([x, -x]), -(-2 * len(x) // LANES) * LANES)
    mode = DEFAULT_MODE | (1 << 23 if clamped else 0)
    for first in range(0, len(x), LANES):
        part = x[first : first + LANES]
        got = compute(f"v_cvt_pk_{kind}_f32", part, part[::-1].copy(), form="vop3", mode=mode)
        want = [nearest(float(v), kind, clamped) for v in part]
        low, high = (got & 0xFF).tolist(), (got >> 8 & 0xFF).tolist()
        for value, byte, right in zip(part, low, want, strict=True):
            if math.isnan(value):
                assert byte & 0x7F == 0x7F
            else:
                assert byte == right, (value, hex(byte), hex(right))
        assert [b & 0x7F for b in high] == [b & 0x7F for b in want[::-1]]


@pytest.mark.parametrize("kind", FORMATS)
def test_chance_rounds_between_neighbours(kind: str) -> None:
    """As often up as the value is near the upper one; a byte of the register is replaced."""
    values = [value_of(b, kind) for b in (0x31, 0x32, 0x02, 0x03)]
    seeds = (np.arange(LANES, dtype=np.uint64) << np.uint64(27)).astype(np.uint32)
    for low, first in ((values[0], 0x31), (values[2], 0x02)):
        high = values[1] if low == values[0] else values[3]
        for eighths in range(8):
            x = np.float32([low + (high - low) * eighths / 8])
            got = compute(f"v_cvt_sr_{kind}_f32", x, seeds, form="vop3", opsel=8,
                          start=words([0x11223344]))  # fmt: skip
            assert set((got & 0xFF00FFFF).tolist()) == {0x11003344}
            byte = got >> 16 & 0xFF
            assert set(byte.tolist()) <= {first, first + 1}
            assert (byte == first + 1).sum() == 4 * eighths


def test_products_of_floats_of_8_bits() -> None:
    rng = np.random.default_rng(5)
    for left in FORMATS:
        for right in FORMATS:
            bytes_ = [rng.integers(0, 0x60, (LANES, 4), np.uint8) for _ in "xy"]
            exact = [
                np.vectorize(partial(value_of, kind=kind))(each)
                for kind, each in zip((left, right), bytes_, strict=True)
            ]
            z = rng.normal(size=LANES).astype(np.float32)
            packed = [np.ascontiguousarray(each).view(np.uint32).reshape(LANES) for each in bytes_]
            name = f"v_dot4_f32_{left}_{right}"
            got = compute(name, *packed, z, form="vop3p", result=np.float32, opsel_hi=3)
            want = (exact[0] * exact[1]).sum(1) + z
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# Matrices: the tables of section 7.12.2, by which bits of a row and a column lanes are chosen


def place_of(row: int, column: int, bits: int, depth: int) -> tuple[int, int, int]:
    """(lane, register, element in it) of A; for B rows and columns change their parts."""
    k = column
    if bits == 16:
        return (k >> 2 & 1) << 4 | row, (k >> 3 & 1) << 1 | k >> 1 & 1, k & 1
    if bits == 8:
        return (k >> 3 & 1) << 4 | row, k >> 2 & 1, k & 3
    if depth == 16:
        return (k >> 3 & 1) << 4 | row, 0, k & 7
    return (k >> 4 & 1) << 4 | row, k >> 3 & 1, k & 7


def packed_matrix(values: Array, bits: int) -> Array:
    """Registers of A from its elements as unsigned integers, shape (16, depth)."""
    depth = values.shape[1]
    registers = np.zeros((max(1, 16 * depth * bits // 32 // LANES), LANES), np.uint32)
    for row in range(16):
        for k in range(depth):
            lane, register, element = place_of(row, k, bits, depth)
            registers[register, lane] |= np.uint32(int(values[row, k]) << bits * element)
    return registers


def multiply(name: str, a: Array, b: Array, c: Array, bits: int, **fields: int) -> Array:
    """D as 32-bit words, or halves as 16-bit ones, from elements as unsigned integers."""
    short = c.itemsize == 2
    count = 4 if short else 8
    accumulators = np.zeros((count, LANES), np.uint32)
    for row in range(16):
        for column in range(16):
            word = int(c[row, column])
            register, shift = (row % 8 // 2, 16 * (row % 2)) if short else (row % 8, 0)
            accumulators[register, row // 8 * 16 + column] |= np.uint32(word << shift)
    out = np.zeros((count, LANES), np.uint32)
    arrays = [packed_matrix(a, bits), packed_matrix(b.T, bits), accumulators, out]
    code = b"".join(emit("s_load_b64", sdata=4 + 2 * n, sbase=0, offset=8 * n) for n in range(4))
    code += emit("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    for array, scalar, first in zip(arrays[:3], (4, 6, 8), (10, 20, 30), strict=True):
        for number in range(len(array)):
            at = {"addr": 1, "saddr": scalar, "offset": 128 * number}
            code += emit("global_load_b32", vdst=first + number, **at)
    code += emit(name, vdst=40, src0=V + 10, src1=V + 20, src2=V + 30,
                 opsel_hi=3, opsel_hi2=1, **fields)  # fmt: skip
    for number in range(count):
        at = {"addr": 1, "saddr": 10, "offset": 128 * number}
        code += emit("global_store_b32", data=40 + number, **at)
    run(code + END, (1, 1, 1), (LANES, 1, 1), arrays)
    result = np.zeros((16, 16), c.dtype)
    for row in range(16):
        for column in range(16):
            register, shift = (row % 8 // 2, 16 * (row % 2)) if short else (row % 8, 0)
            word = int(out[register, row // 8 * 16 + column]) >> shift
            result[row, column] = word & (0xFFFF if short else 0xFFFFFFFF)
    return result


def brain(values: Array) -> Array:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_matrices_of_halves(kind: str) -> None:
    rng = np.random.default_rng(6)
    a, b, c = (rng.integers(-8, 9, (16, 16)) / 4 for _ in "abc")
    coded = (lambda v: v.astype(np.float16).view(np.uint16)) if kind == "f16" else brain
    single = c.astype(np.float32).view(np.uint32)
    name = f"v_wmma_rdna4_f32_16x16x16_{kind}"
    got = multiply(name, coded(a), coded(b), single, 16)
    np.testing.assert_array_equal(got.view(np.float32), a @ b + c)
    got = multiply(f"v_wmma_rdna4_{kind}_16x16x16_{kind}", coded(a), coded(b), coded(c), 16)
    exact = a @ b + c
    if kind == "f16":
        np.testing.assert_array_equal(got, coded(exact))
    else:
        back = (got.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(back, exact, rtol=2**-8)


@pytest.mark.parametrize("signs", range(4))
@pytest.mark.parametrize(("bits", "depth"), [(8, 16), (4, 16), (4, 32)])
def test_matrices_of_integers(bits: int, depth: int, signs: int) -> None:
    rng = np.random.default_rng(7)
    a = rng.integers(0, 1 << bits, (16, depth))
    b = rng.integers(0, 1 << bits, (depth, 16))
    c = rng.integers(-1000, 1000, (16, 16)).astype(np.int32)
    name = f"v_wmma_rdna4_i32_16x16x{depth}_iu{bits}"
    got = multiply(name, a, b, c.view(np.uint32), bits, neg=signs)
    half = 1 << bits - 1
    signed = [(m ^ half) - half if signs >> n & 1 else m for n, m in enumerate((a, b))]
    np.testing.assert_array_equal(got.view(np.int32), signed[0] @ signed[1] + c)


@pytest.mark.parametrize("left", FORMATS)
@pytest.mark.parametrize("right", FORMATS)
def test_matrices_of_floats_of_8_bits(left: str, right: str) -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.integers(0x20, 0x48, (16, 16)) | rng.integers(0, 2, (16, 16)) << 7 for _ in "ab")
    c = rng.normal(size=(16, 16)).astype(np.float32)
    name = f"v_wmma_rdna4_f32_16x16x16_{left}_{right}"
    got = multiply(name, a, b, c.view(np.uint32), 8).view(np.float32)
    exact = [np.vectorize(partial(value_of, kind=k))(m) for k, m in ((left, a), (right, b))]
    np.testing.assert_allclose(got, exact[0] @ exact[1] + c, rtol=1e-5, atol=1e-4)


# Barriers in two halves

THREE_WAVES = (96, 1, 1)


def own_wave(code_of_first: bytes, code_of_others: bytes) -> bytes:
    """One code for the first wave of a group, another for those behind; they go on together."""
    skip = emit("s_branch", simm16=len(code_of_others) // 4)
    code = emit("v_cmp_gt_u32", src0=160, vsrc1=0)  # 32 > work-item, in VCC
    code += emit("s_cbranch_vccz", simm16=(len(code_of_first) + len(skip)) // 4)
    return code + code_of_first + skip + code_of_others


SIGNAL = emit("s_barrier_signal", ssrc0=193)
WAIT = emit("s_barrier_wait", simm16=0xFFFF)
LOADS = (
    emit("s_load_b64", sdata=4, sbase=0)
    + emit("v_mov_b32", vdst=1, src0=128)
    + emit("v_mov_b32", vdst=2, src0=129)
)
STORE = emit("global_store_b32", addr=1, data=2, saddr=4)
LOAD = emit("global_load_b32", vdst=3, addr=1, saddr=4)


@pytest.mark.parametrize("seed", range(8))
def test_who_has_signalled_lets_others_pass(seed: int) -> None:
    """Two waves wait at a barrier that the first only signals; it waits when they tell it to."""
    spin = LOAD + emit("v_cmp_ne_u32", src0=129, vsrc1=3)
    spin += emit("s_cbranch_vccnz", simm16=(-len(spin) // 4 - 1) & 0xFFFF)
    out = np.zeros(1, np.uint32)
    code = LOADS + own_wave(SIGNAL + spin + WAIT, SIGNAL + WAIT + STORE)
    rest = emit("v_mov_b32", vdst=2, src0=130)  # and then all of them meet again
    code += SIGNAL + WAIT + own_wave(rest + STORE, emit("s_nop"))
    run(code + END, (1, 1, 1), THREE_WAVES, [out], seed=seed)
    assert out[0] == 2


@pytest.mark.parametrize("seed", range(4))
def test_nobody_passes_before_all_have_signalled(seed: int) -> None:
    """The first wave writes before it signals; the others must see it behind the barrier."""
    delay = b"".join(emit("s_nop") + emit("s_branch") for _ in range(50))
    out = np.zeros(4, np.uint32)
    copy = LOAD + emit("v_lshrrev_b32", vdst=4, src0=131, vsrc1=0)  # 4 * wave
    copy += emit("v_and_b32", vdst=4, src0=140, vsrc1=4)
    copy += emit("global_store_b32", addr=4, data=3, saddr=4)
    code = LOADS + own_wave(delay + STORE + SIGNAL + WAIT, SIGNAL + WAIT + copy)
    run(code + END, (1, 1, 1), THREE_WAVES, [out], seed=seed)
    np.testing.assert_array_equal(out[:3], 1)


def test_waves_that_end_are_not_waited_for() -> None:
    out = np.zeros(1, np.uint32)
    code = LOADS + own_wave(END, SIGNAL + WAIT + STORE)
    run(code + END, (1, 1, 1), THREE_WAVES, [out])
    assert out[0] == 1


def test_a_wait_without_a_signal_hangs() -> None:
    code = LOADS + own_wave(WAIT, SIGNAL + WAIT) + END
    with pytest.raises(DeviceHang, match="wave 0, waits at a barrier for others that do not come"):
        run(code, (1, 1, 1), THREE_WAVES, [np.zeros(1, np.uint32)])


# Memory and lanes


def atomics(name: str, before: int, *data: int) -> tuple[int, list[int]]:
    """What memory holds after a wave's atomics, one of each number, and what they returned."""
    cell, given = np.array([before], np.uint32), words(list(data))
    out = np.zeros(LANES, np.uint32)
    code = b"".join(emit("s_load_b64", sdata=4 + 2 * n, sbase=0, offset=8 * n) for n in range(3))
    code += emit("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    code += emit("global_load_b32", vdst=2, addr=1, saddr=6) + emit("v_mov_b32", vdst=3, src0=128)
    code += emit(name, vdst=4, addr=3, data=2, saddr=4, th=1)
    code += emit("global_store_b32", addr=1, data=4, saddr=8)
    run(code + END, (1, 1, 1), (len(data), 1, 1), [cell, given, out])
    return int(cell[0]), out[: len(data)].tolist()


def test_conditional_subtraction() -> None:
    cell, returned = atomics("global_atomic_cond_sub_u32", 10, 3, 8, 7, 1)
    left = 10
    for number, seen in zip((3, 8, 7, 1), returned, strict=True):
        assert seen == left
        left = left - number if left >= number else left
    assert cell == left
    assert atomics("global_atomic_csub_u32", 10, 3, 8)[0] == 0  # that of RDNA4 stops at 0


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_are_added(kind: str) -> None:
    def code(low: float, high: float) -> int:
        pair = np.array([low, high], np.float32)
        halves = pair.astype(np.float16).view(np.uint16) if kind == "f16" else brain(pair)
        return int(halves[0]) | int(halves[1]) << 16

    name = f"global_atomic_pk_add_{kind}"
    cell, returned = atomics(name, code(1.5, -2), code(0.25, 1), code(8, 0.5))
    assert returned == [code(1.5, -2), code(1.75, -1)]
    assert cell == code(9.75, -0.5)


@pytest.mark.parametrize("other", [False, True])
def test_lanes_choose_for_themselves(other: bool) -> None:
    rng = np.random.default_rng(9)
    x, chosen = words(range(100, 132)), rng.integers(0, 1 << 32, LANES, np.uint64).astype(np.uint32)
    got = compute(f"v_permlane{'x' if other else ''}16_var_b32", x, chosen, form="vop3")
    lanes = np.arange(LANES)
    start = (lanes ^ 16 if other else lanes) & ~15
    np.testing.assert_array_equal(got, x[start | (chosen & 15)])


@pytest.mark.parametrize(("name", "idle"), [("ds_bpermute_b32", 0), ("ds_bpermute_fi_b32", 120)])
def test_fetches_from_inactive_lanes(name: str, idle: int) -> None:
    out = np.zeros(LANES, np.uint32)
    code = emit("s_load_b64", sdata=4, sbase=0)
    code += emit("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    code += emit("v_add_nc_u32", vdst=2, src0=255, vsrc1=0, literal=100)
    code += emit("v_mov_b32", vdst=4, src0=255, literal=80)  # lane 20
    code += emit("s_mov_b32", sdst=EXEC, ssrc0=143)  # lanes 0 to 3
    code += emit(name, vdst=3, addr=4, data0=2)
    code += emit("global_store_b32", addr=1, data=3, saddr=4)
    run(code + END, (1, 1, 1), (LANES, 1, 1), [out])
    np.testing.assert_array_equal(out[:4], idle)


def test_ids_of_workgroups_are_in_ttmp() -> None:
    out = np.zeros((2, 3, 4, 2), np.uint32)
    x, yz = TTMP9, TTMP9 - 2
    code = emit("s_load_b64", sdata=4, sbase=0) + emit("s_and_b32", sdst=6, ssrc0=yz, ssrc1=255,
                                                       literal=0xFFFF)  # fmt: skip
    code += emit("s_lshr_b32", sdst=7, ssrc0=yz, ssrc1=144)
    code += emit("s_mul_i32", sdst=8, ssrc0=7, ssrc1=131)
    code += emit("s_add_i32", sdst=8, ssrc0=8, ssrc1=6) + emit(
        "s_lshl_b32", sdst=8, ssrc0=8, ssrc1=130
    )
    code += emit("s_add_i32", sdst=8, ssrc0=8, ssrc1=x) + emit(
        "s_lshl_b32", sdst=8, ssrc0=8, ssrc1=131
    )
    code += emit("v_mov_b32", vdst=1, src0=8) + emit("v_mov_b32", vdst=2, src0=x)
    code += emit("v_mov_b32", vdst=3, src0=yz) + emit("global_store_b64", addr=1, data=2, saddr=4)
    run(code + END, (4, 3, 2), (1, 1, 1), [out])
    for z in range(2):
        for y in range(3):
            for n in range(4):
                assert out[z, y, n].tolist() == [n, z << 16 | y]


def test_scalars_are_the_vector_units_own() -> None:
    """`s_min_num` too follows no MODE.IEEE."""
    signalling = np.array([0x7F800001], np.uint32)
    assert scalars("s_min_f32", CHIP, signalling, words([0x40000000]))[0] == 0x40000000
    assert scalars("s_minimum_f32", CHIP, signalling, words([0x40000000]))[0] == 0x7FC00001
