"""A process that uses a served machine by raw calls: `python -m sim.nv.served_user PATH ROUNDS`.

It copies, launches and checks so many rounds; with 0 without end, for its parent to kill it. It
says "working" after the first one, and at the end "done".
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
import time
from collections.abc import Callable
from itertools import count

from gpu.sim.remote import RemoteWorld
from sim.nv.bench import BANK, SCRATCH, Bench, Machine, add_one
from sim.nv.methods import copy, inc, release
from sim.nv.numbers import COPY, OK
from sim.nv.raw_nv import PAGE, Buffer, RawNv, pack

CHIP = "gh100"
_MOMENT_NS = 5_000_000
_PATIENCE_S = 30


class RemoteNv(RawNv):
    """The driver, opened on a machine that another process serves."""

    def __init__(self, remote: RemoteWorld):
        self.remote, self.os, self.chip = remote, remote.os, CHIP
        self.upto, self.gpu_index, self.rings, self.shared = "channel", 0, [], None
        self.open_driver()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Lets the machine work until something is there."""
        late = time.monotonic() + _PATIENCE_S
        while not holds():
            if time.monotonic() > late:
                sys.exit("it never came")
            self.remote.waiter.idle(_MOMENT_NS)


def own_memory(user: RemoteNv) -> tuple[mmap.mmap, Buffer]:
    """A page of this process that the GPU reads, by NV_ESC_RM_ALLOC_MEMORY."""
    memory = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fields = (("I", 0, user.client), ("I", 4, user.device), ("I", 8, 0x70), ("I", 12, 0x71))
    data = pack(56, *fields, ("I", 16, 1 << 30 | 1 << 12), ("Q", 24, address), ("Q", 32, PAGE - 1))
    user.escape(0x27, data, user.dev)
    assert struct.unpack_from("<I", data, 40)[0] == OK
    buffer = Buffer(0x70, PAGE, user.new_va(PAGE))
    assert user.create_range(buffer.va, PAGE) == OK
    assert user.map_range(buffer.va, PAGE, 0x70) == OK
    return memory, buffer


def work(user: RemoteNv, rounds: int) -> None:
    """Copies out of this process's own memory, and adds one for each block of a grid."""
    bench = Bench(user, Machine(add_one))
    memory, mine = own_memory(user)
    local, flag = user.buffer(PAGE, local=True), user.buffer()
    user.ring.submit(*inc(4, 0, COPY[CHIP]))
    bench.area.host.write(BANK + 0x210, 8, bench.at(SCRATCH))
    for number in range(1, rounds + 1) if rounds else count(1):
        memory[:4] = struct.pack("<I", number)
        words = copy(mine.va, local.va, 4)
        user.ring.submit(*words, *release(flag.va, number))
        user.wait_until(lambda wanted=number: flag.host.read(0, 4) == wanted)
        if local.host.read(0, 4) != number:
            sys.exit(f"round {number}: {local.host.read(0, 4)} was copied")
        before = bench.read()
        bench.start(bench.qmd(number))
        user.wait_until(lambda at=before: bench.read() != at)
        user.ring.at = 0
        if number == 1:
            print("working", flush=True)


def main(path: str, rounds: int) -> None:
    """All of it."""
    remote = RemoteWorld(path)
    work(RemoteNv(remote), rounds)
    remote.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
