"""What to write here for names that torch has and this package does not.

The tables are read where an attribute is missing, to say so in the error; nothing is translated.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

TENSOR: Final[Mapping[str, str]] = {
    "cuda": "to(device)",
    "data_ptr": "__array__, DLPack or data()",
    "from_numpy": "Tensor(array)",
    "is_cuda": "device",
    "type": "cast()",
}
"""For attributes of tensors."""
PACKAGE: Final[Mapping[str, str]] = {
    "compile": "gpu.jit",
    "device": "a device is named by a str, as in Tensor.ones(3, device='CPU')",
    "from_numpy": "gpu.Tensor(array)",
    "inference_mode": "gpu.Tensor.no_grad",
    "optim": "gpu.nn.optim",
    "set_num_threads": "CPU_THREADS in the environment",
    **{
        name: f"gpu.func.{name}"
        for name in ("hessian", "jacfwd", "jacrev", "jvp", "value_and_grad", "vjp", "vmap")
    },
}
"""For attributes of the package `gpu`, beside what tensors and dtypes have."""
NN: Final[Mapping[str, str]] = {
    "Parameter": "a Tensor with requires_grad=True; optimisers take any tensor",
}
"""For attributes of `gpu.nn`, beside layers that are methods of tensors here."""


def missing_from_tensor(name: str, known: Iterable[str]) -> str:
    """Why a tensor has no attribute `name`; `known` are those that it has."""
    return _told("a Tensor", name, TENSOR.get(name) or _in_place(name, set(known)), known)


def missing_from_package(name: str, tensor: Iterable[str], dtypes: Iterable[str]) -> str:
    """Why `gpu` has no attribute `name`; given are those of Tensor and of `gpu.dtypes`."""
    instead = PACKAGE.get(name)
    if instead is None and name in tensor:
        instead = f"gpu.Tensor.{name}"
    if instead is None and name in dtypes:
        instead = f"gpu.dtypes.{name}"
    return _told("module 'gpu'", name, instead, ())


def missing_from_nn(name: str, tensor: Iterable[str], known: Iterable[str]) -> str:
    """Why `gpu.nn` has no attribute `name`; given are those of Tensor and its own."""
    methods = {method.replace("_", ""): method for method in tensor}
    method = methods.get(name.lower())
    return _told("module 'gpu.nn'", name, NN.get(name) or (method and f"Tensor.{method}"), known)


def missing_from_functional(name: str, tensor: Iterable[str], known: Iterable[str]) -> str:
    """Why `gpu.nn.functional` has no attribute `name`; given are those of Tensor and its own."""
    instead = f"Tensor.{name}" if name in set(tensor) else None
    return _told("module 'gpu.nn.functional'", name, instead, known)


def _in_place(name: str, known: set[str]) -> str | None:
    """For torch's methods in place that change the shape, as t_."""
    plain = name.removesuffix("_")
    return f"x = x.{plain}(...)" if plain in known - {name} else None


def _told(owner: str, name: str, instead: str | None, known: Iterable[str]) -> str:
    text = f"{owner} has no attribute {name!r}"
    if instead is not None:
        return f"{text}; here it is: {instead}"
    near = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], n=1)
    return f"{text}; did you mean {near[0]}?" if near else text
