"""Starting a guest with some devices, and what it told."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.guest.initramfs import archive
from tools.guest.packages import Parts

ROOT: Final = Path(__file__).resolve().parents[2]
_BEGINS, _ENDS = "guest-begins", "guest-ends "


def run(
    parts: Parts,
    script: Path,
    devices: Sequence[str],
    timeout_s: float,
    modules: Sequence[str] = (),
    iommu: bool = True,
) -> tuple[int, str]:
    """Runs a script of this tree as root of a guest; its exit code and all that it printed.

    The guest sees this machine's files, and cannot change any; its own folder /tmp is empty. It is
    emulated, as KVM within a virtual machine does not run every kernel. Raises TimeoutExpired, and
    RuntimeError with the kernel's last words where it never came to the script's end.

    Args:
        parts: QEMU and the kernel.
        script: what is run.
        devices: of QEMU's, in its own words.
        timeout_s: for all of it.
        modules: of the kernel, besides those for VFIO.
        iommu: whether there is one that translates.
    """
    with tempfile.TemporaryDirectory() as folder:
        initial = Path(folder) / "initramfs"
        python = os.path.realpath(sys.executable)
        initial.write_bytes(archive(parts, python, str(ROOT), str(script), modules))
        done = subprocess.run(
            _command(parts, initial, devices, iommu),
            env={**os.environ, "LD_LIBRARY_PATH": _libraries(parts)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    text = done.stdout.decode(errors="replace").replace("\r", "")
    _, begun, told = text.partition(f"{_BEGINS}\n")
    output, ended, code = told.partition(_ENDS)
    if not begun or not ended:
        last = text[-2000:] + done.stderr.decode(errors="replace")[:2000]
        raise RuntimeError(f"the guest did not come to its end:\n{last}")
    return int(code.split()[0]), output


def _libraries(parts: Parts) -> str:
    found = (parts.root / part for part in ("usr/lib", "lib"))
    return ":".join(str(each) for part in found for each in (*part.glob("*-linux-gnu"), part))


def _command(parts: Parts, initial: Path, devices: Sequence[str], iommu: bool) -> list[str]:
    words = f"console=ttyS0 quiet intel_iommu={'on' if iommu else 'off'} panic=-1 hugepages=16"
    share = "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
    command = [str(parts.root / "usr/bin/qemu-system-x86_64")]
    for part in ("qemu", "seabios"):
        command += ["-L", str(parts.root / "usr/share" / part)]
    command += ["-accel", "tcg", "-cpu", "max", "-machine", "q35,kernel-irqchip=split"]
    command += ["-m", "768", "-smp", "1", "-nographic", "-no-reboot", "-nic", "none"]
    command += ["-vga", "none", "-kernel", str(parts.kernel), "-initrd", str(initial)]
    command += ["-append", words, "-device", "intel-iommu,intremap=on,caching-mode=on"]
    command += ["-fsdev", share, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
    for device in devices:
        command += ["-device", device]
    return command
