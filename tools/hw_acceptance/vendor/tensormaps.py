"""What cuTensorMapEncodeTiled makes of its arguments: 128 opaque bytes each.

One argument is varied at a time from a plain map of a matrix, so that the bytes of each can be told
apart. Enumerations: cuda.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tools.hw_acceptance.vendor.libcuda import Cuda

MAP_SIZE: Final = 128
_ALIGN: Final = 64
_TYPE_SIZES: Final = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)
"""Bytes of each CUtensorMapDataType: unsigned and signed integers, floats, tf32."""


@dataclass(frozen=True)
class TensorMap:
    """Arguments of one map; strides are in bytes, of all dimensions but the first."""

    type: int = 7
    address: int = 0x10_0000_0000
    sizes: tuple[int, ...] = (1024, 512)
    strides: tuple[int, ...] = (4096,)
    box: tuple[int, ...] = (32, 16)
    steps: tuple[int, ...] = (1, 1)
    interleave: int = 0
    swizzle: int = 0
    promotion: int = 0
    fill: int = 0


def sweep() -> Iterator[TensorMap]:
    """The maps to make, in a fixed order; some are refused, which is an answer too."""
    plain = TensorMap()
    yield plain
    for number, size in enumerate(_TYPE_SIZES):
        yield replace(plain, type=number, strides=(1024 * size,), box=(16, 16))
    for bit in range(4, 57):
        yield replace(plain, address=1 << bit)
    for exponent in range(33):
        yield replace(plain, sizes=(1 << exponent, 512))
        yield replace(plain, sizes=(1024, 1 << exponent))
    for exponent in range(4, 40):
        yield replace(plain, strides=(1 << exponent,))
    for exponent in range(9):
        yield replace(plain, box=(1 << exponent, 16))
        yield replace(plain, box=(32, 1 << exponent))
    for step in range(1, 9):
        yield replace(plain, steps=(step, 1))
        yield replace(plain, steps=(1, step))
    for interleave in range(3):
        for swizzle in range(7):
            yield replace(plain, interleave=interleave, swizzle=swizzle, box=(8, 16))
    for promotion in range(4):
        yield replace(plain, promotion=promotion)
    yield replace(plain, fill=1)
    yield from _ranks()


def _ranks() -> Iterator[TensorMap]:
    for rank in range(1, 6):
        sizes = (64, 48, 40, 24, 20)[:rank]
        strides, total = [], 4
        for size in sizes[:-1]:
            total *= size
            strides.append(total)
        ones = (1,) * rank
        yield TensorMap(
            sizes=sizes, strides=tuple(strides), box=(16, 8, 4, 2, 2)[:rank], steps=ones
        )


def encode(cuda: Cuda, wanted: TensorMap) -> tuple[int, bytes]:
    """What libcuda makes of a map: its CUresult, and the bytes."""
    storage = (ctypes.c_uint8 * (MAP_SIZE + _ALIGN))()
    place = -(-ctypes.addressof(storage) // _ALIGN) * _ALIGN
    rank = len(wanted.sizes)
    result = cuda.library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        wanted.type,
        ctypes.c_uint32(rank),
        ctypes.c_void_p(wanted.address),
        (ctypes.c_uint64 * rank)(*wanted.sizes),
        (ctypes.c_uint64 * max(rank - 1, 1))(*wanted.strides),
        (ctypes.c_uint32 * rank)(*wanted.box),
        (ctypes.c_uint32 * rank)(*wanted.steps),
        wanted.interleave,
        wanted.swizzle,
        wanted.promotion,
        wanted.fill,
    )
    return int(result), ctypes.string_at(place, MAP_SIZE)


def encode_all(cuda: Cuda) -> list[dict[str, Any]]:
    """All maps of the sweep: arguments, CUresult, and bytes as hex where it is 0."""
    rows = []
    for wanted in sweep():
        result, data = encode(cuda, wanted)
        rows.append({**asdict(wanted), "result": result, "bytes": "" if result else data.hex()})
    return rows
