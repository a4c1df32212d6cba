"""Matrix instructions of AMD's waves as LLVM IR: WMMA of RDNA3, by LLVM's intrinsics.

Operands are what a thread holds of them, 16-bit floats as floats or, bfloat16, as integers, and
bytes four to a register; sums are a vector (LLVM, `IntrinsicsAMDGPU.td`, "WMMA").
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.matrix import MATRICES, Matrix
from gpu.compiler.render.llvm.text import BOOL, Emitter, Type, Value, integer, value_type
from gpu.core.dtype import DType, dtypes

_REGISTER: Final = 4
"""Bytes."""
# Dtype of the operands -> what the intrinsics call them.
_NAMES: Final = {
    dtypes.float16: "f16", dtypes.bfloat16: "bf16", dtypes.int8: "iu8", dtypes.uint8: "iu8",
}  # fmt: skip


def multiply(emitter: Emitter, inst: Inst, args: list[Value]) -> Value:
    """Sums and a product: a vector of what a thread holds of them."""
    how = MATRICES[inst.attr[0]]
    a, b, *before = args
    sums = emitter.pack(before)
    left, right = (_operand(emitter, x, d) for x, d in zip((a, b), how.operands, strict=True))
    result = value_type(how.sums, inst.lanes)
    name = _name(how, result, left.type)
    if how.sums.is_float:
        return emitter.intrinsic(name, result, left, right, sums)
    signs = [integer(BOOL, int(dtype.min < 0)) for dtype in how.operands]
    wraps = integer(BOOL, 0)
    return emitter.intrinsic(name, result, signs[0], left, signs[1], right, sums, wraps)


def _name(how: Matrix, result: Type, operand: Type) -> str:
    sums = f"{'f' if how.sums.is_float else 'i'}{how.sums.bits}"
    kind = f"{sums}.{how.m}x{how.n}x{how.k}.{_NAMES[how.operand]}"
    return f"llvm.amdgcn.wmma.{kind}.{result.mangled}.{operand.mangled}"


def _operand(emitter: Emitter, value: Value, dtype: DType) -> Value:
    """An operand as the intrinsics take it."""
    kind = value.type
    if dtype is dtypes.float16:
        kind = Type("half", value.type.lanes)
    elif dtype.itemsize == 1:
        kind = Type("i32", value.type.lanes // _REGISTER)
    return value if kind == value.type else emitter.value(kind, f"bitcast {value} to {kind}")
