"""A process that uses a served machine through the driver: `python -m nv.served_user PATH WHAT`.

It does one thing again and again, for its parent to kill it, and says "working" before the first:
``open`` opens and closes the GPU, ``graph`` replays a graph over both kinds of queue, ``copy``
copies there, back and from memory of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpu.drivers.nv.device import RmDevice
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.graph import GraphCopy, GraphLaunch, HCQGraph
from gpu.sim.remote import RemoteWorld
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, cubin

REMOTE_INPUT = 1 << 14


def opening(world: World) -> None:
    """Opens the GPU, and closes it."""
    print("working", flush=True)
    while True:
        RmDevice.open(world).close()


def graph(world: World) -> None:
    """Replays launches that need each other, and copies on another queue."""
    with RmDevice.open(world) as device:
        code = cubin(device.target.sm, "add")
        add = device.load(code, "add", LAYOUTS["add"], written=WRITTEN)
        a, b, c = (upload(device, numbers(n)) for n in range(3))
        device.synchronize()
        items = [GraphLaunch(add, (a, a, b), (WORDS,)), GraphCopy(c, a)] * 4
        replayed = HCQGraph(device, items)
        print("working", flush=True)
        while True:
            device.wait(replayed())


def copying(world: World) -> None:
    """Copies to the device, within it and back."""
    with RmDevice.open(world) as device:
        data = numbers(5, REMOTE_INPUT)
        mine, here = upload(device, data), upload(device, data)
        print("working", flush=True)
        while True:
            device.allocator.copy_in(mine, data.tobytes())
            device.allocator.copy(here, mine)
            if not (download(device, here) == data).all():
                sys.exit("other bytes came back")


WORK: dict[str, Callable[[World], None]] = {"open": opening, "graph": graph, "copy": copying}


def main(path: str, what: str) -> None:
    """All of it."""
    remote = RemoteWorld(path)
    WORK[what](World(remote.os, remote.waiter))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
