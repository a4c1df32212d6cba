"""DEV=NV:NAK up to the code: descriptors, constant bank 0 and memory are real, numpy runs the NIR.

No model runs NVIDIA's machine code. So the executor here looks up by the bytes of the code which
program of NIR they were made of, and runs that, with what the launch descriptor says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest

from gpu import Context, Tensor
from gpu.backends.nv.device import NVDevice
from gpu.backends.nv.program import load_bare
from gpu.compiler.ir.linear import Program
from gpu.compiler.nir_text import NirProgram, parse_nir
from gpu.compiler.render.nir.nak import NAKRenderer
from gpu.compiler.toolchain.nak import NakCompiler
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.core.dtype import dtypes
from gpu.core.errors import InvalidIndex, InvalidValue, Unsupported
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.encode.launch import LoadedKernel
from gpu.runtime.device import Device, DeviceTable
from gpu.sim.executor import RunningKernel
from gpu.sim.nv.chip.launch import KernelMemory, Launch
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from simulated import SIMULATED
from unit.cuda.kernels import reversing
from unit.linear_kernels import Kernel
from unit.nak.machine import Array, Machine, Memory

CHIPS = {"ga102": 86, "gh100": 90, "gb202": 120}


class GpuMemory(Memory):
    """Memory of the model in the place of arrays."""

    def __init__(self, memory: KernelMemory):
        super().__init__()
        self.memory = memory

    def load(self, address: Array, size: int) -> Array:
        places, back = np.unique(address, return_inverse=True)
        loaded = np.empty((len(places), size), np.uint8)
        for run in _runs(places, size):
            data = self.memory.load(int(places[run.start]), size * (run.stop - run.start))
            loaded[run] = np.frombuffer(data, np.uint8).reshape(-1, size)
        return loaded[back]

    def store(self, address: Array, data: Array) -> None:
        order = np.argsort(address, kind="stable")
        places, rows = address[order], np.ascontiguousarray(data[order])
        for run in _runs(places, data.shape[1]):
            self.memory.store(int(places[run.start]), rows[run].tobytes())


def _runs(places: Array, size: int) -> Iterator[slice]:
    """Parts of sorted addresses that follow each other."""
    starts = np.flatnonzero(np.diff(places) != size) + 1
    bounds = [0, *starts.tolist(), len(places)] if len(places) else [0]
    for first, stop in pairwise(bounds):
        yield slice(first, stop)


class NirExecutor:
    """Runs the programs that it was told of, all of a grid at once."""

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, int], NirProgram] = {}  # by code and threads of a block
        self.seen: list[Launch] = []

    def launch(self, launch: Launch, memory: KernelMemory) -> RunningKernel:
        self.seen.append(launch)
        for (code, block), program in self.known.items():
            is_mapped = memory.code.is_mapped(launch.program, len(code))
            if (
                block == launch.block.x
                and is_mapped
                and bytes(memory.code.read(launch.program, len(code))) == code
            ):
                return _Running(program, launch, memory)
        raise AssertionError(f"nobody told what the code at {launch.program:#x} is")


class _Running:
    instructions = 0  # nobody counts them

    def __init__(self, program: NirProgram, launch: Launch, memory: KernelMemory):
        self.program, self.launch, self.memory = program, launch, memory

    def why_stuck(self) -> str:
        return ""

    def step(self, budget: int) -> bool:
        launch, program = self.launch, self.program
        assert launch.block == (program.block, 1, 1) and launch.grid[1:] == (1, 1)
        assert launch.shared_bytes >= program.shared
        parameters = bytes(self.memory.constant(0, 0, program.parameters))
        Machine(program, launch.grid.x, parameters, GpuMemory(self.memory)).run()
        return True


class TellingCompiler(NakCompiler):
    """NAK, which tells an executor of all that it compiles."""

    def __init__(self, arch: str, executor: NirExecutor):
        super().__init__(arch)
        self._executor = executor

    def compile_many_cached(self, sources: Sequence[str]) -> list[bytes]:
        libs = self.compile_many(sources)
        for source, lib in zip(sources, libs, strict=True):
            nir = parse_nir(source)
            self._executor.known[NakBinary.unpack(lib).code, nir.block] = nir
        return libs


@pytest.fixture
def tensors(need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an NV device with NAK's code, on a simulated GPU that runs the NIR."""
    need("tinymesa")
    executor = NirExecutor()
    sim = NvSimWorld(chip=("gh100",), executor=executor)
    with RmDevice.open(World(sim.os, sim.waiter)) as queues:
        compiler = TellingCompiler("sm_90", executor)
        device = NVDevice("NV:8", queues, NAKRenderer("sm_90"), compiler)
        monkeypatch.setitem(DeviceTable._open, "NV:8", device)
        yield "NV:8"
        device.synchronize()
    sim.close()


@pytest.fixture(params=CHIPS)
def gpu(request: pytest.FixtureRequest) -> Iterator[tuple[RmDevice, NirExecutor]]:
    """A simulated GPU whose kernels are run from their NIR."""
    executor = NirExecutor()
    sim = NvSimWorld(chip=(request.param,), executor=executor)
    with RmDevice.open(World(sim.os, sim.waiter)) as device:
        yield device, executor
    sim.close()


def packed(device: RmDevice, program: Program, executor: NirExecutor, local: int = 0) -> bytes:
    """A binary as of NAK, with made-up code."""
    nir = parse_nir(NAKRenderer(f"sm_{device.target.sm}").render(program))
    code = program.name.encode().ljust(32, b"\0")
    executor.known[code, nir.block] = nir
    sizes = (24, 1, nir.block, nir.shared, local, nir.parameters)
    return NakBinary(device.target.sm, *sizes, program.name, code, "").pack()


def test_a_kernel_is_launched_with_its_parameters(gpu: tuple[RmDevice, NirExecutor]) -> None:
    device, executor = gpu
    program = reversing(3, 4, 64).program("reversing")
    loaded = load_bare(device, program.name, packed(device, program, executor, local=0x120), 0)
    array = np.random.default_rng(0).integers(0, 1 << 60, 3 * 256)
    a, b = (device.allocator.alloc(array.nbytes) for _ in range(2))
    device.allocator.copy_in(a, array.tobytes())
    loaded(a, b, grid=(3, 1, 1), block=(256, 1, 1), wait=True)
    got = np.frombuffer(device.allocator.copy_out(b), np.int64)[: array.size]
    np.testing.assert_array_equal(got, array.reshape(3, 256)[:, ::-1].reshape(-1))
    launch = executor.seen[-1]
    assert (launch.local_low, launch.local_high) == (0x120, 0)
    assert (launch.registers, launch.barriers, launch.shared_bytes) == (24, 1, 2048)
    assert launch.banks[0] is not None and launch.banks[0].size == 16
    assert launch.banks[1:] == (None,) * 7
    info = loaded.info
    assert isinstance(info, LoadedKernel) and info.kernel.bare


def test_tensors_from_expression_to_descriptor(tensors: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(33, 40)).astype(np.float32) for _ in range(2))
    x, y = Tensor(a, device=tensors), Tensor(b, device=tensors)
    np.testing.assert_allclose((x @ y.transpose(0, 1)).numpy(), a @ b.T, rtol=1e-5, atol=1e-5)
    exact = np.exp(a.astype(np.float64))
    wanted = exact / exact.sum(1, keepdims=True)
    np.testing.assert_allclose(x.softmax(1).numpy(), wanted, rtol=1e-5)
    np.testing.assert_array_equal((x / y).numpy(), a / b)
    np.testing.assert_array_equal(x.abs().sqrt().numpy(), np.sqrt(np.abs(a)))
    np.testing.assert_array_equal(x.sort(1)[0].numpy(), np.sort(a, 1))
    whole = Tensor(np.arange(-500, 500), device=tensors)
    np.testing.assert_array_equal(whole.cumsum(0).numpy(), np.arange(-500, 500).cumsum())
    assert (whole // 7).numpy().tolist() == [n // 7 for n in range(-500, 500)]
    half = x.cast(dtypes.float16)
    np.testing.assert_array_equal((half + half).numpy(), a.astype(np.float16) * np.float16(2))


def test_what_does_not_fit_is_refused(gpu: tuple[RmDevice, NirExecutor]) -> None:
    device, executor = gpu
    program = reversing(1, 1, 64).program("small")
    lib = packed(device, program, executor)
    with pytest.raises(InvalidIndex, match="no kernel 'other'"):
        load_bare(device, "other", lib, 0)
    with pytest.raises(InvalidIndex, match="3 numbers among the 2 parameters"):
        load_bare(device, "small", lib, 3)
    other = NakBinary.unpack(lib)._replace(sm=75)
    with pytest.raises(Unsupported, match="code for sm_75"):
        load_bare(device, "small", other.pack(), 0)
    loaded = load_bare(device, "small", lib, 0)
    a = device.allocator.alloc(512)
    with pytest.raises(InvalidValue, match=r"compiled for \(64, 1, 1\)"):
        loaded(a, a, grid=(1, 1, 1), block=(32, 1, 1))


def test_a_simulated_gpu_says_that_it_runs_no_machine_code(need: Callable[[str], None]) -> None:
    need("tinymesa")
    with Context(DEV="NV:3:NAK", SIM=SIMULATED["NV"]):
        device = Device["NV:3"]
        assert device.describe()["target"].startswith("sm_90, simulated")
        held = Tensor([1.0, 2.0], device="NV:3")
        assert held.tolist() == [1.0, 2.0], "memory works all the same"
        with pytest.raises(Unsupported, match="a simulated GPU runs the PTX"):
            (held + held).tolist()


def test_the_smallest_bank_holds_no_parameters(gpu: tuple[RmDevice, NirExecutor]) -> None:
    device, executor = gpu
    k = Kernel()
    k("local", dtypes.int32, attr=(4, "private"))
    program = k.program("nothing")
    loaded = load_bare(device, "nothing", packed(device, program, executor), 0)
    loaded(grid=(1, 1, 1), block=(1, 1, 1), wait=True)
    assert executor.seen[-1].banks[0] is not None
