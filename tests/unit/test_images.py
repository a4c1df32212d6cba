"""Images: their dtypes, their nodes, and the rules of kernels on them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import Tensor
from gpu.compiler.fusion.images import read_as_images
from gpu.compiler.ir.graph import Node, interpret
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.text import parse_graph, print_graph
from gpu.compiler.ir.linear import Inst, Param, Program
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.targets import ImageLimits, Target
from gpu.compiler.targets.cpu import host_target
from gpu.core.dtype import dtype_named, dtypes, promote
from gpu.core.errors import DTypeError, ShapeError, Unsupported, VerifyError
from gpu.core.scalars import promote_scalar
from unit.linear_kernels import Kernel

HALF, FLOAT = dtypes.imageh((2, 3)), dtypes.imagef((2, 3))


def test_an_image_dtype_is_one_object_with_its_size() -> None:
    assert dtypes.imageh((2, 3)) is HALF and HALF is not FLOAT
    assert (HALF.itemsize, FLOAT.itemsize, HALF.size) == (2, 4, 24)
    assert repr(HALF) == "dtypes.imageh((2, 3))" and HALF.np == np.float16
    assert pickle.loads(pickle.dumps(HALF)) is HALF and dtype_named(FLOAT.name) is FLOAT
    assert HALF.element is dtypes.float32 and dtypes.int8.element is dtypes.int8


def test_images_are_computed_with_in_float32() -> None:
    assert promote(HALF, HALF) is promote(HALF, dtypes.float16) is dtypes.float32
    assert promote(dtypes.float64, FLOAT) is dtypes.float64
    assert promote_scalar(HALF, 1) is dtypes.float32


@pytest.mark.parametrize("shape", [(0, 3), (2,), 5, (2, 3, 4), (2.0, 3), (True, 2)])
def test_a_shape_that_is_none_is_refused(shape: object) -> None:
    with pytest.raises(DTypeError, match=r"\(height, width\) in pixels"):
        dtypes.imagef(shape)


def image_leaf() -> Node:
    return G.buffer("x", (4, 6), HALF, "CL")


def test_whatever_is_made_of_an_image_reads_it() -> None:
    x = image_leaf()
    for made in (G.alu("neg", x), G.permute(x, (1, 0)), G.reduce("add", x, (0,)), G.detach(x)):
        assert made.dtype is dtypes.float32
    assert G.reshape(x, (24,)).dtype is HALF and G.copy(x, "CPU").dtype is dtypes.float32
    assert G.cast(x, dtypes.int32).src[0].dtype is dtypes.float32


def test_a_value_in_a_half_image_is_rounded() -> None:
    x = G.buffer("x", (24,), dtypes.float32, "CL")
    array = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    (got,) = interpret([G.alu("neg", G.cast(x, HALF))], lambda node: array)
    assert got.tolist() == (-array.astype(np.float16).astype(np.float32)).tolist()


def test_a_value_of_another_size_is_no_image() -> None:
    with pytest.raises(ShapeError, match=r"2 x 3 pixels has 24 elements, and .* has 23"):
        G.cast(G.buffer("x", (23,), dtypes.float32, "CL"), HALF)
    with pytest.raises(ShapeError, match="24 elements"):
        G.buffer("x", (23,), FLOAT, "CL")


def test_images_in_graphs_have_a_text() -> None:
    root = G.alu("exp", G.cast(G.alu("neg", image_leaf()), FLOAT))
    text = print_graph([root])
    assert print_graph(parse_graph(text)) == text and "imageh2x3[4,6]" in text


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_device_without_images_says_so(device: str) -> None:
    x = Tensor(np.ones((2, 3, 4), np.float32), device=device)
    with pytest.raises(Unsupported, match=f"{device} has no images"):
        x.cast(FLOAT).realize()
    with pytest.raises(Unsupported, match="no images"):
        Tensor.from_blob(4096, 24, FLOAT, device=device)


def test_an_image_is_no_leaf_of_gradients() -> None:
    x = Tensor(np.ones((2, 3, 4), np.float32), device="CPU").cast(FLOAT)
    with pytest.raises(DTypeError, match="cannot be a leaf"):
        x.requires_grad = True


def test_gradients_pass_through_images() -> None:
    x = Tensor(np.arange(24, dtype=np.float32), device="CPU", requires_grad=True)
    (gradient,) = (x.cast(HALF) * 3).sum().gradient(x)
    assert gradient.tolist() == [3.0] * 24


# Kernels.


def pixel_kernel(index: int, lanes: int = 4, masked: bool = False) -> Program:
    """Stores lanes to an image at 4 * n + index for n in 0..6, doubled from another one."""
    kernel = Kernel(out=(dtypes.float32, 24), x=(dtypes.float32, 24))
    loop = kernel.loop(24, 4)
    where = kernel.alu("add", loop, kernel.const(index))
    value = kernel.load(kernel.x, loop, lanes)
    mask = [kernel.const(True, dtypes.bool, lanes)] if masked else []
    kernel.store(kernel.out, where, kernel.alu("add", value, value), *mask)
    kernel.end(loop)
    program = kernel.program()
    params = (Param("out", dtypes.float32, 24, True, HALF), Param("x", dtypes.float32, 24, False))
    return program._replace(params=params)


def test_an_image_is_written_by_pixels() -> None:
    program = pixel_kernel(0)
    assert print_linear(parse_linear(print_linear(program))) == print_linear(program)
    x, out = np.arange(24, dtype=np.float32) / 3, np.zeros(24, np.float16)
    interpret_linear(program, [out, x])
    assert out.tolist() == (2 * x).astype(np.float16).tolist()


@pytest.mark.parametrize(
    "program", [pixel_kernel(1), pixel_kernel(0, lanes=2), pixel_kernel(0, masked=True)]
)
def test_a_part_of_a_pixel_is_not_written(program: Program) -> None:
    with pytest.raises(VerifyError, match="written by pixels"):
        verify_linear(program)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_residues_are_those_of_every_value(data: st.DataObject) -> None:
    """Random sums and products of constants and counters, tried at all counts."""
    counts = [(data.draw(st.integers(0, 5)), data.draw(st.integers(1, 8))) for _ in range(2)]
    loops = [Inst("loop", dtypes.int64, attr=("serial", a, a + 3 * s, s)) for a, s in counts]
    made = list(loops)
    for _ in range(data.draw(st.integers(1, 6))):
        name = data.draw(st.sampled_from(["const", "add", "sub", "mul", "shl"]))
        if name in ("const", "shl"):
            number = data.draw(st.integers(0, 4))
            constant = Inst("const", dtypes.int64, attr=(number,))
            made.append(constant)
        if name != "const":
            a = data.draw(st.sampled_from(made))
            b = constant if name == "shl" else data.draw(st.sampled_from(made))
            made.append(Inst("alu", dtypes.int64, 1, (a, b), (name,)))

    def value(inst: Inst, at: dict[Inst, int]) -> int:
        if inst.op != "alu":
            return at[inst] if inst.op == "loop" else inst.attr[0]
        a, b = (value(arg, at) for arg in inst.args)
        run = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "shl": int.__lshift__}
        return run[inst.attr[0]](a, b)

    found = Residues().of(made[-1], 4)
    values = {
        value(made[-1], dict(zip(loops, (i, j), strict=True))) % 4
        for i in range(*loops[0].attr[1:])
        for j in range(*loops[1].attr[1:])
    }
    assert found is None or values == {found}


# Where operands go with IMAGE=1.


def device_with(limits: ImageLimits | None) -> Target:
    return replace(host_target(), images=limits)


def product(rows: int, inner: int, columns: int) -> Node:
    a = G.buffer("a", (rows, inner), dtypes.float32, "CL")
    b = G.alu("exp", G.buffer("b", (columns, inner), dtypes.float32, "CL"))
    whole = (rows, columns, inner)
    left = G.expand(G.reshape(a, (rows, 1, inner)), whole)
    right = G.expand(G.reshape(b, (1, columns, inner)), whole)
    return G.reduce("add", G.alu("mul", left, right), (2,))


def images_of(root: Node) -> list[object]:
    seen, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        seen += [node.dtype] if node.dtype.is_image and node.kind == "cast" else []
        waiting += node.src
    return seen


def is_buffer(node: Node) -> bool:
    return node.kind == "buffer"


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (ImageLimits(64, 64), [(16, 8), (12, 8)]),  # rows of the matrices
        (ImageLimits(64, 64, 4), [(16, 8), (12, 8)]),
        (ImageLimits(64, 64, 3), [(16, 8), (2, 48)]),  # only one has a row of such a multiple
        (ImageLimits(4, 64), [(32, 4), (24, 4)]),
        (ImageLimits(4, 8), []),
        (None, []),
    ],
)
def test_operands_become_images_that_the_device_has(
    limits: ImageLimits | None, wanted: list[tuple[int, int]]
) -> None:
    root = product(16, 32, 12)
    read = read_as_images([root], is_buffer, lambda device: device_with(limits))
    found = {(d.height, d.width) for d in images_of(read.roots[0])}
    assert found == set(wanted)
    assert len(read.views) == bool(wanted)  # the other operand is computed
    data = {"a": np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)}
    data["b"] = np.random.default_rng(1).standard_normal((12, 32)).astype(np.float32)
    (got,) = interpret(read.roots, lambda node: data[node.attr[0]])
    (same,) = interpret([root], lambda node: data[node.attr[0]])
    assert got.tolist() == same.tolist()


def test_odd_sizes_stay_where_they_are() -> None:
    root = product(3, 5, 7)
    read = read_as_images([root], is_buffer, lambda device: device_with(ImageLimits(64, 64)))
    assert read.roots == [root] and not read.views
