"""Memory of the WEBGPU device: storage buffers, and copies to and from them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from typing import Final

import numpy as np

from gpu.autogen import webgpu as api
from gpu.backends.webgpu.commands import Commands, Staging
from gpu.backends.webgpu.texture import Texture
from gpu.core.arguments import host_bytes
from gpu.core.available import check_memory
from gpu.core.errors import DeviceLost, OutOfMemory
from gpu.runtime.allocator import LRUAllocator

_WORD: Final = 4  # bytes: copies are multiples of it
_TEXEL: Final = 16  # bytes: buffers are multiples of it, for they may be copied to textures
_PART: Final = 32 << 20  # bytes of a copy at once
_USAGE: Final = api.BufferUsage_Storage | api.BufferUsage_CopySrc | api.BufferUsage_CopyDst
_serials: Final = count()


class Memory:
    """A storage buffer.

    Attributes:
        commands: those of the device it is on.
        handle: Dawn's.
        nbytes: its size, a multiple of 16.
        serial: a number no other memory of this process has or had.
        version: counts the changes of what is in it.
        texture: a copy of it, where kernels load from one; see `texture_of`.
    """

    __slots__ = ("commands", "handle", "nbytes", "serial", "texture", "version")

    def __init__(self, commands: Commands, handle: int, nbytes: int):
        self.commands, self.handle, self.nbytes = commands, handle, nbytes
        self.serial = next(_serials)
        self.version = 0
        self.texture: Texture | None = None

    def texture_of(self) -> Texture:
        """A texture with what the memory will hold when all that is recorded has run.

        Raises OutOfMemory.
        """
        if self.texture is None:
            self.texture = Texture(self.commands, self.nbytes)
        if self.texture.version != self.version:
            self.texture.fill(self.handle)
            self.texture.version = self.version
        return self.texture

    def release(self) -> None:
        """Gives buffer and texture back, soon."""
        self.commands.release_buffer(self.handle)
        if self.texture is not None:
            self.texture.release()


def on_device(memory: Memory, commands: Commands) -> Memory:
    """The memory, if it is still there. Raises DeviceLost where it went with a lost device."""
    if memory.commands is not commands:
        raise DeviceLost(
            f"WebGPU: {memory.nbytes:,} bytes of memory were on a device that was lost; make the"
            " tensor anew"
        )
    return memory


class WebGPUAllocator(LRUAllocator[Memory]):
    """Storage buffers, kept by size when they are freed."""

    def __init__(self, commands: Callable[[], Commands]):
        """`commands` gives those of the device as it is now, opened again if it was lost."""
        super().__init__()
        self._commands = commands
        self._staging: Staging | None = None

    def _take(self, nbytes: int) -> Memory:
        """As `LRUAllocator` does. Raises OutOfMemory, DeviceLost and DeviceError."""
        commands = self._commands()
        memory = super()._take(nbytes)
        while memory.commands is not commands:  # kept since before the device was lost
            memory = super()._take(nbytes)
        return memory

    def _alloc(self, nbytes: int) -> Memory:
        commands = self._commands()
        connection = commands.connection
        size = max(-(-nbytes // _TEXEL) * _TEXEL, _TEXEL)
        limits = connection.limits
        largest = min(limits.maxStorageBufferBindingSize, limits.maxBufferSize)
        if size > largest:
            raise OutOfMemory(
                f"WebGPU: a tensor of {nbytes:,} bytes: this device's buffers hold {largest:,} at"
                " most (maxStorageBufferBindingSize); split the tensor into smaller ones"
            )
        if connection.is_cpu:
            check_memory(size)
        return Memory(commands, commands.new_buffer(size, _USAGE), size)

    def _free(self, memory: Memory, nbytes: int) -> None:
        memory.release()
        memory.commands.connection.give_back()

    def copy_in(self, memory: Memory, data: memoryview) -> None:
        """Copies bytes from the host; what was launched before it still sees the old ones."""
        commands = self._commands()
        handle = on_device(memory, commands).handle
        source = np.frombuffer(host_bytes(data, "data"), np.uint8)
        whole = source.size - source.size % _WORD
        with commands.lock:  # or another thread's launch would copy what is there to a texture
            memory.version += 1
            for start in range(0, whole, _PART):
                part = source[start : min(start + _PART, whole)]
                commands.write(handle, start, part.ctypes.data, part.size)
            if whole < source.size:
                last = np.zeros(_WORD, np.uint8)
                last[: source.size - whole] = source[whole:]
                commands.write(handle, whole, last.ctypes.data, _WORD)

    def copy(self, target: Memory, source: Memory, nbytes: int) -> None:
        """Copies between buffers on the device, behind what was launched before."""
        commands = self._commands()
        handle, read = on_device(target, commands).handle, on_device(source, commands).handle
        with commands.lock:
            target.version += 1
            commands.copy(read, 0, handle, -(-nbytes // _WORD) * _WORD)

    def copy_out(self, data: memoryview, memory: Memory) -> None:
        """Copies bytes to the host after all work launched so far. Raises what that work raised."""
        commands = self._commands()
        handle = on_device(memory, commands).handle
        target = np.frombuffer(host_bytes(data, "data", writable=True), np.uint8)
        for start in range(0, target.size, _PART):
            part = target[start : start + _PART]
            size = -(-part.size // _WORD) * _WORD
            with commands.lock:  # or another thread would put a smaller one in its place
                if self._staging is None or not self._staging.serves(commands, size):
                    self._staging = Staging(commands, size)
                with self._staging.read(handle, start, size) as address:
                    ctypes.memmove(part.ctypes.data, address, part.size)
