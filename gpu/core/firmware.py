"""Finding firmware: by name in the places where systems keep it, and by what it is, its SHA-256.

A file of the right name may be of another release, or somebody else's: only one whose hash is in
the driver's table, or that its user has trusted (`gpu fw trust`), is given to a card. Nothing is
fetched and nothing is shipped. Folders, in order: FIRMWARE_DIR, what `gpu fw add` has put aside,
then those of Linux (Documentation/driver-api/firmware/fw_search_path.rst), where files may be
compressed (``.xz``, ``.zst``).
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gpu.core.config import config
from gpu.core.errors import FirmwareError, FormatError, Unsupported
from gpu.core.files import atomic_write, read_bytes

MAX_SIZE: Final = 256 << 20
"""Bytes of the largest file that is taken for firmware, unpacked."""
_FOLDER: Final = "lib/firmware/"  # within packages
_SHA: Final = re.compile(r"[0-9a-f]{64}")
_AR_MAGIC: Final = b"!<arch>\n"


class Wanted(NamedTuple):
    """Firmware that a driver may ask for.

    Attributes:
        name: its path within a folder of firmware, such as ``amdgpu/psp_13_0_0_sos.bin``.
        hashes: the SHA-256 of each release that is known, in hexadecimal.
        package: what has it, for errors.
    """

    name: str
    hashes: Collection[str]
    package: str


class Found(NamedTuple):
    """A file of the name of some firmware.

    Attributes:
        path: of the file.
        sha256: of what it holds, unpacked; empty where it cannot be read.
        why_not: why it is not used; empty where it can be.
        data: what it holds.
    """

    path: Path
    sha256: str
    why_not: str
    data: bytes


def load(wanted: Wanted) -> bytes:
    """What a firmware file holds. Raises FirmwareError, with what was found and what to do."""
    seen = []
    for found in look(wanted):
        if not found.why_not:
            return found.data
        seen.append(f"{found.path}: {found.why_not}")
    if seen:
        raise FirmwareError(
            f"firmware {wanted.name} is not one that is known. {'; '.join(seen)}. Install"
            f" {wanted.package}, or take the file on your own risk: `gpu fw trust {wanted.name}`"
        )
    raise FirmwareError(
        f"firmware {wanted.name} is not there: install {wanted.package}, or download that package"
        " and `gpu fw add FILE.deb`, or put the file into FIRMWARE_DIR."
        f" Looked in {', '.join(map(str, folders()))}"
    )


def look(wanted: Wanted) -> Iterator[Found]:
    """The files of a name, in the order of the folders, and whether each can be used."""
    accepted = {*wanted.hashes, *trusted()}
    for folder in folders():
        for ending, unpack in _UNPACK.items():
            path = folder / f"{wanted.name}{ending}"
            if not path.is_file():
                continue
            try:
                data = unpack(_read(path))
            except (FormatError, Unsupported, OSError) as error:
                yield Found(path, "", str(getattr(error, "message", error)), b"")
                continue
            sha256 = hashlib.sha256(data).hexdigest()
            known = "" if sha256 in accepted else f"unknown SHA-256 {sha256}"
            yield Found(path, sha256, known, data)


def folders() -> list[Path]:
    """Where firmware is looked for, in order; they need not be there."""
    own = [Path(config.FIRMWARE_DIR)] if config.FIRMWARE_DIR else []
    release = os.uname().release
    system = Path("/lib/firmware")
    updates = system / "updates"
    return [*own, _added(), updates / release, updates, system / release, system]


def add(package: Path) -> list[str]:
    """Puts the firmware of a Debian package aside for this user; returns the names.

    Raises FormatError for what is no package or has none, Unsupported for its compression.
    """
    names = []
    for name, data in _package_files(package):
        target = _added() / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(target, data)
        names.append(name)
    if not names:
        raise FormatError(f"{package} has no files in /{_FOLDER}: it is no package of firmware")
    return names


def trust(wanted: Wanted) -> Found:
    """Takes the first file of a name from now on, whatever it holds. Raises FirmwareError."""
    for found in look(wanted):
        if found.sha256:
            told = {**trusted(), found.sha256: wanted.name}
            _added().mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(_trust_file(), json.dumps(told, indent=1).encode())
            return found
    raise FirmwareError(f"there is no file {wanted.name} that could be read, in any folder")


def trusted() -> Mapping[str, str]:
    """Names by the SHA-256 of what this user trusts. Raises FormatError for a damaged list."""
    path = _trust_file()
    if not path.exists():
        return {}
    try:
        told = json.loads(read_bytes(path))
        if not all(_SHA.fullmatch(key) and isinstance(name, str) for key, name in told.items()):
            raise ValueError("it does not map hashes to names")
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError(f"{path}: {error}; remove it to trust no file any more") from error
    return dict(told)


def _added() -> Path:
    return config.CACHE_DIR / "firmware"


def _trust_file() -> Path:
    return _added() / "trusted.json"


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_SIZE:
        raise FormatError(f"it has more than {MAX_SIZE} bytes")
    return read_bytes(path)


def _unpack_xz(data: bytes) -> bytes:
    try:
        unpacker = lzma.LZMADecompressor(memlimit=MAX_SIZE)
        found = unpacker.decompress(data, MAX_SIZE + 1)
    except lzma.LZMAError as error:
        raise FormatError(f"damaged .xz: {error}") from error
    if len(found) > MAX_SIZE or not unpacker.eof:
        raise FormatError("cut off, or too large when unpacked")
    return found


def _unpack_zst(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(
            "it is compressed with Zstandard, which this Python cannot unpack: `pip install"
            " zstandard`, or `zstd -d -o FILE FILE.zst` into FIRMWARE_DIR"
        ) from error
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as reader:
            found: bytes = reader.read(MAX_SIZE + 1)
    except zstandard.ZstdError as error:
        raise FormatError(f"damaged .zst: {error}") from error
    if len(found) > MAX_SIZE:
        raise FormatError("too large when unpacked")
    return found


_UNPACK: Final = {"": lambda data: data, ".xz": _unpack_xz, ".zst": _unpack_zst}


def _package_files(package: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each regular file that a package puts below /lib/firmware."""
    for member, data in _ar_members(package, _read(package)):
        name, _, ending = member.rpartition(".tar")
        if name != "data":
            continue
        if ending not in _UNPACK:
            raise Unsupported(f"{package}: {member} is of a compression that is not known")
        try:
            with tarfile.open(fileobj=io.BytesIO(_UNPACK[ending](data))) as archive:
                yield from _firmware_of(package, archive)
        except tarfile.TarError as error:
            raise FormatError(f"{package}: {member}: {error}") from error


def _firmware_of(package: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for entry in archive:
        path = entry.name.removeprefix("./").removeprefix("usr/")
        if not entry.isfile() or not path.startswith(_FOLDER):
            continue
        name = path.removeprefix(_FOLDER)
        if ".." in name.split("/") or name.startswith("/") or entry.size > MAX_SIZE:
            raise FormatError(f"{package}: {entry.name!r} leads elsewhere or is too large")
        file = archive.extractfile(entry)
        if file is not None:
            yield name, file.read()


def _ar_members(package: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member of an archive (deb(5), ar(5))."""
    if not data.startswith(_AR_MAGIC):
        raise FormatError(f"{package} is no Debian package")
    at = len(_AR_MAGIC)
    while at < len(data):
        head = data[at : at + 60]
        size = head[48:58].strip()
        if len(head) < 60 or head[58:] != b"`\n" or not size.isdigit():
            raise FormatError(f"{package}: no member of an archive at offset {at:#x}")
        start, at = at + 60, at + 60 + int(size) + int(size) % 2
        if start + int(size) > len(data):
            raise FormatError(f"{package}: cut off within the member at offset {start - 60:#x}")
        yield head[:16].decode("ascii", "replace").strip().rstrip("/"), data[start:][: int(size)]
