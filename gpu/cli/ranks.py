"""What `gpu distributed check` measures of ranks that work together.

Each rank's host, device and clock, how long each pair of ranks takes to send to each other, and
collectives of tensors beside those of MPI on numpy arrays. Rank 0 prints.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np

from gpu import Tensor, distributed
from gpu.core.errors import DistributedError
from gpu.distributed.launcher import load_mpi, told_size
from gpu.distributed.messages import What, field

_SHORT, _LONG = 8, 1 << 20  # bytes of a message
_SIZES: Final = (1 << 10, 1 << 20)  # bytes of what each rank gives to a collective
_WORK: Final = 512  # rows of the matrices that ranks multiply
# Times the median from which a rank, or a pair of them, is told to be slow.
_SLOW: Final = 1.5


class Link(NamedTuple):
    """How long messages between two ranks take.

    Attributes:
        ranks: the two.
        latency: seconds, one way, of 8 bytes.
        bandwidth: bytes per second, of 1 MiB.
    """

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


def check(rounds: int) -> None:
    """Prints what there is, on rank 0. Raises DistributedError without other ranks."""
    if told_size() in (None, 1):
        raise DistributedError(
            "there is one process: start several, as by `mpiexec -n 2 gpu distributed check`"
        )
    mpi = load_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)  # it is called here beside the thread of `init`
    group = distributed.init()
    comm = mpi.COMM_WORLD
    clock = _clock(comm, rounds)
    work = _work(rounds)
    own = {"host": group.host, "device": group.devices[0], "clock": clock, "work": work}
    ranks = group._tell_all(What("check"), own)
    links = [_link(comm, pair, rounds) for pair in combinations(range(group.size), 2)]
    rows = list(_collectives(mpi, group, rounds))
    if group.rank == 0:
        print(mpi.Get_library_version().splitlines()[0].strip(" ,\0"))
        print("\n".join([*_of_ranks(ranks), *_of_links(links), *rows]))
        print("\n".join(slow(ranks, links)) or "no rank and no pair is slower than the others")


def slow(ranks: list[dict[str, Any]], links: list[Link]) -> list[str]:
    """Ranks and pairs that are much slower than the median of all, a line for each."""
    works = [field(told, "work", float, rank) for rank, told in enumerate(ranks)]
    usual = statistics.median_low(works)
    found = [
        f"slow: rank {rank} on {ranks[rank]['host']} computes {work / usual:.1f} times as long"
        for rank, work in enumerate(works)
        if work > _SLOW * usual
    ]
    latency = statistics.median_low(link.latency for link in links)
    bandwidth = statistics.median_high(link.bandwidth for link in links)
    for link in links:
        times = max(link.latency / latency, bandwidth / link.bandwidth)
        if times > _SLOW:
            first, second = (f"rank {rank} on {ranks[rank]['host']}" for rank in link.ranks)
            found.append(f"slow: between {first} and {second}, {times:.1f} times as long")
    return found


def _least(call: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest call, after one that warms up."""
    call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def _work(rounds: int) -> float:
    """Seconds of a product on this rank's device."""
    a = Tensor(np.ones((_WORK, _WORK), np.float32)).realize()

    def multiply() -> object:
        return np.asarray(a @ a)

    return _least(multiply, rounds)


def _clock(comm: Any, rounds: int) -> float:
    """Seconds that this host's clock is ahead of rank 0's, as D. Mills' protocol finds it.

    Of the exchange that took least: what a message takes each way is taken as equal (RFC 5905).
    """
    rank, theirs, ahead = comm.Get_rank(), np.zeros(1), np.zeros(1)
    for other in range(1, comm.Get_size()):
        best = float("inf")
        for _ in range(rounds):
            if rank == 0:
                began = time.time()
                comm.Send(theirs, other)
                comm.Recv(theirs, other)
                took = time.time() - began
                if took < best:
                    best, ahead[0] = took, theirs[0] - began - took / 2
            elif rank == other:
                comm.Recv(theirs, 0)
                comm.Send(np.array([time.time()]), 0)
        if rank == 0:
            comm.Send(ahead, other)
        elif rank == other:
            comm.Recv(ahead, 0)
    return 0.0 if rank == 0 else float(ahead[0])


def _link(comm: Any, pair: tuple[int, int], rounds: int) -> Link:
    """What messages between a pair take; all ranks call it, and get to know."""
    first, second = pair
    rank, found = comm.Get_rank(), np.zeros(2)

    def there_and_back(data: np.ndarray[Any, Any]) -> None:
        if rank == first:
            comm.Send(data, second)
            comm.Recv(data, second)
        else:
            comm.Recv(data, first)
            comm.Send(data, first)

    comm.Barrier()
    if rank in pair:
        data = [np.zeros(size, np.uint8) for size in (_SHORT, _LONG)]
        short, long = (_least(partial(there_and_back, each), rounds) for each in data)
        found[:] = short / 2, 2 * _LONG / long
    comm.Bcast(found, first)
    return Link(pair, *found.tolist())


def _collectives(mpi: Any, group: distributed.Group, rounds: int) -> Iterator[str]:
    """A row for each collective and size: ours beside MPI's. All ranks iterate."""
    comm = mpi.COMM_WORLD
    for nbytes in _SIZES:
        array = np.full(nbytes // 4, group.rank, np.float32)
        out, every = np.empty_like(array), np.empty((group.size, array.size), np.float32)
        tensor = Tensor(array).realize()
        ways: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "all_reduce": (
                partial(_read, group.all_reduce, tensor),
                partial(comm.Allreduce, array, out),
            ),
            "all_gather": (
                partial(_read, group.all_gather, tensor),
                partial(comm.Allgather, array, every),
            ),
            "broadcast": (
                partial(_read, group.broadcast, tensor, 0),
                partial(comm.Bcast, out, 0),
            ),
        }
        for name, (ours, theirs) in ways.items():
            own, other = _least(ours, rounds) * 1e6, _least(theirs, rounds) * 1e6
            yield f"{name:<12} {nbytes:>9,} bytes {own:>9.1f} us   MPI {other:>9.1f} us"


def _read(collective: Callable[..., Any], *arguments: object) -> list[Any]:
    """The values of what a collective gives: one tensor or several."""
    found = collective(*arguments)
    return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]


def _of_ranks(ranks: list[dict[str, Any]]) -> Iterator[str]:
    for rank, told in enumerate(ranks):
        host, device = (field(told, name, str, rank) for name in ("host", "device"))
        clock, work = (field(told, name, float, rank) * 1e3 for name in ("clock", "work"))
        yield f"rank {rank} on {host}  {device}  clock {clock:+.3f} ms  product {work:.2f} ms"


def _of_links(links: list[Link]) -> Iterator[str]:
    for (first, second), latency, bandwidth in links:
        yield f"{first} - {second}  {latency * 1e6:.1f} us  {bandwidth / 1e9:.2f} GB/s"
