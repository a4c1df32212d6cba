"""QMDs, field by field: what is refused, and what must be mapped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sim.nv.bench import QMD, RELEASE, Bench, bench
from sim.nv.methods import launch
from sim.nv.qmds import Qmd

Change = Callable[[Bench, Qmd], object]
WRONG: dict[str, Change] = {
    "older version": lambda b, q: q.set(major=q.version - 1),
    "newer version": lambda b, q: q.set(major=q.version + 1),
    "minor version": lambda b, q: q.set(minor=1),
    "no blocks": lambda b, q: q.set(grid_x=0),
    "no blocks in z": lambda b, q: q.set(grid_z=0),
    "too many blocks": lambda b, q: q.set(grid_x=1 << 31),
    "no threads": lambda b, q: q.set(block_y=0),
    "too many threads": lambda b, q: q.set(block_x=1024, block_y=2),
    "too deep a block": lambda b, q: q.set(block_x=1, block_z=65),
    "no registers": lambda b, q: q.set(registers=0),
    "more registers than a file has": lambda b, q: q.set(registers=128, block_x=1024),
    "17 barriers": lambda b, q: q.set(barriers=17),
    "carve-out that is none": lambda b, q: q.set(min=2, target=2),
    "MIN above TARGET": lambda b, q: q.set(min=5),
    "MAX below TARGET": lambda b, q: q.set(max=1),
    "MIN too small": lambda b, q: q.set(min=1, target=1),
    "SASS of another chip": lambda b, q: q.set(sass=0x75),
    "empty bank": lambda b, q: q.set(bank_size=0),
    "bank beyond 64 KiB": lambda b, q: q.set(bank_size=(64 << 10) + 16 >> 4),
    "three words": lambda b, q: q.set(words=3),
    "misaligned release": lambda b, q: q.set(release_low=b.at(RELEASE) + 8 & 0xFFFFFFFF),
    "one word of 64 bits": lambda b, q: q.set(words=1),
    "payload too wide": lambda b, q: q.set(wide=0, payload_high=1),
    "reduction": lambda b, q: q.set(reduce=1),
    "unknown dependent action": lambda b, q: q.set(next=1, action=7, next_at=b.at(QMD) >> 8),
    "circular queue": lambda b, q: q.set(queue=1),
    "local memory that was not set": lambda b, q: q.set(high=16),
}


@pytest.mark.parametrize("name", WRONG)
def test_qmds_that_are_refused(each_bench: Bench, name: str) -> None:
    qmd = each_bench.qmd()
    WRONG[name](each_bench, qmd)
    each_bench.run(qmd)
    assert each_bench.user.ring.error()[0] == 13
    assert each_bench.area.host.read(RELEASE, 4) == 0


MISALIGNED: tuple[tuple[str, Change], ...] = (
    ("0x8 and 0x0 bytes: multiples of 16", lambda b, q: q.set(low=8)),
    ("0x0 and 0x8 bytes: multiples of 16", lambda b, q: q.set(high=8)),
    ("no multiple of 16", lambda b, q: q.pair("program", b.at(8))),
)


@pytest.mark.parametrize("chip", ["ga102", "gh100"])
@pytest.mark.parametrize(("why", "change"), MISALIGNED)
def test_misaligned_sizes_and_programs(chip: str, why: str, change: Change) -> None:
    """Version 5 counts them in units of 16 bytes, so that they cannot be misaligned."""
    made = bench(chip)
    qmd = made.qmd()
    change(made, qmd)
    made.run(qmd)
    assert made.user.ring.error()[0] == 13 and why in made.user.violations[0]
    made.user.world.close()


def test_banks_of_version_3_lie_on_64_bytes() -> None:
    """Later versions count in units of 64 bytes."""
    made = bench("ga102")
    made.run(made.qmd().pair("bank", made.at(32)))
    assert made.user.ring.error()[0] == 13
    made.user.world.close()


@pytest.mark.parametrize("chip", ["ga102", "gh100", "gb202"])
@pytest.mark.parametrize("over", [0, 128])
def test_shared_memory_has_a_size_that_can_be(chip: str, over: int) -> None:
    """As much as the largest carve-out, and one unit more. Version 5 counts in units of 128."""
    made = bench(chip)
    limit = made.user.gpu.chip.carveouts[-1] << 10
    shift = 7 if chip == "gb202" else 0
    most = limit // 4096 + 1
    made.run(made.qmd().set(shared=limit + over >> shift, min=most, target=most, max=most))
    assert made.user.ring.error()[0] == (13 if over else 0)
    if not shift and not over:
        made.run(made.qmd().set(shared=1024 + 64))
        assert made.user.ring.error()[0] == 13
    made.user.world.close()


def test_reserved_bits(each_bench: Bench) -> None:
    reserved = {3: 818, 4: 697, 5: 537}[each_bench.qmd().version]
    qmd = each_bench.qmd()
    qmd.bits |= 1 << reserved
    each_bench.run(qmd)
    assert "reserved bit" in each_bench.user.violations[0]


FAULTS: dict[str, Change] = {
    "program": lambda b, q: q.pair("program", 0x100000 >> (4 if q.version == 5 else 0)),
    "bank": lambda b, q: q.pair("bank", 0x100000 >> (0 if q.version == 3 else 6)),
    "bank that is not new": lambda b, q: q.set(bank_new=0).pair(
        "bank", 0x100000 >> (0 if q.version == 3 else 6)
    ),
    "bank that ends early": lambda b, q: q.pair(
        "bank", b.at((64 << 10) - 512) >> (0 if q.version == 3 else 6)
    ),
    "prefetch": lambda b, q: q.pair("fetch", 0x1000).set(fetch_size=1),
    "prefetch beyond the end": lambda b, q: q.pair("fetch", b.at(60 << 10) >> 8).set(fetch_size=17),
    "release": lambda b, q: q.set(release_low=0x100000, release_high=0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_qmd_names_must_be_mapped(each_bench: Bench, name: str) -> None:
    qmd = each_bench.qmd()
    FAULTS[name](each_bench, qmd)
    each_bench.run(qmd)
    assert each_bench.user.ring.error() == (31, 1, 0xFFFF)


@pytest.mark.parametrize("name", ["program", "bank that is not new"])
def test_what_a_kernel_does_not_touch_must_be_mapped_too(name: str) -> None:
    made = bench("gh100", lambda launch, memory: None)
    qmd = made.qmd()
    FAULTS[name](made, qmd)
    made.run(qmd)
    assert made.user.ring.error() == (31, 1, 0xFFFF)
    made.user.world.close()


def test_a_qmd_that_is_not_mapped(hopper: Bench) -> None:
    hopper.user.ring.submit(*launch(0x100000))
    hopper.user.run()
    assert hopper.user.ring.error()[0] == 31


def test_a_program_at_the_end_of_its_memory_is_noticed(hopper: Bench) -> None:
    hopper.run(hopper.qmd().pair("program", hopper.at((64 << 10) - 256)))
    assert "fetched ahead" in hopper.user.violations[0] and hopper.read() == 2


def test_clusters() -> None:
    for chip in ("gh100", "gb202"):
        made = bench(chip)
        made.run(made.qmd().set(type=3, cluster_x=2, cluster_y=1, cluster_z=1, grid_x=4))
        assert made.machine.launches[0].cluster == (2, 1, 1)
        made.run(made.qmd().set(type=2, cluster_x=2, grid_x=4))
        assert made.user.ring.error()[0] == 13
        made.user.world.close()


def test_clusters_have_16_blocks(hopper: Bench) -> None:
    hopper.run(hopper.qmd().set(type=3, cluster_x=17, grid_x=34))
    assert hopper.user.ring.error()[0] == 13


def test_clusters_fill_the_grid(hopper: Bench) -> None:
    hopper.run(hopper.qmd().set(type=3, cluster_x=2, grid_x=3))
    assert hopper.user.ring.error()[0] == 13
