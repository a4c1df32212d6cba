"""Torch checkpoints: what `torch.save` writes, read without torch and without executing anything.

Two formats (`torch/serialization.py` of torch 2.13):

- since 1.6, a zip archive whose members lie in one folder: ``data.pkl`` is the pickled object,
  ``data/KEY`` the bytes of each storage, ``byteorder`` (since 2.0) says ``little`` or ``big``;
- before, one stream: pickles of a magic number, of the protocol's version 1001, of a dict about
  the machine that wrote it, of the object and of the list of storages' keys; then for each key the
  number of elements (8 bytes, signed) and the elements.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from typing import Final

from gpu.core.errors import FormatError
from gpu.core.files import map_file
from gpu.runtime.device import Device
from gpu.tensor.formats.archive import ZipMembers
from gpu.tensor.formats.hostbytes import Bytes, BytesFile, aligned
from gpu.tensor.formats.pickle_machine import load_pickle
from gpu.tensor.formats.progress import byte_progress
from gpu.tensor.formats.torch_tensors import TensorMaker
from gpu.tensor.formats.torch_world import (
    ORDERED_DICT,
    StorageId,
    TorchWorld,
    stand_in,
    storage_id,
)

_ZIP_SIGNATURE: Final = b"PK\x03\x04"
_LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL: Final = 1001
_RECORD_SIZE: Final = {"little": struct.Struct("<q"), "big": struct.Struct(">q")}
_ALIGNMENT: Final = 8  # of storages: one copy of all if need be, so that views of it share memory
# What may be copied or decompressed: enough for a file whose tensors are all transposed.
_LIMIT_PER_BYTE: Final = 8
_LEAST_LIMIT: Final = 64 << 20


def torch_load(path: str | os.PathLike[str], device: str | None = None) -> object:
    """The object in a torch checkpoint, its tensors as tensors of this library.

    Containers come as dicts (OrderedDict too), lists, tuples and sets, `torch.Size` as a tuple, a
    dtype as a `DType`, a `torch.device` as text. Parameters are plain tensors: nothing asks for
    gradients. Everything comes to `device`, wherever it was saved from.

    On the CPU, tensors that are contiguous in their storage are views of the mapped file (copies of
    storages that are not aligned there, as happens in the older format), which must not be written
    to meanwhile, and share memory where they did in torch. Others are copied, equal ones once.

    Args:
        path: the checkpoint.
        device: where the tensors shall live; None for the default device.

    Raises FormatError for a malformed checkpoint, and for one that holds anything but tensors,
    numbers, text and containers of these: whole models have to be saved as `state_dict()`. Raises
    OSError for a file that cannot be read.

    >>> from gpu.nn.state import torch_load
    >>> weights = torch_load("model.pt")  # doctest: +SKIP
    """
    target = Device.canonicalize(device)
    data = map_file(path)
    if data[:4].tobytes() == _ZIP_SIGNATURE:
        with byte_progress("loading", data.size) as advance:
            return _load_zip(data, target, advance)
    return _load_legacy(data, target)


def _limit(data: Bytes) -> int:
    return max(_LEAST_LIMIT, _LIMIT_PER_BYTE * int(data.size))


# The zip format.


def _load_zip(data: Bytes, device: str, advance: Callable[[int], object]) -> object:
    members = ZipMembers(data, _limit(data))
    roots = [n.removesuffix("data.pkl") for n in members.names if n.endswith("/data.pkl")]
    if len(roots) != 1:
        raise FormatError(
            f"a torch checkpoint has one member FOLDER/data.pkl, this zip archive {len(roots)}"
        )
    root = roots[0]
    if f"{root}constants.pkl" in members.names:
        raise FormatError(
            "this is a TorchScript archive, which holds code; save the model's state_dict() instead"
        )
    swapped = _zip_byte_order(members, root) != sys.byteorder
    found: dict[str, Bytes] = {}

    def find(wanted: StorageId) -> Bytes:
        if wanted.key not in found:
            found[wanted.key] = aligned(members.read(f"{root}data/{wanted.key}"), _ALIGNMENT)
            advance(found[wanted.key].size)
        return found[wanted.key]

    world = TorchWorld(find, TensorMaker(device, _limit(data), swapped))
    return load_pickle(BytesFile(members.read(f"{root}data.pkl")), world)


def _zip_byte_order(members: ZipMembers, root: str) -> str:
    name = f"{root}byteorder"
    if name not in members.names:
        return "little"
    order = members.read(name)[:16].tobytes()
    if order not in (b"little", b"big"):
        raise FormatError(f"the checkpoint's byteorder is {order!r}; it has to be little or big")
    return order.decode()


# The format before 1.6.


class _PlainWorld:
    """The world of pickles that hold plain values only."""

    def global_named(self, name: str) -> object:
        """Refuses."""
        raise FormatError(f"the checkpoint's preamble asks for {name}; refused")

    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        """Refuses."""
        raise FormatError("the checkpoint's preamble has a call; refused")

    def persistent(self, identity: object) -> object:
        """Refuses."""
        raise FormatError("the checkpoint's preamble refers to a storage; refused")

    def set_state(self, target: object, state: object) -> None:
        """Refuses."""
        raise FormatError("the checkpoint's preamble sets an object's state; refused")


class _StorageNotes:
    """A world that makes nothing and notes which storages a pickle refers to.

    Attributes:
        wanted: the storages, by key.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, StorageId] = {}

    def global_named(self, name: str) -> object:
        """What stands for the name. Raises FormatError where it is refused."""
        return stand_in(name)

    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        """An empty dict, which items may be set in, or nothing."""
        return {} if function == ORDERED_DICT else None

    def persistent(self, identity: object) -> object:
        """Notes the storage."""
        wanted = storage_id(identity)
        if self.wanted.setdefault(wanted.key, wanted) != wanted:
            raise FormatError(f"storage {wanted.key!r} is referred to with two sizes or dtypes")
        return None

    def set_state(self, target: object, state: object) -> None:
        """Does nothing."""


def _load_legacy(data: Bytes, device: str) -> object:
    file, plain = BytesFile(data), _PlainWorld()
    try:
        magic = load_pickle(file, plain)
    except FormatError as error:
        raise FormatError(f"this is not a torch checkpoint: {error.message}") from error
    if magic != _LEGACY_MAGIC:
        raise FormatError(
            "this is not a torch checkpoint: it is neither a zip archive nor starts with the magic"
            " number of the older format"
        )
    if (protocol := load_pickle(file, plain)) != _LEGACY_PROTOCOL:
        shown = protocol if isinstance(protocol, int) else type(protocol).__name__
        raise FormatError(f"the checkpoint has protocol {shown}, known is {_LEGACY_PROTOCOL}")
    system = load_pickle(file, plain)
    little = system.get("little_endian") if isinstance(system, dict) else None
    if not isinstance(little, bool):
        raise FormatError("the checkpoint does not say its byte order")
    order = "little" if little else "big"
    # The storages come after the pickle that says how large their elements are: it is read twice.
    start, notes = file.tell(), _StorageNotes()
    load_pickle(file, notes)
    keys = load_pickle(file, plain)
    storages = _legacy_storages(data, file.tell(), keys, notes.wanted, order)
    file.seek(start)
    maker = TensorMaker(device, _limit(data), order != sys.byteorder)
    world = TorchWorld(lambda wanted: storages[wanted.key], maker)
    return load_pickle(file, world)


def _legacy_storages(
    data: Bytes, position: int, keys: object, wanted: dict[str, StorageId], order: str
) -> dict[str, Bytes]:
    """The bytes of each storage, the records of which start at `position` in the order of `keys`.

    Raises FormatError where keys, sizes and the file's length do not go together.
    """
    if not isinstance(keys, list) or {k for k in keys if isinstance(k, str)} != wanted.keys():
        raise FormatError("the checkpoint's list of storages is not what its tensors refer to")
    if len(keys) != len(wanted):
        raise FormatError("the checkpoint lists a storage twice")
    record, storages = _RECORD_SIZE[order], {}
    for key in keys:
        size = wanted[key].size
        start = position + record.size
        position = start + size * wanted[key].dtype.itemsize
        if position > data.size:
            raise FormatError(
                f"storage {key!r} takes bytes {start:,} to {position:,},"
                f" the file has {data.size:,}: it is cut off"
            )
        told = record.unpack(data[start - record.size : start].tobytes())[0]
        if told != size:
            raise FormatError(f"storage {key!r} has {told:,} elements, its tensors say {size:,}")
        storages[key] = aligned(data[start:position], _ALIGNMENT)
    return storages
