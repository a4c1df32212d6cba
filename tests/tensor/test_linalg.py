"""`gpu.linalg`: factors and solutions by their residuals, gradients, and what raises.

Judged in float64 by what is left over and by orthogonality, never by signs; bounds are 20 n eps.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, func, linalg
from gpu.compiler.ir.graph.rewrite import without_custom_grads
from gpu.core.errors import DTypeError, InvalidValue, ShapeError, Unsupported
from gpu.runtime import compile
from gpu.runtime.execute import is_computed
from gpu.tensor.linalg import blocked, kernels

SHAPES = ((9, 4), (4, 9))


def drawn(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Any:
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def definite(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Any:
    x = drawn(rng, *shape, dtype=dtype)
    return (x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1])).astype(dtype)


def wide(x: Tensor) -> Any:
    return x.numpy().astype(complex)


def together(made: Sequence[Tensor]) -> list[Any]:
    """The parts of a factorisation, which is computed once."""
    made[0].realize(*made[1:])
    return [wide(x) for x in made]


def relative(x: Any, of: Any, n: int) -> float:
    """How large `x` is, in n eps of the norm of a matrix."""
    eps = np.finfo(of.dtype).eps
    size = np.abs(np.asarray(x)).max(initial=0) / max(np.abs(of).max(initial=0), 1e-300)
    return float(size / eps / n)


def check_qr(a: Any) -> None:
    q, r = together(linalg.qr(Tensor(a)))
    n = max(a.shape[-2:])
    one = np.eye(q.shape[-1])
    assert relative(q @ r - a, a, n) < 20
    assert relative(q.conj().swapaxes(-1, -2) @ q - one, np.ones(1, a.dtype), n) < 20
    assert not np.tril(r, -1).any()


def check_lu(a: Any) -> None:
    p, lower, upper = together(linalg.lu(Tensor(a)))
    assert relative(p @ lower @ upper - a, a, max(a.shape[-2:])) < 20
    assert np.abs(lower).max() <= 1.5  # of complex numbers the larger part is compared
    assert not np.tril(upper, -1).any() and not np.triu(lower, 1).any()


def check_solution(a: Any, b: Any, x: Tensor) -> None:
    found = wide(x)
    left = np.abs(a.astype(complex) @ found - b).max()
    scale = np.abs(a).sum(-1).max() * np.abs(found).max() + np.abs(b).max()
    assert left / scale / np.finfo(a.dtype).eps < 20 * a.shape[-1]


def check_all(rng: np.random.Generator, dtype: str, n: int, columns: int, *batch: int) -> None:
    a, b = definite(rng, *batch, n, n, dtype=dtype), drawn(rng, *batch, n, columns, dtype=dtype)
    low = wide(linalg.cholesky(Tensor(a)))
    assert relative(low @ low.conj().swapaxes(-1, -2) - a, a, n) < 20
    assert not np.triu(low, 1).any()
    own = drawn(rng, *batch, n, n, dtype=dtype)
    check_solution(own, b, linalg.solve(Tensor(own), Tensor(b)))
    check_lu(own)
    check_qr(own)


def test_every_device_factors_and_solves(device: str) -> None:
    check_all(np.random.default_rng(1), "float32", 4, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
def test_other_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(2)
    check_all(rng, dtype, 4, 40)  # more columns than are solved for together


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_wide_and_tall(shape: tuple[int, int]) -> None:
    a = drawn(np.random.default_rng(3), 2, *shape)
    check_lu(a)
    check_qr(a)
    q, r = together(linalg.qr(Tensor(a), mode="complete"))
    assert q.shape[-2:] == (shape[0], shape[0]) and relative(q @ r - a, a, max(shape)) < 20
    assert linalg.qr(Tensor(a), mode="r").R.shape == (2, min(shape), shape[1])


def test_every_device_factors_matrices_of_few_numbers(device: str) -> None:
    rng = np.random.default_rng(19)
    n, columns = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    check_all(rng, "float32", n, columns, 21)
    check_lu(drawn(rng, 5, 3, 5))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 1), "float32"), ((4, 4), "float64"), ((3, 3), "complex64"), ((5, 3), "float32")],
)
def test_lanes_with_a_matrix_each_exchange_the_rows_that_others_do(
    shape: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = drawn(np.random.default_rng(20), 19, *shape, dtype=dtype)
    a[3], a[4, 0, 0], a[5, -1], a[6, 0, 0] = 0, 0, a[5, 0], np.nan
    few = [each.numpy() for each in linalg.lu_factor_ex(Tensor(a))]
    monkeypatch.setattr(kernels, "_FEW", 0)
    many = [each.numpy() for each in linalg.lu_factor_ex(Tensor(a))]
    np.testing.assert_array_equal(few[1], many[1])
    np.testing.assert_array_equal(few[2], many[2])
    np.testing.assert_allclose(few[0], many[0], 1e-5, 1e-6)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(("n", "columns"), [(3, 2), (17, 1), (17, 3), (20, 9), (64, 70)])
def test_triangular_systems_do_not_read_the_other_half(n: int, columns: int, upper: bool) -> None:
    rng = np.random.default_rng(n + columns)
    a, b = drawn(rng, 3, n, n) / n + 2 * np.eye(n, dtype=np.float32), drawn(rng, 3, n, columns)
    half = np.triu(a) if upper else np.tril(a)
    given = np.where(half != 0, a, np.nan)
    check_solution(half, b, linalg.solve_triangular(Tensor(given), Tensor(b), upper=upper))


def test_a_factor_with_a_rule_for_its_gradient_is_not_copied() -> None:
    a = Tensor(drawn(np.random.default_rng(21), 2, 8, 8)).realize()
    both = linalg.lu_factor_ex(a).LU
    value = both._node.src[0]
    assert [root.kind for root in without_custom_grads([both._node], is_computed)] == ["result"]
    two = without_custom_grads([both._node, value], is_computed)
    assert len({*two}) == 2 and value in two


def test_the_text_of_lu_does_not_grow_much_with_the_matrix() -> None:
    # Compilers of shaders take ten times as long for four times the text.
    small, large = (Tensor.zeros(1, n, n).contiguous() for n in (8, blocked.BLOCK))
    texts = [len(kernels.lu(each)[0]._node.src[0].attr[0].ir) for each in (small, large)]
    assert texts[1] < 2.5 * texts[0]


def test_how_many_kernels_there_are_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[compile.Job] = []

    def noted(jobs: Sequence[compile.Job]) -> Any:
        made.extend(jobs)
        return compile_jobs(jobs)

    compile_jobs = compile.compile_jobs
    monkeypatch.setattr(compile, "compile_jobs", noted)
    linalg.cholesky(Tensor(2 * np.eye(512, dtype=np.float32)).realize()).realize()
    assert 0 < len({job.source for job in made}) <= 12


@pytest.mark.slow
def test_large_matrices_go_block_by_block() -> None:
    rng = np.random.default_rng(9)
    check_all(rng, "float32", 130, 2, 2)
    check_lu(drawn(rng, 70, 135))


@pytest.mark.slow
@pytest.mark.sampled(34)
@pytest.mark.parametrize("shape", [(129, 129), (135, 70), (70, 135), (200, 129)])
def test_large_matrices_of_other_dtypes_and_shapes(shape: tuple[int, int]) -> None:
    rng, dtype = np.random.default_rng(10), "complex64"
    if shape[0] == shape[1]:
        check_all(rng, dtype, shape[0], 70)
    else:
        check_lu(drawn(rng, *shape, dtype=dtype))
        check_qr(drawn(rng, *shape, dtype=dtype))


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("made", ["graded", "deficient"])
def test_large_matrices_that_are_hard(made: str) -> None:
    a = (graded if made == "graded" else deficient)(140, "complex64")
    check_qr(a)
    check_lu(a)


def test_a_large_triangle_solves_block_by_block() -> None:
    rng, dtype = np.random.default_rng(11), "complex64"
    upper = np.triu(drawn(rng, 2, 130, 130, dtype=dtype) / 130) + np.eye(130, dtype=dtype)
    right = drawn(rng, 2, 130, 3, dtype=dtype)
    found = linalg.solve_triangular(Tensor(upper), Tensor(right), upper=True)
    check_solution(upper, right, found)


def test_what_is_wrong_in_a_later_block_is_told() -> None:
    a = np.stack([np.eye(130), np.eye(130)]).astype(np.float32)
    a[0, 100, 3] = a[0, 3, 100] = 0.5
    low = linalg.cholesky(Tensor(a[:1])).numpy().astype(float)
    assert relative(low @ low.swapaxes(-1, -2) - a[:1], a, 130) < 20
    a[1, 100, 100] = 0
    t = Tensor(a)
    assert linalg.cholesky_ex(t).info.tolist() == linalg.lu_factor_ex(t).info.tolist() == [0, 101]
    with pytest.raises(linalg.LinAlgError, match="column 101"):
        linalg.inv(t).numpy()
    assert linalg.lu_factor_ex(Tensor(a[0, :, :70])).info.item() == 0


def graded(n: int, dtype: str) -> Any:
    """Rows from 1 down to numbers whose squares underflow."""
    rng = np.random.default_rng(4)
    return (np.logspace(0, -25, n)[:, None] * rng.standard_normal((n, n))).astype(dtype)


def deficient(n: int, dtype: str) -> Any:
    rng = np.random.default_rng(5)
    low = rng.standard_normal((n, 2)) @ rng.standard_normal((2, n))
    low[:, 0] = 0
    return low.astype(dtype)


@pytest.mark.parametrize("made", [graded, pytest.param(deficient, marks=pytest.mark.slow)])
def test_graded_and_deficient(made: Callable[[int, str], Any]) -> None:
    for a in (made(12, "float32"), made(12, "float32").T.copy(), made(12, "float64")):
        check_qr(a)
        check_lu(a)


def test_an_ill_conditioned_matrix_is_solved_backward_stably() -> None:
    n = 10
    hilbert = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    b = np.ones((n, 1))
    check_solution(hilbert, b, linalg.solve(Tensor(hilbert), Tensor(b)))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex64", marks=pytest.mark.slow)])
def test_least_squares(dtype: str) -> None:
    rng = np.random.default_rng(6)
    for shape in ((7, 3), (3, 7)):
        a, b = drawn(rng, *shape, dtype=dtype), drawn(rng, shape[0], 2, dtype=dtype)
        found = linalg.lstsq(Tensor(a), Tensor(b))
        expected, *_ = np.linalg.lstsq(a.astype(complex), b.astype(complex), rcond=None)
        assert np.allclose(wide(found.solution), expected, atol=1e-4)
        assert found.rank.item() == 3
    with pytest.raises(linalg.LinAlgError, match="full rank"):
        linalg.lstsq(Tensor(deficient(4, "float32")), Tensor(np.ones(4, "float32")))[0].numpy()


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
def test_least_squares_of_any_rank(driver: str) -> None:
    """The smallest of all solutions, as numpy's; of vectors, batches and wide matrices."""
    rng = np.random.default_rng(16)
    for rows, columns in ((6, 4), (4, 6), (5, 5)):
        left, right = (drawn(rng, 2, *form, dtype="float64") for form in ((rows, 2), (2, columns)))
        a = left @ right
        b = drawn(rng, 2, rows, 3, dtype="float64")
        found = linalg.lstsq(Tensor(a), Tensor(b), driver=driver)
        assert found.rank.tolist() == [2, 2]
        wanted = [np.linalg.lstsq(*each, rcond=None) for each in zip(a, b, strict=True)]
        assert np.allclose(found.solution.numpy(), [each[0] for each in wanted])
        # As in torch, gelsy has no singular values.
        sizes = np.zeros(0) if driver == "gelsy" else [each[3] for each in wanted]
        np.testing.assert_allclose(found.singular_values.numpy(), sizes, 1e-9, 1e-9)
    vector = linalg.lstsq(Tensor(a[0]), Tensor(b[0, :, 0]), driver=driver)
    assert np.allclose(vector.solution.numpy(), np.linalg.lstsq(a[0], b[0, :, 0], rcond=None)[0])
    scaled = linalg.lstsq(Tensor(np.diag([4.0, 1.0])), Tensor(np.ones(2)), 0.5, driver=driver)
    assert scaled.rank.item() == 1
    assert np.allclose(scaled.solution.numpy(), [0.25, 0])


def test_least_squares_refuses_a_driver_by_name() -> None:
    with pytest.raises(InvalidValue, match="driver must be one of"):
        linalg.lstsq(Tensor.eye(2), Tensor.ones(2), driver="gelsx")
    with pytest.raises(ShapeError, match=r"^solve of"):
        linalg.solve(Tensor.eye(3), Tensor.ones(4))


def test_small_functions_are_numpys() -> None:
    rng = np.random.default_rng(7)
    a = drawn(rng, 2, 4, 4, dtype="float64")
    t = Tensor(a)
    assert np.allclose(linalg.det(t).numpy(), np.linalg.det(a))
    for found, expected in zip(linalg.slogdet(t), np.linalg.slogdet(a), strict=True):
        assert np.allclose(found.numpy(), expected)
    for power in (0, -2):
        own = np.linalg.matrix_power(a, power)
        assert np.allclose(linalg.matrix_power(t, power).numpy(), own)
    vector = drawn(rng, 4, dtype="float64")
    assert np.allclose(linalg.solve(t, Tensor(vector)).numpy(), np.linalg.solve(a, vector))


def test_matrices_without_elements() -> None:
    none = Tensor.zeros(2, 0, 0)
    assert linalg.cholesky(none).shape == linalg.inv(none).shape == (2, 0, 0)
    assert linalg.det(none).tolist() == [1.0, 1.0]
    assert linalg.solve(none, Tensor.zeros(2, 0, 3)).shape == (2, 0, 3)
    assert linalg.qr(Tensor.zeros(3, 0), mode="complete").Q.tolist() == np.eye(3).tolist()
    assert linalg.lu_factor(Tensor.zeros(0, 4, 4)).pivots.shape == (0, 4)


def test_nan_and_infinity_go_on_into_the_result() -> None:
    for bad, name in ((np.nan, "inv"), (np.nan, "cholesky"), (np.inf, "cholesky"), (np.inf, "qr")):
        a = np.eye(3, dtype=np.float32)
        a[1, 1] = bad
        a[2, 1] = a[1, 2] = 1
        made = getattr(linalg, name)(Tensor(a))
        value = (made[1] if isinstance(made, tuple) else made).numpy()
        assert not np.isfinite(value).all()


SINGULAR = np.stack([np.eye(3), np.diag([1.0, 2.0, 0.0])]).astype(np.float32)


@pytest.mark.parametrize("name", ["cholesky", "inv", "lu_factor"])
def test_a_singular_matrix_raises_where_its_value_is_read(name: str) -> None:
    made = getattr(linalg, name)(Tensor(SINGULAR))
    value = made[0] if isinstance(made, tuple) else made
    later = (value + 1).realize() * 2  # nothing is read here
    for read in (value.numpy, later.tolist, lambda: np.from_dlpack(later)):
        with pytest.raises(linalg.LinAlgError) as caught:
            read()
        error = caught.value
        assert (error.operation, error.index) == (name, (1,))
        assert error.call_site is not None and error.call_site.file.endswith("test_linalg.py")
        assert isinstance(error, InvalidValue) and isinstance(error, np.linalg.LinAlgError)
        assert pickle.loads(pickle.dumps(error)).index == (1,)
    assert "LinAlgError" in repr(value)


def test_status_is_told_where_it_is_asked_for() -> None:
    t = Tensor(SINGULAR)
    assert linalg.cholesky_ex(t).info.tolist() == [0, 3]
    assert linalg.inv_ex(t).info.tolist() == linalg.lu_factor_ex(t).info.tolist() == [0, 3]
    assert np.isfinite(linalg.inv_ex(t).inverse.numpy()[0]).all()
    with pytest.raises(linalg.LinAlgError):
        linalg.solve_ex(t, t, check_errors=True).result.numpy()
    assert linalg.det(t).tolist() == [1.0, 0.0]


def test_statuses_of_replays_are_their_own() -> None:
    @gpu.jit
    def step(a: Tensor, b: Tensor) -> Tensor:
        return linalg.solve(a, b) @ b

    @gpu.jit
    def after(x: Tensor) -> Tensor:
        return x * 2

    good, bad = (Tensor(x).realize() for x in SINGULAR)
    for _ in range(3):
        after(step(good, good)).numpy()
    replayed = step(bad, good)
    for read in (replayed.numpy, after(replayed).numpy):
        with pytest.raises(linalg.LinAlgError, match="solve"):
            read()
    assert step(good, good).tolist() == np.eye(3).tolist()


def test_steps_of_a_loop_have_statuses() -> None:
    total, each = gpu.scan(
        lambda c, x: (c + linalg.inv(x), linalg.inv(x)), Tensor.zeros(3, 3), Tensor(SINGULAR)
    )
    for value in (total, each):
        with pytest.raises(linalg.LinAlgError) as caught:
            value.numpy()
        assert caught.value.index == (1,)


def test_gradients_of_a_loop_have_the_statuses_of_its_steps() -> None:
    x = Tensor(SINGULAR, requires_grad=True)
    found = gpu.scan(lambda c, a: (c + linalg.inv(a), linalg.inv(a)), Tensor.zeros(3, 3), x)
    for value in found:
        with pytest.raises(linalg.LinAlgError) as caught:
            value.sum().gradient(x)[0].numpy()
        assert caught.value.index == (1,)
        assert caught.value.call_site is not None
        assert "gpu.scan" in str(caught.value.call_site)


def test_which_of_mapped_matrices_is_wrong_is_told() -> None:
    x = Tensor(np.stack([SINGULAR[0], *SINGULAR])[None])

    def scanned(a: Tensor) -> Tensor:
        return gpu.scan(lambda c, x: (c + linalg.inv(x), None), Tensor.zeros(3, 3), a)[0]

    for value, index in (
        (func.vmap(linalg.inv)(x[0]), (2,)),
        (func.vmap(func.vmap(linalg.cholesky))(x), (0, 2)),
        (func.vmap(scanned)(x), (0, 2)),
        (func.vmap(func.grad(lambda a: linalg.inv(a).sum()))(x[0]), (2,)),
    ):
        with pytest.raises(linalg.LinAlgError) as caught:
            value.numpy()
        assert caught.value.index == index


def test_what_takes_its_memory_over_keeps_a_status() -> None:
    x = Tensor.zeros(2, 3, 3).contiguous().realize()
    x.assign(linalg.inv(Tensor(SINGULAR)))
    with pytest.raises(linalg.LinAlgError):
        x.numpy()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: linalg.cholesky(Tensor.zeros(2, 3)), ShapeError),
        (lambda: linalg.inv(Tensor.zeros(3)), ShapeError),
        (lambda: linalg.inv(Tensor([[1, 2], [3, 4]])), DTypeError),
        (lambda: linalg.solve(Tensor.eye(2), Tensor.eye(3)), ShapeError),
        (lambda: linalg.solve(Tensor.eye(2), Tensor.eye(2, dtype="float64")), DTypeError),
        (lambda: linalg.qr(Tensor.eye(2), mode="full"), InvalidValue),
        (lambda: linalg.lu_factor(Tensor.eye(2), pivot=False), InvalidValue),
        (lambda: qr_gradient("complete"), Unsupported),
    ],
)
def test_what_cannot_be_done_says_so(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def qr_gradient(mode: str) -> list[Tensor]:
    a = Tensor.ones(3, 2, requires_grad=True)
    return linalg.qr(a, mode=mode).Q.sum().gradient(a)


TAKEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cholesky": lambda L, a, b: L.cholesky(a @ conj(a).mT + one(a)),
    "triangular": lambda L, a, b: L.solve_triangular(a + 3 * one(a), b, upper=True),
    "lu": lambda L, a, b: sum_of(L.lu(a)[1:]),
    "lu_tall": lambda L, a, b: sum_of([x.sum((-1, -2)) for x in L.lu(a[..., :2])[1:]]),
    "lu_wide": lambda L, a, b: sum_of([x.sum(-1) for x in L.lu(a[..., :2, :])[1:]]),
    "solve": lambda L, a, b: L.solve(a, b),
    "slogdet": lambda L, a, b: L.slogdet(a)[1],
    "det": lambda L, a, b: L.det(a),
    "qr": lambda L, a, b: sum_of(L.qr(a)),
    "qr_wide": lambda L, a, b: sum_of([x.sum(-1) for x in L.qr(a[..., :2, :])]),
    "exp": lambda L, a, b: L.matrix_exp(a),
    "inv": lambda L, a, b: L.inv(a),
}


def conj(x: Any) -> Any:
    return x.conj() if x.dtype in (gpu.dtypes.complex128,) or "complex" in str(x.dtype) else x


def one(x: Any) -> Any:
    n = x.shape[-1]
    return type(x).eye(n, dtype=x.dtype) if isinstance(x, Tensor) else x.new_ones(n).diag()


def sum_of(parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


QUICK = [("qr", "float64")]
SLOW = [(name, dtype) for name in TAKEN for dtype in ("float64", "complex128")]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW if each not in QUICK)],
)
@pytest.mark.sampled(34)
def test_gradients_are_torchs(name: str, dtype: str, need: Callable[[str], None]) -> None:
    need("torch")
    import torch

    rng = np.random.default_rng(8)
    arrays = [drawn(rng, 2, 3, 3, dtype=dtype), drawn(rng, 2, 3, 2, dtype=dtype)]
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    ours = [Tensor(x, requires_grad=True) for x in arrays]
    expected, found = TAKEN[name](torch.linalg, *theirs), TAKEN[name](linalg, *ours)
    weights = drawn(rng, *expected.shape, dtype=str(expected.dtype).split(".")[1])
    total, own = (expected * torch.tensor(weights)).sum(), (found * Tensor(weights)).sum()
    (total.real if total.is_complex() else total).backward()
    (own.real if own.is_complex() else own).backward()
    found.realize(*(x.grad for x in ours if x.grad is not None))
    assert np.allclose(found.detach().numpy(), expected.detach().resolve_conj().numpy())
    for ours_one, theirs_one in zip(ours, theirs, strict=True):
        if theirs_one.grad is not None:
            assert ours_one.grad is not None
            assert np.allclose(ours_one.grad.numpy(), theirs_one.grad.resolve_conj().numpy())
