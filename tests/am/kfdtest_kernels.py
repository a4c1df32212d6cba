"""What kfdtest's shaders do, as RDNA3 code, and the PM4 packets that launch it.

A kernel finds its arguments, addresses, in s[0:1] and on, and the number of its workgroup behind
them; v0 is the work-item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim.isa.asm import END, op
from sim.raw_kfd import ACCESS, PAGE, VRAM, Buffer, RawKfd, RawQueue, halves, packet3

STOP: Final = 0x1234
"""What ends `persistent`."""
FLAG: Final = 0x5678
"""What `poll` waits for, and then writes."""
_ZERO, _ONE, _LITERAL = 128, 129, 255
_RSRC1: Final = 0x60AF0000  # 8 vector registers; floats as compilers ask for
_GROUP_ID: Final = 1 << 7  # COMPUTE_PGM_RSRC2.TGID_X_EN


def _until(address: int, value: int, body: bytes = b"") -> bytes:
    """Does `body` until the word at s[address:address + 1] is `value`."""
    loop = body + op("s_load_b32", sdata=20, sbase=address // 2, glc=1)
    loop += op("s_waitcnt", simm16=0)
    loop += op("s_cmp_eq_u32", ssrc0=20, ssrc1=_LITERAL, literal=value)
    return loop + op("s_cbranch_scc0", simm16=-(len(loop) // 4 + 1) & 0xFFFF)


def _store(address: int, register: int, place: int = 7) -> bytes:
    """A vector register to s[address:address + 1], at the offset that a register holds."""
    return op("global_store_b32", addr=place, data=register, saddr=address, glc=1)


NOTHING: Final = END
FOREVER: Final = op("s_nop", simm16=15) + op("s_branch", simm16=-2 & 0xFFFF) + END
_AT_ZERO: Final = op("v_mov_b32", vdst=7, src0=_ZERO)
COPY: Final = (
    _AT_ZERO
    + op("global_load_b32", vdst=1, addr=7, saddr=0, glc=1)
    + op("s_waitcnt", simm16=0)
    + _store(2, 1)
    + END
)
"""The word at the first address to the second."""
COUNT: Final = (
    _AT_ZERO
    + op("v_mov_b32", vdst=1, src0=_ONE)
    + op("global_atomic_add_u32", vdst=2, addr=7, data=1, saddr=0, glc=1)
    + op("s_waitcnt", simm16=0)
    + END
)
"""Each work-item adds 1 at the address."""
POLL: Final = (
    _until(0, FLAG)
    + _AT_ZERO
    + op("v_mov_b32", vdst=1, src0=_LITERAL, literal=FLAG)
    + _store(2, 1)
    + END
)
"""Waits for FLAG at the first address, then writes it to the second."""
POLL_AND_COPY: Final = (
    _until(0, 1) + _AT_ZERO + op("s_load_b32", sdata=21, sbase=0, offset=4, glc=1)
    + op("s_waitcnt", simm16=0) + op("v_mov_b32", vdst=1, src0=21) + _store(2, 1) + END
)  # fmt: skip
"""Waits for a 1 at the first address, then copies the word behind it to the second."""
WRITE_AND_FLAG: Final = (
    _AT_ZERO
    + op("global_load_b32", vdst=1, addr=7, saddr=2, glc=1)
    + op("s_waitcnt", simm16=0)
    + op("global_store_b32", addr=7, data=1, saddr=0, offset=4, glc=1)
    + op("s_waitcnt_vscnt", sdst=124, simm16=0)
    + op("v_mov_b32", vdst=1, src0=_ONE)
    + _store(0, 1)
    + END
)
"""The word at the second address to behind the first, then a 1 to the first."""
PERSISTENT: Final = (
    op("v_lshlrev_b32", vdst=7, src0=_ZERO + 2, vsrc1=0)
    + op("s_lshl_b32", sdst=21, ssrc0=6, ssrc1=_ZERO + 8)  # 64 work-items of 4 bytes a group
    + op("v_add_nc_u32", vdst=7, src0=21, vsrc1=7)
    + op("v_mul_u32_u24", vdst=2, src0=_LITERAL, vsrc1=7, literal=0x10001)
    + op("v_mov_b32", vdst=3, src0=_ZERO)
    + op("v_mov_b32", vdst=4, src0=_ZERO)
    + _until(
        0,
        STOP,
        op("v_add_nc_u32", vdst=3, src0=_ONE, vsrc1=3) + _store(4, 3, place=4),
    )
    + _store(2, 2)
    + END
)
"""Counts at the third address until STOP is at the first; then each writes what it kept."""


def kept(item: int) -> int:
    """What work-item `item` of PERSISTENT writes."""
    return 4 * item * 0x10001


def load(user: RawKfd, code: bytes) -> Buffer:
    """Code in memory of the GPU."""
    buffer = user.alloc(PAGE, VRAM | ACCESS)
    buffer.host.store(0, code)
    return buffer


def launch(
    code: Buffer, arguments: Sequence[int] = (), *, groups: int = 1, items: int = 32
) -> list[int]:
    """A dispatch: SET_SH_REG of the registers from COMPUTE_PGM_LO = 0x20c, DISPATCH_DIRECT."""
    words = [half for address in arguments for half in halves(address)]
    words += [0] * (len(words) % 2)
    rsrc2 = len(words) << 1 | _GROUP_ID
    packets = packet3(0x76, 0x20C, *halves(code.va >> 8)) + packet3(0x76, 0x212, _RSRC1, rsrc2)
    packets += packet3(0x76, 0x204, 0, 0, 0, items, 1, 1)
    if words:
        packets += packet3(0x76, 0x240, *words)
    return packets + packet3(0x15, groups, 1, 1, 0x8001)  # wave32, compute


def idle(queue: RawQueue, turns: int = 2) -> None:
    """Lets the engines work for a while; a kernel that does not end is not waited for."""
    for _ in range(turns):
        queue.user.world.waiter.idle(1000)
