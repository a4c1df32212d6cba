"""One call by this package and by torch: values, dtypes, shapes and gradients."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

import gpu
from gpu import Tensor, dtypes, nn, special
from gpu.core.errors import GpuError
from gpu.nn import functional
from tools.torch_names.operands import Array, drawn, operands, rng_for
from tools.torch_names.rows import Row
from tools.torch_ops.calls import unpacked

# Relative, and absolute: sums go in another order, and special functions are rounded otherwise.
TOLERANCES: Final = {
    "float64": (1e-9, 1e-9), "float32": (2e-4, 1e-4), "float16": (2e-2, 2e-2),
    "bfloat16": (1e-1, 1e-1), "complex64": (2e-4, 1e-4), "complex128": (1e-9, 1e-9),
}  # fmt: skip
_WHOLE: Final = ("float32", "float64", "int32", "uint8")
_FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
_OF_FLOATS: Final = ("nn", "losses", "layers", "special")
# Gradients that torch has wrong: 0 of negative powers, of what stays as it is, and through bools.
_WRONG_IN_TORCH: Final = {
    "ldexp", "ldexp_", "as_strided_scatter", "logical_and_", "logical_not_", "logical_or_",
    "logical_xor_",
}  # fmt: skip
_JOINING: Final = frozenset(
    [
        "cat",
        "concat",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "row_stack",
    ]
)


def dtypes_of(row: Row) -> tuple[str, ...]:
    """The four dtypes that a row is tried in."""
    return _FLOATS if row.family in _OF_FLOATS else _WHOLE


class _Ours:
    """The methods of tensors as functions, those that join taking a sequence, as torch's do."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(
            gpu.dtypes if name.startswith("float") and "_" not in name else Tensor, name
        )
        if name in _JOINING:
            return unpacked(name)
        return function


def _names(ours: bool) -> dict[str, Any]:
    if ours:
        return {
            "T": _Ours(),
            "F": functional,
            "S": special,
            "W": gpu.signal.windows,
            "nn": nn,
            "math": math,
        }
    return {
        "T": torch, "F": torch.nn.functional, "S": torch.special, "W": torch.signal.windows,
        "nn": torch.nn, "math": math,
    }  # fmt: skip


def as_torch(x: Array, requires_grad: bool = False) -> Any:
    """The array as a tensor of torch's; numpy knows bfloat16 by ml_dtypes alone."""
    if x.dtype.name == "bfloat16":
        return torch.tensor(x.astype("float32")).bfloat16().requires_grad_(requires_grad)
    return torch.tensor(x, requires_grad=requires_grad)


def evaluate(call: str, given: Mapping[str, Any], ours: bool, layer: Any = None) -> Any:
    """The call's value; a layer is called on what stands behind its ``@``."""
    names = {**_names(ours), **given, "n": int(given["n"].item()) if "n" in given else 0}
    if layer is None:
        return eval(call, names)
    return layer(*eval(f"({call.partition(' @ ')[2]},)", names))


def layers(call: str, dtype: str, given: Mapping[str, Array]) -> tuple[Any, Any]:
    """Torch's layer and ours, with the same parameters; None for what is no layer."""
    if " @ " not in call:
        return None, None
    torch.manual_seed(0)
    made = call.partition(" @ ")[0]
    names = {name: as_torch(x) for name, x in given.items()}
    theirs = evaluate(made, names, ours=False).to(getattr(torch, dtype))
    ours = evaluate(made, {name: Tensor(x) for name, x in given.items()}, ours=True)
    if isinstance(ours, nn.Module):
        ours.to(dtype=dtype)
    state = {name: Tensor(value.detach()) for name, value in theirs.state_dict().items()}
    if state:
        nn.state.load_state_dict(ours, state, strict=True, verbose=False)
    for layer in (theirs, ours):
        if not isinstance(ours, nn.Module) or not hasattr(layer, "eval"):
            continue
        layer.train(made.startswith(("nn.Batch", "nn.Linear")))
    return theirs, ours


def parts(value: Any) -> list[Any]:
    """The tensors and numbers of a value."""
    if isinstance(value, (tuple, list)):
        return [part for each in value for part in parts(each)]
    return [] if value is None else [value]


def _array(x: Any) -> Array:
    if isinstance(x, torch.Tensor):
        x = x.detach().resolve_conj().resolve_neg()
        return (x.float() if x.dtype is torch.bfloat16 else x).numpy(force=True)
    if isinstance(x, Tensor):
        return x.cast(dtypes.float32).numpy() if x.dtype is dtypes.bfloat16 else x.numpy()
    return np.asarray(x)


def _kind(x: Any) -> str:
    return (
        str(x.dtype).removeprefix("torch.").removeprefix("dtypes.")
        if hasattr(x, "dtype")
        else type(x).__name__
    )


_SHORT: Final = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "uchar": "uint8",
}


def _close(found: Any, wanted: Any, what: str, looser: float = 1) -> None:
    ours, theirs = _array(found), _array(wanted)
    if ours.shape != theirs.shape:
        raise AssertionError(f"{what}: shape {ours.shape}, torch's {theirs.shape}")
    mine, other = (_SHORT.get(_kind(x), _kind(x)) for x in (found, wanted))
    if mine != other:
        raise AssertionError(f"{what}: {mine}, torch's {other}")
    relative, absolute = TOLERANCES.get(other, (0, 0))
    np.testing.assert_allclose(
        ours, theirs, relative * looser, absolute * looser, equal_nan=True, err_msg=what
    )


def compare(row: Row, dtype: str, number: int = 0) -> bool:
    """Whether torch takes this dtype there; what differs is an AssertionError.

    Where torch refuses, ours may compute or refuse by a type of `gpu.core.errors`.
    """
    rng = rng_for(row, dtype, number)
    call, arrays = drawn(row.call, rng), operands(row.family, rng, dtype)
    try:
        layer, mine = layers(call, dtype, arrays) if row.family == "layers" else (None, None)
        wanted = evaluate(call, {n: as_torch(x) for n, x in arrays.items()}, False, layer)
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, GpuError):
            raise
        with contextlib.suppress(GpuError):
            evaluate(call.partition(" @ ")[0], {n: Tensor(x) for n, x in arrays.items()}, True)
        return False
    found = evaluate(call, {n: Tensor(x) for n, x in arrays.items()}, True, mine)
    ours, theirs = parts(found), parts(wanted)
    if len(ours) != len(theirs):
        raise AssertionError(f"{call}: {len(ours)} results, torch's {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        _close(one, other, f"{call} of {dtype}")
    return True


def compare_gradients(row: Row, number: int = 0) -> bool:
    """Whether torch has gradients there, of float64; what differs is an AssertionError."""
    rng = rng_for(row, "gradients", number)
    call, arrays = drawn(row.call, rng), operands(row.family, rng, "float64")
    if row.name in _WRONG_IN_TORCH:
        return False
    floats = [name for name, x in arrays.items() if x.dtype == np.float64]
    theirs = {n: as_torch(x, n in floats) for n, x in arrays.items()}
    try:
        layer, mine = layers(call, "float64", arrays) if row.family == "layers" else (None, None)
        outs = [
            o
            for o in parts(evaluate(call, theirs, False, layer))
            if isinstance(o, torch.Tensor) and o.requires_grad
        ]
        seeds = [rng.uniform(-1, 1, tuple(o.shape)) for o in outs]
        total = sum((o * as_torch(s)).sum() for o, s in zip(outs, seeds, strict=True))
        if not outs or not total.requires_grad:
            return False
        total.backward()
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, GpuError):
            raise
        return False
    ours = {n: Tensor(x, requires_grad=(n in floats) or None) for n, x in arrays.items()}
    found = [
        o
        for o in parts(evaluate(call, ours, True, mine))
        if isinstance(o, Tensor) and o.dtype.is_float
    ]
    whole = sum(
        ((o * Tensor(s)).sum() for o, s in zip(found[1:], seeds[1:], strict=False)),
        (found[0] * Tensor(seeds[0])).sum(),
    )
    named = [n for n in floats if theirs[n].grad is not None]
    if named:
        grads = whole.gradient(*(ours[n] for n in named), materialize_grads=True)
        for name, grad in zip(named, grads, strict=True):
            _close(grad, theirs[name].grad, f"the gradient of {call} by {name}", 100)
    return True
