"""What a machine lacks for a GPU's kernel driver, and what to do: one table for all who say so.

The errors of drivers, the search for a default device and `gpu doctor` have their words from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.transport import amd, nvidia, qualcomm
from gpu.transport.files import Files
from gpu.transport.machine import AMD, NVIDIA, PciGpu, container, is_loaded, pci_gpus


class Lack(NamedTuple):
    """Something that is not there: `what`, a clause, and the `fix`, in words and commands."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}" if self.fix else self.what


@dataclass(frozen=True, slots=True)
class _Vendor:
    """What the fixes for one vendor's driver are made of.

    Attributes:
        name: of the vendor.
        number: of its devices on the bus.
        driver: which has its GPUs there.
        modules: what serves each node, others than `driver`.
        nodes: what a container's start names for it.
        model: a chip to simulate where there is none.
        kernel: what a loaded driver that makes no node lacks.
        load: what to do where the bus is not to be seen.
        packages: that Debian has it in.
    """

    name: str
    number: int
    driver: str
    modules: dict[str, str]
    nodes: str
    model: str
    kernel: str
    load: str
    packages: str


_AMD: Final = _Vendor(
    name="AMD",
    number=AMD,
    driver="amdgpu",
    modules={},
    nodes="`--device=/dev/kfd --device=/dev/dri`, and `--group-add` with the number of their group",
    model="gfx1100",
    kernel="amdgpu is loaded without KFD: use a kernel that has CONFIG_HSA_AMD",
    load="load the kernel's driver with `modprobe amdgpu`; it needs CONFIG_HSA_AMD",
    packages="`apt install linux-image-amd64 firmware-amd-graphics`",
)
_NVIDIA: Final = _Vendor(
    name="NVIDIA",
    number=NVIDIA,
    driver="nvidia",
    modules={nvidia.UVM: "nvidia-uvm"},
    nodes="`--gpus all` (NVIDIA's container toolkit), or `--device=/dev/nvidiactl"
    " --device=/dev/nvidia-uvm --device=/dev/nvidia0`",
    model="gh100",
    kernel="its node was not made: run `nvidia-modprobe -c 0 -u`",
    load="load the kernel driver with `modprobe {module}`, and make the node with `nvidia-modprobe`"
    " or mknod where nothing does so by itself",
    packages="`apt install nvidia-open-kernel-dkms`, of the component contrib",
)


_UDEV: Final = "have udev make it with `sudo udevadm trigger --subsystem-match=drm`"
NO_KFD_GPU: Final = Lack(
    "KFD lists no GPU", "check `lspci -d 1002:`, and `dmesg | grep kfd` for why one was left out"
)
NO_PCI_GPU: Final = Lack(
    "no GPU of AMD's is on the PCI bus",
    "`gpu pci list --all` shows what is. A machine without such a GPU has a simulated one with"
    " SIM=gfx1100",
)
NO_PCI_NVIDIA: Final = Lack(
    "no GPU of NVIDIA's is on the PCI bus",
    "`gpu pci list --all` shows what is",
)


def no_node(system: Files, path: str) -> Lack:
    """Why a node of AMD's or NVIDIA's kernel driver, or KFD's topology, is not there.

    Looks, in this order, at what is on the bus, whether this is a container, which driver has the
    GPU and which modules are loaded; where the bus is not to be seen, the fix is that of most.
    """
    return Lack(f"{path} is not there", _fix(system, path, _NVIDIA if "nvidia" in path else _AMD))


def no_kgsl(system: Files) -> Lack:
    """Why the node of Qualcomm's kernel driver is not there."""
    what = f"{qualcomm.NODE} is not there"
    if qualcomm.has_mainline_driver(system):
        return Lack(
            what,
            "the kernel's own driver msm has the GPU, which is another than KGSL and not supported:"
            " DEV=CL computes on it by Mesa's rusticl, or start a kernel with Qualcomm's KGSL",
        )
    kind = container(system)
    fix = (
        f"this is a container ({kind}): start it with `--device={qualcomm.NODE}`"
        if kind
        else "it is made by Qualcomm's kernel driver KGSL, which the kernels of Android phones have"
    )
    return Lack(what, fix)


def no_nvidia_gpu(listed: int) -> Lack:
    """Why NVIDIA's driver gives this process no GPU, of which it lists so many."""
    if listed:
        return Lack(
            f"the nvidia driver lists {listed} GPU(s), but this process sees the node of none"
            " (/dev/nvidia0, /dev/nvidia1, ...)",
            f"give the container a GPU: start it with {_NVIDIA.nodes}",
        )
    return Lack("the nvidia driver lists no GPU", "check `lspci -d 10de:` and the kernel's log")


def no_libcuda(system: Files) -> Lack:
    """Why the library that `DEV=CUDA` calls is not there: what else the driver has, may be."""
    what = f"{nvidia.LIBCUDA} is not there"
    if not system.exists(nvidia.CONTROL):
        return Lack(what, _fix(system, nvidia.CONTROL, _NVIDIA))
    if kind := container(system):
        return Lack(
            what,
            f"this is a container ({kind}): start it with `--gpus all` and"
            " NVIDIA_DRIVER_CAPABILITIES=compute,utility (NVIDIA's container toolkit), which gives"
            " it the host's",
        )
    return Lack(
        what,
        "install the driver's libraries, of the version of its kernel module (Debian: `apt install"
        " libcuda1`), or set CUDA_LIBRARY to the path of the file",
    )


def no_card(system: Files) -> Lack:
    """Why NVIDIA's driver is there, and the node of no GPU."""
    what = f"{nvidia.CONTROL} is there, but no GPU's node"
    return Lack(what, _fix(system, nvidia.card(0), _NVIDIA))


def _fix(system: Files, path: str, vendor: _Vendor) -> str:
    module = vendor.modules.get(path, vendor.driver)
    gpus = pci_gpus(system, vendor.number)
    simulate = f"A machine without such a GPU has a simulated one with SIM={vendor.model}"
    if gpus is not None and not gpus:
        return f"there is no GPU of {vendor.name}'s on the bus. {simulate}"
    kind = container(system)
    if kind:
        start = f"this is a container ({kind}): start it with {vendor.nodes}"
        return start if gpus else f"{start}. {simulate}"
    if gpus is None:
        return f"{vendor.load.format(module=module)}. {simulate}"
    free = [gpu for gpu in gpus if gpu.driver in ("", vendor.driver)]
    if not free:
        return _give_back(gpus[0], vendor)
    if not is_loaded(system, module):
        return (
            f"load the kernel's driver with `sudo modprobe {module}`; if there is none, install it"
            f" (Debian: {vendor.packages})"
        )
    if not any(gpu.driver for gpu in free):
        return f"{vendor.driver} did not take {free[0].address}: `dmesg | grep {vendor.driver}`"
    return _UDEV if path.startswith(amd.RENDER) else vendor.kernel


def _give_back(gpu: PciGpu, vendor: _Vendor) -> str:
    """What to do where another driver has a GPU."""
    has = f"{gpu.driver} has {gpu.address}"
    if gpu.driver == "nouveau":
        return (
            f"{has}: forbid it with `echo blacklist nouveau | sudo tee"
            " /etc/modprobe.d/no-nouveau.conf`, `sudo update-initramfs -u` and a restart"
        )
    drivers = "/sys/bus/pci/drivers"
    return (
        f"{has}: give it back with `echo {gpu.address} | sudo tee {drivers}/{gpu.driver}/unbind`"
        f" and `echo {gpu.address} | sudo tee {drivers}/{vendor.driver}/bind`"
    )
