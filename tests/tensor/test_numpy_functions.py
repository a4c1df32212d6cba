"""numpy's functions on tensors: what they give of arrays of the same values, or a typed error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import JitError, Tensor, jit
from gpu.core.errors import InvalidType
from gpu.runtime.prepared import Counters
from gpu.tensor.numpyforward import ENTRIES
from tensor.reference import rng_for

# Of a and b, floats of shape (3, 4); s, floats of (3, 3); v, sorted floats of (5,); i and j, ints
# in 0..2 of shape (3, 4) and (5,); m, bools of shape (3, 4).
FUNCTIONS = """
np.sum([a, b])  np.sum(a, where=m)  np.count_nonzero(i)  np.count_nonzero(i, axis=0)
np.average(a, weights=b)  np.median(a)  np.median(a, axis=0)  np.percentile(a, 30)
np.quantile(a, [0.1, 0.9])  np.nansum(a)  np.nanmean(a, axis=0)  np.nanmax(a)  np.nanstd(a)
np.fix(a)  np.nan_to_num(a)  np.real(a)  np.imag(a)  np.angle(a)  np.tile(a, (2, 1))
np.reshape(a, -1, order="F")  np.resize(a, (2, 7))  np.ravel(a)  np.ravel(a, order="F")
np.copy(a)  np.moveaxis(a, 0, 1)  np.rollaxis(a, 1)  np.roll(a, 2)  np.roll(a, 1, axis=0)
np.rot90(a)  np.flip(a)  np.flip(a, 0)  np.fliplr(a)  np.flipud(a)  np.expand_dims(a, 1)
np.atleast_1d(a)  np.atleast_3d(a, b)  np.broadcast_to(v, (2, 5))  np.broadcast_arrays(a, a[:1])
np.sort(a)  np.sort(a, axis=0)  np.sort(a, axis=None)  np.partition(a, 1)  np.argpartition(v, 1)
np.lexsort((j, v))  np.digitize(a, v)  np.flatnonzero(i)  np.argwhere(i)  np.where(m)
np.where(m, a, b)  np.where(m, a, 0)  np.take_along_axis(a, i, axis=1)  np.choose(i, [a, b, a])
np.compress([True, False, True], a, axis=0)  np.compress(m[0], a, axis=1)  np.extract(m, a)
np.select([m, ~m], [a, b])  np.diagonal(s)  np.diagonal(a, offset=1)  np.trace(s)  np.diag(s)
np.diag(v)  np.diagflat(v)  np.tril(s)  np.triu(s, 1)  np.concatenate([a, b])
np.concatenate((a, b), axis=1)  np.concatenate([a, b], axis=None)  np.stack([a, b])
np.stack((a, b), axis=-1)  np.vstack([a, b])  np.hstack([a, b])  np.dstack([a, b])
np.column_stack([v, j])  np.block([[a, b], [b, a]])  np.append(a, b)  np.append(a, b, axis=0)
np.insert(v, 1, 9.0)  np.delete(a, 1, axis=0)  np.pad(a, 1)  np.split(a, 2, axis=1)
np.array_split(v, 2)  np.hsplit(a, 2)  np.dot(a, b.T)  np.dot(v, v)  np.inner(a, b)
np.outer(v, v)  np.vdot(a, b)  np.tensordot(a, b)  np.tensordot(a, b, axes=([1], [1]))
np.einsum("ij,ij->i", a, b)  np.kron(s, s)  np.cross(a[:, :3], b[:, :3])  np.convolve(v, v)
np.correlate(v, v)  np.cov(a)  np.corrcoef(a)  np.diff(a)  np.diff(a, axis=0)  np.ediff1d(v)
np.gradient(a)  np.interp(a, v, v)  np.histogram(a, 4)  np.bincount(j)  np.bincount(j, weights=v)
np.unique(i)  np.unique(i, return_counts=True)  np.isin(i, j)  np.union1d(i, j)
np.intersect1d(i, j)  np.setdiff1d(i, j)  np.unravel_index(j, (3, 4))
np.ravel_multi_index((j, j), (3, 4))  np.meshgrid(v, j)  np.ix_(j, j)  np.vander(v)
np.polyval(v, a)  np.polyfit(v, v, 1)  np.isclose(a, b)  np.allclose(a, a)  np.array_equal(a, a)
np.array_equal(a, b)  np.array_equiv(a, a)  np.isreal(a)  np.iscomplexobj(a)  np.isneginf(a)
np.shape(a)  np.ndim(a)  np.size(a)  np.size(a, 1)  np.size(a, -1)  np.result_type(a, 1.0)
np.min_scalar_type(j)  np.common_type(a, b)  np.zeros_like(a)  np.ones_like(i)  np.full_like(a, 7)
np.array2string(i)  np.array_str(i)  np.array_repr(i)  np.apply_along_axis(np.sum, 0, a)
np.apply_over_axes(np.sum, a, (0, 1))  np.packbits(m)  np.piecewise(a, [m, ~m], [1, 2])
np.sinc(a)  np.unwrap(v)  np.i0(v)  np.asarray(a)  np.array(a)  np.asarray(a, dtype=np.float64)
np.array([a, b])  np.iterable(a)  np.isscalar(a)  np.linalg.norm(a)  np.linalg.norm(a, axis=1)
np.linalg.inv(s)  np.linalg.det(s)  np.linalg.solve(s, s)  np.linalg.svd(a, compute_uv=False)
np.linalg.matrix_power(s, 2)  np.linalg.multi_dot([s, s, s])  np.linalg.matrix_rank(s)
np.linalg.lstsq(s, s, rcond=None)  np.fft.fft(a)  np.fft.rfft(v)  np.fft.fftshift(v)  np.exp(a)
np.sin(a)  np.sqrt(abs(a))  np.tanh(a)  np.sign(a)  np.maximum(a, b)  np.minimum(a, 0)
np.hypot(a, b)  np.arctan2(a, b)  np.logical_and(m, ~m)  np.logical_not(m)  np.isnan(a)
np.isfinite(a)  np.floor(a)  np.square(a)  np.modf(a)  np.frexp(a)  np.add(a, 1, dtype=np.float64)
np.add(a, b, where=True)  np.add(a, 1, out=np.zeros((3, 4)), where=m)  np.add.reduce(a)
np.add.reduce(a, axis=1)  np.add.accumulate(a)  np.multiply.outer(v, v)
np.add.reduceat(v, [0, 2])  np.maximum.reduce(a, axis=0)  np.vectorize(abs)(v)
np.sum(a, 0, None, np.zeros(4))  np.max(a, axis=0, out=np.zeros(4))  np.arange(20.0)[j]
np.arange(12.0).reshape(3, 4)[m]  np.arange(5.0).searchsorted(v)  np.ones((3, 4)).dot(a.T)
"""
# What is a method, which gives tensors as it is.
METHODS = """
np.sum(a)  np.sum(a, 0)  np.sum(a, axis=1, keepdims=True)  np.sum(a, dtype=np.float64)  np.sum(i)
np.prod(a)  np.prod(a, axis=0)  np.mean(a)  np.mean(a, axis=(0, 1))  np.std(a)
np.std(a, axis=0, ddof=1)  np.var(a)  np.var(a, 1)  np.min(a)  np.amin(a, 0)  np.max(a)
np.amax(a, axis=1)  np.ptp(a)  np.ptp(a, axis=0)  np.argmin(a)  np.argmin(a, axis=0)  np.argmax(a)
np.argmax(a, 1)  np.cumsum(a)  np.cumsum(a, axis=0)  np.cumprod(a)  np.cumprod(a, axis=1)
np.all(m)  np.all(m, axis=0)  np.any(m)  np.any(m, axis=1)  np.clip(a, -0.5, 0.5)
np.clip(a, b - 1, None)  np.round(a, 1)  np.around(a)  np.repeat(a, 2)  np.repeat(a, 2, axis=0)
np.repeat(v, j)  np.transpose(a)  np.transpose(a, (1, 0))  np.reshape(a, (4, 3))
np.squeeze(a[None])  np.squeeze(a[:, None], axis=1)  np.swapaxes(a, 0, 1)  np.argsort(a)
np.argsort(a, axis=0, kind="stable")  np.searchsorted(v, a)  np.searchsorted(v, 0.0)
np.nonzero(i)  np.nonzero(m)  np.take(a, [0, 2])  np.take(a, i, axis=0)  np.take(a, j)
np.sum(a, (0, 1))  np.argmax(a, axis=1, keepdims=True)  np.clip(a, None, 0.2)
np.repeat(a, j[:4], axis=1)  np.cumsum(i)  np.max(i, (0, 1))  np.nonzero(v)
np.swapaxes(a[None], 0, -1)  np.take(a, [-1, 0], axis=1)  np.searchsorted(v, a, side="right")
np.round(a * 100, -1)  np.all(i, axis=1, keepdims=True)  np.std(i)  np.argsort(a, axis=None)
np.mean(a, 0, None, None, True)  np.prod(i, 1)
"""
# What gives a tensor, as of any operator with a tensor in it.
OPERATORS = """
np.add(a, 1)  np.add(1, a)  np.add(a, b)  np.subtract(2.0, a)  np.multiply(a, b)  np.divide(a, b)
np.true_divide(a, b)  np.floor_divide(i, 2)  np.remainder(i, 2)  np.mod(a, b)  np.power(a, 2)
np.matmul(a, b.T)  np.negative(a)  np.positive(a)  np.absolute(a)  np.invert(i)
np.bitwise_and(i, 1)  np.bitwise_or(i, 2)  np.bitwise_xor(i, 3)  np.left_shift(i, 2)
np.right_shift(i, 1)  np.equal(i, 1)  np.not_equal(i, 1)  np.less(a, b)  np.less_equal(a, 0)
np.greater(a, b)  np.greater_equal(0, a)  x + a  x - a  x * a  x / a  x @ a.T  x < a  x == a
x > a  x[0] + a  x.T @ a  x ** i  x // 1 + i  np.float32(2) * a  np.float64(2) * a
a * np.float64(2)  np.float64(3) - a  a / np.float32(2)  np.int64(2) * i  np.float64(1) > a
abs(a)  -a  np.int32(1) << i  np.float32(2) ** a
"""
WRITING = """
np.put(t, [0], 1)  np.place(t, m, [0])  np.copyto(t, 1)  np.putmask(t, m, 0)
np.fill_diagonal(t, 0)  np.put_along_axis(t, i, 0, 1)  np.add.at(t, (0, 0), 1)  np.add(1, 1, t)
np.exp(x, out=t)  np.negative(x, t)  np.sum(x[None], 0, None, t)  np.mean(x[None], axis=0, out=t)
np.clip(x, 0, 1, t)  np.round(x, 0, t)  np.take(x, i, out=t)  np.cumsum(x, 0, None, t)
np.concatenate([x[:2], x[2:]], 0, t)  np.dot(x, x[:, :1].T, out=t)  np.nan_to_num(t, copy=False)
np.median(t, overwrite_input=True)  np.std(x[None], 0, None, t)
np.add.reduce(x[None], 0, None, t)  np.max(x[None], 0, t)  np.choose(i * 0, [x], t)
"""


def calls(table: str) -> list[str]:
    return [call.strip() for line in table.split("\n") for call in line.split("  ") if call.strip()]


def operands(call: str) -> dict[str, Any]:
    """Random ones by name, as arrays."""
    rng = rng_for(call)
    return {
        "a": rng.normal(size=(3, 4)).astype("float32"),
        "b": rng.normal(size=(3, 4)).astype("float32"),
        "s": (rng.normal(size=(3, 3)) + 4 * np.eye(3)).astype("float32"),
        "v": np.sort(rng.normal(size=5).astype("float32")),
        "i": rng.integers(0, 3, (3, 4)).astype("int32"),
        "j": rng.integers(0, 3, 5).astype("int64"),
        "m": rng.uniform(size=(3, 4)) > 0.4,
    }


def evaluate(call: str, names: dict[str, Any]) -> Any:
    return eval(call, {"np": np, "x": np.linspace(0.5, 3, 12, dtype="f4").reshape(3, 4), **names})


def assert_alike(found: Any, wanted: Any) -> None:
    """The same arrays in the same form."""
    assert type(found) is type(wanted), (type(found), type(wanted))
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
        return
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("call", calls(FUNCTIONS))
def test_functions_give_arrays(call: str) -> None:
    arrays = operands(call)
    wanted = evaluate(call, arrays)
    # As they come, and not computed yet.
    for lazy in (False, True):
        tensors = {name: Tensor(x) for name, x in arrays.items()}
        if lazy:
            tensors = {name: x.T.contiguous().T for name, x in tensors.items()}
        assert_alike(evaluate(call, tensors), wanted)
        for name, x in arrays.items():
            np.testing.assert_array_equal(tensors[name].numpy(), x)


@pytest.mark.parametrize("call", calls(METHODS))
def test_functions_that_are_methods_give_tensors(call: str) -> None:
    arrays = operands(call)
    wanted = evaluate(call, arrays)
    launches = Counters.launches
    found = evaluate(call, {name: Tensor(x) for name, x in arrays.items()})
    if "nonzero" not in call and "(v, j)" not in call and "j[" not in call:
        assert Counters.launches == launches  # they compute later
    if not isinstance(wanted, tuple):
        found, wanted = (found,), (wanted,)
    for one, other in zip(found, wanted, strict=True):
        assert isinstance(one, Tensor) and one.shape == other.shape
        if other.dtype.kind in "biu":
            assert one.numpy().dtype == other.dtype
        np.testing.assert_allclose(one.numpy(), other, 1e-5, 1e-6)


def test_every_function_that_forwards_to_a_method_is_known() -> None:
    """numpy's sources say which do: what is not in the table gives arrays, or is refused."""
    import ast
    import inspect

    import numpy._core.fromnumeric as source

    tree = ast.parse(inspect.getsource(source))
    forwarding = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(part, ast.Call)
            and getattr(part.func, "id", "") in ("_wrapfunc", "_wrapreduction", "_mean", "_std")
            for part in ast.walk(node)
        )
    }
    in_arrays = {"choose", "put", "compress", "diagonal", "ravel", "trace", "partition", "sort"}
    ours = {getattr(np, name) for name in forwarding - in_arrays if hasattr(np, name)}
    table = calls(FUNCTIONS) + calls(METHODS) + calls(WRITING)
    for function in ours:
        assert any(f"np.{function.__name__}(" in call for call in table), function.__name__
        assert function in ENTRIES or any(
            f"np.{function.__name__}(" in call for call in calls(FUNCTIONS)
        )


@pytest.mark.parametrize("call", calls(OPERATORS))
def test_operators_give_tensors(call: str) -> None:
    arrays = operands(call)
    wanted = evaluate(call, arrays)
    found = evaluate(call, {name: Tensor(x) for name, x in arrays.items()})
    assert isinstance(found, Tensor) and found.shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("call", calls(WRITING))
def test_writing_to_a_tensor_is_refused(call: str) -> None:
    arrays = operands(call)
    before = np.arange(12, dtype=np.float32).reshape(3, 4)
    t = Tensor(before.copy()).realize()
    with pytest.raises(InvalidType, match=r"numpy's \w+ cannot write to .*tensor.assign\(\)"):
        evaluate(call, {**arrays, "t": t})
    assert t.tolist() == before.tolist()


def test_in_place_on_arrays() -> None:
    x, i = np.ones((2, 3), "float32"), np.arange(6).reshape(2, 3)
    t = Tensor(i.astype("float32"))
    x += t
    x *= t
    i -= Tensor([1, 2, 3])
    assert x.tolist() == ((1 + t) * t).tolist() and i.tolist() == [[-1, -1, -1], [2, 2, 2]]
    np.add.at(x, (Tensor([0, 0]), Tensor([1, 1])), Tensor([1.0, 2.0]))
    assert x[0].tolist() == [0, 5, 6] and isinstance(x, np.ndarray)
    np.copyto(x, t)
    assert x.tolist() == t.tolist()
    t += x
    assert isinstance(t, Tensor) and t.tolist() == (2 * x).tolist()


def test_functions_of_shapes_compute_nothing() -> None:
    lazy = Tensor([[1.0, 2.0], [3.0, 4.0]]).exp()
    launches = Counters.launches
    assert (np.shape(lazy), np.ndim(lazy), np.size(lazy), np.size(lazy, 1)) == ((2, 2), 2, 4, 2)
    assert Counters.launches == launches


def test_memory_is_lent_where_it_can_be() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    assert np.shares_memory(x, np.asarray(x)) and np.shares_memory(np.transpose(x), np.asarray(x))
    assert not np.shares_memory(x, Tensor([1.0]).realize())
    kept = np.ravel(x)
    x += 1
    assert kept.tolist() == [1, 2, 3, 4] and x.tolist() == [[2, 3], [4, 5]]
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 5


def test_on_every_device(device: str) -> None:
    a = rng_for("device").normal(size=(5, 3)).astype("float32")
    t = Tensor(a, device=device)
    for call in ("np.sort(a)", "np.stack([a, a])", "np.trace(a)"):
        assert_alike(evaluate(call, {"a": t}), evaluate(call, {"a": a}))
    for call in ("np.sum(a, axis=0)", "np.nonzero(a)[1]", "np.clip(a, 0, 1)", "np.std(a)"):
        found = evaluate(call, {"a": t})
        assert found.device == t.device
        np.testing.assert_allclose(found.numpy(), evaluate(call, {"a": a}), 1e-5)
    assert isinstance(np.add(t, a), Tensor) and np.add(t, a).device == t.device


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_of_no_axes_and_no_elements(shape: tuple[int, ...]) -> None:
    a = np.ones(shape, "float32")
    for call in ("np.ravel(a)", "np.concatenate([np.ravel(a)] * 2)", "np.shape(a)"):
        assert_alike(evaluate(call, {"a": Tensor(a)}), evaluate(call, {"a": a}))


def test_files(tmp_path: Path) -> None:
    t = Tensor([[1.0, 2.0]])
    np.save(tmp_path / "one.npy", t)
    np.savez(tmp_path / "two.npz", t=t)
    assert np.load(tmp_path / "one.npy").tolist() == [[1, 2]]
    assert np.load(tmp_path / "two.npz")["t"].tolist() == [[1, 2]]


def test_inside_a_jitted_function_they_are_refused() -> None:
    with pytest.raises(JitError, match="reading a tensor's value"):
        jit(np.sort)(Tensor([1.0, 2.0]))
    assert jit(np.sum)(Tensor([1.0, 2.0])).item() == 3
