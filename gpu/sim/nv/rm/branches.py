"""Branches of the kernel driver: versions, and structures that have another size than in 580.

Sizes and offsets are those of the headers of open-gpu-kernel-modules at the tag of each version.
Rules are those of 580.142 on every branch. Structures for RM_ALLOC grew at their ends only, and the
kernel reads as much as it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpu.core.errors import Unsupported
from gpu.sim.nv.chip.chips import Chip
from gpu.sim.nv.rm.layout import Layout

_BLACKWELL: Final = 570  # the first whose g_gpu_class_list.c has GB202


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch.

    Attributes:
        number: what its versions begin with.
        version: of the driver that is modelled.
        changed: structures that differ from those of 580, by name.
    """

    number: int
    version: str
    changed: Mapping[str, Layout]

    def layout(self, of_580: Layout) -> Layout:
        """A structure as this branch has it."""
        return self.changed.get(of_580.name, of_580)

    def check_chip(self, chip: Chip) -> None:
        """Raises Unsupported for a chip that came after this branch."""
        if chip.qmd_major == 5 and self.number < _BLACKWELL:
            raise Unsupported(f"driver {self.version} has no {chip.name}; from {_BLACKWELL} on")


def _layouts(*texts: tuple[str, int, str]) -> dict[str, Layout]:
    return {name: Layout(name, size, text) for name, size, text in texts}


_MEMORY: Final = (
    "owner@0 type@4 flags@8 width@12 height@16 pitch@20 attr@24 attr2@28 format@32 comprCovg@36"
    " zcullCovg@40 rangeLo@48:8 rangeHi@56:8 size@64:8 alignment@72:8 offset@80:8 limit@88:8"
    " address@96:8 ctagOffset@104 hVASpace@108 internalflags@112 tag@116"
)
_CHANNEL: Final = (
    "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 flags@20 hContextShare@24"
    " hVASpace@28 hUserdMemory@32 userdOffset@64:8 engineType@128 cid@132 subDeviceId@136"
    " hObjectEccError@140 hPhysChannelGroup@240 internalFlags@244"
)
_VASPACE: Final = (
    "index@0 flags@4 vaSize@8:8 vaStartInternal@16:8 vaLimitInternal@24:8 bigPageSize@32"
    " vaBase@40:8"
)
_P2P: Final = "gpuIds@0:128 gpuCount@128 p2pCaps@132 readCEs@136 writeCEs@140 status@144:9"

_SHORT_SCHEDULE: Final = _layouts(
    ("NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS", 2, "bEnable@0:1 bSkipSubmit@1:1")
)
_SMALL_CLASSLIST: Final = _layouts(
    ("NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS", 404, "count@0 list@4:400")
)
_SHORT_VASPACE: Final = _layouts(("NV_VASPACE_ALLOCATION_PARAMETERS", 48, _VASPACE))
_SHORT_VERSION: Final = _layouts(
    (
        "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS",
        776,
        "driver@0:256 version@256:256 title@512:256 changelist@768 official@772",
    )
)
_SHORT_CHANNEL: Final = _layouts(("NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS", 360, _CHANNEL))
_SHORT_MAP_DMA: Final = _layouts(
    (
        "NVOS46_PARAMETERS",
        56,
        "hClient@0 hDevice@4 hDma@8 hMemory@12 offset@16:8 length@24:8 flags@32 dmaOffset@40:8"
        " status@48",
    )
)
_OF_575: Final = {**_SHORT_VASPACE, **_SMALL_CLASSLIST, **_SHORT_MAP_DMA}
_OF_570: Final = {**_OF_575, **_SHORT_SCHEDULE}
_OF_550: Final = {
    **_OF_570,
    **_SHORT_VERSION,
    **_SHORT_CHANNEL,
    **_layouts(("NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS", 700, "count@0 list@4:696")),
}
_OF_535: Final = {
    **_OF_550,
    **_layouts(
        ("NV_MEMORY_ALLOCATION_PARAMS", 120, _MEMORY),
        ("NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS", 644, "count@0 list@4:640"),
        ("NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS", 68, "caps@0:64 present@64"),
        ("NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS", 168, f"{_P2P} busPeerIds@160:8"),
        ("NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS", 4252, f"{_P2P} busPeerIds@156:4096"),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            1200,
            "base@0:8 length@8:8 offset@16:8 attributes@24:1152 count@1176:8 rmCtrlFd@1184"
            " hClient@1188 hMemory@1192 rmStatus@1196",
        ),
        (
            "NVOS47_PARAMETERS",
            40,
            "hClient@0 hDevice@4 hDma@8 hMemory@12 flags@16 dmaOffset@24:8 status@32",
        ),
    ),
}
_OF_590: Final = _layouts(
    ("UVM_FREE_PARAMS", 16, "base@0:8 rmStatus@8"),
    ("UVM_UNREGISTER_CHANNEL_PARAMS", 12, "hClient@0 hChannel@4 rmStatus@8"),
)
BRANCHES: Final = {
    branch.number: branch
    for branch in (
        Branch(535, "535.288.01", _OF_535),
        Branch(550, "550.163.01", _OF_550),
        Branch(570, "570.211.01", _OF_570),
        Branch(575, "575.64.05", _OF_575),
        Branch(580, "580.142", {}),
        Branch(590, "590.48.01", _OF_590),
        Branch(595, "595.45.04", _OF_590),
    )
}


def find_branch(number: int) -> Branch:
    """The branch of a number such as 580. Raises Unsupported."""
    if number not in BRANCHES:
        known = ", ".join(map(str, BRANCHES))
        raise Unsupported(f"no model of driver branch {number}: there are {known}")
    return BRANCHES[number]
