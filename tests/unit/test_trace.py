"""Trace files: what is written is read again, and whatever else is there is a FormatError."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu.core.errors import FormatError
from gpu.core.trace import VERSION, Recorder, read_trace
from gpu.core.traceevent import (
    KINDS,
    Access,
    Close,
    CloseWindow,
    Event,
    EventFd,
    Exists,
    Failure,
    Ioctl,
    IoctlValue,
    ListDir,
    Lock,
    Map,
    Memory,
    Open,
    OpenWindow,
    PRead,
    PWrite,
    ReadFile,
    TakeEvents,
    Unmap,
    Wait,
    WriteFile,
    call_name,
    shown_path,
)
from gpu.transport.tracetext import format_event

EVENTS: list[Event] = [
    Open("/dev/kfd", 2, 5),
    Open("/dev/kfd", 2, -1, Failure(13, "join the group")),
    Ioctl(
        *(5, "/dev/kfd", 0xC0184B02),
        (Memory((), bytes(24), b"\x01" + bytes(23)), Memory((8, 16), b"in", b"ou")),
        *(0, Failure(22)),
    ),
    Map(5, "/dev/kfd", 4096, 3, 1, 0, 0, 0x7F0000000000),
    Unmap(0x7F0000000000, 4096),
    ReadFile("/sys/class/kfd/x", bytes(range(256))),
    WriteFile("/sys/reset", b"1"),
    ListDir("/sys/class", ("a", "b\u00e9")),
    Exists("/dev/dri", True),
    Close(5, "/dev/kfd"),
    IoctlValue(6, "/dev/vfio/vfio", 0x3B66, 3, 0),
    PRead(6, "/sys/x/config", 4, 0, b"\x02\x10\x4c\x74"),
    PWrite(6, "/sys/x/config", b"\x06", 4, Failure(1)),
    OpenWindow(6, "/sys/x/resource0", 0x1000, 0x2000, 3),
    Access(3, "read", 0x10, b"\x78\x56\x34\x12"),
    CloseWindow(3),
    EventFd(9),
    TakeEvents(9, 2),
    Wait((9, 10), (9,)),
    Lock(6, "/sys/x/resource0", Failure(11)),
]


def _write(path: Path, events: list[Event] = EVENTS) -> bytes:
    with Recorder(path) as recorder:
        for event in events:
            recorder.record(event)
    return path.read_bytes()


def test_events_come_back(tmp_path: Path) -> None:
    _write(tmp_path / "trace")
    assert read_trace(tmp_path / "trace") == EVENTS
    assert {call_name(event) for event in EVENTS} == KINDS.keys()


def test_a_recorder_writes_to_an_open_file() -> None:
    file = io.StringIO()
    with Recorder(file) as recorder:
        recorder.record(Exists("/dev/x", False))
    lines = file.getvalue().splitlines()
    assert json.loads(lines[0]) == {"format": "gpu-trace", "version": VERSION}
    assert json.loads(lines[1]) == {"call": "exists", "path": "/dev/x", "found": False}


def test_a_killed_process_leaves_its_events(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from gpu.core.trace import Recorder\n"
        "from gpu.core.traceevent import Exists\n"
        "recorder = Recorder(sys.argv[1])\n"
        "for i in range(3): recorder.record(Exists(f'/dev/{i}', True))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "trace")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_trace(tmp_path / "trace") == [Exists(f"/dev/{i}", True) for i in range(3)]


def test_every_cut_within_a_line_is_noticed(tmp_path: Path) -> None:
    data = _write(tmp_path / "trace", EVENTS[:3])
    whole = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:length])
        if length in whole:
            assert read_trace(tmp_path / "cut") == EVENTS[: whole.index(length)]
        else:
            with pytest.raises(FormatError, match=r"cut off|empty"):
                read_trace(tmp_path / "cut")


@pytest.mark.slow
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damage_is_a_format_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(_write(tmp_path / "trace"))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "damaged").write_bytes(content)
    try:
        events = read_trace(tmp_path / "damaged")
    except FormatError:
        return
    for event in events:
        format_event(event)


HEADER = '{"format":"gpu-trace","version":1}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n", "line 1: no JSON"),
        ("hello\n", "line 1: no JSON"),
        ("\x7fELF\x02\x01\n", "line 1: no JSON"),
        ("[]\n", "line 1: a JSON object is wanted, not list"),
        ('{"format":"har"}\n', "is no trace"),
        ('{"format":"gpu-trace","version":2}\n', "version 2; this package reads version 1"),
        ('{"format":"gpu-trace","version":true}\n', "version True"),
        ('{"format":"gpu-trace"}\n', "version None"),
        (HEADER + '{"call":"fork"}\n', "line 2: unknown call 'fork'"),
        (HEADER + '{"call":["open"]}\n', "unknown call"),
        (HEADER + '{"call":"exists","path":"/dev/x"}\n', r"fields \['path'\]"),
        (HEADER + '{"call":"exists","path":"/dev/x","found":1}\n', "found: true or false"),
        (HEADER + '{"call":"exists","path":null,"found":true}\n', "path: text is wanted"),
        (HEADER + '{"call":"munmap","address":0,"size":true,"failure":null}\n', "not bool"),
        (HEADER + '{"call":"munmap","address":0,"size":1.5,"failure":null}\n', "not float"),
        (HEADER + f'{{"call":"munmap","address":0,"size":{1 << 64},"failure":null}}\n', "64 bits"),
        (HEADER + '{"call":"munmap","address":0,"size":' + "9" * 9999 + "}\n", "no JSON"),
        (HEADER + '{"call":"munmap","address":0,"size":4,"failure":7}\n', "an object is wanted"),
        (HEADER + '{"call":"munmap","address":0,"size":4,"failure":{}}\n', "failure: fields"),
        (HEADER + '{"call":"list_dir","path":"/x","names":"a","failure":null}\n', "a list"),
        (HEADER + '{"call":"read_file","path":"/x","data":"0","failure":null}\n', "data: "),
        (HEADER + "[" * 100_000 + "\n", "no JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(FormatError, match=words):
        read_trace(tmp_path / "bad")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Ioctl(3, "", 1, (), 0), "must be its argument"),
        (Ioctl(3, "", 1, (Memory((8,), b"", b""),), 0), "must be its argument"),
        (Ioctl(3, "", 1, (Memory((), b"ab", b"a"),), 0), "2 bytes before and 1 after"),
        (Map(3, "", 4096, 3, 1, 0, 0, 0x1001), "0x1001 cannot be the address"),
    ],
)
def test_events_that_cannot_be_are_refused(tmp_path: Path, event: Event, words: str) -> None:
    _write(tmp_path / "trace", [event])
    with pytest.raises(FormatError, match=words):
        read_trace(tmp_path / "trace")


def test_a_trace_holds_no_paths_but_devices() -> None:
    assert shown_path("/dev/dri/renderD128") == "/dev/dri/renderD128"
    assert shown_path("/sys//class/../kernel") == "/sys/kernel"
    assert shown_path("/home/someone/firmware.bin") == ".../firmware.bin"
    assert shown_path("/dev/../home/someone/x") == ".../x"
    assert shown_path("relative/x") == ".../x"


def test_events_as_text() -> None:
    assert [format_event(event) for event in EVENTS] == [
        "open /dev/kfd flags 0x2 = fd 5",
        "open /dev/kfd flags 0x2 = EACCES (join the group)",
        "ioctl fd 5 /dev/kfd 0xc0184b02 (IOWR 'K' 0x02, 24 bytes) = EINVAL\n"
        f"  0000: {bytes(16).hex(' ')} -> 01 {bytes(15).hex(' ')}\n"
        f"  0010: {bytes(8).hex(' ')}\n"
        "  pointer 0x8 -> 0x10: 2 bytes\n"
        "  0000: 69 6e -> 6f 75",
        "mmap fd 5 /dev/kfd 0x1000 bytes, offset 0x0, prot 0x3, flags 0x1 = 0x7f0000000000",
        "munmap 0x7f0000000000 0x1000 bytes",
        f"read_file /sys/class/kfd/x 256 bytes {bytes(range(48)).decode('latin-1')!r}...",
        "write_file /sys/reset 1 bytes '1'",
        "list_dir /sys/class a b\u00e9",
        "exists /dev/dri = yes",
        "close fd 5 /dev/kfd",
        "ioctl_value fd 6 /dev/vfio/vfio 0x00003b66 (IO ';' 0x66, 0 bytes) value 0x3 = 0",
        "pread fd 6 /sys/x/config at 0x0: 02 10 4c 74",
        "pwrite fd 6 /sys/x/config at 0x4: 06 = EPERM",
        "window fd 6 /sys/x/resource0 0x1000 bytes, offset 0x2000 = window 3",
        "access read window 3 + 0x10: 0x12345678",
        "close_window window 3",
        "eventfd = fd 9",
        "take_events fd 9 = 2",
        "wait for fd 9 10 = 9",
        "lock fd 6 /sys/x/resource0 = EAGAIN",
    ]
    long = Ioctl(3, "", 1, (Memory((), bytes(1000), bytes(1000)),), 0)
    assert format_event(long).endswith("... 488 bytes more")
    assert os.linesep not in format_event(Exists("/dev/x", False))
