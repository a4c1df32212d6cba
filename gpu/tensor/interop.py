"""Sharing values with other libraries: numpy, the buffer protocol, DLPack, foreign memory.

Values are immutable underneath, and several tensors may share one memory. So what is lent here may
be read but not written, and memory that was lent is never written to again by this package: numpy
gets read-only arrays, as from jax; `numpy()` and ``np.array(tensor)`` make copies that may be
written. Functions of numpy's work on such arrays and give what they give of any array. The other
way round, memory that was borrowed must not change while a tensor needs it.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.graph import Node, Place
from gpu.compiler.ir.graph import build as G
from gpu.core.arguments import WORD
from gpu.core.dtype import DType, ImageDType, dtypes, to_dtype
from gpu.core.errors import GpuError, InvalidType, InvalidValue, Unsupported
from gpu.runtime.buffer import Buffer, own_copy
from gpu.runtime.device import Device
from gpu.runtime.execute import storage
from gpu.runtime.users import note_thread
from gpu.tensor import cudaarrays
from gpu.tensor.arguments import axes_of, integer, shape_of
from gpu.tensor.base import TensorBase, node_of
from gpu.tensor.customgrad import own
from gpu.tensor.operands import Operands
from gpu.tensor.tracing import refuse

Array = npt.NDArray[Any]

# Memory of others that tensors stand for now: equal ranges are one buffer, and so one value.
_foreign: weakref.WeakValueDictionary[tuple[Any, ...], Buffer] = weakref.WeakValueDictionary()
_WRITABLE: Final = 1  # PyBUF_WRITABLE, Include/pybuffer.h of CPython


class Interop(Operands):
    """Lending a tensor's memory to others, and borrowing theirs."""

    __slots__ = ()

    def data(self) -> memoryview:
        """The value as a read-only memoryview in row-major order, computed if need be.

        It is of the tensor's own memory where that lies so and the host can read it, else of a
        copy. bfloat16 and fp8, for which there is no format, are unsigned integers of that size.
        """
        array = self._lent()
        if not array.flags.c_contiguous:
            array = own_copy(array)
        if _has_no_format(self.dtype):
            array = array.view(f"u{self.dtype.itemsize}")
        array.flags.writeable = False
        return array.data

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol, which Python has for classes since 3.12 (PEP 688)."""
        from gpu.tensor.dlpack import NotExportable

        if flags & _WRITABLE:
            raise NotExportable("a tensor's memory is lent for reading; write to its .numpy()")
        if _has_no_format(self.dtype):
            raise NotExportable(f"the buffer protocol has no format for {self.dtype.name}")
        return self.data()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """The value as a numpy array; without `copy` a read-only one over the tensor's memory.

        Raises InvalidValue where `copy` is False and there has to be one.
        """
        if copy:
            return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)
        lent = self._host_view()
        wanted = self.dtype.np if dtype is None else np.dtype(dtype)
        if lent is not None and lent.dtype == wanted:
            return self._lent()
        if copy is False:
            reason = f"is {self.dtype.name}" if lent is not None else f"is on {self.device}"
            raise InvalidValue(
                f"copy=False, but the tensor {reason}: a numpy array of {wanted} needs a copy"
            )
        return self.numpy().astype(wanted, copy=False)

    # numpy calls this for its element-wise functions and, in ``array + tensor``, its operators.
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Operators give tensors; any other function of numpy's works on arrays and gives those."""
        run = _OPERATORS.get(ufunc.__name__)
        if run is not None and method == "__call__" and not options:
            return run(*(self._lift(x) for x in inputs))
        written = inputs[:1] if method == "at" else options.get("out", ())
        return _by_numpy(getattr(ufunc, method), ufunc.__name__, inputs, options, written)

    # And this for its other functions, by NEP 18.
    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Tensors of what is a method (`gpu/tensor/numpyforward.py`); else arrays of the values."""
        from gpu.tensor.numpyforward import forwarded, takes

        about = _ABOUT.get(function)
        if about is not None:
            return about(*args, **kwargs)
        entry = forwarded(function)
        if entry is not None and takes(entry, args, kwargs):
            return entry(*args, **kwargs)
        return _by_numpy(function, function.__name__, args, kwargs, (kwargs.get("out"),))

    # The Python array API standard.

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """`gpu.array_api`. Raises InvalidValue for a version of the standard that it is not."""
        from gpu import array_api
        from gpu.tensor.array_api.info import check_version

        check_version(api_version)
        return array_api

    def to_device(self, device: str, /, *, stream: object = None) -> Self:
        """The same as `to`. Raises InvalidValue for a stream: there is none to name here."""
        if stream is not None:
            raise InvalidValue(f"to_device takes no stream, got {stream!r}")
        return self.to(device)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where `__dlpack__` lends the value: on CUDA and METAL its GPU, (2 or 8, number), else the
        host, (1, 0).

        Every tensor can be lent in host memory, where need be as a copy.
        """
        from gpu.tensor.dlpack import CPU_DEVICE
        from gpu.tensor.sharing import exchange_of

        exchange = exchange_of(self.device)
        return CPU_DEVICE if exchange is None else exchange.device

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule for other libraries: read-only without a copy, or a writable copy.

        Consumers from before DLPack 1.0 cannot be told that memory is read-only and get a copy.

        On CUDA `stream` is the consumer's, as in the Array API: None and 1 are the legacy default
        stream, 2 that of the thread, -1 asks for no order, all else is a handle. What comes there
        is behind what computes the value; the memory is used again behind what is there when the
        consumer gives it back. On METAL there is none to name: the host waits for the value.

        Raises:
            NotExportable: a stream that cannot be, another device, or `copy` False where there has
                to be one.
            InvalidValue: a handle that is no stream of the GPU's primary context.
        """
        from gpu.tensor import dlpack, sharing

        exchange = sharing.exchange_of(self.device)
        versioned = max_version is not None and max_version[0] >= dlpack.VERSION[0]
        if exchange is None or dl_device == dlpack.CPU_DEVICE:
            if stream is None and dl_device in (None, dlpack.CPU_DEVICE):
                return self._host_capsule(versioned, copy)
            raise dlpack.NotExportable(
                f"{self.device} lends tensors in host memory, (1, 0), without a stream; got "
                f"dl_device={dl_device} and stream={stream!r}"
            )
        if dl_device not in (None, exchange.device):
            raise dlpack.NotExportable(
                f"dl_device={dl_device}: a tensor on {self.device} is lent there, "
                f"{exchange.device}, or copied to host memory, (1, 0)"
            )
        order = sharing.stream_of(exchange, stream)
        is_lent = versioned and not copy and self._view is None
        if copy is False and not is_lent:
            raise dlpack.NotExportable(
                "copy=False, but memory is lent to a consumer of DLPack 1.0 or later alone, and "
                "what is a view of another tensor is computed into memory of its own"
            )
        memory = sharing.lend(exchange, self._in_memory(is_lent), self.shape, order)
        flags = dlpack.READ_ONLY if is_lent else dlpack.IS_COPIED
        return dlpack.make_capsule(memory, versioned, flags)

    def _in_memory(self, is_own: bool) -> Buffer:
        """The memory of the value, computed if need be, or a copy of it where not `is_own`."""
        refuse("lending a tensor's memory")
        note_thread()
        buffer = storage(self._computed())
        return buffer if is_own else buffer.duplicate()

    def _host_capsule(self, versioned: bool, copy: bool | None) -> object:
        from gpu.tensor import dlpack

        lent = None if copy or not versioned else self._host_view()
        # Some consumers know no strides that count backwards.
        if lent is not None and min(lent.strides, default=0) >= 0:
            memory = dlpack.host_memory(self._lent(), self.dtype)
            return dlpack.make_capsule(memory, versioned, dlpack.READ_ONLY)
        if copy is False:
            raise dlpack.NotExportable(
                "copy=False, but only the memory of a CPU tensor can be lent, without flips and "
                "to a consumer of DLPack 1.0 or later"
            )
        memory = dlpack.host_memory(self.numpy(), self.dtype)
        return dlpack.make_capsule(memory, versioned, dlpack.IS_COPIED)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """On CUDA the value's memory for other libraries, as version 3 of the interface has it.

        The host waits until the value is there, so that no stream is named. The memory is not
        written here any more, and kept as long as this tensor. It says that it may be written, as
        torch takes nothing else: they should not.

        Raises:
            AttributeError: on another device, and for dtypes that numpy does not have.
        """
        from gpu.tensor import sharing

        exchange = sharing.cuda_exchange_of(self.device)
        if exchange is None or not cudaarrays.has_name(self.dtype):
            raise AttributeError(cudaarrays.NOT_OFFERED)
        buffer = self._in_memory(self._view is None)
        return cudaarrays.interface_of(sharing.lent_with(self, buffer, exchange))

    @classmethod
    def from_dlpack(cls, x: Any, device: str | None = None, copy: bool | None = None) -> Self:
        """A tensor over the memory of `x`, an array of another library or a DLPack capsule.

        The memory is kept alive, and must not be changed as long as something computed from the
        tensor is not computed yet. Without strides that fit row-major order, or on a device that
        cannot use host memory, it is a copy. Memory of a GPU of CUDA's is used by tensors on that,
        which `device` says, or `DEV`: what is launched here comes behind what made the value
        there; of a bare capsule, behind all that the GPU does for this process. On CUDA an array
        that has `__cuda_array_interface__` alone, as numba's, is taken in the same way. Of Metal's
        memory, as of torch on MPS and MLX, the same holds, but that what made the value there must
        have ended before: ``torch.mps.synchronize()``, ``mx.eval(x)``.

        Raises:
            InvalidType: `x` does not speak DLPack.
            InvalidValue: `copy` is False and there has to be one; memory that is none of the GPU
                it is said to be on, or is shorter.
            Unsupported: a device or dtype that cannot be read.
            FormatError: the capsule's contents make no sense.
        """
        from gpu.tensor import dlpack, sharing

        if not hasattr(x, "__dlpack__") and cudaarrays.is_array(x):
            return cls._wrap(sharing.tensor_of_array(x, device, copy)._node)
        name = Device.canonicalize(device)
        capsule, is_ordered = _capsule_of(x, name)
        memory = dlpack.take_capsule(capsule, sharing.kinds_on(name))
        if memory.device[0] != dlpack.CPU_DEVICE[0]:
            if not is_ordered:
                sharing.follow_all(memory)
            return cls._wrap(sharing.tensor_over(memory, device, copy)._node)
        array, dtype, read_only = memory.host_array(), memory.dtype, memory.read_only
        address = memory.address
        fits = array.flags.c_contiguous and address % dtype.itemsize == 0
        if not array.size:
            return cls._wrap(own(G.const(0, array.shape, dtype, name)))
        node = None
        if fits and not copy:
            source = _Foreign(name, array.shape, dtype, address, read_only)
            borrow = Device[name].allocator.borrow
            node = source.node(lambda nbytes: borrow(address, nbytes, array), array)
        if node is None:
            if copy is False:
                raise InvalidValue(
                    f"copy=False, but memory of shape {list(array.shape)} and strides "
                    f"{list(array.strides)} bytes cannot be used in place on {name}"
                )
            node = node_of(array, name, None)
        return cls._wrap(node)

    @classmethod
    def from_blob(
        cls,
        ptr: int,
        shape: int | Sequence[int],
        dtype: DType | str = dtypes.float32,
        device: str | None = None,
        *,
        offset: int = 0,
    ) -> Self:
        """A tensor over memory `offset` bytes behind address `ptr`, in row-major order, in place.

        On CUDA `ptr` is an address on that GPU, such as `data_ptr()` of a tensor of torch's, that
        is a multiple of 16; all that the process does there is waited for first. On CL `ptr` is a
        `cl_mem` of the device's context; it is retained. With an image for a `dtype` it is an image
        of that size and kind. On METAL it is an MTLBuffer, such as `data_ptr()` of a tensor on MPS
        that is no view, or the address of shared memory; what computes there has ended before. On
        QCOM it is an address of the GPU, in any object of KGSL of this process, or of the host.

        The caller keeps the memory alive, and unchanged, as long as the tensor or something that
        was not computed yet needs it. Writing to the tensor gives it memory of its own. Tensors
        over one range share one value; ranges that overlap otherwise know nothing of each other.

        Raises:
            InvalidValue: an address that is zero, or not a multiple of the size of an element; on
                CUDA, METAL and QCOM one of no memory of the GPU, or of too little.
            Unsupported: a device that cannot use such memory; an offset on CL.
        """
        from gpu.tensor import sharing
        from gpu.tensor.strided import Strided, row_major

        name, element, sizes = Device.canonicalize(device), to_dtype(dtype), shape_of(shape)
        if cudaarrays.is_array(ptr):
            if sharing.cuda_exchange_of(name) is None:
                raise Unsupported(cudaarrays.not_taken(ptr))
            raise InvalidType("from_blob takes an address; Tensor.from_dlpack takes the array")
        begin, behind = integer(ptr, "ptr"), integer(offset, "offset")
        address = begin + behind
        if not 0 < begin <= address <= WORD or address % element.itemsize:
            where = f"{begin:#x} and offset {behind}" if behind else f"{begin:#x}"
            what = f"ptr must be an address of 64 bits that is a multiple of {element.itemsize}, of"
            raise InvalidValue(f"{what} {element.name}; got {where}")
        if 0 in sizes:
            return cls._wrap(own(G.const(0, sizes, element, name)))
        if math.prod(sizes) * element.itemsize > WORD - address:
            raise InvalidValue(
                f"{element.name} of shape {list(sizes)} at {address:#x} does not end within 64 bits"
            )
        exchange = sharing.exchange_of(name)
        if exchange is not None and not element.is_image:
            strides = row_major(sizes)
            memory = Strided(exchange.device, begin, sizes, strides, element, None, offset=behind)
            sharing.follow_all(memory)
            return cls._wrap(sharing.tensor_over(memory, name, copy=False)._node)
        adopt = _adopter(name, element)
        source = _Foreign(name, sizes, element, address, read_only=False)
        node = source.node(lambda nbytes: adopt(begin, nbytes, behind), None)
        if node is None:
            raise Unsupported(f"{name} cannot use memory at an address; copy it there with .to()")
        return cls._wrap(node)

    def _lent(self) -> Array:
        """The value as a read-only array: over the tensor's memory, or where not possible a copy.

        Memory that is given away like this is marked, so that nothing is written there.
        """
        array = self._host_view()
        if array is None:
            array = self._copied_out()
            array.flags.writeable = False
        mark_lent(array)
        return array


def _by_numpy(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    written: Iterable[object],
) -> Any:
    """What a function of numpy's makes of tensors as read-only arrays.

    Raises InvalidType where it would write to one: to one of those in `written`, or to another.
    """
    for target in written:
        if isinstance(target, TensorBase):
            raise _no_target(name, target._described())
    try:
        return function(*_arrays(args), **_arrays(kwargs))
    except ValueError as error:
        if "read-only" not in str(error) or isinstance(error, GpuError):
            raise
        raise _no_target(name, "what was given") from error


def _no_target(name: str, target: str) -> InvalidType:
    return InvalidType(
        f"numpy's {name} cannot write to {target}: the memory of a tensor is lent for reading. "
        "Give it an array, such as tensor.numpy(), and what that becomes to tensor.assign()"
    )


def _arrays(value: Any) -> Any:
    """`value` with each tensor in its lists, tuples and dicts as an array."""
    if isinstance(value, Interop):
        return value._lent()
    if type(value) in (list, tuple):
        return type(value)(_arrays(v) for v in value)
    if type(value) is dict:
        return {key: _arrays(v) for key, v in value.items()}
    return value


def _size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    return math.prod(a.shape[i] for i in axes_of(axis, a.ndim))


def _adopter(device: str, dtype: DType) -> Callable[[int, int, int], Any]:
    """Makes memory of a device of what someone else names by a number, for so many bytes."""
    allocator = Device[device].allocator
    if isinstance(dtype, ImageDType):
        return lambda pointer, nbytes, offset: allocator.adopt_image(pointer + offset, dtype)
    return allocator.adopt


def mark_lent(array: Array) -> None:
    """Marks the buffer that an array is over, if it is over one, as read-only."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    buffer = getattr(base, "buffer", None)
    if isinstance(buffer, Buffer):
        buffer.read_only = True


def _has_no_format(dtype: DType) -> bool:
    """Whether Python's struct module has no letter for it."""
    return dtype.is_float and (dtype.bits == 8 or dtype is dtypes.bfloat16)


def _capsule_of(x: Any, name: Place) -> tuple[object, bool]:
    """The capsule of what `from_dlpack` is given, for a tensor on the device `name`.

    And whether what is launched there from now on comes behind what makes its value.
    """
    from gpu.tensor import dlpack, sharing

    if type(x).__name__ == "PyCapsule":
        return x, False
    if not hasattr(x, "__dlpack__"):
        raise InvalidType(f"from_dlpack needs an array with __dlpack__, got {type(x).__name__}")
    options = {}
    if hasattr(x, "__dlpack_device__"):
        device = x.__dlpack_device__()
        dlpack.check_kind(device[0], sharing.kinds_on(name))
        if device[0] != dlpack.CPU_DEVICE[0]:
            stream = sharing.exchange_at(device).stream
            if stream is not None:
                options["stream"] = stream
    try:
        return x.__dlpack__(max_version=dlpack.VERSION, **options), bool(options)
    except TypeError:  # from before DLPack 1.0
        return x.__dlpack__(**options), bool(options)


def host_capsule_of(x: Any) -> object:
    """The capsule of an array of another library in host memory. Raises Unsupported elsewhere."""
    return _capsule_of(x, "CPU")[0]


class _Foreign(NamedTuple):
    """Memory of someone else that a tensor is to stand for."""

    device: str
    shape: tuple[int, ...]
    dtype: DType
    address: int
    read_only: bool

    def node(self, use: Callable[[int], Any], owner: object) -> Node | None:
        """A buffer over the memory, that which already is for exactly this range.

        `use` makes memory of the device of so many bytes, or None, which is the result then.
        """
        size = math.prod(self.shape)
        key = (self.device, self.address, size, self.dtype, self.read_only)
        buffer = _foreign.get(key)
        if buffer is None:
            memory = use(size * self.dtype.itemsize)
            if memory is None:
                return None
            buffer = Buffer.over(self.device, size, self.dtype, memory, owner, self.read_only)
            _foreign[key] = buffer
        else:
            buffer.hold(owner)
        return G.buffer(buffer, self.shape, self.dtype, self.device)


_OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "power": operator.pow, "divmod": divmod, "matmul": operator.matmul,
    "left_shift": operator.lshift, "right_shift": operator.rshift, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "equal": operator.eq,
    "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "negative": operator.neg,
    "positive": operator.pos, "absolute": operator.abs, "invert": operator.invert,
}  # fmt: skip
# Functions of shapes alone, which compute nothing.
_ABOUT: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    np.shape: lambda a: tuple(a.shape), np.ndim: lambda a: a.ndim, np.size: _size,
}  # fmt: skip
