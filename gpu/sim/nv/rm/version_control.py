"""What RM tells of its version: NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, and its second form.

From ctrl/ctrl0000/ctrl0000system.h and src/nvidia/interface/deprecated/rmapi_deprecated_control.c
of open-gpu-kernel-modules 580.142.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.nv.rm.commands import Call, Command
from gpu.sim.nv.rm.layout import Layout
from gpu.sim.nv.rm.status import Status, check

_V1: Final = Layout(
    "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS",
    40,
    "room@0 driver@8:8 version@16:8 title@24:8 changelist@32 official@36",
)
_V2: Final = Layout(
    "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS",
    1032,
    "driver@0:256 version@256:256 branch@512:256 title@768:256 changelist@1024 official@1028",
)
_TEXTS: Final = ("driver", "version", "title")


def _texts(call: Call) -> dict[str, bytes]:
    branch = call.rm.branch
    version = branch.version.encode()
    name = f"r{branch.number}_00".encode()
    return {"driver": version, "version": version, "branch": name, "title": b"Open Kernel"}


def _by_pointers(call: Call) -> None:
    """Fills in texts where pointers lead; without one of them tells how much room they take."""
    params = call.params
    texts = {name: text + b"\0" for name, text in _texts(call).items() if name != "branch"}
    needed = max(map(len, texts.values()))
    if not all(name in call.lists for name in texts):
        params["room"] = needed
        return
    room = params["room"]
    check(room >= needed, Status.INVALID_PARAM_STRUCT, f"{room} bytes for texts of {needed}")
    for name, text in texts.items():
        call.lists[name][: len(text)] = text


def _by_value(call: Call) -> None:
    for name, text in _texts(call).items():
        if name in call.params.layout.fields:
            call.params.put(name, text)


VERSION_COMMANDS: Final[dict[int, Command]] = {
    0x101: Command(("client",), _V1, _by_pointers, dict.fromkeys(_TEXTS, lambda p: p["room"])),
    0x13E: Command(("client",), _V2, _by_value),
}
