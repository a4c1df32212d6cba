"""`CHECK=1`: positions and labels out of range are found on every device, as torch finds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Context, Tensor, Var, jit, nn
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import GpuError, InvalidIndex
from gpu.nn.optim import SGD
from gpu.runtime.prepared import Counters
from tensor.reference import Array, rng_for, torch

F = torch.nn.functional
ROWS = 6
DTYPES = [
    dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64,
    dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64,
]  # fmt: skip

Call = Callable[[Any, Any], Any]


def write(x: Any, i: Any) -> Any:
    x[i] = 0
    return x


def column(i: Any) -> Any:
    return i.reshape(-1, 1)


# Of a matrix of ROWS rows and a line of positions: ours, and torch's where it is written otherwise.
CALLS: dict[str, tuple[Call, Call | None]] = {
    "gather": (lambda x, i: x.gather(0, column(i)), None),
    "scatter": (lambda x, i: x.scatter(0, column(i), 1.0), None),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(0, column(i), x[:1, :1].expand(i.shape[0], 1), "sum"),
        None,
    ),
    "index_select": (lambda x, i: x.index_select(0, i), None),
    "embedding": (lambda x, i: x.embedding(i), lambda x, i: F.embedding(i, x)),
    "one_hot": (lambda x, i: i.one_hot(ROWS), lambda x, i: F.one_hot(i, ROWS)),
    "x[...]": (lambda x, i: x[i], None),
    "x[...] of two": (lambda x, i: x[i * 0, i], None),
    "x[...] behind": (lambda x, i: x[1:, i], None),
    "x[...] written": (write, None),
    "cross_entropy": (
        lambda x, i: x[:1].expand(i.shape[0], ROWS).cross_entropy(i),
        lambda x, i: F.cross_entropy(x[:1].expand(i.shape[0], ROWS), i),
    ),
    "nll_loss": (
        lambda x, i: x[:1].expand(i.shape[0], ROWS).nll_loss(i),
        lambda x, i: F.nll_loss(x[:1].expand(i.shape[0], ROWS), i),
    ),
}


def positions(rng: np.random.Generator, dtype: DType, wrong: int) -> tuple[Array, int]:
    """Some that are there but for `wrong`, and where that stands."""
    found = rng.integers(0, ROWS, rng.integers(1, 9)).astype(dtype.np)
    place = int(rng.integers(len(found)))
    found[place] = wrong
    return found, place


def of_torch(call: Call, x: Array, index: Array) -> Any:
    """What torch gives, as an array; None where it refuses."""
    try:
        return call(torch.tensor(x), torch.tensor(index.astype(np.int64))).numpy()
    except (IndexError, RuntimeError):
        return None


@pytest.mark.parametrize("name", CALLS)
def test_what_torch_refuses_is_refused(name: str, device: str) -> None:
    ours, theirs = CALLS[name]
    rng = rng_for(name)
    x = rng.normal(size=(ROWS, ROWS)).astype("float32")
    low = -ROWS if name.startswith("x[...]") else 0
    values_of = DTYPES[rng.integers(len(DTYPES))]  # comparing values of all would take long
    for dtype in DTYPES:
        signed = [-1, -ROWS, -ROWS - 1, -128] if dtype.is_signed else []
        for number in (ROWS - 1, ROWS, 127, *signed):
            at, place = positions(rng, dtype, number)
            expected = of_torch(theirs or ours, x.copy(), at)
            assert (expected is None) == (not low <= number < ROWS), (dtype, number)
            index, source = Tensor(at, device=device), Tensor(x, device=device)
            with Context(CHECK=1):
                if expected is not None:
                    found = ours(source, index)
                    if dtype is values_of:
                        np.testing.assert_allclose(found.numpy(), expected, 1e-5, 1e-5)
                    continue
                says = rf" {number} is out of range for .*\b{ROWS}\b.* {low}..5.*\[{place}[],]"
                with pytest.raises(InvalidIndex, match=says) as caught:
                    ours(source, index)
            site = caught.value.call_site
            assert site is not None and site.file == __file__


def test_unpooling_is_checked(device: str) -> None:
    x = np.arange(2, dtype=np.float32).reshape(1, 1, 1, 2)
    for number in (-1, 0, 7, 8):
        at = np.array([[[[1, number]]]])
        expected = of_torch(lambda x, i: F.max_unpool2d(x, i, 2), x, at)
        index, source = Tensor(at, device=device), Tensor(x, device=device)
        with Context(CHECK=1):
            if expected is None:
                with pytest.raises(InvalidIndex, match=rf"{number} .*8 elements.* 0..7"):
                    source.max_unpool2d(index)
            else:
                np.testing.assert_array_equal(source.max_unpool2d(index).numpy(), expected)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda x, i: x.gather(1, i),
            r"^index 9 is out of range for axis 1 of size 3: allowed are 0..2; "
            r"it is element \[1, 2\] of what gather was given",
        ),
        (lambda x, i: x[0, i], r"index 9 .* axis 1 of size 3: allowed are -3..2; .*\[1, 2\] .*x\["),
        (lambda x, i: x[i], r"index 9 .* axis 0 of size 2: allowed are -2..1; .*\[1, 2\]"),
        (lambda x, i: x[0][i[1, 2]], "index 9 .* it is what x"),
        (lambda x, i: i.one_hot(4), r"class 9 .* for 4 classes: allowed are 0..3"),
        (lambda x, i: (-i).one_hot(), r"class -1 .* for 1 classes: .*\[0, 1\]"),
        (
            lambda x, i: x.cross_entropy(i[1, 1:]),
            r"^target 9 .* for 3 classes: allowed are 0..2 and ignore_index=-100; it is "
            r"element \[1\] of what cross_entropy",
        ),
        (lambda x, i: x.nll_loss(i[1, 1:], None, None), r"allowed are 0..2; it .*nll_loss"),
        (
            lambda x, i: x.sparse_categorical_crossentropy(i[1, 1:]),
            "ignore_index=-1; .*sparse_categorical_crossentropy",
        ),
        (lambda x, i: nn.Embedding(4, 2)(i), "index 9 .* axis 0 of size 4.*embedding"),
        (lambda x, i: x[:, :0].gather(1, i), "axis 1 of size 0: it has no element"),
    ],
)
def test_the_error_says_which_one(call: Call, says: str) -> None:
    x, i = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), Tensor([[0, 1, 0], [1, 1, 9]])
    with Context(CHECK="index"), pytest.raises(InvalidIndex, match=says):
        call(x, i)


def test_what_the_host_knows_is_always_checked() -> None:
    x = Tensor([[1.0, 2.0, 3.0]])
    for given in ([3], np.array([3]), Tensor.full((1,), 3)):
        for call in (Tensor.cross_entropy, Tensor.nll_loss, lambda x, i: x[0][i]):
            with pytest.raises(InvalidIndex, match=r" 3 is out of range .*\b3\b"):
                call(x, given)
    assert x.cross_entropy([-100]).isnan().item()


def test_classes_that_are_left_out_pass(device: str) -> None:
    x, weight = Tensor([[1.0, 2.0], [0.0, 1.0]], device=device), Tensor([2.0, 3.0], device=device)
    for labels in ([-100, 1], Tensor([-100, 1], device=device)):
        wanted = x[1:].cross_entropy(Tensor([1], device=device)).item()
        with Context(CHECK=1):
            assert abs(x.cross_entropy(labels, weight=weight).item() - wanted) < 1e-6
    none = Tensor.full((2,), -100, device=device)
    assert x.cross_entropy(none, reduction="sum", weight=weight).item() == 0


def test_axes_longer_than_the_index_can_count() -> None:
    x = Tensor.arange(1000).realize()
    for dtype in ("int8", "uint8", "int16"):
        at = Tensor([0, 127, 5], dtype=dtype)
        with Context(CHECK=1):
            assert x[at].tolist() == [0, 127, 5]
            assert x.index_select(0, at).tolist() == [0, 127, 5]


def test_without_the_setting_they_are_harmless(device: str) -> None:
    x = Tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]], device=device)
    labels = Tensor([7, 1], device=device)
    assert x.nll_loss(labels, reduction="none").tolist() == [0, -1]
    assert x.nll_loss(labels).item() == -0.5
    assert x.embedding(labels).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert labels.one_hot(3).tolist() == [[0, 0, 0], [0, 1, 0]]
    with Context(CHECK=0):
        assert x[labels].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_it_costs_nothing_when_off_and_compiles_nothing_else() -> None:
    x, ones = Tensor([1.0, 2.0, 3.0]).realize(), Tensor([1, 1]).realize()
    launches = Counters.launches
    lazy = x[ones + 1]
    assert Counters.launches == launches
    assert lazy.tolist() == [3, 3]
    given = Tensor([1, 2]).realize()
    assert x[given].tolist() == [2, 3]
    compiled = Counters.compiled
    with Context(CHECK=1):
        assert x[given].tolist() == [2, 3]
    assert Counters.compiled == compiled


# Replays.


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_replay_finds_them_before_it_changes_anything(device: str) -> None:
    total = Tensor.zeros(3, device=device).contiguous().realize()

    @jit
    def add(x: Tensor, i: Tensor) -> Tensor:
        total.assign(total + x)
        return x[i + 1] + total[0]  # here

    x = Tensor([1.0, 2.0, 3.0], device=device)
    good, bad = (Tensor(i, device=device).realize() for i in ([0, 1], [1, 2]))
    with Context(CHECK=1):
        for count in range(1, 5):
            assert add(x, good).tolist() == [2 + count, 3 + count]
        for _ in range(2):
            with pytest.raises(InvalidIndex, match=r"index 3 .* size 3.*element \[1\]") as caught:
                add(x, bad)
            assert total.tolist() == [4, 8, 12]
            site = caught.value.call_site
            assert site is not None
            assert (site.file, site.line) == (__file__, line_of(add.function, "# here"))
        assert add(x, good).tolist() == [7, 8] and add.captures == 1
    for _ in range(3):  # another capture, which checks nothing
        found = add(x, bad)
    assert found.tolist() == [3 + 8, 0 + 8] and add.captures == 2
    with Context(CHECK=1), pytest.raises(InvalidIndex, match="index 3"):
        add(x, bad)


def test_the_first_call_of_a_jitted_function_is_checked_too(device: str) -> None:
    pick = jit(lambda x, i: x.gather(0, i))
    x, bad = Tensor([1.0, 2.0], device=device), Tensor([0, 2], device=device)
    with Context(CHECK=1):
        for _ in range(4):
            with pytest.raises(InvalidIndex, match="index 2 "):
                pick(x, bad)
        assert pick(x, Tensor([1, 0], device=device)).tolist() == [2, 1]


def test_a_replayed_training_step(device: str) -> None:
    table, out = nn.Embedding(5, 3), nn.Linear(3, 4)
    weights = [w.to_(device) for w in nn.state.get_parameters([table, out])]
    optimizer = SGD(weights, 0.1)

    @jit
    def step(words: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = out(table(words)).cross_entropy(labels).backward()
        optimizer.step()
        return loss

    words, labels = Tensor([4, 0, 4], device=device), Tensor([3, -100, 0], device=device)
    with Context(CHECK=1):
        losses = [step(words, labels).item() for _ in range(5)]
        assert losses[-1] < losses[0]
        before = [w.numpy() for w in weights]
        with pytest.raises(InvalidIndex, match=r"target 4 .*\[1\] of what cross_entropy"):
            step(words, Tensor([3, 4, 0], device=device))
        with pytest.raises(InvalidIndex, match=r"index -1 .*\[2\] of what embedding"):
            step(Tensor([4, 0, -1], device=device), labels)
        for weight, was in zip(weights, before, strict=True):
            np.testing.assert_array_equal(weight.numpy(), was)
        assert step(words, labels).item() < losses[-1]


def test_random_positions_of_a_replay_are_those_that_are_used() -> None:
    draw = jit(lambda x, most: x[(Tensor.rand(4) * most).cast("int32")])
    x, within, beyond = Tensor.arange(8).realize(), Tensor(7.99), Tensor(9.5)
    found = []
    for check in (0, 1):
        Tensor.manual_seed(3)
        with Context(CHECK=check):
            found.append([draw(x, within).tolist() for _ in range(6)])
    assert found[0] == found[1] and len({tuple(values) for values in found[0]}) == 6
    refused = 0
    with Context(CHECK=1):
        for _ in range(30):  # what was refused is not drawn again
            try:
                draw(x, beyond)
            except InvalidIndex:
                refused += 1
    assert 5 < refused < 28


def test_symbolic_axes_in_replays() -> None:
    pick = jit(lambda x, i: x[i].contiguous())
    whole, n = Tensor.arange(8).realize(), Var("n", 1, 8)
    with Context(CHECK=1):
        for size in (5, 3, 8, 2):
            x = whole[: n.bind(size)]
            assert pick(x, Tensor([size - 1, 0])).tolist() == [size - 1, 0]
            with pytest.raises(InvalidIndex, match=f"index {size} .* size {size}:"):
                pick(x, Tensor([0, size]))


def test_sharded_positions() -> None:
    devices = ("CPU", "CPU:1")
    x = Tensor.arange(12).reshape(4, 3).shard(devices)
    index = Tensor([[0, 1], [2, 2], [0, 3], [1, 1]]).shard(devices, axis=0)
    pick = jit(lambda x, i: x.gather(1, i))
    with Context(CHECK=1):
        for call in (lambda: x.gather(1, index), lambda: pick(x, index)):
            with pytest.raises(InvalidIndex, match=r"index 3 .*\[2, 1\]"):
                call()
        assert pick(x, index - index).tolist() == [[0, 0], [3, 3], [6, 6], [9, 9]]


def test_verified_replays_are_checked() -> None:
    pick = jit(lambda x, i: x[i])
    x = Tensor([1.0, 2.0])
    with Context(CHECK=1, GPU_VERIFY_JIT=1):
        for _ in range(4):
            assert pick(x, Tensor([1])).tolist() == [2]
        with pytest.raises(InvalidIndex) as caught:
            pick(x, Tensor([2]))
    assert isinstance(caught.value, GpuError)
