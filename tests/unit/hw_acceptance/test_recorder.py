"""The recorder, loaded into a small program that makes calls on a file as if it were a driver's."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.hw_acceptance.prepare import HERE, build_shared, find_gcc
from tools.hw_acceptance.vendor.recording import blob, read_lines, write_calls

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")

CODE = """
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDWR)
number = ctypes.c_int(-1)
assert libc.ioctl(fd, 0x541B, ctypes.byref(number)) == 0 and number.value == 8192  # FIONREAD
params = (ctypes.c_uint8 * 48)(*range(1, 9))
control = (ctypes.c_uint64 * 4)(0x2_0000_0001, 0x0013E, ctypes.addressof(params), 48)
assert libc.ioctl(fd, 0xC020462A, control) == -1 and ctypes.get_errno() == 25
assert libc.ioctl(fd, 75, (ctypes.c_uint8 * 8)(7)) == -1
assert libc.ioctl(fd, 0xC008F0F0, None) == -1
ctypes.CDLL(None).nv_record_mark(b"mapping")
mapped = mmap.mmap(fd, 4096, offset=4096)
other = os.open(os.devnull, os.O_RDWR)
libc.ioctl(other, 0x541B, ctypes.byref(number))
threads = [threading.Thread(target=libc.ioctl, args=(fd, 0x541B, ctypes.byref(number)))
           for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if os.fork() == 0:
    libc.ioctl(fd, 0x541B, ctypes.byref(number))
    os._exit(0)
os.wait()
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("recorder") / "recorder.so"
    build_shared(find_gcc(), HERE / "recorder.c", target)
    return target


def _record(recorder: Path, place: Path) -> Path:
    device, output = place / "device", place / "ioctls.jsonl"
    device.write_bytes(bytes(8192))
    environment = {
        "LD_PRELOAD": str(recorder),
        "NV_RECORD": str(output),
        "NV_RECORD_PATHS": str(place / "dev"),
        "PATH": os.environ.get("PATH", ""),
    }
    command = [sys.executable, "-c", CODE, str(device)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return output


def test_ioctls_and_mappings_are_recorded_with_their_bytes(recorder: Path, tmp_path: Path) -> None:
    output = _record(recorder, tmp_path)
    lines = list(read_lines(output))
    assert [line["call"] for line in lines] == [*["ioctl"] * 4, "mark", "mmap", *["ioctl"] * 8]
    size, control, uvm, null = lines[:4]
    assert size["path"] == str(tmp_path / "device") and (size["result"], size["errno"]) == (0, 0)
    assert int.from_bytes(blob(size["before"])[:4], "little", signed=True) == -1
    assert int.from_bytes(blob(size["after"])[:4], "little") == 8192
    assert size["took_ns"] > 0 and size["at_ns"] <= control["at_ns"]
    assert (control["request"], control["result"], control["errno"]) == (0xC020462A, -1, 25)
    assert blob(control["before"])[8:12] == (0x13E).to_bytes(4, "little")
    assert blob(control["params_before"]) == bytes([*range(1, 9), *bytes(40)])
    assert control["params_before"]["hex"] == "0102030405060708", "zeros at the end are left out"
    assert blob(uvm["before"]) == bytes([7, *bytes(7)])
    assert null["before"] == {"size": 8, "kept": 0, "hex": ""}
    mark, mapped = lines[4:6]
    assert mark["text"] == "mapping"
    assert (mapped["size"], mapped["offset"], mapped["errno"]) == (4096, 4096, 0)
    assert mapped["result"] % 4096 == 0 and mapped["result"]


def test_a_forked_process_has_a_file_of_its_own(recorder: Path, tmp_path: Path) -> None:
    output = _record(recorder, tmp_path)
    (other,) = output.parent.glob("ioctls.jsonl.*")
    assert [line["request"] for line in read_lines(other)] == [0x541B]


def test_a_recording_is_told_in_words(recorder: Path, tmp_path: Path) -> None:
    output = _record(recorder, tmp_path)
    write_calls(read_lines(output), tmp_path / "ioctls.txt")
    lines = (tmp_path / "ioctls.txt").read_text().splitlines()
    assert len(lines) == 14
    build_version = "RM_CONTROL NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2"
    assert build_version in lines[1] and "errno 25" in lines[1]
    assert lines[4].endswith("== mapping") and "mmap 0x" in lines[5]


def test_the_launch_loop_times_calls(tmp_path: Path) -> None:
    build_shared(find_gcc(), HERE / "launchloop.c", tmp_path / "launchloop.so")
    loop = ctypes.CDLL(str(tmp_path / "launchloop.so")).time_launches
    seen: list[tuple[int, ...]] = []
    launch_type = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)
    wait_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

    def remember(*arguments: int) -> int:
        seen.append(arguments)
        return 0

    launch = launch_type(remember)
    failing = wait_type(lambda _: 7 if len(seen) == 3 else 0)
    times = (ctypes.c_uint64 * 5)()
    assert loop(launch, failing, ctypes.c_void_p(0x1234), None, None, 5, times) == 7
    assert len(seen) == 3 and seen[0][0] == 0x1234 and seen[0][1:7] == (1,) * 6
    assert all(times[:2]) and not any(times[2:])
