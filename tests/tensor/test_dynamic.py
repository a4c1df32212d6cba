"""Numbers that change become arguments: one kernel for every offset and every Python number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, Var, dtypes, nn
from gpu.compiler.ir.dims import any_symbols
from gpu.core.dtype import DType
from gpu.core.errors import Unsupported
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.prepared import Counters
from gpu.tensor.tracing import JitError

Array = np.ndarray[Any, Any]

# Graphs compiled for values of one place: one with the first value in its code, one for all others.
AT_MOST = 2


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


def compiled(call: Callable[[], object]) -> int:
    before = Counters.compiled
    call()
    return Counters.compiled - before


VIEWS: dict[str, Callable[[Any, int], Any]] = {
    "rows": lambda x, i: x[i : i + 5],
    "steps": lambda x, i: x[i : i + 13 : 3, ::2],
    "row": lambda x, i: x[i],
    "columns": lambda x, i: x.T[i % 7 : i % 7 + 2],
    "backwards": lambda x, i: x[i + 6 : i : -2],
    "mixed": lambda x, i: x.reshape(12, 28)[i % 9 : i % 9 + 3].reshape(2, 42),
    "both": lambda x, i: x[i : i + 4] * x[i + 1 : i + 5] - x[40:44],
}


@pytest.mark.parametrize("name", VIEWS)
def test_one_kernel_serves_every_offset_of_a_view(device: str, name: str) -> None:
    values, view = numbers(48, 7), VIEWS[name]
    x = Tensor(values, device=device).realize()
    graphs = 0
    for i in (3, 11, 0, 29, 17):
        before = Counters.compiled
        got = (view(x, i) * 3).numpy()
        graphs += Counters.compiled - before
        np.testing.assert_array_equal(got, view(values, i) * 3, err_msg=f"at {i}")
    assert graphs <= AT_MOST


def test_one_kernel_serves_every_place_of_padding(device: str) -> None:
    values = numbers(6, 5)
    x = Tensor(values, device=device).realize()
    graphs = 0
    for before, left in ((2, 1), (5, 3), (0, 4), (9, 0)):
        count = Counters.compiled
        got = (x.pad(((before, 9 - before), (left, 4 - left))) + x.sum()).numpy()
        graphs += Counters.compiled - count
        wide = np.pad(values, ((before, 9 - before), (left, 4 - left)))
        np.testing.assert_array_equal(got, wide + values.sum())
    assert graphs <= AT_MOST


def test_offsets_may_need_more_than_31_bits(device: str) -> None:
    values = numbers(8)
    x = Tensor(values, device=device).realize()
    for i in (5, 9, 2**31 + 5, 7):
        rows = x.reshape(1, 8).expand(2**32, 8)[i : i + 2] * 2
        np.testing.assert_array_equal(rows.numpy(), np.stack([values, values]) * 2)
        part = x.pad(((i, 2**33 - i),))[i - 1 : i + 5] * 2
        np.testing.assert_array_equal(part.numpy(), np.concatenate([[0], values[:5] * 2]))
        places = Tensor.arange(2**33, dtype=dtypes.int64, device=device)[i : i + 3]
        np.testing.assert_array_equal(places.numpy(), np.arange(i, i + 3))


def test_rows_are_written_in_place_at_every_offset(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, moves = Buffer.moved, []
    monkeypatch.setattr(Buffer, "moved", lambda buffer: moves.append(1) or moved(buffer))
    copies = []
    monkeypatch.setattr(Buffer, "duplicate", lambda buffer: copies.append(1))
    values = numbers(300, 128)
    x = Tensor(values, device=device).realize()
    graphs = 0
    for step, i in enumerate((4, 120, 0, 299, 31)):
        count = Counters.compiled
        x[i] = x[i] * 2 + step
        x.realize()
        graphs += Counters.compiled - count
        values[i] = values[i] * 2 + step
        np.testing.assert_array_equal(x.numpy(), values)
    # Of `step` 0 and 1 are numbers that stay in the code.
    assert graphs <= AT_MOST + 2
    assert len(moves) == 5 and not copies


def test_offsets_that_meet_are_another_program(device: str) -> None:
    values = numbers(64, 3)
    x = Tensor(values, device=device).realize()
    for i, j in ((1, 9), (20, 5), (7, 7), (30, 30), (8, 50)):
        got = (x[i : i + 4] * x[j : j + 4]).sum(0).numpy()
        np.testing.assert_array_equal(got, (values[i : i + 4] * values[j : j + 4]).sum(0))


def test_what_is_in_memory_stays_as_it_is(device: str) -> None:
    values = numbers(40, 3)
    x = Tensor(values, device=device).realize()
    for i in (4, 9, 22):
        part = x[i : i + 5]
        double = part * 2
        both = double + part * part
        double.realize()  # a leaf now, which was computed from what the rest is computed from
        np.testing.assert_array_equal(both.numpy(), values[i : i + 5] * (2 + values[i : i + 5]))


INTEGERS = (
    *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64),
    *(dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
)
FLOATS = (dtypes.float16, dtypes.float32, dtypes.float64)


def random_values(dtype: DType, count: int, seed: int) -> list[Any]:
    """Values all over a dtype's range, of every sign and size."""
    random = np.random.default_rng(seed)
    if dtype.is_int:
        ends = [int(dtype.max), int(dtype.max) - 1, int(dtype.min) or 2]
        found = random.integers(dtype.min, dtype.max, count, dtype.np, endpoint=True)
        return [*ends, *map(int, found)]
    scale = 4.0 if dtype.bits == 16 else 30.0
    return [float(v) for v in random.standard_normal(count) * np.exp(random.uniform(-scale, scale))]


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=lambda d: d.name)
def test_a_number_that_changes_is_exact(device: str, dtype: DType) -> None:
    if dtype in Device[device].renderer.target.native.lacking:
        with pytest.raises(Unsupported):
            Tensor([2], dtype=dtype, device=device).realize()
        return
    array = np.array([3, 1, 0, 7, 2], dtype.np)
    x = Tensor(array, device=device).realize()
    graphs = 0
    with np.errstate(all="ignore"):
        for value in random_values(dtype, 5, seed=dtype.bits):
            count = Counters.compiled
            got = Tensor.maximum(x + value, x - value).numpy()
            graphs += Counters.compiled - count
            number = np.asarray(value, dtype.np)
            want = np.maximum(array + number, array - number)
            np.testing.assert_array_equal(got, want, err_msg=f"{value}")
    assert graphs <= AT_MOST


def test_numbers_of_either_sign_go_through_many_launches_at_once(device: str) -> None:
    values = numbers(20)
    x = Tensor(values, device=device).realize()
    for scale in (2.0, -3.0, 5.0, -0.25):
        y, want = x, values
        for _ in range(4):
            y, want = (y * scale).contiguous().sum(keepdim=True) + x, (want * scale).sum() + values
        np.testing.assert_array_equal(y.numpy(), want)


def test_a_tensor_of_a_number_is_one_kernel_for_all(device: str) -> None:
    counts = []
    for value in (2.5, -7.25, 1e-30, 3e38, 0.1):
        made: list[Array] = []
        full = Tensor.full((3, 4), value, device=device).contiguous()
        counts.append(compiled(lambda full=full, made=made: made.append(full.numpy())))
        np.testing.assert_array_equal(made[0], np.full((3, 4), value, np.float32))
    assert sum(counts) <= AT_MOST


MADE: dict[str, Callable[[Any, float], Any]] = {
    "filled": lambda x, n: Tensor.full((3, 5), n, device=x.device),
    "power": lambda x, n: (x * x + 1) ** n,
    "of a tensor": lambda x, n: x * Tensor(n, device=x.device),
    "written": lambda x, n: Tensor.cat(x[:4], Tensor.full((2, 5), n, device=x.device)),
    "divided": lambda x, n: x / Tensor.full((6, 5), n, device=x.device),
}


@pytest.mark.parametrize("name", MADE)
def test_one_kernel_serves_every_number_that_a_tensor_is_made_of(name: str, device: str) -> None:
    values = numbers(6, 5)
    x = Tensor(values, device=device).realize()
    graphs = 0
    for n in (2.5, 3.25, 0.75, 4.5, 5.125):
        before = Counters.compiled
        got = MADE[name](x, n).numpy()
        graphs += Counters.compiled - before
        want = MADE[name](Tensor(values, device="PYTHON"), n).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4)
    assert graphs <= AT_MOST


DIVIDED: dict[str, Callable[[Any, Any], Any]] = {
    "quotient": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "of the number": lambda x, n: n % x,
}


@pytest.mark.parametrize(
    "dtype", [dtypes.int32, dtypes.uint8, dtypes.float32], ids=lambda d: d.name
)
@pytest.mark.parametrize("name", DIVIDED)
def test_one_kernel_serves_every_divisor(device: str, name: str, dtype: DType) -> None:
    values = np.array([7, 200, 36, 1, 255, 90], np.uint8).astype(dtype.np)
    if dtype.is_signed:
        values = np.concatenate([values, -values])
    x = Tensor(values, device=device).realize()
    drawn = random_values(dtype, 3, seed=1) if dtype.is_int else [2.5, 0.375, 61.0]
    sizes = [3, 8, *(abs(n) for n in drawn if n != dtype.min)]
    for sign in (1, -1) if dtype.is_signed else (1,):
        graphs = 0
        for size in sizes:
            n, before = sign * size, Counters.compiled
            got = DIVIDED[name](x, n).numpy()
            graphs += Counters.compiled - before
            want = DIVIDED[name](values, np.asarray(n, dtype.np))
            np.testing.assert_array_equal(got, want, err_msg=f"{n}")
        assert graphs <= AT_MOST


def test_one_kernel_serves_every_shift_of_a_roll(device: str) -> None:
    values = numbers(6, 5)
    x = Tensor(values, device=device).requires_grad_()
    graphs = 0
    for n in (2, 5, -1, 13, 4):
        before = Counters.compiled
        rolled = x.roll(n, 0)
        np.testing.assert_array_equal(rolled.numpy(), np.roll(values, n, 0))
        (gradient,) = (rolled * Tensor(values, device=device)).sum().gradient(x)
        np.testing.assert_array_equal(gradient.numpy(), np.roll(values, -n, 0))
        graphs += Counters.compiled - before
    assert graphs <= 2 * AT_MOST


def test_a_capture_has_the_divisor_that_it_was_called_with() -> None:
    values = numbers(20)
    x = Tensor(values, device="PYTHON").realize()

    @gpu.jit
    def rest(x: Tensor, n: float, shift: int) -> Tensor:
        return (x % n).roll(shift)

    for n, shift in ((3.0, 2), (5.5, 4), (2.5, 7), (3.0, 2)):
        for _ in range(3):
            np.testing.assert_array_equal(rest(x, n, shift).numpy(), np.roll(values % n, shift))


def test_numbers_that_make_other_code_stay_in_it() -> None:
    x = Tensor(np.arange(40, dtype=np.int32), device="PYTHON").realize()
    counts = [compiled(lambda d=d: (x << d).realize()) for d in (3, 5, 7, 9)]
    assert counts == [1, 1, 1, 1]
    y = Tensor(numbers(40), device="PYTHON").realize()
    counts = [compiled(lambda c=c: (c - y).realize()) for c in (2.0, 3.0, 1.0, 0.0, -1.0, 4.0)]
    assert counts == [1, 1, 1, 1, 1, 0]
    counts = [compiled(lambda n=n: (y**n).realize()) for n in (2, 3, 4)]
    assert counts == [1, 1, 1]


def test_a_graph_seen_before_keeps_its_own_kernel() -> None:
    x = Tensor(numbers(50), device="PYTHON").realize()
    counts = [compiled(lambda i=i: (x[i : i + 8] * 5).realize()) for i in (1, 2, 1, 3, 1, 2)]
    assert counts == [1, 1, 0, 0, 0, 0]


def test_equal_numbers_and_those_that_differ_are_told_apart(device: str) -> None:
    values = numbers(30)
    x = Tensor(values, device=device).realize()
    for a, b in ((2.0, 3.0), (4.0, 5.0), (6.0, 6.0), (7.0, 7.0), (9.0, 8.0)):
        got = ((x + a) * (x - b)).numpy()
        np.testing.assert_array_equal(got, (values + np.float32(a)) * (values - np.float32(b)))


def test_gradients_go_through_every_offset(device: str) -> None:
    values = numbers(40, 6)
    x = Tensor(values, device=device).requires_grad_()
    graphs = 0
    for i in (2, 9, 33, 0):
        count = Counters.compiled
        ((x[i : i + 5] * 3) ** 2).sum().backward()
        grad = x.grad
        assert grad is not None
        want = np.zeros_like(values)
        want[i : i + 5] = 18 * values[i : i + 5]
        np.testing.assert_array_equal(grad.numpy(), want)
        graphs += Counters.compiled - count
        x.grad = None
    assert graphs <= AT_MOST


def test_offsets_stand_beside_symbolic_sizes(device: str) -> None:
    values = numbers(40, 6)
    x = Tensor(values, device=device).realize()
    # Names that sort around those that arguments have.
    for name in ("a", "number", "size", "zz"):
        size, graphs = Var(name, 1, 20), 0
        for i, n, scale in ((2, 5, 3.0), (7, 6, 2.5), (11, 20, -4.0), (3, 1, 7.0)):
            count = Counters.compiled
            bound = size.bind(n)
            got = (x[i : i + 9].sum(0) * scale + x[:bound].sum(0)).numpy()
            graphs += Counters.compiled - count
            want = values[i : i + 9].sum(0) * np.float32(scale) + values[:n].sum(0)
            np.testing.assert_array_equal(got, want)
        assert graphs <= AT_MOST


def test_a_rate_that_changes_compiles_no_step(device: str) -> None:
    def trained(rates: list[float]) -> tuple[Array, list[int]]:
        weights = Tensor(numbers(6, 4), device=device).requires_grad_()
        x = Tensor(numbers(3, 6, seed=1), device=device)
        optimizer = nn.optim.Adam([weights], lr=0.5)
        counts = []
        for rate in rates:
            before = Counters.compiled
            with Tensor.train():
                optimizer.lr.assign(Tensor([rate], device=device))
                optimizer.zero_grad()
                (x @ weights).square().mean().backward()
                optimizer.step()
            counts.append(Counters.compiled - before)
        return weights.numpy(), counts

    rates = [0.5, 0.4, 0.3, 0.25, 0.2]
    weights, counts = trained(rates)
    assert counts[3:] == [0, 0]
    again, _ = trained(rates)
    np.testing.assert_array_equal(weights, again)


def test_a_capture_takes_its_numbers(device: str) -> None:
    values = numbers(64, 5)
    x = Tensor(values, device=device).realize()

    @gpu.jit
    def part(x: Tensor, i: int, scale: float) -> Tensor:
        return x[i : i + 7] * scale

    graphs = 0
    for i, scale in ((3, 2.5), (10, 3.5), (40, 4.5)):
        for _ in range(4):
            count = Counters.compiled
            np.testing.assert_array_equal(
                part(x, i, scale).numpy(), values[i : i + 7] * np.float32(scale)
            )
            graphs += Counters.compiled - count
    assert part.captures == 3
    assert graphs <= AT_MOST


def test_a_jitted_function_still_refuses_a_number_that_changes() -> None:
    x = Tensor(numbers(5), device="PYTHON").realize()
    (x * 7.5).realize()
    (x * 8.5).realize()  # the number varies from here on

    @gpu.jit
    def scaled(x: Tensor) -> Tensor:
        return x * (time.perf_counter() % 100 + 2)

    scaled(x)
    with pytest.raises(JitError, match="in its first call and with"):
        scaled(x)


def test_values_wait_for_nothing_and_threads_share_a_family() -> None:
    values = numbers(500, 4)
    x = Tensor(values, device="CPU").realize()
    wrong: list[int] = []

    def run(start: int) -> None:
        for i in range(start, 480, 7):
            if not np.array_equal((x[i : i + 11] * 5).numpy(), values[i : i + 11] * 5):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arguments_leave_nothing_that_other_graphs_pay_for() -> None:
    before = any_symbols()
    x = Tensor(numbers(30), device="PYTHON").realize()
    for i in (1, 2, 3):
        (x[i : i + 9] * 6).realize()
    assert any_symbols() == before
