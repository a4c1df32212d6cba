"""`gpu decode` and `gpu trace`."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu.cli.main import main
from gpu.core.trace import Recorder
from gpu.core.traceevent import Event, Exists, Ioctl, Map, Memory, Open, ReadFile
from unit.am.code_objects import ADD, code_object

EXISTS = Exists("/dev/kfd", True)
OPEN = Open("/dev/kfd", 2, 7)
VERSION = Ioctl(7, "/dev/kfd", 0x8008_4B01, (Memory((), bytes(8), b"\1\0\0\0\x11\0\0\0"),), 0)


def decode(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["decode", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def write(folder: Path, name: str, events: Sequence[Event]) -> str:
    path = folder / name
    with Recorder(path) as recorder:
        for event in events:
            recorder.record(event)
    return str(path)


@pytest.mark.parametrize(
    "text",
    ["c0004600 00000407", "0xC0004600,0x00000407", "00 46 00 c0 07 04 00 00", "004600c007040000ff"],
)
def test_decode_takes_text(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "words"
    path.write_text(text)
    lines = decode(capsys, "--kind", "pm4", str(path))
    assert lines[0].split() == ["0", "c0004600", "EVENT_WRITE"]
    assert "CS_PARTIAL_FLUSH" in lines[1]


def test_decode_takes_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = struct.pack("<4I", 0x0003_0005, 0x1000, 0, 7)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    lines = decode(capsys, "--kind", "sdma", "--chip", "gfx1201", "-")
    assert lines[0].split()[2:] == ["FENCE,", "mtype", "3"]
    path = tmp_path / "packet"
    path.write_bytes(b"\x02\x0d\x03\0" + bytes(60))
    assert "KERNEL_DISPATCH" in decode(capsys, "--kind", "aql", str(path))[0]
    path.write_bytes(struct.pack("<2I", 0x2001_0000, 0xCBC0))
    assert "SET_OBJECT" in decode(capsys, "--kind", "nv", str(path))[1]
    path.write_bytes(struct.pack("<2I", 0x2001_2096, 7))
    options = ("--kind", "nv", "--compute", "0xcbc0", str(path))
    assert "no class" not in decode(capsys, *options)[1]


def test_decode_knows_what_tells_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "object"
    path.write_bytes(code_object(ADD))
    assert any("kernel add" in line for line in decode(capsys, str(path)))
    trace = write(tmp_path, "trace", [EXISTS, OPEN])
    assert decode(capsys, trace) == [
        "    0  exists /dev/kfd = yes",
        "    1  open /dev/kfd flags 0x2 = fd 7",
    ]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"\0\0\0\0", [], "give --kind"),
        (b"c000460", ["--kind", "pm4"], "pairs"),
        (b"\0", ["--kind", "pm4", "--chip", "navi31"], "gfx1100"),
        (b"\0", ["--kind", "pm4", "--chip", "gfx803"], "graphics core"),
        (b"\x7fELF", [], "ELF header"),
    ],
)
def test_decode_says_what_is_wrong(
    content: bytes,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["decode", *arguments, str(path)]) == 1
    assert message in capsys.readouterr().err
    assert main(["decode", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


# Traces

SCRIPT = """
from gpu.transport.world import real_world
system = real_world().os
assert system is not real_world().os
fd = system.open("/dev/null", 2)
address = system.mmap(-1, 8192, 3, 0x22)
system.munmap(address, 8192)
system.close(fd)
raise SystemExit(3)
"""


def test_record_and_replay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = str(tmp_path / "trace")
    command = [sys.executable, "-c", SCRIPT]
    assert main(["trace", "record", trace, "--", *command]) == 3
    assert "4 calls" in capfd.readouterr().out
    assert main(["trace", "print", trace]) == 0
    assert "mmap memory 0x2000 bytes" in capfd.readouterr().out
    assert main(["trace", "replay", trace]) == 0
    assert "4 calls replay" in capfd.readouterr().out
    assert main(["trace", "record", trace, "--", *command]) == 1
    assert "exists" in capfd.readouterr().err
    other = str(tmp_path / "none")
    assert main(["trace", "record", other, "--", sys.executable, "-c", "pass"]) == 1
    assert "nothing was recorded" in capfd.readouterr().err
    assert main(["trace", "record", other]) == 1


def test_a_recorded_command_that_a_signal_ends(tmp_path: Path) -> None:
    script = SCRIPT.replace("raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)")
    trace = str(tmp_path / "trace")
    assert main(["trace", "record", trace, "--", sys.executable, "-c", script]) == 128 + 9
    assert main(["trace", "replay", trace]) == 0


def mapped(address: int, asks: int) -> list[Event]:
    """A mapping, and a call that names an address in it, and points to more."""
    argument = (address + 0x80).to_bytes(8, "little") + b"\0" * 8 + asks.to_bytes(8, "little")
    memory = (
        Memory((), argument, argument),
        Memory((8,), b"abcdefgh", b"ABCDEFGH"),
    )
    return [
        OPEN,
        Map(-1, "", 8192, 3, 0x22, 0, 0, address),
        Ioctl(7, "/dev/kfd", 0xC018_4B16, memory, 0),
        ReadFile("/sys/x", b"1"),
    ]


def test_traces_are_compared_where_it_matters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = 0x7E00_0000_0000, 0x7E10_0000_0000
    first = write(tmp_path, "a", mapped(here, 5))
    assert main(["trace", "replay", first]) == 0
    capsys.readouterr()
    for name, events, code, told in (
        # Other addresses for the same are no difference, other numbers are.
        ("b", mapped(there, 5), 0, "the calls are the same"),
        ("c", mapped(there, 6), 1, "offset 0x10"),
        ("d", mapped(there, 5)[:3], 1, "1 events remain"),
        ("e", [*mapped(there, 5), EXISTS], 1, "Exists"),
        ("f", [*mapped(there, 5)[:3], ReadFile("/sys/x", b"2")], 1, "other bytes"),
    ):
        assert main(["trace", "diff", first, write(tmp_path, name, events)]) == code, name
        out = capsys.readouterr().out
        assert told in out and "(at " not in out, name


def test_answers_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = Ioctl(7, "/dev/kfd", VERSION.request, (Memory((), bytes(8), b"\1\0\0\0\x12\0\0\0"),), 0)
    first = write(tmp_path, "a", [OPEN, VERSION])
    second = write(tmp_path, "b", [OPEN, newer])
    assert main(["trace", "diff", first, second]) == 1
    assert "offset 0x4: 0x11 and 0x12" in capsys.readouterr().out


def test_fixed_mappings_elsewhere_are_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = Map(-1, "", 8192, 3, 0x32, 0, 0x7E00_0000_0000, 0x7E00_0000_0000)
    trace = write(tmp_path, "a", [fixed])
    assert main(["trace", "replay", trace]) == 1
    assert "fixed address" in capsys.readouterr().err
