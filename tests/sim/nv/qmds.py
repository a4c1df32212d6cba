"""QMDs by hand: bit positions of the three versions, copied from the dossier's tables."""

from __future__ import annotations

import struct

Fields = dict[str, tuple[int, int]]

V4: Fields = {
    "type": (25, 23), "major": (583, 580), "minor": (579, 576), "sass": (543, 536),
    "release": (320, 320), "words": (322, 321), "wide": (332, 332), "trap": (331, 330),
    "next": (368, 368), "action": (371, 369), "next_at": (479, 448), "reduce": (324, 324),
    "low": (535, 512), "high": (567, 544), "shared": (601, 584), "bank_valid": (416, 416),
    "bank_new": (419, 419), "data_new": (605, 605), "code_new": (606, 606),
    "constant_new": (607, 607), "min": (613, 608), "max": (619, 614), "target": (625, 620),
    "release_low": (671, 640), "release_high": (696, 672), "payload": (735, 704),
    "payload_high": (767, 736), "grid_x": (1055, 1024), "grid_y": (1071, 1056),
    "grid_z": (1103, 1088), "block_x": (1167, 1152), "block_y": (1183, 1168),
    "block_z": (1199, 1184), "registers": (1208, 1200), "barriers": (1215, 1211),
    "program": (1247, 1216), "program_high": (1272, 1248), "fetch": (1375, 1344),
    "fetch_high": (1392, 1376), "fetch_size": (1401, 1393), "bank": (1567, 1536),
    "bank_high": (1586, 1568), "bank_size": (1599, 1587), "cluster_x": (2149, 2144),
    "cluster_y": (2157, 2152), "cluster_z": (2165, 2160), "queue": (56, 32),
    "membar": (1137, 1136), "prefetch": (372, 372),
}  # fmt: skip
V3: Fields = {
    "major": (583, 580), "minor": (579, 576), "sass": (1663, 1656), "release": (823, 823),
    "words": (831, 830), "wide": (829, 829), "trap": (828, 827), "next": (512, 512),
    "action": (515, 513), "next_at": (511, 480), "reduce": (826, 826), "low": (759, 736),
    "high": (1623, 1600), "shared": (561, 544), "bank_valid": (640, 640),
    "bank_new": (1074, 1074), "data_new": (189, 189), "code_new": (190, 190),
    "constant_new": (191, 191), "min": (567, 562), "max": (574, 569), "target": (662, 657),
    "release_low": (799, 768), "release_high": (807, 800), "payload": (863, 832),
    "payload_high": (895, 864), "grid_x": (415, 384), "grid_y": (431, 416),
    "grid_z": (463, 448), "block_x": (607, 592), "block_y": (623, 608), "block_z": (639, 624),
    "registers": (656, 648), "barriers": (767, 763), "program": (1567, 1536),
    "program_high": (1584, 1568), "fetch": (287, 256), "fetch_high": (1640, 1632),
    "fetch_size": (1649, 1641), "bank": (1055, 1024), "bank_high": (1072, 1056),
    "bank_size": (1087, 1075), "queue": (184, 160), "membar": (369, 368), "prefetch": (516, 516),
}  # fmt: skip
V5: Fields = {
    "type": (153, 151), "major": (471, 468), "minor": (467, 464), "sass": (455, 448),
    "release": (288, 288), "words": (290, 289), "wide": (300, 300), "trap": (299, 298),
    "next": (336, 336), "action": (339, 337), "next_at": (415, 384), "reduce": (292, 292),
    "low": (1199, 1184), "high": (1215, 1200), "shared": (1162, 1152),
    "bank_valid": (1856, 1856), "bank_new": (1859, 1859), "data_new": (475, 475),
    "code_new": (476, 476), "constant_new": (477, 477), "min": (1168, 1163),
    "max": (1174, 1169), "target": (1180, 1175), "release_low": (511, 480),
    "release_high": (536, 512), "payload": (575, 544), "payload_high": (607, 576),
    "grid_x": (1279, 1248), "grid_y": (1295, 1280), "grid_z": (1327, 1312),
    "block_x": (1103, 1088), "block_y": (1119, 1104), "block_z": (1127, 1120),
    "registers": (1136, 1128), "barriers": (1141, 1137), "program": (1055, 1024),
    "program_high": (1076, 1056), "fetch": (1919, 1888), "fetch_high": (1936, 1920),
    "fetch_size": (1085, 1077), "bank": (1375, 1344), "bank_high": (1394, 1376),
    "bank_size": (1407, 1395), "cluster_x": (2053, 2048), "cluster_y": (2061, 2056),
    "cluster_z": (2069, 2064), "queue": (184, 160), "membar": (625, 624), "prefetch": (340, 340),
}  # fmt: skip
TABLES = {"ga102": V3, "ad102": V3, "gh100": V4, "gb202": V5}


class Qmd:
    """A QMD of a chip, built field by field; addresses and sizes in bytes."""

    def __init__(self, chip: str):
        self.chip = chip
        self.fields = TABLES[chip]
        self.bits = 0
        self.version = {"ga102": 3, "ad102": 3, "gh100": 4, "gb202": 5}[chip]

    def set(self, **values: int) -> Qmd:
        for name, value in values.items():
            high, low = self.fields[name]
            assert value < 1 << high - low + 1, f"{name} = {value:#x}"
            mask = (1 << high - low + 1) - 1
            self.bits = self.bits & ~(mask << low) | value << low
        return self

    def pair(self, name: str, value: int) -> Qmd:
        return self.set(**{name: value & 0xFFFFFFFF, f"{name}_high": value >> 32})

    @property
    def data(self) -> bytes:
        return self.bits.to_bytes(256 if self.version == 3 else 384, "little")


def plain(
    chip: str, program: int, bank: int, *, release: int = 0, value: int = 0, shared: int = 1024
) -> Qmd:
    """A launch of 2 x 1 x 1 blocks of 32 threads with one constant bank of 1 KiB."""
    qmd = Qmd(chip)
    old, new = qmd.version == 3, qmd.version == 5
    carveout = {"gh100": 8, "gb202": 8}.get(chip, 8) // 4 + 1
    largest = (228 if chip == "gh100" else 100) // 4 + 1
    qmd.set(major=qmd.version, grid_x=2, grid_y=1, grid_z=1, block_x=32, block_y=1, block_z=1)
    qmd.set(registers=16, barriers=1, min=carveout, target=carveout, max=largest)
    qmd.set(shared=shared >> 7 if new else shared, sass=SASS[chip], data_new=1)
    if not old:
        qmd.set(type=2)
    qmd.pair("program", program >> 4 if new else program)
    qmd.set(bank_valid=1, bank_new=1, bank_size=1024 >> 4)
    qmd.pair("bank", bank if old else bank >> 6)
    if release:
        qmd.set(release=1, words=0, wide=1, release_low=release & 0xFFFFFFFF)
        qmd.set(release_high=release >> 32, payload=value & 0xFFFFFFFF, payload_high=value >> 32)
    return qmd


SASS = {"ga102": 0x86, "ad102": 0x89, "gh100": 0x90, "gb202": 0xC0}


def dwords(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 4}I", data)
