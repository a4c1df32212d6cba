"""The first programs of a guest: busybox, some modules of its kernel, and a script `/init`."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.guest.packages import Parts

_BASE: Final = ("virtio_pci", "9pnet_virtio", "9p", "vfio_iommu_type1", "vfio-pci")
_INIT: Final = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /host /proc
/bin/busybox mount -t proc proc /proc
for module in {modules}; do /bin/busybox insmod /modules/$module.ko || echo "no $module"; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144 host /host
for kind in proc sysfs devtmpfs; do
  case $kind in sysfs) at=sys;; devtmpfs) at=dev;; *) at=$kind;; esac
  /bin/busybox mount -t $kind $kind /host/$at
done
/bin/busybox mount -t tmpfs tmpfs /host/tmp
/bin/busybox mount -t securityfs securityfs /host/sys/kernel/security
echo guest-begins
/bin/busybox chroot /host /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin HOME=/tmp \\
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} {python} {script}
echo "guest-ends $?"
/bin/busybox poweroff -f
"""


def archive(parts: Parts, python: str, path: str, script: str, modules: Sequence[str]) -> bytes:
    """The archive that a kernel unpacks and starts, in the format newc."""
    found = list(_with_needs(parts.modules, (*_BASE, *modules)))
    names = " ".join(name for name, _ in found)
    init = _INIT.format(modules=names, path=path, python=python, script=script)
    files = [("bin/busybox", 0o100755, parts.busybox.read_bytes())]
    files += [(f"modules/{name}.ko", 0o100644, data) for name, data in found]
    files += [("init", 0o100755, init.encode())]
    folders = [(name, 0o040755, b"") for name in ("bin", "modules", "dev", "proc", "host")]
    return b"".join(_entries([*folders, *files, ("TRAILER!!!", 0, b"")]))


def _with_needs(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Modules, each after those that it needs; what is built in has no file."""
    paths = {_plain(p.name.partition(".")[0]): p for p in folder.rglob("*.ko*")}
    done = set[str]()

    def visit(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done or name not in paths:
            return
        done.add(name)
        data = paths[name].read_bytes()
        data = lzma.decompress(data) if paths[name].suffix == ".xz" else data
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        for need in (needs[1].decode() if needs else "").split(","):
            yield from visit(_plain(need))
        yield name, data

    for name in names:
        yield from visit(_plain(name))


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _entries(files: Iterable[tuple[str, int, bytes]]) -> Iterator[bytes]:
    for number, (name, mode, data) in enumerate(files, 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        yield head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
