"""Whole kernels in LLVM IR: loops, divergence, barriers, lanes, atomics, scratch, wide loads."""

from __future__ import annotations

import numpy as np

from sim.isa.kernels import BLOCK, Array, Case, N, floats, integers, module, zeros


def _cases() -> list[Case]:
    f32, i32 = np.float32, np.int32
    a = floats(f32)
    m = integers(i32)
    one = "ptr addrspace(1) %p0, ptr addrspace(1) %p1"
    load = (
        "  %a = getelementptr i32, ptr addrspace(1) %p0, i32 %i\n"
        "  %x = load i32, ptr addrspace(1) %a\n"
    )
    store = (
        "  %o = getelementptr i32, ptr addrspace(1) %p1, i32 %i\n"
        "  store i32 %r, ptr addrspace(1) %o"
    )
    return [
        Case("reduction", module(one, _REDUCTION), [a], np.zeros(N // BLOCK, f32),
             _reduction_oracle),
        Case("loop", module(one, load + _LOOP + store), [np.abs(m) % 50], zeros(i32),
             _loop_oracle),
        Case("divergent", module(one, load + _DIVERGENT + store), [m], zeros(i32),
             lambda x: np.where(x > 0, x * 3, np.where(x & 1, x ^ 5, x - 9)).astype(i32)),
        Case("bpermute", module(one, load +
             "  %n = sub i32 31, %local\n  %b = shl i32 %n, 2\n"
             "  %r = call i32 @llvm.amdgcn.ds.bpermute(i32 %b, i32 %x)\n" + store),
             [m], zeros(i32), lambda x: x.reshape(-1, 32)[:, ::-1].reshape(-1)),
        Case("swizzle", module(one, load +
             "  %r = call i32 @llvm.amdgcn.ds.swizzle(i32 %x, i32 1055)\n" + store),
             [m], zeros(i32), lambda x: x.reshape(-1, 2)[:, ::-1].reshape(-1)),
        Case("dpp_sum", module(one, load + _dpp_sum() + store), [m], zeros(i32), _dpp_oracle),
        Case("ballot", module(one, load +
             "  %c = icmp sgt i32 %x, 0\n  %s = call i32 @llvm.amdgcn.ballot.i32(i1 %c)\n"
             "  %t = call i32 @llvm.amdgcn.mbcnt.lo(i32 %s, i32 100)\n"
             "  %u = call i32 @llvm.amdgcn.readlane.i32(i32 %x, i32 5)\n"
             "  %v = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %x)\n"
             "  %w = xor i32 %u, %v\n  %r = add i32 %t, %w\n" + store),
             [m], zeros(i32), _ballot_oracle),
        Case("permlanex16", module(one, load +
             "  %r = call i32 @llvm.amdgcn.permlanex16.i32(i32 %x, i32 %x, i32 -1985229329,"
             " i32 -19088744, i1 true, i1 false)\n" + store),
             [m], zeros(i32), _permlane_oracle),
        Case("atomics", module(one, load + _ATOMICS), [m], np.zeros(8, i32), _atomic_oracle),
        Case("scratch", module(one, load + _SCRATCH + store), [np.abs(m)], zeros(i32),
             lambda x: (x % 16 * 7 + x).astype(i32)),
        Case("lds_transpose", module(one, load + _TRANSPOSE + store), [m], zeros(i32),
             lambda x: x.reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1)),
        Case("wide_loads", module(one, _WIDE), [np.arange(4 * N, dtype=f32)],
             np.zeros(4 * N, f32), lambda x: x.reshape(-1, 4)[:, ::-1].reshape(-1)),
        Case("switch", module(one, load + _SWITCH + store), [np.abs(m) % 6], zeros(i32),
             lambda x: np.array([10, 21, 32, 43, 99, 99], i32)[x]),
    ]  # fmt: skip


def _dpp_sum() -> str:
    """Adds over 16 lanes: row_shr 1, 2, 4, 8 with zeros shifted in."""
    lines, last = [], "%x"
    for step in (1, 2, 4, 8):
        lines.append(
            f"  %d{step} = call i32 @llvm.amdgcn.update.dpp.i32(i32 0, i32 {last},"
            f" i32 {0x110 + step}, i32 15, i32 15, i1 true)\n  %s{step} = add i32 {last}, %d{step}"
        )
        last = f"%s{step}"
    return "\n".join(lines) + f"\n  %r = add i32 {last}, 0\n"


def _dpp_oracle(x: Array) -> Array:
    return np.cumsum(x.reshape(-1, 16), 1, dtype=np.int32).reshape(-1)


def _ballot_oracle(x: Array) -> Array:
    rows = x.reshape(-1, 32)
    positive = (rows > 0).astype(np.int32)
    below = np.cumsum(positive, 1) - positive
    return (below + 100 + (rows[:, 5:6] ^ rows[:, :1])).astype(np.int32).reshape(-1)


def _permlane_oracle(x: Array) -> Array:
    selectors = [
        (0x89ABCDEF if lane < 8 else 0xFEDCBA98) >> 4 * (lane % 8) & 15 for lane in range(16)
    ]
    rows = x.reshape(-1, 2, 16)[:, ::-1, :]
    return rows[:, :, selectors].reshape(-1)


def _reduction_oracle(x: Array) -> Array:
    rows = x.reshape(-1, BLOCK).copy()
    half = BLOCK // 2
    while half:
        rows[:, :half] += rows[:, half : 2 * half]
        half //= 2
    return rows[:, 0]


def _loop_oracle(x: Array) -> Array:
    result = np.ones(len(x), np.int32)
    for index, count in enumerate(x):
        value = 1
        for step in range(int(count)):
            value = (value * 3 + step) & 0xFFFFFFFF
        result[index] = np.uint32(value).view(np.int32)
    return result


def _atomic_oracle(x: Array) -> Array:
    result = np.zeros(8, np.int32)
    result[0] = x.astype(np.int64).sum().astype(np.int32)
    result[1] = max(0, x.max())
    result[2] = np.bitwise_or.reduce(x)
    result[3] = (
        0xFFFFFFFF & int(x.view(np.uint32).max())
        if x.view(np.uint32).max() < 2**31
        else (x.view(np.uint32).max().view(np.int32))
    )
    result[4] = len(x)
    result[5] = len(x)
    return result


_LOOP = """
  br label %head
head:
  %n = phi i32 [ 0, %entry ], [ %n1, %body ]
  %v = phi i32 [ 1, %entry ], [ %v1, %body ]
  %more = icmp slt i32 %n, %x
  br i1 %more, label %body, label %done
body:
  %t = mul i32 %v, 3
  %v1 = add i32 %t, %n
  %n1 = add i32 %n, 1
  br label %head
done:
  %r = add i32 %v, 0
"""
_DIVERGENT = """
  %c = icmp sgt i32 %x, 0
  br i1 %c, label %then, label %else
then:
  %t = mul i32 %x, 3
  br label %join
else:
  %b = and i32 %x, 1
  %odd = icmp ne i32 %b, 0
  br i1 %odd, label %odds, label %evens
odds:
  %u = xor i32 %x, 5
  br label %join
evens:
  %w = sub i32 %x, 9
  br label %join
join:
  %r = phi i32 [ %t, %then ], [ %u, %odds ], [ %w, %evens ]
"""
_SWITCH = """
  switch i32 %x, label %other [ i32 0, label %c0
    i32 1, label %c1
    i32 2, label %c2
    i32 3, label %c3 ]
c0:
  br label %join
c1:
  br label %join
c2:
  br label %join
c3:
  br label %join
other:
  br label %join
join:
  %r = phi i32 [ 10, %c0 ], [ 21, %c1 ], [ 32, %c2 ], [ 43, %c3 ], [ 99, %other ]
"""
_REDUCTION = """
  %a = getelementptr float, ptr addrspace(1) %p0, i32 %i
  %x = load float, ptr addrspace(1) %a
  %s = getelementptr float, ptr addrspace(3) @shared, i32 %local
  store float %x, ptr addrspace(3) %s
  br label %head
head:
  %half = phi i32 [ 32, %entry ], [ %next, %tail ]
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %c = icmp slt i32 %local, %half
  br i1 %c, label %add, label %tail
add:
  %other = add i32 %local, %half
  %q = getelementptr float, ptr addrspace(3) @shared, i32 %other
  %y = load float, ptr addrspace(3) %q
  %z = load float, ptr addrspace(3) %s
  %sum = fadd float %z, %y
  store float %sum, ptr addrspace(3) %s
  br label %tail
tail:
  %next = lshr i32 %half, 1
  %more = icmp ne i32 %next, 0
  br i1 %more, label %head, label %last
last:
  %first = icmp eq i32 %local, 0
  br i1 %first, label %write, label %out
write:
  %total = load float, ptr addrspace(3) @shared
  %o = getelementptr float, ptr addrspace(1) %p1, i32 %group
  store float %total, ptr addrspace(1) %o
  br label %out
out:
"""
_TRANSPOSE = """
  %row = lshr i32 %local, 3
  %column = and i32 %local, 7
  %c8 = mul i32 %column, 8
  %to = add i32 %c8, %row
  %s = getelementptr i32, ptr addrspace(3) @shared, i32 %to
  store i32 %x, ptr addrspace(3) %s
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %l = getelementptr i32, ptr addrspace(3) @shared, i32 %local
  %r = load i32, ptr addrspace(3) %l
"""
_ATOMICS = """
  %z0 = atomicrmw add ptr addrspace(1) %p1, i32 %x monotonic
  %p4 = getelementptr i32, ptr addrspace(1) %p1, i32 1
  %z1 = atomicrmw max ptr addrspace(1) %p4, i32 %x syncscope("agent") monotonic
  %p8 = getelementptr i32, ptr addrspace(1) %p1, i32 2
  %z2 = atomicrmw or ptr addrspace(1) %p8, i32 %x syncscope("agent") monotonic
  %p12 = getelementptr i32, ptr addrspace(1) %p1, i32 3
  %z3 = atomicrmw umax ptr addrspace(1) %p12, i32 %x syncscope("agent") monotonic
  %p16 = getelementptr i32, ptr addrspace(1) %p1, i32 4
  %z4 = atomicrmw uinc_wrap ptr addrspace(1) %p16, i32 1000000 syncscope("agent") monotonic
  br label %try
try:
  %p20 = getelementptr i32, ptr addrspace(1) %p1, i32 5
  %old = load atomic i32, ptr addrspace(1) %p20 syncscope("agent") monotonic, align 4
  %new = add i32 %old, 1
  %pair = cmpxchg ptr addrspace(1) %p20, i32 %old, i32 %new syncscope("agent") monotonic monotonic
  %good = extractvalue { i32, i1 } %pair, 1
  br i1 %good, label %stop, label %try
stop:
"""
_SCRATCH = """
  %room = alloca [16 x i32], align 4, addrspace(5)
  br label %fill
fill:
  %n = phi i32 [ 0, %entry ], [ %n1, %fill ]
  %f = getelementptr i32, ptr addrspace(5) %room, i32 %n
  %v = mul i32 %n, 7
  store volatile i32 %v, ptr addrspace(5) %f
  %n1 = add i32 %n, 1
  %full = icmp eq i32 %n1, 16
  br i1 %full, label %use, label %fill
use:
  %k = urem i32 %x, 16
  %g = getelementptr i32, ptr addrspace(5) %room, i32 %k
  %w = load volatile i32, ptr addrspace(5) %g
  %r = add i32 %w, %x
"""
_WIDE = """
  %a = getelementptr <4 x float>, ptr addrspace(1) %p0, i32 %i
  %x = load <4 x float>, ptr addrspace(1) %a
  %y = shufflevector <4 x float> %x, <4 x float> poison, <4 x i32> <i32 3, i32 2, i32 1, i32 0>
  %o = getelementptr <4 x float>, ptr addrspace(1) %p1, i32 %i
  store <4 x float> %y, ptr addrspace(1) %o
"""


WHOLE = _cases()
