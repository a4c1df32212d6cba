"""Buffers copied to textures, for adapters whose kernels load faster from those.

The texels of a row are as many as `gpu/compiler/render/wgsl/memory.py:TEXELS`, four words each.
"""

from __future__ import annotations

from typing import Final

from gpu.autogen import webgpu as api
from gpu.backends.webgpu.commands import Commands
from gpu.compiler.render.wgsl.memory import TEXELS

_TEXEL_BYTES: Final = 16
_ROW_BYTES: Final = TEXELS * _TEXEL_BYTES
_NEVER: Final = -1


class Texture:
    """A texture for the bytes of one buffer.

    Attributes:
        view: its handle for bind groups.
        version: of the memory that was copied last.
    """

    def __init__(self, commands: Commands, nbytes: int):
        """`nbytes` is a multiple of 16. Raises OutOfMemory and DeviceError."""
        self._commands, self._nbytes = commands, nbytes
        self.version = _NEVER
        description = api.TextureDescriptor(
            usage=api.TextureUsage_CopyDst | api.TextureUsage_TextureBinding,
            dimension=api.TextureDimension_2D,
            width=TEXELS,
            height=-(-nbytes // _ROW_BYTES),
            depthOrArrayLayers=1,
            format=api.TextureFormat_RGBA32Uint,
            mipLevelCount=1,
            sampleCount=1,
        )
        self._handle = commands.new_texture(description, nbytes)
        self.view: int = commands.connection.library.TextureCreateView(self._handle, None)

    def fill(self, buffer: int) -> None:
        """Copies the buffer after what was recorded so far: whole rows, and what is left."""
        rows, rest = divmod(self._nbytes, _ROW_BYTES)
        if rows:
            self._copy(buffer, 0, api.Extent3D(TEXELS, rows, 1))
        if rest:
            self._copy(buffer, rows, api.Extent3D(rest // _TEXEL_BYTES, 1, 1))

    def _copy(self, buffer: int, first: int, size: api.Extent3D) -> None:
        source = api.ImageCopyBuffer(
            layoutOffset=first * _ROW_BYTES,
            layoutBytesPerRow=_ROW_BYTES,
            layoutRowsPerImage=size.height,
            buffer=buffer,
        )
        target = api.ImageCopyTexture(
            texture=self._handle, originY=first, aspect=api.TextureAspect_All
        )
        self._commands.copy_to_texture(source, target, size)

    def release(self) -> None:
        """Gives it back, soon; what was recorded keeps it until it is done."""
        connection = self._commands.connection
        connection.drop(connection.library.TextureViewRelease, self.view)
        connection.drop(connection.library.TextureRelease, self._handle)
