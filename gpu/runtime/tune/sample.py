"""Memory to run a kernel on, and what the interpreter says that some of its results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import expr
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.tree import Substitution, loops, walk, writes
from gpu.compiler.opt.analysis.loop_nest import outer_nest
from gpu.compiler.opt.opts import Bind, apply
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt, Unsupported

Array = npt.NDArray[Any]

POINTS: Final = 4
# Iterations that are interpreted for each of them at most.
MOST_STEPS: Final = 1 << 17
# How far results may differ, as a share of the largest: sums are added up in other orders.
TOLERANCE: Final = {
    dtypes.float64: 1e-9, dtypes.float32: 1e-4, dtypes.float16: 2e-2, dtypes.bfloat16: 4e-2,
    dtypes.fp8e4m3: 0.2, dtypes.fp8e5m2: 0.3,
}  # fmt: skip


class Sample(NamedTuple):
    """What a kernel begins with, and some of what it must give.

    Attributes:
        arrays: the elements of each parameter, before.
        vals: the values of the launch: the largest there are.
        outputs: names of the parameters that it writes.
        expected: of each output the places that were interpreted, and the elements there.
    """

    arrays: Mapping[str, Array]
    vals: tuple[int, ...]
    outputs: tuple[str, ...]
    expected: Mapping[str, tuple[Array, Array]]


def make_sample(kernel: K.Kernel, seed: int = 0) -> Sample:
    """Random memory for a kernel without a schedule, and what it gives in some iterations.

    Raises Unsupported where that takes too long, or where parameters are images.
    """
    if any(param.image for param in kernel.params):
        raise Unsupported(f"{kernel.name}: images are not filled at random")
    rng = np.random.default_rng(seed)
    arrays = {p.name: _random(rng, p.shape, p.dtype) for p in kernel.params}
    vals = tuple(val.hi for val in kernel.vals)
    names = {buf for buf, _, _ in writes(kernel.body)}
    outputs = tuple(p.name for p in kernel.params if p in names)
    places: dict[str, list[Array]] = {name: [] for name in outputs}
    found: dict[str, list[Array]] = {name: [] for name in outputs}
    for point in range(POINTS):
        part = _at_once(_at_point(kernel, rng, point))
        memory = {name: array.copy() for name, array in arrays.items()}
        interpret_kernel(part, memory, vals)
        for name in outputs:
            changed = np.flatnonzero(memory[name].view(np.uint8) != arrays[name].view(np.uint8))
            where = np.unique(changed // arrays[name].itemsize)
            places[name].append(where)
            found[name].append(memory[name].reshape(-1)[where])
        if not outer_nest(kernel.body):
            break  # that was all of it
    joined = {n: (np.concatenate(places[n]), np.concatenate(found[n])) for n in outputs}
    if not any(where.size for where, _ in joined.values()):
        raise Unsupported(f"{kernel.name}: nothing that it writes can be told from what was there")
    return Sample(arrays, vals, outputs, joined)


def differs(sample: Sample, name: str, got: Array, dtype: DType) -> str:
    """How the elements of an output differ from what the interpreter gives; "" if they do not."""
    where, wanted = sample.expected[name]
    found = got.reshape(-1)[where]
    if not dtype.is_float:
        wrong = found != wanted
    else:
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(all="ignore"):
            finite = np.isfinite(b)
            scale = float(np.abs(b[finite]).max()) if finite.any() else 0.0
            near = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = ~(near | (np.abs(a - b) <= TOLERANCE[dtype] * scale))
    if not wrong.any():
        return ""
    at = int(np.flatnonzero(wrong)[0])
    return f"{name}[{where[at]}] is {found[at]}, and {wanted[at]} by the interpreter"


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Values near 1, so that sums lose little and products stay in bounds."""
    if dtype is dtypes.bool:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        return rng.uniform(0.5, 1.5, shape).astype(dtype.np)
    return rng.integers(0, 8, shape).astype(dtype.np)


def _at_point(kernel: K.Kernel, rng: np.random.Generator, number: int) -> K.Kernel:
    """One iteration of the independent outer loops: the last one first, as it is in a tail."""
    body = kernel.body
    for loop in outer_nest(kernel.body):
        at = loop.var.hi if number == 0 else int(rng.integers(loop.var.lo, loop.var.hi + 1))
        (only,) = body.body
        assert isinstance(only, K.Loop)
        body = Substitution({only.var: expr(at)}).block(only.body)
    part = kernel._replace(body=body)
    if (steps := _steps(body)) > MOST_STEPS:
        raise Unsupported(f"{kernel.name}: to interpret an iteration of it takes {steps} steps")
    return part


def _steps(stmt: K.Stmt) -> int:
    """Innermost iterations."""
    if isinstance(stmt, K.Loop):
        return stmt.var.extent * _steps(stmt.body)
    if isinstance(stmt, K.Block):
        return sum(map(_steps, stmt.body))
    return _steps(stmt.body) if isinstance(stmt, K.If) else 1


def _at_once(kernel: K.Kernel) -> K.Kernel:
    """The innermost loops as lanes, where that is legal, so that the interpreter does them at once.

    Not those of buffers that each lane would have for itself.
    """
    for name, loop in loops(kernel.body).items():
        if not any(isinstance(s, K.Loop | K.Alloc) for s in walk(loop.body)):
            try:
                kernel = apply(kernel, [Bind(name, "vector")])
            except IllegalOpt:
                continue
    return kernel
