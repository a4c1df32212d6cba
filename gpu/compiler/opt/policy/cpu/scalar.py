"""Why a kernel has no lanes, in words, for profiles and logs."""

from __future__ import annotations

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.lanes import fitting, lanes_of, widest
from gpu.compiler.opt.analysis.loop_nest import Leaf, leaves, scattered
from gpu.compiler.targets import Target


def why_scalar(kernel: K.Kernel, target: Target, optimize: bool = True) -> str:
    """Why a scheduled kernel does nothing in vectors; "" where it does or need not."""
    statements = list(walk(kernel.body))
    in_lanes = any(isinstance(s, K.MatrixStmt) for s in statements) or any(
        isinstance(s, K.Loop) and s.kind == "vector" for s in statements
    )
    if in_lanes or not target.vector_bytes:
        return ""
    if not optimize:
        return "NOOPT is set"
    found = [leaf for leaf in leaves(kernel.body) if leaf.loops]
    if not found:
        return ""  # one element
    lanes = lanes_of(target, widest(leaf.update for leaf in found))
    if lanes == 1:
        return "no vector holds two of its elements"
    return "; ".join(dict.fromkeys(_why(leaf, lanes) for leaf in found))


def _why(leaf: Leaf, lanes: int) -> str:
    """Why the innermost loop around a statement has no lanes."""
    loop = leaf.loops[-1]
    extent, least = loop.var.extent, fitting(lanes, loop.var.extent)
    if extent < least:
        return f"its innermost loop has {extent} iterations, and the narrowest vector {least} lanes"
    if leaf.update.monoid is None and not is_independent(loop):
        return "each iteration of its innermost loop needs the one before"
    if scattered(leaf.update, loop.var) > 1:
        return "neighbouring iterations of its innermost loop touch elements that lie far apart"
    return "its innermost loop holds more than one statement, or memory of its own"
