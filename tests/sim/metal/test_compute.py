"""Libraries, pipelines, and what a pass of kernels is given."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from gpu.sim.metal.library import MetalLibrary
from sim.metal.kernels import SOURCE
from sim.metal.raw_metal import P, Range, RawMetal, Size, compile_msl, size

Broken = Callable[[str], str]


def test_a_source_that_is_wrong_is_an_error(metal: RawMetal) -> None:
    library, error = metal.library("kernel void f(device float *a) {\n  a[0] = b;\n}")
    assert library == 0
    domain, code, text = metal.told(error)
    assert (domain, code) == ("MTLLibraryErrorDomain", 3)
    assert "source0:2:10: error: use of undeclared identifier 'b'" in text
    many = "[[max_total_threads_per_threadgroup(2048)]] kernel void f(device float *a) {}"
    library, error = metal.library(many)
    assert library == 0
    assert "2048" in metal.told(error)[2]
    library, error = metal.library("kernel void f(device float *a, uint b [[nonsense]]) {}")
    assert library == 0
    assert "nonsense" in metal.told(error)[2]


def test_libraries_have_kernels_by_name(metal: RawMetal) -> None:
    library, error = metal.library(SOURCE)
    assert error == 0
    names = metal.send(library, "functionNames")
    count = metal.send(names, "count")
    found = {metal.text(metal.send(names, "objectAtIndex:", i)) for i in range(count)}
    assert {"add", "numbers", "limited"} <= found
    assert metal.send(library, "newFunctionWithName:", metal.string("nonsense")) == 0
    function = metal.send(library, "newFunctionWithName:", metal.string("add"))
    assert metal.text(metal.send(function, "name")) == "add"


def test_pipelines_say_what_they_take(metal: RawMetal) -> None:
    names = ("maxTotalThreadsPerThreadgroup", "threadExecutionWidth")
    told = {
        kernel: [metal.send(metal.pipeline(SOURCE, kernel), name) for name in names]
        for kernel in ("add", "limited")
    }
    assert told == {"add": [1024, 32], "limited": [64, 32]}
    assert metal.send(metal.pipeline(SOURCE, "reversed"), "staticThreadgroupMemoryLength") == 1024


def test_threadgroup_memory_is_32_kib(raw: RawMetal, broken: Broken) -> None:
    library, error = raw.library(SOURCE)[0], P(0)
    function = raw.send(library, "newFunctionWithName:", raw.string("large"))
    make = "newComputePipelineStateWithFunction:error:"
    assert raw.send(raw.device, make, function, ctypes.addressof(error)) == 0
    assert "36000" in raw.told(error.value)[2]
    encoder = begin(raw, "half_large", raw.buffer(64))
    raw.send(encoder, "setThreadgroupMemoryLength:atIndex:", 16000, 0, result=None)
    raw.dispatch(encoder, size(1), size(16))
    broken("too-much-threadgroup-memory")
    raw.end(encoder)


def begin(metal: RawMetal, kernel: str, *buffers: int) -> int:
    encoder = metal.encoder(metal.command_buffer())
    metal.bind(encoder, metal.pipeline(SOURCE, kernel), *buffers)
    return encoder


def test_buffers_without_an_index_have_the_next_one(metal: RawMetal) -> None:
    a, b, c = (metal.buffer(40) for _ in range(3))
    metal.floats(a)[:], metal.floats(b)[:] = np.arange(10), 5
    metal.run(metal.pipeline(SOURCE, "add"), [a, b, c], 5, 2)
    assert np.array_equal(metal.floats(c), np.arange(10) + 5)


def test_a_dispatch_is_what_was_bound_when_it_was_encoded(metal: RawMetal) -> None:
    data, other, buffer = metal.buffer(64), metal.buffer(128), metal.command_buffer()
    metal.floats(data)[:] = metal.floats(other)[:] = 1
    encoder = metal.encoder(buffer)
    metal.bind(encoder, metal.pipeline(SOURCE, "scaled"), data)
    metal.set_bytes(encoder, np.float32(3).tobytes(), 1)
    metal.dispatch(encoder, size(1), size(16))
    metal.set_bytes(encoder, np.float32(5).tobytes(), 1)
    pointers, offsets = (ctypes.c_uint64 * 1)(other), (ctypes.c_uint64 * 1)(64)
    places = ctypes.addressof(pointers), ctypes.addressof(offsets)
    metal.send(encoder, "setBuffers:offsets:withRange:", *places, Range(0, 1), result=None)
    metal.dispatch(encoder, size(2), size(4))
    metal.send(encoder, "setBufferOffset:atIndex:", 0, 0, result=None)
    metal.dispatch(encoder, size(1), size(4))
    metal.end(encoder)
    metal.commit(buffer)
    assert metal.wait(buffer) == 4
    assert (metal.floats(data) == 3).all()
    assert metal.floats(other).tolist() == [5.0] * 4 + [1.0] * 12 + [5.0] * 8 + [1.0] * 8


def test_threadgroup_memory_of_the_pass(raw: RawMetal, broken: Broken) -> None:
    data, buffer = raw.buffer(256), raw.command_buffer()
    raw.floats(data)[:] = np.arange(64)
    encoder = raw.encoder(buffer)
    raw.bind(encoder, raw.pipeline(SOURCE, "given"), data)
    raw.dispatch(encoder, size(1), size(64))
    broken("no-threadgroup-memory")
    raw.send(encoder, "setThreadgroupMemoryLength:atIndex:", 100, 1, result=None)
    broken("threadgroup-alignment")
    raw.send(encoder, "setThreadgroupMemoryLength:atIndex:", 256, 1, result=None)
    raw.dispatch(encoder, size(1), size(64))
    raw.end(encoder)
    raw.commit(buffer)
    assert raw.wait(buffer) == 4
    assert np.array_equal(raw.floats(data), np.arange(64) ^ 1)


def test_bad_arguments(raw: RawMetal, broken: Broken) -> None:
    data = raw.buffer(64)
    encoder = raw.encoder(raw.command_buffer())
    raw.dispatch(encoder, size(1), size(1))
    broken("no-pipeline")
    raw.bind(encoder, raw.pipeline(SOURCE, "add"), data, data)
    raw.dispatch(encoder, size(1), size(1))
    assert "index 2" in broken("nothing-bound")
    raw.send(encoder, "setBuffer:offset:atIndex:", data, 64, 2, result=None)
    broken("out-of-range")
    raw.send(encoder, "setBuffer:offset:atIndex:", data, 0, 31, result=None)
    broken("argument-index")
    raw.send(encoder, "setBufferOffset:atIndex:", 0, 7, result=None)
    broken("nothing-bound")
    raw.send(encoder, "setBuffer:offset:atIndex:", data, 2, 2, result=None)
    raw.dispatch(encoder, size(1), size(1))
    broken("offset-alignment")
    raw.set_bytes(encoder, bytes(4097), 2)
    broken("set-bytes-length")
    raw.send(encoder, "setBytes:length:atIndex:", 0, 4, 2, result=None)
    broken("nil-argument")
    raw.send(encoder, "setBuffer:offset:atIndex:", data, 0, 2, result=None)
    raw.send(encoder, "setBuffer:offset:atIndex:", 0, 0, 2, result=None)
    raw.dispatch(encoder, size(1), size(1))
    broken("nothing-bound")
    raw.send(encoder, "memoryBarrierWithScope:", 0, result=None)
    broken("barrier-scope")
    raw.end(encoder)


@pytest.mark.parametrize(
    ("groups", "threads", "rule"),
    [
        (size(0), size(1), "grid-size"),
        (size(1 << 31), size(2), "grid-size"),
        (size(1), size(1025), "threadgroup-size"),
        (size(1), size(32, 32, 2), "threadgroup-size"),
        (size(1), size(1, 0), "grid-size"),
    ],
)
def test_grids_and_threadgroups_have_sizes(
    raw: RawMetal, broken: Broken, groups: Size, threads: Size, rule: str
) -> None:
    encoder = begin(raw, "bytes", raw.buffer(64))
    raw.dispatch(encoder, groups, threads)
    broken(rule)
    raw.end(encoder)


def test_a_kernel_says_how_many_threads_it_takes(raw: RawMetal, broken: Broken) -> None:
    encoder = begin(raw, "limited", raw.buffer(64))
    raw.dispatch(encoder, size(1), size(65))
    broken("threadgroup-size")
    raw.end(encoder)


@pytest.mark.parametrize("chip", ["apple9", "mac2"])
def test_constant_buffers_are_aligned_as_the_gpu_demands(chip: str, seed: int) -> None:
    library = MetalLibrary(chip, seed, compile=compile_msl)
    metal = RawMetal(library.address)
    with metal.pool():
        metal.start()
        encoder = begin(metal, "scaled", metal.buffer(64))
        metal.send(encoder, "setBuffer:offset:atIndex:", metal.buffer(64), 16, 1, result=None)
        metal.dispatch(encoder, size(1), size(1))
        metal.end(encoder)
    expected = ["offset-alignment"] if chip == "mac2" else []
    assert [each.split(":")[0] for each in library.violations] == expected


def passes(metal: RawMetal, kind: int, barrier: str = "") -> int:
    """Two kernels on the same bytes in a pass."""
    data, buffer = metal.buffer(64), metal.command_buffer()
    encoder = metal.encoder(buffer, kind)
    for number in range(2):
        metal.bind(encoder, metal.pipeline(SOURCE, "bytes"), data)
        metal.dispatch(encoder, size(2), size(32))
        if not number and barrier == "memoryBarrierWithScope:":
            metal.send(encoder, barrier, 1, result=None)
        elif not number and barrier:
            listed = (ctypes.c_uint64 * 1)(data)
            metal.send(encoder, barrier, ctypes.addressof(listed), 1, result=None)
    metal.end(encoder)
    metal.commit(buffer)
    metal.wait(buffer)
    return int(metal.floats(data, np.uint8).min())


def test_a_serial_pass_is_in_order(metal: RawMetal) -> None:
    assert passes(metal, 0) == 2


@pytest.mark.parametrize(
    "barrier", ["memoryBarrierWithScope:", "memoryBarrierWithResources:count:"]
)
def test_barriers_order_a_concurrent_pass(metal: RawMetal, barrier: str) -> None:
    assert passes(metal, 1, barrier) == 2


def test_a_concurrent_pass_is_in_no_order(raw: RawMetal, broken: Broken) -> None:
    passes(raw, 1)
    broken("kernel-race")


def test_options_of_a_compilation(raw: RawMetal, broken: Broken) -> None:
    options = raw.options()
    assert not raw.send(options, "fastMathEnabled", result=ctypes.c_bool)
    raw.send(options, "setMathMode:", 2, result=None)
    assert raw.send(options, "fastMathEnabled", result=ctypes.c_bool)
    raw.send(options, "setMathMode:", 3, result=None)
    broken("math-mode")
    raw.send(options, "setMathFloatingPointFunctions:", 1, result=None)
    raw.send(options, "setLanguageVersion:", 0x30001, result=None)
    assert raw.send(options, "languageVersion") == 0x30001
    raw.send(options, "setLanguageVersion:", 31, result=None)
    broken("language-version")
