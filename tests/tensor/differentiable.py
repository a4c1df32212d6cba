"""Every function that has a gradient, beside torch's: the table of `test_second_order.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import gpu
from gpu import Tensor, fft
from gpu.compiler.ir.graph import build as G
from tensor.reference import rng_for, torch
from tensor.test_binary import FLOATS, NOT_BY_BOTH
from tensor.test_elementwise import ROWS
from tensor.test_gathering import REDUCES
from tensor.test_losses import ATTENTION, LINEAR, SIZES
from tensor.test_movement import EINSUMS, MOVES
from tensor.test_reduction import LOSSES, PRODUCTS, REDUCTIONS
from tensor.test_scanning import NAMES as SCANS
from tensor.test_scanning import value as scan_value

F = torch.nn.functional
Function = Callable[..., Any]
Shapes = Sequence[tuple[int, ...]]


class Case(NamedTuple):
    """A function of ours and the same of torch.

    Attributes:
        ours, theirs: take one tensor for each of `shapes`.
        shapes: of the inputs.
        domain: of their elements.
    """

    ours: Function
    theirs: Function
    shapes: Shapes = ((3, 4),)
    domain: tuple[float, float] = (-2.0, 2.0)


def operation(name: str) -> Function:
    """A row of the op table as a function of tensors."""
    return lambda *xs: xs[0]._wrap(G.alu(name, *(x._node for x in xs)))


def choose(a: Any, b: Any) -> Any:
    return torch.where(a < b, a * b, b)


UP = (0.2, 3.0)
OPERATIONS: dict[str, Case] = {
    name: Case(operation(name), theirs, [(3, 4)] * arity, domain)
    for name, theirs, arity, domain in [
        ("neg", torch.neg, 1, UP), ("abs", torch.abs, 1, (-2, 2)),
        ("exp", torch.exp, 1, (-2, 2)), ("exp2", torch.exp2, 1, (-2, 2)),
        ("expm1", torch.expm1, 1, (-2, 2)),
        ("log2", torch.log2, 1, UP), ("sin", torch.sin, 1, (-9, 9)), ("sqrt", torch.sqrt, 1, UP),
        ("floor", torch.floor, 1, UP), ("rint", torch.round, 1, UP), ("trunc", torch.trunc, 1, UP),
        ("add", torch.add, 2, UP), ("sub", torch.sub, 2, UP), ("mul", torch.mul, 2, UP),
        ("div", torch.div, 2, UP), ("max", torch.maximum, 2, UP), ("min", torch.minimum, 2, UP),
        ("fmod", torch.fmod, 2, UP), ("fma", lambda a, b, c: a * b + c, 3, (-2, 2)),
    ]
}  # fmt: skip
OPERATIONS["where"] = Case(lambda a, b: (a < b).where(a * b, b), choose, [(3, 4)] * 2)


def scattered(reduce: str, include_self: bool) -> Case:
    index = rng_for(reduce).integers(0, 3, (5, 4))
    return Case(
        lambda x, s: x.scatter_reduce(0, Tensor(index), s, reduce, include_self),
        lambda x, s: x.scatter_reduce(0, torch.tensor(index), s, reduce, include_self=include_self),
        [(3, 4), (5, 4)],
        UP,
    )


def written(x: Any, y: Any) -> Any:
    z = x * x
    z[1:, ::2] = y * y
    return z * z * y.sum()


def at_positions(index: Any) -> Function:
    def run(x: Any, y: Any) -> Any:
        z = x * 1
        z[index[0]] = y * x[index[0]]
        return z * z

    return run


POSITIONS = np.array([2, 0])
CLASSES = np.array([1, 0, 3])
CHOICE = np.array([[True, False, True, True], [False] * 4, [True] * 4])
CASES: dict[str, Case] = {
    "complex": Case(
        lambda x, y: x.complex(y).view_as_real().exp(),
        lambda t, u: torch.view_as_real(torch.complex(t, u)).exp(),
        ((3, 4), (3, 4)),
    ),
    "fft": Case(
        lambda x: fft.fft(x.view_as_complex()).view_as_real().exp(),
        lambda t: torch.view_as_real(torch.fft.fft(torch.view_as_complex(t))).exp(),
        ((3, 6, 2),),
    ),
    **{
        f"{row.name}-{i}": Case(row.ours, row.reference, domain=row.domain)
        for i, row in enumerate(ROWS)
    },
    **{
        name: Case(*FLOATS[name], [(3, 1), (2, 1, 4)], UP)
        for name in FLOATS
        if name not in NOT_BY_BOTH
    },
    **{f"reduce {name}": Case(*REDUCTIONS[name], [(2, 3, 4)]) for name in REDUCTIONS},
    "prod of a zero": Case(
        lambda x: (x * Tensor([1.0, 0, 1, 1], dtype="float64")).prod(1),
        lambda t: (t * torch.tensor([1.0, 0, 1, 1])).prod(1),
    ),
    "prod of two zeros": Case(
        lambda x: (x * Tensor([0.0, 0, 1, 1], dtype="float64")).prod(1),
        lambda t: (t * torch.tensor([0.0, 0, 1, 1])).prod(1),
    ),
    "var_mean": Case(
        lambda x: x.var_mean(1)[0] * x.std_mean(1)[1], lambda t: t.var(1) * t.mean(1)
    ),
    **{
        f"{a} @ {b}": Case(lambda p, q: p @ q, lambda p, q: p @ q, [a, b])
        for a, b in PRODUCTS
        if 0 not in a
    },
    "linear": Case(
        lambda x, w, b: x.linear(w, b), lambda x, w, b: F.linear(x, w.T, b), [(3, 4), (4, 2), (2,)]
    ),
    **{
        f"einsum {formula}": Case(
            lambda *xs, f=formula: Tensor.einsum(f, *xs),
            lambda *ts, f=formula: torch.einsum(f, *ts),
            shapes,
        )
        for formula, shapes in EINSUMS.items()
    },
    **{f"move {name}": Case(*MOVES[name], [(2, 3, 4)]) for name in MOVES},
    **{name: Case(*scan_value(name, 1), [(3, 5)]) for name in SCANS},
    "cumprod of a zero": Case(
        lambda x: (x * Tensor([1.0, 0, 1, 1], dtype="float64")).cumprod(1),
        lambda t: (t * torch.tensor([1.0, 0, 1, 1])).cumprod(1),
    ),
    **{f"scatter {name} {own}": scattered(name, own) for name in REDUCES for own in (True, False)},
    "scatter": Case(
        lambda x, s: x.scatter(0, Tensor(POSITIONS[:, None].repeat(4, 1)), s),
        lambda x, s: x.scatter(0, torch.tensor(POSITIONS[:, None].repeat(4, 1)), s),
        [(3, 4), (2, 4)],
    ),
    "gather": Case(
        lambda x: x.gather(0, Tensor(POSITIONS[:, None].repeat(4, 1))),
        lambda t: t.gather(0, torch.tensor(POSITIONS[:, None].repeat(4, 1))),
    ),
    "embedding": Case(
        lambda w: w.embedding(Tensor(POSITIONS)).square(), lambda w: w[torch.tensor(POSITIONS)] ** 2
    ),
    "index_select": Case(
        lambda x: x.index_select(1, Tensor(CLASSES)), lambda t: t[:, torch.tensor(CLASSES)]
    ),
    "read positions": Case(lambda x: x[[2, 0, 2], 1:], lambda t: t[[2, 0, 2], 1:]),
    "read a mask": Case(lambda x: x[CHOICE], lambda t: t[torch.tensor(CHOICE)]),
    "masked_select": Case(
        lambda x: x.masked_select(Tensor(CHOICE)), lambda t: t.masked_select(torch.tensor(CHOICE))
    ),
    "masked_fill": Case(
        lambda x: x.masked_fill(Tensor(CHOICE), 2.0).exp(),
        lambda t: t.masked_fill(torch.tensor(CHOICE), 2.0).exp(),
    ),
    "write": Case(written, written, [(3, 4), (2, 2)]),
    "write positions": Case(
        at_positions([Tensor(POSITIONS)]), at_positions([torch.tensor(POSITIONS)]),
        [(3, 4), (2, 4)],
    ),
    "assign": Case(lambda x: (x * 1).assign(x * x) * x, lambda t: t**3),
    "sort": Case(lambda x: x.sort(1)[0].cumprod(1), lambda t: t.sort(1)[0].cumprod(1)),
    "topk": Case(lambda x: x.topk(2)[0].square(), lambda t: t.topk(2)[0] ** 2),
    "copysign": Case(lambda x, y: x.copysign(y), lambda x, y: x.copysign(y.detach()), [(3,), (3,)]),
    "log_softmax of products": Case(
        lambda x: (x @ x.T).log_softmax(), lambda t: (t @ t.T).log_softmax(-1)
    ),
    "max of products": Case(lambda x: (x @ x.T).max(1), lambda t: (t @ t.T).max(1).values),
    "min of products": Case(lambda x: (x @ x.T).min(0), lambda t: (t @ t.T).min(0).values),
    "cast": Case(lambda x: x.square().cast("float64") * x, lambda t: t**3),
    "contiguous": Case(lambda x: x.exp().contiguous().T.square(), lambda t: (t.exp().T) ** 2),
    "barrier": Case(gpu.checkpoint(lambda x: x.exp().sin()), lambda t: t.exp().sin()),
    "detach": Case(lambda x: x * x.exp().detach(), lambda t: t * t.exp().detach()),
    "copy": Case(lambda x: x.exp().to("PYTHON").to(x.device).square(), lambda t: (2 * t).exp()),
    "shard": Case(
        lambda x: x.exp().shard((x.device, "PYTHON:1"), 1).square().to(x.device),
        lambda t: (2 * t).exp(),
    ),
    "newton_schulz": Case(
        lambda x: x.newton_schulz(2, (1.5, -0.5)), lambda t: newton_schulz(t, 2)
    ),
}  # fmt: skip


def newton_schulz(t: Any, steps: int) -> Any:
    x = t / (t.square().sum().sqrt() + 1e-7)
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ x.mT @ x
    return x


IMAGE, FILTER = (2, 4, 5, 4), (4, 2, 3, 2)
WINDOWS: dict[str, Case] = {
    "conv1d": Case(
        lambda x, w: x.conv2d(w, stride=2, padding=1), lambda x, w: F.conv1d(x, w, None, 2, 1),
        [(2, 3, 7), (2, 3, 3)],
    ),
    "conv2d": Case(
        lambda x, w, b: x.conv2d(w, b, groups=2, padding=1, stride=(2, 1)),
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), 1, 1, 2),
        [IMAGE, FILTER, (4,)],
    ),
    "conv2d dilated": Case(
        lambda x, w: x.conv2d(w, dilation=2), lambda x, w: F.conv2d(x, w, dilation=2),
        [(1, 2, 6, 5), (3, 2, 2, 2)],
    ),
    "conv3d": Case(
        lambda x, w: x.conv2d(w), F.conv3d, [(1, 2, 3, 3, 3), (2, 2, 2, 2, 2)]
    ),
    "transposed 1d": Case(
        lambda x, w: x.conv_transpose2d(w, stride=2),
        lambda x, w: F.conv_transpose1d(x, w, None, 2),
        [(1, 2, 4), (2, 3, 3)],
    ),
    "transposed 2d": Case(
        lambda x, w: x.conv_transpose2d(w, groups=2, stride=2, padding=1, output_padding=1),
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2),
        [(1, 4, 3, 3), (4, 1, 3, 3)],
    ),
    "max_pool": Case(
        lambda x: x.max_pool2d(2, padding=1).exp(), lambda t: F.max_pool2d(t, 2, padding=1).exp(),
        [IMAGE],
    ),
    "avg_pool": Case(
        lambda x: x.avg_pool2d(3, 2, padding=1).exp(), lambda t: F.avg_pool2d(t, 3, 2, 1).exp(),
        [IMAGE],
    ),
    "max_unpool": Case(
        lambda x: x.exp().max_unpool2d(Tensor([[[[0, 3], [9, 10]]]])),
        lambda t: F.max_unpool2d(t.exp(), torch.tensor([[[[0, 3], [9, 10]]]]), 2),
        [(1, 1, 2, 2)],
    ),
    "batchnorm": Case(
        lambda x, w, b: x.batchnorm(
            w, b, x.mean((0, 2)), x.var((0, 2), correction=0).add(1e-5).rsqrt()
        ),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        [(3, 4, 5), (4,), (4,)],
    ),
    "groupnorm": Case(
        lambda x: x.reshape(2, 2, 12).layernorm().reshape(2, 4, 6), lambda t: F.group_norm(t, 2),
        [(2, 4, 6)],
    ),
    **{
        f"interpolate {size} {mode}": Case(
            lambda x, size=size, mode=mode: x.interpolate(size, mode).square(),
            lambda t, size=size, mode=mode: F.interpolate(
                t, size, mode=LINEAR[len(size)] if mode == "linear" else mode
            ) ** 2,
            [shape],
        )
        for shape, size in SIZES.values() for mode in ("linear", "nearest")
    },
    **{
        f"attention {name}": Case(
            lambda q, k, v, kw=kwargs: q.scaled_dot_product_attention(k, v, **kw),
            lambda q, k, v, kw=kwargs: attention(q, k, v, **kw),
            [queries, keys, (*keys[:-1], 3)],
        )
        for name, (queries, keys, kwargs) in ATTENTION.items()
    },
}  # fmt: skip


def attention(q: Any, k: Any, v: Any, is_causal: bool = False, enable_gqa: bool = False) -> Any:
    """What torch computes, from parts that have second derivatives."""
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


LABELS = rng_for("labels").uniform(0.1, 0.9, (3, 4))
LOSS_CASES: dict[str, Case] = {
    **{
        name: Case(
            lambda x, ours=ours: ours(x, Tensor(LABELS)),
            lambda t, theirs=theirs: theirs(t, torch.tensor(LABELS)),
            domain=domain,
        )
        for name, (ours, theirs, domain) in LOSSES.items()
        if name != "bce logits"
    },
    "bce logits": Case(
        lambda x: x.binary_crossentropy_logits(Tensor(LABELS)),
        lambda t: F.binary_cross_entropy_with_logits(t, torch.tensor(LABELS)),
    ),
    "classes": Case(
        lambda x: x.cross_entropy(Tensor(CLASSES), "sum", 0.1),
        lambda t: F.cross_entropy(t, torch.tensor(CLASSES), reduction="sum", label_smoothing=0.1),
    ),
    "nll": Case(
        lambda x: x.log_softmax().nll_loss(Tensor(CLASSES), ignore_index=3),
        lambda t: F.nll_loss(t.log_softmax(-1), torch.tensor(CLASSES), ignore_index=3),
    ),
    "sparse": Case(
        lambda x: x.sparse_categorical_crossentropy(Tensor(CLASSES)),
        lambda t: F.cross_entropy(t, torch.tensor(CLASSES)),
    ),
}


ALL = {
    **{f"op {name}": case for name, case in OPERATIONS.items()},
    **CASES, **WINDOWS, **{f"loss {name}": case for name, case in LOSS_CASES.items()},
}  # fmt: skip
