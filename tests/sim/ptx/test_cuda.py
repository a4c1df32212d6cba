"""Kernels in CUDA C, compiled by nvrtc, compared with numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpu.sim.isa.ptx.faults import WarpFault
from sim.ptx.cuda import cuda

K = 'extern "C" __global__ void'


@pytest.fixture(autouse=True)
def nvrtc(need: Callable[[str], None]) -> Iterator[None]:
    need("nvrtc")
    yield


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_matrix_product_with_tiles() -> None:
    source = (
        K
        + """ mm(const float* a, const float* b, float* c, int n) {
      __shared__ float s[16][17], t[16][17];
      int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
      float sum = 0;
      for (int k = 0; k < n; k += 16) {
        s[y][x] = a[row * n + k + x]; t[y][x] = b[(k + y) * n + col];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum = fmaf(s[y][i], t[i][x], sum);
        __syncthreads();
      }
      c[row * n + col] = sum;
    }"""
    )
    a, b = (rng(i).integers(-9, 9, (48, 48)).astype(np.float32) for i in range(2))
    c = np.zeros_like(a)
    cuda(source).run("mm", (3, 3, 1), (16, 16, 1), a, b, c, 48)
    assert np.array_equal(c, a @ b)


@pytest.mark.parametrize("threads", [32, 100, 256, 1024])
def test_reduction_through_shared_memory_and_atomics(threads: int) -> None:
    source = (
        K
        + """ total(const int* a, int* out, int n) {
      extern __shared__ int s[];
      int sum = 0, t = threadIdx.x;
      for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) sum += a[i];
      s[t] = sum;
      for (int half = 512; half; half >>= 1) {
        __syncthreads();
        if (t < half && t + half < blockDim.x) s[t] += s[t + half];
      }
      if (t == 0) { atomicAdd(out, s[0]); atomicMax(out + 1, s[0]); atomicMin(out + 2, s[0]); }
    }"""
    )
    a = rng().integers(-1000, 1000, 5000, dtype=np.int32)
    out = np.zeros(3, np.int32)
    cuda(source).run("total", (5, 1, 1), (threads, 1, 1), a, out, len(a), dynamic=4 * threads)
    sums = np.zeros(5, np.int64)
    for start in range(0, len(a), threads):
        sums[start // threads % 5] += a[start : start + threads].sum()
    assert (out == [a.sum(), max(0, sums.max()), min(0, sums.min())]).all()


def test_shuffles_and_votes() -> None:
    source = (
        K
        + """ lanes(const int* a, int* out) {
      int t = threadIdx.x, v = a[t];
      out[t] = __shfl_xor_sync(~0u, v, 5);
      out[32 + t] = __shfl_up_sync(~0u, v, 3, 16);
      out[64 + t] = __shfl_down_sync(~0u, v, 7);
      out[96 + t] = __shfl_sync(~0u, v, v & 31, 8);
      out[128 + t] = __ballot_sync(~0u, v & 1);
      out[160 + t] = __any_sync(~0u, v == 5) * 2 + __all_sync(~0u, v < 1000);
      out[192 + t] = __match_any_sync(~0u, v & 3);
      out[224 + t] = __reduce_add_sync(~0u, v);
      out[256 + t] = __reduce_max_sync(~0u, v);
      if (t % 3) out[288 + t] = __activemask(); else out[288 + t] = 0;
      out[320 + t] = __popc(__ballot_sync(~0u, v & 2)) + __ffs(v) + __clz(v) + __brev(v);
    }"""
    )
    a = rng().integers(0, 900, 32, dtype=np.int32)
    out = np.zeros((11, 32), np.int32)
    cuda(source).run("lanes", (1, 1, 1), (32, 1, 1), a, out)
    t = np.arange(32)
    ballot = sum(int(v & 1) << i for i, v in enumerate(a))
    groups = [sum(1 << i for i in range(32) if a[i] & 3 == v & 3) for v in a]
    off = sum(1 << i for i in range(32) if i % 3)
    two = sum(int(v >> 1 & 1) for v in a)
    bits = [
        two + (int(v & -v).bit_length()) + 32 - int(v).bit_length() + int(f"{v:032b}"[::-1], 2)
        for v in map(int, a)
    ]
    wanted = [
        *(a[t ^ 5], np.where(t % 16 < 3, a, a[t - 3]), np.where(t > 24, a, a[(t + 7) % 32])),
        *(a[t // 8 * 8 + a % 8], np.full(32, ballot), np.full(32, 2 * (5 in a) + 1), groups),
        *(np.full(32, a.sum()), np.full(32, a.max()), np.where(t % 3, off, 0), bits),
    ]
    for got, want in zip(out, wanted, strict=True):
        assert (got == np.array(want, np.int64).astype(np.int32)).all()


def test_divergent_loops() -> None:
    source = (
        K
        + """ collatz(const unsigned* a, unsigned* out) {
      unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = a[i], n = 0;
      while (v != 1) { if (v & 1) v = 3 * v + 1; else v >>= 1; if (++n > 200) break; }
      switch (i % 5) { case 0: n *= 2; break; case 1: n += 7; case 2: n ^= 5; break;
        case 3: return; }
      out[i] = n;
    }"""
    )
    a = rng().integers(1, 5000, 300, dtype=np.uint32)
    out = np.zeros(300, np.uint32)
    cuda(source).run("collatz", (3, 1, 1), (100, 1, 1), a, out)
    for i, start in enumerate(a):
        v, n = int(start), 0
        while v != 1:
            v = 3 * v + 1 if v & 1 else v >> 1
            n += 1
            if n > 200:
                break
        want = {0: 2 * n, 1: (n + 7) ^ 5, 2: n ^ 5, 3: 0, 4: n}[i % 5]
        assert out[i] == want, (i, start)


def test_local_arrays_and_calls() -> None:
    source = (
        """
    struct Pair { int first, second; };
    __device__ __noinline__ Pair turn(Pair p, int by) {
      for (int i = 0; i < by; i++) { int k = p.first; p.first = p.second + 1; p.second = k * 3; }
      return p;
    }"""
        + K
        + """ sort(const int* a, int* out) {
      int own[8], t = threadIdx.x;
      for (int i = 0; i < 8; i++) own[i] = a[8 * t + i];
      for (int i = 1; i < 8; i++)
        for (int j = i; j > 0 && own[j - 1] > own[j]; j--) {
          int k = own[j]; own[j] = own[j - 1]; own[j - 1] = k;
        }
      for (int i = 0; i < 8; i++) out[8 * t + i] = own[(i + t) & 7];
      Pair p = turn({own[t & 7], t}, t & 3);
      out[8 * t] = p.first - p.second;
    }"""
    )
    a = rng().integers(-99, 99, (64, 8), dtype=np.int32)
    out = np.zeros_like(a)
    cuda(source).run("sort", (1, 1, 1), (64, 1, 1), a, out)
    for t in range(64):
        row = np.sort(a[t])
        first, second = int(row[t & 7]), t
        for _ in range(t & 3):
            first, second = second + 1, first * 3
        want = np.roll(row, -(t & 7))
        assert out[t, 0] == first - second and (out[t, 1:] == want[1:]).all()


def test_recursion() -> None:
    """Quicksort of one's own array through pointers, and Ackermann's function."""
    source = (
        """
    __device__ __noinline__ void quick(int* a, int low, int high) {
      if (low >= high) return;
      int i = low, j = high, pivot = a[(low + high) / 2];
      while (i <= j) {
        while (a[i] < pivot) i++;
        while (a[j] > pivot) j--;
        if (i <= j) { int k = a[i]; a[i++] = a[j]; a[j--] = k; }
      }
      quick(a, low, j); quick(a, i, high);
    }
    __device__ __noinline__ int ack(int m, int n) {
      return m == 0 ? n + 1 : n == 0 ? ack(m - 1, 1) : ack(m - 1, ack(m, n - 1));
    }"""
        + K
        + """ sort(const int* a, int* out) {
      int own[24], t = threadIdx.x;
      for (int i = 0; i < 24; i++) own[i] = a[24 * t + i];
      quick(own, 0, 23 - t % 5);
      for (int i = 0; i < 24; i++) out[24 * t + i] = own[i];
      out[24 * t + 23] = ack(t & 1, t & 7);
    }"""
    )
    a = rng().integers(-99, 99, (64, 24), dtype=np.int32)
    out = np.zeros_like(a)
    cuda(source).run("sort", (1, 1, 1), (64, 1, 1), a, out)
    for t in range(64):
        count = 24 - t % 5
        want = np.concatenate([np.sort(a[t, :count]), a[t, count:]])
        want[23] = (t & 7) + 2 if t & 1 else (t & 7) + 1
        assert (out[t] == want).all()


def test_functions_by_address() -> None:
    """A table of functions, virtual functions, and one that is given to another."""
    source = (
        """
    struct Shape { int side; __device__ virtual int area() const = 0; };
    struct Square : Shape { __device__ int area() const override { return side * side; } };
    struct Line : Shape { __device__ int area() const override { return -side; } };
    typedef int (*Step)(int, int);
    __device__ __noinline__ int plus(int a, int b) { return a + b; }
    __device__ __noinline__ int minus(int a, int b) { return a - b; }
    __device__ __noinline__ int fold(Step step, const int* a, int n) {
      int total = 0;
      for (int i = 0; i < n; i++) total = step(total, a[i]);
      return total;
    }
    __device__ Step steps[2] = {plus, minus};"""
        + K
        + """ go(const int* a, int* out) {
      int t = threadIdx.x;
      Square square; Line line; square.side = line.side = a[t];
      const Shape* shape = t % 3 ? (const Shape*)&square : (const Shape*)&line;
      out[2 * t] = shape->area();
      out[2 * t + 1] = fold(steps[a[t] & 1], a + t, t % 4);
    }"""
    )
    a = rng().integers(-99, 99, 80, dtype=np.int32)
    out = np.zeros((64, 2), np.int32)
    cuda(source).run("go", (1, 1, 1), (64, 1, 1), a, out)
    for t in range(64):
        total = a[t : t + t % 4].sum() * (-1 if a[t] & 1 else 1)
        assert out[t].tolist() == [a[t] * a[t] if t % 3 else -a[t], total], t


def test_transcendental_functions() -> None:
    source = (
        K
        + """ math(const float* a, float* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; float x = a[i];
      out[8*i] = sinf(x); out[8*i+1] = cosf(x); out[8*i+2] = expf(x * 0.01f);
      out[8*i+3] = logf(fabsf(x)); out[8*i+4] = tanhf(x); out[8*i+5] = sqrtf(fabsf(x));
      out[8*i+6] = powf(fabsf(x), 0.3f); out[8*i+7] = erff(x);
    }"""
    )
    a = (rng().standard_normal(256) * 10.0 ** rng(1).integers(-3, 5, 256)).astype(np.float32)
    out = np.zeros((256, 8), np.float32)
    cuda(source).run("math", (2, 1, 1), (128, 1, 1), a, out)
    x = a.astype(np.float64)
    from math import erf

    size = np.abs(x)
    want = [
        np.sin(x),
        np.cos(x),
        np.exp((a * np.float32(0.01)).astype(np.float64)),
        np.log(size),
        np.tanh(x),
    ]
    want += [np.sqrt(size), size ** np.float64(np.float32(0.3)), np.array([erf(v) for v in x])]
    for column, exact in enumerate(want):
        error = np.abs(out[:, column] - exact) / np.maximum(np.abs(exact), 1e-3)
        good = np.abs(exact) < 3e38
        assert error[good].max() < 3e-6, column


def test_double_precision() -> None:
    source = (
        K
        + """ math(const double* a, double* out) {
      int i = threadIdx.x; double x = a[i], y = a[i + 32];
      out[i] = x / y; out[32 + i] = sqrt(fabs(x)); out[64 + i] = __drcp_rz(x);
      out[96 + i] = __dadd_ru(x, y); out[128 + i] = __dmul_rd(x, y); out[160 + i] = exp(x);
      out[192 + i] = (double)(long long)(x * 1e6) + (float)y;
    }"""
    )
    a = rng().standard_normal(64)
    out = np.zeros((7, 32))
    cuda(source).run("math", (1, 1, 1), (32, 1, 1), a, out)
    x, y = a[:32], a[32:]
    assert (out[0] == x / y).all() and (out[1] == np.sqrt(np.abs(x))).all()
    assert (np.abs(out[2]) <= np.abs(1 / x)).all() and np.allclose(out[2], 1 / x, rtol=3e-16)
    assert (out[3] >= x + y).all() and (out[4] <= x * y).all()
    assert np.allclose(out[5], np.exp(x), rtol=4e-16)
    assert (out[6] == np.trunc(x * 1e6) + y.astype(np.float32)).all()


def test_wide_integers() -> None:
    source = (
        K
        + """ wide(const unsigned long long* a, unsigned long long* out) {
      int i = threadIdx.x; unsigned long long x = a[i], y = a[i + 32] | 1; long long z = x;
      unsigned long long low, high;
      asm("{mad.lo.cc.u64 %0, %2, %3, %2; madc.hi.u64 %1, %2, %3, 0;}"
          : "=l"(low), "=l"(high) : "l"(x), "l"(y));
      out[i] = high; out[32 + i] = x / y; out[64 + i] = x % (y >> 40 | 1);
      out[96 + i] = z >> (y & 63); out[128 + i] = __umul64hi(x, y); out[160 + i] = __popcll(x);
      out[192 + i] = z / (long long)(y >> 33 | 1); out[224 + i] = (unsigned)x / (unsigned)y;
    }"""
    )
    a = rng().integers(0, 2**64, 64, dtype=np.uint64)
    out = np.zeros((8, 32), np.uint64)
    cuda(source).run("wide", (1, 1, 1), (32, 1, 1), a, out)
    for i in range(32):
        x, y = int(a[i]), int(a[i + 32]) | 1
        z = x - (1 << 64) if x >> 63 else x
        by = y >> 33 | 1
        quotient = abs(z) // by * (1 if z >= 0 else -1)
        want = [(x * y + x) >> 64, x // y, x % (y >> 40 | 1), z >> (y & 63), x * y >> 64]
        want += [x.bit_count(), quotient, (x % 2**32) // (y % 2**32)]
        assert [int(v) for v in out[:, i]] == [v % 2**64 for v in want]


def test_locks_between_threads_of_a_warp() -> None:
    source = (
        K
        + """ count(int* lock, int* value) {
      bool done = false;
      while (!done)
        if (atomicCAS(lock, 0, 1) == 0) { *(volatile int*)value += 1; __threadfence();
          atomicExch(lock, 0); done = true; }
    }
    """
        + K
        + """ wait(volatile int* flags, int* out) {
      int b = blockIdx.x;
      if (b != gridDim.x - 1) while (!flags[b + 1]) ;
      flags[b] = 1; out[b] = b;
    }"""
    )
    lock, value = np.zeros(1, np.int32), np.zeros(1, np.int32)
    cuda(source).run("count", (2, 1, 1), (96, 1, 1), lock, value)
    assert value[0] == 192
    flags, out = np.zeros(20, np.int32), np.zeros(20, np.int32)
    cuda(source).run("wait", (20, 1, 1), (1, 1, 1), flags, out)
    assert (out == np.arange(20)).all()


def test_counting_barriers() -> None:
    source = (
        K
        + """ meet(int* out) {
      int t = threadIdx.x;
      if (t > 80) return;
      if (t & 1) out[t] = t; else __syncwarp(0x55555555);
      out[t] = __syncthreads_count(t % 3 == 0);
      out[128 + t] = __syncthreads_or(t == 77) + 2 * __syncthreads_and(t < 81);
    }"""
    )
    out = np.zeros(256, np.int32)
    cuda(source, "sm_80").run("meet", (1, 1, 1), (96, 1, 1), out)
    assert (out[:81] == 27).all() and (out[128:209] == 3).all()


def test_halves_through_inline_assembly() -> None:
    source = (
        K
        + """ halves(const unsigned* a, unsigned* out) {
      int t = threadIdx.x; unsigned x = a[t], y = a[t + 32], r;
      asm("add.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); out[t] = r;
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); out[32 + t] = r;
      asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); out[64 + t] = r;
      asm("{.reg .pred p, q; setp.lt.f16x2 p|q, %1, %2; selp.u32 %0, 1, 0, p;\\n"
          "@q add.u32 %0, %0, 2;}" : "=r"(r) : "r"(x), "r"(y)); out[96 + t] = r;
    }"""
    )
    a = rng().standard_normal(128).astype(np.float16)
    out = np.zeros((4, 32), np.uint32)
    cuda(source).run("halves", (1, 1, 1), (32, 1, 1), a.view(np.uint32), out)
    x, y = a[:64], a[64:]
    for row, want in enumerate((x + y, x * y, np.maximum(x, y))):
        assert (out[row].view(np.float16) == want).all()
    less = (x < y).reshape(32, 2)
    assert (out[3] == less[:, 0] + 2 * less[:, 1]).all()


def test_faults_tell_where() -> None:
    source = K + """ store(int* a, int n) { if (threadIdx.x == 9) a[n] = 1; }"""
    a = np.zeros(4, np.int32)
    module = cuda(source)
    module.run("store", (1, 1, 1), (32, 1, 1), a, 3)
    assert a[3] == 1
    with pytest.raises(WarpFault, match=r"write of 4 bytes at 0x\w+ by lane 9") as caught:
        module.run("store", (1, 1, 1), (32, 1, 1), a, 1000)
    assert caught.value.access == "write" and caught.value.reason == "access"
    with pytest.raises(WarpFault, match="trap"):
        cuda(K + " stop() { __trap(); }").run("stop", (1, 1, 1), (1, 1, 1))
