"""Products of neighbours as calls of LLVM's intrinsics; see `gpu/compiler/targets/cpu_dots.py`."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.compiler.render.llvm.text import Emitter, Type, Value
from gpu.compiler.targets.cpu_dots import DotInstruction


def dot(emitter: Emitter, rows: Sequence[DotInstruction], args: Sequence[Value]) -> Value:
    """Sums, the last of `args`, and what the others give, by those of `rows` that have the lanes.

    `rows` are the instructions of one operation, the widest first. What none is wide enough for
    goes in parts, and fewer lanes than the narrowest has take some of its own.
    """
    lanes = args[-1].type.lanes
    row = next((row for row in reversed(rows) if row.lanes >= lanes), rows[0])
    parts = [
        _one(emitter, row, [_lanes(emitter, arg, first, row.lanes) for arg in args])
        for first in range(0, lanes, row.lanes)
    ]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [emitter.shuffle(a, b, tuple(range(a.type.lanes + b.type.lanes))) for a, b in pairs]
    return _lanes(emitter, parts[0], 0, lanes)


def _one(emitter: Emitter, row: DotInstruction, args: Sequence[Value]) -> Value:
    *factors, total = args
    kind = Type(f"i{row.element}", row.lanes * 32 // row.element)
    factors = [
        x if x.type == kind else emitter.value(kind, f"bitcast {x} to {kind}") for x in factors
    ]
    if row.adds:
        return emitter.intrinsic(row.intrinsic, total.type, total, *factors)
    return emitter.binary("add", total, emitter.intrinsic(row.intrinsic, total.type, *factors))


def _lanes(emitter: Emitter, x: Value, first: int, count: int) -> Value:
    """So many lanes of a vector, or of a scalar, from `first` on; those that it has not are any."""
    if x.type.lanes == count:
        return x
    if count == 1:
        return emitter.extract(x, first)
    if x.type.lanes == 1:
        return emitter.pack([x, *[Value(x.type, "poison")] * (count - 1)])
    picked = tuple(min(first + lane, x.type.lanes - 1) for lane in range(count))
    return emitter.shuffle(x, x, picked)
