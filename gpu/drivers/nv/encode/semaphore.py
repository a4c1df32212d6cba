"""What the host engine does between engines: semaphores, waiting for idle, barriers.

The functions give methods for `Pushbuffer.write`, on any channel. Semantics: clc56f.h of
open-gpu-doc; tinygrad's ops_nv.py is known to run with these combinations.
"""

from __future__ import annotations

from typing import Final

from gpu.core.errors import InvalidValue
from gpu.drivers.nv.encode.methods import host
from gpu.drivers.nv.encode.methods.host import MemOperation, SemOperation
from gpu.drivers.nv.encode.pushbuf import Item, check_address, part
from gpu.hcq.symbol import Symbol, Value

TIMESTAMP_ALIGN: Final = 16


def release(
    address: Value, payload: Value, *, bits: int = 64, wait: bool = True, timestamp: bool = False
) -> list[Item]:
    """Writes a payload and perhaps a timestamp, nanoseconds at ``address + 8``.

    With ``wait`` once all before it is done and visible. Raises InvalidValue for an address that
    is no multiple of its size, or of 16 with a timestamp, and for a payload of more than ``bits``.
    """
    check_address("semaphore", address, TIMESTAMP_ALIGN if timestamp else bits // 8)
    execute = host.SEM_EXECUTE(
        OPERATION=SemOperation.RELEASE,
        RELEASE_WFI=int(wait),
        PAYLOAD_SIZE=_size(bits),
        RELEASE_TIMESTAMP=int(timestamp),
    )
    return [*_operands(address, payload, bits), execute]


def acquire(
    address: Value,
    payload: Value,
    *,
    bits: int = 64,
    operation: SemOperation = SemOperation.ACQ_STRICT_GEQ,
) -> list[Item]:
    """Waits until memory compares with a payload; other channel groups run meanwhile.

    Raises InvalidValue for a misaligned address and a payload of more than ``bits``.
    """
    check_address("semaphore", address, bits // 8)
    execute = host.SEM_EXECUTE(OPERATION=operation, ACQUIRE_SWITCH_TSG=1, PAYLOAD_SIZE=_size(bits))
    return [*_operands(address, payload, bits), execute]


def _operands(address: Value, payload: Value, bits: int) -> list[Item]:
    if not isinstance(payload, Symbol) and not 0 <= payload < 1 << bits:
        raise InvalidValue(f"semaphore payload {payload:#x} does not fit {bits} bits")
    high = (
        part(host.SEM_PAYLOAD_HI, "PAYLOAD", payload, 32) if bits == 64 else host.SEM_PAYLOAD_HI()
    )
    return [
        part(host.SEM_ADDR_LO, "OFFSET", address, 2),
        part(host.SEM_ADDR_HI, "OFFSET", address, 32),
        part(host.SEM_PAYLOAD_LO, "PAYLOAD", payload),
        high,
    ]


def _size(bits: int) -> int:
    if bits not in (32, 64):
        raise InvalidValue(f"semaphore payload of {bits} bits: give 32 or 64")
    return int(bits == 64)


def wait_for_idle() -> list[Item]:
    """Goes on when the channel's engine is idle."""
    return [host.WFI(SCOPE=1)]


def membar() -> list[Item]:
    """All that was written before it is visible to the whole system before what comes after it."""
    return [
        host.MEM_OP_A(),
        host.MEM_OP_B(),
        host.MEM_OP_C(MEMBAR_TYPE=0),
        host.MEM_OP_D(OPERATION=MemOperation.MEMBAR),
    ]
