"""Small kernels in LLVM IR of the kind that compilers for GPUs write, with what numpy says.

Each case is an elementwise body over one index, or a whole kernel. Arguments are arrays; the last
one is the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
N = 256
BLOCK = 64

_DECLARATIONS = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32, i32, i32, i1)
declare i32 @llvm.amdgcn.readfirstlane.i32(i32)
declare i32 @llvm.amdgcn.readlane.i32(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.ballot.i32(i1)
declare i32 @llvm.amdgcn.permlanex16.i32(i32, i32, i32, i32, i1, i1)
declare i32 @llvm.amdgcn.ds.swizzle(i32, i32)
declare float @llvm.exp2.f32(float)
declare float @llvm.log2.f32(float)
declare float @llvm.sqrt.f32(float)
declare float @llvm.sin.f32(float)
declare float @llvm.amdgcn.rcp.f32(float)
declare float @llvm.fma.f32(float, float, float)
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.sqrt.f64(double)
declare float @llvm.floor.f32(float)
declare float @llvm.rint.f32(float)
declare float @llvm.minnum.f32(float, float)
declare float @llvm.maxnum.f32(float, float)
declare float @llvm.fabs.f32(float)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.ctlz.i32(i32, i1)
declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @llvm.bitreverse.i32(i32)
declare i32 @llvm.fshr.i32(i32, i32, i32)
declare i32 @llvm.amdgcn.sdot4(i32, i32, i32, i1)
declare i32 @llvm.amdgcn.udot4(i32, i32, i32, i1)
declare float @llvm.amdgcn.fdot2(<2 x half>, <2 x half>, float, i1)
declare <2 x half> @llvm.fma.v2f16(<2 x half>, <2 x half>, <2 x half>)
declare i32 @llvm.fptosi.sat.i32.f32(float)
declare <2 x half> @llvm.amdgcn.cvt.pkrtz(float, float)
declare i32 @llvm.smin.i32(i32, i32)
declare i32 @llvm.umax.i32(i32, i32)
@shared = internal addrspace(3) global [256 x float] undef, align 16
"""


@dataclass(frozen=True)
class Case:
    """A kernel and its oracle.

    Attributes:
        name: of the test.
        ir: the whole module; the kernel is ``k``.
        inputs: arrays in the order of the arguments.
        output: an array to start the output with.
        expect: the output, of the inputs.
        ulps: by how many units in the last place results may differ; 0 for exactly.
    """

    name: str
    ir: str
    inputs: Sequence[Array]
    output: Array
    expect: Callable[..., Array]
    ulps: float = 0


def module(parameters: str, body: str) -> str:
    return f"""{_DECLARATIONS}
define amdgpu_kernel void @k({parameters}) "amdgpu-flat-work-group-size"="1,64" {{
entry:
  %local = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %group, {BLOCK}
  %i = add i32 %start, %local
{body}
  ret void
}}
"""


def elementwise(kinds: Sequence[str], result: str, body: str) -> str:
    """`body` computes %r of %x0, %x1, ... ."""
    count = len(kinds)
    parameters = ", ".join(f"ptr addrspace(1) %p{n}" for n in range(count + 1))
    loads = "\n".join(
        f"  %a{n} = getelementptr {kind}, ptr addrspace(1) %p{n}, i32 %i\n"
        f"  %x{n} = load {kind}, ptr addrspace(1) %a{n}"
        for n, kind in enumerate(kinds)
    )
    store = (
        f"  %o = getelementptr {result}, ptr addrspace(1) %p{count}, i32 %i\n"
        f"  store {result} %r, ptr addrspace(1) %o"
    )
    return module(parameters, f"{loads}\n{body}\n{store}")


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def floats(kind: Any, low: float = -100, high: float = 100) -> Array:
    return _rng().uniform(low, high, N).astype(kind)


def integers(kind: Any, low: int | None = None, high: int | None = None, seed: int = 7) -> Array:
    info = np.iinfo(kind)
    first = int(info.min) if low is None else low
    last = int(info.max) if high is None else high
    return np.random.default_rng(seed).integers(first, last, N, dtype=kind, endpoint=True)


def zeros(kind: Any) -> Array:
    return np.zeros(N, kind)


def _truncated_divide(x: Array, y: Array) -> Array:
    wide = x.astype(object), y.astype(object)
    quotients = [
        abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(*wide, strict=True)
    ]
    return np.array(quotients, x.dtype)


def _cases() -> list[Case]:
    f32, f16, f64 = np.float32, np.float16, np.float64
    i32, u32, i64 = np.int32, np.uint32, np.int64
    a, b = floats(f32), floats(f32)[::-1].copy()
    h, g = floats(f16, -8, 8), floats(f16, -4, 4)[::-1].copy()
    d, e = floats(f64), floats(f64)[::-1].copy()
    m, n = integers(i32), integers(i32, 1, 1000, 3)
    big, small = integers(i64), integers(i64, 1, 10**10, 3)
    positive = floats(f32, 0.01, 50)
    fma = "%r = call float @llvm.fma.f32(float %x0, float %x1, float %s)"
    return [
        Case("f32", elementwise(["float", "float"], "float",
             f"  %s = fsub float %x0, %x1\n  {fma}"),
             [a, b], zeros(f32),
             lambda x, y: (x.astype(f64) * y + (x - y)).astype(f32)),
        Case("f32_div", elementwise(["float", "float"], "float", "  %r = fdiv float %x0, %x1"),
             [a, b], zeros(f32), lambda x, y: x / y),
        Case("f16", elementwise(["half", "half"], "half",
             "  %s = fadd half %x0, %x1\n  %t = fmul half %s, %x1\n  %r = fsub half %t, %x0"),
             [h, g], zeros(f16), lambda x, y: (x + y) * y - x),
        Case("f16_div", elementwise(["half", "half"], "half", "  %r = fdiv half %x0, %x1"),
             [h, g], zeros(f16), lambda x, y: x / y),
        Case("f64", elementwise(["double", "double"], "double",
             "  %s = fadd double %x0, %x1\n  %t = fmul double %s, %x1\n  %r = fdiv double %t, %x0"),
             [d, e], zeros(f64), lambda x, y: (x + y) * y / x),
        Case("f64_sqrt", elementwise(["double"], "double",
             "  %r = call double @llvm.sqrt.f64(double %x0)"),
             [np.abs(d)], zeros(f64), np.sqrt),
        Case("i32", elementwise(["i32", "i32"], "i32",
             "  %s = mul i32 %x0, %x1\n  %t = xor i32 %s, %x0\n  %u = lshr i32 %t, 3\n"
             "  %r = sub i32 %u, %x1"),
             [m, n], zeros(i32),
             lambda x, y: ((((x * y) ^ x).view(u32) >> 3).view(i32) - y)),
        Case("i64", elementwise(["i64", "i64"], "i64",
             "  %s = mul i64 %x0, %x1\n  %t = add i64 %s, %x1\n  %u = ashr i64 %t, 5\n"
             "  %r = sub i64 %u, %x0"),
             [big, small], zeros(i64), lambda x, y: ((x * y + y) >> 5) - x),
        Case("sdiv32", elementwise(["i32", "i32"], "i32", "  %r = sdiv i32 %x0, %x1"),
             [m, n], zeros(i32), _truncated_divide),
        Case("urem32", elementwise(["i32", "i32"], "i32", "  %r = urem i32 %x0, %x1"),
             [m.view(u32), n.view(u32)], zeros(u32), lambda x, y: x % y),
        Case("sdiv64", elementwise(["i64", "i64"], "i64", "  %r = sdiv i64 %x0, %x1"),
             [big, small], zeros(i64), _truncated_divide),
        Case("convert", elementwise(["float"], "i64",
             "  %h = fptrunc float %x0 to half\n  %w = fpext half %h to double\n"
             "  %s = fptosi double %w to i64\n  %t = sitofp i64 %s to float\n"
             "  %u = fptoui float %t to i32\n  %v = uitofp i32 %u to double\n"
             "  %r = fptosi double %v to i64"),
             [positive], zeros(i64), lambda x: np.trunc(x.astype(f16).astype(f64)).astype(i64)),
        Case("saturate", elementwise(["float"], "i32",
             "  %s = fmul float %x0, 1.0e+08\n"
             "  %r = call i32 @llvm.fptosi.sat.i32.f32(float %s)"),
             [a], zeros(i32),
             lambda x: np.clip((x * f32(1e8)).astype(f64), -2**31, 2**31 - 1).astype(i32)),
        Case("bits", elementwise(["i32"], "i32",
             "  %s = call i32 @llvm.ctpop.i32(i32 %x0)\n"
             "  %t = call i32 @llvm.ctlz.i32(i32 %x0, i1 false)\n"
             "  %u = call i32 @llvm.bitreverse.i32(i32 %x0)\n"
             "  %v = call i32 @llvm.cttz.i32(i32 %x0, i1 false)\n"
             "  %w = call i32 @llvm.fshr.i32(i32 %x0, i32 %u, i32 %s)\n"
             "  %y = add i32 %t, %v\n  %z = shl i32 %y, 3\n  %r = xor i32 %z, %w"),
             [m], zeros(i32), _bit_oracle),
        Case("select", elementwise(["i32", "i32"], "i32",
             "  %c = icmp slt i32 %x0, %x1\n  %d = icmp ugt i32 %x0, 77\n  %e = and i1 %c, %d\n"
             "  %s = select i1 %e, i32 %x0, i32 %x1\n"
             "  %t = call i32 @llvm.smin.i32(i32 %s, i32 500)\n"
             "  %r = call i32 @llvm.umax.i32(i32 %t, i32 %x1)"),
             [m, n], zeros(i32), _select_oracle),
        Case("rounding", elementwise(["float"], "float",
             "  %f = call float @llvm.floor.f32(float %x0)\n"
             "  %n = call float @llvm.rint.f32(float %x0)\n"
             "  %m = call float @llvm.minnum.f32(float %f, float %n)\n"
             "  %g = fneg float %m\n  %h = call float @llvm.fabs.f32(float %g)\n"
             "  %r = call float @llvm.maxnum.f32(float %h, float 3.0)"),
             [a], zeros(f32),
             lambda x: np.maximum(np.abs(np.minimum(np.floor(x), np.rint(x))), 3).astype(f32)),
        Case("exp", elementwise(["float"], "float", "  %r = call float @llvm.exp2.f32(float %x0)"),
             [a], zeros(f32), lambda x: np.exp2(x.astype(f64)).astype(f32), 1),
        Case("log", elementwise(["float"], "float", "  %r = call float @llvm.log2.f32(float %x0)"),
             [positive], zeros(f32), lambda x: np.log2(x.astype(f64)).astype(f32), 2),
        Case("sqrt", elementwise(["float"], "float", "  %r = call float @llvm.sqrt.f32(float %x0)"),
             [positive], zeros(f32), np.sqrt),
        Case("rcp", elementwise(["float"], "float",
             "  %r = call float @llvm.amdgcn.rcp.f32(float %x0)"),
             [a], zeros(f32), lambda x: (1 / x.astype(f64)).astype(f32), 1),
        Case("packed", elementwise(["<2 x half>", "<2 x half>"], "<2 x half>",
             "  %s = fmul <2 x half> %x0, %x1\n  %n = fneg <2 x half> %x1\n"
             "  %r = call <2 x half> @llvm.fma.v2f16(<2 x half> %s, <2 x half> %x0,"
             " <2 x half> %n)"),
             [np.tile(h, 2), np.tile(g, 2)], np.zeros(2 * N, f16), _packed_oracle),
        Case("packed_int", elementwise(["<2 x i16>", "<2 x i16>"], "<2 x i16>",
             "  %s = add <2 x i16> %x0, %x1\n  %t = mul <2 x i16> %s, %x1\n"
             "  %r = shl <2 x i16> %t, <i16 3, i16 5>"),
             [m.view(np.int16), n.view(np.int16)], np.zeros(2 * N, np.int16),
             lambda x, y: ((x + y) * y) << np.tile(np.array([3, 5], np.int16), N)),
        Case("dot4", elementwise(["i32", "i32"], "i32",
             "  %r = call i32 @llvm.amdgcn.udot4(i32 %x0, i32 %x1, i32 %x0, i1 false)"),
             [m, integers(i32, seed=9)], zeros(i32), _dot_oracle),
        Case("pkrtz", elementwise(["float"], "<2 x half>",
             "  %s = fmul float %x0, 3.0\n"
             "  %r = call <2 x half> @llvm.amdgcn.cvt.pkrtz(float %x0, float %s)"),
             [a], np.zeros(2 * N, f16), _toward_zero_oracle),
        Case("bytes", elementwise(["i8", "i16"], "i16",
             "  %s = sext i8 %x0 to i16\n  %t = add i16 %s, %x1\n  %r = mul i16 %t, 7"),
             [integers(np.int8), integers(np.int16)], zeros(np.int16),
             lambda x, y: (x.astype(np.int16) + y) * np.int16(7)),
    ]  # fmt: skip


def _toward_zero_oracle(x: Array) -> Array:
    both = np.stack([x, x * np.float32(3)], 1).reshape(-1)
    rounded = both.astype(np.float16)
    above = np.abs(rounded.astype(np.float32)) > np.abs(both)
    return np.where(above, np.nextafter(rounded, np.float16(0)), rounded)


def _packed_oracle(x: Array, y: Array) -> Array:
    s = x * y
    wide = s.astype(np.float64) * x.astype(np.float64) - y.astype(np.float64)
    return wide.astype(np.float16)


def _dot_oracle(x: Array, y: Array) -> Array:
    products = x.view(np.uint8).astype(np.int64) * y.view(np.uint8).astype(np.int64)
    return (products.reshape(-1, 4).sum(1) + x).astype(np.int32)


def _bit_oracle(x: Array) -> Array:
    result = []
    for value in x.view(np.uint32):
        word = int(value)
        text = f"{word:032b}"
        reverse = int(text[::-1], 2)
        zeros = len(text) - len(text.lstrip("0"))
        trailing = len(text) - len(text.rstrip("0"))
        count = text.count("1") % 32
        shifted = ((word << 32 | reverse) >> count) & 0xFFFFFFFF
        result.append(((zeros + trailing) << 3 ^ shifted) & 0xFFFFFFFF)
    return np.array(result, np.uint32).view(np.int32)


def _select_oracle(x: Array, y: Array) -> Array:
    chosen = np.where((x < y) & (x.view(np.uint32) > 77), x, y)
    least = np.minimum(chosen, 500)
    return np.maximum(least.view(np.uint32), y.view(np.uint32)).view(np.int32)


ELEMENTWISE = _cases()
