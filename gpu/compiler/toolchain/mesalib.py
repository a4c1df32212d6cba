"""Where Mesa's compilers are: libtinymesa comes as a Python package.

It is found without loading it, so that a program whose kernels are cached never does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import c_char_p, c_uint8
from functools import cache
from typing import Final, NamedTuple

from gpu.autogen import mesa
from gpu.compiler.toolchain.sharedlib import is_loadable, release
from gpu.core.config import config
from gpu.core.errors import Unsupported

FILE: Final = f"lib{mesa.PACKAGE}.so"
_INSTALL: Final = f"`pip install tinymesa=={mesa.VERSION}`, or set TINYMESA_LIBRARY to {FILE}"


class MesaLibrary(NamedTuple):
    """A library that was found.

    Attributes:
        path: of its file, or its bare name where only the system's loader knows it.
        version: of its package; empty where that is not known.
    """

    path: str
    version: str

    @property
    def identity(self) -> str:
        """What differs between two releases of it, for cache keys."""
        return release(mesa.PACKAGE, self.path, self.version)

    def load(self) -> ctypes.CDLL:
        """The library, loaded and checked once.

        Raises Unsupported where the system refuses to load it, and for another version of it:
        layouts and numbers of Mesa differ from one to the next.
        """
        return _load(self.path)


def find_mesa() -> MesaLibrary:
    """The library: that of TINYMESA_LIBRARY, of the installed package, or of the system's loader.

    Raises Unsupported, saying how to get it, where there is none, and for a package of another
    version than autogen/mesa.py describes.
    """
    if config.TINYMESA_LIBRARY:
        return MesaLibrary(config.TINYMESA_LIBRARY, "")
    return _search()


@cache
def _search() -> MesaLibrary:
    # Imported here: who is told the path needs none of it, and it takes a fifth of a start.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(mesa.PACKAGE)
    except PackageNotFoundError:
        if is_loadable(FILE):
            return MesaLibrary(FILE, "")
        raise Unsupported(
            f"Mesa's compilers are not installed: there is no Python package {mesa.PACKAGE}, and"
            f" the system's loader knows no {FILE}. Get it by {_INSTALL}"
        ) from None
    if package.version != mesa.VERSION:
        raise Unsupported(
            f"{mesa.PACKAGE} {package.version} is installed, and Mesa's layouts are known for"
            f" {mesa.VERSION} alone. Get that by {_INSTALL}"
        )
    for file in package.files or ():
        path = str(package.locate_file(file))
        if file.name == FILE and os.path.isfile(path):
            return MesaLibrary(path, package.version)
    raise Unsupported(
        f"{mesa.PACKAGE} {package.version} is installed without its {FILE}. Get it by {_INSTALL}"
    )


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unsupported(f"{path} cannot be loaded: {error}") from error
    _check(library, path, "nir_op_info", "nir_op_infos", mesa.ALU.items())
    intrinsics = ((name, known[:2]) for name, known in mesa.INTRINSICS.items())
    _check(library, path, "nir_intrinsic_info", "nir_intrinsic_infos", intrinsics)
    return library


def _check(
    library: ctypes.CDLL,
    path: str,
    structure: str,
    table: str,
    known: Iterable[tuple[str, tuple[int, int]]],
) -> None:
    """Compares the library's own table of operations with ours.

    Numbers of Mesa's operations change with almost every release.
    """
    count = "num_inputs" if structure == "nir_op_info" else "num_srcs"
    size = mesa.SIZES[structure]
    try:
        base = ctypes.addressof(c_uint8.in_dll(library, table))
    except ValueError as error:
        raise Unsupported(f"{path} is no library of Mesa's compilers: {error}") from error
    for name, (number, operands) in known:
        at = base + number * size
        theirs = c_char_p.from_address(at + offset(f"{structure}.name")).value
        inputs = c_uint8.from_address(at + offset(f"{structure}.{count}")).value
        if theirs != name.encode() or inputs != operands:
            raise Unsupported(
                f"{path} is another Mesa than {mesa.PACKAGE} {mesa.VERSION}: its operation"
                f" {number} is {theirs!r} of {inputs} operands, not {name!r}. Get it by {_INSTALL}"
            )


def offset(member: str) -> int:
    """Where a member of a structure is, as ``nir_def.bit_size``."""
    return mesa.FIELDS[member][0]
