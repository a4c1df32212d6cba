"""What runs the threads of a grid on the host: native code, written in MSL as kernels are.

One threadgroup runs at a time, and of its threads one: each has a stack of its own, and they take
turns where they wait for each other, and at ends of loops now and then. Kernels call `access`
before each load and store. Of every four bytes the last write and read are kept, as the thread and
the stamp of the time since which nothing has ordered it with others; a barrier makes a new stamp of
the memory that it names. Who reads what another has written under a stamp that is not over, or
writes what another has accessed, races.
"""

from __future__ import annotations

import ctypes
from typing import Final

MOST_THREADS: Final = 1024
MOST_SIMDGROUPS: Final = 32
WORDS: Final = 40


class Thread(ctypes.Structure):
    """A thread: where it goes on, what it waits for, and the numbers that it is told."""

    _fields_ = (
        ("stack", ctypes.c_uint64),
        ("slot", ctypes.c_uint64),
        ("all", ctypes.c_uint64),
        ("state", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("distance", ctypes.c_uint32),
        ("site", ctypes.c_uint32),
        ("words", ctypes.c_uint32 * WORDS),
    )


class Range(ctypes.Structure):
    """Bytes that a kernel may access, and which of them it has read and written."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("origin", ctypes.c_uint64),
        ("cells", ctypes.c_uint64),
        ("low", ctypes.c_uint64 * 2),
        ("high", ctypes.c_uint64 * 2),
        ("base", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
    )


class Finding(ctypes.Structure):
    """What was noticed of an access; `kind` 0 for nothing."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("how", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("who", ctypes.c_uint32),
        ("other", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
    )


class Machine(ctypes.Structure):
    """All that the native code and the model share."""

    _fields_ = (
        ("host", ctypes.c_uint64),
        ("threads", ctypes.c_uint64),
        ("ranges", ctypes.c_uint64),
        ("ready", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64),
        ("entry", ctypes.c_uint64),
        ("stack_bytes", ctypes.c_uint64),
        ("random", ctypes.c_uint64),
        ("budget", ctypes.c_uint64),
        ("fault", Finding),
        ("race", Finding),
        ("range_count", ctypes.c_uint32),
        ("ready_count", ctypes.c_uint32),
        ("free_count", ctypes.c_uint32),
        ("current", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("live", ctypes.c_uint32),
        ("clock", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("group_number", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
        ("poison", ctypes.c_uint32),
        ("now", ctypes.c_uint32 * 2),
        ("simd_now", ctypes.c_uint32 * MOST_SIMDGROUPS),
        ("grid", ctypes.c_uint32 * 3),
        ("shape", ctypes.c_uint32 * 3),
        ("groups", ctypes.c_uint32 * 3),
    )


READ: Final = 0
WRITE: Final = 1
ATOMIC: Final = 2
DEVICE: Final = 0
CONSTANT: Final = 1
LOCAL: Final = 2
OUTSIDE: Final = 1
NOT_WRITABLE: Final = 2
MISALIGNED: Final = 3
PRIVATE_OUTSIDE: Final = 4
TIMEOUT: Final = 5
BARRIER_DIVERGED: Final = 6
SIMD_DIVERGED: Final = 7
RACE: Final = 8
UNINITIALISED: Final = 9
"""What `Finding.kind` may be."""

SOURCE: Final = """
#include <metal_stdlib>
using namespace metal;

struct Thread {
  ulong stack, slot, all;
  uint state, value, distance, site;
  uint words[40];
};
struct Range {
  ulong start, end, origin, cells, low[2], high[2];
  uint base, kind;
};
struct Cell { uint stamp; ushort who; uchar mask, flags; };
struct Finding { ulong address; uint kind, how, size, who, other, group; };
struct Machine {
  ulong host, threads, ranges, ready, free, arguments, entry, stack_bytes, random, budget;
  Finding fault, race;
  uint range_count, ready_count, free_count, current, count, live, clock, group, group_number;
  uint first, step, poison, now[2], simd_now[32], grid[3], shape[3], groups[3];
};
extern device Machine gpu_metal;
extern "C" void gpu_metal_switch(device ulong *from, ulong to);

enum { READ, WRITE, ATOMIC };
enum { DEVICE, CONSTANT, LOCAL };
enum { READY, ENDED, BARRIER, SIMD_BARRIER, EXCHANGE };
enum { OUTSIDE = 1, NOT_WRITABLE, MISALIGNED, PRIVATE_OUTSIDE, TIMEOUT, BARRIER_DIVERGED,
       SIMD_DIVERGED, RACE, UNINITIALISED };
enum { MANY = 0xffff, ATOMIC_FLAG = 1, WRITTEN_SHIFT = 4, DEVICE_MEMORY = 1, LOCAL_MEMORY = 2 };

static device Thread *thread_of(uint number) {
  return (device Thread *)gpu_metal.threads + number;
}

static uint drawn(uint most) {
  ulong x = gpu_metal.random;
  x ^= x << 13; x ^= x >> 7; x ^= x << 17;
  gpu_metal.random = x;
  return (uint)((x >> 11) % most);
}

static void note(device Finding *finding, uint kind, uint how, ulong address, uint size,
                 uint other) {
  if (finding->kind && (finding->kind != UNINITIALISED || kind != RACE)) return;
  finding->kind = kind; finding->how = how; finding->address = address; finding->size = size;
  finding->who = gpu_metal.current; finding->other = other;
  finding->group = gpu_metal.group_number;
}

static void leave() {
  gpu_metal_switch(&thread_of(gpu_metal.current)->stack, gpu_metal.host);
}

static void stop(uint kind, uint how, ulong address, uint size, uint other) {
  note(&gpu_metal.fault, kind, how, address, size, other);
  leave();
}

static void make_ready(uint number) {
  thread_of(number)->state = READY;
  ((device uint *)gpu_metal.ready)[gpu_metal.ready_count++] = number;
}

extern "C" device uint *gpu_metal_words() { return thread_of(gpu_metal.current)->words; }
extern "C" device ulong *gpu_metal_arguments() { return (device ulong *)gpu_metal.arguments; }

extern "C" void gpu_metal_end() {
  device Thread *me = thread_of(gpu_metal.current);
  me->state = ENDED;
  gpu_metal.live--;
  ((device ulong *)gpu_metal.free)[gpu_metal.free_count++] = me->slot;
  leave();
}

extern "C" void gpu_metal_tick() {
  if (!--gpu_metal.budget) stop(TIMEOUT, 0, 0, 0, 0);
  if (!drawn(64)) { make_ready(gpu_metal.current); leave(); }
}

static void wait(uint state, uint site, uint value, uint distance) {
  device Thread *me = thread_of(gpu_metal.current);
  me->state = state; me->site = site; me->value = value; me->distance = distance;
  leave();
}

extern "C" void gpu_metal_barrier(uint site, uint flags) { wait(BARRIER, site, 0, flags); }
extern "C" void gpu_metal_simdgroup_barrier(uint site, uint flags) {
  wait(SIMD_BARRIER, site, 0, flags);
}
extern "C" uint gpu_metal_exchange(uint site, uint value, uint distance) {
  thread_of(gpu_metal.current)->all = 0;
  wait(EXCHANGE, site, value, distance);
  return thread_of(gpu_metal.current)->value;
}

extern "C" void gpu_metal_gather(uint site, uint value, ulong all) {
  thread_of(gpu_metal.current)->all = all;
  wait(EXCHANGE, site, value, 0);
}

static bool is_unordered(uint stamp, uint other, uint base, uint kind) {
  uint me = gpu_metal.current;
  if (stamp < base) return false;
  if (stamp < gpu_metal.group) return true;
  if (other == me) return false;
  uint limit = gpu_metal.now[kind == LOCAL];
  if (other != MANY && other / 32 == me / 32 && gpu_metal.simd_now[me / 32] > limit)
    limit = gpu_metal.simd_now[me / 32];
  return stamp >= limit;
}

static void watch(device Range *range, ulong address, uint size, uint how) {
  uint me = gpu_metal.current, stamp = gpu_metal.now[range->kind == LOCAL];
  uint base = range->kind == LOCAL ? gpu_metal.group : range->base;
  if (gpu_metal.simd_now[me / 32] > stamp) stamp = gpu_metal.simd_now[me / 32];
  uint atomic = how == ATOMIC ? ATOMIC_FLAG : 0;
  for (ulong word = (address - range->origin) / 4; word * 4 + range->origin < address + size;
       word++) {
    ulong at = word * 4 + range->origin;
    uint low = address > at ? (uint)(address - at) : 0;
    uint high = address + size < at + 4 ? (uint)(address + size - at) : 4;
    uint mask = ((1u << high) - 1) & ~((1u << low) - 1);
    device Cell *written = (device Cell *)range->cells + 2 * word, *read = written + 1;
    if (range->kind == LOCAL && written->stamp < gpu_metal.group) written->mask = 0;
    if (range->kind == LOCAL && how == READ && (mask & ~(uint)(written->mask >> WRITTEN_SHIFT)))
      note(&gpu_metal.race, UNINITIALISED, how, address, size, 0);
    if ((written->mask & mask) && !(atomic & written->flags) &&
        is_unordered(written->stamp, written->who, base, range->kind))
      note(&gpu_metal.race, RACE, how, address, size, written->who);
    if (how == READ) {
      // What races with most of what may come is kept.
      if (read->stamp >= base && read->stamp < gpu_metal.group) continue;
      if (read->stamp != stamp || (read->who != MANY && !(read->mask & mask))) {
        read->stamp = stamp; read->who = me; read->mask = mask;
      } else if (read->who == me) {
        read->mask |= mask;
      } else if (read->who != MANY) {
        read->who = MANY; read->mask &= mask;
      }
      continue;
    }
    if ((read->mask & mask) && is_unordered(read->stamp, read->who, base, range->kind))
      note(&gpu_metal.race, RACE, how, address, size, read->who);
    bool mine = written->stamp == stamp && written->who == me && written->flags == atomic;
    uint before = written->mask >> WRITTEN_SHIFT;
    written->mask = ((before | mask) << WRITTEN_SHIFT) | mask | (mine ? written->mask & 15 : 0);
    written->stamp = stamp; written->who = me; written->flags = atomic;
  }
}

extern "C" void gpu_metal_access(ulong address, uint size, uint what) {
  uint how = what & 15, align = what >> 4;
  if (!size) return;
  if (!--gpu_metal.budget) stop(TIMEOUT, how, address, size, 0);
  ulong slot = thread_of(gpu_metal.current)->slot;
  if (address < slot && address >= slot - gpu_metal.stack_bytes) return;
  device Range *range = (device Range *)gpu_metal.ranges;
  device Range *end = range + gpu_metal.range_count;
  while (range < end && (address < range->start || address + size > range->end)) range++;
  if (range == end) stop(OUTSIDE, how, address, size, 0);
  if (how != READ && range->kind == CONSTANT) stop(NOT_WRITABLE, how, address, size, 0);
  if (address & (align - 1)) stop(MISALIGNED, how, address, size, align);
  uint writes = how != READ;
  if (address < range->low[writes]) range->low[writes] = address;
  if (address + size > range->high[writes]) range->high[writes] = address + size;
  if (range->cells) watch(range, address, size, how);
}

extern "C" void gpu_metal_private(ulong address, uint size, ulong start, ulong bytes, uint how) {
  if (address < start || address + size > start + bytes)
    stop(PRIVATE_OUTSIDE, how, address, size, 0);
}

static void start(uint number) {
  device Thread *me = thread_of(number);
  device ulong *free = (device ulong *)gpu_metal.free;
  me->slot = free[--gpu_metal.free_count];
  device ulong *top = (device ulong *)(me->slot - 64);
  for (uint i = 0; i < 6; i++) top[i] = 0;
  top[6] = gpu_metal.entry;
  me->stack = (ulong)top;
}


static void begin_group(uint which) {
  gpu_metal.group_number = which;
  uint at[3] = {which % gpu_metal.groups[0], which / gpu_metal.groups[0] % gpu_metal.groups[1],
                which / gpu_metal.groups[0] / gpu_metal.groups[1]};
  uint size[3];
  for (uint i = 0; i < 3; i++) {
    uint left = gpu_metal.grid[i] - at[i] * gpu_metal.shape[i];
    size[i] = left < gpu_metal.shape[i] ? left : gpu_metal.shape[i];
  }
  uint count = size[0] * size[1] * size[2];
  gpu_metal.count = gpu_metal.live = count;
  gpu_metal.ready_count = 0;
  gpu_metal.group = gpu_metal.now[0] = gpu_metal.now[1] = ++gpu_metal.clock;
  for (uint i = 0; i < 32; i++) gpu_metal.simd_now[i] = 0;
  for (uint i = 0; i < gpu_metal.range_count; i++) {
    device Range *range = (device Range *)gpu_metal.ranges + i;
    if (range->kind != LOCAL) continue;
    for (ulong byte = range->start; byte < range->end; byte++)
      *(device uchar *)byte = (uchar)gpu_metal.poison;
  }
  for (uint index = 0; index < count; index++) {
    device Thread *one = thread_of(index);
    device uint *words = one->words;
    uint mine[3] = {index % size[0], index / size[0] % size[1], index / size[0] / size[1]};
    for (uint i = 0; i < 3; i++) {
      words[i] = at[i] * gpu_metal.shape[i] + mine[i];
      words[3 + i] = at[i];
      words[6 + i] = mine[i];
      words[9 + i] = size[i];
      words[12 + i] = gpu_metal.shape[i];
      words[15 + i] = gpu_metal.groups[i];
      words[18 + i] = gpu_metal.grid[i];
    }
    words[21] = index;
    words[24] = index % 32;
    words[27] = index / 32;
    words[30] = words[33] = 32;
    words[36] = (count + 31) / 32;
    one->stack = 0;
    make_ready(index);
  }
}

static bool exchange_in(uint first, uint last) {
  uint site = 0, distance = 0, found = 0;
  for (uint i = first; i < last; i++) {
    device Thread *one = thread_of(i);
    if (one->state != EXCHANGE) continue;
    if (found && (one->site != site || one->distance != distance)) {
      gpu_metal.current = i;
      note(&gpu_metal.fault, SIMD_DIVERGED, 0, 0, 0, 0);
      return false;
    }
    found = 1; site = one->site; distance = one->distance;
  }
  if (!found) return false;
  uint values[32], active = 0;
  for (uint lane = 0; lane < 32; lane++) {
    bool there = first + lane < last && thread_of(first + lane)->state == EXCHANGE;
    values[lane] = there ? thread_of(first + lane)->value : drawn(0x7fffffff);
    active |= (uint)there << lane;
  }
  for (uint i = first; i < last; i++) {
    device Thread *one = thread_of(i);
    if (one->state != EXCHANGE) continue;
    device uint *all = (device uint *)one->all;
    for (uint lane = 0; all && lane < 32; lane++) all[lane] = values[lane];
    if (all) {
      all[32] = active; all[33] = i - first;
    } else {
      one->value = values[((i - first) ^ distance) & 31];
    }
    make_ready(i);
  }
  return true;
}

static bool meet(uint first, uint last, uint state) {
  uint arrived = 0, site = 0, flags = 0;
  for (uint i = first; i < last; i++) {
    device Thread *one = thread_of(i);
    if (one->state != state) continue;
    if (arrived++ && (one->site != site || one->distance != flags)) arrived = last + 1;
    site = one->site; flags = one->distance;
    gpu_metal.current = i;
  }
  if (!arrived) return false;
  if (arrived != last - first) {
    note(&gpu_metal.fault, BARRIER_DIVERGED, 0, 0, 0, 0);
    return false;
  }
  if (state == SIMD_BARRIER && flags) gpu_metal.simd_now[first / 32] = ++gpu_metal.clock;
  if (state == BARRIER && (flags & DEVICE_MEMORY)) gpu_metal.now[0] = ++gpu_metal.clock;
  if (state == BARRIER && (flags & LOCAL_MEMORY)) gpu_metal.now[1] = ++gpu_metal.clock;
  for (uint i = first; i < last; i++) make_ready(i);
  return true;
}

static bool go_on() {
  bool any = false;
  for (uint first = 0; first < gpu_metal.count && !gpu_metal.fault.kind; first += 32) {
    uint last = first + 32 < gpu_metal.count ? first + 32 : gpu_metal.count;
    any = exchange_in(first, last) || any;
  }
  for (uint first = 0; first < gpu_metal.count && !any && !gpu_metal.fault.kind; first += 32) {
    uint last = first + 32 < gpu_metal.count ? first + 32 : gpu_metal.count;
    any = meet(first, last, SIMD_BARRIER) || any;
  }
  return any || (!gpu_metal.fault.kind && meet(0, gpu_metal.count, BARRIER));
}

static void run_group() {
  while (gpu_metal.live && !gpu_metal.fault.kind) {
    if (!gpu_metal.ready_count) {
      if (!go_on()) return;
      continue;
    }
    device uint *ready = (device uint *)gpu_metal.ready;
    uint at = drawn(gpu_metal.ready_count), chosen = ready[at];
    ready[at] = ready[--gpu_metal.ready_count];
    gpu_metal.current = chosen;
    if (!thread_of(chosen)->stack) start(chosen);
    gpu_metal_switch(&gpu_metal.host, thread_of(chosen)->stack);
  }
}

extern "C" void gpu_metal_run() {
  uint total = gpu_metal.groups[0] * gpu_metal.groups[1] * gpu_metal.groups[2];
  uint at = gpu_metal.first;
  for (uint i = 0; i < total && !gpu_metal.fault.kind; i++) {
    begin_group(at);
    run_group();
    at = (uint)(((ulong)at + gpu_metal.step) % total);
  }
}
"""
_KEPT: Final = ("rbp", "rbx", "r12", "r13", "r14", "r15")
SWITCH: Final = """
define void @gpu_metal_switch(ptr %from, i64 %to) naked noinline {
  call void asm sideeffect
    "PUSH movq %rsp, (%rdi); movq %rsi, %rsp; POP retq", ""()
  unreachable
}
""".replace("PUSH", "".join(f"pushq %{name}; " for name in _KEPT)).replace(
    "POP", "".join(f"popq %{name}; " for name in reversed(_KEPT))
)
"""Goes on at another stack, whose address is `to`; this one's goes to `from`. System V, x86-64."""
