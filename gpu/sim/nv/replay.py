"""Replaying a recorded session against the model: the same calls must get the same statuses.

    events = read_trace("h200.trace")                    # gpu.core.trace
    for difference in replay(events, NvSimWorld(chip="gh100")):
        print(difference)

What a kernel chooses freely is translated: descriptors, handles, the addresses of mappings, ids of
the GPUs. What engines do is not replayed, as stores into mapped memory are in no trace.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.core import hostmem
from gpu.core.errors import DeviceError, OutOfMemory
from gpu.core.traceevent import Close, Event, Ioctl, Map, Open
from gpu.sim.nv.files.rm import ESCAPES
from gpu.sim.nv.rm import layouts
from gpu.sim.nv.rm.classes import RULES
from gpu.sim.nv.rm.control import COMMANDS
from gpu.sim.nv.rm.layout import Layout, Record
from gpu.sim.nv.uvm.calls import CALLS
from gpu.sim.nv.world import NvSimWorld

_UVM_PATH: Final = "/dev/nvidia-uvm"
_ALLOC: Final = 0x2B
_ALLOC_MEMORY: Final = 0x27
_CONTROL: Final = 0x2A
_DUPLICATE: Final = 0x34
_MAP_MEMORY: Final = 0x4E
_CARD_INFO: Final = 200
_GID_INFO: Final = 0x2080014A
_GID_DATA: Final = 12
_PARAMS: Final = 16  # where the pointer to parameters lies, in all three escapes that have one
_HANDLE: Final = re.compile(r"h[A-Z]")
_DESCRIPTORS: Final = ("fd", "ctl_fd", "rmCtrlFd", "uvmFd")
_STATUSES: Final = ("status", "Status", "rmStatus")
_NEW_HANDLES: Final = {_ALLOC: "hObjectNew", _ALLOC_MEMORY: "hObjectNew", _DUPLICATE: "hObject"}
_GONE: Final = -1


class Difference(NamedTuple):
    """One call that the model answered otherwise: its place in the trace, and both answers."""

    place: int
    call: str
    recorded: str
    model: str


def replay(events: Sequence[Event], world: NvSimWorld) -> list[Difference]:
    """Makes all calls of a trace in the world's first process; returns what differed."""
    return list(_Replay(world, events).run(events))


class _Replay:
    """What was translated so far."""

    def __init__(self, world: NvSimWorld, events: Sequence[Event]):
        self._world = world
        self._os = world.os
        self._fds: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        self._linear: dict[int, int] = {}
        self._keep: list[object] = []
        self._take_identities(events)

    def run(self, events: Sequence[Event]) -> Iterator[Difference]:
        """Goes through the trace."""
        for index, event in enumerate(events):
            recorded, model, call = self._answers(event)
            if recorded != model:
                yield Difference(index, call, recorded, model)

    def _take_identities(self, events: Sequence[Event]) -> None:
        """Gives the model's GPUs the ids that the trace knows them by."""
        ioctls = [e for e in events if isinstance(e, Ioctl) and e.path != _UVM_PATH]
        gpus = self._world.gpus
        for event in ioctls:
            number, memory = event.request & 0xFF, event.memory
            if number == _CARD_INFO:
                step = layouts.CARD_INFO.size
                for i, gpu in enumerate(gpus):
                    card = layouts.CARD_INFO.parse(memory[0].after[i * step : (i + 1) * step])
                    gpu.gpu_id = card["gpu_id"] or gpu.gpu_id
            elif number == _CONTROL and len(memory) > 1:
                args = layouts.OS54.parse(memory[0].after)
                if args["cmd"] == _GID_INFO and not args["status"] and len(gpus) == 1:
                    gpus[0].uuid = memory[1].after[_GID_DATA : _GID_DATA + 16]

    def _answers(self, event: Event) -> tuple[str, str, str]:
        """What was recorded, what the model says, and which call it is."""
        if isinstance(event, Open):
            return self._open(event)
        if isinstance(event, Close):
            fd = self._fds.pop(event.fd, _GONE)
            if fd != _GONE:
                self._os.close(fd)
        elif isinstance(event, Map) and event.fd != -1:
            return self._map(event)
        elif isinstance(event, Ioctl):
            return self._ioctl(event)
        return "", "", ""

    def _open(self, event: Open) -> tuple[str, str, str]:
        recorded = _errno(event.failure.errno if event.failure else 0)
        try:
            self._fds[event.fd] = self._os.open(event.path, event.flags)
        except DeviceError as error:
            return recorded, _errno(getattr(error, "errno", None) or 0), f"open {event.path}"
        return recorded, _errno(0), f"open {event.path}"

    def _map(self, event: Map) -> tuple[str, str, str]:
        """Anywhere: only that it can be mapped is compared."""
        recorded = _errno(event.failure.errno if event.failure else 0)
        call = f"mmap {event.size:#x} bytes of {event.path}"
        fd = self._fds.get(event.fd, _GONE)
        fixed = hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE
        flags = event.flags & ~fixed
        try:
            address = self._os.mmap(fd, event.size, event.prot, flags, event.offset)
        except (DeviceError, OutOfMemory) as error:
            return recorded, _errno(getattr(error, "errno", None) or 0), call
        self._os.munmap(address, event.size)
        return recorded, _errno(0), call

    def _ioctl(self, event: Ioctl) -> tuple[str, str, str]:
        blocks = {memory.at: self._block(memory.before) for memory in event.memory}
        for at, block in blocks.items():
            if at:
                target = ctypes.addressof(block).to_bytes(8, "little")
                ctypes.memmove(ctypes.addressof(blocks[at[:-1]]) + at[-1], target, 8)
        layout = _layout_of(event)
        argument = blocks[()]
        self._translate(event, layout, blocks)
        call = f"{layout.name if layout else 'ioctl'} {event.request:#x} on {event.path}"
        failed = event.failure.errno if event.failure else 0
        fd = self._fds.get(event.fd, _GONE)
        try:
            self._os.ioctl(fd, event.request, argument)
        except DeviceError as error:
            number = getattr(error, "errno", None) or 0
            return _status(layout, event.memory[0].after, failed), _errno(number), call
        self._learn(event, layout, bytes(argument))
        return (
            _status(layout, event.memory[0].after, failed),
            _status(layout, bytes(argument), 0),
            call,
        )

    def _block(self, data: bytes) -> ctypes.Array[ctypes.c_uint8]:
        block = (ctypes.c_uint8 * max(len(data), 1)).from_buffer_copy(data or b"\0")
        self._keep.append(block)
        return block

    def _translate(
        self,
        event: Ioctl,
        layout: Layout | None,
        blocks: dict[tuple[int, ...], ctypes.Array[ctypes.c_uint8]],
    ) -> None:
        if layout is None:
            return
        args = Record(layout, bytearray(bytes(blocks[()])))
        inner = _params_of(event, args)
        params = blocks.get((_PARAMS,))
        if inner is not None and params is not None and len(params) >= inner.size:
            self._replace(Record(inner, bytearray(bytes(params))), params)
        if event.request & 0xFF == _ALLOC_MEMORY and event.path != _UVM_PATH:
            args["pMemory"] = self._pages(args["limit"] + 1)
        if "pLinearAddress" in layout.fields:
            args["pLinearAddress"] = self._linear.get(
                args["pLinearAddress"], args["pLinearAddress"]
            )
        self._replace(args, blocks[()])

    def _pages(self, size: int) -> int:
        """Memory of the process, where the trace had some."""
        flags = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS
        access = hostmem.PROT_READ | hostmem.PROT_WRITE
        return hostmem.map_file(-1, 0, size, access, flags) if 0 < size < 1 << 40 else 0

    def _replace(self, record: Record, block: ctypes.Array[ctypes.c_uint8]) -> None:
        """Handles and descriptors become the model's."""
        for name in record.layout.fields:
            if name in _DESCRIPTORS:
                wanted = self._fds.get(record.signed(name), _GONE)
                record[name] = wanted & 0xFFFF_FFFF
            elif _HANDLE.match(name) and name != "hClass":
                record[name] = self._handles.get(record[name], record[name])
        ctypes.memmove(block, bytes(record.data), len(record.data))

    def _learn(self, event: Ioctl, layout: Layout | None, data: bytes) -> None:
        """Takes down what the kernel chose, and what the model chose instead."""
        if layout is None or event.path == _UVM_PATH:
            return
        recorded, model = layout.parse(event.memory[0].after), layout.parse(data)
        number = event.request & 0xFF
        name = _NEW_HANDLES.get(number)
        if name:
            self._handles[recorded[name]] = model[name]
        if number == _MAP_MEMORY:
            self._linear[recorded["pLinearAddress"]] = model["pLinearAddress"]


def _layout_of(event: Ioctl) -> Layout | None:
    """The structure of a call; None for one that is not known."""
    if event.path == _UVM_PATH:
        call = CALLS.get(event.request)
        return call.layout if call else None
    number = event.request & 0xFF
    escape = ESCAPES.get(number)
    if escape is None:
        return None
    short = number == _ALLOC and len(event.memory[0].before) == layouts.OS21.size
    return layouts.OS21 if short else escape.layout


def _params_of(event: Ioctl, args: Record) -> Layout | None:
    """The structure of the parameters that a call's argument leads to."""
    if event.path == _UVM_PATH:
        return None
    number = event.request & 0xFF
    if number == _ALLOC and args["hClass"] in RULES:
        return RULES[args["hClass"]].params
    if number == _CONTROL and args["cmd"] in COMMANDS:
        return COMMANDS[args["cmd"]].layout
    return None


def _errno(number: int) -> str:
    return f"errno {number}" if number else "success"


def _status(layout: Layout | None, data: bytes, failed: int) -> str:
    """How a call ended: an errno, or the status in its argument."""
    if failed:
        return _errno(failed)
    name = next((n for n in _STATUSES if layout and n in layout.fields), None)
    if layout is None or name is None:
        return _errno(0)
    return f"status {layout.parse(data)[name]:#x}"
