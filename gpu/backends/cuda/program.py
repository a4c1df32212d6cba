"""Kernels of cubins and PTX, and launching them."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from gpu.backends.cuda import codes
from gpu.backends.cuda.codes import Result
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.hotcode import OTHER_CONTEXT, hot_code
from gpu.backends.cuda.library import Words, launch_config
from gpu.backends.cuda.memory import CudaAllocator, CudaMemory
from gpu.backends.cuda.streams import Event
from gpu.compiler.toolchain.nvbinary import NvBinary, with_lines
from gpu.core.errors import CompileError, FormatError, InvalidIndex, InvalidValue
from gpu.core.interrupts import put_off
from gpu.runtime.device import LaunchData
from gpu.runtime.origins import users_place
from gpu.runtime.program import LaunchSize, Program, check_memory_of, check_values

_LOG_BYTES: Final = 1 << 14
_WORD_BYTES: Final = 8
_address: Final = attrgetter("address")


class Arguments:
    """Room for the arguments of a launch, of 8 bytes each.

    Attributes:
        words: the arguments, packed.
        extra: address of what tells a launch where they are and how many bytes.
        put: where that has the address of the arguments.
    """

    def __init__(self, count: int):
        self.words = Words(max(count, 1))
        self._size = Words.of(_WORD_BYTES * count)
        self._list = Words.of(
            *(codes.LAUNCH_BUFFER, self.words.address),
            *(codes.LAUNCH_BUFFER_SIZE, self._size.address),
            codes.LAUNCH_END,
        )
        self.extra = self._list.address
        self.put = self.extra + _WORD_BYTES


class CudaProgram(Program):
    """A kernel on a GPU.

    Attributes:
        name: of its function.
        context: of its GPU.
        grid, block: blocks of a launch, and threads of each, along x.
        shared: bytes of shared memory of a block that it does not declare.
        function: its CUfunction.
        workspace: memory behind its other buffers, if it takes any.
        written: a bit for each of its buffers that it writes, the workspace last.
    """

    def __init__(
        self,
        context: CudaContext,
        allocator: CudaAllocator,
        name: str,
        lib: bytes,
        data: LaunchData,
    ):
        """The kernel of the `NvBinary` that `lib` is.

        `data` is as `gpu/compiler/render/launch/nv.py:launch_data` says. Raises InvalidIndex where
        it has no kernel of that name, CompileError where libcuda refuses its PTX, and the error of
        a code.
        """
        self.name, self.context = name, context
        self._binary = NvBinary.unpack(lib)
        self.grid, self.block, self.shared = data["groups"], data["block"], data["shared"]
        size = data["workspace"]
        self._allocator = allocator
        self._size = size
        self.workspace: tuple[CudaMemory, ...] = ()
        words, values = count_parameters(self._binary.ptx, name), data["values"]
        buffers = words - values - bool(size)
        if buffers < 0:
            raise FormatError(
                f"{name} has {words} parameters, but {values} values and {bool(size):d} workspaces"
                " among them"
            )
        self.written = data["written"] | (1 << buffers if size else 0)
        self._layout = struct.Struct(f"<{words - values}Q{values}q")
        self._pack = struct.Struct(f"<Q{words - values}Q{values}q").pack
        self._buffers, self._values = buffers, values
        self._arguments = self.arguments()
        self._module = self.function = 0
        with context.lock:
            context.enter()
            self.load()
        context.note(self)

    def __del__(self) -> None:
        if getattr(self, "_module", 0) and not self.context.is_lost:
            self.context.retire(self.context.library.cuModuleUnload, self._module)
        if getattr(self, "workspace", ()):
            self._allocator.free(self.workspace[0], self._size)

    @property
    def launch_size(self) -> LaunchSize:
        """As `Program.launch_size`."""
        return LaunchSize((self.grid, 1, 1), (self.block, 1, 1))

    def lose(self) -> None:
        """The context was made anew: it is loaded again by its next launch."""
        self._module = self.function = 0
        self.workspace = ()

    def close(self) -> None:
        """Gives its module back, if it is loaded."""
        if self._module:
            unloaded = self.context.library.cuModuleUnload(self._module)
            self._module = self.function = 0
            self.context.check(unloaded, f"unload {self.name}")

    def load(self) -> None:
        """Loads it; the context is current and its lock is held."""
        context, library = self.context, self.context.library
        if self._size and not self.workspace:
            self.workspace = (self._allocator.alloc(self._size),)
        if not self._module:
            with put_off():  # what libcuda gave is noted down at once
                self._module = load_code(context, self.name, self._binary)
        function, symbol = Words(), ctypes.create_string_buffer(self.name.encode())
        found = library.cuModuleGetFunction(
            function.address, self._module, ctypes.addressof(symbol)
        )
        context.check(found, f"find the kernel {self.name} in its code")
        if self.shared:
            allowed = library.cuFuncSetAttribute(
                function[0], codes.FUNCTION_DYNAMIC_SHARED, self.shared
            )
            context.check(allowed, f"give {self.name} {self.shared:,} bytes of shared memory")
        stream, arguments = context.streams.launches, self._arguments
        self._config = config = launch_config(self.grid, self.block, self.shared, stream)
        self._block = block = Words.of(
            *(library.address("cuCtxGetCurrent"), context.handle),
            *(library.address("cuLaunchKernelEx"), config.address, function[0]),
            *(arguments.extra, arguments.put, 0),
        )
        # The first word of what a launch is given; the block lives as long as this.
        self._block_address, self._launch = block.address, hot_code().launch
        self.function = function[0]

    def __call__(
        self, *bufs: CudaMemory, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Launches it behind all that was launched before; returns at once.

        With `wait` it returns the seconds that the GPU took, when it has finished. Raises GpuFault,
        DeviceLost, InvalidType, InvalidValue and the error of a code.
        """
        if wait:
            return self._timed(bufs, vals)
        context = self.context
        with context.lock:
            if context.retired or not self.function or context.lost is not None:
                self._prepare()
            given = bufs + self.workspace if self.workspace else bufs
            streams = context.streams
            streams.ticket = ticket = streams.ticket + 1
            launched = (ticket, self, (*bufs, *vals) if vals else bufs, users_place())
            addresses: list[int | None] = [self._block_address]
            try:
                for memory in given:
                    memory.ticket = ticket
                    addresses.append(memory.address)
                context.launched.append(launched)
                arguments = self._pack(*addresses, *vals)
            except (AttributeError, TypeError, struct.error):
                context.launched.take_back(launched)
                self.refuse(bufs, vals)
                raise
            code = self._launch(arguments)
            if code:
                if code == OTHER_CONTEXT:
                    context.enter()
                    code = self._launch(arguments)
                context.check(code, f"launch {self.name}")
        return None

    def _prepare(self) -> None:
        context = self.context
        context.enter()
        if not self.function:
            self.load()
        if context.retired:
            context.give_back_ended()

    def arguments(self) -> Arguments:
        """Room for the arguments of a launch."""
        return Arguments(self._layout.size // _WORD_BYTES)

    def pack(self, target: Arguments, bufs: tuple[CudaMemory, ...], vals: Sequence[int]) -> None:
        """Writes the arguments of a launch. Raises InvalidType, InvalidValue, DeviceLost."""
        given = bufs + self.workspace if self.workspace else bufs
        try:
            self._layout.pack_into(target.words.memory, 0, *map(_address, given), *vals)
        except (AttributeError, TypeError, struct.error):
            self.refuse(bufs, vals)
            raise

    def refuse(self, bufs: Sequence[CudaMemory], vals: Sequence[int]) -> None:
        """Raises the error of arguments that cannot be passed, if there is any."""
        check_memory_of(self.name, bufs, CudaMemory)
        values = check_values(self.name, vals)
        if (len(bufs), len(values)) != (self._buffers, self._values):
            raise InvalidValue(
                f"{self.name} takes {self._buffers} buffers and {self._values} values, got"
                f" {len(bufs)} and {len(values)}"
            )
        for memory in bufs:
            memory.place()

    def _timed(self, bufs: tuple[CudaMemory, ...], vals: Sequence[int]) -> float:
        began, ended = self.launch_between_events(bufs, vals)
        try:
            ended.wait()
            return ended.seconds_since(began)
        finally:
            for event in (began, ended):
                self.context.retire(self.context.library.cuEventDestroy_v2, event.handle)

    def launch_between_events(
        self, bufs: tuple[CudaMemory, ...], vals: Sequence[int]
    ) -> tuple[Event, Event]:
        """Launches it as `__call__` does; gives events before and after it, to be destroyed."""
        context, library = self.context, self.context.library
        with context.lock:
            context.enter()
            events: list[Event] = []
            try:
                for _ in range(2):
                    with put_off():
                        events.append(Event(library, context.check, codes.EVENT_DEFAULT))
                began, ended = events
                began.record(context.streams.launches)
                self(*bufs, vals=vals)
                ended.record(context.streams.launches)
            except BaseException:
                for event in events:  # which works as long as they are in use
                    context.retire(library.cuEventDestroy_v2, event.handle)
                raise
        return began, ended

    def describe(self, arguments: Sequence[object]) -> str:
        """A launch of it, for errors."""
        told = [
            f"{each.nbytes:,} bytes at {each.address or 0:#x}"
            if isinstance(each, CudaMemory)
            else str(each)
            for each in arguments
        ]
        what = f"{self.name} of {self.grid} x {self.block} threads with {', '.join(told)}"
        return f"{what}, {self.origin}" if self.origin else what


def count_parameters(ptx: str, name: str) -> int:
    """How many parameters, each of 8 bytes, a kernel has. Raises InvalidIndex without a kernel."""
    found = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", ptx)
    if found is None:
        if re.search(rf"\.entry\s+{re.escape(name)}\s*[.{{]", ptx):
            return 0
        kernels = ", ".join(re.findall(r"\.entry\s+([\w$]+)", ptx)) or "none"
        raise InvalidIndex(f"there is no kernel {name} in this code, but: {kernels}")
    return found[1].count(".param")


def load_code(context: CudaContext, name: str, binary: NvBinary) -> int:
    """The CUmodule of a cubin, or of its PTX where there is none for the GPU.

    Raises CompileError with the log of libcuda's compiler, and the error of a code.
    """
    if binary.cubin:
        if context.library.learn is not None:
            context.library.learn(binary.cubin, binary.ptx)
        module, code, _ = _load_image(context, binary.cubin)
        if code != Result.NO_BINARY_FOR_GPU:
            context.check(code, f"load {name}")
            return module
    module, code, log = _load_image(context, binary.ptx.encode() + b"\0")
    try:
        context.check(code, f"compile the PTX of {name} for {context.info.name}")
    except CompileError as error:
        if log:
            error.add(f"it says:\n{with_lines(log, binary.ptx)}")
        raise
    return module


def _load_image(context: CudaContext, image: bytes) -> tuple[int, int, str]:
    """Module, code, and what the compiler of PTX said."""
    module, log = Words(), ctypes.create_string_buffer(_LOG_BYTES)
    options = struct.pack("<2i", *codes.JIT_ERROR_LOG)
    values = Words.of(ctypes.addressof(log), _LOG_BYTES)
    held = ctypes.create_string_buffer(options, len(options))
    content = ctypes.create_string_buffer(image, len(image))
    code = context.library.cuModuleLoadDataEx(
        *(module.address, ctypes.addressof(content), 2),
        *(ctypes.addressof(held), values.address),
    )
    return module[0], code, log.value.decode(errors="replace").strip()
