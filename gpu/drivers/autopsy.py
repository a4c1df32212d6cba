"""Finding out what a device was at when it failed, for `gpu.drivers.crash`.

What is read may be damaged, and what reads it may fail in turn: then the report has less.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Final, TypeVar

from gpu.core.crashfiles import CrashFolder
from gpu.core.errors import CompileError, DeviceError, GpuError, GpuFault, Unsupported
from gpu.core.log import get_logger
from gpu.drivers.crash import Argument, Buffer, Crash, Kernel, Queue, around
from gpu.drivers.fault_report import Suspect
from gpu.drivers.scene import Disassemble, Scene
from gpu.hcq.channel import Channel
from gpu.hcq.ports import Memory
from gpu.hcq.program import HCQProgram

T = TypeVar("T")
_log = get_logger(__name__)
_MOST_KERNELS: Final = 16
_MOST_BUFFERS: Final = 64
_MOST_LINES: Final = 400  # of packets of a queue, the youngest
_MOST_CODE: Final = 1 << 16
_numbers: Final = count()  # of reports, as one millisecond may have several


class Autopsy:
    """One report in the making."""

    def __init__(
        self,
        scene: Scene,
        channels: Sequence[Channel],
        programs: Sequence[HCQProgram],
        codes: Sequence[Memory],
        disassemble: Disassemble | None,
    ):
        """``programs`` are those that are loaded, ``codes`` the memories that code is in."""
        self._scene, self._channels = scene, channels
        self._programs, self._codes = programs, codes
        self._disassemble = disassemble

    def report(self, error: DeviceError) -> Crash:
        """All that can be told now of an error."""
        scene = self._scene
        address = error.address if isinstance(error, GpuFault) else None
        stops = _told(scene.stops)
        launches = _told(scene.launches)[:_MOST_KERNELS]
        buffers = sorted(_told(scene.buffers), key=lambda each: _distance(each, address))
        return Crash(
            time=_now(),
            device=scene.name,
            error=type(error).__name__,
            message=error.message,
            line=str(error.call_site or ""),
            address=address,
            place=scene.place_of(address) if address is not None else "",
            kernels=tuple(self._kernel(launch, stops) for launch in launches),
            waves=tuple(_told(scene.waves)),
            buffers=tuple(buffers[:_MOST_BUFFERS]),
            more_buffers=max(len(buffers) - _MOST_BUFFERS, 0),
            queues=tuple(map(self._queue, self._channels)),
            translation=() if address is None else self._translation(address),
        )

    def _translation(self, address: int) -> tuple[str, ...]:
        return tuple(_told(lambda: self._scene.translation(address)))

    def _kernel(self, launch: Suspect, stops: Sequence[int]) -> Kernel:
        memory = next((m for m in self._codes if 0 <= launch.code - m.address < m.size), None)
        end = memory.address + memory.size if memory is not None else launch.code
        own = tuple(dict.fromkeys(stop for stop in stops if launch.code <= stop < end))
        place_of = self._scene.place_of
        return Kernel(
            name=launch.name,
            code=launch.code,
            stops=own,
            origin=self._origin(memory),
            arguments=tuple(Argument(n, at, place_of(at)) for n, at in launch.pointers),
            disassembly=self._code(memory, launch, own) if memory is not None else (),
        )

    def _origin(self, memory: Memory | None) -> str:
        """What is known of the kernel that is in a memory."""
        for program in self._programs:
            if program.code is not None and program.code.allocation.memory is memory:
                return str(program.origin)
        return ""

    def _code(self, memory: Memory, launch: Suspect, stops: Sequence[int]) -> tuple[str, ...]:
        if self._disassemble is None or memory.window is None:
            return ()
        offset = launch.code - memory.address
        size = min(launch.size or memory.size - offset, _MOST_CODE)
        try:
            lines = self._disassemble(memory.window.load(offset, size), launch.code)
        except (Unsupported, CompileError) as error:
            return (error.message,)
        return around(lines, stops[0] if stops else None)

    def _queue(self, channel: Channel) -> Queue:
        submitted, reached = channel.timeline.submitted, channel.timeline.reached()
        left = _told(lambda: self._scene.packets(channel)) if reached < submitted else ()
        return Queue(channel.name, submitted, reached, tuple(left[-_MOST_LINES:]))


def keep(crashes: CrashFolder, crash: Crash, evidence: Mapping[str, bytes]) -> str:
    """Writes a report, with bytes beside it; where it is, or why it is not, in words."""
    name = f"{crash.time[:-6].replace(':', '')}-{os.getpid()}-{next(_numbers)}"
    try:
        path = crashes.write(name, crash.as_text(), crash.as_json(), evidence)
    except OSError as why:
        return f"no report could be written to {crashes.path}: {why.strerror}"
    more = f", with {', '.join(evidence)} beside it" if evidence else ""
    return f"the report is {path}{more}"


def report_opening(
    crashes: CrashFolder | None, device: str, error: GpuError, evidence: Mapping[str, bytes]
) -> None:
    """Writes a report of a device that did not open, and adds where that is to the error."""
    if crashes is None:
        return
    crash = Crash(
        time=_now(),
        device=device,
        error=type(error).__name__,
        message=error.message,
        line=str(error.call_site or ""),
        address=None,
        place="",
        kernels=(),
        waves=(),
        buffers=(),
        more_buffers=0,
        queues=(),
    )
    error.add(keep(crashes, crash, evidence))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _told(ask: Callable[[], Sequence[T]]) -> Sequence[T]:
    """What is answered; nothing where the device does not answer any more."""
    try:
        return ask()
    except GpuError as error:
        _log.info("a report lacks something: %s", error.message)
        return ()


def _distance(buffer: Buffer, address: int | None) -> int:
    """Bytes between an address and a buffer."""
    if address is None:
        return 0
    return max(buffer.address - address, address - buffer.address - buffer.size + 1, 0)
