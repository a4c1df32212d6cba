"""The transformation `PartialScan`: a scan of a few elements at a time.

Each running result needs the one before, so a scan is as slow as one operation after another. Here
a few elements are combined by themselves, which the next few need not wait for: what those before
them came to is put to each result when it is stored. Only one operation in so many is left that has
to wait.
"""

from __future__ import annotations

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import divides
from gpu.compiler.ir.kernel.tree import Substitution, as_block, find_loop, replace_loop
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.opt.primitives.block_scan import scan_of
from gpu.compiler.opt.primitives.loops import split
from gpu.core.errors import IllegalOpt


def partial_scan(body: K.Block, axis: str, factor: int) -> K.Stmt:
    """See `gpu.compiler.opt.opts.PartialScan`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    scan = scan_of(loop)
    if scan is None or scan.combine.monoid is None:
        raise IllegalOpt("a scan is not all that the loop does")
    tail = "exact" if divides(factor, loop.var) else "peel"
    outer, *rest = as_block(split(K.Block((loop,)), axis, factor, tail)).body
    assert isinstance(outer, K.Loop)
    monoid, running = MONOIDS[scan.combine.monoid], scan.combine.buf
    part = K.Buf(f"{running.name}{axis}p", running.dtype, (), "private")
    before, own = K.load(running, ()), K.load(part, ())
    result = K.alu(monoid.combine, before, own)
    (few,) = Substitution({}, {running: part}, {before: result}).block(outer.body).body
    assert isinstance(few, K.Loop)
    steps = (
        K.Alloc(part),
        K.Update(part, (), None, K.const(part.dtype, monoid.identity(part.dtype))),
        *(s for n in range(factor) for s in Substitution({few.var: n}).block(few.body).body),
        K.Update(running, (), monoid.name, own),
    )
    main = K.Loop(outer.var, outer.kind, K.Block(steps))
    return replace_loop(body, loop, K.Block((main, *rest)))
