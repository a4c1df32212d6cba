"""A kernel that was loaded, and launching it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu.core.errors import InvalidType, InvalidValue
from gpu.hcq.args import ArgumentLayout, KernelArguments, misfit
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Template
from gpu.hcq.checks import buffer_of, launch_sizes, sequence_of
from gpu.hcq.commands import Block, Command, Grid, Launch, Timestamp
from gpu.hcq.owner import Owner
from gpu.hcq.symbol import Symbol, Value


@dataclass(frozen=True)
class ProgramArguments(KernelArguments):
    """Arguments with the ``buffers`` that they point to, which are kept alive with them."""

    buffers: tuple[HCQBuffer, ...] = ()


class HCQProgram:
    """Code on a device, the layout of its arguments, and what a group and a thread need.

    ``group_size`` and ``private_size`` are bytes of memory of a group and of a thread. ``info`` is
    the vendor's: descriptors, register counts. ``written`` are the numbers of the buffers that it
    writes, by default all: graphs take it to find what may run at once.
    """

    def __init__(
        self,
        device: Owner,
        name: str,
        code: HCQBuffer | None,
        layout: ArgumentLayout,
        *,
        group_size: int = 0,
        private_size: int = 0,
        written: Sequence[int] | None = None,
        info: Any = None,
    ):
        """``origin`` may be set to what it computes and where that was asked for, for reports."""
        self.device = device
        self.name = name
        self.code = code
        self.layout = layout
        self.group_size = group_size
        self.private_size = private_size
        self.written = frozenset(range(layout.pointers) if written is None else written)
        self.info = info
        self.origin: object = ""
        self._launches: dict[tuple[Grid, Block], _Launch] = {}

    def arguments(
        self, *buffers: HCQBuffer | Symbol, vals: Sequence[Value | float] = ()
    ) -> ProgramArguments:
        """Arguments for `HWQueue.exec`. A symbol stands for an address or a value.

        Raises `InvalidValue` for a wrong number of them and for buffers of another device.
        """
        kept = tuple(buffer for buffer in buffers if isinstance(buffer, HCQBuffer))
        for buffer in kept:
            buffer.check_reachable(self.device)
        pointers = (b.address if isinstance(b, HCQBuffer) else b for b in buffers)
        values = sequence_of(vals, self.name)
        return ProgramArguments(self.layout, tuple(pointers), values, kept)

    def check_owner(self, device: object) -> None:
        """Raise `InvalidType` where another device loaded it."""
        if self.device is not device:
            raise InvalidType(f"{self.name} is a program of {self.device.name}: launch it there")

    def launch(self, args: ProgramArguments, grid: Grid, block: Block) -> Launch[Any]:
        """The command that runs it. Errors as of `launch_sizes`, and for another kernel's `args`.

        Raises `InvalidValue`, `InvalidType`.
        """
        if not isinstance(args, ProgramArguments) or args.layout is not self.layout:
            raise InvalidValue(f"arguments that were not made by {self.name}.arguments()")
        return Launch(self, args, *launch_sizes(self.name, grid, block))

    def __call__(
        self,
        *buffers: HCQBuffer,
        vals: Sequence[int | float] = (),
        grid: Grid = (1, 1, 1),
        block: Block = (1, 1, 1),
        wait: bool = False,
    ) -> float | None:
        """Run it after all that was submitted in order before, on the first compute queue.

        With ``wait`` returns the seconds it took on the device, else None at once. Raises
        `InvalidValue` for arguments that do not fit, and what `HCQDevice.exclusively` raises.
        """
        device = self.device
        values: list[int | float] = []
        try:
            for buffer in buffers:
                if buffer.allocation.device is not device:
                    buffer.check_reachable(device)
                values.append(buffer.address)
        except AttributeError:
            for buffer in buffers:
                buffer_of(buffer, f"an argument of {self.name}")
            raise
        if len(buffers) != self.layout.pointers:
            self.arguments(*buffers, vals=vals)  # raises
        if wait:
            return self._timed(self.arguments(*buffers, vals=vals), grid, block)
        try:
            launch = self._launches.get((grid, block))
            values.extend(vals)  # not +=, which numpy takes for a sum
        except TypeError as error:  # a list of sizes, or a number for vals
            grid, block = launch_sizes(self.name, grid, block)
            values = [*values[: len(buffers)], *sequence_of(vals, self.name, error)]
            launch = self._launches.get((grid, block))
        if launch is None:
            launch = self._launches[grid, block] = _Launch(self, grid, block)
        try:
            device.exclusively(launch.send, values)
        except (struct.error, OverflowError) as error:
            raise misfit(self.layout, values, error) from error
        return None

    def _timed(self, args: ProgramArguments, grid: Grid, block: Block) -> float:
        device = self.device
        start, end = device.signal(), device.signal()
        launch = self.launch(args, grid, block)
        commands: list[Command] = [Timestamp(start), launch, Timestamp(end)]
        device.wait(device.submit_in_order(device.channel("compute"), commands))
        seconds = (end.timestamp - start.timestamp) / device.port.clock_hz
        device.release_signal(start)
        device.release_signal(end)
        return seconds


class _Launch:
    """A program with its sizes, encoded once; arguments go straight into the queue's memory."""

    def __init__(self, program: HCQProgram, grid: Grid, block: Block):
        layout = program.layout
        args = ProgramArguments(layout, (0,) * layout.pointers, (0,) * len(layout.scalars))
        self._command = program.launch(args, grid, block)
        self._device = program.device
        self._layout = layout
        self._channel = program.device.channel("compute")
        self._plain: Template | None = None
        self._behind: Template | None = None  # waits for another queue first
        self._writes = [number in program.written for number in range(layout.pointers)]

    def send(self, values: Sequence[int | float]) -> None:
        """Submit in order; under the lock."""
        device, channel = self._device, self._channel
        if device.accesses:
            pointers = map(int, values[: len(self._writes)])
            device.settle(channel, zip(pointers, self._writes, strict=True))
        before = device.frontier[0]
        after = None if before[0] is channel else before
        template = self._plain if after is None else self._behind
        if template is None:
            template = device.template(channel, [self._command], after is not None)
            if after is None:
                self._plain = template
            else:
                self._behind = template
        value = channel.next_value()
        device.frontier = ((channel, value), before)
        channel.send(template, value, after, self._layout.pack_into, values)
