"""Whether what we give is what torch gives: values, dtypes, shapes, and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from gpu import Tensor

from .calls import Arguments, to_numpy

RANDOM: Final = frozenset(
    (
        *(
            "bernoulli",
            "empty",
            "empty_like",
            "multinomial",
            "rand_like",
            "randint",
            "randint_like",
        ),
        *("randn", "randn_like", "normal", "uniform", "new_empty", "cauchy", "exponential"),
        *("geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d"),
        *("nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.rrelu"),
        *("nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d"),
        *("nn.functional.fractional_max_pool3d", "normal.in_place"),
    )
)
"""Operations of which shapes and dtypes are compared alone."""
_TOLERANCE: Final = {"float16": 3e-3, "bfloat16": 3e-2, "float64": 1e-7, "complex128": 1e-7}


def difference(name: str, ours: Any, theirs: Any) -> str:
    """In what the results of an operation differ; empty where they do not."""
    mine, wanted = list(_leaves(ours)), list(_leaves(theirs))
    if len(mine) != len(wanted):
        return f"{len(mine)} results for {len(wanted)}"
    decomposed = _PRODUCTS.get(name)
    for one, other in zip(mine, wanted, strict=True):
        free = name in RANDOM or decomposed is not None
        if found := _of_values(one, other, compares=not free):
            return found
    if decomposed and wanted[0].numel():
        back, wanted_back = (decomposed(*map(_array, each)) for each in (mine, wanted))
        if not np.allclose(back, wanted_back, rtol=1e-3, atol=1e-3):
            return "their product is another matrix"
    return ""


def gradient_difference(arguments: Arguments, ours: Any, theirs: Any) -> str:
    """In what gradients differ of a sum of the results' elements, each times a weight."""
    wanted = [o for o in _leaves(theirs) if isinstance(o, torch.Tensor) and o.requires_grad]
    mine = [
        o
        for o, e in zip(_leaves(ours), _leaves(theirs), strict=True)
        if isinstance(e, torch.Tensor) and e.requires_grad
    ]
    pairs = arguments.wanting
    if not wanted or not pairs:
        return ""
    weights = [torch.randn_like(one) for one in wanted]
    inputs = [theirs for theirs, _ in pairs]
    try:
        expected = torch.autograd.grad(wanted, inputs, weights, allow_unused=True)
    except RuntimeError:  # torch has none, as of what depends on the phase of a vector
        return ""
    total = sum(
        (
            _real(one * Tensor(to_numpy(w.conj()))).sum()
            for one, w in zip(mine, weights, strict=True)
        ),
        start=Tensor(0.0, dtype="float64"),
    )
    found = total.gradient(*(tensor for _, tensor in pairs), materialize_grads=True)
    for (input_, _), gradient, right in zip(pairs, found, expected, strict=True):
        there = np.zeros(input_.shape) if right is None else to_numpy(right)
        if why := _unequal(gradient.numpy(), there, 1e-5):
            return f"gradient of {tuple(input_.shape)}: {why}"
    return ""


def _real(tensor: Tensor) -> Tensor:
    return tensor.real if tensor.dtype.is_complex else tensor


def _leaves(what: Any) -> Iterator[Any]:
    if isinstance(what, (list, tuple)):
        for one in what:
            yield from _leaves(one)
    else:
        yield what


def _of_values(ours: Any, theirs: Any, *, compares: bool) -> str:
    if not isinstance(theirs, torch.Tensor):
        return "" if ours == theirs or not compares else f"{ours!r}, not {theirs!r}"
    if not isinstance(ours, Tensor):
        return f"a {type(ours).__name__}"
    if tuple(ours.shape) != tuple(theirs.shape):
        return f"shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
    dtype = str(theirs.dtype).removeprefix("torch.")
    if ours.dtype.name != dtype:
        return f"{ours.dtype.name}, not {dtype}"
    return _unequal(_array(ours), _array(theirs), _TOLERANCE.get(dtype, 1e-4)) if compares else ""


def _array(tensor: Tensor | torch.Tensor) -> npt.NDArray[Any]:
    return to_numpy(tensor) if isinstance(tensor, torch.Tensor) else tensor.numpy()


def _unequal(ours: npt.NDArray[Any], theirs: npt.NDArray[Any], tolerance: float) -> str:
    """What is unequal, by a tolerance that is relative and absolute."""
    with np.errstate(all="ignore"):
        wrong = ~np.isclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not wrong.any():
        return ""
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return f"{wrong.sum()} of {wrong.size} elements, {ours[first]} for {theirs[first]}"


def _of_svd(u: Any, s: Any, v: Any) -> npt.NDArray[Any]:
    return (u[..., : s.shape[-1]] * s[..., None, :]) @ v[..., : s.shape[-1], :]


def _of_svd_with_v(u: Any, s: Any, v: Any) -> npt.NDArray[Any]:
    return _of_svd(u, s, np.conj(np.swapaxes(v, -1, -2)))


def _of_eigh(w: Any, v: Any) -> npt.NDArray[Any]:
    return (v * w[..., None, :]) @ np.conj(np.swapaxes(v, -1, -2))


def _of_eig(w: Any, v: Any) -> npt.NDArray[Any]:
    return (v * w[..., None, :]) @ np.linalg.inv(v)


_PRODUCTS: Final[dict[str, Any]] = {
    "linalg.eig": _of_eig,
    "linalg.eigh": _of_eigh,
    "linalg.svd": _of_svd,
    "svd": _of_svd_with_v,
}
"""Decompositions that are many: the matrices are compared that they make."""
UNDETERMINED: Final = RANDOM.union(_PRODUCTS)
"""Operations whose gradients hang on what is drawn, or chosen among decompositions."""
