"""An AMD GPU with command queues: programs, scratch memory, faults, closing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Unpack
from weakref import WeakSet

from gpu.core.errors import (
    DeviceError,
    DeviceHang,
    DeviceLost,
    GpuFault,
    InvalidIndex,
    OutOfMemory,
    Unsupported,
)
from gpu.core.log import get_logger
from gpu.drivers.am.code.object import CodeObject
from gpu.drivers.am.counters import AmCounting
from gpu.drivers.am.encode.dispatch import AmProgram, LoadedKernel
from gpu.drivers.am.encode.tmpring import (
    Scratch,
    ScratchSize,
    resource_descriptor,
    scratch_size,
    tmpring_size,
)
from gpu.drivers.am.fault.scene import AmScene
from gpu.drivers.am.port import AmPort
from gpu.drivers.am.queue import AmQueue, QueueKind
from gpu.drivers.am.target import Target
from gpu.drivers.device import DriverDevice, Rung
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.channel import Channel
from gpu.hcq.commands import Command, Launch
from gpu.hcq.counting import Counting
from gpu.hcq.device import DeviceOptions
from gpu.hcq.link import Linked
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.signal import Signal

_ALL_ONES: Final = 0xFFFF_FFFF
_LETTING_GO: Final = 8
_log = get_logger(__name__)


class AmDevice(DriverDevice[LoadedKernel]):
    """Queues, memory and programs of one GPU, over whatever port opened it."""

    port: AmPort

    def __init__(self, port: AmPort, **options: Unpack[DeviceOptions]):
        """As `HCQDevice`; ports have functions that open both."""
        self._signals: dict[int, Signal] = {}
        self.kernels, self.programs = {}, WeakSet()
        self.scene = AmScene(port, self.kernels, self.channels)
        self._scratch: dict[Channel, Scratch] = {}
        super().__init__(port, **options)

    @property
    def target(self) -> Target:
        """What code and packets for it depend on."""
        return self.port.target

    def counting(self, names: Sequence[str]) -> Counting:
        """As `HCQDevice.counting`."""
        return AmCounting(self.target, names)

    def signal(self, value: int = 0) -> Signal:
        """As `HCQDevice.signal`."""
        signal = super().signal(value)
        self._signals[signal.address] = signal  # for `close`; there are as many as addresses
        return signal

    def _wait(self, read: Callable[[], int], value: int, what: str, timeout: float | None) -> None:
        self.port.begin_wait()
        super()._wait(read, value, what, timeout)

    # Programs

    def load(
        self,
        code: CodeObject,
        name: str,
        layout: ArgumentLayout | None = None,
        *,
        written: Sequence[int] | None = None,
    ) -> AmProgram:
        """A kernel of a code object, in memory of its own, ready to be launched.

        Raises InvalidIndex for a name that it does not have, and what `AmProgram` raises.
        """
        kernel = code.kernels.get(name)
        if kernel is None:
            raise InvalidIndex(f"no kernel {name!r}; there are {', '.join(code.kernels) or 'none'}")
        private = kernel.descriptor.private_size
        scratch = self.scratch(private) if private else None
        memory = self.exclusively(self._take_code, code.size)
        loaded = LoadedKernel(kernel, memory.address, scratch)
        buffer = self.put_code(memory, code.image(memory.address), loaded)
        self.port.host_wrote()  # queues drop what they have of it before each submission
        return self.loaded(AmProgram(self, loaded, buffer, layout, written=written))

    def _take_code(self, size: int) -> Memory:
        memory = self.port.memory.allocate_code(size)
        self.adopt(memory)
        return memory

    def scratch(self, bytes_per_lane: int) -> Scratch:
        """Scratch memory for as many bytes of each lane; only ever grows.

        It is that of the first compute queue; AQL queues have one each. What was got before stays
        where it is, for programs that were loaded with it. Raises InvalidValue for more than there
        can be, OutOfMemory.
        """
        size = scratch_size(self.target, bytes_per_lane)
        with self._opening:
            first = self.queues["compute"][0]
            now = self._scratch.get(first)
            if now is None or now.size.per_wave < size.per_wave:
                own = [c for c in self.queues["compute"] if c is first or reads(c, QueueKind.AQL)]
                self._scratch = {channel: self._new_scratch(size) for channel in own}
                self.exclusively(self._tell_all)
            return self._scratch[first]

    def _new_scratch(self, size: ScratchSize) -> Scratch:
        memory = self.exclusively(self.allocate, size.total, MemoryKind.VRAM)
        return Scratch(memory.address, size)

    def set_up(self, kind: str, channel: Channel) -> None:
        """As `HCQDevice.set_up`: an AQL queue has scratch memory of its own if there is any."""
        if self._scratch and reads(channel, QueueKind.AQL) and channel not in self._scratch:
            size = next(iter(self._scratch.values())).size
            self._scratch[channel] = self._new_scratch(size)
        self._tell_scratch(channel)

    def _tell_all(self) -> None:
        """Gives AQL queues their scratch memory, which they read with each launch: once idle."""
        for channel in self._scratch:
            channel.must_pass(channel.timeline.submitted)
        for channel in self._scratch:
            self._tell_scratch(channel)

    def _tell_scratch(self, channel: Channel) -> None:
        scratch, queue = self._scratch.get(channel), channel.port
        if scratch is not None and isinstance(queue, AmQueue) and queue.kind is QueueKind.AQL:
            size = tmpring_size(self.target, scratch.size)
            queue.set_scratch(scratch, size, resource_descriptor(self.target, scratch, False))

    def link(
        self, channel: Channel, commands: Iterable[Command], *, after: bool, bound: bool = False
    ) -> Linked:
        """As `HCQDevice.link`. Raises Unsupported for scratch memory on a second PM4 queue.

        Waves of two queues would use the same places of it: AQL queues have their own.
        """
        commands = tuple(commands)
        if reads(channel, QueueKind.PM4) and channel is not self.queues["compute"][0]:
            for command in commands:
                if isinstance(command, Launch) and command.program.private_size:
                    raise Unsupported(
                        f"{command.program.name} uses scratch memory, which is for compute queue 0:"
                        " launch it there, or open the device with AQL queues"
                    )
        return super().link(channel, commands, after=after, bound=bound)

    # Faults

    def _recover(self) -> Rung | None:
        """As `recover`, which does not help after a reset, as that loses the memory."""
        rung = self._needed()
        if rung is None:
            return None
        if rung is Rung.QUEUES:
            self._run_out()
        taken = self.port.stop()
        rung = self._needed() or rung  # taking queues off may have been too much
        if rung is Rung.ADDRESS_SPACE:
            self._move()
        else:
            self.port.renew(rung)
        try:
            self.restart()
        except (DeviceError, OutOfMemory) as error:
            self.port.stop()
            self._error = DeviceLost(f"other queues do not help ({error.message})")
            self.check_usable()
        return taken or rung

    def _needed(self) -> Rung | None:
        """What has to be made anew, by what the kernel tells now. Raises DeviceLost."""
        self.port.look()
        try:
            self.port.check()
        except GpuFault as fault:
            self._error = self._error or fault
            return Rung.ADDRESS_SPACE
        except DeviceLost as error:
            self._error = error
            raise
        return None if self._has_ended() else Rung.QUEUES

    def _move(self) -> None:
        """As `AmPort.renew`, without what was freed; where it fails one may try again."""
        with self.lock:
            before, self._error = self._error, None
            try:
                for channel in self.channels():
                    channel.timeline.settle()
                self.allocator.collect(self._parked)
                self.part()
                self.port.renew(Rung.ADDRESS_SPACE)
            except (DeviceError, OutOfMemory, Unsupported) as error:
                self._error = before
                raise DeviceLost(f"{self.name} is not recovered: {error.message}") from error

    def _run_out(self) -> None:
        """Satisfies what queues wait for, so that those that wait can be taken off.

        A queue that runs a kernel may be taken off at any time; what it has in its way is no wait
        any more when it is.
        """
        before = [(signal, signal.value) for signal in self._signals.values()]
        for _ in range(_LETTING_GO):  # a queue may write a signal that another one waits for
            for signal, _ in before:
                signal.set(_ALL_ONES)
            for channel in self.channels():
                channel.timeline.settle()
            if self.port.let_run_out():
                break
        for signal, value in before:
            signal.set(value)

    # Life

    def close(self) -> None:
        """As `HCQDevice.close`; what waits for a signal that never came is let go first.

        A queue that is taken off the hardware while it waits may be the end of the GPU for all.
        Raises DeviceHang where a queue waits for other memory, and is stopped, and what the kernel
        refuses to take back; all else is given back.
        """
        if self._closed or os.getpid() != self._pid:
            return
        told = self._let_go()
        super().close()
        if told is not None:
            raise told

    def _let_go(self) -> DeviceError | None:
        """Waits for the queues; if they hang satisfies what they may wait for, or stops them."""
        if not isinstance(told := self._ended(), DeviceHang):
            return told
        _log.warning("closing %s: %s; its signals are set to let it go on", self.name, told)
        for signal in self._signals.values():
            signal.set(_ALL_ONES)
        if isinstance(told := self._ended(), DeviceHang):  # before the memory that it reads is gone
            self._error = DeviceLost(f"{self.name} was closed while a queue waited: {told.message}")
            self.port.stop()
        return told


def reads(channel: Channel, kind: QueueKind) -> bool:
    """What a queue reads."""
    return isinstance(channel.port, AmQueue) and channel.port.kind is kind
