"""What the pickle of a torch checkpoint may refer to, and what that becomes here.

The names are those that `torch.save` writes for tensors and the containers around them (torch
2.13: `torch/_utils.py`, `torch/_tensor.py` `__reduce_ex__`, `torch/serialization.py`). Each is a
function of this module or a value; there is no way from a file to any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import FormatError
from gpu.tensor.formats.hostbytes import Bytes
from gpu.tensor.formats.pickle_machine import Keys
from gpu.tensor.formats.torch_tensors import Global, Storage, TensorMaker, natural, naturals, shown
from gpu.tensor.tensor import Tensor

_STORAGE_DTYPES: Final = {
    "BoolStorage": dtypes.bool, "ByteStorage": dtypes.uint8, "CharStorage": dtypes.int8,
    "ShortStorage": dtypes.int16, "IntStorage": dtypes.int32, "LongStorage": dtypes.int64,
    "HalfStorage": dtypes.float16, "BFloat16Storage": dtypes.bfloat16,
    "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64,
    "ComplexFloatStorage": dtypes.complex64, "ComplexDoubleStorage": dtypes.complex128,
    "storage.UntypedStorage": dtypes.uint8, "UntypedStorage": dtypes.uint8,
}  # fmt: skip
_DTYPES: Final = {
    "bool": dtypes.bool, "uint8": dtypes.uint8, "uint16": dtypes.uint16, "uint32": dtypes.uint32,
    "uint64": dtypes.uint64, "int8": dtypes.int8, "int16": dtypes.int16, "int32": dtypes.int32,
    "int64": dtypes.int64, "float8_e4m3fn": dtypes.fp8e4m3, "float8_e5m2": dtypes.fp8e5m2,
    "float16": dtypes.float16, "bfloat16": dtypes.bfloat16, "float32": dtypes.float32,
    "float64": dtypes.float64, "complex64": dtypes.complex64, "complex128": dtypes.complex128,
}  # fmt: skip
_TENSOR_TYPES: Final = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.Parameter")


class StorageId(NamedTuple):
    """How a pickle refers to a storage.

    Attributes:
        key: its name in the file.
        dtype: of the elements.
        size: number of elements.
    """

    key: str
    dtype: DType
    size: int


def stand_in(name: str) -> object:
    """What stands for a dotted name. Raises FormatError for all but those of this module."""
    found = _GLOBALS.get(name)
    if found is None:
        raise FormatError(
            f"the checkpoint asks for {shown(name)}; refused: only tensors and plain containers are"
            " loaded, and nothing is executed. Save a model's state_dict() instead of objects"
        )
    return found


def storage_id(identity: object) -> StorageId:
    """Reads the tuple that `torch.save` refers to a storage with. Raises FormatError."""
    if not isinstance(identity, tuple) or len(identity) not in (5, 6):
        raise FormatError(f"the checkpoint refers to {shown(identity)}, which is no storage")
    tag, kind, key, _, size = identity[:5]
    if tag != "storage" or not isinstance(kind, Global) or not isinstance(key, str):
        raise FormatError(f"the checkpoint refers to {shown(identity)}, which is no storage")
    if kind.storage is None:
        raise FormatError(f"storage {shown(key)} has the type {kind.name}, which is none")
    if identity[5:] not in ((), (None,)):
        raise FormatError(
            f"storage {key!r} is a view of another one, a form that torch gave up before 1.0"
        )
    return StorageId(key, kind.storage, natural(size, f"the size of storage {key!r}"))


class TorchWorld:
    """Makes tensors of the calls in a checkpoint's pickle."""

    def __init__(self, find: Callable[[StorageId], Bytes], maker: TensorMaker):
        """`find` gives the bytes of storages, and `maker` makes tensors of them."""
        self._find, self._maker, self._keys = find, maker, Keys()

    # What the pickle machine asks for.

    def global_named(self, name: str) -> object:
        """What stands for a dotted name. Raises FormatError for all but those of this module."""
        return stand_in(name)

    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        """The value of a call that `torch.save` writes. Raises FormatError for any other."""
        made = _CALLS.get(function.name) if isinstance(function, Global) else None
        if made is None:
            raise FormatError(f"the checkpoint calls {shown(function)}; refused")
        least, most, method = made
        if not least <= len(arguments) <= most:
            raise FormatError(
                f"the checkpoint calls {shown(function)} with {len(arguments)} arguments;"
                f" it takes {least} to {most}"
            )
        return method(self, *arguments)

    def persistent(self, identity: object) -> object:
        """A storage, by the tuple that `torch.save` refers to it with."""
        wanted = storage_id(identity)
        data = self._find(wanted)
        if data.size != wanted.size * wanted.dtype.itemsize:
            raise FormatError(
                f"storage {wanted.key!r} has {data.size:,} bytes; {wanted.size:,} elements of"
                f" {wanted.dtype.name} take {wanted.size * wanted.dtype.itemsize:,}"
            )
        return Storage(wanted.key, wanted.dtype, data)

    def set_state(self, target: object, state: object) -> None:
        """Attributes of an OrderedDict (the versions in a state dict's `_metadata`) are dropped."""
        if not (isinstance(target, dict) and isinstance(state, dict)):
            raise FormatError(
                f"the checkpoint sets the state of a {type(target).__name__}; refused"
            )

    # The calls.

    def _rebuild_tensor(
        self,
        storage: object,
        offset: object,
        size: object,
        stride: object,
        requires_grad: object = False,
        hooks: object = None,
        metadata: object = None,
    ) -> Tensor:
        if not isinstance(storage, Storage):
            raise FormatError(f"a tensor is made of {shown(storage)}, which is no storage")
        if metadata:
            raise FormatError("a tensor is conjugated or negated lazily, which is not supported")
        return self._maker.tensor(
            storage,
            natural(offset, "a tensor's storage offset"),
            naturals(size, "a tensor's size"),
            naturals(stride, "a tensor's stride"),
        )

    def _rebuild_tensor_v3(
        self,
        storage: object,
        offset: object,
        size: object,
        stride: object,
        requires_grad: object,
        hooks: object,
        dtype: object,
        metadata: object = None,
    ) -> Tensor:
        if not isinstance(storage, Storage) or not isinstance(dtype, DType):
            raise FormatError(f"a tensor is made of {shown(storage)} and {shown(dtype)}")
        typed = storage._replace(dtype=dtype)
        return self._rebuild_tensor(typed, offset, size, stride, metadata=metadata)

    def _rebuild_parameter(
        self, data: object, requires_grad: object, hooks: object, state: object = None
    ) -> Tensor:
        if not isinstance(data, Tensor):
            raise FormatError(f"a parameter is made of {shown(data)}, which is no tensor")
        return data

    def _rebuild_from_type(
        self, function: object, kind: object, arguments: object, state: object
    ) -> object:
        if not isinstance(kind, Global) or kind.name not in _TENSOR_TYPES:
            raise FormatError(f"a tensor has the type {shown(kind)}; refused")
        rebuilds = isinstance(function, Global) and "._rebuild_" in function.name
        if not rebuilds or not isinstance(arguments, tuple) or function is _GLOBALS[_FROM_TYPE]:
            raise FormatError(f"a tensor is made by calling {shown(function)}; refused")
        return self.call(function, arguments)

    def _ordered_dict(self, pairs: object = ()) -> dict[Any, Any]:
        result = {}
        for pair in self._items(pairs):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise FormatError(f"an OrderedDict is made of {shown(pair)}, which is no pair")
            result[self._keys.check(pair[0])] = pair[1]
        return result

    def _set(self, values: object = ()) -> set[Any]:
        return {self._keys.check(value) for value in self._items(values)}

    def _frozenset(self, values: object = ()) -> frozenset[Any]:
        return frozenset(self._set(values))

    def _items(self, values: object) -> list[Any] | tuple[Any, ...]:
        if not isinstance(values, list | tuple):
            raise FormatError(f"a container is made of {shown(values)}, which is no list")
        self._maker.spend(64 * len(values))
        return values

    def _size(self, sizes: object = ()) -> tuple[int, ...]:
        return naturals(sizes, "a size")

    def _device_name(self, kind: object, index: object = None) -> str:
        if not isinstance(kind, str) or not (index is None or type(index) is int):
            raise FormatError(f"a device is named by {shown((kind, index))}")
        return kind if index is None else f"{kind}:{index}"

    def _encode(self, text: object, encoding: object) -> bytes:
        """How protocol 2 writes bytes: as text of the same code points."""
        if not isinstance(text, str) or encoding != "latin1":
            raise FormatError(f"bytes are made of {shown(text)} with encoding {shown(encoding)}")
        self._maker.spend(len(text))
        try:
            return text.encode("latin1")
        except UnicodeEncodeError as error:
            raise FormatError(f"bytes are made of text that is not latin1: {error}") from error


ORDERED_DICT: Final = Global("collections.OrderedDict")
_FROM_TYPE: Final = "torch._tensor._rebuild_from_type_v2"
# Least and most arguments, and what is called with them.
_CALLS: Final[dict[str, tuple[int, int, Callable[..., object]]]] = {
    "torch._utils._rebuild_tensor": (4, 4, TorchWorld._rebuild_tensor),
    "torch._utils._rebuild_tensor_v2": (6, 7, TorchWorld._rebuild_tensor),
    "torch._utils._rebuild_tensor_v3": (7, 8, TorchWorld._rebuild_tensor_v3),
    "torch._utils._rebuild_parameter": (3, 3, TorchWorld._rebuild_parameter),
    "torch._utils._rebuild_parameter_with_state": (4, 4, TorchWorld._rebuild_parameter),
    _FROM_TYPE: (4, 4, TorchWorld._rebuild_from_type),
    ORDERED_DICT.name: (0, 1, TorchWorld._ordered_dict),
    "builtins.set": (0, 1, TorchWorld._set),
    "__builtin__.set": (0, 1, TorchWorld._set),
    "builtins.frozenset": (0, 1, TorchWorld._frozenset),
    "__builtin__.frozenset": (0, 1, TorchWorld._frozenset),
    "torch.Size": (0, 1, TorchWorld._size),
    "torch.device": (1, 2, TorchWorld._device_name),
    "_codecs.encode": (2, 2, TorchWorld._encode),
}
_GLOBALS: Final[dict[str, object]] = {
    **{name: Global(name) for name in (*_CALLS, *_TENSOR_TYPES)},
    **{f"torch.{n}": Global(f"torch.{n}", dtype) for n, dtype in _STORAGE_DTYPES.items()},
    **{f"torch.{name}": dtype for name, dtype in _DTYPES.items()},
}
