"""`Loader`: batches of samples, in an order that the seed alone decides on.

The permutation of an epoch sorts random 64-bit words of numpy's Philox generator, whose stream
numpy promises not to change (https://numpy.org/doc/stable/reference/random/compatibility.html,
"bit generators"), under the seed and the number of the epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.graph.grid import Region, own_regions
from gpu.core.arguments import whole
from gpu.core.errors import InvalidType, InvalidValue, ShapeError
from gpu.runtime.device import Device
from gpu.tensor.mesh import Mesh
from gpu.tensor.tensor import Tensor

Array = npt.NDArray[Any]
_MOST: Final = 1 << 40
_STATE: Final = ("epoch", "batch", "seed", "samples", "batch_size")


class Loader:
    """Batches of samples, of one shape, each with the weights that make sums over it means.

    Iterating it gives the batches of an epoch, or those that are left of it, as pairs of values and
    weights. The values are built as the samples are: a tensor, or a tuple or dict of tensors, whose
    first axis goes over the samples. Where fewer samples are left than a batch has, or a mesh
    cannot cut as many, it is filled up with samples whose weight is 0; the others' weights are 1
    divided by how many they are. So the mean of a loss, whatever is padded, is
    ``(losses * weights).sum()``.

    On a mesh over several ranks a batch is one value on it, and each rank loads what its devices
    have. The order of samples, and what is in each batch, is the same on any number of ranks. It is
    saved with `gpu.distributed.save`, and goes on from there.

    Attributes:
        epoch: how many times all samples were given.
        batch: how many batches were given of this epoch.

    >>> import numpy as np
    >>> loader = Loader((np.arange(5.0), np.arange(5)), 2, shuffle=False)
    >>> for (x, number), weights in loader:
    ...     print(x.tolist(), number.tolist(), weights.tolist())
    [0.0, 1.0] [0, 1] [0.5, 0.5]
    [2.0, 3.0] [2, 3] [0.5, 0.5]
    [4.0, 0.0] [4, 0] [1.0, 0.0]
    """

    def __init__(
        self,
        samples: Any,
        batch_size: int,
        *,
        mesh: Mesh | None = None,
        spec: Sequence[Any] | None = None,
        device: str | None = None,
        shuffle: bool = True,
        seed: int = 0,
        workers: int = 2,
        prefetch: int = 2,
    ):
        """A loader at the begin of epoch 0.

        Args:
            samples: a numpy array, or a tuple or dict of some, whose first axes go over samples; or
                anything with `len` whose elements are samples: a value that numpy makes an array
                of, or a tuple or dict of such values. Threads read its elements.
            batch_size: samples of a batch, of all ranks together.
            mesh: that batches lie on; None for `device`.
            spec: the axis of the mesh, or axes, that cut the batch, as ``("data",)``, which is the
                default: the mesh's first.
            device: where batches are without a mesh; None for the default device.
            shuffle: whether each epoch has an order of its own; else it is that of `samples`.
            seed: of the orders.
            workers: threads that read samples.
            prefetch: how many batches are read, and sent to the device, before they are asked for.

        Raises InvalidValue where there are no samples or the spec is not of the mesh, ShapeError
        where arrays are not of one length, InvalidType for what has no samples.
        """
        self._samples = _Samples(samples)
        self.batch_size = whole(batch_size, "batch_size", 1, _MOST)
        self.seed = whole(seed, "seed", 0, (1 << 64) - 1)
        self._workers, self._ahead = whole(workers, "workers", 1, 1 << 10), prefetch
        whole(prefetch, "prefetch", 0, 1 << 20)
        self._shuffle, self._target = shuffle, _Target(mesh, spec, device)
        self._target.regions(self.batch_size)  # raises where they cannot lie so
        self.epoch = self.batch = 0
        self._moves = 0
        self._under_way: Generator[tuple[Any, Tensor], None, None] | None = None

    def __len__(self) -> int:
        """Batches of an epoch, the same on all ranks."""
        return (self._samples.count - 1) // self.batch_size + 1

    def __iter__(self) -> Generator[tuple[Any, Tensor], None, None]:
        """The batches from here to the end of the epoch."""
        if self.batch == len(self):
            self._begin_epoch()
        moves, numbers = self._moves, iter(range(self.batch, len(self)))
        order, regions = self._order(), self._target.regions(self.batch_size)
        with ThreadPoolExecutor(self._workers, "gpu-loader") as pool:
            read: deque[Future[list[_Part]]] = deque()
            sent: deque[tuple[Any, Tensor]] = deque()
            try:
                for number in range(self.batch, len(self)):
                    while len(read) + len(sent) <= self._ahead:
                        following = next(numbers, None)
                        if following is None:
                            break
                        read.append(pool.submit(self._read, order, following, regions))
                    while read and (not sent or read[0].done()):
                        sent.append(
                            self._target.send(read.popleft().result(), regions, self._samples)
                        )
                    self.batch = number + 1
                    yield sent.popleft()
                    if self._moves != moves:
                        raise InvalidValue(
                            "the loader was set to another place while it was iterated: begin a new"
                            " loop over it"
                        )
            finally:
                for each in read:
                    each.cancel()
        self._begin_epoch()

    def take(self) -> tuple[Any, Tensor]:
        """The next batch, of this epoch or of the one after it; for loops that count steps.

        Its threads wait for the next call until `close`.
        """
        if self._under_way is None:
            self._under_way = self.__iter__()
        found = next(self._under_way, None)
        if found is None:
            self._under_way = self.__iter__()
            found = next(self._under_way)
        return found

    def close(self) -> None:
        """Ends the threads that read for `take`, which may be called again."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.close()

    def state_dict(self) -> dict[str, int]:
        """Where it is, of numbers alone."""
        values = self.epoch, self.batch, self.seed, self._samples.count, self.batch_size
        return dict(zip(_STATE, values, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from where another loader of the same samples was, on any number of ranks.

        The next loop begins there. Raises InvalidValue where that has other samples, batches or
        seed, and for what is no state.
        """
        values = {name: state_dict.get(name) for name in _STATE}
        if not all(type(value) is int and value >= 0 for value in values.values()):
            raise InvalidValue(f"{state_dict!r:.200} is no state of a Loader: {', '.join(_STATE)}")
        own = self.state_dict()
        for name in ("seed", "samples", "batch_size"):
            if values[name] != own[name]:
                raise InvalidValue(
                    f"the state is of a loader with {name}={values[name]}, this one has"
                    f" {own[name]}: make it with the same"
                )
        if state_dict["batch"] > len(self):
            raise InvalidValue(f"batch {state_dict['batch']} of a loader with {len(self)}")
        self.epoch, self.batch = state_dict["epoch"], state_dict["batch"]
        self._moves += 1
        self.close()

    def _begin_epoch(self) -> None:
        self.epoch, self.batch = self.epoch + 1, 0

    def _order(self) -> npt.NDArray[np.int64]:
        """The numbers of all samples, in the order of this epoch, and the first for padding."""
        count = self._samples.count
        order = np.arange(count)
        if self._shuffle:
            words = np.random.Philox(key=[self.seed, self.epoch]).random_raw(count)
            order = np.argsort(words, kind="stable")
        return order

    def _read(
        self, order: npt.NDArray[np.int64], number: int, regions: list[Region]
    ) -> list[_Part]:
        """What this rank's devices have of a batch, each region once."""
        chosen = order[number * self.batch_size :][: self.batch_size]
        rows = self._target.rows(self.batch_size)
        padded = np.concatenate([chosen, np.full(rows - chosen.size, order[0])])
        weights = np.zeros(rows, np.float32)
        weights[: chosen.size] = 1 / chosen.size
        spans = dict.fromkeys((r.start[0], r.start[0] + r.shape[0]) for r in regions)
        return [
            _Part(span, self._samples.rows(padded[slice(*span)]), weights[slice(*span)])
            for span in spans
        ]


class _Part(NamedTuple):
    """Rows of a batch.

    Attributes:
        span: from which row to which.
        arrays: for each value of a sample.
    """

    span: tuple[int, int]
    arrays: list[Array]
    weights: Array


class _Samples:
    """Where samples come from.

    Attributes:
        count: how many there are.
    """

    def __init__(self, source: Any):
        self._source = source
        parts = _parts(source)
        self._arrays: list[Array] | None = None
        if all(isinstance(part, np.ndarray) and part.ndim for part in parts.values()):
            self._arrays, self._form = [*parts.values()], source
            lengths = {len(part) for part in self._arrays}
            if len(lengths) > 1:
                shapes = ", ".join(str(list(part.shape)) for part in self._arrays)
                raise ShapeError(f"arrays of shapes {shapes} are not of as many samples: cut them")
            self.count = max(lengths, default=0)
        elif not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise InvalidType(
                f"samples are arrays or a sequence, got {type(source).__name__}: list() makes one"
            )
        else:
            self.count = len(source)
        if not self.count:
            raise InvalidValue("there are no samples: a loader needs one at least")
        if self._arrays is None:
            self._form = source[0]

    def rows(self, numbers: npt.NDArray[np.int64]) -> list[Array]:
        """The samples of these numbers, for each of their values an array of rows.

        Raises ShapeError and InvalidType where samples differ in shape, dtype or parts.
        """
        if self._arrays is not None:
            return [array[numbers] for array in self._arrays]
        rows = [_parts(self._source[int(number)]) for number in numbers]
        names = _parts(self._form).keys()
        for number, row in zip(numbers, rows, strict=True):
            if row.keys() != names:
                raise InvalidType(f"sample {number} has the values {[*row]}, sample 0 {[*names]}")
        return [self._stacked(numbers, [row[name] for row in rows]) for name in names]

    def built(self, tensors: list[Tensor]) -> Any:
        """Tensors as samples have their values."""
        if isinstance(self._form, dict):
            return dict(zip(self._form, tensors, strict=True))
        return tuple(tensors) if isinstance(self._form, tuple) else tensors[0]

    @staticmethod
    def _stacked(numbers: npt.NDArray[np.int64], values: list[Any]) -> Array:
        arrays = [np.asarray(value) for value in values]
        first = arrays[0]
        for number, array in zip(numbers, arrays, strict=True):
            if array.shape != first.shape or array.dtype != first.dtype:
                raise ShapeError(
                    f"sample {number} is {array.dtype}{list(array.shape)}, sample {numbers[0]}"
                    f" {first.dtype}{list(first.shape)}: make them alike"
                )
        return np.stack(arrays)


def _parts(value: Any) -> dict[Any, Any]:
    """The values of a sample, or of arrays of samples, by name or number."""
    if isinstance(value, dict):
        return value
    return dict(enumerate(value if isinstance(value, tuple) else (value,)))


class _Target:
    """Where batches are made."""

    def __init__(self, mesh: Mesh | None, spec: Sequence[Any] | None, device: str | None):
        if mesh is not None and device is not None:
            raise InvalidValue(f"device={device!r} and a mesh: give one of them")
        self._mesh, self._spec = mesh, spec
        self._devices: tuple[str, ...] = (Device.canonicalize(device),)
        if mesh is not None:
            self._spec = (mesh.axis_names[0],) if spec is None else tuple(spec)
            self._devices = mesh.devices

    def rows(self, size: int) -> int:
        """How many samples batches of `size` have with those that make parts of one size."""
        count = 1
        if self._mesh is not None and self._spec:
            entry = self._spec[0]
            names = entry if isinstance(entry, (list, tuple)) else (entry,)
            sizes = [self._mesh.shape[self._mesh._number(n)] for n in names if n is not None]
            count = math.prod(sizes)
        return -(-size // count) * count

    def regions(self, size: int) -> list[Region]:
        """What each device of this rank has of the rows of a batch."""
        rows = (self.rows(size),)
        if self._mesh is None or self._spec is None:
            return [Region((0,), rows)]
        cuts = self._mesh._cuts(self._spec, rows)
        place = self._mesh._place
        return [Region((0,), rows)] if isinstance(place, str) else own_regions(place, cuts, rows)

    def send(
        self, parts: list[_Part], regions: list[Region], samples: _Samples
    ) -> tuple[Any, Tensor]:
        """The values of a batch and its weights, on their way to the devices."""
        by_span = {part.span: part for part in parts}
        columns: list[list[Tensor]] = []
        for device, region in zip(self._devices, regions, strict=True):
            part = by_span[region.start[0], region.start[0] + region.shape[0]]
            arrays = (*part.arrays, part.weights)
            columns.append([Tensor(array, device=device).realize() for array in arrays])
        *values, weights = (self._joined(list(column)) for column in zip(*columns, strict=True))
        return samples.built(values), weights

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if self._mesh is None:
            return parts[0]
        assert self._spec is not None
        return Tensor.from_local(parts, self._mesh, self._spec)
