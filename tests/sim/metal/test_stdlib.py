"""More of Metal's library than the backend's kernels use, and templates, against numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from sim.metal.raw_metal import RawMetal

Array = npt.NDArray[Any]
_HEAD: Final = "#include <metal_stdlib>\nusing namespace metal;\n"
SOURCE: Final = (
    _HEAD
    + """
kernel void groups(device const uint *in [[buffer(0)]], device uint *out [[buffer(1)]],
                   uint at [[thread_position_in_grid]]) {
  uint x = in[at];
  device uint *one = out + 16 * at;
  one[0] = simd_sum(x); one[1] = simd_min(x); one[2] = simd_max(x); one[3] = simd_xor(x);
  one[4] = simd_prefix_exclusive_sum(x); one[5] = simd_prefix_inclusive_sum(x);
  one[6] = simd_shuffle(x, 5); one[7] = simd_shuffle_down(x, 3); one[8] = simd_shuffle_up(x, 2);
  one[9] = simd_broadcast_first(x); one[10] = simd_any(x == 7); one[11] = simd_all(x < 1000);
  one[12] = (ulong)simd_ballot(x & 1); one[13] = simd_shuffle_rotate_down(x, 9);
  one[14] = simd_shuffle_and_fill_up(x, x + 1, 4); one[15] = as_type<uint>(simd_sum((float)x));
}
kernel void wide(device const ulong *in [[buffer(0)]], device ulong *out [[buffer(1)]],
                 uint at [[thread_position_in_grid]]) {
  out[at] = simd_max(in[at]) ^ simd_shuffle_xor(in[at], 17);
}
kernel void added(device const uint *in [[buffer(0)]], device atomic_uint *out [[buffer(1)]],
                  uint at [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(out + in[at] % 5, in[at], memory_order_relaxed);
  atomic_fetch_max_explicit(out + 5, in[at], memory_order_relaxed);
}
kernel void multiplied(device const float *a [[buffer(0)]], device const half *b [[buffer(1)]],
                       device float *c [[buffer(2)]]) {
  threadgroup float held[64];
  simdgroup_float8x8 x, sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_half8x8 y;
  simdgroup_load(x, a, 10, ulong2(1, 2), true);
  simdgroup_load(y, b, 8);
  simdgroup_multiply_accumulate(sum, x, y, sum);
  simdgroup_store(sum, held, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(sum, held, 8);
  simdgroup_store(sum, c, 12, ulong2(3, 1));
}
"""
)
TEMPLATES: Final = (
    _HEAD
    + """
constant int shift [[function_constant(3)]];
template <typename T, typename U = T, int factor = 2>
[[kernel, max_total_threads_per_threadgroup(factor * 32)]] void turned(
    const device T *in [[buffer(0)]], device U *out [[buffer(1)]], constant int &more [[buffer(2)]],
    uint at [[thread_position_in_threadgroup]], uint count [[threads_per_threadgroup]]) {
  threadgroup U held[128];
  if constexpr (sizeof(T) > 2) {
    threadgroup int two[2];
    if (at < 2) two[at] = factor;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    held[at] = U(in[at]) * two[at % 2];
  } else {
    held[at] = U(in[at]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[at] = held[count - 1 - at] + U(more);
}
template <typename T> [[kernel]] void shifted(device T *out [[buffer(0)]]) { out[0] = T(shift); }
#define instantiate(name, ...) \\
  template [[host_name(name)]] [[kernel]] decltype(turned<__VA_ARGS__>) turned<__VA_ARGS__>;
instantiate("turned_float", float)
instantiate("turned_short", short, int, 3)
"""
)


def _run(metal: RawMetal, source: str, name: str, arrays: list[Array], threads: int) -> list[Array]:
    pipeline = metal.pipeline(source, name)
    assert pipeline
    buffers = [metal.buffer(each.nbytes) for each in arrays]
    for buffer, each in zip(buffers, arrays, strict=True):
        metal.floats(buffer, each.dtype)[:] = each.ravel()
    done = metal.run(pipeline, buffers, 1, threads)
    assert metal.send(done, "status") == 4, metal.error(done)
    found = [metal.floats(b, a.dtype).copy() for b, a in zip(buffers, arrays, strict=True)]
    metal.release(pipeline, *buffers)
    return found


def test_threads_of_a_simd_group_reduce_and_exchange(metal: RawMetal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 900, (2, 32)).astype(np.uint32)
    out = _run(metal, SOURCE, "groups", [x.ravel(), np.zeros(64 * 16, np.uint32)], 64)[1]
    found, lanes = out.reshape(2, 32, 16), np.arange(32)
    before = np.cumsum(x, 1) - x
    wanted = [
        x.sum(1), x.min(1), x.max(1), np.bitwise_xor.reduce(x, 1), before, before + x, x[:, 5],
        x[:, np.where(lanes < 29, lanes + 3, lanes)], x[:, np.where(lanes >= 2, lanes - 2, lanes)],
        x[:, 0], (x == 7).any(1), (x < 1000).all(1), ((x & 1) << lanes).sum(1),
        x[:, (lanes + 9) % 32], np.where(lanes < 4, x[:, lanes - 4] + 1, x[:, lanes - 4]),
        x.sum(1).astype(np.float32).view(np.uint32),
    ]  # fmt: skip
    for number, each in enumerate(wanted):
        told = np.broadcast_to(np.reshape(each, (2, -1)), (2, 32))
        np.testing.assert_array_equal(found[:, :, number], told, err_msg=str(number))


def test_words_of_64_bits_are_exchanged_whole(metal: RawMetal, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 1 << 63, 32).astype(np.uint64)
    found = _run(metal, SOURCE, "wide", [x, np.zeros_like(x)], 32)[1]
    np.testing.assert_array_equal(found, x.max() ^ x[np.arange(32) ^ 17])


def test_atomics(metal: RawMetal, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 1 << 20, 256).astype(np.uint32)
    found = _run(metal, SOURCE, "added", [x, np.zeros(6, np.uint32)], 256)[1]
    wanted = [x[x % 5 == i].sum() for i in range(5)]
    assert found.tolist() == [*map(int, wanted), int(x.max())]


def test_matrices_of_a_simd_group(metal: RawMetal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((10, 10)).astype(np.float32)
    b = rng.standard_normal((8, 8)).astype(np.float16)
    c = np.zeros((9, 12), np.float32)
    found = _run(metal, SOURCE, "multiplied", [a, b, c], 32)[2].reshape(9, 12)
    wanted = np.zeros((9, 12))
    wanted[1:, 3:11] = a[2:, 1:9].T @ b.astype(np.float32) + 1
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["turned_float", "turned_short"])
def test_a_template_has_a_kernel_for_each_instance(metal: RawMetal, seed: int, name: str) -> None:
    kinds = (np.float32, np.float32, 64) if name == "turned_float" else (np.int16, np.int32, 96)
    x = np.random.default_rng(seed).integers(-99, 99, kinds[2]).astype(kinds[0])
    arrays = [x, np.zeros(kinds[2], kinds[1]), np.array([5], np.int32)]
    found = _run(metal, TEMPLATES, name, arrays, kinds[2])[1]
    factor = 2 if name == "turned_float" else 1
    np.testing.assert_array_equal(found, x[::-1].astype(kinds[1]) * factor + 5)


def test_an_instance_takes_the_threads_that_its_attribute_says(metal: RawMetal) -> None:
    for name, most in (("turned_float", 64), ("turned_short", 96)):
        pipeline = metal.pipeline(TEMPLATES, name)
        assert metal.send(pipeline, "maxTotalThreadsPerThreadgroup") == most
        metal.release(pipeline)


def test_a_constant_that_nobody_gave_is_told(raw: RawMetal, broken: Callable[[str], str]) -> None:
    made = 'template [[host_name("s")]] [[kernel]] decltype(shifted<int>) shifted<int>;\n'
    library, error = raw.library(TEMPLATES + made)
    assert library and not error
    function = raw.send(library, "newFunctionWithName:", raw.string("s"))
    assert not function
    assert "shift" in broken("function-constants")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('template [[host_name("x")]] [[kernel]] decltype(other<int>) other<int>;', "no template"),
        (
            "template <int n> [[kernel, max_total_threads_per_threadgroup(n * m)]] void "
            "bad(device int *out [[buffer(0)]]) {}\n"
            'template [[host_name("x")]] [[kernel]] decltype(bad<2>) bad<2>;',
            "is no number: 2 . m",
        ),
    ],
)
def test_templates_that_are_not_understood_are_errors(
    metal: RawMetal, more: str, told: str
) -> None:
    library, error = metal.library(f"{_HEAD}{more}\n")
    assert not library
    assert re.search(told, metal.told(error)[2])
