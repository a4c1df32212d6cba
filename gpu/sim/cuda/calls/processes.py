"""Memory of one process in another: the functions of section 6.13 that begin with cuIpc.

A handle names a file in memory of the process that exports, which another process finds under
/proc. Bytes are shared; the order of work in two processes is their own business.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpu.sim.cuda.calls.reserving import exact, release
from gpu.sim.cuda.codes import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MAP_FAILED,
    CudaError,
)
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, put64

HANDLE: Final = struct.Struct("<8sIiQQQ16s8x")
"""CUipcMemHandle of 64 bytes: mark, process, descriptor and inode of the file, bytes, number of the
allocation, UUID of the device."""
_MARK: Final = b"simulate"
_LAZY_ENABLE_PEER_ACCESS: Final = 1


@export("cuIpcGetMemHandle", "pQ", since=4010)
def _get_handle(call: Call, result: int, address: int) -> None:
    if not result:
        raise CudaError(INVALID_VALUE, "where the handle goes is NULL")
    found = exact(call, address, ("device",), INVALID_VALUE)
    file = call.driver.memory.share(found)
    inode, uuid = os.fstat(file).st_ino, found.context.device.uuid
    handle = HANDLE.pack(_MARK, os.getpid(), file, inode, found.size, found.number, uuid)
    ctypes.memmove(result, handle, HANDLE.size)


@export("cuIpcOpenMemHandle_v2", "phu", since=11000)
def _open_handle(call: Call, result: int, handle: ctypes.Structure, flags: int) -> None:
    if not result or flags != _LAZY_ENABLE_PEER_ACCESS:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x}; CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is 1")
    context, name = call.context, bytes(handle)
    mark, process, file, inode, size, _, uuid = HANDLE.unpack(name)
    if mark != _MARK or uuid not in [device.uuid for device in call.driver.devices]:
        raise CudaError(INVALID_HANDLE, "no handle of memory of a device here")
    if process == os.getpid():
        raise CudaError(INVALID_CONTEXT, "the handle is of this process, which has the memory")
    found, users = context.imported.get(name, (None, 0))
    if found is None:
        with _file_of(process, file, inode) as opened:
            found = call.driver.memory.open_shared(context, size, opened)
        call.driver.keep(context, found)
    context.imported[name] = found, users + 1
    put64(result, found.start)


@contextmanager
def _file_of(process: int, file: int, inode: int) -> Iterator[int]:
    """The file of another process, opened. Raises CudaError where it is not there any more."""
    try:
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
    except OSError as error:
        raise CudaError(MAP_FAILED, f"the process {process} is gone: {error.strerror}") from error
    try:
        if os.fstat(opened).st_ino != inode:
            raise CudaError(MAP_FAILED, f"the process {process} has freed the memory")
        yield opened
    finally:
        os.close(opened)


@export("cuIpcCloseMemHandle", "Q", since=4010)
def _close_handle(call: Call, address: int) -> None:
    context = call.context
    found = exact(call, address, ("imported",), INVALID_VALUE)
    name = next((name for name, (one, _) in context.imported.items() if one is found), None)
    if name is None:
        raise CudaError(INVALID_HANDLE, f"{address:#x} was opened in another context")
    _, users = context.imported.pop(name)
    if users > 1:
        context.imported[name] = found, users - 1
    else:
        release(call, found)
