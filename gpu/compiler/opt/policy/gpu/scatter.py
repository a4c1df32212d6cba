"""Scatters, whose two nests are made one where threads would have to wait between them.

A scatter first fills its output and then writes to places that data picks. Most of its loops are
independent, but in either nest on its own; made one (`FuseSiblings`) they can be spread over a
machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.opt.analysis.loop_nest import perfect_nest
from gpu.compiler.opt.opts import FuseSiblings, Opt, Split, apply
from gpu.core.errors import IllegalOpt


def jammed(kernel: K.Kernel) -> tuple[K.Kernel, list[Opt]]:
    """The kernel with as many loops of its scatters made one as can be, and how."""
    opts: list[Opt] = []
    while (step := _next_jam(kernel)) is not None:
        kernel = apply(kernel, step)
        opts += step
    return kernel, opts


def _next_jam(kernel: K.Kernel) -> list[Opt] | None:
    pairs = sorted(_pairs(kernel), key=lambda pair: -pair[1].extent)
    for filling, writing, step in pairs:
        opts = _opts(filling, writing, step)
        try:
            apply(kernel, opts)
        except IllegalOpt:
            continue
        return opts
    return None


def _pairs(kernel: K.Kernel) -> Iterator[tuple[Var, Var, int]]:
    """Loops of nests that fill an output and write to it, and the step of the second one in it,
    in steps of the first one.
    """
    for block in walk(kernel.body):
        if not isinstance(block, K.Block):
            continue
        for a, b in itertools.pairwise(block.body):
            if not (isinstance(a, K.Loop) and isinstance(b, K.Loop)):
                continue
            fill, write = _only_update(a), _only_update(b)
            if fill is None or write is None or fill.buf is not write.buf:
                continue
            for writing, filling in itertools.product(perfect_nest(b), perfect_nest(a)):
                step = write.indices[-1].coeff(writing.var)
                own = fill.indices[-1].coeff(filling.var)
                counted = writing.var.stop is None and filling.var.stop is None
                if counted and own > 0 and step > 0 and step % own == 0:
                    yield filling.var, writing.var, step // own


def _only_update(loop: K.Loop) -> K.Update | None:
    body = perfect_nest(loop)[-1].body.body
    return body[0] if len(body) == 1 and isinstance(body[0], K.Update) else None


def _opts(filling: Var, writing: Var, step: int) -> list[Opt]:
    """Splits that give the loop over `filling` a part like `writing`, and the FuseSiblings."""
    opts: list[Opt] = []
    name, extent = filling.name, filling.extent
    if step > 1:
        opts.append(Split(name, step))
        name, extent = f"{name}o", extent // step
    if writing.extent < extent:
        opts.append(Split(name, writing.extent))
        name = f"{name}i"
    return [*opts, FuseSiblings(name, writing.name)]
