"""The table of generations and the choice among what a kernel lists."""

from __future__ import annotations

import ctypes

import pytest

from gpu.core.errors import DeviceError, Unsupported
from gpu.drivers.nv.nvk.branch import BRANCHES, branch_of, version_in
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.classes import GENERATIONS, choose, generation, usermode_class

# compute, channel, copy, doorbell, QMD major and size, sm: from the public class lists.
TABLE = [
    (0xC6C0, 0xC56F, 0xC6B5, 0xC461, 3, 256, 80),
    (0xC7C0, 0xC56F, 0xC7B5, 0xC461, 3, 256, 86),
    (0xC9C0, 0xC56F, 0xC7B5, 0xC461, 3, 256, 89),
    (0xCBC0, 0xC86F, 0xC8B5, 0xC661, 4, 384, 90),
    (0xCDC0, 0xC96F, 0xC9B5, 0xC661, 5, 384, 100),
    (0xCEC0, 0xCA6F, 0xCAB5, 0xC661, 5, 384, 120),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: hex(row[0]))
def test_generations(row: tuple[int, ...]) -> None:
    compute, gpfifo, dma, usermode, major, size, sm = row
    # Kernels list the channel and doorbell classes of older generations too.
    listed = [0x80, 0x2080, 0xC36F, 0xC56F, 0xC361, 0xC461, compute, gpfifo, dma, usermode]
    found = choose(listed)
    assert found is generation(compute)
    assert (found.compute, found.gpfifo, found.dma, found.sm) == (compute, gpfifo, dma, sm)
    assert (found.qmd_major, found.qmd_size) == (major, size)
    assert usermode_class(found, listed) == usermode
    for missing in (gpfifo, dma, usermode):
        if missing in (0xC56F,):
            continue  # listed for its age as well
        with pytest.raises(Unsupported, match=f"{missing:#x}"):
            choose([each for each in listed if each != missing])


def test_the_table_is_complete() -> None:
    assert set(GENERATIONS) == {row[0] for row in TABLE}


def test_the_newest_of_several_compute_classes_is_chosen() -> None:
    listed = [each for row in TABLE for each in row[:4]]
    assert choose(listed).name == choose(listed[::-1]).name == "Blackwell GB20x"


def test_a_newer_doorbell_class_serves_blackwell() -> None:
    listed = [0xCEC0, 0xCA6F, 0xCAB5, 0xC761]
    assert usermode_class(choose(listed), listed) == 0xC761


@pytest.mark.parametrize("number", [0xC5C0, 0xCFC0, 0])
def test_an_unknown_compute_class_is_named(number: int) -> None:
    with pytest.raises(Unsupported, match=f"{number:#x}.*0xcbc0 \\(Hopper\\)"):
        generation(number)
    with pytest.raises(Unsupported, match=f"{number:#x}" if number else "none among 1"):
        choose([number])


@pytest.mark.parametrize(
    ("version", "row", "sm"),
    [
        (0x800, 0xC6C0, 80),
        (0x806, 0xC7C0, 86),
        (0x860, 0xC7C0, 86),
        (0x809, 0xC9C0, 89),
        (0x900, 0xCBC0, 90),
        (0xA00, 0xCDC0, 100),
        (0xA04, 0xCEC0, 120),
    ],
)
def test_architecture_of_a_version(version: int, row: int, sm: int) -> None:
    assert GraphicsInfo(version, 64, 8, 9, 2, (9,)).sm(generation(row)) == sm


@pytest.mark.parametrize(
    ("number", "schedule", "map_external", "free", "unregister"),
    [
        (535, 2, 1200, 24, 28),
        (545, 2, 1200, 24, 28),
        (550, 2, 9264, 24, 28),
        (555, 2, 9264, 24, 28),
        (560, 2, 9264, 24, 28),
        (565, 2, 9264, 24, 28),
        (570, 2, 9264, 24, 28),
        (575, 3, 9264, 24, 28),
        (580, 3, 9264, 24, 28),
        (590, 3, 9264, 16, 12),
        (595, 3, 9264, 16, 12),
    ],
)
def test_branches(
    number: int, schedule: int, map_external: int, free: int, unregister: int
) -> None:
    branch = branch_of(f"{number}.45.04")
    structs = (branch.schedule, branch.map_external, branch.uvm_free, branch.unregister_channel)
    assert tuple(map(ctypes.sizeof, structs)) == (schedule, map_external, free, unregister)
    assert branch.number == number and number in BRANCHES


@pytest.mark.parametrize("version", ["530.41.03", "585.12.01", "610.43.02"])
def test_a_branch_that_was_never_measured_is_refused(version: str) -> None:
    with pytest.raises(Unsupported, match=f"branch {version[:3]}.*535, 545, 550, .*, 580"):
        branch_of(version)


@pytest.mark.parametrize("version", ["", "abc", "580", "580.", "580.1.2.3", "5800.1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(DeviceError, match="is no version"):
        branch_of(version)


def test_versions_are_found_in_the_text_file() -> None:
    first = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (d)"
    )
    assert (
        version_in(first + "\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14) \n")
        == "580.159.04"
    )
    closed = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"
    )
    assert version_in(closed) == "535.183.01"
    assert version_in("NVRM version: 550.54") == "550.54"
    with pytest.raises(DeviceError, match="no version in"):
        version_in("GCC version: 12.2.0")
