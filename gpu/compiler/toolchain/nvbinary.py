"""What compilers for NVIDIA GPUs make: machine code, and the PTX that it was made of."""

from __future__ import annotations

import glob
import re
import shutil
import struct
from typing import Final, NamedTuple

from gpu.compiler.toolchain.base import run_on_file
from gpu.core.errors import FormatError, Unsupported

_MAGIC: Final = b"NVBINARY"
_HEADER: Final = struct.Struct("<8sQQ")  # magic, bytes of the cubin, bytes of the PTX
_CUBIN_START: Final = b"\x7fELF"
_LINE: Final = re.compile(r"line (\d+)")
_SASS_LINE: Final = re.compile(r"/\*([0-9a-f]{4,8})\*/\s+(.*?;)")


class NvBinary(NamedTuple):
    """A compiled source.

    Attributes:
        cubin: an ELF file with the machine code of one architecture; empty where the compiler in
            the GPU's driver makes it.
        ptx: what it was made of.
    """

    cubin: bytes
    ptx: str

    def pack(self) -> bytes:
        """Both as bytes."""
        text = self.ptx.encode()
        return _HEADER.pack(_MAGIC, len(self.cubin), len(text)) + self.cubin + text

    @classmethod
    def unpack(cls, lib: bytes) -> NvBinary:
        """What `pack` gave. Raises FormatError for anything else."""
        if len(lib) < _HEADER.size:
            raise FormatError(f"an NVIDIA binary has {_HEADER.size} bytes at least, not {len(lib)}")
        magic, cubin_size, ptx_size = _HEADER.unpack_from(lib)
        if magic != _MAGIC:
            raise FormatError(f"an NVIDIA binary begins with {_MAGIC!r}, not with {magic!r}")
        if _HEADER.size + cubin_size + ptx_size != len(lib):
            raise FormatError(
                f"an NVIDIA binary of {cubin_size} bytes of cubin and {ptx_size} of PTX has"
                f" {_HEADER.size + cubin_size + ptx_size} bytes in all, not {len(lib)}"
            )
        ptx_at = _HEADER.size + cubin_size
        cubin = lib[_HEADER.size : ptx_at]
        if cubin and not cubin.startswith(_CUBIN_START):
            raise FormatError(f"a cubin is an ELF file; this one begins with {cubin[:4]!r}")
        try:
            return cls(cubin, lib[ptx_at:].decode())
        except UnicodeDecodeError as error:
            raise FormatError(f"the PTX of an NVIDIA binary is no text: {error}") from error

    def disassemble(self) -> str:
        """The PTX, and behind it the machine code where NVIDIA's disassembler is installed."""
        if not self.cubin:
            return f"{self.ptx}\n// The GPU's driver makes machine code of this.\n"
        tool = _nvdisasm()
        if tool is None:
            return f"{self.ptx}\n// For the machine code, install nvdisasm (part of CUDA).\n"
        return f"{self.ptx}\n{run_on_file([tool], self.cubin)}"


def disassemble_sass(arch: str, code: bytes, start: int) -> list[str]:
    """A line for each instruction of bare machine code: its address, from `start` on, and text.

    Raises Unsupported where NVIDIA's disassembler is not installed, CompileError where it fails.
    """
    tool = _nvdisasm()
    if tool is None:
        raise Unsupported("for the machine code, install nvdisasm (part of CUDA)")
    text = run_on_file([tool, "--binary", arch.replace("sm_", "SM")], code)
    return [f"{start + int(at, 16):08x}:  {told}" for at, told in _SASS_LINE.findall(text)]


def _nvdisasm() -> str | None:
    tools = [shutil.which("nvdisasm"), *glob.glob("/usr/local/cuda*/bin/nvdisasm")]
    return next(filter(None, tools), None)


def with_lines(log: str, source: str) -> str:
    """A log of the PTX assembler, with the line of source below each message that names one."""
    lines, explained = source.splitlines(), []
    for message in log.splitlines():
        explained.append(message)
        found = _LINE.search(message)
        if found and 0 < int(found[1]) <= len(lines):
            explained.append(f"    {lines[int(found[1]) - 1].strip()}")
    return "\n".join(explained)
