"""Checks of devices that map each other's memory; those that cannot do without them."""

from __future__ import annotations

from typing import Final

from gpu.core.errors import InvalidValue
from gpu.hcq.channel import Point
from gpu.hcq.commands import Wait
from gpu.hcq.conformance.kit import (
    WORDS,
    Check,
    Target,
    download,
    expect,
    expect_equal,
    expect_raises,
    numbers,
    upload,
)
from gpu.hcq.graph import GraphLaunch, HCQGraph


def peers(target: Target) -> None:
    """Memory of another device is reachable while it is mapped, and only then."""
    with target.open() as owner, target.open() as peer:
        there, here = upload(owner, numbers(1)), upload(peer, numbers(0))
        expect_raises(InvalidValue, "not mapped", lambda: peer.allocator.copy(here, there))
        there.map_to(peer)
        there.map_to(peer)
        there.unmap_from(peer)
        owner.synchronize()
        peer.allocator.copy(here, there)
        there.unmap_from(peer)
        expect_equal(download(peer, here), numbers(1), "a copy from a peer")
        expect_raises(InvalidValue, "unmapped", lambda: peer.allocator.copy(here, there))
        there.map_to(peer)
        peer.allocator.copy(there, upload(peer, numbers(3)))
        there.free()
        upload(owner, numbers(2))


def peers_wait_on_the_device(target: Target) -> None:
    """A copy between devices is in the order of both, and the host waits for nothing."""
    with target.open() as owner, target.open() as peer:
        a, b, c = numbers(1), numbers(2), numbers(3)
        there, first, second, later = (upload(owner, each) for each in (c, a, b, c))
        here, third, out, other = (upload(peer, each) for each in (c, c, c, c))
        here_add, there_add = target.program(peer, "add"), target.program(owner, "add")
        there.map_to(peer)
        owner.synchronize()
        peer.synchronize()
        go = owner.signal()
        owner.submit_in_order(owner.channel("compute"), [Wait(go, 1)])
        there_add(there, first, second, vals=(WORDS,))
        peer.allocator.copy(here, there)
        here_add(other, third, third, vals=(WORDS,))
        peer.wait(Point(*peer.frontier[0]))  # it has nothing of what is copied
        there_add(second, there, later, vals=(WORDS,))
        there_add(there, later, later, vals=(WORDS,))
        here_add(out, here, third, vals=(WORDS,))
        go.set(1)
        expect_equal(download(peer, out), a + b + c, "a launch behind a copy from a peer")
        expect_equal(download(peer, other), c + c, "a launch beside a copy from a peer")
        expect_equal(download(owner, there), c + c, "a launch behind a copy to a peer")
        expect_equal(download(owner, second), a + b + c, "a launch beside a copy to a peer")


def graphs_wait_for_peers(target: Target) -> None:
    """Replays wait for copies between devices too, of what they have for good and of inputs."""
    with target.open() as owner, target.open() as peer:
        there, add = upload(owner, numbers(1)), target.program(peer, "add")
        here, other, ones = (upload(peer, numbers(2)) for _ in range(3))
        outs = [upload(peer, numbers(0)) for _ in range(3)]
        there.map_to(peer)
        graphs = [
            HCQGraph(peer, [GraphLaunch(add, (out, source, ones), (WORDS,))], inputs)
            for out, source, inputs in zip(
                outs, (other, here, other), ([other], [], [other]), strict=True
            )
        ]
        owner.synchronize()
        peer.synchronize()
        go = owner.signal()
        owner.submit_in_order(owner.channel("compute"), [Wait(go, 1)])
        peer.allocator.copy(here, there)
        peer.wait(graphs[0](other))  # it has nothing of what is copied
        graphs[1]()
        peer.allocator.copy(here, there)
        graphs[2](here)
        go.set(1)
        for out, wanted in zip(outs, (numbers(2), numbers(1), numbers(1)), strict=True):
            expect_equal(download(peer, out), wanted + numbers(2), "a replay beside a copy")
        for graph in graphs:
            graph.close()


def peers_go_back_and_forth(target: Target) -> None:
    """Copies between devices follow each other, also where timelines wrap."""
    with target.open(near_wrap=True) as owner, target.open(near_wrap=True) as peer:
        devices, wanted = (owner, peer), numbers(0)
        adds = [target.program(device, "add") for device in devices]
        values = [upload(device, numbers(0)) for device in devices]
        copied, ones = ([upload(d, numbers(n)) for d in devices] for n in (0, 1))
        for buffer, other in zip(values, reversed(devices), strict=True):
            buffer.map_to(other)
        for step in range(24):
            to, of = step % 2, 1 - step % 2
            devices[to].allocator.copy(copied[to], values[of])
            adds[to](values[to], copied[to], ones[to], vals=(WORDS,))
            wanted = wanted + numbers(1)
        expect_equal(download(peer, values[1]), wanted, "24 copies between two devices")


def shared_memory_is_used_again(target: Target) -> None:
    """Memory that a peer had mapped stays so for its next owner, behind what the peer does."""
    with target.open() as owner, target.open() as peer:
        go, here = peer.signal(), upload(peer, numbers(0))
        there = upload(owner, numbers(1))
        address = there.address
        there.map_to(peer)
        peer.synchronize()
        owner.synchronize()
        peer.submit_in_order(peer.channel("compute"), [Wait(go, 1)])
        peer.allocator.copy(here, there)
        there.free()
        other = upload(owner, numbers(2))
        expect(other.address != address, "memory was used again while a peer waits to read it")
        go.set(1)
        expect_equal(download(peer, here), numbers(1), "a copy of what a peer freed")
        owner.synchronize()
        again = upload(owner, numbers(3))
        expect(again.address == address, "freed memory that was shared is not used again")
        expect_raises(InvalidValue, "not lent", lambda: peer.allocator.copy(here, again))
        again.map_to(peer)
        peer.allocator.copy(here, again)
        expect_equal(download(peer, here), numbers(3), "a copy from memory that is used again")


CHECKS: Final[tuple[Check, ...]] = (
    peers,
    peers_wait_on_the_device,
    graphs_wait_for_peers,
    peers_go_back_and_forth,
    shared_memory_is_used_again,
)
