"""A process that uses a served machine: `python -m am.served_user PATH ROUNDS`.

It copies, launches and checks so many rounds; with 0 without end, for its parent to kill it. It
says "working" after the first one, and at the end "done".
"""

from __future__ import annotations

import os
import sys
from itertools import count

import numpy as np

from am.kernels import LAYOUTS, code_object
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.port import open_kfd
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.sim.remote import RemoteWorld
from gpu.transport.world import World


def work(device: AmDevice, rounds: int, seed: int) -> None:
    """Sums on the device: of what is copied there, and every other time of what lies here."""
    code = code_object("add", device.target.version)
    add = device.load(code, "add", LAYOUTS["add"], written=(0,))
    total, wanted = upload(device, numbers(seed)), numbers(seed)
    for number in range(rounds) if rounds else count():
        values = numbers(seed + number)
        more = device.allocator.map_host(values) if number % 2 else upload(device, values)
        add(total, total, more, vals=(WORDS,))
        wanted += values
        if not np.array_equal(download(device, total), wanted):
            sys.exit(f"round {number}: wrong sums")
        if number == 0:
            print("working", flush=True)
        more.free()


def main(path: str, rounds: int) -> None:
    """All of it."""
    world = RemoteWorld(path)
    with open_kfd(World(world.os, world.waiter)) as device:
        work(device, rounds, os.getpid() % 1000)
    world.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
