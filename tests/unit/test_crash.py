"""Reports of GPUs that failed: what they say, where they are kept, and how they are printed."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu.cli.main import main
from gpu.core.config import Context
from gpu.core.crashfiles import CrashFolder, crash_folder
from gpu.core.errors import DeviceHang, DeviceLost, FormatError, GpuFault
from gpu.drivers.crash import Argument, Buffer, Crash, Kernel, Queue, around, parse_crash
from hcq.provoked import launch, make_bench

CRASH = Crash(
    time="2026-01-02T03:04:05.678+00:00",
    device="a GPU",
    error="GpuFault",
    message="an access to page 0x5000",
    line="train.py:41: y = x @ w",
    address=0x5000,
    place="0x10 into a buffer",
    kernels=(
        Kernel("sum", 0x1000, (0x1008,), "of what computes add", (Argument(0, 0x5000, "it"),), ()),
        Kernel("copy", 0, (), "", (), ("   1000:  s_nop",)),
    ),
    waves=("SM 3 stopped",),
    buffers=(Buffer(0x5000, 64, "a buffer"),),
    more_buffers=7,
    queues=(Queue("compute queue 0", 2, 1, ("NOP",)),),
    translation=("GC VMID 8", "PDB2[0]: nothing is mapped"),
)


def test_both_forms() -> None:
    assert parse_crash("it", CRASH.as_json().encode()) == CRASH
    assert json.loads(CRASH.as_json())["schema"] == 1
    text = CRASH.as_text()
    for part in (
        "a GPU: GpuFault at 2026-01-02",
        "met at train.py:41: y = x @ w",
        "address 0x5000\n  0x10 into a buffer\n  GC VMID 8\n  PDB2[0]: nothing is mapped\n",
        "kernel sum, code at 0x1000\n  of what computes add\n  argument 0 is 0x5000, it",
        "stopped at 0x1008, 0x8 into it",
        "SM 3 stopped",
        "and 7 more",
        "compute queue 0: reached 1 of 2\n  NOP",
    ):
        assert part in text


def test_what_is_no_report() -> None:
    """Cut off anywhere, or with anything left out or of another type."""
    whole = CRASH.as_json()
    for end in range(0, len(whole) - 2, 7):
        with pytest.raises(FormatError):
            parse_crash("it", whole[:end].encode())
    data: dict[str, Any] = json.loads(whole)
    for key in data.keys() - {"translation"}:  # which earlier reports do not have
        with pytest.raises(FormatError, match="it is no report"):
            parse_crash("it", json.dumps({k: v for k, v in data.items() if k != key}).encode())
    earlier = {key: value for key, value in data.items() if key != "translation"}
    assert parse_crash("it", json.dumps(earlier).encode()).translation == ()
    for other in ([], 3, {**data, "schema": 2}, {**data, "kernels": 4}, {**data, "more": 1}):
        with pytest.raises(FormatError):
            parse_crash("it", json.dumps(other).encode())
    with pytest.raises(FormatError):
        parse_crash("it", b"\xff\xfe")


def test_lines_about_an_address() -> None:
    lines = [f"{at:08x}:  x" for at in range(0x1000, 0x1000 + 4 * 100, 4)]
    shown = around(lines, 0x1000 + 4 * 50 + 2)
    assert [line for line in shown if line.startswith("->")] == [f"-> {lines[50]}"]
    assert len(shown) == 33 and shown[0].endswith(lines[34])
    assert around(lines, 0x1000)[0] == f"-> {lines[0]}"
    assert around(lines, None)[0] == f"   {lines[0]}" and len(around(lines, None)) == 17
    assert around([], 0x1000) == around([], None) == ()


def test_only_the_youngest_are_kept(tmp_path: Path) -> None:
    folder = CrashFolder(tmp_path / "a" / "b", 3)
    for number in range(5):
        path = folder.write(f"2026-{number}", f"text {number}", f"{{{number}}}")
        assert path.read_text() == f"text {number}"
    names = sorted(each.name for each in folder.path.iterdir())
    assert names == [f"crash-2026-{n}.{end}" for n in (2, 3, 4) for end in ("json", "txt")]
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in folder.path.iterdir())


def test_settings(tmp_path: Path) -> None:
    with Context(CRASH_DIR=tmp_path / "own", CRASH_FILES=2):
        folder = crash_folder()
        assert folder is not None and (folder.path, folder.most) == (tmp_path / "own", 2)
    with Context(CACHE_DIR=tmp_path):
        folder = crash_folder()
        assert folder is not None and folder.path == tmp_path / "crashes"
    with Context(CRASH_FILES=0):
        assert crash_folder() is None


@pytest.mark.parametrize("vendor", ["AMD", "NV"])
def test_a_hang_that_is_met_again_has_one_report(vendor: str, tmp_path: Path) -> None:
    bench, folder = make_bench(vendor), CrashFolder(tmp_path, 9)
    device = bench.open()
    device.report_to(folder, lambda code, start: [f"{start:x}:  {len(code)} bytes"])
    act = launch(bench, device)
    bench.machine.faults.add("hang")
    with pytest.raises(
        DeviceHang, match=r"the oldest first: fill; recover\(\) makes .*; the report is /"
    ):
        act()
    with pytest.raises(DeviceHang, match=str(folder.reports()[0].with_suffix(".txt"))):
        device.synchronize()
    with pytest.raises(DeviceHang) as short:
        device.synchronize(timeout=0.01)
    assert "the report is" not in short.value.message
    (path,) = folder.reports()
    crash = parse_crash(str(path), path.read_bytes())
    (kernel,) = crash.kernels
    assert kernel.name == "fill" and "bytes" in kernel.disassembly[0]
    assert any(each.place.startswith("0x0 into") for each in kernel.arguments)
    late = [queue for queue in crash.queues if queue.reached < queue.submitted]
    assert [bool(queue.packets) for queue in late] == [True]
    device.recover()
    bench.machine.faults.add("page-fault:write")
    with pytest.raises(GpuFault, match="the report is"):
        act()
    _, path = folder.reports()
    crash = parse_crash(str(path), path.read_bytes())
    # The kernel's own pages, of which nobody here knows, may lie right behind.
    assert crash.address is not None and re.match(r"0x[0-9a-f]+ bytes behind", crash.place)
    first = crash.buffers[0]
    behind = first.address + first.size
    assert not any(behind < each.address <= crash.address for each in crash.buffers)
    assert not any(crash.address <= each.address < first.address for each in crash.buffers)
    device.recover()
    device.close()
    bench.machine.close()


@pytest.mark.parametrize("vendor", ["AMD", "NV"])
def test_what_is_gone_is_not_looked_at(vendor: str, tmp_path: Path) -> None:
    bench, folder = make_bench(vendor), CrashFolder(tmp_path, 9)
    device = bench.open()
    device.report_to(folder, None)
    act = launch(bench, device)
    bench.machine.unplug()
    with pytest.raises(DeviceLost, match=r"^((?!report).)*$"):
        act()
    assert folder.reports() == []
    device.close()
    bench.machine.close()


def test_a_folder_that_cannot_be_made_costs_the_report_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    bench = make_bench("AMD")
    device = bench.open()
    device.report_to(CrashFolder(file / "crashes", 9), None)
    act = launch(bench, device)
    bench.machine.faults.add("page-fault:read")
    with pytest.raises(GpuFault, match=r"no report could be written to .*crashes: Not a directory"):
        act()
    device.recover()
    bench.runs(device)
    device.close()
    bench.machine.close()


PROGRAM = """
from gpu import Tensor
x = Tensor(list(range(64)), dtype="float32")
y = (x * 3).exp().sum()  # what fails
print(y.item())
"""


@pytest.mark.parametrize(
    ("vendor", "sim", "needed"), [("AMD", "gfx1100", "llvmlite"), ("NV", "gh100", "nvrtc")]
)
def test_a_program_that_fails(
    vendor: str, sim: str, needed: str, need: Callable[[str], None], tmp_path: Path, capsys: Any
) -> None:
    """The error names the report; that has the operations, the user's lines, and the packets."""
    need(needed)
    if needed == "nvrtc":
        need("llvmlite")
    (tmp_path / "train.py").write_text(PROGRAM)
    settings = {
        "SIM": f"{sim},fault=page-fault:write",
        "DEV": vendor,
        "CRASH_DIR": str(tmp_path / "crashes"),
    }
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = CrashFolder(tmp_path / "crashes", 1).reports()
    assert len(found) == 1, done.stderr
    path = found[0]
    text = path.with_suffix(".txt")
    assert f"the report is {text} (at train.py:5: print(y.item()))" in done.stderr, done.stderr
    crash = parse_crash(str(path), path.read_bytes())
    assert crash.error == "GpuFault" and crash.line == "train.py:5: print(y.item())"
    (kernel,) = crash.kernels
    operations, line = kernel.origin.split("; ")
    assert operations == "of what computes cast, mul, exp, reduce add"
    assert line == "first asked for at train.py:4: y = (x * 3).exp().sum()  # what fails"
    launches = [p for queue in crash.queues for p in queue.packets if LAUNCHES[sim] in p]
    assert len(launches) == 1
    assert kernel.disassembly
    assert main(["crash", str(text)]) == 0
    assert capsys.readouterr().out == text.read_text()
    assert main(["crash", str(text), "--json"]) == 0
    assert capsys.readouterr().out == path.read_text()
    with Context(CRASH_DIR=tmp_path / "crashes"):
        assert main(["crash"]) == 0
    assert capsys.readouterr().out == f"{text}\n"


LAUNCHES = {"gfx1100": "DISPATCH_DIRECT", "gh100": "SEND_PCAS_A("}


def test_the_command_without_reports(tmp_path: Path, capsys: Any) -> None:
    with Context(CRASH_DIR=tmp_path / "none"):
        assert main(["crash"]) == 0
    assert f"no reports are in {tmp_path / 'none'}" in capsys.readouterr().out
    with Context(CRASH_FILES=0):
        assert main(["crash"]) == 1
    assert "CRASH_FILES=0: no reports are kept" in capsys.readouterr().err
    assert main(["crash", str(tmp_path / "x.txt")]) == 1
    assert "x.json: No such file" in capsys.readouterr().err
