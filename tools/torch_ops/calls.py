"""How a call of torch's is written here: what has its name, and what its arguments become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

import gpu
import gpu.fft
import gpu.linalg
import gpu.nn.functional
import gpu.signal
import gpu.special
from gpu import Tensor

Call = Callable[..., Any]
_OF_MEMORY: Final = ("memory_format", "layout", "pin_memory", "non_blocking", "device")
"""Keywords that say where values lie, and nothing of them."""


def unpacked(name: str) -> Call:
    """A function of a sequence of tensors, which here are as many arguments."""
    method = getattr(Tensor, name)

    def called(tensors: Any, *dim: int, **options: Any) -> Any:
        if isinstance(tensors, (list, tuple)):
            return method(*tensors, **dict(zip(("dim",), dim, strict=False)), **options)
        return method(tensors, *dim, **options)

    return called


def drawn(name: str) -> Call:
    """A distribution, which is written into what is given."""
    method = getattr(Tensor, f"{name}_")

    def called(x: Tensor, *parameters: float, **options: Any) -> Any:
        return method(x.clone(), *parameters, **options)

    return called


_WRITTEN: Final[Mapping[str, Call]] = {
    "max/binary": Tensor.maximum,
    "min/binary": Tensor.minimum,
    "where": lambda value, condition, other: condition.where(value, other),
    "einsum": lambda tensors, formula: Tensor.einsum(formula, *tensors),
    "nn.functional.embedding": lambda table, at, **options: gpu.nn.functional.embedding(
        at, table, **options
    ),
    "nn.functional.embedding_bag": lambda table, at, **options: gpu.nn.functional.embedding_bag(
        at, table, **options
    ),
    "special.polygamma": lambda x, n: gpu.special.polygamma(n, x),
    "linalg.pinv/singular": lambda a, b: gpu.linalg.pinv(a @ b.mT),
    "linalg.lstsq/grad_oriented": lambda *args, **options: gpu.linalg.lstsq(*args, **options)[:2],
    "stft": gpu.fft.stft,
} | {
    name: getattr(gpu.linalg, name)
    for name in (
        *("cholesky_inverse", "cholesky_solve", "logdet", "lu_unpack", "matrix_exp", "ormqr"),
        *("pca_lowrank", "svd_lowrank"),
    )
} | {
    name: unpacked(name)
    for name in (
        *("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "block_diag", "meshgrid"),
        *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors"),
    )
} | {
    name: drawn(name)
    for name in ("cauchy", "exponential", "geometric", "log_normal", "uniform")
} | {
    "normal/in_place": drawn("normal"),
}  # fmt: skip
"""What is written in another way here."""


def counterpart(name: str, full_name: str) -> Call | None:
    """What is called here for an operation of torch's; None where nothing has its name.

    `full_name` has the variant too that torch tests apart.
    """
    if found := _WRITTEN.get(full_name) or _WRITTEN.get(name):
        return found
    *path, last = name.split(".")
    if path[:1] == ["nn"]:
        return getattr(gpu.nn.functional, last, None)
    place: Any = gpu if path else Tensor
    for part in (*path, last):
        place = getattr(place, part, None)
    if isinstance(place, property):
        return place.fget
    return place if path or place else getattr(gpu, last, None)


class Arguments:
    """Torch's arguments as ours: each of its tensors becomes one on a device, once."""

    def __init__(self, device: str):
        """`device` is where they are put."""
        self._device = device
        self._made: dict[int, tuple[torch.Tensor, Tensor]] = {}

    @property
    def wanting(self) -> list[tuple[torch.Tensor, Tensor]]:
        """Those that want gradients: torch's, and ours."""
        return [pair for pair in self._made.values() if pair[0].requires_grad]

    def of(self, what: Any) -> Any:
        """The same with tensors of ours, whatever holds them."""
        if isinstance(what, torch.Tensor):
            return self._tensor(what)
        if isinstance(what, torch.dtype):
            return str(what).removeprefix("torch.")
        if isinstance(what, (list, tuple)):
            return (list if type(what) is list else tuple)(self.of(one) for one in what)
        if isinstance(what, dict):
            return {k: self.of(v) for k, v in what.items() if k not in _OF_MEMORY}
        return what

    def _tensor(self, theirs: torch.Tensor) -> Tensor:
        if id(theirs) not in self._made:
            ours = Tensor(to_numpy(theirs), device=self._device)
            if theirs.dtype == torch.bfloat16:
                ours = ours.cast("bfloat16")
            ours.requires_grad = theirs.requires_grad
            self._made[id(theirs)] = theirs, ours
        return self._made[id(theirs)][1]


def to_numpy(theirs: torch.Tensor) -> npt.NDArray[Any]:
    """The values of a tensor of torch's; those of bfloat16 as float32."""
    values = theirs.detach().resolve_conj().resolve_neg()
    wide = values.float() if values.dtype == torch.bfloat16 else values
    return np.array(wide.numpy(force=True))
