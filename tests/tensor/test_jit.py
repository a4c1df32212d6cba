"""Captured functions: what must be new in each replay, what must be refused, what must be kept."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.core.errors import InvalidValue
from gpu.runtime.prepared import Counters

GLOBAL_RATE = 0.5


def vector(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32))


def test_replays_compute_with_new_arguments_and_run_no_python() -> None:
    @gpu.jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x * y + 1).sum()

    counted = f.function = Mock(wraps=f.function)

    for i in range(5):
        x, y = np.arange(4) + i, np.arange(4) * 2.0
        got = f(Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32))).item()
        assert got == (x * y + 1).sum()
    assert counted.call_count == 2 and f.captures == 1


def test_a_replay_is_launches_only() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        for _ in range(7):
            x = (x + 1).flip(0).contiguous()
        return x

    x = vector(1, 2)
    f(x), f(x)
    compiled, launches = Counters.compiled, Counters.launches
    assert f(x).tolist() == [9, 8]
    assert Counters.compiled == compiled and Counters.launches == launches + 7


def test_results_are_never_overwritten_while_held() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x * 2

    held = [f(vector(i)) for i in range(6)]
    assert [t.item() for t in held] == [0, 2, 4, 6, 8, 10]


def test_dropout_differs_between_replays() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x.dropout(0.5)

    with Tensor.train():
        seen = {tuple(f(Tensor(np.ones(64, np.float32))).tolist()) for _ in range(6)}
    assert len(seen) == 6


def test_random_numbers_are_those_of_the_eager_function() -> None:
    def f(x: Tensor) -> Tensor:
        return x + Tensor.rand(5)

    x = Tensor(np.zeros(5, np.float32))
    Tensor.manual_seed(3)
    eager = [f(x).tolist() for _ in range(4)]
    Tensor.manual_seed(3)
    jitted = gpu.jit(f)
    jitted(x), jitted(x)  # captures take no words
    Tensor.manual_seed(3)
    assert [jitted(x).tolist() for _ in range(4)] == eager


def test_a_python_learning_rate_schedule_in_an_attribute_is_followed() -> None:
    class Config:
        rate = 0.1

    @gpu.jit
    def step(x: Tensor) -> Tensor:
        return x * Config.rate

    for _ in range(3):
        assert step(vector(1)).item() == np.float32(0.1)
    Config.rate = 0.05
    for _ in range(3):
        assert step(vector(1)).item() == np.float32(0.05)


def test_a_number_in_the_closure_or_module_is_captured_anew() -> None:
    global GLOBAL_RATE
    rate = 1.0

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x * rate + GLOBAL_RATE

    for i in range(4):
        rate, GLOBAL_RATE = float(i), float(i) * 10
        assert f(vector(1)).item() == i * 11
    assert f.captures == 4


def test_a_number_that_keeps_changing_is_an_error() -> None:
    @gpu.jit
    def f(x: Tensor, n: int) -> Tensor:
        return x * n

    with pytest.raises(gpu.JitError, match="captured 32 times"):
        for n in range(100):
            f(vector(1), n)


def test_the_same_tensor_twice() -> None:
    @gpu.jit
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a - b

    x, y = vector(5), vector(3)
    for _ in range(4):
        assert f(x, x).item() == 0
        assert f(x, y).item() == 2
    assert f.captures == 2


def test_output_is_input() -> None:
    @gpu.jit
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return b, a + 1

    for i in range(4):
        first, second = f(vector(i), vector(10 * i))
        assert (first.item(), second.item()) == (10 * i, i + 1)


def test_a_written_cache_is_state() -> None:
    cache = Tensor(np.zeros(8, np.float32))

    @gpu.jit
    def remember(x: Tensor, where: Tensor) -> Tensor:
        place = Tensor.arange(8).eq(where)
        cache.assign(place.where(x, cache))
        return cache.sum()

    for i in range(6):
        total = remember(vector(i + 1.0), Tensor(np.int32(i))).item()
        assert total == sum(range(i + 2))
    assert cache.tolist() == [1, 2, 3, 4, 5, 6, 0, 0]


def test_state_that_is_replaced_outside_is_seen() -> None:
    weight = vector(1)

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x * weight

    for i in range(5):
        weight.assign(vector(i))
        assert f(vector(10)).item() == 10 * i


def test_a_view_of_an_input() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x * 2

    base = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    for row in range(3):
        assert f(base[row]).tolist() == [2.0 * v for v in range(4 * row, 4 * row + 4)]
    assert f(base.transpose(0, 1)[1]).shape == (3,)


def test_writes_to_an_argument_reach_it() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        x += 1
        return x * 10

    for i in range(5):
        x = vector(i)
        assert f(x).item() == (i + 1) * 10
        assert x.item() == i + 1


def test_training_is_the_same_as_without() -> None:
    def run(
        wrap: Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]],
    ) -> list[float]:
        weight = Tensor(np.array([[1.0], [2.0]], np.float32), requires_grad=True)

        def step(x: Tensor) -> Tensor:
            weight.grad = None
            loss = ((x @ weight - 1) ** 2).mean()
            loss.backward()
            assert weight.grad is not None
            weight.assign(weight - weight.grad * 0.05)
            return loss

        call = wrap(step)
        rng = np.random.default_rng(0)
        losses = []
        for _ in range(6):
            losses.append(call(Tensor(rng.standard_normal((8, 2)).astype(np.float32))).item())
        assert weight.grad is not None
        return [*losses, *weight.reshape(-1).tolist(), *weight.grad.reshape(-1).tolist()]

    np.testing.assert_allclose(run(gpu.jit), run(lambda f: f), rtol=1e-5)


def test_gradients_that_accumulate_settle() -> None:
    weight = Tensor(np.ones(2, np.float32), requires_grad=True)

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        loss.backward()
        return loss

    for i in range(5):
        f(vector(1, 2))
        assert weight.grad is not None
        assert weight.grad.tolist() == [i + 1, 2 * (i + 1)]


@pytest.mark.parametrize(
    "read", [lambda t: t.item(), lambda t: t.numpy(), lambda t: t.tolist(), bool, float]
)
def test_reading_a_value_inside_is_refused(read: Callable[[Tensor], object]) -> None:
    with pytest.raises(gpu.JitError, match="inside a jitted function"):
        gpu.jit(lambda x: read(x.sum()))(vector(1))


def test_a_failed_capture_leaves_everything_as_it_was() -> None:
    weight = vector(3)

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        raise KeyError("no")

    x = vector(1)
    with pytest.raises(KeyError):
        f(x)
    assert weight.item() == 3 and x.item() == 1
    assert (x + weight).item() == 4


def test_data_of_the_host_made_inside_must_stay_the_same() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x + Tensor(np.full(3, time.perf_counter_ns(), np.float64))

    with pytest.raises(gpu.JitError, match="did something else"):
        for _ in range(10):
            f(vector(1, 2, 3))


def test_arguments_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(gpu.JitError, match="bytearray"):
        gpu.jit(lambda x, y: x)(vector(1), bytearray(b"x"))


def test_methods_have_captures_of_their_own() -> None:
    class Scale:
        def __init__(self, by: float):
            self.by = Tensor(np.float32(by))

        @gpu.jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.by

        @gpu.jit
        def apply(self, x: Tensor) -> Tensor:
            return x * self.by

    two, three = Scale(2), Scale(3)
    for i in range(4):
        assert two.apply(vector(i)).item() == 2 * i
        assert three.apply(vector(i)).item() == 3 * i


def test_verify_mode_finds_what_a_replay_cannot_see() -> None:
    rate = contextvars.ContextVar("rate", default=2.0)

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return x * rate.get()

    f(vector(1)), f(vector(1))
    with gpu.Context(GPU_VERIFY_JIT=1):
        assert f(vector(4)).item() == 8
        rate.set(3.0)
        with pytest.raises(InvalidValue, match="differs from the function itself by up to 4"):
            f(vector(4))


def test_replays_hold_no_memory() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        return ((x + 1).contiguous() * 2).sum()

    x = Tensor(np.ones(1000, np.float32))
    allocator = gpu.Device["CPU"].allocator
    f(x), f(x), f(x)
    gc.collect()
    before = allocator.live  # type: ignore[attr-defined]
    for _ in range(20):
        f(x)
    gc.collect()
    assert allocator.live == before  # type: ignore[attr-defined]


def test_a_tensor_kept_by_other_means_than_the_result_has_no_value() -> None:
    kept: list[Tensor] = []

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        kept.append(x + 1)
        return x * 2

    assert f(vector(3)).item() == 6
    with pytest.raises(gpu.JitError, match="was kept in another way"):
        kept[0].item()


def test_state_that_is_replaced_inside_is_refused() -> None:
    class Sum:
        total = vector(0)

        @gpu.jit
        def add(self, x: Tensor) -> Tensor:
            self.total = self.total + x
            return self.total

    sums = Sum()
    assert sums.add(vector(1)).item() == 1
    with pytest.raises(gpu.JitError, match="assign"):
        sums.add(vector(1))


def test_writes_to_an_argument_that_is_a_view_reach_its_base() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        x.assign(x + 1)
        return x.sum()

    bases = [Tensor(np.zeros((6, 4), np.float32)) for _ in range(2)]
    for base in bases:
        for row in range(5):
            assert f(base[row]).item() == 4
    assert f.captures == 1
    for base in bases:
        assert base.numpy().sum(1).tolist() == [4, 4, 4, 4, 4, 0]


def test_a_write_that_another_argument_would_have_to_show_is_refused() -> None:
    @gpu.jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + 1)
        return y * 1

    base = Tensor(np.zeros((4, 4), np.float32))
    with pytest.raises(gpu.JitError, match="shares"):
        f(base[1], base)
    assert base.numpy().sum() == 0
    for _ in range(3):  # the same form, but sharing nothing
        assert f(Tensor(np.zeros(4, np.float32)), base).numpy().sum() == 0


def test_minus_zero_and_nan_are_arguments_like_others() -> None:
    @gpu.jit
    def f(x: Tensor, number: float) -> Tensor:
        return x.copysign(number)

    for number in (0.0, 0.0, 0.0, -0.0, -0.0, -0.0):
        assert f(vector(1), number).item() == np.copysign(1, number)
    for _ in range(3):
        f(vector(1), float("nan"))
    assert f.captures == 3


def test_threads_take_turns() -> None:
    total = vector(*[0.0] * 1000)
    wrong: list[object] = []

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        total.assign(total + 1)
        return (x @ x.transpose(0, 1)).contiguous().sum(1)

    def work(value: int) -> None:
        x = np.full((9, 33), value, np.float32)
        for _ in range(20):
            if f(Tensor(x)).tolist() != (x @ x.T).sum(1).tolist():
                wrong.append(value)
            if (Tensor(x) + 1).numpy()[0, 0] != value + 1:  # not part of another's capture
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert total.numpy()[0] == 80


def test_any_number_of_shapes() -> None:
    double = gpu.jit(lambda x: x * 2)
    for n in range(1, 40):
        assert double(Tensor(np.ones(n, np.float32))).shape == (n,)


def test_a_class_without_dict_is_told_so() -> None:
    class Slotted:
        __slots__ = ()

        @gpu.jit
        def step(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(gpu.JitError, match="__slots__"):
        Slotted().step(vector(1))


def test_an_object_with_attributes_of_any_name() -> None:
    """Its attributes stay its own; those of a jitted function are not overwritten by them."""

    class Model:
        def __init__(self) -> None:
            self._kept, self._call, self.function = 1, 2, 3
            self.weight = Tensor([2.0])

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.weight

    run = gpu.jit(Model())
    for n in (1, 2, 3, 2):
        for _ in range(3):
            assert run(Tensor.full((n,), 3.0)).tolist() == [6.0] * n
    assert not hasattr(run, "weight")
