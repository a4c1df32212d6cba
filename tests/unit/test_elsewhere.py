"""The check that compiles for other CPUs what tests compute: which graphs, and that it can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import elsewhere
from gpu import Tensor
from gpu.compiler.ir.graph import Node
from gpu.compiler.targets.cpu import host_target
from gpu.core.errors import CompileError
from gpu.runtime.execute import is_computed

# A CPU whose vectors are not those of this machine.
OTHER = "x86-64" if host_target().vector_bytes > 16 else "x86-64-v4"


def compute(count: int) -> None:
    for number in range(3, 3 + count):
        (Tensor([1.0] * number).realize() * 3 + number).realize()


def test_one_in_six_graphs_is_compiled_once() -> None:
    done: list[tuple[str, tuple[int, ...]]] = []
    with_code: list[bool] = []

    def note(cpu: str, roots: Sequence[Node], is_leaf: elsewhere.IsLeaf, code: bool) -> None:
        done.append((cpu, roots[0].shape))
        with_code.append(code)

    with elsewhere.compiled_elsewhere(["a", "b"], note):
        compute(100)
        compute(100)
    assert 20 < len(done) < 50, "about a sixth of 100, for two CPUs"
    assert len(set(done)) == len(done)
    assert 0 < sum(with_code) < len(done) / 2


def test_what_fails_elsewhere_fails_the_test() -> None:
    def refuse(cpu: str, roots: Sequence[Node], is_leaf: elsewhere.IsLeaf, code: bool) -> None:
        raise CompileError("no such vector")

    with (
        elsewhere.compiled_elsewhere([OTHER], refuse),
        pytest.raises(CompileError, match="no such vector"),
    ):
        compute(200)


@pytest.mark.parametrize("with_code", [False, True])
def test_errors_name_the_cpu(
    monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None], with_code: bool
) -> None:
    need("llvmlite")
    node = (Tensor([1.0, 2.0]).realize() * 3)._node
    elsewhere.compile_elsewhere(OTHER, [node], is_computed, with_code)
    monkeypatch.setattr(elsewhere, "render", lambda *_: ["define i32 @f() { ret i64 0 }"])
    with pytest.raises(CompileError, match=f"compiled for {OTHER}"):
        elsewhere.compile_elsewhere(OTHER, [node], is_computed, with_code)
