"""The tensors a model is made of, by name, and how they take other values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from gpu.compiler.ir.graph import Node
from gpu.core.errors import InvalidType, InvalidValue
from gpu.core.log import get_logger
from gpu.runtime.execute import realize
from gpu.tensor.base import TensorBase
from gpu.tensor.copying import own_memory
from gpu.tensor.formats.archive import tar_extract, zip_extract
from gpu.tensor.formats.gguf import GgufFile, gguf_load
from gpu.tensor.formats.safetensors import (
    SafeMetadata,
    TensorInfo,
    safe_load,
    safe_load_metadata,
    safe_save,
)
from gpu.tensor.formats.torch import torch_load
from gpu.tensor.jitobject import JitObject
from gpu.tensor.tensor import Tensor

__all__ = [
    "GgufFile",
    "SafeMetadata",
    "TensorInfo",
    "get_parameters",
    "get_state_dict",
    "gguf_load",
    "load_state_dict",
    "safe_load",
    "safe_load_metadata",
    "safe_save",
    "tar_extract",
    "torch_load",
    "zip_extract",
]

_log = get_logger(__name__)

# Values that have attributes but are no part of a model's state.
_OPAQUE: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


K = TypeVar("K")


@runtime_checkable
class NamesParts(Protocol):
    """An object that says itself what it consists of, in place of its attributes."""

    def named_parts(self) -> Iterable[tuple[str, object]]:
        """The parts, with the names that they have in state dicts."""
        ...


def get_state_dict(obj: object, prefix: str = "") -> dict[str, Tensor]:
    """The tensors in an object, by dotted name, in the order they are found.

    Looks into attributes, lists, tuples and dicts, each of which adds its name, index or key; a
    class with a method `named_parts` gives (name, part) pairs in place of its attributes. A
    tensor that is found in two places has two names; an object inside itself is looked at once.

    Args:
        obj: a model, an optimiser, a container or a tensor.
        prefix: what all names begin with.

    Raises InvalidValue where two different tensors would have one name.

    >>> from gpu import Tensor
    >>> sorted(get_state_dict({"layer": [Tensor([1.0]), Tensor([2.0])]}, "net"))
    ['net.layer.0', 'net.layer.1']
    """
    result: dict[str, Tensor] = {}
    for name, tensor in found_in(obj, Tensor, prefix.strip(".")):
        if result.setdefault(name, tensor) is not tensor:
            raise InvalidValue(
                f"two tensors would be called {name!r}: rename one of the attributes or keys"
            )
    return result


def get_parameters(obj: object) -> list[Tensor]:
    """The tensors in an object, each once, as `get_state_dict` finds them."""
    return list({id(tensor): tensor for tensor in get_state_dict(obj).values()}.values())


def found_in(obj: object, kind: type[K], name: str = "") -> Iterator[tuple[str, K]]:
    """The objects of a class in `obj`, itself too, with their dotted names."""
    yield from _found_in(obj, kind, name, set())


def _found_in(obj: object, kind: type[K], name: str, path: set[int]) -> Iterator[tuple[str, K]]:
    """`path` holds the identities of the objects that `obj` is in."""
    if id(obj) in path:
        return
    if isinstance(obj, kind):
        yield name, obj
    if isinstance(obj, Tensor):
        return
    path.add(id(obj))
    for key, value in parts_of(obj):
        yield from _found_in(value, kind, f"{name}.{key}" if name else key, path)
    path.remove(id(obj))


def parts_of(obj: object) -> Iterator[tuple[str, object]]:
    """What an object consists of, with the names of the parts."""
    if isinstance(obj, NamesParts):
        yield from obj.named_parts()
    elif isinstance(obj, Mapping):
        yield from ((str(key), value) for key, value in obj.items())
    elif isinstance(obj, tuple) and hasattr(obj, "_fields"):  # a named tuple
        yield from zip(obj._fields, obj, strict=True)
    elif isinstance(obj, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(obj))
    elif isinstance(obj, JitObject):
        yield "function", obj.function  # what it has captured is no state
    elif not isinstance(obj, _OPAQUE):
        yield from getattr(obj, "__dict__", {}).items()
        yield from _slots(obj)


def _slots(obj: object) -> Iterator[tuple[str, object]]:
    for owner in type(obj).__mro__:
        names = owner.__dict__.get("__slots__", ())
        for slot in (names,) if isinstance(names, str) else names:
            if slot not in ("__dict__", "__weakref__") and hasattr(obj, slot):
                yield slot, getattr(obj, slot)


class _Fit(NamedTuple):
    """How a state dict and a model go together: names, and a line for each that does not fit."""

    shared: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]


def load_state_dict(
    model: object, state_dict: Mapping[str, Tensor], strict: bool = True, verbose: bool = False
) -> None:
    """Gives the tensors of a model the values in a state dict, in memory of their own.

    Values are converted to the dtype and device of the model's tensor. A tensor that has several
    names in the model needs one of them (safetensors files keep one); if more are given, the last
    in the model's order counts. Nothing is changed unless everything fits.

    Args:
        model: what `get_state_dict` is called on to find the tensors to change.
        state_dict: the values by the same names.
        strict: whether names that only one side has are an error, or left alone.
        verbose: whether each tensor, and each name left alone, is logged (level INFO).

    Raises:
        InvalidType: a value is not a tensor.
        InvalidValue: names or shapes do not fit; the message lists all of them.

    >>> from gpu import Tensor
    >>> model = {"weight": Tensor([0.0, 0.0])}
    >>> load_state_dict(model, {"weight": Tensor([1, 2])})
    >>> model["weight"].tolist()
    [1.0, 2.0]
    """
    targets = get_state_dict(model)
    fit = _compare(targets, state_dict)
    if fit.mismatched or (strict and (fit.missing or fit.unexpected)):
        raise InvalidValue(_misfit(fit, strict))
    if verbose:
        _log.info("not in the state dict: %s", ", ".join(fit.missing) or "none")
        _log.info("not in the model: %s", ", ".join(fit.unexpected) or "none")
    nodes = _own_copies([(targets[name], state_dict[name]) for name in fit.shared])
    for name, node in zip(fit.shared, nodes, strict=True):
        targets[name]._replace(node)
        if verbose:
            _log.info("%s: %s", name, targets[name])


def _compare(targets: Mapping[str, Tensor], state_dict: Mapping[str, Tensor]) -> _Fit:
    fit = _Fit([], [], [name for name in state_dict if name not in targets], [])
    given = {id(tensor) for name, tensor in targets.items() if name in state_dict}
    for name, tensor in targets.items():
        value = state_dict.get(name)
        if value is None:
            if id(tensor) not in given:
                fit.missing.append(name)
        elif not isinstance(value, TensorBase):
            raise InvalidType(
                f"state dict entry {name!r} is a {type(value).__name__}; pass a Tensor"
            )
        elif value.shape != tensor.shape:
            fit.mismatched.append(
                f"{name}: {list(value.shape)} given, the model has {list(tensor.shape)}"
            )
        else:
            fit.shared.append(name)
    return fit


def _misfit(fit: _Fit, strict: bool) -> str:
    lines = ["the state dict does not fit the model; nothing was changed"]
    if strict and fit.missing:
        lines.append(f"missing from the state dict: {', '.join(fit.missing)}")
    if strict and fit.unexpected:
        lines.append(f"not in the model: {', '.join(fit.unexpected)}")
    if fit.mismatched:
        lines.append("other shapes: " + "; ".join(fit.mismatched))
    if not fit.mismatched:
        lines.append("strict=False leaves such names alone")
    return "\n  ".join(lines)


def _own_copies(pairs: list[tuple[Tensor, Tensor]]) -> list[Node]:
    """For each (target, value), the converted value in a buffer that nothing else stands for.

    A value's own buffer would do until someone asks both tensors for gradients, or writes to one.
    """
    converted = [value.cast(target.dtype).shard_like(target)._node for target, value in pairs]
    return [own_memory(node) for node in realize(converted)]
