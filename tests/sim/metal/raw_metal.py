"""A tiny user of Metal for tests: messages by their selectors, whoever answers them.

Types of arguments are those of metal-cpp: an integer goes in a register of 64 bits, and structures
by value.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.toolchain.clang import find_clang
from gpu.compiler.toolchain.msl import MSL_OPTIONS, with_library

P: Final = ctypes.c_size_t
FLOATS: Final = np.dtype(np.float32)
SHARED, MANAGED, PRIVATE, MEMORYLESS = 0, 1 << 4, 2 << 4, 3 << 4  # MTLResourceOptions


class Size(ctypes.Structure):
    """MTLSize."""

    _fields_ = tuple((axis, ctypes.c_uint64) for axis in ("width", "height", "depth"))


class Range(ctypes.Structure):
    """NSRange."""

    _fields_ = (("location", ctypes.c_uint64), ("length", ctypes.c_uint64))


def size(x: int, y: int = 1, z: int = 1) -> Size:
    return Size(x, y, z)


@cache
def compile_msl(source: str, options: Sequence[str] = ()) -> bytes | str:
    """What clang makes of a source, or its words."""
    command = [find_clang(), "--target=x86_64-unknown-linux-gnu", "-w", "-fPIC", *MSL_OPTIONS]
    done = subprocess.run(
        [*command, *options, "-nostdinc", "-c", "-x", "cl", "-", "-o", "-"],
        input=with_library(source).encode(),
        capture_output=True,
        check=False,
    )
    return done.stderr.decode() if done.returncode else done.stdout


class RawMetal:
    """Messages, and what most tests begin with.

    Attributes:
        device: the default one, once `start` has run; queue: one of it.
    """

    def __init__(self, address: Callable[[str], int]):
        self._address = address
        self._send = address("objc_msgSend")
        self._names: dict[str, int] = {}
        self.device = self.queue = 0

    def call(self, name: str, *arguments: Any, result: Any = P) -> Any:
        """A function of C."""
        kinds = [ctypes.c_char_p if isinstance(each, bytes) else P for each in arguments]
        return ctypes.CFUNCTYPE(result, *kinds)(self._address(name))(*arguments)

    def selector(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self.call("sel_registerName", name.encode())
        return self._names[name]

    def send(self, receiver: int, name: str, *arguments: Any, result: Any = P) -> Any:
        """A message."""
        return self.send_selector(receiver, self.selector(name), *arguments, result=result)

    def send_selector(self, receiver: int, selector: int, *arguments: Any, result: Any = P) -> Any:
        kinds = [type(a) if isinstance(a, ctypes.Structure) else P for a in arguments]
        return ctypes.CFUNCTYPE(result, P, P, *kinds)(self._send)(receiver, selector, *arguments)

    @contextmanager
    def pool(self) -> Iterator[None]:
        token = self.call("objc_autoreleasePoolPush")
        yield
        self.call("objc_autoreleasePoolPop", token, result=None)

    def start(self) -> None:
        self.device = self.call("MTLCreateSystemDefaultDevice")
        self.queue = self.send(self.device, "newCommandQueue")

    def release(self, *things: int) -> None:
        for thing in things:
            self.send(thing, "release", result=None)

    def string(self, text: str) -> int:
        kind = ctypes.CFUNCTYPE(P, P, P, ctypes.c_char_p)
        selector = self.selector("stringWithUTF8String:")
        made: int = kind(self._send)(
            self.call("objc_getClass", b"NSString"), selector, text.encode()
        )
        return made

    def text(self, string: int) -> str:
        return ctypes.string_at(self.send(string, "UTF8String")).decode()

    def options(self, fast: bool = False) -> int:
        made: int = self.send(self.call("objc_getClass", b"MTLCompileOptions"), "new")
        self.send(made, "setFastMathEnabled:", fast, result=None)
        return made

    def library(self, source: str) -> tuple[int, int]:
        """A library, with fast math off, and an error; one of them is 0."""
        error, options = P(0), self.options()
        made = self.send(
            self.device,
            "newLibraryWithSource:options:error:",
            *(self.string(source), options, ctypes.addressof(error)),
        )
        self.release(options)
        return made, error.value

    def pipeline(self, source: str, name: str) -> int:
        library, _ = self.library(source)
        function = self.send(library, "newFunctionWithName:", self.string(name))
        made: int = self.send(
            self.device, "newComputePipelineStateWithFunction:error:", function, 0
        )
        self.release(library, function)
        return made

    def buffer(self, length: int, options: int = SHARED) -> int:
        made: int = self.send(self.device, "newBufferWithLength:options:", length, options)
        return made

    def floats(self, buffer: int, dtype: Any = FLOATS) -> npt.NDArray[Any]:
        """What a buffer holds, in place."""
        length = self.send(buffer, "length")
        at = self.send(buffer, "contents")
        return np.frombuffer((ctypes.c_ubyte * length).from_address(at), dtype)

    def command_buffer(self, queue: int = 0) -> int:
        made: int = self.send(queue or self.queue, "commandBuffer")
        return made

    def encoder(self, buffer: int, kind: int | None = None) -> int:
        if kind is None:
            return int(self.send(buffer, "computeCommandEncoder"))
        return int(self.send(buffer, "computeCommandEncoderWithDispatchType:", kind))

    def bind(self, encoder: int, pipeline: int, *buffers: int) -> None:
        self.send(encoder, "setComputePipelineState:", pipeline, result=None)
        for index, buffer in enumerate(buffers):
            self.send(encoder, "setBuffer:offset:atIndex:", buffer, 0, index, result=None)

    def set_bytes(self, encoder: int, data: bytes, index: int) -> None:
        held = ctypes.create_string_buffer(data, len(data))
        where = ctypes.addressof(held)
        self.send(encoder, "setBytes:length:atIndex:", where, len(data), index, result=None)

    def dispatch(self, encoder: int, groups: Size, threads: Size) -> None:
        name = "dispatchThreadgroups:threadsPerThreadgroup:"
        self.send(encoder, name, groups, threads, result=None)

    def end(self, encoder: int) -> None:
        self.send(encoder, "endEncoding", result=None)

    def commit(self, buffer: int) -> None:
        self.send(buffer, "commit", result=None)

    def wait(self, buffer: int) -> int:
        """Waits for a command buffer; gives its status."""
        self.send(buffer, "waitUntilCompleted", result=None)
        status: int = self.send(buffer, "status")
        return status

    def run(self, pipeline: int, buffers: Sequence[int], groups: int, threads: int) -> int:
        """One kernel in a command buffer of its own, waited for; gives that buffer."""
        buffer = self.command_buffer()
        encoder = self.encoder(buffer)
        self.bind(encoder, pipeline, *buffers)
        self.dispatch(encoder, size(groups), size(threads))
        self.end(encoder)
        self.commit(buffer)
        self.wait(buffer)
        return buffer

    def copy(self, encoder: int, source: int, at: int, target: int, to: int, length: int) -> None:
        name = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
        self.send(encoder, name, source, at, target, to, length, result=None)

    def error(self, buffer: int) -> tuple[str, int, str]:
        """Domain, code and text of a command buffer's error."""
        return self.told(self.send(buffer, "error"))

    def told(self, error: int) -> tuple[str, int, str]:
        domain, text = (self.text(self.send(error, n)) for n in ("domain", "localizedDescription"))
        return domain, self.send(error, "code"), text
