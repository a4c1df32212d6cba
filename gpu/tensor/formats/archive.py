"""Archives as tensors of bytes: zip and tar files whose members are read without unpacking.

A member that is stored as it is becomes a view of the mapped file. What is compressed is
decompressed into memory, within a limit: a small file may claim to hold any amount. Checksums are
verified for compressed members alone, as reading all of a large file to check it would undo the
mapping. Nothing is written to disk, and members whose names would lead out of a folder are refused.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from typing import Final

import numpy as np

from gpu.core.dtype import dtypes
from gpu.core.errors import FormatError, GpuError
from gpu.core.files import map_file
from gpu.core.log import get_logger
from gpu.runtime.device import Device
from gpu.tensor.formats.hostbytes import Bytes, BytesFile, bytes_of, tensor_over
from gpu.tensor.tensor import Tensor

_log = get_logger(__name__)

DEFAULT_LIMIT: Final = 4 << 30
"""Bytes that the compressed part of an archive may grow to, unless told otherwise."""

_MAX_PAX: Final = 1 << 16  # bytes; paths are the longest that is in one
_MAX_DIGITS: Final = 512
_LONG_NUMBER: Final = re.compile(rb"(?<!\d)\d{%d}" % (_MAX_DIGITS + 1))
_PIECE: Final = 1 << 20
_ENCRYPTED: Final = 1  # bit of a zip member's flags
# The local header before a zip member's data, APPNOTE.TXT 4.3.7: its signature, and the lengths of
# the name and of the extra field that follow its fixed part.
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_LOCAL_SIGNATURE: Final = b"PK\x03\x04"
# What the standard library's parsers raise for malformed input, as far as their code tells.
_ZIP_ERRORS: Final = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, EOFError,
    OSError, ValueError, OverflowError, RuntimeError, IndexError,
)  # fmt: skip
_TAR_ERRORS: Final = (
    tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError,
    OverflowError, RecursionError, IndexError,
)  # fmt: skip


class _Member(tarfile.TarInfo):
    """A tar member whose extended header is short and has no long number.

    The standard library searches it for numbers in a time that grows with the square of their
    length (CVE-2024-6232, until Python 3.11.10 and 3.12.6).
    """

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        assert archive.fileobj is not None
        start = archive.fileobj.tell()
        text = archive.fileobj.read(min(self.size, _MAX_PAX + 1))
        archive.fileobj.seek(start)
        if len(text) > _MAX_PAX or _LONG_NUMBER.search(text):
            raise FormatError(
                f"the extended header of {self.size:,} bytes at {start:,} is too long, or has a"
                f" number of over {_MAX_DIGITS} digits"
            )
        made: tarfile.TarInfo = super()._proc_pax(archive)  # type: ignore[misc]
        return made


class ZipMembers:
    """The members of a zip archive by name.

    Attributes:
        names: of all members that are not folders, in the archive's order.
    """

    def __init__(self, data: Bytes, limit: int):
        """Reads the directory of an archive, whose compressed members may take `limit` bytes.

        Raises FormatError where it is malformed, or names a member twice.
        """
        self._data = data
        self._left = self._limit = limit
        try:
            self._zip = zipfile.ZipFile(BytesFile(data))
        except _ZIP_ERRORS as error:
            raise FormatError(f"the zip archive's directory cannot be read: {error}") from error
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.filename.endswith("/"):  # a folder
                continue
            if info.filename in self._members:
                raise FormatError(f"the zip archive has the member {info.filename!r} twice")
            self._members[info.filename] = info
        self.names = list(self._members)

    def read(self, name: str) -> Bytes:
        """The content of a member. Raises FormatError where there is none or it is malformed."""
        info = self._members.get(name)
        if info is None:
            raise FormatError(f"the zip archive has no member {name!r}")
        if info.flag_bits & _ENCRYPTED:
            raise FormatError(f"zip member {name!r} is encrypted, which is not supported")
        if info.compress_type == zipfile.ZIP_STORED:
            return self._stored(info)
        return self._decompressed(info)

    def _stored(self, info: zipfile.ZipInfo) -> Bytes:
        header = info.header_offset
        fixed = self._data[header : header + _LOCAL_HEADER.size].tobytes() if header >= 0 else b""
        if len(fixed) < _LOCAL_HEADER.size or not fixed.startswith(_LOCAL_SIGNATURE):
            raise FormatError(f"zip member {info.filename!r}: there is no header at byte {header}")
        _, name_length, extra_length = _LOCAL_HEADER.unpack(fixed)
        start = header + _LOCAL_HEADER.size + name_length + extra_length
        stop = start + info.file_size
        if info.compress_size != info.file_size or stop > self._data.size:
            raise FormatError(
                f"zip member {info.filename!r} claims {info.file_size:,} bytes at {start:,}, stored"
                f" in {info.compress_size:,}; the archive has {self._data.size:,}"
            )
        return self._data[start:stop]

    def _decompressed(self, info: zipfile.ZipInfo) -> Bytes:
        if info.file_size > self._left:
            raise FormatError(
                f"zip member {info.filename!r} claims {info.file_size:,} bytes, more than what is"
                f" left of the {self._limit:,} that compressed members may take in this archive"
            )
        self._left -= info.file_size
        try:
            # At most the claimed size: what a member claims to have is all that it is read for.
            content = self._zip.open(info).read(info.file_size + 1)
        except _ZIP_ERRORS as error:
            raise FormatError(f"zip member {info.filename!r} cannot be read: {error}") from error
        if len(content) != info.file_size:
            raise FormatError(
                f"zip member {info.filename!r} claims {info.file_size:,} bytes,"
                f" it has {len(content):,}"
            )
        return bytes_of(content)


def zip_extract(
    path: str | os.PathLike[str], device: str | None = None, limit: int = DEFAULT_LIMIT
) -> dict[str, Tensor]:
    """The files in a zip archive, by name, as one-dimensional uint8 tensors.

    Args:
        path: the archive.
        device: where the tensors shall live; None for the default device.
        limit: bytes that compressed members may take together once decompressed.

    Raises FormatError for a malformed archive, one over the limit, or a member with an absolute
    name or one with ``..``, and OSError for a file that cannot be read.
    """
    target = Device.canonicalize(device)
    members = ZipMembers(map_file(path), limit)
    for name in members.names:
        _check_name(name)
    return {name: _as_tensor(members.read(name), target) for name in members.names}


def tar_extract(
    path: str | os.PathLike[str], device: str | None = None, limit: int = DEFAULT_LIMIT
) -> dict[str, Tensor]:
    """The files in a tar archive, by name, as one-dimensional uint8 tensors.

    The archive may be compressed with gzip, bzip2 or xz. Folders, links and devices in it are left
    out.

    Args:
        path: the archive.
        device: where the tensors shall live; None for the default device.
        limit: bytes that a compressed archive may take once decompressed.

    Raises FormatError for a malformed archive, one over the limit, or a member with an absolute
    name or one with ``..``, and OSError for a file that cannot be read.
    """
    target = Device.canonicalize(device)
    data = _plain_tar(map_file(path), limit)
    result = {}
    try:
        with tarfile.open(fileobj=BytesFile(data), mode="r:", tarinfo=_Member) as archive:
            for member in archive:
                content = _tar_content(member, data)
                if content is not None:
                    result[member.name] = _as_tensor(content, target)
    except GpuError:
        raise
    except _TAR_ERRORS as error:
        raise FormatError(f"the tar archive cannot be read: {error}") from error
    return result


def _tar_content(member: tarfile.TarInfo, data: Bytes) -> Bytes | None:
    start, stop = member.offset_data, member.offset_data + member.size
    # Before anything else: the parser would follow a negative size backwards, for ever.
    if member.size < 0 or (member.isreg() and stop > data.size):
        raise FormatError(
            f"tar member {member.name!r} claims {member.size:,} bytes at {start:,},"
            f" the archive has {data.size:,}"
        )
    if not member.isreg():
        _log.debug("tar member %r is not a file: left out", member.name)
        return None
    if member.issparse():
        raise FormatError(f"tar member {member.name!r} is a sparse file, which is not supported")
    _check_name(member.name)
    return data[start:stop]


def _plain_tar(data: Bytes, limit: int) -> Bytes:
    """A tar archive without its compression."""
    start = data[:6].tobytes()
    file = BytesFile(data)
    stream: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile
    if start.startswith(b"\x1f\x8b"):
        stream = gzip.GzipFile(fileobj=file)
    elif start.startswith(b"BZh"):
        stream = bz2.BZ2File(file)
    elif start.startswith(b"\xfd7zXZ\0"):
        stream = lzma.LZMAFile(file)  # type: ignore[arg-type]  # noqa: SIM115
    else:
        return data
    content = bytearray()
    try:
        while piece := stream.read(_PIECE):
            content += piece
            if len(content) > limit:
                raise FormatError(
                    f"the tar archive of {data.size:,} bytes takes more than {limit:,} when it is"
                    " decompressed; pass a larger limit= if that is right"
                )
    except _TAR_ERRORS as error:
        if isinstance(error, GpuError):
            raise
        raise FormatError(f"the tar archive cannot be decompressed: {error}") from error
    return np.frombuffer(content, np.uint8)


def _as_tensor(data: Bytes, device: str) -> Tensor:
    return tensor_over(data, (data.size,), dtypes.uint8, device)


def _check_name(name: str) -> None:
    """Refuses names that would leave the folder that someone may write the members to."""
    parts = re.split(r"[/\\]", name)
    if not name or "\0" in name or ".." in parts or not parts[0] or parts[0].endswith(":"):
        raise FormatError(f"the archive has a member named {name!r}, which leads out of its folder")
