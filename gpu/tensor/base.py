"""What every tensor is: a handle on a graph node, and the way to its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import bound, dimension, find_symbols, is_symbolic, product, upper_shape
from gpu.compiler.ir.graph import Node, Place, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import axes_of, layout_of
from gpu.compiler.ir.graph.node import place
from gpu.core.dtype import DType, dtypes, promote, to_dtype
from gpu.core.errors import (
    DeviceMismatch,
    InvalidType,
    InvalidValue,
    ShapeError,
)
from gpu.core.scalars import check_fits, promote_scalar
from gpu.runtime.buffer import Buffer, own_copy
from gpu.runtime.device import Device
from gpu.runtime.execute import storage
from gpu.runtime.prepared import Counters
from gpu.runtime.users import note_thread
from gpu.tensor.cudaarrays import is_array
from gpu.tensor.customgrad import own
from gpu.tensor.gradients import Gradients, check_tensor
from gpu.tensor.handle import compute
from gpu.tensor.hostview import host_view
from gpu.tensor.size import Size
from gpu.tensor.tracing import active, refuse
from gpu.tensor.views import Detach

if TYPE_CHECKING:
    from typing import Self

_PYTHON_SCALARS: Final = (bool, int, float, complex)
_ARRAYS: Final = (np.ndarray, np.generic, list, tuple, range)


class TensorBase(Gradients):
    """State and mechanics shared by the families of operations that make up `Tensor`."""

    __slots__ = ()

    def __init__(
        self,
        data: object = None,
        device: Place | None = None,
        dtype: DType | str | None = None,
        requires_grad: bool | None = None,
    ):
        wanted = None if dtype is None else to_dtype(dtype)
        self._hold(own(node_of(data, Device.canonicalize(device), wanted)))
        if requires_grad is not None:
            self.requires_grad = requires_grad

    @property
    def size(self) -> Size:
        """Number of elements, an int; ``size()`` is the shape and ``size(dim)`` one of its sizes.

        >>> from gpu import Tensor
        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.size + 0, x.size(), x.size(-1)
        (6, (2, 3), 3)
        """
        return Size(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return product(self.shape)

    def nelement(self) -> int:
        """`numel`."""
        return self.numel()

    def dim(self) -> int:
        """`ndim`."""
        return self.ndim

    def nbytes(self) -> int:
        """Size of the value in bytes."""
        return self.numel() * self.dtype.itemsize

    def element_size(self) -> int:
        """Size of one element in bytes."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floats."""
        return self.dtype.is_float

    def __len__(self) -> int:
        if not self.shape:
            raise InvalidType("a 0-d tensor has no length")
        if is_symbolic(size := self.shape[0]):
            raise InvalidType(f"len() is an int, and axis 0 has size {size}: use shape[0].value")
        return size

    def __hash__(self) -> int:
        return id(self)

    # Values.

    def realize(self, *others: TensorBase, do_update_stats: bool = True) -> Self:
        """Computes the value now, and those of `others`, in one go; returns the tensor.

        With `do_update_stats` False the launches are left out of `Counters`.
        """
        for other in others:
            check_tensor(other, "what is realized")
        if active() is not None:
            return self  # a jitted function is computed as a whole
        note_thread()  # before it looks at nodes, whose memory another thread may be reusing
        launches = Counters.launches
        compute((self, *others))
        if not do_update_stats:
            Counters.launches = launches
        return self

    def numpy(self) -> npt.NDArray[Any]:
        """The value as a numpy array of its own. bfloat16 and fp8 use the dtypes of ml_dtypes.

        Memory that the host can read is read in place: of a computed tensor on the CPU, a view
        costs the copying of its elements and nothing is compiled. Raises OutOfMemory.
        """
        lent = self._host_view()
        if lent is None:
            return self._copied_out()
        return own_copy(lent)

    def _host_view(self) -> npt.NDArray[Any] | None:
        """The value, computed if need be, as a read-only array over the tensor's own memory.

        None where the host cannot read that in place.
        """
        refuse("reading a tensor's value")
        note_thread()
        if not isinstance(self.device, str):
            return self.to(self.device[0])._host_view()
        array = host_view(self._node)
        return host_view(self._computed()) if array is None else array

    def _computed(self) -> Node:
        """The value in memory; a tensor of its own stands for that from now on."""
        # What a function that is watched reads stays what gradients go through.
        own = self._view is None and active() is None
        return compute((self if own else self._same(),))[0]

    def _copied_out(self) -> npt.NDArray[Any]:
        if not isinstance(self.device, str):
            return self.to(self.device[0])._copied_out()
        return _cut(storage(self._computed()).copy_out(), self.shape)

    def item(self) -> Any:
        """The one element as a Python number. Raises ShapeError if there are more or none."""
        if math.prod(bound(self.shape)) != 1:
            raise ShapeError(f"item() needs one element, the tensor has shape {list(self.shape)}")
        return self.numpy().reshape(()).item()

    def tolist(self) -> Any:
        """The value as nested Python lists, or a number for a 0-d tensor."""
        return self.numpy().tolist()

    def contiguous(self) -> Self:
        """The same value in row-major memory of its own."""
        return self._wrap(G.contiguous(self._node))

    def to(self, device: Place | DType | None, dtype: DType | None = None) -> Self:
        """The same value on another device; of a tuple of names, on each of those devices.

        A tensor that is sharded is put together. A dtype, alone or besides, converts as `cast`
        does. Raises ConfigError for a name that is not known.
        """
        if isinstance(device, DType):
            return self.cast(device)
        if dtype is not None:
            return self.to(device).cast(dtype)
        return self._wrap(G.copy(self._node, Device.canonicalize(device)))

    def type_as(self, other: TensorBase) -> Self:
        """`cast` to another tensor's dtype."""
        if not isinstance(other, TensorBase):
            raise InvalidType(f"type_as takes a tensor, got {other!r}")
        return self.cast(other.dtype)

    def cpu(self) -> Self:
        """The same value on "CPU"."""
        return self.to("CPU")

    def to_(self, device: Place | None) -> Self:
        """Moves the tensor itself to another device; a view becomes a tensor of its own."""
        return self._moved_to(G.copy(self._node, Device.canonicalize(device)))

    def _moved_to(self, node: Node) -> Self:
        self._view = None
        self._move(node)
        return self

    def contiguous_backward(self) -> Self:
        """The same value. How its gradient lies in memory is the compiler's choice here."""
        return self._same()

    def sequential(self, ll: Sequence[Callable[[Any], Any]]) -> Any:
        """What the functions in `ll` make of the tensor, one after the other."""
        result: Any = self
        for function in ll:
            result = function(result)
        return result

    def detach(self) -> Self:
        """The same elements, through which no gradient flows: a view, as in torch."""
        return self._viewed(Detach())

    def cast(self, dtype: DType | str) -> Self:
        """The elements converted to `dtype`: floats to integers truncate, saturate, NaN gives 0."""
        return self._wrap(G.cast(self._node, to_dtype(dtype)))

    def bitcast(self, dtype: DType | str) -> Self:
        """The bits read as another dtype of the same width. Raises DTypeError for another width."""
        return self._wrap(G.bitcast(self._node, to_dtype(dtype)))

    # Operands.

    def _operands(self, other: object) -> tuple[Node, Node]:
        """This tensor and `other`, brought to one dtype and shape."""
        node = self._node
        # What most operands are goes first: asking for one of several classes takes a while.
        if not isinstance(other, TensorBase) and isinstance(other, _PYTHON_SCALARS):
            dtype = promote_scalar(node.dtype, other)
            make = G.complex_operand if dtype.kind == "complex" else G.const
            return G.cast(node, dtype), make(other, node.shape, dtype, node.device)
        operand = self._as_node(other)
        if operand.dtype is node.dtype and operand.shape == node.shape:
            return node, operand
        a, b = broadcast(node, operand)
        return a, b

    def _as_node(self, other: object) -> Node:
        """`other` as a node that this tensor can be combined with; scalars take its dtype."""
        if isinstance(other, TensorBase):
            if other._value.device != self._value.device:
                raise DeviceMismatch(
                    f"one operand is on {place(self.device)}, the other on {place(other.device)}; "
                    "move one of them with .to(device)"
                )
            return other._node
        if isinstance(other, _PYTHON_SCALARS):
            return G.const(other, (), promote_scalar(self.dtype, other), self.device)
        if isinstance(other, _ARRAYS):
            return node_of(other, self.device, None)
        if is_symbolic(other):
            dtype = promote_scalar(self.dtype, 0)
            return G.cast(G.index(dimension(other), dtypes.int64, self.device), dtype)
        hint = ""
        if other is None:
            hint = "; a tensor's grad is None until backward() has found it"
        elif callable(other):
            hint = "; call it, and give a tensor new values by assign(), not through .data"
        raise InvalidType(
            f"a tensor cannot be combined with {type(other).__name__} {other!r}{hint}"
        )


def _cut(memory: npt.NDArray[Any], shape: Shape) -> npt.NDArray[Any]:
    """The elements of a tensor of `shape` in its memory, as an array of its present sizes."""
    whole = memory.reshape(upper_shape(shape))
    return np.ascontiguousarray(whole[tuple(slice(n) for n in bound(shape))]).reshape(bound(shape))


def broadcast_shape(*shapes: Shape) -> Shape:
    """The shape that `shapes` broadcast to, aligned at the last axis. Raises ShapeError."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[int] = []
    for sizes in zip(*aligned, strict=True):
        wide = set(sizes)
        wide.discard(1)
        if len(wide) > 1:
            find_symbols(tuple(wide), {})  # two values of one variable have an error of their own
            texts = " and ".join(str(list(shape)) for shape in shapes)
            raise ShapeError(f"shapes {texts} do not broadcast: sizes {sizes} differ")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def broadcast_to(x: Node, shape: Shape) -> Node:
    """`x` repeated to `shape`. Raises ShapeError where it does not fit."""
    if x.shape == shape:
        return x
    if broadcast_shape(x.shape, shape) != shape:
        raise ShapeError(f"shape {list(x.shape)} does not broadcast to {list(shape)}")
    return repeated(x, shape)


def repeated(x: Node, shape: Shape) -> Node:
    """`x` repeated to `shape`, to which it is known to broadcast."""
    if x.shape == shape:
        return x
    return G.expand(G.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)


def broadcast(*nodes: Node) -> tuple[Node, ...]:
    """Nodes brought to one dtype, by `promote`, and one shape."""
    dtype, shape = nodes[0].dtype, nodes[0].shape
    if not [node for node in nodes if node.dtype is not dtype or node.shape != shape]:
        return nodes
    for node in nodes[1:]:
        dtype = promote(dtype, node.dtype)
    shape = broadcast_shape(*[node.shape for node in nodes])
    return tuple([repeated(G.cast(node, dtype), shape) for node in nodes])


def node_of(data: object, device: Place, dtype: DType | None) -> Node:
    """What a tensor is made of, as a node: a tensor, number, nested list or numpy array."""
    if isinstance(data, Node):
        node = data
    elif isinstance(data, TensorBase):
        node = G.copy(data._node, device)
    elif isinstance(data, _PYTHON_SCALARS) and not isinstance(data, np.generic):
        dtype = dtype or dtypes.of(data)
        check_fits(data, dtype)
        return G.const(data, (), dtype, device)
    elif data is None:
        node = G.const(0, (0,), dtype or dtypes.default_float, device)
    elif isinstance(data, _ARRAYS):
        node = _node_of_array(_as_array(data, dtype), device)
    elif is_array(data):
        from gpu.tensor.sharing import copy_of_array

        node = copy_of_array(data, device)
    else:
        from gpu.tensor.foreign import array_of, is_foreign

        if not is_foreign(data):
            raise InvalidType(
                f"a tensor cannot be made of {type(data).__module__}.{type(data).__qualname__}; "
                "pass a number, a nested list, a numpy array, a tensor, or what has __dlpack__, a "
                "buffer or __array__"
            )
        node = _node_of_array(array_of(data), device)
    return node if dtype is None else G.cast(node, dtype)


def _refuse_masked(array: npt.NDArray[Any]) -> None:
    """Raises InvalidValue where elements of an array of a class of its own are masked."""
    if np.ma.is_masked(array):
        masked = np.count_nonzero(np.ma.getmask(array))
        raise InvalidValue(
            f"{masked} of {array.size} elements of an array are masked, which those of a tensor "
            "cannot be: give it .filled(value), or .data for what is there"
        )


def _as_array(data: object, dtype: DType | None) -> npt.NDArray[Any]:
    if isinstance(data, (np.ndarray, np.generic)):
        if isinstance(data, np.ndarray) and type(data) is not np.ndarray:
            _refuse_masked(data)
        array = np.asarray(data)
        # Numpy's own float64, where a narrower float is asked for, is rounded before it is copied:
        # there are devices that have no float64 to do it in.
        if dtype is not None and array.dtype.kind in "fc" and 16 <= dtype.bits < array.itemsize * 8:
            same_kind = dtype.is_float if array.dtype.kind == "f" else dtype.is_complex
            if same_kind and not dtype.is_image:
                with np.errstate(over="ignore"):
                    return array.astype(dtype.np)
        return array
    try:
        array = np.array(data)
    except ValueError as error:
        raise ShapeError(f"the nested lists have no common shape: {error}") from error
    kind = array.dtype.kind
    # numpy makes floats of whole numbers that no integer of its own holds together.
    if kind == "O" or (kind == "f" and array.size and np.abs(array).max() >= 2.0**63):
        return _large_numbers(np.array(data, object), dtype)
    if array.size == 0 and dtype is None:
        return array.astype(np.float32)
    if dtype is not None and dtype.is_int and array.size:
        for extreme in (array.min(), array.max()):
            check_fits(extreme.item(), dtype)
        return array.astype(dtype.np)
    if kind == "f":
        return array.astype((dtype or dtypes.default_float).np)
    if kind == "c":
        return array.astype(dtypes.complex128.np if dtype is dtypes.complex128 else np.complex64)
    if kind == "i":
        low, high = dtypes.int32.min, dtypes.int32.max
        fits = low <= int(array.min()) and int(array.max()) <= high
        return array.astype(np.int32) if fits else array
    return array


def _large_numbers(array: npt.NDArray[Any], dtype: DType | None) -> npt.NDArray[Any]:
    """Numbers of which some are integers that int64 may not hold."""
    numbers = [n.item() if isinstance(n, np.generic) else n for n in array.ravel().tolist()]
    if not all(isinstance(number, (bool, int, float)) for number in numbers):
        raise InvalidType("the nested lists hold something that is not a number")
    if dtype is not None:
        target = dtype
    elif any(isinstance(number, float) for number in numbers):
        target = dtypes.default_float
    else:
        target = dtypes.of(max(numbers)) if min(numbers) >= 0 else dtypes.int64
    for number in numbers:
        check_fits(number, target)
    if target.is_int:
        return np.array([int(number) for number in numbers], target.np).reshape(array.shape)
    # No float of another library's takes Python's integers.
    return array.astype(bool if target is dtypes.bool else np.float64).astype(target.np)


def _node_of_array(array: npt.NDArray[Any], device: Place) -> Node:
    if not isinstance(device, str):
        nodes = [_node_of_array(array, name) for name in device]
        whole = layout_of(device, [None] * len(axes_of(device)))
        return G.multi(nodes, whole, array.shape, device)
    dtype = dtypes.from_numpy(array.dtype)
    if array.size == 0:
        return G.const(0, array.shape, dtype, device)
    handle = Buffer(device, array.size, dtype).copy_in(array)
    return G.buffer(handle, array.shape, dtype, device)
