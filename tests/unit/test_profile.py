"""Profiles name kernels by what they compute and the line that they are for."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gpu
from gpu import Context, Tensor
from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.label import kernel_label
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir.kernel.work import operations, parameter_bytes
from gpu.runtime.execute import is_computed
from gpu.runtime.prepared import Counters
from gpu.runtime.profile import PROFILE, Profile, Row


@pytest.fixture
def profiled() -> Iterator[Profile]:
    PROFILE.rows.clear()
    with Context(GPU_PROFILE=1):
        yield PROFILE
    PROFILE.rows.clear()


def values(*shape: int, seed: int = 0, device: str = "CPU") -> Tensor:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(array, device=device).realize()


def rows_of(line: int) -> list[Row]:
    """What was timed for a line of this file."""
    return [row for row in PROFILE.rows if f"{__name__.split('.')[-1]}.py:{line}:" in row.line]


def here() -> int:
    """The line that calls."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum_f32_24x40": lambda x: x.sum(1),
    "max_f32_24x40": lambda x: x.max(0),
    "matmul_f32_24x24x40": lambda x: x @ x.T,
    "softmax_f32_24x40": lambda x: x.softmax(1),
    "log_softmax_f32_24x40": lambda x: x.log_softmax(1),
    "normalize_f32_24x40": lambda x: x.layernorm(),
    "add_mul_f32_24x40": lambda x: (x + 3) * x,
    "elementwise4_f32_24x40": lambda x: ((x + 3) * x).exp2() - x,
    "permute_f32_40x24": lambda x: x.T.contiguous(),
    "cumsum_f32_24x40": lambda x: x.cumsum(1),
    "cast_f16_24x40": lambda x: x.half(),
    "conv_f32_3x22x38x3x3": lambda x: x.reshape(1, 1, 24, 40).conv2d(values(3, 1, 3, 3)),
    "scatter_add_f32_24x40": lambda x: x.scatter(
        0, Tensor(np.zeros((24, 40), np.int32), device=x.device), x, reduce="add"
    ),
}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_says_what_is_computed(label: str) -> None:
    plan = plan_fusion([LABELS[label](values(24, 40))._node], is_computed)
    assert label in [kernel_label(number, plan) for number in range(len(plan.kernels))]


def test_work_counts_operations_and_bytes() -> None:
    x = values(24, 40)
    kernel = build_kernel("k", 0, plan_fusion([((x + 3) * x).sum(1)._node], is_computed)).kernel
    assert operations(kernel.body) == 24 * 40 * 3
    assert parameter_bytes(kernel) == 4 * (24 * 40 + 24)


def test_kernels_are_told_apart_by_line(device: str, profiled: Profile) -> None:
    x = values(6, 50, device=device)
    first = here() + 1
    one = (x * 2 + x).realize()
    two = (x * 2 + one).softmax(1).realize()
    assert [row.label for row in rows_of(first)] == ["mul_add_f32_6x50"]
    assert {row.label for row in rows_of(first + 1)} >= {"softmax_f32_6x50"}
    assert {row.device for row in profiled.rows} == {x.device}
    total = sum(each.seconds for each in profiled.rows.values())
    assert total > 0 and f"{total * 1e3:.3f} ms" in profiled.table()
    array = x.numpy()
    np.testing.assert_allclose(one.numpy(), array * 3, rtol=1e-6)
    assert two.shape == (6, 50)


def test_another_line_finds_the_compiled_graph_and_is_named(profiled: Profile) -> None:
    x = values(7, 33)
    (x * 5 - x).realize()
    before, line = Counters.compiled, here() + 1
    (x * 5 - x).realize()
    assert Counters.compiled == before
    assert [row.label for row in rows_of(line)] == ["mul_sub_f32_7x33"]


def test_numbers_that_vary_keep_the_line(profiled: Profile) -> None:
    x = values(40, 9)
    line = here() + 2
    for i in (3, 11, 27):
        (x[i : i + 4] * 5).realize()
    (row,) = rows_of(line)
    assert row.label == "mul_f32_4x9" and profiled.rows[row].runs == 3


def test_a_replay_names_the_lines_of_its_trace(profiled: Profile) -> None:
    line = here() + 4

    @gpu.jit
    def twice(x: Tensor) -> Tensor:
        y = (x @ x.T).contiguous()
        return (y + 7).cumsum(1)

    x = values(5, 21)
    for _ in range(4):
        want = (x.numpy() @ x.numpy().T + 7).cumsum(1)
        np.testing.assert_allclose(twice(x).numpy(), want, rtol=1e-4)
    (first,), (second,) = rows_of(line), rows_of(line + 1)
    assert first.label == "matmul_f32_5x5x21" and second.label == "cumsum_f32_5x5"
    assert profiled.rows[first].runs >= 2


def test_a_product_is_for_the_line_that_asked_for_it(profiled: Profile) -> None:
    """Its kernel gives a value of another shape, which no line made."""
    x = values(13, 11)
    line = here() + 1
    (x @ x.T).realize()
    assert [row.label for row in rows_of(line)] == ["matmul_f32_13x13x11"]


def test_what_is_spread_over_devices_is_for_its_line(profiled: Profile) -> None:
    x = values(8, 6).shard(("CPU", "CPU:1"), 0).realize()
    line = here() + 1
    (x * 2 - 1).sum().realize()
    found = [row for row in profiled.rows if row not in rows_of(line)]
    assert {row.device for row in rows_of(line)} == {"CPU", "CPU:1"}
    assert all("shard" in row.line or row.label.startswith("copy") for row in found)


def test_a_gradient_is_for_the_line_that_asked_for_it(profiled: Profile) -> None:
    x = values(30, 20).requires_grad_()
    w = values(20, 10, seed=1).requires_grad_()
    line = here() + 1
    (x @ w).square().sum().backward()
    assert w.grad is not None
    w.grad.realize()
    assert any(row.label == "matmul_f32_10x20x30" for row in rows_of(line))


def test_a_kernel_without_vectors_says_why(profiled: Profile) -> None:
    line = here() + 1
    (values(3, 3) * 2).cumsum(1).realize()
    rows = rows_of(line)
    assert rows and all(row.scalar for row in rows if row.label.startswith("cumsum"))
    line = here() + 1
    (values(64, 64) * 2).realize()
    assert [row.scalar for row in rows_of(line)] == [""]
    assert "not vectorised because" in profiled.table()


def test_debug_2_logs_each_kernel_as_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    x = values(6, 31)
    with Context(DEBUG=2), caplog.at_level(logging.DEBUG, logger="gpu"):
        (x * 3 - 1).realize()
    (record,) = [r for r in caplog.records if r.name == "gpu.runtime.profile"]
    assert "mul_sub_f32_6x31" in record.getMessage() and "GB/s" in record.getMessage()
    caplog.clear()
    (x * 3 - 2).realize()
    assert not caplog.records
