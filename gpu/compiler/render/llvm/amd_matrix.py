"""Matrix instructions of AMD's waves as LLVM IR: WMMA of RDNA and MFMA of CDNA, by intrinsics.

Operands are what a thread holds of them, which each intrinsic takes as a type of its own; sums are
a vector (LLVM, `IntrinsicsAMDGPU.td`, "WMMA" and "MFMA"). Which registers of CDNA have the sums,
those for accumulation or the others, LLVM decides.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.matrix import CDNA3, CDNA4, MATRICES, RDNA3, RDNA4, Layout, Matrix
from gpu.compiler.render.llvm.narrow_integers import INT32
from gpu.compiler.render.llvm.text import BOOL, Emitter, Type, Value, integer, value_type
from gpu.core.dtype import DType, dtypes

_MFMA: Final = (CDNA3, CDNA4)


class _Operand(NamedTuple):
    """What intrinsics call operands of a dtype, what LLVM has them in, and bits of one of these."""

    name: str
    element: str
    bits: int


_FLOAT16: Final = {dtypes.float16: _Operand("f16", "half", 16)}
_BFLOAT16: Final = {dtypes.bfloat16: _Operand("bf16", "i16", 16)}
_BYTES: Final = {dtype: _Operand("iu8", "i32", 32) for dtype in (dtypes.int8, dtypes.uint8)}
_OPERANDS: Final[dict[Layout, dict[DType, _Operand]]] = {
    RDNA3: _FLOAT16 | _BFLOAT16 | _BYTES,
    RDNA4: {
        **(_FLOAT16 | _BFLOAT16 | _BYTES),
        dtypes.fp8e4m3: _Operand("fp8", "i32", 32),
        dtypes.fp8e5m2: _Operand("bf8", "i32", 32),
    },
    CDNA3: {
        **_FLOAT16,
        dtypes.bfloat16: _Operand("bf16.1k", "i16", 16),
        dtypes.int8: _Operand("i8", "i64", 64),
    },
    CDNA4: {
        **_FLOAT16,
        dtypes.bfloat16: _Operand("bf16", "bfloat", 16),
        dtypes.int8: _Operand("i8", "i32", 32),
        dtypes.fp8e4m3: _Operand("fp8", "i64", 64),
        dtypes.fp8e5m2: _Operand("bf8", "i64", 64),
    },
}


def multiply(emitter: Emitter, inst: Inst, args: list[Value]) -> Value:
    """Sums and a product: a vector of what a thread holds of them."""
    how = MATRICES[inst.attr[0]]
    assert how.layout is not None
    kinds = [_OPERANDS[how.layout][dtype] for dtype in how.operands]
    (a, b, *before), (of_a, of_b) = args, how.operands
    left, right = _cast(emitter, a, of_a, kinds[0]), _cast(emitter, b, of_b, kinds[1])
    sums, result = emitter.pack(before), value_type(how.sums, inst.lanes)
    name = _name(how, kinds)
    if how.layout in _MFMA:
        plain = [integer(INT32, 0)] * 3  # no operand is broadcast or permuted
        return emitter.intrinsic(name, result, left, right, sums, *plain)
    name = f"{name}.{result.mangled}.{left.type.mangled}"
    if how.sums.is_float:
        return emitter.intrinsic(name, result, left, right, sums)
    signs = [integer(BOOL, int(dtype.min < 0)) for dtype in how.operands]
    wraps = integer(BOOL, 0)
    return emitter.intrinsic(name, result, signs[0], left, signs[1], right, sums, wraps)


def _name(how: Matrix, kinds: list[_Operand]) -> str:
    """Of the intrinsic, without the types it is overloaded by."""
    family = "mfma" if how.layout in _MFMA else "wmma"
    sums = f"{'f' if how.sums.is_float else 'i'}{how.sums.bits}"
    # Floats of 8 bits name both operands. Those of older MFMA have no point before their name.
    is_fp8 = how.operand.is_float and how.operand.itemsize == 1
    operands = ".".join(kind.name for kind in kinds[: 1 + is_fp8])
    point = "" if how.layout is CDNA3 and how.operand.is_float else "."
    return f"llvm.amdgcn.{family}.{sums}.{how.m}x{how.n}x{how.k}{point}{operands}"


def _cast(emitter: Emitter, value: Value, dtype: DType, kind: _Operand) -> Value:
    """An operand as the intrinsics take it."""
    wanted = Type(kind.element, value.type.lanes * dtype.bits // kind.bits)
    return value if wanted == value.type else emitter.value(wanted, f"bitcast {value} to {wanted}")
