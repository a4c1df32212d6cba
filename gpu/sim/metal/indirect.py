"""Indirect command buffers: dispatches that are encoded once and executed often.

MTLIndirectCommandBuffer and MTLIndirectComputeCommand (Apple, "Metal"), "Encoding indirect command
buffers on the CPU". Their commands are concurrent, but for barriers, and retain nothing: passes
that execute them declare what they use.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.metal.base import Gpu, Owned
from gpu.sim.metal.dispatches import (
    Barrier,
    Bound,
    Dispatch,
    Three,
    check_index,
    check_local,
    check_offset,
    in_threads,
)
from gpu.sim.metal.encoders import Recorder
from gpu.sim.metal.methods import Misuse, Range, Size, method
from gpu.sim.metal.objc import Made, Runtime
from gpu.sim.metal.programs import ComputePipelineState
from gpu.sim.metal.resources import Buffer, Resource

_THREADGROUPS: Final = 1 << 5  # MTLIndirectCommandTypeConcurrentDispatch
_THREADS: Final = 1 << 6
_MOST_COMMANDS: Final = 16384


class MTLIndirectCommandBufferDescriptor(Made):
    """What a new indirect command buffer is for.

    Attributes:
        types: of commands; most_bound: indices of buffers that they have.
        inherits_buffers, inherits_pipeline: whether the pass gives them instead.
    """

    def __init__(self, runtime: Runtime):
        super().__init__(runtime)
        self.types = 0
        self.most_bound = 0
        self.inherits_buffers = True
        self.inherits_pipeline = False

    @method("setCommandTypes:", "v", "Q")
    def set_types(self, types: int) -> None:
        """Which kinds of commands there are."""
        if not types or types & ~(_THREADGROUPS | _THREADS):
            raise Misuse("command-types", f"{types:#x}: this model has commands of kernels alone")
        self.types = types

    @method("setMaxKernelBufferBindCount:", "v", "Q")
    def set_most_bound(self, count: int) -> None:
        """How many indices of buffers a command has."""
        if count:
            check_index(count - 1)
        self.most_bound = count

    @method("setInheritBuffers:", "v", "B")
    def set_inherits_buffers(self, inherits: bool) -> None:
        """Whether commands use the buffers of the pass."""
        self.inherits_buffers = inherits

    @method("setInheritPipelineState:", "v", "B")
    def set_inherits_pipeline(self, inherits: bool) -> None:
        """Whether commands use the pipeline of the pass."""
        self.inherits_pipeline = inherits


class IndirectCommandBuffer(Resource):
    """Commands that are executed often.

    Attributes:
        commands: in order.
        users: command buffers that execute it, as far as they have not ended.
    """

    def __init__(
        self, device: Gpu, made_as: MTLIndirectCommandBufferDescriptor, count: int, options: int
    ):
        super().__init__(device, options)
        self.types = made_as.types
        self.most_bound = made_as.most_bound
        self.inherits_buffers = made_as.inherits_buffers
        self.inherits_pipeline = made_as.inherits_pipeline
        self.commands = [_Content() for _ in range(count)]
        self.users: list[Recorder] = []

    def check(self, part: Range, what: str) -> range:
        """The indices of a range. Raises Misuse for those that there are not."""
        end = part.location + part.length
        if not part.length or end > len(self.commands):
            raise Misuse(
                "command-index",
                f"{what} {part.length} commands at {part.location} of {len(self.commands)}",
            )
        return range(part.location, end)

    def check_idle(self, what: str) -> None:
        """Raises Misuse while it is being executed."""
        self.users = [each for each in self.users if each.is_pending]
        if self.users:
            raise Misuse("commands-in-use", f"{what} while {self.users[0].told} executes it")

    @method("size", "Q")
    def size(self) -> int:
        """How many commands there are."""
        return len(self.commands)

    @method("resetWithRange:", "v", "Range")
    def reset(self, part: Range) -> None:
        """Commands do nothing any more."""
        self.check_idle("resetWithRange:")
        for index in self.check(part, "resetWithRange:"):
            self.commands[index] = _Content()

    @method("indirectComputeCommandAtIndex:", "@", "Q")
    def command(self, index: int) -> IndirectComputeCommand:
        """What encodes one of them."""
        self.check(Range(index, 1), "indirectComputeCommandAtIndex:")
        return IndirectComputeCommand(self, index)

    def encoded(
        self,
        indices: range,
        pipeline: ComputePipelineState | None,
        bound: dict[int, Bound],
        declared: tuple[Buffer, ...],
    ) -> list[Barrier | Dispatch]:
        """Its commands, with what a pass gives them. Raises Misuse for what cannot run."""
        found: list[Barrier | Dispatch] = []
        for index in indices:
            content, what = self.commands[index], f"command {index}"
            if content.sizes is None:
                continue
            chosen = pipeline if self.inherits_pipeline else content.pipeline
            if chosen is None:
                raise Misuse("no-pipeline", f"{what} has no pipeline")
            given = bound if self.inherits_buffers else content.bound
            for each in (chosen, *(one.buffer for one in given.values() if one.buffer)):
                if not each.references:
                    raise Misuse("resource-ended", f"{what} uses what was released")
            for one in given.values():
                if not self.inherits_buffers and one.buffer not in declared:
                    raise Misuse(
                        "not-resident", f"{what} uses a buffer that the pass does not declare"
                    )
            made = Dispatch(chosen, *content.sizes, dict(given), dict(content.local), declared)
            made.check(what)
            found += [Barrier(None), made] if content.is_behind else [made]
        return found


class _Content:
    """What one command is; it does nothing without sizes."""

    def __init__(self) -> None:
        self.pipeline: ComputePipelineState | None = None
        self.bound: dict[int, Bound] = {}
        self.local: dict[int, int] = {}
        self.sizes: tuple[Three, Three] | None = None
        self.is_behind = False


class IndirectComputeCommand(Owned):
    """What encodes one command."""

    def __init__(self, of: IndirectCommandBuffer, index: int):
        super().__init__(of.device, of)
        self._of = of
        self._index = index

    def _content(self, what: str) -> _Content:
        self._of.check_idle(what)
        return self._of.commands[self._index]

    @method("reset")
    def reset(self) -> None:
        """It does nothing any more."""
        self._of.reset(Range(self._index, 1))

    @method("setComputePipelineState:", "v", "ComputePipelineState")
    def set_pipeline(self, pipeline: ComputePipelineState) -> None:
        """Its kernel."""
        content = self._content("setComputePipelineState:")
        if self._of.inherits_pipeline:
            raise Misuse("inherited", "setComputePipelineState: where the pass gives the pipeline")
        if not pipeline.is_indirect:
            raise Misuse(
                "pipeline-not-indirect", f"{pipeline.kernel.name} was not made for it: its"
                " descriptor lacks supportIndirectCommandBuffers"
            )  # fmt: skip
        content.pipeline = pipeline

    @method("setKernelBuffer:offset:atIndex:", "v", "Buffer", "Q", "Q")
    def set_buffer(self, buffer: Buffer, offset: int, index: int) -> None:
        """A buffer for an index of the argument table."""
        content = self._content("setKernelBuffer:")
        if self._of.inherits_buffers:
            raise Misuse("inherited", "setKernelBuffer: where the pass gives the buffers")
        if index >= self._of.most_bound:
            raise Misuse("argument-index", f"index {index}: there are {self._of.most_bound}")
        check_offset(buffer, offset)
        content.bound[index] = Bound(buffer, offset)

    @method("setThreadgroupMemoryLength:atIndex:", "v", "Q", "Q")
    def set_local(self, length: int, index: int) -> None:
        """Bytes of threadgroup memory for an index."""
        check_index(index)
        check_local(length)
        self._content("setThreadgroupMemoryLength:").local[index] = length

    @method("setBarrier")
    def set_barrier(self) -> None:
        """It runs behind all commands before it."""
        self._content("setBarrier").is_behind = True

    @method("clearBarrier")
    def clear_barrier(self) -> None:
        """It runs at any time."""
        self._content("clearBarrier").is_behind = False

    @method("concurrentDispatchThreadgroups:threadsPerThreadgroup:", "v", "Size", "Size")
    def dispatch_threadgroups(self, groups: Size, threadgroup: Size) -> None:
        """It runs its kernel, as so many threadgroups."""
        self._dispatch(_THREADGROUPS, in_threads(groups, threadgroup), threadgroup)

    @method("concurrentDispatchThreads:threadsPerThreadgroup:", "v", "Size", "Size")
    def dispatch_threads(self, threads: Size, threadgroup: Size) -> None:
        """It runs its kernel, as so many threads."""
        self._dispatch(_THREADS, threads.three, threadgroup)

    def _dispatch(self, kind: int, threads: Three, threadgroup: Size) -> None:
        content = self._content("concurrentDispatch")
        if not kind & self._of.types:
            raise Misuse("command-types", f"a dispatch of kind {kind:#x} in {self._of.types:#x}")
        content.sizes = threads, threadgroup.three


def new_indirect(
    device: Gpu, made_as: MTLIndirectCommandBufferDescriptor, count: int, options: int
) -> IndirectCommandBuffer | None:
    """A new indirect command buffer; None on a GPU that has none. Raises Misuse."""
    if not 1 <= count <= _MOST_COMMANDS:
        raise Misuse("command-index", f"{count} commands: 1 to {_MOST_COMMANDS}")
    if not made_as.types:
        raise Misuse("command-types", "the descriptor names no types of commands")
    if device.chip.is_virtual:
        return None
    return IndirectCommandBuffer(device, made_as, count, options)


CLASSES = (
    MTLIndirectCommandBufferDescriptor,
    IndirectCommandBuffer,
    IndirectComputeCommand,
)
