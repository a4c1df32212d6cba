"""What a machine counts, with programs and submissions whose numbers can be told by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.counts import Counts
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes
from gpu.sim.machine import machines
from sim.aql_packets import VENDOR, signal
from sim.isa.asm import END, op
from sim.raw_kfd import (
    ACCESS,
    AQL,
    GTT,
    PAGE,
    PM4,
    SDMA,
    SIGNAL,
    VRAM,
    RawKfd,
    halves,
    nop,
    packet3,
    sdma_copy,
    sdma_fence,
    wait_mem,
)

EXEC, ZERO, ONE, LITERAL = 126, 128, 129, 255


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


def loop(rounds: int, body: bytes = b"") -> bytes:
    """2 + rounds * (3 + body) instructions, of which the last ends the wave."""
    start = op("s_mov_b32", sdst=4, ssrc0=LITERAL, literal=rounds)
    body += op("s_sub_u32", sdst=4, ssrc0=4, ssrc1=ONE) + op("s_cmp_lg_u32", ssrc0=4, ssrc1=ZERO)
    back = -(len(body) // 4 + 1) & 0xFFFF
    return start + body + op("s_cbranch_scc1", simm16=back) + END


def skipped() -> bytes:
    """A forward branch over two instructions: 3 of 5 run."""
    waits = op("s_waitcnt", simm16=0)
    return waits + op("s_branch", simm16=2) + waits + waits + END


def called() -> bytes:
    """A call over one instruction, which returns to it: 4 of 4 run, and one again."""
    call = op("s_call_b64", sdst=6, simm16=1)
    return call + END + op("s_setpc_b64", ssrc0=6)


def barriers() -> bytes:
    wait = op("s_barrier")
    return wait + op("s_nop", simm16=0) + wait + END


def executed(code: bytes, groups: int, threads: int, seed: int) -> int:
    """Instructions of a grid, on the bare lane engine."""
    placed = aligned_bytes(len(code), 256)
    placed[:] = np.frombuffer(code, np.uint8)
    memory, at = MemoryMap(), placed.ctypes.data
    memory.add(at, len(placed), at, layout.READ)
    dispatch = Dispatch(pc=at, grid=(groups, 1, 1), block=(threads, 1, 1))
    execution = Machine(memory, seed=seed).start(dispatch)
    while not execution.step(1):
        pass
    return execution.instructions


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (END, 1),
        (skipped(), 3),
        (called(), 3),
        (barriers(), 4),
        (loop(1), 5),
        (loop(5000), 2 + 3 * 5000),
        (loop(7, op("s_waitcnt", simm16=0) + op("s_barrier")), 2 + 5 * 7),
    ],
    ids=["end", "branch", "call", "barriers", "once", "slices", "barriers in a loop"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_instructions_of_waves(code: bytes, wanted: int, seed: int) -> None:
    assert executed(code, 1, 32, seed) == wanted
    assert executed(code, 3, 100, seed) == 3 * 4 * wanted


@pytest.fixture
def user() -> Iterator[RawKfd]:
    world = KfdWorld(seed=2, executor=LaneExecutor())
    yield RawKfd(world.process)
    assert not world.debug.violations
    world.close()


def kernel(user: RawKfd) -> list[int]:
    """6 packets: 2 groups of 2 waves, each of which runs 2 + 3 * 9 instructions."""
    code = user.alloc(PAGE, VRAM | ACCESS)
    code.host.store(0, loop(9))
    words = packet3(0x76, 0x20C, *halves(code.va >> 8)) + packet3(0x76, 0x212, 0x60AF0000, 0)
    words += packet3(0x76, 0x204, 0, 0, 0, 64, 1, 1) + nop(5)
    return words + packet3(0x15, 2, 1, 1, 0x8001) + packet3(0x46, 7 | 4 << 8)


def test_a_launch(user: RawKfd) -> None:
    """Known to the last packet and instruction; a wait in between counts once."""
    counts, memory = user.world.counts, user.alloc(PAGE, SIGNAL)
    words, queue = kernel(user), user.queue(PM4)
    before = counts + Counts()
    queue.submit(wait_mem(memory.va, 1) + words)
    queue.run()
    assert counts - before == Counts(ioctls=0, doorbells=1, packets=0)
    memory.host.write(0, 4, 1)
    queue.run()
    assert counts - before == Counts(0, 1, 7, 1, 4 * (2 + 3 * 9))
    user.call("get_version")
    queue.submit(words)
    queue.run()
    assert counts - before == Counts(1, 2, 13, 2, 8 * (2 + 3 * 9))


def test_indirect_buffers(user: RawKfd) -> None:
    """Packets in them count, and so does the one that leads to them."""
    counts, words = user.world.counts, kernel(user)
    indirect = user.alloc(PAGE, GTT | ACCESS)
    indirect.host.store(0, np.array(words, np.uint32).tobytes())
    enter = packet3(0x3F, *halves(indirect.va), len(words) | 1 << 23)
    queue = user.queue(PM4)
    before = counts + Counts()
    queue.submit(enter)
    queue.run()
    assert (counts - before).packets == 1 + 6
    aql, done = user.queue(AQL), user.alloc(PAGE, SIGNAL)
    vendor = np.zeros(16, np.uint32)
    vendor[0] = VENDOR | 1 << 8 | 1 << 16
    vendor[1:6] = [*enter, 10]
    vendor[14:] = halves(signal(done, 1))
    before = counts + Counts()
    aql.submit_aql(vendor.tobytes())
    aql.run()
    assert counts - before == Counts(0, 1, 1 + 1 + 6, 1, 4 * (2 + 3 * 9))


def test_copies(user: RawKfd) -> None:
    """A copy that takes many turns is one packet."""
    size = 5 << 20
    memory = user.alloc(2 * size + PAGE, VRAM | ACCESS)
    queue = user.queue(SDMA)
    before = user.world.counts + Counts()
    copy = sdma_copy(memory.va, memory.va + size, 1 << 22)
    queue.submit(copy + sdma_fence(memory.va + 2 * size, 7))
    queue.run()
    assert memory.host.read(2 * size, 4) == 7
    assert user.world.counts - before == Counts(doorbells=1, packets=2)


def test_machines_of_this_process(user: RawKfd) -> None:
    """Those that something else opened can be found, until they are closed."""
    assert user.world in machines()
    other = KfdWorld()
    assert machines()[-1] is other
    other.close()
    assert other not in machines() and user.world in machines()
