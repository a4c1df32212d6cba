"""Commands as AQL packets: the encoder of HSA queues.

A launch is a dispatch packet; all other commands are PM4 packets in memory, which a vendor's packet
runs. Each packet waits for those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.encode.aql_packets import (
    PACKET_SIZE,
    AqlHeader,
    AqlPacket,
    PacketType,
    Scope,
    barrier,
    kernel_dispatch,
    run_pm4,
)
from gpu.drivers.am.encode.dispatch import LoadedKernel, loaded_kernel
from gpu.drivers.am.encode.kernarg import build_kernarg
from gpu.drivers.am.encode.pm4 import Caches
from gpu.drivers.am.encode.pm4_encoder import KERNARG_ALIGN, Pm4Writer
from gpu.drivers.am.target import Target, Wake
from gpu.drivers.dwords import WORD, in_segment
from gpu.hcq import commands as hcq
from gpu.hcq.encoder import Encoded, Patch, Segment, SegmentKind
from gpu.hcq.symbol import Symbol, segment_address


class _Submission:
    """The segments of one submission in the making."""

    def __init__(self, target: Target, wake: Wake | None):
        self._target = target
        self._wake = wake
        self._packets: list[AqlPacket] = []
        self._segments: list[Segment] = []
        self._patches: list[Patch] = []
        self._old = Caches.ALL

    def launch(self, command: hcq.Launch[LoadedKernel]) -> None:
        loaded = loaded_kernel(self._target, command)
        metadata = loaded.kernel.metadata
        args, grid, block = command.args, command.grid, command.block
        kernarg = build_kernarg(metadata, args, grid, block, loaded.dynamic_lds)
        align = max(KERNARG_ALIGN, metadata.kernarg_align)
        place = self._add("kernarg", align, kernarg.data, kernarg.patches)
        header = AqlHeader(
            TYPE=PacketType.KERNEL_DISPATCH,
            BARRIER=1,
            ACQUIRE=Scope.SYSTEM if self._old is Caches.ALL else Scope.AGENT,
            # Each XCC has an L2, and a signal's packet, on one of them, writes back that one alone.
            RELEASE=Scope.AGENT if self._target.xccs == 1 else Scope.SYSTEM,
        )
        packet = kernel_dispatch(loaded, grid, block, place, header)
        self._packets.append(packet)
        self._old = Caches.UNITS

    def run(self, commands: Iterable[hcq.Command]) -> None:
        """Commands other than launches, as one indirect buffer."""
        writer = Pm4Writer(self._target, self._wake)
        for command in commands:
            writer.command(command)
        self._old = Caches.ALL
        if not len(writer.push):
            return
        place = self._add("ib", WORD, writer.push.data, writer.push.patches)
        header = AqlHeader(TYPE=PacketType.VENDOR_SPECIFIC, BARRIER=1)
        self._packets.append(run_pm4(place, len(writer.push), header))

    def _add(self, kind: SegmentKind, align: int, data: bytes, patches: Iterable[Patch]) -> Symbol:
        """Appends a segment; the symbol of its address."""
        number = len(self._segments) + 1
        self._segments.append(Segment(kind, align, "memory", data))
        self._patches += in_segment(patches, number)
        return segment_address(number)

    def finish(self) -> Encoded:
        first = Segment("aql", PACKET_SIZE, "ring", b"".join(p.data for p in self._packets))
        patches = [
            patch
            for number, packet in enumerate(self._packets)
            for patch in in_segment(packet.patches, 0, PACKET_SIZE * number)
        ]
        return Encoded((first, *self._segments), (*patches, *self._patches))


class AqlEncoder:
    """The `Encoder` of queues that take AQL; programs are `AmProgram`s.

    Scratch memory is that of the queue (`amd_queue_t`), whatever programs were loaded with. On
    several XCCs each of them reads the queue: launches they share, and of the rest the first does
    what is to be done once.
    """

    def __init__(self, target: Target, wake: Wake | None = None):
        self.target = target
        self.wake = wake

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`. Large copies are Unsupported: copy queues do them."""
        submission = _Submission(self.target, self.wake)
        others: list[hcq.Command] = []
        for command in commands:
            if not isinstance(command, hcq.Launch):
                others.append(command)
                continue
            if others:
                submission.run(others)
                others = []
            submission.launch(command)
        if others:
            submission.run(others)
        return submission.finish()

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`, which nothing asks of AQL: its packets always lie in the ring."""
        raise Unsupported("a call on an AQL queue: its packets are in the ring")

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`: barriers that wait for nothing."""
        if size % PACKET_SIZE:
            raise InvalidValue(f"filler of {size} bytes: give a multiple of {PACKET_SIZE}")
        packet = barrier(AqlHeader(TYPE=PacketType.BARRIER_AND))
        return packet.data * (size // PACKET_SIZE)
