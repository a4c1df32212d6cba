"""Kernels on the simulated GPU: the executor behind launches."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from gpu.core.errors import HwTimeout, InvalidValue, Unsupported
from gpu.sim.chunks import ChunkedMemory
from gpu.sim.isa.ptx.syntax import PtxError
from gpu.sim.linecaches import Mode
from gpu.sim.nv.chip.lanes import PtxExecutor
from gpu.sim.nv.world import NvSimWorld
from sim.nv.bench import BANK, PROGRAM, SCRATCH, Bench, Machine, add_one
from sim.nv.methods import LOCAL_WINDOW
from sim.nv.raw_nv import RawNv

CODE = bytes(range(256)) * 2
PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 data, .param .u32 factor)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  .reg .pred %p;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [factor];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mad.lo.u32 %r5, %r3, %r4, %r2;
  mul.wide.u32 %rd2, %r5, 4;
  add.u64 %rd3, %rd1, %rd2;
  ld.global.u32 %r6, [%rd3];
  mul.lo.u32 %r6, %r6, %r1;
  st.global.u32 [%rd3], %r6;
  ret;
}
.visible .entry spin(.param .u64 data, .param .u32 factor)
{
L: bra L;
}
.visible .entry local(.param .u64 data, .param .u32 factor)
{
  .shared .align 8 .b64 box[32];
  .local .align 4 .b32 own[4];
  .reg .b32 %r<4>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [data];
  mov.u64 %rd2, box;
  cvta.shared.u64 %rd3, %rd2;
  mov.u64 %rd4, own;
  cvta.local.u64 %rd5, %rd4;
  st.u32 [%rd5+8], 7;
  ld.local.u32 %r1, [own+8];
  st.u32 [%rd3+16], %r1;
  ld.shared.u32 %r2, [box+16];
  st.global.u32 [%rd1], %r2;
  ret;
}
.visible .entry counts(.param .u64 data, .param .u32 factor)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [data];
  mov.u32 %r1, %nctaid.y;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry meet(.param .u64 data, .param .u32 factor)
{
  bar.sync 3;
  ret;
}
"""


class Nv:
    """A GPU with an executor, and a kernel's code and parameters in its memory."""

    def __init__(self, chip: str, kernel: str, coherence: Mode = "check", parameters: int = 0x210):
        self.executor = PtxExecutor()
        self.executor.learn(CODE, kernel, PTX, parameters)
        world = NvSimWorld(5, chip, executor=self.executor, coherence=coherence)
        self.user = RawNv(world.process)
        self.bench = Bench(self.user, Machine(add_one))
        self.host = self.bench.area.host
        self.host.store(PROGRAM, CODE)
        self.host.store(BANK + parameters, struct.pack("<QI", self.bench.at(SCRATCH), 3))
        self.words_at = (0x360, 0x370, 0x2F8) if parameters == 0x380 else (0, 0xC, 0x20)

    def fill(self, block: tuple[int, int, int] = (32, 1, 1), grid: int = 2) -> None:
        """The words of bank 0 that code reads."""
        for at, size in zip(self.words_at, (block, (grid, 1, 1)), strict=False):
            self.host.store(BANK + at, struct.pack("<3I", *size))
        self.host.store(BANK + self.words_at[2], struct.pack("<Q", LOCAL_WINDOW))

    def run(self, **fields: int) -> None:
        self.fill((fields.get("block_x", 32), 1, 1), fields.get("grid_x", 2))
        self.launch(**fields)

    def launch(self, **fields: int) -> None:
        self.bench.run(self.bench.qmd().set(**{"bank_size": 0x500 >> 4, **fields}))

    def words(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self.host.load(SCRATCH, 4 * count))


@pytest.fixture
def nv() -> Iterator[Nv]:
    made = Nv("gh100", "scale")
    yield made
    made.user.world.close()


@pytest.mark.parametrize("chip", ["ga102", "ad102", "gh100", "gb202"])
@pytest.mark.parametrize("coherence", ["check", "oldest", "none"])
def test_a_kernel_runs(chip: str, coherence: Mode) -> None:
    made = Nv(chip, "scale", coherence, 0x160 if chip[1] in "ad" else 0x380)
    made.host.store(SCRATCH, struct.pack("<300I", *range(300)))
    made.run(grid_x=2, block_x=100)
    assert not made.user.violations
    assert made.words(300) == (*(3 * n for n in range(200)), *range(200, 300))
    made.user.world.close()


def test_launches_alike_give_themselves_memory(nv: Nv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first one asks for it; each has its own parameters, and is told what is missing."""
    asked: list[int] = []
    fill = ChunkedMemory.fill

    def filled(self: ChunkedMemory, address: int, size: int, access: int) -> None:
        asked.append(address)
        fill(self, address, size, access)

    monkeypatch.setattr(ChunkedMemory, "fill", filled)
    for factor in (3, 5, 7):
        nv.host.store(BANK + 0x210 + 8, struct.pack("<I", factor))
        nv.host.store(SCRATCH, struct.pack("<64I", *range(factor, factor + 64)))
        nv.run()
        assert nv.words(64) == tuple(factor * n for n in range(factor, factor + 64))
        if factor == 3:
            first = len(asked)
    assert len(asked) == first > 0 and not nv.user.violations
    nv.host.store(SCRATCH, struct.pack("<64I", *range(64)))
    nv.run(data_new=0)
    assert len(asked) == first
    assert "data holds an old copy" in nv.user.violations[0]


def test_windows_lead_to_shared_and_local_memory() -> None:
    made = Nv("gh100", "local")
    made.run(block_x=1)
    assert not made.user.violations and made.words(1) == (7,)
    made.user.world.close()


@pytest.mark.parametrize(
    ("kernel", "offset"), [("scale", 0x0), ("counts", 0x10), ("local", 0x20), ("local", 0x24)]
)
def test_bank_0_says_what_the_launch_has(kernel: str, offset: int) -> None:
    made = Nv("gh100", kernel)
    made.fill()
    word = made.host.read(BANK + offset, 4)
    made.host.write(BANK + offset, 4, word + 1)
    made.launch()
    assert made.user.ring.error()[0] == 13
    assert "of constant bank 0, the launch has" in made.user.violations[0]
    made.user.world.close()


def test_words_of_bank_0_that_code_does_not_read() -> None:
    made = Nv("gh100", "scale")
    made.fill()
    made.host.store(BANK + 0x4, struct.pack("<5I", 9, 9, 9, 9, 9))
    made.launch()
    assert not made.user.violations and made.user.ring.error()[0] == 0
    made.user.world.close()


def test_bank_0_holds_what_code_reads() -> None:
    made = Nv("gb202", "counts", parameters=0x380)
    made.fill()
    made.launch(bank_size=0x370 >> 4)
    assert made.user.ring.error()[0] == 13 and not made.user.violations
    assert "the bank is 0x370 bytes" in made.user.world.debug.faults[0]
    made.user.world.close()


@pytest.mark.parametrize(
    ("threads", "barriers", "right"), [(64, 4, True), (64, 3, False), (32, 0, True)]
)
def test_a_launch_has_the_barriers_that_code_uses(threads: int, barriers: int, right: bool) -> None:
    """A block of one warp has nothing to wait for."""
    made = Nv("gh100", "meet")
    made.run(block_x=threads, barriers=barriers)
    assert made.user.ring.error()[0] == (0 if right else 13)
    assert right or "no barrier 3" in made.user.world.debug.faults[0]
    made.user.world.close()


def test_a_launch_has_the_shared_memory_that_code_uses() -> None:
    made = Nv("gh100", "local")
    made.run(block_x=1, shared=128)
    assert made.user.ring.error()[0] == 13
    assert "0x100 bytes of shared memory" in made.user.world.debug.faults[0]
    made.user.world.close()


def test_unknown_code_is_an_error(nv: Nv) -> None:
    nv.host.store(PROGRAM + 511, b"\0")
    nv.run(block_x=1)
    assert "learn" in nv.user.violations[0] and nv.user.ring.error()[0]


def test_a_longer_kernel_is_found_before_its_beginning(nv: Nv) -> None:
    nv.executor.learn(CODE[:256], "spin", PTX, 0x210)
    nv.run(block_x=1)
    assert not nv.user.violations


def test_bad_addresses_stop_the_channel_and_write_nothing(nv: Nv) -> None:
    nv.host.store(SCRATCH, struct.pack("<2I", 1, 1))
    nv.host.store(BANK + 0x210, struct.pack("<Q", 0x1234_5678_0000))
    nv.run(block_x=2)
    assert nv.user.ring.error()[0] == 31
    assert nv.words(2) == (1, 1)


def test_misaligned_addresses_stop_the_channel(nv: Nv) -> None:
    nv.host.store(BANK + 0x210, struct.pack("<Q", nv.bench.at(SCRATCH) + 2))
    nv.run(block_x=2)
    assert nv.user.ring.error()[0] == 13
    (fault,) = nv.user.world.debug.faults
    assert "multiple" in fault and "ld.global.u32 %r6" in fault


def test_an_endless_kernel_does_not_hold_up_the_machine() -> None:
    made = Nv("gh100", "spin")
    made.bench.start(made.bench.qmd().set(block_x=64, bank_size=0x500 >> 4))
    with pytest.raises(HwTimeout, match=r"kernel spin, instruction 0 .*, is in an endless loop"):
        for _ in range(100):
            made.user.world.waiter.idle(1_000)
    assert not made.user.violations
    made.user.world.close()


def test_what_cannot_be_learned() -> None:
    executor = PtxExecutor()
    with pytest.raises(PtxError, match="no kernel 'other'"):
        executor.learn(CODE, "other", PTX, 0x210)
    with pytest.raises(InvalidValue, match="empty"):
        executor.learn(b"", "scale", PTX, 0x210)
    with pytest.raises(PtxError, match="line 3: what has no semantics"):
        text = ".version 8.0\n.target sm_80\n.entry k() { what.u32 %r1;\n}"
        executor.learn(CODE, "k", text, 0x210)
    with pytest.raises(Unsupported, match="parameters at 0x200 of constant bank 0"):
        executor.learn(CODE, "scale", PTX, 0x200)
    with pytest.raises(InvalidValue, match="workers"):
        PtxExecutor(workers=2)
