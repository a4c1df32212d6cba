"""`Module`, containers, recurrent layers, attention and transformers, beside torch's.

Weights go from torch's `state_dict` to ours by name, so their names and shapes are compared too.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, Final

import numpy as np
import pytest

import gpu
from gpu import Tensor, nn
from gpu.compiler.ir.graph import toposort
from gpu.core.errors import (
    GpuError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from tensor.reference import rng_for, torch

Args = tuple[Any, ...]
Named = dict[str, Any]
M: Final = "MultiheadAttention"
# Name, arguments, keywords, shapes of the operands, and masks.
CASES: Final[list[tuple[str, Args, Named, list[Any], Named]]] = [
    ("LSTM", (3, 4, 2), {"bidirectional": True, "proj_size": 2}, [(3, 2, 3)], {}),
    ("GRUCell", (3, 2), {}, [(3,), (2,)], {}),
    (M, (4, 2), {"kdim": 3, "vdim": 2, "batch_first": True, "add_bias_kv": True,
     "add_zero_attn": True}, [(2, 3, 4), (2, 5, 3), (2, 5, 2)],
     {"attn_mask": (4, 3, 5), "average_attn_weights": False}),
]  # fmt: skip
HEAVY: Final[list[tuple[str, Args, Named, list[Any], Named]]] = [
    ("LSTM", (2, 3), {"bias": False}, [(2, 2), ((1, 3), (1, 3))], {}),
    ("GRU", (3, 2), {"batch_first": True, "bidirectional": True}, [(2, 3, 3), (2, 2, 2)], {}),
    ("RNN", (2, 3), {"nonlinearity": "relu"}, [(1, 2, 2), (1, 2, 3)], {}),
    ("LSTMCell", (3, 2), {}, [(2, 3), ((2, 2), (2, 2))], {}),
    ("RNNCell", (3, 2, False), {}, [(2, 3)], {}),
    (M, (4, 2), {}, [(3, 2, 4), (5, 2, 4), (5, 2, 4)], {"key_padding_mask": (2, 5)}),
    (M, (4, 1), {"bias": False}, [(3, 4), (3, 4), (3, 4)],
     {"attn_mask": (3, 3), "key_padding_mask": (3,), "need_weights": False}),
    ("TransformerDecoderLayer", (4, 2, 6, 0.0, "gelu"), {"norm_first": True, "bias": False},
     [(3, 1, 4), (2, 1, 4)], {"memory_mask": (3, 2)}),
    ("Transformer", (4, 2, 1, 1, 6, 0.0), {"batch_first": True}, [(1, 2, 4), (1, 3, 4)],
     {"tgt_mask": (3, 3)}),
]  # fmt: skip


def pair(name: str, args: Args, named: Named, device: str | None = None) -> tuple[Any, Any]:
    """A layer of ours and torch's, with equal random weights."""
    theirs, ours = getattr(torch.nn, name)(*args, **named), getattr(nn, name)(*args, **named)
    rng = rng_for(name, args)
    state = {n: rng.uniform(-0.7, 0.7, tuple(v.shape)) for n, v in theirs.state_dict().items()}
    theirs.double().load_state_dict({n: torch.tensor(v) for n, v in state.items()})
    wide = {n: Tensor(v.astype("float32"), device=device) for n, v in state.items()}
    assert {n: v.shape for n, v in ours.state_dict().items()} == {
        n: v.shape for n, v in wide.items()
    }
    ours.load_state_dict(wide)
    return ours, theirs


def flat(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [each for part in value for each in flat(part)]
    return [] if value is None else [value]


def drawn(shape: Any, rng: np.random.Generator) -> Any:
    if shape and isinstance(shape[0], tuple):
        return tuple(drawn(each, rng) for each in shape)
    return rng.normal(size=shape).astype("float32")


def masked(value: Any, rng: np.random.Generator) -> Any:
    """A mask of a shape, that leaves the first key of every query; another setting as it is."""
    if not isinstance(value, tuple):
        return value
    mask = rng.uniform(size=value) < 0.5
    mask[..., 0] = False
    return mask


def check(case: tuple[str, Args, Named, list[Any], Named]) -> None:
    name, args, named, shapes, masks = case
    ours, theirs = pair(name, args, named)
    rng = rng_for(name, shapes)
    data: list[Any] = [drawn(shape, rng) for shape in shapes]
    settings = {key: masked(value, rng) for key, value in masks.items()}

    def each(value: Any, make: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(each(part, make) for part in value)
        return make(value) if isinstance(value, np.ndarray) else value

    xs = each(tuple(data), lambda x: Tensor(x, requires_grad=True))
    ts = each(tuple(data), lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True))
    found = flat(ours(*xs, **{k: each(v, Tensor) for k, v in settings.items()}))
    wanted = flat(theirs(*ts, **{k: each(v, torch.tensor) for k, v in settings.items()}))
    seeds = [rng.normal(size=tuple(each.shape)).astype("float32") for each in wanted]
    sum((t * torch.tensor(s)).sum() for t, s in zip(wanted, seeds, strict=True)).backward()
    parts = [(x * Tensor(s)).sum() for x, s in zip(found, seeds, strict=True)]
    state = ours.state_dict()
    pairs = [(state[n], p.grad) for n, p in theirs.named_parameters() if p.grad is not None]
    pairs += [(x, t.grad) for x, t in zip(flat(xs), flat(ts), strict=True) if t.grad is not None]
    grads = Tensor.stack(*parts).sum().gradient(*(x for x, _ in pairs))
    found[0].realize(*found, *grads)
    for x, t in zip((*found, *grads), (*wanted, *(g for _, g in pairs)), strict=True):
        theirs_ = t.detach().numpy()
        assert x.shape == theirs_.shape
        np.testing.assert_allclose(x.numpy(), theirs_, 1e-3, 1e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_gradients_and_names(case: tuple[str, Args, Named, list[Any], Named]) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.sampled(34)
@pytest.mark.parametrize("case", HEAVY, ids=lambda case: case[0])
def test_further_layers(case: tuple[str, Args, Named, list[Any], Named]) -> None:
    check(case)


def test_on_devices(device: str) -> None:
    ours, theirs = pair("GRU", (2, 2), {})
    ours.to(device)
    data = rng_for("GRU").normal(size=(2, 1, 2)).astype("float32")
    found = ours(Tensor(data, device=device))[0]
    wanted = theirs(torch.tensor(data, dtype=torch.float64))[0]
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), 1e-4, 1e-5)


def test_a_longer_sequence_runs_the_same_kernels() -> None:
    """What is launched for a step is compiled once: a graph does not grow with the length."""
    layer = nn.LSTM(2, 3, bidirectional=True)

    def size(length: int) -> int:
        return len(toposort([layer(Tensor.ones(length, 1, 2))[0]._node]))

    assert size(5) == size(50)


class Model(nn.Module):
    """With layers in attributes, a list, a dict and a container."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 4)
        self.more = [nn.Linear(4, 4), nn.BatchNorm1d(4)]
        self.named = nn.ModuleDict({"out": nn.Sequential(nn.Linear(4, 2), Tensor.relu)})
        self.shared = self.first

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        for layer in (self.first, *self.more, Tensor.dropout):
            x = layer(x)
        return self.named["out"](x) * scale


def test_modules() -> None:
    model = Model()
    names = [name for name, _ in model.named_modules()]
    assert names == ["", "first", "more.0", "more.1", "named", "named.out", "named.out.0"]
    assert {"first.weight", "more.1.running_mean", "named.out.0.bias"} < set(model.state_dict())
    assert len(model.parameters()) == 6 + 5 and len(list(model.named_parameters())) == 8 + 5
    assert [type(m).__name__ for m in model.children()] == ["Linear", "ModuleDict", "Linear"]
    seen: list[nn.Module] = []
    assert model.apply(seen.append) is model and seen[-1] is model and len(seen) == 7
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())
    other = Model()
    other.load_state_dict(model.state_dict())
    for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.state_dict().keys() == model.state_dict().keys()
        x = Tensor.ones(2, 3)
        np.testing.assert_array_equal(twin(x, scale=2).numpy(), model(x, 2).numpy())
    with pytest.raises(Unsupported, match="Bare has no method forward"):
        type("Bare", (nn.Module,), {})()(1)


def test_modes_of_modules_and_of_tensors() -> None:
    """A module that was told a mode has it inside; else that of tensors counts."""

    class Inner(nn.Module):
        def forward(self) -> bool:
            return Tensor.training

    class Outer(nn.Module):
        def __init__(self) -> None:
            self.inner = Inner()

        def forward(self) -> tuple[bool, bool]:
            return Tensor.training, self.inner()

    outer = Outer()
    assert outer() == (False, False)
    with Tensor.train():
        assert outer() == (True, True)
        assert outer.eval()() == (False, False) and Tensor.training
    assert outer.train()() == (True, True) and not Tensor.training
    outer.inner.eval()
    assert outer() == (True, False)


def test_containers() -> None:
    x = Tensor([[1.0, -2.0]])
    line = nn.Sequential(nn.Linear(2, 3), Tensor.relu)
    assert line.append(nn.Linear(3, 1)) is line and len(line) == 3
    assert line[-1] is line[2] is list(line)[2] and line[:2](x).shape == (1, 3)
    assert list(line.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    named = nn.Sequential({"a": nn.Linear(2, 2), "b": Tensor.tanh})
    assert list(named.state_dict()) == ["a.weight", "a.bias"] and named.a is named[0]
    assert nn.Sequential()(x) is x
    line[-1] = nn.Linear(3, 5, bias=False)
    named.b = Tensor.exp
    assert line(x).shape == (1, 5) and "2.bias" not in line.state_dict() and named[1] is Tensor.exp
    for kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
        further = type("Further", (kind,), {})()
        further.scale = Tensor([1.0])
        assert list(further.state_dict()) == ["scale"]
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers.append(nn.Linear(2, 1))
    assert list(layers.state_dict())[2] == "1.weight" and len({layers, line}) == 2
    assert all(layer.training is False for layer in layers.eval())
    with pytest.raises(InvalidIndex, match="there are 3"):
        _ = line[3]
    with pytest.raises(InvalidType, match="layer 1 of a Sequential is a int"):
        nn.Sequential(Tensor.relu, 3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'c'"):
        _ = named.c


def test_a_jitted_function_calls_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(Tensor.tanh)).eval()
    lstm = nn.LSTM(3, 2)
    run = gpu.jit(lambda x: (model(x).realize(), lstm(x.unsqueeze(1))[0].realize()))
    for seed in range(4):
        x = Tensor(rng_for(seed).normal(size=(4, 3)).astype("float32"))
        found = run(x)
        for one, other in zip(found, (model(x), lstm(x.unsqueeze(1))[0]), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), 1e-6)
    model[0].weight = Tensor.zeros(2, 3)
    np.testing.assert_allclose(run(x)[0].numpy(), model(x).numpy(), 1e-6)


def test_a_recurrent_layer_is_trained_in_a_jitted_function() -> None:
    model = nn.RNN(2, 2, bidirectional=True)
    optimizer = nn.optim.SGD(model.parameters(), lr=0.3)

    @gpu.jit
    def learn(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x)[0] - 0.5).square().mean()
        loss.backward()
        optimizer.step(loss)
        return loss

    losses = [learn(Tensor.ones(3, 1, 2)).item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.01


X: Final = Tensor.ones(2, 3)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ShapeError, lambda: nn.LSTM(4, 2)(X)),
        (ShapeError, lambda: nn.LSTM(3, 2)(X[:0])),
        (ShapeError, lambda: nn.GRU(3, 2)(X, Tensor.zeros(2, 2))),
        (ShapeError, lambda: nn.GRUCell(4, 2)(X)),
        (InvalidValue, lambda: nn.RNN(3, 2, nonlinearity="sine")),
        (InvalidValue, lambda: nn.LSTM(3, 2, proj_size=2)),
        (InvalidValue, lambda: nn.LSTM(3, 2, dropout=2)),
        (InvalidValue, lambda: nn.MultiheadAttention(4, 3)),
        (ShapeError, lambda: nn.MultiheadAttention(3, 1)(X, X, X[:1])),
        (ShapeError, lambda: nn.MultiheadAttention(3, 1)(X[0], X, X)),
        (ShapeError, lambda: nn.MultiheadAttention(3, 1)(X, X, X, attn_mask=X)),
        (ShapeError, lambda: nn.MultiheadAttention(3, 1)(X, X, X, key_padding_mask=X)),
        (InvalidValue, lambda: nn.TransformerEncoderLayer(4, 2, activation="cube")),
    ],
)
def test_what_is_refused(error: type[GpuError], call: Any) -> None:
    with pytest.raises(error):
        call()
