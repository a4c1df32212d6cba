"""Programs as modules of LLVM IR: kernels of a GPU, or functions of the host.

Both are made of the same lines. On the host a phase is a function with a loop over the lanes of a
workgroup; what later phases need of a lane it leaves in memory. What the host's LLVM rounds twice
there (`half` by way of `float`) is done by functions of our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from sim.irprograms.memory import LANES
from sim.irprograms.program import Phase, Program

SLOT: Final = 32
"""Bytes that the host keeps for a value of a lane between two phases."""
SHARED_BYTES: Final = 16 * LANES
"""Bytes of a shared array on the host, whatever its type."""
POINTERS: Final = ("words", "doubles", "floats", "out", "sums")
"""Parameters of a kernel, before the i64 ``scalar``; the first three are only read."""
_NAMES: Final = re.compile(r"%[\w.]+").findall


@dataclass(frozen=True)
class Dialect:
    """How a GPU's LLVM IR spells what its instruction set decides.

    The scopes of atomics are left as AMD's: ``agent`` and ``workgroup``.

    Attributes:
        convention: calling convention of a kernel.
        attributes: of a kernel.
        lane, group: intrinsics for the ids, without arguments.
        barrier: lines at which the work-items of a workgroup meet.
        declared: declarations that those need.
        spaces: pointer types by the generator's words INPUT, GLOBAL, SHARED and PRIVATE.
        alloca: what follows the type of an alloca.
        avoid: operations to leave out, such as ``uadd.sat.i64``; say why where it is made.
    """

    convention: str
    attributes: str
    lane: str
    group: str
    barrier: tuple[str, ...]
    declared: tuple[str, ...]
    spaces: Mapping[str, str]
    alloca: str
    avoid: Set[str] = field(default_factory=frozenset)


def kernel_module(programs: Iterable[Program], dialect: Dialect) -> str:
    """A module with a kernel ``k<number>`` for each program, counted from 0."""
    heads: set[str] = set(dialect.declared)
    texts: list[str] = []
    for number, program in enumerate(programs):
        heads |= program.declared
        texts += _kernel(number, program, dialect)
    return "\n".join([*sorted(heads), *texts, ""])


def _kernel(number: int, program: Program, dialect: Dialect) -> Iterator[str]:
    spaces = dialect.spaces
    for place, kind in enumerate(program.shared):
        space = spaces["SHARED"].removeprefix("ptr ")
        yield (
            f"@k{number}.shared{place} = internal {space} global [{LANES} x {kind}] undef, align 16"
        )
    kinds = [spaces["INPUT"]] * 3 + [spaces["GLOBAL"]] * 2
    parameters = ", ".join(f"{kind} %{name}" for kind, name in zip(kinds, POINTERS, strict=True))
    yield (
        f"define {dialect.convention} void @k{number}({parameters}, i64 %scalar)"
        f" {dialect.attributes} {{"
    )
    yield "entry:"
    entry = [line for phase in program.phases for line in phase.entry]
    yield from (_spelled(line, spaces, dialect.alloca) for line in entry)
    yield f"  %lane = call i32 @{dialect.lane}()"
    yield f"  %group = call i32 @{dialect.group}()"
    yield f"  %start = mul i32 %group, {LANES}"
    yield "  %i = add i32 %start, %lane"
    for place in range(len(program.shared)):
        space = spaces["SHARED"]
        yield f"  %shared{place} = getelementptr i8, {space} @k{number}.shared{place}, i32 0"
    for place, phase in enumerate(program.phases):
        if place:
            yield from (f"  {line}" for line in dialect.barrier)
        yield f"  br label %phase{place}"
        yield f"phase{place}:"
        yield from (_spelled(line, spaces, "") for line in phase.lines)
    yield "  ret void\n}"


def _spelled(line: str, spaces: Mapping[str, str], alloca: str) -> str:
    for word, kind in spaces.items():
        line = line.replace(word, kind)
    return line.replace("ALLOCA", "alloca") + (alloca if "ALLOCA" in line else "")


_HOST_SPACES: Final = dict.fromkeys(("INPUT", "GLOBAL", "SHARED", "PRIVATE"), "ptr")


def host_module(programs: Iterable[Program]) -> str:
    """A module with a function ``h<program>.<phase>`` for each phase of each program.

    Its arguments are the addresses of `POINTERS`, the scalar, the addresses of `state_bytes` and
    of `SHARED_BYTES` for each shared array, and the number of the workgroup.
    """
    heads: set[str] = set()
    texts: list[str] = []
    for number, program in enumerate(programs):
        heads |= program.declared
        slots = _slots(program)
        for place in range(len(program.phases)):
            texts += _host_phase(number, program, place, slots)
    return "\n".join([*sorted(heads), *map(_exact, texts), _HELPERS, ""])


def state_bytes(program: Program) -> int:
    """Bytes that the host keeps for the lanes of a workgroup."""
    return max(1, len(_slots(program))) * SLOT * LANES


def _slots(program: Program) -> dict[str, tuple[int, str]]:
    """name -> (its slot, its type), of the values that a later phase uses."""
    found: dict[str, tuple[int, str]] = {}
    for place, phase in enumerate(program.phases[:-1]):
        later = {n for p in program.phases[place + 1 :] for line in p.lines for n in _NAMES(line)}
        for kind, name in phase.live:
            if name in later and name not in found and name not in ("%lane", "%group", "%i"):
                found[name] = (len(found), kind)
    return found


def _host_phase(
    number: int, program: Program, place: int, slots: Mapping[str, tuple[int, str]]
) -> Iterator[str]:
    phase = program.phases[place]
    pointers = ", ".join(f"ptr %{name}" for name in POINTERS)
    yield (
        f"define void @h{number}.{place}({pointers}, i64 %scalar, ptr %state, ptr %shared,"
        " i32 %group) {"
    )
    yield "entry:"
    yield from (_spelled(line, _HOST_SPACES, "") for line in phase.entry)
    yield f"  %start = mul i32 %group, {LANES}"
    for index in range(len(program.shared)):
        yield f"  %shared{index} = getelementptr i8, ptr %shared, i32 {index * SHARED_BYTES}"
    yield "  br label %each.lane"
    yield "each.lane:"
    yield f"  %lane = phi i32 [ 0, %entry ], [ %following, %phase{place}.end ]"
    yield "  %i = add i32 %start, %lane"
    yield f"  %mine = mul i32 %lane, {max(1, len(slots)) * SLOT}"
    yield "  %kept = getelementptr i8, ptr %state, i32 %mine"
    before = {name for earlier in program.phases[:place] for _, name in earlier.live}
    used = {name for line in phase.lines for name in _NAMES(line)}
    for name, (slot, kind) in slots.items():
        if name in before and name in used:
            yield f"  %kept{slot} = getelementptr i8, ptr %kept, i32 {slot * SLOT}"
            yield f"  {name} = load {kind}, ptr %kept{slot}"
    yield f"  br label %phase{place}"
    yield f"phase{place}:"
    yield from (_spelled(line, _HOST_SPACES, "") for line in phase.lines)
    yield f"  br label %phase{place}.end"
    yield f"phase{place}.end:"
    yield from _kept(phase, before, slots)
    yield "  %following = add i32 %lane, 1"
    yield f"  %unfinished = icmp ult i32 %following, {LANES}"
    yield "  br i1 %unfinished, label %each.lane, label %ended"
    yield "ended:\n  ret void\n}"


def _kept(phase: Phase, before: Set[str], slots: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Stores of what a phase has made and a later one uses."""
    for kind, name in phase.live:
        if name in slots and name not in before:
            slot = slots[name][0]
            yield f"  %keep{slot} = getelementptr i8, ptr %kept, i32 {slot * SLOT}"
            yield f"  store {kind} {name}, ptr %keep{slot}"


_CALLS: Final = (
    (re.compile(r"@llvm\.fma\.(f16|v2f16|v4f16)\("), r"@exact.fma.\1("),
    (re.compile(r"fptrunc double (\S+) to half"), r"call half @exact.trunc.f16(double \1)"),
    (
        re.compile(r"fptrunc <2 x double> (\S+) to <2 x half>"),
        r"call <2 x half> @exact.trunc.v2f16(<2 x double> \1)",
    ),
)


def _exact(line: str) -> str:
    for pattern, call in _CALLS:
        line = pattern.sub(call, line)
    return line


# Rounding to odd first keeps the second rounding right (Boldo and Melquiond, "Emulation of FMA and
# Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd", 2008). The product of two halves
# is exact in a double; the error of the sum is that of Knuth's TwoSum.
_EXACT: Final = """
define internal half @exact.trunc.f16(double %x) {
  %bits = bitcast double %x to i64
  %low = and i64 %bits, 536870911
  %inexact = icmp ne i64 %low, 0
  %sticky = select i1 %inexact, i64 536870912, i64 0
  %high = and i64 %bits, -536870912
  %odd = or i64 %high, %sticky
  %wide = bitcast i64 %odd to double
  %single = fptrunc double %wide to float
  %r = fptrunc float %single to half
  ret half %r
}
define internal half @exact.fma.f16(half %x, half %y, half %z) {
  %a = fpext half %x to double
  %b = fpext half %y to double
  %c = fpext half %z to double
  %p = fmul double %a, %b
  %s = fadd double %p, %c
  %c1 = fsub double %s, %p
  %p1 = fsub double %s, %c1
  %ec = fsub double %c, %c1
  %ep = fsub double %p, %p1
  %e = fadd double %ec, %ep
  %bits = bitcast double %s to i64
  %even = trunc i64 %bits to i1
  %off = fcmp one double %e, 0.0
  %keep = xor i1 %even, true
  %change = and i1 %off, %keep
  %up = fcmp ogt double %e, 0.0
  %plus = fcmp ogt double %s, 0.0
  %out = icmp eq i1 %up, %plus
  %step = select i1 %out, i64 1, i64 -1
  %amount = select i1 %change, i64 %step, i64 0
  %moved = add i64 %bits, %amount
  %odd = bitcast i64 %moved to double
  %r = call half @exact.trunc.f16(double %odd)
  ret half %r
}
"""


def _by_element(name: str, operands: int, source: str, size: int) -> Iterator[str]:
    """A function on vectors that calls one of their elements for each."""
    kinds = [f"<{size} x {source}> %{place}" for place in "abc"[:operands]]
    yield f"define internal <{size} x half> @{name}.v{size}f16({', '.join(kinds)}) {{"
    last = "zeroinitializer"
    for lane in range(size):
        for kind in kinds:
            value = kind.split("%")[1]
            yield f"  %{value}{lane} = extractelement {kind}, i32 {lane}"
        items = ", ".join(f"{source} %{place}{lane}" for place in "abc"[:operands])
        yield f"  %r{lane} = call half @{name}.f16({items})"
        yield f"  %v{lane} = insertelement <{size} x half> {last}, half %r{lane}, i32 {lane}"
        last = f"%v{lane}"
    yield f"  ret <{size} x half> {last}\n}}"


_HELPERS: Final = "\n".join(
    [
        _EXACT,
        *_by_element("exact.trunc", 1, "double", 2),
        *_by_element("exact.fma", 3, "half", 2),
        *_by_element("exact.fma", 3, "half", 4),
    ]
)
