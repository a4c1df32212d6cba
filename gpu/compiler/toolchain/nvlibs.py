"""Where NVIDIA's compiler libraries are: they come as Python packages, or with CUDA.

A library is found without loading it, so that a program whose kernels are cached never does.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from gpu.compiler.toolchain.sharedlib import is_loadable, release
from gpu.core import elf
from gpu.core.config import config
from gpu.core.devspec import did_you_mean
from gpu.core.errors import Unsupported
from gpu.core.files import read_bytes


class _Origin(NamedTuple):
    """Where a library may come from.

    Attributes:
        packages: what the folders of its Python packages' metadata are called.
        setting: the setting that names its file.
        install: how to get it.
    """

    packages: re.Pattern[str]
    setting: str
    install: str


def _package(name: str) -> re.Pattern[str]:
    """Packages of one library differ by the version of CUDA: `..._cu12-12.9.86.dist-info`."""
    return re.compile(rf"{name}(?:_cu\d+)?-(\d[^-]*)\.dist-info")


_ORIGINS: Final = {
    "nvrtc": _Origin(
        _package("nvidia_cuda_nvrtc"), "NVRTC_LIBRARY", "`pip install nvidia-cuda-nvrtc-cu12`"
    ),
    "nvJitLink": _Origin(
        _package("nvidia_nvjitlink"), "NVJITLINK_LIBRARY", "`pip install nvidia-nvjitlink-cu12`"
    ),
    "nvptxcompiler": _Origin(
        _package("nvidia_nvptxcompiler"),
        "NVPTXCOMPILER_LIBRARY",
        "CUDA, whose libnvptxcompiler_static.a a C compiler makes a shared library of",
    ),
}
_SYSTEM_FOLDERS: Final = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib")
_MAJORS: Final = ("13", "12")  # of CUDA, as in the sonames


class NvLibrary(NamedTuple):
    """A library that was found.

    Attributes:
        name: `nvrtc`, `nvJitLink` or `nvptxcompiler`.
        path: of its file, or its bare name where only the system's loader knows it.
        version: as its package or its file's name tells; empty where neither does.
    """

    name: str
    path: str
    version: str

    @property
    def identity(self) -> str:
        """What differs between two releases of it, for cache keys."""
        return release(self.name, self.path, self.version)

    def load(self) -> ctypes.CDLL:
        """The library, loaded once. Raises Unsupported where the system refuses to."""
        return _load(self.path)

    def symbols(self) -> frozenset[str]:
        """Names of the functions it exports, read from the file.

        Raises Unsupported where its place is not known, FormatError for a file that is no library.
        """
        if not os.path.isfile(self.path):
            raise Unsupported(
                f"the functions of {self.path} cannot be listed without its path: set"
                f" {_ORIGINS[self.name].setting}"
            )
        return _symbols(self.path)

    def function(self, name: str) -> str:
        """What a function is exported as: `nvJitLinkCreate` as `__nvJitLinkCreate_13_5`.

        The headers of some libraries rename functions to have the version behind their names; of
        several versions it is the newest. Raises Unsupported where there is none.
        """
        versioned = re.compile(rf"_*{name}((?:_\d+)*)")
        found = [match for s in self.symbols() if (match := versioned.fullmatch(s))]
        if not found:
            raise Unsupported(f"{self.path} has no function {name}; it is no {self.name} we know")
        return max(found, key=lambda match: _sortable(match[1]))[0]


def find_library(name: str) -> NvLibrary:
    """A library by name: `nvrtc`, `nvJitLink` or `nvptxcompiler`.

    It is the one its setting names, that of an installed package, CUDA's in /usr/local, or what the
    system's loader finds by name; among several packages or versions of CUDA, of the newest.
    Raises Unsupported, saying where was looked and how to get it, where there is none.
    """
    if name not in _ORIGINS:
        raise Unsupported(f"{name!r} is no library of NVIDIA's{did_you_mean(name, _ORIGINS)}")
    configured: str = getattr(config, _ORIGINS[name].setting)
    if configured:
        return NvLibrary(name, configured, _version_in(configured))
    return _search(name)


def why_missing(name: str) -> str:
    """Why `find_library` has no library of this name; "" where it has one."""
    try:
        find_library(name)
    except Unsupported as error:
        return error.message
    return ""


@cache
def _search(name: str) -> NvLibrary:
    for places in (_in_packages(name), _beside_packages(name), _in_system(name)):
        if found := sorted(places, key=lambda library: _sortable(library.version)):
            return found[-1]
    sonames = [f"lib{name}.so.{major}" for major in _MAJORS]
    for soname in sonames:
        if is_loadable(soname):
            return NvLibrary(name, soname, "")
    origin = _ORIGINS[name]
    raise Unsupported(
        f"{name} of NVIDIA is not installed: looked into the Python packages of {len(sys.path)}"
        f" folders, {', '.join(_SYSTEM_FOLDERS)} and for {', '.join(sonames)}. Get it by"
        f" {origin.install}, or set {origin.setting} to its file"
    )


def _in_packages(name: str) -> Iterator[NvLibrary]:
    """Files that installed packages list as theirs ("Recording installed projects", RECORD)."""
    for folder in filter(os.path.isdir, sys.path):
        for entry in os.listdir(folder):
            package = _ORIGINS[name].packages.fullmatch(entry)
            record = os.path.join(folder, entry, "RECORD")
            if package is None or not os.path.isfile(record):
                continue
            for line in read_bytes(record).decode().splitlines():
                path = os.path.join(folder, line.split(",")[0])
                if _is_library(name, path) and os.path.isfile(path):
                    yield NvLibrary(name, path, package[1])


def _beside_packages(name: str) -> Iterator[NvLibrary]:
    """Where packages put them, for installations that keep no lists."""
    for folder in filter(os.path.isdir, sys.path):
        yield from _in_folders(name, os.path.join(folder, "nvidia", "*", "lib"))


def _in_system(name: str) -> Iterator[NvLibrary]:
    for folders in _SYSTEM_FOLDERS:
        yield from _in_folders(name, folders)


def _in_folders(name: str, folders: str) -> Iterator[NvLibrary]:
    for path in glob.glob(os.path.join(folders, f"lib{name}.so*")):
        if _is_library(name, path):
            yield NvLibrary(name, path, _version_in(path))


def _is_library(name: str, path: str) -> bool:
    return re.fullmatch(rf"lib{name}\.so[.\d]*", os.path.basename(path)) is not None


def _version_in(path: str) -> str:
    """The version at the end of a file's name, links followed."""
    return os.path.basename(os.path.realpath(path)).partition(".so.")[2]


def _sortable(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        # nvrtc asks for the other file of its package by its bare name.
        for needed in sorted(glob.glob(f"{os.path.dirname(path) or '.'}/libnvrtc-builtins.so*")):
            ctypes.CDLL(needed)
        return ctypes.CDLL(path)
    except OSError as error:
        raise Unsupported(f"{path} cannot be loaded: {error}") from error


@cache
def _symbols(path: str) -> frozenset[str]:
    exported = elf.parse_shared(read_bytes(path)).symbols
    return frozenset(s.name for s in exported if s.section != elf.SHN_UNDEF)
