"""Loop transformations of kernel IR.

A schedule is a list of these, applied in order with `apply`. Each is a small value that can be
printed and stored, names loops by their variables' names, and raises `IllegalOpt` where it would
change what the kernel computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, expr, iterations, loop_var
from gpu.compiler.opt.ahead import ahead
from gpu.compiler.opt.buffers import inline, rfactor, stage
from gpu.compiler.opt.fetch import fetch
from gpu.compiler.opt.independence import is_independent
from gpu.compiler.opt.jam import jam
from gpu.compiler.opt.neighbours import agree, hold
from gpu.compiler.opt.own import KEPT
from gpu.compiler.opt.pack import pack
from gpu.compiler.opt.reuse import reuse
from gpu.compiler.opt.share import cooperate
from gpu.compiler.opt.staging import sink, stage_together
from gpu.compiler.opt.sweep import sweep
from gpu.compiler.opt.tails import ROUNDED
from gpu.compiler.opt.tensorize import pipeline, tensorize
from gpu.compiler.opt.tree import (
    IllegalOpt,
    Substitution,
    as_block,
    expressions,
    find_loop,
    fresh_copy,
    replace_loop,
    walk,
)
from gpu.compiler.opt.turn import turn

PARALLEL_KINDS: Final = ("grid", "worker", "thread")


class Split(NamedTuple):
    """Loop `axis` of extent N becomes `{axis}o` of N // factor around `{axis}i` of factor.

    N may depend on values of the launch.

    `tail` says what happens to the N % factor iterations left over: `exact` allows none, `peel`
    runs them in a loop `{axis}t` of their own afterwards, `mask` runs a last round whose accesses
    to global memory are masked (for independent iterations only), `skip` one that does nothing in
    iterations beyond N, by a condition inside the loops directly nested in `axis`, and `zero` one
    that adds zeros (for a sum of products alone).
    """

    axis: str
    factor: int
    tail: str = "exact"


class Fuse(NamedTuple):
    """The directly nested loops `outer` and `inner` become one, named `outer`."""

    outer: str
    inner: str


class Reorder(NamedTuple):
    """The perfectly nested loops `axes`, given in their new order, outermost first."""

    axes: tuple[str, ...]


class Bind(NamedTuple):
    """Loop `axis` gets kind `kind`."""

    axis: str
    kind: str


class Rfactor(NamedTuple):
    """Reduction loop `axis` keeps `factor` partial results, iteration k in the k % factor-th.

    `{axis}z` sets them, `{axis}o` and `{axis}i` replace the loop, `{axis}f` combines them, and
    `{axis}t` does what is left over. Partials are independent, so `{axis}i` may become lanes.
    """

    axis: str
    factor: int


class Stage(NamedTuple):
    """Inside loop `axis`, what the kernel computes from buffer `buf` alone is computed first.

    It goes into a team buffer indexed by `order`, the loops inside `axis` that it depends on,
    outermost dimension first. The copy loops are named `{loop}s`. Behind each row of it `apart`
    elements stay unused: rows that are a power of two apart share few sets of a cache.

    With `together` the threads of a block around `axis` copy it together, and use it together:
    `order` names the thread loops that it depends on as well, and how far rows are apart is chosen.
    """

    axis: str
    buf: str
    order: tuple[str, ...]
    together: bool = False
    apart: int = 0


class Ahead(NamedTuple):
    """While loop `axis` uses what it staged from `buf`, what its next iteration stages comes near.

    Each iteration of the serial loop `loop`, inside `axis`, asks for its part of the cache lines
    that the copy of `buf`, still as `Stage` made it, reads in the next iteration of `axis`.
    """

    axis: str
    buf: str
    loop: str


class Hold(NamedTuple):
    """Inside loop `axis`, a row of parameter `buf` that loops walk along is read once, first.

    It goes into a team buffer `{buf}h`, in a loop of that name, and all reads take it from there.
    """

    axis: str
    buf: str


class Agree(NamedTuple):
    """Conditions of accesses are asked once for all iterations of loop `axis`.

    Each must hold for all of them or for none.
    """

    axis: str


class Cooperate(NamedTuple):
    """What loop `axis` holds is done by a block of `threads`, a power of two.

    `axis` is one of the independent outer loops, or "" for the whole kernel. Independent loops
    inside go to the threads in turn, reductions are done in parts that meet in team memory, those
    of `warp` threads that follow each other without it (`gpu/compiler/opt/meet.py`), and what
    remains is done by each thread, or by the first one where it writes. With `first` the new thread
    loop, `{axis}th`, stands outside of those around `axis`, whose threads are then the neighbours.
    A thread holds `kept` elements of a row in registers at most, where it alone uses them.
    """

    axis: str
    threads: int
    first: bool = False
    kept: int = KEPT
    warp: int = 0


class Sweep(NamedTuple):
    """The scan that loop `axis` holds is done by a block of `threads`, a power of two.

    `axis` is one of the independent outer loops, or "" for the whole kernel. The new thread loop,
    `{axis}th`, is inside of it; each thread has `side` elements that lie side by side in a round,
    and exchanges what they make with those of its `warp`.
    """

    axis: str
    threads: int
    side: int
    warp: int


class Sink(NamedTuple):
    """The directly nested loops `axes`, lanes, written out or independent, go around each Update
    inside.

    Private memory they hold gets a dimension for each; it becomes team memory where one of them is
    neither lanes nor written out. What else stands in the loops inside is then there once, and not
    once for each iteration of `axes`.
    """

    axes: tuple[str, ...]


class Inline(NamedTuple):
    """Buffer `buf` goes away: what is read from it is computed where it is read."""

    buf: str


class Jam(NamedTuple):
    """Loops `first` and `second` of two nests that follow each other become one outer loop.

    Both have the same iterations, which must be independent once they are one. The other loops of
    the nests stay inside it, one nest after the other.
    """

    first: str
    second: str


class Reuse(NamedTuple):
    """Team buffers of one form that the threads of a block never need at once become one."""


class Fetch(NamedTuple):
    """Inside loop `axis` the threads of a block copy an operand of 16-bit elements, together.

    The operand is what the kernel computes from buffer `buf` alone, before it is cast to float32.
    In team memory the loops `columns` count elements that follow each other, and the loops `rows`
    such rows; both name thread loops as well, outermost first. With `size` above 1 copies are
    asynchronous, of so many elements each (`fetch.copy_size` says how many may be).
    """

    axis: str
    buf: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    size: int = 1


class Turn(NamedTuple):
    """Inside loop `axis` the threads of a block copy what is read of parameter `buf`, as it lies.

    It is read along the loops `columns` and goes to a tile in team memory, from where each thread
    takes single elements in any order. Both `rows` and `columns` name thread loops as well,
    outermost first. With `side` above 1 their last loops have so many iterations, and are what a
    thread copies, or writes, in one access.
    """

    axis: str
    buf: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    side: int = 1


class Pack(NamedTuple):
    """Inside loop `axis` an operand of narrow elements is copied, as a thread loads tiles.

    The operand is what the kernel computes from buffer `buf` alone, of 16 bits before it is cast to
    float32, or of 8 before it is cast to int32.
    In team memory its elements follow each other as the loops `order` count them. Those of loop
    `words`, where one is named, are together in an integer of 4 bytes. The copy loops are named
    `{loop}s`, and with words `{loop}w`.
    """

    axis: str
    buf: str
    order: tuple[str, ...]
    words: str = ""


class Tensorize(NamedTuple):
    """The loops `axes`, the steps of a sum of products, become matrix instructions `name`.

    Where a warp executes them, the inner one of two counts the steps of an instruction, the outer
    one is written out. In them are four loops that are written out: tiles along the first operand
    and the second, then halves and pairs of a tile. The innermost threads are the 8 by 4 of a warp,
    and both operands are in team memory; `gpu/compiler/ir/matrix.py` says what a tile looks like.

    Where one thread does, the last two count the words of an instruction and the steps of a word,
    the others stay. In them are loops over tiles of both operands, written out, then over rows and
    columns of a tile; sums are in team memory, and the second operand is in words (`Pack`).
    """

    axes: tuple[str, ...]
    name: str


class Pipeline(NamedTuple):
    """Asynchronous copies in loop `axis` run ahead of what uses them, by `slots - 1` iterations.

    Each buffer that they go to becomes `slots` of them.
    """

    axis: str
    slots: int


Opt = (
    Split | Fuse | Reorder | Bind | Rfactor | Stage | Cooperate | Sink | Inline | Jam | Reuse
    | Fetch | Pack | Tensorize | Pipeline | Hold | Ahead
    | Turn | Agree | Sweep
)  # fmt: skip


def apply(kernel: K.Kernel, opts: Iterable[Opt]) -> K.Kernel:
    """The kernel after `opts`, in order. Raises IllegalOpt."""
    for opt in opts:
        kernel = kernel._replace(body=as_block(_apply(kernel.body, opt)))
    return kernel


def _apply(body: K.Block, opt: Opt) -> K.Stmt:
    match opt:
        case Split():
            return _split(body, opt)
        case Fuse():
            return _fuse(body, opt)
        case Reorder():
            return _reorder(body, opt)
        case Bind():
            return _bind(body, opt)
        case Rfactor():
            return rfactor(body, opt.axis, opt.factor)
        case Stage():
            if opt.together:
                return stage_together(body, opt.axis, opt.buf, opt.order)
            return stage(body, opt.axis, opt.buf, opt.order, opt.apart)
        case Cooperate():
            return cooperate(body, opt.axis, opt.threads, opt.first, opt.kept, opt.warp)
        case Ahead():
            return ahead(body, opt.axis, opt.buf, opt.loop)
        case Sweep():
            return sweep(body, opt.axis, opt.threads, opt.side, opt.warp)
        case Agree():
            return agree(body, opt.axis)
        case Hold():
            return hold(body, opt.axis, opt.buf)
        case Sink():
            return sink(body, opt.axes)
        case Inline():
            return inline(body, opt.buf)
        case Jam():
            return jam(body, opt.first, opt.second)
        case Reuse():
            return reuse(body)
        case Fetch():
            return fetch(body, opt.axis, opt.buf, opt.rows, opt.columns, opt.size)
        case Turn():
            return turn(body, opt.axis, opt.buf, opt.rows, opt.columns, opt.side)
        case Pack():
            return pack(body, opt.axis, opt.buf, opt.order, opt.words)
        case Tensorize():
            return tensorize(body, opt.axes, opt.name)
        case Pipeline():
            return pipeline(body, opt.axis, opt.slots)


def _split(body: K.Block, opt: Split) -> K.Stmt:
    loop = find_loop(body, opt.axis, opt)
    extent, name, factor = iterations(loop.var), opt.axis, opt.factor
    whole, rest = extent // factor, extent % factor
    if loop.var.lo != 0 or not 1 <= factor <= extent.hi:
        raise IllegalOpt(f"{opt}: the factor must be between 1 and the extent {extent}")
    has_rest = rest is not expr(0)
    masked = has_rest and opt.tail == "mask"
    if has_rest and opt.tail == "exact":
        raise IllegalOpt(f"{opt}: {extent} is not a multiple of {factor}")
    if masked and loop.kind not in PARALLEL_KINDS and not is_independent(loop):
        raise IllegalOpt(f"{opt}: only independent iterations can be masked")
    rounded_up = has_rest and opt.tail in ROUNDED
    outer = loop_var(f"{name}o", (extent + factor - 1) // factor if rounded_up else whole)
    inner = Var(f"{name}i", 0, factor - 1)
    body_of_loop = ROUNDED[opt.tail](loop, factor * outer.extent) if rounded_up else loop
    main = Substitution({body_of_loop.var: outer * factor + inner}).block(body_of_loop.body)
    nest = K.Loop(outer, loop.kind, K.Block((K.Loop(inner, loop.kind, main),)))
    if not has_rest or rounded_up:
        return replace_loop(body, loop, nest)
    tail_var = loop_var(f"{name}t", rest)
    tail_body = as_block(fresh_copy(loop.body, "t"))
    tail = Substitution({loop.var: tail_var + whole * factor}).block(tail_body)
    return replace_loop(body, loop, K.Block((nest, K.Loop(tail_var, loop.kind, tail))))


def fusable(outer: K.Loop) -> K.Loop | None:
    """The loop directly inside `outer` with which it can become one, or None.

    They can where every index uses the two only as `outer * extent + inner`, and the extent of the
    inner one is the same in all launches.
    """
    if len(outer.body.body) != 1 or not isinstance(outer.body.body[0], K.Loop):
        return None
    inner = outer.body.body[0]
    extent = inner.var.hi + 1
    if outer.kind != inner.kind or inner.var.lo or outer.var.lo or inner.var.stop is not None:
        return None
    both = {outer.var, inner.var}
    for e in expressions(inner.body):
        if not e.vars & both:
            continue
        rest = e - expr(outer.var) * e.coeff(outer.var) - expr(inner.var) * e.coeff(inner.var)
        if rest.vars & both or e.coeff(outer.var) != extent * e.coeff(inner.var):
            return None
    return inner


def _fuse(body: K.Block, opt: Fuse) -> K.Stmt:
    outer = find_loop(body, opt.outer, opt)
    inner = fusable(outer)
    if inner is None or inner.var.name != opt.inner:
        raise IllegalOpt(f"{opt}: the loops are not directly nested, or indexed separately")
    fused = loop_var(opt.outer, iterations(outer.var) * inner.var.extent)
    env: dict[Var, Expr | int] = {outer.var: 0, inner.var: expr(fused)}
    return replace_loop(body, outer, K.Loop(fused, outer.kind, Substitution(env).block(inner.body)))


def _reorder(body: K.Block, opt: Reorder) -> K.Stmt:
    nest = [find_loop(body, name, opt) for name in opt.axes]
    by_depth = sorted(nest, key=lambda loop: -sum(1 for _ in walk(loop)))
    for outer, inner in itertools.pairwise(by_depth):
        if outer.body.body != (inner,):
            raise IllegalOpt(f"{opt}: {inner.var.name} is not directly inside {outer.var.name}")
    for loop in by_depth:
        if loop.kind == "serial" and not is_independent(loop) and not _one_reduction(by_depth[-1]):
            raise IllegalOpt(f"{opt}: iterations of {loop.var.name} depend on each other")
    inner_body = by_depth[-1].body
    for loop in reversed(nest):
        inner_body = K.Block((K.Loop(loop.var, loop.kind, inner_body),))
    return replace_loop(body, by_depth[0], inner_body.body[0])


def _one_reduction(innermost: K.Loop) -> bool:
    """Whether all the loops do is combine into one buffer: a monoid takes any order."""
    body = innermost.body.body
    return len(body) == 1 and isinstance(body[0], K.Update) and body[0].monoid is not None


def _bind(body: K.Block, opt: Bind) -> K.Stmt:
    loop = find_loop(body, opt.axis, opt)
    if opt.kind not in K.LOOP_KINDS:
        raise IllegalOpt(f"{opt}: loop kinds are {K.LOOP_KINDS}")
    if opt.kind in ("vector", "unroll") and loop.var.stop is not None:
        raise IllegalOpt(f"{opt}: how often it runs, {loop.var.stop}, is known at launch only")
    parallel = opt.kind in PARALLEL_KINDS
    lanes = opt.kind in ("vector", "unroll") and not _folds(loop)
    # What Split and Reorder make of an independent loop stays independent.
    if (parallel or lanes) and loop.kind not in PARALLEL_KINDS and not is_independent(loop):
        raise IllegalOpt(f"{opt}: iterations of {opt.axis} write the same elements")
    return replace_loop(body, loop, K.Loop(loop.var, opt.kind, loop.body))


def _folds(loop: K.Loop) -> bool:
    """Whether what the iterations share is only combined by a monoid, so that lanes can fold."""
    own = {s.buf for s in walk(loop.body) if isinstance(s, K.Alloc)}
    shared = [s for s in walk(loop.body) if isinstance(s, K.Update) and s.buf not in own]
    reads = {b for s in shared for b in s.value.bufs}
    return all(s.monoid is not None and s.buf not in reads and not _picks(s) for s in shared)


def _picks(update: K.Update) -> bool:
    """Whether data says which element is updated, so that lanes may meet in one."""
    return any(let.var in index.vars for let in update.lets for index in update.indices)
