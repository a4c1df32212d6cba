"""Our ways to PCI functions on a real Linux, with QEMU's device `edu`: `-m guest` runs these."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.core.config import config
from tools.guest.machine import run
from tools.guest.packages import Parts, Unavailable, unpacked

SCRIPT = Path(__file__).with_name("inside_edu.py")
EDU = "edu,dma_mask=0xffffffffffffffff"
BEHIND_AN_IOMMU = (
    *("vfio: config space, BARs", "vfio: DMA", "fault addr", "vfio: an address that is not mapped"),
    *("vfio: messages", "vfio: a second open is refused", "vfio: asked back"),
    *("vfio: a killed process leaves it usable", "sysfs: refused", "all done"),
)
WITHOUT = (
    *("sysfs: config space, BARs, DMA", "sysfs: a killed process leaves no bus master", "all done"),
)


@pytest.fixture(scope="module")
def parts() -> Parts:
    try:
        return unpacked(config.CACHE_DIR / "guest")
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.guest
@pytest.mark.slow
@pytest.mark.parametrize(("iommu", "wanted"), [(True, BEHIND_AN_IOMMU), (False, WITHOUT)])
def test_edu(parts: Parts, iommu: bool, wanted: tuple[str, ...]) -> None:
    code, output = run(parts, SCRIPT, [EDU], 110, iommu=iommu)
    assert code == 0, output
    assert [line for line in wanted if line not in output] == []
