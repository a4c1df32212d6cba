"""What is kept of what was computed: bounded, and gone with the last that needs it."""

from __future__ import annotations

import gc
from unittest.mock import Mock

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.runtime import execute, recipe
from gpu.runtime.prepared import Counters
from gpu.runtime.recent import Recent
from gpu.tensor import jit as jit_module


def test_what_is_asked_for_is_kept() -> None:
    table: Recent[int, str] = Recent(4)
    table.keep(0, "often")
    for number in range(1, 100):
        table.keep(number, str(number))
        assert table.get(0) == "often" and table.get(number) == str(number)
        assert len(table) <= 8
    assert table.get(50) is None and table.get(98) == "98"
    assert {"often", "99"} <= set(table.values())


def test_what_weighs_more_leaves_less_room() -> None:
    table: Recent[str, int] = Recent(4)
    table.keep("a", 1, weight=3)
    table.keep("b", 2, weight=3)  # a new generation
    assert (table.get("a"), table.get("b")) == (1, 2)  # which "a" does not fit into, so a third one
    table.keep("c", 3, weight=9)
    table.keep("d", 4)
    assert table.get("b") is None and table.get("c") == 3


def test_forgetting() -> None:
    table: Recent[str, int] = Recent(2)
    for number, key in enumerate("abc"):
        table.keep(key, number)
    table.forget("a")
    table.forget("c")
    table.forget("never there")
    assert [table.get(key) for key in "abc"] == [None, 1, None]
    table.clear()
    assert len(table) == 0


def test_compiled_graphs_are_forgotten_and_their_code_unloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execute, "_schedules", Recent(10))
    gc.collect()
    before = len(recipe._programs)
    kept = gpu.jit(lambda x: x * 5 + 1)
    x = Tensor(np.arange(7, dtype=np.float32)).realize()
    kept(x)
    for size in range(1, 60):
        assert (Tensor(np.ones(size, np.float32)) * 3 + size).tolist() == [3 + size] * size
        assert kept(x).tolist() == [5 * i + 1 for i in range(7)]  # a capture keeps its programs
    gc.collect()
    assert len(recipe._programs) - before <= 11  # each weighs 2, and that of the capture
    compiled = Counters.compiled
    assert (Tensor(np.ones(1, np.float32)) * 3 + 1).tolist() == [4]
    assert Counters.compiled == compiled  # found on disk


def test_a_jitted_function_keeps_the_captures_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "KEPT_CAPTURES", 8)
    # A list that the function itself appends to would be an error: a replay would not.
    function = Mock(wraps=lambda x: x * 2)
    double = gpu.jit(function)

    for turn in range(3):
        for size in range(1, 41):
            assert double(Tensor(np.ones(size, np.float32))).tolist() == [2] * size
            assert double(Tensor(np.ones((2, 2), np.float32))).tolist() == [[2, 2]] * 2
            assert double.captures <= 16
        traced = [call.args[0].shape for call in function.call_args_list]
        assert traced.count((2, 2)) == 2 and traced.count((1,)) == turn + 1
