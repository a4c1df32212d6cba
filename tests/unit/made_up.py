"""Machines that are a few files: what their kernels would tell of GPUs."""

from __future__ import annotations

import errno

from gpu.core.errors import AccessDenied, TransportError

AMD_AT, NVIDIA_AT = "0000:03:00.0", "0000:c1:00.0"


class MadeUp:
    """Files by path; `denied` are nodes that this user may not open. Opening always fails."""

    def __init__(self, *parts: dict[str, str], denied: tuple[str, ...] = ()):
        self.files = {path: text for part in parts for path, text in part.items()}
        self._denied = denied

    def read_file(self, path: str) -> bytes:
        if path not in self.files:
            raise TransportError(f"reading {path}: nothing there", errno.ENOENT)
        return self.files[path].encode()

    def list_dir(self, path: str) -> list[str]:
        inside = {p[len(path) + 1 :].partition("/")[0] for p in self.files if _below(p, path)}
        if not inside:
            raise TransportError(f"listing {path}: nothing there", errno.ENOENT)
        return sorted(inside - {""})

    def exists(self, path: str) -> bool:
        return path in self.files or any(_below(p, path) for p in self.files)

    def why_denied(self, path: str) -> str:
        return AccessDenied(path, "run `this`").message if path in self._denied else ""

    def open(self, path: str, flags: int) -> int:
        raise TransportError(f"opening {path}: nothing there", errno.ENOENT)


def _below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def folder(path: str) -> dict[str, str]:
    """A folder, perhaps an empty one."""
    return {f"{path}/": ""}


def modules(*names: str) -> dict[str, str]:
    """Loaded modules of the kernel."""
    return {f"/sys/module/{name}/refcnt": "1\n" for name in ("usbcore", *names)}


def card(address: str, vendor: int, driver: str = "", device: int = 0x744C) -> dict[str, str]:
    """A GPU on the bus, with the driver that has it."""
    at = f"/sys/bus/pci/devices/{address}"
    files = {f"{at}/vendor": f"{vendor:#06x}\n", f"{at}/class": "0x030000\n"}
    files[f"{at}/device"] = f"{device:#06x}\n"
    return files | ({f"/sys/bus/pci/drivers/{driver}/{address}": ""} if driver else {})


BUS = (
    folder("/sys/bus/pci/devices")
    | folder("/sys/bus/pci/drivers")
    | {
        "/sys/bus/pci/devices/0000:00:1f.3/vendor": "0x8086\n",
        "/sys/bus/pci/devices/0000:00:1f.3/class": "0x040300\n",
        "/sys/bus/pci/devices/0000:00:1f.3/device": "0xa348\n",
    }
)  # a sound card is no GPU
