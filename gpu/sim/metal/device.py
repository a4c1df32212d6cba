"""The device (MTLDevice; Apple, "Metal")."""

from __future__ import annotations

from random import Random

from gpu.sim.metal.base import CompileMsl, Gpu
from gpu.sim.metal.chips import KNOWN_FAMILIES, THREADGROUP_BYTES, Chip
from gpu.sim.metal.commands import CommandQueue, Event, SharedEvent
from gpu.sim.metal.engine import Engine
from gpu.sim.metal.foundation import NSString
from gpu.sim.metal.indirect import (
    IndirectCommandBuffer,
    MTLIndirectCommandBufferDescriptor,
    new_indirect,
)
from gpu.sim.metal.methods import Misuse, method
from gpu.sim.metal.objc import Runtime
from gpu.sim.metal.programs import (
    ComputePipelineState,
    Function,
    Library,
    MTLCompileOptions,
    MTLComputePipelineDescriptor,
    new_library,
    new_pipeline,
)
from gpu.sim.metal.resources import Buffer, borrow, new_buffer
from gpu.sim.metal.work import Scheduler


class Device(Gpu):
    """A GPU, as programs see it."""

    def __init__(
        self,
        runtime: Runtime,
        chip: Chip,
        scheduler: Scheduler,
        engine: Engine,
        compile_msl: CompileMsl,
        rng: Random,
    ):
        super().__init__(runtime, chip, scheduler, compile_msl, rng)
        self._engine = engine

    @method("name", "@")
    def name(self) -> NSString:
        """What it is called."""
        return NSString(self.runtime, self.chip.name)

    @method("registryID", "Q")
    def registry_id(self) -> int:
        """A number that no other has."""
        return self.address

    @method("supportsFamily:", "B", "q")
    def supports_family(self, family: int) -> bool:
        """Whether it has all that a family has."""
        if family not in KNOWN_FAMILIES:
            raise Misuse("gpu-family", f"{family} is no MTLGPUFamily")
        return family in self.chip.families

    @method("hasUnifiedMemory", "B")
    def has_unified_memory(self) -> bool:
        """Whether it shares memory with the CPU."""
        return self.chip.unified

    @method("isLowPower", "B")
    def is_low_power(self) -> bool:
        """Whether it is the smaller one of two."""
        return False

    @method("isHeadless", "B")
    def is_headless(self) -> bool:
        """Whether it has no display."""
        return False

    @method("isRemovable", "B")
    def is_removable(self) -> bool:
        """Whether it may be taken away."""
        return False

    @method("maxBufferLength", "Q")
    def max_buffer_length(self) -> int:
        """Bytes of a buffer at most."""
        return self.chip.largest

    @method("recommendedMaxWorkingSetSize", "Q")
    def recommended_working_set(self) -> int:
        """Bytes that it works with well."""
        return self.chip.memory

    @method("currentAllocatedSize", "Q")
    def current_allocated_size(self) -> int:
        """Bytes of its resources."""
        return self.allocated

    @method("maxThreadgroupMemoryLength", "Q")
    def max_threadgroup_memory(self) -> int:
        """Bytes of threadgroup memory at most."""
        return THREADGROUP_BYTES

    @method("newCommandQueue", "@")
    def new_queue(self) -> CommandQueue:
        """A queue for 64 command buffers."""
        return CommandQueue(self, self._engine)

    @method("newCommandQueueWithMaxCommandBufferCount:", "@", "Q")
    def new_queue_for(self, most: int) -> CommandQueue:
        """A queue for so many command buffers."""
        if not most:
            raise Misuse("queue-size", "a queue for 0 command buffers")
        return CommandQueue(self, self._engine, most)

    @method("newBufferWithLength:options:", "@", "Q", "Q")
    def new_buffer(self, length: int, options: int) -> Buffer | None:
        """A zeroed buffer; nil where there is not so much memory."""
        return new_buffer(self, length, options)

    @method("newBufferWithBytes:length:options:", "@", "^", "Q", "Q")
    def new_buffer_of(self, data: int, length: int, options: int) -> Buffer | None:
        """A buffer with a copy of bytes."""
        if not data:
            raise Misuse("nil-argument", "newBufferWithBytes: of NULL")
        return new_buffer(self, length, options, data)

    @method("newBufferWithBytesNoCopy:length:options:deallocator:", "@", "^", "Q", "Q", "^")
    def new_buffer_over(
        self, data: int, length: int, options: int, deallocator: int
    ) -> Buffer | None:
        """A buffer over whole pages of the program's memory."""
        if deallocator:
            raise Misuse("no-deallocator", "this model calls no deallocator: give nil")
        return borrow(self, data, length, options)

    @method("newLibraryWithSource:options:error:", "@", "NSString", "MTLCompileOptions?", "^")
    def new_library(
        self, source: NSString, options: MTLCompileOptions | None, error: int
    ) -> Library | None:
        """Compiles a source."""
        return new_library(self, source, options, error)

    @method("newComputePipelineStateWithFunction:error:", "@", "Function", "^")
    def new_pipeline(self, function: Function, error: int) -> ComputePipelineState | None:
        """Makes a kernel ready."""
        return new_pipeline(self, function, error)

    @method(
        "newComputePipelineStateWithDescriptor:options:reflection:error:",
        *("@", "MTLComputePipelineDescriptor", "Q", "^", "^"),
    )
    def new_described_pipeline(
        self, made_as: MTLComputePipelineDescriptor, options: int, reflection: int, error: int
    ) -> ComputePipelineState | None:
        """Makes a kernel ready, as a descriptor says."""
        if options or reflection:
            raise Misuse("no-reflection", "this model tells nothing of arguments: give 0 and nil")
        if made_as.function is None:
            raise Misuse("nil-argument", "the descriptor has no function")
        given = made_as.is_indirect, made_as.most_threads
        return new_pipeline(self, made_as.function, error, *given)

    @method(
        "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
        *("@", "MTLIndirectCommandBufferDescriptor", "Q", "Q"),
    )
    def new_indirect(
        self, made_as: MTLIndirectCommandBufferDescriptor, count: int, options: int
    ) -> IndirectCommandBuffer | None:
        """Commands that are executed often; nil where the GPU has none."""
        return new_indirect(self, made_as, count, options)

    @method("newEvent", "@")
    def new_event(self) -> Event:
        """A number that command buffers set and wait for."""
        return Event(self)

    @method("newSharedEvent", "@")
    def new_shared_event(self) -> SharedEvent:
        """One that the program sets and reads too."""
        return SharedEvent(self)


CLASSES = (Device,)
