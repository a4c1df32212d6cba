"""Kernels of MLX out of the wheel mlx-metal, each with what numpy says of it.

The wheel holds their source as headers, which MLX puts together and instantiates at run time; so
does this. One header is left out: it defines functions of bfloat by what Apple's compiler alone has
built in.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim.metal.raw_metal import RawMetal, size

Array = npt.NDArray[Any]
_ROOT: Final = "mlx/include/"
_KERNELS: Final = "mlx/backend/metal/kernels/"
_LEFT_OUT: Final = (f"{_KERNELS}bf16_math.h",)
_INCLUDED: Final = re.compile(r'^\s*#\s*include\s*"([^"]+)"[^\n]*$', re.MULTILINE)

Case = Callable[["Kernels", np.random.Generator], None]
CASES: Final[dict[str, Case]] = {}


def case(run: Case) -> Case:
    """Notes what a kernel is tried with."""
    CASES[run.__name__] = run
    return run


class Kernels:
    """Runs kernels of a wheel, whoever answers the messages."""

    def __init__(self, metal: RawMetal, wheel: Path):
        self.metal = metal
        self._wheel = wheel

    def source(self, headers: Sequence[str], instance: str) -> str:
        """A source with one instance of a template of a kernel, which is called `instance`."""
        seen = set(_LEFT_OUT)
        with zipfile.ZipFile(self._wheel) as opened:

            def text(name: str) -> str:
                if name in seen:
                    return ""
                seen.add(name)
                data = opened.read(_ROOT + name).decode().replace("#pragma once", "")
                return _INCLUDED.sub(lambda match: text(match[1]), data)

            parts = [text(_KERNELS + each) for each in ("utils.h", *headers)]
        made = f'template [[host_name("instance")]] [[kernel]] decltype({instance}) {instance};'
        return "\n".join(["#include <metal_stdlib>", "using namespace metal;", *parts, made, ""])

    def __call__(
        self,
        headers: Sequence[str],
        instance: str,
        arguments: Sequence[Array | bytes | None],
        groups: tuple[int, ...],
        threads: tuple[int, ...],
    ) -> list[Array]:
        """Runs a kernel on copies of arrays, and bytes; what the arrays hold then."""
        metal = self.metal
        pipeline = metal.pipeline(self.source(headers, instance), "instance")
        assert pipeline, instance
        buffers: dict[int, int] = {}
        command_buffer = metal.command_buffer()
        encoder = metal.encoder(command_buffer)
        metal.bind(encoder, pipeline)
        for index, given in enumerate(arguments):
            if isinstance(given, bytes):
                metal.set_bytes(encoder, given, index)
            elif given is not None:
                buffers[index] = metal.buffer(given.nbytes)
                metal.floats(buffers[index], given.dtype)[:] = given.ravel()
                told = "setBuffer:offset:atIndex:"
                metal.send(encoder, told, buffers[index], 0, index, result=None)
        metal.dispatch(encoder, size(*groups), size(*threads))
        metal.end(encoder)
        metal.commit(command_buffer)
        assert metal.wait(command_buffer) == 4, metal.error(command_buffer)
        results = []
        for index, buffer in buffers.items():
            given = arguments[index]
            assert isinstance(given, np.ndarray)
            results.append(metal.floats(buffer, given.dtype).reshape(given.shape).copy())
            metal.release(buffer)
        metal.release(pipeline)
        return results


def _int(value: int) -> bytes:
    return struct.pack("<i", value)


def _long(value: int) -> bytes:
    return struct.pack("<q", value)


def _rows(rng: np.random.Generator, most: int) -> Array:
    return rng.standard_normal((rng.integers(2, 5), rng.integers(33, most))).astype(np.float32) * 3


def _softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


@case
def softmax_single_row(run: Kernels, rng: np.random.Generator) -> None:
    x = _rows(rng, 700)
    threads = -(-x.shape[1] // 128) * 32
    given = x, np.zeros_like(x), _int(x.shape[1])
    found = run(["softmax.h"], "softmax_single_row<float>", given, x.shape[:1], (threads,))
    np.testing.assert_allclose(found[1], _softmax(x), rtol=1e-5, atol=1e-7)


@case
def softmax_looped(run: Kernels, rng: np.random.Generator) -> None:
    x = _rows(rng, 2000).astype(np.float16)
    given = x, np.zeros_like(x), _int(x.shape[1])
    # Which of its lanes have nothing to do is for no barrier to tell: as many as the sums have.
    found = run(["softmax.h"], "softmax_looped<half, float>", given, x.shape[:1], (1024,))
    wanted = _softmax(x.astype(np.float32))
    np.testing.assert_allclose(found[1], wanted, rtol=2e-3, atol=1e-4)


@case
def logsumexp(run: Kernels, rng: np.random.Generator) -> None:
    x = _rows(rng, 700)
    threads = -(-x.shape[1] // 128) * 32
    given = x, np.zeros(x.shape[0], np.float32), _int(x.shape[1])
    found = run(["softmax.h", "logsumexp.h"], "logsumexp<float>", given, x.shape[:1], (threads,))
    np.testing.assert_allclose(found[1], np.log(np.exp(x).sum(1)), rtol=1e-5)


def _product(run: Kernels, rng: np.random.Generator, transposed: bool) -> None:
    """Of whole blocks of results: at edges gemv writes some twice, and in gemv_t only some of the
    threads are at a barrier. The model tells of both, and what it tells of is no test of numbers.
    """
    rows, columns = (int(each) for each in rng.integers(40, 150, 2))
    rows, columns = (rows, columns // 32 * 32) if transposed else (rows // 16 * 16, columns)
    matrix = rng.standard_normal((rows, columns)).astype(np.float32)
    vector = rng.standard_normal(rows if transposed else columns).astype(np.float32)
    out = np.zeros(columns if transposed else rows, np.float32)
    sizes = _int(vector.size), _int(out.size), _int(columns)
    one, none = struct.pack("<f", 1.0), struct.pack("<f", 0.0)
    strides = _int(1), _long(0), _long(0), _long(0), _int(1)
    given = matrix, vector, np.zeros(1, np.float32), out, *sizes, one, none, _int(1), *strides
    # BM, BN, SM, SN, TM, TN: SIMD-groups, threads of one, elements of one
    shape = (1, 2, 8, 4, 4, 4) if transposed else (4, 1, 1, 32, 4, 4)
    height = shape[1] * shape[3] * shape[5] if transposed else shape[0] * shape[2] * shape[4]
    name = f"gemv{'_t' * transposed}<float, {', '.join(map(str, shape))}, false, false>"
    groups = (-(-out.size // height),)
    found = run(["gemv.h"], name, given, groups, (32, shape[1], shape[0]))
    wanted = matrix.T @ vector if transposed else matrix @ vector
    np.testing.assert_allclose(found[3], wanted, rtol=1e-4, atol=1e-4)


@case
def gemv(run: Kernels, rng: np.random.Generator) -> None:
    _product(run, rng, False)


@case
def gemv_t(run: Kernels, rng: np.random.Generator) -> None:
    _product(run, rng, True)


def _sorted(run: Kernels, rng: np.random.Generator, indices: bool) -> Array:
    x = _rows(rng, 500)
    out = np.zeros(x.shape, np.uint32 if indices else np.float32)
    length = x.shape[1]
    given = x, out, *map(_int, (length, 1, 1, length, length))
    name = f"block_sort<float, {'uint' if indices else 'float'}, {str(indices).lower()}, 128, 4>"
    found = run(["sort.h"], name, given, (1, x.shape[0]), (128,))[1]
    if indices:
        assert [set(row) for row in found] == [set(range(length))] * len(x)
        found = np.take_along_axis(x, found.astype(np.int64), 1)
    np.testing.assert_array_equal(found, np.sort(x, 1))
    return found


@case
def block_sort(run: Kernels, rng: np.random.Generator) -> None:
    _sorted(run, rng, False)


@case
def block_argsort(run: Kernels, rng: np.random.Generator) -> None:
    _sorted(run, rng, True)


@case
def contiguous_scan(run: Kernels, rng: np.random.Generator) -> None:
    x = rng.integers(-1000, 1000, (3, rng.integers(200, 900))).astype(np.int32)
    given = x, np.zeros_like(x), _long(x.shape[1])
    # 32 SIMD-groups: of fewer it reads sums that none has written, and uses none of them
    name = "contiguous_scan<int, int, CumSum<int>, 4, true, false>"
    found = run(["scan.h"], name, given, (1, x.shape[0], 1), (1024,))
    np.testing.assert_array_equal(found[1], np.cumsum(x, 1, dtype=np.int32))


@case
def reversed_scan_of_products(run: Kernels, rng: np.random.Generator) -> None:
    x = rng.uniform(0.9, 1.1, (2, rng.integers(100, 300))).astype(np.float32)
    given = x, np.zeros_like(x), _long(x.shape[1])
    name = "contiguous_scan<float, float, CumProd<float>, 4, false, true>"
    found = run(["scan.h"], name, given, (1, x.shape[0], 1), (1024,))
    after = np.cumprod(x[:, ::-1], 1)[:, ::-1]
    wanted = np.concatenate([after[:, 1:], np.ones((2, 1), np.float32)], 1)
    np.testing.assert_allclose(found[1], wanted, rtol=1e-5)


@case
def strided_scan(run: Kernels, rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (int(rng.integers(40, 120)), 32 * int(rng.integers(1, 3))))
    given = (
        x.astype(np.int32),
        np.zeros(x.shape, np.int32),
        *map(_long, (len(x), x.shape[1], x.shape[1] // 32)),
    )
    name = "strided_scan<int, int, CumMax<int>, 4, true, false>"
    found = run(["scan.h"], name, given, (1, x.shape[1] // 32, 1), (256,))
    np.testing.assert_array_equal(found[1], np.maximum.accumulate(x, 0))


def _multiplied(run: Kernels, rng: np.random.Generator, kind: Any, name: str) -> None:
    rows, columns, inner = 32, 32, 16
    m, n, k = (int(each) for each in rng.integers(20, 90, 3))
    transposed = bool(rng.integers(2))
    a = rng.standard_normal((m, k)).astype(kind)
    b = rng.standard_normal((n, k) if transposed else (k, n)).astype(kind)
    partitions = 2
    part = -(-k // partitions // inner) * inner
    tiles = -(-n // columns), -(-m // rows)
    params = struct.pack(
        "<13i",
        *(m, n, k, k, k if transposed else n, n, *tiles),
        *(partitions, m * n, part, 0, part // inner),
    )
    if part * partitions > k:  # then the last one has no whole part: one alone has all
        partitions, part = 1, k // inner * inner
        params = struct.pack(
            "<13i",
            *(m, n, k, k, k if transposed else n, n, *tiles),
            *(partitions, m * n, part, 0, part // inner),
        )
    split = np.zeros((partitions, m, n), np.float32)
    instance = (
        f"gemm_splitk<{name}, float, {rows}, {columns}, {inner}, 2, 2, false,"
        f" {str(transposed).lower()}, false, false>"
    )
    headers = ["steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_splitk.h"]
    found = run(headers, instance, (a, b, split, params), (*tiles, partitions), (32, 2, 2))[2]
    wanted = a.astype(np.float32) @ (b.T if transposed else b).astype(np.float32)
    np.testing.assert_allclose(found.sum(0), wanted, rtol=1e-3, atol=1e-3)
    given = found, np.zeros((m, n), np.float32), *map(_int, (partitions, m * n, n))
    total = run(headers, "gemm_splitk_accum<float, float>", given, (n, m), (1, 1))[1]
    np.testing.assert_allclose(total, wanted, rtol=1e-3, atol=1e-3)


@case
def gemm(run: Kernels, rng: np.random.Generator) -> None:
    _multiplied(run, rng, np.float32, "float")


@case
def gemm_of_halves(run: Kernels, rng: np.random.Generator) -> None:
    _multiplied(run, rng, np.float16, "half")


@case
def all_reduce(run: Kernels, rng: np.random.Generator) -> None:
    x = rng.standard_normal(int(rng.integers(500, 3000))).astype(np.float32)
    given = x, np.zeros(1, np.float32), _long(x.size), _long(x.size)
    headers = ["reduction/ops.h", "reduction/reduce_all.h"]
    found = run(["atomic.h", *headers], "all_reduce<float, float, Sum<float>>", given, (1,), (128,))
    np.testing.assert_allclose(found[1][0], x.sum(dtype=np.float64), rtol=1e-4, atol=1e-3)


@case
def arange(run: Kernels, rng: np.random.Generator) -> None:
    start, step = (int(each) for each in rng.integers(-50, 50, 2))
    given = _int(start), _int(step), np.zeros(100, np.int32)
    found = run(["arange.h"], "arange<int>", given, (100,), (1,))
    np.testing.assert_array_equal(found[0], start + step * np.arange(100))


@case
def unary_exp(run: Kernels, rng: np.random.Generator) -> None:
    x = rng.standard_normal(200).astype(np.float32)
    given = x, np.zeros_like(x), struct.pack("<I", x.size)
    found = run(["unary_ops.h", "unary.h"], "unary_v<float, float, Exp>", given, (25,), (4,))
    np.testing.assert_allclose(found[1], np.exp(x), rtol=1e-6)


@case
def binary_add(run: Kernels, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 123)).astype(np.float32)
    given = a, b, np.zeros_like(a), struct.pack("<I", a.size)
    found = run(["binary_ops.h", "binary.h"], "binary_vv<float, float, Add>", given, (62,), (1,))
    np.testing.assert_array_equal(found[2], a + b)
