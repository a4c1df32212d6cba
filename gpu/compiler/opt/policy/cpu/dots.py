"""Sums of products of narrow numbers, by the instructions that multiply several neighbours."""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.opt.analysis.reduction_nest import reduction_nest
from gpu.compiler.opt.opts import Dot
from gpu.compiler.opt.primitives.dots import NEITHER, factors_of, loops_of_words
from gpu.compiler.targets import Target

# Steps of a loop that are worth words.
FEWEST: Final = 2


def dots(kernel: K.Kernel, target: Target, nest: str = "") -> list[Dot]:
    """What makes words of a kernel's factors, of as many elements as can be; none flipped rather.

    Nothing where the target has no instruction for them. With `nest` the kernel is what that loop
    of another one holds.
    """
    found = reduction_nest(kernel.body) if target.parallel == "worker" else None
    native = [name for name in DOTS if name in target.native.ops]
    axes = [v for v in loops_of_words(found) if v.extent >= FEWEST] if found and native else []
    if found is None or not axes:
        return []
    factors = {name: factors_of(found, name) for name in native}
    usable = [name for name in native if factors[name]]
    best = min(usable, key=lambda n: (-DOTS[n].together, NEITHER not in factors[n]), default="")
    longest = max(axes, key=lambda var: var.extent)
    return [Dot(longest.name, best, flipped, nest) for flipped in factors.get(best, ())]
