"""OpenCL C compiled by the device's own compiler, to binaries that other processes can load."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.autogen import opencl as cl
from gpu.backends.cl.api import handles
from gpu.backends.cl.context import BuildError, CLContext
from gpu.compiler.toolchain.base import Compiler
from gpu.core.errors import CompileError, DeviceError, Unsupported

_LINE: Final = re.compile(r":(\d+):\d+:|line (\d+)")
_LOG_CHARACTERS: Final = 2000
_SYMBOL: Final = "kernel{}_{}"


class Binary(NamedTuple):
    """A compiled kernel: the binary of a program, and which kernel of it is meant.

    Attributes:
        number: of the kernel in its program.
        program: the binary, as OpenCL gives and takes it.
    """

    number: int
    program: bytes

    def symbol(self, name: str) -> str:
        """What the kernel that a source calls `name` is called in the program."""
        return _SYMBOL.format(self.number, name)

    def pack(self) -> bytes:
        """Both as bytes."""
        return bytes([self.number]) + self.program

    @classmethod
    def unpack(cls, lib: bytes) -> Binary:
        """What `pack` gave. Raises DeviceError where there is no binary in `lib`."""
        if len(lib) < 2:
            raise DeviceError(
                f"an OpenCL binary of {len(lib)} bytes has no program in it; empty the cache folder"
            )
        return cls(lib[0], lib[1:])


class CLCompiler(Compiler):
    """Builds programs for one device.

    Attributes:
        bundle: how many sources are built as one program, where several are asked for at once.
    """

    def __init__(self, context: CLContext, options: str, bundle: int = 1):
        """`options` are those of clBuildProgram."""
        info = context.info
        platform = f"{info.platform.name} {info.platform.version}"
        key = f"opencl|{platform}|{info.name}|{info.version}|{info.driver}|{options}"
        super().__init__(key, "opencl")
        self.bundle = bundle
        self._context, self._options = context, options

    def compile(self, source: str) -> bytes:
        """A `Binary` with the kernel of a source.

        Raises CompileError with OpenCL's log and the line that it is about.
        """
        return self._compile_together([source])[0]

    def compile_many(self, sources: Sequence[str]) -> list[bytes]:
        """As `compile` for each source; some share the program in their binaries."""
        made: list[bytes] = []
        for start in range(0, len(sources), self.bundle):
            made += self._compile_together(sources[start : start + self.bundle])
        return made

    def _compile_together(self, sources: Sequence[str]) -> list[bytes]:
        program = self._build("".join(_numbered(i, source) for i, source in enumerate(sources)))
        lib = self._binary(program)
        self._context.remember(lib, program)
        return [Binary(i, lib).pack() for i in range(len(sources))]

    def _build(self, text: str) -> int:
        context, api = self._context, self._context.api
        program = api.make(
            *("clCreateProgramWithSource", context.context, 1),
            *((ctypes.c_char_p * 1)(text.encode()), None),
            what="make a program",
        )
        try:
            context.build(program, self._options)
        except BuildError as error:
            api.clReleaseProgram(program)
            raise CompileError(explain(error.message, text, context.info.name)) from error
        return program

    def _binary(self, program: int) -> bytes:
        api = self._context.api
        size = api.number("clGetProgramInfo", program, key=cl.CL_PROGRAM_BINARY_SIZES)
        if not size:
            raise CompileError(f"{self._context.info.name} gives no binary of a built program")
        buffer = ctypes.create_string_buffer(size)
        place = handles(ctypes.addressof(buffer))
        code = api.clGetProgramInfo(
            program, cl.CL_PROGRAM_BINARIES, ctypes.sizeof(place), place, None
        )
        api.check(code, "give the binary of a program")
        return buffer.raw

    def disassemble(self, lib: bytes) -> str:
        """Raises Unsupported: what a binary holds is the implementation's own affair."""
        raise Unsupported(
            "OpenCL binaries have no common form; the implementation has tools of its own"
            " (PoCL keeps the code below its folder POCL_CACHE_DIR)"
        )


def _numbered(number: int, source: str) -> str:
    """A source whose kernel is told from those of other sources in one program."""
    symbol = _SYMBOL.format(number, "##name")
    return f"#define SYMBOL(name) {symbol}\n{source}#undef SYMBOL\n"


def explain(log: str, source: str, device: str) -> str:
    """The message for a program that does not build: the log, and the line that it is about."""
    message = f"{device} cannot compile a kernel:\n{log[:_LOG_CHARACTERS]}"
    errors = (line for line in log.splitlines() if "error" in line or "failed" in line)
    if found := _LINE.search("\n".join(errors)):
        number = int(found[1] or found[2])
        lines = source.splitlines()
        if 0 < number <= len(lines):
            message += f"\nline {number}: {lines[number - 1].strip()}"
    return message
