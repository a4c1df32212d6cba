"""What a pickle holds of a tensor: its elements, and how to make the tensor again of them."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import is_shared
from gpu.core.dtype import DType, dtype_named
from gpu.core.errors import FormatError, GpuError, Unsupported
from gpu.runtime.device import Device
from gpu.runtime.execute import parts_of
from gpu.tensor.base import TensorBase
from gpu.tensor.formats.hostbytes import byte_size, tensor_over
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import refuse

_OUT_OF_BAND: Final = 5  # the first protocol whose buffers may travel beside the pickle (PEP 574)


def reduced(tensor: TensorBase, protocol: int) -> tuple[Any, ...]:
    """A function, its arguments and attributes, of which `pickle` makes the tensor again.

    Raises JitError while a function is captured, Unsupported for sizes that are variables.
    """
    refuse("pickling a tensor")
    if has_symbols(tensor.shape):
        raise Unsupported(
            f"{tensor._described()} cannot be pickled, as values of variables belong to one "
            "process: pickle what its numpy() gives"
        )
    if is_shared(tensor.device):
        raise Unsupported(
            f"{tensor._described()} cannot be pickled, as other processes have parts of it: pickle"
            " what its local() gives, or put it together with .numpy() on all ranks"
        )
    node = tensor._computed() if not isinstance(tensor.device, str) else None
    parts = [tensor] if node is None else [tensor._wrap(part) for part in parts_of(node)]
    axis = None if node is None else node.attr[0]
    distinct = parts[:1] if axis is None else parts
    data = [_bytes_of(part, protocol) for part in distinct]
    arguments = (type(tensor), tensor.shape, tensor.dtype.name, tensor.device, axis, data)
    attributes = getattr(tensor, "__dict__", None)
    return rebuilt, (*arguments, tensor.requires_grad), attributes or None


def _bytes_of(tensor: TensorBase, protocol: int) -> PickleBuffer | bytes:
    """The elements of a tensor on one device; the tensor's own memory where the host reads that."""
    lent = tensor._host_view()
    array = tensor._copied_out() if lent is None else lent
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return PickleBuffer(flat.data) if protocol >= _OUT_OF_BAND else flat.tobytes()


def rebuilt(
    kind: type[Tensor],
    shape: tuple[int, ...],
    dtype: str,
    device: str | tuple[str, ...],
    axis: int | None,
    data: list[Any],
    requires_grad: bool | None,
) -> Tensor:
    """The tensor that `reduced` was given, on the devices it was on.

    Of buffers that travelled beside the pickle the CPU uses the memory, which it does not change.

    Args:
        kind: Tensor, or a class derived from it.
        shape: sizes of the dimensions, ints.
        dtype: name of the element type.
        device: names of one or several devices.
        axis: what a tensor on several devices is cut along; None if each has all of it.
        data: the elements that each device has, or that all of them have; objects with a buffer.
        requires_grad: as `Tensor.requires_grad`.

    Raises FormatError for arguments that cannot be of a tensor's, and what opening a device raises.
    """
    if not (isinstance(kind, type) and issubclass(kind, Tensor)):
        raise FormatError(f"a pickled tensor is of the class {kind!r}: expected Tensor")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise FormatError(f"a pickled tensor has the shape {shape!r}: expected sizes in a tuple")
    if not isinstance(dtype, str) or not any(requires_grad is x for x in (None, False, True)):
        raise FormatError(
            f"a pickled tensor has the dtype {dtype!r}, requires_grad {requires_grad!r}: expected "
            "a name and None, False or True"
        )
    names = Device.canonicalize(device)
    several = () if isinstance(names, str) else names
    part = _part_shape(shape, axis, len(several))
    arrays = _arrays(data, 1 if axis is None else len(several), byte_size(part, dtype_named(dtype)))
    if not several:
        node = _node(arrays[0], part, dtype_named(dtype), names)
    else:
        sources = arrays * len(several) if axis is None else arrays
        parts = zip(sources, several, strict=True)
        nodes = [_node(array, part, dtype_named(dtype), name) for array, name in parts]
        node = G.multi(nodes, axis, shape)
    tensor = kind._wrap(node)
    tensor.requires_grad = requires_grad
    return tensor


def _part_shape(shape: tuple[int, ...], axis: int | None, count: int) -> tuple[int, ...]:
    """The shape of what one of `count` devices has; for one device, 0."""
    if axis is None:
        return shape
    if type(axis) is not int or not 0 <= axis < len(shape) or not count or shape[axis] % count:
        raise FormatError(
            f"a pickled tensor of shape {list(shape)} is cut along axis {axis!r} for {count} "
            "devices, which gives no parts of one size"
        )
    return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])


def _arrays(data: object, count: int, nbytes: int) -> list[npt.NDArray[np.uint8]]:
    """The bytes of `count` parts. Raises FormatError unless each has `nbytes`."""
    if not isinstance(data, list) or len(data) != count:
        had = (
            f"{type(data).__name__} of {len(data)}" if isinstance(data, list) else repr(type(data))
        )
        raise FormatError(f"a pickled tensor has a {had}: expected a list of {count} buffers")
    try:
        arrays = [
            np.frombuffer(part, np.uint8) if nbytes else np.empty(0, np.uint8) for part in data
        ]
    except (TypeError, ValueError, BufferError) as error:
        raise FormatError(f"a pickled tensor has elements that are no buffer: {error}") from error
    for array in arrays:
        if array.size != nbytes:
            raise FormatError(f"a pickled tensor has {array.size:,} bytes instead of {nbytes:,}")
    return arrays


def _node(data: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: DType, device: str) -> Node:
    try:
        Device[device]
    except GpuError as error:
        error.add(
            f"a pickled tensor was on {device}: for machines that have none, pickle its .to('CPU')"
        )
        raise
    return tensor_over(data, shape, dtype, device)._node
