"""ggml's blocks: the quantised types of GGUF files, and the numbers that their bytes stand for.

A row of a quantised tensor is cut into blocks of 32 to 256 elements, each with scales of its own.
The values are an expression over the bytes, which the compiler fuses into whatever uses them: a
weight takes the memory of its file, on every device.

The layouts are those of `ggml/src/ggml-common.h` (the structures) and `ggml-quants.c` (the order of
the elements) in https://github.com/ggml-org/llama.cpp; the tests compare each with the decoder in
ggml's own Python package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpu.core.dtype import DType, dtypes
from gpu.tensor.tensor import Tensor

# What 4 bits stand for in IQ4_NL and IQ4_XS, and in MXFP4 and NVFP4 (twice a float of E2M1).
_NONLINEAR: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_TWICE: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class BlockType(NamedTuple):
    """A type of elements in a file.

    Attributes:
        name: ggml's.
        elements: of a block.
        size: of a block, in bytes.
        dtype: for what is not quantised, the dtype that the bytes are.
        values: for what is quantised, of bytes (blocks, size) the elements (blocks, ...), in
            float32; None where this package has no decoder.
    """

    name: str
    elements: int
    size: int
    dtype: DType | None = None
    values: Callable[[Tensor], Tensor] | None = None


def _fields(data: Tensor, shifts: Sequence[int], bits: int) -> Tensor:
    """Fields of `bits` bits that lie at `shifts` in each of the last axis' numbers.

    Of (..., n) it makes (..., shifts, n): all numbers' fields at the first shift come first.
    """
    places = Tensor(list(shifts), dtype=data.dtype, device=data.device).reshape(-1, 1)
    return (data.unsqueeze(-2) >> places) & ((1 << bits) - 1)


def _word(data: Tensor, dtype: DType) -> Tensor:
    """Little-endian unsigned numbers (..., 1) of bytes (..., itemsize)."""
    parts = [data[..., i : i + 1].cast(dtype) << 8 * i for i in range(dtype.itemsize)]
    return sum(parts[1:], parts[0])


def _half(data: Tensor) -> Tensor:
    """The float16 in two bytes, as float32."""
    return _word(data, dtypes.uint16).bitcast(dtypes.float16).cast(dtypes.float32)


def _signed(data: Tensor) -> Tensor:
    """Fields of bits as numbers that can go below zero."""
    return data.cast(dtypes.int32)


def _looked_up(data: Tensor, values: Sequence[int]) -> Tensor:
    return Tensor(list(values), dtype=dtypes.float32, device=data.device)[_signed(data)]


def _q4_0(b: Tensor) -> Tensor:
    return _half(b[:, :2]) * (_signed(_fields(b[:, 2:], (0, 4), 4)).flatten(1) - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _half(b[:, :2]) * _fields(b[:, 4:], (0, 4), 4).flatten(1) + _half(b[:, 2:4])


def _q5(high: Tensor, low: Tensor) -> Tensor:
    """5 bits: the fifth ones in a word of 32, the others in 16 bytes."""
    fifth = _fields(_word(high, dtypes.uint32), range(32), 1).flatten(1)
    return _signed(_fields(low, (0, 4), 4).flatten(1)) + _signed(fifth) * 16


def _q5_0(b: Tensor) -> Tensor:
    return _half(b[:, :2]) * (_q5(b[:, 2:6], b[:, 6:]) - 16)


def _q5_1(b: Tensor) -> Tensor:
    return _half(b[:, :2]) * _q5(b[:, 4:8], b[:, 8:]) + _half(b[:, 2:4])


def _q8_0(b: Tensor) -> Tensor:
    return _half(b[:, :2]) * b[:, 2:].bitcast(dtypes.int8)


def _q8_1(b: Tensor) -> Tensor:  # the sum of the block, behind the scale, is there for products
    return _half(b[:, :2]) * b[:, 4:].bitcast(dtypes.int8)


def _q8_k(b: Tensor) -> Tensor:
    scale = _word(b[:, :4], dtypes.uint32).bitcast(dtypes.float32)
    return scale * b[:, 4:260].bitcast(dtypes.int8)


def _q2_k(b: Tensor) -> Tensor:
    scales, low = b[:, :16], b[:, 16:80].reshape(-1, 2, 32)
    q = _fields(low, (0, 2, 4, 6), 2).reshape(-1, 16, 16)
    scale = _half(b[:, 80:82]) * (scales & 15)
    least = _half(b[:, 82:84]) * (scales >> 4)
    return scale.unsqueeze(2) * q - least.unsqueeze(2)


def _q3_k(b: Tensor) -> Tensor:
    low = _fields(b[:, 32:96].reshape(-1, 2, 32), (0, 2, 4, 6), 2).reshape(-1, 8, 32)
    q = _signed(low) + _signed(_fields(b[:, :32], range(8), 1)) * 4 - 4
    packed = b[:, 96:108]
    scales = _signed(_fields(packed[:, :8], (0, 4), 4).flatten(1)) - 32
    scales = scales + _signed(_fields(packed[:, 8:], (0, 2, 4, 6), 2).flatten(1)) * 16
    return (_half(b[:, 108:]) * scales).unsqueeze(2) * q.reshape(-1, 16, 16)


def _scale_and_least(b: Tensor) -> tuple[Tensor, Tensor]:
    """Of Q4_K and Q5_K: for 8 parts of a block scale and offset, (blocks, 8, 1) each.

    12 bytes hold 8 of 6 bits each: four as they are, with the upper bits of the other four.
    """
    first, second, third = (b[:, 4 + 4 * i : 8 + 4 * i] for i in range(3))
    scales = Tensor.cat(first & 63, (third & 15) | (first >> 6 << 4), dim=1)
    leasts = Tensor.cat(second & 63, (third >> 4) | (second >> 6 << 4), dim=1)
    return (_half(b[:, :2]) * scales).unsqueeze(2), (_half(b[:, 2:4]) * leasts).unsqueeze(2)


def _q4_k(b: Tensor) -> Tensor:
    scale, least = _scale_and_least(b)
    q = _fields(b[:, 16:].reshape(-1, 4, 32), (0, 4), 4).reshape(-1, 8, 32)
    return scale * q - least


def _q5_k(b: Tensor) -> Tensor:
    scale, least = _scale_and_least(b)
    low = _fields(b[:, 48:].reshape(-1, 4, 32), (0, 4), 4).reshape(-1, 8, 32)
    return scale * (_fields(b[:, 16:48], range(8), 1) * 16 + low) - least


def _q6_k(b: Tensor) -> Tensor:
    low = _fields(b[:, :128].reshape(-1, 2, 64), (0, 4), 4).reshape(-1, 16, 16)
    high = _fields(b[:, 128:192].reshape(-1, 2, 32), (0, 2, 4, 6), 2).reshape(-1, 16, 16)
    scale = _half(b[:, 208:]) * b[:, 192:208].bitcast(dtypes.int8)
    return scale.unsqueeze(2) * (_signed(low) + _signed(high) * 16 - 32)


def _iq4_nl(b: Tensor) -> Tensor:
    return _half(b[:, :2]) * _looked_up(_fields(b[:, 2:], (0, 4), 4).flatten(1), _NONLINEAR)


def _iq4_xs(b: Tensor) -> Tensor:
    high = _fields(_word(b[:, 2:4], dtypes.uint16), range(0, 16, 2), 2).flatten(1)
    low = _fields(b[:, 4:8].unsqueeze(2), (0, 4), 4).flatten(1)
    scale = _half(b[:, :2]) * (_signed(low) + _signed(high) * 16 - 32)
    q = _fields(b[:, 8:].reshape(-1, 8, 16), (0, 4), 4).reshape(-1, 8, 32)
    return scale.unsqueeze(2) * _looked_up(q, _NONLINEAR)


def _ternary(data: Tensor) -> Tensor:
    """Digits of base 3 in bytes, each a fraction of 256, the most significant one first."""
    powers = Tensor([1, 3, 9, 27, 81], dtype=dtypes.uint8, device=data.device).reshape(5, 1)
    rest = data.unsqueeze(1) * powers  # of 8 bits, as the fraction is
    return _signed(rest) * 3 >> 8


def _tq1_0(b: Tensor) -> Tensor:
    parts = _ternary(b[:, :32]), _ternary(b[:, 32:48]), _ternary(b[:, 48:52])[:, :4]
    digits = Tensor.cat(*[part.flatten(1) for part in parts], dim=1)
    return _half(b[:, 52:]) * (digits - 1)


def _tq2_0(b: Tensor) -> Tensor:
    q = _fields(b[:, :64].reshape(-1, 2, 32), (0, 2, 4, 6), 2).flatten(1)
    return _half(b[:, 64:]) * (_signed(q) - 1)


def _mxfp4(b: Tensor) -> Tensor:
    # 2^(e - 128), half of what E8M0 says: below 2 a float32 has no exponent for it.
    e = b[:, :1].cast(dtypes.uint32)
    bits = (e < 2).where(0x00200000 << (e & 1), (e - 1) << 23)
    q = _fields(b[:, 1:], (0, 4), 4).flatten(1)
    return bits.bitcast(dtypes.float32) * _looked_up(q, _E2M1_TWICE)


def _nvfp4(b: Tensor) -> Tensor:
    scale = b[:, :4] & 127
    scale = (scale == 127).where(0, scale).bitcast(dtypes.fp8e4m3).cast(dtypes.float32) * 0.5
    q = _fields(b[:, 4:].reshape(-1, 4, 8), (0, 4), 4).reshape(-1, 4, 16)
    return scale.unsqueeze(2) * _looked_up(q, _E2M1_TWICE)


BLOCK_TYPES: Final[dict[int, BlockType]] = {
    0: BlockType("F32", 1, 4, dtypes.float32),
    1: BlockType("F16", 1, 2, dtypes.float16),
    2: BlockType("Q4_0", 32, 18, values=_q4_0),
    3: BlockType("Q4_1", 32, 20, values=_q4_1),
    6: BlockType("Q5_0", 32, 22, values=_q5_0),
    7: BlockType("Q5_1", 32, 24, values=_q5_1),
    8: BlockType("Q8_0", 32, 34, values=_q8_0),
    9: BlockType("Q8_1", 32, 36, values=_q8_1),
    10: BlockType("Q2_K", 256, 84, values=_q2_k),
    11: BlockType("Q3_K", 256, 110, values=_q3_k),
    12: BlockType("Q4_K", 256, 144, values=_q4_k),
    13: BlockType("Q5_K", 256, 176, values=_q5_k),
    14: BlockType("Q6_K", 256, 210, values=_q6_k),
    15: BlockType("Q8_K", 256, 292, values=_q8_k),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18, values=_iq4_nl),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136, values=_iq4_xs),
    24: BlockType("I8", 1, 1, dtypes.int8),
    25: BlockType("I16", 1, 2, dtypes.int16),
    26: BlockType("I32", 1, 4, dtypes.int32),
    27: BlockType("I64", 1, 8, dtypes.int64),
    28: BlockType("F64", 1, 8, dtypes.float64),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2, dtypes.bfloat16),
    34: BlockType("TQ1_0", 256, 54, values=_tq1_0),
    35: BlockType("TQ2_0", 256, 66, values=_tq2_0),
    39: BlockType("MXFP4", 32, 17, values=_mxfp4),
    40: BlockType("NVFP4", 64, 36, values=_nvfp4),
}
"""By the number that a file has for the type, as `ggml.h` numbers them (`enum ggml_type`)."""
