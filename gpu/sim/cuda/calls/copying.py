"""Copies and fills: section 6.13, the functions with and without Async."""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.sim.cuda import copies
from gpu.sim.cuda.codes import INVALID_VALUE, CudaError
from gpu.sim.cuda.copies import End, Fill, described_end, device_end, host_end
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export

_TARGET: Final = "the target"
_SOURCE: Final = "the source"


def _to_device(call: Call, target: int, source: int, size: int, stream: int, waits: bool) -> None:
    queue = call.stream(stream)
    if size:
        ends = (
            device_end(call.driver, target, size, _TARGET),
            host_end(call.driver, source, size, _SOURCE),
        )
        copies.copy(call, queue, *ends, size, waits)


def _to_host(call: Call, target: int, source: int, size: int, stream: int, waits: bool) -> None:
    queue = call.stream(stream)
    if size:
        ends = (
            host_end(call.driver, target, size, _TARGET),
            device_end(call.driver, source, size, _SOURCE),
        )
        copies.copy(call, queue, *ends, size, waits)


def _on_device(call: Call, target: int, source: int, size: int, stream: int, waits: bool) -> None:
    queue = call.stream(stream)
    if size:
        ends = (
            device_end(call.driver, target, size, _TARGET),
            device_end(call.driver, source, size, _SOURCE),
        )
        copies.copy(call, queue, *ends, size, waits)


def _unified(call: Call, target: int, source: int, size: int, stream: int, waits: bool) -> None:
    queue = call.stream(stream)
    if size:
        ends = (
            host_end(call.driver, target, size, _TARGET),
            host_end(call.driver, source, size, _SOURCE),
        )
        copies.copy(call, queue, *ends, size, waits)


@export("cuMemcpyHtoD_v2", "Qpz", twin="ptds", since=3020)
def _htod(call: Call, target: int, source: int, size: int) -> None:
    _to_device(call, target, source, size, 0, waits=True)


@export("cuMemcpyHtoDAsync_v2", "Qpzp", twin="ptsz", since=3020)
def _htod_async(call: Call, target: int, source: int, size: int, stream: int) -> None:
    _to_device(call, target, source, size, stream, waits=False)


@export("cuMemcpyDtoH_v2", "pQz", twin="ptds", since=3020)
def _dtoh(call: Call, target: int, source: int, size: int) -> None:
    _to_host(call, target, source, size, 0, waits=True)


@export("cuMemcpyDtoHAsync_v2", "pQzp", twin="ptsz", since=3020)
def _dtoh_async(call: Call, target: int, source: int, size: int, stream: int) -> None:
    _to_host(call, target, source, size, stream, waits=False)


@export("cuMemcpyDtoD_v2", "QQz", twin="ptds", since=3020)
def _dtod(call: Call, target: int, source: int, size: int) -> None:
    _on_device(call, target, source, size, 0, waits=True)


@export("cuMemcpyDtoDAsync_v2", "QQzp", twin="ptsz", since=3020)
def _dtod_async(call: Call, target: int, source: int, size: int, stream: int) -> None:
    _on_device(call, target, source, size, stream, waits=False)


@export("cuMemcpy", "QQz", twin="ptds", since=4000)
def _memcpy(call: Call, target: int, source: int, size: int) -> None:
    _unified(call, target, source, size, 0, waits=True)


@export("cuMemcpyAsync", "QQzp", twin="ptsz", since=4000)
def _memcpy_async(call: Call, target: int, source: int, size: int, stream: int) -> None:
    _unified(call, target, source, size, stream, waits=False)


@export("cuMemcpyPeer", "QpQpz", twin="ptds", since=4000)
def _peer(call: Call, target: int, to: int, source: int, origin: int, size: int) -> None:
    _peer_async(call, target, to, source, origin, size, 0)


@export("cuMemcpyPeerAsync", "QpQpzp", twin="ptsz", since=4000)
def _peer_async(
    call: Call, target: int, to: int, source: int, origin: int, size: int, stream: int
) -> None:
    call.driver.context(to)
    call.driver.context(origin)
    _on_device(call, target, source, size, stream, waits=False)


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        *((f"src_{n}", ctypes.c_size_t) for n in ("x", "y")),
        ("src_type", ctypes.c_uint),
        *((f"src_{n}", ctypes.c_uint64) for n in ("host", "device", "array", "pitch")),
        *((f"dst_{n}", ctypes.c_size_t) for n in ("x", "y")),
        ("dst_type", ctypes.c_uint),
        *((f"dst_{n}", ctypes.c_uint64) for n in ("host", "device", "array", "pitch")),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


def _row_end(call: Call, copy: _Copy2D, side: str, row: int) -> End:
    """One side of a row of a copy in two dimensions."""
    what = _SOURCE if side == "src" else _TARGET
    x, y, pitch = (getattr(copy, f"{side}_{name}") for name in ("x", "y", "pitch"))
    return described_end(call.driver, copy, side, x + (row + y) * pitch, copy.width, what)


def _copy_2d(call: Call, pointer: int, stream: int, waits: bool) -> None:
    if not pointer:
        raise CudaError(INVALID_VALUE, "the description of the copy is NULL")
    given, queue = _Copy2D.from_address(pointer), call.stream(stream)
    for side in ("src", "dst"):
        pitch = getattr(given, f"{side}_pitch")
        if pitch and pitch < getattr(given, f"{side}_x") + given.width:
            raise CudaError(INVALID_VALUE, f"rows of {given.width} bytes, {pitch} apart")
    rows = [
        (_row_end(call, given, "dst", row), _row_end(call, given, "src", row))
        for row in range(given.height)
    ]
    for target, source in rows:
        copies.copy(call, queue, target, source, given.width, waits)


@export("cuMemcpy2D_v2", "p", twin="ptds", since=3020)
@export("cuMemcpy2DUnaligned_v2", "p", twin="ptds", since=3020)
def _memcpy_2d(call: Call, pointer: int) -> None:
    _copy_2d(call, pointer, 0, waits=True)


@export("cuMemcpy2DAsync_v2", "pp", twin="ptsz", since=3020)
def _memcpy_2d_async(call: Call, pointer: int, stream: int) -> None:
    _copy_2d(call, pointer, stream, waits=False)


def _fill(call: Call, target: int, size: int, value: int, count: int, stream: int) -> None:
    _fill_2d(call, target, 0, size, value, count, 1, stream)


def fill_of(
    call: Call, target: int, pitch: int, size: int, value: int, width: int, height: int
) -> tuple[End, Fill] | None:
    """A fill of rows with elements of `size` bytes; None for an empty one. Raises CudaError."""
    row = width * size
    if target % size or pitch % size or (height > 1 and pitch < row):
        raise CudaError(
            INVALID_VALUE, f"rows of {row} bytes at {target:#x}, {pitch} apart, by {size} bytes"
        )
    if not row or not height:
        return None
    pitch = pitch if height > 1 else row
    end = device_end(call.driver, target, pitch * (height - 1) + row, _TARGET)
    return end, Fill(value.to_bytes(size, "little"), width, height, pitch)


def _fill_2d(
    call: Call, target: int, pitch: int, size: int, value: int, width: int, height: int, stream: int
) -> None:
    queue = call.stream(stream)
    found = fill_of(call, target, pitch, size, value, width, height)
    if found is not None:
        copies.fill(call, queue, *found)


@export("cuMemsetD8_v2", "QBz", twin="ptds", since=3020)
def _memset8(call: Call, target: int, value: int, count: int) -> None:
    _fill(call, target, 1, value, count, 0)


@export("cuMemsetD16_v2", "QHz", twin="ptds", since=3020)
def _memset16(call: Call, target: int, value: int, count: int) -> None:
    _fill(call, target, 2, value, count, 0)


@export("cuMemsetD32_v2", "Quz", twin="ptds", since=3020)
def _memset32(call: Call, target: int, value: int, count: int) -> None:
    _fill(call, target, 4, value, count, 0)


@export("cuMemsetD8Async", "QBzp", twin="ptsz", since=3020)
def _memset8_async(call: Call, target: int, value: int, count: int, stream: int) -> None:
    _fill(call, target, 1, value, count, stream)


@export("cuMemsetD16Async", "QHzp", twin="ptsz", since=3020)
def _memset16_async(call: Call, target: int, value: int, count: int, stream: int) -> None:
    _fill(call, target, 2, value, count, stream)


@export("cuMemsetD32Async", "Quzp", twin="ptsz", since=3020)
def _memset32_async(call: Call, target: int, value: int, count: int, stream: int) -> None:
    _fill(call, target, 4, value, count, stream)


@export("cuMemsetD2D8_v2", "QzBzz", twin="ptds", since=3020)
def _memset2d8(call: Call, target: int, pitch: int, value: int, width: int, height: int) -> None:
    _fill_2d(call, target, pitch, 1, value, width, height, 0)


@export("cuMemsetD2D32_v2", "Qzuzz", twin="ptds", since=3020)
def _memset2d32(call: Call, target: int, pitch: int, value: int, width: int, height: int) -> None:
    _fill_2d(call, target, pitch, 4, value, width, height, 0)
