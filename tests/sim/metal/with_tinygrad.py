"""tinygrad on the model of Metal: a program that prints how many different kernels gave numpy's
results, and which rules were broken.

tinygrad prints the kernels and says how they are launched, as it does on a Mac. Its own module that
talks to Metal is not imported: in its place stands one whose messages go to the model.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

os.environ.update(DEV="METAL", CACHELEVEL="0", CCACHE="0", PARALLEL="0")

import numpy as np
import tinygrad.device
from tinygrad.renderer.cstyle import MetalRenderer

from gpu.sim.metal.library import MetalLibrary
from sim.metal.raw_metal import RawMetal, compile_msl, size

Array = Any
SEED = int(sys.argv[1])
LIBRARY = MetalLibrary("apple7", SEED, compile=compile_msl)
METAL = RawMetal(LIBRARY.address)
SOURCES: set[str] = set()


class MetalCompiler(tinygrad.device.Compiler):  # type: ignore[misc]
    """Keeps the source."""

    def compile(self, src: str) -> bytes:
        SOURCES.add(src.replace(src.partition("kernel void ")[2].partition("(")[0], "k"))
        return src.encode()


class MetalProgram(tinygrad.device.Program):  # type: ignore[misc]
    """A kernel."""

    def __init__(self, dev: Any, obj: Any):
        self.signature = obj.signature
        with METAL.pool():
            library, error = METAL.library(obj.lib.decode())
            if error:
                raise RuntimeError(METAL.told(error)[2] + obj.lib.decode())
            function = METAL.send(library, "newFunctionWithName:", METAL.string(obj.name))
            make = "newComputePipelineStateWithFunction:error:"
            self.pipeline = METAL.send(METAL.device, make, function, 0)
            METAL.release(library, function)

    def __call__(
        self,
        *bufs: Any,
        global_size: Any,
        local_size: Any,
        vals: Any = (),
        wait: bool = False,
        **_: Any,
    ) -> None:
        with METAL.pool():
            commands = METAL.command_buffer()
            encoder = METAL.encoder(commands)
            METAL.bind(encoder, self.pipeline)
            for index, (buffer, offset) in enumerate(bufs):
                told = "setBuffer:offset:atIndex:"
                METAL.send(encoder, told, buffer, offset, index, result=None)
            for value, (_name, index, kind, _shape) in zip(
                vals, self.signature[len(bufs) :], strict=False
            ):
                data = int(value).to_bytes(kind.itemsize, "little", signed=True)
                METAL.set_bytes(encoder, data, index)
            METAL.dispatch(encoder, size(*global_size), size(*local_size))
            METAL.end(encoder)
            METAL.commit(commands)
            if METAL.wait(commands) != 4:
                raise RuntimeError(METAL.error(commands)[2])


class MetalAllocator(tinygrad.device.Allocator):  # type: ignore[misc]
    """Shared buffers: an object and an offset each."""

    def _alloc(self, size: int, options: Any) -> tuple[int, int]:
        with METAL.pool():
            return METAL.buffer(size), 0

    def _at(self, buffer: tuple[int, int]) -> int:
        return int(METAL.send(buffer[0], "contents")) + buffer[1]

    def _copyin(self, dest: tuple[int, int], src: memoryview) -> None:
        ctypes.memmove(self._at(dest), bytes(src), len(src))

    def _copyout(self, dest: memoryview, src: tuple[int, int]) -> None:
        dest[:] = ctypes.string_at(self._at(src), len(dest))

    def _offset(self, buf: tuple[int, int], size: int, offset: int) -> tuple[int, int]:
        return buf[0], buf[1] + offset


class MetalDevice(tinygrad.device.Compiled):  # type: ignore[misc]
    """The model."""

    def __init__(self, device: str):
        with METAL.pool():
            METAL.start()
        super().__init__(device, MetalAllocator(self), [MetalRenderer], MetalProgram, arch="Apple7")


_module = ModuleType("tinygrad.runtime.ops_metal")
_module.__dict__.update(MetalDevice=MetalDevice, MetalCompiler=MetalCompiler)
sys.modules[_module.__name__] = _module

from tinygrad import Tensor, dtypes  # noqa: E402  (looks for the module)


def cases(rng: np.random.Generator) -> Iterator[tuple[str, Any, Array]]:
    """What is computed, and what numpy says."""
    a, b = rng.standard_normal((2, 33, 70)).astype(np.float32)
    x, y = Tensor(a), Tensor(b)
    n, m = rng.integers(-99, 99, (2, 500)).astype(np.int32)
    i, j = Tensor(n), Tensor(m)
    h = a.astype(np.float16)
    left, right = rng.standard_normal((2, 64, 64)).astype(np.float32)
    image = rng.standard_normal((2, 3, 12, 12)).astype(np.float32)
    taps = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))
    soft = np.exp(a - a.max(1, keepdims=True))
    soft = soft / soft.sum(1, keepdims=True)
    yield "add", x + y, a + b
    yield "multiply", x * y - 2, a * b - 2
    yield "divide", x / (y * y + 1), a / (b * b + 1)
    yield "maximum", x.maximum(y), np.maximum(a, b)
    yield "relu", x.relu(), np.maximum(a, 0)
    yield "exp", x.exp(), np.exp(a)
    yield "exp2", x.exp2(), np.exp2(a)
    yield "log", (x.abs() + 1).log(), np.log(np.abs(a) + 1)
    yield "sin", x.sin(), np.sin(a)
    yield "sqrt", x.abs().sqrt(), np.sqrt(np.abs(a))
    yield "sigmoid", x.sigmoid(), 1 / (1 + np.exp(-a))
    yield "tanh", x.tanh(), np.tanh(a)
    yield "where", (x > y).where(x, -y), np.where(a > b, a, -b)
    yield "sum", x.sum(), a.sum()
    yield "sum of rows", x.sum(1), a.sum(1)
    yield "sum of columns", x.sum(0), a.sum(0)
    yield "mean", x.mean(1), a.mean(1)
    yield "max", x.max(0), a.max(0)
    yield "argmax", x.argmax(1), a.argmax(1)
    yield "var", x.var(1), a.var(1, ddof=1)
    yield "softmax", x.softmax(1), soft
    yield "transpose", x.T.contiguous(), a.T
    yield "flip", x.flip(1).contiguous(), a[:, ::-1]
    yield "pad", x.pad(((1, 2), (3, 4))).contiguous(), np.pad(a, ((1, 2), (3, 4)))
    yield "concatenated", x.cat(y, dim=0), np.concatenate([a, b])
    yield "cumsum", i.cumsum(), np.cumsum(n, dtype=np.int32)
    yield "integers", i * j + (i ^ j) - (i & 7), n * m + (n ^ m) - (n & 7)
    yield "shifts", (i * i) >> 3, n * n >> 3
    yield "floor division", i // 7, n // 7
    yield "remainder", i % 7, n % 7
    yield "halves", Tensor(h) * Tensor(h), h * h
    yield "half sums", Tensor(h).sum(1).float(), h.astype(np.float32).sum(1)
    yield "casts", x.cast(dtypes.int32).cast(dtypes.float32), np.trunc(a)
    yield "bytes", i.cast(dtypes.uint8), n.astype(np.uint8)
    yield "product", Tensor(left) @ Tensor(right), left @ right
    yield "product, uneven", x @ y.T, a @ b.T
    yield (
        "product of halves",
        Tensor(left).half() @ Tensor(right).half(),
        (left.astype(np.float16).astype(np.float32) @ right.astype(np.float16).astype(np.float32)),
    )
    yield "vector product", x @ y[0], a @ b[0]
    yield (
        "convolution",
        Tensor(image).conv2d(Tensor(taps)),
        np.einsum("nchwij,ocij->nohw", windows.reshape(2, 3, 10, 10, 3, 3), taps),
    )
    yield (
        "layer norm",
        x.layernorm(),
        (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5),
    )
    yield "gather", x[Tensor(n % 33)], a[n % 33]
    yield "sorted", y[0].sort()[0], np.sort(b[0])


def main() -> None:
    """Runs all of it."""
    agreed = []
    for name, result, wanted in cases(np.random.default_rng(SEED)):
        found = result.numpy()
        loose = 2e-2 if "halves" in name or "half" in name else 2e-5
        np.testing.assert_allclose(found, wanted, rtol=loose, atol=loose, err_msg=name)
        agreed.append(name)
    matrices = sum("simdgroup_multiply" in each for each in SOURCES)
    told = {"agreed": len(agreed), "kernels": len(SOURCES), "matrices": matrices}
    print(json.dumps({**told, "violations": LIBRARY.violations, "faults": LIBRARY.faults}))


main()
