"""`gpu.scan`: a loop over a function, compared with the same loop written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, dtypes
from gpu.compiler.ir.graph import interpret
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.core.errors import DTypeError, GpuError, InvalidType, InvalidValue, ShapeError
from gpu.runtime.execute import prepare, storage
from gpu.runtime.prepared import Counters
from gpu.tensor.callforms import map_tensors, tensors_in
from gpu.tensor.scan import stepped

STATE, WIDTH, LENGTH = (3, 4), 4, 4
generators: list[np.random.Generator] = []


@pytest.fixture(autouse=True)
def own_numbers() -> None:
    """Each test draws the same numbers, whatever ran before."""
    generators[:] = [np.random.default_rng(20)]


def values(*shape: int) -> np.ndarray[Any, Any]:
    return (generators[0].standard_normal(shape) * 0.5).astype(np.float32)


def unrolled(body: Any, init: Any, xs: Any, length: int, reverse: bool = False) -> tuple[Any, Any]:
    """The loop that the documentation of `scan` says it is."""
    carry, ys = init, []
    for step in reversed(range(length)) if reverse else range(length):
        carry, y = body(carry, map_tensors(xs, lambda t, step=step: t[step]))
        ys.append(y)
    columns = zip(*map(tensors_in, ys[::-1] if reverse else ys), strict=True)
    stacked = iter([Tensor.stack(*column) for column in columns])
    return carry, map_tensors(ys[0], lambda _: next(stacked))


def lstm(weights: Tensor) -> Callable[[Any, Any], Any]:
    def body(state: Any, x: Tensor) -> Any:
        hidden, cell = state["hidden"], state["cell"]
        gates = x @ weights + hidden @ weights.T
        cell = gates.sigmoid() * cell + (gates + hidden).tanh()
        hidden = cell.tanh() * (x - hidden).sigmoid()
        return {"hidden": hidden, "cell": cell}, [hidden, (cell.sum(1),)]

    return body


def written(s: Tensor, x: Tensor) -> Any:
    s[1:2] = x[:1] * s[2:]
    return s, s.sum()


def written_clone(s: Tensor, x: Tensor) -> Any:
    s = s.clone()
    s[0] = x[0]
    s[2] = s[0] * 2
    return s, s[2]


Body = Callable[[Any, Tensor], Any]
# Bodies of two tensors that are carried, slices of STATE, and weights from outside.
PAIRS: dict[str, Callable[[Tensor], Body]] = {
    "swaps": lambda w: lambda s, x: ((s[1], s[0]), s[0] + x),
    "keeps": lambda w: lambda s, x: (s, s[0] * x),
    "twice the same": lambda w: lambda s, x: ((s[0] + x, s[0] + x), None),
    "hands on": lambda w: lambda s, x: ((x, s[0]), s[1]),
    "multiplies": lambda w: lambda s, x: ((((s[0] @ w) + x).tanh(), s[1] * 0.5), s[1]),
    "outside alone": lambda w: lambda s, x: (s, (w * 2).exp()),
    "constants": lambda w: lambda s, x: ((s[0] * 0, s[1] + 1), Tensor.ones(2, device=w.device)),
    "views": lambda w: lambda s, x: ((s[1].flip(0), s[0][:, ::-1] + x), x.T),
    "writes": lambda w: lambda s, x: ((written(s[0], x)[0], s[1]), s[0].sum()),
    "clones": lambda w: lambda s, x: ((written_clone(s[0], x)[0], s[1] * w[0]), None),
    "reduces": lambda w: lambda s, x: ((s[0].softmax(1), s[1] + x.max()), s[0].sum(0)),
}


def same(got: Any, want: Any, rtol: float = 1e-5) -> None:
    first, *others = [t for t in (*tensors_in(got), *tensors_in(want)) if t.numel()]
    first.realize(*others)  # at once: what they share is compiled once
    for a, b in zip(tensors_in(got), tensors_in(want), strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=1e-5)


def compare(body: Any, init: Any, xs: Any, targets: list[Tensor], **options: Any) -> None:
    """The values and gradients of a scan against those of the loop."""
    length = next(iter(tensors_in(xs))).shape[0]
    got = gpu.scan(body, init, xs, **options)
    want = unrolled(body, init, xs, length, options.get("reverse", False))
    factors = [Tensor(values(*t.shape), device=t.device) for t in tensors_in(want)]
    grads = []
    for result in (got, want):
        terms = [(t * f).sin().sum() for t, f in zip(tensors_in(result), factors, strict=True)]
        loss = sum(terms[1:], terms[0])
        grads.append(loss.gradient(*targets, materialize_grads=True))
    first, *others = [*grads[0], *grads[1], *tensors_in(got), *tensors_in(want)]
    first.realize(*others)
    same(grads[0], grads[1], rtol=1e-4)
    same(got, want)


@pytest.mark.parametrize(
    ("name", "reverse"), [(name, number % 2 == 1) for number, name in enumerate(PAIRS)]
)
def test_a_scan_is_the_loop(name: str, reverse: bool, device: str) -> None:
    a, b = (Tensor(values(*STATE), device=device) for _ in range(2))
    x = Tensor(values(LENGTH, *STATE), device=device)
    w = Tensor(values(WIDTH, WIDTH), device=device)
    body = PAIRS[name](w)
    compare(body, (a * 2, b), x, [a, b, x, w], reverse=reverse)


@pytest.mark.parametrize("count", [1, 4])
def test_keys_of_the_carry_are_in_any_order(count: int, device: str) -> None:
    """Also where the tensors of two keys look the same, so that an exchange would go unseen."""

    def body(state: Any, x: Tensor) -> Any:
        a, b = state["pair"][0], state["last"]
        return {"last": b + x, "pair": (a * b,)}, {"y": a, "x": x}

    x = Tensor(values(count, 3), device=device)
    start = {"pair": (Tensor(np.full(3, 2.0, np.float32), device=device),), "last": x[0] * 3}
    state, given = gpu.scan(body, start, x)
    wanted, found = start, []
    for row in x:
        wanted, y = body(wanted, row)
        found.append(y["y"])
    assert list(state) == ["pair", "last"]
    np.testing.assert_allclose(state["last"].numpy(), wanted["last"].numpy(), rtol=1e-5)
    np.testing.assert_allclose(state["pair"][0].numpy(), wanted["pair"][0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(given["y"].numpy(), Tensor.stack(*found).numpy(), rtol=1e-5)


@pytest.mark.parametrize("checkpoint", [1, 2, 9])
def test_checkpoints_keep_the_results(checkpoint: int) -> None:
    test_trees_of_tensors_and_checkpoints(checkpoint, "CPU")


@pytest.mark.parametrize("checkpoint", [None, 3])
def test_trees_of_tensors_and_checkpoints(checkpoint: int | None, device: str) -> None:
    h, c = (Tensor(values(*STATE), device=device) for _ in range(2))
    x = Tensor(values(4, *STATE), device=device)
    w = Tensor(values(WIDTH, WIDTH), device=device)
    init = {"hidden": h, "cell": c}
    compare(lstm(w), init, x, [h, c, x, w], checkpoint=checkpoint, reverse=checkpoint == 3)


def test_checkpoints_keep_fewer_carries() -> None:
    x, start = Tensor(values(64, 1000)).realize(), Tensor(values(1000)).realize()

    def stacked(checkpoint: int | None) -> int:
        carry, _ = gpu.scan(lambda s, x: ((s * x).sin(), None), start, x, checkpoint=checkpoint)
        (grad,) = carry.sum().gradient(start)
        slots = prepare([grad._node]).make_slots()
        return sum(slot.nbytes for slot in slots)

    assert stacked(8) < stacked(None) / 3


def test_integers_are_carried_without_a_gradient(device: str) -> None:
    first, second = Tensor([0], device=device), Tensor([1], device=device)
    (a, b), found = gpu.scan(lambda s, _: ((s[1], s[0] + s[1]), s[0]), (first, second), length=10)
    assert found.tolist() == [[n] for n in (0, 1, 1, 2, 3, 5, 8, 13, 21, 34)]
    assert (a.item(), b.item()) == (55, 89)
    x = Tensor(values(5, 3), device=device)
    count = Tensor(0, device=device)

    def body(s: Any, x: Tensor) -> Any:
        n, total = s
        return (n + 1, total + x * n), None

    compare(body, (count, x[0]), x, [x])


def test_narrow_floats_add_up_wide(device: str) -> None:
    x = Tensor(np.ones((64, 8), np.float32), device=device).half()
    w = Tensor(np.full(8, 2.0**-8, np.float32), device=device).half()
    _, ys = gpu.scan(lambda s, x: (s, x * w), x[0], x)
    (grad,) = ys.cast(dtypes.float32).sum().gradient(w)
    assert grad.dtype is dtypes.float16 and grad.tolist() == [64.0] * 8


def test_scans_nest(device: str) -> None:
    a, x = Tensor(values(4), device=device), Tensor(values(5, 3, 4), device=device)
    w = Tensor(values(4), device=device)

    def outer(scan: Any) -> Any:
        def body(s: Tensor, x: Tensor) -> Any:
            t, ys = scan(lambda a, b: ((a * b + w * s).tanh(), a), s, x)
            return t * s, ys.sum()

        return body

    got = gpu.scan(outer(gpu.scan), a, x)
    want = unrolled(outer(lambda f, s, x: unrolled(f, s, x, 3)), a, x, 5)
    grads = [(r[0] + r[1].sum()).sum().gradient(a, x, w) for r in (got, want)]
    same(*grads)
    same(got, want)


def test_gradients_have_gradients() -> None:
    a, x = Tensor(values(4)), Tensor(values(6, 4))

    def second(scan: Any) -> Tensor:
        carry, _ = scan(lambda s, x: (s * x.sin() + s * s, None), a, x)
        (grad,) = carry.sum().gradient(a)
        return (grad * grad).sum().gradient(a)[0]

    same([second(gpu.scan)], [second(lambda f, s, x: unrolled(f, s, x, 6))])


def test_backward_reaches_leaves_that_the_body_uses() -> None:
    w = Tensor(values(WIDTH, WIDTH), requires_grad=True)
    x = Tensor(values(LENGTH, *STATE), requires_grad=True)
    carry, _ = gpu.scan(lambda s, x: ((s @ w + x).tanh(), s), x[0].detach(), x)
    carry.sum().backward()
    want, _ = unrolled(lambda s, x: ((s @ w + x).tanh(), s), x[0].detach(), x, LENGTH)
    grads = want.sum().gradient(w, x)
    same([w.grad, x.grad], grads)
    with Tensor.no_grad():
        carry, _ = gpu.scan(lambda s, x: (s @ w + x, None), x[0], x)
    assert carry.numpy().shape == STATE
    with pytest.raises(InvalidValue):
        carry.sum().backward()


def test_a_jitted_step_replays_the_loop(device: str) -> None:
    h = Tensor(values(*STATE), device=device).realize()
    state = Tensor(values(WIDTH, WIDTH), device=device).realize()

    @gpu.jit
    def step(x: Tensor, rate: float) -> Tensor:
        carry, ys = gpu.scan(lambda s, x: ((s @ state + x).tanh(), s), h, x)
        loss = carry.sum() + (ys * ys).sum()
        (grad,) = loss.gradient(state)
        state.assign(state - rate * grad)
        return loss

    expected = state.numpy()
    for _ in range(4):
        x = Tensor(values(LENGTH, *STATE), device=device)
        w = Tensor(expected, device=device)
        carry, ys = unrolled(lambda s, x, w=w: ((s @ w + x).tanh(), s), h, x, LENGTH)
        loss = carry.sum() + (ys * ys).sum()
        (grad,) = loss.gradient(w)
        expected = (w - 0.1 * grad).numpy()
        assert step(x, 0.1).item() == pytest.approx(loss.item(), rel=1e-4)
        np.testing.assert_allclose(state.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert step.captures == 1


def counted(length: int) -> tuple[int, int]:
    """Kernels compiled and launched for a forward and backward pass of so many steps."""
    w, x = Tensor(values(WIDTH, WIDTH)).realize(), Tensor(values(length, *STATE)).realize()
    kernels, launches = Counters.kernels, Counters.launches
    carry, ys = gpu.scan(lambda s, x: ((s @ w + x).tanh(), s), x[0], x)
    loss = carry.sum() + ys.sum()
    Tensor.realize(loss, *loss.gradient(w, x))
    return Counters.kernels - kernels, Counters.launches - launches


def test_kernels_do_not_grow_with_the_length() -> None:
    (few, launches), (many, more) = counted(20), counted(200)
    assert 0 < few == many <= 16
    assert (more - launches) % 180 == 0 and (more - launches) // 180 <= 10


def test_the_body_runs_once_and_hoists_what_stays() -> None:
    calls: list[int] = []
    w, x = Tensor(values(64, 64)).realize(), Tensor(values(50, 64)).realize()

    def body(s: Tensor, x: Tensor) -> Any:
        calls.append(1)
        return s + x * (w @ w).sum(), None

    launches = Counters.launches
    gpu.scan(body, x[0], x)[0].realize()
    assert len(calls) == 1 and Counters.launches - launches < 60


def test_what_is_not_wanted_is_not_computed() -> None:
    x = Tensor(values(40, 8)).realize()
    launches = Counters.launches
    gpu.scan(lambda s, x: (s + x, (s * x).sum()), x[0], x)[0].realize()
    assert Counters.launches - launches <= 42


def test_values_without_elements() -> None:
    x, none = Tensor(values(5, 2)), Tensor.zeros(0, 3)
    (a, b), (c, d) = gpu.scan(lambda s, x: ((s[0] + x, s[1]), (s[1], s[0])), (x[0], none), x)
    same(a, x[0] + x.sum(0))
    assert b.shape == (0, 3) and c.shape == (5, 0, 3) and d.shape == (5, 2)
    carry, ys = gpu.scan(lambda s, x: (None, None), None, length=3)
    assert carry is None and ys is None


def test_a_single_step_and_checks() -> None:
    x = Tensor(values(1, 3))
    compare(lambda s, x: (s * x, s + 1), x[0], x, [x])
    index = Tensor([0, 2, 7])
    with gpu.Context(CHECK="index"), pytest.raises(GpuError, match="7 is out of range"):
        gpu.scan(lambda s, i: (s + x[0][i], None), Tensor(0.0), index)


def test_the_text_and_the_meaning_of_a_loop() -> None:
    x, w = Tensor(values(4, 3)).realize(), Tensor(values(3)).realize()
    carry, ys = gpu.scan(
        lambda s, x: gpu.scan(lambda a, b: (a * b + w, a), s, Tensor.stack(x, s)), x[0], x
    )
    nodes = [t._node for t in (carry, ys, *(carry.sum() + ys.sum()).gradient(x, w))]
    text = print_graph(nodes)
    again = parse_graph(text, handles_of(nodes))
    assert print_graph(again) == text
    found = interpret(again, lambda n: storage(n).copy_out().reshape(n.shape))
    got = [Tensor._wrap(node).numpy() for node in nodes]
    for a, b in zip(found, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_random_bodies(device: str, seed: int) -> None:
    choose = np.random.default_rng(seed)
    picks = choose.integers(0, 6, (2, 3))
    w = Tensor(values(WIDTH, WIDTH), device=device)
    states = tuple(Tensor(values(*STATE), device=device) for _ in range(2))
    x = Tensor(values(int(choose.integers(2, 6)), *STATE), device=device)

    def body(s: Any, x: Tensor) -> Any:
        pool = [*s, x]
        for a, b, op in picks:
            left, right = pool[a % len(pool)], pool[b % len(pool)]
            made = (left + right, left * right, left @ w, left.sin(), left.flip(0), right)[op]
            pool.append(made)
        return tuple(pool[-2:]), pool[-3]

    compare(body, states, x, [*states, x, w], reverse=bool(seed % 2))


TWO = [[1.0, 2.0], [3.0, 4.0]]
Refused = tuple[type[Exception], str, Body, Any, Callable[[], Any], dict[str, Any]]


def kept(s: Any, x: Any) -> Any:
    return s, x


def reading(s: Tensor, x: Tensor) -> Any:
    return s + x.sum().item(), x


def drawing(s: Tensor, x: Tensor) -> Any:
    return s + Tensor.rand(), x


REFUSED: dict[str, Refused] = {
    "body": (InvalidType, "is a function", None, 0.0, lambda: Tensor(TWO), {}),
    "keys": (InvalidType, "the form", lambda s, x: ({"s": s}, x), 0.0, lambda: Tensor(TWO), {}),
    "shape": (ShapeError, "becomes", lambda s, x: (x, None), 0.0, lambda: Tensor(TWO), {}),
    "dtype": (DTypeError, "cast", lambda s, x: (s.half(), x), 0.0, lambda: Tensor(TWO), {}),
    "form": (InvalidType, "the form", lambda s, x: ((s, s), x), 0.0, lambda: Tensor(TWO), {}),
    "no pair": (InvalidType, "a pair", lambda s, x: s, 0.0, lambda: Tensor(TWO), {}),
    "number": (InvalidType, r"Tensor\(number\)", kept, 0.0, lambda: [1.0], {}),
    "given": (InvalidType, r"Tensor\(num", lambda s, x: (s, 1), 0.0, lambda: Tensor(TWO), {}),
    "no length": (InvalidValue, "length=", kept, 0.0, lambda: None, {}),
    "empty": (ShapeError, "length 0", kept, 0.0, lambda: Tensor.zeros(0, 2), {}),
    "lengths": (ShapeError, "one length", kept, 0.0, lambda: [Tensor(TWO), Tensor.zeros(3)], {}),
    "told": (ShapeError, "length is 3", kept, 0.0, lambda: Tensor(TWO), {"length": 3}),
    "0-d": (ShapeError, "0-d", kept, 0.0, lambda: Tensor(1.0), {}),
    "segments": (InvalidValue, "checkpoint=0", kept, 0.0, lambda: Tensor(TWO), {"checkpoint": 0}),
    "value": (gpu.JitError, "reading", reading, 0.0, lambda: Tensor(TWO), {}),
    "random": (gpu.JitError, "random", drawing, 0.0, lambda: Tensor(TWO), {}),
    "device": (GpuError, "one device", kept, 0.0, lambda: Tensor(TWO, device="PYTHON"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_is_wrong(name: str) -> None:
    kind, told, body, init, xs, options = REFUSED[name]
    with pytest.raises(kind, match=told):
        gpu.scan(body, Tensor(init, device="CPU"), xs(), **options)


def test_a_body_changes_nothing_outside() -> None:
    x, seen = Tensor(TWO), Tensor([0.0, 0.0]).realize()

    def body(s: Tensor, x: Tensor) -> Any:
        seen.assign(x)
        return s, None

    def views(s: Tensor, x: Tensor) -> Any:
        seen[0] = x[1]
        return s, None

    def trains(s: Tensor, x: Tensor) -> Any:
        seen.grad = x
        return s, None

    for each in (body, views, trains):
        with pytest.raises(gpu.JitError, match="part of the carry"):
            gpu.scan(each, Tensor(0.0), x)
    assert seen.tolist() == [0.0, 0.0] and seen.grad is None
    kept: list[Tensor] = []
    gpu.scan(lambda s, x: (s, kept.append(x + 1)), Tensor(0.0), x)
    with pytest.raises(gpu.JitError, match="no value"):
        kept[0].numpy()
    start = Tensor([1.0, 2.0])

    def in_place(s: Tensor, x: Tensor) -> Any:
        s += x
        return s, None

    carry, _ = gpu.scan(in_place, start, x)
    assert carry.tolist() == [5.0, 8.0] and start.tolist() == [1.0, 2.0]


def test_places_and_sizes_in_a_body_of_ours_depend_on_the_step() -> None:
    def step(number: Any, x: Tensor, w: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        before = w[: 2 * number].sum()
        return (w + x,), before

    w = Tensor(np.arange(6, dtype=np.float32)).realize()
    xs = Tensor(np.array([1.0, 2.0, 3.0], np.float32)).realize()
    for reverse in (False, True):
        (last,), sums = stepped(step, (w,), 3, xs, reverse)
        own, expected = np.arange(6.0), np.zeros(3)
        for number in reversed(range(3)) if reverse else range(3):
            expected[number] = own[: 2 * number].sum()
            own = own + number + 1
        inputs = {w._node: w.numpy(), xs._node: xs.numpy()}
        assert interpret([sums._node], inputs.__getitem__)[0].tolist() == expected.tolist()
        assert (sums.tolist(), last.tolist()) == (expected.tolist(), own.tolist())
