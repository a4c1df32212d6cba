"""Firmware of AMD's: the files that cards take when no kernel driver boots them, by their hashes.

Hashes: Debian's firmware-amd-graphics 20230210-5 (bookworm), 20250410-2 (trixie, and backports of
bookworm) and 20260916-1 (sid, and backports of trixie); one name has another file in each. The
first lacks all for gfx1101, gfx1200 and gfx1201, and only the last has the ``_kicker`` files.

Which variant a card takes goes by its PCI device and revision: amdgpu_ucode.c (kicker_device_list)
and gfx_v11_0.c of Linux 6.12.117; 0x7551 of revision 0xC8 is in later kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpu.core.errors import Unsupported
from gpu.core.firmware import Wanted
from gpu.core.pci import PciIds
from gpu.drivers.am.target import Version

_PACKAGE: Final = "firmware-amd-graphics 20250410-2 or newer (Debian trixie, bookworm-backports)"
_KICKERS: Final = {(0x744B, 0x00), (0x7551, 0xC8)}  # (device, revision)
_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "gc_11_0_0_imu": (
        "2a5fd2c6f59b058b855998586640ac806b4c554bab9fb1b1978b1f8e60ed64e2",
        "b4f8fc056b45709a6abf48e7885fb1b4ab8d3cc092cbfa2c554a78564a6403bc",
    ),
    "gc_11_0_0_imu_kicker": ("8e8a7bbf49efe00ddb9b9594fba3290d598820c7b8453700dc5e606c5f308755",),
    "gc_11_0_0_me": (
        "df95b30c03f1725332655036c2800e5471b76467c50093ab52d5bface1dcf1ec",
        "255855ee4069b7f9748a21b801b2e6155a13d869ecef010d31999ecd92585905",
        "f2f5a793d811c6abad1a18af0fcf7694c443478f224176da86650c22aa71ca7a",
    ),
    "gc_11_0_0_mec": (
        "74daa9af1046e4b4d7f902ecfd2397d2eb94c6f20be38969d62eefe0340665a7",
        "a9ba80188b485c458e003cac1bb05bc670c9887ee39c0be4f6ab56ad01b83e44",
        "1dd1de8ecf5455ea4719c502b64b32ac18763d5601128c01b4a4a36211a122c2",
    ),
    "gc_11_0_0_pfp": (
        "ef275f109937ee696e893729afbc396f441697c98d99fa6b97e8930faf48f82b",
        "e46ca7fa9bdbb6c4aa97862187d234c0427d05057f83b33b0ca874c9488335a7",
        "b360393c8629144b194f69a3cd961ed509331feff7a5cc1e4eb21c901da2710a",
    ),
    "gc_11_0_0_rlc": (
        "cd0e4f5b5aa9458231b33c78adcb5bfb42014c14583e12639581c62b9074d06f",
        "dabd49039772d02f5fd5e48dc21d35ad52a6b1283b470dabca86ca159c4c7c8e",
    ),
    "gc_11_0_0_rlc_1": ("c667e7016261848ce3240f15196ae0f031428ca47b2d759e534653115c235d99",),
    "gc_11_0_0_rlc_kicker": ("731c63b908749f229896d3fdd0cace97bcd92e622030cf21209d73e98cea9316",),
    "gc_11_0_2_imu": (
        "88dba4a22c77109af8b7bb75d7a73c948549db38faa358feb8f85098a688ca2a",
        "9befca62b0b0cfd252c3df4a9edca295526f4d43821cd99a6326454995a6ca2d",
    ),
    "gc_11_0_2_me": (
        "5af1eabb16ec6e65d5e61abb399fdde3ec751cde02af1bce9743428bac957c10",
        "fb7b549fc530059a54052dc4bd3adbc84345f79e635b6e5d7c729a6e5b2babee",
        "f5fe48f97acbd3ce13b35929290bfbac01ce522631cc91dcef1fdeb3ff35c8ed",
    ),
    "gc_11_0_2_mec": (
        "d791f3469d3da8bb94bee9e8a9670f3ab7d51bb52c3e9fa262d022669198b232",
        "31d006c0a7f74a48f71566348a54036a6d6bba91efea3dcbff7e46f908c36960",
        "19bf080d6e672de5ed3fb86e3fdbdda4d700d8e3bda2dbdcc923101484ad645b",
    ),
    "gc_11_0_2_pfp": (
        "4b3f3dd404f3c4a55e39f4ca759cd55343ce1d0105fa705f383a29dc265813ea",
        "c9a6a29c8a4351462c57078f18aa8bbb65336180134c17bae92a91f0d7b25c38",
        "9020f53788ad881fa01aa656fc082f9f8d3cdfc81f70aaac0bed6e6001491128",
    ),
    "gc_11_0_2_rlc": (
        "c7f3b354d67d131c21455cb22f56ac1dc7d8c06fad436b4dc57841147ae9f7bc",
        "b43eb2fd0600f50a1a5796bc9983d6b39b5c20960234920f5e89cb362193e0b8",
    ),
    "gc_11_0_3_imu": ("beaf704d5acdf4623456b0d0cbcea8b8e428058340cd922a259a9045f5c457a3",),
    "gc_11_0_3_me": (
        "ad491b72b5e0a2856a79057c50057b5c563b24b067ee41e4ec097dc1db6df093",
        "d02c25070e5bdf0ec0146f5c9d6d2f8b86de43bd2a318a0b67eb5201963bafdc",
    ),
    "gc_11_0_3_mec": (
        "520697e1def07d5bf3d0aeffa8abdd881f61cd7142dee6febffee85a13317d04",
        "a37bc1a4e245300a5c3e26da34ea213842447d7df6c5c81e9fc78887a2fde26f",
    ),
    "gc_11_0_3_pfp": (
        "118a693b6a32922663297f4283f53c1507de08f7ddf0c42328059d5c5176da95",
        "362db904fa16c1fea2af7ad1295532434df7f85662b4a69332f51ae6c7290b61",
    ),
    "gc_11_0_3_rlc": (
        "cb26d96cad14f6756142f16bf4f8430bfd64d2b12e7881289ae0ee9ee3dbce35",
        "890d8e0123efb40c0179dd8ac3e9af073a0b87cbbccfec1db54e5ed2315a8d39",
    ),
    "gc_12_0_0_imu": (
        "95632603c7ebd1f4fffb3945e5414367bd1356a780e5f452b348e14d5c51225c",
        "aa15e5b3156bffc45e0c50bccbcd364fbd3f958531b695b7487a803d780b8328",
    ),
    "gc_12_0_0_me": (
        "36a5fcd133c4b6728da654aa5e8f40ac0cabc84c338c98b41b908cb9be9c47d1",
        "17487eb283d479ddb6331bc850a623e3f1217907e25aa5acf89602fb3eaeaf94",
    ),
    "gc_12_0_0_mec": (
        "bc82a817267c3fa451435210b30dcc050e4658967673d1857b60d42d63b644e7",
        "28b1e5bae440044887bab53a374db7bb971f7cc2780ab2b55c561e19f24d7fac",
    ),
    "gc_12_0_0_pfp": (
        "dae475f419fc9dffc0d9dc7561d9cf50614124918e0a4c862d46b10812237de8",
        "5ec7a4341c22676da98d64cbc8dc5d820f3f13f199ea7e572f4064de406e715c",
    ),
    "gc_12_0_0_rlc": ("6436b582734a413456fff3d3c7195e71cc9e78a7ed31ee21c83ffd6fae1ad186",),
    "gc_12_0_1_imu": (
        "01603dd2f61a3c84650f15448aedd6132d2693106a3a42c6db7a72cf9bd1ed33",
        "b3b301fb636efc77b63ce4d2ced0f90c851d03c19681852faa45598e6f5773fd",
    ),
    "gc_12_0_1_imu_kicker": ("874968fa78a0f758f13340b0fbfd0f5edeee124cdd1fb46537bf3ab78bc5c595",),
    "gc_12_0_1_me": (
        "f8e3e77f59e42670f748fdf059f15d76c5197bc1682c2edd344fa25c31a78143",
        "f47fc72ade16f6bd67dc798c8668f620fde1acf6d9e9e9e5627164d312687347",
    ),
    "gc_12_0_1_mec": (
        "d182735fcd012a0ef13dd6a6a4783a8cddce7327d668e5819d8b867fb2ca6288",
        "b59371dc5185beba02eb2bf53061e2d2dd3792b278bc2199fd51db1b1888677a",
    ),
    "gc_12_0_1_pfp": (
        "9bbb1f6f8e6bae99ccf65d78c7102d9616143d4fbeced5fa26182805dfe5b24a",
        "585c0d3aa40378b55d576a667a91209dc72696ea2569b42473d62bc2ff76d60d",
    ),
    "gc_12_0_1_rlc": ("6ba4459532246a5c415d3cb33c9b1248294e48f67b827e2accb292a8d1a5c0ec",),
    "gc_12_0_1_rlc_kicker": ("6d6a7168e3226b70bffa351f651bfd817375c493def8467a3a53c0ae9b4fb3ff",),
    "psp_13_0_0_sos": (
        "0e585dd67c1c1a36076263b9d4f64033684af47005a90b7f34eb355fcfdcdfcf",
        "2a211d631750bda24c7c56cef3dbfc34bdae22e78d5d5e6e87ba421596af5609",
        "4a51299f6d0a15bbba9694419f7891e6accc01dbd2dd67c06add7bfd75a45ac6",
    ),
    "psp_13_0_0_sos_kicker": ("7052ea225f0aca9917ce63dd79b681fdd7717b364aa5a1fa042db59efe7a2bf6",),
    "psp_13_0_10_sos": (
        "d3ef69a400dc9aca0719db37b44d16ce56b8db628372e4f8a56373a5aa23db30",
        "0bcaaad9cd8578d3841ae69155a6bd4fc3ceae8f4fb5a6ba4f576e7ace94d1d9",
    ),
    "psp_13_0_7_sos": (
        "ec293cd16f51bcc8728111e86b348b00843cd1907d9430f1f95c09898c01cbcb",
        "2470bb355359d5165481d7198485632347e7d15cd2512f431730306fa3e637ce",
        "94db505fa6482f258c33a0a8d412050f6d843ab4ada368252e988f82f8a26fa8",
    ),
    "psp_14_0_2_sos": (
        "c2b5e72c7294a2dadb2b56dbb8f11b9082af0e11f96869f1e71f9e8969e66469",
        "7b538448b57d4f9dd06b2eea90d4f86a16e65e3027cdecee8db71c2c5f1fa243",
    ),
    "psp_14_0_3_sos": (
        "7e21376e55ecca79cd59fe7729eb9b1963ed2d7d24e13e86877cc16dd89a2e68",
        "28469a0857c813c54a0492423cdf0b0caf757428400036377e19c47e5af62478",
    ),
    "psp_14_0_3_sos_kicker": ("1406eb4c19f2e7a11fa4426736f4f4871e4d9f1f7bd7e569e9cf04062edaad69",),
    "sdma_6_0_0": (
        "6c0ee334cb4b71debe65eadd0da2537fab378fc552b736b53afe872703b5d414",
        "1f363527ae9eb710dab0749bfd313aa2f993e06f46b1653190e5af4ec51f9c5e",
        "82cd01a24171af12de6c7ac4ee7471aa2dfcf51f9677e7bae9cd4c75e07761ee",
    ),
    "sdma_6_0_2": (
        "12eb0c1611bc93c1b57e1aaf37a1794bd41c176f21660a462821af6cf619e82a",
        "217054a65aa5fd8d090b8f88d1d4d321c15dff58468cb1080c5dc8f79b172880",
        "16c374344d2894da751f7028f9ec1f7520035fa9548d8c750d99a00a4afa86c7",
    ),
    "sdma_6_0_3": (
        "edf1244cba845e5faeeb7db0bed00114bf91416690500a640d60fa010ca715c7",
        "d47ac4db523aa35d77b27d57c35d4c04f431229dec6c0d667c36d98b985a6933",
    ),
    "sdma_7_0_0": (
        "bb71de8e9310509ddc95c3cdd008ba9fa1dbc0a93a51411c60c5e899fcc2fe31",
        "beaafb53993a106edd392392d5896245ae2a957c6d0f495d0002eec72ad8ad38",
    ),
    "sdma_7_0_1": (
        "52de03a24d3e32bc6ad8abfb2e04cabad35219e57433c33c8ce4dd1d60268c1c",
        "73c29e1c1714ebc95d2221ba56e187910902891593010653bf9518937e414a59",
    ),
    "smu_13_0_0": (
        "892728fc9bbadde27637dc578730b0069f9d15ea00b74dfcbf84defc0caef5db",
        "a654b5f40c90326e9cbd2c67529431b42a62fccb9ef7bedcd12d086a5a45240c",
        "3551e1ef1f0cf542d1a728bdff123142e7cf86b550974d229668b01804c3992d",
    ),
    "smu_13_0_0_kicker": ("fb0764b94e3a63b318ba13dfdf684d37c9f1823ce0595e70983ecf029f99a042",),
    "smu_13_0_10": (
        "d231c55728ec11253b9852b151a00fcbf49ad15754489eceabd92da0aa638971",
        "d1c59c86d7d2b021218fa6a5c24a64057d39a86e115c8be4b99938499baae28e",
    ),
    "smu_13_0_7": (
        "765fea4989675e619747cf3c6da9a53cb879f83ec73a1bf29e5d703c58fb23c6",
        "182ac030715164473e354c4564e3d40edc511172500c20eb1568d504f5f64f2b",
        "6046f6379f42b4d3618151eace413d8c076ea374944afb770a8871ad79fcec55",
    ),
    "smu_14_0_2": (
        "f5c5ab70f24fc33b5d73a8aaddf2560f9386ad789134240a321cba6e3c01c002",
        "1b2054e3f710d1ab8dbdf6ff35914ad376b51caa6337831260c955add874b2ee",
    ),
    "smu_14_0_3": (
        "8bcba250ab0a7157160f943ef91507b38fd4edb728e24f9e9d965824acb656c8",
        "7624724231b0986b59f59705e7c854c482193f6b3b591ebdda58cb62af81c010",
    ),
    "smu_14_0_3_kicker": ("c9b0cbef51cc2bfcf28238b904b3e9e089e3e43b226b2bae9d5fcd7be76253e5",),
}
WANTED: Final = tuple(
    Wanted(f"amdgpu/{name}.bin", hashes, _PACKAGE) for name, hashes in _FILES.items()
)
"""All files that are known."""
_BY_NAME: Final = {wanted.name: wanted for wanted in WANTED}


@dataclass(frozen=True, slots=True)
class FirmwareSet:
    """The files of one card; ``pfp`` and ``me`` are for cards of which these are started too."""

    secure: Wanted
    smu: Wanted
    sdma: Wanted
    mec: Wanted
    imu: Wanted
    rlc: Wanted
    pfp: Wanted | None
    me: Wanted | None

    def all(self) -> tuple[Wanted, ...]:
        """All that there are."""
        files = (self.secure, self.smu, self.sdma, self.pfp, self.me, self.mec, self.imu, self.rlc)
        return tuple(each for each in files if each is not None)


def firmware_of(
    ids: PciIds, *, gc: Version, sdma: Version, mp0: Version, mp1: Version
) -> FirmwareSet:
    """The files of a card of these versions. Raises Unsupported where one has no known file."""
    kicker = "_kicker" if (ids.device, ids.revision) in _KICKERS else ""
    rlc = "_1" if gc == (11, 0, 0) and ids.revision == 0xCE else kicker
    core = f"gc_{_text(gc)}"
    own = gc[0] >= 12  # where the driver starts these two as well
    return FirmwareSet(
        secure=_wanted(f"psp_{_text(mp0)}_sos{kicker}"),
        smu=_wanted(f"smu_{_text(mp1)}{kicker}"),
        sdma=_wanted(f"sdma_{_text(sdma)}"),
        mec=_wanted(f"{core}_mec"),
        imu=_wanted(f"{core}_imu{kicker}"),
        rlc=_wanted(f"{core}_rlc{rlc}"),
        pfp=_wanted(f"{core}_pfp") if own else None,
        me=_wanted(f"{core}_me") if own else None,
    )


def _text(version: Version) -> str:
    return "_".join(map(str, version))


def _wanted(name: str) -> Wanted:
    found = _BY_NAME.get(f"amdgpu/{name}.bin")
    if found is None:
        raise Unsupported(
            f"firmware amdgpu/{name}.bin is in no package that this version knows; use the card"
            " through its kernel driver (DEV=KFD+AMD)"
        )
    return found
