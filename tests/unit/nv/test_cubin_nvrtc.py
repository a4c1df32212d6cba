"""Cubins that NVIDIA's compiler makes now, where its library is installed."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import random
import struct
from pathlib import Path

import pytest

from gpu.core.errors import GpuError
from gpu.drivers.nv.code.cubin import Cubin

SOURCE = b"""
__constant__ float table[16];
__device__ int counter;
__device__ int numbers[4] = {1, 2, 3, 4};
__device__ int *third = &numbers[2];
extern "C" __global__ void plain(int *p, int v, long q) { p[blockIdx.x] = v + q + gridDim.x; }
extern "C" __global__ void nothing() {}
extern "C" __global__ void tile(float *p) {
    __shared__ float s[256];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void barriers(float *p) { asm volatile("bar.sync 15, 64;"); p[0] = 1; }
extern "C" __global__ void local(float *p, int n) {
    float a[200];
    for (int i = 0; i < 200; i++) a[i] = p[i];
    for (int i = 0; i < n; i++) a[i * 7 % 200] += a[i % 199];
    p[threadIdx.x] = a[n];
}
extern "C" __global__ void constants(float *p) {
    p[threadIdx.x] = table[threadIdx.x & 15];
    atomicAdd(&counter, numbers[1]);
    *third = 4;
}
extern "C" __global__ void __launch_bounds__(256, 2) bounded(float *p) { p[threadIdx.x] = 1; }
extern "C" __global__ void dynamic(float *p) {
    extern __shared__ float d[];
    d[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = d[blockDim.x - 1 - threadIdx.x];
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(float *p) { p[blockIdx.x] = 1; }
#endif
"""
PRINTING = b"""
extern "C" int printf(const char *, ...);
extern "C" __global__ void prints(int n) { printf("%d\\n", n); }
"""


@functools.cache
def library() -> str | None:
    """The path of nvrtc, if it is there: the system's, or that of the package from PyPI."""
    found = ctypes.util.find_library("nvrtc")
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    packaged = [path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.1*")]
    return found or next(map(str, packaged), None)


@functools.cache
def compiled(sm: int) -> Cubin:
    """The source for one architecture."""
    return Cubin(binary(sm))


@functools.cache
def binary(sm: int, source: bytes = SOURCE) -> bytes:
    """A file for one architecture."""
    path = library()
    assert path is not None
    nvrtc = ctypes.CDLL(path)
    program = ctypes.c_void_p()
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{sm}".encode())
    size = ctypes.c_size_t()
    if nvrtc.nvrtcCompileProgram(program, 1, options):
        pytest.skip(f"{path} does not compile for sm_{sm}")
    assert not nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    assert not nvrtc.nvrtcGetCUBIN(program, data)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return data.raw


needs_nvrtc = pytest.mark.skipif(library() is None, reason="nvrtc is not installed")
every_sm = pytest.mark.parametrize("sm", [80, 86, 89, 90, 100, 120])


@needs_nvrtc
@every_sm
def test_kernels(sm: int) -> None:
    cubin = compiled(sm)
    kernels = cubin.kernels
    assert cubin.sm == sm
    assert set(kernels) == {
        *("plain", "nothing", "tile", "barriers", "local", "constants", "bounded", "dynamic"),
        *(("clustered",) if sm >= 90 else ()),
    }
    assert (kernels["dynamic"].shared, kernels["dynamic"].barriers) == (1024, 1)
    plain, nothing = kernels["plain"], kernels["nothing"]
    assert [tuple(p) for p in plain.parameters] == [(0, 0, 8), (1, 8, 4), (2, 16, 8)]
    assert (plain.parameter_size, nothing.parameter_size) == (24, 0)
    assert kernels["tile"].shared == 2048
    assert plain.shared == nothing.shared == 1024
    assert (kernels["barriers"].barriers, kernels["tile"].barriers, plain.barriers) == (16, 1, 0)
    assert (kernels["local"].stack or 0) >= 800
    assert kernels["bounded"].max_threads == 256
    assert [bank.size for bank in kernels["constants"].banks if bank.number == 3] == [64]


@needs_nvrtc
@every_sm
def test_linking(sm: int) -> None:
    cubin = compiled(sm)
    address = 0x2_0000_0000
    image = cubin.link(address)
    places = {
        int.from_bytes(image[at : at + 8], "little") - address
        for bank in cubin.kernels["constants"].banks
        if bank.number == 4
        for at in range(bank.offset, bank.offset + bank.size, 8)
    }
    assert {cubin.variables["counter"], cubin.variables["third"]} <= places
    third = cubin.variables["third"]
    found = int.from_bytes(image[third : third + 8], "little")
    assert found == address + cubin.variables["numbers"] + 8


@needs_nvrtc
@pytest.mark.parametrize("sm", [86, 90, 120])
def test_what_only_the_vendors_runtime_has(sm: int) -> None:
    """printf is a function of the driver's; the error says whose symbol is missing."""
    with pytest.raises(GpuError, match="vprintf"):
        Cubin(binary(sm, PRINTING)).link(0x2_0000_0000)


@needs_nvrtc
@pytest.mark.parametrize("sm", [86, 90, 100, 120])
def test_damage(sm: int) -> None:
    """Cut anywhere, or with words replaced, a file is read or refused, and nothing else."""
    whole, draw = binary(sm), random.Random(sm)
    table = struct.unpack_from("<Q", whole, 40)[0]
    for size in draw.sample(range(len(whole)), 100):
        read(whole[:size])
    for _ in range(400):
        data = bytearray(whole)
        at = draw.choice([draw.randrange(64), table + draw.randrange(len(whole) - table - 8)])
        word = draw.choice([0, 1, len(data), 1 << 31, (1 << 64) - 1, draw.getrandbits(64)])
        data[at : at + 8] = word.to_bytes(8, "little")
        read(bytes(data))


def read(data: bytes) -> None:
    """Reads a file to the end, or raises what is raised on purpose."""
    try:
        cubin = Cubin(data)
        if cubin.image.data_size < 1 << 24:
            cubin.link(0x2_0000_0000)
        for kernel in cubin.kernels.values():
            kernel.local_size(stack=64)
    except GpuError:
        pass
