"""What ir3 makes: machine code of Adreno GPUs, and beside it what launching needs."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from gpu.core.errors import FormatError

_MAGIC: Final = b"IR3CODE1"
_HEADER: Final = struct.Struct("<8s22I")
UNIT: Final = 128
"""Bytes that code is a multiple of: 16 instructions, which it is loaded in."""
VECTOR: Final = 16
"""Bytes of a register or constant: four words."""
NO_REGISTER: Final = 63 << 2
"""r63.x, which stands for none."""
_MOST: Final = {
    # field: the largest, of all of Adreno 6xx (Mesa, src/freedreno/ir3/ir3_compiler.c, and the
    # widths of fields in registers/adreno/a6xx.xml)
    "full": 48, "half": 48, "branches": 32, "constants": 256, "immediates_at": 256, "block": 1024,
    "shared": 32 << 10, "private": 255 * 512, "group_at": 255, "thread_at": 255, "ubos": 32,
    "uavs": 64, "samplers": 16, "double": 1, "merged": 1, "early": 1, "per_wave": 1,
    "parameters": 256 * VECTOR,
}  # fmt: skip


class Ir3Binary(NamedTuple):
    """A compiled kernel.

    Attributes:
        chip: 630 for Adreno 630.
        full, half: registers of 4 x 32 and of 4 x 16 bits that a thread has; where both share
            their place `full` counts all.
        branches: how often threads of a wave part ways inside each other, in the units of the
            register field BRANCHSTACK.
        constants: how many constants of 16 bytes it sees.
        immediates_at: the constant from which on `immediates` are; `parameters` begin at 0.
        block: threads of a block that it was compiled for, along x.
        shared: bytes of memory of a block.
        private: bytes of memory of a thread, a multiple of 512.
        group_at, thread_at: registers, counted in components, that the number of the block and that
            of the thread in it are wanted in, or `NO_REGISTER`.
        ubos, uavs, samplers: descriptors that it reads.
        double: whether waves have twice as many threads.
        merged: whether halves and full registers share their place.
        early: whether its preamble may run early.
        per_wave: whether private memory is that of a wave as a whole.
        parameters: bytes of its parameters.
        name: of the kernel.
        code: its instructions.
        immediates: words that are constants of the code itself.
    """

    chip: int
    full: int
    half: int
    branches: int
    constants: int
    immediates_at: int
    block: int
    shared: int
    private: int
    group_at: int
    thread_at: int
    ubos: int
    uavs: int
    samplers: int
    double: int
    merged: int
    early: int
    per_wave: int
    parameters: int
    name: str
    code: bytes
    immediates: bytes

    def pack(self) -> bytes:
        """All of it as bytes."""
        name = self.name.encode()
        sizes = (len(name), len(self.code), len(self.immediates))
        return _HEADER.pack(_MAGIC, *self[:-3], *sizes) + name + self.code + self.immediates

    @classmethod
    def unpack(cls, lib: bytes) -> Ir3Binary:
        """What `pack` gave. Raises FormatError for anything else, and for what no GPU could run."""
        if len(lib) < _HEADER.size:
            raise FormatError(f"a kernel of ir3 has {_HEADER.size} bytes at least, not {len(lib)}")
        magic, *numbers, name_size, code_size, immediate_size = _HEADER.unpack_from(lib)
        if magic != _MAGIC:
            raise FormatError(f"a kernel of ir3 begins with {_MAGIC!r}, not with {magic!r}")
        whole = _HEADER.size + name_size + code_size + immediate_size
        if whole != len(lib):
            raise FormatError(
                f"a kernel of ir3 with a name of {name_size} bytes, {code_size} of code and"
                f" {immediate_size} of immediates has {whole} bytes in all, not {len(lib)}"
            )
        code_at = _HEADER.size + name_size
        code_end = code_at + code_size
        try:
            name = lib[_HEADER.size : code_at].decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the name of a kernel of ir3 is no text: {error}") from error
        made = cls._make((*numbers, name, lib[code_at:code_end], lib[code_end:]))
        made._check()
        return made

    def _check(self) -> None:
        for field, most in _MOST.items():
            if (value := getattr(self, field)) > most:
                raise FormatError(f"a kernel of ir3 with {field} {value}: {most} are the most")
        if not self.block:
            raise FormatError("a kernel of ir3 for blocks of no threads")
        if not self.code or len(self.code) % UNIT:
            raise FormatError(
                f"{len(self.code)} bytes of code of ir3: it is loaded by {UNIT} bytes, one or more"
            )
        immediates = self.immediates_at * VECTOR + len(self.immediates)
        if len(self.immediates) % 4 or (self.immediates and immediates > self.constants * VECTOR):
            raise FormatError(
                f"{len(self.immediates)} bytes of immediates from constant {self.immediates_at} on:"
                f" a kernel of ir3 with {self.constants} constants has no room for these words"
            )
