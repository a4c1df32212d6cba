"""Launches that the GPU reads out of memory: an indirect command buffer.

They are encoded once, and executed as often as wanted; what changed since the last time is encoded
anew. Commands run at once but for barriers, of which each has one before it. They keep nothing that
they use: whoever executes them declares it. While the GPU executes them they must not be touched
(MTLIndirectCommandBuffer; "Encoding indirect command buffers on the CPU", Apple).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple
from weakref import ref

from gpu.autogen import metal as mtl
from gpu.backends.metal.context import Commands, Describes, MetalContext
from gpu.backends.metal.memory import MetalMemory, shared_memory
from gpu.backends.metal.objc import Handle, ObjC
from gpu.backends.metal.program import VALUE_BYTES, MetalProgram
from gpu.core.bits import align_up
from gpu.core.errors import DeviceError, OutOfMemory

MOST_COMMANDS: Final = 16384
"""Commands that one has at most (newIndirectCommandBufferWithDescriptor, Apple)."""
_CONSTANTS: Final = 32
"""Bytes of which offsets in the address space constant are multiples ("Metal Feature Set Tables":
32 for mac2, 4 for others)."""
_USAGE: Final = mtl.MTLResourceUsageRead | mtl.MTLResourceUsageWrite
_VIRTUAL: Final = "virtual"


def has_indirect(context: MetalContext) -> bool:
    """Whether a GPU executes such commands: those of virtual machines, whose name says so, do
    not."""
    return _VIRTUAL not in context.info.name.lower()


class Launch(NamedTuple):
    """A launch of many.

    Attributes:
        program: what runs.
        used: which memories it takes; the workspace is the last one of those.
        taken: which values.
    """

    program: MetalProgram
    used: tuple[int, ...]
    taken: tuple[int, ...]


class IndirectCommands:
    """Launches, and the memory and values that they were encoded with.

    Attributes:
        ticket: of the commands that have executed them last.
    """

    def __init__(self, context: MetalContext, launches: Sequence[Launch]):
        """Raises DeviceError, OutOfMemory and CompileError."""
        self._context, self._launches, self.ticket = context, launches, 0
        self._commands = self._encode_new(context.objc)
        places, at = [], 0
        for launch in launches:
            places.append(at)
            at = align_up(at + len(launch.taken) * VALUE_BYTES, _CONSTANTS)
        self._values: MetalMemory | None = None
        self._longs: ctypes.Array[ctypes.c_int64] | None = None
        self._keeping: list[tuple[int, int]] = []
        if at:
            self._bind_values(places, at)
        # No numbers: another buffer may be where one was.
        self._bound: dict[int, ref[MetalMemory]] = {}
        self._uses: dict[int, list[tuple[int, int]]] = {}
        for number, launch in enumerate(launches):
            for index, memory in enumerate(launch.used):
                self._uses.setdefault(memory, []).append((self._commands[number].id, index))

    def _encode_new(self, objc: ObjC) -> list[Handle]:
        """The commands, without the memory that they use."""
        context, launches = self._context, self._launches
        with context.in_pool():
            told = objc.new("MTLIndirectCommandBufferDescriptor")
            objc.setCommandTypes_(told.id, mtl.MTLIndirectCommandTypeConcurrentDispatch)
            objc.setInheritBuffers_(told.id, False)
            objc.setInheritPipelineState_(told.id, False)
            most = max(launch.program.tables + bool(launch.taken) for launch in launches)
            objc.setMaxKernelBufferBindCount_(told.id, most)
            made = objc.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
                context.device.id, told.id, len(launches), mtl.MTLResourceStorageModeShared
            )
            if not made:
                raise DeviceError(
                    f"{context.info.name} gives no indirect command buffer for {len(launches)}"
                    " launches"
                )
            self._buffer = Handle(objc, made)
            commands = []
            for number, launch in enumerate(launches):
                command = objc.objc_retain(objc.indirectComputeCommandAtIndex_(made, number))
                commands.append(Handle(objc, command))
                objc.setComputePipelineState_(command, launch.program.indirect_pipeline.id)
                objc.concurrentDispatchThreadgroups_threadsPerThreadgroup_(
                    command, *launch.program.sizes
                )
                if number:
                    objc.setBarrier(command)
            return commands

    def _bind_values(self, places: Sequence[int], nbytes: int) -> None:
        """Each launch's values lie at its place of a buffer."""
        context = self._context
        self._values = memory = shared_memory(context, nbytes)
        if memory is None:
            raise OutOfMemory(f"no room for {nbytes:,} bytes of values on {context.info.name}")
        self._longs = (ctypes.c_int64 * (nbytes // VALUE_BYTES)).from_address(memory.address)
        for command, launch, at in zip(self._commands, self._launches, places, strict=True):
            if launch.taken:
                context.objc.setKernelBuffer_offset_atIndex_(
                    command.id, memory.id, at, launch.program.tables
                )
            first = at // VALUE_BYTES
            self._keeping += [(first + i, value) for i, value in enumerate(launch.taken)]

    def run(
        self,
        memories: dict[int, MetalMemory],
        vals: Sequence[int],
        what: Describes,
        arguments: Sequence[object],
        touched: Sequence[MetalMemory],
    ) -> Commands:
        """Executes them on memories; the context's lock is held. The rest as `MetalContext.run`.

        Where something is not as it was the last time, it waits for that. Raises as
        `MetalContext.run` and `MetalContext.wait_for`.
        """
        self._prepare(memories, vals)
        execute = partial(self._execute, memories)
        return self._context.run(execute, what, arguments, (*touched, self))

    def _prepare(self, memories: dict[int, MetalMemory], vals: Sequence[int]) -> None:
        """Encodes what is not as it was."""
        context, bound = self._context, self._bound
        changed = [
            slot
            for slot, memory in memories.items()
            if slot not in bound or bound[slot]() is not memory
        ]
        longs = self._longs
        differs = longs is not None and any(longs[at] != vals[value] for at, value in self._keeping)
        if not changed and not differs:
            return
        context.wait_for(self.ticket)
        if longs is not None:
            for at, value in self._keeping:
                longs[at] = vals[value]
        encode = context.objc.setKernelBuffer_offset_atIndex_
        for slot in changed:
            bound.pop(slot, None)  # an interrupt may come before all are encoded
            memory = memories[slot]
            for command, index in self._uses[slot]:
                encode(command, memory.id, memory.offset, index)
            bound[slot] = ref(memory)

    def _execute(self, memories: dict[int, MetalMemory], encoder: int) -> None:
        objc = self._context.objc
        used = {memory.id: None for memory in memories.values()}
        if self._values is not None:
            used[self._values.id] = None
        listed = (ctypes.c_uint64 * len(used))(*used)
        objc.useResources_count_usage_(encoder, ctypes.addressof(listed), len(used), _USAGE)
        objc.executeCommandsInBuffer_withRange_(encoder, self._buffer.id, 0, len(self._launches))
