"""`gpu.save` and `gpu.load`: files of tensors, by the suffix of their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from gpu.core.errors import InvalidType, InvalidValue
from gpu.tensor.formats import numpy as numpy_files
from gpu.tensor.formats.gguf import gguf_load
from gpu.tensor.formats.safetensors import safe_load, safe_save
from gpu.tensor.formats.torch import torch_load
from gpu.tensor.tensor import Tensor

Path = str | os.PathLike[str]

_TORCH: Final = (".pt", ".pth", ".bin", ".ckpt")
_READ: Final = (".safetensors", ".npy", ".npz", ".gguf", *_TORCH)
_WRITTEN: Final = _READ[:3]


def save(value: Tensor | Mapping[str, Tensor], path: Path) -> None:
    """Writes a tensor, or tensors by name, to a file, which is there whole or not at all.

    By the suffix of `path` it is .safetensors or .npz, of tensors by name, or .npy, of one.

    Raises:
        InvalidValue: another suffix, or a name that the format cannot have.
        InvalidType: one tensor where there should be several by name, or the other way round, or
            a path that is none.
        DTypeError: bfloat16 or fp8 in numpy's files.

    >>> import gpu, tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "w.npz")
    ...     gpu.save({"w": gpu.Tensor([1, 2])}, path)
    ...     gpu.load(path)["w"].tolist()
    [1, 2]
    """
    suffix = _suffix(path)
    if suffix not in _WRITTEN:
        raise InvalidValue(f"{suffix} files are read only here; use one of {', '.join(_WRITTEN)}")
    if suffix == ".npy":
        if not isinstance(value, Tensor):
            raise InvalidType(f"a .npy file is one tensor, got {type(value).__name__}; use .npz")
        numpy_files.npy_save(value, path)
        return
    wrong = _no_tensor_by_name(value) if isinstance(value, Mapping) else type(value).__name__
    if not isinstance(value, Mapping) or wrong:
        raise InvalidType(
            f"a {suffix} file is tensors by name, as in {{'weight': x}} and what "
            f"gpu.nn.state.get_state_dict gives; got {wrong}"
        )
    if suffix == ".npz":
        numpy_files.npz_save(value, path)
    else:
        safe_save(dict(value), path)


def _no_tensor_by_name(value: Mapping[str, Tensor]) -> str:
    """What among values by name is no tensor with a name, in words; empty where all are."""
    for name, tensor in value.items():
        if not isinstance(name, str):
            return f"the name {name!r}, which is no str"
        if not isinstance(tensor, Tensor):
            return f"{type(tensor).__name__} {tensor!r} under {name!r}"
    return ""


def load(path: Path, device: str | None = None) -> Any:
    """What a file of tensors holds: .safetensors, .npz and .gguf by name, .npy one tensor.

    Of a .gguf file `gpu.nn.state.gguf_load` gives the metadata besides.
    .pt, .pth, .bin and .ckpt are checkpoints of torch's, of which nothing is executed: what they
    hold, with tensors of this package. Files are not trusted.

    Raises InvalidValue for another suffix, InvalidType for a path that is none, FormatError for a
    malformed file, OSError as the system does.
    """
    match _suffix(path):
        case ".safetensors":
            return safe_load(path, device)
        case ".npy":
            return numpy_files.npy_load(path, device)
        case ".npz":
            return numpy_files.npz_load(path, device)
        case ".gguf":
            return gguf_load(path, device).tensors
    return torch_load(path, device)


def _suffix(path: Path) -> str:
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str):
        raise InvalidType(f"a file is named by a str or a pathlib.Path, got {path!r}")
    if "\0" in name:
        raise InvalidValue(f"{name!r} has a NUL, which no file's name has")
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _READ:
        raise InvalidValue(
            f"{name!r}: the suffix says what a file is; it must be one of {', '.join(_READ)}"
        )
    return suffix
