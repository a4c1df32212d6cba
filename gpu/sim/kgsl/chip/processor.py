"""The command processor: fetches packets of indirect buffers, and does what they say.

Packets are those of adreno_pm4.xml. One that compute does not need is refused by its name, as are
those of the kernel's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpu.autogen.adreno_a6xx import OPCODES, REGISTERS
from gpu.sim.executor import Endless, RunningKernel, Size3
from gpu.sim.kgsl.chip.caches import Caches
from gpu.sim.kgsl.chip.dispatch import Dispatcher
from gpu.sim.kgsl.chip.errors import CpError, HardwareHang
from gpu.sim.kgsl.chip.launch import KernelExecutor, KernelMemory, Launch
from gpu.sim.kgsl.chip.packets import OPCODE_NAMES, Header, parse_header
from gpu.sim.kgsl.chip.pipe import Event, Grid, Pipe
from gpu.sim.kgsl.chip.registers import NAMES, Registers
from gpu.sim.kgsl.chip.state import LoadedState
from gpu.sim.kgsl.chip.tables import PageTables, Port
from gpu.sim.kgsl.chips import Chip
from gpu.sim.simulation import Simulation

_MOST_NESTED: Final = 2  # IB1 of the kernel's ring, and IB2 that it calls
_MOST_DWORDS: Final = 0xFFFFF  # CP_INDIRECT_BUFFER's size is 20 bits
_FETCH: Final = 512
_INVALIDATE: Final = REGISTERS["HLSQ_INVALIDATE_CMD"][0]
_LOAD_STATE: Final = ("CP_LOAD_STATE6", "CP_LOAD_STATE6_FRAG", "CP_LOAD_STATE6_GEOM")
# Written outside of the two contexts of registers: not while grids run (turnip's tu6_init_hw and
# its callers wait for idle first).
_WITHOUT_CONTEXT: Final = frozenset(
    offset
    for offset, name in NAMES.items()
    if name.endswith(("_DBG_ECO_CNTL", "_CHICKEN_BITS", "_ADDR_MODE_CNTL", "_NC_MODE_CNTL"))
)


class Buffer(NamedTuple):
    """An indirect buffer: its address, and how many dwords it has."""

    address: int
    dwords: int


@dataclass(slots=True)
class Stream:
    """A buffer under way: how far it is, and what was fetched ahead."""

    buffer: Buffer
    at: int = 0
    fetched: int = 0
    words: Sequence[int] = ()

    @property
    def left(self) -> int:
        """Dwords that are left of it."""
        return self.buffer.dwords - self.at


@dataclass(slots=True)
class Blocked:
    """What it waits for; `met` looks whether that is there."""

    what: str
    met: Callable[[], bool]


class Host(Protocol):
    """What the command processor needs of the GPU around it."""

    chip: Chip
    sim: Simulation
    caches: Caches
    executor: KernelExecutor


Handler = Callable[["Processor", Sequence[int]], None]


class Processor:
    """The command processor as one ring sees it, with the registers that its commands have left.

    Attributes:
        registers, state, pipe: what its packets write, load and start.
        port: its way into memory, of the process whose command runs.
        blocked: what it waits for.
        posted: ranges that it has written and not waited for.
        unseen: whether something was written that its prefetcher may not see (CP_WAIT_FOR_ME).
    """

    def __init__(self, gpu: Host, handlers: Mapping[str, tuple[frozenset[int] | None, Handler]]):
        self.gpu = gpu
        self.registers = Registers(gpu.chip, gpu.sim.clock, gpu.sim.debug)
        self.state = LoadedState(gpu.sim.debug)
        self.pipe = Pipe(gpu.sim)
        self.space = PageTables()
        self.port = Port(self.space, gpu.caches, "cp")
        self.blocked: Blocked | None = None
        self.posted: list[tuple[int, int]] = []
        self.unseen = False
        self._handlers = handlers
        self._streams: list[Stream] = []
        self._waiting: list[Buffer] = []
        self._dispatcher = Dispatcher(gpu.chip, self.registers, self.state, gpu.sim.debug)

    # A command.

    def begin(self, space: PageTables, buffers: Sequence[Buffer]) -> None:
        """A command begins; what others may have left behind it must not rely on."""
        self.space = space
        self.port = Port(space, self.gpu.caches, "cp")
        self.registers.poison()
        self.state.forget()
        self.posted.clear()
        self.unseen = False
        self._waiting = list(buffers)

    def abort(self) -> None:
        """The GPU was reset."""
        self.pipe.clear()
        self._streams.clear()
        self._waiting.clear()
        self.blocked = None

    @property
    def is_done(self) -> bool:
        """Whether all packets of the command were carried out; grids may still run."""
        return not self._streams and not self._waiting and not self.blocked

    @property
    def where(self) -> str:
        """Where it is, in words."""
        streams = (f"{s.buffer.address + 4 * s.at:#x}" for s in self._streams)
        return " in ".join(reversed(list(streams))) or "no buffer"

    def get_on(self) -> bool:
        """Whether a packet could be carried out. Raises PageFault."""
        return self.blocked.met() if self.blocked else not self.is_done

    def step(self) -> None:
        """Carries out one packet. Raises PageFault, CpError."""
        if self.blocked:
            self.blocked = None
            return
        if not self._streams:
            self._enter(self._waiting.pop(0))
        stream = self._streams[-1]
        header = parse_header(self._word(stream))
        if header.dwords >= stream.left:
            raise CpError(
                f"a packet of {header.dwords + 1} dwords in a buffer that has {stream.left} left"
            )
        body = self._body(stream, header.dwords)
        stream.at += 1 + header.dwords
        self.gpu.sim.counts.packets += 1
        self._execute(header, body)
        while self._streams and not self._streams[-1].left:
            self._streams.pop()

    def call(self, buffer: Buffer) -> None:
        """CP_INDIRECT_BUFFER. Raises CpError for one too deep."""
        if len(self._streams) >= _MOST_NESTED:
            raise CpError(f"an indirect buffer at {buffer.address:#x} in one that another called")
        self._enter(buffer)

    def chain(self, buffer: Buffer) -> None:
        """CP_INDIRECT_BUFFER_CHAIN: goes on in another buffer of the same level."""
        left = self._streams.pop().left
        if left:
            self.violation(f"CP_INDIRECT_BUFFER_CHAIN leaves {left} dwords behind it undone")
        self._enter(buffer)

    def skip(self, dwords: int) -> None:
        """Leaves dwords of the buffer out. Raises CpError where it has fewer."""
        stream = self._streams[-1]
        if dwords > stream.left:
            raise CpError(f"{dwords} dwords are to be left out, and the buffer has {stream.left}")
        stream.at += dwords

    def _enter(self, buffer: Buffer) -> None:
        if not 1 <= buffer.dwords <= _MOST_DWORDS or buffer.address % 4:
            raise CpError(f"an indirect buffer of {buffer.dwords} dwords at {buffer.address:#x}")
        self.check_posted(buffer.address, 4 * buffer.dwords)
        self._streams.append(Stream(buffer))

    def _word(self, stream: Stream) -> int:
        return self._words(stream, stream.at, 1)[0]

    def _body(self, stream: Stream, count: int) -> Sequence[int]:
        return self._words(stream, stream.at + 1, count) if count else ()

    def _words(self, stream: Stream, at: int, count: int) -> Sequence[int]:
        """Dwords of a buffer, which is fetched ahead."""
        offset = at - stream.fetched
        if offset < 0 or offset + count > len(stream.words):
            ahead = min(max(count, _FETCH), stream.buffer.dwords - at)
            stream.words = self.port.words(stream.buffer.address + 4 * at, ahead)
            stream.fetched, offset = at, 0
        return stream.words[offset : offset + count]

    # Packets.

    def _execute(self, header: Header, body: Sequence[int]) -> None:
        if header.kind == 4:
            for i, value in enumerate(body):
                self.write_register(header.target + i, value)
            return
        name = OPCODE_NAMES.get(header.target)
        if name in _LOAD_STATE:
            self.state.load(name, body)
            return
        if name is None or name not in self._handlers:
            what = name or f"opcode {header.target:#x}"
            known = name in OPCODES
            raise CpError(f"{what} is {'not modelled, or not for users' if known else 'no packet'}")
        sizes, handler = self._handlers[name]
        if sizes is not None and len(body) not in sizes:
            wanted = " or ".join(map(str, sorted(sizes)))
            raise CpError(f"{name} of {len(body)} dwords; it has {wanted}")
        handler(self, body)

    def write_register(self, offset: int, value: int) -> None:
        """A register is written. Raises CpError for one that is protected."""
        if offset in _WITHOUT_CONTEXT and self.pipe.has_grids:
            self.violation(
                f"{NAMES[offset]} is written while a grid runs: CP_WAIT_FOR_IDLE comes before it"
            )
        self.registers.write(offset, value)
        if offset == _INVALIDATE and self.state.invalidate(value):
            self.gpu.caches.invalidate_code()

    def dispatch(self, groups: Size3) -> None:
        """A grid begins. Raises PageFault, CpError."""
        reader = Port(self.space, self.gpu.caches, "shader")
        self.state.settle(reader, self.check_posted)
        launch = self._dispatcher.launch(groups, self.space)
        self.gpu.sim.counts.kernels += 1
        self.pipe.add(Grid(self._kernel(launch)))
        self.unseen = True

    def _kernel(self, launch: Launch) -> RunningKernel:
        """The kernel of a grid, or what a fault puts in its place. Raises PageFault, CpError."""
        fault = self.gpu.sim.faults.due("hang", "page-fault", "reset")
        memory = KernelMemory(self.space, self.gpu.caches)
        if fault is None:
            return self.gpu.executor.launch(launch, memory)
        self.gpu.sim.debug.note(f"a kernel at {launch.code:#x} shows the fault {fault.name}")
        return _Faulty(fault.name, fault.detail, memory, launch)

    # Waits and events.

    def wait(self, what: str, met: Callable[[], bool]) -> None:
        """Goes no further until something is there."""
        self.blocked = Blocked(what, met)

    def after(self, act: Callable[[], None]) -> None:
        """Does something when all grids before it have ended."""
        self.pipe.add(Event(act))

    def wrote(self, address: int, size: int) -> None:
        """It has written memory: readers see that after CP_WAIT_MEM_WRITES."""
        self.posted.append((address, size))
        self.unseen = True

    def forget_posted(self, address: int, size: int) -> None:
        """Something polls memory until it has what was written."""
        end = address + size
        self.posted = [(at, n) for at, n in self.posted if at >= end or at + n <= address]

    def check_posted(self, address: int, size: int) -> None:
        """Something reads memory: it may have been written, and not be there yet."""
        for at, count in self.posted:
            if at < address + size and address < at + count:
                self.violation(
                    f"{size:#x} bytes at {address:#x} are read, of which the command processor has"
                    f" written {at:#x}: CP_WAIT_MEM_WRITES comes in between"
                )
                self.posted.remove((at, count))
                return

    def violation(self, what: str) -> None:
        """Records that a rule was broken."""
        self.gpu.sim.debug.violation(f"{self.where}: {what}")


class OtherFault(Exception):
    """Another context made the GPU hang: it is reset, and this one's commands run again."""


class _Faulty(Endless):
    """A kernel that shows a fault on purpose."""

    def __init__(self, name: str, detail: str, memory: KernelMemory, launch: Launch):
        self._name, self._detail = name, detail
        self._memory, self._launch = memory, launch

    def step(self, budget: int) -> bool:
        """Hangs, faults, or ends where the fault does not stop it."""
        if self._name == "reset":
            raise OtherFault("another context hung the GPU, as a fault that was injected")
        if self._name == "hang":
            raise HardwareHang("the hang detector has fired, as a fault that was injected")
        address = _unmapped(self._memory.space)
        match self._detail:
            case "write":
                self._memory.data.write(address, bytes(4))
            case "exec":
                self._memory.code.read(address, 4)
            case _:
                self._memory.data.read(address, 4)
        return True

    def why_stuck(self) -> str:
        """Why it never ends; empty where it does something else."""
        is_quiet = self._name == "hang" and self._detail != "hard"
        return super().why_stuck() if is_quiet else ""


def _unmapped(space: PageTables) -> int:
    """An address that nothing is mapped at, behind something that is."""
    mapped = space.all()
    return mapped[-1].end if mapped else 0x1000
