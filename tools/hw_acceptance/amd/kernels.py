"""The kernels of the steps, in LLVM IR, as llvmlite compiles them for any chip.

Each does one thing that a host can check; `tools.hw_acceptance.ladder.expected` says what it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.core.errors import Unsupported
from gpu.drivers.am.code.object import CodeObject, read_code_object
from gpu.hcq.args import ArgumentLayout
from tools.hw_acceptance.steplog import Unavailable

# What a kernel does not ask for, or LLVM has it given all of them. Ids it asks for by using them.
_UNUSED: Final = " ".join(
    f'"amdgpu-no-{name}"'
    for name in (
        *("dispatch-ptr", "queue-ptr", "dispatch-id", "heap-ptr", "lds-kernel-id"),
        *("hostcall-ptr", "default-queue", "completion-action", "multigrid-sync-arg"),
    )
)
_IDS: Final = " ".join(
    f'"amdgpu-no-{name}-id-{axis}"' for name in ("workgroup", "workitem") for axis in "xyz"
)
_NO_SIZES: Final = '"amdgpu-no-implicitarg-ptr"'
_PARTS: Final = {
    "workgroup": "declare i32 @llvm.amdgcn.workgroup.id.{axis}()",
    "workitem": "declare i32 @llvm.amdgcn.workitem.id.{axis}()",
}
_DECLARED: Final = "\n".join(
    [text.format(axis=axis) for text in _PARTS.values() for axis in "xyz"]
    + ["declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()"]
    + ["declare void @llvm.amdgcn.s.barrier()", "declare void @llvm.amdgcn.s.sleep(i32 immarg)"]
)
_MODULE: Final = """
{globals}
define amdgpu_kernel void @{name}({parameters}) #0 {{
{body}
}}
{declared}
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,1024" {attributes} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
"""
_OUT: Final = "ptr addrspace(1) %out"
_IN: Final = "ptr addrspace(1) %in"


def _module(
    name: str,
    parameters: str,
    body: str,
    attributes: str = f"{_IDS} {_NO_SIZES}",
    globals_: str = "",
) -> str:
    return _MODULE.format(
        name=name,
        parameters=parameters,
        body=body.strip("\n"),
        attributes=f"{_UNUSED} {attributes}",
        declared=_DECLARED,
        globals=globals_,
    )


_LOOP: Final = """
entry:
  %some = icmp ne i32 %n, 0
  br i1 %some, label %loop, label %end
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %at = zext i32 %i to i64
{body}
  %place = getelementptr i32, ptr addrspace(1) %out, i64 %at
  store i32 %value, ptr addrspace(1) %place
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
"""
_ADD: Final = """
  %pa = getelementptr i32, ptr addrspace(1) %a, i64 %at
  %pb = getelementptr i32, ptr addrspace(1) %b, i64 %at
  %va = load i32, ptr addrspace(1) %pa
  %vb = load i32, ptr addrspace(1) %pb
  %value = add i32 %va, %vb"""
_STORE: Final = """
  %second = getelementptr i32, ptr addrspace(1) %out, i64 1
  %third = getelementptr i32, ptr addrspace(1) %out, i64 3
  %narrow = zext i16 %small to i32
  store i32 %value, ptr addrspace(1) %out
  store i64 %wide, ptr addrspace(1) %second, align 4
  store i32 %narrow, ptr addrspace(1) %third
  ret void
"""


def _ids() -> str:
    """``%tx`` and on, ``%bx`` and on, ``%sx`` (sizes of groups) and on, ``%gx`` (groups) and on.

    Sizes lie in the hidden arguments of code objects of version 5: counts of groups as 32 bits from
    0 on, sizes as 16 bits from 12 on (LLVM, "User Guide for AMDGPU Backend", Kernel Arguments).
    """
    lines = ["  %hidden = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()"]
    for number, axis in enumerate("xyz"):
        lines += [
            f"  %t{axis} = call i32 @llvm.amdgcn.workitem.id.{axis}()",
            f"  %b{axis} = call i32 @llvm.amdgcn.workgroup.id.{axis}()",
            f"  %pg{axis} = getelementptr i8, ptr addrspace(4) %hidden, i64 {4 * number}",
            f"  %g{axis} = load i32, ptr addrspace(4) %pg{axis}",
            f"  %ps{axis} = getelementptr i8, ptr addrspace(4) %hidden, i64 {12 + 2 * number}",
            f"  %h{axis} = load i16, ptr addrspace(4) %ps{axis}",
            f"  %s{axis} = zext i16 %h{axis} to i32",
        ]
    return "\n".join(lines)


def _shape() -> str:
    lines = [_ids()]

    def value(name: str, text: str) -> None:
        lines.append(f"  %{name} = {text}")

    for name, (x, y, z), (sx, sy) in (
        ("block", ("bx", "by", "bz"), ("gx", "gy")),
        ("lane", ("tx", "ty", "tz"), ("sx", "sy")),
    ):
        value(f"{name}0", f"mul i32 %{sy}, %{z}")
        value(f"{name}1", f"add i32 %{y}, %{name}0")
        value(f"{name}2", f"mul i32 %{sx}, %{name}1")
        value(name, f"add i32 %{x}, %{name}2")
    for name, (x, y, z) in (("thread", ("tx", "ty", "tz")), ("group", ("bx", "by", "bz"))):
        value(f"{name}0", f"shl i32 %{y}, 10")
        value(f"{name}1", f"shl i32 %{z}, 20")
        value(f"{name}2", f"or i32 %{x}, %{name}0")
        value(name, f"or i32 %{name}2, %{name}1")
    value("threads0", "mul i32 %sx, %sy")
    value("threads", "mul i32 %threads0, %sz")
    value("first0", "mul i32 %block, %threads")
    value("first1", "add i32 %first0, %lane")
    value("first", "shl i32 %first1, 3")
    for number, name in enumerate(("thread", "group", "sx", "sy", "sz", "gx", "gy", "gz")):
        value(f"i{number}", f"add i32 %first, {number}")
        value(f"p{number}", f"getelementptr i32, ptr addrspace(1) %out, i32 %i{number}")
        lines.append(f"  store i32 %{name}, ptr addrspace(1) %p{number}")
    return "\n".join([*lines, "  ret void"])


_BARRIER: Final = """
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
"""
_SHARED: Final = f"""
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %b = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = shl i32 %b, 8
  %at = add i32 %first, %t
  %pin = getelementptr i32, ptr addrspace(1) %in, i32 %at
  %number = load i32, ptr addrspace(1) %pin
  %mine = getelementptr [256 x i32], ptr addrspace(3) @numbers, i32 0, i32 %t
  store i32 %number, ptr addrspace(3) %mine
  {_BARRIER}
  %back = sub i32 255, %t
  %other = getelementptr [256 x i32], ptr addrspace(3) @numbers, i32 0, i32 %back
  %last = load i32, ptr addrspace(3) %other
  %pout = getelementptr i32, ptr addrspace(1) %out, i32 %at
  store i32 %last, ptr addrspace(1) %pout
  br label %halve
halve:
  %half = phi i32 [128, %entry], [%next, %joined]
  {_BARRIER}
  %adds = icmp ult i32 %t, %half
  br i1 %adds, label %sum, label %joined
sum:
  %far = add i32 %t, %half
  %pfar = getelementptr [256 x i32], ptr addrspace(3) @numbers, i32 0, i32 %far
  %a = load i32, ptr addrspace(3) %mine
  %c = load i32, ptr addrspace(3) %pfar
  %total = add i32 %a, %c
  store i32 %total, ptr addrspace(3) %mine
  br label %joined
joined:
  %next = lshr i32 %half, 1
  %more = icmp ne i32 %next, 0
  br i1 %more, label %halve, label %tell
tell:
  {_BARRIER}
  %is_first = icmp eq i32 %t, 0
  br i1 %is_first, label %write, label %end
write:
  %sum_all = load i32, ptr addrspace(3) %mine
  %psum = getelementptr i32, ptr addrspace(1) %sums, i32 %b
  store i32 %sum_all, ptr addrspace(1) %psum
  br label %end
end:
  ret void
"""
_LOCAL: Final = """
entry:
  %own = alloca [64 x i32], addrspace(5)
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %b = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %b, %width
  %at = add i32 %first, %t
  br label %fill
fill:
  %i = phi i32 [0, %entry], [%i1, %fill]
  %pin = getelementptr i32, ptr addrspace(1) %in, i32 %i
  %number = load i32, ptr addrspace(1) %pin
  %moved = add i32 %number, %at
  %slot = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %i
  store volatile i32 %moved, ptr addrspace(5) %slot
  %i1 = add i32 %i, 1
  %filling = icmp ult i32 %i1, 64
  br i1 %filling, label %fill, label %stir
stir:
  %j = phi i32 [0, %fill], [%j1, %stir]
  %j7 = mul i32 %j, 7
  %to0 = add i32 %j7, %at
  %to = and i32 %to0, 63
  %j3 = mul i32 %j, 3
  %from = and i32 %j3, 63
  %pto = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %to
  %pfrom = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %from
  %x = load volatile i32, ptr addrspace(5) %pfrom
  %y = load volatile i32, ptr addrspace(5) %pto
  %z = add i32 %x, %y
  store volatile i32 %z, ptr addrspace(5) %pto
  %j1 = add i32 %j, 1
  %stirring = icmp ult i32 %j1, %rounds
  br i1 %stirring, label %stir, label %hash
hash:
  %k = phi i32 [0, %stir], [%k1, %hash]
  %sum = phi i32 [0, %stir], [%sum1, %hash]
  %pk = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %k
  %vk = load volatile i32, ptr addrspace(5) %pk
  %scaled = mul i32 %sum, 31
  %sum1 = add i32 %scaled, %vk
  %k1 = add i32 %k, 1
  %hashing = icmp ult i32 %k1, 64
  br i1 %hashing, label %hash, label %end
end:
  %pout = getelementptr i32, ptr addrspace(1) %out, i32 %at
  store i32 %sum1, ptr addrspace(1) %pout
  ret void
"""
_COPY: Final = f"""
entry:
{_ids()}
  %first0 = mul i32 %bx, %sx
  %first1 = add i32 %first0, %tx
  %first = zext i32 %first1 to i64
  %step0 = mul i32 %gx, %sx
  %step = zext i32 %step0 to i64
  %some = icmp ult i64 %first, %words
  br i1 %some, label %loop, label %end
loop:
  %i = phi i64 [%first, %entry], [%next, %loop]
  %pin = getelementptr i32, ptr addrspace(1) %in, i64 %i
  %value = load i32, ptr addrspace(1) %pin
  %pout = getelementptr i32, ptr addrspace(1) %out, i64 %i
  store i32 %value, ptr addrspace(1) %pout
  %next = add i64 %i, %step
  %more = icmp ult i64 %next, %words
  br i1 %more, label %loop, label %end
end:
  ret void
"""
_SPIN: Final = """
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %next = add i64 %i, 1
  call void @llvm.amdgcn.s.sleep(i32 1)
  %told = load atomic volatile i32, ptr addrspace(1) %in monotonic, align 4
  %goes_on = icmp eq i32 %told, 0
  %below = icmp ult i64 %next, %most
  %more = and i1 %goes_on, %below
  br i1 %more, label %loop, label %end
end:
  store i64 %next, ptr addrspace(1) %out
  ret void
"""
_ENDLESS: Final = """
entry:
  br label %loop
loop:
  call void @llvm.amdgcn.s.sleep(i32 1)
  br label %loop
"""
_X: Final = _IDS.replace('"amdgpu-no-workgroup-id-x"', "").replace('"amdgpu-no-workitem-id-x"', "")

SOURCES: Final[Mapping[str, str]] = {
    "nothing": _module("nothing", "", "  ret void"),
    "store": _module("store", f"{_OUT}, i32 %value, i64 %wide, i16 %small", _STORE),
    "shape": _module("shape", _OUT, _shape(), ""),
    "shared": _module(
        "shared",
        f"{_IN}, {_OUT}, ptr addrspace(1) %sums",
        _SHARED,
        f"{_X} {_NO_SIZES}",
        "@numbers = internal addrspace(3) global [256 x i32] poison, align 4",
    ),
    "local": _module(
        "local", f"{_IN}, {_OUT}, i32 %rounds, i32 %width", _LOCAL, f"{_X} {_NO_SIZES}"
    ),
    "copy": _module("copy", f"{_IN}, {_OUT}, i64 %words", _COPY, _X),
    "add": _module(
        "add",
        f"{_OUT}, ptr addrspace(1) %a, ptr addrspace(1) %b, i32 %n",
        _LOOP.format(body=_ADD),
    ),
    "fill": _module(
        "fill", f"{_OUT}, i32 %given, i32 %n", _LOOP.format(body="  %value = add i32 %given, 0")
    ),
    "spin": _module("spin", f"{_IN}, {_OUT}, i64 %most", _SPIN),
    "endless": _module("endless", "", _ENDLESS),
}
LAYOUTS: Final[Mapping[str, ArgumentLayout]] = {
    "nothing": ArgumentLayout(0, []),
    "store": ArgumentLayout(1, ["I", "Q", "H"]),
    "shape": ArgumentLayout(1, []),
    "shared": ArgumentLayout(3, []),
    "local": ArgumentLayout(2, ["I", "I"]),
    "copy": ArgumentLayout(2, ["Q"]),
    "add": ArgumentLayout(3, ["I"]),
    "fill": ArgumentLayout(1, ["i", "I"]),
    "spin": ArgumentLayout(2, ["Q"]),
    "endless": ArgumentLayout(0, []),
}
WRITTEN: Final[Mapping[str, tuple[int, ...]]] = {
    "store": (0,),
    "shape": (0,),
    "shared": (1, 2),
    "local": (1,),
    "copy": (1,),
    "add": (0,),
    "fill": (0,),
    "spin": (1,),
}


@cache
def compiled(name: str, chip: str) -> CodeObject:
    """A kernel for a chip. Raises Unavailable where llvmlite is missing or too old for it."""
    try:
        return read_code_object(AMDCompiler(chip).compile(SOURCES[name]))
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
