"""Writes in place: only what is written is touched, and nobody else's value changes."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, Var
from gpu.compiler.fusion import inplace
from gpu.compiler.ir.kernel import nontemporal as streams
from gpu.core.interrupts import put_off
from gpu.runtime import execute, users
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import is_computed, storage
from gpu.runtime.prepared import Counters, Prepared
from gpu.runtime.recent import Recent
from tensor.reference import torch, widest
from tensor.test_views import Program


class Moves:
    """How often memory was written in place, and how often in a copy of it."""

    in_place = copied = 0


@pytest.fixture(autouse=True)
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Moves]]:
    """Everything is written in place that can be; graphs compiled otherwise are forgotten."""
    users._Users.renew()  # threads of other tests are none of these
    monkeypatch.setattr(inplace, "MIN_BYTES", 0)
    monkeypatch.setattr(inplace, "MOST_WRITTEN", 1)
    monkeypatch.setattr(inplace, "MIN_REUSED_BYTES", 0)
    monkeypatch.setattr(execute, "_schedules", Recent(1000))
    monkeypatch.setattr(execute, "find_on_disk", lambda key, devices: None)
    monkeypatch.setattr(execute, "keep_on_disk", lambda key, devices, recipe: None)
    moved, duplicate = Buffer.moved, Buffer.duplicate
    Moves.in_place = Moves.copied = 0

    def count_moved(self: Buffer) -> Buffer:
        Moves.in_place += 1
        return moved(self)

    def count_copied(self: Buffer) -> Buffer:
        Moves.copied += 1
        Moves.in_place -= 1  # the copy is what moves
        return duplicate(self)

    monkeypatch.setattr(Buffer, "moved", count_moved)
    monkeypatch.setattr(Buffer, "duplicate", count_copied)
    yield Moves


class Sequence(Program):
    """Random writes, views and reads, with values that others still hold."""

    def __init__(self, seed: int, device: str):
        super().__init__(seed, device)
        self.kept: list[tuple[Any, Any]] = []
        self.jitted = [gpu.jit(body) for body in BODIES]

    def run(self, steps: int) -> None:
        actions = (self.view, self.derive, self.write, self.write, self.write_at, self.mask,
                   self.flip, self.operate, self.assign, self.realize, self.realize, self.check,
                   self.lend, self.alias, self.forget, self.jit, self.jit)  # fmt: skip
        for _ in range(steps):
            actions[self.number(len(actions))]()
        for ours, theirs in (*self.live, *self.kept):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))

    def write_at(self) -> None:
        """Several elements by their positions, the last of equal ones staying."""
        ours, theirs = self.pick()
        if theirs.ndim < 2 or not theirs.numel():
            return
        rows = self.rng.permutation(theirs.shape[0])[:2].tolist()
        columns = self.rng.integers(0, theirs.shape[1], len(rows)).tolist()
        values = self.rng.integers(0, 50, len(rows)).astype(widest(self.device))
        ours[rows, columns] = values.reshape(-1, *(1,) * (theirs.ndim - 2))
        theirs[rows, columns] = torch.tensor(values).reshape(-1, *(1,) * (theirs.ndim - 2))

    def mask(self) -> None:
        ours, theirs = self.pick()
        limit = self.number(20)
        ours[ours > limit] = -1
        theirs[theirs > limit] = -1

    def flip(self) -> None:
        """Every other row, from the end."""
        ours, theirs = self.pick()
        if theirs.ndim and theirs.shape[0]:
            ours[::-2] = ours[::-2] * 2 + 1
            back = list(range(theirs.shape[0] - 1, -1, -2))
            theirs[back] = theirs[back] * 2 + 1

    def lend(self) -> None:
        """numpy keeps reading the memory as it is now."""
        ours, theirs = self.pick()
        self.kept.append((np.asarray(ours), theirs.clone().numpy()))

    def alias(self) -> None:
        ours, theirs = self.pick()
        self.live.append((Tensor(ours, device=self.device), theirs.clone()))

    def forget(self) -> None:
        """Fewer holders, so that more can be written in place."""
        if len(self.live) > 4:
            del self.live[self.number(len(self.live))]
            gc.collect()

    def jit(self) -> None:
        ours, theirs = self.pick()
        if theirs.ndim == 2 and theirs.shape[0] > 2 and theirs.shape[1]:
            number = self.number(len(BODIES))
            result = self.jitted[number](ours)
            self.live.append((result, BODIES[number](theirs)))


def first_row(x: Any) -> Any:
    before = x * 1
    x[0] = x[1] + 1
    return before


def shifted(x: Any) -> Any:
    x[1:] = x[:-1] * 1
    return x.sum(0)


def twice(x: Any) -> Any:
    x[0] = 3
    middle = x + 1
    x[:2] = middle[1:3]
    return middle


BODIES = (first_row, shifted, twice)


@pytest.mark.parametrize("seed", range(5))
def test_random_sequences(device: str, seed: int) -> None:
    Sequence(seed + 1000, device).run(10 if device == "CPU:9" else 14)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("where", ["PYTHON", "CPU"])
def test_more_random_sequences(seed: int, where: str) -> None:
    Sequence(seed, where).run(18 if where == "PYTHON" else 12)


def address(x: Tensor) -> int:
    memory = storage(x._node).memory
    if isinstance(memory, np.ndarray):
        return int(memory.ctypes.data)
    if isinstance(memory, int):
        return memory
    where = getattr(memory, "address", None)  # None where the host cannot read it
    return id(memory) if where is None else int(where)


def table(device: str | None = None) -> tuple[Tensor, np.ndarray[Any, Any]]:
    values = np.arange(48, dtype=np.float32).reshape(8, 6)
    return Tensor(values, device=device).realize(), values.copy()


WRITES: dict[str, Callable[[Any], Any]] = {
    "row": lambda x: x.__setitem__(2, 5),
    "own elements": lambda x: x.__setitem__(2, x[2] * 2),
    "overlapping": lambda x: x.__setitem__(slice(1, 5), x[:4] * 1),
    "every other, backwards": lambda x: x.__setitem__((slice(None, None, -2), 3), 7),
    "two writes": lambda x: (x.__setitem__(0, 1), x.__setitem__((slice(None), 1), 2)),
    "view of a view": lambda x: x[2:7][1:3].__setitem__(0, 9),
    "view of a transpose": lambda x: x.T[1:4].__setitem__((slice(None), 2), 9),
    "rows of a reshape": lambda x: x.reshape(4, 12)[1:3, ::5].__setitem__(0, 4),
    "positions": lambda x: x.__setitem__(([1, 2, 7], [0, 5, -1]), 4),
    "rows by position": lambda x: x.__setitem__([5, 0], 3),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_touches_only_what_it_writes(device: str, name: str) -> None:
    x, expected = table(device)
    where = address(x)
    WRITES[name](x)
    WRITES[name](expected)
    x.realize()
    np.testing.assert_array_equal(x.numpy(), expected)
    assert address(x) == where
    assert (Moves.in_place, Moves.copied) == (1, 0)


def hold_reader(x: Tensor) -> Any:
    return x.sum(0)


def hold_alias(x: Tensor) -> Any:
    return Tensor(x)


def hold_array(x: Tensor) -> Any:
    return np.asarray(x)


def hold_capsule(x: Tensor) -> Any:
    return np.from_dlpack(x)


def hold_bytes(x: Tensor) -> Any:
    return np.asarray(x.data())


def scale(x: Any) -> Any:
    return x * 2 + 1


def mix_columns(x: Any) -> Any:
    return x * x[:, :1] - x.sum(0)


def turn(x: Any) -> Any:
    return x[::-1] * 1


def gather_rows(x: Any) -> Any:
    return x[[3, 1, 2, 0, 4, 7, 6, 5]] + x


# What is assigned to a tensor, and whether it reads just the elements that it replaces.
ASSIGNED: list[tuple[Callable[[Any], Any], bool]] = [
    (scale, True),
    (mix_columns, False),
    (turn, False),
    (gather_rows, False),
]


@pytest.mark.parametrize(("function", "same"), ASSIGNED)
@pytest.mark.parametrize("jitted", [False, True])
def test_an_assigned_value_takes_the_place_of_the_old_one(
    function: Callable[[Any], Any], same: bool, jitted: bool
) -> None:
    x, expected = table("CPU")

    def body() -> None:
        x.assign(function(x))

    step, where = gpu.jit(body) if jitted else body, address(x)
    for _ in range(4):
        step()
        x.realize()
        expected = function(expected)
        assert not same or address(x) == where
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)
    assert Moves.in_place == 4 * same and Moves.copied == 0


def test_what_is_written_past_the_caches_is_not_written_where_it_was_read() -> None:
    assert inplace.TOO_LARGE_TO_REUSE == streams.STREAMED_BYTES


@pytest.mark.parametrize("touches", [False, True])
def test_while_other_threads_touch_values_all_keep_their_memory(touches: bool) -> None:
    x, values = table("CPU")
    other, began, leave = Tensor.ones(3).realize(), threading.Event(), threading.Event()

    def work() -> None:
        if touches:
            other.numpy()
        began.set()
        leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert began.wait(10)
        x.assign(x * 2).realize()
        np.testing.assert_array_equal(x.numpy(), values * 2)
        assert Moves.in_place == (not touches)
    finally:
        leave.set()
        thread.join()
    x.assign(x * 2).realize()  # it does not count any more
    np.testing.assert_array_equal(x.numpy(), values * 4)
    assert Moves.in_place == 1 + (not touches)


def test_a_thread_that_begins_waits_for_the_new_value(monkeypatch: pytest.MonkeyPatch) -> None:
    x, values = table("CPU")
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(x.numpy()))
    keep = execute._keep

    def start_before_the_end(*args: Any) -> None:
        thread.start()
        thread.join(0.2)
        assert not seen and thread.is_alive()
        keep(*args)

    monkeypatch.setattr(execute, "_keep", start_before_the_end)
    x.assign(x * 2).realize()
    thread.join(10)
    np.testing.assert_array_equal(seen, [values * 2])
    assert Moves.in_place == 1


def test_elements_chosen_by_a_mask_are_written_in_place() -> None:
    x, expected = table("CPU")
    where = address(x)
    rows = np.arange(8) % 2 == 0
    for array in (x, expected):
        array[array > 20] = -1
        array[rows] = 5
    np.testing.assert_array_equal(x.realize().numpy(), expected)
    assert address(x) == where


@pytest.mark.parametrize("hold", [hold_reader, hold_alias, hold_array, hold_capsule, hold_bytes])
def test_who_holds_a_value_keeps_it_when_another_is_assigned(hold: Callable[[Any], Any]) -> None:
    x, values = table("CPU")
    held = hold(x)
    before = values.sum(0) if hold is hold_reader else values
    x.assign(x * 2).realize()
    np.testing.assert_array_equal(held if isinstance(held, np.ndarray) else held.numpy(), before)
    np.testing.assert_array_equal(x.numpy(), values * 2)
    assert Moves.in_place == 0


def test_a_result_takes_the_place_of_what_nobody_holds() -> None:
    x, values = table("CPU")
    y = (x + 1).realize()
    np.testing.assert_array_equal(x.numpy(), values)
    z = y * 2 - x
    where = address(y)
    del y
    np.testing.assert_array_equal(z.realize().numpy(), values + 2)
    assert address(z) == where
    np.testing.assert_array_equal(x.numpy(), values)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("jitted", [False, True])
def test_moments_and_parameters_together(order: tuple[int, ...], jitted: bool) -> None:
    """One kernel writes three tensors, of which each is computed from others' old values."""
    numbers = [np.random.default_rng(i).random((8, 6)).astype(np.float32) for i in range(4)]
    parameter, mean, square, gradient = (Tensor(a, device="CPU").realize() for a in numbers)
    tensors, where = (mean, square, parameter), [address(t) for t in (mean, square, parameter)]

    def body() -> None:
        mean.assign(mean * 0.9 + (gradient + parameter * 0.1) * 0.1)
        square.assign(square * 0.9 + gradient * gradient * 0.1)
        parameter.assign(parameter - mean / (square.sqrt() + 1))
        tensors[order[0]].realize(*(tensors[i] for i in order[1:]))

    step = gpu.jit(body) if jitted else body
    p, m, v, g = numbers
    for _ in range(4):
        step()
        m = m * 0.9 + (g + p * 0.1) * 0.1
        v = v * 0.9 + g * g * 0.1
        p = p - m / (np.sqrt(v) + 1)
        for ours, theirs in zip(tensors, (m, v, p), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)
    assert [address(t) for t in tensors] == where


def test_eager_training_keeps_moments_in_their_memory() -> None:
    weight = Tensor(np.ones((4, 4), np.float32), requires_grad=True)
    momentum = Tensor(np.zeros((4, 4), np.float32)).realize()
    where = address(momentum)
    for _ in range(3):
        (weight * weight).sum().backward()
        assert weight.grad is not None
        before = weight.numpy()
        momentum.assign(momentum * 0.5 + weight.grad)
        weight.assign(weight.detach() - momentum * 0.1)
        momentum.realize(weight)
        assert address(momentum) == where
        np.testing.assert_allclose(weight.grad.numpy(), 2 * before, rtol=1e-6)  # still to be had
        np.testing.assert_allclose(weight.numpy(), before - momentum.numpy() / 10, rtol=1e-6)
        weight.grad = None


def test_reading_the_value_keeps_it_in_place() -> None:
    x, _ = table()
    where = address(x)
    for i in range(3):
        x[i] = -1
        assert x.numpy()[i, 0] == -1
    assert address(x) == where


def test_a_write_is_done_with_what_is_computed_behind_it() -> None:
    x, expected = table()
    where = address(x)
    for i in range(5):
        x[i] = float(-i)
        expected[i] = -i
        before = Counters.launches
        np.testing.assert_allclose(x.sum(0).numpy(), expected.sum(0), rtol=1e-5)
        assert Counters.launches - before <= 2  # however many writes there were
    assert address(x) == where
    assert (Moves.in_place, Moves.copied) == (5, 0)


def test_a_chain_of_assignments_does_not_grow() -> None:
    x = Tensor([1.0, 2.0])
    for step in range(4):
        x.assign(x * 2 + 1)
        assert (x - 1).tolist() == [2.0 ** (step + 2) - 2, 3 * 2.0 ** (step + 1) - 2]
        assert is_computed(x._node)


def test_what_was_made_before_a_write_leaves_it_undone() -> None:
    x, expected = table()
    before = x * 2
    x[0] = 7
    np.testing.assert_array_equal(before.numpy(), expected * 2)
    assert not is_computed(x._node)
    expected[0] = 7
    np.testing.assert_array_equal((x * 2).numpy(), expected * 2)


def test_gradients_go_on_behind_a_write_that_was_done() -> None:
    w = Tensor([3.0, 4.0], requires_grad=True)
    x = Tensor([1.0, 1.0])
    x[0] = w[1] * 2
    y = (x * x).sum()
    assert y.item() == 65
    assert y.backward().grad is None and w.grad is not None
    assert w.grad.tolist() == [0, 32]


def test_a_view_that_is_written_through_does_not_hold_the_old_value() -> None:
    x, expected = table()
    rows, where = x[2:6], address(x)
    for i in range(3):
        rows[i] = float(i)
        expected[2 + i] = i
        np.testing.assert_array_equal(rows.numpy(), expected[2:6])
        x.realize()
    assert address(x) == where
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("hold", [hold_reader, hold_alias, hold_array, hold_capsule, hold_bytes])
def test_who_holds_the_old_value_keeps_it(hold: Callable[[Tensor], Any]) -> None:
    x, expected = table("CPU")
    held = hold(x)
    before = expected.sum(0) if hold is hold_reader else expected.copy()
    x[1] = 100
    expected[1] = 100
    x.realize()
    assert (Moves.in_place, Moves.copied) == (0, 1)
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(held if isinstance(held, np.ndarray) else held.numpy(), before)
    x[2] = 5
    x.realize()
    assert Moves.copied == 1  # memory of its own now


def test_the_value_is_the_memory_itself() -> None:
    x, values = table()
    x[[7, 1, 2, 0, 4, 5, 6, 3]] = x
    expected = values[[3, 1, 2, 7, 4, 5, 6, 0]]
    np.testing.assert_array_equal(x.realize().numpy(), expected)


def test_readers_in_the_same_graph_come_first() -> None:
    x, values = table()
    total = (x * 2).sum()
    x[0] = 1000
    where = storage(x._value.src[0]).memory
    x.realize(total)
    assert total.item() == values.sum() * 2
    assert address(x) == where and Moves.copied == 0


def test_reading_before_and_after_in_one_kernel() -> None:
    x, values = table()
    old = x * 1
    x[0] = 10
    change = (x - old).abs().sum()
    x.realize(change)
    assert change.item() == np.abs(values[0] - 10).sum()


@pytest.mark.parametrize("change", [lambda x: x.assign(x * 2), lambda x: x.__setitem__(0, 7)])
@pytest.mark.parametrize("ask", [lambda x: x, lambda x: x.reshape(6, 8)])
def test_who_asks_for_the_old_value_gets_it(
    change: Callable[[Tensor], Any], ask: Callable[[Tensor], Tensor]
) -> None:
    """One call computes the new value, and gives another tensor the memory of the old one."""
    x, values = table("CPU")
    y = Tensor(x)
    old = ask(x)
    if old is not x:
        del x
    change(y)
    y.realize(old)
    np.testing.assert_array_equal(old.numpy().reshape(8, 6), values)
    assert y.numpy()[0, 1] != values[0, 1]


def test_foreign_memory_is_not_written() -> None:
    array = np.zeros((4, 4), np.float32)
    x = Tensor.from_blob(array.ctypes.data, (4, 4))
    x[1] = 1
    assert x.realize().numpy().sum() == 4
    assert array.sum() == 0 and Moves.in_place == 0


def test_values_that_gradients_need_are_kept() -> None:
    y, values = table()
    weight = Tensor(np.full(6, 0.5, np.float32), requires_grad=True)
    y[0] = (y[0] * weight).sin()
    y.realize()
    y[1] = 0
    y.realize()
    y[:2].sum().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), values[0] * np.cos(values[0] / 2), rtol=1e-5)


@pytest.mark.parametrize("jitted", [False, True])
def test_a_cache_is_appended_to_in_place(device: str, jitted: bool) -> None:
    """Positions are a variable: nothing is compiled for a new one, no matter what is realized."""
    position = Var("position", 0, 31)
    cache = Tensor.zeros(32, 8, device=device).contiguous().realize()
    expected = np.zeros((32, 8))

    def attend(row: Tensor, p: Any) -> Tensor:
        cache[p : p + 1] = row * 2
        return cache[: p + 1].sum(0)

    step = gpu.jit(attend) if jitted else attend
    where = address(cache)
    for i in range(6):
        row = Tensor(np.full((1, 8), float(i), np.float32), device=device).realize()
        result = step(row, position.bind(i))  # who kept the one before would need its cache
        expected[i] = 2 * i
        if i == 3:
            compiled = Counters.compiled
    np.testing.assert_array_equal(result.numpy(), expected.sum(0))
    np.testing.assert_array_equal(cache.numpy(), expected)
    assert address(cache) == where and Moves.copied == 0
    if jitted:
        assert Counters.compiled == compiled


def test_values_of_all_steps_at_once() -> None:
    """Nothing is computed in the loop: each pending value still sees the cache as it was then."""
    position, sums = Var("position", 0, 31), []
    cache = Tensor.zeros(32, 8).contiguous().realize()
    for i in range(4):
        p = position.bind(i)
        cache[p : p + 1] = Tensor.full((1, 8), i + 1.0)
        sums.append(cache.sum())
    assert [total.item() for total in sums] == [8, 24, 48, 80]


def test_a_jitted_function_that_returns_the_old_value() -> None:
    x, values = table()

    @gpu.jit
    def swap(row: Tensor) -> Tensor:
        before = Tensor(x)
        x[0] = row
        return before

    for i in range(4):
        before = swap(Tensor(np.full(6, float(i), np.float32)))
        np.testing.assert_array_equal(before.numpy(), values)
        values[0] = i
        np.testing.assert_array_equal(x.numpy(), values)


def test_a_jitted_function_that_changes_a_copy() -> None:
    x, values = table()

    @gpu.jit
    def changed(x: Tensor) -> Tensor:
        y = Tensor(x)
        y[0] = 7
        return y

    for _ in range(4):
        assert changed(x).numpy()[0, 0] == 7
        np.testing.assert_array_equal(x.numpy(), values)


def test_a_verified_replay_starts_from_the_old_value(environment: Callable[..., None]) -> None:
    environment(GPU_VERIFY_JIT="1")
    x, values = table()

    @gpu.jit
    def count(step: Tensor) -> Tensor:
        x[0] = x[0] + step
        return x.sum()

    for i in range(4):
        values[0] += 1
        assert count(Tensor(1.0)).item() == values.sum(), i


def test_an_argument_is_written_in_place() -> None:
    x, _ = table()
    where = address(x)

    @gpu.jit
    def clear(cache: Tensor, row: Tensor) -> None:
        cache[row.shape[0] :] = 0
        cache[: row.shape[0]] = row

    for i in range(4):
        clear(x, Tensor(np.full((2, 6), float(i), np.float32)))
        assert x.numpy()[:3, 0].tolist() == [i, i, 0]
    assert address(x) == where
    other = Tensor(x)
    clear(x, Tensor(np.full((2, 6), 9.0, np.float32)))
    assert other.numpy()[0, 0] == 3 and x.numpy()[0, 0] == 9


def test_ctrl_c_waits_for_the_tensor_to_stand_for_its_new_value() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), put_off():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_leaves_the_old_value(monkeypatch: pytest.MonkeyPatch) -> None:
    x, values = table("PYTHON")
    x[0] = x[0] * 2
    run = Prepared.run

    def fail(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Prepared, "run", fail)
    with pytest.raises(MemoryError):
        x.realize()
    monkeypatch.setattr(Prepared, "run", run)
    values[0] *= 2
    np.testing.assert_array_equal(x.realize().numpy(), values)


@pytest.mark.parametrize("both", [False, True])
def test_a_value_and_a_view_of_it_that_was_written_to(both: bool) -> None:
    x, expected = table()
    turned = x.permute(1, 0)
    turned[:2] = turned[:2] + 1
    expected[:, :2] += 1
    if both:
        turned.realize(x)
    np.testing.assert_array_equal(turned.numpy(), expected.T)
    np.testing.assert_array_equal(x.numpy(), expected)
