"""/dev/nvidiactl and /dev/nvidiaN: escapes, registered files, and what a file may map.

From kernel-open/nvidia/{nv.c,nv-mmap.c} and arch/nvalloc/unix/src/{escape.c,osapi.c} of
open-gpu-kernel-modules 580.142. A wrong number, size or file is EINVAL; all else is a status in the
argument, and the ioctl succeeds.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.autogen.nv import rm
from gpu.core import hostmem
from gpu.core.bits import align_up, bits
from gpu.sim.kernel import CallerMemory, SysError
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.files import layouts, sandbox
from gpu.sim.nv.rm.classes import OS_DESCRIPTOR, RULES
from gpu.sim.nv.rm.control import command_of, control
from gpu.sim.nv.rm.layout import Layout, Record
from gpu.sim.nv.rm.manager import Mapped, ResourceManager
from gpu.sim.nv.rm.state import Caller, Place
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.nv.rm.virtual import DmaHandles, map_dma, unmap_dma
from gpu.sim.physical import PAGE, Extent, UserPages
from gpu.sim.process import ArgumentBytes, SimFile, SimProcess

_MAGIC: Final = 0x46
_XFER: Final = 211
_CARD_INFO: Final = 200
_VERSION_QUERY: Final = 0x32
_VERSION_RELAXED: Final = 0x31
_REPLY_RECOGNIZED: Final = 1
_COHERENCIES: Final = (0, 1, 5)  # uncached, cached, write-back
_MOST_LISTED: Final = 1 << 20  # RMAPI_PARAM_COPY_MAX_PARAMS_SIZE


class Escape(NamedTuple):
    """An escape: its argument, which file it is for (None: either), and what does it."""

    layout: Layout
    control_only: bool | None
    handler: Callable[[RmFile, SimProcess, Record], None]


class RmFile(SimFile):
    """One open node of the driver.

    Attributes:
        gpu: of /dev/nvidiaN; None for the control file.
        registered: the control file that REGISTER_FD named.
        mapped: what mmap gives; set once.
        events: what was signalled and not fetched, oldest first.
        sandboxed: whether calls come through gVisor; see `gpu.sim.nv.files.sandbox`.
    """

    def __init__(self, rm: ResourceManager, gpu: NvGpu | None, sandboxed: bool):
        self.rm = rm
        self.gpu = gpu
        self.sandboxed = sandboxed
        self.registered: RmFile | None = None
        self.mapped: Mapped | None = None
        self.events: list[Record] = []

    def caller(self, process: SimProcess) -> Caller:
        """Who calls through this file: clients are of the control file that it belongs to."""
        return Caller(self.registered or self, process.pid)

    def call_name(self, request: int) -> str:
        """As nv_escape.h has it, without what all begin with."""
        return ESCAPE_NAMES.get(request & 0xFF, "")

    def refuse(self, request: int, argument: ArgumentBytes, answer: str) -> int:
        """As `SimFile.refuse`, or with a status in the argument."""
        escape = ESCAPES.get(request & 0xFF)
        if answer not in Status.__members__ or escape is None:
            return super().refuse(request, argument, answer)
        args = self.rm.branch.layout(escape.layout).parse(bytes(argument))
        name = "status" if "status" in args.layout.fields else "Status"
        if name not in args.layout.fields:
            return super().refuse(request, argument, "EINVAL")
        args[name] = Status[answer]
        ctypes.memmove(argument, bytes(args.data), len(args.data))
        return 0

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes an escape; see `ESCAPES`."""
        number, size = request & 0xFF, request >> 16 & 0x3FFF
        if bits(request, 15, 8) != _MAGIC:
            self.rm.debug.violation(f"ioctl {request:#x} is not of the driver's type {_MAGIC:#x}")
        if len(argument) < size:
            raise SysError(errno.EFAULT, f"an argument of {len(argument)} bytes, not {size}")
        data = bytearray(ctypes.string_at(argument, size))
        if number == _XFER and not self.sandboxed:
            return self._transfer(process, data)
        try:
            self._escape(process, number, data)
        finally:
            ctypes.memmove(argument, bytes(data), size)
        return 0

    def _transfer(self, process: SimProcess, data: bytearray) -> int:
        """An argument too large for the number: its size and place come in a structure."""
        if len(data) != layouts.XFER.size:
            raise SysError(errno.EINVAL, f"XFER of {len(data)} bytes")
        args = Record(layouts.XFER, data)
        user = process.user
        inner = bytearray(user.read(args["ptr"], args["size"]))
        try:
            self._escape(process, args["cmd"], inner)
        finally:
            user.write(args["ptr"], inner)
        return 0

    def _escape(self, process: SimProcess, number: int, data: bytearray) -> None:
        if self.sandboxed:
            sandbox.check_escape(number, self.rm.branch)
        for gpu in self.rm.gpus:
            if not gpu.plugged and self.gpu in (None, gpu):
                raise SysError(errno.EINVAL, "the GPU is lost")
        if number == _CARD_INFO:
            self._card_info(data)
            return
        escape = ESCAPES.get(number)
        if escape is None:
            self.rm.debug.note(f"escape {number:#x} is unknown or not modelled")
            raise SysError(errno.EINVAL, f"escape {number:#x}")
        layout = self.rm.branch.layout(escape.layout)
        if number == 0x2B and len(data) == layouts.OS21.size:
            layout = layouts.OS21
        if len(data) != layout.size:
            raise SysError(errno.EINVAL, f"escape {number:#x} of {len(data)}, not {layout.size}")
        if escape.control_only is not None and escape.control_only != (self.gpu is None):
            raise SysError(errno.EINVAL, f"escape {number:#x} on the wrong kind of file")
        args = Record(layout, data)
        status = Status.OK
        try:
            if number in _FIRMWARES and any(gpu.needs_reset for gpu in self.rm.gpus):
                raise RmError(Status.RESET_REQUIRED, "the firmware does not answer")
            escape.handler(self, process, args)
        except RmError as error:
            status = error.status
            self.rm.debug.note(f"escape {number:#x} answers {error}")
        if "status" in layout.fields:
            args["status"] = status
        elif "Status" in layout.fields:
            args["Status"] = status
        elif status:
            raise SysError(errno.EINVAL, f"escape {number:#x}: {status.name}")

    def _card_info(self, data: bytearray) -> None:
        if self.gpu is not None:
            raise SysError(errno.EINVAL, "CARD_INFO on a GPU's file")
        step = layouts.CARD_INFO.size
        if len(data) // step < len(self.rm.gpus):
            raise SysError(errno.EINVAL, f"room for {len(data) // step} cards")
        data[:] = bytes(len(data))
        for i, gpu in enumerate(self.rm.gpus):
            card = Record(layouts.CARD_INFO)
            card["valid"] = 1
            card["bus"] = gpu.bus
            card["vendor_id"], card["device_id"] = 0x10DE, gpu.chip.device_id
            card["gpu_id"], card["minor_number"] = gpu.gpu_id, gpu.index
            card["reg_address"], card["reg_size"] = 0xF000_0000 + (gpu.index << 24), 16 << 20
            card["fb_address"], card["fb_size"] = 1 << 40 + gpu.index, gpu.chip.bar1_size
            data[i * step : (i + 1) * step] = card.data

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Maps what RM_MAP_MEMORY prepared (nv-mmap.c, nvidia_mmap_helper)."""
        if self.mapped is None:
            raise SysError(errno.EINVAL, "RM_MAP_MEMORY did not name this file")
        if offset:
            raise SysError(errno.EINVAL, f"offset {offset:#x}; the mapping begins at 0")
        mapped, size = self.mapped, align_up(size, PAGE)
        if mapped.gpu and size != mapped.size:
            raise SysError(errno.ENXIO, f"{size:#x} bytes of a BAR mapping of {mapped.size:#x}")
        if size > mapped.size:
            raise SysError(errno.ERANGE, f"{size:#x} bytes of {mapped.size:#x}")
        if not mapped.writable:
            prot &= ~hostmem.PROT_WRITE
        kept = flags & (hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE) | hostmem.MAP_SHARED
        where = (mapped.extents, size, prot, kept, address)
        return mapped.pool.map_for_cpu(*where, process.mapper)

    def released(self) -> None:
        """The file's clients end with it."""
        self.rm.end_session(self)
        kept = {key: queue for key, queue in self.rm.os_events.items() if queue is not self.events}
        self.rm.os_events = kept


def _alloc(file: RmFile, process: SimProcess, args: Record) -> None:
    number, address = args["hClass"], args["pAllocParms"]
    if file.sandboxed:
        sandbox.check_class(args, file.rm.branch)
    if file.gpu is not None and (number not in RULES or RULES[number].kind != "event"):
        raise SysError(errno.EINVAL, "RM_ALLOC on a GPU's file")
    params = file.rm.rule(number).params
    size = file.rm.branch.layout(params).size if params else 0
    data = _read(process.user, address, size) if address else None
    handle, answer = file.rm.allocate(file.caller(process), _place(args), number, data)
    args["hObjectNew"] = handle
    if answer is not None:
        process.user.write(address, answer)


def _place(args: Record) -> Place:
    return Place(args["hRoot"], args["hObjectParent"], args["hObjectNew"])


def _read(user: CallerMemory, address: int, size: int) -> bytes:
    """portMemExCopyFromUser. Raises RmError(INVALID_ADDRESS)."""
    try:
        return user.read(address, size)
    except SysError as error:
        raise RmError(Status.INVALID_ADDRESS, str(error)) from error


def _control(file: RmFile, process: SimProcess, args: Record) -> None:
    """RM_CONTROL, with what pointers among its parameters lead to (embeddedParamCopyIn, Out)."""
    number, address, size = args["cmd"], args["params"], args["paramsSize"]
    client, user, rm = args["hClient"], process.user, file.rm
    if file.sandboxed:
        sandbox.check_command(number, address, size)
    command = command_of(rm, client, number, size)
    paired = bool(size) == bool(address)
    check(paired, Status.INVALID_ARGUMENT, f"command {number:#x}: {size} bytes at {address:#x}")
    data = _read(user, address, size) if size else b""
    lists, pointers = {}, {}
    if command and command.lists:
        params = rm.branch.layout(command.layout).parse(data)
        pointers = {name: params[name] for name in command.lists if params[name]}
        for name, pointer in pointers.items():
            length = command.lists[name](params)
            check(length <= _MOST_LISTED, Status.INVALID_ARGUMENT, f"{name} of {length} bytes")
            lists[name] = bytearray(_read(user, pointer, length))
    answer = control(rm, file.caller(process), client, args["hObject"], number, data, lists)
    for name, pointer in pointers.items():
        user.write(pointer, lists[name])
    user.write(address, answer)


def _alloc_memory(file: RmFile, process: SimProcess, args: Record) -> None:
    """NV_ESC_RM_ALLOC_MEMORY with memory that the process has (RmAllocOsDescriptor)."""
    if args["hClass"] != OS_DESCRIPTOR:
        raise RmError(Status.NOT_SUPPORTED, f"class {args['hClass']:#x} here is not modelled")
    flags = args["flags"]
    good = bits(flags, 11, 8) == 0 and bits(flags, 31, 30) == 1
    check(good and bits(flags, 15, 12) in _COHERENCIES, Status.INVALID_FLAGS, f"{flags:#x}")
    start = args["pMemory"]
    check(start % PAGE == 0, Status.NOT_SUPPORTED, f"{start:#x} does not begin a page")
    check(args["limit"] != (1 << 64) - 1, Status.INVALID_LIMIT, "the limit overflows")
    size = align_up(args["limit"] + 1, PAGE)
    for page in range(start, start + size, PAGE):
        _read(process.user, page, 1)
    pages, span = UserPages(process.user), Extent(start, size)
    args["hObjectNew"] = file.rm.describe(file.caller(process), _place(args), pages, span)


def _free(file: RmFile, process: SimProcess, args: Record) -> None:
    file.rm.free(file.caller(process), args["hRoot"], args["hObjectOld"])


def _duplicate(file: RmFile, process: SimProcess, args: Record) -> None:
    place = Place(args["hClient"], args["hParent"], args["hObject"])
    source = args["hClientSrc"], args["hObjectSrc"]
    args["hObject"] = file.rm.duplicate(file.caller(process), place, source)


def _share(file: RmFile, process: SimProcess, args: Record) -> None:
    file.rm.share(file.caller(process), args["hClient"], args["hObject"], args["type"])


def _map_memory(file: RmFile, process: SimProcess, args: Record) -> None:
    """RM_MAP_MEMORY, then the mapping context goes to a file (nv_add_mapping_context_to_file)."""
    handles = args["hClient"], args["hDevice"], args["hMemory"]
    span, caller = Extent(args["offset"], args["length"]), file.caller(process)
    linear, mapped = file.rm.map_memory(caller, *handles, span, args["flags"])
    args["pLinearAddress"] = linear
    try:
        mine = file.rm.clients[args["hClient"]].pid == process.pid
        check(mine, Status.INVALID_CLIENT, "the client is of another process")
        target = _file(process, args.signed("fd"))
        right = target.gpu is mapped.gpu
        check(right, Status.INVALID_ARGUMENT, f"fd {args['fd']} is of another device")
        check(target.mapped is None, Status.STATE_IN_USE, f"fd {args['fd']} has a mapping already")
    except RmError:
        file.rm.unmap_memory(caller, *handles, linear)
        raise
    target.mapped = mapped


def _unmap_memory(file: RmFile, process: SimProcess, args: Record) -> None:
    handles = args["hClient"], args["hDevice"], args["hMemory"]
    file.rm.unmap_memory(file.caller(process), *handles, args["pLinearAddress"])


def _map_dma(file: RmFile, process: SimProcess, args: Record) -> None:
    handles = DmaHandles(*(args[name] for name in ("hClient", "hDevice", "hDma", "hMemory")))
    span, offset = Extent(args["offset"], args["length"]), args["dmaOffset"]
    caller = file.caller(process)
    args["dmaOffset"] = map_dma(file.rm, caller, handles, span, args["flags"], offset)


def _unmap_dma(file: RmFile, process: SimProcess, args: Record) -> None:
    handles = DmaHandles(args["hClient"], args["hDevice"], args["hDma"])
    size = args["size"] if "size" in args.layout.fields else 0
    unmap_dma(file.rm, file.caller(process), handles, args["dmaOffset"], size, args["flags"])


def _file(process: SimProcess, fd: int) -> RmFile:
    """Another file of the driver. Raises RmError(INVALID_ARGUMENT)."""
    try:
        found = process.file(fd).file
    except SysError as error:
        raise RmError(Status.INVALID_ARGUMENT, str(error)) from error
    if not isinstance(found, RmFile):
        raise RmError(Status.INVALID_ARGUMENT, f"fd {fd} is not of this driver")
    return found


def _register(file: RmFile, process: SimProcess, args: Record) -> None:
    check(file.registered is None, Status.INVALID_STATE, "this file is registered already")
    target = _file(process, args.signed("ctl_fd"))
    good = target.gpu is None and target is not file and target.registered is None
    check(good, Status.INVALID_ARGUMENT, f"fd {args['ctl_fd']} is no control file of its own")
    file.registered = target


def _check_version(file: RmFile, process: SimProcess, args: Record) -> None:
    """RmPerformVersionCheck; a relaxed comparison ends at the first point."""
    given, own = args.raw("versionString").split(b"\0")[0], file.rm.branch.version.encode()
    args["reply"] = _REPLY_RECOGNIZED
    relaxed = args["cmd"] == _VERSION_RELAXED
    same = given == own or (relaxed and given.split(b".")[0] == own.split(b".")[0])
    if args["cmd"] != _VERSION_QUERY and same:
        return
    args.put("versionString", own)
    if args["cmd"] != _VERSION_QUERY:
        args["reply"] = 0
        raise RmError(Status.INVALID_ARGUMENT, f"version {given!r}")


def _alloc_os_event(file: RmFile, process: SimProcess, args: Record) -> None:
    file.rm.add_os_event(args["hClient"], args["fd"], file.events)


def _free_os_event(file: RmFile, process: SimProcess, args: Record) -> None:
    file.rm.drop_os_event(args["hClient"], args["fd"])


def _event_data(file: RmFile, process: SimProcess, args: Record) -> None:
    check(bool(file.events), Status.OPERATING_SYSTEM, "no event is queued")
    process.user.write(args["pEvent"], file.events.pop(0).data)
    args["MoreEvents"] = bool(file.events)


def _nothing(file: RmFile, process: SimProcess, args: Record) -> None:
    """Answers what the argument was cleared to."""


ESCAPE_NAMES: Final[dict[int, str]] = {
    number: name.removeprefix("NV_ESC_")
    for name, number in vars(rm).items()
    if name.startswith("NV_ESC_")
}
"""What faults call them, by number."""
_FIRMWARES: Final = (rm.NV_ESC_RM_ALLOC, rm.NV_ESC_RM_CONTROL)
"""Those that the GPU's firmware is asked for."""
ESCAPES: Final[dict[int, Escape]] = {
    0x27: Escape(layouts.OS02, False, _alloc_memory),
    0x29: Escape(layouts.OS00, True, _free),
    0x2A: Escape(layouts.OS54, True, _control),
    0x2B: Escape(layouts.OS64, None, _alloc),
    0x34: Escape(layouts.OS55, True, _duplicate),
    0x35: Escape(layouts.OS57, True, _share),
    0x4E: Escape(layouts.OS33, True, _map_memory),
    0x4F: Escape(layouts.OS34, True, _unmap_memory),
    0x52: Escape(layouts.OS41, None, _event_data),
    0x57: Escape(layouts.OS46, True, _map_dma),
    0x58: Escape(layouts.OS47, True, _unmap_dma),
    201: Escape(layouts.REGISTER_FD, None, _register),
    206: Escape(layouts.OS_EVENT, None, _alloc_os_event),
    207: Escape(layouts.OS_EVENT, None, _free_os_event),
    210: Escape(layouts.API_VERSION, True, _check_version),
    214: Escape(layouts.SYS_PARAMS, True, _nothing),
    218: Escape(layouts.WAIT_OPEN, None, _nothing),
}
