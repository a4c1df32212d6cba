"""Functions of one tensor, element by element, against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu import Tensor, dtypes
from tensor.definitions import (
    DEFINITIONS,
    Definition,
    by_definition,
    clipped,
    elu,
    erf,
    sigmoid,
    softplus,
)
from tensor.reference import (
    assert_forward,
    assert_gradients,
    rng_for,
    torch,
    uniform,
    without_subnormals,
)

F = torch.nn.functional
REAL, POSITIVE, UNIT, ABOVE_ONE = (-4.0, 4.0), (0.1, 4.0), (-0.95, 0.95), (1.1, 5.0)
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, -1e-5,
    1e-40, -1e-40, 1e-30, 20.0, -20.0, 87.0, -87.0, 100.0, -100.0, 1e9, -1e9, 3e38, -3e38,
]  # fmt: skip
SPECIAL_LINES = [[1, 2, -1e9], [np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2]]


class Row(NamedTuple):
    """One method: its torch counterpart, domain, arguments, and what it is by definition.

    Attributes:
        name: of the method.
        domain: of random arguments.
        theirs: torch's function; by default the one of the same name.
        kwargs: keyword arguments of the method.
        exact: the function in float64; by default the one of this name in `DEFINITIONS`.
    """

    name: str
    domain: tuple[float, float] = REAL
    theirs: Callable[..., Any] | None = None
    kwargs: dict[str, Any] = {}
    exact: Definition | None = None

    @property
    def ours(self) -> Callable[[Tensor], Any]:
        return lambda x: getattr(x, self.name)(**self.kwargs)

    @property
    def reference(self) -> Callable[[Any], Any]:
        return self.theirs or getattr(torch, self.name, None) or getattr(F, self.name)

    @property
    def definition(self) -> Definition:
        return self.exact or DEFINITIONS[self.name]


ROWS = [
    Row("neg"),
    Row("abs"),
    Row("square"),
    Row("sign"),
    Row("sqrt", POSITIVE),
    Row("rsqrt", POSITIVE),
    Row("reciprocal", POSITIVE),
    Row("exp"),
    Row("exp2"),
    Row("expm1"),
    Row("log", POSITIVE),
    Row("log2", POSITIVE),
    Row("log10", POSITIVE),
    Row("log1p", POSITIVE),
    Row("sin"),
    Row("cos"),
    Row("tan", (-1.4, 1.4)),
    Row("sinh"),
    Row("cosh"),
    Row("tanh"),
    Row("asinh"),
    Row("acosh", ABOVE_ONE),
    Row("atanh", UNIT),
    Row("atan"),
    Row("asin", UNIT),
    Row("acos", UNIT),
    Row("erf"),
    Row("floor"),
    Row("ceil"),
    Row("trunc"),
    Row("round"),
    Row("relu"),
    Row("relu6"),
    Row("sigmoid"),
    Row("logsigmoid"),
    Row("silu"),
    Row("swish", theirs=F.silu),
    Row("quick_gelu", theirs=lambda t: t * torch.sigmoid(1.702 * t)),
    Row("gelu", theirs=lambda t: F.gelu(t, approximate="tanh")),
    Row(
        "gelu",
        theirs=F.gelu,
        kwargs={"approximate": "none"},
        exact=lambda x: x / 2 * (1 + erf(x * math.sqrt(0.5))),
    ),
    Row("elu", kwargs={"alpha": 0.7}, theirs=lambda t: F.elu(t, 0.7), exact=lambda x: elu(x, 0.7)),
    Row(
        "celu",
        kwargs={"alpha": 0.5},
        theirs=lambda t: F.celu(t, 0.5),
        exact=lambda x: elu(x, 0.5, over=0.5),
    ),
    Row("selu", theirs=lambda t: 1.0507 * F.elu(t, 1.67326)),
    Row(
        "leaky_relu",
        kwargs={"neg_slope": 0.2},
        theirs=lambda t: F.leaky_relu(t, 0.2),
        exact=lambda x: np.where(x > 0, x, 0.2 * x),
    ),
    Row("hardtanh"),
    Row("hardsigmoid", theirs=lambda t: F.relu6(t + 3) / 6),
    Row("hardswish"),
    Row("softplus"),
    Row(
        "softplus",
        kwargs={"beta": 2.0},
        theirs=lambda t: F.softplus(t, 2.0),
        exact=lambda x: softplus(x, 2.0),
    ),
    Row("softsign"),
    Row("mish"),
    Row(
        "clamp",
        kwargs={"min_": -1, "max_": 1},
        theirs=lambda t: t.clamp(-1, 1),
        exact=lambda x: clipped(x, -1, 1),
    ),
    Row("pow", kwargs={"x": 3}, theirs=lambda t: t**3, exact=lambda x: x**3),
    Row(  # as in torch the reciprocal of the root, also at -0.0 and -inf
        "pow",
        POSITIVE,
        kwargs={"x": -0.5},
        theirs=lambda t: t**-0.5,
        exact=DEFINITIONS["rsqrt"],
    ),
    Row("pow", POSITIVE, kwargs={"x": 2.3}, theirs=lambda t: t**2.3, exact=lambda x: x**2.3),
    Row(
        "pow",
        kwargs={"x": 2.5, "reverse": True},
        theirs=lambda t: 2.5**t,
        exact=lambda x: 2.5**x,
    ),
    Row("softmax", theirs=lambda t: t.softmax(-1)),
    Row("log_softmax", theirs=lambda t: t.log_softmax(-1)),
    Row("softmin", theirs=lambda t: F.softmin(t, -1)),
]
IDS = [f"{row.name}-{i}" for i, row in enumerate(ROWS)]
by_row = pytest.mark.parametrize("row", ROWS, ids=IDS)
ALONG_AXES = ("softmax", "log_softmax", "softmin")

# Views of a (4, 6) tensor; they mean the same to both.
VIEWS: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("transposed", lambda x: x.transpose(0, 1), lambda t: t.transpose(0, 1)),
    ("backwards", lambda x: x[::-1, 1::2], lambda t: t.flip(0)[:, 1::2]),
    ("expanded", lambda x: x[:, :1].expand(4, 5), lambda t: t[:, :1].expand(4, 5)),
    ("0-d", lambda x: x[1, -2], lambda t: t[1, -2]),
    ("empty", lambda x: x[2:2], lambda t: t[2:2]),
]


@by_row
def test_special_values(row: Row, device: str) -> None:
    special = SPECIAL_LINES if row.name in ALONG_AXES else SPECIAL
    values = without_subnormals(np.array(special, np.float32), device)
    found = row.ours(Tensor(values, device=device)).numpy()
    # exp rounds x * log2(e); see the table in gpu/tensor/functions.py.
    np.testing.assert_allclose(found, by_definition(row.definition, values), 1.5e-5, 1e-37)


@pytest.mark.parametrize("beta", [1.0, 2.0, 0.5, -1.0])
def test_softplus_where_it_is_a_line(beta: float, device: str) -> None:
    """Its slope is sigmoid(beta * x), also where the exponential, or beta * x, overflows."""
    values = np.array([-3e38, -1e9, -60, -49, -1, 0, 1, 49, 51, 89, 1e9, 3e38], np.float32)
    x = Tensor(values, device=device, requires_grad=True)
    y = x.softplus(beta)
    (slope,) = y.sum().gradient(x)
    exact = by_definition(lambda v: softplus(v, beta), values)
    np.testing.assert_allclose(y.numpy(), exact, 1.5e-5, 1e-37)
    bend = by_definition(lambda v: sigmoid(beta * v), values)
    np.testing.assert_allclose(slope.numpy(), bend, 1.5e-5, 1e-37)


@by_row
def test_gradient(row: Row, device: str) -> None:
    x = uniform(rng_for(row.name), (4, 6), row.domain, "float32")
    assert_gradients(device, row.ours, row.reference, [x])


@by_row
def test_views(row: Row, device: str) -> None:
    rng = rng_for(row.name, device)
    x = uniform(rng, (4, 6), row.domain, "float64")
    views = [view for view in VIEWS if row.name not in ALONG_AXES or view[0] != "0-d"]
    _, ours, theirs = views[rng.integers(len(views))]
    assert_gradients(device, lambda t: row.ours(ours(t)), lambda t: row.reference(theirs(t)), [x])


@pytest.mark.parametrize("name", ["exp", "tanh", "sqrt", "sigmoid", "atan", "softplus"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_functions_of_integers_are_float32(name: str, dtype: str, device: str) -> None:
    x = np.array([0, 1, 1, 0], dtype) if dtype == "bool" else np.arange(4).astype(dtype)
    found = getattr(Tensor(x), name)()
    assert found.dtype is dtypes.float32
    reference = getattr(torch, name, None) or getattr(F, name)
    assert_forward(device, lambda t: getattr(t, name)(), lambda t: reference(t.float()), [x])


@pytest.mark.parametrize(
    "name", ["exp", "tanh", "erf", "gelu", "softmax", "logsumexp", "hardsigmoid", "hardswish"]
)
def test_half_is_formed_in_float32(name: str) -> None:
    x = uniform(rng_for(name), (4, 6), REAL, "float16")
    wide = Tensor(x.astype(np.float32))
    found, exact = getattr(Tensor(x), name)(), getattr(wide, name)()
    np.testing.assert_array_equal(found.numpy(), exact.numpy().astype(np.float16))


@pytest.mark.parametrize(
    "name", ["tanh", "expm1", "log1p", "sinh", "asinh", "atanh", "atan", "asin", "erf"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_arguments_keep_their_relative_accuracy(name: str, dtype: str) -> None:
    x = np.geomspace(1e-12, 0.9, 50).astype(dtype)
    x = np.concatenate([x, -x])
    found = getattr(Tensor(x), name)().numpy()
    exact = getattr(torch, name)(torch.tensor(x, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(found, exact, rtol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["exp", "expm1", "sinh", "cosh"])
@pytest.mark.parametrize(("dtype", "largest"), [("float32", 85.0), ("float64", 700.0)])
def test_large_arguments_keep_their_relative_accuracy(
    name: str, dtype: str, largest: float
) -> None:
    x = uniform(rng_for(name), (2000,), (-largest, largest), dtype)
    found = getattr(Tensor(x), name)().numpy()
    exact = getattr(np, name)(x.astype(np.longdouble)).astype(np.float64)
    error = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(dtype))
    assert error.max() <= (4 if name == "sinh" else 3)


@pytest.mark.parametrize("name", ["sinh", "cosh"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hyperbolic_functions_are_finite_where_their_value_is(name: str, dtype: str) -> None:
    last = float(np.arccosh(np.longdouble(np.finfo(dtype).max)))
    x = np.array([last - 0.7, last - 0.3, last - 0.01, last + 0.01, np.inf, 0, -0.0], dtype)
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble)).astype(dtype)
        slope = {"sinh": np.cosh, "cosh": np.sinh}[name](x.astype(np.longdouble)).astype(dtype)
    given = Tensor(x, requires_grad=True)
    found = getattr(given, name)()
    (first,) = found.sum().gradient(given)
    (second,) = first.sum().gradient(given)
    for ours, wanted in ((found, exact), (first, slope), (second, exact)):
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=8 * np.finfo(dtype).eps)
    assert (np.signbit(found.numpy()) == np.signbit(exact)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log1p_keeps_the_sign_of_zero_and_its_derivatives(dtype: str) -> None:
    x = Tensor(np.array([-0.0, 0.0, -1.0, np.inf], dtype), requires_grad=True)
    value = x.log1p()
    assert np.signbit(value.numpy()).tolist() == [True, False, True, False]
    (first,) = value.sum().gradient(x)
    (second,) = first.sum().gradient(x)
    (third,) = second.sum().gradient(x)
    assert first.tolist() == [1, 1, math.inf, 0] and second.tolist() == [-1, -1, -math.inf, 0]
    assert third.tolist() == [2, 2, math.inf, 0]


def test_sinc_at_and_beside_whole_numbers() -> None:
    x = np.array([-3, -1, 1, 2, 7, 1e30], "float32")
    assert Tensor(x).sinc().tolist() == [0] * len(x)
    x = rng_for("sinc").integers(-9, 9, 200) + rng_for("beside").uniform(-1e-3, 1e-3, 200)
    exact = np.sinc(x.astype("float32").astype(np.longdouble))
    found = Tensor(x.astype("float32")).sinc().numpy()
    np.testing.assert_allclose(found, exact.astype(float), rtol=4e-7)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "log1p", "atan", "erf", "sqrt"])
def test_second_derivatives(name: str) -> None:
    data = uniform(rng_for(name), (12,), (0.1, 2.0), "float64")
    x = Tensor(data, requires_grad=True)
    (first,) = getattr(x, name)().sum().gradient(x)
    (second,) = first.sum().gradient(x)
    t = torch.tensor(data, requires_grad=True)
    reference = getattr(torch, name)(t).sum()
    (slope,) = torch.autograd.grad(reference, t, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), t)
    np.testing.assert_allclose(second.numpy(), bend.numpy(), rtol=1e-9, atol=1e-11)
