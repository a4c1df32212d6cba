"""The PYTHON device: a whole backend in one file, to read and to compare with.

A backend is what stands between the compiler and one kind of machine. It has four parts, and each
is here in its smallest honest form:

1. A **renderer** tells the compiler what the machine is like (its `Target`: which operations are
   native, how loops spread over it, how wide its registers are) and turns a linear program into
   source. This one declares every operation native, so that nothing is derived and a program stays
   close to what was asked for; its source is the text form of the linear IR.
2. A **compiler** turns source into a binary: bytes that can be kept in a cache under the compiler's
   `key`. This one checks the source and encodes it.
3. An **allocator** gives memory and copies to and from the host. This one's memory is numpy arrays
   of bytes; it is poisoned, so that a kernel that reads what it never wrote gives NaN.
4. A **program** is a loaded binary that can be called with buffers. This one reads the text back
   once and interprets it on each call, every access checked against the bounds of its buffer.

`open_device` puts the four together; the runtime finds it by this module's row in `BACKENDS` of
`gpu/runtime/device.py`, and `DEV=PYTHON` selects it. `DEV=PYTHON::blocks` is the same with blocks
of threads, as a GPU has them: the interpreter finds threads that race and barriers that some of
them miss.

What a program computes here is its meaning: any other device may differ from it only by the
rounding that the op table leaves open.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.linear import Program as LinearProgram
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.matrix import PTX, names_for
from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import Native, Target
from gpu.compiler.targets.edges import OURS
from gpu.compiler.toolchain.base import Compiler
from gpu.core.arguments import host_bytes
from gpu.core.available import check_memory
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import CompileError, GpuError, InvalidValue, OutOfMemory, Unsupported
from gpu.runtime.allocator import Allocator
from gpu.runtime.device import Compiled, LaunchData, Toolchain
from gpu.runtime.program import Program, check_memory_of, check_values

Memory = npt.NDArray[np.uint8]

TARGET: Final = Target(
    name="python", native=Native(ops=frozenset(OPS), edges=OURS), parallel="grid"
)
"""Every operation on every dtype, no vectors, and loops whose iterations all run at once."""

BLOCKS: Final = replace(
    TARGET,
    name="python-blocks",
    workers=4,
    threads=64,
    shared_bytes=8192,
    warp=4,
    shuffle=4,
    access_bytes=16,
    registers=128,
    matrices=names_for(PTX),
)
"""The same as a GPU with small blocks of threads, which share memory, meet, and must not race."""

TARGETS: Final[dict[str | None, Target]] = {None: TARGET, "blocks": BLOCKS}

_POISON: Final = 0xFF  # the float dtypes read it as NaN


class PythonRenderer:
    """Prints programs in the text form of the linear IR.

    Attributes:
        target: what the compiler must know of this device.
    """

    def __init__(self, target: Target = TARGET) -> None:
        self.target = target

    def render(self, program: LinearProgram) -> str:
        """The source of a program."""
        return print_linear(program)

    def launch_data(self, program: LinearProgram) -> LaunchData:
        """What loading needs besides the binary: nothing here."""
        return {}


class PythonCompiler(Compiler):
    """Source text to bytes and back."""

    def __init__(self) -> None:
        # The version in the key changes whenever the text form does.
        super().__init__(key="python-1", namespace="python")

    def compile(self, source: str) -> bytes:
        """The binary of a source. Raises CompileError for a source that is no valid program."""
        try:
            verify_linear(parse_linear(source))
        except GpuError as error:
            raise CompileError(f"not a valid linear program: {error.message}") from error
        return source.encode()

    def disassemble(self, lib: bytes) -> str:
        """A binary as text."""
        return lib.decode()


class PythonProgram(Program):
    """A loaded program.

    Attributes:
        name: symbol of the function in the binary.
        program: what the binary says.
    """

    def __init__(self, name: str, lib: bytes):
        self.name = name
        self.program = parse_linear(lib.decode())
        if self.program.name != name:
            raise InvalidValue(f"the binary holds the program {self.program.name}, not {name}")

    def __call__(self, *bufs: Memory, vals: Sequence[int] = (), wait: bool = False) -> float | None:
        """Runs the program on one allocation for each parameter; it is done when this returns.

        With `wait` the result is the seconds it took. Raises InvalidValue for buffers too small or
        too few and for values outside their bounds, VerifyError for an access outside a buffer.
        """
        started = time.perf_counter()
        interpret_linear(self.program, self._arrays(bufs), check_values(self.name, vals))
        return time.perf_counter() - started if wait else None

    def _arrays(self, bufs: Sequence[Memory]) -> list[npt.NDArray[np.generic]]:
        """The start of each allocation as an array of its parameter's dtype."""
        params = self.program.params
        check_memory_of(self.name, bufs, np.ndarray)
        if len(bufs) != len(params):
            raise InvalidValue(f"{self.name} takes {len(params)} buffers, got {len(bufs)}")
        arrays = []
        for param, memory in zip(params, bufs, strict=True):
            needed = param.elements * param.dtype.itemsize
            if memory.nbytes < needed:
                raise InvalidValue(
                    f"buffer {param.name} of {self.name} has {memory.nbytes} bytes,"
                    f" {needed} are needed"
                )
            arrays.append(memory[:needed].view(param.dtype.np))
        return arrays


class PythonAllocator(Allocator[Memory]):
    """Memory as numpy arrays of bytes, poisoned before use and after."""

    def _alloc(self, nbytes: int) -> Memory:
        check_memory(nbytes)
        try:
            return np.full(nbytes, _POISON, np.uint8)
        except (MemoryError, ValueError) as error:  # ValueError: more than numpy can address
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes of host memory; free tensors or use smaller ones"
            ) from error

    def _free(self, memory: Memory, nbytes: int) -> None:
        memory.fill(_POISON)

    def copy_in(self, memory: Memory, data: memoryview) -> None:
        """Copies bytes from the host to the start of `memory`."""
        source = host_bytes(data, "data")
        memory[: source.nbytes] = np.frombuffer(source, np.uint8)

    def copy_out(self, data: memoryview, memory: Memory) -> None:
        """Copies bytes from the start of `memory` to the host."""
        target = host_bytes(data, "data", writable=True)
        np.frombuffer(target, np.uint8)[:] = memory[: target.nbytes]


def _load(name: str, lib: bytes, data: LaunchData) -> Program:
    return PythonProgram(name, lib)


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The PYTHON device called `name`; the architecture `blocks` gives it blocks of threads.

    Raises Unsupported where `spec` asks for a renderer or for another architecture.
    """
    return Compiled(name, PythonAllocator(), *toolchain(spec), _load)


def toolchain(spec: DeviceSpec) -> Toolchain:
    """The renderer and compiler alone, as for `open_device`, and what that raises."""
    if spec.renderer is not None or spec.arch not in TARGETS:
        raise Unsupported(
            "PYTHON has one renderer and the architecture blocks; use PYTHON or PYTHON::blocks"
        )
    return Toolchain(PythonRenderer(TARGETS[spec.arch]), PythonCompiler())
