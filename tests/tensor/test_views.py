"""Views and writes: program order, whatever is computed when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import (
    DeviceMismatch,
    DTypeError,
    GpuError,
    InvalidType,
    InvalidValue,
    ShapeError,
)
from gpu.runtime.prepared import Counters
from tensor.reference import rng_for, torch, widest


class Program:
    """The same random views, writes and reads by this package and by torch, side by side."""

    def __init__(self, seed: int, device: str):
        self.rng = rng_for("program", seed)
        self.device = device
        self.live: list[tuple[Tensor, Any]] = []
        for shape in ((4, 6), (3, 4)):
            values = self.rng.integers(-9, 9, shape).astype(widest(device))
            self.live.append((Tensor(values, device=device), torch.tensor(values)))

    def run(self, steps: int) -> None:
        actions = (self.view, self.view, self.view, self.derive, self.write, self.write,
                   self.operate, self.assign, self.realize, self.check)  # fmt: skip
        for _ in range(steps):
            actions[self.rng.integers(len(actions))]()
        for ours, theirs in self.live:
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())

    def pick(self) -> tuple[Tensor, Any]:
        return self.live[self.rng.integers(len(self.live))]

    def number(self, end: int) -> int:
        return int(self.rng.integers(end))

    def view(self) -> None:
        ours, theirs = self.pick()
        move = MOVES[self.number(len(MOVES))](self, theirs)
        # torch copies where strides do not express a reshape; it is no view then.
        try:
            moved = move(theirs)
        except RuntimeError as error:
            assert "view" in str(error)
        else:
            self.live.append((move(ours), moved))

    def derive(self) -> None:
        ours, theirs = self.pick()
        kind = self.number(3)
        if kind == 0:
            self.live.append((ours * 2 + 1, theirs * 2 + 1))
        elif kind == 1:
            self.live.append((ours.clone(), theirs.clone()))
        else:
            self.live.append((ours.contiguous() + ours, theirs + theirs))

    def write(self) -> None:
        ours, theirs = self.pick()
        if not theirs.ndim:
            return
        index = self.index(theirs.shape)
        if self.number(2):
            value = self.number(50)
            ours[index] = value
            theirs[index] = value
        else:  # something of the tensor itself, so that source and target may overlap
            shape = theirs[index].shape
            fits = len(shape) == theirs.ndim
            if fits and all(m <= n for m, n in zip(shape, theirs.shape, strict=True)):
                starts = [self.number(n - m + 1) for m, n in zip(shape, theirs.shape, strict=True)]
                source = tuple(slice(s, s + m) for s, m in zip(starts, shape, strict=True))
                ours[index] = ours[source]
                theirs[index] = theirs[source].clone()

    def index(self, shape: tuple[int, ...]) -> Any:
        kind = self.number(4)
        if kind == 0:
            return tuple(self.rng.integers(-n, n, 3).tolist() for n in shape[:1] if n) or ...
        if kind == 1 and shape[0]:
            return self.number(shape[0])
        return tuple(self.slice(n) for n in shape[: 1 + self.number(len(shape))])

    def slice(self, size: int) -> slice:
        start = self.number(size + 1)
        return slice(start, start + self.number(size + 1), 1 + self.number(2))

    def operate(self) -> None:
        (ours, theirs), factor = self.pick(), 1 + self.number(3)
        if self.number(2):
            ours += factor
            theirs += factor
        else:
            ours *= factor
            theirs *= factor

    def assign(self) -> None:
        (ours, theirs), (value, expected) = self.pick(), self.pick()
        if expected.ndim <= theirs.ndim and all(
            n in (1, m) for n, m in zip(expected.shape[::-1], theirs.shape[::-1], strict=False)
        ):
            assert ours.assign(value) is ours
            theirs.copy_(expected.clone())

    def realize(self) -> None:
        ours, _ = self.pick()
        ours.realize(*(self.pick()[0] for _ in range(self.number(2))))

    def check(self) -> None:
        ours, theirs = self.pick()
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def flattened(program: Program, theirs: Any) -> Callable[[Any], Any]:
    return lambda t: t.view(-1)


def split_axis(program: Program, theirs: Any) -> Callable[[Any], Any]:
    even = [a for a, n in enumerate(theirs.shape) if n % 2 == 0 and n]
    return lambda t: t.unflatten(even[0], (2, -1)) if even else t.unsqueeze(0)


def permuted(program: Program, theirs: Any) -> Callable[[Any], Any]:
    order = program.rng.permutation(theirs.ndim).tolist()
    return lambda t: t.permute(order)


def sliced(program: Program, theirs: Any) -> Callable[[Any], Any]:
    index = tuple(program.slice(n) for n in theirs.shape)
    return lambda t: t[index]


def selected(program: Program, theirs: Any) -> Callable[[Any], Any]:
    if not theirs.ndim or not theirs.shape[0]:
        return lambda t: t[..., None]
    position = program.number(theirs.shape[0]) - theirs.shape[0]
    return lambda t: t[position]


def diagonal(program: Program, theirs: Any) -> Callable[[Any], Any]:
    offset = program.number(3) - 1
    return lambda t: t.diagonal(offset) if theirs.ndim > 1 else t.detach()


def windows(program: Program, theirs: Any) -> Callable[[Any], Any]:
    size, gap = 1 + program.number(2), program.number(2)
    if not theirs.ndim or theirs.shape[-1] < size:
        return lambda t: t.squeeze()
    return lambda t: t.unfold(-1, size, size + gap)


MOVES = (flattened, split_axis, permuted, sliced, selected, diagonal, windows)


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    Program(seed, "CPU" if seed % 10 == 0 else "PYTHON").run(14)


def base() -> Tensor:
    return Tensor(np.arange(12).reshape(3, 4))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(2, 6),
    "reshape of a transpose": lambda x: x.T.reshape(2, 6),
    "flatten": lambda x: x.flatten(),
    "T": lambda x: x.T,
    "squeeze": lambda x: x[:1].squeeze(),
    "flip": lambda x: x.flip(0, 1),
    "negative step": lambda x: x[::-2, 3:0:-1],
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(2)[0],
    "shrink": lambda x: x.shrink(((1, 3), None)),
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "whole": lambda x: x[...],
    "new axis": lambda x: x[:, None],
    "detach": lambda x: x.detach(),
    "windows apart": lambda x: x.unfold(1, 1, 3),
    "one window": lambda x: x.unfold(1, 3, 2)[:, :1],
    "windows in rows": lambda x: x.flatten().unfold(0, 2, 5),
    "windows of an axis in front": lambda x: x.unfold(0, 1, 2),
    "diagonal": lambda x: x.diagonal(1),
    "diagonal below": lambda x: x.diagonal(-1, 1, 0),
    "expand to the same": lambda x: x.expand(3, -1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_follow_and_write_through(name: str) -> None:
    """What a view shows is found by looking at positions: numpy's copies need no strides."""
    x, positions = base(), VIEWS[name](base()).numpy()
    view = VIEWS[name](x)
    x.assign(x * 10)
    np.testing.assert_array_equal(view.numpy(), positions * 10)
    value = -1 - np.arange(positions.size).reshape(positions.shape)
    view.assign(value)
    expected = np.arange(12) * 10
    expected[positions] = value
    np.testing.assert_array_equal(x.numpy(), expected.reshape(3, 4))
    np.testing.assert_array_equal(view.numpy(), value)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": Tensor.clone,
    "contiguous": Tensor.contiguous,
    "constructor": Tensor,
    "cast": lambda x: x.cast(x.dtype),
    "plus": lambda x: +x,
    "floor": Tensor.floor,
    "round": Tensor.round,
    "trunc": Tensor.trunc,
    "ceil": Tensor.ceil,
    "repeat": lambda x: x.repeat(1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0),
    "roll": lambda x: x.roll(0, 0),
    "roll nothing": lambda x: x.roll((), ()),
    "pad": lambda x: x.pad((0, 0)),
    "pad reflect": lambda x: x.pad((0, 0), "reflect"),
    "cat": lambda x: x.cat(),
    "list": lambda x: x[[0, 1, 2]],
    "mask": lambda x: x[x > -1].reshape(3, 4),
    "sum of nothing": lambda x: x.reshape(3, 1, 4).sum(1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_keep_their_value(name: str) -> None:
    x = base()
    copy = COPIES[name](x)
    x += 100
    np.testing.assert_array_equal(copy.numpy(), np.arange(12).reshape(3, 4))
    copy *= 0
    assert x.numpy().min() == 100


def test_overlapping_writes_read_the_old_value() -> None:
    x = Tensor([1, 2, 3, 4])
    x[1:] = x[:-1]
    assert x.tolist() == [1, 1, 2, 3]
    y = Tensor([[1, 2], [3, 4]])
    assert y.assign(y.T).tolist() == [[1, 3], [2, 4]]
    x[::-1] = x
    assert x.tolist() == [3, 2, 1, 1]


@pytest.mark.parametrize("early", list(itertools.product([False, True], repeat=3)))
def test_order_of_computation_changes_nothing(early: tuple[bool, bool, bool]) -> None:
    x = Tensor([1.0, 2.0, 3.0])
    view, double = x[1:], x * 2
    for tensor, now in zip((x, view, double), early, strict=True):
        if now:
            tensor.realize()
    x[1] = 10
    view += 1
    assert [t.tolist() for t in (x, view, double)] == [[1, 11, 4], [11, 4], [2, 4, 6]]


def test_in_place_operators() -> None:
    x = np.array([[7, 9], [12, 5]])
    ours, alias, number = Tensor(x), None, 3
    alias = ours
    for run in (
        "+= 3", "-= 1", "*= 5", "//= 2", "%= 13", "**= 2", "<<= 1", ">>= 2", "&= 29", "|= 4",
        "^= 3", "@= [[1, 2], [3, 4]]", "+= number",
    ):  # fmt: skip
        names = {"ours": ours, "x": x, "number": number}
        operator_, _, operand = run.partition(" ")
        exec(f"ours {run}", names)  # each operator as a statement, on both
        right = f"np.array({operand})" if operand.startswith("[") else operand
        exec(f"x = x {operator_[:-1]} {right}", names | {"np": np}, names)
        assert names["ours"] is alias
        x = names["x"]
        np.testing.assert_array_equal(alias.numpy(), x, run)
    y = Tensor([1.0, 2.0])
    y /= 4
    assert y.tolist() == [0.25, 0.5]


def test_writes_have_gradients() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = Tensor.zeros(2, 3)
    x[0] = w * 2
    x[1, 1:] = w[:2] * w[1:]
    x[0, 0] = 5
    x[[1, 1], [2, 0]] = w[0]
    row = x[1]
    row *= 3
    (x * Tensor([[1.0, 10.0, 100.0], [1.0, 10.0, 100.0]])).sum().backward()
    t = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = torch.zeros(2, 3)
    y[0] = t * 2
    y[1, 1:] = t[:2] * t[1:]
    y[0, 0] = 5
    y[[1, 1], [2, 0]] = t[0]
    y[1] *= 3
    (y * torch.tensor([[1.0, 10.0, 100.0]])).sum().backward()
    assert w.grad is not None and w.grad.tolist() == t.grad.tolist()


def test_assign_keeps_a_leaf() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    view = w[1:]
    loss = (w * w).sum()
    w.assign(w - 0.5)
    assert loss.item() == 5 and w.tolist() == [0.5, 1.5] and view.tolist() == [1.5]
    (w * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1, 3]
    view.sum().backward()
    assert w.grad.tolist() == [1, 4]


def test_a_leaf_is_written_to_through_detach() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    w.detach()[0] = 7
    (w * w).sum().backward()
    assert w.tolist() == [7, 2] and w.grad is not None and w.grad.tolist() == [14, 4]


def test_a_view_that_becomes_a_leaf_stands_alone() -> None:
    x = Tensor([1.0, 2.0])
    w = x[:1]
    w.requires_grad = True
    x += 1
    (w * 3).sum().backward()
    assert w.tolist() == [1] and w.grad is not None and w.grad.tolist() == [3]


def test_gradient_through_a_view_of_a_write() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = w * 1
    windows = y.unfold(0, 1, 2)
    windows *= 5
    y.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [5, 1, 5]


def test_values_are_converted_and_broadcast() -> None:
    x = Tensor([[1, 2], [3, 4]])
    x[0] = 2.9
    x[:, 1] = np.array([[[7.5], [-8.5]]]).reshape(1, 2)
    assert x.tolist() == [[2, 7], [3, -8]] and x.dtype.name == "int32"
    assert x.assign(Tensor([1, 0], dtype="bool")).tolist() == [[1, 0], [1, 0]]


def test_a_long_chain_of_views_and_writes() -> None:
    x = Tensor.zeros(2, 2)
    view = x
    for _ in range(20_000):
        view = view.T
    view[0, 1] = 1
    assert x.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x.expand(2, 3, 4).assign(0), InvalidValue, "more than once.*clone"),
        (lambda x: x[:1].expand(3, 4).__setitem__(0, 1), InvalidValue, r"\[1, 4\] to \[3, 4\]"),
        (lambda x: x.unfold(1, 3, 1).assign(0), InvalidValue, "windows of 3 elements 1 apart"),
        (lambda x: x.assign(Tensor.zeros(2, 4)), ShapeError, r"\[2, 4\] does not fit.*\[3, 4\]"),
        (lambda x: x.__setitem__(0, [1, 2]), ShapeError, r"\[2\] does not fit.*\[4\]"),
        (lambda x: x.__setitem__(0, Tensor(1, device="PYTHON")), DeviceMismatch, "PYTHON"),
        (lambda x: x.assign(Tensor(1, device="PYTHON")), DeviceMismatch, "PYTHON"),
        (lambda x: x.__setitem__(0, "a"), InvalidType, "str 'a'"),
        (lambda x: x.__iadd__(Tensor.zeros(2, 3, 4)), ShapeError, r"\[2, 3, 4\] and cannot"),
        (lambda x: x.__iadd__(1.5), DTypeError, "float32 and cannot replace int64"),
        (lambda x: x.__itruediv__(2), DTypeError, "cannot replace int64"),
        (lambda x: (x > 0).__iadd__(1), DTypeError, "cannot replace bool"),
    ],
)  # fmt: skip
def test_bad_writes(call: Callable[[Any], Any], error: type[GpuError], says: str) -> None:
    x = base()
    with pytest.raises(error, match=says):
        call(x)
    np.testing.assert_array_equal(x.numpy(), np.arange(12).reshape(3, 4))


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.__setitem__(0, 1),
        lambda w: w.__iadd__(1),
        lambda w: w[1:].__imul__(2),
        lambda w: w.reshape(3, 1).__setitem__((slice(None), 0), 0),
        lambda w: w.__setitem__(w > 1, 0),
    ],
)
def test_writing_to_a_leaf_in_place(write: Callable[[Tensor], Any]) -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(InvalidValue, match=r"requires_grad=True.*no_grad\(\).*w\.assign\("):
        write(w)
    assert w.tolist() == [1, 2, 3]


def test_backward_needs_something_to_go_to() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()
    assert loss.item() == 5 and "5." in repr(loss)
    loss.backward()
    assert w.grad is not None and w.grad.tolist() == [2, 4]
    for lost in ((w.detach() * 2).sum(), Tensor([1.0]).sum()):
        with pytest.raises(InvalidValue, match=r"requires_grad=True"):
            lost.backward()


def test_gradients_flow_through_what_was_realized() -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    hidden = (x * x).realize()
    loss = (hidden * hidden).sum().realize()
    launches = Counters.launches
    assert loss.item() == 1 + 16 + 81
    assert Counters.launches == launches
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 32.0, 108.0]


def test_history_ends_where_nothing_asks_for_gradients() -> None:
    x = Tensor([1.0, 2.0])
    for _ in range(3):
        x = (x + 1).realize()
    assert x._node.kind == "buffer"
    leaf = Tensor([1.0, 1.0], requires_grad=True)
    moment = (x * 0.9 + leaf.detach()).realize()
    assert moment._node.kind == "buffer"


def test_moving_a_tensor_itself() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    row = x[0]
    assert row.to_("PYTHON") is row
    assert (row.device, x.device) == ("PYTHON", "CPU")
    assert (row + 1).tolist() == [2.0, 3.0]
    weight = Tensor([1.0], requires_grad=True).to_("PYTHON")
    (weight * 3).sum().backward()
    assert weight.grad is not None
    assert (weight.grad.device, weight.grad.tolist()) == ("PYTHON", [3.0])


def test_sequential_and_contiguous_backward() -> None:
    x = Tensor([1.0, -2.0])
    assert x.sequential([Tensor.relu, lambda t: t + 1]).tolist() == [2.0, 1.0]
    (grad,) = (x.contiguous_backward() * 2).sum().gradient(x)
    assert grad.tolist() == [2.0, 2.0]
