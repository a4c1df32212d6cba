"""Kernels for tests, in one source, which is compiled once."""

from __future__ import annotations

from typing import Final

SOURCE: Final = """
#include <metal_stdlib>
using namespace metal;

kernel void add(device const float *a, device const float *b, device float *c [[buffer(2)]],
                uint at [[thread_position_in_grid]]) {
  c[at] = a[at] + b[at];
}

kernel void scaled(device float *out [[buffer(0)]], constant float &factor [[buffer(1)]],
                   uint at [[thread_position_in_grid]]) {
  out[at] *= factor;
}

kernel void numbers(device uint *out [[buffer(0)]],
                    uint3 at [[thread_position_in_grid]],
                    uint3 group [[threadgroup_position_in_grid]],
                    ushort3 mine [[thread_position_in_threadgroup]],
                    uint2 shape [[threads_per_threadgroup]],
                    ushort3 whole [[dispatch_threads_per_threadgroup]],
                    uint3 groups [[threadgroups_per_grid]],
                    uint3 grid [[threads_per_grid]],
                    uint index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]],
                    uint width [[threads_per_simdgroup]],
                    ushort simds [[simdgroups_per_threadgroup]]) {
  device uint *one = out + 28 * (at.x + grid.x * (at.y + grid.y * at.z));
  one[0] = at.x; one[1] = at.y; one[2] = at.z;
  one[3] = group.x; one[4] = group.y; one[5] = group.z;
  one[6] = mine.x; one[7] = mine.y; one[8] = mine.z;
  one[9] = shape.x; one[10] = shape.y;
  one[11] = whole.x; one[12] = whole.y; one[13] = whole.z;
  one[14] = groups.x; one[15] = groups.y; one[16] = groups.z;
  one[17] = grid.x; one[18] = grid.y; one[19] = grid.z;
  one[20] = index; one[21] = lane; one[22] = simd; one[23] = width; one[24] = simds;
}

kernel void reversed(device float *data [[buffer(0)]],
                     uint group [[threadgroup_position_in_grid]],
                     uint at [[thread_position_in_threadgroup]],
                     uint count [[threads_per_threadgroup]]) {
  threadgroup float held[256];
  held[at] = data[group * count + at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  data[group * count + at] = held[count - 1 - at];
}

kernel void given(device float *data [[buffer(0)]], threadgroup float *held [[threadgroup(1)]],
                  uint at [[thread_position_in_threadgroup]]) {
  held[at] = data[at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  data[at] = held[at ^ 1];
}

kernel void partners(device uint *data [[buffer(0)]], uint at [[thread_position_in_threadgroup]]) {
  data[at] = simd_shuffle_xor(data[at], 5);
}

kernel void bounded(device uint *data [[buffer(0)]], uint at [[thread_position_in_threadgroup]]) {
  data[at] = simd_shuffle_xor((uint)(data[at] % 49), 4);  // LLVM knows its range
}

kernel void cleared(device uint *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  for (uint i = 0; i < 24; i++) data[24 * (ulong)at + i] = 0;  // LLVM makes one operation of it
}

[[max_total_threads_per_threadgroup(64)]] kernel void limited(device float *data [[buffer(0)]]) {}

kernel void large(device float *data [[buffer(0)]], uint at [[thread_position_in_threadgroup]]) {
  threadgroup float held[9000];
  held[at] = data[at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  data[at] = held[at + 1];
}

kernel void half_large(device float *data [[buffer(0)]], threadgroup float *more [[threadgroup(0)]],
                       uint at [[thread_position_in_threadgroup]]) {
  threadgroup float held[5000];
  held[at] = data[at];
  more[at] = data[at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  data[at] = held[at ^ 1] + more[at ^ 1];
}

kernel void vectors(device float4 *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  data[at] = data[at] + 1.0f;
}

// What kernels must not do.

kernel void beyond(device float *data [[buffer(0)]], constant int *at [[buffer(1)]]) {
  data[at[0]] = 1.0f;
}

kernel void crooked(device char *data [[buffer(0)]], constant int *at [[buffer(1)]]) {
  *(device int *)(data + at[0]) = 1;
}

kernel void unconstant(device int *data [[buffer(0)]]) { data[0] = 1; }

kernel void outside(device float *data [[buffer(0)]], constant int *at [[buffer(1)]]) {
  float own[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  for (int i = 0; i < 4; i++) own[i] += data[i];
  own[at[0]] = 3.0f;
  data[0] = own[at[0] & 3];
}

kernel void racing(device float *data [[buffer(0)]], uint at [[thread_position_in_threadgroup]]) {
  threadgroup float held[64];
  held[at] = data[at];
  data[at] = held[at ^ 1];
}

kernel void misfenced(device float *data [[buffer(0)]],
                      uint at [[thread_position_in_threadgroup]]) {
  threadgroup float held[64];
  held[at] = data[at];
  threadgroup_barrier(mem_flags::mem_device);
  data[at] = held[at ^ 1];
}

kernel void neighbours(device float *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  data[at] = data[at + 1];
}

kernel void fenced(device float *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  float next = data[at + 1];
  threadgroup_barrier(mem_flags::mem_device);
  data[at] = next;
}

kernel void bytes(device uchar *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  data[at] = (uchar)(data[at] + 1);
}

kernel void same(device uint *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  data[0] = at;
}

kernel void unwritten(device float *data [[buffer(0)]],
                      uint at [[thread_position_in_threadgroup]]) {
  threadgroup float held[64];
  if (at & 1) held[at] = data[at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  data[at] = held[at];
}

kernel void diverging(device float *data [[buffer(0)]],
                      uint at [[thread_position_in_threadgroup]]) {
  if (at < 7) return;
  threadgroup_barrier(mem_flags::mem_device);
  data[at] = 1.0f;
}

kernel void two_barriers(device float *data [[buffer(0)]],
                         uint at [[thread_position_in_threadgroup]]) {
  if (at < 7) {
    data[at] = 2.0f;
    threadgroup_barrier(mem_flags::mem_device);
    data[at] = 3.0f;
  } else {
    data[at] = 4.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    data[at] = 5.0f;
  }
}

kernel void two_exchanges(device uint *data [[buffer(0)]],
                          uint at [[thread_position_in_threadgroup]]) {
  if (at < 7) data[at] = simd_shuffle_xor(data[at], 1);
  else data[at] = simd_shuffle_xor(data[at], 2) + 1;
}

kernel void endless(volatile device float *data [[buffer(0)]]) {
  while (data[0] == 0.0f) data[1] = 1.0f;
}

kernel void followed(device ulong *table [[buffer(0)]]) { *(device uint *)table[0] = 7; }

kernel void ratios(device float *data [[buffer(0)]], uint at [[thread_position_in_grid]]) {
  data[at] = data[at] * 0.0f;
}
"""
