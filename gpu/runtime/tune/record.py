"""The file of the best schedules known: plain JSON that can be merged and shipped.

An entry is found by the kernel (a digest of its text), the target (a digest of all that the
compiler knows of the machine) and the version of this package. Its schedule is a list of
transformations by name, or null where the policies' own choice is the best that is known. Nothing
in the file is trusted: a schedule goes through the same tests of legality as any other when it is
used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import print_kernel
from gpu.compiler.opt import opts as transformations
from gpu.compiler.opt.opts import Opt
from gpu.compiler.opt.primitives.matrix_tiling import MatrixTiling
from gpu.compiler.opt.primitives.tiling import Copy, Tiling
from gpu.compiler.targets import Target
from gpu.core.errors import FormatError
from gpu.core.files import atomic_file, locked, read_bytes

FORMAT: Final = "gpu-schedules-1"
_PARTS: Final = {kind.__name__: kind for kind in (*get_args(Opt), Tiling, MatrixTiling, Copy)}


class Entry(NamedTuple):
    """What is known of a kernel.

    Attributes:
        label: what it computes, for people.
        opts: the best schedule known; None for the policies' own choice.
        cost: of that, in the unit that `unit` names.
        default: the same of the policies' own choice, measured beside it.
        unit: "s" for seconds, "work" for instructions and memory sectors on a simulated device.
    """

    label: str
    opts: tuple[Opt, ...] | None
    cost: float
    default: float
    unit: str


Entries = dict[str, Entry]


def key_of(kernel: K.Kernel, target: Target) -> str:
    """Names a kernel, a target and the version of this package."""
    parts = (print_kernel(kernel), target.key)
    return "-".join([_version(), *(blake2b(p.encode(), digest_size=10).hexdigest() for p in parts)])


def _version() -> str:
    try:
        return version("gpu")
    except PackageNotFoundError:  # run where it lies
        return "source"


def read(path: Path) -> Entries:
    """The entries of a file, none where there is no file.

    Raises FormatError for what is no such file, OSError as the system does.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise FormatError(f"{path} is no file of schedules: it does not say {FORMAT!r}")
        return {str(key): _entry(row) for key, row in found["entries"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path} is damaged, or no file of schedules ({error}); remove it, or set TUNED to"
            " another"
        ) from error


def add(path: Path, new: Mapping[str, Entry]) -> Entries:
    """Adds entries to a file, of equal keys the one with the least cost; gives all of them.

    Several processes may do so at once, and any may be killed: the file is always whole. Raises as
    `read` does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        entries = merged([read(path), new])
        rows = {key: _row(entry) for key, entry in sorted(entries.items())}
        text = json.dumps({"format": FORMAT, "entries": rows}, indent=1)
        with atomic_file(path, durable=True) as file:
            file.write(text.encode())
    return entries


def merged(several: Iterable[Mapping[str, Entry]]) -> Entries:
    """All entries; of equal keys the one that gains most over the policies' choice.

    Costs are of one machine in one moment: that they differ says less than what they were beside.
    """
    found: Entries = {}
    for entries in several:
        for key, entry in entries.items():
            if key not in found or _gain(entry) > _gain(found[key]):
                found[key] = entry
    return found


def _gain(entry: Entry) -> float:
    return entry.default / entry.cost


def _row(entry: Entry) -> dict[str, Any]:
    opts = None if entry.opts is None else encode(entry.opts)
    return {**entry._asdict(), "opts": opts}


def _entry(row: Mapping[str, Any]) -> Entry:
    cost, default = float(row["cost"]), float(row["default"])
    if not (cost > 0 and default > 0):
        raise ValueError(f"costs are {cost} and {default}")
    opts = None if row["opts"] is None else decode(row["opts"])
    return Entry(str(row["label"]), opts, cost, default, str(row["unit"]))


def encode(opts: Sequence[Opt]) -> list[Any]:
    """Transformations as plain data."""
    return [_plain(opt) for opt in opts]


def decode(plain: Sequence[Any]) -> tuple[Opt, ...]:
    """The transformations that `encode` gave. Raises ValueError for anything else."""
    found = tuple(_value(each) for each in plain)
    if not all(isinstance(each, get_args(transformations.Opt)) for each in found):
        raise ValueError("a schedule is a list of transformations")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {type(value).__name__: {n: _plain(each) for n, each in value._asdict().items()}}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        ((name, fields),) = plain.items()
        if name not in _PARTS or set(fields) != set(_PARTS[name]._fields):
            raise ValueError(f"{name} with {sorted(fields)} is no transformation")
        return _PARTS[name](**{field: _value(each) for field, each in fields.items()})
    if isinstance(plain, list):
        return tuple(_value(each) for each in plain)
    if not isinstance(plain, str | int):
        raise ValueError(f"{plain!r} is no part of a transformation")
    return plain
