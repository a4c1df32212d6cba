"""Taking a PCI function from its kernel driver, and giving it back.

What a function was bound to is written down in a private folder before anything changes, so that
`give_back` leads back after a crash too; without that note the kernel's own choice is made again.
A function is refused that shows somebody's screen or that a process has open, with the reason.
Functions of the same card in the same IOMMU group go along; other devices in that group are
refused, as they are not ours to take. Taking needs root; using what was taken does not.

Paths: Linux 6.12 Documentation/ABI/testing/sysfs-bus-pci, drivers/gpu/drm/drm_sysfs.c,
Documentation/fb/fbcon.rst.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gpu.core.errors import AccessDenied, FormatError, InvalidValue, TransportError
from gpu.core.files import atomic_write, read_bytes
from gpu.core.pci import PciAddress
from gpu.transport.files import Files
from gpu.transport.machine import is_loaded, names_in, text_in
from gpu.transport.missing import Lack
from gpu.transport.os import Os
from gpu.transport.pci import tree
from gpu.transport.usage import users_of

VFIO: Final = "vfio-pci"
NO_IOMMU: Final = Lack(
    "it is behind no IOMMU, which VFIO needs",
    "switch VT-d or AMD-Vi on in the firmware's setup, and boot with intel_iommu=on or"
    " amd_iommu=on. PCI_ACCESS=sysfs does without, and lets the card write to all memory",
)
NOT_TAKEN: Final = "it was not handed over"
_ANOTHER: Final = "end what uses it (log out of a desktop), or use another card"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_PROBE: Final = "/sys/bus/pci/drivers_probe"
_CONSOLES: Final = "/sys/class/vtconsole"
_SCHEMA: Final = 1
_NONE: Final = "(null)"  # how sysfs writes that a function has no override


@dataclass(frozen=True, slots=True)
class Former:
    """What a function was bound to before it was taken; an empty text is nothing."""

    address: str
    driver: str
    override: str


def why_in_use(system: Files, address: PciAddress) -> list[str]:
    """Why a function must stay with its driver, each a clause; empty where it need not."""
    folder = tree.folder_of(address)
    reasons = []
    if text_in(system, f"{folder}/boot_vga") == "1":
        reasons.append("it is the display that the machine starts with (boot_vga)")
    for connector in _connectors(system, folder):
        if text_in(system, f"{connector}/enabled") == "enabled":
            reasons.append(f"a screen is on {connector.rpartition('/')[2]}")
    if names_in(system, f"{folder}/graphics") and _console_is_on_a_frame_buffer(system):
        reasons.append("the system's console is on it")
    for user in users_of(system, str(address)):
        reasons.append(f"process {user.pid} ({user.name}) has it open")
    return reasons


def lack_for_vfio(system: Files, address: PciAddress) -> tuple[Lack, int] | None:
    """Why a function is not VFIO's to open, with an errno; None where it is, for some user."""
    if tree.group_of(system, address) is None:
        return NO_IOMMU, errno.EOPNOTSUPP
    if tree.driver(system, address) == VFIO:
        return None
    if reasons := why_in_use(system, address):
        return Lack(f"in use: {'; '.join(reasons)}", _ANOTHER), errno.EBUSY
    try:
        companions(system, address)
    except TransportError as error:
        return Lack(error.message, ""), errno.EPERM
    load = "" if is_loaded(system, "vfio_pci") else "`sudo modprobe vfio-pci` and "
    return Lack(NOT_TAKEN, f"{load}`sudo gpu pci take {address}`"), errno.ENODEV


def companions(system: Files, address: PciAddress) -> list[PciAddress]:
    """A function, and those of its card that go along. Raises TransportError(EPERM) for strangers.

    Those are functions of other devices in its IOMMU group that a kernel driver has.
    """
    group = tree.group_of(system, address)
    members = tree.members_of(system, group) if group is not None else [address]
    along, strangers = [address], []
    for each in members:
        if each == address or tree.is_bridge(system, each):
            continue
        if each[:3] == address[:3]:
            along.append(each)
        elif (driver := tree.driver(system, each)) not in ("", VFIO):
            strangers.append(f"{each} ({driver})")
    if strangers:
        raise TransportError(
            f"{address} shares IOMMU group {group} with other devices, which would have to be taken"
            f" too: {', '.join(strangers)}. Put the card into another slot, or unbind those first",
            errno.EPERM,
        )
    return along


def take(
    system: Os,
    notes: Path,
    address: PciAddress,
    driver: str = VFIO,
    sizes: Sequence[tuple[int, int]] = (),
) -> list[PciAddress]:
    """Binds a function and its companions to `driver`, or to none where that is empty.

    Args:
        system: the machine.
        notes: the folder of what was bound before.
        address: which function.
        driver: ``vfio-pci``, or nothing for use through sysfs.
        sizes: BARs of it and their new sizes in bytes, set while no driver has it.

    Returns the functions that were taken. Raises TransportError: EBUSY for what is in use, naming
    by whom, ENODEV, EPERM; AccessDenied with the command for root.
    """
    tree.check_there(system, address)
    along = companions(system, address)
    for each in along:
        if reasons := why_in_use(system, each):
            raise TransportError(f"{each} is in use: {'; '.join(reasons)}", errno.EBUSY)
    if driver and not system.exists(f"{_DRIVERS}/{driver}"):
        fix = f"`sudo modprobe {driver}`" if not is_loaded(system, driver) else "see `dmesg`"
        raise TransportError(f"the kernel has no driver {driver}: {fix}", errno.ENODEV)
    if noted(notes, address) is None:
        _note(notes, address, [_now(system, each) for each in along])
    try:
        with _as_root(f"sudo gpu pci take {address}"):
            for each in along:
                _unbind(system, each)
            for bar, size in sizes:
                resize(system, address, bar, size)
            for each in along:
                _bind(system, each, driver)
    except BaseException:
        with contextlib.suppress(
            AccessDenied, TransportError
        ):  # the first error is the one to tell
            give_back(system, notes, address)
        raise
    return along


def give_back(system: Os, notes: Path, address: PciAddress) -> list[Former]:
    """Binds a function and those taken with it to what they were bound to; tells what that is now.

    Waits for a process that has the function, until it closes it. Raises TransportError where a
    driver does not take it again, AccessDenied with the command for root, FormatError.
    """
    tree.check_there(system, address)
    former = noted(notes, address)
    known = former if former is not None else [Former(str(address), "", "")]
    with _as_root(f"sudo gpu pci give-back {address}"):
        for each in known:
            at = PciAddress.parse(each.address)
            if system.exists(tree.folder_of(at)):
                _restore(system, at, each, choose=former is None or bool(each.driver))
    _path(notes, address).unlink(missing_ok=True)
    return [Former(f.address, tree.driver(system, PciAddress.parse(f.address)), "") for f in known]


def noted(notes: Path, address: PciAddress) -> list[Former] | None:
    """What is written down of a function; None where nothing is. Raises FormatError."""
    path = _path(notes, address)
    if not path.exists():
        return None
    try:
        told = json.loads(read_bytes(path))
        former = [Former(**each) for each in told["functions"]]
        if told["schema"] != _SCHEMA or not all(
            isinstance(text, str) for each in former for text in (each.driver, each.override)
        ):
            raise ValueError("it is of another version, or its fields are no texts")
        for each in former:
            PciAddress.parse(each.address)
            if "/" in each.driver:
                raise ValueError(f"{each.driver!r} is no driver")
    except (ValueError, TypeError, KeyError, AttributeError, InvalidValue) as error:
        raise FormatError(
            f"{path} does not tell what {address} was bound to ({error}): remove it, and"
            " `gpu pci give-back` lets the kernel choose"
        ) from error
    return former


def resize(system: Os, address: PciAddress, bar: int, size: int) -> None:
    """Gives a BAR of a function without a driver another size, a power of two.

    Raises TransportError, AccessDenied, InvalidValue for a size that it does not list.
    """
    path = f"{tree.folder_of(address)}/resource{bar}_resize"
    listed = int(system.read_file(path), 16)  # bit n: 2^n MiB
    number = size.bit_length() - 21
    if size != 1 << max(size.bit_length() - 1, 0) or number < 0 or not listed >> number & 1:
        raise InvalidValue(f"size {size:#x} of BAR {bar}: 2^n MiB of n in mask {listed:#x}")
    system.write_file(path, f"{number}\n".encode())


def _connectors(system: Files, folder: str) -> Iterator[str]:
    for card in names_in(system, f"{folder}/drm") or []:
        for name in names_in(system, f"{folder}/drm/{card}") or []:
            if name.startswith(f"{card}-"):
                yield f"{folder}/drm/{card}/{name}"


def _console_is_on_a_frame_buffer(system: Files) -> bool:
    return any(
        "frame buffer" in (text_in(system, f"{_CONSOLES}/{name}/name") or "")
        and text_in(system, f"{_CONSOLES}/{name}/bind") == "1"
        for name in names_in(system, _CONSOLES) or []
    )


def _now(system: Files, address: PciAddress) -> Former:
    override = text_in(system, f"{tree.folder_of(address)}/driver_override") or ""
    return Former(str(address), tree.driver(system, address), "" if override == _NONE else override)


def _unbind(system: Os, address: PciAddress) -> None:
    if driver := tree.driver(system, address):
        system.write_file(f"{_DRIVERS}/{driver}/unbind", f"{address}".encode())


def _bind(system: Os, address: PciAddress, driver: str) -> None:
    override = f"{tree.folder_of(address)}/driver_override"
    # Of no driver's name: so none binds by itself while the function is used without one.
    system.write_file(override, f"{driver or 'gpu-none'}\n".encode())
    if driver:
        system.write_file(_PROBE, f"{address}".encode())
        if (now := tree.driver(system, address)) != driver:
            raise TransportError(
                f"{driver} did not take {address}, {now or 'no driver'} has it: see `dmesg`",
                errno.ENODEV,
            )


def _restore(system: Os, address: PciAddress, former: Former, choose: bool) -> None:
    now = tree.driver(system, address)
    override = f"{tree.folder_of(address)}/driver_override"
    system.write_file(override, f"{former.override}\n".encode())
    if now and now == former.driver:
        return
    _unbind(system, address)
    if not choose:
        return
    with contextlib.suppress(TransportError):  # no driver takes it: that is told below
        system.write_file(_PROBE, f"{address}".encode())
    if former.driver and tree.driver(system, address) != former.driver:
        system.write_file(f"{_DRIVERS}/{former.driver}/bind", f"{address}".encode())


@contextlib.contextmanager
def _as_root(command: str) -> Iterator[None]:
    try:
        yield
    except AccessDenied as error:
        raise AccessDenied(error.path, f"only root may do that: run `{command}`") from error


def _path(notes: Path, address: PciAddress) -> Path:
    return notes / f"{address}.json"


def _note(notes: Path, address: PciAddress, former: Sequence[Former]) -> None:
    notes.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = {"schema": _SCHEMA, "functions": [asdict(each) for each in former]}
    atomic_write(_path(notes, address), json.dumps(told).encode())
