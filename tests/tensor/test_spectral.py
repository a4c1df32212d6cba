"""`gpu.linalg`: singular values and eigenvalues, which the host's LAPACK computes.

Decompositions are judged by what they are put together to and by their vectors being orthonormal,
never by a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Device, Tensor, array_api, dtypes, jit, linalg
from gpu.compiler.ir.graph import interpret
from gpu.compiler.ir.graph.hostcall import FUNCTIONS, Function, HostCall, Value
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError, Unsupported
from gpu.runtime.execute import forget_compiled, prepare, storage
from gpu.runtime.hostcalls import HostForm, HostFunction
from gpu.runtime.prepared import Counters
from gpu.runtime.recipe import Call, Run
from tensor.reference import rng_for, torch

Array = Any
DTYPES = ("float32", "float64", "complex64", "complex128")


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    numbers = rng.normal(size=shape)
    if "complex" in dtype:
        numbers = numbers + 1j * rng.normal(size=shape)
    return numbers.astype(dtype)


def hermitian(matrix: Array) -> Array:
    return matrix + matrix.swapaxes(-2, -1).conj()


def bound(matrix: Array) -> float:
    size = np.abs(matrix).max(initial=0)
    return float(20 * max(matrix.shape[-2:]) * np.finfo(matrix.dtype).eps * max(size, 1))


def is_orthonormal(vectors: Array, limit: float) -> None:
    gram = vectors.swapaxes(-2, -1).conj() @ vectors
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(gram.shape[-1]), gram.shape), 0, limit)


def judge_svd(matrix: Array, U: Array, S: Array, Vh: Array) -> None:
    count = S.shape[-1]
    limit = bound(matrix)
    whole = (U[..., :count] * S[..., None, :]) @ Vh[..., :count, :]
    np.testing.assert_allclose(whole, matrix, 0, limit)
    is_orthonormal(U, limit)
    is_orthonormal(Vh.swapaxes(-2, -1).conj(), limit)
    assert (np.diff(S) <= 0).all() and (S >= 0).all()
    np.testing.assert_allclose(S, np.linalg.svd(matrix, compute_uv=False), 0, limit)


def judge_eigh(matrix: Array, values: Array, vectors: Array) -> None:
    limit = bound(matrix)
    np.testing.assert_allclose(matrix @ vectors, vectors * values[..., None, :], 0, limit)
    is_orthonormal(vectors, limit)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), 0, limit)


def test_decompositions_alone_and_inside_what_is_jitted(device: str) -> None:
    wide = dtypes.float64 in Device[device].renderer.target.native.lacking
    x = drawn(rng_for(device), (2, 3, 4), "complex64" if wide else "complex128")
    judge_svd(x, *(t.numpy() for t in linalg.svd(Tensor(x))))

    @jit
    def between(x: Tensor) -> Any:
        gram = (x @ x.mH).contiguous()
        found = linalg.eigh(gram)
        return gram, found, (found.eigenvalues.log() * 2).exp()

    for scale in (1, 2, 3):
        gram, found, squares = between(Tensor(x * scale))
        judge_eigh(gram.numpy(), *(t.numpy() for t in found))
        np.testing.assert_allclose(squares.numpy(), found.eigenvalues.numpy() ** 2, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_singular_values_of_drawn_shapes(dtype: str) -> None:
    rng = rng_for("svd", dtype)
    for _ in range(8):
        *batch, rows, columns = (int(n) for n in rng.integers(1, 7, rng.integers(2, 5)))
        x = drawn(rng, (*batch, rows, columns), dtype)
        if rng.random() < 0.3:  # of lower rank, and graded
            x[..., -1, :] = x[..., 0, :]
            x *= np.logspace(0, -6, columns).astype(x.real.dtype)
        given, full = Tensor(x), bool(rng.integers(2))
        found = linalg.svd(given, full_matrices=full)
        shapes = [t.shape for t in torch.linalg.svd(torch.from_numpy(x), full)]
        assert [t.shape for t in found] == [tuple(shape) for shape in shapes]
        judge_svd(x, *(t.numpy() for t in found))
        values = linalg.svdvals(given)
        np.testing.assert_allclose(values.numpy(), found.S.numpy(), 0, bound(x))
        assert values.dtype is given.dtype.real


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_of_drawn_shapes(dtype: str) -> None:
    rng = rng_for("eig", dtype)
    for _ in range(5):
        *batch, size = (int(n) for n in rng.integers(1, 7, rng.integers(1, 4)))
        x = drawn(rng, (*batch, size, size), dtype)
        symmetric = hermitian(x)
        judge_eigh(symmetric, *(t.numpy() for t in linalg.eigh(Tensor(symmetric))))
        for triangle, keep in (("L", np.tril), ("u", np.triu)):  # the other one is not read
            half = np.where(keep(np.ones_like(x, bool)), symmetric, np.nan)
            judge_eigh(symmetric, *(t.numpy() for t in linalg.eigh(Tensor(half), triangle)))
            values = linalg.eigvalsh(Tensor(half), UPLO=triangle).numpy()
            np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric), 0, bound(symmetric))
        values, vectors = (t.numpy() for t in linalg.eig(Tensor(x)))
        assert values.dtype == np.result_type(x.dtype, np.complex64)
        np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], 0, 50 * bound(x))
        alone = linalg.eigvals(Tensor(x)).numpy()
        np.testing.assert_allclose(alone.sum(-1), x.trace(axis1=-2, axis2=-1), 0, 50 * bound(x))
        np.testing.assert_allclose(alone.prod(-1), np.linalg.det(x), 1e-2, 1e-2)


def test_a_rotation_has_complex_eigenvalues() -> None:
    found = linalg.eigvals(Tensor([[0.0, -1.0], [1.0, 0.0]])).numpy()
    np.testing.assert_allclose(np.sort(found.imag), [-1, 1], atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (0, 2, 3), (2, 0, 2)])
def test_of_no_elements(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for full in (False, True):
        for ours, wanted in zip(linalg.svd(Tensor(x), full), np.linalg.svd(x, full), strict=True):
            np.testing.assert_array_equal(ours.numpy(), wanted)
    if shape[-1] == shape[-2]:
        for ours, wanted in zip(linalg.eigh(Tensor(x)), np.linalg.eigh(x), strict=True):
            assert ours.shape == wanted.shape and ours.numpy().dtype == wanted.dtype
        assert linalg.eigvals(Tensor(x)).shape == shape[:-1]


def test_what_is_not_finite_gives_nan_for_its_own_matrix() -> None:
    x = drawn(rng_for("nan"), (4, 3, 3), "float32")
    x[1, 0, 2], x[2, 2, 0] = np.nan, np.inf
    bad = np.array([False, True, True, False])
    for found in (*linalg.svd(Tensor(x)), *linalg.eig(Tensor(x)), linalg.svdvals(Tensor(x))):
        value = found.numpy()
        assert np.isnan(value[bad]).all() and np.isfinite(value[~bad]).all()


def meant(tensors: Sequence[Tensor]) -> list[Array]:
    """The values by the interpreter of graphs: nothing is compiled."""
    nodes = [t._node for t in tensors]
    return interpret(nodes, lambda leaf: storage(leaf).copy_out().reshape(leaf.shape))


# Gradients: of functions of what is determined, of drawn weights.

WEIGHED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "values": lambda la, a, w: (la.svdvals(a) * w[0]).sum(),
    "svd": lambda la, a, w: (la.svd(a, full_matrices=False)[1] * w[0]).sum(),
    "left": lambda la, a, w: _projected(la.svd(a, full_matrices=False)[0][..., :2], w[1]),
    "right": lambda la, a, w: _projected(la.svd(a, full_matrices=True)[2][..., :2, :].mH, w[2]),
    "both": lambda la, a, w: _low_rank(*la.svd(a, full_matrices=False), w[3]),
}
SQUARE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "eigvalsh": lambda la, a, w: (la.eigvalsh(a + a.mH) * w[0]).sum(),
    "eigh": lambda la, a, w: _projected(la.eigh(a + a.mH)[1][..., :2], w[1]),
    "eigh values": lambda la, a, w: (la.eigh(a + a.mH, UPLO="U")[0] * w[0]).sum(),
    "eigvals": lambda la, a, w: (la.eigvals(a).abs() ** 3).sum(),
    "eig": lambda la, a, w: _exponential(*la.eig(a), w[1]),
}


def _projected(vectors: Any, weight: Any) -> Any:
    """Of the plane of the vectors, whatever their phases."""
    return ((vectors @ vectors.mH) * weight).abs().sum()


def _low_rank(U: Any, S: Any, Vh: Any, weight: Any) -> Any:
    return ((U[..., :1] @ Vh[..., :1, :]) * weight).real.sum() * S[..., 0].sum()


def _exponential(values: Any, vectors: Any, weight: Any) -> Any:
    sizes = (vectors.abs() ** 2).sum(-2)
    return (sizes * values.abs()).sum() + ((vectors @ vectors.mH).abs() * weight).sum()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_are_torchs(dtype: str) -> None:
    for name, function in {**WEIGHED, **SQUARE}.items():
        rng = rng_for(name, dtype)
        shapes = [(2, 3, 3)] if name in SQUARE else [(3, 5), (5, 3), (2, 4, 4)]
        for shape in shapes:
            a, count = drawn(rng, shape, dtype), min(shape[-2:])
            sizes = [(count,), (shape[-2],) * 2, (shape[-1],) * 2, shape]
            weights = [rng.uniform(0.5, 2, size) for size in sizes]
            ours = Tensor(a, requires_grad=True)
            value = function(linalg, ours, [Tensor(w) for w in weights])
            (grad,) = value.gradient(ours)
            theirs = torch.from_numpy(a).requires_grad_()
            wanted = function(torch.linalg, theirs, [torch.from_numpy(w) for w in weights])
            wanted.backward()
            found = meant([value, grad])
            np.testing.assert_allclose(found[0], wanted.item(), 1e-9, err_msg=name)
            np.testing.assert_allclose(found[1], theirs.grad.numpy(), 1e-6, 1e-8, err_msg=name)


def test_second_gradients_are_torchs() -> None:
    a = hermitian(drawn(rng_for("second"), (3, 3), "float64"))
    ours = Tensor(a, requires_grad=True)
    (first,) = (linalg.eigvalsh(ours) ** 3).sum().gradient(ours)
    (second,) = (first * first).sum().gradient(ours)
    np.testing.assert_allclose(meant([second])[0], 36 * a @ a @ a, 1e-8, 1e-8)


# Steps of the host in compiled graphs.


def test_launches_before_and_after_are_one_call_each() -> None:
    x = Tensor(drawn(rng_for("split"), (5, 5), "float32"))

    def chain(y: Tensor) -> Tensor:
        for _ in range(4):
            y = (y * 1.5).flip(0).contiguous()
        return y

    prepared = prepare([chain(linalg.svdvals(chain(x)))._node])
    assert [type(run) for run in prepared.schedule.filling.runs] == [Run, Call, Run]
    assert prepared.schedule.changing.runs == ()
    before = Counters.launches
    found = chain(linalg.svdvals(chain(x)))
    expected = np.linalg.svd(x.numpy(), compute_uv=False) * 1.5**8
    np.testing.assert_allclose(found.numpy(), expected, 1e-5)
    assert Counters.launches == before + 8


def test_graphs_of_calls_are_text_that_can_be_read_and_interpreted() -> None:
    x = drawn(rng_for("text"), (2, 3, 4), "complex64")
    found = linalg.svd(Tensor(x).realize() + 1)
    nodes = [t._node for t in found]
    text = print_graph(nodes)
    again = parse_graph(text, handles_of(nodes))
    assert print_graph(again) == text
    judge_svd(x + 1, *meant(found))


def test_in_a_scan() -> None:
    x = hermitian(drawn(rng_for("scan"), (4, 3, 3), "float32"))
    _, found = gpu.scan(
        lambda carry, each: (carry + 1, linalg.eigvalsh(each)), Tensor(0), Tensor(x)
    )
    np.testing.assert_allclose(found.numpy(), np.linalg.eigvalsh(x), 0, bound(x))


def _stubborn(x: Array) -> tuple[Array, ...]:
    """Does not converge where the first element is 7."""
    if (x[..., 0, 0] == 7).any():
        raise np.linalg.LinAlgError("stuck")
    return (np.zeros(x.shape[:-1], x.dtype),)


def test_failing_to_converge_names_the_matrix_and_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FUNCTIONS, "svdvals", Function(_stubborn))
    x = np.ones((2, 3, 2, 2), np.float32)
    x[1, 2, 0, 0] = 7
    with pytest.raises(
        linalg.LinAlgError, match=r"svdvals, matrix \[1, 2\] of the batch: stuck"
    ) as caught:
        linalg.svdvals(Tensor(x)).numpy()
    assert caught.value.operation == "svdvals" and caught.value.index == (1, 2)
    assert isinstance(caught.value, (InvalidValue, np.linalg.LinAlgError))
    assert any("test_spectral.py" in note for note in caught.value.__notes__)
    replayed = jit(lambda x: linalg.svdvals(x + 1))
    for _ in range(3):
        replayed(Tensor(np.zeros((2, 2), np.float32))).numpy()
    with pytest.raises(linalg.LinAlgError, match="svdvals: stuck"):
        replayed(Tensor(x[1, 2] - 1)).numpy()
    assert replayed(Tensor(x[0, 0])).numpy().tolist() == [0, 0]


def test_what_is_refused() -> None:
    square = Tensor(np.ones((2, 2), np.float32))
    with pytest.raises(InvalidType, match="takes a tensor, got ndarray"):
        linalg.svd(np.ones((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="last two axes"):
        linalg.svdvals(Tensor([1.0]))
    for function in (linalg.eigh, linalg.eigvalsh, linalg.eig, linalg.eigvals):
        with pytest.raises(ShapeError, match="square"):
            function(Tensor(np.ones((2, 3), np.float32)))
    for dtype in ("int32", "float16", "bool"):
        with pytest.raises(DTypeError, match=f"float64.*{dtype}"):
            linalg.svd(square.cast(dtype))
    with pytest.raises(InvalidValue, match="UPLO"):
        linalg.eigh(square, UPLO="X")
    size = gpu.Var("n", 1, 2).bind(2)
    with pytest.raises(Unsupported, match="symbolic"):
        linalg.svd(square[:size])
    with pytest.raises(Unsupported, match="several devices"):
        linalg.svd(square.to(("CPU:1", "CPU:2")))


def test_the_method_gives_v() -> None:
    for dtype in DTYPES:
        x = drawn(rng_for("method", dtype), (2, 3, 5), dtype)
        for some in (True, False):
            found = Tensor(x).svd(some)
            U, S, V = meant(found)
            judge_svd(x, U, S, V.swapaxes(-2, -1).conj())
            shapes = [tuple(t.shape) for t in torch.from_numpy(x).svd(some)]
            assert [t.shape for t in found] == shapes


def test_the_method_of_factors() -> None:
    x = drawn(rng_for("qr"), (2, 4, 3), "complex64")
    for some in (True, False):
        Q, R = (t.numpy() for t in Tensor(x).qr(some))
        assert Q.shape == (2, 4, 3 if some else 4)
        np.testing.assert_allclose(Q @ R, x, 0, bound(x))
        is_orthonormal(Q, bound(x))


def test_the_standard_has_vectors_of_one_axis_alone() -> None:
    rng = rng_for("solve")
    a, b = drawn(rng, (3, 2, 2), "float32"), drawn(rng, (3, 2), "float32")
    for right in (b[0], b[:2], drawn(rng, (3, 2, 1), "float32")):
        found = array_api.linalg.solve(Tensor(a), Tensor(right)).numpy()
        np.testing.assert_allclose(found, np.linalg.solve(a, right), 1e-4, 1e-4)


def test_compiled_calls_are_found_on_disk() -> None:
    x = drawn(rng_for("disk"), (5, 4), "complex64")
    judge_svd(x, *(t.numpy() for t in linalg.svd(Tensor(x))))
    forget_compiled()
    before = Counters.compiled
    judge_svd(2 * x, *(t.numpy() for t in linalg.svd(Tensor(2 * x))))
    assert Counters.compiled == before


def test_the_log_tells_of_copies_between_memories(caplog: pytest.LogCaptureFixture) -> None:
    call = HostCall("svdvals", (Value((2, 2), dtypes.float32),), (Value((2,), dtypes.float32),))
    with caplog.at_level("INFO", "gpu.runtime.hostcalls"):
        for device in ("CPU", "CPU:1", "CL:1"):
            HostFunction(HostForm(device, call, (0,)), "")
    told = [text.partition("LAPACK")[2] for text in caplog.messages]
    assert told == ["", "", ", with copies from and to CL:1"]
