"""A kernel that answers KGSL's calls as it is told to; its GPU does nothing but to write signals.

It knows of the calls what a driver needs to go on, and checks nothing: that is the model's job.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence

from gpu.autogen import kgsl
from gpu.core import hostmem
from gpu.core.errors import TransportError
from gpu.core.ref import Argument, Ref
from gpu.core.wait import HostWaiter
from gpu.drivers.kgsl.packets import Op, commands_of
from gpu.transport.os import RealOs
from gpu.transport.world import World

_CACHED = kgsl.KGSL_CACHEMODE_WRITEBACK << kgsl.KGSL_CACHEMODE_SHIFT
NAMES = {
    value: name.removeprefix("IOCTL_KGSL_")
    for name, value in vars(kgsl).items()
    if name.startswith("IOCTL_KGSL_")
}


class FakeKgsl(RealOs):
    """Its objects are memory at the same address for both sides.

    Attributes:
        calls: names of the calls that were made, with their argument as it came.
        fails: errno by the name of a call, asked each time.
        grants_coherence, chip_id: what it is.
        page_faults: addresses that contexts have accessed where no memory is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, bytes]] = []
        self.fails: Callable[[str, Argument], int] = lambda name, argument: 0
        self.grants_coherence = True
        self.chip_id = 0x06030001
        self.page_faults: tuple[int, ...] = ()
        self.objects: dict[int, tuple[int, int, int]] = {}  # address, size, flags
        self.mapped = self.files = self.contexts = 0
        self.queued = 0
        self._next = 1

    @property
    def world(self) -> World:
        return World(self, HostWaiter())

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def open(self, path: str, flags: int) -> int:
        assert path == "/dev/kgsl-3d0"
        self.files += 1
        return 1000

    def close(self, fd: int) -> None:
        self.files -= 1

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        self.mapped += 1
        return self.objects[offset >> 12][0]

    def munmap(self, address: int, size: int) -> None:
        self.mapped -= 1

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        name = NAMES[request]
        self.calls.append((name, bytes(argument)))
        if number := self.fails(name, argument):
            if number == errno.EPROTO:
                self._answer(name, argument)
            raise TransportError(f"ioctl {name}: {errno.errorcode[number]}", number)
        self._answer(name, argument)
        return 0

    def _answer(self, name: str, args: Argument) -> None:
        match name, args:
            case "DEVICE_GETPROPERTY", kgsl.kgsl_device_getproperty():
                if args.type == kgsl.KGSL_PROP_DEVICE_INFO:
                    kgsl.kgsl_devinfo.from_address(args.value).chip_id = self.chip_id
                elif args.type == kgsl.KGSL_PROP_GPU_MODEL:
                    ctypes.memmove(args.value, b"Adreno630v2\0", 12)
            case "DRAWCTXT_CREATE", kgsl.kgsl_drawctxt_create():
                self.contexts += 1
                self.queued = 0
                args.drawctxt_id = self.contexts
            case "GPUOBJ_ALLOC", kgsl.kgsl_gpuobj_alloc():
                self._make(hostmem.map_anonymous(args.size), args)
            case "GPUOBJ_IMPORT", kgsl.kgsl_gpuobj_import():
                self._make(ctypes.c_uint64.from_address(args.priv).value, args)
            case "GPUOBJ_INFO", kgsl.kgsl_gpuobj_info():
                args.gpuaddr, args.size, args.flags = self.objects[args.id]
            case "GPUOBJ_FREE", kgsl.kgsl_gpuobj_free():
                del self.objects[args.id]
            case "GPU_COMMAND", kgsl.kgsl_gpu_command():
                self.queued += 1
                self._run(args)
            case "CMDSTREAM_READTIMESTAMP_CTXTID", kgsl.kgsl_cmdstream_readtimestamp_ctxtid():
                args.timestamp = self.queued
            case "GET_FAULT_REPORT", kgsl.kgsl_fault_report():
                fault = kgsl.kgsl_fault.from_address(args.faultlist)
                fault.type, fault.count = kgsl.KGSL_FAULT_TYPE_PAGEFAULT, len(self.page_faults)
                reports = (kgsl.kgsl_pagefault_report * len(self.page_faults)).from_address
                for report, address in zip(
                    reports(fault.fault) if fault.fault else (), self.page_faults, strict=False
                ):
                    report.fault_addr = address

    def _make(self, address: int, args: kgsl.kgsl_gpuobj_alloc | kgsl.kgsl_gpuobj_import) -> None:
        flags = args.flags
        if not self.grants_coherence:
            flags &= ~kgsl.KGSL_MEMFLAGS_IOCOHERENT
        size = args.size if isinstance(args, kgsl.kgsl_gpuobj_alloc) else args.priv_len
        args.id, self.objects[self._next] = self._next, (address, size, flags)
        self._next += 1

    def _run(self, command: kgsl.kgsl_gpu_command) -> None:
        parts = (kgsl.kgsl_command_object * command.numcmds).from_address(command.cmdlist)
        data = b"".join(ctypes.string_at(part.gpuaddr, part.size) for part in parts)
        words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
        for header, body in commands_of(words):
            if header.number == Op.EVENT_WRITE and len(body) == 4:
                place = body[1] | body[2] << 32
                ctypes.c_uint32.from_address(place).value = body[3]
            elif header.number == Op.REG_TO_MEM:
                place = body[1] | body[2] << 32
                ctypes.c_uint64.from_address(place).value = 1000 + len(self.calls)
