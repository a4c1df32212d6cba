"""Tensors on several devices: cut into parts of one size along an axis, or the same on each.

Everything that a tensor can do, one on several devices can too, where the axis that is cut allows
it; what a result is cut along follows from its operands. Sums and other reductions over the axis
that is cut leave the result on every device. So a training step over a sharded batch, with
parameters that every device has, is the same code as on one device.

On a `Mesh` the devices are those of all ranks. Ranks build the same values, and each computes its
own parts; what they need of each other is part of what is compiled (`gpu/runtime/collectives.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import Grid, Layout, layout_of
from gpu.compiler.ir.graph.node import Place, place
from gpu.core.errors import DeviceMismatch, InvalidType, InvalidValue, ShapeError, Unsupported
from gpu.runtime.device import Device
from gpu.runtime.execute import on_devices, parts_of
from gpu.tensor.arguments import axis_of
from gpu.tensor.base import TensorBase
from gpu.tensor.gradients import check_tensor
from gpu.tensor.mesh import Mesh
from gpu.tensor.tracing import refuse

Spec = Sequence[Any]


class Sharding(TensorBase):
    """Spreading a tensor over devices; `to` with one device puts it together again."""

    __slots__ = ()

    def shard(self, devices: Sequence[str] | Mesh, axis: int | Spec | None = None) -> Self:
        """The value on several devices: in equal parts along `axis`, or for None whole on each.

        With one device it is `to`. Gradients flow back to where the tensor is.

        Args:
            devices: names of devices of this process, or a mesh over those of all ranks. On a mesh,
                a tensor of this rank is taken as equal on all ranks, and one that is on the mesh
                already is moved as far as it lies otherwise.
            axis: that is cut; on a mesh a spec, as jax's: for each axis of the tensor the axis of
                the mesh that cuts it, several of them, or None. Axes that are left out are None.

        Raises:
            InvalidType: `devices` are no names, a mesh is given no spec.
            ShapeError: the axis has no equal parts, one for each device.
            InvalidValue: the tensor is on several devices already, or a device comes twice; a spec
                names what is no axis of the mesh, or an axis twice.
            InvalidIndex: there is no such axis.

        >>> from gpu import Tensor
        >>> x = Tensor([[1, 2], [3, 4]]).shard(("CPU", "CPU:1"), axis=0)
        >>> x.device, (x + 1).sum(0).tolist()
        (('CPU', 'CPU:1'), [6, 8])
        """
        if isinstance(devices, Mesh):
            return self._wrap(self._on_mesh(devices, axis))
        if not isinstance(devices, (str, list, tuple)):
            raise InvalidType(
                f"devices must be a tuple of names or a Mesh, got {type(devices).__name__}"
                f" {devices!r}"
            )
        if not isinstance(axis, int | None):
            raise InvalidType(f"axis={axis!r}: a spec goes with a Mesh, devices take one axis")
        names = Device.canonicalize([devices] if isinstance(devices, str) else devices)
        return self._wrap(self._sharded(names, axis))

    def shard_(self, devices: Sequence[str] | Mesh, axis: int | Spec | None = None) -> Self:
        """Spreads the tensor itself, as `shard`; a view becomes a tensor of its own."""
        return self._moved_to(self.shard(devices, axis)._node)

    def shard_like(self, y: Self) -> Self:
        """The value on the devices that `y` is on, cut along the same axis.

        What is on several devices otherwise is put together first. Raises ShapeError as `shard`.
        """
        check_tensor(y, "y")
        if isinstance(y.device, str):
            return self.to(y.device)
        if isinstance(y.device, Grid):
            return self.shard(y.device.mesh, y.spec)
        axis = y.shard_axis
        if self.device == y.device and self.shard_axis in (None, axis):
            return self._same()
        whole = self if isinstance(self.device, str) else self.to(self.device[0])
        return whole.shard(y.device, axis)

    @classmethod
    def from_local(cls, part: Self | list[Self] | tuple[Self, ...], mesh: Mesh, spec: Spec) -> Self:
        """The value of which each rank has a part: those of all ranks, put together as cut.

        Args:
            part: this rank's, on its device, or one for each of its devices. Where the spec cuts
                nothing the parts of all ranks are taken as equal.
            mesh: over the devices of all ranks.
            spec: as of `shard`.

        Raises InvalidValue where they are not one for each device of the mesh, DeviceMismatch where
        they are elsewhere, ShapeError and DTypeError where they differ.

        >>> from gpu import Mesh, Tensor
        >>> mesh = Mesh((2,), ("data",))
        >>> parts = Tensor([1, 2]), Tensor([3, 4]).to("CPU:1")
        >>> Tensor.from_local(parts, mesh, ("data",)).tolist()
        [1, 2, 3, 4]
        """
        if not isinstance(mesh, Mesh):
            raise InvalidType(f"mesh is a gpu.Mesh, got {type(mesh).__name__} {mesh!r}")
        parts = list(part) if isinstance(part, (list, tuple)) else [part]
        for each in parts:
            check_tensor(each, "part")
        devices = tuple(each.device for each in parts)
        if len(parts) != len(mesh.devices):
            raise InvalidValue(
                f"from_local got {len(parts)} parts for {len(mesh.devices)} devices,"
                f" {', '.join(mesh.devices)}: give one for each"
            )
        if devices != mesh.devices:
            raise DeviceMismatch(
                f"from_local got parts on {devices}, of a mesh with {mesh.devices}: move them there"
            )
        if isinstance(mesh._place, str):
            mesh._cuts(spec, parts[0].shape)
            return parts[0]._same()
        shape = list(parts[0].shape)
        numbers = [mesh._number(name) for entry in spec for name in _names(entry)]
        for number, axis in zip(numbers, _cut_axes(spec), strict=True):
            if axis >= len(shape):
                raise InvalidValue(f"the spec {spec!r} is of more axes than shape {shape} has")
            shape[axis] *= mesh.shape[number]
        layout = mesh._cuts(spec, shape)
        nodes = [each._node for each in parts]
        return cls._wrap(G.multi(nodes, layout, tuple(shape), mesh._place))

    def local(self) -> tuple[Self, ...]:
        """What this rank has: a tensor for each of its devices, through which no gradient flows.

        The value is computed first, on a mesh by all ranks.
        """
        refuse("the parts of a tensor")
        return tuple(self._wrap(part) for part in parts_of(self._computed()))

    @property
    def shard_axis(self) -> int | None:
        """The first axis that is cut; None where each device has all of the value, or is alone."""
        return next((cut for cut in self._cuts if cut is not None), None)

    @property
    def spec(self) -> tuple[Any, ...]:
        """How it lies on a mesh, as `shard` takes it; elsewhere None for each axis."""
        device = self.device
        if not isinstance(device, Grid):
            return (None,) * self.ndim
        found: tuple[Any, ...] = device.mesh._spec(self._cuts, self.ndim)
        return found

    @property
    def _cuts(self) -> tuple[int | None, ...]:
        if isinstance(self.device, str):
            return ()
        (spread,) = on_devices([self._node])
        return spread.layout

    @property
    def _spread_layout(self) -> Layout:
        """How a tensor on several devices lies there, as its nodes say it."""
        return layout_of(self.device, self._cuts)

    def _on_mesh(self, mesh: Mesh, spec: object) -> Node:
        cuts = mesh._cuts(() if spec is None else spec, self.shape)
        node = self._node
        if isinstance(mesh._place, str):
            return G.copy(node, mesh._place)
        if not isinstance(self.device, str) and self.device != mesh._place:
            raise InvalidValue(
                f"{self._described()} is on several devices, or another mesh, already: put it"
                f" together with .to({self.device[0]!r}) before"
            )
        return G.copy(node, mesh._place, cuts)

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


def _names(entry: object) -> tuple[object, ...]:
    names = tuple(entry) if isinstance(entry, (list, tuple)) else (entry,)
    return tuple(name for name in names if name is not None)


def _cut_axes(spec: Spec) -> list[int]:
    return [axis for axis, entry in enumerate(spec) for _ in _names(entry)]
