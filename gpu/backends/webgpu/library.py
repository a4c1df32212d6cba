"""Dawn's library: where it is, and its functions with their types."""

from __future__ import annotations

import ctypes
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gpu.autogen import webgpu as api
from gpu.core.config import config
from gpu.core.errors import Unsupported

_INSTALL: Final = (
    "install it with `pip install dawn-python` (not the package `pydawn`, which is something else),"
    " or set WEBGPU_LIBRARY to the path of one that was built for it"
)
_MACHINES: Final = {"AMD64": "x86_64"}


class Library:
    """The functions of Dawn, without their prefix: ``library.CreateInstance(...)``.

    Attributes:
        path: of the file they are from.
    """

    def __init__(self, path: str):
        """Loads the library. Raises Unsupported where that fails or it is another one."""
        self.path = path
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise Unsupported(f"WebGPU: {path} cannot be loaded: {error}; {_INSTALL}") from error
        for name, (result, arguments) in api.FUNCTIONS.items():
            function = getattr(loaded, f"wgpu{name}", None)
            if function is None:
                raise Unsupported(
                    f"WebGPU: {path} has no wgpu{name}, so it is not Dawn of Chromium"
                    f" {api.CHROMIUM}; {_INSTALL}"
                )
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        # For type checkers: all that exist were set above.
        raise AttributeError(name)


def find_library() -> str:
    """The path of the library. Raises Unsupported, saying what to install, where there is none."""
    if config.WEBGPU_LIBRARY:
        return config.WEBGPU_LIBRARY
    package = find_spec("pydawn")
    folders = package.submodule_search_locations if package else None
    if not folders:
        raise Unsupported(f"DEV=WEBGPU needs Dawn's library; {_INSTALL}")
    path = Path(folders[0]) / "lib" / _file_name()
    if not path.is_file():
        raise Unsupported(f"WebGPU: the package pydawn has no {path}; {_INSTALL}")
    return str(path)


def _file_name() -> str:
    """What dawn-python calls the library of this machine."""
    machine = platform.machine()
    if sys.platform == "win32":
        return "libwebgpu_dawn.dll"
    extension = "dylib" if sys.platform == "darwin" else "so"
    return f"libwebgpu_dawn_{_MACHINES.get(machine, machine)}.{extension}"


def view(text: bytes) -> api.StringView:
    """Text as the library takes it; `text` must live as long."""
    return api.StringView(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0, len(text))


def text_of(given: api.StringView) -> str:
    """A text that the library gives."""
    return ctypes.string_at(given.data, given.length).decode(errors="replace") if given.data else ""
