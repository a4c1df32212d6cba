"""QEMU, a kernel and busybox out of Debian's packages, unpacked but not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

KERNEL: Final = "linux-image-6.12-amd64"
_WANTED: Final = ("qemu-system-x86", "busybox-static")


class Unavailable(Exception):
    """What a guest needs is not on this machine, and why."""


class Parts(NamedTuple):
    """Where the parts of a guest are."""

    root: Path  # of the unpacked packages
    kernel: Path
    modules: Path
    busybox: Path


def unpacked(folder: Path) -> Parts:
    """Downloads and unpacks what a guest needs, once. Raises Unavailable."""
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        archives, root = folder / "archives", folder / "root"
        (archives / "partial").mkdir(parents=True)
        root.mkdir()
        install = ["apt-get", "install", "-y", "-d", "--no-install-recommends"]
        _run([*install, "-o", f"Dir::Cache::archives={archives}", *_WANTED], folder)
        _run(["apt-get", "download", _newest_kernel()], archives)
        for archive in sorted(archives.glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(root)], folder)
        (folder / "done").touch()
    return _parts(folder / "root")


def _parts(root: Path) -> Parts:
    kernels = sorted(root.glob("boot/vmlinuz-*"))
    if not kernels:
        raise Unavailable(f"no kernel in {root}: remove the folder, so that it is made anew")
    modules = root / "lib/modules" / kernels[-1].name.removeprefix("vmlinuz-")
    return Parts(root, kernels[-1], modules, root / "bin/busybox")


def _newest_kernel() -> str:
    """The package that the meta package stands for."""
    told = _run(["apt-cache", "depends", KERNEL], Path("/"))
    lines = [line.split()[-1] for line in told.splitlines() if "Depends: linux-image" in line]
    if not lines:
        raise Unavailable(f"apt knows no {KERNEL}: `apt-get update`, and bookworm or newer")
    return lines[0]


def _run(command: list[str], folder: Path) -> str:
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not on this machine: Debian's packages are needed")
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done.stdout
