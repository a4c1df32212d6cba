"""Steps of compiled graphs that several processes take together: one starts, another one waits.

What moves the bytes is given by `connect`, which `gpu.distributed.init` calls. In the disk cache
both steps are plain data. A plan that has such steps is run by all ranks: they compare what it is,
and how many such plans ran before, when one begins, so that nothing of two plans is mixed up.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import plain
from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.hostcall import Across, HostCall
from gpu.core.dtype import DType
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
        calls: Sequence[HostCall],
        members: Sequence[int],
        pairs: Sequence[tuple[Bytes, Bytes]],
        plan: Waitable,
        kept: object,
    ) -> Waitable:
        """Starts collectives of the ranks `members` in a plan that was begun; `kept` lives on.

        They are of one kind; for each there is what this rank gives, and where the result goes.
        """


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
    inner = math.prod(across.ranks[across.number + 1 :])
    size = across.ranks[across.number]
    first = rank - rank // inner % size * inner
    return [first + place * inner for place in range(size)]


class StartForm(NamedTuple):
    """The start of collectives in a compiled graph.

    Attributes:
        device: where the operands and the results are.
        calls: what is done, and by whom; all of one kind.
    """

    device: str
    calls: tuple[HostCall, ...]

    @property
    def kind(self) -> tuple[str, str, Across | None, DType]:
        """What is the same of collectives that can start together."""
        call = self.calls[0]
        return self.device, call.name, call.across, call.inputs[0].dtype

    @property
    def nbytes(self) -> int:
        """Of the operands or the results, whichever are larger."""
        return sum(max(_nbytes(*call.inputs), _nbytes(*call.outputs)) for call in self.calls)


class WaitForm(NamedTuple):
    """Where a collective has to be done; `start` is the number of its start among the others."""

    start: int


class Exchange:
    """Collectives of a plan that start together, which its two steps share.

    Attributes:
        form: how they start.
    """

    def __init__(self, form: StartForm):
        self.form = form
        self._under_way: Waitable | None = None
        self._staged: list[tuple[int, Bytes]] = []
        self._sizes = [(_nbytes(*call.inputs), _nbytes(*call.outputs)) for call in form.calls]

    def start(self, memories: Sequence[Any]) -> None:
        """Begins to send what is in every second memory, from the first on, and to fill the others.

        Each has its result behind it.
        """
        device, link = Device[self.form.device], transport()
        across = self.form.calls[0].across
        assert across is not None and _world.plan is not None
        with span(f"start {self.form.calls[0].name}"):
            device.synchronize()
            self._staged = []
            pairs = []
            for number, (given, wanted) in enumerate(self._sizes):
                source, target = memories[2 * number : 2 * number + 2]
                own = host_window(self.form.device, source, given)
                if own is None:
                    own = host_array((given,), np.uint8)
                    device.allocator.copy_out(own.data, source)
                out = host_window(self.form.device, target, wanted)
                if out is None:
                    out = host_array((wanted,), np.uint8)
                    self._staged.append((2 * number + 1, out))
                pairs.append((own, out))
            ranks = members(across, link.rank)
            self._under_way = link.start(self.form.calls, ranks, pairs, *_world.plan)

    def wait(self, memories: Sequence[Any]) -> None:
        """Returns when the same memories have the results; raises what went wrong."""
        assert self._under_way is not None, "a plan starts what it waits for"
        with span(f"wait for {self.form.calls[0].name}"):
            self._under_way.wait()
        for place, out in self._staged:
            Device[self.form.device].allocator.copy_in(memories[place], out.data)
        self._under_way, self._staged = None, []


def _nbytes(form: Value) -> int:
    return math.prod(form.shape) * form.dtype.itemsize


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
