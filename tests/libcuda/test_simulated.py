"""The device on the strict model of libcuda: copies, faults, recovery, and nothing left behind."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpu.backends.cuda.context import CudaContext, open_context
from gpu.backends.cuda.library import Library
from gpu.backends.cuda.memory import SLOT_BYTES, CudaAllocator
from gpu.backends.cuda.program import CudaProgram
from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.core.errors import CompileError, DeviceError, DeviceLost, GpuFault, OutOfMemory
from gpu.sim.cuda.library import load

HEAD = ".version 7.4\n.target sm_80\n.address_size 64\n"
# b[i] += a[i] + value, of words of 32 bits.
ADD = f"""{HEAD}.visible .entry add(.param .u64 b, .param .u64 a, .param .u64 value) {{
  .reg .u64 %x, %y, %i; .reg .u32 %n, %t, %u, %v, %c;
  mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %n, %ntid.x;
  mad.lo.u32 %t, %c, %n, %t;
  mul.wide.u32 %i, %t, 4;
  ld.param.u64 %x, [b]; ld.param.u64 %y, [a]; ld.param.u32 %v, [value];
  add.u64 %x, %x, %i; add.u64 %y, %y, %i;
  ld.global.u32 %t, [%x]; ld.global.u32 %u, [%y];
  add.u32 %t, %t, %u; add.u32 %t, %t, %v;
  st.global.u32 [%x], %t;
  ret;
}}"""
FAULTY = {
    "illegal address": "st.global.u32 [%x + 1048576000], 1;",
    "misaligned": "st.global.u32 [%x + 2], 1;",
    "trap": "trap;",
}


class Simulated:
    """The first GPU of a model, and an allocator there."""

    def __init__(self, seed: int, recovers: bool = False):
        self.library = load("gh100", seed=seed, recovers=recovers)
        self.context: CudaContext = open_context(Library(self.library.functions), 0)
        self.allocator = CudaAllocator(self.context)

    def program(self, ptx: str, name: str, buffers: int, values: int = 0) -> CudaProgram:
        data = {
            "groups": 4, "block": 64, "workspace": 0, "values": values, "shared": 0, "written": 1,
        }  # fmt: skip
        assert buffers + values == ptx.partition("{")[0].count(".param")
        lib = NvBinary(b"", ptx).pack()
        return CudaProgram(self.context, self.allocator, name, lib, data)

    def faulty(self, what: str) -> CudaProgram:
        body = f".reg .u64 %x; ld.param.u64 %x, [a]; {FAULTY[what]} ret;"
        return self.program(f"{HEAD}.visible .entry bad(.param .u64 a) {{ {body} }}", "bad", 1)

    def array(self, values: np.ndarray) -> object:
        memory = self.allocator.alloc(values.nbytes)
        self.allocator.copy_in(memory, values.data)
        return memory

    def numbers(self, memory: object, count: int) -> np.ndarray:
        result = np.empty(count, np.uint32)
        self.allocator.copy_out(result.data, memory)
        return result


@pytest.fixture
def simulated() -> Iterator[Callable[..., Simulated]]:
    made: list[Simulated] = []

    def make(*args: int, **options: bool) -> Simulated:
        made.append(Simulated(*args, **options))
        return made[-1]

    yield make
    for one in made:
        if not one.context.is_lost:
            one.context.close()
            one.library.check()


@pytest.mark.parametrize("seed", range(5))
def test_launches_and_copies_keep_their_order(
    simulated: Callable[..., Simulated], seed: int
) -> None:
    gpu, rng = simulated(seed), np.random.default_rng(seed)
    add = gpu.program(ADD, "add", 2, 1)
    want = [rng.integers(0, 1 << 32, 256, np.uint64).astype(np.uint32) for _ in range(4)]
    have = [gpu.array(values) for values in want]
    for _ in range(60):
        i, j = rng.permutation(4)[:2]
        match rng.integers(6):
            case 0 | 1 | 2:
                value = int(rng.integers(-5, 5))
                add(have[i], have[j], vals=[value])
                want[i] = want[i] + want[j] + np.uint32(value % (1 << 32))
            case 3:
                want[i] = rng.integers(0, 100, 256).astype(np.uint32)
                gpu.allocator.copy_in(have[i], want[i].data)
            case 4:
                gpu.allocator.copy(have[i], have[j], 1024)
                want[i] = want[j].copy()
            case _:
                np.testing.assert_array_equal(gpu.numbers(have[i], 256), want[i])
    for memory, values in zip(have, want, strict=True):
        np.testing.assert_array_equal(gpu.numbers(memory, 256), values)


@pytest.mark.parametrize("seed", range(3))
def test_large_copies_from_threads(simulated: Callable[..., Simulated], seed: int) -> None:
    gpu, wrong = simulated(seed), []

    def work(number: int) -> None:
        data = np.random.default_rng(number).integers(0, 255, 2 * SLOT_BYTES + 77, np.uint8)
        for _ in range(2):
            memory, back = gpu.array(data), np.empty_like(data)
            gpu.allocator.copy_out(back.data, memory)
            if not np.array_equal(back, data):
                wrong.append(number)
            gpu.allocator.free(memory, data.nbytes)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(("what", "seed"), [*itertools.product(FAULTY, range(2))])
def test_a_fault_is_told_then_all_is_lost(
    simulated: Callable[..., Simulated], what: str, seed: int
) -> None:
    gpu = simulated(seed)
    memory, bad = gpu.array(np.zeros(64, np.uint32)), gpu.faulty(what)
    gpu.context.synchronize()
    with pytest.raises(GpuFault, match=r"running was bad of 4 x 64 threads with 256 bytes at 0x"):
        for _ in range(1000):  # a launch may be what shows it
            bad(memory)
            gpu.context.synchronize()
    with pytest.raises(DeviceLost, match=r"recover\(force=True\)"):
        gpu.numbers(memory, 64)
    with pytest.raises(DeviceLost, match="restart the process"):
        gpu.context.recover(force=True)
    with pytest.raises(DeviceLost, match="restart the process"):
        gpu.allocator.alloc(4)


def test_a_device_that_a_reset_helps_works_again(simulated: Callable[..., Simulated]) -> None:
    gpu = simulated(1, recovers=True)
    add, bad = gpu.program(ADD, "add", 2, 1), gpu.faulty("illegal address")
    old = gpu.array(np.arange(256, dtype=np.uint32))
    with pytest.raises(GpuFault):
        bad(old)
        gpu.context.synchronize()
    gpu.context.recover(force=True)
    with pytest.raises(DeviceLost, match="what this tensor held is lost"):
        gpu.numbers(old, 256)
    new = gpu.array(np.arange(256, dtype=np.uint32))
    add(new, new, vals=[7])
    np.testing.assert_array_equal(gpu.numbers(new, 256), np.arange(256) * 2 + 7)


def test_code_and_sizes_that_cannot_be(simulated: Callable[..., Simulated]) -> None:
    gpu = simulated(1)
    with pytest.raises(CompileError, match="compile the PTX of k"):
        gpu.program(f"{HEAD}.visible .entry k() {{ nonsense.u32 %a; }}", "k", 0)
    with pytest.raises(OutOfMemory, match="bytes are free"):
        gpu.allocator.alloc(gpu.context.info.memory - 1)
    kept = gpu.allocator.alloc(100)
    gpu.allocator.free(kept, 100)
    gpu.allocator.free_cache()


def test_more_bytes_than_there_are_and_grids_beyond_limits(
    simulated: Callable[..., Simulated],
) -> None:
    gpu = simulated(2)
    for nbytes in (1 << 40, 1 << 62):
        with pytest.raises(OutOfMemory, match=f"cannot allocate {nbytes:,} bytes"):
            gpu.allocator.alloc(nbytes)
    add, memory = gpu.program(ADD, "add", 2, 1), gpu.array(np.arange(256, dtype=np.uint32))
    for grid, block in (1 << 31, 64), (4, 2048):
        add.grid, add.block = grid, block
        add.load()
        with pytest.raises(DeviceError, match="launch add"):
            add(memory, memory, vals=[1])
    add.grid, add.block = 4, 64
    add.load()
    add(memory, memory, vals=[1])
    assert gpu.numbers(memory, 256).tolist() == [2 * i + 1 for i in range(256)]


_EXIT = """
import atexit
from gpu.sim.cuda import drivers
atexit.register(lambda: print([(each.left(), each.violations) for each in drivers()]))
from gpu import Tensor
x = Tensor([1.0, 2.0]).realize()
for _ in range(50):
    x = (x + 1).realize()
%s
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "1 / 0"])
def test_a_program_that_ends_with_work_in_flight_leaves_nothing(
    end: str, need: Callable[[str], None]
) -> None:
    need("llvmlite")
    environment = {**os.environ, "SIM": "gh100", "DEV": "CUDA:PTX"}
    command = [sys.executable, "-c", _EXIT % end]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout == "[([], [])]\n"
    assert ran.returncode == {"": 0, "1 / 0": 1}.get(end, 3)
