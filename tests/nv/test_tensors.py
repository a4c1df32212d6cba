"""The NV device of the tensor library on simulated GPUs: `SIM=gh100 DEV=NV`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

import gpu
from gpu import Context, Tensor, Var
from gpu.backends.amd.device import open_device as open_amd
from gpu.backends.hcq.memory import QueueAllocator
from gpu.backends.hcq.program import QueueProgram
from gpu.backends.nv.device import NVDevice, open_device
from gpu.backends.nv.simulated import simulated
from gpu.compiler.ir.linear import Program, Val
from gpu.core.devspec import parse_device_spec
from gpu.core.dtype import dtypes
from gpu.core.errors import (
    ConfigError,
    DeviceError,
    DeviceLost,
    GpuFault,
    InvalidIndex,
    Unsupported,
)
from gpu.hcq.buffer import HCQBuffer
from gpu.runtime.device import Device
from gpu.runtime.execute import storage
from gpu.transport.files import RealFiles
from gpu.transport.missing import no_node
from simulated import SIMULATED, own_machines
from unit.linear_kernels import Kernel, scratch_kernel

SIM = SIMULATED["NV"]
N = 48
MANY = 600  # of a loop that no compiler unrolls
NAMES = {"NV": "sm_90", "NV:4": "sm_86", "NV:5": "sm_89", "NV:6": "sm_120"}


@pytest.fixture
def nv(need: Callable[[str], None]) -> Iterator[None]:
    need("nvrtc")
    with Context(SIM=SIM, DEV="NV"):
        opened("NV")
        yield
        assert simulated(SIM).machine.debug.violations == []


def matrix(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def opened(name: str) -> NVDevice:
    device = Device[name]
    assert isinstance(device, NVDevice)
    return device


@pytest.mark.parametrize(("far", "direct"), [("NV:1", True), ("NV:4", False)])
def test_tensors_go_to_peers_directly(
    nv: None, far: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs of two generations are no peers here: what they exchange goes through the host."""
    a, through_host = matrix(24, 20), []
    x = (Tensor(a, device="NV") * 2).realize()
    copy_out = QueueAllocator.copy_out

    def counted(self: QueueAllocator, data: memoryview, memory: HCQBuffer) -> None:
        through_host.append(data.nbytes)
        copy_out(self, data, memory)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(QueueAllocator, "copy_out", counted)
            y = (x + 1).to(far).realize()
        x = (x * 3).realize()
        np.testing.assert_array_equal((y * 2).numpy(), (a * 2 + 1) * 2)
        a = a * 3
    back = (y + 1).to("NV").numpy()
    np.testing.assert_allclose(back, a / 3 * 2 + 2, rtol=1e-5, atol=1e-5)
    assert through_host == ([] if direct else [a.nbytes, a.nbytes])


def test_copies_of_buffers_stay_on_the_device(nv: None, monkeypatch: pytest.MonkeyPatch) -> None:
    a = matrix(7, 5)
    buffer = storage((Tensor(a) * 2).realize()._node)
    monkeypatch.setattr(QueueAllocator, "copy_in", None)
    same = buffer.duplicate()
    np.testing.assert_array_equal(same.copy_out().reshape(7, 5), a * 2)


@pytest.mark.parametrize("name", NAMES)
def test_every_generation(nv: None, name: str) -> None:
    a = matrix(24, 20)
    found = (Tensor(a, device=name) @ Tensor(a.T, device=name)).softmax(1)
    exact = a.astype(np.float64) @ a.T
    exact = np.exp(exact - exact.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-4, atol=1e-5)
    target = opened(name).describe()["target"]
    assert target.startswith(f"{NAMES[name]}, simulated, ") and "SMs, driver 580" in target


def test_ptx_of_our_own(nv: None, need: Callable[[str], None]) -> None:
    need("nvjitlink")
    a = matrix(24, 20)
    with Context(DEV="NV:2:PTX"):
        device = opened("NV:2")
        assert device.describe()["renderer"] == "PTX"
        found = (Tensor(a) @ Tensor(a.T) / (1 + Tensor(a).abs().max())).numpy()
    exact = a.astype(np.float64) @ a.T / (1 + np.abs(a).max())
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


def test_copies_between_gpus_and_empty_ones(nv: None) -> None:
    a = matrix(30, 7)
    second = (Tensor(a) + 1).to("NV:4") * 2
    assert second.device == "NV:4"
    np.testing.assert_allclose(second.to("NV:6").numpy(), (a + 1) * 2, rtol=1e-6)
    assert Tensor(np.zeros((0, 3), np.float32)).sum().item() == 0


def test_threads_share_a_gpu(nv: None) -> None:
    """Whoever rings the doorbell while another thread runs the model is heard."""

    def work(number: int) -> bool:
        found = [(Tensor(np.arange(64) * number) + n).numpy() for n in range(8)]
        return all((f == np.arange(64) * number + n).all() for n, f in enumerate(found))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


def test_jitted_functions_with_symbolic_sizes(nv: None) -> None:
    @gpu.jit
    def total(x: Tensor) -> Tensor:
        return (x * 2 + 1).sum()

    n = Var("n", 1, 40)
    a = matrix(40)
    for size in (3, 17, 40, 5):
        found = total(Tensor(a).shrink(((0, n.bind(size)),))).item()
        assert found == pytest.approx(float((a[:size].astype(np.float64) * 2 + 1).sum()), abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_fetched_ahead_of_code_is_mapped(nv: None, name: str) -> None:
    """Code of sm_86 and sm_89 lies behind a bank with the literal, not at a page's beginning."""
    found = Tensor(np.arange(3.0), device=name) * 0.1
    np.testing.assert_array_equal(found.numpy(), np.arange(3.0) * 0.1)


@pytest.mark.parametrize("name", ["NV", "NV:6"])
def test_arrays_of_a_thread_are_in_local_memory(nv: None, name: str) -> None:
    device, source = opened(name), scratch_kernel(MANY).program()
    lib = device.compiler.compile(device.renderer.render(source))
    program = device.runtime(source.name, lib, device.renderer.launch_data(source))
    assert isinstance(program, QueueProgram) and program.loaded.private_size >= 8 * MANY
    out = device.allocator.alloc(8 * MANY)
    program(out)
    found = np.zeros(MANY, np.int64)
    device.allocator.copy_out(memoryview(found).cast("B"), out)
    np.testing.assert_array_equal(found, np.arange(MANY)[::-1] + 1)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_that_differ_in_a_literal_alone(nv: None, name: str) -> None:
    """Machine code of sm_86 and sm_89 has literals of float64 in bank 2: it is the same code."""
    x = Tensor(np.arange(3.0), device=name).realize()
    factors = (3.141592653589793, 2.718281828459045)
    scales = [gpu.jit(lambda t, factor=factor: (t * factor).realize()) for factor in factors]
    for _ in range(3):
        for factor, scale in zip(factors, scales, strict=True):
            np.testing.assert_allclose(scale(x).numpy(), np.arange(3.0) * factor, rtol=1e-12)


def mixing() -> Program:
    """``out = 3 * a + b + n``."""
    k = Kernel(**dict.fromkeys(("out", "a", "b"), (dtypes.int64, N)))
    n = k("val", dtypes.int64, attr=(0,))
    i = k.loop(N, kind="grid")
    total = k.alu("add", k.alu("mul", k.load(k.a, i), k.const(3)), k.load(k.b, i))
    k.store(k.out, i, k.alu("add", total, n))
    k.end(i)
    return k.program("mixing")._replace(vals=(Val("n", -(1 << 40), 1 << 40),))


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_pointer_and_going_on(nv: None, name: str) -> None:
    """The fault names kernel and argument; then the device works, with the tensors it had."""
    device, a = opened(name), matrix(50)
    kept = (Tensor(a, device=name) * 2).realize()
    device.synchronize()
    source = mixing()
    lib = device.compiler.compile(device.renderer.render(source))
    program = device.runtime("mixing", lib, device.renderer.launch_data(source))
    out, b = (device.allocator.alloc(8 * N) for _ in range(2))
    behind = HCQBuffer(b.allocation, 1 << 38, 8 * N)
    program(out, b, HCQBuffer(b.allocation, 4, 8 * N), vals=(5,))
    with pytest.raises(GpuFault, match=r"misaligned address.* is 0x\w+ into mixing"):
        device.synchronize()
    assert device.recover()
    program(out, b, behind, vals=(5,))
    with pytest.raises(GpuFault, match=rf"mixing \(argument 2 is {behind.address:#x}\)") as error:
        device.synchronize()
    assert error.value.address == behind.address
    with pytest.raises(DeviceLost, match="recover"):
        kept.numpy()
    assert device.recover()
    np.testing.assert_array_equal((kept + 1).numpy(), a * 2 + 1)
    device.allocator.copy_in(b, memoryview(np.arange(N, dtype=np.int64)).cast("B"))
    program(out, b, b, vals=(5,))
    found = np.zeros(N, np.int64)
    device.allocator.copy_out(memoryview(found).cast("B"), out)
    np.testing.assert_array_equal(found, 4 * np.arange(N) + 5)
    assert not device.recover()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("NV:CUDA:sm_80", "is a sm_90"),
    ],
)
def test_what_this_version_lacks(spec: str, text: str) -> None:
    with own_machines(), Context(SIM="gh100"), pytest.raises(Unsupported, match=text):
        open_device("NV", parse_device_spec(spec))


def test_a_gpu_that_is_not_there() -> None:
    count = len(SIM.split(","))
    reached = pytest.raises(InvalidIndex, match=f"this process can reach {count}")
    with own_machines(), Context(SIM=SIM), reached:
        open_device(f"NV:{count}", parse_device_spec(f"NV:{count}"))


def test_chips_of_another_vendor() -> None:
    with Context(SIM="gfx1100"), pytest.raises(ConfigError, match="NV has no model of 'gfx1100'"):
        open_device("NV", parse_device_spec("NV"))
    with Context(SIM="gh100"), pytest.raises(ConfigError, match="AMD has no model of 'gh100'"):
        open_amd("AMD", parse_device_spec("AMD"))


def test_without_a_driver_the_error_says_what_to_do() -> None:
    said = str(no_node(RealFiles(), "/dev/nvidiactl"))
    with Context(SIM=""), pytest.raises(DeviceError, match=re.escape(said)):
        open_device("NV", parse_device_spec("NV"))
