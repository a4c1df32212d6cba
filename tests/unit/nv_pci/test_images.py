"""Firmware files: what is taken from them, and that a wrong byte is named, not believed."""

from __future__ import annotations

import random

import pytest

from gpu.core.errors import FormatError, GpuError, Unsupported
from gpu.drivers.nv.pci import images
from gpu.drivers.nv.pci.chips import AD10X, GA10X, GB20X, GH100, Chip, Way, find_chip
from unit.nv_pci import made

CHIPS = (GA10X, AD10X, GH100, GB20X)


def test_chips_are_known_by_their_numbers_and_others_refused_by_name() -> None:
    """Every row is found; what is out is named with its reason."""
    for architecture, implementation, name, chip in (
        (0x17, 2, "GA102", GA10X),
        (0x19, 7, "AD107", AD10X),
        (0x18, 0, "GH100", GH100),
        (0x1B, 5, "GB205", GB20X),
    ):
        assert find_chip(architecture, implementation) == (name, chip)
    for architecture, word in ((0x16, "Turing"), (0x17, "GA100"), (0x1A, "GB10x"), (0x3F, "know")):
        with pytest.raises(Unsupported, match=word):
            find_chip(architecture, 0)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.family)
def test_all_firmware_of_a_chip_is_known_by_hash(chip: Chip) -> None:
    """Each part is a file with a hash; GSP's image is one for all."""
    for part in chip.parts:
        wanted = chip.firmware(part)
        assert len(wanted.hashes) == 1 and wanted.name.endswith(f"{part}-570.144.bin")
    assert chip.firmware("gsp").name == "nvidia/ga102/gsp/gsp-570.144.bin"


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.family)
def test_gsp_image_is_taken_with_the_signature_of_the_family(chip: Chip) -> None:
    """The image and the signature are the sections', whatever type of file it is."""
    rng = random.Random(chip.family)
    image, signature = rng.randbytes(5001), rng.randbytes(4096)
    sections = {
        ".fwversion": b"570.144\0",
        ".fwsignature_tu10x": rng.randbytes(64),
        chip.signature_section: signature,
        ".fwimage": image,
    }
    for kind in (0, 1, 2, 3):
        assert images.parse_gsp(made.elf64(sections, kind), chip) == images.GspImage(
            image, signature
        )


def test_gsp_image_of_another_version_is_refused_with_both() -> None:
    """Structures differ between versions, so no other is tried."""
    data = made.gsp_file(random.Random(1), "gh100", b"535.113.01\0")
    with pytest.raises(Unsupported, match=r"535\.113\.01.*570\.144"):
        images.parse_gsp(data, GH100)


def test_gsp_image_without_the_family_is_refused() -> None:
    """As that of a package that has an older one."""
    data = made.gsp_file(random.Random(1), "ga10x")
    with pytest.raises(FormatError, match="fwsignature_gh100"):
        images.parse_gsp(data, GH100)


@pytest.mark.parametrize("chip", (GH100, GB20X), ids=lambda chip: chip.family)
def test_fmc_is_taken_apart(chip: Chip) -> None:
    """Its four parts have the sizes of the family."""
    fmc = images.parse_fmc(made.fmc_file(random.Random(2), chip), chip)
    assert (len(fmc.hash), len(fmc.key)) == (48, chip.key_size)
    assert len(fmc.signature) == chip.signature_size and fmc.image
    other = GB20X if chip is GH100 else GH100
    with pytest.raises(FormatError, match="publickey has"):
        images.parse_fmc(made.fmc_file(random.Random(2), chip), other)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"hash": bytes(48)}, "SHA-384"),
        ({"hash": bytes(47)}, "47 bytes"),
        ({"signature": b""}, "no section signature"),
        ({"image": b""}, "no section image"),
    ],
)
def test_fmc_with_a_wrong_part_is_refused(changed: dict[str, bytes], word: str) -> None:
    """By the name of the section."""
    with pytest.raises(FormatError, match=word):
        images.parse_fmc(made.fmc_file(random.Random(3), GH100, **changed), GH100)


def test_fmc_with_a_wrong_checksum_is_refused() -> None:
    """A section's CRC-32 is in sh_info."""
    data = bytearray(made.fmc_file(random.Random(4), GH100))
    data[-500] ^= 1
    with pytest.raises(FormatError, match=r"CRC-32|SHA-384"):
        images.parse_fmc(bytes(data), GH100)


def test_bootloader_is_taken_apart_and_its_parts_are_within() -> None:
    """Offsets are of the image; one beyond it is named."""
    found = images.parse_bootloader(made.bootloader_file(random.Random(5)))
    assert (found.code_offset, found.data_offset, found.manifest_offset) == (0x300, 0x200, 0x100)
    assert found.app_version == 0x1234 and len(found.image) == 0x700
    with pytest.raises(FormatError, match="monitorCode"):
        images.parse_bootloader(made.bootloader_file(random.Random(5), monitorCodeOffset=0x301))
    with pytest.raises(FormatError, match="bin_magic at offset 0"):
        images.parse_bootloader(b"\0" + made.bootloader_file(random.Random(5)))


def test_falcon_code_has_its_signatures() -> None:
    """In the file's order; place and code are those of the headers."""
    data, signed = made.falcon_file(random.Random(6), 3)
    code = images.parse_falcon(data, "booter_load")
    assert list(code.signatures) == signed
    assert (code.code, code.data, code.code_address) == ((0x100, 0x300), (0x400, 0x300), 0x100)
    assert (code.patch, code.engine_mask, code.ucode_id) == (0x410, 1, 3)


@pytest.mark.parametrize("number", range(4))
def test_damaged_files_are_format_errors(number: int) -> None:
    """Any byte changed, any end cut off: read, or refused by a typed error, and never otherwise."""
    rng = random.Random(number)
    parse = (
        lambda data: images.parse_gsp(data, GH100),
        lambda data: images.parse_fmc(data, GH100),
        images.parse_bootloader,
        lambda data: images.parse_falcon(data, "booter"),
    )[number]
    whole = (
        made.gsp_file(rng, "gh100", size=300),
        made.fmc_file(rng, GH100),
        made.bootloader_file(rng),
        made.falcon_file(rng)[0],
    )[number]
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4))):
            at = (
                rng.randrange(min(len(data), 400))
                if rng.random() < 0.8
                else rng.randrange(len(data))
            )
            data[at] = rng.choice((0, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            parse(bytes(data))
        except (FormatError, Unsupported):
            refused += 1
        except GpuError as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error
    assert refused > 10


def test_the_way_follows_from_the_chip() -> None:
    """FSP's chips take an FMC, the others booter; only Ada a scrubber."""
    for chip in CHIPS:
        assert ("fmc" in chip.parts) == (chip.way is Way.FSP)
        assert ("booter_load" in chip.parts) == (chip.way is Way.FALCON)
        assert ("scrubber" in chip.parts) == (chip is AD10X)
