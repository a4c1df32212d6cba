"""The kernels of the steps, in CUDA C: each does one thing that a host can check.

A kernel and its file have the same name.
"""

from __future__ import annotations

from typing import Final

NOTHING: Final = """
extern "C" __global__ void nothing() {}
"""

STORE: Final = """
// Parameters of several sizes, as constant bank 0 holds them.
extern "C" __global__ void store(unsigned *out, unsigned value, unsigned long long wide,
                                 unsigned short small) {
  out[0] = value;
  out[1] = (unsigned)wide;
  out[2] = (unsigned)(wide >> 32);
  out[3] = small;
}
"""

SHAPE: Final = """
// Each thread says where it is and how large block and grid are.
extern "C" __global__ void shape(unsigned *out) {
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned lane = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  unsigned *mine = out + 8 * (block * threads + lane);
  mine[0] = threadIdx.x | threadIdx.y << 10 | threadIdx.z << 20;
  mine[1] = blockIdx.x | blockIdx.y << 10 | blockIdx.z << 20;
  mine[2] = blockDim.x;
  mine[3] = blockDim.y;
  mine[4] = blockDim.z;
  mine[5] = gridDim.x;
  mine[6] = gridDim.y;
  mine[7] = gridDim.z;
}
"""

SHARED: Final = """
// Static shared memory and barriers: each block reverses its numbers, then adds all of them up.
extern "C" __global__ void shared(const unsigned *in, unsigned *reversed, unsigned *sums) {
  __shared__ unsigned numbers[256];
  unsigned at = blockIdx.x * 256 + threadIdx.x;
  numbers[threadIdx.x] = in[at];
  __syncthreads();
  reversed[at] = numbers[255 - threadIdx.x];
  for (unsigned half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) numbers[threadIdx.x] += numbers[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = numbers[0];
}
"""

DYNAMIC: Final = """
// Dynamic shared memory, and a named barrier beside barrier 0.
extern "C" __global__ void dynamic(const unsigned *in, unsigned *out, unsigned count) {
  extern __shared__ unsigned numbers[];
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
    numbers[i] = in[blockIdx.x * count + i];
  asm volatile("bar.sync 5, %0;" ::"r"(blockDim.x) : "memory");
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
    out[blockIdx.x * count + i] = numbers[count - 1 - i];
}
"""

LOCAL: Final = """
// An array that registers cannot hold, since its indices are known at run time alone.
extern "C" __global__ void local(const unsigned *in, unsigned *out, unsigned rounds) {
  unsigned numbers[64];
  unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned i = 0; i < 64; i++) numbers[i] = in[i] + at;
  for (unsigned i = 0; i < rounds; i++)
    numbers[(i * 7 + at) % 64] += numbers[(i * 3) % 64];
  unsigned sum = 0;
  for (unsigned i = 0; i < 64; i++) sum = sum * 31 + numbers[i];
  out[at] = sum;
}
"""

COPY: Final = """
// Copies words, where there is no copy engine or it is slower: where both places allow it four at
// a time, of which a thread has four on their way.
extern "C" __global__ void copy(const unsigned *in, unsigned *out, unsigned long long words) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x, i = first;
  bool aligned = ((unsigned long long)in | (unsigned long long)out) % sizeof(uint4) == 0;
  unsigned long long fours = aligned ? words / 4 : 0;
  const uint4 *from = (const uint4 *)in;
  uint4 *to = (uint4 *)out;
  for (; i + 3 * step < fours; i += 4 * step) {
    uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < fours; i += step) to[i] = from[i];
  for (i = 4 * fours + first; i < words; i += step) out[i] = in[i];
}
"""

ADD: Final = """
// Sums, of the suite of devices with queues, by one thread. Buffers may be the same.
extern "C" __global__ void add(int *out, const int *a, const int *b, unsigned n) {
  for (unsigned i = 0; i < n; i++) out[i] = a[i] + b[i];
}
"""

FILL: Final = """
// One value many times, likewise.
extern "C" __global__ void fill(int *out, int value, unsigned n) {
  for (unsigned i = 0; i < n; i++) out[i] = value;
}
"""

SPIN: Final = """
// Goes round until the host says stop, and never longer than so many nanoseconds or rounds.
extern "C" __global__ void spin(volatile unsigned *stop, unsigned *rounds,
                                unsigned long long nanoseconds, unsigned long long most) {
  unsigned long long began, now;
  unsigned count = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    count++;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (!*stop && now - began < nanoseconds && count < most);
  *rounds = count;
}
"""

TRAP: Final = """
// Ends in an error of its SM.
extern "C" __global__ void trap() { asm volatile("trap;"); }
"""

SOURCES: Final[dict[str, str]] = {
    "nothing": NOTHING,
    "store": STORE,
    "shape": SHAPE,
    "shared": SHARED,
    "dynamic": DYNAMIC,
    "local": LOCAL,
    "copy": COPY,
    "add": ADD,
    "fill": FILL,
    "spin": SPIN,
    "trap": TRAP,
}
"""The source of each kernel, by its name."""
ARCHITECTURES: Final = (80, 86, 89, 90, 100, 120)
"""What they are compiled for: one number for each generation of `gpu.drivers.nv.rm.classes`."""
