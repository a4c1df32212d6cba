"""Physical memory of the simulated libcuda, and a process that gives away a file of some."""

from __future__ import annotations

import ctypes
import struct
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

import numpy as np

from sim.cuda.raw_cuda import RawCuda
from sim.cuda.vendors import opened

SIZE = 2 << 20
VALUES = np.arange(3000, dtype=np.uint32)
DESCRIPTOR = 1
# CUmemAllocationProp and CUmemAccessDesc of cuda.h.
PRIVATE = struct.pack("<4iQ8x", 1, 0, 1, 0, 0)
SHAREABLE = struct.pack("<4iQ8x", 1, DESCRIPTOR, 1, 0, 0)
READ_WRITE = struct.pack("<3i", 1, 0, 3)


def create(cuda: RawCuda, prop: bytes = SHAREABLE, size: int = SIZE) -> int:
    handle: int = cuda.get("cuMemCreate", size, prop, 0)
    return handle


def mapped(cuda: RawCuda, handle: int, size: int = SIZE, access: bytes = READ_WRITE) -> int:
    address: int = cuda.get("cuMemAddressReserve", size, 0, 0, 0)
    cuda.call("cuMemMap", address, size, 0, handle, 0)
    if access:
        cuda.call("cuMemSetAccess", address, size, access, 1)
    return address


def exported(cuda: RawCuda, handle: int) -> int:
    file: int = cuda.get("cuMemExportToShareableHandle", handle, DESCRIPTOR, 0, kind=ctypes.c_int)
    return file


def owner_of_a_file(pipe: Connection, pid: int, which: str | None = None) -> None:
    """Sends a file of memory with `VALUES`, of `opened` libcuda, to a process, and waits."""
    with opened(which, seed=3) as library:
        raw = RawCuda(library.functions)
        raw.start()
        handle = create(raw)
        raw.call("cuMemcpyHtoD_v2", mapped(raw, handle), VALUES.ctypes.data, VALUES.nbytes)
        raw.call("cuCtxSynchronize")
        send_handle(pipe, exported(raw, handle), pid)
        pipe.recv()
