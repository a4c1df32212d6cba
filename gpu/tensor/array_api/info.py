"""Inspection: what there is, for each device."""

from __future__ import annotations

from typing import Any, Final

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import InvalidValue
from gpu.runtime.device import Device
from gpu.tensor.array_api.datatypes import BY_NAME, isdtype

VERSION: Final = "2025.12"
# Earlier ones of which everything is there as it was.
_COMPATIBLE: Final = ("2021.12", "2022.12", "2023.12", "2024.12", VERSION)


def check_version(version: str | None) -> None:
    """Raises InvalidValue for a version of the standard that this namespace does not fulfil."""
    if version is not None and version not in _COMPATIBLE:
        raise InvalidValue(f"api_version must be one of {', '.join(_COMPATIBLE)}, got {version!r}")


class NamespaceInfo:
    """What `__array_namespace_info__` gives."""

    def capabilities(self) -> dict[str, Any]:
        """Masks work, and so do shapes that depend on values, outside of `jit`."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": None,
        }

    def default_device(self) -> str:
        """The device of tensors that are made without one. May open devices to choose."""
        return Device.DEFAULT

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType | None]:
        """float32, complex64, int32, and int64 for places."""
        Device.canonicalize(device)
        return {
            "real floating": dtypes.default_float,
            "complex floating": dtypes.complex64,
            "integral": dtypes.default_int,
            "indexing": dtypes.int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes of a device by their names; opens it. Some have no float64 and complex128."""
        name = Device.canonicalize(device)
        lacking = Device[name].renderer.target.native.lacking
        return {
            text: dtype
            for text, dtype in BY_NAME.items()
            if dtype.real not in lacking and (kind is None or isdtype(dtype, kind))
        }

    def devices(self) -> tuple[str, ...]:
        """Devices that are open in this process, the default one first.

        Others are opened by their names, which `gpu info` lists.
        """
        return tuple(dict.fromkeys((Device.DEFAULT, *(d.device for d in Device.opened()))))


def __array_namespace_info__() -> NamespaceInfo:
    """What there is in this namespace."""
    return NamespaceInfo()
