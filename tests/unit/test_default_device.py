"""Which device is used where none is named, and what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu
from gpu import Context, Device, Tensor
from gpu.backends.amd import find as amd
from gpu.backends.nv import find as nv
from gpu.cli.main import main
from gpu.compiler.toolchain import nvlibs
from gpu.core.errors import (
    AccessDenied,
    ConfigError,
    DeviceError,
    DeviceWarning,
    FormatError,
    Unsupported,
)
from gpu.runtime import default
from gpu.runtime.default import Choice, Found, Look
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.files import Files, RealFiles
from simulated import SIMULATED

_MACHINES_OWN = default._machines_own  # conftest puts another in its place


class Machine:
    """The files of a simulated machine, of which some are missing or may not be opened."""

    def __init__(self, files: Files, missing: tuple[str, ...] = (), denied: tuple[str, ...] = ()):
        self._files, self._missing, self._denied = files, missing, denied

    def read_file(self, path: str) -> bytes:
        return self._files.read_file(path)

    def list_dir(self, path: str) -> list[str]:
        return [n for n in self._files.list_dir(path) if f"{path}/{n}" not in self._missing]

    def exists(self, path: str) -> bool:
        return path not in self._missing and self._files.exists(path)

    def why_denied(self, path: str) -> str:
        return AccessDenied(path, "run `this`").message if path in self._denied else ""


@pytest.fixture(scope="module")
def nvidia() -> Iterator[Files]:
    world = NvSimWorld(chip=("gh100", "gh100"))
    yield world.os
    world.close()


@pytest.fixture(scope="module")
def radeon() -> Iterator[Files]:
    world = KfdWorld(chip=("gfx1100", "gfx1201"))
    yield world.os
    world.close()


@pytest.fixture
def on_machine(
    monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]
) -> Callable[..., Choice]:
    """`on_machine(NV=..., AMD=...)` is the choice where finders see that; others see nothing."""

    def choose(system: str = "linux", **looks: Look | Exception) -> Choice:
        class Seen:
            def __init__(self, seen: Look | Exception):
                self._seen = seen

            def look(self) -> Look:
                if isinstance(self._seen, Exception):
                    raise self._seen
                return self._seen

            def models(self) -> tuple[str, ...]:
                return ()

        nothing = Look(Found.NOTHING, "none here")
        finders = {name: Seen(looks.get(name, nothing)) for name in default.FINDERS}
        monkeypatch.setattr(default, "FINDERS", finders)
        _MACHINES_OWN.cache_clear()
        monkeypatch.setattr(default, "_machines_own", _MACHINES_OWN)
        monkeypatch.setattr(sys, "platform", system)
        return default.default_choice()

    return choose


USABLE = Look(Found.USABLE, "/dev/x is there")
UNUSABLE = Look(Found.UNUSABLE, "access to /dev/x was denied: run `this`")


@pytest.fixture
def with_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvlibs, "find_library", lambda name: name)


@pytest.mark.usefixtures("with_nvrtc")
def test_a_gpu_of_nvidia_is_found_by_its_nodes(nvidia: Files) -> None:
    assert nv.look_at(Machine(nvidia)) == Look(
        Found.USABLE, "/dev/nvidiactl and /dev/nvidia0 are there"
    )


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("/dev/nvidiactl",), "/dev/nvidiactl is not there"),
        (("/dev/nvidia0", "/dev/nvidia1"), "/dev/nvidiactl is there, but no GPU's node"),
    ],
)
def test_without_its_nodes_there_is_no_gpu_of_nvidia(
    nvidia: Files, missing: tuple[str, ...], told: str
) -> None:
    look = nv.look_at(Machine(nvidia, missing))
    assert (look.found, look.told) == (Found.NOTHING, told)


def test_without_a_compiler_there_is_no_use_in_a_gpu_of_nvidia(
    nvidia: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise Unsupported(f"{name} of NVIDIA is not installed: get it so")

    monkeypatch.setattr(nvlibs, "find_library", missing)
    told = "nvrtc of NVIDIA is not installed: get it so"
    assert nv.look_at(Machine(nvidia)) == Look(Found.UNUSABLE, told)


@pytest.mark.usefixtures("with_nvrtc")
def test_a_container_with_another_gpus_node_has_that(nvidia: Files) -> None:
    look = nv.look_at(Machine(nvidia, missing=("/dev/nvidia0",)))
    assert look == Look(Found.USABLE, "/dev/nvidiactl and /dev/nvidia1 are there")


def test_a_gpu_of_amd_is_found_by_its_nodes_and_the_topology(radeon: Files) -> None:
    look = amd.look_at(Machine(radeon))
    assert (look.found, look.which) == (Found.USABLE, 0)
    assert "/dev/kfd and /dev/dri/renderD128 of AMD gfx 11.0.0 at " in look.told


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("/dev/kfd",), "/dev/kfd is not there"),
        (("/sys/devices/virtual/kfd/kfd/topology",), "topology is not there"),
        (("/dev/dri/renderD128", "/dev/dri/renderD129"), "/dev/dri/renderD129 of AMD gfx 12.0.1"),
    ],
)
def test_without_its_nodes_there_is_no_gpu_of_amd(
    radeon: Files, missing: tuple[str, ...], told: str
) -> None:
    look = amd.look_at(Machine(radeon, missing))
    assert look.found is Found.NOTHING
    assert told in look.told


@pytest.mark.parametrize("denied", ["/dev/kfd", "/dev/dri/renderD128"])
def test_what_this_user_may_not_open_is_told(radeon: Files, nvidia: Files, denied: str) -> None:
    assert amd.look_at(Machine(radeon, denied=(denied,))) == Look(
        Found.UNUSABLE, f"access to {denied} was denied: run `this`"
    )
    assert nv.look_at(Machine(nvidia, denied=("/dev/nvidia0",))).found is Found.UNUSABLE


class Renamed(Machine):
    """The first GPU is of another graphics core."""

    def read_file(self, path: str) -> bytes:
        text = super().read_file(path)
        if path.endswith("nodes/1/properties"):
            return text.replace(b"gfx_target_version 110000", b"gfx_target_version 90006")
        return text


def test_a_gpu_without_code_for_it_is_passed_over(radeon: Files) -> None:
    look = amd.look_at(Renamed(radeon))
    assert (look.found, look.which) == (Found.USABLE, 1)
    alone = amd.look_at(Renamed(radeon, missing=("/sys/devices/virtual/kfd/kfd/topology/nodes/2",)))
    assert alone.found is Found.NOTHING
    assert "(gfx906) is not supported by this version" in alone.told


def test_real_files_tell_who_may_open_them(tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.touch(mode=0o600)
    assert RealFiles().why_denied(str(node)) == ""
    node.chmod(0o400)
    denied = RealFiles().why_denied(str(node))
    if os.geteuid():
        assert denied.startswith(f"access to {node} was denied: ")
    else:
        assert denied == "", "root may"


def test_the_first_device_type_with_hardware_is_the_default(
    on_machine: Callable[..., Choice],
) -> None:
    assert on_machine(NV=USABLE, AMD=USABLE) == Choice("NV", "/dev/x is there", is_found=True)
    second = Look(Found.USABLE, "/dev/x is there", 1)
    assert on_machine(AMD=second) == Choice("AMD:1", "/dev/x is there", is_found=True)
    nothing = on_machine()
    assert (nothing.device, nothing.is_found) == ("CPU", False)
    assert nothing.reason == (
        "no GPU was found; NV: none here; AMD: none here; CUDA: none here; QCOM: none here"
    )
    assert Device.DEFAULT == Tensor([1]).device == "CPU"


def test_each_system_has_gpus_of_its_own(on_machine: Callable[..., Choice]) -> None:
    assert on_machine("darwin", METAL=USABLE, NV=USABLE).device == "METAL"
    assert on_machine("linux", METAL=USABLE, NV=USABLE).device == "NV"
    assert on_machine("darwin", NV=USABLE)[:2] == ("CPU", "no GPU was found; METAL: none here")
    elsewhere = on_machine("win32", METAL=USABLE, NV=USABLE)
    assert elsewhere[:2] == ("CPU", "GPUs are looked for on darwin, linux, android only")


def test_what_was_asked_for_goes_before_what_is_there(
    on_machine: Callable[..., Choice], environment: Callable[..., None]
) -> None:
    assert on_machine(NV=USABLE).device == "NV"
    with Context(DEV="PYTHON"):
        assert default.default_choice()[:2] == (
            "PYTHON",
            "DEV=PYTHON or an older spelling of it asks for it",
        )
    environment(CPU="1")
    assert Device.DEFAULT == "CPU"


def test_a_gpu_that_may_not_be_opened_is_passed_over_with_one_warning(
    on_machine: Callable[..., Choice],
) -> None:
    with pytest.warns(DeviceWarning, match=r"NV is there but not used: .*run `this`.*DEV=CPU") as w:
        assert on_machine(NV=UNUSABLE, AMD=USABLE).device == "AMD"
    assert [each.filename for each in w] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert default.default_choice().device == "AMD"


def test_a_gpu_that_two_device_types_may_not_open_is_one_warning(
    on_machine: Callable[..., Choice],
) -> None:
    with pytest.warns(DeviceWarning) as caught:
        assert on_machine(NV=UNUSABLE, CUDA=UNUSABLE).device == "CPU"
    assert len(caught) == 1
    with pytest.warns(DeviceWarning, match="NV is there but"):
        assert on_machine(NV=UNUSABLE, CUDA=USABLE).device == "CUDA"
    assert on_machine(AMD=USABLE, CUDA=USABLE).device == "AMD"


def test_a_description_that_cannot_be_read_is_an_error_with_a_way_out(
    on_machine: Callable[..., Choice],
) -> None:
    with pytest.raises(FormatError, match=r"bad file; .*DEV=CPU"):
        on_machine(AMD=FormatError("bad file"))


def test_an_error_of_the_default_device_names_the_way_out(
    on_machine: Callable[..., Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, spec: object) -> Any:
        raise AccessDenied("/dev/x", "run `this`")

    monkeypatch.setattr(type(Device), "_open", {})
    monkeypatch.setitem(gpu.runtime.device.BACKENDS, "NV", fail)
    on_machine(NV=USABLE)
    wanted = r"/dev/x was denied: run `this`; NV is the default .*gpu info.*DEV=CPU computes"
    with pytest.raises(AccessDenied, match=wanted):
        (Tensor([1.0]) + 1).tolist()
    with Context(DEV="NV"), pytest.raises(AccessDenied) as caught:
        (Tensor([1.0]) + 1).tolist()
    assert caught.value.message == "access to /dev/x was denied: run `this`"


@pytest.mark.parametrize("device", ["NV", "AMD"])
def test_sim_chooses_the_device_of_its_chip(device: str, environment: Callable[..., None]) -> None:
    environment(SIM=SIMULATED[device])
    assert device == Device.DEFAULT
    with Context(SIM=SIMULATED[device].upper()):
        assert default.default_choice().reason.endswith("names one of its chips")
    with Context(DEV="CPU"):
        assert Device.DEFAULT == "CPU"


def test_tensors_compute_on_the_simulated_chip(
    environment: Callable[..., None], need: Callable[[str], None]
) -> None:
    need("llvmlite")
    environment(SIM=SIMULATED["AMD"])
    result = Tensor([1.0, 2.0]) + 1
    assert (result.tolist(), result.device) == ([2.0, 3.0], "AMD")


@pytest.mark.parametrize("chip", ["gfx110", "foo,gh100", ","])
def test_sim_of_an_unknown_chip_names_those_there_are(
    chip: str, environment: Callable[..., None]
) -> None:
    environment(SIM=chip)
    with pytest.raises(ConfigError, match=rf"SIM={chip}: no .*NV of .*gh100.*AMD of .*gfx1100"):
        Tensor([1.0])


def test_info_tells_the_default_and_why(
    environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    environment(DEV="CPU")
    assert main(["info"]) == 0
    assert "  default: CPU, as DEV=CPU or an older spelling" in capsys.readouterr().out


def test_nothing_is_looked_at_before_a_device_is_needed() -> None:
    code = (
        "import sys, gpu\nfrom gpu import Tensor, Device, dtypes\n"
        "print([m for m in sys.modules if m.startswith('gpu.backends')])\n"
        "Device.DEFAULT\n"
        "print(any(m.startswith('gpu.drivers') for m in sys.modules))\n"
    )
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(gpu.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, text=True, env=variables).split("\n")
    assert printed[0] == "[]"
    assert printed[1] == str(os.path.exists("/dev/kfd") and not os.path.exists("/dev/nvidiactl"))


def test_the_choice_without_settings_is_a_device_that_there_is() -> None:
    assert _MACHINES_OWN.__wrapped__().device.partition(":")[0] in ("CPU", *default.FINDERS)


def test_a_device_error_keeps_its_type_when_something_is_added() -> None:
    error = DeviceError("first")
    error.add("second")
    assert error.message == "first; second"
