"""What a checkpoint consists of: its ``index.json``, and reading the parts that it names.

Nothing of it is taken at its word: sizes are compared before memory is taken, every field is
checked, and nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu.compiler.ir.graph.grid import Region
from gpu.core.dtype import DType, to_dtype
from gpu.core.errors import DTypeError, FormatError, InvalidType, InvalidValue
from gpu.core.files import map_file, read_bytes
from gpu.distributed.pieces import Piece, Pieces, begin_of
from gpu.tensor.formats.safetensors import read_header
from gpu.tensor.tensor import Tensor

INDEX: Final = "index.json"
ID: Final = "checkpoint"
"""The metadata of a part: which checkpoint it is of."""

_NAME: Final = re.compile(r"checkpoint-(\d{8,18})")
_VERSION: Final = 1
_LARGEST: Final = 64 << 20  # bytes of an index


class Index(NamedTuple):
    """What a checkpoint says of itself.

    Attributes:
        step: of the program.
        id: which no other checkpoint has.
        objects: the states of what is no tensor, by name.
        seed: of random numbers; None where none was needed.
        given: how many random words each device has given out.
        tensors: dtype and shape of each, by name.
        parts: how many bytes the file of each rank has.
    """

    step: int
    id: str
    objects: dict[str, dict[str, Any]]
    seed: int | None
    given: dict[str, int]
    tensors: dict[str, tuple[DType, tuple[int, ...]]]
    parts: list[int]

    def packed(self) -> bytes:
        """As the content of a file.

        Raises InvalidType where an object's state is nothing that JSON has, InvalidValue where all
        of it is too long.
        """
        fields = self._asdict() | {"version": _VERSION}
        fields["tensors"] = {n: [dtype.name, shape] for n, (dtype, shape) in self.tensors.items()}
        try:
            text = json.dumps(fields).encode()
        except (TypeError, ValueError) as error:
            raise InvalidType(
                f"the state of one of {', '.join(self.objects)} cannot be saved: {error}; its"
                " state_dict() has to give numbers, texts, lists and dicts"
            ) from error
        if len(text) > _LARGEST:
            raise InvalidValue(f"names and states take {len(text):,} of {_LARGEST:,} bytes")
        return text


def part_name(rank: int) -> str:
    """The file of a rank."""
    return f"part-{rank:05}.safetensors"


def next_name(folder: Path) -> str:
    """A name that no checkpoint in a folder has had yet."""
    numbers = [number for number, _ in numbered(folder)]
    return f"checkpoint-{max(numbers, default=0) + 1:08}"


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a folder with their numbers, in the order in which they were written."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = ((_NAME.fullmatch(name), folder / name) for name in names)
    return sorted((int(match[1]), path) for match, path in found if match)


def check_objects(place: Path, index: Index, objects: Iterable[str]) -> None:
    """Raises InvalidValue where the states that were saved are not those of `objects`."""
    wanted = {*objects}
    if wanted != index.objects.keys():
        raise InvalidValue(
            f"{place} has the states of {sorted(index.objects) or 'no objects'}, to be loaded are"
            f" those of {sorted(wanted) or 'none'}: pass what was saved"
        )


def read(place: Path, targets: Mapping[str, Tensor]) -> tuple[Index, dict[str, Tensor]]:
    """The index of a checkpoint, and its tensors, laid as `targets` of the same name and shape.

    Of what no target is like, a tensor of the shape stands there, and nothing was read.

    Raises InvalidValue for a folder that has no index, FormatError for what is malformed.
    """
    index = _parsed(place / INDEX)
    pieces: dict[str, list[Piece]] = {name: [] for name in index.tensors}
    for rank, size in enumerate(index.parts):
        for name, piece in _pieces_of(place / part_name(rank), size, index):
            pieces[name].append(piece)
    values = {}
    for name, (dtype, shape) in index.tensors.items():
        target = targets.get(name)
        whole = Pieces(name, dtype, shape, pieces[name])
        fits = target is not None and target.shape == shape
        values[name] = whole.like(target) if target is not None and fits else Tensor.zeros(shape)
    return index, values


def _pieces_of(path: Path, size: int, index: Index) -> list[tuple[str, Piece]]:
    try:
        data = map_file(path)
    except FileNotFoundError:
        raise FormatError(
            f"{path} is missing, of {len(index.parts)} parts of the checkpoint: load another one"
        ) from None
    if data.size != size:
        raise FormatError(
            f"{path} has {data.size:,} bytes and was written with {size:,}: it is cut off, or is"
            " another checkpoint's"
        )
    header = read_header(data)
    if header.metadata.get(ID) != index.id:
        raise FormatError(
            f"{path} is a part of checkpoint {header.metadata.get(ID)!r:.60}, not {index.id!r}"
        )
    found = []
    for key, info in header.tensors.items():
        name, start = begin_of(key)
        dtype, shape = index.tensors.get(name, (None, ()))
        if info.dtype is not dtype or len(start) != len(shape):
            raise FormatError(f"{path} has {key!r:.100}, which {INDEX} does not know")
        span = data[header.data_start + info.start : header.data_start + info.stop]
        found.append((name, Piece(Region(start, info.shape), span)))
    return found


def _parsed(path: Path) -> Index:
    """Raises InvalidValue where there is no index, FormatError for what is none."""
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        raise InvalidValue(f"{path.parent} is no checkpoint: it has no {INDEX}") from None
    if size > _LARGEST:
        raise FormatError(f"{path} has {size:,} bytes, an index has {_LARGEST:,} at most")
    try:
        fields = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no JSON: {error}; it is cut off or damaged") from error
    if not isinstance(fields, dict) or fields.get("version") != _VERSION:
        raise FormatError(f"{path} is no index of version {_VERSION} of checkpoints")
    return Index(
        _natural(path, "step", fields.get("step")),
        _field(path, fields, "id", str),
        {n: _as(path, n, each, dict) for n, each in _field(path, fields, "objects", dict).items()},
        None if fields.get("seed") is None else _natural(path, "seed", fields["seed"]),
        {n: _natural(path, n, each) for n, each in _field(path, fields, "given", dict).items()},
        {n: _tensor(path, n, each) for n, each in _field(path, fields, "tensors", dict).items()},
        [_natural(path, "parts", each) for each in _field(path, fields, "parts", list)],
    )


def _tensor(path: Path, name: str, entry: object) -> tuple[DType, tuple[int, ...]]:
    pair = _as(path, name, entry, list)
    dtype, shape = pair if len(pair) == 2 else (None, None)
    sizes = _as(path, name, shape, list)
    try:
        known = to_dtype(_as(path, name, dtype, str))
    except DTypeError as error:
        raise FormatError(f"{path}: {name} is of {dtype!r:.50}: {error.message}") from None
    return known, tuple(_natural(path, name, size) for size in sizes)


def _natural(path: Path, name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise FormatError(f"{path}: {name} has {value!r:.50}, expected a number from 0 on")
    return value


def _field(path: Path, fields: dict[str, Any], name: str, kind: type) -> Any:
    return _as(path, name, fields.get(name), kind)


def _as(path: Path, name: str, value: object, kind: type) -> Any:
    if not isinstance(value, kind):
        raise FormatError(f"{path}: {name} is {value!r:.50}, expected a {kind.__name__}")
    return value
