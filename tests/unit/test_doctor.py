"""`gpu doctor` on made-up machines, whose words are those of the drivers' own errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from gpu.backends.amd import find as amd
from gpu.backends.nv import find as nv
from gpu.cli import doctor
from gpu.cli.doctor import Finding, Interface, as_text, examine
from gpu.cli.main import main
from gpu.compiler.toolchain import nvlibs
from gpu.core.config import Context
from gpu.core.errors import DeviceError, Unsupported
from gpu.drivers.am.kfd.ioctls import Kfd
from gpu.drivers.am.kfd.topology import choose, read_gpus
from gpu.drivers.nv.nvk.kernel import open_node
from gpu.runtime.default import Found
from gpu.runtime.device import Device
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.files import Files
from gpu.transport.missing import no_node, no_nvidia_gpu
from simulated import SIMULATED, own_cards
from unit.made_up import AMD_AT, BUS, NVIDIA_AT, MadeUp, card, folder, modules
from unit.test_default_device import Machine

KFD, CTL, UVM = "/dev/kfd", "/dev/nvidiactl", "/dev/nvidia-uvm"
RADEON = card(AMD_AT, 0x1002, "amdgpu")
GEFORCE = card(NVIDIA_AT, 0x10DE, "nvidia", 0x2684)

# What is on a machine, the node that is missing, and what its fix has to name.
MACHINES = {
    "nothing to be seen": (MadeUp(), KFD, "`modprobe amdgpu`.*CONFIG_HSA_AMD.*SIM=gfx1100"),
    "no GPU": (MadeUp(BUS), KFD, "no GPU of AMD's on the bus.*SIM=gfx1100"),
    "no module": (
        MadeUp(BUS, card(AMD_AT, 0x1002), modules()),
        KFD,
        "`sudo modprobe amdgpu`.*apt install .*firmware-amd-graphics",
    ),
    "handed to a guest": (
        MadeUp(BUS, card(AMD_AT, 0x1002, "vfio-pci"), modules("vfio_pci")),
        KFD,
        f"vfio-pci has {AMD_AT}: .*echo {AMD_AT} .*/vfio-pci/unbind.*/amdgpu/bind",
    ),
    "not taken": (
        MadeUp(BUS, card(AMD_AT, 0x1002), modules("amdgpu")),
        KFD,
        f"amdgpu did not take {AMD_AT}: `dmesg",
    ),
    "no KFD": (MadeUp(BUS, RADEON, modules("amdgpu")), KFD, "without KFD.*CONFIG_HSA_AMD"),
    "no render node": (
        MadeUp(BUS, RADEON, modules("amdgpu")),
        "/dev/dri/renderD128",
        "udevadm trigger",
    ),
    "a container": (
        MadeUp(BUS, RADEON, modules("amdgpu"), {"/.dockerenv": ""}),
        KFD,
        "container \\(Docker\\): start it with `--device=/dev/kfd --device=/dev/dri`.*--group-add",
    ),
    "a container of a machine without": (
        MadeUp(BUS, {"/run/.containerenv": ""}),
        KFD,
        "no GPU of AMD's on the bus",
    ),
    "NVIDIA, nothing to be seen": (MadeUp(), CTL, "`modprobe nvidia`.*nvidia-modprobe.*SIM=gh100"),
    "UVM, nothing to be seen": (MadeUp(), UVM, "`modprobe nvidia-uvm`"),
    "NVIDIA, no module": (
        MadeUp(BUS, card(NVIDIA_AT, 0x10DE), modules()),
        CTL,
        "`sudo modprobe nvidia`.*apt install nvidia-open-kernel-dkms",
    ),
    "nouveau": (
        MadeUp(BUS, card(NVIDIA_AT, 0x10DE, "nouveau"), modules("nouveau")),
        CTL,
        f"nouveau has {NVIDIA_AT}: .*echo blacklist nouveau",
    ),
    "no node of NVIDIA's": (
        MadeUp(BUS, GEFORCE, modules("nvidia")),
        CTL,
        "`nvidia-modprobe -c 0 -u`",
    ),
    "no module for UVM": (
        MadeUp(BUS, GEFORCE, modules("nvidia")),
        UVM,
        "`sudo modprobe nvidia-uvm`",
    ),
    "no node of UVM": (
        MadeUp(BUS, GEFORCE, modules("nvidia", "nvidia_uvm")),
        UVM,
        "`nvidia-modprobe -c 0 -u`",
    ),
    "a container without --gpus": (
        MadeUp(BUS, GEFORCE, modules("nvidia"), {"/run/.containerenv": ""}),
        CTL,
        "container \\(Podman\\): start it with `--gpus all`.*--device=/dev/nvidiactl",
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_fix_is_this_machines_and_the_same_wherever_it_is_said(name: str) -> None:
    machine, node, fix = MACHINES[name]
    lack = no_node(machine, node)
    assert re.search(fix, lack.fix)
    if node == KFD:
        with pytest.raises(DeviceError) as of_driver:
            Kfd(machine)  # type: ignore[arg-type]
    elif node in (CTL, UVM):
        with pytest.raises(DeviceError) as of_driver:
            open_node(machine, node)  # type: ignore[arg-type]
    else:
        return
    assert of_driver.value.message == str(lack) == f"{node} is not there: {lack.fix}"
    if node != UVM:
        told = _only(_examine(machine), "AMD" if node == KFD else "NV")
        assert told == Finding("missing", lack.what, lack.fix)


def _examine(system: Files) -> doctor.Report:
    return examine(system, lambda name: Finding("found", f"{name} opens"))  # type: ignore[arg-type]


def _of(report: doctor.Report, device: str) -> Interface:
    return next(one for one in report.interfaces if one.device == device)


def _only(report: doctor.Report, device: str) -> Finding:
    (finding,) = _of(report, device).findings
    return finding


@pytest.fixture(scope="module")
def radeon() -> Iterator[Files]:
    world = KfdWorld(chip=("gfx1100", "gfx1201"))
    yield world.os
    world.close()


@pytest.fixture(scope="module")
def nvidia() -> Iterator[Files]:
    world = NvSimWorld(chip=("gh100", "gh100"))
    yield world.os
    world.close()


def test_every_gpu_that_is_there_is_tried(radeon: Files) -> None:
    first, second = _of(_examine(Machine(radeon)), "AMD").findings
    assert (first.status, second.status) == ("found", "found")
    assert first.told.endswith("are there: AMD opens") and second.told.endswith("AMD:1 opens")
    assert first.told.startswith("DEV=AMD: /dev/") and second.told.startswith("DEV=AMD:1: /dev/")


def test_what_one_gpu_lacks_does_not_hide_the_others(radeon: Files) -> None:
    machine = Machine(radeon, missing=("/dev/dri/renderD128",), denied=("/dev/dri/renderD129",))
    first, second = _of(_examine(machine), "AMD").findings
    assert "renderD128 of AMD gfx 11.0.0" in first.told and first.fix
    assert second == Finding("missing", "access to /dev/dri/renderD129 was denied: run `this`")


def test_a_gpu_that_is_found_and_does_not_open_is_told(radeon: Files) -> None:
    failing = Finding("missing", "the firmware is too old: update it")
    first, _ = _of(examine(Machine(radeon), lambda name: failing), "AMD").findings
    assert first.status == "missing" and first.told.endswith("too old: update it")


def test_kfd_without_a_gpu(radeon: Files) -> None:
    top = "/sys/devices/virtual/kfd/kfd/topology/nodes"
    machine = Machine(radeon, missing=(f"{top}/1", f"{top}/2"))
    told = _only(_examine(machine), "AMD")
    assert told.told == "KFD lists no GPU" and "lspci -d 1002:" in told.fix
    with pytest.raises(DeviceError) as caught:
        choose(read_gpus(machine), 0)
    assert caught.value.message == f"{told.told}: {told.fix}"


def test_a_description_that_cannot_be_read_is_told(radeon: Files) -> None:
    class Broken(Machine):
        def read_file(self, path: str) -> bytes:
            return b"x" if path.endswith("/properties") else super().read_file(path)

    assert _only(_examine(Broken(radeon)), "AMD").status == "missing"


@pytest.mark.usefixtures("with_nvrtc")
def test_nvidia_without_uvm_or_cards(nvidia: Files) -> None:
    first, _ = _of(_examine(Machine(nvidia, missing=(UVM,))), "NV").findings
    assert first.told == f"{UVM} is not there" and first.fix
    look = nv.look_at(Machine(nvidia, missing=(UVM,)))
    assert (look.found, str(look)) == (Found.UNUSABLE, f"{first.told}: {first.fix}")
    none = _only(_examine(Machine(nvidia, missing=("/dev/nvidia0", "/dev/nvidia1"))), "NV")
    assert none.told == f"{CTL} is there, but no GPU's node" and none.fix
    assert "--gpus all" in no_nvidia_gpu(2).fix and "lspci" in no_nvidia_gpu(0).fix


@pytest.fixture
def with_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvlibs, "find_library", lambda name: name)


def test_a_compiler_that_is_missing_is_told_as_its_error_says(
    nvidia: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise Unsupported(f"{name} is not installed: `pip install it`")

    monkeypatch.setattr(nvlibs, "find_library", missing)
    monkeypatch.setattr(doctor, "find_library", missing)
    report = _examine(Machine(nvidia))
    said = Finding("missing", "nvrtc is not installed: `pip install it`")
    assert set(_of(report, "NV").findings) == {said}
    assert report.compilers["nvrtc"] == said


@pytest.mark.parametrize(
    ("machine", "status"),
    [
        (MadeUp(), None),
        (MadeUp(folder("/sys/kernel/iommu_groups")), "missing"),
        (MadeUp({"/sys/kernel/iommu_groups/0/type": "DMA"}), "found"),
    ],
)
def test_the_iommu(machine: MadeUp, status: str | None) -> None:
    told = [one for one in _examine(machine).machine if "IOMMU" in one.told]
    assert [one.status for one in told] == ([] if status is None else [status])


def test_each_interface_of_a_device_has_a_row() -> None:
    interfaces = {str(one): one.findings[0].status for one in _examine(MadeUp()).interfaces}
    assert interfaces["KFD+AMD"] == interfaces["PCI+AMD"] == interfaces["NVK+NV"] == "missing"
    assert interfaces["METAL"] == interfaces["KGSL+QCOM"] == "missing"
    assert interfaces["USB+AMD"] == interfaces["PCI+NV"] == "missing"
    assert interfaces["CPU"] == interfaces["CL"] == "found"


def test_the_text_has_each_fix_below_what_is_missing() -> None:
    text = as_text(_examine(MadeUp(BUS, RADEON, modules("amdgpu"))))
    at = text.index("  KFD+AMD               missing  /dev/kfd is not there\n")
    assert text[at:].split("\n")[1].strip().startswith("-> amdgpu is loaded without KFD")
    assert all(len(line) <= 100 for line in text.split("\n") if "site-packages" not in line)


@pytest.mark.parametrize("sim", ["", SIMULATED["AMD"]])
def test_the_command(sim: str, capsys: pytest.CaptureFixture[str]) -> None:
    if sim:
        with Context(SIM=sim):
            Device["AMD"].synchronize()  # which all tests share, and not on a machine of this one
    with own_cards(), Context(SIM=sim):
        assert main(["doctor", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert main(["doctor"]) == 0
    assert report["schema"] == doctor.SCHEMA
    found = {one["name"] + one["device"]: one["findings"][0] for one in report["interfaces"]}
    assert found["PYTHON"]["status"] == "found"
    assert capsys.readouterr().out.startswith("gpu ")
    if sim:
        assert f"SIM={sim}" in report["machine"][0]["told"]
        assert found["KFDAMD"]["status"] == "found" and "simulated" in found["KFDAMD"]["told"]
        assert found["PCIAMD"]["told"].startswith("GC[0] 11.0.0")


def test_finders_say_the_same(radeon: Files) -> None:
    machine = MadeUp(BUS, card(AMD_AT, 0x1002), modules())
    look = amd.look_at(machine)
    assert (look.found, str(look)) == (Found.NOTHING, str(no_node(machine, KFD)))
