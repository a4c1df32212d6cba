"""Kernels of MSL, compiled by Metal, and launching them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter
from typing import Final
from weakref import WeakValueDictionary

from gpu.autogen import metal as mtl
from gpu.backends.metal.codes import error_text
from gpu.backends.metal.context import Commands, MetalContext
from gpu.backends.metal.memory import MetalAllocator, MetalMemory
from gpu.backends.metal.objc import ErrorPlace, Handle, MTLSize
from gpu.compiler.render.cstyle.metal import symbol
from gpu.compiler.targets.apple import SIMD_WIDTH
from gpu.compiler.toolchain.base import Compiler
from gpu.core.errors import CompileError, DeviceError, InvalidIndex, InvalidValue, Unsupported
from gpu.runtime.device import LaunchData
from gpu.runtime.program import LaunchSize, Program, check_memory_of, check_values
from gpu.runtime.recent import Recent

_KEPT: Final = 256  # libraries just compiled that are kept until they are loaded
_DIGEST_BYTES: Final = 16
VALUE_BYTES: Final = 8
"""Bytes of each value of a launch."""
# What Metal calls a source that has no name; users' own kernels in it have theirs.
_PLACE: Final = re.compile(r"^program_source:(\d+):\d+: (?:fatal )?error", re.MULTILINE)
_id: Final = attrgetter("id")
_offset: Final = attrgetter("offset")


class Libraries:
    """Sources as Metal has compiled them, each as long as something uses it."""

    def __init__(self, context: MetalContext):
        self._context = context
        self._known: WeakValueDictionary[bytes, Handle] = WeakValueDictionary()
        self._compiled: Recent[bytes, Handle] = Recent(_KEPT)

    def compile(self, source: bytes) -> Handle:
        """The MTLLibrary of a source. Raises CompileError with Metal's words and our line."""
        digest = blake2b(source, digest_size=_DIGEST_BYTES).digest()
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = self._compile(source.decode())
            self._compiled.keep(digest, found)
        return found

    def _compile(self, source: str) -> Handle:
        context, objc, place = self._context, self._context.objc, ErrorPlace()
        with context.in_pool():
            options = self._options()
            made = objc.newLibraryWithSource_options_error_(
                context.device.id, objc.string(source), options.id, place.address
            )
            if not made:
                told = error_text(objc, place.error)
                raise CompileError(f"Metal refuses a source: {_with_line(told, source)}")
            return Handle(objc, made)

    def _options(self) -> Handle:
        """Those of a compiler that keeps to IEEE 754; a pool is open."""
        objc = self._context.objc
        options = objc.new("MTLCompileOptions")
        if objc.has_method(options.id, "setMathMode:"):  # of macOS 15
            objc.setMathMode_(options.id, mtl.MTLMathModeSafe)
            objc.setMathFloatingPointFunctions_(
                options.id, mtl.MTLMathFloatingPointFunctionsPrecise
            )
        else:
            objc.setFastMathEnabled_(options.id, False)
        return options


def _with_line(told: str, source: str) -> str:
    """A message, with the line that its first error names."""
    place, lines = _PLACE.search(told), source.splitlines()
    if place is None or not 0 < int(place[1]) <= len(lines):
        return told
    return f"{told} (line {place[1]}: {lines[int(place[1]) - 1].strip()})"


class MetalCompiler(Compiler):
    """Has Metal compile sources; the binary is the source, as Metal keeps its own of each."""

    def __init__(self, libraries: Libraries, family: str):
        super().__init__(key=f"msl-1|{family}", namespace="msl")
        self._libraries = libraries

    def compile(self, source: str) -> bytes:
        """The source as bytes. Raises CompileError with Metal's words and the line."""
        text = source.encode()
        self._libraries.compile(text)
        return text

    def disassemble(self, lib: bytes) -> str:
        """The MSL: what Metal makes of it, it does not tell."""
        return lib.decode()


class Scratch:
    """Memory that kernels use while they run, shared by all: a queue runs one after another."""

    def __init__(self, context: MetalContext, allocator: MetalAllocator):
        self._context, self._allocator = context, allocator
        self._memory: MetalMemory | None = None

    def at_least(self, nbytes: int) -> MetalMemory:
        """Memory of that many bytes or more; the context's lock is held.

        Who encodes several launches asks for the most that one of them needs before the first, as
        what there was may be handed out again. Raises OutOfMemory, and as `synchronize`.
        """
        memory = self._memory
        if memory is None or memory.nbytes < nbytes:
            if memory is not None:
                self._memory = None
                self._context.synchronize()
                self._allocator.free(memory, memory.nbytes)
            self._memory = memory = self._allocator.alloc(nbytes)
        return memory


class MetalProgram(Program):
    """A kernel on a GPU.

    Attributes:
        name: of the program.
        context: of its GPU.
        groups, block: threadgroups of a launch, and threads of each; sizes: both for Metal.
        scratch: what gives it the memory it needs while it runs.
        workspace: bytes of that; 0 where it needs none.
        tables: entries of the argument table before that of the values: buffers, and workspace.
    """

    weight = 16

    def __init__(
        self,
        context: MetalContext,
        libraries: Libraries,
        scratch: Scratch,
        name: str,
        lib: bytes,
        data: LaunchData,
    ):
        """The kernel of the source that `lib` is; `data` is as `MetalRenderer.launch_data` says.

        Raises InvalidIndex where it has no kernel of that name, CompileError where Metal refuses
        it, Unsupported where it takes more threads than it can have.
        """
        self.name, self.context = name, context
        self.groups, self.block = data["groups"], data["block"]
        self.scratch, self.workspace = scratch, data["workspace"]
        self._values = data["values"]
        self.tables = _count_tables(lib.decode(), name) - bool(self._values)
        self._buffers = self.tables - bool(self.workspace)
        self._library = libraries.compile(lib)
        self._pipeline = self._make_pipeline()
        self._check_threads(exchanges=b"simd_" in lib)
        self.sizes = MTLSize(self.groups, 1, 1), MTLSize(self.block, 1, 1)
        self._ids = (ctypes.c_uint64 * self.tables)()
        self._offsets = (ctypes.c_uint64 * self.tables)()
        self._longs = (ctypes.c_int64 * self._values)()
        arrays = (self._ids, self._offsets, self._longs)
        self._places = tuple(ctypes.addressof(each) for each in arrays)

    @cached_property
    def indirect_pipeline(self) -> Handle:
        """The kernel for indirect command buffers. Raises CompileError."""
        return self._make_pipeline(indirect=True)

    def _make_pipeline(self, indirect: bool = False) -> Handle:
        context, objc, place = self.context, self.context.objc, ErrorPlace()
        called = symbol(self.name)
        with context.in_pool():
            function = objc.newFunctionWithName_(self._library.id, objc.string(called))
            if not function:
                raise InvalidIndex(f"there is no kernel {called} in this source")
            held = Handle(objc, function)
            if indirect:
                described = objc.new("MTLComputePipelineDescriptor")
                objc.setComputeFunction_(described.id, held.id)
                objc.setSupportIndirectCommandBuffers_(described.id, True)
                made = objc.newComputePipelineStateWithDescriptor_options_reflection_error_(
                    context.device.id, described.id, 0, 0, place.address
                )
            else:
                made = objc.newComputePipelineStateWithFunction_error_(
                    context.device.id, held.id, place.address
                )
            if not made:
                told = error_text(objc, place.error)
                raise CompileError(f"Metal makes no pipeline of {self.name}: {told}")
            return Handle(objc, made)

    def _check_threads(self, exchanges: bool) -> None:
        """Raises Unsupported and DeviceError where the GPU cannot run it as it was compiled."""
        context, objc, pipeline = self.context, self.context.objc, self._pipeline
        with context.in_pool():
            most = objc.maxTotalThreadsPerThreadgroup(pipeline.id)
            width = objc.threadExecutionWidth(pipeline.id)
        if self.block > most:
            raise Unsupported(
                f"{self.name} has threadgroups of {self.block} threads, and on"
                f" {context.info.name} it may have {most}: use smaller ones"
            )
        if exchanges and width != SIMD_WIDTH:
            raise DeviceError(
                f"{context.info.name} runs {self.name} in SIMD-groups of {width} threads, and it"
                f" was compiled for {SIMD_WIDTH}"
            )

    @property
    def launch_size(self) -> LaunchSize:
        """As `Program.launch_size`."""
        return LaunchSize((self.groups, 1, 1), (self.block, 1, 1))

    def __call__(
        self, *bufs: MetalMemory, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Launches it behind all that was launched before; returns at once, unless memory is
        borrowed.

        With `wait` it returns the seconds that the GPU took, when it has finished. Raises GpuFault,
        DeviceLost, OutOfMemory, InvalidType, InvalidValue.
        """
        commands = self.launch(bufs, vals)
        if wait:
            self.context.wait_for(commands.ticket)
            start, end = self.context.times(commands)
            return end - start
        if any(memory.is_borrowed for memory in bufs):
            # Its owner may change it as soon as this is computed.
            self.context.wait_for(commands.ticket)
        return None

    def launch(self, bufs: Sequence[MetalMemory], vals: Sequence[int]) -> Commands:
        """Launches it; returns at once. Raises as `__call__`, but for what the GPU reports."""
        check_memory_of(self.name, bufs, MetalMemory)
        values = check_values(self.name, vals)
        self.check_counts(len(bufs), len(values))
        context = self.context
        with context.lock:
            if self.workspace:
                self.scratch.at_least(self.workspace)
            return context.run(
                lambda encoder: self.encode(encoder, bufs, values), self, (*bufs, *values), bufs
            )

    def check_counts(self, buffers: int, values: int) -> None:
        """Raises InvalidValue where it takes another number of them."""
        if (buffers, values) != (self._buffers, self._values):
            raise InvalidValue(
                f"{self.name} takes {self._buffers} buffers and {self._values} values, got"
                f" {buffers} and {values}"
            )

    def encode(self, encoder: int, bufs: Sequence[MetalMemory], vals: Sequence[int]) -> None:
        """Puts a launch with checked arguments into an encoder; the context's lock is held."""
        objc, (ids, offsets, longs) = self.context.objc, self._places
        objc.setComputePipelineState_(encoder, self._pipeline.id)
        self._ids[: self._buffers] = [*map(_id, bufs)]
        self._offsets[: self._buffers] = [*map(_offset, bufs)]
        if self.workspace:
            self._ids[self._buffers] = self.scratch.at_least(self.workspace).id
        objc.setBuffers_offsets_withRange_(encoder, ids, offsets, 0, self.tables)
        if self._values:
            self._longs[:] = [*vals]
            objc.setBytes_length_atIndex_(encoder, longs, self._values * VALUE_BYTES, self.tables)
        objc.dispatchThreadgroups_threadsPerThreadgroup_(encoder, *self.sizes)

    def describe(self, arguments: Sequence[object]) -> str:
        """A launch of it, for errors."""
        told = [
            f"{each.nbytes:,} bytes at {each.address:#x}"
            if isinstance(each, MetalMemory)
            else str(each)
            for each in arguments
        ]
        what = f"{self.name} of {self.groups} x {self.block} threads with {', '.join(told)}"
        return f"{what}, {self.origin}" if self.origin else what


def _count_tables(source: str, name: str) -> int:
    """How many buffers a kernel takes, values among them. Raises InvalidIndex without a kernel."""
    found = re.search(rf"\bkernel void {re.escape(symbol(name))}\(([^{{]*)\{{", source)
    if found is None:
        raise InvalidIndex(f"there is no kernel {symbol(name)} in this source")
    return found[1].count("[[buffer(")
