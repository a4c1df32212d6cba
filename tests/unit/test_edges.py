"""Guarded programs on machines that are mean at the edges: each row of the table is taken at its
word, so that what it does not define gives noise, and what must not be reached fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.compiler.ir import evaluate
from gpu.compiler.ir.linear import Inst, Limit, Program, Val
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.optable import OPS
from gpu.compiler.lower.edges import guard_edges
from gpu.compiler.render.cstyle.c import CRenderer
from gpu.compiler.targets import Native
from gpu.compiler.targets.edges import CUDA, LLVM, NIR, OPENCL, OURS, WGSL, C, Edge, Edges
from gpu.core.dtype import INTS, DType, dtypes
from gpu.core.errors import Unsupported
from unit.linear_kernels import HOST, Kernel, assert_same, edge_pairs, matrix_kernel

Array = np.ndarray[Any, Any]
ROWS = {"LLVM": LLVM, "C": C, "OPENCL": OPENCL, "CUDA": CUDA, "NIR": NIR, "WGSL": WGSL}
FLOATS = (dtypes.float32, dtypes.float64)
NATIVE = Native(ops=frozenset(OPS))


class Mean:
    """Operations that do what a row says and no more."""

    def __init__(self, edges: Edges, patch: pytest.MonkeyPatch):
        self.edges, self.rng = edges, np.random.default_rng(0)
        for name in ("shl", "shr"):
            patch.setitem(OPS, name, OPS[name]._replace(evaluate=self.shift(name)))
        for name in ("tdiv", "tmod"):
            patch.setitem(OPS, name, OPS[name]._replace(evaluate=self.division(name)))
        for name in ("max", "min"):
            patch.setitem(OPS, name, OPS[name]._replace(evaluate=self.extreme(name)))
        patch.setattr(evaluate, "cast", self.cast(evaluate.cast))

    def spoil(self, edge: Edge, result: Array, where: Array, what: str) -> Array:
        """`result` with noise where an edge is."""
        if edge is Edge.OURS:
            return result
        assert edge is Edge.ANY or not where.any(), f"{what} was reached at its edge"
        noise = self.rng.integers(0, 256, result.nbytes, np.uint8).view(result.dtype)
        return np.where(where, noise.reshape(result.shape), result)

    def shift(self, name: str) -> Callable[..., Array]:
        ours = OPS[name].evaluate

        def run(a: Array, b: Array) -> Array:
            outside = (b < 0) | (b >= a.dtype.itemsize * 8)
            a, outside = np.broadcast_arrays(a, outside)
            return self.spoil(self.edges.shift, ours(a, b), outside, name)

        return run

    def division(self, name: str) -> Callable[..., Array]:
        ours = OPS[name].evaluate

        def run(a: Array, b: Array) -> Array:
            least = np.iinfo(a.dtype).min
            edge = (b == 0) | ((a == least) & (b == -1) if least else b == 0)
            return self.spoil(self.edges.division, ours(a, b), edge, name)

        return run

    def extreme(self, name: str) -> Callable[..., Array]:
        ours = OPS[name].evaluate

        def run(a: Array, b: Array) -> Array:
            if a.dtype.kind != "f" or f"{name} f{a.itemsize * 8}" in self.edges.exact:
                return ours(a, b)
            assert self.edges.extreme is not Edge.NEVER, f"there is no {name} of floats"
            return self.spoil(self.edges.extreme, ours(a, b), np.isnan(a) | np.isnan(b), name)

        return run

    def cast(self, ours: Callable[..., Array]) -> Callable[..., Array]:
        def run(x: Array, source: DType, target: DType) -> Array:
            result = ours(x, source, target)
            exact = f"cast {source.code} {target.code}" in self.edges.exact
            if exact or not (source.is_float and target.is_int):
                return result
            whole = np.trunc(x.astype(np.float64))
            inside = (whole >= float(target.min)) & (whole < float(int(target.max) + 1))
            return self.spoil(self.edges.conversion, result, ~inside, f"cast to {target.name}")

        return run


def guarded(program: Program, edges: Edges) -> Program:
    """A program made for a row, well formed."""
    result = guard_edges(program, replace(NATIVE, edges=edges))
    verify_linear(result)
    return result


def names_of(dtype: DType) -> list[str]:
    wanted = ("shl", "shr", "tdiv", "tmod", "max", "min", "add", "where")
    return [name for name in wanted if dtype.kind in OPS[name].domain]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", (*INTS, *FLOATS), ids=str)
@pytest.mark.parametrize("lanes", [1, 4])
def test_operations_at_every_edge(
    dtype: DType, lanes: int, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(dtype)
    given = edge_pairs(dtype)
    kernel = matrix_kernel(dtype, lanes, len(given[0]), names, "grid")
    wanted = [x.copy() for x in given] + [np.zeros_like(given[0]) for _ in names]
    interpret_linear(kernel.program(), wanted)
    found = [x.copy() for x in given] + [np.zeros_like(given[0]) for _ in names]
    program = guarded(kernel.program(), ROWS[row])
    Mean(ROWS[row], monkeypatch)
    interpret_linear(program, found)
    for name, got, want in zip(names, found[4:], wanted[4:], strict=True):
        assert_same(got, want, f"{name} {dtype.name}")


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_conversions_at_every_edge(
    source: DType, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.unique(edge_pairs(source)[0])
    limits = [float(end) for d in INTS for end in (int(d.min), int(d.max), int(d.max) + 1)]
    near = np.array([v for e in limits for v in (np.nextafter(e, -np.inf), e, e - 1)], source.np)
    x = np.concatenate([x, near, np.nextafter(near, np.array(np.inf, source.np))])
    k = Kernel(x=(source, len(x)), **{d.name: (d, len(x)) for d in INTS})
    i = k.loop(len(x), kind="grid")
    value = k.load(k.x, i)
    for dtype in INTS:
        k.store(getattr(k, dtype.name), i, k("cast", dtype, value))
    k.end(i)
    wanted = [x.copy(), *(np.zeros(len(x), d.np) for d in INTS)]
    found = [array.copy() for array in wanted]
    interpret_linear(k.program(), wanted)
    program = guarded(k.program(), ROWS[row])
    Mean(ROWS[row], monkeypatch)
    interpret_linear(program, found)
    for dtype, got, want in zip(INTS, found[1:], wanted[1:], strict=True):
        assert_same(got, want, f"{source.name} to {dtype.name}")


@pytest.mark.parametrize("lanes", [2, 3, 5, 8])
@pytest.mark.parametrize("row", ROWS)
def test_lanes_combined(row: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(lanes)
    x = rng.standard_normal((lanes + 2, lanes)).astype(np.float32)
    x[np.arange(lanes), np.arange(lanes)] = np.nan
    k = Kernel(x=(dtypes.float32, x.size), most=(dtypes.float32, len(x)))
    i = k.loop(x.size, lanes, kind="grid")
    largest = k("fold", dtypes.float32, k.load(k.x, i, lanes), attr=("max",))
    k.store(k.most, k.alu("tdiv", i, k.const(lanes)), largest)
    k.end(i)
    found = [x.reshape(-1).copy(), np.zeros(len(x), np.float32)]
    program = guarded(k.program(), ROWS[row])
    Mean(ROWS[row], monkeypatch)
    interpret_linear(program, found)
    assert_same(found[1], x.max(1), "max")


def operations(program: Program) -> list[str]:
    """The operations of a program in order, without constants and memory."""
    return [i.attr[0] for i in program.body if i.op == "alu"]


def with_operand(name: str, dtype: DType, number: int) -> Program:
    """An operation on a value that is loaded and a constant."""
    k = Kernel(x=(dtype, 1))
    at = k.const(0)
    k.store(k.x, at, k.alu(name, k.load(k.x, at), k.const(number, dtype)))
    return k.program()


@pytest.mark.parametrize("row", ROWS)
def test_what_cannot_be_at_an_edge_is_left_alone(row: str) -> None:
    for dtype in INTS:
        for name, number in (("tdiv", 7), ("tmod", 2), ("shl", dtype.bits - 1), ("shr", 0)):
            program = with_operand(name, dtype, number)
            assert guarded(program, ROWS[row]) is program
    k = Kernel(out=(dtypes.int64, 64))
    n = k("val", dtypes.int64, attr=(0,))
    i = k("loop", dtypes.int64, attr=("serial", 0, Limit(n, 64), 1))
    k.store(k.out, i, k.alu("tmod", i, n))
    k.end(i)
    program = k.program()._replace(vals=(Val("n", 1, 64),))
    assert guarded(program, ROWS[row]) is program
    assert operations(guarded(program._replace(vals=(Val("n", 0, 64),)), ROWS[row])) == [
        "eq", "where", "tmod",
    ]  # fmt: skip


def test_the_interpreter_needs_no_guards() -> None:
    for dtype in (dtypes.int32, dtypes.float32):
        program = matrix_kernel(dtype, 4, 64, names_of(dtype)).program()
        assert guarded(program, OURS) is program


def test_constants_at_an_edge_need_no_operation() -> None:
    signed, unsigned = dtypes.int32, dtypes.uint32
    for row in ROWS.values():
        assert operations(guarded(with_operand("tdiv", signed, 0), row)) == []
        assert operations(guarded(with_operand("tmod", unsigned, 0), row)) == []
        assert operations(guarded(with_operand("shl", signed, 32), row)) == []
        assert operations(guarded(with_operand("shl", signed, -1), row)) == []
        assert operations(guarded(with_operand("shr", signed, 77), row)) == ["shr"]


@pytest.mark.parametrize("row", ROWS)
def test_constants_at_every_edge(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Program, Array, Array]] = []
    for dtype in INTS:
        numbers = {int(n) for n in (dtype.min, -1, 0, dtype.bits, dtype.max) if n >= dtype.min}
        for name in ("tdiv", "tmod", "shl", "shr"):
            for number in numbers:
                program = with_operand(name, dtype, number)
                for value in (dtype.min, 1, dtype.max):
                    wanted = np.array([value], dtype.np)
                    interpret_linear(program, [wanted])
                    cases.append((guarded(program, ROWS[row]), np.array([value], dtype.np), wanted))
    Mean(ROWS[row], monkeypatch)
    for program, found, wanted in cases:
        interpret_linear(program, [found])
        assert found == wanted


def test_quotient_and_rest_share_their_guard() -> None:
    k = Kernel(x=(dtypes.int32, 2), y=(dtypes.int32, 1))
    at = k.const(0)
    a, b = k.load(k.x, at), k.load(k.y, at)
    k.store(k.x, at, k.alu("tdiv", a, b))
    k.store(k.x, k.const(1), k.alu("tmod", a, b))
    found = operations(guarded(k.program(), LLVM))
    assert found == ["eq", "eq", "eq", "and", "or", "where", "tdiv", "where", "tmod"]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", [d for d in INTS if d.bits <= 32], ids=str)
def test_vectors_are_divided_as_floats(
    dtype: DType, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, most = ["tdiv", "tmod"], int(dtype.max)
    a, b, c, mask = edge_pairs(dtype)
    # Quotients just below an integer, which rounding endangers: most where that is large.
    divisors = np.unique(most >> np.arange(dtype.bits - 1)).repeat(16)
    below = (most // divisors * divisors - 1).astype(a.dtype)
    a, b = np.append(a, below), np.append(b, divisors.astype(b.dtype))
    arrays = [a, b, np.resize(c, a.size), np.resize(mask, a.size)]
    results = [np.zeros_like(a) for _ in names]
    program = matrix_kernel(dtype, 4, a.size, names, "grid").program()
    wanted = [x.copy() for x in arrays + results]
    interpret_linear(program, wanted)
    native = replace(NATIVE, edges=ROWS[row], float_quotients=True)
    program = guard_edges(program, native)
    verify_linear(program)
    assert not {"tdiv", "tmod"} & set(operations(program))
    assert operations(program).count("div") == 1
    Mean(ROWS[row], monkeypatch)
    found = [x.copy() for x in arrays + results]
    interpret_linear(program, found)
    for name, got, want in zip(names, found[4:], wanted[4:], strict=True):
        assert_same(got, want, f"{name} {dtype.name}")


def test_loops_keep_their_guarded_limits_and_carries() -> None:
    k = Kernel(x=(dtypes.int64, 3), out=(dtypes.int64, 1))
    at = k.const(0)
    a, b = k.load(k.x, at), k.load(k.x, k.const(1))
    limit = k.alu("min", k.alu("max", k.alu("tdiv", a, b), k.const(0)), k.const(9))
    first = k.load(k.x, k.const(2))
    loop = k("loop", dtypes.int64, first, attr=("serial", 0, Limit(limit, 9), 1))
    carry = k("carry", dtypes.int64, loop, attr=(0,))
    end = k.end(loop, k.alu("tmod", k.alu("add", carry, k.const(5)), b))
    k.store(k.out, at, k("result", dtypes.int64, end, attr=(0,)))
    for values in ([20, 3, 1], [20, 0, 1], [-(1 << 63), -1, 4]):
        found, wanted = ([np.array(values), np.zeros(1, np.int64)] for _ in range(2))
        interpret_linear(k.program(), wanted)
        interpret_linear(guarded(k.program(), C), found)
        assert found[1] == wanted[1]


def test_c_refuses_an_extreme_that_was_not_guarded() -> None:
    program = matrix_kernel(dtypes.float32, 4, 64, ["max"]).program()
    with pytest.raises(Unsupported, match="guard its edges before rendering"):
        CRenderer(HOST).render(program)
    assert any(isinstance(i, Inst) and i.attr == ("max",) for i in program.body)
