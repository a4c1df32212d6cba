"""Moving bytes among processes by messages: each collective as steps that one thread takes.

A step is a list of MPI requests; a generator yields one, and goes on when all of it is done. All
arrays are of bytes and one-dimensional. The order of messages between two processes is the same on
both sides, so that none needs a tag.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Requests: TypeAlias = list[Any]
Steps: TypeAlias = Generator[Requests, None, None]
# Reduces one array of each rank, in the order of ranks, into another.
Reduce: TypeAlias = Callable[[Sequence[Bytes], Bytes], None]

# Bytes of one message: MPI counts in a C int, and buffers of 1 GiB are enough to be fast.
PIECE: Final = 1 << 30
# Up to so many bytes that arrive, all ranks reduce everything: one exchange instead of two.
_SMALL: Final = 4 << 20


class Kept:
    """Memory that is kept from call to call: fresh pages cost more than what goes into them."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)

    def taken(self, nbytes: int) -> Bytes:
        """So many bytes of it, with anything in them."""
        if self._memory.size < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]


class Wire:
    """The processes that exchange messages: a communicator of MPI."""

    def __init__(self, comm: Any, piece: int = PIECE):
        """`piece` is the largest number of bytes of a message."""
        self.comm, self._piece = comm, piece
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._scratch = Kept()

    def scratch(self, nbytes: int) -> Bytes:
        """Memory for what is received and not kept."""
        return self._scratch.taken(nbytes)

    def send(self, data: Bytes, to: int, tag: int = 0) -> Requests:
        """Starts to send bytes to a rank."""
        return [self.comm.Isend(piece, to, tag) for piece in self._pieces(data)]

    def receive(self, out: Bytes, origin: int, tag: int = 0) -> Requests:
        """Starts to receive as many bytes as `out` has from a rank."""
        return [self.comm.Irecv(piece, origin, tag) for piece in self._pieces(out)]

    def swap(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> Requests:
        """Starts to send each other rank its array, and to receive one of each."""
        # Not all begin with the same rank, which would then get everything at once.
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        requests = [r for rank in reversed(others) for r in self.receive(incoming[rank], rank)]
        return requests + [r for rank in others for r in self.send(outgoing[rank], rank)]

    def _pieces(self, data: Bytes) -> list[Bytes]:
        return [data[at : at + self._piece] for at in range(0, data.size, self._piece)]


class Among(Wire):
    """Some of the processes of a wire, numbered by their places among them."""

    def __init__(self, wire: Wire, members: Sequence[int]):
        """`members` are their ranks, of which this process is one."""
        self._wire, self._members = wire, members
        self.comm = wire.comm
        self.rank, self.size = members.index(wire.rank), len(members)

    def scratch(self, nbytes: int) -> Bytes:
        """As of the wire: one collective is moved at a time."""
        return self._wire.scratch(nbytes)

    def send(self, data: Bytes, to: int, tag: int = 0) -> Requests:
        """As of the wire, to a member."""
        return self._wire.send(data, self._members[to], tag)

    def receive(self, out: Bytes, origin: int, tag: int = 0) -> Requests:
        """As of the wire, from a member."""
        return self._wire.receive(out, self._members[origin], tag)


def all_gather(wire: Wire, own: Bytes, out: Bytes) -> Steps:
    """The arrays of all ranks, which have one size, one after the other in `out`."""
    places = out.reshape(wire.size, -1)
    places[wire.rank] = own
    yield wire.swap([own] * wire.size, list(places))


def all_to_all(wire: Wire, own: Bytes, out: Bytes) -> Steps:
    """Part number r of `own` goes to rank r; in `out` is what each rank had for this one."""
    mine, places = own.reshape(wire.size, -1), out.reshape(wire.size, -1)
    places[wire.rank] = mine[wire.rank]
    yield wire.swap(list(mine), list(places))


def reduce_scatter(wire: Wire, own: Bytes, out: Bytes, reduce: Reduce) -> Steps:
    """Part number r of what all ranks have, reduced, is in `out` of rank r."""
    mine = own.reshape(wire.size, -1)
    parts = list(wire.scratch(own.size).reshape(wire.size, -1))
    yield wire.swap(list(mine), parts)
    parts[wire.rank] = mine[wire.rank]
    reduce(parts, out)


def all_reduce(wire: Wire, own: Bytes, out: Bytes, reduce: Reduce, itemsize: int) -> Steps:
    """What all ranks have, reduced, on all of them, to the last bit the same.

    `out` may be the memory of `own`: what is reduced is copied, since it is read while `out` fills.
    """
    if own.size * (wire.size - 1) <= _SMALL:
        parts = list(wire.scratch(own.size * wire.size).reshape(wire.size, -1))
        yield wire.swap([own] * wire.size, parts)
        parts[wire.rank][:] = own
        reduce(parts, out)
        return
    # Each rank reduces one part, and sends that to all: twice the array is moved, however many.
    ends = [own.size // itemsize * r // wire.size * itemsize for r in range(wire.size + 1)]
    cuts = [slice(*ends[r : r + 2]) for r in range(wire.size)]
    mine = own[cuts[wire.rank]]
    parts = list(wire.scratch(mine.size * wire.size).reshape(wire.size, -1))
    yield wire.swap([own[cut] for cut in cuts], parts)
    parts[wire.rank][:] = mine
    done = out[cuts[wire.rank]]
    reduce(parts, done)
    yield wire.swap([done] * wire.size, [out[cut] for cut in cuts])


def broadcast(wire: Wire, data: Bytes, root: int) -> Steps:
    """`data` of rank `root` into that of all others, along a binomial tree."""
    place = (wire.rank - root) % wire.size
    reach = 1
    while reach < wire.size and not place & reach:
        reach *= 2
    if place:
        yield wire.receive(data, (place - reach + root) % wire.size)
    below = []
    while (reach := reach // 2) > 0:
        if place + reach < wire.size:
            below += wire.send(data, (place + reach + root) % wire.size)
    yield below
