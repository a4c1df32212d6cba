"""A process that gives its memory to others."""

from __future__ import annotations

import ctypes
from multiprocessing.connection import Connection

import numpy as np

from sim.cuda.raw_cuda import IpcHandle, RawCuda
from sim.cuda.vendors import opened

VALUES = np.arange(3000, dtype=np.uint32)


def handle_of(raw: RawCuda, address: int) -> bytes:
    handle = IpcHandle()
    raw.call("cuIpcGetMemHandle", ctypes.addressof(handle), address)
    return bytes(handle)


def exporter(pipe: Connection, which: str | None) -> None:
    """A process with memory, which does what it is told until it is told no more."""
    with opened(which, seed=9) as library:
        raw = RawCuda(library.functions)
        raw.start()
        address = raw.upload(VALUES)
        raw.call("cuCtxSynchronize")  # nothing else orders what two processes do
        pipe.send(handle_of(raw, address))
        for told in iter(pipe.recv, None):
            if told == "free":
                raw.call("cuMemFree_v2", address)
                pipe.send(None)
            else:
                pipe.send(raw.download(address, VALUES))
