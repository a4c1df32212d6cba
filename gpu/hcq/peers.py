"""Devices that use each other's memory: mappings that last, and copies beside the order of both.

A copy between devices runs on a queue of one of them. That queue waits for all that was submitted
in order on both before; what is submitted in order on either afterwards waits for the copy only if
it touches the same memory, and on the device: the host waits for nothing. So a device runs kernels
while others read its memory.

Mappings of buffers, and of signals that another device waits for, stay when a buffer is freed, for
whoever gets the memory next; they end with the memory, with either device, or by
`HCQBuffer.unmap_from`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from gpu.core.errors import Unsupported
from gpu.core.interrupts import put_off
from gpu.hcq.channel import Channel, MustWait, Point
from gpu.hcq.commands import Barrier, Command, Copy, Launch, PollMem, Wait, WriteMem
from gpu.hcq.owner import Access, Owner, Touched
from gpu.hcq.ports import Memory

# Mappings


def lend(owner: Owner, memory: Memory, peer: Owner) -> None:
    """Let a peer use memory until it has been taken back as often. Raises `Unsupported`."""
    with peer.lock:
        _map(owner, memory, peer)
    owner.lent[memory][peer] += 1


def _map(owner: Owner, memory: Memory, peer: Owner) -> None:
    """Map memory into a peer unless it is; under the peer's lock."""
    users = owner.lent.setdefault(memory, {})
    if peer not in users:
        peer.port.memory.map_peer(memory, owner.port.memory)
        users[peer] = 0


def end(owner: Owner, memory: Memory, *peers: Owner) -> None:
    """Unmap memory from peers, which are done with it; by default from all."""
    users = owner.lent.get(memory, {})
    with ExitStack() as each:
        for peer in peers or tuple(users):
            del users[peer]
            each.callback(peer.port.memory.unmap_peer, memory)
    if not users:
        owner.lent.pop(memory, None)


def part(device: Owner, others: Iterable[Owner], *, closing: bool = False) -> None:
    """Unmap what the device and others have of each other, which nothing on the device uses.

    What a buffer was lent by `map_to` for stays so, unless the device is ``closing``.
    """
    for access in unfinished(device):
        access.user.wait(access.point)
    with ExitStack() as each:
        for owner in others:
            for memory, users in tuple(owner.lent.items()):
                peers = tuple(users) if owner is device else (device,) if device in users else ()
                gone = [peer for peer in peers if closing or not users[peer]]
                if gone:
                    each.callback(end, owner, memory, *gone)


# Order


def touched_by(commands: Iterable[Command]) -> list[Touched]:
    """Where commands read and write memory: an address of each buffer, and which is written."""
    touched: list[Touched] = []
    for command in commands:
        match command:
            case Launch(program, args):
                touched += [(p, n in program.written) for n, p in enumerate(args.pointers)]
            case Copy(dst, src):
                touched += [(dst, True), (src, False)]
            case WriteMem(address):
                touched.append((address, True))
            case PollMem(address):
                touched.append((address, False))
    return touched


def settle(device: Owner, channel: Channel, touched: Iterable[Touched]) -> None:
    """Have what is submitted in order from now on wait for accesses of the memory it touches.

    Under the lock; raises `MustWait`. The wait is a submission of its own, in order.
    """
    due = _due(device, tuple(touched))
    waits = _waits(device, channel, due)
    if not waits:
        return
    with put_off():
        point = device.send_in_order(channel, [*waits, Barrier()])
        _note_polled(device, point, due)
    for access in due:
        _forget(device, access)


def copy(
    device: Owner, channel: Channel, commands: Sequence[Command], sides: Sequence[Side]
) -> Point:
    """Submit a copy between devices on a queue of ``device``; errors as of its `exclusively`.

    ``sides`` are devices and memories that it reads and writes.
    """
    owners = {device, *(owner for owner, _, _ in sides)}
    before = [Access(None, False, owner, *owner.exclusively(_last, owner)) for owner in owners]
    return device.exclusively(_copy, device, channel, tuple(commands), tuple(sides), before)


def _last(owner: Owner) -> tuple[Channel, int]:
    return owner.frontier[0]


def _copy(
    device: Owner,
    channel: Channel,
    commands: tuple[Command, ...],
    sides: tuple[Side, ...],
    before: list[Access],
) -> Point:
    due = [*before]
    for owner, memory, writes in sides:
        due += _due(owner, [(memory.address, writes)])
    waits = _waits(device, channel, due)
    template = device.template(channel, [*waits, *commands], after=False)
    point = Point(channel, channel.next_value())
    with put_off():
        channel.send(template, point.value, None)
        for owner, memory, writes in sides:
            owner.accesses.append(Access(memory, writes, device, *point))
        _note_polled(device, point, due)
    return point


Side = tuple[Owner, Memory, bool]
"""Of a copy: whose memory, which, and whether it is written."""


def _due(owner: Owner, touched: Sequence[Touched]) -> list[Access]:
    """The accesses that who touches memory now has to wait for."""
    return [a for a in unfinished(owner) if any(a.conflicts(*each) for each in touched)]


def unfinished(owner: Owner) -> list[Access]:
    """Accesses of a device's memory; those that are over go from its list."""
    going_on = []
    for access in tuple(owner.accesses):
        if not access.channel.timeline.passed(access.reached):
            going_on.append(access)
        else:
            _forget(owner, access)
    return going_on


def _forget(owner: Owner, access: Access) -> None:
    with suppress(ValueError):  # users of other devices do so too, without the lock
        owner.accesses.remove(access)


def _waits(device: Owner, channel: Channel, due: Iterable[Access]) -> list[Command]:
    """Commands that wait for the last access of each queue but ``channel``, which runs in order.

    Under the lock; raises `MustWait` for a queue whose signals the device cannot reach.
    """
    last: dict[Channel, Access] = {}
    for access in due:
        other = access.channel
        if other is channel or other.timeline.passed(access.reached):
            continue
        if other not in last or last[other].reached < access.reached:
            last[other] = access
    waits: list[Command] = []
    for other, access in last.items():
        if access.user is not device:
            try:
                for page in access.user.signal_pages:
                    _map(access.user, page, device)
            except Unsupported as reason:
                raise MustWait(other, access.reached) from reason
        waits.append(Wait(*other.timeline.awaited(access.reached)))
    return waits


def _note_polled(device: Owner, point: Point, due: Iterable[Access]) -> None:
    """Signals of others are in use until what waits for them is done."""
    for user in {access.user for access in due if access.user is not device}:
        user.accesses.append(Access(None, False, device, *point))
