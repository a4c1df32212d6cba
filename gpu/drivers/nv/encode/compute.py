"""Commands as what channels fetch: the encoders of compute and copy queues.

A submission is a pushbuffer and, for each launch, a descriptor and constant bank 0; the ring gets
an entry that points at the pushbuffer. Channels must have been set up before
(`gpu.drivers.nv.encode.launch.set_up_compute`, `gpu.drivers.nv.encode.ce.set_up_copy`).

Launches that follow each other in a submission are a chain: the descriptor of each names the next,
which starts when it is done, and only the first is sent. Where `Target.chained` is None all are
sent, and the front end waits between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.nv.code.cubin import Kernel
from gpu.drivers.nv.encode import ce
from gpu.drivers.nv.encode.launch import (
    LoadedKernel,
    Target,
    invalidate_caches,
    kernel_bank0,
    kernel_qmd,
    send,
)
from gpu.drivers.nv.encode.methods import compute
from gpu.drivers.nv.encode.methods.host import SemOperation
from gpu.drivers.nv.encode.pushbuf import (
    ENTRY_SIZE,
    GpEntry,
    Item,
    Pushbuffer,
    gp_entry_patch,
    moved,
)
from gpu.drivers.nv.encode.qmd import QMD_ALIGN, ConstantBuffer, Dependent, DependentAction
from gpu.drivers.nv.encode.semaphore import acquire, membar, release
from gpu.hcq import commands as hcq
from gpu.hcq.args import SCALARS, ArgumentLayout
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.registers import ReadRegister, WriteRegister, no_registers
from gpu.hcq.symbol import Symbol, Value, plus, segment_address

BANK_ALIGN: Final = 256
_SEGMENTS: Final = 2  # of a launch: constant bank 0, descriptor
_WORD: Final = 4
_POLLS: Final = {"==": SemOperation.ACQUIRE, ">=": SemOperation.ACQ_STRICT_GEQ}
_ALL: Final = 0xFFFF_FFFF
_TIME: Final = 8  # of a semaphore, behind its payload


def check_arguments(kernel: Kernel, layout: ArgumentLayout) -> None:
    """Raises InvalidValue where a layout is not that of a kernel's parameters."""
    ours = [(argument.offset, SCALARS[argument.code]) for argument in layout.arguments]
    theirs = [(parameter.offset, parameter.size) for parameter in kernel.parameters]
    if ours != theirs or layout.size != align_up(kernel.parameter_size, 8):
        raise InvalidValue(
            f"arguments of {kernel.name} at (offset, size) {ours}: its parameters are at {theirs}"
        )


class _Writer:
    """The segments of one submission in the making."""

    def __init__(self, target: Target, push: Pushbuffer):
        self.target = target
        self.push = push
        self.segments: list[Segment] = []
        self.patches: list[Patch] = []
        self.invalidated = False
        self.busy = False  # what was launched may still run

    def settle(self) -> None:
        """Lets nothing start before what was launched is done."""
        if self.busy:
            self.push.write(compute.WAIT_FOR_IDLE())
            self.busy = False

    def launch(self, run: Sequence[hcq.Launch[LoadedKernel]]) -> None:
        """Launches one after the other, as one chain or each for itself."""
        chains = [run] if self.target.chained is not None else [[each] for each in run]
        for chain in chains:
            self.settle()
            if not self.invalidated:
                self.push.write(*invalidate_caches())
                self.invalidated = True
            descriptors = [
                self._descriptor(each, is_last=number == len(chain))
                for number, each in enumerate(chain, 1)
            ]
            self.push.write(*send(self.target, descriptors[0]))
            self.busy = True

    def _descriptor(self, command: hcq.Launch[LoadedKernel], *, is_last: bool) -> Symbol:
        """Adds the segments of a launch; the symbol of its descriptor's address."""
        loaded = command.program.info
        check_arguments(loaded.kernel, command.args.layout)
        dependents: tuple[Dependent, ...] = ()
        if not is_last:
            assert self.target.chained is not None, "launches that are sent have none"
            follower = segment_address(len(self.segments) + 2 * _SEGMENTS)
            early = self.target.chained is DependentAction.SCHEDULE
            dependents = (Dependent(follower, self.target.chained, prefetch=early),)
        args, grid, block = command.args, command.grid, command.block
        bank0 = kernel_bank0(self.target, loaded, args.data, grid, block)
        bank0_segment = Segment("kernarg", BANK_ALIGN, "memory", bank0.data, bank0.parameters)
        at = self._add(bank0_segment, bank0.patches)
        for patch in args.patches:
            mask = (1 << 8 * patch.width) - 1
            place = bank0.parameters + patch.offset
            self.patches.append(Patch(at, place, patch.width, 0, mask, patch.symbol))
        bank = ConstantBuffer(0, segment_address(at), len(bank0.data))
        qmd = kernel_qmd(self.target, loaded, bank, grid, block, dependents=dependents)
        segment = Segment("qmd", QMD_ALIGN, "memory", qmd.data)
        return segment_address(self._add(segment, qmd.patches))

    def _add(self, segment: Segment, patches: Sequence[Patch]) -> int:
        """Appends a segment; its index."""
        self.segments.append(segment)
        self.patches += moved(patches, len(self.segments))
        return len(self.segments)

    def finish(self) -> Encoded:
        first = Segment("pushbuf", _WORD, "memory", bytes(self.push.data))
        return Encoded((first, *self.segments), (*self.push.patches, *self.patches))


class _RingEncoder:
    """What the encoders of all channels have in common: the ring of entries."""

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`: an entry of the ring."""
        if size % _WORD or not size:
            raise InvalidValue(f"pushbuffer of {size} bytes: give a positive multiple of {_WORD}")
        entry = GpEntry(LENGTH=size // _WORD).value.to_bytes(ENTRY_SIZE, "little")
        segment = Segment("ring", ENTRY_SIZE, "ring", entry)
        return Encoded((segment,), (gp_entry_patch(target, addend),))

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`: control entries without operation."""
        if size % ENTRY_SIZE:
            raise InvalidValue(f"filler of {size} bytes: give a multiple of {ENTRY_SIZE}")
        return bytes(size)


class ComputeEncoder(_RingEncoder):
    """The `Encoder` of compute queues; the ``info`` of its programs is a `LoadedKernel`."""

    def __init__(self, target: Target):
        self.target = target

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`. Copies are Unsupported: copy queues do them."""
        push = Pushbuffer(compute=self.target.generation.compute)
        writer = _Writer(self.target, push)
        bits = self.target.signal_bits
        for run in _runs(commands):
            match run[0]:
                case hcq.Launch():
                    writer.launch([each for each in run if isinstance(each, hcq.Launch)])
                case hcq.Signal(signal, value):
                    push.write(*release(signal.address, value, bits=bits))
                case hcq.Timestamp(signal):
                    push.write(*release(_before_time(signal), 0, bits=bits, timestamp=True))
                case hcq.Barrier():
                    writer.settle()
                    push.write(*invalidate_caches())
                case hcq.Copy():
                    raise Unsupported("copies on a compute queue: give them to a copy queue")
                case WriteRegister() | ReadRegister() as command:
                    raise no_registers(command, "a channel of NVIDIA's")
                case command:
                    push.write(*_host_command(command, bits))
        return writer.finish()


class CopyEncoder(_RingEncoder):
    """The `Encoder` of copy queues."""

    def __init__(self, target: Target):
        self.target = target

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`. Launches are Unsupported: compute queues do them."""
        push = Pushbuffer(copy=self.target.generation.dma)
        bits = self.target.signal_bits
        for command in commands:
            match command:
                case hcq.Copy(dst, src, size):
                    push.write(*ce.copy_linear(dst, src, size))
                case hcq.Signal(signal, value):
                    push.write(*ce.semaphore(signal.address, value, bits=bits))
                case hcq.Timestamp(signal):
                    stamp = ce.semaphore(_before_time(signal), 0, bits=bits, timestamp=True)
                    push.write(*stamp)
                case hcq.Barrier():
                    push.write(*membar())
                case hcq.Launch(program):
                    raise Unsupported(f"{program.name} on a copy queue: give it to a compute queue")
                case WriteRegister() | ReadRegister():
                    raise no_registers(command, "a channel of NVIDIA's")
                case _:
                    push.write(*_host_command(command, bits))
        return _Writer(self.target, push).finish()


def _before_time(signal: hcq.HasAddress) -> Value:
    """Where a semaphore is whose time is that of a signal: it leaves the signal's value alone."""
    return plus(signal.address, hcq.TIMESTAMP - _TIME)


def _runs(commands: Sequence[hcq.Command]) -> Iterator[list[hcq.Command]]:
    """Launches that follow each other together, each other command alone."""
    for is_launch, some in groupby(commands, lambda each: isinstance(each, hcq.Launch)):
        if is_launch:
            yield list(some)
        else:
            yield from ([each] for each in some)


def _host_command(command: hcq.Wait | hcq.WriteMem | hcq.PollMem, bits: int) -> list[Item]:
    """What the host engine does on any channel."""
    match command:
        case hcq.Wait(signal, value):
            return acquire(signal.address, value, bits=bits)
        case hcq.WriteMem(address, data):
            return _write(address, data)
        case hcq.PollMem(address, value, mask, op):
            if op not in _POLLS or mask != _ALL:
                known = " or ".join(_POLLS)
                raise Unsupported(
                    f"polling with {op} and mask {mask:#x}: {known} of a whole word can be polled"
                )
            return acquire(address, value, bits=32, operation=_POLLS[op])


def _write(address: Value, data: bytes) -> list[Item]:
    """Words, one semaphore each; the first once all before it is done."""
    if not data or len(data) % _WORD:
        raise InvalidValue(f"writing {len(data)} bytes: give a positive multiple of {_WORD}")
    items: list[Item] = []
    for at in range(0, len(data), _WORD):
        word = int.from_bytes(data[at : at + _WORD], "little")
        items += release(plus(address, at), word, bits=32, wait=not at)
    return items
