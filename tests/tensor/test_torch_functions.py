"""Functions with torch's names beside torch's: values, dtypes, shapes and gradients.

A call is written once and evaluated with tensors of either library. Operands are drawn anew for
each call, dtype and set of shapes. Where torch refuses a dtype, or has no gradient, ours may have
it.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.errors import GpuError
from tensor.reference import TOLERANCES, Array, Tolerance, rng_for, torch, uniform, widest

DTYPES: Final = ("float32", "float64", "int32", "uint8")
Shapes = dict[str, tuple[int, ...]]


def calls(text: str) -> list[str]:
    return [call.strip() for line in text.split("\n") for call in line.split("  ") if call.strip()]


# Of operands that broadcast; each stands for one of the calls with them.
ELEMENTWISE: Final = calls("""
    x.atan2(y)  x.arctan2(y)  x.hypot(y)  x.fmax(y)  x.fmin(y)  x.xlogy(y)  x.logaddexp2(y)
    x.ldexp(i)  x.nextafter(y)  x.signbit()  x.heaviside(y)  x.sinc()  x.sgn()  x.frac()
    x.logit(eps=0.3)  (x / 8).sigmoid().logit()  x.float_power(2)  x.float_power(i)  x.deg2rad()
    x.rad2deg()  x.logical_and(y)  x.logical_or(y)  x.logical_xor(y)  x.frexp()[0]  x.frexp()[1]
    x.addcmul(y, z)  x.addcmul(y, z, value=2)  x.addcdiv(y, z)  x.addcdiv(y, z, value=-0.5)
    x.nan_to_num()  (x / (x > 0)).nan_to_num(1.0)  (x / (x > 0)).nan_to_num(2, 3, -4)
    (-x / (x * 0)).nan_to_num(neginf=-7.0)  x.add(y, alpha=3)  x.sub(y, alpha=2)
    x.round(decimals=1)
    (x * 30).round(decimals=-1)  x.gcd(y)  x.lcm(y)  (x * 0).xlogy(y)
""")
MATRIX: Final[Shapes] = {"x": (3, 5), "y": (5, 4), "z": (3, 4), "v": (5,), "w": (3,), "u": (4,)}
INTEGERS: Final = {"x.gcd(y)", "x.lcm(y)"}
SETS: Final[dict[str, tuple[list[str], list[Shapes]]]] = {
    "elementwise": (
        ELEMENTWISE,
        [
            {"x": (3, 4), "y": (3, 4), "z": (3, 4), "i": (3, 4)},
            {"x": (2, 1, 4), "y": (3, 1), "z": (4,), "i": (3, 1)},
            {"x": (0, 3), "y": (1, 3), "z": (1, 3), "i": (1, 3)},
            {"x": (), "y": (), "z": (), "i": ()},
        ],
    ),
    "arrangement": (
        calls("""
            x.narrow(1, 1, 2)  x.narrow(-1, -3, 2)  x.narrow(1, 2, 0)  x.select(1, -1)
            x.select(0, 1)  x.unbind()  x.unbind(-1)  x.movedim(0, 2)  x.movedim((0, 1), (2, 0))
            x.moveaxis(-1, 0)  x.swapaxes(0, 2)  x.swapdims(1, -1)  x.rot90()  x.rot90(-1, (0, 2))
            x.rot90(2, [1, 2])  x.rot90(3, (2, 0))  x.fliplr()  x.flipud()  x.ravel()
            x.tensor_split(3, 2)  x.tensor_split((1, 3), dim=2)  x.tensor_split((2, 1, 9), 1)
            x.tensor_split(5, -1)  x.tile(2)  x.tile((2, 1, 3))  x.tile(2, 1, 1, 2)  x.mT
            x.adjoint()  x[0].t()  x.reshape_as(y)  x[:, :, :1].expand_as(x)  x.view_as(y)
            x[0, 0].broadcast_to((2, 4))  T.atleast_1d(x[0, 0, 0])  T.atleast_2d(x[0, 0])
            T.atleast_3d(x[0])  T.atleast_3d(x[0, 0])  T.hstack(x, x)  T.hstack(x[0, 0], x[0, 1])
            T.vstack(x, x)  T.vstack(x[0, 0], x[0, 1])  T.dstack(x[0], x[0])
            T.column_stack(x[0, 0], x[0, 1])  T.column_stack(x[0], x[0])  x.diag_embed()
            x[0].diag_embed(1)  x[0].diag_embed(-2, 0, 2)  x.diag_embed(1, 2, 0)  x[0].diag(1)
            x[0, 0].diag(-2)  x[0, 0].diag(1)  x[0].diag(-1)  x.sort(dim=1, stable=True)
            x.take(k)  x.take(k - 24)  x.take_along_dim(a, 1)  x.take_along_dim(a[:1], 1)
            x.take_along_dim(k)  x.select_scatter(x[:, 0] * 2, 1, 2)
            x.slice_scatter(x[:, 1:2] * 2, 1, 0, 1)  x.slice_scatter(x[..., :2] * 2, 2, 1, 4, 2)
            x[0].diagonal_scatter(x[0, 0, :3] * 2)  x.diagonal_scatter(x[:, :, 0].T * 2, 1, 0, 2)
            T.broadcast_tensors(x, x[0], x[0, 0])
        """),
        [{"x": (2, 3, 4), "y": (4, 6), "k": (3, 2), "a": (2, 2, 4)}],
    ),
    "reductions": (
        calls("""
            x.amax(1)  x.amin((0, 2))  x.amax()  x.aminmax(dim=1)  x.aminmax()
            x.aminmax(dim=-1, keepdim=True)  x.count_nonzero()  x.count_nonzero(1)
            x.count_nonzero((0, 2))  x.nansum()  x.nansum(1)  n.nansum(1)  n.nansum((0, 1), True)
            n.nanmean()  n.nanmean(1)  n.nanmean(2, keepdim=True)  x.norm()  x.norm(1)  x.norm(3, 1)
            x.norm(math.inf, 2)  x.norm(-math.inf, (0, 1))  x.norm(0, 1)  x.norm(2, (0, 1), True)
            x.norm('fro', 1)  x.norm(0.5, 0)  x.norm(-1, 0)  (x * 0).norm()  x.renorm(2, 1, 1.5)
            x.renorm(1, 0, 2)  x.dist(x[0])  x.dist(x * 2, 3)  x.diff()  x.diff(2)  x.diff(1, 0)
            x.diff(9)  x.diff(dim=1, prepend=x[:, :1], append=x)  x.diff(0)
            (x > 1).diff()  T.trapezoid(x)  T.trapezoid(x, dx=0.5, dim=1)  T.trapezoid(x, x[0, 0])
            T.trapezoid(x, x * x, dim=0)
        """),
        [
            {"x": (2, 3, 4), "n": (2, 3, 4)},
            {"x": (2, 3, 0), "n": (2, 3, 0)},
        ],
    ),
    "products": (
        calls("""
            x.mm(y)  x.mv(v)  z.addmm(x, y)  z.addmm(x, y, beta=2, alpha=3)  z.addmm(x, y, beta=0)
            u.addmm(x, y)  w.addmv(x, v)  w.addmv(x, v, beta=2, alpha=3)  z.addr(w, u)
            z.addr(w, u, beta=2, alpha=3)  x[None].bmm(y[None])  z[None].baddbmm(x[None], y[None])
            z.baddbmm(x[None], y[None], beta=2, alpha=3)  z.addbmm(x[None], y[None])  w.outer(u)
            w.ger(u)  x.inner(v)  x.inner(x)  v.vdot(v)  x.kron(y)  v.kron(u)  x.kron(v)
            T.tensordot(x, y, 1)  T.tensordot(x, x, ([0], [0]))  T.tensordot(x, x, 2)
            T.tensordot(x, y.mT, ([1], [1]))  T.tensordot(w, u, 0)  x.mT.cross(x.mT * w, dim=1)
            w.cross(w + 1)  x.cross(w[:, None], dim=0)  x[:, :3].trace()  T.block_diag(x, y)
            T.block_diag(v, x, w)  T.cdist(x, z[:, :1] - x)  T.cdist(x, x[:2], 1)
            T.cdist(x, x[:2] + 9, 3)  T.cdist(x, x[1:], math.inf)  x.cov()  x.cov(correction=0)
            v.cov()  x.corrcoef()  v.corrcoef()
        """),
        [MATRIX, MATRIX | {"x": (3, 0), "y": (0, 4), "v": (0,)}],
    ),
    "order": (
        calls("""
            T.isin(x, y)  T.isin(x, y, invert=True)  T.isin(x, y[0, :2])  x.msort()
            T.bucketize(x, s)  T.bucketize(x, s, right=True)  x.unique_consecutive()
            x.unique_consecutive(True, True)  x.unique_consecutive(return_counts=True)
            x.unique_consecutive(dim=0)  x.unique_consecutive(True, True, dim=1)  n.nanmedian()
            n.nanmedian(1)[0]  n.nanmedian(0, True)[0]  x.quantile(0.3)  x.quantile(0.5, 1)
            x.quantile(q, 1)  x.quantile(q, 0, True)  x.quantile(q)  n.nanquantile(0.4)
            n.nanquantile(q, 1)  n.quantile(q, 1)  n.nanquantile(0.7, 0, keepdim=True)
            x.quantile(0.37, 1, interpolation='lower')  x.quantile(0.37, 1, interpolation='higher')
            x.quantile(0.37, 1, interpolation='nearest')  x.mode()[0]
            x.quantile(0.37, 1, interpolation='midpoint')  x.mode(0, True)[0]  x.histc()
            x.histc(7, -3, 3)  x.histc(5)  x.histogram(6)  x.histogram(4, range=(-1.0, 2.0))
            x.histogram(s)  x.histogram(5, weight=y, density=True)  k.ravel().bincount()
            T.histogramdd(x[:, :2], 3)[0]  T.histogramdd(x[:, :2], (s, s + 1))[0]
            T.histogramdd(x[:, :3], [2, 1, 4], weight=y[:, 0], density=True)[0]
            T.histogramdd(x[:, :2], [2, 3], range=(-1.0, 2.0, 0.0, 1.0))[0]
            T.histogramdd(x[:, :2], 2)[1]
            k.ravel().bincount(minlength=40)  k.ravel().bincount(k.ravel() * 0.5)
        """),
        [{"x": (4, 5), "y": (4, 5), "n": (4, 5), "k": (3, 2), "s": (4,), "q": (3,)}],
    ),
    "indexed": (
        calls("""
            x.index_add(1, c, x)  x.index_add(1, c, x, alpha=2)  x.index_add(0, c[:1], x[:1])
            x.index_copy(0, r, x[:2])  x.index_fill(1, c, 2)  x.index_fill(1, c, x[0, 0])
            x.index_reduce(1, c, x, 'prod')  x.index_reduce(1, c, x, 'mean')
            x.index_reduce(1, c, x, 'amax', include_self=False)  x.index_reduce(1, c, x, 'amin')
            x.index_put((r,), x[:2] * 2)  x.index_put((r, r), x[0, 0])
            x.index_put((x > 0,), x[0, 0])
            x.index_put((r, -r), x[0, :2], accumulate=True)  x.put(k, x.ravel()[:6])
            x.index_put((c, c), x[0], True)  x.put(k - 15, x.ravel()[:6])
            x.put(k * 0, x.ravel()[:6], True)
            x.masked_scatter(x > 0, x.T.contiguous())  x.masked_scatter(x[0] > 0, x * 2)
            x.scatter_add(1, a, x)  x.scatter_add(0, a[:2] % 3, x)  x.argwhere()
        """),
        [{"x": (3, 5), "c": (5,), "r": (2,), "k": (3, 2), "a": (3, 5)}],
    ),
}  # fmt: skip
CASES: Final = [
    pytest.param(call, shapes, id=f"{call}-{number}")
    for every, sets in SETS.values()
    for call in every
    for number, shapes in enumerate(sets)
]
# Where sums of rounded powers or differences are what torch computes, and we another way.
LOOSE: Final = {
    "x.renorm": Tolerance(1e-4, 1e-5), "x.float_power": Tolerance(1e-6, 1e-6),
    "T.cdist": Tolerance(1e-4, 2e-3),
}  # fmt: skip
# Gradients that torch has wrong: 0 of negative powers; behind empty blocks, those of other blocks.
WRONG_IN_TORCH: Final = {"x.ldexp(i)", "T.block_diag(v, x, w)"}


def operands(call: str, shapes: Shapes, dtype: str) -> dict[str, Array]:
    """Random ones by name: i small integers; c, r, k, a indices; n with NaN; s sorted; q shares."""
    rng = rng_for(call, sorted(shapes.items()), dtype)
    made: dict[str, Array] = {}
    for name, shape in shapes.items():
        low = 0.0 if dtype == "uint8" else -3.0
        x = uniform(rng, shape, (low, 4.0), dtype)
        if name == "i":
            x = rng.integers(0 if dtype == "uint8" else -3, 4, shape).astype("int32")
        elif name in "cka":
            x = rng.permuted(np.resize(np.arange({"c": 5, "k": 15, "a": 3}[name]), shape))
            x = (x % 3 if call.startswith("x.index_put((c") else x).astype("int64")
        elif name == "r":
            x = rng.permutation(3)[:2].astype("int64")
        elif name == "n" and x.dtype.kind == "f":
            x[rng.uniform(size=shape) < 0.3] = math.nan
        elif name == "s":
            x = np.sort(x)
        elif name == "q":
            x = rng.uniform(size=shape).astype(x.dtype)
        made[name] = x
    return made


class TorchT:
    """Torch's functions, with those that join called as ours are."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch, name)
        if name in ("hstack", "vstack", "dstack", "column_stack"):
            return lambda *tensors: function(tensors)
        return function


def evaluate(call: str, T: Any, names: dict[str, Any]) -> Any:
    return eval(call, {"T": T, "math": math, **names})


def pairs(ours: Any, theirs: Any) -> list[tuple[Any, Any]]:
    if isinstance(theirs, (tuple, list)):
        assert isinstance(ours, tuple) and len(ours) == len(theirs)
        return list(zip(ours, theirs, strict=True))
    return [(ours, theirs)]


def tolerance_of(call: str, dtype: str) -> Tolerance:
    for start, loose in LOOSE.items():
        if call.startswith(start):
            return loose
    return TOLERANCES[dtype] if dtype in TOLERANCES else Tolerance(0, 0)


def check_values(call: str, found: Any, wanted: Any) -> None:
    for one, other in pairs(found, wanted):
        x, y = one.numpy(), other.detach().numpy()
        assert (x.shape, x.dtype) == (y.shape, y.dtype), (x.shape, x.dtype, y.shape, y.dtype)
        relative, absolute = tolerance_of(call, x.dtype.name)
        np.testing.assert_allclose(x, y, relative, absolute, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("call", "shapes"), CASES)
def test_values(call: str, shapes: Shapes, dtype: str) -> None:
    arrays = operands(call, shapes, dtype)
    try:
        wanted = evaluate(call, TorchT(), {n: torch.tensor(x) for n, x in arrays.items()})
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
        assert 0 in shapes["x"] or dtype != "float32" or call in INTEGERS, "not a call of torch's"
        # What torch refuses, for its dtype or for having no element, is done or refused by a type.
        with suppress(GpuError):
            evaluate(call, Tensor, {n: Tensor(x) for n, x in arrays.items()})
        return
    if "trapezoid" in call and 0 in shapes["x"] and dtype in ("int32", "uint8"):
        wanted = wanted.float()  # torch's dtype is another one only where there is no element
    check_values(call, evaluate(call, Tensor, {n: Tensor(x) for n, x in arrays.items()}), wanted)


@pytest.mark.parametrize(("call", "shapes"), [c for c in CASES if c.id.endswith("-0")])
def test_on_devices(call: str, shapes: Shapes, device: str) -> None:
    arrays = operands(call, shapes, "float32")
    if widest(device) == "float32" and "float_power" in call:
        pytest.skip("the device has no float64")
    try:
        wanted = evaluate(call, TorchT(), {n: torch.tensor(x) for n, x in arrays.items()})
    except (RuntimeError, NotImplementedError):
        arrays = {n: x.astype("int32") for n, x in arrays.items()}
        wanted = evaluate(call, TorchT(), {n: torch.tensor(x) for n, x in arrays.items()})
    found = evaluate(call, Tensor, {n: Tensor(x, device=device) for n, x in arrays.items()})
    check_values(call, found, wanted)


@pytest.mark.parametrize(("call", "shapes"), CASES)
def test_gradients(call: str, shapes: Shapes) -> None:
    arrays = operands(call, shapes, "float64")
    if call in WRONG_IN_TORCH:
        return
    if "n" in arrays:
        arrays["n"][..., :1] = 1.5  # of nothing but NaN torch's gradients are NaN, ours 0
    xs = {n: torch.tensor(x, requires_grad=x.dtype.kind == "f") for n, x in arrays.items()}
    leaves = [n for n in xs if xs[n].requires_grad and n in call.replace("math", "")]
    try:
        outs = evaluate(call, TorchT(), xs)
        outs = [o for o in (outs if isinstance(outs, (tuple, list)) else [outs]) if o.requires_grad]
        seeds = [rng_for(call, i).uniform(-1, 1, tuple(o.shape)) for i, o in enumerate(outs)]
        total = sum((o * torch.tensor(s)).sum() for o, s in zip(outs, seeds, strict=True))
        if not outs:
            return
        total.backward()
    except (RuntimeError, NotImplementedError, IndexError, TypeError):
        return  # torch refuses floats, or has no gradient
    ts = {n: Tensor(x, requires_grad=(n in leaves) or None) for n, x in arrays.items()}
    found = evaluate(call, Tensor, ts)
    floats = [o for o in (found if isinstance(found, tuple) else (found,)) if o.dtype.is_float]
    parts = [(o * Tensor(s)).sum() for o, s in zip(floats, seeds, strict=True)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    wanted = {n: xs[n].grad for n in leaves if xs[n].grad is not None}
    grads = whole.gradient(*(ts[n] for n in wanted), materialize_grads=True)
    for grad, (name, theirs) in zip(grads, wanted.items(), strict=True):
        relative, absolute = 1e-6, 1e-8
        np.testing.assert_allclose(
            grad.numpy(), (theirs + 0).numpy(), relative, absolute, err_msg=name, equal_nan=True
        )


def test_integer_places() -> None:
    x = rng_for("mode").integers(0, 3, (4, 7))
    values, places = Tensor(x).mode(1)
    np.testing.assert_array_equal(
        np.take_along_axis(x, places.numpy()[:, None], 1)[:, 0], values.numpy()
    )
    assert places.dtype is dtypes.int64
