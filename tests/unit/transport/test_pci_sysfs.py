"""PCI functions by their files in sysfs: a made-up tree, and what this machine has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from gpu.core.errors import (
    AccessDenied,
    FormatError,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.transport.os import RealOs
from gpu.transport.pci import tree
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.sysfs import SysfsFunction
from gpu.transport.world import World, real_world

AT = PciAddress.parse("0000:03:00.0")
RESOURCE = """\
0x000000f800000000 0x000000f80000ffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000f900000000 0x000000f900001fff 0x0000000000140204
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000000000e000 0x000000000000e0ff 0x0000000000040101
0x00000000fce00000 0x00000000fce7ffff 0x0000000000040200
0x00000000fce80000 0x00000000fce9ffff 0x0000000000046200
"""
FILES = {
    "vendor": "0x1002\n",
    "device": "0x744c\n",
    "subsystem_vendor": "0x1002\n",
    "subsystem_device": "0x0e3b\n",
    "revision": "0xc8\n",
    "class": "0x030000\n",
    "resource": RESOURCE,
    "resource0_resize": "0000000000000f00\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A function's folder, in a tree that stands for /sys/bus/pci/devices."""
    monkeypatch.setattr(tree, "DEVICES", str(tmp_path))
    folder = tmp_path / str(AT)
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    config = bytearray(range(256))
    config[:4] = bytes.fromhex("02104c74")
    (folder / "config").write_bytes(config)
    for bar, size in ((0, 0x10000), (2, 0x2000), (5, 0x80000)):
        (folder / f"resource{bar}").write_bytes(bytes(size))
    return folder


@pytest.fixture
def function(folder: Path) -> SysfsFunction:
    return SysfsFunction(RealOs(), AT)


def test_what_a_function_is(function: SysfsFunction) -> None:
    assert HostPci(RealOs()).list_functions() == [AT]
    assert function.ids == PciIds(0x1002, 0x744C, 0x1002, 0x0E3B, 0xC8, 0x030000)
    assert function.bars == {
        0: Bar(0x10000, prefetchable=True),
        2: Bar(0x2000),
        4: Bar(0x100, is_io=True, is_64bit=False),
        5: Bar(0x80000, is_64bit=False),
    }


def test_config_space_is_read(function: SysfsFunction) -> None:
    config = function.config
    assert config.size == 256
    assert (config.read(0, 4), config.read(0x21, 1), config.read(0x30, 2)) == (
        *(0x744C1002, 0x21, 0x3130),
    )
    assert config.load(5, 20) == bytes(range(5, 25))
    with pytest.raises(InvalidValue, match="misaligned"):
        config.read(1, 4)
    with pytest.raises(TransportError, match="only looked at"):
        config.write(4, 2, 6)


def test_bars_are_the_files(function: SysfsFunction, folder: Path) -> None:
    rng = np.random.default_rng(2)
    memory = bytearray(0x2000)
    whole, page = function.window(2), function.map(2, 0x1000, 0x1000)
    for _ in range(100):
        width = int(rng.choice([1, 2, 4, 8]))
        at = int(rng.integers(0x1000 // width)) * width
        value = int.from_bytes(rng.bytes(width), "little")
        page.write(at, width, value)
        memory[0x1000 + at : 0x1000 + at + width] = value.to_bytes(width, "little")
    assert (folder / "resource2").read_bytes() == memory
    assert whole.load(0, 0x2000) == memory
    function.close()
    function.close()


@pytest.mark.parametrize(
    ("bar", "offset", "size", "error", "text"),
    [
        (1, 0, 0x1000, InvalidIndex, "no BAR 1, but 0, 2, 4, 5"),
        (2, 0x1000, 0x2000, InvalidIndex, "not inside"),
        (2, 0x10, 0x1000, InvalidValue, "begins at a page"),
        (2, 0, 0, InvalidValue, "begins at a page"),
        (4, 0, 0x100, Unsupported, "of ports"),
    ],
)
def test_what_is_no_mapping(
    function: SysfsFunction, bar: int, offset: int, size: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        function.map(bar, offset, size)


def test_a_bar_of_less_than_a_page(function: SysfsFunction, folder: Path) -> None:
    lines = RESOURCE.splitlines()
    lines[1] = "0x00000000fcea0100 0x00000000fcea01ff 0x0000000000040200"
    (folder / "resource").write_text("\n".join(lines))
    (folder / "resource1").write_bytes(bytes(range(256)) * 16)
    window = function.window(1)
    assert window.size == 0x100 and window.read(4, 4) == 0x07060504
    window.write(8, 1, 0xAB)
    assert (folder / "resource1").read_bytes()[0x108] == 0xAB
    function.close()


def test_resizing_takes_only_sizes_that_are_listed(function: SysfsFunction, folder: Path) -> None:
    assert function.bars[0].size == 0x10000
    function.resize(0, 1 << 28)  # 2^8 MiB
    assert (folder / "resource0_resize").read_text().startswith("8\n")
    (folder / "resource").write_text(RESOURCE.replace("f80000ffff", "f80fffffff"))
    assert function.bars[0].size == 1 << 28  # read anew
    (folder / "resource0_resize").write_text(FILES["resource0_resize"])
    for size in (0, 1 << 16, 1 << 27, 3 << 27, 1 << 32):
        with pytest.raises(InvalidValue, match="in mask 0xf00"):
            function.resize(0, size)


def test_reset_asks_the_kernel(function: SysfsFunction, folder: Path) -> None:
    with pytest.raises(TransportError):
        function.reset()
    (folder / "reset").write_text("")
    function.reset()
    assert (folder / "reset").read_text() == "1\n"


def test_files_that_say_nothing(function: SysfsFunction, folder: Path) -> None:
    (folder / "vendor").write_text("AMD\n")
    with pytest.raises(FormatError, match="'AMD' is no number"):
        _ = function.ids
    (folder / "resource").write_text("0x1 0x2\n")
    with pytest.raises(FormatError, match="line 0"):
        _ = function.bars
    with pytest.raises(TransportError) as caught:
        HostPci(RealOs()).open(AT._replace(bus=4))
    assert caught.value.errno == errno.ENODEV


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_a_bar_without_rights(function: SysfsFunction, folder: Path) -> None:
    (folder / "resource2").chmod(0)
    with pytest.raises(AccessDenied):
        function.window(2)


@pytest.mark.parametrize("text", ["", "03:00", "0000:03:00.8", "0000:03:20.0", "0:03:00.0", "x"])
def test_no_address(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"0000:03:00\.0 is wanted"):
        PciAddress.parse(text)


def test_addresses_are_written_as_linux_does() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        address = PciAddress(*(int(rng.integers(end)) for end in (1 << 16, 256, 32, 8)))
        assert PciAddress.parse(str(address)) == address
    assert PciAddress.parse("41:1f.7") == (0, 0x41, 0x1F, 7)


def test_this_machines_functions() -> None:
    world = real_world()
    functions = world.pci.list_functions()
    if not functions:
        pytest.skip("this machine lists no PCI functions")
    for address in functions:
        function = SysfsFunction(world.os, address)
        assert function.ids == world.pci.ids(address)
        assert function.config.read(0, 2) == function.ids.vendor
        assert function.config.read(2, 2) == function.ids.device
        assert all(not bar.size & bar.size - 1 for bar in function.bars.values())


def test_a_world_without_buses() -> None:
    world = World(RealOs(), real_world().waiter)
    assert not world.pci.list_functions() and not world.usb.list_devices()
    with pytest.raises(Unsupported, match="no PCI functions"):
        world.pci.open(AT)
