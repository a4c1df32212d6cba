"""The WEBGPU device: errors, limits, memory, timing, and what happens when it is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Device, Tensor
from gpu.autogen import webgpu as api
from gpu.backends.webgpu import connection as connections
from gpu.backends.webgpu.commands import Commands, Staging
from gpu.backends.webgpu.connection import Connection
from gpu.backends.webgpu.device import WebGPU, open_device
from gpu.backends.webgpu.library import Library, find_library, view
from gpu.backends.webgpu.memory import Memory
from gpu.backends.webgpu.program import WebGPUProgram, shader_module
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    InvalidValue,
    OutOfMemory,
    Unsupported,
)

Array = np.ndarray[Any, Any]
DOUBLE = """@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> given: array<f32>;
@compute @workgroup_size(4)
fn double(@builtin(global_invocation_id) at: vec3u) { out[at.x] = 2.0 * given[at.x]; }
"""
DATA = dict.fromkeys(("vals", "spilled", "textures"), 0) | dict.fromkeys("xyz", 1)
DATA |= {"params": 2, "written": 1}


def put(device: WebGPU, values: Array) -> Memory:
    memory = device.allocator.alloc(values.nbytes)
    device.allocator.copy_in(memory, memoryview(values.view(np.uint8).reshape(-1)))
    assert isinstance(memory, Memory)
    return memory


def get(device: WebGPU, memory: Memory, size: int) -> Array:
    out = np.empty(size, np.float32)
    device.allocator.copy_out(memoryview(out.view(np.uint8)), memory)
    return out


def doubled(device: WebGPU, program: Any, values: Array, wait: bool = False) -> Any:
    out = device.allocator.alloc(values.nbytes)
    seconds = program(out, put(device, values), wait=wait)
    np.testing.assert_array_equal(get(device, out, values.size), values * 2)
    return seconds


def test_a_kernel_runs_and_is_timed_by_the_device(webgpu: WebGPU) -> None:
    program = webgpu.runtime("double", DOUBLE.encode(), DATA)
    values = np.arange(4, dtype=np.float32)
    assert doubled(webgpu, program, values) is None
    seconds = doubled(webgpu, program, values, wait=True)
    assert 0 <= seconds < 60


def test_without_timestamps_the_host_measures(
    webgpu: WebGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webgpu.link.connection, "features", frozenset())
    program = webgpu.runtime("double", DOUBLE.encode(), DATA)
    assert doubled(webgpu, program, np.ones(4, np.float32), wait=True) > 0


def test_a_program_checks_what_it_is_called_with(webgpu: WebGPU) -> None:
    program = webgpu.runtime("double", DOUBLE.encode(), DATA)
    with pytest.raises(InvalidValue, match=r"takes 2 buffers and 0 values, got 1 and 2"):
        program(put(webgpu, np.ones(4, np.float32)), vals=(1, 2))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1023])
def test_memory_of_any_size_is_copied_whole(webgpu: WebGPU, size: int) -> None:
    values = np.arange(size).astype(np.uint8)
    memory, out = put(webgpu, values), np.zeros(size, np.uint8)
    webgpu.allocator.copy_out(memoryview(out), memory)
    np.testing.assert_array_equal(out, values)


def test_a_source_that_is_refused_names_the_line(webgpu: WebGPU) -> None:
    source = DOUBLE.replace("2.0 *", "2u *")
    with pytest.raises(CompileError, match=r"line 4, column \d+: .*no matching overload") as caught:
        webgpu.compiler.compile(source)
    assert ">    4  fn double" in caught.value.message
    assert webgpu.compiler.compile(DOUBLE) == DOUBLE.encode()


def test_a_pipeline_that_is_refused_says_why(webgpu: WebGPU) -> None:
    with pytest.raises(CompileError, match="other"):
        webgpu.runtime("other", DOUBLE.encode(), DATA)


def test_a_tensor_larger_than_a_binding_is_refused(webgpu: WebGPU) -> None:
    largest = webgpu.link.connection.limits.maxStorageBufferBindingSize
    with pytest.raises(OutOfMemory, match="maxStorageBufferBindingSize"):
        webgpu.allocator.alloc(largest + 1)


def test_a_device_without_memory_says_so(webgpu: WebGPU) -> None:
    with pytest.raises(OutOfMemory, match=r"allocating 64 bytes.*free tensors"):  # noqa: SIM117
        with webgpu.link.connection.scope("allocating 64 bytes"):
            connection = webgpu.link.connection
            text = b"no memory is left"
            connection.library.DeviceInjectError(
                connection.device, api.ErrorType_OutOfMemory, view(text)
            )


def test_an_error_in_no_scope_is_raised_by_what_comes_next(webgpu: WebGPU) -> None:
    connection = webgpu.link.connection
    text = b"something is wrong"
    connection.library.DeviceInjectError(connection.device, 2, view(text))
    with pytest.raises(DeviceError, match="validation error: something is wrong"):
        webgpu.synchronize()
    webgpu.synchronize()  # told once


def test_a_lost_device_is_told_once_and_opened_again(webgpu: WebGPU) -> None:
    program = webgpu.runtime("double", DOUBLE.encode(), DATA)
    values = np.arange(4, dtype=np.float32)
    old = put(webgpu, values)
    webgpu.allocator.free(put(webgpu, values), values.nbytes)  # kept for later, and lost
    webgpu.link.connection.lose(b"the driver crashed")
    with pytest.raises(DeviceLost, match=r"the driver crashed.*make tensors on it anew"):
        webgpu.synchronize()
    doubled(webgpu, program, values)
    with pytest.raises(DeviceLost, match="make the tensor anew"):
        get(webgpu, old, 4)


def test_tensors_work_again_after_a_loss(need: Callable[[str], None]) -> None:
    need("webgpu")
    device = Device["WEBGPU:7"]
    assert isinstance(device, WebGPU)
    x = Tensor([1.0, 2.0], device="WEBGPU:7").realize()
    device.link.connection.lose(b"unplugged")
    with pytest.raises(DeviceLost, match="unplugged"):
        (x + 1).tolist()
    with pytest.raises(DeviceLost, match="make the tensor anew"):
        (x + 1).tolist()
    assert (Tensor([1.0, 2.0], device="WEBGPU:7") + 1).tolist() == [2, 3]


@pytest.mark.parametrize("words", ["allocating", "compiling", "reading"])
def test_errors_that_tell_of_a_loss_first_are_losses(
    need: Callable[[str], None], words: str
) -> None:
    """The callback for the loss comes from a thread of Dawn's, perhaps later than they do."""
    need("webgpu")
    connection = Connection(Library(find_library()), "HIGH-PERFORMANCE")
    commands = Commands(connection)
    buffer = commands.new_buffer(16, api.BufferUsage_Storage | api.BufferUsage_CopySrc)
    staging = Staging(commands, 16)
    connection.lose(b"gone")
    connection.lost = ""  # as if the callback had not come yet
    with pytest.raises(DeviceLost, match=words):
        if words == "allocating":
            commands.new_buffer(16, api.BufferUsage_Storage)
        elif words == "compiling":
            shader_module(connection, DOUBLE)
        else:
            with staging.read(buffer, 0, 16):
                pass
    assert connection.lost


def test_float64_is_refused_with_the_fix(need: Callable[[str], None]) -> None:
    need("webgpu")
    x = Tensor(np.ones(3), device="WEBGPU")
    with pytest.raises(Unsupported, match=r"WEBGPU has no float64.*float32.*\.to\('CPU'\)"):
        (x + 1).tolist()
    assert x.tolist() == [1, 1, 1]  # its memory is as good as any


def test_many_inputs_are_computed_in_several_kernels(need: Callable[[str], None]) -> None:
    need("webgpu")
    parts = [Tensor(np.full(5, i, np.float32), device="WEBGPU").realize() for i in range(40)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert total.tolist() == [sum(range(40))] * 5


# How it is opened.


def test_a_library_that_is_missing_or_another_one(
    environment: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(WEBGPU_LIBRARY=str(tmp_path / "none.so"))
    with pytest.raises(Unsupported, match=r"none\.so cannot be loaded.*pip install dawn-python"):
        open_device("WEBGPU", DeviceSpec("WEBGPU"))
    with pytest.raises(Unsupported, match="has no wgpuCreateInstance, so it is not Dawn"):
        Library("libc.so.6")
    environment(WEBGPU_LIBRARY=None)
    monkeypatch.setattr("gpu.backends.webgpu.library.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="not the package `pydawn`"):
        find_library()


def test_no_adapter_says_what_to_install(
    need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("webgpu")
    preferences = {"LOW-POWER": 0x7FFF}  # asks for a backend that there is not
    monkeypatch.setattr(connections, "_PREFERENCES", preferences)
    options = api.RequestAdapterOptions

    def none_there(**fields: int) -> api.RequestAdapterOptions:
        return options(**(fields | {"powerPreference": 1, "backendType": 3}))

    monkeypatch.setattr(api, "RequestAdapterOptions", none_there)
    with pytest.raises(DeviceError, match=r"finds no low-power adapter.*mesa-vulkan-drivers"):
        Connection(Library(find_library()), "LOW-POWER")


def test_the_backend_that_computes_nothing_is_no_adapter(
    need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("webgpu")
    options = api.RequestAdapterOptions

    def null(**fields: int) -> api.RequestAdapterOptions:
        return options(**(fields | {"backendType": api.BackendType_Null}))

    monkeypatch.setattr(api, "RequestAdapterOptions", null)
    with pytest.raises(DeviceError, match=r"null backend.*VK_ICD_FILENAMES"):
        Connection(Library(find_library()), "HIGH-PERFORMANCE")


def test_an_adapter_in_software_is_found_without_swiftshader(webgpu: WebGPU) -> None:
    if not webgpu.link.connection.is_cpu:
        pytest.skip("this adapter is none in software")
    assert Connection(Library(find_library()), "FALLBACK").is_cpu


def test_an_architecture_cannot_be_chosen() -> None:
    with pytest.raises(Unsupported, match="no architectures"):
        open_device("WEBGPU", DeviceSpec("WEBGPU", arch="gfx1100"))


def test_a_program_is_made_from_its_launch_data(webgpu: WebGPU) -> None:
    program = webgpu.runtime("double", DOUBLE.encode(), DATA | {"x": 3})
    assert isinstance(program, WebGPUProgram)
    assert program.layout.written == (True, False) and program.layout.counts == (3, 1, 1)


def test_it_describes_its_adapter(webgpu: WebGPU) -> None:
    about = webgpu.describe()
    assert webgpu.link.connection.name in about["target"]
    assert set(filter(None, about["features"].split(","))) <= set(connections.FEATURES)


# Interrupts.

# Ctrl-C comes as soon as a function of Dawn's has returned; what was half done must be none.
_INTERRUPTED = """
import os, signal
from gpu import Device, Tensor
from gpu.autogen.webgpu import StringView

signal.signal(signal.SIGINT, signal.default_int_handler)
library = Device["WEBGPU"].link.connection.library
told = []


def compute(size):
    return (Tensor([1.0] * size, device="WEBGPU") + 1).tolist()


def interrupt(name):
    whole = getattr(library, name)

    def interrupted(*arguments):
        setattr(library, name, whole)
        result = whole(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return result

    setattr(library, name, interrupted)


for size, name in enumerate(NAMES, 2):
    interrupt(name)
    try:
        compute(size * 100)
    except KeyboardInterrupt:
        told.append(name)
    for _ in range(2):
        assert compute(size) == [2.0] * size, name
assert told == NAMES, told
connection = Device["WEBGPU"].link.connection  # no scope was left that would take an error:
library.DeviceInjectError(connection.device, 2, StringView())
try:
    compute(3)
except Exception as error:
    print(type(error).__name__)
"""


def test_ctrl_c_leaves_nothing_half_done(need: Callable[[str], None]) -> None:
    need("webgpu")
    names = [
        *("DevicePushErrorScope", "DeviceCreateBuffer", "CommandEncoderBeginComputePass"),
        *("ComputePassEncoderRelease", "CommandEncoderRelease", "QueueSubmit", "BufferMapAsync2"),
    ]
    code = f"NAMES = {names}\n{_INTERRUPTED}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.split() == ["DeviceError"], done.stderr
