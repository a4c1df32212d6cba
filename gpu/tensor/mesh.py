"""`gpu.Mesh`: the devices of all ranks, counted along named axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph.grid import Axis, Grid
from gpu.compiler.ir.graph.node import Place
from gpu.core.arguments import whole
from gpu.core.devspec import device_name, parse_device_name
from gpu.core.errors import InvalidType, InvalidValue, ShapeError, Unsupported
from gpu.runtime.collectives import own_rank, world_size
from gpu.runtime.device import Device, DeviceTable

SHRINKING: Final = "data"
"""The axis of a mesh that becomes smaller where a program goes on with fewer ranks."""

_alive: WeakValueDictionary[int, Mesh] = WeakValueDictionary()

# Devices of a kind of which a process may have any number, whatever others have.
_ANY_NUMBER = frozenset({"CPU", "PYTHON"})


class Mesh:
    """The devices of all ranks, as an array with named axes: jax's mesh.

    Ranks follow each other in the array, each with all its devices. What is on a mesh is one value
    for all ranks: along each axis it is cut, or the same everywhere (`Tensor.shard`). Every rank
    makes the same mesh.

    Attributes:
        shape: the sizes of its axes.
        axis_names: their names.
        devices: the names of this rank's own devices.

    >>> from gpu import Mesh, Tensor
    >>> mesh = Mesh((2, 1), ("data", "model"))
    >>> mesh.devices
    ('CPU', 'CPU:1')
    >>> x = Tensor([[1, 2], [3, 4]]).shard(mesh, ("data", None))
    >>> x.spec, (x + 1).sum(0).tolist()
    (('data', None), [6, 8])
    """

    def __init__(
        self, shape: Sequence[int], axis_names: Sequence[str], devices: Sequence[str] | None = None
    ):
        """`devices` are this rank's own.

        Where they are not given, it is the default one, or of CPUs and PYTHON as many as there are
        places for each rank.

        Raises InvalidValue for names that are not one for each axis, and for a shape that is not of
        so many devices; InvalidType where they are no sequences.
        """
        for value, name in ((shape, "shape"), (axis_names, "axis_names")):
            if not isinstance(value, (list, tuple)):
                raise InvalidType(f"{name} is a tuple, got {type(value).__name__} {value!r}")
        self.shape = tuple(whole(size, "an axis of a mesh", 1, 1 << 31) for size in shape)
        self.axis_names = tuple(axis_names)
        names = self.axis_names
        if len(names) != len(self.shape) or len({*names}) != len(names) or not names:
            raise InvalidValue(
                f"a mesh of shape {self.shape} with the axes {names}: give each axis a name of its"
                " own, as in Mesh((4, 2), ('data', 'model'))"
            )
        if not all(isinstance(name, str) for name in names):
            raise InvalidType(f"axis_names are texts, got {names}")
        self.devices = _own_devices(self.shape, devices)
        self._place: Place
        self._lay()
        _alive[id(self)] = self

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, {self.axis_names})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def _lay(self) -> None:
        self._axes, self._numbers = _grid_axes(self.shape, len(self.devices))
        is_one = not self._axes
        self._place = self.devices[0] if is_one else Grid(self.devices, self._axes, self)
        DeviceTable.has_groups |= not is_one

    def _fit(self) -> None:
        """Lies over the ranks that there are now, by another size of its axis `SHRINKING`.

        Raises InvalidValue where it has no such axis, or that cannot be of such a size.
        """
        places = world_size() * len(self.devices)
        if math.prod(self.shape) == places:
            return
        sizes = dict(zip(self.axis_names, self.shape, strict=True))
        others = math.prod(size for name, size in sizes.items() if name != SHRINKING)
        if SHRINKING not in sizes or places % others:
            raise InvalidValue(
                f"{self!r} does not fit {world_size()} ranks of {len(self.devices)} devices by"
                f" another size of its axis {SHRINKING!r}"
            )
        sizes[SHRINKING] = places // others
        self.shape = tuple(sizes.values())
        self._lay()

    @property
    def _key(self) -> Any:
        return self.shape, self.axis_names, self.devices

    def _cuts(self, spec: object, shape: Sequence[int]) -> tuple[int | None, ...]:
        """A layout for a value of `shape`, of what users say of each of its axes.

        Raises InvalidType and InvalidValue for no such thing, ShapeError for uneven parts.
        """
        if not isinstance(spec, (list, tuple)):
            raise InvalidType(
                f"a spec is a tuple with an axis of the mesh or None for each axis of the tensor,"
                f" got {type(spec).__name__} {spec!r}"
            )
        if len(spec) > len(shape):
            raise InvalidValue(
                f"the spec {spec!r} has {len(spec)} entries for a tensor of {len(shape)} axes"
            )
        cuts: list[int | None] = [None] * len(self._axes)
        for axis, entry in enumerate(spec):
            names = entry if isinstance(entry, (list, tuple)) else (entry,)
            numbers = [self._number(name) for name in names if name is not None]
            if numbers != sorted(numbers):
                raise Unsupported(
                    f"{entry!r} in a spec: axes of a mesh cut one of a tensor in the order of the"
                    f" mesh, {self.axis_names}"
                )
            for number in numbers:
                for own in self._numbers[number]:
                    if cuts[own] is not None:
                        name = self.axis_names[number]
                        raise InvalidValue(f"the spec {spec!r} names {name!r} twice")
                    cuts[own] = axis
            count = math.prod(self.shape[number] for number in numbers)
            if numbers and (has_symbols(shape[axis]) or shape[axis] % count):
                raise ShapeError(
                    f"axis {axis} of shape {list(shape)} has no {count} parts of one size for"
                    f" {entry!r} of {self!r}: pad it to a multiple of {count}, or cut another axis"
                )
        return tuple(cuts)

    def _number(self, name: object) -> int:
        if name not in self.axis_names:
            raise InvalidValue(f"{name!r} in a spec is none of the axes {self.axis_names}")
        return self.axis_names.index(name)

    def _spec(self, cuts: Sequence[int | None], rank: int) -> tuple[Any, ...]:
        """What users say of a layout."""
        found: list[Any] = []
        for axis in range(rank):
            names = [
                name
                for name, own in zip(self.axis_names, self._numbers, strict=True)
                if any(cuts[number] == axis for number in own)
            ]
            found.append(tuple(names) if len(names) > 1 else names[0] if names else None)
        return tuple(found)


def fit_meshes() -> None:
    """Lays all meshes over the ranks that there are now. Raises as `Mesh._fit`."""
    for mesh in [*_alive.values()]:
        mesh._fit()


def _own_devices(shape: tuple[int, ...], devices: Sequence[str] | None) -> tuple[str, ...]:
    total, ranks = math.prod(shape), world_size()
    each = total // ranks
    if each * ranks != total:
        raise InvalidValue(
            f"a mesh of shape {shape} has {total} places for {ranks} ranks: give it a multiple of"
            f" {ranks}"
        )
    if devices is not None:
        if isinstance(devices, str) or not isinstance(devices, (list, tuple)):
            raise InvalidType(f"devices is a tuple of names, got {devices!r}")
        found = Device.canonicalize(devices)
        names = (found,) if isinstance(found, str) else tuple(found)
    else:
        kind, first = parse_device_name(Device.DEFAULT)
        if each > 1 and kind not in _ANY_NUMBER:
            raise InvalidValue(
                f"a mesh of shape {shape} has {each} places for each of {ranks} ranks: name this"
                f" rank's own devices, as in devices=({kind!r}, '{kind}:1')"
            )
        names = tuple(device_name(kind, first + number) for number in range(each))
    if len(names) != each:
        raise InvalidValue(
            f"a mesh of shape {shape} over {ranks} ranks takes {each} devices of each, got"
            f" {len(names)}: {', '.join(names)}"
        )
    return names


def _grid_axes(
    shape: tuple[int, ...], own: int
) -> tuple[tuple[Axis, ...], tuple[tuple[int, ...], ...]]:
    """The axes of the grid, and for each axis of the mesh which of them it consists of.

    Those that ranks lie along come first. One axis of the mesh may be of both kinds.
    """
    ranks: list[int] = []
    inside: list[int] = []
    kinds: list[tuple[int, int]] = []  # for each axis of the mesh its ranks, and its devices
    left = own
    for size in reversed(shape):
        devices = math.gcd(size, left)
        if left > devices and devices != size:
            raise InvalidValue(
                f"a mesh of shape {shape} cannot be laid over ranks of {own} devices each: choose"
                f" sizes of which the last ones multiply to {own}"
            )
        left //= devices
        kinds.insert(0, (size // devices, devices))
    for between, devices in kinds:
        ranks += [between] if between > 1 else []
        inside += [devices] if devices > 1 else []
    rank, axes = own_rank(), list[Axis]()
    for number, size in enumerate(ranks):
        place = rank // math.prod(ranks[number + 1 :]) % size
        axes.append(Axis(size, tuple(ranks), number, place))
    axes += [Axis(size) for size in inside]
    numbers: list[tuple[int, ...]] = []
    at_rank, at_device = 0, len(ranks)
    for between, devices in kinds:
        own_numbers: list[int] = []
        if between > 1:
            own_numbers.append(at_rank)
            at_rank += 1
        if devices > 1:
            own_numbers.append(at_device)
            at_device += 1
        numbers.append(tuple(own_numbers))
    return tuple(axes), tuple(numbers)
