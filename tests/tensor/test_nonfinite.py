"""``CHECK=nan``: the operation, the place and the line that made a NaN or an infinity."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import gpu
from gpu import Context, Tensor
from gpu.core.errors import NonFinite


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with Context(CHECK="nan"):
        yield


def tensor(values: object, device: str) -> Tensor:
    return Tensor(np.asarray(values, np.float32), device=device).realize()


def told(error: pytest.ExceptionInfo[NonFinite]) -> str:
    return "\n".join([str(error.value), *error.value.__notes__])


@pytest.mark.parametrize("seed", range(5))
def test_the_first_of_fused_operations(device: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 9, 3))
    values = rng.uniform(0.5, 2, shape).astype(np.float32)
    place = tuple(int(rng.integers(n)) for n in shape)
    values[place] = 0
    x = tensor(values, device)
    with pytest.raises(NonFinite) as caught:
        a = x * 3
        b = 1 / a
        c = (b - 2).sum(1)
        (c * c).mean().item()
    assert f"at {list(place)} of float32 {list(shape)}; 1 of {x.numel()}" in told(caught)
    assert re.match(r"div of 1\.0, 0\.0: the operation gave inf", str(caught.value))
    assert "b = 1 / a" in told(caught)


def test_it_is_an_arithmetic_error(device: str) -> None:
    with pytest.raises(FloatingPointError):
        (tensor([1.0, -1.0], device).sqrt() + 1).tolist()


def test_reductions(device: str) -> None:
    with pytest.raises(NonFinite, match=r"reduction add over axes \[1\].*at \[1, 0\]"):
        tensor([[1, 2], [3e38, 3e38]], device).sum(1).tolist()


def test_a_nan_of_infinities_is_made(device: str) -> None:
    rows = tensor([[0, 1], [-np.inf, -np.inf]], device)
    with pytest.raises(NonFinite, match=r"sub of -inf, -inf: .* nan at \[1, 0\]"):
        rows.softmax(1).tolist()


def test_what_was_given_may_be_infinite(device: str) -> None:
    x = tensor([[0, -np.inf], [np.nan, 2]], device)
    assert np.isnan((x * 2)[1, 0].item()) and (x + 1)[0, 1].item() == -np.inf
    np.testing.assert_allclose(x[:1].softmax(1).tolist(), [[1, 0]])
    assert float(x.isnan().sum().item()) == 1


def test_what_is_not_taken_may_be_bad(device: str) -> None:
    x = tensor([4, -4], device)
    assert Tensor.where(x > 0, x.sqrt(), 0.0).tolist() == [2, 0]


def test_behind_one_that_is_not_taken(device: str) -> None:
    x = tensor([4, -4], device)
    roots = Tensor.where(x > 0, x.sqrt(), 0.0)
    with pytest.raises(NonFinite, match=r"div of 8\.0, 0\.0: .* inf at \[1\]"):
        (8 / roots).sum().item()


def test_gradients_and_optimizers(device: str) -> None:
    w = tensor([4, 0], device)
    w.requires_grad = True
    w.sqrt().sum().backward()
    with pytest.raises(NonFinite, match=r"0\.0: .*inf at"):
        w.grad.tolist()


def test_jitted_functions_are_looked_into(device: str) -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        y = x.log()
        return (y + 1).sum()

    with Context(CHECK="0"):
        for value in (1, 2, 3):
            f(tensor([value], device)).item()
    with pytest.raises(NonFinite) as caught:
        f(tensor([0], device)).item()
    assert "y = x.log()" in told(caught)


def test_values_written_in_place_are_found_again(device: str) -> None:
    x = tensor([1, 2, 3], device)
    x *= 2
    x /= tensor([1, 0, 1], device)
    with pytest.raises(NonFinite, match=r"div of 4\.0, 0\.0"):
        x.tolist()


def test_the_value_can_be_looked_at_afterwards(device: str) -> None:
    y = tensor([1, 0], device).log()
    with pytest.raises(NonFinite):
        y.realize()
    assert y.tolist() == [0, -np.inf]


def test_narrow_floats(device: str) -> None:
    x = Tensor(np.asarray([300, 2], np.float16), device=device).realize()
    with pytest.raises(NonFinite, match=r"mul of 300\.0, 300\.0: .* inf at \[0\] of float16"):
        (x * x).tolist()


def test_nothing_is_looked_for_by_default(device: str) -> None:
    with Context(CHECK="0"):
        assert tensor([0], device).log().tolist() == [-np.inf]
    with Context(CHECK="index"):
        assert tensor([0], device).log().tolist() == [-np.inf]
