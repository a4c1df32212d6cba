"""A CUDA device on the stand-in for libcuda, apart from any that other tests have; and another
library of the process on the model of libcuda, where DEV=CUDA is too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu.backends.cuda.context import CudaContext, open_context
from gpu.backends.cuda.library import Library
from gpu.backends.cuda.memory import CudaAllocator
from gpu.backends.cuda.program import CudaProgram
from gpu.compiler.toolchain.nvbinary import NvBinary
from libcuda.foreign import Foreign, Make, sharing
from libcuda.stand_in import StandIn
from sim.cuda.raw_cuda import RawCuda


class Opened:
    """The stand-in, and a context and allocator on it."""

    def __init__(self, stand_in: StandIn):
        self.stand_in = stand_in
        self.context: CudaContext = open_context(Library(stand_in.functions()), 0)
        self.allocator = CudaAllocator(self.context)
        stand_in.calls.clear()

    def program(
        self,
        name: str = "k",
        buffers: int = 2,
        values: int = 0,
        written: int = 1,
        workspace: int = 0,
        shared: int = 0,
        cubin: bytes = b"\x7fELF",
    ) -> CudaProgram:
        words = buffers + values + bool(workspace)
        params = ", ".join(f".param .u64 {name}_param_{i}" for i in range(words))
        ptx = f".version 7.4\n.visible .entry {name}({params}) {{ ret; }}"
        data = {
            "groups": 3, "block": 64, "workspace": workspace, "values": values,
            "shared": shared, "written": written,
        }  # fmt: skip
        lib = NvBinary(cubin, ptx).pack()
        return CudaProgram(self.context, self.allocator, name, lib, data)

    def filled(self, data: bytes) -> object:
        memory = self.allocator.alloc(len(data))
        self.allocator.copy_in(memory, memoryview(data))
        return memory


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def opens() -> Iterator[Callable[[StandIn], Opened]]:
    opened: list[Opened] = []

    def open_one(stand_in: StandIn) -> Opened:
        opened.append(Opened(stand_in))
        return opened[-1]

    yield open_one
    for one in opened:
        one.stand_in.fails.clear()
        one.context.close()


@pytest.fixture
def cuda(stand_in: StandIn, opens: Callable[[StandIn], Opened]) -> Opened:
    return opens(stand_in)


@pytest.fixture
def arrays() -> list[Foreign]:
    return []


@pytest.fixture
def raw(need: Callable[[str], None], arrays: list[Foreign]) -> Iterator[RawCuda]:
    need("nvrtc")
    with sharing(arrays) as user:
        yield user


@pytest.fixture
def make(raw: RawCuda, arrays: list[Foreign]) -> Make:
    def one(values: Any, kind: type[Foreign] = Foreign, **options: Any) -> Foreign:
        arrays.append(kind(raw, np.asarray(values), **options))
        return arrays[-1]

    return one
