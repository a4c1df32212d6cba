"""Random programs, compiled for the host and for gfx1100, that must agree bit for bit.

A NaN is stored as one fixed pattern, since the bits of a NaN are nobody's promise. As a command
it runs as many programs as asked, from a seed on:
``PYTHONPATH=tests:. python -m sim.isa.random_run 10000 0``.
Of the seeds 20000 to 29999 two differ through LLVM's own mistakes, as its assembly shows: 21383
(it drops an `or`) and 23569 (it folds a select over `fcmp ueq` without minding NaN).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.core.objload import load_object
from gpu.sim.isa.native import compile_module
from sim.isa.amdgpu import Launcher, compile_ir
from sim.isa.random_ir import BITS, FLOATS, INTEGERS, Generator

N = 128
OUTPUTS = 8


def program(seed: int) -> tuple[list[str], set[str]]:
    """(lines from element %i of %in0.. to stores into %out, declarations)."""
    made = Generator(seed)
    made.pool["i64"] += ["%w0", "%w1"]
    made.pool["double"] += ["%d0", "%d1"]
    made.pool["float"] += ["%f0", "%f1"]
    for number in range(2):
        made.lines += [
            f"  %pw{number} = getelementptr i64, ptrAS %in0, i32 %at{number}",
            f"  %w{number} = load i64, ptrAS %pw{number}",
            f"  %pd{number} = getelementptr double, ptrAS %in1, i32 %at{number}",
            f"  %d{number} = load double, ptrAS %pd{number}",
            f"  %pf{number} = getelementptr float, ptrAS %in2, i32 %at{number}",
            f"  %f{number} = load float, ptrAS %pf{number}",
        ]
    made.emit("i32", "trunc i64 %w0 to i32")
    made.emit("i32", "trunc i64 %w1 to i32")
    made.emit("i16", "trunc i64 %w1 to i16")
    made.emit("half", "fptrunc float %f0 to half")
    made.emit("i1", "icmp slt i64 %w0, %w1")
    made.grow(made.random.randrange(15, 45), 2)
    for number in range(OUTPUTS):
        kind = (*INTEGERS, *FLOATS, "i32", "float")[number]
        made.lines += _store(number, kind, made.pool[kind][-1 if number < 6 else -2])
    return made.lines, made.declared


def _store(number: int, kind: str, value: str) -> Iterator[str]:
    last = value
    if kind in FLOATS:
        word = f"i{BITS[kind]}"
        yield f"  %raw{number} = bitcast {kind} {value} to {word}"
        yield f"  %nan{number} = fcmp uno {kind} {value}, {value}"
        yield f"  %bits{number} = select i1 %nan{number}, {word} 77, {word} %raw{number}"
        kind, last = word, f"%bits{number}"
    if kind != "i64":
        yield f"  %wide{number} = zext {kind} {last} to i64"
        last = f"%wide{number}"
    yield f"  %slot{number} = mul i32 %i, {OUTPUTS}"
    yield f"  %index{number} = add i32 %slot{number}, {number}"
    yield f"  %po{number} = getelementptr i64, ptrAS %out, i32 %index{number}"
    yield f"  store i64 {last}, ptrAS %po{number}"


def _indices() -> str:
    return f"  %at0 = add i32 %i, 0\n  %next.i = add i32 %i, 1\n  %at1 = urem i32 %next.i, {N}\n"


def gpu_module(lines: list[str], declared: set[str]) -> str:
    body = "\n".join(lines).replace("ptrAS", "ptr addrspace(1)")
    parameters = ", ".join(f"ptr addrspace(1) %{name}" for name in ("in0", "in1", "in2", "out"))
    return (
        "\n".join(sorted(declared))
        + f"""
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
define amdgpu_kernel void @k({parameters}) "amdgpu-flat-work-group-size"="1,64" {{
entry:
  %local = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %group, 64
  %i = add i32 %start, %local
{_indices()}  br label %body
body:
{body}
  ret void
}}
"""
    )


def host_module(lines: list[str], declared: set[str]) -> str:
    body = "\n".join(lines).replace("ptrAS", "ptr")
    return (
        "\n".join(sorted(declared))
        + f"""
define void @k(ptr %in0, ptr %in1, ptr %in2, ptr %out) {{
entry:
  br label %each
each:
  %i = phi i32 [ 0, %entry ], [ %following, %again ]
{_indices()}  br label %body
body:
{body}
  br label %again
again:
  %following = add i32 %i, 1
  %unfinished = icmp ult i32 %following, {N}
  br i1 %unfinished, label %each, label %ended
ended:
  ret void
}}
"""
    )


def inputs(seed: int) -> list[npt.NDArray[Any]]:
    """Integers, doubles and floats, with zeros, infinities, NaN and denormals among them."""
    rng = np.random.default_rng(seed)
    words = rng.integers(-(2**63), 2**63, N, dtype=np.int64)
    words = np.where(rng.random(N) < 0.3, words >> 48, words)
    arrays: list[npt.NDArray[Any]] = [words]
    for kind, tiny in ((np.float64, 5e-324), (np.float32, 1e-45)):
        scale = rng.choice([1.0, 100.0, 1e5, 1e-5, 1e30, 1e-30], N)
        values = (rng.standard_normal(N) * scale).astype(kind)
        special = np.array([0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, 1, -1, 0.5], kind)
        where = rng.random(N) < 0.1
        values[where] = rng.choice(special, int(where.sum()))
        arrays.append(values)
    return arrays


def difference(seed: int) -> str | None:
    """Runs one program on both sides; what differs first, or None."""
    lines, declared = program(seed)
    arrays = inputs(seed)
    wanted, got = (np.zeros(N * OUTPUTS, np.int64) for _ in range(2))
    compiled = load_object(compile_module(host_module(lines, declared)), {})
    run: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(compiled.address("k"))
    run(*(array.ctypes.data for array in arrays), wanted.ctypes.data)
    source = gpu_module(lines, declared)
    Launcher(compile_ir(source), seed).run("k", (N // 64, 1, 1), (64, 1, 1), *arrays, got)
    if np.array_equal(wanted, got):
        return None
    place = int(np.flatnonzero(wanted != got)[0])
    return (
        f"seed {seed}: element {place // OUTPUTS}, output {place % OUTPUTS}:"
        f" host {wanted[place]:#x}, GPU {got[place]:#x}"
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failures = 0
    for seed in range(first, first + count):
        found = difference(seed)
        if found:
            failures += 1
            print(found, flush=True)
    print(f"{count} programs, {failures} differ")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
