"""Memory, faults, scheduling and the state that a dispatch starts with."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gpu.core.errors import DeviceHang, InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.faults import IllegalInstruction, WaveFault
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes
from sim.isa.amdgpu import Launcher, compile_ir
from sim.isa.asm import END, EXEC, V, evaluate, op, words
from sim.isa.bare import run_asm

LOAD_POINTER = op("s_load_b64", sdata=4, sbase=0)
WORD_OFFSETS = op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)  # v1 = 4 * v0


def run_on(code: bytes, array: npt.NDArray[np.uint32], **options: int) -> None:
    run_asm(code + END, (1, 1, 1), (32, 1, 1), [array], **options)


def placed(code: bytes) -> tuple[MemoryMap, npt.NDArray[np.uint8]]:
    """Memory that holds code alone."""
    text = aligned_bytes(len(code), 256)
    text[:] = np.frombuffer(code, np.uint8)
    memory = MemoryMap()
    memory.add(text.ctypes.data, len(text), text.ctypes.data, layout.READ)
    return memory, text


def test_a_failing_lane_stops_the_store_of_all() -> None:
    array = np.arange(30, dtype=np.uint32)  # lanes 30 and 31 are past its end
    before = array.copy()
    store = op("global_store_b32", addr=1, data=0, saddr=4)
    with pytest.raises(WaveFault, match="write of 4 bytes") as caught:
        run_on(LOAD_POINTER + WORD_OFFSETS + store, array)
    fault = caught.value
    assert (fault.lane, fault.access) == (30, "write")
    assert fault.address == array.ctypes.data + 120
    assert "global_store_b32 v1, v0, s[4:5]" in str(fault)
    np.testing.assert_array_equal(array, before)


def test_inactive_lanes_neither_fault_nor_write() -> None:
    array = np.zeros(8, np.uint32)
    narrow = op("s_mov_b32", sdst=EXEC, ssrc0=255, literal=0x0F)
    store = op("global_store_b32", addr=1, data=0, saddr=4)
    run_on(LOAD_POINTER + WORD_OFFSETS + narrow + store, array)
    assert list(array) == [0, 1, 2, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["global_store_b32", "global_atomic_add_u32"])
def test_read_only_memory(name: str) -> None:
    array = np.zeros(32, np.uint32)
    array.flags.writeable = False
    with pytest.raises(WaveFault) as caught:
        run_on(LOAD_POINTER + WORD_OFFSETS + op(name, addr=1, data=0, saddr=4), array)
    assert caught.value.access == ("write" if "store" in name else "atomic")


def test_misaligned_atomics_fault() -> None:
    odd = op("global_atomic_add_u32", addr=1, data=0, saddr=4, offset=2)
    with pytest.raises(WaveFault, match="lane 0"):
        run_on(LOAD_POINTER + WORD_OFFSETS + odd, np.zeros(40, np.uint32))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        *[("global_load_d16_b16", 0xAAAA8180), ("global_load_d16_hi_b16", 0x8180BBBB)],
        *[("global_load_d16_u8", 0xAAAA0080), ("global_load_d16_hi_i8", 0xFF80BBBB)],
        *[("global_load_u8", 0x80), ("global_load_i8", 0xFFFFFF80)],
        *[("global_load_u16", 0x8180), ("global_load_i16", 0xFFFF8180)],
    ],
)
def test_loads_of_bytes_and_shorts(name: str, want: int) -> None:
    array = np.full(32, 0x83828180, np.uint32)
    code = LOAD_POINTER + WORD_OFFSETS + op("v_mov_b32", vdst=2, src0=255, literal=0xAAAABBBB)
    code += op(name, vdst=2, addr=1, saddr=4) + op("global_store_b32", addr=1, data=2, saddr=4)
    run_on(code, array)
    assert {hex(v) for v in array} == {hex(want)}


def test_lanes_may_hit_different_ranges() -> None:
    first, second, out = words([1] * 8), words([2] * 8), np.zeros(32, np.uint32)
    code = b"".join(op("s_load_b64", sdata=4 + 2 * n, sbase=0, offset=8 * n) for n in range(3))
    code += op("v_mov_b32", vdst=2, src0=4) + op("v_mov_b32", vdst=3, src0=5)
    code += op("s_mov_b32", sdst=EXEC, ssrc0=255, literal=0xAAAAAAAA)
    code += op("v_mov_b32", vdst=2, src0=6) + op("v_mov_b32", vdst=3, src0=7)
    code += op("s_mov_b32", sdst=EXEC, ssrc0=193)
    code += op("global_load_b32", vdst=5, addr=2, offset=4) + WORD_OFFSETS
    code += op("global_store_b32", addr=1, data=5, saddr=8) + END
    run_asm(code, (1, 1, 1), (32, 1, 1), [first, second, out])
    assert list(out) == [1, 2] * 16


def test_lds_has_bounds() -> None:
    code = WORD_OFFSETS + op("ds_store_b32", addr=1, data0=0, offset0=4)
    run_on(code, np.zeros(1, np.uint32), lds=132)
    with pytest.raises(WaveFault, match="bytes at 0x80") as caught:
        run_on(code, np.zeros(1, np.uint32), lds=128)
    assert (caught.value.lane, caught.value.address) == (31, 0x80)


def test_lds_addresses_are_of_32_bits() -> None:
    """LLVM has registers count down from 0, and adds a constant (`a[255 - i]`)."""
    code = op("v_sub_nc_u32", vdst=3, src0=128, vsrc1=1)  # v3 = -4 * lane
    code = WORD_OFFSETS + code + op("ds_store_b32", addr=3, data0=0, offset0=124)
    run_on(code, np.zeros(1, np.uint32), lds=128)
    with pytest.raises(WaveFault, match="bytes at 0xfffffffc") as caught:
        run_on(code.replace(bytes([124, 0]), bytes([120, 0])), np.zeros(1, np.uint32), lds=128)
    assert caught.value.lane == 31


def test_scratch_has_bounds() -> None:
    store = op("scratch_store_b32", data=0, sve=0, offset=12)
    run_on(store, np.zeros(1, np.uint32), scratch=16)
    with pytest.raises(WaveFault):
        run_on(store, np.zeros(1, np.uint32), scratch=12)


def test_flat_addresses_reach_lds_and_scratch() -> None:
    out = np.zeros(32, np.uint32)
    code = LOAD_POINTER + WORD_OFFSETS
    code += op("ds_store_b32", addr=1, data0=0)
    code += op("s_mov_b64", sdst=8, ssrc0=235)  # src_shared_base
    code += op("v_mov_b32", vdst=2, src0=V + 1) + op("v_mov_b32", vdst=3, src0=9)
    code += op("flat_load_b32", vdst=4, addr=2)
    code += op("s_mov_b64", sdst=8, ssrc0=237)  # src_private_base
    code += op("v_mov_b32", vdst=6, src0=132) + op("v_mov_b32", vdst=7, src0=9)
    code += op("flat_store_b32", addr=6, data=4) + op("flat_load_b32", vdst=5, addr=6)
    code += op("global_store_b32", addr=1, data=5, saddr=4)
    run_on(code, out, lds=128, scratch=16)
    np.testing.assert_array_equal(out, np.arange(32))


def test_vector_registers_beyond_the_allocation() -> None:
    code = op("v_mov_b32", vdst=8, src0=128)
    with pytest.raises(IllegalInstruction, match="v8 is used, the wave has 8"):
        run_on(code, np.zeros(1, np.uint32), vgprs=8)
    skipped = op("s_branch", simm16=1) + code  # what is not reached does no harm
    run_on(skipped, np.zeros(1, np.uint32), vgprs=8)


def test_unknown_instructions_stop_only_where_they_are_reached() -> None:
    with pytest.raises(IllegalInstruction, match="ffffffff") as caught:
        run_on(bytes.fromhex("000080bf ffffffff"), np.zeros(1, np.uint32))
    assert caught.value.pc % 256 == 4
    with pytest.raises(IllegalInstruction, match="s_trap has no semantics"):
        run_on(op("s_trap", simm16=2), np.zeros(1, np.uint32))


def test_an_endless_loop_is_a_hang() -> None:
    with pytest.raises(DeviceHang, match="s_branch"):
        run_on(op("s_branch", simm16=0xFFFF), np.zeros(1, np.uint32))


SPIN = """
declare i32 @llvm.amdgcn.workgroup.id.x()
define amdgpu_kernel void @k(ptr addrspace(1) %p, ptr addrspace(1) %q) {
entry:
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  br label %wait
wait:
  %turn = load atomic i32, ptr addrspace(1) %p syncscope("agent") acquire, align 4
  %mine = icmp eq i32 %turn, %group
  br i1 %mine, label %go, label %wait
go:
  %o = getelementptr i32, ptr addrspace(1) %q, i32 %group
  %old = load i32, ptr addrspace(1) %q
  %sum = add i32 %old, %group
  store i32 %sum, ptr addrspace(1) %q
  %next = add i32 %group, 1
  store atomic i32 %next, ptr addrspace(1) %p syncscope("agent") release, align 4
  ret void
}
"""


@pytest.mark.parametrize("seed", range(3))
def test_workgroups_that_wait_for_each_other_get_on(seed: int) -> None:
    turn, total = np.zeros(1, np.int32), np.zeros(32, np.int32)
    Launcher(compile_ir(SPIN), seed).run("k", (20, 1, 1), (1, 1, 1), turn, total)
    assert (turn[0], total[0]) == (20, sum(range(20)))


def order_of(seed: int) -> list[int]:
    """The order in which 8 workgroups append their numbers to a list."""
    out = np.zeros(17, np.uint32)
    append = LOAD_POINTER + op("s_mov_b32", sdst=EXEC, ssrc0=129)
    append += op("v_mov_b32", vdst=1, src0=128) + op("v_mov_b32", vdst=2, src0=129)
    append += op("global_atomic_add_u32", vdst=3, addr=1, data=2, saddr=4, glc=1)
    append += op("v_lshlrev_b32", vdst=3, src0=130, vsrc1=3) + op("v_mov_b32", vdst=4, src0=2)
    append += op("global_store_b32", addr=3, data=4, saddr=4, offset=4) + END
    run_asm(append, (16, 1, 1), (1, 1, 1), [out], seed=seed)
    assert sorted(out[1:]) == list(range(16))
    return [int(number) for number in out[1:]]


def test_a_seed_decides_the_order() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(4)}) > 1


def test_changed_code_needs_an_invalidate() -> None:
    memory, text = placed(op("s_nop") + END)
    machine = Machine(memory)
    dispatch = Dispatch(pc=text.ctypes.data, grid=(1, 1, 1), block=(32, 1, 1))
    machine.run(dispatch)
    text[:4] = np.frombuffer(op("s_nop", simm16=1), np.uint8)
    with pytest.raises(InvalidValue, match="invalidate the instruction cache"):
        machine.run(dispatch)
    machine.caches.invalidate()
    machine.run(dispatch)


def test_the_hosts_rounding_mode_is_restored() -> None:
    code = op("s_round_mode", simm16=3) + op("s_denorm_mode", simm16=12)
    run_on(code, np.zeros(1, np.uint32))
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fegetround() == 0
    assert np.float32(1e-45) * np.float32(1) == np.float32(1e-45)


def test_mode_changes_within_a_program() -> None:
    flush = op("s_denorm_mode", simm16=12)
    keep = op("s_denorm_mode", simm16=15)
    out = np.zeros(32, np.uint32)
    code = LOAD_POINTER + WORD_OFFSETS + op("v_mov_b32", vdst=2, src0=129) + flush
    code += op("v_add_f32", vdst=3, src0=V + 2, vsrc1=2) + keep
    code += op("v_add_f32", vdst=4, src0=V + 2, vsrc1=2)
    code += op("v_lshl_or_b32", vdst=4, src0=V + 3, src1=136, src2=V + 4)
    code += op("global_store_b32", addr=1, data=4, saddr=4)
    run_on(code, out)
    assert set(out) == {2}


def test_first_registers_of_a_wave() -> None:
    out = np.zeros((4, 4, 64), np.uint32)
    code = LOAD_POINTER
    code += op("s_lshl_b32", sdst=8, ssrc0=3, ssrc1=130) + op("s_add_u32", sdst=8, ssrc0=2, ssrc1=8)
    code += op("s_lshl_b32", sdst=8, ssrc0=8, ssrc1=136)  # 256 bytes a workgroup
    code += op("v_bfe_u32", vdst=1, src0=V, src1=138, src2=138)  # y
    code += op("v_and_b32", vdst=2, src0=255, vsrc1=0, literal=0x3FF)  # x
    code += op("v_lshl_add_u32", vdst=1, src0=V + 1, src1=132, src2=V + 2)  # 16 y + x
    code += op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=1)
    code += op("v_add_nc_u32", vdst=1, src0=8, vsrc1=1)
    code += op("global_store_b32", addr=1, data=0, saddr=4) + END
    run_asm(code, (4, 4, 1), (16, 4, 1), [out])
    index = np.arange(64)
    want = index % 16 | index // 16 << 10
    np.testing.assert_array_equal(out, np.broadcast_to(want, (4, 4, 64)))


@pytest.mark.parametrize(("lanes", "vgprs"), [(32, 48), (64, 24)])
def test_resources_of_a_dispatch(lanes: int, vgprs: int) -> None:
    found = Dispatch.of_resources(
        *(5 | 0xC0 << 12 | 1 << 23, 1 | 4 << 1 | 1 << 8 | 2 << 11, lanes),
        pc=0x9A12345678 << 8,
        grid=(7, 8, 9),
        block=(33, 2, 1),
        user_sgprs=(1, 2, 3, 4),
        lds_bytes=1536,
        scratch_bytes=0,
    )
    assert found.workgroup_ids == (False, True, False)
    assert (found.vgprs, found.lanes, found.workitem_dims) == (vgprs, lanes, 3)
    assert found.waves_per_group == -(-66 // lanes)
    assert found.mode == 0xC0 | layout.MODE_IEEE


def test_scratch_memory_of_the_dispatch() -> None:
    memory, text = placed(op("scratch_store_b32", data=0, sve=0) + END)
    scratch = np.zeros(128, np.uint32)
    memory.add(scratch.ctypes.data, scratch.nbytes, scratch.ctypes.data, layout.READ | layout.WRITE)
    dispatch = Dispatch(
        *(text.ctypes.data, (1, 1, 1), (32, 1, 1)),
        scratch_bytes=16,
        scratch_address=scratch.ctypes.data,
        scratch_waves=1,
    )
    Machine(memory).run(dispatch)
    np.testing.assert_array_equal(scratch[::4], np.arange(32))
    with pytest.raises(InvalidValue, match="room for 0 waves"):
        Machine(memory).run(replace(dispatch, scratch_waves=0))
    with pytest.raises(InvalidValue, match="is not mapped"):
        Machine(memory).run(replace(dispatch, scratch_address=0x1000))


def test_dpp_disables_lanes_without_a_source() -> None:
    from gpu.sim.isa.rdna.formats import DPP16, DPP16_FIELDS

    shift = {"vsrc0": 10, "ctrl": 0x111, "row": 15, "bank": 15}  # row_shr:1
    start = words([77])
    for bound, first in ((0, 77), (1, 0)):
        literal = DPP16_FIELDS.join({**shift, "bc": bound})
        values = np.arange(32, dtype=np.uint32)
        got = evaluate("v_mov_b32", values, start=start, src0=DPP16, literal=literal)
        want = np.where(values % 16 == 0, first, values - 1)
        np.testing.assert_array_equal(got, want)


def test_unmapped_ranges_and_overlaps() -> None:
    memory = MemoryMap()
    memory.add(0x1000, 0x100, 0x5000, layout.READ)
    assert memory.host_address(0x10F0, 16) == 0x50F0
    assert memory.host_address(0x10F1, 16) is None
    for start, size in ((0x10FF, 1), (0xFFF, 2), (0x0, 0x2000)):
        with pytest.raises(InvalidValue, match="overlap"):
            memory.add(start, size, 0, layout.READ)
    memory.remove(0x1000)
    with pytest.raises(InvalidValue, match="no range"):
        memory.remove(0x1000)


def test_memory_may_be_mapped_on_demand() -> None:
    array = np.zeros(2048, np.uint32)
    base = array.ctypes.data
    memory, text = placed(
        WORD_OFFSETS
        + op("v_lshlrev_b32", vdst=1, src0=136, vsrc1=0)
        + op("global_store_b32", addr=1, data=0, saddr=4, offset=8)
        + END
    )
    asked: list[tuple[int, int]] = []

    def fill(address: int, size: int, access: int) -> None:
        start = base + (address - base) // 1024 * 1024
        asked.append((start - base, size))
        assert access == layout.WRITE
        if start - base < 8192:
            memory.add(start, 1024, start, layout.WRITE)

    users = (0, 0, 0, 0, base & 0xFFFFFFFF, base >> 32)
    dispatch = Dispatch(text.ctypes.data, (1, 1, 1), (32, 1, 1), users)
    Machine(memory, on_miss=fill).run(dispatch)
    assert asked == [(1024 * page, 4) for page in range(8)]
    np.testing.assert_array_equal(array[2::64], np.arange(32))
    with pytest.raises(WaveFault) as caught:
        Machine(memory, on_miss=fill).run(replace(dispatch, block=(33, 1, 1)))
    assert caught.value.address == base + 8192 + 8


CACHED = """
import sys
sys.modules["llvmlite"] = None
import numpy as np
from sim.isa.asm import evaluate, words
print(evaluate("v_add_nc_u32", words([40]), words([2]))[0])
"""


def test_a_cached_engine_needs_no_llvm() -> None:
    evaluate("v_add_nc_u32", words([1]), words([2]))  # compiles what is not in the cache
    found = subprocess.run(
        [sys.executable, "-c", CACHED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.stdout.strip() == "42"
