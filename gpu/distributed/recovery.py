"""`run`: steps of a program that go on when a rank is lost.

Where MPI knows which process died, and goes on without it (ULFM, https://fault-tolerance.org), the
others form a smaller world and load the last checkpoint. Otherwise all of them end, with an exit
code that asks to be started again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from gpu.compiler.ir.graph.grid import Grid
from gpu.core.arguments import whole
from gpu.core.errors import CollectiveMismatch, DistributedError
from gpu.core.log import get_logger
from gpu.distributed.checkpoint import (
    checkpoints,
    drop_save,
    load,
    save,
    wait_for_save,
)
from gpu.distributed.engine import Engine
from gpu.distributed.group import Group
from gpu.distributed.launcher import survives_deaths
from gpu.distributed.messages import What, field
from gpu.distributed.plans import Plans
from gpu.distributed.replicas import check_replicas
from gpu.distributed.start import init
from gpu.runtime.collectives import connect
from gpu.tensor.mesh import SHRINKING, Mesh, fit_meshes
from gpu.tensor.nn.state import get_parameters
from gpu.tensor.tensor import Tensor

log = get_logger(__name__)

START_AGAIN: Final = 75
"""The exit code of a program that has to be started again: EX_TEMPFAIL of sysexits.h."""

_MOST: Final = 1 << 62


def run(
    step: Callable[[int], object],
    state: object,
    *,
    folder: str | os.PathLike[str],
    steps: int,
    every: int = 100,
    keep: int = 2,
    check: int = 0,
) -> None:
    """Calls ``step(number)`` for all numbers up to `steps`, from the last checkpoint on.

    All ranks call it, with the same. It saves `state` at the begin, at the end and every so many
    steps, and goes on from the last checkpoint in `folder` where there is one. When a rank dies or
    raises, the others go on without it: they load the last checkpoint and repeat the steps since.
    Axes "data" of all meshes become smaller; tensors of `state` are laid on them as they were,
    whole along "data" where that cannot be cut any more, and a `gpu.data.Loader` gives the same
    batches. What a step makes on a mesh, and does not take from `state`, it makes in each call.

    Where that cannot be (a rank hangs, ranks call different things, MPI has no ULFM, a mesh over
    several ranks has no axis "data"), all processes end with exit code 75: start the program again.

    Args:
        step: one step of the program.
        state: all that a step changes, as of `save`.
        folder, steps: of the checkpoints, and how many in all.
        every, keep: steps between checkpoints, and how many of these stay.
        check: after so many steps `check_replicas` is called; 0 for never.

    Raises what `step` raises on this rank, which it ends where the others can go on, and what
    `save` and `load` do.

    >>> from gpu import Tensor, distributed
    >>> import tempfile
    >>> folder, state = tempfile.mkdtemp(), {"count": Tensor([0])}
    >>> def step(number):
    ...     state["count"].assign(state["count"] + 1).realize()
    >>> distributed.run(step, state, folder=folder, steps=5)
    >>> distributed.run(step, state, folder=folder, steps=8)
    >>> state["count"].item()
    8
    """
    group, plan = init(), _Plan(folder, state, steps, every, keep, check)
    plan.check_numbers()
    while True:
        try:
            for number in range(plan.begin(group), steps):
                _take(step, number, group)
                plan.follow(number + 1)
            wait_for_save()
            return
        except DistributedError as error:
            engine = group._engine
            if engine is None or not _is_over(engine, error):
                raise
            if isinstance(error, CollectiveMismatch):
                _start_again(engine, error)
            _go_on(engine, group, state, error)


class _Plan(NamedTuple):
    """What is done before and after steps: the arguments of `run`."""

    folder: str | os.PathLike[str]
    state: object
    steps: int
    every: int
    keep: int
    check: int

    def check_numbers(self) -> None:
        """Raises InvalidValue and InvalidType for what are no numbers of steps."""
        for name, least in (("steps", 0), ("every", 1), ("check", 0)):
            whole(getattr(self, name), name, least, _MOST)

    def begin(self, group: Group) -> int:
        """The step to begin with, with the state as of there."""
        first, *_ = group._tell_all(What("run"), {"any": bool(checkpoints(self.folder))})
        if field(first, "any", bool, 0):
            return load(self.folder, self.state)
        save(self.folder, self.state, 0, keep=self.keep).wait()
        return 0

    def follow(self, done: int) -> None:
        """What comes after so many steps."""
        if self.check and not done % self.check:
            check_replicas(self.state)
        if done == self.steps or not done % self.every:
            save(self.folder, self.state, done, keep=self.keep)


def _take(step: Callable[[int], object], number: int, group: Group) -> None:
    """Takes a step; a rank that fails in it by itself leaves those that can go on without it."""
    try:
        step(number)
    except DistributedError:
        raise
    except Exception as error:
        if group.size > 1 and survives_deaths():
            sys.excepthook(type(error), error, error.__traceback__)  # which tells the others
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)  # of a program that exits MPI tells too late
        raise


def _go_on(engine: Engine, group: Group, state: object, lost: DistributedError) -> None:
    """Goes on with the ranks that are left, or ends them."""
    log.warning("%s; the others go on from the last checkpoint", lost.message)
    drop_save()
    laid = [
        (tensor, tensor.device.mesh, tensor.spec)
        for tensor in get_parameters(state)
        if isinstance(tensor.device, Grid)
    ]
    try:
        engine.recover()
        group._enter()
        connect(Plans(engine))
        fit_meshes()
    except (DistributedError, ValueError) as error:
        _start_again(engine, error)
    for tensor, mesh, spec in laid:
        tensor.grad = None
        again = Tensor.zeros(tensor.shape, dtype=tensor.dtype, device=mesh.devices[0])
        tensor._replace(again.shard(mesh, _fitting(mesh, spec, tensor.shape))._node)
    log.warning("rank %d of %d goes on", group.rank, group.size)


def _fitting(mesh: Mesh, spec: tuple[Any, ...], shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """A spec without the axis that shrinks, where that has no parts of one size any more."""
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    found: list[Any] = []
    for entry, size in zip(spec, shape, strict=True):
        names = entry if isinstance(entry, tuple) else (entry,)
        count = 1
        for name in names:
            count *= sizes.get(name, 1)
        fits = not size % count
        found.append(entry if fits else tuple(name for name in names if name != SHRINKING))
    return tuple(found)


def _is_over(engine: Engine, error: DistributedError) -> bool:
    """Whether ranks cannot work together after an error that they all got."""
    return not engine.is_whole or isinstance(error, CollectiveMismatch)


def _start_again(engine: Engine, error: Exception) -> NoReturn:
    log.error("all ranks end with exit code %d, to be started again: %s", START_AGAIN, error)
    engine.abort(START_AGAIN)
