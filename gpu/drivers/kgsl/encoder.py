"""Commands as packets: the encoder of the queue of an Adreno GPU.

A context keeps no registers from one submission to the next, so that each sets all that its
launches rely on (kgsl's adreno_drawctxt.c demands it of whoever creates one). Launches follow each
other: each is waited for. Loads and stores of kernels go through one cache for all, UCHE, so that
what one launch wrote the next one sees; what the host, a signal or the command processor wrote is
seen when the cache was invalidated, and the other way round when it was written back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue
from gpu.core.ir3binary import NO_REGISTER, UNIT, VECTOR, Ir3Binary
from gpu.drivers.dwords import WORD, Word, in_segment, low, pair
from gpu.drivers.kgsl import state
from gpu.drivers.kgsl.chips import Chip
from gpu.drivers.kgsl.copy_code import BLOCK
from gpu.drivers.kgsl.packets import MAX_BODY, Function, Packets
from gpu.drivers.kgsl.program import LoadedKernel
from gpu.hcq import commands as hcq
from gpu.hcq.args import ArgumentLayout, KernelArguments
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.registers import ReadRegister, WriteRegister, no_registers
from gpu.hcq.symbol import Derived, Symbol, Value, plus, segment_address

COPY_LAYOUT: Final = ArgumentLayout(2, ["I", "I"])
"""Parameters of the kernel that copies: to, from, bytes, threads."""
_COPY_GROUPS: Final = 64  # of a copy at most: as many threads as most chips have at once
_MOST_COPIED: Final = 1 << 31  # bytes of one launch, whose numbers have 32 bits
_ARGUMENTS_ALIGN: Final = 64
_WRITE_PIECE: Final = MAX_BODY - 2
_FUNCTIONS: Final = {
    "==": Function.EQUAL,
    "!=": Function.NOT_EQUAL,
    "<": Function.LESS,
    "<=": Function.LESS_EQUAL,
    ">=": Function.GREATER_EQUAL,
    ">": Function.GREATER,
}


class KgslEncoder:
    """The `Encoder` of the queue of one GPU; kernels are `LoadedKernel`s.

    Attributes:
        copier: the kernel that copies.
    """

    def __init__(self, chip: Chip, copier: LoadedKernel, scratch: int):
        """``scratch`` is a word of the GPU's memory that anything may be written to."""
        self.chip, self.copier = chip, copier
        self._scratch = scratch

    def encode(self, commands: Sequence[hcq.Command]) -> Encoded:
        """As `Encoder.encode`."""
        submission = _Submission(self.chip, self.copier, self._scratch)
        for command in commands:
            submission.command(command)
        return submission.finish()

    def call(self, target: Symbol, addend: int, size: int) -> Encoded:
        """As `Encoder.call`: an INDIRECT_BUFFER packet."""
        if size % WORD:
            raise InvalidValue(f"indirect buffer of {size} bytes: give a multiple of {WORD}")
        push = Packets()
        push.call(plus(target, addend), size // WORD)
        return Encoded((Segment("ring", WORD, "ring", push.data),), tuple(push.patches))

    def filler(self, size: int) -> bytes:
        """As `Encoder.filler`: NOP packets."""
        if size % WORD:
            raise InvalidValue(f"filler of {size} bytes: give a multiple of {WORD}")
        push = Packets()
        push.nop(size // WORD)
        return push.data


class _Submission:
    """Packets of one submission in the making, arguments beside them, and how caches stand."""

    def __init__(self, chip: Chip, copier: LoadedKernel, scratch: int):
        self._chip, self._copier, self._scratch = chip, copier, scratch
        self._push = Packets()
        self._segments: list[Segment] = []
        self._patches: list[Patch] = []
        self._has_state = False
        self._may_be_old = True  # what UCHE holds
        self._is_dirty = False  # UCHE, by a launch
        self._is_writing = False  # the command processor, to memory

    def finish(self) -> Encoded:
        first = Segment("ring", WORD, "ring", self._push.data)
        return Encoded((first, *self._segments), (*self._push.patches, *self._patches))

    def command(self, command: hcq.Command) -> None:
        push = self._push
        match command:
            case hcq.Launch():
                self._launch(command)
            case hcq.Copy(dst, src, size):
                self._copy(dst, src, size)
            case hcq.Signal(signal, value):
                self._settle()
                push.signal(signal.address, value)
                self._is_dirty = False
            case hcq.Wait(signal, value):
                push.wait_memory(signal.address, value, Function.GREATER_EQUAL)
                self._may_be_old = True
            case hcq.PollMem(address, value, mask, op):
                self._write_back()
                self._settle()
                push.wait_memory(address, value, _FUNCTIONS[op], mask)
                self._may_be_old = True
            case hcq.Barrier():
                self._may_be_old = True
            case hcq.Timestamp(signal):
                push.wait_for_idle()
                push.timestamp(plus(signal.address, hcq.TIMESTAMP))
                self._is_writing = True
            case hcq.WriteMem(address, data):
                self._write(address, data)
            case WriteRegister() | ReadRegister():
                raise no_registers(command, "a queue of KGSL's")

    # Caches

    def _settle(self) -> None:
        """Waits for what the command processor wrote."""
        if self._is_writing:
            self._push.wait_for_writes()
            self._is_writing = False

    def _write_back(self) -> None:
        """Has in memory what launches wrote."""
        if self._is_dirty:
            self._push.signal(self._scratch, 0)
            self._push.wait_for_idle()
            self._is_dirty = False

    def _refresh(self) -> None:
        """Lets what follows read nothing that is old."""
        self._settle()
        if self._may_be_old:
            self._write_back()
            self._push.invalidate()
            self._may_be_old = False

    def _write(self, address: Value, data: bytes) -> None:
        if not data or len(data) % WORD:
            raise InvalidValue(f"writing {len(data)} bytes: give a positive multiple of {WORD}")
        self._write_back()
        words = struct.unpack(f"<{len(data) // WORD}I", data)
        for start in range(0, len(words), _WRITE_PIECE):
            piece = words[start : start + _WRITE_PIECE]
            self._push.write_memory(plus(address, WORD * start), piece)
        self._is_writing = self._may_be_old = True

    # Launches

    def _copy(self, dst: Value, src: Value, size: Value) -> None:
        """By a kernel, which takes bytes of any number and place. Symbols are of 32 bits."""
        if isinstance(size, Symbol):
            self._copy_piece(dst, src, size, _COPY_GROUPS)
            return
        for start in range(0, size, _MOST_COPIED):
            some = min(size - start, _MOST_COPIED)
            groups = min(-(-some // (BLOCK * VECTOR)), _COPY_GROUPS)
            self._copy_piece(plus(dst, start), plus(src, start), some, groups)

    def _copy_piece(self, dst: Value, src: Value, size: Value, groups: int) -> None:
        args = KernelArguments(COPY_LAYOUT, (dst, src), (size, groups * BLOCK))
        self._run(self._copier, args, (groups, 1, 1))

    def _launch(self, command: hcq.Launch[LoadedKernel]) -> None:
        loaded, name = command.program.info, command.program.name
        block = (loaded.kernel.block, 1, 1)
        if command.block != block:
            raise InvalidValue(
                f"{name} with groups of {command.block}: it was compiled for {block}"
            )
        self._run(loaded, command.args, command.grid)

    def _run(self, loaded: LoadedKernel, args: KernelArguments, grid: hcq.Grid) -> None:
        push, kernel = self._push, loaded.kernel
        self._refresh()
        if not self._has_state:
            _set_common(push, self._chip)
            self._has_state = True
        _set_kernel(push, self._chip, loaded)
        # A kernel may see fewer constants than it has parameters, or none.
        if vectors := min(-(-args.layout.size // VECTOR), kernel.constants):
            push.load_constants(self._arguments(args), vectors)
        if kernel.immediates:
            push.put_constants(kernel.immediates_at, _vectors(kernel.immediates))
        push.mark_compute()
        _set_sizes(push, kernel, grid)
        fits = len(kernel.code) <= UNIT * self._chip.instructions
        if not fits:
            push.label()
        push.exec(grid)
        if not fits:
            push.label()
        push.wait_for_idle()
        self._is_dirty = True

    def _arguments(self, args: KernelArguments) -> Symbol:
        """Adds the segment of a launch's arguments; the symbol of its address."""
        number = len(self._segments) + 1
        data = args.data.ljust(align_up(len(args.data), VECTOR), b"\0")
        late = [
            Patch(0, p.offset, p.width, 0, (1 << 8 * p.width) - 1, p.symbol) for p in args.patches
        ]
        self._patches += in_segment(late, number)
        self._segments.append(Segment("kernarg", _ARGUMENTS_ALIGN, "memory", data))
        return segment_address(number)


def _set_common(push: Packets, chip: Chip) -> None:
    """What all launches rely on (turnip's `tu6_init_static_regs`, as far as compute goes)."""
    everything = dict.fromkeys(state.HLSQ_INVALIDATE_CMD.fields, 1)
    everything |= {"CS_BINDLESS": 0x1F, "GFX_BINDLESS": 0x1F}
    push.write(state.HLSQ_INVALIDATE_CMD(**everything))
    push.wait_for_idle()
    tuning = chip.tuning
    for offset, value in (
        (0xAE03, tuning.SP_CHICKEN_BITS),
        (0xAE00, tuning.SP_DBG_ECO_CNTL),
        (0xB600, tuning.TPL1_DBG_ECO_CNTL),
        (0xBE04, tuning.HLSQ_DBG_ECO_CNTL),
        (0x0E12, tuning.UCHE_UNKNOWN_0E12),
        (0x0E19, tuning.UCHE_CLIENT_PF),
        (0xAE0F, 0x3F),  # SP_PERFCTR_ENABLE
        (0xB605, 0x44),  # TPL1_UNKNOWN_B605
        (0xBE00, 0x80),  # HLSQ_UNKNOWN_BE00
        (0xBE01, 0),  # HLSQ_UNKNOWN_BE01
        (0xAB20, 0),  # SP_IBO_COUNT
        (0xB182, 0),  # SP_UNKNOWN_B182
        (0xB183, 0),  # SP_UNKNOWN_B183
        (0xA9A8, 0),  # SP_UNKNOWN_A9A8
        (0xA980, 0),  # SP_FS_CTRL_REG0: of no early preamble that another left
        *chip.more.items(),
    ):
        push.write_at(offset, value)
    push.write(state.SP_FLOAT_CNTL())
    push.write(state.HLSQ_SHARED_CONSTS())
    push.write(state.SP_MODE_CONTROL(CONSTANT_DEMOTION_ENABLE=1, ISAMMODE=2))
    push.write(state.SP_TP_MODE_CNTL(ISAMMODE=2, UNK3=0x28))
    push.write(state.HLSQ_CONTROL_5_REG(LINELENGTHREGID=NO_REGISTER))


def _set_kernel(push: Packets, chip: Chip, loaded: LoadedKernel) -> None:
    """What describes a kernel (turnip's `tu6_emit_cs_config` and `tu6_emit_xs`)."""
    kernel, private = loaded.kernel, loaded.private.size
    units = len(kernel.code) // UNIT
    push.write(state.HLSQ_INVALIDATE_CMD(CS_STATE=1, CS_IBO=1))
    push.write(
        state.SP_CS_CTRL_REG0(
            HALFREGFOOTPRINT=kernel.half,
            FULLREGFOOTPRINT=kernel.full,
            BRANCHSTACK=kernel.branches,
            THREADSIZE=_thread_size(kernel),
            EARLYPREAMBLE=kernel.early,
            MERGEDREGS=kernel.merged,
        ),
        _group_needs(state.SP_CS_CTRL_REG1, kernel),
    )
    code, memory = pair(loaded.address), pair(loaded.private.address)
    push.write(
        state.SP_CS_OBJ_FIRST_EXEC_OFFSET(),
        *code,
        state.SP_CS_PVT_MEM_PARAM(MEMSIZEPERITEM=private.per_fiber // 512),
        *memory,
        state.SP_CS_PVT_MEM_SIZE(
            TOTALPVTMEMSIZE=private.per_core // 4096, PERWAVEMEMLAYOUT=kernel.per_wave
        ),
    )
    push.write(
        state.SP_CS_CONFIG(ENABLED=1),
        state.SP_CS_INSTRLEN(VALUE=units),
        state.SP_CS_PVT_MEM_HW_STACK_OFFSET(STACK=private.per_core // 2048),
    )
    constants = align_up(kernel.constants, 4)
    push.write(state.HLSQ_CS_CNTL(CONSTLEN=constants // 4, ENABLED=1))
    push.write(*_numbers(state.HLSQ_CS_CNTL_0, state.HLSQ_CS_CNTL_1, kernel))
    if chip.has_lpac:
        push.write(_group_needs(state.HLSQ_CS_CTRL_REG1, kernel))
        push.write(*_numbers(state.SP_CS_CNTL_0, state.SP_CS_CNTL_1, kernel))
    if units > chip.instructions:
        # Hardware takes this for the end of a compute kernel at times (Mesa, issue 5892).
        push.write(state.SP_FS_INSTRLEN(VALUE=units))
    push.load_code(loaded.address, min(units, chip.instructions))


def _thread_size(kernel: Ir3Binary) -> state.ThreadSize:
    return state.ThreadSize.THREAD128 if kernel.double else state.ThreadSize.THREAD64


def _group_needs(register: type[state.SP_CS_CTRL_REG1], kernel: Ir3Binary) -> state.SP_CS_CTRL_REG1:
    return register(
        SHARED_SIZE=max((kernel.shared - 1) // 1024, 1),
        CONSTANTRAMMODE=state.ConstantRam.of(align_up(kernel.constants, 4)),
    )


def _numbers(
    first: type[state.HLSQ_CS_CNTL_0], second: type[state.HLSQ_CS_CNTL_1], kernel: Ir3Binary
) -> tuple[state.StateRegister, state.StateRegister]:
    """Where a thread finds its numbers."""
    return (
        first(
            WGIDCONSTID=kernel.group_at,
            WGSIZECONSTID=NO_REGISTER,
            WGOFFSETCONSTID=NO_REGISTER,
            LOCALIDREGID=kernel.thread_at,
        ),
        second(LINEARLOCALIDREGID=NO_REGISTER, THREADSIZE=_thread_size(kernel)),
    )


def _set_sizes(push: Packets, kernel: Ir3Binary, grid: hcq.Grid) -> None:
    """Groups and threads (turnip's `tu_dispatch`)."""
    sizes: list[Word] = []
    for groups, threads in zip(grid, (kernel.block, 1, 1), strict=True):
        sizes += (low(_times(groups, threads)), 0)
    push.write(state.HLSQ_CS_NDRANGE_0(KERNELDIM=3, LOCALSIZEX=kernel.block - 1), *sizes)
    push.write(state.HLSQ_CS_KERNEL_GROUP_X(VALUE=1), 1, 1)


def _times(value: Value, by: int) -> Value:
    if by == 1:
        return value
    if isinstance(value, Symbol):
        return Derived(f"{by} x {value.name}", (value,), lambda number: by * number)
    return value * by


def _vectors(data: bytes) -> tuple[int, ...]:
    """Words of whole constants."""
    padded = data.ljust(align_up(len(data), VECTOR), b"\0")
    return struct.unpack(f"<{len(padded) // WORD}I", padded)
