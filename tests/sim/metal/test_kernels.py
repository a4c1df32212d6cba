"""What kernels compute on the host, and what they must not do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu.core.errors import ConfigError
from gpu.sim.metal import engine
from gpu.sim.metal.engine import Engine
from gpu.sim.metal.library import MetalLibrary
from gpu.sim.simulation import Simulation
from sim.metal.kernels import SOURCE
from sim.metal.raw_metal import RawMetal, compile_msl, size

Broken = Callable[[str], str]


def run(metal: RawMetal, name: str, values: Any, threads: int, extra: bytes = b"") -> int:
    """Runs a kernel on one buffer, whose new contents go back; gives the command buffer."""
    pipeline, data = metal.pipeline(SOURCE, name), metal.buffer(values.nbytes)
    metal.floats(data, values.dtype)[:] = values.reshape(-1)
    buffer = metal.command_buffer()
    encoder = metal.encoder(buffer)
    metal.bind(encoder, pipeline, data)
    if extra:
        metal.set_bytes(encoder, extra, 1)
    metal.dispatch(encoder, size(len(values) // threads), size(threads))
    metal.end(encoder)
    metal.commit(buffer)
    metal.wait(buffer)
    values.reshape(-1)[:] = metal.floats(data, values.dtype)
    metal.release(pipeline, data)
    return buffer


def test_threads_are_told_where_they_are(metal: RawMetal) -> None:
    grid, shape = (7, 5, 3), (4, 3, 2)
    out, buffer = metal.buffer(7 * 5 * 3 * 28 * 4), metal.command_buffer()
    encoder = metal.encoder(buffer)
    metal.bind(encoder, metal.pipeline(SOURCE, "numbers"), out)
    name = "dispatchThreads:threadsPerThreadgroup:"
    metal.send(encoder, name, size(*grid), size(*shape), result=None)
    metal.end(encoder)
    metal.commit(buffer)
    assert metal.wait(buffer) == 4
    told = metal.floats(out, np.uint32).reshape(3, 5, 7, 28)
    for z, y, x in itertools.product(range(3), range(5), range(7)):
        at = (x, y, z)
        group = [a // b for a, b in zip(at, shape, strict=True)]
        mine = [a % b for a, b in zip(at, shape, strict=True)]
        here = [min(b, n - g * b) for n, b, g in zip(grid, shape, group, strict=True)]
        index = mine[0] + here[0] * (mine[1] + here[1] * mine[2])
        simds = -(-here[0] * here[1] * here[2] // 32)
        expected = [*at, *group, *mine, *here[:2], *shape, 2, 2, 2, *grid, index]
        expected += [index % 32, index // 32, 32, simds]
        assert told[z, y, x, :25].tolist() == expected


@pytest.mark.parametrize("threads", [2, 32, 96, 256])
def test_threads_wait_for_each_other(metal: RawMetal, threads: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(3 * threads).astype(np.float32)
    expected = values.reshape(3, threads)[:, ::-1].reshape(-1).copy()
    run(metal, "reversed", values, threads)
    assert np.array_equal(values, expected)


def test_all_is_watched_of_threadgroup_memory_where_that_of_another_kernel_was() -> None:
    engine, start = Engine(Simulation(0), compile_msl), 1 << 20
    for size_of_one in (16, 30_000, 64):
        made = engine._static_range(start, size_of_one)
        assert made.end - made.start == size_of_one
        assert engine._static[start].cells == made.cells
        assert engine._static[start].size >= size_of_one


@pytest.mark.parametrize("threads", [32, 128])
def test_simd_groups_exchange_values(metal: RawMetal, threads: int) -> None:
    values = np.arange(threads, dtype=np.uint32)
    run(metal, "partners", values, threads)
    assert np.array_equal(values, np.arange(threads) ^ 5)


def test_lanes_that_are_not_there_give_anything(metal: RawMetal) -> None:
    values = np.arange(10, dtype=np.uint32)
    run(metal, "partners", values, 10)
    expected = np.arange(10) ^ 5
    known = expected < 10
    assert np.array_equal(values[known], expected[known])
    assert (values[~known] != expected[~known]).any()


def test_vectors_and_bytes(metal: RawMetal, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 255, 64, np.uint8)
    expected = values + np.uint8(1)
    run(metal, "bytes", values, 64)
    assert np.array_equal(values, expected)
    floats = np.arange(64, dtype=np.float32)
    run(metal, "vectors", floats.reshape(16, 4), 16)
    assert np.array_equal(floats, np.arange(64) + 1)


def test_values_of_known_range_are_exchanged(metal: RawMetal) -> None:
    values = np.arange(100, 132, dtype=np.uint32)
    run(metal, "bounded", values, 32)
    assert np.array_equal(values, ((np.arange(32) ^ 4) + 100) % 49)


def test_many_bytes_are_written_at_once(raw: RawMetal, broken: Broken) -> None:
    data, pipeline = raw.buffer(4 * 96), raw.pipeline(SOURCE, "cleared")
    values = raw.floats(data, np.uint32)
    values[:] = 1
    raw.run(pipeline, [data], 1, 3)
    assert values.tolist() == [0] * 72 + [1] * 24
    raw.run(pipeline, [data], 1, 5)
    assert "write of 96 bytes" in broken("out-of-bounds")


def fails(metal: RawMetal, code: int, *arguments: Any) -> None:
    """A kernel is stopped, and the command buffer has an error."""
    buffer = run(metal, *arguments)
    assert metal.send(buffer, "status") == 5
    assert metal.error(buffer)[:2] == ("MTLCommandBufferErrorDomain", code)


@pytest.mark.parametrize("at", [16, -1, 1 << 20, -(1 << 28)])
def test_buffers_have_bounds(raw: RawMetal, broken: Broken, at: int) -> None:
    at_byte = np.int32(at).tobytes()
    fails(raw, 3, "beyond", np.zeros(16, np.float32), 1, at_byte)
    assert "write of 4 bytes" in broken("out-of-bounds")


def test_what_is_constant_is_not_written(raw: RawMetal, broken: Broken) -> None:
    buffer = raw.command_buffer()
    encoder = raw.encoder(buffer)
    raw.bind(encoder, raw.pipeline(SOURCE, "unconstant"))
    raw.set_bytes(encoder, b"abcd", 0)
    raw.dispatch(encoder, size(1), size(1))
    raw.end(encoder)
    raw.commit(buffer)
    assert raw.wait(buffer) == 5
    broken("write-to-constant")


def test_accesses_are_aligned(raw: RawMetal, broken: Broken) -> None:
    fails(raw, 3, "crooked", np.zeros(16, np.uint8), 1, np.int32(2).tobytes())
    broken("misaligned")


@pytest.mark.parametrize("at", [4, -1, 100])
def test_variables_of_a_thread_have_bounds(raw: RawMetal, broken: Broken, at: int) -> None:
    fails(raw, 3, "outside", np.zeros(16, np.float32), 1, np.int32(at).tobytes())
    broken("out-of-private")


@pytest.mark.parametrize("kernel", ["racing", "misfenced", "neighbours", "same"])
def test_threads_that_nothing_orders_race(raw: RawMetal, broken: Broken, kernel: str) -> None:
    run(raw, kernel, np.zeros(65, np.float32), 32)
    broken("kernel-race")


def test_a_barrier_orders_the_memory_that_it_names(metal: RawMetal) -> None:
    pipeline, data = metal.pipeline(SOURCE, "fenced"), metal.buffer(65 * 4)
    values = metal.floats(data)
    values[:] = np.arange(65)
    metal.run(pipeline, [data], 1, 64)
    assert np.array_equal(values[:64], np.arange(1, 65))


def test_threadgroups_are_ordered_by_nothing(raw: RawMetal, broken: Broken) -> None:
    pipeline, data = raw.pipeline(SOURCE, "fenced"), raw.buffer(129 * 4)
    raw.run(pipeline, [data], 2, 64)
    broken("kernel-race")


def test_threadgroup_memory_begins_with_nothing(raw: RawMetal, broken: Broken) -> None:
    values = np.zeros(64, np.float32)
    run(raw, "unwritten", values, 64)
    broken("uninitialised-threadgroup-memory")
    assert values[::2].any()  # but with what was there


@pytest.mark.parametrize("kernel", ["diverging", "two_barriers"])
def test_all_threads_are_at_one_barrier(raw: RawMetal, broken: Broken, kernel: str) -> None:
    fails(raw, 3, kernel, np.zeros(64, np.float32), 64)
    broken("barrier-divergence")


def test_threads_exchange_at_one_place(raw: RawMetal, broken: Broken) -> None:
    fails(raw, 3, "two_exchanges", np.zeros(32, np.uint32), 32)
    broken("simd-divergence")


def test_kernels_end(
    metal: RawMetal, library: MetalLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_BUDGET", 10_000)
    fails(metal, 2, "endless", np.zeros(64, np.float32), 1)
    assert "does not end" in library.faults[0]
    values = np.zeros(64, np.uint8)  # others go on
    run(metal, "bytes", values, 64)
    assert (values == 1).all()


@pytest.mark.parametrize(("name", "code"), [("hang", 2), ("page-fault:read", 3), ("reset", 1)])
def test_faults_on_purpose(name: str, code: int, seed: int) -> None:
    library = MetalLibrary(f"apple7,fault={name}@2", seed, compile=compile_msl)
    metal = RawMetal(library.address)
    values = np.zeros(64, np.uint8)
    with metal.pool():
        metal.start()
        assert metal.send(run(metal, "bytes", values, 64), "status") == 4
        fails(metal, code, "bytes", values, 64)
        assert metal.send(run(metal, "bytes", values, 64), "status") == 4
    assert not library.violations
    assert (values == 2).all()
    with pytest.raises(ConfigError, match="Metal has no fault 'lost-doorbell'"):
        MetalLibrary("apple7,fault=lost-doorbell", compile=compile_msl)


def test_memory_that_is_reached_by_address_is_declared(raw: RawMetal, broken: Broken) -> None:
    target, table = raw.buffer(64), raw.buffer(64)
    raw.floats(table, np.uint64)[0] = raw.send(target, "gpuAddress")
    for declares in (True, False):
        buffer = raw.command_buffer()
        encoder = raw.encoder(buffer)
        raw.bind(encoder, raw.pipeline(SOURCE, "followed"), table)
        if declares:
            raw.send(encoder, "useResource:usage:", target, 2, result=None)
        raw.dispatch(encoder, size(1), size(1))
        raw.end(encoder)
        raw.commit(buffer)
        assert raw.wait(buffer) == (4 if declares else 5)
    broken("out-of-bounds")
    assert raw.floats(target, np.uint32)[0] == 7
    raw_use = raw.encoder(raw.command_buffer())
    raw.send(raw_use, "useResource:usage:", target, 0, result=None)
    broken("resource-usage")
    raw.end(raw_use)


def test_fast_math_is_told_to_be_off(metal: RawMetal) -> None:
    results = []
    for fast in (False, True):
        options = metal.options(fast)
        library = metal.send(
            metal.device, "newLibraryWithSource:options:error:", metal.string(SOURCE), options, 0
        )
        function = metal.send(library, "newFunctionWithName:", metal.string("ratios"))
        make = "newComputePipelineStateWithFunction:error:"
        data = metal.buffer(16)
        metal.floats(data)[:] = np.inf
        metal.run(metal.send(metal.device, make, function, 0), [data], 1, 4)
        results.append(metal.floats(data).copy())
    assert np.isnan(results[0]).all()
    assert not np.isnan(results[1]).any()
