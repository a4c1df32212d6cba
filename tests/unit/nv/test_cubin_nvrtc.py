"""Cubins that NVIDIA's compiler makes now, where its library is installed."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
from pathlib import Path

import pytest

from gpu.drivers.nv.cubin import Cubin

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
    path = library()
    assert path is not None
    nvrtc = ctypes.CDLL(path)
    program = ctypes.c_void_p()
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"k.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{sm}".encode())
    size = ctypes.c_size_t()
    if nvrtc.nvrtcCompileProgram(program, 1, options):
        pytest.skip(f"{path} does not compile for sm_{sm}")
    assert not nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    assert not nvrtc.nvrtcGetCUBIN(program, data)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Cubin(data.raw)


needs_nvrtc = pytest.mark.skipif(library() is None, reason="nvrtc is not installed")
every_sm = pytest.mark.parametrize("sm", [80, 86, 89, 90, 100, 120])


@needs_nvrtc
@every_sm
def test_kernels(sm: int) -> None:
    cubin = compiled(sm)
    kernels = cubin.kernels
    assert cubin.sm == sm
    assert set(kernels) == {
        *("plain", "nothing", "tile", "barriers", "local", "constants", "bounded")
    }
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
