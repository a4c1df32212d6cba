"""Team memory used again: the transformation `ReuseShared`."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    accesses,
    allocated,
    as_block,
    in_order,
    rewrite,
)
from gpu.compiler.opt.primitives.barriers import synchronize, thread_loops
from gpu.core.errors import IllegalOpt


class _Life(NamedTuple):
    """The first and the last statement of a block that touch a buffer."""

    first: int
    last: int


def reuse_shared(body: K.Block) -> K.Stmt:
    """See `gpu.compiler.opt.opts.ReuseShared`. Raises IllegalOpt."""
    threads = thread_loops(body)
    if not threads:
        raise IllegalOpt("there are no threads that share memory")
    lives = _lives(threads[-1].body)
    homes: dict[K.Buf, K.Buf] = {}
    until: dict[K.Buf, int] = {}
    for buf in sorted((b for b in allocated(body) if b in lives), key=lambda b: lives[b].first):
        free = (b for b, last in until.items() if _alike(b, buf) and last < lives[buf].first)
        home = next(free, buf)
        homes[buf] = home
        until[home] = lives[buf].last
    gone = {buf for buf, home in homes.items() if home is not buf}

    def drop(s: K.Stmt) -> K.Stmt | None:
        return K.Block(()) if isinstance(s, K.Alloc) and s.buf in gone else None

    fewer = Substitution({}, homes).block(as_block(rewrite(body, drop)))
    return synchronize(fewer)


def _alike(a: K.Buf, b: K.Buf) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _lives(block: K.Block) -> dict[K.Buf, _Life]:
    """When team buffers are needed, in statements that no loop of the block is around."""
    lives: dict[K.Buf, _Life] = {}
    for number, stmt in enumerate(in_order(block)):
        for buf in {buf for buf, _, _ in accesses(stmt) if buf.space == "team"}:
            lives[buf] = _Life(lives[buf].first if buf in lives else number, number)
    return lives
