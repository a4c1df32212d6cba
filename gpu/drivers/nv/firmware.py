"""Firmware of NVIDIA's, version 570.144: for cards that no kernel driver has booted.

Hashes: Debian's firmware-nvidia-graphics 20260916-1.
"""

from __future__ import annotations

from typing import Final

from gpu.core.firmware import Wanted

_PACKAGE: Final = "firmware-nvidia-graphics 20260916-1 or newer (Debian sid, trixie-backports)"
_FILES: Final = {
    "8b293e19b637c5e22c87a2428d1c71bb13e0904e8a88ac6b3c6c1f2679c6e37a": "ad102/gsp/booter_load",
    "975b85a14ded8e430d30f000c3c1afdd55c15dee04f35ff9dfd876acd7e67186": "ad102/gsp/booter_unload",
    "65ab2e6b6e0fca95365c4deac79a34582abcfeb15b6ae234138f22e7183118a8": "ad102/gsp/bootloader",
    "c397358e5c4258dab070966589c7b172eb00771fd15d0bb74b8e22f327c1909b": "ad102/gsp/scrubber",
    "4497e3eff7e95c774b8a569d17b27c08c9650158d10b229d2be81cdcad9a085b": "ga102/gsp/booter_load",
    "8e63db5b78d7d3e349f20a2d11099c3d7109081393cb09ffc0a28133324ae009": "ga102/gsp/booter_unload",
    "82428f532240727e95bb3083fbaaba9b2cc7b937314323f2d546ce7245f27fad": "ga102/gsp/bootloader",
    "a8c3ebeed280323aedb51c061f321e73379cce7a9ae643a33dd03915df027f7f": "ga102/gsp/gsp",
    "d40b48e431d1707dc77af3605db358ed7a32ebfc2830eb74de2eddb4d3025071": "gb202/gsp/bootloader",
    "cb59a35c1d4bd1274d7267fd10243c29f843ff41c851b9cbd59f5af2ddd7fece": "gb202/gsp/fmc",
    "2176e42f05729ac4dd93ed6cd1b4c6c5650b6aa79c115dfcd9f26a71c1d8d82e": "gh100/gsp/bootloader",
    "f3ce25f3897c860e4cdde183ebf09b254d94a5d8191d666c12afb33cc7121107": "gh100/gsp/fmc",
}

WANTED: Final = tuple(
    Wanted(f"nvidia/{place}-570.144.bin", (sha256,), _PACKAGE) for sha256, place in _FILES.items()
)
"""All of its files."""
