"""Launches and copies in order: what is recorded, and when it is submitted.

Launches are recorded into one compute pass and submitted together, since a submission costs as much
as dozens of launches. Within a pass Dawn makes each launch see what those before it wrote. Whatever
needs the results, or must come after them, submits first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpu.autogen import webgpu as api
from gpu.backends.webgpu.connection import Connection, info_for
from gpu.core.errors import DeviceError, OutOfMemory
from gpu.core.interrupts import put_off

BATCH: Final = 64
"""Launches after which what is recorded is submitted, so that the device has something to do."""
_STAMPS: Final = 2  # a pass's begin and end
_STAMP_BYTES: Final = 8


class Commands:
    """What is sent to one connection. Threads may share it.

    Attributes:
        connection: the device.
        lock: the connection's, held by whoever calls Dawn.
    """

    def __init__(self, connection: Connection):
        self.connection = connection
        self._library = connection.library
        self.lock = connection.lock
        self._encoder = 0
        self._pass = 0
        self._pipeline = 0
        self._recorded = 0
        self._is_whole = False

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Holds the lock, and puts off Ctrl-C: it would leave handles that are none any more."""
        with self.lock:
            if self._is_whole:
                yield
                return
            with put_off():
                self._is_whole = True
                try:
                    yield
                finally:
                    self._is_whole = False

    # Buffers.

    def new_buffer(self, size: int, usage: int) -> int:
        """The handle of a new buffer. Raises OutOfMemory and DeviceError."""
        description = api.BufferDescriptor(usage=usage, size=size)
        with self.connection.scope(f"allocating {size:,} bytes"):
            handle: int = self._library.DeviceCreateBuffer(
                self.connection.device, ctypes.byref(description)
            )
        if not handle:
            raise OutOfMemory(f"WebGPU: no buffer of {size:,} bytes; free tensors")
        return handle

    def new_texture(self, description: api.TextureDescriptor, size: int) -> int:
        """The handle of a new texture for `size` bytes. Raises OutOfMemory and DeviceError."""
        with self.connection.scope(f"allocating a texture of {size:,} bytes"):
            handle: int = self._library.DeviceCreateTexture(
                self.connection.device, ctypes.byref(description)
            )
        return handle

    def release_buffer(self, handle: int) -> None:
        """Gives a buffer back, soon; what was recorded keeps it until it is done."""
        self.connection.drop(self._library.BufferRelease, handle)

    def write(self, buffer: int, offset: int, address: int, size: int) -> None:
        """Copies `size` bytes of the host, a multiple of 4, after what was launched before."""
        with self.whole():
            self.submit()
            self._library.QueueWriteBuffer(self.connection.queue, buffer, offset, address, size)

    # Launches.

    def launch(self, pipeline: int, group: int, counts: tuple[int, int, int]) -> None:
        """Records a launch of `counts` workgroups. Raises what went wrong before."""
        library = self._library
        with self.whole():
            if not self._pass:
                self._begin(0)
            if pipeline != self._pipeline:
                library.ComputePassEncoderSetPipeline(self._pass, pipeline)
                self._pipeline = pipeline
            library.ComputePassEncoderSetBindGroup(self._pass, 0, group, 0, None)
            library.ComputePassEncoderDispatchWorkgroups(self._pass, *counts)
            self._recorded += 1
            if self._recorded >= BATCH:
                self.submit()

    def launch_timed(self, pipeline: int, group: int, counts: tuple[int, int, int]) -> float:
        """Launches, waits until it is done, and returns the seconds it took by the device's clock.

        Needs the feature timestamp-query.
        """
        with self.lock:
            self.submit()
            queries = self._new_queries()
            stamps = api.ComputePassTimestampWrites(queries, 0, 1)
            self._begin(ctypes.addressof(stamps))
            self.launch(pipeline, group, counts)
            self._end_pass()
            try:
                return self._elapsed(queries)
            finally:
                self.connection.drop(self._library.QuerySetRelease, queries)

    def _new_queries(self) -> int:
        description = api.QuerySetDescriptor(type=api.QueryType_Timestamp, count=_STAMPS)
        handle: int = self._library.DeviceCreateQuerySet(
            self.connection.device, ctypes.byref(description)
        )
        return handle

    def _elapsed(self, queries: int) -> float:
        """The time between two timestamps that the recorded commands take."""
        size = _STAMPS * _STAMP_BYTES
        usage = api.BufferUsage_QueryResolve | api.BufferUsage_CopySrc
        buffer = self.new_buffer(size, usage)
        staging = Staging(self, size)
        try:
            self._library.CommandEncoderResolveQuerySet(self._encoder, queries, 0, 2, buffer, 0)
            with staging.read(buffer, 0, size) as address:
                begin, end = (ctypes.c_uint64 * _STAMPS).from_address(address)
            return max(end - begin, 0) * 1e-9
        finally:
            self.release_buffer(buffer)

    # Recording.

    def _begin(self, stamps: int) -> None:
        """Opens a pass, and an encoder if none is open."""
        self._open()
        description = api.ComputePassDescriptor(timestampWrites=stamps)
        self._pass = self._library.CommandEncoderBeginComputePass(
            self._encoder, ctypes.byref(description)
        )

    def _open(self) -> None:
        if not self._encoder:
            self._encoder = self._library.DeviceCreateCommandEncoder(self.connection.device, None)

    def _end_pass(self) -> None:
        if self._pass:
            self._library.ComputePassEncoderEnd(self._pass)
            self._library.ComputePassEncoderRelease(self._pass)
            self._pass = self._pipeline = 0

    def copy(self, source: int, offset: int, target: int, size: int) -> None:
        """Records a copy to the start of `target`."""
        with self.whole():
            self._end_pass()
            self._open()
            self._library.CommandEncoderCopyBufferToBuffer(
                self._encoder, source, offset, target, 0, size
            )

    def copy_to_texture(
        self, source: api.ImageCopyBuffer, target: api.ImageCopyTexture, size: api.Extent3D
    ) -> None:
        """Records a copy."""
        with self.whole():
            self._end_pass()
            self._open()
            self._library.CommandEncoderCopyBufferToTexture(
                self._encoder, ctypes.byref(source), ctypes.byref(target), ctypes.byref(size)
            )

    def submit(self) -> None:
        """Submits what is recorded. Raises DeviceLost or DeviceError for what has gone wrong."""
        with self.whole():
            self.connection.give_back()
            if self._encoder:
                self._end_pass()
                commands = self._library.CommandEncoderFinish(self._encoder, None)
                self._library.CommandEncoderRelease(self._encoder)
                self._encoder = self._recorded = 0
                handles = (ctypes.c_void_p * 1)(commands)
                self._library.QueueSubmit(self.connection.queue, 1, handles)
                self._library.CommandBufferRelease(commands)
            self.connection.check("running kernels")

    def synchronize(self) -> None:
        """Submits, and waits until all is done."""
        with self.lock:
            self.submit()
            self.connection.finish()


class Staging:
    """A buffer that the host can read, through which others are read."""

    def __init__(self, commands: Commands, size: int):
        """`size` is in bytes, a multiple of 4."""
        self._commands, self._size = commands, size
        usage = api.BufferUsage_MapRead | api.BufferUsage_CopyDst
        self._handle = commands.new_buffer(size, usage)

    def serves(self, commands: Commands, size: int) -> bool:
        """Whether it can be used for this."""
        return commands is self._commands and size <= self._size

    @contextmanager
    def read(self, source: int, offset: int, size: int) -> Iterator[int]:
        """The address of a copy of `size` bytes, made after all that was launched before."""
        commands, library = self._commands, self._commands.connection.library
        with commands.lock:
            commands.copy(source, offset, self._handle, size)
            commands.submit()
            try:
                self._map(size)
                yield library.BufferGetConstMappedRange(self._handle, 0, size)
            finally:  # also where waiting for the mapping was interrupted
                library.BufferUnmap(self._handle)

    def _map(self, size: int) -> None:
        connection = self._commands.connection
        statuses: list[int] = []
        callback = api.BufferMapCallback(lambda status, *_: statuses.append(status))
        future = connection.library.BufferMapAsync2(
            self._handle, api.MapMode_Read, 0, size, info_for(callback)
        )
        connection.wait(future)
        if statuses == [api.MapAsyncStatus_Aborted] and not connection.lost:
            connection.lost = "reading memory was given up"  # before the callback for the loss came
        connection.check("reading memory")
        if statuses != [api.Status_Success]:
            raise DeviceError(f"WebGPU: reading {size:,} bytes failed with status {statuses}")

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._commands.release_buffer(self._handle)
