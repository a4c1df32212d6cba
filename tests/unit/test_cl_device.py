"""The OpenCL device: choosing it, its memory, its errors, and memory shared without a copy."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, jit
from gpu.autogen import opencl as cl
from gpu.backends.cl.api import OpenCL, error_of, load_opencl
from gpu.backends.cl.compiler import Binary, CLCompiler, explain
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.device import CLDevice, open_device
from gpu.backends.cl.memory import CLAllocator, CLMemory
from gpu.backends.cl.platforms import DeviceInfo, Platform, find_devices
from gpu.backends.cl.program import CLGraph
from gpu.backends.cl.quirks import quirks_of
from gpu.backends.cl.target import build_options, device_target
from gpu.core.config import Context, config
from gpu.core.devspec import DeviceSpec
from gpu.core.dtype import dtypes
from gpu.core.errors import (
    CompileError,
    ConfigError,
    DeviceError,
    DeviceLost,
    InvalidValue,
    OutOfMemory,
    Unsupported,
)
from gpu.runtime.prepared import Counters
from tensor.reference import torch
from unit.cl_kernels import cl_device

ADD = """
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void SYMBOL(add)(__global float *out, __global const float *a) {
  for (int i = 0; i < 4; i++) out[i] = a[i] + %s;
}
"""
SIZES = {f"{kind}{i}": 1 for kind in ("items", "group") for i in range(3)} | {
    "scratch": 0, "parameters": 2, "written": 1,
}  # fmt: skip
GPU = DeviceInfo(
    *(Platform(0, "Some", "Vendor", "OpenCL 3.0"), 0, "GPU", "Big", "Vendor", "OpenCL 3.0", "1.2"),
    *(frozenset({"cl_khr_fp64", "cl_khr_fp16"}), 60, 1000, 1 << 15, 1),
    single=cl.CL_FP_FMA | cl.CL_FP_INF_NAN | cl.CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT,
    double=cl.CL_FP_FMA,
    unified=False,
    alignment=128,
    most_memory=1 << 32,
    memory=1 << 34,
    can_compile=True,
    little_endian=True,
)


@pytest.fixture
def device(need: Callable[[str], None]) -> CLDevice:
    need("opencl")
    return cl_device()


class Failing:
    """The library, with some functions that give a code instead."""

    def __init__(self, api: OpenCL, **codes: int):
        self._api, self._codes = api, codes

    def __getattr__(self, name: str) -> Any:
        if name in self._codes:
            return lambda *arguments: self._codes[name]
        return getattr(self._api, name)


def fresh(device: CLDevice, **codes: int) -> CLContext:
    """Another context on the device, whose functions begin to give these codes."""
    context = CLContext(device.context.api, device.context.info)
    context.api = Failing(device.context.api, **codes)  # type: ignore[assignment]
    return context


# Choosing a device.


def test_a_missing_library_says_what_to_install() -> None:
    with Context(CL_LIBRARY="/nowhere/libOpenCL.so"), pytest.raises(DeviceError) as caught:
        open_device("CL", DeviceSpec("CL"))
    for part in ("/nowhere/libOpenCL.so", "apt install ocl-icd-libopencl1", "CL_LIBRARY"):
        assert part in caught.value.message


def test_a_library_of_another_kind_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no OpenCL 1\.2 library"):
        OpenCL(ctypes.CDLL(None))


def test_drivers_that_cannot_be_used_are_named(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("opencl")
    contents = {
        "absent": b"libnowhere.so.7\n",
        "another": b"libc.so.6\nwith a second line\n",
        "bytes": b"\xff\x00",
        "empty": b"",
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.icd").write_bytes(content)
    (tmp_path / "folder.icd").mkdir()
    told = [
        *("absent.icd names the driver 'libnowhere.so.7', which does not load", "pocl-opencl-icd"),
        *("'libc.so.6', which is no driver", "bytes.icd", "''", "folder.icd cannot be read"),
    ]
    code = "from gpu import Device; Device['CL']"
    for folder, wanted in ((tmp_path, told), (Path("/"), ["no platform"])):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"OCL_ICD_VENDORS": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "DeviceError" in done.stderr
        assert [word for word in wanted if word not in done.stderr] == []


def test_a_platform_that_is_not_there_may_have_a_broken_driver(
    tmp_path: Path, device: CLDevice
) -> None:
    (tmp_path / "big.icd").write_text("libbig.so")
    for wanted in ("big", "²"):
        with pytest.raises(ConfigError, match=r"libbig\.so', which does not load"):
            find_devices(device.context.api, str(tmp_path), wanted)


def test_platforms_are_chosen_by_number_or_name(device: CLDevice) -> None:
    api, platform = device.context.api, device.context.info.platform
    vendors = config.OCL_ICD_VENDORS
    for wanted in ("", "0", platform.name[:8].lower()):
        assert find_devices(api, vendors, wanted)[0].name == device.context.info.name
    for wanted in ("99", "no such vendor"):
        with pytest.raises(ConfigError, match=re.escape(platform.name)):
            find_devices(api, vendors, wanted)


def test_a_device_that_there_is_not_lists_those_there_are(device: CLDevice) -> None:
    with pytest.raises(DeviceError, match=r"no device CL:77: CL:0 is "):
        open_device("CL:77", DeviceSpec("CL", index=77))
    with pytest.raises(Unsupported, match="one renderer"):
        open_device("CL", DeviceSpec("CL", arch="fast"))


def test_a_device_describes_itself(device: CLDevice) -> None:
    said = device.describe()
    info = device.context.info
    assert info.platform.name in said["compiler"] and info.name in said["target"]
    assert info.driver in said["driver"] and f"{info.memory:,}" in said["memory"]


# What a device can do.


def test_a_gpu_is_a_grid_of_blocks_of_threads() -> None:
    target = device_target(GPU)
    assert (target.threads, target.warp, target.shared_bytes) == (256, 32, 1 << 15)
    assert device_target(GPU._replace(group=100)).threads == 96
    assert (target.parallel, target.vector_bytes, target.workers) == ("grid", 0, 60)
    assert target.features == "fp16,fp64,rounded" and "fma" in target.native.ops
    assert target.native.compute_as_float32 == {dtypes.float16}
    assert "-cl-fp32-correctly-rounded-divide-sqrt" in build_options(target)
    assert "fast" not in build_options(target) and "unsafe" not in build_options(target)


def test_a_cpu_is_workers_with_vectors() -> None:
    target = device_target(GPU._replace(kind="CPU", vector_width=16, units=8))
    assert (target.parallel, target.workers) == ("worker", 8)
    assert (target.vector_bytes, target.registers) == (64, 32)
    assert device_target(GPU._replace(kind="CPU", vector_width=1)).vector_bytes == 0


def test_what_a_device_lacks_is_derived() -> None:
    plain = GPU._replace(extensions=frozenset(), single=cl.CL_FP_INF_NAN, double=0)
    target = device_target(plain)
    assert target.features == "" and "fma" not in target.native.ops
    assert dtypes.float16 in target.native.storage_only
    assert target.native.lacking == {dtypes.float64}
    assert build_options(target) == "-w -cl-std=CL1.2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"can_compile": False}, "no compiler"),
        ({"little_endian": False}, "high byte first"),
        ({"single": 0}, "no infinity"),
        ({"version": "OpenCL 1.1 Old"}, "older than 1.2"),
    ],
)
def test_devices_without_a_way_to_compile_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        device_target(GPU._replace(**change))


def test_quirks_are_those_of_the_platform() -> None:
    pocl = GPU._replace(platform=Platform(0, "Portable Computing Language", "", ""))
    assert quirks_of(pocl).bundle > 1 and quirks_of(GPU).bundle == 1
    assert not quirks_of(GPU).variables


# Compiling.


def test_a_kernel_that_does_not_build_shows_log_and_line(device: CLDevice) -> None:
    with pytest.raises(CompileError) as caught:
        device.compiler.compile(ADD % "nothing_of_this_name")
    message = caught.value.message
    assert "undeclared identifier 'nothing_of_this_name'" in message
    assert message.endswith("out[i] = a[i] + nothing_of_this_name;")


@pytest.mark.parametrize(
    "log", ["<kernel>:2:5: error: bad", "error: x.cl:2:5: bad", "Compilation failed, line 2: bad"]
)
def test_logs_of_several_forms_are_read(log: str) -> None:
    assert explain(log, "first\nsecond\n", "d").endswith("line 2: second")
    assert explain("no idea", "first", "d").endswith("no idea")


def run_add(device: CLDevice, lib: bytes) -> list[float]:
    program = device.runtime("add", lib, SIZES)
    out, a = (device.allocator.alloc(16) for _ in range(2))
    device.allocator.copy_in(a, np.arange(4, dtype=np.float32).view(np.uint8).data)
    program(out, a)
    result = np.empty(4, np.float32)
    device.allocator.copy_out(result.view(np.uint8).data, out)
    return result.tolist()


def test_kernels_of_one_name_share_a_program(device: CLDevice) -> None:
    compiler = CLCompiler(device.context, "-cl-std=CL1.2", bundle=2)
    libs = compiler.compile_many([ADD % f"{n}.0f" for n in (1, 2, 3)])
    assert len({Binary.unpack(lib).program for lib in libs}) == 2
    for n, lib in enumerate(libs, 1):
        assert run_add(device, lib) == [n, n + 1, n + 2, n + 3]


def test_binaries_are_loaded_by_another_context_without_compiling(
    device: CLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ADD % "5.0f"
    lib = device.compiler.compile_cached(source)
    other = CLDevice("CL:8", CLContext(device.context.api, device.context.info),
                     device.renderer.target)  # fmt: skip
    monkeypatch.setattr(CLCompiler, "compile_many", None)
    assert other.compiler.compile_cached(source) == lib
    assert run_add(other, lib) == [5, 6, 7, 8]


@pytest.mark.parametrize("field", ["name", "version", "driver"])
def test_the_key_of_the_cache_holds_device_and_driver(device: CLDevice, field: str) -> None:
    changed = CLContext(device.context.api, device.context.info)
    changed.info = changed.info._replace(**{field: "another"})
    keys = {CLCompiler(context, "-O").key for context in (device.context, changed)}
    assert len(keys) == 2 and CLCompiler(device.context, "").key not in keys


def test_a_binary_of_something_else_is_refused(device: CLDevice) -> None:
    with pytest.raises(DeviceError, match="CACHE_DIR"):
        device.runtime("add", Binary(0, b"no binary at all").pack(), SIZES)


# Running.


def test_waiting_gives_the_seconds_of_the_device(device: CLDevice) -> None:
    x = Tensor(np.ones(1 << 20, np.float32), device="CL").realize()
    program = device.runtime("add", device.compiler.compile_cached(ADD % "1.0f"), SIZES)
    del x
    out, a = (device.allocator.alloc(16) for _ in range(2))
    seconds = program(out, a, wait=True)
    assert seconds is not None and 0 < seconds < 1


def test_a_jitted_function_replays_as_one_graph(device: CLDevice) -> None:
    @jit
    def steps(x: Tensor) -> Tensor:
        for _ in range(5):
            x = x @ x
        return x

    for start in (0, 1, 2, 1, 2):
        x = Tensor(np.eye(8, dtype=np.float32) * start, device="CL").realize()
        before = Counters.launches
        assert (steps(x).numpy() == np.eye(8) * start**32).all()
        assert Counters.launches == before + 5


def test_a_graph_refuses_slots_there_are_not(device: CLDevice) -> None:
    program = device.runtime("add", device.compiler.compile_cached(ADD % "1.0f"), SIZES)
    with pytest.raises(InvalidValue, match="2 slots"):
        CLGraph([(program, (0, 2), ())], 2)


def test_threads_launch_at_once(device: CLDevice) -> None:
    inputs = [Tensor(np.full(1000, i, np.float32), device="CL").realize() for i in range(4)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not ((inputs[number] + 1).numpy() == number + 1).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Errors of a device in use.


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (cl.CL_MEM_OBJECT_ALLOCATION_FAILURE, OutOfMemory, "free tensors"),
        (cl.CL_OUT_OF_RESOURCES, OutOfMemory, "CL_OUT_OF_RESOURCES"),
        (cl.CL_DEVICE_NOT_AVAILABLE, DeviceLost, "start it again"),
        (cl.CL_INVALID_KERNEL_ARGS, DeviceError, "CL_INVALID_KERNEL_ARGS (-52)"),
        (-4242, DeviceError, "an error of its own (-4242)"),
    ],
)
def test_codes_become_errors(code: int, kind: type[Exception], words: str) -> None:
    error = error_of(code, "try it")
    assert type(error) is kind and words in error.message and "cannot try it" in error.message


def test_memory_that_does_not_fit_is_refused(device: CLDevice) -> None:
    with pytest.raises(OutOfMemory, match="MAX_MEM_ALLOC_SIZE"):
        device.allocator.alloc(1 << 60)
    context = fresh(device, clFinish=0)
    context.api = Failing(device.context.api)  # type: ignore[assignment]

    def refuse(*arguments: Any, what: str) -> int:
        raise error_of(cl.CL_MEM_OBJECT_ALLOCATION_FAILURE, what)

    context.api.make = refuse  # type: ignore[method-assign]
    with pytest.raises(OutOfMemory, match=r"allocate 64 bytes .* are in use"):
        CLAllocator(context).alloc(64)


def test_a_lost_device_stays_lost(device: CLDevice) -> None:
    context = fresh(device, clFinish=cl.CL_DEVICE_NOT_AVAILABLE)
    with pytest.raises(DeviceLost, match="CL_DEVICE_NOT_AVAILABLE"):
        context.finish()
    context.api = device.context.api
    with pytest.raises(DeviceLost, match="lost to this process"):
        context.finish()


def _use_in_child(results: Any, x: Tensor) -> None:
    for use in (cl_device().synchronize, (x + 1).realize):
        try:
            use()
        except DeviceLost as error:
            results.put(error.message)
        else:
            results.put("it worked")


def test_a_forked_child_is_told_to_open_its_own(device: CLDevice) -> None:
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    x = Tensor(np.ones(3, np.float32), device="CL").realize()
    (x + 1).realize()
    child = fork.Process(target=_use_in_child, args=(results, x))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    for _ in range(2):
        assert "before this process was forked" in results.get()


# Memory of others.


def address(x: Tensor) -> int:
    return int(np.asarray(x).ctypes.data)


def in_host_memory(device: CLDevice) -> None:
    if not device.allocator.in_host_memory:  # type: ignore[attr-defined]
        pytest.skip("this device has memory of its own")


def test_arrays_are_used_where_they_lie(device: CLDevice) -> None:
    in_host_memory(device)
    array = np.arange(1000, dtype=np.float32)
    x = Tensor.from_dlpack(array, device="CL", copy=False)
    assert address(x) == array.ctypes.data and (x + 1).tolist() == (array + 1).tolist()
    tensor = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    y = Tensor.from_dlpack(tensor, device="CL", copy=False)
    assert address(y) == tensor.data_ptr() and (y * 2).tolist() == (tensor * 2).tolist()
    back = torch.from_dlpack((y * 3).realize().numpy())
    assert torch.equal(back, tensor * 3)
    odd = np.arange(101, dtype=np.float32)[1:]  # no more aligned than its elements
    assert (Tensor.from_dlpack(odd, device="CL", copy=False) + 1).tolist() == (odd + 1).tolist()


def test_borrowed_memory_is_given_back_when_nothing_needs_it(device: CLDevice) -> None:
    in_host_memory(device)

    class Owned(np.ndarray[Any, Any]):
        pass

    array = np.zeros(100, np.float32).view(Owned)
    gone = weakref.ref(array)
    x = Tensor.from_dlpack(array, device="CL")
    y = x + 1
    del x, array
    gc.collect()
    assert gone() is not None  # y is not computed yet
    assert y.tolist() == [1.0] * 100
    del y
    gc.collect()
    assert gone() is None


def test_borrowed_memory_may_change_as_soon_as_its_result_is_computed(device: CLDevice) -> None:
    in_host_memory(device)
    for step in range(5):
        array = np.full(1 << 20, step, np.float32)
        result = (Tensor.from_dlpack(array, device="CL") + 0.5).realize()
        array[:] = -1
        assert (result.numpy() == step + 0.5).all()


def test_tensors_are_lent_without_a_copy(device: CLDevice) -> None:
    in_host_memory(device)
    x = Tensor(np.arange(6, dtype=np.float32), device="CL").realize()
    lent = np.from_dlpack(x)
    assert lent.ctypes.data == address(x) and not lent.flags.writeable
    x += 1
    x.realize()
    assert lent.tolist() == [0, 1, 2, 3, 4, 5] and x.tolist() == [1, 2, 3, 4, 5, 6]
    del x
    gc.collect()
    assert lent.tolist() == [0, 1, 2, 3, 4, 5]


def make_buffer(context: CLContext, array: np.ndarray[Any, Any]) -> int:
    api = context.api
    handle = api.make(
        *("clCreateBuffer", context.context, cl.CL_MEM_READ_WRITE, array.nbytes, None), what="test"
    )
    code = api.clEnqueueWriteBuffer(
        *(context.queue, handle, 1, 0, array.nbytes, array.ctypes.data, 0, None, None)
    )
    assert code == 0
    return handle


def test_a_cl_mem_is_a_tensor(device: CLDevice) -> None:
    context = device.context
    array = np.arange(8, dtype=np.float32)
    handle = make_buffer(context, array)
    x = Tensor.from_blob(handle, (2, 4), dtypes.float32, device="CL")
    assert context.api.clReleaseMemObject(handle) == 0  # the tensor holds it
    assert x.tolist() == array.reshape(2, 4).tolist()
    assert (x.T @ x).numpy().tolist() == (array.reshape(2, 4).T @ array.reshape(2, 4)).tolist()


def test_a_cl_mem_that_does_not_fit_is_refused(device: CLDevice) -> None:
    array = np.arange(8, dtype=np.float32)
    handle = make_buffer(device.context, array)
    with pytest.raises(InvalidValue, match="has 32 bytes, and the tensor needs 36"):
        Tensor.from_blob(handle, 9, dtypes.float32, device="CL")
    other = CLContext(device.context.api, device.context.info)
    foreign = make_buffer(other, array)
    with pytest.raises(InvalidValue, match="another context"):
        Tensor.from_blob(foreign, 8, dtypes.float32, device="CL")
    for one in (handle, foreign):
        assert device.context.api.clReleaseMemObject(one) == 0


def test_a_part_of_a_buffer_is_memory_for_kernels(device: CLDevice) -> None:
    allocator, step = device.allocator, device.context.info.alignment
    assert isinstance(allocator, CLAllocator)
    whole = allocator.alloc(4 * step)
    data = np.arange(step, dtype=np.float32)
    allocator.copy_in(whole, data.view(np.uint8).data)
    part, other = allocator.view(whole, step, step), allocator.view(whole, 3 * step, step)
    (lib,) = device.compiler.compile_many([ADD % 5])
    device.runtime("add", lib, SIZES)(other, part)
    result = np.empty(4, np.float32)
    allocator.copy_out(result.view(np.uint8).data, other)
    assert result.tolist() == (data[step // 4 :][:4] + 5).tolist()
    allocator.copy_in(part, np.ones(4, np.float32).view(np.uint8).data)
    allocator.copy_out(result.view(np.uint8).data, allocator.view(whole, step, 16))
    assert result.tolist() == [1, 1, 1, 1]
    del part, other
    allocator.free(whole, 4 * step)


@pytest.mark.parametrize(
    ("offset", "nbytes", "message"),
    [
        (4, 16, "starts at a multiple of .* not at 4"),
        (0, 0, "0 bytes at 0 are not inside"),
        (1 << 20, 16, "are not inside of a buffer"),
        (-128, 16, "are not inside"),
    ],
)
def test_a_part_that_is_none_is_refused(
    device: CLDevice, offset: int, nbytes: int, message: str
) -> None:
    allocator = device.allocator
    assert isinstance(allocator, CLAllocator)
    whole = allocator.alloc(1024)
    with pytest.raises(InvalidValue, match=message):
        allocator.view(whole, offset, nbytes)
    with pytest.raises(InvalidValue, match="not of an image or of another view"):
        allocator.view(allocator.view(whole, 0, 512), 0, 16)
    allocator.free(whole, 1024)


def test_a_part_of_anothers_buffer_is_a_tensor(device: CLDevice) -> None:
    context, step = device.context, device.context.info.alignment
    array = np.arange(step, dtype=np.float32)
    handle = make_buffer(context, array)
    region = (ctypes.c_size_t * 2)(step, 2 * step)
    part = context.api.make(
        *("clCreateSubBuffer", handle, cl.CL_MEM_READ_WRITE, cl.CL_BUFFER_CREATE_TYPE_REGION),
        *(region,),
        what="test",
    )
    x = Tensor.from_blob(part, step // 2, device="CL")
    for each in (part, handle):  # the tensor holds the part, and that the whole
        assert context.api.clReleaseMemObject(each) == 0
    assert (x * 2).tolist() == (array[step // 4 : step // 4 * 3] * 2).tolist()
    with pytest.raises(InvalidValue, match="the tensor needs"):
        Tensor.from_blob(part, step, device="CL")


def test_devices_with_memory_of_their_own_copy(device: CLDevice) -> None:
    allocator = CLAllocator(device.context)
    allocator.in_host_memory = False  # as on a GPU
    first, second = allocator.alloc(40), allocator.alloc(40)
    assert allocator.host_address(first) is None and allocator.borrow(64, 4, None) is None
    data = np.arange(10, dtype=np.float32)
    allocator.copy_in(first, data.view(np.uint8).data)
    allocator.copy(second, first, 40)
    result = np.empty_like(data)
    allocator.copy_out(result.view(np.uint8).data, second)
    assert result.tolist() == data.tolist()
    allocator.free(first, 40)
    assert allocator.alloc(40) is first and isinstance(second, CLMemory)
    allocator.free(first, 40)
    allocator.free_cache()
    assert allocator.cached == 0


def test_the_library_that_is_named_is_used(need: Callable[[str], None]) -> None:
    need("opencl")
    with pytest.raises(DeviceError, match="libc"):
        load_opencl("libc-not-there.so")
    assert load_opencl("").clGetPlatformIDs is not None
