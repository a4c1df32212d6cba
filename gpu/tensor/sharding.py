"""Tensors on several devices: cut into parts of one size along an axis, or the same on each.

Everything that a tensor can do, one on several devices can too, where the axis that is cut allows
it; what a result is cut along follows from its operands. Sums and other reductions over the axis
that is cut leave the result on every device. So a training step over a sharded batch, with
parameters that every device has, is the same code as on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.node import Place, place
from gpu.core.errors import InvalidType, InvalidValue, ShapeError, Unsupported
from gpu.runtime.device import Device
from gpu.runtime.execute import on_devices
from gpu.tensor.arguments import axis_of
from gpu.tensor.base import TensorBase
from gpu.tensor.gradients import check_tensor


class Sharding(TensorBase):
    """Spreading a tensor over devices; `to` with one device puts it together again."""

    __slots__ = ()

    def shard(self, devices: Sequence[str], axis: int | None = None) -> Self:
        """The value on several devices: in equal parts along `axis`, or for None whole on each.

        With one device it is `to`. Gradients flow back to where the tensor is.

        Raises:
            InvalidType: `devices` are no names.
        ShapeError: the axis has no equal parts, one for each device.
            InvalidValue: the tensor is on several devices already, or a device comes twice.
            InvalidIndex: there is no such axis.

        >>> from gpu import Tensor
        >>> x = Tensor([[1, 2], [3, 4]]).shard(("CPU", "CPU:1"), axis=0)
        >>> x.device, (x + 1).sum(0).tolist()
        (('CPU', 'CPU:1'), [6, 8])
        """
        if not isinstance(devices, (str, list, tuple)):
            raise InvalidType(
                f"devices must be a tuple of names, got {type(devices).__name__} {devices!r}"
            )
        names = Device.canonicalize([devices] if isinstance(devices, str) else devices)
        return self._wrap(self._sharded(names, axis))

    def shard_(self, devices: Sequence[str], axis: int | None = None) -> Self:
        """Spreads the tensor itself, as `shard`; a view becomes a tensor of its own."""
        return self._moved_to(self.shard(devices, axis)._node)

    def shard_like(self, y: Self) -> Self:
        """The value on the devices that `y` is on, cut along the same axis.

        What is on several devices otherwise is put together first. Raises ShapeError as `shard`.
        """
        check_tensor(y, "y")
        if isinstance(y.device, str):
            return self.to(y.device)
        axis = y.shard_axis
        if self.device == y.device and self.shard_axis in (None, axis):
            return self._same()
        whole = self if isinstance(self.device, str) else self.to(self.device[0])
        return whole.shard(y.device, axis)

    @property
    def shard_axis(self) -> int | None:
        """The axis that is cut; None where each device has all of the value, or there is one."""
        if isinstance(self.device, str):
            return None
        (spread,) = on_devices([self._node])
        return spread.axis

    def _sharded(self, devices: Place, axis: int | None) -> Node:
        if isinstance(devices, str):
            return G.copy(self._node, devices)
        if not isinstance(self.device, str):
            raise InvalidValue(
                f"{self._described()} is on several devices already; move it to one of them with "
                f".to({self.device[0]!r}) before it is sharded otherwise"
            )
        if axis is None:
            return G.copy(self._node, devices)
        return _in_parts(self._node, devices, axis_of(axis, self.ndim, "axis"))


def _in_parts(node: Node, devices: tuple[str, ...], axis: int) -> Node:
    """A node of one device cut along `axis`, a part for each of `devices`."""
    size, count = node.shape[axis], len(devices)
    if has_symbols(size):
        raise Unsupported(f"axis {axis} has size {size}: only an axis of a fixed size is sharded")
    if size % count:
        raise ShapeError(
            f"axis {axis} of shape {list(node.shape)} has no {count} parts of one size for "
            f"{place(devices)}: pad it to a multiple of {count}, or shard another axis"
        )
    ranges = [(0, n, 1) for n in node.shape]
    parts = []
    for number, device in enumerate(devices):
        ranges[axis] = (number * (size // count), size // count, 1)
        parts.append(G.copy(G.slice_(node, ranges), device))
    return G.multi(parts, axis, node.shape)
