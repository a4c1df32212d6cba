"""Whether a machine has libcuda and a GPU, by its files alone, and what is said without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu.backends.cuda import find
from gpu.cli.doctor import Finding, examine
from gpu.compiler.toolchain import nvlibs
from gpu.core.config import Context
from gpu.core.errors import Unsupported
from gpu.runtime.default import Found, Look
from gpu.transport.files import RealFiles
from unit.made_up import BUS, NVIDIA_AT, MadeUp, card, folder, modules

CTL, CARD, UVM = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")
LIBRARY = "/usr/lib64/libcuda.so.1"
NODES = {CTL: "", CARD: "", UVM: ""}
GEFORCE = card(NVIDIA_AT, 0x10DE, "nvidia", 0x2684)
DRIVEN = BUS | GEFORCE | modules("nvidia", "nvidia_uvm") | NODES


@pytest.fixture(autouse=True)
def with_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvlibs, "find_library", lambda name: name)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({LIBRARY: ""}, f"{LIBRARY} and {CARD} are there"),
        ({"/usr/local/nvidia/lib64/libcuda.so.1": ""}, "/usr/local/nvidia/lib64/libcuda.so.1 and"),
        ({"/etc/ld.so.cache": "x\0libcuda.so.1\0/opt/libcuda.so.1\0"}, "libcuda.so.1 and"),
        ({"/usr/lib/wsl/lib/libcuda.so.1": "", "/dev/dxg": ""}, "libcuda.so.1 and /dev/dxg are"),
    ],
)
def test_a_library_and_a_node_are_a_device(files: dict[str, str], told: str) -> None:
    look = find.look_at(MadeUp(DRIVEN, files))
    assert look.found is Found.USABLE and told in look.told


def test_a_setting_names_the_library() -> None:
    assert find.look_at(MadeUp(DRIVEN)).found is Found.NOTHING
    with Context(CUDA_LIBRARY="/opt/libcuda.so.1"):
        assert find.look_at(MadeUp(DRIVEN)).found is Found.USABLE


@pytest.mark.parametrize(
    ("machine", "what", "fix"),
    [
        (MadeUp(DRIVEN), "libcuda.so.1 is not there", "apt install libcuda1`.*CUDA_LIBRARY"),
        (
            MadeUp(DRIVEN, {"/etc/ld.so.cache": "libcuda.so.11\0"}),
            "libcuda.so.1 is not there",
            "libcuda1",
        ),
        (
            MadeUp(DRIVEN, {"/.dockerenv": ""}),
            "libcuda.so.1 is not there",
            r"container \(Docker\).*--gpus all.*DRIVER_CAPABILITIES=compute",
        ),
        (
            MadeUp(BUS, GEFORCE, {"/.dockerenv": "", "/dev/null": ""}),
            "libcuda.so.1 is not there",
            r"container \(Docker\): start it with `--gpus all`",
        ),
        (MadeUp(BUS), "libcuda.so.1 is not there", "no GPU of NVIDIA's on the bus.*SIM=gh100"),
        (MadeUp(BUS, GEFORCE, modules()), "libcuda.so.1 is not there", "sudo modprobe nvidia"),
        (
            MadeUp(BUS, GEFORCE, modules("nvidia"), {LIBRARY: "", "/dev/null": ""}),
            f"{CTL} is not there",
            "nvidia-modprobe",
        ),
        (
            MadeUp(BUS, GEFORCE, modules("nvidia"), {LIBRARY: "", CTL: ""}),
            f"{CTL} is there, but no GPU's node",
            "nvidia-modprobe",
        ),
    ],
)
def test_what_is_missing_is_said_with_its_fix(machine: MadeUp, what: str, fix: str) -> None:
    import re

    look = find.look_at(machine)
    assert (look.found, look.told) == (Found.NOTHING, what)
    assert re.search(fix, look.fix)
    report = examine(machine, lambda name: Finding("found", f"{name} opens"))
    (row,) = [one for one in report.interfaces if one.device == "CUDA"]
    assert row.findings == (Finding("missing", look.told, look.fix),)
    assert str(row) == "CUDA"


def test_a_device_is_opened_by_doctor() -> None:
    machine = MadeUp(DRIVEN, {LIBRARY: ""})
    report = examine(machine, lambda name: Finding("missing", f"{name} is for an older driver"))
    (row,) = [one for one in report.interfaces if one.device == "CUDA"]
    told = f"DEV=CUDA: {LIBRARY} and {CARD} are there: CUDA is for an older driver"
    assert row.findings == (Finding("missing", told),)


def test_nodes_that_may_not_be_opened_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    files = DRIVEN | {LIBRARY: "", "/dev/nvidia1": ""}
    denied = find.look_at(MadeUp(files, denied=(CARD, "/dev/nvidia1")))
    assert denied == Look(Found.UNUSABLE, f"access to {CARD} was denied: run `this`")
    assert find.look_at(MadeUp(files, denied=(CARD,))).found is Found.USABLE

    def missing(name: str) -> None:
        raise Unsupported(f"{name} is not installed")

    monkeypatch.setattr(nvlibs, "find_library", missing)
    assert find.look_at(MadeUp(files)) == Look(Found.UNUSABLE, "nvrtc is not installed")


def test_looking_loads_nothing() -> None:
    """Neither libcuda nor cffi: a program that looked may still fork."""
    code = (
        "import sys, ctypes\n"
        "ctypes.CDLL = None\n"
        "from gpu.backends.cuda import find\n"
        "from gpu.transport.files import RealFiles\n"
        "from gpu.transport.nvidia import libcuda\n"
        "libcuda(RealFiles())\n"
        "print([m for m in sys.modules if 'cffi' in m or m.startswith('gpu.backends.cuda.')])\n"
    )
    root = str(Path(find.__file__).parents[3])
    printed = subprocess.check_output(
        [sys.executable, "-c", code], text=True, env={"PYTHONPATH": root, "PATH": ""}
    )
    assert printed.strip() == "['gpu.backends.cuda.find']"


def test_this_machine_can_be_looked_at() -> None:
    assert isinstance(find.look_at(RealFiles()), Look)


def test_a_folder_without_nodes() -> None:
    assert find.look_at(MadeUp(BUS, folder("/dev"), {LIBRARY: ""})).found is Found.NOTHING
