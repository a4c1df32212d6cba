"""`init`: this process finds the others, and its place among them."""

from __future__ import annotations

import atexit
import dataclasses
import platform
import sys
from types import TracebackType
from typing import Final

from gpu.core import config
from gpu.core.devspec import DeviceSpec, parse_device_name
from gpu.core.errors import FormatError
from gpu.core.once import once
from gpu.distributed.engine import Engine
from gpu.distributed.group import Group
from gpu.distributed.launcher import told_size
from gpu.distributed.messages import What, field
from gpu.distributed.plans import Plans
from gpu.runtime.collectives import connect
from gpu.runtime.default import default_choice
from gpu.tensor.randomness import generator_state, random_seed, restore_generator

# All ranks of a host compute on one of these; of others each rank has its own.
_SHARED: Final = frozenset({"CPU", "PYTHON", "CL", "WEBGPU"})


def init() -> Group:
    """The group of all processes that mpiexec, srun or the like started; always the same.

    Without such a launcher it is this process alone, so that a program runs by itself too. Each
    rank gets a device of its own by its number on its host: with ``DEV=NV``, the default of local
    rank 1 is ``NV:1``; ranks share what is no GPU of its own: CPU, PYTHON, CL and WEBGPU.

    The first call waits for all ranks to make it. Random numbers of all ranks then go on from where
    those of rank 0 are: all draw the same, where they draw as often. Draws on a mesh are the same
    on all ranks in any case. MPI is called by one thread alone, which is
    started here, and which ends MPI when the program does. An exception that ends the program on
    one rank is told to all others, who get a PeerLost.

    Raises DistributedError where mpi4py or MPI's library is missing, is another one than that of
    the launcher, or differs among ranks, as the version of this package must not.

    >>> from gpu import distributed
    >>> distributed.init() is distributed.init()
    True
    """
    return _group()


@once
def _group() -> Group:
    told = told_size()
    if told is None or told == 1:
        return Group(None, platform.node(), (default_choice().device,))
    from gpu import __version__

    engine = Engine(told, config.config.MPI_TIMEOUT, __version__)
    if engine.world.size == 1:
        engine.close()
        return Group(None, engine.world.hosts[0], (default_choice().device,))
    atexit.register(engine.close)
    connect(Plans(engine))
    _tell_of_exceptions(engine)
    group = Group(engine, engine.world.hosts[engine.world.rank], (_own_device(engine),))
    _share_random_numbers(group)
    return group


def _share_random_numbers(group: Group) -> None:
    """Has all ranks draw as rank 0 does."""
    _, given = generator_state()
    first, *_ = group._tell_all(What("init"), {"seed": random_seed(), "given": given})
    given = field(first, "given", dict, 0)
    if not all(isinstance(words, int) for words in given.values()):
        raise FormatError(f"rank 0 sent {given!r:.100}: expected how many words each counter gave")
    restore_generator((field(first, "seed", int, 0), given))


def _own_device(engine: Engine) -> str:
    """The device of this rank, which becomes the default."""
    kind, first = parse_device_name(default_choice().device)
    spec = config.device_spec() or DeviceSpec(kind, index=first)
    if kind not in _SHARED:
        spec = dataclasses.replace(spec, index=first + engine.world.local_rank)
        config.use_device(spec)
    return spec.name


def _tell_of_exceptions(engine: Engine) -> None:
    """Has what ends this program be told to the others."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        engine.fail(error)

    sys.excepthook = hook
