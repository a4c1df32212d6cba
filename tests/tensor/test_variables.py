"""`gpu.Var`: tensors whose sizes and slices are values of a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, Var
from gpu.core.errors import InvalidIndex, InvalidType, InvalidValue, ShapeError
from gpu.runtime.execute import is_computed
from gpu.runtime.explain import explain
from gpu.runtime.prepared import Counters

HEADS, POSITIONS, WIDTH = 2, 24, 16


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    grown = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(grown / grown.sum(-1, keepdims=True))


class Decoder:
    """Attention over a growing cache, and what numpy makes of it."""

    def __init__(self, device: str) -> None:
        shape = (HEADS, POSITIONS, WIDTH)
        self.device = device
        self.keys = Tensor.zeros(*shape, device=device).contiguous().realize()
        self.values = Tensor.zeros(*shape, device=device).contiguous().realize()
        self.cache = np.zeros((2, *shape), np.float32)

    def step(self, q: Tensor, k: Tensor, v: Tensor, p: Any) -> tuple[Tensor, Tensor]:
        self.keys[:, p : p + 1] = k
        self.values[:, p : p + 1] = v
        weights = (q @ self.keys[:, : p + 1].transpose(1, 2) / 4).softmax(-1)
        return weights, weights @ self.values[:, : p + 1]

    def check(self, position: int, run: Callable[..., Any], p: Any) -> None:
        q, k, v = (normal(HEADS, 1, WIDTH, seed=3 * position + i) for i in range(3))
        self.cache[0][:, position], self.cache[1][:, position] = k[:, 0], v[:, 0]
        keys, values = self.cache[:, :, : position + 1]
        weights = softmax(q @ keys.transpose(0, 2, 1) / 4)
        got = run(*(Tensor(x, device=self.device).realize() for x in (q, k, v)), p)
        Tensor.realize(*got, self.keys, self.values)
        assert got[0].shape == (HEADS, 1, p + 1)
        np.testing.assert_allclose(got[0].numpy(), weights, atol=1e-5)
        np.testing.assert_allclose(got[1].numpy(), weights @ values, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [False, True])
def test_a_decoder_compiles_once_for_all_positions(device: str, jitted: bool) -> None:
    decoder, position = Decoder(device), Var("position", 0, POSITIONS - 1)
    step = gpu.jit(decoder.step) if jitted else decoder.step
    compiled: list[int] = []
    for number in range(POSITIONS):
        decoder.check(number, step, position.bind(number))
        compiled.append(Counters.compiled)
    # The cache starts as memory and is a result then: two forms at most, and under jit one.
    assert compiled[0 if not jitted else 1 :] == [compiled[-1]] * (POSITIONS - jitted)
    assert not jitted or step.captures == 1  # type: ignore[union-attr]


def test_a_verified_replay_agrees(environment: Callable[..., None]) -> None:
    environment(GPU_VERIFY_JIT="1")
    decoder, position = Decoder("CPU"), Var("position", 0, POSITIONS - 1)
    step = gpu.jit(decoder.step)
    for number in (0, 1, 2, 7, 3):
        q, k, v = (Tensor(normal(HEADS, 1, WIDTH, seed=i)).realize() for i in range(3))
        step(q, k, v, position.bind(number))


def test_a_replay_takes_sizes_from_its_arguments() -> None:
    count = Var("count", 0, 20)
    x = Tensor(normal(3, 20)).realize()
    f = gpu.jit(lambda part: (part.sum(1), part + 1))
    for n in (3, 9, 20, 0, 4):
        total, more = f(x[:, : count.bind(n)])
        np.testing.assert_allclose(total.numpy(), x.numpy()[:, :n].sum(1), atol=1e-5)
        assert more.shape == (3, count.bind(n)) and more.numpy().shape == (3, n)
    assert f.captures == 1


CASES: dict[str, tuple[Callable[[Tensor, Any], Tensor], Callable[[Any, int], Any]]] = {
    "sum": (lambda x, n: x.sum(1), lambda a, n: a.sum(1)),
    "mean": (lambda x, n: x.mean(), lambda a, n: a.mean()),
    "var": (lambda x, n: x.var(1), lambda a, n: a.var(1, ddof=1)),
    "argmax": (lambda x, n: x.argmax(1), lambda a, n: a.argmax(1)),
    "softmax": (lambda x, n: x.softmax(1), lambda a, n: softmax(a)),
    "gram": (lambda x, n: x.T @ x, lambda a, n: a.T @ a),
    "summed over": (lambda x, n: x @ x.T, lambda a, n: a @ a.T),
    "number": (lambda x, n: x * n, lambda a, n: a * n),
    "position": (lambda x, n: x[:, n - 1], lambda a, n: a[:, n - 1]),
    "rest": (lambda x, n: x[:, n // 2 :], lambda a, n: a[:, n // 2 :]),
    "last": (lambda x, n: x[:, -2:], lambda a, n: a[:, -2:]),
    "every other": (lambda x, n: x[:, ::2], lambda a, n: a[:, ::2]),
    "shrink": (lambda x, n: x.shrink((None, (1, n))), lambda a, n: a[:, 1:]),
    "flip": (lambda x, n: x.flip(1), lambda a, n: a[:, ::-1]),
    "joined": (lambda x, n: x.T.reshape(-1), lambda a, n: a.T.reshape(-1)),
    "split": (lambda x, n: x.T.reshape(n, 2, 2), lambda a, n: a.T.reshape(-1, 2, 2)),
    "expand": (lambda x, n: x[:, :1].expand(4, n), lambda a, n: np.repeat(a[:, :1], n, 1)),
    "cat": (lambda x, n: x.cat(x, dim=1), lambda a, n: np.concatenate([a, a], 1)),
    "pad": (lambda x, n: x.pad(((0, 0), (n, 1))), lambda a, n: np.pad(a, ((0, 0), (n, 1)))),
    "cumsum": (lambda x, n: x.cumsum(1), lambda a, n: a.cumsum(1)),
    "tril": (lambda x, n: x.T.tril(), lambda a, n: np.tril(a.T)),
    "arange": (lambda x, n: x + Tensor.arange(n, device=x.device), lambda a, n: a + np.arange(n)),
    "ones": (lambda x, n: Tensor.ones(n, 2, device=x.device) + 1, lambda a, n: np.full((n, 2), 2)),
    "sort": (lambda x, n: x.sort(1)[0], lambda a, n: np.sort(a, 1)),
    "argsort": (lambda x, n: x.argsort(1, True), lambda a, n: (-a).argsort(1)),
    "sort lines": (lambda x, n: x.sort(0)[0], lambda a, n: np.sort(a, 0)),
    "topk": (lambda x, n: x.topk(3, 1)[0], lambda a, n: -np.sort(-a, 1)[:, :3]),
    "picked": (lambda x, n: x.T[Tensor([0, 1], device=x.device)], lambda a, n: a.T[:2]),
}


@pytest.mark.parametrize("case", CASES)
def test_methods_on_a_symbolic_axis(device: str, case: str) -> None:
    ours, theirs = CASES[case]
    size, array = Var("n", 3, 19), normal(4, 19)
    x = Tensor(array, device=device).realize()
    compiled = None
    for n in (7, 19, 3):
        result = ours(x[:, : size.bind(n)], size.bind(n)).contiguous().realize()
        np.testing.assert_allclose(result.numpy(), theirs(array[:, :n], n), atol=1e-5)
        assert compiled in (None, Counters.compiled)
        compiled = Counters.compiled


def test_indices_of_symbolic_size_pick_rows() -> None:
    tokens, table = np.array([3, 1, 4, 1, 5, 9]), normal(10, 4)
    count = Var("count", 1, 6).bind(4)
    got = Tensor(table)[Tensor(tokens)[:count]]
    assert got.shape == (count, 4)
    np.testing.assert_array_equal(got.numpy(), table[tokens[:4]])


def test_reading_gives_the_bound_size() -> None:
    p = Var("p", 1, 9).bind(3)
    x = Tensor.arange(9).realize()[:p]
    assert x.shape == (p,) and str(x.shape) == "(p,)" and str(x[1:].shape) == "(p - 1,)"
    assert x.tolist() == [0, 1, 2] and x.numpy().shape == (3,) and x.size == 3
    assert x.realize().tolist() == [0, 1, 2] and (x + 1)[:1].item() == 1
    assert x.shape[0].value == 3 and (p // 2 + 1).value == 2  # type: ignore[attr-defined]
    assert x[: Var("q", 1, 1).bind(1)].item() == 0
    assert "0, 1, 2" in repr(x)


def test_multiples_split_evenly_and_are_vectorised_whole() -> None:
    m = Var("m", 16, 256, multiple_of=16)
    x = Tensor(normal(256)).realize()
    part = x[: m.bind(48)]
    assert part.reshape(-1, 16).shape == (m.bind(48) // 16, 16)
    np.testing.assert_allclose(part.reshape(-1, 16).sum(0).numpy(),
                               x.numpy()[:48].reshape(3, 16).sum(0), atol=1e-5)  # fmt: skip
    stages = explain([(part + 1)._node], is_computed, gpu.Device["CPU"].renderer)
    (kernel,) = (text for name, text in stages if name == "scheduled kernel")
    assert kernel.count("loop") >= 2 and "t serial" not in kernel, "there is nothing left over"


def test_attention_over_a_symbolic_axis_is_vectorised() -> None:
    p = Var("p", 0, 255).bind(9)
    q, keys = Tensor(normal(1, 64)).realize(), Tensor(normal(256, 64)).realize()
    weights = (q @ keys[: p + 1].T).softmax(-1)
    stages = explain([(weights @ keys[: p + 1])._node], is_computed, gpu.Device["CPU"].renderer)
    kernels = [text for name, text in stages if name == "scheduled kernel"]
    assert kernels and all(" vector " in kernel for kernel in kernels)


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 22, 40])
def test_products_over_symbolic_axes_are_tiled(device: str, rows: int) -> None:
    n = Var("n", 1, 40).bind(rows)
    x, y = normal(40, 24), normal(40, 24, seed=1)
    first, second = (Tensor(a, device=device).realize()[:n] for a in (x, y))
    product = (first @ second.transpose(0, 1)) @ second
    wanted = (x[:rows] @ y[:rows].T) @ y[:rows]
    np.testing.assert_allclose(product.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_tiles_over_symbolic_axes_have_several_rows() -> None:
    n, w = Var("n", 1, 200).bind(50), Tensor(normal(64, 96)).realize()
    y = Tensor(normal(200, 64)).realize()[:n] @ w
    stages = explain([y._node], is_computed, gpu.Device["CPU"].renderer)
    (kernel,) = (text for name, text in stages if name == "scheduled kernel")
    assert any("unroll" in line and "i0u" in line for line in kernel.splitlines()), kernel


def test_gradients_flow_through_symbolic_slices() -> None:
    size = Var("n", 2, 12)
    for n in (5, 12):
        w = Tensor(normal(3, 12), requires_grad=True)
        part = w[:, : size.bind(n)]
        (part.softmax(1) * part).sum().backward()
        whole = Tensor(w.numpy()[:, :n], requires_grad=True)
        (whole.softmax(1) * whole).sum().backward()
        assert w.grad is not None and whole.grad is not None
        wanted = np.pad(whole.grad.numpy(), ((0, 0), (0, 12 - n)))
        np.testing.assert_allclose(w.grad.numpy(), wanted, atol=1e-5)


def _two_values() -> object:
    p, x = Var("p", 0, 8), Tensor.arange(9).realize()
    return x[: p.bind(3)] + x[: p.bind(4)]


def _two_values_in_jit() -> object:
    p, x = Var("p", 1, 8), Tensor.arange(8).realize()
    return gpu.jit(lambda a, b: a.sum() + b.sum())(x[: p.bind(2)], x[: p.bind(4)])


def _two_ranges() -> object:
    x = Tensor.arange(9).realize()
    return (x[: Var("p", 0, 8).bind(3)].sum() + x[: Var("p", 0, 9).bind(3)].sum()).realize()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: Var("p", 0, 8).bind(9), InvalidValue, "cannot be bound to 9: expected 0..8"),
        (lambda: Var("p", 0, 8, multiple_of=4).bind(6), InvalidValue, "a multiple of 4"),
        (lambda: Var("p", 0, 8).bind(1.5), InvalidType, "value of p must be an int"),  # type: ignore[arg-type]
        (lambda: Var("p", 3, 2), InvalidValue, "no value to be bound to"),
        (lambda: Var("p", -1, 2), InvalidValue, "0 <= lo <= hi"),
        (lambda: Var("p.q", 0, 2), InvalidValue, "letters, digits"),
        (lambda: Var("p", 1, 8).bind(2) * Var("q", 1, 8).bind(2), InvalidType, "by an int"),
        (_two_values, InvalidValue, "two values in one program, [34] and [34]: realize"),
        (_two_ranges, InvalidValue, "two ranges in one program"),
        (lambda: Tensor.ones(4)[: Var("p", 0, 8).bind(2)], InvalidValue, "p <= 4 depends on"),
        (lambda: Tensor.ones(4)[Var("p", 5, 8).bind(5)], InvalidIndex, "out of range for axis 0"),
        (lambda: Tensor.ones(4, Var("p", 1, 8).bind(2)).reshape(-1), ShapeError, "behind it only"),
        (lambda: len(Tensor.ones(Var("p", 1, 8).bind(2))), InvalidType, "use shape"),
        (lambda: bool(Var("p", 1, 8).bind(2) > 2), InvalidValue, "p > 2 depends on"),
        (_two_values_in_jit, InvalidValue, "two values in one program, 2 and 4: realize"),
    ],
)
def test_what_cannot_be_says_so(wrong: Callable[[], object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()


def test_bounds_that_are_equal_are_a_number() -> None:
    four = Var("four", 4, 4).bind(4)
    assert four == 4 and Tensor.ones(8)[:four].shape == (4,)
