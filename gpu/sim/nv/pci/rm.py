"""RM on the card, as far as a boot goes: libos' regions, the queues, and the calls of a driver.

libos_init_args.h, gsp_init_args.h, kgspSetupLibosInitArgs_IMPL, rpc.c. Until INIT_DONE it has read
GSP_SET_SYSTEM_INFO and SET_REGISTRY, which a driver puts into the queue before the boot. What RM
does of a wrong message is nowhere published: here it stops before it, and answers no more (U).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from gpu.core.bits import align_up
from gpu.sim.nv.chip.channel import Group
from gpu.sim.nv.pci.msgq import PAGE, Message, Queues
from gpu.sim.nv.pci.objects import FirmwareRm
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.nv.pci.staticinfo import STATIC_INFO_BYTES, make_static_info
from gpu.sim.nv.pci.sysinfo import why_no_registry, why_no_system_info
from gpu.sim.nv.pci.wprmeta import Booted
from gpu.sim.nv.rm.status import RmError, Status, check

UNLOADING, STATIC_INFO, CONTINUATION, SYSTEM_INFO, REGISTRY = 47, 65, 71, 72, 73
INIT_DONE, LIBOS_PRINT, LOCKDOWN_NOTICE = 0x1001, 0x100C, 0x101C
LAST_FUNCTION: Final = 226
NOT_SUPPORTED, INVALID_PARAM_STRUCT, INVALID_STATE = 0x56, 0x3A, 0x40
LOGS: Final = ("LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL")
_REGION: Final = struct.Struct("<QQQBB6x")
_ARGUMENTS: Final = struct.Struct("<QI4xQQIIB3xIB7xQQ")  # GSP_ARGUMENTS_CACHED
_MOST_REGIONS: Final = PAGE // _REGION.size
_CONTIGUOUS, _SYSMEM = 1, 1
_LEAST_LOG: Final = 0x10000
_RPC_NS: Final = 20_000
RC_TRIGGERED, OS_ERROR_LOG = 0x1004, 0x1006
_OF_GROUP: Final = 1  # RC_NOTIFIER_SCOPE_TSG, g_kernel_rc_nvoc.h
_ALLOC: Final = struct.Struct("<7I4x")  # rpc_gsp_rm_alloc_v03_00
_CONTROL: Final = struct.Struct("<6I")  # rpc_gsp_rm_control_v03_00
_XID: Final = struct.Struct("<3I256sI")  # rpc_os_error_log_v17_00
_RC: Final = struct.Struct("<6IH2x3IB3xI")  # rpc_rc_triggered_v17_02
CALLS: Final = {
    103: (_ALLOC, 16),
    76: (_CONTROL, 12),
    10: (struct.Struct("<4I"), 12),  # NVOS00_PARAMETERS_v03_00
    21: (struct.Struct("<7I"), 24),  # NVOS55_PARAMETERS_v03_00
    54: (struct.Struct("<3I4xQ6I"), None),  # rpc_set_page_directory_v1E_05
    79: (struct.Struct("<4I"), None),  # rpc_unset_page_directory_v1E_05
}
"""Calls about objects: their headers, and where in those a status comes back."""


class Rm:
    """The firmware.

    Attributes:
        on_unload: the driver has said goodbye.
        why_dead: why it answers no more; empty while it does.
    """

    def __init__(self, chip: Silicon, host_address: Callable[[], int], objects: FirmwareRm):
        """`host_address` tells where the card is on its bus, as RM has it."""
        self._chip = chip
        self._objects = objects
        objects.on_error = lambda group: self._guarded(partial(self._tell_error, group))
        self._host_address = host_address
        self.on_unload: Callable[[], None] = lambda: None
        self.reset()

    def reset(self) -> None:
        """It is gone."""
        self.why_dead = ""
        self._queues: Queues | None = None
        self._booted: Booted | None = None
        self._told: set[int] = set()
        self._partial: Message | None = None
        self._unloaded = False
        self._logs: dict[str, tuple[int, int]] = {}
        self._objects.reset()

    @property
    def unread(self) -> str:
        """What is in the way of its answers; empty for nothing."""
        if self.why_dead:
            return f"RM answers no more: {self.why_dead}"
        blocked = self._queues is not None and self._queues.is_blocked
        return "RM waits for the driver to read its queue" if blocked else ""

    def catch_up(self) -> bool:
        """Goes on telling where the driver has read what was in the way; whether it has."""
        queues = self._queues
        if queues is None or not queues.is_blocked:
            return False
        before = queues.waiting
        self._guarded(queues.flush)
        return queues.waiting < before

    def start(self, booted: Booted) -> None:
        """libos starts it."""
        self._guarded(partial(self._start, booted))

    def ring(self) -> None:
        """The driver has rung: in a moment it looks into the queue."""
        self._chip.later.after(_RPC_NS, "look into its queue", partial(self._guarded, self._serve))

    def _guarded(self, act: Callable[[], None]) -> None:
        if self.why_dead:
            return
        try:
            act()
        except Halt as why:
            self._chip.violation(f"RM: {why}")
            self.die(str(why))

    def die(self, why: str) -> None:
        """It answers no more, and its log has the reason."""
        self.why_dead = why
        if "LOGRM" not in self._logs:
            return
        place, size = self._logs["LOGRM"]
        at = 8 * (1 + size // PAGE)
        words = why.encode("ascii", "replace")[: size - at]
        words = words.ljust(align_up(len(words), 8), b"\0")
        try:
            self._chip.put(place + at, words, "LOGRM")
            self._chip.put(place, (len(words) // 8).to_bytes(8, "little"), "LOGRM")
        except Halt as lost:
            self._chip.sim.debug.note(f"RM: its log: {lost}")

    def _start(self, booted: Booted) -> None:
        chip = self._chip
        regions = dict(self._regions(booted.arguments))
        address, size = regions["RMARGS"]
        if size < _ARGUMENTS.size:
            raise Halt(f"RMARGS has {size:#x} bytes, {_ARGUMENTS.size:#x} wanted")
        found = _ARGUMENTS.unpack(chip.fetch(address, _ARGUMENTS.size, "RMARGS"))
        if any(found[4:7]):
            raise Halt("RMARGS tells of a resume: level, flags and transition are 0")
        if found[8] > 1:
            raise Halt(f"RMARGS: bDmemStack is {found[8]}")
        if any(found[9:]):
            raise Halt("RMARGS has a profiler's buffer, which the model does not fill")
        self._booted = booted
        self._queues = Queues(chip, *found[:4])
        for message in self._queues.receive():
            self._call(message)
            if self._told >= {SYSTEM_INFO, REGISTRY}:
                break
        missing = {SYSTEM_INFO, REGISTRY} - self._told
        if missing:
            raise Halt(f"calls {sorted(missing)} are not in the queue when RM starts")
        self._chatter()
        self._queues.send(INIT_DONE, bytes(4))
        self._serve()

    def _regions(self, address: int) -> Iterator[tuple[str, tuple[int, int]]]:
        """libos' regions, by their names. Raises Halt."""
        if address % PAGE:
            raise Halt(f"libos' arguments at {address:#x}, not at a page")
        data = self._chip.fetch(address, PAGE, "libos' arguments")
        seen: set[str] = set()
        for number in range(_MOST_REGIONS):
            code, place, size, kind, where = _REGION.unpack_from(data, number * _REGION.size)
            if not code:
                break
            name = code.to_bytes(8, "big").lstrip(b"\0").decode("ascii", "replace")
            if name not in (*LOGS, "RMARGS"):
                raise Halt(f"libos has no region {name!r} ({code:#x})")
            if name in seen:
                raise Halt(f"region {name} is there twice")
            if not seen and name != LOGS[0]:
                raise Halt(f"region {name} comes first, which is for {LOGS[0]}")
            if kind != _CONTIGUOUS or where != _SYSMEM:
                raise Halt(f"region {name} is of kind {kind} in {where}: 1 and 1 wanted")
            if place % PAGE or not size:
                raise Halt(f"region {name} has {size:#x} bytes at {place:#x}: pages are wanted")
            if name in LOGS:
                self._check_log(name, place, size)
                self._logs[name] = place, size
            seen.add(name)
            yield name, (place, size)
        for name in ("RMARGS", *LOGS[:3]):
            if name not in seen:
                raise Halt(f"libos' arguments have no region {name}")

    def _check_log(self, name: str, place: int, size: int) -> None:
        """A log begins with how far it is written, then lists its pages."""
        if size % PAGE or size < _LEAST_LOG:
            raise Halt(f"{name} has {size:#x} bytes: whole pages, {_LEAST_LOG:#x} at least")
        pages = size // PAGE
        written, *listed = struct.unpack(
            f"<{1 + pages}Q", self._chip.fetch(place, 8 * (1 + pages), name)
        )
        if written:
            raise Halt(f"{name} is written up to {written:#x} before anybody could")
        for index, page in enumerate(listed):
            if page != place + PAGE * index:
                raise Halt(f"{name} lists {page:#x} as its page {index}, of a region at {place:#x}")
        self._chip.fetch(place, size, name)

    def _serve(self) -> None:
        queues = self._queues
        if queues is None:
            return
        queues.flush()
        for message in queues.receive():
            self._call(message)

    def _call(self, message: Message) -> None:
        """Carries a message out. Raises Halt."""
        if self._unloaded:
            raise Halt(f"call {message.function} after the driver has unloaded RM")
        message = self._join(message)
        if message.is_full and self._is_short(message):
            self._partial = message
            return
        self._partial = None
        match message.function:
            case 72:
                self._system_info(message)
            case 73:
                self._registry(message)
            case 65:
                self._static_info(message)
            case 47:
                self._unload(message)
            case number if number in CALLS:
                self._object_call(message)
            case _:
                self._unknown(message)

    def _join(self, message: Message) -> Message:
        """A message with what came of it before. Raises Halt."""
        before = self._partial
        if (message.function == CONTINUATION) != (before is not None):
            raise Halt(
                f"call {message.function} "
                + ("among the parts of another" if before else "continues nothing")
            )
        if before is None:
            return message
        payload = before.payload + message.payload
        return before._replace(payload=payload, is_full=message.is_full)

    def _is_short(self, message: Message) -> bool:
        """Whether more must follow, by what it tells of its own length."""
        payload = message.payload
        match message.function:
            case 73:
                return len(payload) < int.from_bytes(payload[:4], "little")
            case 76:
                return len(payload) < _CONTROL.size + int.from_bytes(payload[16:20], "little")
            case 103:
                return len(payload) < _ALLOC.size + int.from_bytes(payload[20:24], "little")
        return False

    def _system_info(self, message: Message) -> None:
        self._once(SYSTEM_INFO)
        for why in why_no_system_info(self._chip, self._host_address(), message.payload):
            raise Halt(f"GSP_SET_SYSTEM_INFO: {why}")

    def _registry(self, message: Message) -> None:
        self._once(REGISTRY)
        if SYSTEM_INFO not in self._told:
            raise Halt("SET_REGISTRY before GSP_SET_SYSTEM_INFO")
        for why in why_no_registry(message.payload):
            raise Halt(f"SET_REGISTRY: {why}")

    def _once(self, function: int) -> None:
        if function in self._told:
            raise Halt(f"call {function} twice")
        self._told.add(function)

    def _static_info(self, message: Message) -> None:
        if len(message.payload) != STATIC_INFO_BYTES:
            self._refuse(message, INVALID_PARAM_STRUCT, f"{STATIC_INFO_BYTES:#x} bytes wanted")
            return
        assert self._booted is not None
        self._chatter()
        self._answer(message, make_static_info(self._chip, self._booted))

    def _unload(self, message: Message) -> None:
        if len(message.payload) != 8:
            self._refuse(message, INVALID_PARAM_STRUCT, "8 bytes wanted")
            return
        if any(message.payload):
            self._refuse(message, NOT_SUPPORTED, "suspending is not modelled")
            return
        self._unloaded = True
        self._objects.reset()
        self._answer(message, message.payload)
        self.on_unload()

    def _object_call(self, message: Message) -> None:
        """A call about objects: a status within it, and the message's own, which is 0 then."""
        payload = message.payload
        head, status_at = CALLS[message.function]
        if len(payload) < head.size:
            self._refuse(message, INVALID_PARAM_STRUCT, f"{head.size} bytes wanted at least")
            return
        status, back = 0, payload[head.size :]
        try:
            back = self._carry_out(message.function, head.unpack_from(payload), back)
        except RmError as error:
            status = error.status
            self._chip.sim.debug.note(f"RM: call {message.function}: {error}")
        data = bytearray(payload[: head.size] + back)
        if status_at is not None:
            struct.pack_into("<I", data, status_at, status)
        self._answer(message, bytes(data), 0 if status_at is not None else status)

    def _carry_out(self, function: int, head: tuple[int, ...], data: bytes) -> bytes:
        """What the parameters are afterwards. Raises RmError."""
        objects = self._objects
        match function:
            case 103:
                client, parent, handle, number, _, size, _ = head
                self._check_size(data, size)
                return objects.new_object((client, parent, handle, number), data)
            case 76:
                client, handle, number, _, size, _ = head
                self._check_size(data, size)
                return objects.ask(client, handle, number, data)
            case 10:
                objects.give_back(head[0], head[2])
            case 21:
                objects.copy((head[0], head[1], head[2]), (head[3], head[4]))
            case 54:
                objects.set_directory(head[0], head[1], head[3:])
            case 79:
                objects.unset_directory(head[0], head[1], head[2])
        return data

    def _check_size(self, data: bytes, size: int) -> None:
        what = f"{len(data)} bytes of parameters, of which the header tells {size}"
        check(len(data) == size, Status.INVALID_PARAM_STRUCT, what)

    def _tell_error(self, group: Group) -> None:
        """Firmware tore a group down, and tells which channels, and why."""
        fault = group.mmu_faults[0] if group.mmu_faults else None
        code = 31 if fault else 13
        text = f"MMU Fault: at {fault.address:#x}" if fault else "SM Warp Exception"
        chid = group.channels[0].number_on_runlist
        if self._queues is not None:
            xid = _XID.pack(code, group.runlist, chid, text.encode(), 0)
            self._queues.send(OS_ERROR_LOG, xid)
        for channel in group.channels:
            address = fault.address if fault else 0
            head = (group.engine, channel.number_on_runlist, 0, 0, code, _OF_GROUP, 0)
            kind = (address & 0xFFFFFFFF, address >> 32, fault.kind if fault else 0, 0, 0)
            if self._queues is not None:
                self._queues.send(RC_TRIGGERED, _RC.pack(*head, *kind))

    def _unknown(self, message: Message) -> None:
        if message.function > LAST_FUNCTION:
            raise Halt(f"call {message.function}: there is none of that number")
        self._chip.sim.debug.note(f"RM: call {message.function} is not modelled")
        self._answer(message, message.payload, NOT_SUPPORTED)

    def _refuse(self, message: Message, status: int, why: str) -> None:
        self._chip.violation(f"RM: call {message.function}: {why}")
        self._answer(message, message.payload, status)

    def _answer(self, message: Message, payload: bytes, status: int = 0) -> None:
        assert self._queues is not None
        self._queues.send(message.function, payload, status, message.sequence)

    def _chatter(self) -> None:
        """Events that come when they like, as on hardware."""
        assert self._queues is not None
        if self._chip.sim.rng.random() < 0.5:
            text = b"GSP-RM of a model\0"
            self._queues.send(LIBOS_PRINT, struct.pack("<II", 0, len(text)) + text)
        if self._chip.sim.rng.random() < 0.5:
            self._queues.send(LOCKDOWN_NOTICE, b"\0")
