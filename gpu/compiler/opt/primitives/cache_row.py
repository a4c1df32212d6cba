"""A row that several loops read, kept in memory that the threads of a block share."""

from __future__ import annotations

from collections.abc import Iterator

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, expr
from gpu.compiler.ir.kernel.tree import (
    as_block,
    find_loop,
    free_name,
    reads,
    walk,
    writes,
)
from gpu.compiler.opt.analysis.loop_nest import last_index, leaves
from gpu.compiler.opt.primitives.cache_read import cached, require_inside
from gpu.core.errors import IllegalOpt


def held_rows(body: K.Block, axis: str) -> list[K.Buf]:
    """Parameters of which several loops inside loop `axis` read the same row."""
    loop = find_loop(body, axis)
    found = dict.fromkeys(buf for buf, _, _ in reads(loop) if buf.space == "global")
    return [buf for buf in found if _is_read_again(loop, buf) and _row(body, loop, buf)]


def _is_read_again(loop: K.Loop, buf: K.Buf) -> bool:
    readers = [leaf for leaf in leaves(loop) if buf in {read for read, _, _ in reads(leaf.update)}]
    return len(readers) > 1


def cache_row(body: K.Block, axis: str, name: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.CacheRow`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    buf = next((buf for buf, _, _ in reads(loop) if buf.name == name), None)
    start = None if buf is None else _row(body, loop, buf)
    if buf is None or start is None:
        raise IllegalOpt(f"the loops inside do not read one row of {name}")
    walked = list(_walkers(loop, buf))
    require_inside(loop.body, [K.load(*read) for read, _ in walked])
    size = walked[0][1].extent
    row = K.Buf(free_name(body, f"{name}h"), buf.dtype, (size,), "team")
    var = Var(f"{name}h", 0, size - 1)
    fill = K.Update(row, (expr(var),), None, K.load(buf, (start + var,)))
    again = {K.load(*read): K.load(row, (last_index(read[1]) - start,)) for read, _ in walked}
    return cached(body, loop, row, K.Loop(var, "serial", as_block(fill)), again)


Read = tuple[K.Buf, tuple[Expr, ...], Mask]


def _walkers(loop: K.Loop, buf: K.Buf) -> Iterator[tuple[Read, Var]]:
    """Reads of a buffer with the innermost loop around them."""
    for leaf in leaves(loop):
        for read in reads(leaf.update):
            if read[0] is buf:
                yield read, leaf.loops[-1].var


def _row(body: K.Block, loop: K.Loop, buf: K.Buf) -> Expr | None:
    """Where the row begins that all reads of `buf` inside a loop walk along, if they do."""
    if any(written is buf for written, _, _ in writes(body)):
        return None
    walked = list(_walkers(loop, buf))
    starts = {last_index(indices) - var for (_, indices, _), var in walked}
    own = {inner.var for inner in walk(loop) if isinstance(inner, K.Loop)} - {loop.var}
    plain = all(mask is ALWAYS and _is_plain(var) for (_, _, mask), var in walked)
    plain = plain and all(var in own for _, var in walked)
    if not plain or len(starts) != 1 or len({var.extent for _, var in walked}) != 1:
        return None
    (start,) = starts
    picked = {let.var for leaf in leaves(loop) for let in leaf.update.lets}
    return None if start.vars & (own | picked) else start


def _is_plain(var: Var) -> bool:
    return var.stop is None and not var.lo
