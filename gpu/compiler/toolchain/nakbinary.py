"""What NAK makes: machine code without any container, and beside it what launching needs."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from gpu.core.errors import FormatError

_MAGIC: Final = b"NAKCODE1"
_HEADER: Final = struct.Struct("<8sHHHHIIIIII")
_INSTRUCTION: Final = 16  # bytes, of all architectures since Volta


class NakBinary(NamedTuple):
    """A compiled kernel.

    Attributes:
        sm: 90 for sm_90.
        registers: of a thread.
        barriers: named ones that it uses.
        block: threads of a block that it was compiled for, along x.
        shared: bytes of memory of a block.
        local: bytes of local memory of a thread.
        parameters: bytes of its parameters, from the beginning of constant bank 0 on.
        name: of the kernel.
        code: its instructions.
        assembly: the same as text, as Mesa writes it.
    """

    sm: int
    registers: int
    barriers: int
    block: int
    shared: int
    local: int
    parameters: int
    name: str
    code: bytes
    assembly: str

    def pack(self) -> bytes:
        """All of it as bytes."""
        name, assembly = self.name.encode(), self.assembly.encode()
        sizes = (len(name), len(self.code), len(assembly))
        return _HEADER.pack(_MAGIC, *self[:7], *sizes) + name + self.code + assembly

    @classmethod
    def unpack(cls, lib: bytes) -> NakBinary:
        """What `pack` gave. Raises FormatError for anything else."""
        if len(lib) < _HEADER.size:
            raise FormatError(f"a kernel of NAK has {_HEADER.size} bytes at least, not {len(lib)}")
        magic, *numbers, name_size, code_size, assembly_size = _HEADER.unpack_from(lib)
        if magic != _MAGIC:
            raise FormatError(f"a kernel of NAK begins with {_MAGIC!r}, not with {magic!r}")
        whole = _HEADER.size + name_size + code_size + assembly_size
        if whole != len(lib):
            raise FormatError(
                f"a kernel of NAK with a name of {name_size} bytes, {code_size} of code and"
                f" {assembly_size} of text has {whole} bytes in all, not {len(lib)}"
            )
        if not code_size or code_size % _INSTRUCTION:
            raise FormatError(f"{code_size} bytes of code: instructions have {_INSTRUCTION} each")
        code_at = _HEADER.size + name_size
        code_end = code_at + code_size
        try:
            name, assembly = lib[_HEADER.size : code_at].decode(), lib[code_end:].decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the name or text of a kernel of NAK is no text: {error}") from error
        return cls._make((*numbers, name, lib[code_at:code_end], assembly))
