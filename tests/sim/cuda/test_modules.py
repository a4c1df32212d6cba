"""Modules, functions and variables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.errors import FormatError
from gpu.sim.cuda import learn
from gpu.sim.cuda.library import Library, load
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_PTX, OLD_PTX = 1, 200, 209, 218, 222
INVALID_HANDLE, NOT_FOUND, NOT_SUPPORTED = 400, 500, 801
ERROR_LOG, ERROR_SIZE = 5, 6
SOURCE = """
__constant__ float scales[4] = {1, 2, 3, 4};
extern "C" __global__ void __launch_bounds__(64) scaled(float *a, int which, char shift) {
    extern __shared__ float room[];
    room[threadIdx.x] = a[threadIdx.x + blockIdx.x * blockDim.x];
    __syncthreads();
    a[threadIdx.x + blockIdx.x * blockDim.x] =
        room[blockDim.x - 1 - threadIdx.x] * scales[which] + shift;
}
"""
Need = Callable[[str], None]


def load_image(raw: RawCuda, image: bytes | None) -> int:
    data = None if image is None else ctypes.create_string_buffer(image)
    return raw.result("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), data)


def compiled(need: Need, arch: str) -> tuple[bytes, str]:
    need("nvrtc")
    from gpu.compiler.toolchain.nvbinary import NvBinary
    from gpu.compiler.toolchain.nvrtc import NvrtcCompiler

    binary = NvBinary.unpack(NvrtcCompiler(arch).compile(SOURCE))
    return binary.cubin, binary.ptx


def test_ptx_runs(cuda: RawCuda) -> None:
    function = cuda.function(cuda.module(module()), "twice")
    data = np.arange(96, dtype=np.uint32)
    address = cuda.upload(data)
    assert cuda.launch(function, (3,), (32,), ctypes.c_uint64(address)) == 0
    assert (cuda.download(address, data) == 2 * data).all()


@pytest.mark.parametrize(("chip", "arch"), [("gh100", "sm_90"), ("ga102", "sm_80"),
                                            ("ga102", "sm_86"), ("gb202", "sm_120")])  # fmt: skip
def test_cubins_run(need: Need, chip: str, arch: str, seed: int) -> None:
    cubin, ptx = compiled(need, arch)
    learn(cubin, ptx)
    library = load(chip, seed=seed)
    raw = RawCuda(library.functions)
    raw.start()
    function = raw.function(raw.module(cubin), "scaled")
    data = np.random.default_rng(seed).random((5, 64), np.float32)
    address = raw.upload(data)
    arguments = ctypes.c_uint64(address), ctypes.c_int(2), ctypes.c_byte(-3)
    assert raw.launch(function, (5,), (64,), *arguments, dynamic=256) == 0
    assert (raw.download(address, data) == data[:, ::-1] * 3 - 3).all()
    value = ctypes.c_int()
    raw.call("cuFuncGetAttribute", ctypes.byref(value), 4, function)
    assert 0 < value.value < 256
    raw.call("cuFuncGetAttribute", ctypes.byref(value), 6, function)
    assert f"sm_{value.value}" == arch
    assert not library.violations
    library.close()


def test_a_cubin_is_for_its_architecture(need: Need, raw: RawCuda) -> None:
    raw.start()
    for arch in ("sm_80", "sm_120"):
        cubin, ptx = compiled(need, arch)
        learn(cubin, ptx)
        assert load_image(raw, cubin) == NO_BINARY


def test_a_cubin_that_nobody_told_of(need: Need, raw: RawCuda) -> None:
    raw.start()
    cubin, _ = compiled(need, "sm_90")
    changed = bytearray(cubin)
    at = changed.index(b"scaled")
    changed[at : at + 6] = b"SCALED"
    assert load_image(raw, bytes(changed)) == NOT_SUPPORTED
    with pytest.raises(FormatError):
        learn(cubin[:100], "")


def test_bad_images(raw: RawCuda) -> None:
    raw.start()
    text = module().decode()
    assert load_image(raw, None) == INVALID_VALUE
    assert load_image(raw, b"no PTX at all") == INVALID_PTX
    assert load_image(raw, b"\x7fELF" + bytes(200)) == INVALID_IMAGE
    assert load_image(raw, text.replace("shl.b32", "shoal.b32").encode()) == INVALID_PTX
    assert load_image(raw, module(version="99.0")) == OLD_PTX
    assert load_image(raw, module(target="sm_100")) == INVALID_PTX
    assert load_image(raw, module(target="sm_90a")) == 0


def test_logs_name_the_line(raw: RawCuda) -> None:
    raw.start()
    text = module().decode().replace("shl.b32", "shoal.b32")
    line = 1 + text[: text.index("shoal")].count("\n")
    for room in (4096, 16):
        log = ctypes.create_string_buffer(room)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_SIZE)
        values = (ctypes.c_size_t * 2)(ctypes.addressof(log), room)
        image = ctypes.create_string_buffer(text.encode())
        place = ctypes.byref(ctypes.c_void_p())
        assert raw.result("cuModuleLoadDataEx", place, image, 2, options, values) == INVALID_PTX
        assert values[1] == len(log.value) + 1 <= room
        assert (f"line {line};" in log.value.decode()) is (room > 16)
    options[0] = 1000
    assert raw.result("cuModuleLoadDataEx", place, image, 2, options, values) == INVALID_VALUE


def test_names_of_a_module(raw: RawCuda) -> None:
    raw.start()
    handle = raw.module(module())
    place = ctypes.c_void_p()
    for name in (b"none", b"table"):
        found = raw.result("cuModuleGetFunction", ctypes.byref(place), handle, name)
        assert found == NOT_FOUND
    assert raw.function(handle, "twice") == raw.function(handle, "twice")
    function = raw.function(handle, "mixed")
    offsets = []
    for index in range(4):
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        places = ctypes.byref(offset), ctypes.byref(size)
        raw.call("cuFuncGetParamInfo", function, index, *places)
        offsets.append((offset.value, size.value))
    assert offsets == [(0, 1), (8, 8), (16, 4), (20, 2)]
    assert raw.result("cuFuncGetParamInfo", function, 4, *places) == INVALID_VALUE


def test_a_module_that_was_unloaded_is_not_used(raw: RawCuda, library: Library) -> None:
    raw.start()
    handle, place = raw.module(module()), ctypes.c_void_p()
    function = raw.function(handle, "trapped")
    raw.call("cuModuleUnload", handle)
    assert raw.launch(function, (1,), (1,)) == INVALID_HANDLE
    assert raw.result("cuModuleGetFunction", ctypes.byref(place), handle, b"x") == INVALID_HANDLE
    assert len(library.violations) == 2


def test_variables_are_each_modules_own(cuda: RawCuda) -> None:
    handles = [cuda.module(module()) for _ in range(2)]
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    found = []
    for handle in handles:
        cuda.call(
            "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), handle, b"table"
        )
        assert size.value == 16
        found.append(address.value)
    assert found[0] != found[1]
    like = np.zeros(4, np.uint32)
    assert (cuda.download(found[0], like) == [1, 2, 3, 4]).all()
    new = np.array([10, 20, 30, 40], np.uint32)
    cuda.call("cuMemcpyHtoD_v2", found[0], new.ctypes.data, 16)
    target = cuda.alloc(16)
    arguments = (
        *(ctypes.c_uint8(200), ctypes.c_uint64(target)),
        *(ctypes.c_float(1.5), ctypes.c_uint16(9)),
    )
    for handle, third in zip(handles, (30, 3), strict=True):
        assert cuda.launch(cuda.function(handle, "mixed"), (1,), (1,), *arguments) == 0
        got = cuda.download(target, like)
        assert (got[0], got[1:2].view(np.float32)[0], *got[2:]) == (200, 1.5, 9, third)
    assert cuda.result("cuModuleGetGlobal_v2", None, None, handles[0], b"none") == NOT_FOUND


def test_attributes_of_functions(cuda: RawCuda) -> None:
    handle = cuda.module(module())
    value = ctypes.c_int()

    def ask(name: str, attribute: int) -> int:
        cuda.call("cuFuncGetAttribute", ctypes.byref(value), attribute, cuda.function(handle, name))
        return value.value

    assert ask("twice", 0) == 1024
    assert ask("reversed", 0) == 128
    assert ask("exact", 0) == 64
    assert (ask("twice", 1), ask("reversed", 1)) == (0, 64)
    assert (ask("twice", 5), ask("twice", 6)) == (80, 90)
    assert ask("reversed", 8) == 48 * 1024 - 64
    function = cuda.function(handle, "reversed")
    cuda.call("cuFuncSetAttribute", function, 8, 227 * 1024 - 64)
    assert ask("reversed", 8) == 227 * 1024 - 64
    assert cuda.result("cuFuncSetAttribute", function, 8, 227 * 1024) == INVALID_VALUE
    assert cuda.result("cuFuncSetAttribute", function, 0, 1) == INVALID_VALUE
    assert cuda.result("cuFuncGetAttribute", ctypes.byref(value), 99, function) == INVALID_VALUE


def test_occupancy(cuda: RawCuda) -> None:
    function = cuda.function(cuda.module(module()), "reversed")
    blocks = ctypes.c_int()
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    for threads, dynamic, expected in ((128, 0, 16), (32, 0, 32), (64, 100 * 1024, 2), (33, 0, 32)):
        cuda.call(name, ctypes.byref(blocks), function, threads, dynamic)
        assert blocks.value == expected
    assert cuda.result(name, ctypes.byref(blocks), function, 0, 0) == INVALID_VALUE
