"""Training without an optimiser, as users of torch, of tinygrad and beginners write it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, jit, nn
from gpu.core.errors import InvalidIndex, InvalidType, InvalidValue
from gpu.nn.optim import SGD, Adam
from gpu.nn.state import get_parameters, get_state_dict, load_state_dict
from nn.test_layers import LAYERS
from tensor.reference import Tolerance, assert_same, rng_for, torch

RATE = 0.1
CLOSE = Tolerance(1e-4, 1e-5)


class Network:
    """Two linear maps with a norm between them."""

    def __init__(self) -> None:
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).tanh())


class Theirs(torch.nn.Module):  # type: ignore[misc]
    """The same of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(3, 8), torch.nn.LayerNorm(8)
        self.last = torch.nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.norm(self.first(x))))


def pair() -> tuple[Network, Theirs]:
    ours, theirs = Network(), Theirs()
    state = {name: Tensor(value.numpy()) for name, value in theirs.state_dict().items()}
    load_state_dict(ours, state)
    return ours, theirs


def batches(count: int) -> Iterator[tuple[Any, Any]]:
    rng = rng_for("batches")
    for _ in range(count):
        x = rng.normal(size=(5, 3)).astype("float32")
        yield x, np.stack([np.sin(x).sum(1), x.prod(1)], 1).astype("float32")


def as_in_torch(model: Network, loss: Tensor) -> None:
    loss.backward()
    with Tensor.no_grad():
        for p in get_parameters(model):
            p -= RATE * p.grad  # noqa: PLW2901
            p.grad = None


def as_in_torch_with_indices(model: Network, loss: Tensor) -> None:
    for p in get_parameters(model):
        p.grad = None
    loss.backward()
    with Tensor.no_grad():
        for p in get_parameters(model):
            assert p.grad is not None
            p[...] = p - RATE * p.grad


def as_in_tinygrad(model: Network, loss: Tensor) -> None:
    with Tensor.train():
        loss.backward()
        for p in get_parameters(model):
            assert p.grad is not None
            p.assign(p.detach() - RATE * p.grad)
            p.grad = None
        Tensor.realize(*get_parameters(model))


def as_the_error_says(model: Network, loss: Tensor) -> None:
    loss.backward()
    for w in get_parameters(model):
        with pytest.raises(InvalidValue, match=r"w.assign\(w - rate \* w.grad\)"):
            w -= RATE * w.grad  # noqa: PLW2901
        assert w.grad is not None
        w.assign(w - RATE * w.grad)
        w.grad = None


def by_gradients(model: Network, loss: Tensor) -> None:
    parameters = get_parameters(model)
    for p, slope in zip(parameters, loss.gradient(*parameters), strict=True):
        p.assign(p - RATE * slope)


Step = Callable[[Network, Tensor], None]
STEPS = [
    as_in_torch, as_in_torch_with_indices, as_in_tinygrad, as_the_error_says, by_gradients,
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_loop_by_hand(step: Step) -> None:
    ours, theirs = pair()
    used = []
    for x, y in batches(12):
        expected = ((theirs(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
        expected.backward()
        with torch.no_grad():
            for p in theirs.parameters():
                p -= RATE * p.grad  # noqa: PLW2901
                p.grad = None
        loss = (ours(Tensor(x)) - Tensor(y)).square().mean()
        step(ours, loss)
        assert_same(loss, expected, CLOSE)
        for name, p in theirs.named_parameters():
            mine = get_state_dict(ours)[name]
            assert mine.requires_grad
            assert_same(mine, p, CLOSE)
        used.append(Device["CPU"].allocator.live)
    assert len(set(used[4:])) == 1, used


@pytest.mark.parametrize("step", STEPS[:3])
def test_memory_of_a_loop_that_reads_nothing(step: Step) -> None:
    """The weights alone are asked for in the end: what is behind them must not pile up."""
    model, used = Network(), []
    for x, y in batches(20):
        loss = (model(Tensor(x)) - Tensor(y)).square().mean()
        step(model, loss)
        loss.realize()
        del loss
        used.append(Device["CPU"].allocator.live)
    assert len(set(used[4:])) == 1, used


def test_a_jitted_loop_by_hand() -> None:
    ours, theirs = pair()

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = (ours(x) - y).square().mean()
        as_in_torch(ours, loss)
        return loss

    for x, y in batches(6):
        expected = ((theirs(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
        expected.backward()
        with torch.no_grad():
            for p in theirs.parameters():
                p -= RATE * p.grad  # noqa: PLW2901
                p.grad = None
        assert_same(step(Tensor(x), Tensor(y)), expected, CLOSE)
    for name, p in theirs.named_parameters():
        assert_same(get_state_dict(ours)[name], p, CLOSE)


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_require_gradients_and_buffers_do_not(name: str) -> None:
    ours, theirs = LAYERS[name][0](), LAYERS[name][1]()
    wanted = {key: True for key, _ in theirs.named_parameters()}
    wanted |= {key: False for key, _ in theirs.named_buffers()}
    found = get_state_dict(ours)
    assert {key: tensor.requires_grad for key, tensor in found.items()} == wanted
    load_state_dict(ours, {key: Tensor(tensor.numpy()) for key, tensor in found.items()})
    assert {key: tensor.requires_grad for key, tensor in found.items()} == wanted


@pytest.mark.parametrize("layer", [nn.Embedding(4, 3), nn.LSTMCell(2, 3), nn.Embedding(4, 3, 1)])
def test_those_of_other_layers_do_too(layer: object) -> None:
    assert all(tensor.requires_grad for tensor in get_parameters(layer))


def test_frozen_parameters() -> None:
    ours, theirs = pair()
    ours.first.weight.requires_grad_(False)
    theirs.first.weight.requires_grad_(False)
    before = ours.first.weight.tolist()
    optimizer = Adam(get_parameters(ours), 0.01)
    wanted = torch.optim.Adam(theirs.parameters(), 0.01)
    for x, y in batches(4):
        optimizer.zero_grad()
        wanted.zero_grad()
        (ours(Tensor(x)) - Tensor(y)).square().mean().backward()
        ((theirs(torch.tensor(x)) - torch.tensor(y)) ** 2).mean().backward()
        optimizer.step()
        wanted.step()
    assert ours.first.weight.grad is None and ours.first.weight.tolist() == before
    for name, p in theirs.named_parameters():
        assert_same(get_state_dict(ours)[name], p, CLOSE)
    assert ours.first.weight.requires_grad_() is ours.first.weight
    x, y = next(batches(1))
    (ours(Tensor(x)) - Tensor(y)).square().mean().backward()
    assert ours.first.weight.grad is not None


# What goes wrong says what to write.


def test_nothing_requires_gradients() -> None:
    w = Tensor([1.0, 2.0])
    with pytest.raises(InvalidValue, match=r"set requires_grad=True.*assign\(\).*gradient\(w\)"):
        (w * w).sum().backward()
    with pytest.raises(InvalidType, match="grad is None until backward"):
        w - w.grad  # type: ignore[operator]
    with pytest.raises(InvalidType, match=r"assign\(\), not through \.data"):
        w.data -= w  # type: ignore[operator, assignment, method-assign]


def test_a_parameter_that_was_rebound() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer(Tensor([[1.0, 2.0]])).sum().backward()
    layer.weight = layer.weight - RATE * layer.weight.grad  # type: ignore[operator]
    with pytest.raises(InvalidValue, match="w = w - step makes another tensor"):
        layer(Tensor([[1.0, 2.0]])).sum().backward()


def test_a_leaf_is_not_written_where_gradients_would_be_lost() -> None:
    layer = nn.Linear(2, 1)
    for write in (
        lambda w: w.__imul__(2),
        lambda w: w.__setitem__(0, 1.0),
        lambda w: w[0].__iadd__(1),
    ):
        with pytest.raises(InvalidValue, match=r"with Tensor\.no_grad\(\)"):
            write(layer.weight)
    with Tensor.no_grad():
        layer.weight *= 0
        layer.weight[0, 1] = 5
    assert layer.weight.tolist() == [[0, 5]] and layer.weight.requires_grad


# no_grad.


def test_no_gradient_flows_back_through_a_block() -> None:
    a, b = np.array([1.0, 2.0], "float32"), np.array([3.0, 4.0], "float32")
    w, v = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
    tw, tv = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    before, tbefore = w * 3, tw * 3
    with Tensor.no_grad(), Tensor.no_grad():
        y, first, total = (before * w).exp(), w[0], w.sum().realize()
        kept = Tensor([1.0], requires_grad=True)
    with torch.no_grad():
        ty, tfirst, ttotal = (tbefore * tw).exp(), tw[0], tw.sum()
    (y * v * first * total * before * kept).sum().backward()
    (ty * tv * tfirst * ttotal * tbefore).sum().backward()
    assert_same(w.grad, tw.grad)
    assert_same(v.grad, tv.grad)
    assert kept.grad is not None
    with pytest.raises(InvalidValue, match=r"no_grad\(\)"):
        y.sum().backward()


def test_a_loss_may_be_read_inside() -> None:
    w = Tensor([2.0], requires_grad=True)
    loss = (w * w).sum()
    with Tensor.no_grad():
        assert loss.item() == 4
    loss.backward()
    assert w.grad is not None and w.grad.tolist() == [4]


def test_what_is_written_inside_ends_there() -> None:
    w, mean = Tensor([2.0], requires_grad=True), Tensor([0.0])
    with Tensor.no_grad():
        mean.assign(mean * 0.5 + w * 0.5)
    mean[0] += 1
    (mean * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2]


def test_states_of_a_loop_let_go_of_their_past() -> None:
    cell, x = nn.LSTMCell(4, 4), Tensor.ones(2, 4).realize()
    cache, used = Tensor.zeros(8, 4).contiguous().realize(), []
    state = None
    with Tensor.no_grad():
        for step in range(20):
            state = cell(x, state)
            cache[step % 8] = state[0][0]
            Tensor.realize(*state, cache)
            used.append(Device["CPU"].allocator.live)
    assert len(set(used[4:])) == 1, used


def test_it_is_a_decorator_of_this_thread() -> None:
    w = Tensor([2.0], requires_grad=True)

    @Tensor.no_grad()
    def double(deeper: bool) -> Tensor:
        return (double(False) if deeper else w) * 2

    seen: list[Tensor] = []
    with Tensor.no_grad():
        thread = threading.Thread(target=lambda: seen.append(w * w))
        thread.start()
        thread.join()
    seen[0].sum().backward()
    assert w.grad is not None and w.grad.tolist() == [4]
    with pytest.raises(InvalidValue):
        double(True).sum().backward()
    with pytest.raises(ZeroDivisionError), Tensor.no_grad():
        _ = 1 / 0
    (w * 5).sum().backward()
    assert w.grad.tolist() == [9]


def test_inference_is_captured_as_it_was() -> None:
    """Whether weights require gradients changes nothing of what is compiled."""
    model, x = Network(), Tensor.ones(2, 3).realize()
    forms = []
    for flag in (True, False):
        for p in get_parameters(model):
            p.requires_grad_(flag).realize()
        apply = jit(model.__call__)
        values = [apply(x).tolist() for _ in range(3)]
        (capture,) = apply._kept()
        assert capture.prepared is not None
        forms.append((capture.prepared.key, len(capture.sources), values))
    assert forms[0] == forms[1]


def test_optimisers_take_them_as_before() -> None:
    layer = nn.Linear(2, 2)
    optimizer = SGD(get_parameters(layer))
    assert optimizer.params == get_parameters(layer) and not optimizer.buffers


def test_weights_of_half_the_width_keep_nothing_of_the_others() -> None:
    layer = nn.Linear(64, 64, bias=False)
    before = Device["CPU"].allocator.live
    with Tensor.no_grad():
        layer.weight = layer.weight.half().realize()
    assert Device["CPU"].allocator.live == before - 64 * 64 * 2


def test_a_leaf_is_one_after_a_replay_was_refused() -> None:
    layer, x = nn.Linear(2, 3), Tensor([[1.0, 2.0]])

    @jit
    def step(labels: Tensor) -> Tensor:
        loss = layer(x).cross_entropy(labels).backward()
        with Tensor.no_grad():
            layer.weight -= RATE * layer.weight.grad  # type: ignore[operator]
        layer.weight.grad = None
        return loss

    with Context(CHECK=1), pytest.raises(InvalidIndex):
        step(Tensor([3]))
    layer.weight.grad = None
    hidden = layer(x).realize()  # what it came from is still needed
    (hidden * hidden).sum().backward()
    assert layer.weight.grad is not None
    assert_same(layer.weight.grad, torch.tensor((2 * hidden.T @ x).tolist()), CLOSE)
