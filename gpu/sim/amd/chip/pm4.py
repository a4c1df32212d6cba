"""The packet processor: PM4 packets from a ring or an indirect buffer.

Packet layouts: Linux 6.12 amdgpu/nvd.h and soc15d.h, and hw/dossier 5.3 for what those leave out.
Anything that is not known here - an opcode, a register, a reserved bit - is an error with the
value. Kernels run beside the packets: only CS_PARTIAL_FLUSH and end-of-pipe events wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from gpu.autogen.amd import pm4_gfx10 as op
from gpu.sim.amd.chip import dispatch
from gpu.sim.amd.chip.counters import first_register
from gpu.sim.amd.chip.dispatch import Dispatch, KernelMemory
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.hwqueue import Blocked, HwQueue
from gpu.sim.amd.chips import Chip
from gpu.sim.executor import Endless, RunningKernel, Size3
from gpu.sim.isa.tally import new_tally
from gpu.sim.translate import PageFault, first_hole

_SH_BASE: Final = op.VALUES["SET_SH_REG"]["START"]
_SH_COUNT: Final = op.VALUES["SET_SH_REG"]["END"] - _SH_BASE
_ONE_DWORD: Final = 0x3FFF
_KERNEL_SLICE: Final = 8192
_CS_PARTIAL_FLUSH: Final = op.EVENTS["CS_PARTIAL_FLUSH"]
_CHAIN: Final = 1 << 20
_OFFLOAD_POLLING: Final = 1 << 21
# What a die of several must do alone: it writes, and may do so again when others have gone on.
_ONCE: Final = frozenset(
    (
        *(op.PACKET3_WRITE_DATA, op.PACKET3_COPY_DATA, op.PACKET3_RELEASE_MEM),
        op.PACKET3_ATOMIC_MEM,
    )
)
_VALID: Final = op.VALUES["INDIRECT_BUFFER"]["VALID"]
_COUNT_ENABLE: Final = "COMPUTE_PERFCOUNT_ENABLE"


Handler = Callable[["PacketProcessor", list[int]], "bool | None"]


@cache
def sh_registers(chip: Chip) -> dict[int, str]:
    """Compute registers by their offset in SET_SH_REG packets."""
    found: dict[int, str] = {}
    for name, (segment, offset, _) in _registers(chip.gc[0]).items():
        number = chip.sh_base + offset - _SH_BASE
        aliased = name.startswith("COMPUTE_DESTINATION_EN")
        if name.startswith("COMPUTE_") and segment == 0 and not aliased:
            found[number] = name
    return found


def _registers(generation: int) -> Mapping[str, tuple[int, int, object]]:
    """A generation's registers of the GC block; the tables are large, and a chip needs its own."""
    if generation == 9:
        from gpu.autogen.amd.gc_9_4_3 import REGISTERS
    elif generation == 10:
        from gpu.autogen.amd.gc_10_3_0 import REGISTERS
    elif generation == 11:
        from gpu.autogen.amd.gc_11_0_0 import REGISTERS
    else:
        from gpu.autogen.amd.gc_12_0_0 import REGISTERS
    return REGISTERS


@dataclass(eq=False)
class EndOfPipe:
    """Something that happens when the kernels before it are done."""

    act: Callable[[], None]
    after: tuple[RunningKernel, ...]


@dataclass(slots=True)
class _Stream:
    """An indirect buffer that is being read."""

    words: list[int]
    at: int = 0


@dataclass(eq=False)
class PacketProcessor:
    """What one compute queue's packet processor remembers.

    Attributes:
        handlers: what packets do, by opcode.
        registers: compute registers that were set, by name.
        kernels: grids under way, the oldest first.
        pending: end-of-pipe events that have not happened yet.
        skip: dwords that PRED_EXEC takes out of what follows.
        alone: dwords that it gives one die of several.
    """

    queue: HwQueue
    handlers: Mapping[int, Handler]
    registers: dict[str, int] = field(default_factory=dict)
    kernels: list[RunningKernel] = field(default_factory=list)
    pending: deque[EndOfPipe] = field(default_factory=deque)
    streams: list[_Stream] = field(default_factory=list)
    skip: int = 0
    alone: int = 0

    def __post_init__(self) -> None:
        asic, self.port = self.queue.asic, self.queue.port
        self.memory = KernelMemory(self.port.space, asic.caches)
        self.l2_port = self.port.as_agent("cp_l2")
        self._known = sh_registers(asic.chip)
        self._counted: dict[RunningKernel, Dispatch] = {}

    def busy(self) -> bool:
        """Whether something goes on beside the packets."""
        return bool(self.kernels or self.pending)

    def gets_on(self) -> bool:
        """Whether what goes on beside the packets comes nearer to an end.

        Raises PageFault, PacketError.
        """
        if self.pending and self._is_ready(self.pending[0]):
            return True
        return any(not kernel.why_stuck() for kernel in self.kernels)

    def why_stuck(self) -> str:
        """Why it does not, of the kernels under way."""
        reasons = [kernel.why_stuck() for kernel in self.kernels]
        return "; ".join(filter(None, reasons)) if all(reasons) else ""

    def _is_ready(self, event: EndOfPipe) -> bool:
        return not any(kernel in self.kernels for kernel in event.after)

    def work_beside(self) -> None:
        """Lets a grid go on, or an end-of-pipe event happen. Raises PageFault, PacketError."""
        ready = self.pending and self._is_ready(self.pending[0])
        if ready and (not self.kernels or self.queue.sim.rng.random() < 0.5):
            self.pending.popleft().act()
        elif self.kernels:
            kernel = self.queue.sim.rng.choice(self.kernels)
            if kernel.step(_KERNEL_SLICE):
                self.kernels.remove(kernel)
                self.queue.sim.counts.instructions += kernel.instructions
                counted = self._counted.pop(kernel, None)
                if counted is not None and counted.tally is not None:
                    self.queue.asic.counters.ended(
                        *(counted.groups, counted.threads, counted.wave_size, counted.tally)
                    )

    def at_end_of_pipe(self, act: Callable[[], None]) -> None:
        """Does something when all that was begun is done."""
        self.pending.append(EndOfPipe(act, tuple(self.kernels)))

    def launch(self, what: Dispatch) -> None:
        """Begins a grid. Raises PageFault, PacketError."""
        dispatch.check_entry(what, self.memory)
        counters, wanted = self.queue.asic.counters, self.registers.get(_COUNT_ENABLE, 0)
        if counters.counting and wanted & 1:
            what = what._replace(tally=new_tally())
        kernel = self._fault(what) or self.queue.asic.executor.launch(what, self.memory)
        self.kernels.append(kernel)
        if what.tally is not None:
            self._counted[kernel] = what
        self.queue.sim.counts.kernels += 1

    def _fault(self, what: Dispatch) -> RunningKernel | None:
        """What runs in place of a grid that a fault was injected for. Raises PageFault."""
        fault = self.queue.sim.faults.due("hang", "page-fault", "reset", "ecc")
        if fault is None:
            return None
        if fault.name == "page-fault":
            is_code = fault.detail == "exec"
            at = what.entry if is_code else first_hole(self.port.space, what.entry)
            raise PageFault(at, fault.detail == "write", present=is_code, execute=is_code)
        if fault.name == "reset":
            self.queue.host.reset_gpu("a fault that was injected")
        elif fault.name == "ecc":
            self.queue.host.read_poison()
        else:
            self.queue.is_unsaved = fault.detail == "hard"
        return Endless()

    def block_until_idle(self, what: str) -> bool:
        """Blocks the queue while grids run; True when it did."""
        if not self.kernels:
            return False
        self.queue.blocked = Blocked(what, lambda: not self.kernels)
        return True

    def step_stream(self) -> None:
        """Handles one packet of the innermost indirect buffer."""
        stream = self.streams[-1]
        left = len(stream.words) - stream.at
        if left == 0:
            self.streams.pop()
            return
        size = packet_size(stream.words[stream.at])
        if size > left:
            raise PacketError(f"a packet of {size} dwords in the last {left} of its buffer")
        at = stream.at
        if self.execute(stream.words[at], stream.words[at + 1 : at + size]):
            stream.at = at + size

    def execute(self, header: int, body: list[int]) -> bool:
        """Does what a packet says; False when it blocks and must be looked at again."""
        if self.skip:
            self.skip -= min(self.skip, 1 + len(body))
            return True
        done = header >> 30 == 2 or self._handle(header, body)
        if done:
            self.alone -= min(self.alone, 1 + len(body))
        self.queue.sim.counts.packets += done
        return done

    def _handle(self, header: int, body: list[int]) -> bool:
        opcode = header >> 8 & 0xFF
        handler = self.handlers.get(opcode)
        if handler is None:
            raise PacketError(f"opcode {opcode:#x} ({opcode_name(opcode)}) is not for user queues")
        if header & 0xFD:
            raise PacketError(f"header {header:#010x}: bits {header & 0xFD:#x} must be 0")
        if opcode in _ONCE and not self.alone and self._is_shared:
            raise PacketError(
                f"{opcode_name(opcode)} on {self.queue.asic.chip.xccs} dies, each of which does it:"
                " PRED_EXEC gives it one"
            )
        return handler(self, body) is not False

    @property
    def _is_shared(self) -> bool:
        """Whether several dies carry out each packet, as they do of AQL queues alone."""
        return self.queue.asic.chip.xccs > 1 and self.queue.kind == "aql"

    def enter(self, address: int, count: int, replace: bool) -> None:
        """Goes on in an indirect buffer."""
        words = self.port.words(address, count)
        if replace and self.streams:
            self.streams.pop()
        if len(self.streams) >= 2:
            raise PacketError("an indirect buffer in an indirect buffer in an indirect buffer")
        self.streams.append(_Stream(words))

    def set_registers(self, first: int, values: list[int]) -> None:
        """SET_SH_REG. Raises PacketError for what is no compute register."""
        for i, value in enumerate(values):
            name = self._known.get(first + i)
            if name is None:
                raise PacketError(f"SET_SH_REG of offset {first + i:#x}: no compute register")
            self.registers[name] = value


def packet_size(header: int) -> int:
    """Dwords of a packet with its header. Raises PacketError for types that no queue takes."""
    kind = header >> 30
    if kind == 3:
        count = header >> 16 & 0x3FFF
        if count == _ONE_DWORD and header >> 8 & 0xFF == op.PACKET3_NOP:
            return 1
        return count + 2
    if kind == 2:
        return 1
    raise PacketError(f"header {header:#010x} is of type {kind}: only types 2 and 3 are known")


def opcode_name(opcode: int) -> str:
    """The header's name of an opcode."""
    names = (n for n, v in vars(op).items() if n.startswith("PACKET3_") and v == opcode)
    return next(names, "unknown")


def need(name: str, body: list[int], *sizes: int) -> None:
    """Raises PacketError unless a packet's body has one of these sizes."""
    if len(body) not in sizes:
        expected = " or ".join(str(size) for size in sizes)
        raise PacketError(f"{name} with {len(body)} dwords after the header: {expected} expected")


def reserved(name: str, word: int, value: int, allowed: int) -> None:
    """Raises PacketError for bits of a packet's dword that nobody has given a meaning."""
    if value & ~allowed:
        raise PacketError(f"{name} dword {word} is {value:#x}: bits {value & ~allowed:#x} set")


def address_of(name: str, low: int, high: int, align: int) -> int:
    """An address in two dwords. Raises PacketError for a misaligned one."""
    address = high << 32 | low
    if address % align:
        raise PacketError(f"{name} at {address:#x}: must be a multiple of {align}")
    return address


def _nop(cp: PacketProcessor, body: list[int]) -> None:
    pass


def _set_sh_reg(cp: PacketProcessor, body: list[int]) -> None:
    if len(body) < 2:
        raise PacketError("SET_SH_REG without a value")
    reserved("SET_SH_REG", 1, body[0], 0xFFFF)
    if body[0] + len(body) - 1 > _SH_COUNT:
        raise PacketError(f"SET_SH_REG of offset {body[0]:#x}: beyond {_SH_COUNT:#x}")
    cp.set_registers(body[0], body[1:])


def _set_uconfig_reg(cp: PacketProcessor, body: list[int]) -> None:
    if len(body) < 2:
        raise PacketError("SET_UCONFIG_REG without a value")
    reserved("SET_UCONFIG_REG", 1, body[0], 0xFFFF)
    for number, value in enumerate(body[1:], first_register(body[0])):
        cp.queue.asic.counters.write(number, value)


def _indirect_buffer(cp: PacketProcessor, body: list[int]) -> None:
    need("INDIRECT_BUFFER", body, 3)
    control = body[2]
    reserved("INDIRECT_BUFFER", 2, body[1], 0xFFFF)
    allowed = 0xFFFFF | _CHAIN | _OFFLOAD_POLLING | _VALID | 0xF << 24 | 3 << 28
    reserved("INDIRECT_BUFFER", 3, control, allowed)
    address = address_of("INDIRECT_BUFFER", body[0], body[1], 4)
    if not control & _VALID:
        raise PacketError("INDIRECT_BUFFER without VALID")
    if not control & 0xFFFFF:
        raise PacketError("INDIRECT_BUFFER of size 0")
    if control >> 24 & 0xF:
        raise PacketError(f"INDIRECT_BUFFER with VMID {control >> 24 & 0xF}: the queue's own is 0")
    cp.enter(address, control & 0xFFFFF, bool(control & _CHAIN))


def _event_write(cp: PacketProcessor, body: list[int]) -> bool:
    need("EVENT_WRITE", body, 1)
    reserved("EVENT_WRITE", 1, body[0], 0xF3F)
    event, index = body[0] & 0x3F, body[0] >> 8 & 0xF
    if event != _CS_PARTIAL_FLUSH:
        raise PacketError(f"EVENT_WRITE of event {event:#x} is not modelled")
    if index != 4:
        raise PacketError(f"EVENT_WRITE CS_PARTIAL_FLUSH with index {index}: 4 is its own")
    return not cp.block_until_idle("kernels, by CS_PARTIAL_FLUSH")


def _pred_exec(cp: PacketProcessor, body: list[int]) -> None:
    need("PRED_EXEC", body, 1)
    reserved("PRED_EXEC", 1, body[0], 0xFF003FFF)
    first_xcc, mask, count = 1, body[0] >> 24, body[0] & 0x3FFF
    if not mask & first_xcc:
        cp.skip = count
    elif mask == first_xcc:
        cp.alone = count + 2  # with this packet itself


def _dispatch_direct(cp: PacketProcessor, body: list[int]) -> None:
    need("DISPATCH_DIRECT", body, 4)
    chip = cp.queue.asic.chip
    cp.launch(dispatch.from_registers(chip, cp.registers, Size3(*body[:3]), body[3]))


def _dispatch_indirect(cp: PacketProcessor, body: list[int]) -> None:
    need("DISPATCH_INDIRECT", body, 3)
    address = address_of("DISPATCH_INDIRECT", body[0], body[1], 4)
    groups = Size3(*cp.l2_port.words(address, 3))
    cp.launch(dispatch.from_registers(cp.queue.asic.chip, cp.registers, groups, body[2]))


CONTROL_PACKETS: Final[Mapping[int, Handler]] = {
    op.PACKET3_NOP: _nop,
    op.PACKET3_SET_SH_REG: _set_sh_reg,
    op.PACKET3_SET_UCONFIG_REG: _set_uconfig_reg,
    op.PACKET3_INDIRECT_BUFFER: _indirect_buffer,
    op.PACKET3_EVENT_WRITE: _event_write,
    op.PACKET3_PRED_EXEC: _pred_exec,
    op.PACKET3_DISPATCH_DIRECT: _dispatch_direct,
    op.PACKET3_DISPATCH_INDIRECT: _dispatch_indirect,
}
