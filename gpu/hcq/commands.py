"""What a queue can be asked to do, as data. An `Encoder` turns it into what hardware reads.

Commands of one queue take effect in order: each sees what those before it wrote, and a `Signal`
is written when all before it is done and visible to whoever waits for it. Only commands of
different queues need a `Wait`.

A number may also be a `Symbol`, whose value is put in when the commands are submitted.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args, get_origin

from gpu.hcq.args import ArgumentLayout, KernelArguments
from gpu.hcq.registers import RegisterCommand
from gpu.hcq.symbol import Symbol, Value

Info_co = TypeVar("Info_co", covariant=True)
"""What a driver knows of a kernel that it has loaded."""

Grid = tuple[Value, Value, Value]
Block = tuple[int, int, int]
Comparison = Literal["==", "!=", "<", "<=", ">=", ">"]


TIMESTAMP: Final = 24
"""Where a signal has its timestamp; a device may write anything to the 8 bytes before that."""


class HasAddress(Protocol):
    """A signal as commands see it: 32 bytes, the value first, a timestamp at `TIMESTAMP`."""

    @property
    def address(self) -> Value:
        """Where it lies, as the GPU sees it."""


@dataclass(frozen=True, slots=True)
class SymbolicSignal:
    """A signal whose address is put in when the commands are submitted."""

    address: Symbol


class Kernel(Protocol[Info_co]):
    """A program as launches see it; `gpu.hcq.program.HCQProgram` is one."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def layout(self) -> ArgumentLayout:
        """Where its arguments are."""

    @property
    def written(self) -> Container[int]:
        """The numbers of the buffers that it writes."""

    @property
    def private_size(self) -> int:
        """Bytes of memory of a thread."""

    @property
    def info(self) -> Info_co:
        """What its driver's encoders read."""

    def check_owner(self, device: object) -> None:
        """Raise `InvalidType` where another device loaded it: `info` is what its own knows of."""


@dataclass(frozen=True, slots=True)
class Launch(Generic[Info_co]):
    """Run a kernel on ``grid`` groups of ``block`` threads."""

    program: Kernel[Info_co]
    args: KernelArguments
    grid: Grid
    block: Block


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy ``size`` bytes between addresses that do not overlap."""

    dst: Value
    src: Value
    size: Value


@dataclass(frozen=True, slots=True)
class Signal:
    """Write ``value`` to a signal once all before it is done."""

    signal: HasAddress
    value: Value


@dataclass(frozen=True, slots=True)
class Wait:
    """Start nothing after it before a signal is at least ``value``."""

    signal: HasAddress
    value: Value


@dataclass(frozen=True, slots=True)
class Barrier:
    """Make what the host, or another engine, wrote visible to the commands that follow."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Write the device's clock, in ticks, to the timestamp of a signal, once all before is done.

    The signal's value stays what it is.
    """

    signal: HasAddress


@dataclass(frozen=True, slots=True)
class WriteMem:
    """Write some bytes, a multiple of 4, to memory."""

    address: Value
    data: bytes


@dataclass(frozen=True, slots=True)
class PollMem:
    """Start nothing after it before ``word & mask`` of a 32-bit word compares with ``value``."""

    address: Value
    value: Value
    mask: int = 0xFFFF_FFFF
    op: Comparison = "=="


Command = (
    Launch[Any] | Copy | Signal | Wait | Barrier | Timestamp | WriteMem | PollMem | RegisterCommand
)
COMMANDS: Final = tuple(get_origin(one) or one for one in get_args(Command))
