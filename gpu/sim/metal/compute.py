"""Passes of kernels (MTLComputeCommandEncoder; Apple, "Metal").

A dispatch is what was bound when it was encoded. Those of a serial pass run in order; those of a
concurrent one in any, but for barriers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpu.sim.metal.chips import INLINE_BYTES
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
from gpu.sim.metal.encoders import Encoder, Recorder
from gpu.sim.metal.engine import Engine
from gpu.sim.metal.indirect import IndirectCommandBuffer
from gpu.sim.metal.methods import Misuse, Range, Size, method
from gpu.sim.metal.programs import ComputePipelineState
from gpu.sim.metal.resources import Buffer, Resource
from gpu.sim.metal.work import INVALID_RESOURCE, GpuFault, Line

SERIAL: Final = 0
CONCURRENT: Final = 1
_SCOPE_BUFFERS: Final = 1  # MTLBarrierScope
_SCOPES: Final = 7
_USAGES: Final = 3  # MTLResourceUsageRead and Write


@dataclass(frozen=True)
class Indirect:
    """Commands of an indirect command buffer, with what the pass gives them."""

    commands: IndirectCommandBuffer
    indices: range
    pipeline: ComputePipelineState | None
    bound: dict[int, Bound]
    declared: tuple[Buffer, ...]

    def encoded(self) -> list[Barrier | Dispatch]:
        """What they are when they run. Raises Misuse for what cannot run."""
        return self.commands.encoded(self.indices, self.pipeline, self.bound, self.declared)


class ComputeEncoder(Encoder):
    """A pass of kernels."""

    def __init__(self, buffer: Recorder, kind: int, engine: Engine):
        super().__init__(buffer)
        self._kind = kind
        self._engine = engine
        self._pipeline: ComputePipelineState | None = None
        self._bound: dict[int, Bound] = {}
        self._local: dict[int, int] = {}
        self._declared: dict[int, Buffer] = {}
        self._commands: list[Dispatch | Barrier | Indirect] = []

    def run(self, line: Line) -> None:
        """Runs its kernels. Raises GpuFault."""
        self.begin(line)
        engine, scheduler = self._engine, self.device.scheduler
        buffers = [each for each in self._resources.values() if isinstance(each, Buffer)]
        for group in self._checked_groups():
            if isinstance(group, Barrier):
                chosen = buffers if group.buffers is None else group.buffers
                for each in chosen:
                    each.base = engine.stamp()
                continue
            self.device.rng.shuffle(group)
            for dispatch in group:
                accesses = engine.run(dispatch)
                scheduler.touch(line, accesses, f"kernel {dispatch.pipeline.kernel.name}")

    def _checked_groups(self) -> list[Barrier | list[Dispatch]]:
        """The same; what indirect commands lack is a fault of the GPU too."""
        try:
            return self._groups_of_dispatches()
        except Misuse as error:
            self.runtime.debug.violation(f"{error.rule}: executeCommandsInBuffer: {error}")
            raise GpuFault(INVALID_RESOURCE, str(error)) from error

    def _groups_of_dispatches(self) -> list[Barrier | list[Dispatch]]:
        """Dispatches that nothing orders, between barriers; serial ones have one before each."""
        groups: list[Barrier | list[Dispatch]] = [Barrier(None), []]
        for command in self._commands:
            if self._kind == SERIAL:
                groups += [Barrier(None), []]
            for each in command.encoded() if isinstance(command, Indirect) else [command]:
                if isinstance(each, Barrier):
                    groups += [each, []]
                    continue
                last = groups[-1]
                assert isinstance(last, list)
                last.append(each)
        return groups

    @method("dispatchType", "Q")
    def dispatch_type(self) -> int:
        """Whether its kernels run one after the other."""
        return self._kind

    @method("setComputePipelineState:", "v", "ComputePipelineState")
    def set_pipeline(self, pipeline: ComputePipelineState) -> None:
        """The kernel of dispatches to come."""
        self.check_open()
        if pipeline.device is not self.device:
            raise Misuse("other-device", f"{pipeline.told} is of another device")
        self.buffer.use(pipeline)
        self._pipeline = pipeline

    @method("setBuffer:offset:atIndex:", "v", "Buffer?", "Q", "Q")
    def set_buffer(self, buffer: Buffer | None, offset: int, index: int) -> None:
        """A buffer for an index of the argument table; nil takes it away."""
        self.check_open()
        check_index(index)
        if buffer is None:
            self._bound.pop(index, None)
            return
        check_offset(buffer, offset)
        self.use(buffer)
        self._bound[index] = Bound(buffer, offset)

    @method("setBufferOffset:atIndex:", "v", "Q", "Q")
    def set_buffer_offset(self, offset: int, index: int) -> None:
        """Another offset of a buffer that is bound."""
        self.check_open()
        check_index(index)
        bound = self._bound.get(index)
        if bound is None or bound.buffer is None:
            raise Misuse("nothing-bound", f"setBufferOffset: index {index} has no buffer")
        check_offset(bound.buffer, offset)
        self._bound[index] = Bound(bound.buffer, offset)

    @method("setBuffers:offsets:withRange:", "v", "^", "^", "Range")
    def set_buffers(self, buffers: int, offsets: int, indices: Range) -> None:
        """Buffers for indices side by side."""
        self.check_open()
        count = indices.length
        if not count or not buffers or not offsets:
            raise Misuse("nil-argument", f"setBuffers: {count} buffers, or NULL for a list of them")
        check_index(indices.location + count - 1)
        addresses = (ctypes.c_uint64 * count).from_address(buffers)
        starts = (ctypes.c_uint64 * count).from_address(offsets)
        for number, (address, start) in enumerate(zip(addresses, starts, strict=True)):
            found = self.runtime.find(address) if address else None
            if found is not None and not isinstance(found, Buffer):
                raise Misuse("wrong-class", f"setBuffers: {found.told} is no buffer")
            self.set_buffer(found, start, indices.location + number)

    @method("setBytes:length:atIndex:", "v", "^", "Q", "Q")
    def set_bytes(self, data: int, length: int, index: int) -> None:
        """A copy of bytes for an index of the argument table."""
        self.check_open()
        check_index(index)
        if not 1 <= length <= INLINE_BYTES:
            raise Misuse("set-bytes-length", f"setBytes: of {length}: 1 to {INLINE_BYTES}")
        if not data:
            raise Misuse("nil-argument", "setBytes: of NULL")
        self._bound[index] = Bound(None, 0, ctypes.string_at(data, length))

    @method("setThreadgroupMemoryLength:atIndex:", "v", "Q", "Q")
    def set_threadgroup_memory(self, length: int, index: int) -> None:
        """Bytes of threadgroup memory for an index."""
        self.check_open()
        check_index(index)
        check_local(length)
        self._local[index] = length

    @method("useResource:usage:", "v", "Resource", "Q")
    def use_resource(self, resource: Resource, usage: int) -> None:
        """Kernels to come may reach a resource that is not bound."""
        self.check_open()
        if not usage or usage & ~_USAGES:
            raise Misuse("resource-usage", f"{usage} is no MTLResourceUsage")
        self.use(resource)
        if isinstance(resource, Buffer):
            self._declared[resource.address] = resource

    @method("useResources:count:usage:", "v", "^", "Q", "Q")
    def use_resources(self, resources: int, count: int, usage: int) -> None:
        """Kernels to come may reach resources that are not bound."""
        for resource in self._listed(resources, count):
            self.use_resource(resource, usage)

    @method("memoryBarrierWithScope:", "v", "Q")
    def memory_barrier(self, scope: int) -> None:
        """Accesses of before are before those of what comes."""
        self.check_open()
        if not scope or scope & ~_SCOPES:
            raise Misuse("barrier-scope", f"{scope} is no MTLBarrierScope")
        if scope & _SCOPE_BUFFERS:
            self._commands.append(Barrier(None))

    @method("memoryBarrierWithResources:count:", "v", "^", "Q")
    def memory_barrier_of(self, resources: int, count: int) -> None:
        """The same, for some resources."""
        self.check_open()
        listed = self._listed(resources, count)
        self._commands.append(Barrier(tuple(each for each in listed if isinstance(each, Buffer))))

    @method("executeCommandsInBuffer:withRange:", "v", "IndirectCommandBuffer", "Range")
    def execute(self, commands: IndirectCommandBuffer, part: Range) -> None:
        """Runs commands that were encoded before."""
        self.check_open()
        indices = commands.check(part, "executeCommandsInBuffer:")
        self.use(commands)
        commands.users.append(self.buffer)
        declared = tuple(self._declared.values())
        self._commands.append(
            Indirect(commands, indices, self._pipeline, dict(self._bound), declared)
        )

    @method("dispatchThreadgroups:threadsPerThreadgroup:", "v", "Size", "Size")
    def dispatch_threadgroups(self, groups: Size, threadgroup: Size) -> None:
        """Runs a kernel, as so many threadgroups."""
        self.check_open()
        threads = in_threads(groups, threadgroup)
        self._dispatch(threads, threadgroup.three, "dispatchThreadgroups:")

    @method("dispatchThreads:threadsPerThreadgroup:", "v", "Size", "Size")
    def dispatch_threads(self, threads: Size, threadgroup: Size) -> None:
        """Runs a kernel, as so many threads; threadgroups at the edges may be smaller."""
        self.check_open()
        self._dispatch(threads.three, threadgroup.three, "dispatchThreads:")

    def _dispatch(self, threads: Three, threadgroup: Three, what: str) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            raise Misuse("no-pipeline", f"{what} before setComputePipelineState:")
        made = Dispatch(
            pipeline,
            threads,
            threadgroup,
            dict(self._bound),
            dict(self._local),
            tuple(self._declared.values()),
        )
        made.check(what)
        self._commands.append(made)

    def _listed(self, resources: int, count: int) -> Sequence[Resource]:
        if not count or not resources:
            raise Misuse("nil-argument", f"{count} resources, or NULL for a list of them")
        found = [
            self.runtime.find(each) for each in (ctypes.c_uint64 * count).from_address(resources)
        ]
        for each in found:
            if not isinstance(each, Resource):
                raise Misuse("wrong-class", f"{each.told} is no resource")
        return [each for each in found if isinstance(each, Resource)]


CLASSES = (ComputeEncoder,)
