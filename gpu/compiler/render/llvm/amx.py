"""Tiles of AMX as LLVM values.

The intrinsics are those that LLVM's own passes deal tile registers for ("User Guide for AMX",
`llvm/include/llvm/IR/IntrinsicsX86.td`, the ones named `internal`): each is given the shape of its
tiles, and the configuration is loaded where the first tile is. They take no optimiser, code
generation alone will do.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.matrix import MATRICES, TILE_BYTES, TILE_ROWS
from gpu.compiler.render.llvm.text import INT64, Emitter, Type, Value, integer, memory_element
from gpu.core.dtype import DType

_TILE: Final = Type("x86_amx")
_ROWS: Final = integer(Type("i16"), TILE_ROWS)
_BYTES: Final = integer(Type("i16"), TILE_BYTES)
PRODUCTS: Final = {
    "m16n16k32.bf16": "tdpbf16ps",
    "m16n16k64.i8": "tdpbssd",
    "m16n16k64.u8": "tdpbuud",
    "m16n16k64.i8u8": "tdpbsud",
    "m16n16k64.u8i8": "tdpbusd",
}
"""The instruction of each row of the table of matrix instructions that is AMX's."""


def load(emitter: Emitter, dtype: DType, row: int, pointer: Value, index: Value) -> Value:
    """A tile from element `index` on, of memory with elements of `dtype`, its rows `row` apart."""
    address = emitter.element_address(pointer, memory_element(dtype), index, inbounds=True)
    apart = integer(INT64, row * dtype.itemsize)
    name = "llvm.x86.tileloadd64.internal"
    return emitter.intrinsic(name, _TILE, _ROWS, _BYTES, address, apart)


def store(
    emitter: Emitter, dtype: DType, row: int, pointer: Value, index: Value, tile: Value
) -> None:
    """A tile to memory; see `load`."""
    address = emitter.element_address(pointer, memory_element(dtype), index, inbounds=True)
    apart = integer(INT64, row * dtype.itemsize)
    emitter.effect("llvm.x86.tilestored64.internal", _ROWS, _BYTES, address, apart, tile)


def multiply(emitter: Emitter, name: str, a: Value, b: Value, sums: Value) -> Value:
    """Sums and the product of two tiles."""
    how = MATRICES[name]
    rows = integer(Type("i16"), how.m)
    columns = integer(Type("i16"), how.n * how.sums.itemsize)
    steps = integer(Type("i16"), how.k * how.operand.itemsize)
    instruction = f"llvm.x86.{PRODUCTS[name]}.internal"
    return emitter.intrinsic(instruction, _TILE, rows, columns, steps, sums, a, b)
