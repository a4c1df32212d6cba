"""Checkpoints of all ranks in a folder that they share: `save`, `load`.

A folder holds checkpoints by number, ``checkpoint-00000003``, each with a file of every rank that
wrote it, ``part-00000.safetensors``, and ``index.json``, which says what it consists of. They are
written into a folder of another name, which gets its own when everything is on the disk: whenever
processes are killed, what has that name is whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from gpu.compiler.ir.dims import has_symbols
from gpu.core.arguments import whole
from gpu.core.errors import DistributedError, GpuError, InvalidType, InvalidValue
from gpu.core.files import AtomicFolder, atomic_file, remove_folder
from gpu.core.log import get_logger
from gpu.distributed import index
from gpu.distributed.group import Group
from gpu.distributed.index import INDEX, Index
from gpu.distributed.messages import What, field
from gpu.distributed.pieces import begin_of, own_pieces
from gpu.distributed.start import init
from gpu.tensor.formats.safetensors import (
    Content,
    check_saved_dtype,
    is_text,
    layout_of_file,
    write_file,
)
from gpu.tensor.nn.state import found_in, get_state_dict, load_state_dict
from gpu.tensor.randomness import generator_state, restore_generator
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import refuse

log = get_logger(__name__)

_LONGEST: Final = 1000  # characters of an error that others are told
_LARGEST_STEP: Final = 1 << 62


@runtime_checkable
class Stateful(Protocol):
    """What has a state besides tensors: learning rate schedules, `gpu.data.Loader`."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state, of what JSON has."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Goes on from it."""


class Saving:
    """A checkpoint that is being written.

    Attributes:
        step: of the program that it is of.
    """

    def __init__(self, work: _Work):
        self.step = work.step
        self._work = work
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="gpu-save")
        self._thread.start()

    def wait(self) -> None:
        """Returns when the checkpoint is whole, on all ranks.

        Raises DistributedError where a rank could not write its part, with its name and why, and
        PeerLost where one is lost; then there is none, and those before are as they were.
        """
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            self._work.finish()
        except Exception as error:  # all of it is for who waits
            log.error("the checkpoint of step %d is not saved: %s", self.step, error)
            self._error = error
        finally:
            self._work.give_up()


class _Last:
    """The save that was begun last: one is under way at a time."""

    saving: Saving | None = None


def wait_for_save() -> None:
    """Returns when none is under way. Raises as `Saving.wait`, once."""
    saving, _Last.saving = _Last.saving, None
    if saving is not None:
        saving.wait()


def drop_save() -> None:
    """Returns when none is under way; whatever it came to is of no interest any more."""
    saving, _Last.saving = _Last.saving, None
    if saving is not None:
        with suppress(GpuError, OSError):
            saving.wait()


def save(folder: str | os.PathLike[str], state: object, step: int = 0, *, keep: int = 2) -> Saving:
    """Writes a checkpoint of all ranks, in the background.

    All ranks call it, with the same. It copies what is saved to host memory and returns; the
    program goes on and may write to all of it. Every part is written by one rank, also of what
    several have alike. Tensors on no mesh are taken as equal on all ranks, as `shard` takes them.
    Saved too: the state of random numbers, and of all that has a `state_dict` of what JSON has, as
    schedules and loaders have. The program does not end before it is written.

    Args:
        folder: that all ranks see under this path; it is made. Who can write there can change what
            a program goes on from.
        state: what `get_state_dict` finds tensors in: a model, an optimizer, a dict of these.
        step: what `load` returns.
        keep: how many checkpoints stay in the folder.

    Raises InvalidType and DTypeError for what cannot be saved, DistributedError where ranks do not
    share the folder or it cannot be written to, CollectiveMismatch where ranks save other tensors,
    and what went wrong in the save before, where nobody has waited for it.

    >>> from gpu import Tensor, distributed
    >>> import tempfile
    >>> folder, model = tempfile.mkdtemp(), {"weight": Tensor([1.0, 2.0])}
    >>> distributed.save(folder, model, step=7).wait()
    >>> other = {"weight": Tensor([0.0, 0.0])}
    >>> distributed.load(folder, other), other["weight"].tolist()
    (7, [1.0, 2.0])
    """
    refuse("saving")
    wait_for_save()
    step, keep = whole(step, "step", 0, _LARGEST_STEP), whole(keep, "keep", 1, 1 << 31)
    group, tensors = init(), _tensors_of(state)
    for name, tensor in tensors.items():
        check_saved_dtype(name, tensor.dtype)
        if not is_text(name):
            raise InvalidValue(f"a tensor cannot be saved under the name {name!r}: rename it")
    content = Index(
        step,
        "",
        {name: dict(each.state_dict()) for name, each in _objects_of(state).items()},
        *generator_state(),
        {name: (tensor.dtype, _sizes(tensor)) for name, tensor in tensors.items()},
        [0] * group.size,
    )
    content.packed()  # raises for what cannot be saved, before anything is begun
    layouts = _digest([(n, t.dtype.name, t.shape, t.spec) for n, t in tensors.items()])
    what = What("save", how=f"step={step}, {len(tensors)} tensors, {layouts}")
    _Last.saving = saving = Saving(_begun(group, what, Path(folder), tensors, content, keep))
    return saving


def load(folder: str | os.PathLike[str], state: object) -> int:
    """Gives `state` what the last checkpoint in a folder has; the step that it was saved with.

    All ranks call it, with the same. There may be another number of ranks than saved it, and the
    tensors may lie on any mesh or none: each rank reads what its devices have. They keep their
    dtypes, devices and layouts. Nothing is changed unless everything fits, on all ranks.

    Args:
        folder: that `save` was given; or one checkpoint in it.
        state: as of `save`, with tensors of the same names and shapes.

    Raises InvalidValue where there is no checkpoint, and where it is of another model; FormatError
    where a part is missing, is truncated or is another checkpoint's. What is wrong on one rank
    alone is a DistributedError with its name on the others.
    """
    refuse("loading")
    wait_for_save()
    group, targets, objects = init(), _tensors_of(state), _objects_of(state)
    shapes = [(name, tensor.shape) for name, tensor in targets.items()]
    what = What("load", how=f"{len(shapes)} tensors, {_digest((shapes, [*objects]))}")
    name, *_ = _agreed(group, what, lambda: "" if group.rank else _newest(Path(folder)))
    place = Path(folder) / name
    found: list[tuple[Index, dict[str, Tensor]]] = []

    def read() -> str:
        found.append(index.read(place, targets))
        index.check_objects(place, found[0][0], objects)
        return ""

    _agreed(group, What("load", how="what was read"), read)
    content, values = found[0]
    load_state_dict(state, values)
    for name, each in objects.items():
        each.load_state_dict(content.objects[name])
    restore_generator((content.seed, content.given))
    return content.step


def checkpoints(folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The checkpoints in a folder, the last one last; none where there is no such folder."""
    return tuple(path for _, path in index.numbered(Path(folder)))


class _Work:
    """What is left to do of a save, for its thread.

    Attributes:
        step: of the program.
    """

    def __init__(
        self,
        group: Group,
        place: Path,
        temporary: AtomicFolder | None,
        arrays: dict[str, np.ndarray[Any, Any]],
        content: Index,
        part: Content,
        keep: int,
    ):
        """`place` is the folder that is filled; rank 0 alone has it as a `temporary` one."""
        self.step, self._group, self._place, self._temporary = content.step, group, place, temporary
        self._arrays, self._content, self._part, self._keep = arrays, content, part, keep

    def finish(self) -> None:
        """Writes this rank's part, and when all have, the whole. Raises DistributedError."""

        def write() -> str:
            path = self._place / index.part_name(self._group.rank)
            write_file(path, self._part, self._arrays.pop)
            return str(path.stat().st_size)

        sizes = _agreed(self._group, What("save", how="the parts"), write, lane=1)

        def complete() -> str:
            if self._temporary is not None:
                self._complete(self._temporary, [int(size) for size in sizes])
            return ""

        _agreed(self._group, What("save", how="the whole"), complete, lane=1)

    def _complete(self, temporary: AtomicFolder, sizes: list[int]) -> None:
        with atomic_file(self._place / INDEX, durable=True) as file:
            file.write(self._content._replace(parts=sizes).packed())
        folder = self._place.parent
        temporary.appear(index.next_name(folder))
        for path in checkpoints(folder)[: -self._keep]:
            remove_folder(path)

    def give_up(self) -> None:
        """Removes what is not whole."""
        if self._temporary is not None:
            self._temporary.abandon()


def _begun(
    group: Group,
    what: What,
    folder: Path,
    tensors: dict[str, Tensor],
    content: Index,
    keep: int,
) -> _Work:
    """Makes the folder, which all ranks have to see, and copies what this one writes."""
    temporary: list[AtomicFolder] = []

    def make() -> str:
        if not group.rank:
            temporary.append(AtomicFolder(folder))
        return os.path.basename(temporary[0].path) if temporary else ""

    try:
        name, *_ = _agreed(group, what, make)
        place = folder / name

        def look() -> str:
            if not place.is_dir():
                raise InvalidValue(
                    f"{folder} is not the same folder here as on rank 0: name one that all hosts"
                    " share, by its whole path"
                )
            return ""

        _agreed(group, What("save", how="the folder"), look)
        content = content._replace(id=name.removeprefix("."))
        arrays = dict(own_pieces(tensors, group.rank, group.size))
        dtypes = {name: dtype for name, (dtype, _) in content.tensors.items()}
        shapes = {key: (dtypes[begin_of(key)[0]], array.shape) for key, array in arrays.items()}
        part = layout_of_file(shapes, {index.ID: content.id, "rank": str(group.rank)})
    except BaseException:
        for each in temporary:
            each.abandon()
        raise
    return _Work(group, place, temporary[0] if temporary else None, arrays, content, part, keep)


def _agreed(group: Group, what: What, act: Callable[[], str], lane: int = 0) -> list[str]:
    """Runs `act` and gives what that gives on each rank.

    Raises what it raises here, and DistributedError where it raised on other ranks.
    """
    raised, value = None, ""
    try:
        value = act()
    except (GpuError, OSError) as error:
        raised = error
    own = {"value": value, "error": str(raised or "")[:_LONGEST]}
    letters = group._tell_all(what, own, lane)
    errors = {rank: field(letter, "error", str, rank) for rank, letter in enumerate(letters)}
    if isinstance(raised, OSError):
        raise DistributedError(f"rank {group.rank} on {group.host}: {raised}") from raised
    if raised is not None:
        raise raised
    if failed := [f"rank {rank}: {text}" for rank, text in errors.items() if text]:
        raise DistributedError(f"{what.name} failed on {len(failed)} ranks; {failed[0]}")
    return [field(letter, "value", str, rank) for rank, letter in enumerate(letters)]


def _tensors_of(state: object) -> dict[str, Tensor]:
    """The tensors in it, each once, by name. Raises InvalidType where there are none."""
    seen: dict[int, str] = {}
    named = get_state_dict(state)
    if not named:
        raise InvalidType(
            f"a {type(state).__name__} holds no tensors: pass a model, or a dict of what to save"
        )
    for name, tensor in named.items():
        seen.setdefault(id(tensor), name)
    return {name: named[name] for name in seen.values()}


def _objects_of(state: object) -> dict[str, Stateful]:
    """What has a state besides tensors."""
    found = {}
    for name, each in found_in(state, Stateful):  # type: ignore[type-abstract]
        values = each.state_dict().values()
        if not all(isinstance(value, Tensor) for value in values):
            found[name] = each
    return found


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    if has_symbols(tensor.shape):
        raise InvalidValue(f"{tensor._described()} has symbolic sizes: save what it is made of")
    return tuple(map(int, tensor.shape))


def _digest(value: object) -> str:
    return blake2b(repr(value).encode(errors="replace"), digest_size=8).hexdigest()


def _newest(folder: Path) -> str:
    """The name of the last checkpoint in a folder. Raises InvalidValue where there is none."""
    if (folder / INDEX).exists():
        return "."
    found = checkpoints(folder)
    if not found:
        raise InvalidValue(f"{folder} holds no checkpoint: save one, or name another folder")
    return found[-1].name
