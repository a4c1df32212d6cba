"""What is known of a device that failed, for a file: as JSON, and as text for people.

It is read from where the device has left it: rings, arguments and code in memory. Nothing is noted
while all goes well, and nothing of what buffers hold is told.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from gpu.core.errors import FormatError

SCHEMA: Final = 1
"""Version of the JSON form: a key is never renamed or removed without a new number."""
_AROUND: Final = 16  # instructions shown before and after where a kernel stopped
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that may be an address, by its number; ``place`` is which buffer it leads to."""

    number: int
    value: int
    place: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that was under way.

    Attributes:
        name: of its function.
        code: address of its first instruction, 0 where that is not known.
        stops: addresses of instructions that waves stopped at, where hardware tells.
        origin: what it computes, and the line of the user's code, where the runtime knows.
        arguments: those that may be addresses.
        disassembly: around the first stop, or from the beginning; empty without a disassembler.
    """

    name: str
    code: int
    stops: tuple[int, ...]
    origin: str
    arguments: tuple[Argument, ...]
    disassembly: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """An allocation: where, how many bytes, and what it is for."""

    address: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: how far it was given work, how far it is, and what it had not done, decoded."""

    name: str
    submitted: int
    reached: int
    packets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Crash:
    """A failure.

    Attributes:
        time: when, in UTC.
        device: its name.
        error, message: the exception's class and text.
        line: of the user's code that met the error.
        address, place: what was accessed, and in or behind which buffer that is.
        kernels: those under way, oldest first.
        waves: what hardware tells of where they stand.
        buffers: allocations, those next to the address first; ``more_buffers`` are left out.
        queues: all that were open.
        translation: how page tables lead to the address, where they can be read.
    """

    time: str
    device: str
    error: str
    message: str
    line: str
    address: int | None
    place: str
    kernels: tuple[Kernel, ...]
    waves: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    more_buffers: int
    queues: tuple[Queue, ...]
    translation: tuple[str, ...] = ()  # earlier reports have none

    def as_json(self) -> str:
        """It as JSON, its keys those of the classes here, and ``schema``."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def as_text(self) -> str:
        """It for people."""
        return "\n".join(_lines(self)) + "\n"


def parse_crash(name: str, text: bytes) -> Crash:
    """Reads `Crash.as_json`. Raises FormatError for what that has not written."""
    try:
        data = json.loads(text)
        if data.pop("schema", None) != SCHEMA:
            raise FormatError(f"{name} is no report of schema {SCHEMA}, which this version reads")
        kernels = tuple(_kernel(each) for each in data.pop("kernels"))
        buffers = tuple(_of(Buffer, each) for each in data.pop("buffers"))
        queues = tuple(_of(Queue, each) for each in data.pop("queues"))
        waves = tuple(data.pop("waves"))
        parts = {"kernels": kernels, "buffers": buffers, "queues": queues, "waves": waves}
        return _of(Crash, {**data, **parts})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name} is no report about a GPU: {error}") from error


def _kernel(data: Mapping[str, Any]) -> Kernel:
    arguments = tuple(_of(Argument, each) for each in data["arguments"])
    return _of(Kernel, {**data, "arguments": arguments})


def _of(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """A record of exactly these fields, lists as tuples."""
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})


def around(lines: Sequence[str], address: int | None) -> tuple[str, ...]:
    """Lines of disassembly about an address, which is marked, or the first of them.

    Each begins with its address in hexadecimal digits and a colon.
    """
    places = [int(line.partition(":")[0], 16) for line in lines]
    at = 0 if address is None else max(bisect_right(places, address) - 1, 0)
    start = max(at - _AROUND, 0)
    shown = enumerate(lines[start : at + _AROUND + 1], start)
    marked = None if address is None else at
    return tuple(f"{'->' if n == marked else '  '} {line}" for n, line in shown)


def _lines(crash: Crash) -> Iterator[str]:
    yield f"{crash.device}: {crash.error} at {crash.time}"
    yield f"  {crash.message}"
    if crash.line:
        yield f"  met at {crash.line}"
    if crash.address is not None:
        yield f"address {crash.address:#x}"
        yield f"  {crash.place}"
        yield from (f"  {line}" for line in crash.translation)
    for kernel in crash.kernels:
        yield from _kernel_lines(kernel)
    if crash.waves:
        yield "waves"
    yield from (f"  {wave}" for wave in crash.waves)
    yield "buffers"
    for buffer in crash.buffers:
        yield f"  {buffer.address:#014x}  {buffer.size:#10x}  {buffer.name}"
    if crash.more_buffers:
        yield f"  and {crash.more_buffers} more"
    for queue in crash.queues:
        yield f"{queue.name}: reached {queue.reached} of {queue.submitted}"
        yield from (f"  {packet}" for packet in queue.packets)


def _kernel_lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}, code at {kernel.code:#x}"
    if kernel.origin:
        yield f"  {kernel.origin}"
    for argument in kernel.arguments:
        yield f"  argument {argument.number} is {argument.value:#x}, {argument.place}"
    for stop in kernel.stops:
        yield f"  stopped at {stop:#x}, {stop - kernel.code:#x} into it"
    yield from (f"  {line}" for line in kernel.disassembly)
