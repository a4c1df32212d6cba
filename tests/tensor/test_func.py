"""`gpu.func`: transforms beside torch's, nested and in jitted functions, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Tensor, func
from gpu.compiler.ir.graph import Node, interpret, toposort
from gpu.core.config import Context
from gpu.core.errors import (
    DTypeError,
    GpuError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    ShapeError,
)
from gpu.runtime.execute import storage
from gpu.tensor.callforms import tensors_in
from tensor.reference import Array, rng_for, torch
from tools.bench.transforms import Drawn, Library, inputs, transforms

OURS = Library(gpu.array_api, Tensor, lambda x: x.cumsum(0))
THEIRS = Library(torch, torch.tensor, lambda x: x.cumsum(0))
FUNCTIONS, LARGEST, EXAMPLES = 60, 9, 4


def values(result: Any) -> list[Array]:
    """The values of all tensors of a result, by numpy: nothing is compiled."""

    def stored(node: Node) -> Array:
        return storage(node).copy_out().reshape(node.shape)

    return interpret([tensor._node for tensor in tensors_in(result)], stored)


def leaves(result: Any) -> list[Array]:
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [leaf for each in result for leaf in leaves(each)]
    return [result.detach().numpy()]


def assert_equal(ours: Any, theirs: Any, close: float = 1e-9) -> None:
    found, wanted = values(ours), leaves(theirs)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        scale = max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one, other, 0, close * scale)


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))]
)
def test_drawn_functions_are_as_torch_has_them(part: int) -> None:
    rng = rng_for("drawn", part)
    for _ in range(FUNCTIONS // 6):
        drawn = Drawn(rng, LARGEST)
        given = inputs(rng, drawn, EXAMPLES)
        ours = transforms(func, drawn, OURS)
        theirs = transforms(torch.func, drawn, THEIRS)
        for name, function in theirs.items():
            wanted = function(*map(torch.tensor, given))
            assert_equal(ours[name](*map(Tensor, given)), wanted)


def energy(x: Any) -> Any:
    """A number, of a vector of ours or of torch's."""
    return (x[1:] * x[:-1].sin()).sum() + (x * x).sum().exp() * 0.1


def field(x: Any) -> Any:
    return x.cumsum(0).tanh() * x[0]


VECTOR = np.array([0.3, -0.7, 1.1])
NESTED: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad of grad": lambda f: f.grad(lambda x: (f.grad(energy)(x) * x).sum()),
    "vmap of grad": lambda f: lambda x: f.vmap(f.grad(energy))(x[:, None] * x),
    "grad of vmap": lambda f: f.grad(lambda x: f.vmap(energy)(x[:, None] * x).sum()),
    "vmap of vmap": lambda f: (
        lambda x: f.vmap(f.vmap(energy, 1), 1)(x[:, None, None] * x[None, :, None] * x)
    ),
    "vmap of jvp": lambda f: lambda x: f.vmap(lambda v: f.jvp(field, (x,), (v,)))(x[:, None] * x),
    "jvp of vmap": lambda f: lambda x: f.jvp(f.vmap(field), (x[:, None] * x,), (x[:, None] + x,)),
    "jvp of grad": lambda f: lambda x: f.jvp(f.grad(energy), (x,), (x * x,)),
    "grad of jvp": lambda f: f.grad(lambda x: f.jvp(energy, (x,), (x * x,))[1]),
    "vmap of vjp": lambda f: lambda x: f.vmap(lambda c: f.vjp(field, x)[1](c)[0])(x[:, None] + x),
    "jacrev of jacfwd": lambda f: f.jacrev(f.jacfwd(field)),
    "jacfwd of jacrev": lambda f: f.jacfwd(f.jacrev(field)),
    "vmap of hessian": lambda f: lambda x: f.vmap(f.hessian(energy))(x[:, None] + x),
    "hessian of vmap": lambda f: f.hessian(lambda x: f.vmap(energy)(x[:, None] * x).sum()),
    "third derivative": lambda f: f.jacfwd(f.hessian(energy)),
}


@pytest.mark.parametrize("name", NESTED)
def test_transforms_nest(name: str) -> None:
    ours, theirs = NESTED[name](func), NESTED[name](torch.func)
    assert_equal(ours(Tensor(VECTOR)), theirs(torch.tensor(VECTOR)))


def test_jitted_inside_and_outside(device: str) -> None:
    x = VECTOR.astype(np.float32)
    many = np.stack([x, x * 2, x - 1])
    wanted = torch.func.vmap(torch.func.hessian(energy))(torch.tensor(many)).numpy()
    outside = gpu.jit(func.vmap(func.hessian(energy)))
    inside = func.vmap(func.hessian(gpu.jit(energy)))
    for _ in range(3):
        for function in (outside, inside):
            found = function(Tensor(many, device=device)).numpy()
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)
    assert outside.captures == 1


def test_a_jitted_transform_sees_what_the_function_reads(device: str) -> None:
    scale = [2.0]

    @gpu.jit
    def step(w: Tensor, x: Tensor) -> Tensor:
        return w - func.grad(lambda w: (w * x * scale[0]).sum())(w)

    w, x = Tensor([1.0, 2.0], device=device), Tensor([3.0, 4.0], device=device)
    for _ in range(3):
        assert step(w, x).tolist() == [-5.0, -6.0]
    scale[0] = 0.5
    assert step(w, x).tolist() == [-0.5, 0.0]


def test_trees_of_arguments_and_results() -> None:
    params = {"b": Tensor([1.0, 2.0]), "w": [Tensor([[1.0, 2.0], [3.0, 4.0]]), None]}
    x = Tensor([1.0, -1.0])

    def loss(params: Any, x: Any, power: int = 2) -> Any:
        y = params["w"][0] @ x + params["b"]
        return (y**power).sum(), {"y": y, "power": power}

    grads, aux = func.grad(loss, has_aux=True)(params, x)
    assert list(grads) == ["b", "w"] and grads["w"][1] is None
    assert grads["b"].tolist() == [0.0, 2.0] and aux["y"].tolist() == [0.0, 1.0]
    assert grads["w"][0].tolist() == [[0.0, 0.0], [2.0, -2.0]] and aux["power"] == 2
    (value, _), both = func.value_and_grad(loss, argnums=(1, 0), has_aux=True)(params, x, power=2)
    assert value.item() == 1.0 and both[0].tolist() == [6.0, 8.0]
    assert both[1]["b"].tolist() == [0.0, 2.0]
    swapped = {"w": [Tensor(np.ones((2, 2), np.float32)), None], "b": 0.5 * params["b"]}
    _, slope, aux = func.jvp(lambda p: loss(p, x), (params,), (swapped,), has_aux=True)
    assert slope.item() == pytest.approx(2.0) and aux["power"] == 2
    value, pull, aux = func.vjp(lambda p: loss(p, x), params, has_aux=True)
    assert pull(2.0)[0]["b"].tolist() == [0.0, 4.0] and aux["y"].shape == (2,)
    jacobian = func.jacrev(lambda p: {"out": (p["w"][0] @ x, p["b"] * 2)})(params)
    assert jacobian["out"][0]["w"][0].shape == (2, 2, 2)
    assert jacobian["out"][1]["b"].tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert jacobian["out"][1]["w"][0].abs().sum().item() == 0
    second = func.hessian(lambda p: loss(p, x)[0])({"b": params["b"], "w": params["w"]})
    assert second["b"]["w"][0].shape == (2, 2, 2)
    assert second["b"]["b"].tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_axes_of_arguments_and_results() -> None:
    a, b = Tensor.arange(6).reshape(2, 3), Tensor.arange(12).reshape(4, 3)

    def both(pair: Any, name: str, c: Any) -> Any:
        assert name == "as it is"
        return {"sum": pair["a"] + pair["b"][0], "same": c}

    axes = ({"a": 1, "b": (None,)}, None, None)
    mapped = func.vmap(both, axes, out_axes={"sum": -1, "same": None})
    found = mapped({"a": a, "b": (b[0, :2],)}, "as it is", a)
    assert found["sum"].tolist() == [[0, 1, 2], [4, 5, 6]] and found["same"].shape == (2, 3)
    assert func.vmap(lambda x, y: x.sum() * y, (0, -1))(a.T, b).shape == (3, 4)
    assert func.vmap(lambda x, k=None: x + k)(a, k=Tensor([10, 20])).tolist()[1] == [23, 24, 25]
    assert func.vmap(lambda x: x + 1, None, axis_size=3)(1).tolist() == [2, 2, 2]
    assert func.vmap(lambda x: 7)(a).tolist() == [7, 7]
    assert func.vmap(lambda x: x + a.sum().item())(Tensor([1, 2])).tolist() == [16, 17]
    assert func.vmap(lambda x: x * 2)(np.array([1.5, 2.5])).tolist() == [3.0, 5.0]


def test_a_value_may_be_read_where_there_is_one() -> None:
    def piecewise(x: Tensor) -> Tensor:
        y = x * x
        return (y * 3 if y.tolist()[0] > 1 else y).sum()

    large, small = Tensor([2.0, 1.0]), Tensor([0.5, 1.0])
    assert func.grad(piecewise)(large).tolist() == [12.0, 6.0]
    assert func.grad(piecewise)(small).tolist() == [1.0, 2.0]
    assert func.hessian(piecewise)(large).tolist() == [[6.0, 0.0], [0.0, 6.0]]
    with Tensor.no_grad():
        written = func.grad(lambda x: doubled_in_place(x).sum())(Tensor([1.0, 2.0]))
    assert written.tolist() == [2.0, 2.0]


def doubled_in_place(x: Tensor) -> Tensor:
    y = x + 0.0
    y *= 2
    return y


def test_random_numbers(device: str) -> None:
    x = Tensor.zeros(3, 2, device=device)

    def noisy(x: Tensor) -> Tensor:
        return x + Tensor.rand(2, device=device)

    with pytest.raises(InvalidValue, match="randomness='different'"):
        func.vmap(noisy)(x)
    Tensor.manual_seed(5)
    wanted = Tensor.rand(4, 2, device=device).tolist()
    Tensor.manual_seed(5)
    different = func.vmap(noisy, randomness="different")
    assert different(x).tolist() == wanted[:3]
    assert Tensor.rand(2, device=device).tolist() == wanted[3]
    same = func.vmap(noisy, randomness="same")(x).tolist()
    assert same[0] == same[1] == same[2]
    jitted = gpu.jit(different)
    drawn = [jitted(x).tolist() for _ in range(4)]
    assert len({str(each) for each in drawn}) == 4
    noise = func.grad(lambda x: (noisy(x) * x).sum())(x[0])
    assert len({*noise.tolist()}) == 2


def test_loops_and_kernels_of_users(device: str) -> None:
    def decay(x: Tensor, rate: Tensor) -> Tensor:
        return gpu.scan(lambda c, v: (c * rate + v, c * v), x[0], x)[1].sum()

    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4) / 10, device=device)
    rates = Tensor([0.5, 0.25, 2.0], device=device)

    def unrolled(x: Any, rate: Any) -> Any:
        carry, total = x[0], 0
        for n in range(4):
            carry, total = carry * rate + x[n], total + carry * x[n]
        return total

    given = [torch.tensor(t.numpy()) for t in (x, rates)]
    for transform in ("vmap", "grad", "jvp"):
        ours, theirs = (mapped(f, transform) for f in (func, torch.func))
        found = ours(decay)(x, rates)
        np.testing.assert_allclose(
            found.numpy(), theirs(unrolled)(*given).numpy(), 1e-5, 1e-5, err_msg=transform
        )


def test_a_loop_keeps_nothing_that_its_derivative_does_not_read() -> None:
    def running(x: Tensor) -> Tensor:
        return gpu.scan(lambda c, v: ((c * v).tanh(), c), x[0], x)[1].sum()

    x = Tensor([0.5, 2.0, -1.0])
    value, slope = func.jvp(running, (x,), (x,))
    loops = [node for node in toposort([slope._node]) if node.kind == "loop"]
    assert len(loops) == 2  # one forward, and that of the derivative: none of the reverse one
    alone = gpu.scan(lambda c, v: (None, Tensor(1.0)), None, x)[1]
    assert value.shape == () and alone.tolist() == [1.0, 1.0, 1.0]


def test_positions_are_checked_in_all_examples() -> None:
    def pick(row: Tensor, index: Tensor) -> Tensor:
        return row.gather(0, index)

    rows = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    with Context(CHECK="index"):
        for function in (func.vmap(pick), gpu.jit(func.vmap(pick))):
            for _ in range(3):
                found = function(rows, Tensor([[0], [3], [1]]))
                assert found.tolist() == [[0.0], [7.0], [9.0]]
            with pytest.raises(InvalidIndex, match=r"index 9 .* element \[1, 0\]"):
                function(rows, Tensor([[0], [9], [1]]))


def mapped(f: Any, transform: str) -> Callable[..., Any]:
    """A transform of functions of a sequence and a rate, for many."""
    if transform == "vmap":
        return f.vmap
    if transform == "grad":
        return lambda function: f.vmap(f.grad(function, argnums=0))
    return lambda function: f.vmap(lambda x, r: f.jvp(lambda r: function(x, r), (r,), (r,))[1])


def test_complex_numbers() -> None:
    z = np.array([1 + 2j, -0.5 + 1j])
    v = np.array([0.3 - 1j, 2 + 0.5j])

    def size(z: Any) -> Any:
        return (z * z.conj()).real.sum() + (z * z).imag.sum()

    def square(z: Any) -> Any:
        return z * z + z.conj()

    ours, theirs = (Tensor(z), Tensor(v)), (torch.tensor(z), torch.tensor(v))
    assert_equal(func.grad(size)(ours[0]), torch.func.grad(size)(theirs[0]))
    pairs = [f.jvp(square, (a,), (b,)) for f, (a, b) in ((func, ours), (torch.func, theirs))]
    assert_equal(*pairs)
    assert_equal(func.vmap(square)(ours[0]), torch.func.vmap(square)(theirs[0]))
    assert_equal(
        func.vmap(func.grad(lambda z: size(z[None])))(ours[0]),
        torch.func.vmap(torch.func.grad(lambda z: size(z[None])))(theirs[0]),
    )
    for jacobian in (func.jacrev, func.jacfwd):
        with pytest.raises(DTypeError, match="view_as_real"):
            jacobian(square)(ours[0])


def test_a_symbolic_number_of_examples() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    size = gpu.Var("n", 1, 4).bind(3)
    found = func.vmap(func.grad(energy))(x[:size])
    wanted = torch.func.vmap(torch.func.grad(energy))(torch.tensor(x.numpy()[:3]))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-5)


def test_several_devices() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3) / 10)
    for axis in (0, None):
        spread = x.shard(("CPU", "CPU:1"), axis=axis)
        found = func.vmap(func.grad(energy))(spread)
        wanted = torch.func.vmap(torch.func.grad(energy))(torch.tensor(x.numpy()))
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-5)


OUTER = Tensor([1.0, 2.0])
LEAF = Tensor([1.0, 2.0], requires_grad=True)


def writes(x: Tensor) -> Tensor:
    OUTER.assign(x)
    return x.sum()


def trains(x: Tensor) -> Tensor:
    (x * LEAF).sum().backward()
    return x.sum()


V = Tensor([1.0, 2.0])
REFUSED: dict[str, tuple[Callable[[], Any], type[GpuError], str]] = {
    "no function": (lambda: func.grad(3), InvalidType, "grad transforms a function, got int 3"),
    "writes": (lambda: func.grad(writes)(V), InvalidValue, "grad of writes: the function writes"),
    "mapped writes": (lambda: func.vmap(writes)(V), InvalidValue, "made outside of it"),
    "backward": (lambda: func.grad(trains)(V), InvalidValue, "sets the gradient of a tensor"),
    "many numbers": (lambda: func.grad(lambda x: x)(V), ShapeError, r"shape \[2\].*jacrev"),
    "no number": (lambda: func.grad(lambda x: (x, x))(V), InvalidType, "has_aux=True"),
    "no pair": (
        lambda: func.grad(lambda x: x.sum(), has_aux=True)(V), InvalidType, "gives a pair"
    ),
    "integers": (lambda: func.grad(lambda x: x.sum())(Tensor([1])), DTypeError, "is int32"),
    "integer result": (lambda: func.grad(lambda x: x.argmax())(V), DTypeError, "gives int32"),
    "complex result": (
        lambda: func.grad(lambda x: (x * 1j).sum())(V), DTypeError, "take .real"
    ),
    "an object": (lambda: func.grad(lambda x: x)("text"), InvalidType, "argument 0 of grad"),
    "no argument": (lambda: func.grad(energy, argnums=1)(V), InvalidIndex, "argnums of grad"),
    "tangents": (lambda: func.jvp(energy, (V,), (V[:1],)), ShapeError, r"\[1\].*\[2\]"),
    "tangent dtype": (lambda: func.jvp(energy, (V,), (V.double(),)), DTypeError, "float64"),
    "tangent form": (lambda: func.jvp(energy, (V,), ((V,),)), InvalidType, "has tuple"),
    "tangent count": (lambda: func.jvp(energy, (V,), (V, V)), InvalidType, "expected the form"),
    "no tuple": (lambda: func.jvp(energy, V, (V,)), InvalidType, "primals of jvp"),
    "cotangents": (lambda: func.vjp(field, V)[1](V.sum()), ShapeError, "cotangents of vjp"),
    "sizes": (
        lambda: func.vmap(lambda x, y: x + y)(V, Tensor([1, 2, 3])),
        ShapeError,
        "2 along that of argument 0, 3 along that of argument 1",
    ),
    "axis_size": (lambda: func.vmap(energy, axis_size=3)(V), ShapeError, "axis_size"),
    "no axis": (lambda: func.vmap(energy, 1)(V), InvalidIndex, "for argument 0: 1 is out of range"),
    "a number": (lambda: func.vmap(lambda x: x)(3.0), InvalidIndex, "for argument 0"),
    "axes": (lambda: func.vmap(energy, (0, 0))(V), InvalidType, "in_axes of vmap of energy"),
    "kind of axis": (lambda: func.vmap(energy, "0")(V), InvalidType, "in_axes.*'0'"),
    "nothing mapped": (lambda: func.vmap(energy, None)(V), InvalidValue, "axis_size="),
    "out_axes": (lambda: func.vmap(lambda x: x, out_axes=None)(V), InvalidValue, "differs"),
    "out form": (lambda: func.vmap(lambda x: x, out_axes=(0, 1))(V), InvalidType, "out_axes"),
    "result": (lambda: func.vmap(lambda x: "text")(V), InvalidType, "gives has str 'text'"),
    "value": (lambda: func.vmap(lambda x: x if x > 0 else -x)(V), InvalidValue, r"x\.where"),
    "count": (lambda: func.vmap(lambda x: x[x > 0])(V[None]), InvalidValue, "size="),
    "randomness": (lambda: func.vmap(energy, randomness="some"), InvalidValue, "'different'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    call, error, told = REFUSED[name]
    with pytest.raises(error, match=told):
        call()
    assert OUTER.tolist() == [1.0, 2.0] and LEAF.grad is None
