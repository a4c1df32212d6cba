"""Result files: few, gzipped, and small enough to be brought back.

A group's archive is made anew when one of its steps ends. Where it would be too large, its largest
members stay behind, and the report names them.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.core.files import atomic_file, read_bytes

MAX_FILES: Final = 8
MAX_SIZE: Final = 16 << 20
"""Bytes that no result file may reach."""
REPORT: Final = "report.json.gz"
KERNEL_LOG: Final = "kernel-log.txt.gz"


def check_groups(groups: Iterable[str]) -> None:
    """Raises InvalidValue if the archives of these groups are more than `MAX_FILES` allows."""
    names = sorted(set(groups))
    if len(names) + 2 > MAX_FILES:
        raise InvalidValue(f"{len(names)} groups ({', '.join(names)}): at most {MAX_FILES - 2}")


def write_archive(
    path: Path, root: Path, limit: int = MAX_SIZE, scrub: Callable[[str], str] = str
) -> list[str]:
    """Packs all files below ``root`` into a .tar.gz; returns the names that stayed behind.

    What is smaller comes first; texts go through ``scrub``. Raises OSError as the system does.
    """
    found = [each for each in root.rglob("*") if each.is_file() and not each.is_symlink()]
    files = sorted(found, key=lambda each: (each.stat().st_size, each))
    left_out: list[str] = []
    while len(data := _pack(files, root, scrub)) >= limit:
        left_out.append(str(files.pop().relative_to(root)))
    with atomic_file(path) as file:
        file.write(data)
    return left_out


def write_text(path: Path, text: str, limit: int = MAX_SIZE) -> None:
    """Writes a gzipped text; of one that is too large, its end."""
    data = gzip.compress(text.encode(), mtime=0)
    while len(data) >= limit:
        text = "(cut)\n" + text[len(text) // 2 :]
        data = gzip.compress(text.encode(), mtime=0)
    with atomic_file(path) as file:
        file.write(data)


def _pack(files: list[Path], root: Path, scrub: Callable[[str], str]) -> bytes:
    """The members have names, times and contents; whose they are on this machine is left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for each in files:
            data = _scrubbed(read_bytes(each), scrub)
            member = tarfile.TarInfo(str(each.relative_to(root)))
            member.size, member.mtime = len(data), int(each.stat().st_mtime)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _scrubbed(data: bytes, scrub: Callable[[str], str]) -> bytes:
    try:
        return scrub(data.decode()).encode()
    except UnicodeDecodeError:  # no text
        return data
