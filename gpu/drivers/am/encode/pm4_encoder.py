"""Commands as PM4 packets: the encoder of compute queues.

A launch is packets in the ring, and its arguments in memory. Launches of a queue follow each other:
each waits for the one before. Before the first of a submission, and after whatever lets something
else be seen (`Wait`, `PollMem`, `Barrier`), all caches are dropped; between launches those of the
units alone, as L2 has what the queue itself wrote. A signal is written when L2 has written back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode.aql_packets import PACKET_SIZE, AqlHeader, PacketType, kernel_dispatch
from gpu.drivers.am.encode.dispatch import (
    DispatchState,
    LoadedKernel,
    dispatch_state,
    loaded_kernel,
)
from gpu.drivers.am.encode.kernarg import build_kernarg
from gpu.drivers.am.encode.pm4 import Caches, Pm4Builder, write_pieces
from gpu.drivers.am.encode.registers import push_register
from gpu.drivers.am.target import Target, Wake
from gpu.drivers.dwords import WORD, Word, in_segment, pair
from gpu.hcq import commands as hcq
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.registers import ReadRegister, WriteRegister
from gpu.hcq.signal import OWN_TIMELINE
from gpu.hcq.symbol import Symbol, Value, offset, plus, segment_address

KERNARG_ALIGN: Final = 64
_MOST_COPIED: Final = 4096  # bytes, of one copy
_FUNCTIONS: Final = {
    "==": fields.Function.EQUAL,
    "!=": fields.Function.NOT_EQUAL,
    "<": fields.Function.LESS,
    "<=": fields.Function.LESS_EQUAL,
    ">=": fields.Function.GREATER_EQUAL,
    ">": fields.Function.GREATER,
}


class Pm4Writer:
    """Packets of one submission in the making, and what of memory may be old where they stand."""

    def __init__(self, target: Target, wake: Wake | None):
        self.push = Pm4Builder(target)
        self.old: Caches | None = Caches.ALL
        self._target = target
        self._wake = wake

    def command(self, command: hcq.Command) -> None:
        """Any command but launches. Raises Unsupported for copies of more than a few words."""
        match command:
            case hcq.Signal(signal, value):
                self._signal(signal, value)
            case hcq.Wait(signal, value):
                self.push.wait_memory(signal.address, value, fields.Function.GREATER_EQUAL)
                self.old = Caches.ALL
            case hcq.Timestamp(signal):
                stamp = plus(signal.address, hcq.TIMESTAMP)
                with self.push.once():
                    self.push.release(stamp, data=fields.DataSel.CLOCK, flush=False)
            case hcq.Barrier():
                self.old = Caches.ALL
            case hcq.WriteMem(address, data):
                for start, words in write_pieces(data).items():
                    with self.push.once():
                        self.push.write_data(plus(address, start), words)
                self.old = Caches.ALL
            case hcq.PollMem(address, value, mask, op):
                self.push.wait_memory(address, value, _FUNCTIONS[op], mask)
                self.old = Caches.ALL
            case hcq.Copy(dst, src, size):
                self._copy(dst, src, size)
            case WriteRegister() | ReadRegister():
                push_register(self.push, command)
            case hcq.Launch(program):
                raise Unsupported(f"launch of {program.name} within an indirect buffer")

    def _copy(self, dst: Value, src: Value, size: Value) -> None:
        """4 or 8 bytes at a time, through L2 as kernels do; symbols are taken for aligned."""
        places = [place for place in (dst, src) if not isinstance(place, Symbol)]
        odd = any(place % WORD for place in places)
        if isinstance(size, Symbol) or size > _MOST_COPIED or size % WORD or odd:
            raise Unsupported(
                f"copy of {size} bytes on a compute queue: up to {_MOST_COPIED} in whole words are"
                " copied there; give others to a copy queue"
            )
        self.refresh()
        at = 0
        with self.push.once():
            while at < size:
                known = len(places) == 2 and size - at >= 2 * WORD
                wide = known and not any((place + at) % (2 * WORD) for place in places)
                self.push.copy_data(
                    plus(dst, at), plus(src, at), from_=fields.CopySource.L2, all_64=wide
                )
                at += 2 * WORD if wide else WORD
        self.old = Caches.UNITS

    def refresh(self) -> None:
        """Lets what follows read nothing that is old."""
        if self.old is not None:
            self.push.acquire(self.old)
            self.old = None

    def _signal(self, signal: hcq.HasAddress, value: Value) -> None:
        with self.push.once():
            self.push.release(signal.address, value)
            if self._wake is not None and signal is OWN_TIMELINE:
                event = self._wake.event
                self.push.release(self._wake.slot, event, interrupt=event, flush=False)


class _Places(NamedTuple):
    """Where the AQL packet of a launch is, if it has one, and its arguments."""

    packet: Symbol
    arguments: Symbol


class _Submission(Pm4Writer):
    """Packets with launches among them, and their arguments."""

    def __init__(self, target: Target, wake: Wake | None):
        super().__init__(target, wake)
        self.segments: list[Segment] = []
        self.patches: list[Patch] = []

    def launch(self, command: hcq.Launch[LoadedKernel]) -> None:
        loaded = loaded_kernel(self._target, command)
        state = dispatch_state(self._target, loaded)
        places = self._arguments(loaded, state, command)
        self.refresh()
        self._registers(state, _user_data(loaded, state, places), command.block)
        self.push.dispatch(command.grid, wave32=state.wave32)
        self.push.wait_for_shaders()
        self.old = Caches.UNITS

    def _arguments(
        self, loaded: LoadedKernel, state: DispatchState, command: hcq.Launch[LoadedKernel]
    ) -> _Places:
        """Adds the segment of a launch; a kernel that asks for its AQL packet finds it first."""
        number = len(self.segments) + 1
        metadata, grid, block = loaded.kernel.metadata, command.grid, command.block
        kernarg = build_kernarg(metadata, command.args, grid, block, loaded.dynamic_lds)
        start = PACKET_SIZE if state.needs_packet else 0
        places = _Places(segment_address(number), offset(segment_address(number), start))
        data = kernarg.data
        if state.needs_packet:
            header = AqlHeader(TYPE=PacketType.KERNEL_DISPATCH)
            packet = kernel_dispatch(loaded, grid, block, places.arguments, header)
            data = packet.data + data
            self.patches += in_segment(packet.patches, number)
        self.patches += in_segment(kernarg.patches, number, start)
        align = max(KERNARG_ALIGN, metadata.kernarg_align)
        self.segments.append(Segment("kernarg", align, "memory", data, start))
        return places

    def _registers(self, state: DispatchState, user: list[Word], block: hcq.Block) -> None:
        push = self.push
        push.set_registers("COMPUTE_PGM_LO", *pair(state.program, 8))
        push.set_registers("COMPUTE_PGM_RSRC1", state.rsrc1, state.rsrc2)
        push.set_registers("COMPUTE_PGM_RSRC3", state.rsrc3)
        push.set_registers("COMPUTE_TMPRING_SIZE", state.tmpring_size)
        if self._target.generation.architected_scratch:
            push.set_registers("COMPUTE_DISPATCH_SCRATCH_BASE_LO", *pair(state.scratch, 8))
        push.set_registers("COMPUTE_RESTART_X", 0, 0, 0)
        if user:
            push.set_registers("COMPUTE_USER_DATA_0", *user)
        push.set_registers("COMPUTE_RESOURCE_LIMITS", 0)
        # Behind the sizes of a group: no statistics. Counters are on or off as they were set.
        push.set_registers("COMPUTE_START_X", 0, 0, 0, *block, 0)

    def finish(self) -> Encoded:
        first = Segment("ring", WORD, "ring", self.push.data)
        return Encoded((first, *self.segments), (*self.push.patches, *self.patches))


def _user_data(loaded: LoadedKernel, state: DispatchState, places: _Places) -> list[Word]:
    """What the user SGPRs hold. Arguments that a kernel wants there it loads itself."""
    words: list[Word] = []
    for name, size in state.user:
        match name:
            case "KERNARG_SEGMENT_PTR":
                words += pair(places.arguments)
            case "DISPATCH_PTR":
                words += pair(places.packet)
            case "PRIVATE_SEGMENT_SIZE":
                words.append(loaded.private_size)
            case "PRIVATE_SEGMENT_BUFFER":
                words += state.scratch_buffer
            case "FLAT_SCRATCH_INIT":
                words += pair(state.scratch)
            case _:  # the number of a launch
                words += [0] * size
    return words


class Pm4Encoder:
    """The `Encoder` of compute queues that take PM4; programs are `AmProgram`s.

    ``wake`` wakes the host after the queue's own timeline was written. Raises Unsupported for a GPU
    whose launches run on several XCCs: those need an AQL queue.
    """

    def __init__(self, target: Target, wake: Wake | None = None):
        if target.xccs > 1:
            raise Unsupported(f"a PM4 queue on {target.xccs} XCCs: open an AQL queue")
        self.target = target
        self.wake = wake

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`. Large copies are Unsupported: copy queues do them."""
        submission = _Submission(self.target, self.wake)
        for command in commands:
            if isinstance(command, hcq.Launch):
                submission.launch(command)
            else:
                submission.command(command)
        return submission.finish()

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`: an INDIRECT_BUFFER packet."""
        if size % WORD:
            raise InvalidValue(f"indirect buffer of {size} bytes: give a multiple of {WORD}")
        push = Pm4Builder(self.target)
        push.call(offset(target, addend), size // WORD)
        return Encoded((Segment("ring", WORD, "ring", push.data),), tuple(push.patches))

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`: NOP packets."""
        if size % WORD:
            raise InvalidValue(f"filler of {size} bytes: give a multiple of {WORD}")
        push = Pm4Builder(self.target)
        push.nop(size // WORD)
        return push.data
