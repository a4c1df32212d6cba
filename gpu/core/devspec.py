"""Device names: the `DEV=` grammar, and the `device=` names of tensors.

The grammar is ``[IFACE+]DEVICE[:INDEX][:RENDERER[:ARCH]]``. A field of digits after the device is
the index; an empty renderer (``AMD::gfx1201``) leaves the renderer to be chosen while the
architecture is given. Names are read in any case and printed in upper case; the architecture, the
compiler's own word, is kept as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpu.core.errors import ConfigError

GRAMMAR: Final = "[IFACE+]DEVICE[:INDEX][:RENDERER[:ARCH]]"
DEVICE_NAME_GRAMMAR: Final = "DEVICE[:INDEX]"

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_INDEX: Final = re.compile(r"[0-9]{1,4}")
# An LLVM processor or feature list (x86_64,znver2,-avx512f), or an AMD target id (gfx942:xnack-).
_ARCH: Final = re.compile(r"[A-Za-z][\w.\-]*(,[+-]?[A-Za-z][\w.\-]*)*(:[a-z]+[+-])*", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What can be chosen of one kind of device. The first name of each list is the default."""

    renderers: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()


DEVICES: Final[dict[str, DeviceKind]] = {
    "CPU": DeviceKind(renderers=("LLVM", "CLANG")),
    "AMD": DeviceKind(renderers=("LLVM", "HIP"), interfaces=("KFD", "PCI", "USB")),
    "NV": DeviceKind(renderers=("CUDA", "PTX", "NAK"), interfaces=("NVK", "PCI")),
    "QCOM": DeviceKind(renderers=("IR3", "CL"), interfaces=("KGSL",)),
    "METAL": DeviceKind(renderers=("METAL",)),
    "CUDA": DeviceKind(renderers=("NVRTC", "PTX")),
    "CL": DeviceKind(renderers=("CL",)),
    "WEBGPU": DeviceKind(renderers=("WGSL",)),
    "PYTHON": DeviceKind(),
}


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A parsed `DEV=` value; None stands for "not said". `str()` gives a text that parses back.

    Attributes:
        device: a key of `DEVICES`.
        interface: how the device is reached, one of its kind's interfaces.
        index: which one of several, from 0.
        renderer: what makes its code, one of its kind's renderers.
        arch: target architecture, in the compiler's own spelling.
    """

    device: str
    interface: str | None = None
    index: int = 0
    renderer: str | None = None
    arch: str | None = None

    def __str__(self) -> str:
        head = f"{self.interface}+{self.device}" if self.interface else self.device
        fields = [head]
        if self.index:
            fields.append(str(self.index))
        if self.renderer or self.arch:
            fields.append(self.renderer or "")
        if self.arch:
            fields.append(self.arch)
        return ":".join(fields)

    @property
    def name(self) -> str:
        """What a tensor's `device` prints: ``CPU`` or ``CPU:1``."""
        return device_name(self.device, self.index)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or all of them when none is near."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if names else ""


def device_name(device: str, index: int = 0) -> str:
    """The canonical name of a device: index 0 is left out."""
    return f"{device}:{index}" if index else device


def name_device(name: str, kind: DeviceKind) -> None:
    """Adds a device type to `DEVICES`. Raises ConfigError for a bad name or one that is taken."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a device: use A-Z, 0-9 and _, a letter first")
    if name in DEVICES:
        raise ConfigError(f"device {name} exists already; choose another name")
    DEVICES[name] = kind


def parse_device_name(text: str) -> tuple[str, int]:
    """Reads a `device=` argument, ``cpu:1`` -> ``("CPU", 1)``.

    Raises ConfigError, which is an InvalidValue, with a suggestion.
    """
    head, colon, index = text.strip().partition(":")
    device = _device(head, text)
    if not colon:
        return device, 0
    if not _INDEX.fullmatch(index):
        raise ConfigError(
            f"device {text!r}: {index!r} is not an index of 1 to 4 digits; write"
            f" {DEVICE_NAME_GRAMMAR}, as in {device}:1 (renderers are chosen with DEV=)"
        )
    return device, int(index)


def parse_device_spec(text: str) -> DeviceSpec:
    """Reads ``[IFACE+]DEVICE[:INDEX][:RENDERER[:ARCH]]``.

    Raises ConfigError naming the field at fault, with a suggestion.
    """
    head, *fields = text.strip().split(":")
    interface_text, plus, device_text = head.rpartition("+")
    device = _device(device_text, text)
    interface = _interface(interface_text, device, text) if plus else None
    index = 0
    if fields and fields[0].isascii() and fields[0].isdigit():
        index = _index(fields.pop(0), text)
    renderer_text, arch_fields = (fields[0], fields[1:]) if fields else ("", [])
    if fields and not renderer_text and not arch_fields:
        raise ConfigError(f"{text!r} ends in an empty field; write {GRAMMAR}")
    renderer = _renderer(renderer_text, device, text) if renderer_text else None
    arch = _arch(":".join(arch_fields), text) if arch_fields else None
    return DeviceSpec(device, interface, index, renderer, arch)


def _device(name: str, text: str) -> str:
    device = name.strip().upper()
    if device not in DEVICES:
        where = "" if name == text.strip() else f" (in {text!r})"
        raise ConfigError(f"there is no device {name!r}{where}{did_you_mean(device, DEVICES)}")
    return device


def _interface(name: str, device: str, text: str) -> str:
    interface, known = name.upper(), DEVICES[device].interfaces
    if interface in known:
        return interface
    if not known:
        raise ConfigError(
            f"{device} has no interfaces to choose from, but {text!r} asks for {name!r};"
            f" write {device} alone"
        )
    raise ConfigError(
        f"{name!r} (in {text!r}) is not an interface of {device}, which has {', '.join(known)}"
    )


def _index(digits: str, text: str) -> int:
    if not _INDEX.fullmatch(digits):
        raise ConfigError(f"device index {digits!r} (in {text!r}) has more than 4 digits")
    return int(digits)


def _renderer(name: str, device: str, text: str) -> str:
    renderer, known = name.upper(), DEVICES[device].renderers
    if renderer in known:
        return renderer
    if not known:
        raise ConfigError(
            f"{device} has no renderers to choose from, but {text!r} asks for {name!r};"
            f" write {device} alone"
        )
    raise ConfigError(
        f"{name!r} (in {text!r}) is not a renderer of {device}, which has {', '.join(known)};"
        f" the index goes before it and an architecture after it ({GRAMMAR})"
    )


def _arch(arch: str, text: str) -> str:
    if not _ARCH.fullmatch(arch):
        raise ConfigError(
            f"{arch!r} (in {text!r}) is not an architecture; write a name and features, as in"
            " gfx1201, sm_90, x86_64,znver2,-avx512f or gfx942:xnack-"
        )
    return arch
