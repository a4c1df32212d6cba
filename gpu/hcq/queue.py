"""Commands for a queue, written down one after the other, to be submitted once or bound."""

from __future__ import annotations

from typing import Final, Self, get_args

from gpu.core.arguments import host_bytes, whole
from gpu.core.errors import InvalidType, InvalidValue
from gpu.hcq import commands
from gpu.hcq.bound import BoundQueue
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Point
from gpu.hcq.checks import number_or_symbol, payload, signal_of
from gpu.hcq.commands import Block, Command, Comparison, Grid, HasAddress
from gpu.hcq.owner import Owner
from gpu.hcq.program import HCQProgram, ProgramArguments
from gpu.hcq.symbol import Value

_POLLED: Final = (1 << 32) - 1


class HWQueue:
    """A list of commands for queue ``index`` of a kind::

    dev.queue().wait(signal, 3).exec(program, args, grid, block).signal(signal, 4).submit(dev)

    Nothing happens before `submit`, after which the list can be submitted again. It waits for no
    other queue but by `wait`.
    """

    def __init__(self, kind: str = "compute", index: int = 0):
        self.kind = kind
        self.index = index
        self.commands: list[Command] = []
        self.buffers: list[HCQBuffer] = []  # kept alive with the list

    def add(self, command: Command) -> Self:
        """Append any command. Raises `InvalidType` for anything else."""
        if not isinstance(command, commands.COMMANDS):
            raise InvalidType(f"{command!r} is no command of gpu.hcq.commands")
        self.commands.append(command)
        return self

    def wait(self, signal: HasAddress, value: Value) -> Self:
        """Go on when a signal is at least ``value``."""
        return self.add(commands.Wait(signal_of(signal), payload(signal, value)))

    def signal(self, signal: HasAddress, value: Value) -> Self:
        """Write ``value`` to a signal once all before it is done."""
        return self.add(commands.Signal(signal_of(signal), payload(signal, value)))

    def timestamp(self, signal: HasAddress) -> Self:
        """Write the device's clock to the timestamp of a signal once all before it is done."""
        return self.add(commands.Timestamp(signal_of(signal)))

    def exec(self, program: HCQProgram, args: ProgramArguments, grid: Grid, block: Block) -> Self:
        """Run a program; `HCQProgram.arguments` makes ``args``. Raises as its `launch`."""
        if not isinstance(program, HCQProgram):
            raise InvalidType(f"{program!r} is no program of a device: HCQProgram makes one")
        launch = program.launch(args, grid, block)
        self.buffers += args.buffers
        return self.add(launch)

    def copy(self, dst: HCQBuffer | Value, src: HCQBuffer | Value, size: Value) -> Self:
        """Copy bytes between buffers or GPU addresses.

        Raises `InvalidValue` for more than a buffer has; of addresses nobody knows.
        """
        size = number_or_symbol(size, "the size of a copy")
        buffers = [b for b in (dst, src) if isinstance(b, HCQBuffer)]
        for buffer in buffers:
            if isinstance(size, int) and size > buffer.size:
                raise InvalidValue(f"copy of {size} bytes with {buffer!r}: it has {buffer.size}")
        self.buffers += buffers
        return self.add(commands.Copy(_address(dst), _address(src), size))

    def write(self, address: Value, data: bytes) -> Self:
        """Write some bytes, a multiple of 4."""
        kept = bytes(host_bytes(data, "what is written"))
        return self.add(commands.WriteMem(_address(address), kept))

    def poll(
        self, address: Value, value: Value, mask: int = 0xFFFF_FFFF, op: Comparison = "=="
    ) -> Self:
        """Go on when the masked 32-bit word at ``address`` compares with ``value``."""
        if op not in get_args(Comparison):
            known = ", ".join(get_args(Comparison))
            raise InvalidValue(f"polling for {op!r}: give one of {known}")
        wanted = number_or_symbol(value, "the value that is polled for", 0, _POLLED)
        bits = whole(mask, "the mask of a poll", 0, _POLLED)
        return self.add(commands.PollMem(_address(address), wanted, bits, op))

    def memory_barrier(self) -> Self:
        """See what the host or another engine has written until now."""
        return self.add(commands.Barrier())

    def submit(self, device: Owner) -> Point:
        """Send it; returns what `HCQDevice.wait` takes. Errors as of `HCQDevice.exclusively`.

        Raises `InvalidValue` where a symbol of the caller's is left (`bind` takes those), and for
        buffers that were freed or that the device does not reach.
        """
        self._check_buffers(device)
        return device.submit(device.channel(self.kind, self.index), self.commands)

    def bind(self, device: Owner) -> BoundQueue:
        """Put it into memory of its own, from where it can be submitted cheaply many times.

        Raises `InvalidValue` for buffers that were freed or that the device does not reach.
        """
        self._check_buffers(device)
        channel = device.channel(self.kind, self.index)
        return BoundQueue(device, channel, self.commands, self.buffers)

    def _check_buffers(self, device: Owner) -> None:
        for buffer in self.buffers:
            buffer.check_reachable(device)


def _address(place: HCQBuffer | Value) -> Value:
    return place.address if isinstance(place, HCQBuffer) else number_or_symbol(place, "an address")
