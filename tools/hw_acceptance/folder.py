"""The prepared folder: what a run needs that the machine with the GPU cannot make.

Its files and a manifest with their hashes; the manifest is written last, so that a folder without
one is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any, Final

from gpu.core.errors import DeviceError, FormatError
from gpu.core.files import atomic_file, read_bytes

MANIFEST: Final = "manifest.json"
KERNELS: Final = "kernels.zip"
RECORDER: Final = "recorder.so"
LAUNCH_LOOP: Final = "launchloop.so"
MAX_SIZE: Final = 30 << 20
"""Bytes of all files of a folder."""


def write_manifest(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Hashes all files of a folder; returns the manifest, which has ``facts`` as well.

    Raises DeviceError if the folder is larger than `MAX_SIZE`.
    """
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    total = sum(path.stat().st_size for path in files)
    if total > MAX_SIZE:
        sizes = ", ".join(f"{path.name} {path.stat().st_size}" for path in files)
        raise DeviceError(f"{folder} has {total} bytes, at most {MAX_SIZE} may travel: {sizes}")
    hashes = {path.name: {"size": path.stat().st_size, "sha256": _hash(path)} for path in files}
    manifest = {**facts, "files": hashes}
    with atomic_file(folder / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=1).encode() + b"\n")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, whose files are compared with it.

    Raises FormatError for a folder that is unfinished, or has other files than it says.
    """
    advice = "make it with `python -m tools.hw_acceptance prepare`"
    if not (folder / MANIFEST).exists():
        raise FormatError(f"{folder} holds no {MANIFEST}: {advice}")
    manifest: dict[str, Any] = json.loads(read_bytes(folder / MANIFEST))
    for name, facts in manifest["files"].items():
        if not (folder / name).exists():
            raise FormatError(f"{folder} lacks {name}: {advice}")
        if _hash(folder / name) != facts["sha256"]:
            raise FormatError(f"{name} of {folder} is not the file of its manifest: {advice}")
    return manifest


def read_kernel(folder: Path, sm: int, name: str, form: str = "cubin") -> bytes:
    """A compiled kernel for an architecture; ``form`` is cubin or ptx.

    Raises FormatError where the folder has none.
    """
    member = kernel_member(sm, name, form)
    with zipfile.ZipFile(folder / KERNELS) as archive:
        if member not in archive.namelist():
            raise FormatError(f"{KERNELS} has no {member}: prepare the folder for sm_{sm}")
        return archive.read(member)


def kernel_member(sm: int, name: str, form: str) -> str:
    """How a compiled kernel is called in `KERNELS`."""
    return f"sm_{sm}/{name}.{form}"


def unpack_wheel(folder: Path, target: Path) -> Path:
    """Unpacks the wheel of a folder, whose files are then importable from ``target``.

    Raises FormatError unless there is exactly one.
    """
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FormatError(f"{folder} holds {len(wheels)} wheels, one is wanted")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(target)
    return target


def differing_sources(library: Path, tree: Path) -> list[str]:
    """Modules of an unpacked wheel that are not as the tree has them; none where it has no `gpu`.

    A file that changed since the folder was prepared is one.
    """
    names = [path.relative_to(library) for path in sorted(library.rglob("gpu/**/*.py"))]
    if not (tree / "gpu").exists():
        return []
    return [
        str(name)
        for name in names
        if not (tree / name).exists() or read_bytes(tree / name) != read_bytes(library / name)
    ]


def _hash(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()
