"""`gpu.special` beside torch.special and mpmath: values, edges, dtypes and gradients."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

import gpu
from gpu import Tensor, special
from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.tensor.tracing import JitError
from tensor.reference import Array, rng_for, torch, widest

mpmath = pytest.importorskip("mpmath", reason="needs torch: module mpmath comes with it")

# Where each function is drawn from; it varies there.
DOMAINS: Final = {
    "airy_ai": (-12.0, 8.0), "bessel_j0": (-30.0, 30.0), "bessel_j1": (-30.0, 30.0),
    "bessel_y0": (0.0, 30.0), "bessel_y1": (0.0, 30.0), "digamma": (-6.0, 20.0),
    "entr": (0.0, 4.0), "erf": (-4.0, 4.0), "erfc": (-4.0, 8.0), "erfcx": (-8.0, 20.0),
    "erfinv": (-1.0, 1.0), "exp2": (-20.0, 20.0), "expit": (-20.0, 20.0), "expm1": (-4.0, 4.0),
    "gammaln": (-6.0, 40.0), "i0": (-80.0, 80.0), "i0e": (-80.0, 80.0), "i1": (-80.0, 80.0),
    "i1e": (-80.0, 80.0), "log1p": (-1.0, 4.0), "log_ndtr": (-30.0, 10.0), "logit": (0.0, 1.0),
    "modified_bessel_i0": (-80.0, 80.0), "modified_bessel_i1": (-80.0, 80.0),
    "modified_bessel_k0": (0.0, 60.0), "modified_bessel_k1": (0.0, 60.0), "ndtr": (-12.0, 6.0),
    "ndtri": (0.0, 1.0), "psi": (-6.0, 20.0), "scaled_modified_bessel_k0": (0.0, 60.0),
    "scaled_modified_bessel_k1": (0.0, 60.0), "sinc": (-6.0, 6.0),
    "spherical_bessel_j0": (-20.0, 20.0),
}  # fmt: skip
OF_TWO: Final = {
    "gammainc": ((0.0, 60.0), (0.0, 60.0)), "gammaincc": ((0.0, 60.0), (0.0, 60.0)),
    "xlog1py": ((-3.0, 3.0), (-1.0, 6.0)), "xlogy": ((-3.0, 3.0), (0.0, 6.0)),
    "zeta": ((1.0, 20.0), (0.1, 20.0)),
}  # fmt: skip
# Those that torch has no gradient of.
FLAT: Final = ("airy_ai", "bessel", "modified", "scaled", "spherical")
# Of functions that swing, torch's float32 is exact to parts of their largest value only.
SWINGING: Final = ("airy_ai", "bessel", "digamma", "psi", "gammaln", "sinc", "spherical", "ndtr")
# Functions of which torch's own error in float64 is so large.
TORCH_ERRORS: Final = {"gammainc": 3e-8, "airy_ai": 1e-5, "bessel": 1e-5}
EXACT: Final[dict[str, Any]] = {
    "erfc": mpmath.erfc,
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "ndtr": mpmath.ncdf,
    "log_ndtr": lambda x: mpmath.log(mpmath.ncdf(x)),
    "i0": lambda x: mpmath.besseli(0, x),
    "i1e": lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)),
    "gammaln": mpmath.loggamma,
    "digamma": mpmath.digamma,
    "modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "scaled_modified_bessel_k1": lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
    "airy_ai": mpmath.airyai,
}
# Where they are compared with mpmath, if not everywhere: no further than a few zeros.
MEASURED: Final = {
    "gammaln": (0.0, 40.0), "digamma": (0.0, 40.0), "airy_ai": (-7.0, 8.0),
    **dict.fromkeys(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"), (0.0, 7.9)),
}  # fmt: skip
EDGES: Final = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 8.0, 1e-30]
# Where torch gives NaN and the function has a value or a limit.
LIMITS: Final = {
    "airy_ai": 0, "bessel_j0": 0, "bessel_j1": 0, "bessel_y0": 0, "bessel_y1": 0,
    "i0": math.inf, "i1": math.inf, "modified_bessel_i0": math.inf, "modified_bessel_i1": math.inf,
}  # fmt: skip
CPU: Final = "CPU"


def sample(names: list[str], quick: Sequence[str]) -> list[Any]:
    """All, those that are not quick marked slow: each compiles kernels of its own."""
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in names]


def theirs(name: str) -> Any:
    return getattr(torch.special, name)


def ours(name: str) -> Any:
    return getattr(special, name)


def drawn(name: str, dtype: str, count: int) -> list[Array]:
    domains = OF_TWO.get(name) or (DOMAINS[name],)
    rng = rng_for(name, dtype)
    return [rng.uniform(*domain, count).astype(dtype) for domain in domains]


def test_every_name_is_there_and_a_method_where_torch_has_one() -> None:
    assert set(special.__all__) == set(torch.special.__all__)
    torch_has = {name for name in dir(torch.Tensor) if hasattr(torch.special, name)}
    assert not {name for name in torch_has if not hasattr(Tensor, name)}
    assert hasattr(Tensor, "igamma") and hasattr(Tensor, "igammac") and hasattr(Tensor, "mvlgamma")
    assert gpu.special is special


QUICK: Final = ("digamma", "erfcx", "i1e", "ndtri", "xlog1py")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.sampled(25)
@pytest.mark.parametrize("name", sample([*DOMAINS, *OF_TWO], QUICK))
def test_drawn_values_and_gradients_are_those_of_torch(name: str, dtype: str) -> None:
    arrays = drawn(name, dtype, 200)
    xs = [Tensor(x, device=CPU, requires_grad=True) for x in arrays]
    ts = [torch.tensor(x, requires_grad=True) for x in arrays]
    value, expected = ours(name)(*xs), theirs(name)(*ts)
    relative = 3e-5 if dtype == "float32" else 1e-11
    relative = max(relative, *(e for n, e in TORCH_ERRORS.items() if name.startswith(n)), 0)
    least = relative if name.startswith(SWINGING) else 1e-36
    np.testing.assert_allclose(value.numpy(), expected.detach().numpy(), relative, least)
    if name.startswith(FLAT):
        return
    last = [len(xs) - 1] if name in ("gammainc", "gammaincc", "zeta") else range(len(xs))
    for place in last:
        (slope,) = value.sum().gradient(xs[place])
        (wanted,) = torch.autograd.grad(expected.sum(), ts[place], retain_graph=True)
        # Of torch's own gradients some are differences that cancel.
        absolute = 1e-5 if dtype == "float32" else 1e-8
        scale = max(1.0, float(wanted.abs().median()))
        np.testing.assert_allclose(slope.numpy(), wanted, 20 * relative, absolute * scale)


@pytest.mark.sampled(25)
@pytest.mark.parametrize("name", sample([*DOMAINS], QUICK))
def test_edges_are_those_of_torch(name: str) -> None:
    found = ours(name)(Tensor(EDGES, device=CPU)).numpy()
    wanted = theirs(name)(torch.tensor(EDGES)).numpy()
    # At whole numbers ours is 0, and torch's the sine of what pi is rounded by.
    absolute = 1e-7 if name == "sinc" else 0
    for at, value, expected in zip(EDGES, found, wanted, strict=True):
        if math.isinf(at) and math.isnan(expected) and name in LIMITS and not math.isnan(value):
            assert abs(value) == LIMITS[name]
        else:
            np.testing.assert_allclose(value, expected, 1e-5, absolute, err_msg=str(at))


@pytest.mark.sampled(34)
@pytest.mark.parametrize("name", sample([*EXACT], ("gammaln", "bessel_y0")))
def test_the_error_against_mpmath_is_a_few_units_in_the_last_place(name: str) -> None:
    for dtype, most in (("float32", 4.5), ("float64", 6)):
        low, high = MEASURED.get(name, DOMAINS[name])
        at = rng_for(name, dtype, "ulp").uniform(low, high, 40).astype(dtype)
        found = ours(name)(Tensor(at, device=CPU)).numpy()
        with mpmath.workdps(40):
            check_units(found, [EXACT[name](mpmath.mpf(x)) for x in at.tolist()], most)


def check_units(found: Array, exact: list[Any], most: float) -> None:
    for value, wanted in zip(found.tolist(), exact, strict=True):
        unit = float(np.spacing(np.asarray(abs(float(wanted)), found.dtype)))
        assert abs(mpmath.mpf(value) - wanted) <= most * unit


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_two_are_exact_too(dtype: str) -> None:
    rng = rng_for("two", dtype)
    a = rng.choice([0.3, 4.0, 15.0, 40.0, 150.0], 30) * rng.uniform(0.5, 1.5, 30)
    a, x = a.astype(dtype), np.abs(a + rng.normal(size=30) * np.sqrt(a) * 1.5).astype(dtype)
    pairs = [*zip(map(mpmath.mpf, a.tolist()), map(mpmath.mpf, x.tolist()), strict=True)]
    ours_a, ours_x = Tensor(a, device=CPU), Tensor(x, device=CPU)
    with mpmath.workdps(40):
        lower = [mpmath.gammainc(p, 0, q, regularized=True) for p, q in pairs]
        upper = [mpmath.gammainc(p, q, mpmath.inf, regularized=True) for p, q in pairs]
    check_units(special.gammainc(ours_a, ours_x).numpy(), lower, 8)
    check_units(special.gammaincc(ours_a, ours_x).numpy(), upper, 8)
    s, q = rng.uniform(1.1, 20, 30).astype(dtype), rng.uniform(0.1, 9, 30).astype(dtype)
    with mpmath.workdps(60):
        wanted = [
            mpmath.zeta(*map(mpmath.mpf, p)) for p in zip(s.tolist(), q.tolist(), strict=True)
        ]
    check_units(special.zeta(Tensor(s, device=CPU), Tensor(q, device=CPU)).numpy(), wanted, 8)


def test_polygamma_and_multigammaln() -> None:
    x = rng_for("polygamma").uniform(-4, 9, 60)
    for n in (0, 3):
        t, o = torch.tensor(x, requires_grad=True), Tensor(x, device=CPU, requires_grad=True)
        value, expected = o.polygamma(n), t.polygamma(n)
        np.testing.assert_allclose(value.numpy(), expected.detach().numpy(), 1e-9)
        expected.sum().backward()
        np.testing.assert_allclose(value.sum().gradient(o)[0].numpy(), t.grad.numpy(), 1e-9)
    above = torch.tensor(np.abs(x) + 2)
    for p in (1, 4):
        found = special.multigammaln(Tensor(above.numpy(), device=CPU), p).numpy()
        np.testing.assert_allclose(found, torch.special.multigammaln(above, p), 1e-11)
    with pytest.raises(InvalidValue, match="n of polygamma must not be negative, got -1"):
        special.polygamma(-1, Tensor([1.0]))
    with pytest.raises(InvalidValue, match="p of multigammaln must be at least 1, got 0"):
        Tensor([1.0]).mvlgamma(0)


POLYNOMIALS: Final = [name for name in special.__all__ if "polynomial" in name]


@pytest.mark.sampled(34)
@pytest.mark.parametrize("name", sample(POLYNOMIALS, ("hermite_polynomial_he",)))
def test_polynomials(name: str) -> None:
    x = rng_for(name).uniform(-1.3, 1.3, (9, 1))
    degrees = np.array([[-1, 0, 1, 2, 5, 9]])
    found = ours(name)(Tensor(x, device=CPU), Tensor(degrees, device=CPU)).numpy()
    wanted = theirs(name)(torch.tensor(x), torch.tensor(degrees)).numpy()
    np.testing.assert_allclose(found, wanted, 1e-9, 1e-9)
    for column, n in enumerate(degrees[0].tolist()):
        alone = ours(name)(Tensor(x, device=CPU), n).numpy()
        np.testing.assert_allclose(alone[:, 0], found[:, column], 1e-12)


def test_degrees_of_polynomials() -> None:
    x = Tensor([0.3, -0.9], device=CPU, requires_grad=True)
    high = special.chebyshev_polynomial_t(x.double(), 100)
    np.testing.assert_allclose(high.numpy(), np.cos(100 * np.arccos(x.double().numpy())), 1e-9)
    (slope,) = special.legendre_polynomial_p(x, 2).sum().gradient(x)
    np.testing.assert_allclose(slope.numpy(), 3 * x.detach().numpy(), 1e-6)
    assert special.hermite_polynomial_h(x, Tensor.zeros(0, 1, dtype="int32")).shape == (0, 2)
    # As integers: 301 is no number of bfloat16.
    narrow = special.chebyshev_polynomial_t(x.detach().cast("bfloat16"), Tensor([301]))
    assert narrow.dtype.name == "bfloat16"
    same = special.chebyshev_polynomial_t(x.detach().cast("bfloat16"), 301)
    assert narrow.float().tolist() == same.float().tolist()
    with pytest.raises(InvalidValue, match="degrees up to 4096 here, got 5000"):
        special.laguerre_polynomial_l(x, 5000)
    with pytest.raises(InvalidType, match="laguerre_polynomial_l takes a tensor"):
        special.laguerre_polynomial_l(1.0, 2)
    with pytest.raises(JitError, match="a number for n"):
        gpu.jit(lambda n: special.laguerre_polynomial_l(x, n))(Tensor([2, 3]))


def test_inverses_lead_back() -> None:
    """On probabilities as small as a dtype has; torch's loses half its digits there."""
    y = 10.0 ** rng_for("inverses").uniform(-300, -0.31, 200)
    back = special.ndtr(special.ndtri(Tensor(y, device=CPU)))
    np.testing.assert_allclose(back.numpy(), y, 1e-12)
    x = np.concatenate([y, -y, 1 - y[y > 1e-12]])
    np.testing.assert_allclose(Tensor(x, device=CPU).erfinv().erf().numpy(), x, 1e-14)


@pytest.mark.sampled(40)
@pytest.mark.parametrize(
    "dtype", sample(["bool", "uint8", "int64", "float16", "bfloat16"], ["bool"])
)
def test_other_dtypes_are_promoted_as_by_torch(dtype: str) -> None:
    names = ("erfc", "erfcx", "i0", "bessel_j1", "ndtr")
    whole = [0, 1, 1, 0]
    x = Tensor(whole, device=CPU).cast(dtype)
    found = Tensor.stack(*(ours(name)(x).float() for name in names)).numpy()
    half = dtype in ("float16", "bfloat16")
    for name, values in zip(names, found, strict=True):
        given = torch.tensor(whole, dtype=torch.float32 if half else getattr(torch, dtype))
        np.testing.assert_allclose(values, theirs(name)(given).numpy(), 1e-2 if half else 1e-6)
        assert ours(name)(x).dtype.name == (dtype if half else "float32")
    given = torch.tensor(whole, dtype=torch.float32 if half else getattr(torch, dtype))
    for name in ("xlogy", "xlog1py"):
        # A number may come first.
        for found, at in ((ours(name)(x, 2), (given, 2)), (ours(name)(2, x), (2, given))):
            wanted = theirs(name)(*(torch.as_tensor(a, dtype=torch.float32) for a in at))
            assert found.dtype.name == (dtype if half else "float32")
            np.testing.assert_allclose(found.float().numpy(), wanted, 1e-2 if half else 1e-6)


def test_second_derivatives_and_no_elements() -> None:
    at = rng_for("second").uniform(0.1, 0.9, 9)
    for name in ("erfcx", "erfinv", "i1"):
        x = Tensor(at, device=CPU, requires_grad=True)
        t = torch.tensor(at, requires_grad=True)
        (first,) = ours(name)(x).sum().gradient(x)
        (wanted,) = torch.autograd.grad(theirs(name)(t).sum(), t, create_graph=True)
        (second,) = first.sum().gradient(x)
        (last,) = torch.autograd.grad(wanted.sum(), t)
        np.testing.assert_allclose(second.numpy(), last.numpy(), 1e-10, 1e-13)
        assert ours(name)(Tensor.ones(2, 0)).shape == (2, 0)
    assert special.zeta(Tensor.ones(2, 0), 3).shape == (2, 0)


@pytest.mark.sampled(34)
@pytest.mark.parametrize(
    "name",
    sample(
        [n for n in DOMAINS if n.startswith(FLAT) and "_i" not in n],
        ("airy_ai", "modified_bessel_k1"),
    ),
)
def test_gradients_that_torch_has_not(name: str) -> None:
    x = Tensor(np.array([0.7, 2.5, 11.0]), device=CPU, requires_grad=True)
    if name == "airy_ai":
        with pytest.raises(Unsupported, match="airy_ai has no derivative"):
            ours(name)(x).sum().gradient(x)[0].numpy()
        return
    (slope,) = ours(name)(x).sum().gradient(x)
    step = 1e-6
    wide = x.detach()
    around = ours(name)(wide + step).numpy() - ours(name)(wide - step).numpy()
    np.testing.assert_allclose(slope.numpy(), around / (2 * step), 1e-6, 1e-8)


@pytest.mark.parametrize("eps", [None, 0.0, 0.1])
def test_the_gradient_of_logit_is_infinite_at_its_ends(eps: float | None) -> None:
    at = [0.0, 1.0, -0.5, 1.5, 0.1, 0.9, *rng_for("logit").uniform(0, 1, 9)]
    x, t = Tensor(at, device=CPU, requires_grad=True), torch.tensor(at, requires_grad=True)
    torch.logit(t, eps).sum().backward()
    found = x.logit(eps).sum().gradient(x)[0].numpy()
    np.testing.assert_allclose(found, t.grad.numpy(), 1e-5)


def test_what_has_no_derivative_says_so() -> None:
    a, x = (Tensor([2.0, 3.0], device=CPU, requires_grad=True) for _ in range(2))
    for name in ("gammainc", "gammaincc", "zeta"):
        with pytest.raises(Unsupported, match=f"{name} has no derivative by its first argument"):
            ours(name)(a, x).sum().gradient(a)
        assert ours(name)(a, x).sum().gradient(x)[0].shape == (2,)
    with pytest.raises(InvalidType, match="zeta takes a tensor, got 2, 3"):
        special.zeta(2, 3)


def test_those_over_an_axis_or_by_decimals() -> None:
    x = rng_for("axis").normal(size=(3, 4))
    o, t = Tensor(x, device=CPU), torch.tensor(x)
    for name in ("softmax", "log_softmax", "logsumexp"):
        np.testing.assert_allclose(ours(name)(o, 1).numpy(), theirs(name)(t, 1).numpy(), 1e-12)
    rounded = special.round(o, decimals=2).numpy()
    np.testing.assert_allclose(rounded, torch.special.round(t, decimals=2).numpy(), 1e-12)


def test_on_every_device(device: str) -> None:
    dtype = widest(device)
    tolerance = 3e-5 if dtype == "float32" else 1e-11
    names = ("modified_bessel_k1", "erfcx", "gammaln")
    arrays = {name: drawn(name, dtype, 5) for name in names}
    values = [ours(n)(*(Tensor(x, device=device) for x in xs)) for n, xs in arrays.items()]
    found = Tensor.stack(*values).numpy()
    for row, (name, xs) in zip(found, arrays.items(), strict=True):
        wanted = theirs(name)(*map(torch.tensor, xs)).numpy()
        np.testing.assert_allclose(row, wanted, tolerance, tolerance)


def test_the_tables_are_what_their_documentation_says() -> None:
    """Each function at a drawn place of each piece, by the wide polynomial."""
    bessel = importlib.import_module("gpu.tensor.special.tables.bessel")
    gamma = importlib.import_module("gpu.tensor.special.tables.gamma")
    functions = [
        (bessel.J0, lambda x: mpmath.besselj(0, x)),
        (bessel.Y0, lambda x: mpmath.bessely(0, x)),
        (gamma.LGAMMA, mpmath.loggamma),
        (gamma.DIGAMMA, mpmath.digamma),
        (gamma.RECIPROCAL, lambda x: mpmath.rgamma(1 + x)),
    ]
    for pieces, exact in functions:
        for piece in pieces:
            at = rng_for(piece.low).uniform(piece.low, piece.high)
            found = piece.of(Tensor([at], dtype="float64", device=CPU)).item()
            assert math.isclose(found, exact(at), rel_tol=1e-14)


@pytest.mark.parametrize("name", special.__all__)
def test_what_is_no_tensor_is_refused_by_name(name: str) -> None:
    function = getattr(special, name)
    arguments: dict[str, object] = {"n": 1, "p": 2, "dim": 0, "other": "a text"}
    needed = [
        arguments.get(each.name, "a text")
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty
    ]
    with pytest.raises(InvalidType, match="tensor, got"):
        function(*needed)
