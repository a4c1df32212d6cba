"""Which device is asked for, when `DEV=` and its older spellings may all speak.

Pure: `config.device_spec` passes in what the environment holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.core.devspec import DeviceSpec
from gpu.core.errors import ConfigError

_CHOICES: Final = ("interface", "renderer")


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked for, and where.

    Attributes:
        source: how it stands in the environment, as in ``AMD_LLVM=1``.
        spec: the device it speaks of, and what it says of it.
        selects: whether it asks for that device to be used, as ``DEV=`` and ``AMD=1`` do. One that
            does not (``AMD_LLVM=1``) says how the device is used, and selects it only where nothing
            else selects a device.
    """

    source: str
    spec: DeviceSpec
    selects: bool


def choose(requests: Sequence[Request]) -> DeviceSpec | None:
    """The one device that all requests together ask for; None without requests.

    Raises ConfigError naming both sides where two contradict each other.
    """
    selecting = [r for r in requests if r.selects] or list(requests)
    if not selecting:
        return None
    first = selecting[0]
    for other in selecting[1:]:
        if other.spec.device != first.spec.device:
            raise ConfigError(
                f"{first.source} asks for device {first.spec.device} but {other.source} for"
                f" {other.spec.device}; unset one, or say which with DEV="
            )
    return combine(first.spec.device, requests)


def combine(device: str, requests: Iterable[Request]) -> DeviceSpec:
    """What all requests that speak of `device` say of it together.

    Raises ConfigError naming both sides where two contradict each other.
    """
    spec = DeviceSpec(device)
    said_by: dict[str, str] = {}
    for request in requests:
        if request.spec.device != device:
            continue
        for choice in _CHOICES:
            value, known = getattr(request.spec, choice), getattr(spec, choice)
            if value and known and value != known:
                raise ConfigError(
                    f"{said_by[choice]} asks for {choice} {known} of {device} but"
                    f" {request.source} for {value}; unset one of them"
                )
            if value and not known:
                said_by[choice] = request.source
        spec = fill(spec, request.spec)
    return spec


def fill(spec: DeviceSpec, more: DeviceSpec) -> DeviceSpec:
    """`spec` with what it leaves open taken from `more`, which is about the same device."""
    return dataclasses.replace(
        spec,
        interface=spec.interface or more.interface,
        index=spec.index or more.index,
        renderer=spec.renderer or more.renderer,
        arch=spec.arch or more.arch,
    )
