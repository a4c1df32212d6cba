"""WMMA against numpy, with the fragment layout written down a second time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.isa.asm import END, V, op
from sim.isa.bare import run_asm

Array = npt.NDArray[Any]
A, B, C, D = 10, 20, 30, 40


def multiply(name: str, a: Array, b: Array, c: Array, **fields: int) -> Array:
    """D as the instruction leaves it; operands are whole matrices."""
    out = np.zeros((8, 32), c.dtype)
    arrays = [_packed(a), _packed(b.T), _accumulators(c), out]
    code = b"".join(op("s_load_b64", sdata=4 + 2 * n, sbase=0, offset=8 * n) for n in range(4))
    code += op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    for array, scalar, first in zip(arrays[:3], (4, 6, 8), (A, B, C), strict=True):
        for number in range(len(array)):
            place = {"addr": 1, "saddr": scalar, "offset": 128 * number}
            code += op("global_load_b32", vdst=first + number, **place)
    target = fields.setdefault("vdst", D)
    code += op(name, src0=V + A, src1=V + B, src2=V + C, **fields)
    for number in range(8):
        code += op("global_store_b32", addr=1, data=target + number, saddr=10, offset=128 * number)
    run_asm(code + END, (1, 1, 1), (32, 1, 1), arrays)
    result = np.zeros((16, 16), c.dtype)
    for number in range(8):
        for lane in range(32):
            result[2 * number + lane // 16, lane % 16] = out[number, lane]
    return result


def _packed(rows: Array) -> npt.NDArray[np.uint32]:
    """Registers in which lane l has row l % 16."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    return np.ascontiguousarray(np.concatenate([words, words]).T)


def _accumulators(c: Array) -> Array:
    return np.ascontiguousarray(c.reshape(8, 32))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_float_products(kind: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    c = rng.standard_normal((16, 16)).astype(np.float32)
    if kind == "f16":
        packed = a.astype(np.float16), b.astype(np.float16)
        exact = [part.astype(np.float64) for part in packed]
    else:
        packed = tuple((part.view(np.uint32) >> 16).astype(np.uint16) for part in (a, b))
        exact = [(part.astype(np.uint32) << 16).view(np.float32) for part in packed]
    got = multiply(f"v_wmma_f32_16x16x16_{kind}", *packed, c, opsel_hi=3, opsel_hi2=1)
    np.testing.assert_allclose(got, exact[0] @ exact[1] + c, rtol=1e-5, atol=1e-5)


def bfloat(values: Array) -> Array:
    """Singles rounded to the nearest bfloat16, as its bits."""
    pattern = values.astype(np.float32).view(np.uint32)
    return ((pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("high", [0, 1])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_narrow_sums(kind: str, high: int) -> None:
    """C and D are in the half of registers that OP_SEL[2] names; the other half stays."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-4, 5, (16, 16)) / 2 for _ in range(3))
    if kind == "f16":
        a, b, narrow = a.astype(np.float16), b.astype(np.float16), c.astype(np.float16)
        want = (a.astype(np.float64) @ b + c).astype(np.float16).view(np.uint16)
        packed = narrow.view(np.uint16)
        left, right = a, b
    else:
        packed, left, right = bfloat(c), bfloat(a), bfloat(b)
        want = bfloat(a @ b + c)
    other = rng.integers(0, 1 << 16, (16, 16), np.uint32)
    registers = packed.astype(np.uint32) << 16 * high | other << 16 * (1 - high)
    fields = {"opsel": 4 * high, "opsel_hi": 3, "opsel_hi2": 1, "vdst": C}
    got = multiply(f"v_wmma_{kind}_16x16x16_{kind}", left, right, registers, **fields)
    np.testing.assert_array_equal((got >> 16 * high).astype(np.uint16), want)
    np.testing.assert_array_equal(got >> 16 * (1 - high) & 0xFFFF, other)


@pytest.mark.parametrize("signs", range(4))
def test_integer_products(signs: int) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 256, (16, 16), np.uint8) for _ in range(2))
    c = rng.integers(-1000, 1000, (16, 16), np.int32)
    got = multiply("v_wmma_i32_16x16x16_iu8", a, b, c, neg=signs)
    views = [m.view(np.int8) if signs >> n & 1 else m for n, m in enumerate((a, b))]
    np.testing.assert_array_equal(got, views[0].astype(np.int32) @ views[1].astype(np.int32) + c)
