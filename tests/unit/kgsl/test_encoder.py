"""gpu/drivers/kgsl/encoder.py: the words of launches, signals, waits and copies, read back."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.ir3binary import Ir3Binary
from gpu.drivers.kgsl.chips import CHIPS, find_chip, name_of
from gpu.drivers.kgsl.copy_code import BLOCK, copy_code
from gpu.drivers.kgsl.decode import decode_a6xx
from gpu.drivers.kgsl.encoder import KgslEncoder
from gpu.drivers.kgsl.program import (
    LoadedKernel,
    PrivateMemory,
    check_kernel,
    private_size,
)
from gpu.hcq import commands as hcq
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.commands import SymbolicSignal
from gpu.hcq.device import HCQDevice
from gpu.hcq.nulldevice import open_null
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import GpuVA, Symbol, segment_address

COPIER, SCRATCH = 0x1_0000_0000, 0x2000
LAYOUT = ArgumentLayout(2, "q")


def encoder_of(chip: str = "a630") -> KgslEncoder:
    return KgslEncoder(CHIPS[chip], LoadedKernel(copy_code(chip), GpuVA(COPIER)), SCRATCH)


def kernel(chip: str = "a630", **changes: object) -> Ir3Binary:
    """A kernel of which only the numbers matter."""
    code = copy_code(chip)._replace(
        name="k", block=64, full=7, half=3, branches=2, constants=21, immediates_at=8, shared=5000,
        group_at=192, thread_at=2, double=0, early=0, merged=1, parameters=24,
        code=bytes(3 * 128), immediates=bytes(range(1, 21)),
    )  # fmt: skip
    return code._replace(**changes)  # type: ignore[arg-type]


def device(chip: str = "a630") -> HCQDevice:
    return open_null({"compute": encoder_of(chip)}, capacity=1 << 24, ring_size=1 << 16)


def lines(data: bytes) -> list[str]:
    """What each word says, headers without their number of words."""
    found = [line.text.strip() for line in decode_a6xx(data)]
    assert not [text for text in found if "not known" in text]
    return [text for text in found if not text.startswith("write ")]


def launch(
    chip: str, loaded: LoadedKernel, grid: hcq.Grid = (5, 3, 2)
) -> tuple[list[str], Sequence[bytes]]:
    """The words of one launch as text, and all segments."""
    dev = device(chip)
    program = HCQProgram(dev, "k", None, LAYOUT, info=loaded)
    args = program.arguments(Symbol("a"), Symbol("b"), vals=(-2,))
    encoded = encoder_of(chip).encode([hcq.Launch(program, args, grid, (64, 1, 1))])
    pointers = {p.symbol: 0x1234_5678_9000 for p in encoded.patches}
    pointers[segment_address(1)] = 0x77_0000_0040
    segments = encoded.resolve(pointers)
    return lines(segments[0]), segments


@pytest.mark.parametrize("chip", CHIPS)
def test_a_launch_says_all_that_it_needs(chip: str) -> None:
    size = private_size(CHIPS[chip], 700)
    assert size.per_fiber == 1024 and size.per_core == 1024 * CHIPS[chip].fibers
    assert size.total == size.per_core * CHIPS[chip].cores
    loaded = LoadedKernel(
        kernel(chip, private=700), GpuVA(0x5_0000_0080), PrivateMemory(GpuVA(0x9_0000_0000), size)
    )
    text, segments = launch(chip, loaded)
    for wanted in (
        "SP_CS_CTRL_REG0: THREADMODE MULTI, HALFREGFOOTPRINT 0x3, FULLREGFOOTPRINT 0x7,"
        " BRANCHSTACK 0x2, THREADSIZE THREAD64, MERGEDREGS 0x1",
        "SP_CS_CTRL_REG1: SHARED_SIZE 0x4, CONSTANTRAMMODE CONSTLEN_128",
        "SP_CS_OBJ_START: 0x80", "SP_CS_OBJ_START_HI: 0x5",
        "SP_CS_PVT_MEM_PARAM: MEMSIZEPERITEM 0x400",
        "SP_CS_PVT_MEM_ADDR_HI: 0x9",
        f"SP_CS_PVT_MEM_SIZE: TOTALPVTMEMSIZE {size.per_core:#x}, PERWAVEMEMLAYOUT 0x1",
        f"SP_CS_PVT_MEM_HW_STACK_OFFSET: OFFSET {size.per_core:#x}",
        "SP_CS_INSTRLEN: VALUE 0x3",
        "HLSQ_CS_CNTL: CONSTLEN 0x18, ENABLED 0x1",
        "HLSQ_CS_CNTL_0: WGIDCONSTID 0xc0, WGSIZECONSTID 0xfc, WGOFFSETCONSTID 0xfc,"
        " LOCALIDREGID 0x2",
        "STATE_TYPE ST6_SHADER, STATE_SRC SS6_INDIRECT, STATE_BLOCK SB6_CS_SHADER, NUM_UNIT 0x3",
        "STATE_TYPE ST6_CONSTANTS, STATE_SRC SS6_INDIRECT, STATE_BLOCK SB6_CS_SHADER, NUM_UNIT 0x2",
        "DST_OFF 0x8, STATE_TYPE ST6_CONSTANTS, STATE_SRC SS6_DIRECT, STATE_BLOCK SB6_CS_SHADER,"
        " NUM_UNIT 0x2",
        "HLSQ_CS_NDRANGE_0: KERNELDIM 0x3, LOCALSIZEX 0x3f",
        "HLSQ_CS_NDRANGE_1: GLOBALSIZE_X 0x140", "HLSQ_CS_NDRANGE_3: GLOBALSIZE_Y 0x3",
        "NGROUPS_X 0x5", "NGROUPS_Y 0x3", "NGROUPS_Z 0x2",
        f"SP_CHICKEN_BITS: {CHIPS[chip].tuning.SP_CHICKEN_BITS:#x}",
    ):  # fmt: skip
        assert text.count(wanted) == 1, wanted
    assert [each for each in text if each.startswith("SP_CS_CNTL_")] == (
        [each.replace("HLSQ", "SP") for each in text if each.startswith("HLSQ_CS_CNTL_")]
        if CHIPS[chip].has_lpac
        else []
    )
    # The code is loaded behind the order to forget what there was, the launch comes last.
    forget = [at for at, each in enumerate(text) if each.startswith("HLSQ_INVALIDATE_CMD")]
    assert forget[-1] < text.index("CP_LOAD_STATE6_FRAG") < text.index("CP_EXEC_CS")
    assert text[-1] == "CP_WAIT_FOR_IDLE"
    # Arguments are memory, which replays patch: whole constants of 16 bytes.
    words = np.frombuffer(segments[1], np.uint64)
    assert list(words) == [0x1234_5678_9000, 0x1234_5678_9000, (1 << 64) - 2, 0]


def test_code_beyond_the_instruction_cache_has_its_end_told_twice() -> None:
    units = CHIPS["a630"].instructions + 1
    text, _ = launch("a630", LoadedKernel(kernel(code=bytes(128 * units)), GpuVA(1 << 32)))
    assert f"SP_FS_INSTRLEN: VALUE {units:#x}" in text and text.count("EVENT LABEL") == 2
    assert any("ST6_SHADER" in each and f"NUM_UNIT {units - 1:#x}" in each for each in text)
    text, _ = launch("a630", LoadedKernel(kernel(), GpuVA(1 << 32)))
    assert not any("SP_FS_INSTRLEN" in each or "LABEL" in each for each in text)


def test_grids_that_are_symbols_give_threads_too() -> None:
    groups = Symbol("groups")
    dev = device()
    program = HCQProgram(dev, "k", None, LAYOUT, info=LoadedKernel(kernel(), GpuVA(1 << 32)))
    args = program.arguments(*(dev.allocator.alloc(64) for _ in range(2)), vals=(0,))
    command = hcq.Launch(program, args, (groups, 1, 1), (64, 1, 1))
    text = lines(encoder_of().encode([command]).resolve({groups: 9, segment_address(1): 64})[0])
    assert "NGROUPS_X 0x9" in text and "HLSQ_CS_NDRANGE_1: GLOBALSIZE_X 0x240" in text


def names(commands: Sequence[hcq.Command]) -> list[str]:
    """Packets and events of some commands, without registers."""
    encoded = encoder_of().encode(commands)
    values = {p.symbol: 0x4000 for p in encoded.patches}
    found = []
    for text in lines(encoded.resolve(values)[0]):
        if text.startswith(("CP_", "EVENT ")):
            found.append(re.sub("CP_|EVENT ", "", text))
    return found


SIGNAL = SymbolicSignal(Symbol("signal"))


def test_signals_are_written_behind_all_and_waits_are_unsigned() -> None:
    assert names([hcq.Signal(SIGNAL, 3)]) == ["WAIT_FOR_IDLE", "EVENT_WRITE", "CACHE_FLUSH_TS"]
    assert names([hcq.Wait(SIGNAL, 3)]) == ["WAIT_REG_MEM"]
    encoded = encoder_of().encode([hcq.Wait(SIGNAL, 3)]).resolve({SIGNAL.address: 0x4000})
    assert "FUNCTION WRITE_GE, POLL POLL_MEMORY" in lines(encoded[0])
    with pytest.raises(InvalidValue, match="32 bits"):
        encoder_of().encode([hcq.Signal(SIGNAL, 1 << 32)])


def test_timestamps_are_in_memory_before_the_signal_behind_them() -> None:
    found = names([hcq.Timestamp(SIGNAL), hcq.Signal(SIGNAL, 3)])
    assert found == [
        *("WAIT_FOR_IDLE", "REG_TO_MEM", "WAIT_MEM_WRITES"),
        *("WAIT_FOR_IDLE", "EVENT_WRITE", "CACHE_FLUSH_TS"),
    ]


def test_the_cache_is_written_back_for_the_command_processor_and_forgotten_after_it() -> None:
    copy, write = hcq.Copy(0x8000, 0x4000, 64), hcq.WriteMem(0x8000, b"abcd")
    found = names([copy, write, copy, copy])
    once = ["LOAD_STATE6_FRAG"] * 3 + ["SET_MARKER", "EXEC_CS", "WAIT_FOR_IDLE"]
    assert found == [
        *("EVENT_WRITE", "CACHE_INVALIDATE", "WAIT_FOR_IDLE", "WAIT_FOR_IDLE", *once),
        *("WAIT_FOR_IDLE", "EVENT_WRITE", "CACHE_FLUSH_TS", "WAIT_FOR_IDLE", "MEM_WRITE"),
        *("WAIT_MEM_WRITES", "EVENT_WRITE", "CACHE_INVALIDATE", "WAIT_FOR_IDLE", *once),
        *once,
    ]


def test_copies_of_any_size_are_launches_of_the_same_kernel() -> None:
    for size, groups in ((1, 1), (BLOCK * 16, 1), (BLOCK * 16 + 1, 2), (1 << 30, 64)):
        encoded = encoder_of().encode([hcq.Copy(0x9000, 0x5001, size)])
        segments = encoded.resolve({segment_address(1): 64})
        assert f"NGROUPS_X {groups:#x}" in lines(segments[0])
        assert list(np.frombuffer(segments[1], np.uint32)) == [
            *(0x9000, 0, 0x5001, 0, size, groups * BLOCK, 0, 0)
        ]
    large = encoder_of().encode([hcq.Copy(0, 1 << 33, (1 << 32) + 5)])
    assert len(large.segments) == 1 + 3


def test_large_writes_are_cut() -> None:
    data = np.arange(40_000, dtype=np.uint32).tobytes()
    found = names([hcq.WriteMem(0x8000, data)])
    assert found == ["MEM_WRITE"] * 3
    with pytest.raises(InvalidValue, match="multiple of 4"):
        encoder_of().encode([hcq.WriteMem(0x8000, b"abc")])


@pytest.mark.parametrize("size", [4, 8, 65_536, 65_540, 200_000])
def test_filler_is_packets_that_do_nothing(size: int) -> None:
    data = encoder_of().filler(size)
    assert len(data) == size and set(lines(data)) <= {"CP_NOP", ""}


def test_calls_name_place_and_words() -> None:
    target = Symbol("image")
    encoded = encoder_of().call(target, 0x40, 0x100)
    assert list(np.frombuffer(encoded.resolve({target: 0x3_0000_0000})[0], np.uint32)[1:]) == [
        *(0x40, 3, 0x40)
    ]
    with pytest.raises(InvalidValue, match="bind less"):
        encoder_of().call(target, 0, 4 << 20)


def test_what_does_not_fit_is_refused() -> None:
    chip = CHIPS["a630"]
    with pytest.raises(Unsupported, match="code for a640, and this GPU is a630"):
        check_kernel(chip, kernel("a640"), LAYOUT)
    with pytest.raises(Unsupported, match="descriptors"):
        check_kernel(chip, kernel(samplers=1), LAYOUT)
    with pytest.raises(InvalidValue, match="24 bytes of parameters; a layout of 1 addresses"):
        check_kernel(chip, kernel(), ArgumentLayout(1))
    dev = device()
    program = HCQProgram(dev, "k", None, LAYOUT, info=LoadedKernel(kernel(), GpuVA(1 << 32)))
    args = program.arguments(Symbol("a"), Symbol("b"), vals=(0,))
    with pytest.raises(InvalidValue, match=r"compiled for \(64, 1, 1\)"):
        encoder_of().encode([hcq.Launch(program, args, (1, 1, 1), (32, 1, 1))])


def test_chips_are_known_by_the_numbers_that_the_driver_tells() -> None:
    assert find_chip(0x06030001).name == "a630" and find_chip(0x06060000).name == "a660"
    for number, name in ((0x05040001, "a540"), (0x07030001, "a730"), (0x06010000, "a610")):
        assert name_of(number) == name
        with pytest.raises(Unsupported, match=f"{number:#010x}.*{name}"):
            find_chip(number)
