"""`gpu.kernel`: kernels of users, by functions and in the languages of devices."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Device, Tensor, dtypes
from gpu.compiler.ir.graph import interpret
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.core.errors import (
    CompileError,
    DeviceMismatch,
    DTypeError,
    GpuError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from gpu.runtime.prepared import Counters
from gpu.tensor.kernels import Kernel


def like(x: Tensor) -> Any:
    """The form of an output that is that of the input."""
    return (x.shape, x.dtype)


def matmul_gradient(inputs: Any, outputs: Any, gradients: Any) -> Any:
    (a, b), (grad,) = inputs, gradients
    return matmul(grad, b.T), matmul(a.T, grad)


@gpu.kernel(outputs=lambda a, b: ((a.shape[0], b.shape[1]), a.dtype), gradient=matmul_gradient)
def matmul(k: Any, out: Any, a: Any, b: Any) -> None:
    """a @ b"""
    with k.loop(*out.shape) as (i, j):
        total = k.alloc((), out.dtype)
        with k.loop(a.shape[1]) as n:
            total[()] += a[i, n] * b[n, j]
        out[i, j] = total[()]


@gpu.kernel(outputs=lambda x: {"low": (x.shape[:1], x.dtype), "high": (x.shape[:1], x.dtype)})
def extremes(k: Any, low: Any, high: Any, x: Any) -> None:
    with k.loop(x.shape[0]) as i:
        low[i] = x[i, 0]
        high[i] = x[i, 0]
        with k.loop(x.shape[1]) as j:
            low[i] = low[i].minimum(x[i, j])
            high[i] = x[i, j].maximum(high[i])


@gpu.kernel(outputs=lambda x, bins: (bins.shape, "int32"))
def histogram(k: Any, out: Any, x: Any, bins: Any) -> None:
    with k.loop(out.size) as i:
        out[i] = bins[i]
    with k.loop(x.size) as i:
        out[x[i]] += 1


CUBE = """
if (global_id < out_size) {
  out[global_id] = cubed(x[global_id]) + y[global_id % y_shape[0]];
}
"""
CUBED = "float cubed(float x) { return x * x * x; }"
cube = gpu.kernel(
    dict.fromkeys(("c", "opencl", "cuda", "metal", "wgsl"), CUBE),
    headers={
        "c": f"static {CUBED}",
        "opencl": CUBED,
        "cuda": f"static __device__ {CUBED}",
        "metal": f"inline {CUBED}",
        "wgsl": "fn cubed(x: f32) -> f32 { return x * x * x; }",
    },
    outputs=lambda x, y: (x.shape, x.dtype),
    grid=lambda x, y: -(-x.size // 256),
    block=256,
    gradient=lambda inputs, outputs, grads: (3 * inputs[0] * inputs[0] * grads[0], None),
    name="cube",
)


def test_a_kernel_is_computed_with_its_neighbours(device: str) -> None:
    rng = np.random.default_rng(1)
    n, m, p = (int(size) for size in rng.integers(1, 24, 3))
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((n, m), (m, p)))
    x, y = Tensor(a), Tensor(b)
    result = matmul(x * 2, y[:, ::-1].exp()) + 1
    np.testing.assert_allclose(result.numpy(), 2 * a @ np.exp(b[:, ::-1]) + 1, rtol=1e-4, atol=1e-4)
    low, high = extremes(Tensor(a))
    assert np.array_equal(high.numpy(), a.max(1)) and np.array_equal(low.numpy(), a.min(1))


def test_places_that_are_data_and_those_out_of_range(device: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 12, int(rng.integers(1, 200))).astype(np.int32)
    start = rng.integers(0, 9, 8).astype(np.int32)
    wanted = start + np.bincount(x[(x >= 0) & (x < 8)], minlength=8)
    assert histogram(Tensor(x), Tensor(start)).tolist() == wanted.tolist()

    @gpu.kernel(outputs=like)
    def around(k: Any, out: Any, x: Any) -> None:
        with k.loop(x.size + 3) as i:  # three more than there are
            out[i] = x[i - 1] + x[i + 1] + x[(x[i] % 100).cast("int32") + 5]

    f = rng.standard_normal(7).astype(np.float32)
    padded = np.pad(f, (1, 1))
    places = np.floor(f.astype(np.float64) % 100).astype(int) + 5
    far = np.where(places < 7, f[np.minimum(places, 6)], 0)
    np.testing.assert_allclose(around(Tensor(f)).numpy(), padded[:-2] + padded[2:] + far, rtol=1e-5)


def test_loops_that_go_further_than_their_arrays(device: str) -> None:
    @gpu.kernel(outputs=lambda x: {"a": ((9, 3), x.dtype), "b": ((3,), x.dtype)})
    def both(k: Any, a: Any, b: Any, x: Any) -> None:
        with k.loop(9, 3) as (i, j):
            a[i, j] = -1
        with k.loop(x.size) as i:
            a[x[i], i] = a[x[i], i].maximum(x[i])  # apart by the mask of i alone
        with k.loop(3) as i:
            b[i] = 1
        with k.loop(8) as i:
            b[i] = b[i] + x[i] - x[x[i]]

    x = np.random.default_rng(8).integers(-2, 11, 64).astype(np.int32)
    a, b = np.full((9, 3), -1), np.ones(3)
    for i in range(3):
        if 0 <= x[i] < 9:
            a[x[i], i] = max(a[x[i], i], x[i])
        b[i] += x[i] - (x[x[i]] if x[i] >= 0 else 0)
    assert [each.tolist() for each in both(Tensor(x))] == [a.tolist(), b.tolist()]


def test_conditions_and_memory_of_an_iteration(device: str) -> None:
    @gpu.kernel(outputs=like)
    def chosen(k: Any, out: Any, x: Any) -> None:
        with k.loop(*x.shape) as (i, j):
            kept = k.alloc(2, x.dtype, 5)
            with k.when((i < 2) & (j != 1)):
                kept[0] = x[i, j]
            with k.when(x[i, j] > 3):
                kept[j % 2] = -x[i, j]
            old = k.keep(kept[0])
            kept[0] = kept[1]
            kept[1] = old
            out[i, j] = 10 * kept[0] + (kept[1] // 2)

    x = np.random.default_rng(3).integers(-9, 9, (3, 4)).astype(np.int32)
    wanted = np.empty_like(x)
    for i, j in np.ndindex(*x.shape):
        kept = [5, 5]
        if i < 2 and j != 1:
            kept[0] = x[i, j]
        if x[i, j] > 3:
            kept[j % 2] = -x[i, j]
        wanted[i, j] = 10 * kept[1] + kept[0] // 2
    assert chosen(Tensor(x)).tolist() == wanted.tolist()


def test_a_number_that_is_written_under_a_condition(device: str) -> None:
    @gpu.kernel(outputs=like)
    def positive(k: Any, out: Any, x: Any) -> None:
        with k.loop(x.size) as i:
            kept = k.alloc((), x.dtype)
            with k.when(x[i] > 0):
                kept[()] = x[i]
            out[i] = 2 * kept[()]

    x = np.random.default_rng(4).integers(-9, 9, 50).astype(np.int32)
    assert positive(Tensor(x)).tolist() == (2 * np.maximum(x, 0)).tolist()


def test_a_source_in_the_language_of_the_device(device: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(int(rng.integers(2, 300))).astype(np.float32)
    y = np.float32([1, 2, 3])
    tensor = Tensor(x).realize()
    if not Device[device].renderer.target.language:
        with pytest.raises(Unsupported, match=r"cube is given in c, cuda, .*give it a function"):
            cube(tensor, Tensor(y)).numpy()
        return
    result = cube(tensor * 2, Tensor(y))
    (slope,) = result.sum().gradient(tensor)
    np.testing.assert_allclose(result.numpy(), 8 * x**3 + np.resize(y, x.size), rtol=1e-4)
    np.testing.assert_allclose(slope.numpy(), 24 * x * x, rtol=1e-4)


@pytest.mark.parametrize("name", ["float16", "bool"])
def test_dtypes(device: str, name: str) -> None:
    dtype = getattr(dtypes, name)
    if dtype in Device[device].renderer.target.native.lacking:
        pytest.skip(f"{device} has no {name}")

    @gpu.kernel(outputs=like)
    def turned(k: Any, out: Any, x: Any) -> None:
        with k.loop(x.size) as i:
            out[i] = x[x.size - 1 - i]

    x = Tensor([0, 1, 1, 3, 0]).cast(dtype)
    assert turned(x).tolist() == x.flip(0).tolist()


@pytest.mark.parametrize("name", ["int8", "uint32", "float64", "bfloat16", "fp8e4m3"])
def test_more_dtypes(name: str) -> None:
    test_dtypes("CPU", name)


def test_gradients() -> None:
    rng = np.random.default_rng(5)
    x, y = (Tensor(rng.standard_normal(s).astype(np.float32)) for s in ((3, 5), (5, 4)))
    weights = Tensor(rng.standard_normal((3, 4)).astype(np.float32))
    ours = (matmul(x, y.sin()) * weights).sum().gradient(x, y)
    theirs = ((x @ y.sin()) * weights).sum().gradient(x, y)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def test_gradients_of_gradients() -> None:
    x, y = map(Tensor, np.random.default_rng(6).standard_normal((2, 4, 4)))

    def slopes(product: Any) -> list[float]:
        (grad,) = (product(x, y) ** 3).sum().gradient(x)
        result: list[float] = (grad * grad).sum().gradient(y)[0].tolist()
        return result

    np.testing.assert_allclose(slopes(matmul), slopes(Tensor.matmul), rtol=1e-6)


def test_a_gradient_of_one_of_several_results() -> None:
    seen = []

    def gradient(inputs: Any, outputs: Any, gradients: Any) -> Any:
        seen.append([each.tolist() for each in (*outputs, *gradients)])
        return gradients[0] + 10 * gradients[1]

    def forms(x: Tensor) -> Any:
        return {"a": like(x), "b": like(x)}

    @gpu.kernel(outputs=forms, gradient=gradient)
    def both(k: Any, a: Any, b: Any, x: Any) -> None:
        with k.loop(x.size) as i:
            a[i], b[i] = x[i], 10 * x[i]

    x = Tensor([1.0, 2.0])
    _, b = both(x)
    assert (b * Tensor([1.0, 3.0])).sum().gradient(x)[0].tolist() == [10.0, 30.0]
    assert seen == [[[1.0, 2.0], [10.0, 20.0], [0.0, 0.0], [1.0, 3.0]]]


def test_jit_and_replay() -> None:
    @gpu.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return matmul(x + 1, y) * 2

    for seed in range(4):
        rng = np.random.default_rng(seed)
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((4, 6), (6, 3)))
        compiled = Counters.compiled
        result = step(Tensor(a).realize(), Tensor(b).realize()).numpy()
        np.testing.assert_allclose(result, (a + 1) @ b * 2, rtol=1e-4, atol=1e-5)
    assert Counters.compiled == compiled


def test_a_replay_notices_what_the_function_reads() -> None:
    settings = {"factor": 2.0}

    @gpu.kernel(outputs=like)
    def times(k: Any, out: Any, x: Any) -> None:
        with k.loop(x.size) as i:
            out[i] = settings["factor"] * x[i]

    @gpu.jit
    def step(x: Tensor) -> Tensor:
        return Tensor(1.0) + times(x)

    x = Tensor([1.0, 2.0]).realize()
    assert [step(x).tolist() for _ in range(3)] == [[3.0, 5.0]] * 3
    settings["factor"] = 5.0
    assert step(x).tolist() == [6.0, 11.0]


def test_kernels_in_a_scan_share_one_program() -> None:
    def body(carry: Tensor, x: Tensor) -> Any:
        carry = matmul(carry, x)
        return carry, carry.sum()

    first = Tensor(np.eye(3, dtype=np.float32))
    xs = Tensor(np.random.default_rng(7).standard_normal((5, 3, 3)).astype(np.float32))
    last, sums = gpu.scan(body, first, xs)
    wanted = np.linalg.multi_dot(list(xs.numpy()))
    np.testing.assert_allclose(last.numpy(), wanted, rtol=1e-3, atol=1e-5)
    assert sums.shape == (5,)
    (grad,) = gpu.scan(body, first, xs)[0].sum().gradient(xs)
    assert grad.shape == xs.shape


def test_equal_kernels_are_compiled_once_and_others_are_not() -> None:
    def scaled(factor: float) -> Kernel:
        @gpu.kernel(outputs=like)
        def times(k: Any, out: Any, x: Any) -> None:
            with k.loop(x.size) as i:
                out[i] = factor * x[i]

        made: Kernel = times
        return made

    x = Tensor([1.0, 2.0, 4.0]).realize()
    kernels = Counters.kernels
    assert scaled(7.0)(x).tolist() == scaled(7.0)(x).tolist() == [7.0, 14.0, 28.0]
    assert scaled(8.0)(x).tolist() == [8.0, 16.0, 32.0]
    assert Counters.kernels == kernels + 2


def test_graphs_with_kernels_have_a_text_and_a_meaning() -> None:
    x, y = Tensor([[1.0, 2.0]]).realize(), Tensor([[3.0], [4.0]]).realize()
    root = (matmul(x, y) + cube(x[0], y[0]))._node
    (again,) = parse_graph(print_graph([root]), handles_of([root]))
    assert print_graph([again]) == print_graph([root])
    values = {x._node: x.numpy(), y._node: y.numpy()}
    (found,) = interpret([matmul(x, y)._node], values.__getitem__)
    assert found.tolist() == [[11.0]]
    with pytest.raises(Unsupported, match=r"cube is given in c, .* not interpreted"):
        interpret([root], values.__getitem__)


def test_no_elements() -> None:
    empty = Tensor.zeros(0, 3)
    assert matmul(empty, Tensor.ones(3, 2)).tolist() == []
    with pytest.raises(ShapeError, match=r"a of the kernel matmul has the shape \[2, 0\]"):
        matmul(Tensor.ones(2, 0), Tensor.ones(0, 2))


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(matmul)) is matmul is copy.deepcopy(matmul)
    assert matmul.__doc__ == "a @ b" and "matmul(a, b)" in repr(matmul)
    other = pickle.loads(pickle.dumps(gpu.kernel({"c": "out[0] = x[0];"}, outputs=like)))
    assert other.inputs == ("x",) and other.sources == {"c": "out[0] = x[0];"}


def test_machines_that_are_not_here(need: Any) -> None:
    need("clang")
    need("nvrtc")
    x = Tensor.ones(8, 8).realize()
    large = gpu.kernel({"cuda": ""}, outputs=like, block=2048)
    with pytest.raises(Unsupported, match="blocks of 2048 threads, cuda has at most 1024"):
        gpu.compile_for("NV::sm_90", large(x))
    (kernel,) = gpu.compile_for("METAL::apple7", cube(x, x))
    assert "threadgroup_position_in_grid" in kernel.source and kernel.lib
    assert gpu.compile_for("CPU:LLVM:x86-64-v3", matmul(x, x))[0].lib


CHILD = """
from gpu import Tensor
from gpu.runtime.prepared import Counters
import gpu
@gpu.kernel(outputs=lambda x: (x.shape, x.dtype))
def triple(k, out, x):
    with k.loop(x.size) as i:
        out[i] = 3 * x[i]
print(triple(Tensor([1.0, 2.0])).tolist(), Counters.compiled)
"""


def test_the_next_process_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    environment = {**os.environ, "CACHE_DIR": str(tmp_path / "cache"), "DEV": "CPU", "VERIFY": "0"}
    environment["PYTHONPATH"] = str(Path(gpu.__file__).parents[1])
    told = [
        subprocess.run(
            [sys.executable, str(tmp_path / "child.py")],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
        for _ in range(2)
    ]
    assert told == ["[3.0, 6.0] 1\n", "[3.0, 6.0] 0\n"]


def describing(body: Any, outputs: Any = like) -> Kernel:
    made: Kernel = gpu.kernel(body, outputs=outputs)
    return made


def _returns(k: Any, out: Any, x: Any) -> Any:
    out[0] = x[0]
    return out


def _stale(k: Any, out: Any, x: Any) -> None:
    out[0] = x[0]
    old = out[0]
    out[0] = x[1]
    out[1] = old


def _carried(k: Any, out: Any, x: Any) -> None:
    out[0] = x[0]
    old = out[0]
    with k.loop(2) as i:
        out[i] = old


def _outlived(k: Any, out: Any, x: Any) -> None:
    with k.loop(2):
        memory = k.alloc((), x.dtype)
    out[0] = memory[()]


def _branches(k: Any, out: Any, x: Any) -> None:
    if x[0] > 1:
        out[0] = 1


def _assigns(k: Any, out: Any, x: Any) -> None:
    x[0] = 1


def _index(k: Any, out: Any, x: Any) -> None:
    out[9] = x[0]


def _rank(k: Any, out: Any, x: Any) -> None:
    out[0, 0] = x[0]


def _float_index(k: Any, out: Any, x: Any) -> None:
    out[x[0]] = x[1]


def _mixed(k: Any, out: Any, x: Any) -> None:
    with k.loop(2) as i:
        out[i] = i


def _sliced(k: Any, out: Any, x: Any) -> None:
    out[:] = 1


def _silent(k: Any, out: Any, x: Any) -> None:
    with k.loop(2) as i:
        k.alloc((), "int32")[()] = i.cast("int32")


def _tensor(k: Any, out: Any, x: Any) -> None:
    out[0] = x[0] + Tensor(1.0)


def _no_times(k: Any, out: Any, x: Any) -> None:
    with k.loop(0) as i:
        out[i] = 1


@pytest.mark.parametrize(
    ("body", "error", "told"),
    [
        (lambda k, out: None, InvalidType, r"called as .*\(k, out, x\)"),
        (_returns, InvalidType, "returns .* writes to its outputs"),
        (_stale, InvalidValue, r"used after out was written: .*k\.keep"),
        (_carried, InvalidValue, r"before the loop: .*k\.keep"),
        (_outlived, InvalidValue, "used after the loop"),
        (_branches, InvalidType, r"condition\.where\(a, b\).*k\.when"),
        (_assigns, InvalidValue, "x: .* is an input"),
        (_index, InvalidIndex, "index 9 is out of range for axis 0"),
        (_rank, InvalidIndex, "takes 1 indices, got 2"),
        (_float_index, InvalidType, "is an integer"),
        (_mixed, DTypeError, r"int64, where float32 is wanted: cast\(\) it; .*written to <out"),
        (_sliced, InvalidIndex, r"by element, as in x\[i, j\]"),
        (_silent, InvalidValue, "never writes its output out"),
        (_tensor, InvalidType, "a tensor is an input"),
        (_no_times, InvalidValue, "at least one iteration"),
    ],
)
def test_wrong_functions(body: Any, error: type[GpuError], told: str) -> None:
    with pytest.raises(error, match=told):
        describing(body)(Tensor([1.0, 2.0]))


def test_wrong_use() -> None:
    x = Tensor([1.0, 2.0])
    wrong: list[tuple[Any, type[GpuError], str]] = [
        (lambda: matmul(x), InvalidType, r"takes 2 inputs \(a, b\), got 1"),
        (lambda: cube(x, 3.0), InvalidType, "the input y of the kernel cube is a tensor"),
        (lambda: cube(x, x.to("PYTHON")), DeviceMismatch, "x is on CPU, y is on PYTHON"),
        (lambda: gpu.kernel({"basic": ""}, outputs=like), InvalidValue, "known are c, cuda"),
        (lambda: gpu.kernel({}, outputs=like), InvalidValue, "as a function, in a language"),
        (lambda: gpu.kernel(3, outputs=like), InvalidType, "body of a kernel is a function"),
        (lambda: gpu.kernel(_index, outputs=lambda *x: x), InvalidType, "names are written out"),
        (lambda: describing(_index, lambda x: x.shape)(x), InvalidType, r"pair \(shape, dtype\)"),
        (
            lambda: describing(_index, lambda x: {"x": like(x)})(x),
            InvalidValue,
            "x is an input and an output",
        ),
        (
            lambda: gpu.kernel({"c": ""}, headers={"cuda": ""}, outputs=like),
            InvalidValue,
            r"headers of a kernel in \['cuda'\]",
        ),
        (
            lambda: gpu.kernel({"c": ""}, outputs=like, grid=0)(x),
            InvalidValue,
            "grid=0 of the kernel",
        ),
        (lambda: extremes(x.reshape(1, 2))[0].sum().gradient(x), Unsupported, "has no gradient"),
    ]
    for call, error, told in wrong:
        with pytest.raises(error, match=told):
            call()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (lambda i, o, g: (g[0], g[0]), InvalidType, "gives 2, and it has 1 inputs"),
        (lambda i, o, g: 1.0, InvalidType, "gives float 1.0"),
        (lambda i, o, g: g[0].sum(), ShapeError, r"gives \[\] for an input of"),
        (lambda i, o, g: g[0].cast("float16"), DTypeError, "gives float16 for an input"),
    ],
)
def test_wrong_gradients(given: Any, error: type[GpuError], told: str) -> None:
    def body(k: Any, out: Any, x: Any) -> None:
        with k.loop(x.size) as i:
            out[i] = x[i]

    x = Tensor([1.0, 2.0])
    with pytest.raises(error, match=told):
        gpu.kernel(body, outputs=like, gradient=given)(x).sum().gradient(x)


def test_what_a_compiler_says_is_told_with_the_line_that_asked(need: Any) -> None:
    need("clang")
    broken = gpu.kernel({"c": "\nfloat y = ;"}, outputs=like, name="broken")
    with pytest.raises(CompileError) as caught:
        gpu.compile_for("CPU:CLANG:x86-64-v3", broken(Tensor([1.0]).realize()))
    assert "broken:2:" in str(caught.value) and __file__.rpartition("/")[2] in str(caught.value)
