"""kfdtest's AcquireRelease cases, of gfx942: what one has released, another that acquires reads.

The writer's data come before its flag by a write-back of L2 and a wait; the reader, once it has
seen the flag, invalidates what it caches before it reads them. The model has one die's caches for
all, so that "close" are two workgroups of a dispatch, and "far" two queues. "Local" is the GPU's
own memory, "remote" the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from am.kfdtest_kernels import idle, load
from gpu.core.errors import HwTimeout
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.kfd.world import KfdWorld
from sim.isa.asm import op
from sim.raw_kfd import (
    ACCESS,
    PAGE,
    PM4,
    SIGNAL,
    UNCACHED,
    VRAM,
    Buffer,
    RawKfd,
    halves,
    packet3,
)

emit = partial(op, chip="gfx942")
COUNT = 3
FLAG = 64
"""Bytes from the data to the flag."""
_LITERAL, _ZERO, _ONE = 255, 128, 129
_SYSTEM = {"sc0": 1, "sc1": 1}
_WAIT = emit("s_waitcnt", simm16=0)
_START = emit("v_mov_b32", vdst=7, src0=_ZERO)
RELEASE = emit("buffer_wbl2", **_SYSTEM) + _WAIT
ACQUIRE = emit("buffer_inv", **_SYSTEM)
_END = emit("s_endpgm")


def _writer() -> bytes:
    """Copies words from s[4:5] to s[0:1], then sets the flag behind them."""
    code = _START
    for number in range(COUNT):
        code += emit("global_load_b32", vdst=1, addr=7, saddr=4, offset=4 * number, **_SYSTEM)
        code += _WAIT
        code += emit("global_store_b32", addr=7, data=1, saddr=0, offset=4 * number)
    code += RELEASE + emit("v_mov_b32", vdst=1, src0=_ONE)
    return code + emit("global_store_b32", addr=7, data=1, saddr=0, offset=FLAG, **_SYSTEM) + _END


def _reader(scalar: bool) -> bytes:
    """Waits for the flag, then copies words from s[0:1] to s[2:3]."""
    loop = emit("global_load_b32", vdst=2, addr=7, saddr=0, offset=FLAG, **_SYSTEM) + _WAIT
    loop += emit("v_readfirstlane_b32", "vop1", vdst=20, src0=256 + 2)
    loop += emit("s_cmp_eq_u32", ssrc0=20, ssrc1=_ONE)
    code = _START + loop + emit("s_cbranch_scc0", simm16=-(len(loop) // 4 + 1) & 0xFFFF)
    code += ACQUIRE + (emit("s_dcache_inv") if scalar else b"")
    for number in range(COUNT):
        if scalar:
            code += emit("s_load_b32", sdata=21, sbase=0, offset=4 * number) + _WAIT
            code += emit("v_mov_b32", vdst=1, src0=21)
        else:
            code += emit("global_load_b32", vdst=1, addr=7, saddr=0, offset=4 * number) + _WAIT
        code += emit("global_store_b32", addr=7, data=1, saddr=2, offset=4 * number, **_SYSTEM)
    return code + _END


def _both(scalar: bool) -> bytes:
    """Workgroup 0, whose number is in s6, reads; workgroup 1 writes."""
    reader = _reader(scalar)
    choice = emit("s_cmp_eq_u32", ssrc0=6, ssrc1=_ZERO)
    return choice + emit("s_cbranch_scc0", simm16=len(reader) // 4) + reader + _writer()


def launch(code: Buffer, *arguments: int, groups: int = 1) -> list[int]:
    """As on RDNA, but of waves of 64, with 8 vector registers and no accumulators."""
    words = [half for address in arguments for half in halves(address)]
    packets = packet3(0x76, 0x20C, *halves(code.va >> 8))
    packets += packet3(0x76, 0x212, 0x60AF0000, len(words) << 1 | 1 << 7)
    packets += packet3(0x76, 0x22D, 1) + packet3(0x76, 0x204, 0, 0, 0, 1, 1, 1)
    return packets + packet3(0x76, 0x240, *words) + packet3(0x15, groups, 1, 1, 1)


@pytest.fixture
def user(need: Callable[[str], None]) -> Iterator[RawKfd]:
    need("llvmlite")
    world = KfdWorld(seed=5, chip="gfx942", executor=LaneExecutor(5))
    yield RawKfd(world.process)
    assert not world.debug.violations
    world.close()


def values(buffer: Buffer) -> list[int]:
    return [buffer.host.read(4 * number, 4) for number in range(COUNT)]


GIVEN = [0xACE, 0xBEE, 0xCAFE]


def test_acquire_release_cpu(user: RawKfd) -> None:
    """The processor writes and sets the flag, and reads what a kernel has released."""
    shared, target, source = (user.alloc(PAGE, SIGNAL) for _ in range(3))
    reading = user.queue(PM4)
    reading.submit(launch(load(user, _reader(scalar=False)), shared.va, target.va, source.va))
    with pytest.raises(HwTimeout, match="only a write to memory by others can end"):
        idle(reading, 100)
    for number, value in enumerate(GIVEN):
        shared.host.write(4 * number, 4, value)
    shared.host.write(FLAG, 4, 1)
    reading.run()
    assert values(target) == GIVEN
    back = user.alloc(PAGE, SIGNAL)
    reading.submit(launch(load(user, _writer()), back.va, shared.va, target.va))
    reading.run()
    assert (back.host.read(FLAG, 4), values(back)) == (1, GIVEN)


@pytest.mark.parametrize("scalar", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("close", [False, True], ids=["far", "close"])
def test_acquire_release(user: RawKfd, close: bool, local: bool, scalar: bool) -> None:
    shared = user.alloc(PAGE, VRAM | ACCESS | UNCACHED if local else SIGNAL)
    target, source = user.alloc(PAGE, SIGNAL), user.alloc(PAGE, SIGNAL)
    for number, value in enumerate(GIVEN):
        source.host.write(4 * number, 4, value)
    arguments = (shared.va, target.va, source.va)
    if close:
        queue = user.queue(PM4)
        queue.submit(launch(load(user, _both(scalar)), *arguments, groups=2))
        queue.run()
    else:
        reading, writing = user.queue(PM4), user.queue(PM4)
        reading.submit(launch(load(user, _reader(scalar)), *arguments))
        with pytest.raises(HwTimeout, match="only a write to memory by others can end"):
            idle(reading, 100)
        assert values(target) == [0] * COUNT
        writing.submit(launch(load(user, _writer()), *arguments))
        user.world.run_until_idle()
    assert values(target) == GIVEN
