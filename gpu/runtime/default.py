"""Which device computes where neither the program nor `DEV` names one.

That of the chip that `SIM` names; else the first of `FINDERS` of which the machine has a GPU that
this user may open, and a compiler for it; else the CPU. Nodes and descriptions of GPUs are looked
at once in a process, when a device is first needed, and nothing is opened: whether a GPU works
shows when it is used, and then an error says so, as what was there must not silently compute on
something else.

A GPU that this user may not open is another matter: nodes of a shared machine or a container are
there for others, and a program that runs on the CPU there must go on doing so. So is one without an
installed compiler: whoever has just installed this has it for a screen perhaps, and did not choose.
It is passed over with a `DeviceWarning` that says what it takes.

`CL` and `WEBGPU` are for who asks for them. What a machine has of these is the same GPU by another
way, or, as with PoCL and lavapipe, its CPU, by a slower one.
"""

from __future__ import annotations

import enum
import importlib
import sys
import warnings
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from gpu.core import config
from gpu.core.callsite import frames_below_user
from gpu.core.devspec import device_name
from gpu.core.errors import ConfigError, DeviceWarning, GpuError


class Found(enum.Enum):
    """What is there of the hardware of one device type."""

    NOTHING = enum.auto()
    UNUSABLE = enum.auto()  # this user may not open it, or has no compiler for it
    USABLE = enum.auto()


class Look(NamedTuple):
    """What a finder saw, in words too: ``/dev/kfd is not there``.

    Attributes:
        found: what is there.
        told: a clause.
        which: of the device type's GPUs it is, from 0.
        fix: what to do about it, where `told` does not say so itself.
    """

    found: Found
    told: str
    which: int = 0
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.told}: {self.fix}" if self.fix else self.told

    @classmethod
    def lacking(cls, found: Found, lack: tuple[str, str]) -> Look:
        """What the machine lacks, a clause, and the fix, as `gpu/transport/missing.py` has them."""
        told, fix = lack
        return cls(found, told, fix=fix)


def look_at_card(which: int, name: str, refused: str, state: tuple[bool, str, str]) -> Look:
    """What a card on a bus is, whose place among those of its vendor is ``which``.

    ``refused`` is why this version does not take it, empty where it may; ``state`` whether a driver
    can open it now, in what state it is, and what makes it ready.
    """
    is_ready, told, fix = state
    if refused:
        return Look(Found.NOTHING, f"{name}: {refused}")
    found = Found.USABLE if is_ready else Found.UNUSABLE
    return Look(found, f"{name}: {told}", which, "" if is_ready else fix)


def first_of(looks: Iterable[Look]) -> Look:
    """The first GPU that is there, usable or not; else what was said last. One must be given."""
    for look in looks:
        if look.found is not Found.NOTHING:
            break
    return look


class Finder(Protocol):
    """Looks for the GPUs of one device type, and knows those that can be simulated."""

    def look(self) -> Look:
        """Whether this machine has one; opens nothing. Raises as reading its files does."""

    def models(self) -> Collection[str]:
        """The chips that `SIM` may name for it."""


class Choice(NamedTuple):
    """A device.

    Attributes:
        device: its name, as in ``NV`` or ``AMD:1``.
        reason: why it is the one, a clause as in ``/dev/nvidiactl and /dev/nvidia0 are there``.
        is_found: whether it was picked as the machine has it, and nobody asked for it.
    """

    device: str
    reason: str
    is_found: bool = False


# In this order. A machine with GPUs of both has AMD's in its processor as a rule, and a faster card
# of NVIDIA's; CUDA is another way to that. A phone has Qualcomm's alone. Modules with the functions
# of `Finder`, imported on use.
FINDERS: Final[dict[str, str | Finder]] = {
    "METAL": "gpu.backends.metal.find",
    "NV": "gpu.backends.nv.find",
    "AMD": "gpu.backends.amd.find",
    "CUDA": "gpu.backends.cuda.find",
    "QCOM": "gpu.backends.qcom.find",
}
# What else is looked for on a system than nothing.
_ON: Final = {
    "darwin": ("METAL",), "linux": ("NV", "AMD", "CUDA", "QCOM"), "android": ("QCOM",),
}  # fmt: skip
_ELSE: Final = "CPU"


def default_choice() -> Choice:
    """The device that is used where none is named.

    Raises ConfigError for a wrong `DEV` and for a chip of `SIM` that no device has a model of,
    DeviceError where the files that describe a GPU cannot be read.
    """
    spec = config.device_spec()
    if spec is not None:
        return Choice(spec.name, f"DEV={spec} or an older spelling of it asks for it")
    if config.config.SIM:
        return _simulated(config.config.SIM)
    return _machines_own()


def advice_for(device: str) -> str:
    """What to add to the error of a device that nobody asked for; empty where somebody did."""
    try:
        choice = default_choice()
    except GpuError:  # then none was picked
        return ""
    if not choice.is_found or choice.device != device:
        return ""
    return (
        f"{device} is the default device here, as {choice.reason}; `gpu info` tells of all devices,"
        f" and DEV={_ELSE} computes on the CPU"
    )


@cache
def _simulated(setting: str) -> Choice:
    """The device that has a model of the first chip; it checks the others when it is opened."""
    parts = [part.strip().lower() for part in setting.split(",")]
    first = next((part for part in parts if "=" not in part), "")
    known = {device: _finder(device).models() for device in FINDERS}
    for device, models in known.items():
        if first in models:
            return Choice(device, f"SIM={setting} names one of its chips")
    models = "; ".join(f"{device} of {', '.join(known[device])}" for device in known)
    raise ConfigError(
        f"SIM={setting}: no device has a model of {first!r} that runs kernels; there are: {models}"
    )


@cache
def _machines_own() -> Choice:
    if sys.platform not in _ON:
        return Choice(_ELSE, f"GPUs are looked for on {', '.join(_ON)} only")
    passed_over: dict[str, Look] = {}
    for device in _ON[sys.platform]:
        look = _look(device)
        if look.found is Found.USABLE:
            return Choice(device_name(device, look.which), look.told, is_found=True)
        # What two device types say in the same words is one GPU that both would use.
        if look.found is Found.UNUSABLE and look not in passed_over.values():
            warnings.warn(
                f"{device} is there but not used: {look}. This goes on without it; DEV={_ELSE}"
                " does so without a warning",
                DeviceWarning,
                stacklevel=frames_below_user(),
            )
        passed_over[device] = look
    told = "; ".join(f"{device}: {look.told}" for device, look in passed_over.items())
    return Choice(_ELSE, f"no GPU was found; {told}")


def _look(device: str) -> Look:
    try:
        return _finder(device).look()
    except GpuError as error:
        error.add(f"this was read to find the default device; DEV={_ELSE} computes on the CPU")
        raise


def _finder(device: str) -> Finder:
    finder = FINDERS[device]
    if not isinstance(finder, str):
        return finder
    module: Any = importlib.import_module(finder)
    found: Finder = module
    return found
