"""Steps of compiled graphs that several processes take together: one starts, another one waits.

What moves the bytes is given by `connect`, which `gpu.distributed.init` calls. In the disk cache
both steps are plain data. A plan that has such steps is run by all ranks: they compare what it is,
and how many such plans ran before, when one begins, so that nothing of two plans is mixed up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import plain
from gpu.compiler.ir.graph.hostcall import Across, HostCall
from gpu.core.errors import DistributedError
from gpu.runtime.buffer import host_array
from gpu.runtime.device import Device
from gpu.runtime.timeline import span

Bytes = npt.NDArray[np.uint8]


class Waitable(Protocol):
    """Something under way with other ranks."""

    def wait(self) -> None:
        """Returns when it is done; raises what went wrong."""


class Transport(Protocol):
    """What moves bytes between ranks.

    Attributes:
        rank: of this process.
        size: how many there are.
    """

    rank: int
    size: int

    def begin(self, digest: bytes) -> Waitable:
        """All ranks begin a plan, of which they compare the digest."""

    def start(
        self,
        call: HostCall,
        members: Sequence[int],
        own: Bytes,
        out: Bytes,
        plan: Waitable,
        kept: object,
    ) -> Waitable:
        """Starts a collective of the ranks `members` in a plan that was begun; `kept` lives on."""


class _World:
    """What connects this process to others, if something does.

    Attributes:
        plan: what the plan that is run waits for first, and its memory.
    """

    transport: Transport | None = None
    plan: tuple[Waitable, object] | None = None


_world: Final = _World()


def connect(transport: Transport) -> None:
    """Has collectives of plans go over `transport` from now on."""
    _world.transport = transport


def transport() -> Transport:
    """What connects this process to others. Raises DistributedError where nothing does."""
    if _world.transport is None:
        raise DistributedError(
            "this takes several processes: start the program with mpiexec or srun, and call"
            " gpu.distributed.init() first"
        )
    return _world.transport


@contextmanager
def shared_plan(digest: bytes, memory: object) -> Iterator[None]:
    """Other ranks are told that a plan is run here; what it starts is done if they run the same.

    What is still under way where the plan ends by an error keeps its `memory`.
    """
    _world.plan = transport().begin(digest), memory
    try:
        yield
    finally:
        _world.plan = None


def world_size() -> int:
    """How many processes work together; 1 where none was started with others."""
    return 1 if _world.transport is None else _world.transport.size


def own_rank() -> int:
    """The number of this process among them."""
    return 0 if _world.transport is None else _world.transport.rank


def members(across: Across, rank: int) -> list[int]:
    """The ranks that make a call together with `rank`, in the order of their places."""
    inner = int(np.prod(across.ranks[across.number + 1 :]))
    size = across.ranks[across.number]
    first = rank - rank // inner % size * inner
    return [first + place * inner for place in range(size)]


class StartForm(NamedTuple):
    """The start of a collective in a compiled graph.

    Attributes:
        device: where the operand and the result are.
        call: what is done, and by whom.
    """

    device: str
    call: HostCall


class WaitForm(NamedTuple):
    """Where a collective has to be done; `start` is the number of its start among the others."""

    start: int


class Exchange:
    """A collective of a plan, which its two steps share.

    Attributes:
        form: how it starts.
    """

    def __init__(self, form: StartForm):
        self.form = form
        self._under_way: Waitable | None = None
        self._staged: Bytes | None = None
        (self._given,), (self._wanted,) = (
            [int(np.prod(shape)) * dtype.itemsize for shape, dtype in each]
            for each in (form.call.inputs, form.call.outputs)
        )

    def start(self, source: Any, target: Any) -> None:
        """Begins to send what is in the memory `source`, and to fill `target`."""
        device, link = Device[self.form.device], transport()
        assert self.form.call.across is not None and _world.plan is not None
        with span(f"start {self.form.call.name}"):
            device.synchronize()
            own = host_window(self.form.device, source, self._given)
            if own is None:
                own = host_array((self._given,), np.uint8)
                device.allocator.copy_out(own.data, source)
            out = host_window(self.form.device, target, self._wanted)
            self._staged = None
            if out is None:
                out = self._staged = host_array((self._wanted,), np.uint8)
            ranks = members(self.form.call.across, link.rank)
            self._under_way = link.start(self.form.call, ranks, own, out, *_world.plan)

    def wait(self, target: Any) -> None:
        """Returns when the memory `target` has the result; raises what went wrong."""
        assert self._under_way is not None, "a plan starts what it waits for"
        with span(f"wait for {self.form.call.name}"):
            self._under_way.wait()
        if self._staged is not None:
            Device[self.form.device].allocator.copy_in(target, self._staged.data)
        self._under_way = self._staged = None


def host_window(device: str, memory: Any, nbytes: int) -> Bytes | None:
    """Memory of a device as bytes that the host may write; None where it cannot.

    It is the caller's to keep the memory, and to write when no launch uses it.
    """
    address = Device[device].allocator.host_address(memory)
    if address is None:
        return None
    inside = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(memoryview(inside), np.uint8)


def plan_digest(key: Any) -> bytes:
    """What is the same on ranks whose plans compute the same, whatever their devices are called."""
    (nodes, roots), numbers = plain(key)
    names: dict[str, int] = {}
    placed = [
        tuple(
            names.setdefault(field, len(names)) if isinstance(field, str) and place else field
            for place, field in enumerate(node)
        )
        for node in nodes
    ]
    return blake2b(repr((placed, roots, numbers)).encode(), digest_size=16).digest()
