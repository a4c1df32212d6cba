"""Device memory shared in place with other libraries of the process; see `gpu.runtime.exchange`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

from gpu.compiler.ir.dims import bound, upper_shape
from gpu.compiler.ir.graph import Node, Place, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.devspec import device_name, parse_device_name
from gpu.core.errors import InvalidValue, Unsupported
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.exchange import Exchange
from gpu.tensor.cudaarrays import not_taken, read_interface
from gpu.tensor.customgrad import own
from gpu.tensor.dlpack import CPU_DEVICE, CUDA_KIND, METAL_KIND, NotExportable
from gpu.tensor.strided import Strided, row_major

if TYPE_CHECKING:
    from gpu.tensor.handle import Handle
    from gpu.tensor.tensor import Tensor

_NAMES: Final = {CUDA_KIND: "CUDA", METAL_KIND: "METAL"}
"""Devices whose memory is shared, by the types that DLPack has for them."""


def exchange_of(place: Place) -> Exchange[Any] | None:
    """What shares the memory of a device; None where none does, or for several devices."""
    return Device[place].allocator.exchange if isinstance(place, str) else None


def cuda_exchange_of(place: Place) -> Exchange[Any] | None:
    """The same on CUDA; None on all else."""
    exchange = exchange_of(place)
    return exchange if exchange is not None and exchange.device[0] == CUDA_KIND else None


def kinds_on(place: Place) -> tuple[int, ...]:
    """The types of devices whose memory a tensor on a device can be made of."""
    name = parse_device_name(place)[0] if isinstance(place, str) else ""
    return (CPU_DEVICE[0], *(kind for kind, device in _NAMES.items() if device == name))


def exchange_at(device: tuple[int, int]) -> Exchange[Any]:
    """What shares the memory of a device that DLPack calls by a type of `_NAMES` and a number.

    Raises DeviceError where there is none of that number.
    """
    exchange = exchange_of(_home_of(device))
    assert exchange is not None
    return exchange


def follow_all(memory: Strided) -> None:
    """What is launched on the memory's device comes behind all that anyone does there now."""
    exchange_at(memory.device).follow(None)


def lend(exchange: Exchange[Any], buffer: Buffer, shape: Shape, stream: int | None) -> Strided:
    """A buffer as memory of others; it is not written any more.

    Raises InvalidValue for a stream that there is not, and as `Buffer.verify`.
    """
    buffer.verify()
    sizes, strides = bound(shape), row_major(upper_shape(shape))
    buffer.read_only = True
    address, held = exchange.lend(buffer.memory, stream, buffer)
    offset = exchange.offset(buffer.memory)
    return Strided(exchange.device, address, sizes, strides, buffer.dtype, held, True, offset)


def stream_of(exchange: Exchange[Any], stream: object) -> int | None:
    """The stream that a consumer of `__dlpack__` names, None where the device has none to name.

    Raises NotExportable for what is none of the device's.
    """
    if exchange.device[0] != CUDA_KIND:
        if stream is not None:
            raise NotExportable(
                f"stream={stream!r}: {_NAMES[exchange.device[0]]} has no streams that libraries"
                " name; leave it out"
            )
        return None
    if stream is None:
        return 1  # the Array API: the legacy default stream
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < -1 or not stream:
        raise NotExportable(
            f"stream={stream!r}: expected None, -1 for no order, 1 or 2 for CUDA's default streams,"
            " or the handle of a stream as an int; 0 is refused, as it may mean either of the two"
        )
    return stream


def tensor_over(memory: Strided, device: str | None, copy: bool | None) -> Tensor:
    """A tensor over memory of others, in place where its layout allows that and `copy` does.

    It is on the device that has the memory; with `device` it is copied to that if it is another.
    What it waits for has been said to the exchange before. Raises InvalidValue where `copy` is
    False and there has to be one, and where the memory is not what it is said to be.
    """
    from gpu.tensor.tensor import Tensor

    name, exchange = _home_of(memory.device), exchange_at(memory.device)
    shape, dtype = memory.shape, memory.dtype
    if 0 in shape:
        return Tensor._wrap(own(G.const(0, shape, dtype, name)))
    first, count = memory.extent()
    offset = memory.offset + first * dtype.itemsize
    address = memory.address + offset
    elsewhere = device is not None and Device.canonicalize(device) != name
    is_aligned = address % exchange.alignment == 0
    in_place = is_aligned and memory.is_row_major
    if copy is False and (elsewhere or not in_place):
        raise InvalidValue(
            f"without a copy memory at {address:#x} of shape {list(shape)} and strides"
            f" {list(memory.strides)} cannot be used on {device or name}: that takes row-major"
            f" order and an address on {name} that is a multiple of {exchange.alignment}"
        )
    nbytes = count * dtype.itemsize
    theirs, held = exchange.adopt(memory.address, nbytes, memory.owner, offset)
    if is_aligned and not (copy and in_place):
        buffer = Buffer.over(name, count, dtype, theirs, held, memory.read_only)
    else:
        buffer = Buffer(name, count, dtype)
        Device[name].allocator.copy(buffer.memory, theirs, buffer.nbytes)
    if memory.is_row_major:
        tensor = Tensor._wrap(G.buffer(buffer, shape, dtype, name))
    else:
        tensor = _gathered(Tensor._wrap(G.buffer(buffer, (count,), dtype, name)), memory, -first)
    return tensor.to(device) if elsewhere else tensor


def tensor_of_array(x: object, device: str | None, copy: bool | None) -> Tensor:
    """A tensor over the memory of an array that has `__cuda_array_interface__`, as `tensor_over`.

    What is launched comes behind what is in the stream that it names; else, as libraries name none
    for their default stream, behind all that the process does on the GPU.

    Raises Unsupported for another device than CUDA, and what `read_interface` does.
    """
    exchange = cuda_exchange_of(Device.canonicalize(device))
    if exchange is None:
        raise Unsupported(not_taken(x))
    memory, stream = read_interface(x)
    home = exchange.home(memory.address) if 0 not in memory.shape else exchange.device
    exchange_at(home).follow(stream)
    return tensor_over(memory._replace(device=home), device, copy)


def copy_of_array(x: object, device: Place) -> Node:
    """A copy of an array of a library on CUDA, which may change it when this returns.

    Raises what `Tensor.from_dlpack` does, and Unsupported for another device than CUDA.
    """
    from gpu.tensor.tensor import Tensor

    if cuda_exchange_of(device) is None:
        raise Unsupported(not_taken(x))
    copied = Tensor.from_dlpack(x, device, copy=True).realize()
    Device[device].synchronize()
    return copied._node


def lent_with(tensor: Handle, buffer: Buffer, exchange: Exchange[Any]) -> Strided:
    """A buffer with a tensor's value as memory of others, kept for as long as that `tensor`.

    All that libraries keep of what they got by `__cuda_array_interface__` is the tensor, which by
    then may stand for another value.
    """
    memory = lend(exchange, buffer, tensor.shape, None)
    if (kept := _kept.get(id(tensor))) is None:
        kept = _kept[id(tensor)] = set()
        finalize(tensor, _kept.pop, id(tensor)).atexit = False
    kept.add(buffer)
    return memory


_kept: Final[dict[int, set[Buffer]]] = {}


def _home_of(device: tuple[int, int]) -> str:
    return device_name(_NAMES[device[0]], device[1])


def _gathered(flat: Tensor, memory: Strided, first: int) -> Tensor:
    """The elements of `memory` in row-major order, out of all that it spans; computed."""
    rank = len(memory.shape)
    index = type(flat).full((), first, dtype="int64", device=flat.device)
    for axis, (size, step) in enumerate(zip(memory.shape, memory.strides, strict=True)):
        along = type(flat).arange(size, dtype="int64", device=flat.device) * step
        index = index + along.reshape(*(-1 if i == axis else 1 for i in range(rank)))
    return flat[index.reshape(math.prod(memory.shape))].reshape(memory.shape).realize()
