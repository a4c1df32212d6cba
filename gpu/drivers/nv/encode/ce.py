"""What copy engines are asked: copying, filling, writing a semaphore.

The functions give methods for `Pushbuffer.write` on a channel that has a copy class. Transfers wait
for the one before them. Methods: clc8b5.h of open-gpu-doc; tinygrad's ops_nv.py and libcuda use
these combinations.
"""

from __future__ import annotations

from typing import Final

from gpu.core.errors import InvalidValue
from gpu.drivers.nv.encode.methods import copy
from gpu.drivers.nv.encode.methods.copy import Component, Layout, SemaphoreType, Transfer
from gpu.drivers.nv.encode.methods.method import Engine
from gpu.drivers.nv.encode.pushbuf import Item, Pushbuffer, check_address, part
from gpu.hcq.symbol import Symbol, Value, plus

ADDRESS_LIMIT: Final = 1 << 49
MAX_LINE: Final = 1 << 31  # bytes, or pixels of a fill, in one transfer
_PIXELS: Final = (1, 2, 4)


def set_up_copy(copy_class: int) -> Pushbuffer:
    """What a copy channel gets first: its class."""
    return Pushbuffer(copy=copy_class).bind(Engine.COPY)


def copy_linear(dst: Value, src: Value, size: Value) -> list[Item]:
    """Copies bytes. A size that is a symbol must be below 4 GiB. Raises InvalidValue."""
    _check("destination of a copy", dst, size)
    _check("source of a copy", src, size)
    items: list[Item] = []
    for start, length in _lines(size):
        items += [
            *_address(copy.OFFSET_IN_UPPER, copy.OFFSET_IN_LOWER, plus(src, start)),
            *_address(copy.OFFSET_OUT_UPPER, copy.OFFSET_OUT_LOWER, plus(dst, start)),
            part(copy.LINE_LENGTH_IN, "VALUE", length),
            copy.LINE_COUNT(VALUE=1),
            copy.LAUNCH_DMA(
                DATA_TRANSFER_TYPE=Transfer.NON_PIPELINED,
                SRC_MEMORY_LAYOUT=Layout.PITCH,
                DST_MEMORY_LAYOUT=Layout.PITCH,
            ),
        ]
    return items


def fill(dst: int, pattern: int, width: int, size: int) -> list[Item]:
    """Fills ``size`` bytes with a number of 1, 2 or 4 bytes, of which they are a multiple.

    Raises InvalidValue for another width, a pattern that is wider, and a misaligned destination.
    """
    if width not in _PIXELS or not 0 <= pattern < 1 << 8 * width:
        raise InvalidValue(f"fill with {pattern:#x} of {width} bytes: give a number of 1, 2 or 4")
    if size % width:
        raise InvalidValue(f"fill of {size} bytes with {width} each: give a multiple")
    _check("destination of a fill", dst, size, width)
    items: list[Item] = [
        copy.SET_REMAP_CONST_A(V=pattern),
        copy.SET_REMAP_COMPONENTS(
            DST_X=Component.CONST_A,
            DST_Y=Component.NO_WRITE,
            DST_Z=Component.NO_WRITE,
            DST_W=Component.NO_WRITE,
            COMPONENT_SIZE=width - 1,
        ),
    ]
    for start, pixels in _lines(size // width):
        items += [
            *_address(copy.OFFSET_OUT_UPPER, copy.OFFSET_OUT_LOWER, dst + start * width),
            part(copy.LINE_LENGTH_IN, "VALUE", pixels),
            copy.LINE_COUNT(VALUE=1),
            copy.LAUNCH_DMA(
                DATA_TRANSFER_TYPE=Transfer.NON_PIPELINED,
                SRC_MEMORY_LAYOUT=Layout.PITCH,
                DST_MEMORY_LAYOUT=Layout.PITCH,
                REMAP_ENABLE=1,
            ),
        ]
    return items


def semaphore(
    address: Value, payload: Value, *, bits: int = 64, timestamp: bool = False
) -> list[Item]:
    """Writes a payload and perhaps nanoseconds at 8, once all before it is written and visible.

    Raises InvalidValue for a misaligned address, and a payload of more than ``bits``. Payloads of
    64 bits are Unsupported on GA100, which lacks a method for them.
    """
    if bits not in (32, 64):
        raise InvalidValue(f"semaphore of {bits} bits: give 32 or 64")
    if not isinstance(payload, Symbol) and not 0 <= payload < 1 << bits:
        raise InvalidValue(f"semaphore payload {payload:#x} does not fit {bits} bits")
    check_address("semaphore", address, 16 if timestamp else bits // 8, ADDRESS_LIMIT)
    upper = [part(copy.SET_SEMAPHORE_PAYLOAD_UPPER, "PAYLOAD", payload, 32)] if bits == 64 else []
    return [
        part(copy.SET_SEMAPHORE_A, "UPPER", address, 32),
        part(copy.SET_SEMAPHORE_B, "LOWER", address),
        part(copy.SET_SEMAPHORE_PAYLOAD, "PAYLOAD", payload),
        *upper,
        copy.LAUNCH_DMA(
            FLUSH_ENABLE=1,
            SEMAPHORE_TYPE=SemaphoreType.FOUR_WORDS if timestamp else SemaphoreType.ONE_WORD,
            SEMAPHORE_PAYLOAD_SIZE=int(bits == 64),
        ),
    ]


def _check(what: str, address: Value, size: Value, align: int = 1) -> None:
    """Raises InvalidValue for no bytes, and for those beyond all addresses."""
    if not isinstance(size, Symbol) and size < 1:
        raise InvalidValue(f"{what} of {size} bytes: at least 1 is needed")
    room = 0 if isinstance(size, Symbol) else size - 1
    check_address(what, address, align, ADDRESS_LIMIT - room)


def _lines(size: Value) -> list[tuple[int, Value]]:
    """Where transfers of at most `MAX_LINE` begin, and how long they are."""
    if isinstance(size, Symbol):
        return [(0, size)]
    return [(start, min(MAX_LINE, size - start)) for start in range(0, size, MAX_LINE)]


def _address(
    upper: type[copy.CopyMethod], lower: type[copy.CopyMethod], address: Value
) -> list[Item]:
    (high,), (low,) = upper.fields, lower.fields
    return [part(upper, high, address, 32), part(lower, low, address)]
