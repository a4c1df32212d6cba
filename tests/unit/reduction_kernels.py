"""Random kernels that are one reduction inside independent loops, for tests of tilings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.targets import Target

PRODUCT = """\
kernel mm(out: f32[{mn}] global, a: f32[{mk}] global, b: f32[{kn}] global)
  loop i serial {m}
    loop j serial {n}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial {k}
        s[] add= mul(a[{a}], b[{b}])
      out[{n}*i + j] = s[]
"""
# What is combined, of operands a, b and c; all of it is exact for small whole numbers.
COMBINED = {
    "product": ("add", 0.0, "mul({a}, {b})"),
    "three": ("add", 0.0, "mul(mul({a}, {b}), {c})"),
    "tropical": ("max", "-inf", "add({a}, {b})"),
    "distance": ("add", 0.0, "abs(sub({a}, {b}))"),
    "made": ("add", 0.0, "mul(add({a}, {a2}), {b})"),
}
EPILOGUES = ("{s}", "max({s}, 0.0:f32)", "mul(add({s}, {bias}), 2.0:f32)")


def _dims(
    rng: np.random.Generator, names: list[str], sizes: dict[str, int]
) -> tuple[str, int, str]:
    """The index of a load that these loops move, the size of its buffer, and its mask."""
    left, places, masks = list(rng.permutation(names)), [], []
    while left:
        var = left.pop()
        place, most, pad = var, sizes[var] - 1, 0
        if left and rng.random() < 0.5:
            other, step = left.pop(), int(rng.integers(1, 4))
            sign = 1 if rng.random() < 0.7 else -1
            place, most = f"{step}*{var} + {sign}*{other}", step * most + sizes[other] - 1
            if sign < 0:
                place = f"{place} + {sizes[other] - 1}"
        if rng.random() < 0.3:
            pad = int(rng.integers(0, 3))
            cut = most - pad - int(rng.integers(0, 3))
            if cut > 0:
                masks += [f"{place} - {pad} >= 0", f"{cut + pad} - ({place}) >= 0"]
                place, most = f"{place} - {pad}", cut
        places.append((place, most + 1))
    index, size = "0", math.prod(n for _, n in places)
    stride = size
    for place, n in places:
        stride //= n
        index += f" + {stride}*({place})"
    return index, size, " & ".join(masks)


def _load(name: str, index: str, mask: str) -> str:
    return f"{name}[{index}{f' if {mask}' if mask else ''}]"


def random_reduction(rng: np.random.Generator, symbolic: bool = False) -> K.Kernel:
    """A kernel of one to four independent loops, and one or two of a reduction.

    With `symbolic`, how often one of them runs, or some, is known at launch only.
    """
    outer = [f"i{n}" for n in range(rng.integers(1, 4))]
    inner = [f"r{n}" for n in range(rng.integers(1, 3))]
    sizes = {name: int(rng.integers(1, 8)) for name in outer + inner}
    sizes[outer[-1]] = int(rng.integers(1, 25))
    monoid, identity, combined = COMBINED[str(rng.choice(list(COMBINED)))]
    params, loads = [], {}
    for name in ("a", "b", "c"):
        moving = [var for var in outer + inner if rng.random() < 0.6] or inner
        index, size, mask = _dims(rng, moving, sizes)
        params.append(f"{name}: f32[{size}] global")
        loads[name] = _load(name, index, mask)
        if name == "a":
            params.append(f"a2: f32[{size}] global")
            loads["a2"] = _load("a2", index, mask)
    order = list(rng.permutation(outer))
    place = "0"
    for var in order:
        place = f"{sizes[var]}*({place}) + {var}"
    out = math.prod(sizes[var] for var in outer)
    result = str(rng.choice(EPILOGUES)).format(s="t[]", bias=f"bias[{order[-1]}]")
    params.append(f"bias: f32[{sizes[order[-1]]}] global")
    counts = {var: str(size) for var, size in sizes.items()}
    vals = ""
    if symbolic:
        later = [v for v in outer + inner if rng.random() < 0.5] or [inner[-1]]
        counts |= {var: f"n{var}" for var in later}
        vals = "; " + ", ".join(f"n{var} 0..{sizes[var]}" for var in later)
    lines = [f"kernel r(out: f32[{out}] global, {', '.join(params)}{vals})"]
    for depth, var in enumerate(outer, start=1):
        lines.append(f"{'  ' * depth}loop {var} serial {counts[var]}")
    pad = "  " * (len(outer) + 1)
    lines += [f"{pad}alloc t: f32[] private", f"{pad}t[] = {identity}:f32"]
    for depth, var in enumerate(inner):
        lines.append(f"{pad}{'  ' * depth}loop {var} serial {counts[var]}")
    lines.append(f"{pad}{'  ' * len(inner)}t[] {monoid}= {combined.format(**loads)}")
    lines.append(f"{pad}out[{place}] = {result}")
    return parse_kernel("\n".join(lines) + "\n")


def inputs_of(kernel: K.Kernel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Whole numbers for its parameters, but for the first one, which is to be written."""
    out, *others = kernel.params
    arrays = {b.name: rng.integers(-4, 5, b.shape).astype(b.dtype.np) for b in others}
    return {out.name: np.full(out.shape, np.nan, out.dtype.np), **arrays}


def product(m: int, k: int, n: int, a: str = "", b: str = "") -> K.Kernel:
    """The product of an m x k and a k x n matrix."""
    places = {"a": a or f"{k}*i + k", "b": b or f"{n}*k + j"}
    return parse_kernel(PRODUCT.format(m=m, k=k, n=n, mn=m * n, mk=m * k, kn=k * n, **places))


def outputs(
    kernel: K.Kernel,
    arrays: dict[str, np.ndarray],
    target: Target | None,
    vals: Sequence[int] = (),
) -> np.ndarray:
    """What the kernel writes for values of a launch, as a tree, or as code for a target."""
    held = {name: array.copy() for name, array in arrays.items()}
    if target is None:
        interpret_kernel(kernel, held, vals)
    else:
        program = linearize(kernel, target)
        verify_linear(program)
        interpret_linear(program, list(held.values()), vals)
    return held[kernel.params[0].name]
