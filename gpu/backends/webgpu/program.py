"""Kernels of the WEBGPU device: shader modules, pipelines, bind groups, launches."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gpu.autogen import webgpu as api
from gpu.backends.webgpu.commands import Commands
from gpu.backends.webgpu.connection import Connection, info_for
from gpu.backends.webgpu.library import text_of, view
from gpu.backends.webgpu.memory import Memory, on_device
from gpu.core.errors import CompileError, DeviceError, InvalidValue, OutOfMemory
from gpu.runtime.program import Program, check_memory_of, check_values

_KEPT_GROUPS: Final = 256
_INT_BYTES: Final = 4
_UNIFORM_ALIGN: Final = 16  # bytes
_AROUND: Final = 2  # lines shown before and after the one that the compiler refuses


class Layout(NamedTuple):
    """What the launch data of `gpu/compiler/render/wgsl/launch.py` says of bindings.

    Attributes:
        written: of each parameter, whether it is written.
        textures: of each parameter, whether it is a texture.
        vals: values of the launch.
        spilled: bytes of the buffer of spilled memory, 0 where there is none.
        counts: workgroups in x, y and z.
    """

    written: tuple[bool, ...]
    textures: tuple[bool, ...]
    vals: int
    spilled: int
    counts: tuple[int, int, int]

    @classmethod
    def of(cls, data: Mapping[str, int]) -> Layout:
        """Reads launch data."""
        written, textures = (
            tuple(bool(data[name] >> i & 1) for i in range(data["params"]))
            for name in ("written", "textures")
        )
        return cls(
            written, textures, data["vals"], data["spilled"], (data["x"], data["y"], data["z"])
        )


def shader_module(connection: Connection, source: str) -> int:
    """The handle of a compiled shader. Raises CompileError with the compiler's words."""
    code = source.encode()
    chained = api.ShaderSourceWGSL(api.ChainedStruct(0, api.SType_ShaderSourceWGSL), view(code))
    description = api.ShaderModuleDescriptor(nextInChain=ctypes.addressof(chained))
    module: int = 0
    try:
        with connection.scope("compiling a shader"):
            module = connection.library.DeviceCreateShaderModule(
                connection.device, ctypes.byref(description)
            )
    except DeviceError as error:
        if connection.lost:
            raise
        told = _messages(connection, module, source) or error.message
        connection.drop(connection.library.ShaderModuleRelease, module)
        raise CompileError(f"WebGPU refuses a kernel:\n{told}") from error
    return module


def _messages(connection: Connection, module: int, source: str) -> str:
    """The errors of a module, each with the lines of the source around it."""
    told: list[str] = []
    lines = source.splitlines()

    def done(_: int, info: ctypes._Pointer[api.CompilationInfo], *__: object) -> None:
        count, address = info.contents.messageCount, info.contents.messages
        for message in (api.CompilationMessage * count).from_address(address):
            if message.type == api.CompilationMessageType_Error:
                told.append(_told(message, lines))

    callback = api.CompilationInfoCallback(done)
    with connection.lock:
        future = connection.library.ShaderModuleGetCompilationInfo2(module, info_for(callback))
        connection.wait(future)
    return "\n".join(told)


def _told(message: api.CompilationMessage, lines: Sequence[str]) -> str:
    number, column = message.lineNum, message.linePos
    first = max(number - _AROUND, 1)
    shown = [
        f"{'>' if n == number else ' '} {n:4}  {lines[n - 1]}"
        for n in range(first, min(number + _AROUND, len(lines)) + 1)
    ]
    return "\n".join([f"line {number}, column {column}: {text_of(message.message)}", *shown])


class Loaded:
    """A pipeline on one connection, and the bind groups it was launched with."""

    def __init__(self, commands: Commands, name: str, source: str, layout: Layout):
        self.commands, self.layout = commands, layout
        self.library = commands.connection.library
        self.groups: dict[tuple[int, ...], int] = {}
        self.module = self.group_layout = self.pipeline = self.spilled = self.vals = 0
        self.module = shader_module(commands.connection, source)
        try:
            with commands.connection.scope(f"making the pipeline of {name}"):
                self.group_layout = self._make_group_layout()
                self.pipeline = self._make_pipeline(name.encode())
        except DeviceError as error:
            if commands.connection.lost:
                raise
            raise CompileError(error.message) from error
        if layout.spilled:
            self.spilled = self._new_spilled()
        if layout.vals:
            usage = api.BufferUsage_Uniform | api.BufferUsage_CopyDst
            size = -(-layout.vals * _INT_BYTES // _UNIFORM_ALIGN) * _UNIFORM_ALIGN
            self.vals = commands.new_buffer(size, usage)

    def __del__(self) -> None:
        """What was recorded keeps what it needs until it has run."""
        drop = self.commands.connection.drop
        for handle in self.groups.values():
            drop(self.library.BindGroupRelease, handle)
        for release, handle in (
            (self.library.BufferRelease, self.spilled),
            (self.library.BufferRelease, self.vals),
            (self.library.ComputePipelineRelease, self.pipeline),
            (self.library.BindGroupLayoutRelease, self.group_layout),
            (self.library.ShaderModuleRelease, self.module),
        ):
            if handle:
                drop(release, handle)

    def _new_spilled(self) -> int:
        """The buffer of spilled memory. Raises OutOfMemory."""
        largest = self.commands.connection.limits.maxStorageBufferBindingSize
        if self.layout.spilled > largest:
            raise OutOfMemory(
                f"WebGPU: a kernel needs {self.layout.spilled:,} bytes for intermediate values,"
                f" this device's buffers hold {largest:,} at most; use smaller tensors, or compute"
                " a part of the expression first, with .realize()"
            )
        return self.commands.new_buffer(self.layout.spilled, api.BufferUsage_Storage)

    def _make_group_layout(self) -> int:
        kinds = [
            api.BufferBindingType_Storage if written else api.BufferBindingType_ReadOnlyStorage
            for written in self.layout.written
        ]
        kinds += [api.BufferBindingType_Storage] * bool(self.layout.spilled)
        kinds += [api.BufferBindingType_Uniform] * bool(self.layout.vals)
        entries = (api.BindGroupLayoutEntry * len(kinds))()
        for number, kind in enumerate(kinds):
            entries[number].binding = number
            entries[number].visibility = api.ShaderStage_Compute
            if number < len(self.layout.textures) and self.layout.textures[number]:
                entries[number].textureSampleType = api.TextureSampleType_Uint
                entries[number].textureViewDimension = api.TextureViewDimension_2D
            else:
                entries[number].bufferType = kind
        description = api.BindGroupLayoutDescriptor(
            entryCount=len(kinds), entries=ctypes.addressof(entries)
        )
        handle: int = self.library.DeviceCreateBindGroupLayout(
            self.commands.connection.device, ctypes.byref(description)
        )
        return handle

    def _make_pipeline(self, name: bytes) -> int:
        device = self.commands.connection.device
        groups = (ctypes.c_void_p * 1)(self.group_layout)
        described = api.PipelineLayoutDescriptor(
            bindGroupLayoutCount=1, bindGroupLayouts=ctypes.addressof(groups)
        )
        layout = self.library.DeviceCreatePipelineLayout(device, ctypes.byref(described))
        description = api.ComputePipelineDescriptor(
            layout=layout, computeModule=self.module, computeEntryPoint=view(name)
        )
        pipeline: int = self.library.DeviceCreateComputePipeline(device, ctypes.byref(description))
        self.library.PipelineLayoutRelease(layout)
        return pipeline

    def group(self, bufs: Sequence[Memory]) -> int:
        """The bind group of these buffers, kept for the next launch on them."""
        key = tuple([on_device(memory, self.commands).serial for memory in bufs])
        found = self.groups.get(key)
        if found is None:
            if len(self.groups) >= _KEPT_GROUPS:
                self.library.BindGroupRelease(self.groups.pop(next(iter(self.groups))))
            found = self.groups[key] = self._make_group(bufs)
        return found

    def _make_group(self, bufs: Sequence[Memory]) -> int:
        handles = [memory.handle for memory in bufs]
        sizes = [memory.nbytes for memory in bufs]
        if self.layout.spilled:
            handles.append(self.spilled)
            sizes.append(self.layout.spilled)
        if self.layout.vals:
            handles.append(self.vals)
            sizes.append(self.layout.vals * _INT_BYTES)
        entries = (api.BindGroupEntry * len(handles))()
        for number, (handle, size) in enumerate(zip(handles, sizes, strict=True)):
            entries[number].binding = number
            if number < len(bufs) and self.layout.textures[number]:
                entries[number].textureView = bufs[number].texture_of().view
            else:
                entries[number].buffer, entries[number].size = handle, size
        description = api.BindGroupDescriptor(
            layout=self.group_layout, entryCount=len(handles), entries=ctypes.addressof(entries)
        )
        made: int = self.library.DeviceCreateBindGroup(
            self.commands.connection.device, ctypes.byref(description)
        )
        return made

    def pass_values(self, vals: Sequence[int]) -> None:
        """Gives the values of the next launch."""
        words = (ctypes.c_int32 * len(vals))(*vals)
        self.commands.write(self.vals, 0, ctypes.addressof(words), ctypes.sizeof(words))


class WebGPUProgram(Program):
    """A kernel.

    Attributes:
        name: of its entry point.
        source: its WGSL.
        layout: what it is launched with.
    """

    weight = 32

    def __init__(
        self, name: str, lib: bytes, data: Mapping[str, int], commands: Callable[[], Commands]
    ):
        """`commands` gives those of the device as it is now. Raises CompileError."""
        self.name, self.source, self.layout = name, lib.decode(), Layout.of(data)
        self._commands = commands
        self._loaded = Loaded(commands(), name, self.source, self.layout)

    def loaded(self) -> Loaded:
        """The kernel on the device as it is now."""
        commands = self._commands()
        if self._loaded.commands is not commands:
            self._loaded = Loaded(commands, self.name, self.source, self.layout)
        return self._loaded

    def _prepare(self, bufs: Sequence[Memory]) -> None:
        """Brings textures up to date, and notes which memory will have changed."""
        for memory, is_texture, is_written in zip(
            bufs, self.layout.textures, self.layout.written, strict=True
        ):
            if is_texture:
                memory.texture_of()
            if is_written:
                memory.version += 1

    def __call__(self, *bufs: Memory, vals: Sequence[int] = (), wait: bool = False) -> float | None:
        """Launches the kernel on one buffer for each parameter.

        Returns at once, or with `wait` the seconds it took when it is done: by the device's clock
        where it has one, else by the host's. Raises InvalidValue for a wrong number of buffers,
        InvalidType, DeviceLost, DeviceError.
        """
        check_memory_of(self.name, bufs, Memory)
        vals = check_values(self.name, vals)
        wanted = len(self.layout.written)
        if len(bufs) != wanted or len(vals) != self.layout.vals:
            raise InvalidValue(
                f"{self.name} takes {wanted} buffers and {self.layout.vals} values, got {len(bufs)}"
                f" and {len(vals)}"
            )
        loaded = self.loaded()
        commands = loaded.commands
        # Values, textures and groups are those of this launch until it is recorded.
        with commands.lock:
            with commands.whole():
                if vals:
                    loaded.pass_values(vals)
                group = loaded.group(bufs)
                self._prepare(bufs)
                if not wait:
                    commands.launch(loaded.pipeline, group, self.layout.counts)
                    return None
            if "timestamp-query" in commands.connection.features:
                return commands.launch_timed(loaded.pipeline, group, self.layout.counts)
            commands.synchronize()
            started = time.perf_counter()
            commands.launch(loaded.pipeline, group, self.layout.counts)
            commands.synchronize()
            return time.perf_counter() - started
