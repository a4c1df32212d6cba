"""A falcon: a small processor that a driver loads by DMA and starts, once its boot ROM agrees.

Registers, bits and their order are those of dev_falcon_v4.h, dev_falcon_second_pri.h,
dev_fbif_v4.h, dev_riscv_pri.h of ga102, kernel_falcon_ga102.c and kernel_gsp_falcon_ga102.c. How
deep the queue of DMA requests is, the sizes of its memories, times, and that a falcon which has run
signed code is reset before it is loaded again, are the model's own (U).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Final

from gpu.sim.nv.pci.registers import LOCKED, Refused
from gpu.sim.nv.pci.signed import BLOCK, Engine, Loaded, Signed, why_unsigned
from gpu.sim.nv.pci.silicon import Halt, Silicon

BASES: Final = {Engine.GSP: 0x110000, Engine.SEC2: 0x840000}
NAMES: Final = {Engine.GSP: "NV_PGSP", Engine.SEC2: "NV_PSEC"}
UNKNOWN_UCODE, NO_VECTOR = 0x21, 0x22
_SECOND: Final = 0x1000
_MEMORY_BYTES: Final = 64 << 10  # each of the two
_DEPTH: Final = 4
_RISCV, _SCRUBBING, _RESET_READY = 1 << 10, 1 << 12, 1 << 31
_START, _HALTED, _ALIAS_EN = 1 << 1, 1 << 4, 1 << 6
_FULL, _IDLE, _IMEM, _WRITE, _DMTAG = 1 << 0, 1 << 1, 1 << 4, 1 << 5, 1 << 16
_SIZE_256: Final = 6
_VALID, _CORE, _FETCH, _ACTIVE = 1 << 0, 1 << 4, 1 << 8, 1 << 7
_COHERENT, _PHYSICAL, _NO_CONTEXT = 1, 1 << 2, 1 << 7
_SCRUB_NS, _DMA_NS, _RUN_NS, _SELECT_NS = 100_000, 2_500, 8_000_000, 2_000


class State(Enum):
    """What it is about."""

    USED = auto()  # something ran on it
    IN_RESET = auto()
    SCRUBBING = auto()
    READY = auto()
    RUNNING = auto()
    RISCV = auto()  # the other core runs


class Falcon:
    """One of them.

    Attributes:
        engine, state: which one, and what it is about.
        images: signed code that it takes, by ucode.
        on_run: what that does; it may raise Halt.
        may_reset: why it cannot be reset now; empty where it can.
        mailbox: what the host has told it, both halves.
    """

    def __init__(
        self,
        chip: Silicon,
        engine: Engine,
        images: Mapping[int, Signed],
        version: Callable[[int], int],
        flush: Callable[[], None],
    ):
        """`version` tells the fuses' version of a ucode, `flush` is what a reset does."""
        self._chip = chip
        self.engine = engine
        self.images = images
        self._version = version
        self._flush = flush
        self.on_run: Callable[[Signed, bytes], None] = lambda image, data: None
        self.may_reset: Callable[[], str] = lambda: ""
        self._name = NAMES[engine]
        self._add_registers(BASES[engine])
        self.forget()

    def forget(self) -> None:
        """As after power-on: the card's own firmware has used it."""
        self.state = State.USED
        self._clear()

    def _clear(self) -> None:
        self._epoch = object()  # what was under way is not any more
        self._blocks: dict[int, tuple[int, bytes, int]] = {}
        self._data = bytearray(_MEMORY_BYTES)
        self._waiting = 0
        self._free_ns = 0
        self._written: set[str] = set()
        self.is_riscv = self._is_selecting = False
        self._alias = self._chip.sim.rng.random() < 0.5

    @property
    def mailbox(self) -> int:
        """What lies in it."""
        low, high = (self._value(f"FALCON_MAILBOX{n}") for n in range(2))
        return high << 32 | low

    @property
    def is_ready_for_riscv(self) -> bool:
        """Whether it was reset, and its other core chosen."""
        return self.state is State.READY and self.is_riscv

    def answer(self, value: int) -> None:
        """Puts something into the mailbox."""
        for number, half in enumerate((value & 0xFFFFFFFF, value >> 32)):
            self._chip.regs.set(f"{self._name}_FALCON_MAILBOX{number}", half)

    def start_riscv(self) -> None:
        """Signed code on another falcon has prepared it, and starts its other core."""
        self.state = State.RISCV

    # Registers.

    def _add_registers(self, base: int) -> None:
        regs, name = self._chip.regs, self._name

        def add(
            register: str,
            offset: int,
            read: Callable[[], int] | None = None,
            write: Callable[[int], None] | None = None,
            writable: bool = True,
        ) -> None:
            regs.add(f"{name}_{register}", base + offset, 0, read, write, writable)

        for number in range(2):
            add(f"FALCON_MAILBOX{number}", 0x40 + 4 * number)
        add("FALCON_OS", 0x80)
        add("FALCON_RM", 0x84)
        add("FALCON_HWCFG2", 0xF4, self._hwcfg2, writable=False)
        add("FALCON_CPUCTL", 0x100, self._cpuctl, partial(self._start, False))
        add("FALCON_BOOTVEC", 0x104, write=partial(self._keep, "FALCON_BOOTVEC"))
        add("FALCON_HWCFG", 0x108, lambda: _MEMORY_BYTES // BLOCK, writable=False)
        add("FALCON_DMACTL", 0x10C, self._dmactl, self._set_dmactl)
        add("FALCON_DMATRFBASE", 0x110)
        add("FALCON_DMATRFMOFFS", 0x114)
        add("FALCON_DMATRFCMD", 0x118, self._dma_state, self._dma)
        add("FALCON_DMATRFFBOFFS", 0x11C)
        add("FALCON_DMATRFBASE1", 0x128)
        add("FALCON_CPUCTL_ALIAS", 0x130, write=partial(self._start, True))
        add("FALCON_ENGINE", 0x3C0, write=self._reset)
        for number in range(8):
            add(f"FBIF_TRANSCFG({number})", 0x600 + 4 * number)
        add("FBIF_CTL", 0x624)
        second = (("MOD_SEL", 0x180), ("BROM_CURR_UCODE_ID", 0x198), ("BROM_ENGIDMASK", 0x19C))
        for register, offset in (*second, ("BROM_PARAADDR(0)", 0x210)):
            add(f"FALCON2_{register}", _SECOND + offset, write=partial(self._keep, register))
        add("RISCV_CPUCTL", _SECOND + 0x388, self._riscv_cpuctl, writable=False)
        add("RISCV_BCR_CTRL", _SECOND + 0x668, self._bcr, self._select)

    def _value(self, register: str) -> int:
        return self._chip.regs.value(f"{self._name}_{register}")

    def _set(self, register: str, value: int) -> None:
        self._chip.regs.set(f"{self._name}_{register}", value)

    def _keep(self, register: str, value: int) -> None:
        """A register of the boot ROM's, which forgets it with a reset."""
        self._check_ready()
        self._written.add(register)
        full = register if register.startswith("FALCON_") else f"FALCON2_{register}"
        self._set(full, value)

    def _check_ready(self) -> None:
        why = {
            State.USED: "something ran on it since its last reset",
            State.IN_RESET: "it is held in reset",
            State.SCRUBBING: "its memories are still scrubbed",
            State.RUNNING: "it runs",
            State.RISCV: "its other core runs",
        }.get(self.state)
        if why:
            raise Refused(f"{self.engine.name}: {why}")

    # Reset and the choice of a core.

    def _reset(self, value: int) -> None:
        if value & ~1:
            raise Refused("it has one bit, RESET")
        why = self.may_reset()
        if self.state is State.RUNNING:
            why = "signed code runs on it"
        if why:
            raise Refused(f"{self.engine.name} is not reset: {why}")
        self._set("FALCON_ENGINE", value)
        if value:
            self.state = State.IN_RESET
        elif self.state is State.IN_RESET:
            self._leave_reset()

    def _leave_reset(self) -> None:
        try:
            self._flush()
        except Halt as why:
            self._chip.violation(f"{self.engine.name} is not reset: {why}")
            return
        self._clear()
        self.state = State.SCRUBBING
        for register in ("FALCON_DMACTL", "FBIF_CTL", "RISCV_BCR_CTRL", "FALCON_OS", "FALCON_RM"):
            self._set(register, 0)
        self._later(_SCRUB_NS, "scrub a falcon's memories", self._scrubbed)

    def _scrubbed(self) -> None:
        self.state = State.READY

    def _later(self, delay_ns: int, what: str, act: Callable[[], None]) -> None:
        """Has something done, unless a reset comes before."""
        epoch = self._epoch

        def run() -> None:
            if self._epoch is epoch:
                act()

        self._chip.later.after(delay_ns, what, run)

    def _hwcfg2(self) -> int:
        busy = self.state in (State.IN_RESET, State.SCRUBBING)
        return _RISCV | _SCRUBBING * busy | _RESET_READY * (self.state is not State.RUNNING)

    def _bcr(self) -> int:
        if self.state is State.RISCV:
            return LOCKED
        return self._value("RISCV_BCR_CTRL") & ~_VALID | _VALID * (not self._is_selecting)

    def _select(self, value: int) -> None:
        self._check_ready()
        if value & ~(_VALID | _CORE | _FETCH):
            raise Refused("it has VALID, CORE_SELECT and BRFETCH, and no other bits")
        self.is_riscv, self._is_selecting = bool(value & _CORE), True
        self._set("RISCV_BCR_CTRL", value)
        self._later(_SELECT_NS, "select a core", self._selected)

    def _selected(self) -> None:
        self._is_selecting = False

    def _riscv_cpuctl(self) -> int:
        return _ACTIVE if self.state is State.RISCV else _HALTED

    # DMA into its memories.

    def _dmactl(self) -> int:
        return self._value("FALCON_DMACTL") | 6 * (self.state is State.SCRUBBING)

    def _set_dmactl(self, value: int) -> None:
        if value & ~1:
            raise Refused("it has REQUIRE_CTX, and no other bit to write")
        self._set("FALCON_DMACTL", value)

    def _dma_state(self) -> int:
        return _FULL * (self._waiting >= _DEPTH) | _IDLE * (not self._waiting)

    def _dma(self, value: int) -> None:
        self._check_ready()
        if self._waiting >= _DEPTH:
            raise Refused("the queue of requests is full")
        if value & _WRITE:
            raise Refused("what the falcon has is not read by a driver")
        if value >> 8 & 7 != _SIZE_256:
            raise Refused(f"a size of {value >> 8 & 7}: 6, of 256 bytes, is modelled")
        if self.is_riscv:
            raise Refused("the other core is selected")
        context = self._value(f"FBIF_TRANSCFG({value >> 12 & 7})")
        if not self._value("FBIF_CTL") & _NO_CONTEXT or self._value("FALCON_DMACTL") & 1:
            raise Refused("DMA without a context is not allowed: FBIF_CTL, DMACTL")
        if context & 7 != _COHERENT | _PHYSICAL:
            raise Refused(f"FBIF_TRANSCFG is {context:#x}, not coherent system memory, physical")
        to, offset = self._value("FALCON_DMATRFMOFFS"), self._value("FALCON_DMATRFFBOFFS")
        if to % BLOCK or offset % BLOCK or to >= _MEMORY_BYTES:
            raise Refused(f"a block from {offset:#x} to {to:#x}: blocks have {BLOCK:#x} bytes")
        base = self._value("FALCON_DMATRFBASE") << 8 | self._value("FALCON_DMATRFBASE1") << 40
        self._waiting += 1
        now = self._chip.sim.clock.now_ns
        self._free_ns = max(self._free_ns, now) + _DMA_NS
        act = partial(self._transfer, value, to, offset, (base + offset) % (1 << 49))
        self._later(self._free_ns - now, "transfer a block", act)

    def _transfer(self, command: int, to: int, offset: int, address: int) -> None:
        self._waiting -= 1
        try:
            data = self._chip.fetch(address, BLOCK, f"a block for {self.engine.name}")
        except Halt as why:
            self._chip.violation(f"{self.engine.name}: {why}")
            return
        if command & _IMEM:
            self._blocks[to] = (offset, data, command >> 2 & 3)
        else:
            self._data[to : to + BLOCK] = data

    # Start.

    def _cpuctl(self) -> int:
        runs = self.state in (State.RUNNING, State.RISCV)
        return _HALTED * (not runs) | _ALIAS_EN * self._alias

    def _start(self, by_alias: bool, value: int) -> None:
        if value != _START:
            raise Refused("it has STARTCPU, and no other bit to write")
        if by_alias is not self._alias:
            raise Refused(f"ALIAS_EN is {int(self._alias)}: the other register starts it")
        self._check_ready()
        if self._waiting:
            raise Refused("DMA is not idle")
        if self.is_riscv:
            raise Refused("the other core is selected")
        if self._value("FALCON_RM") != self._chip.board.boot_0:
            raise Refused("FALCON_RM has not what PMC_BOOT_0 has")
        self._brom()

    def _brom(self) -> None:
        wanted = {"FALCON_BOOTVEC", "MOD_SEL", "BROM_CURR_UCODE_ID", "BROM_ENGIDMASK"}
        missing = sorted((wanted | {"BROM_PARAADDR(0)"}) - self._written)
        if missing:
            self._fail(NO_VECTOR, f"{', '.join(missing)} not written since the reset")
            return
        ucode = self._value("FALCON2_BROM_CURR_UCODE_ID")
        image = self.images.get(ucode)
        if image is None:
            self._fail(UNKNOWN_UCODE, f"no ucode {ucode} is for it")
            return
        loaded = Loaded(
            {tag: (data, security) for tag, data, security in self._blocks.values()},
            bytes(self._data),
            self._value("FALCON2_MOD_SEL"),
            ucode,
            self._value("FALCON2_BROM_ENGIDMASK"),
            self._value("FALCON2_BROM_PARAADDR(0)"),
            self._value("FALCON_BOOTVEC"),
        )
        for code, why in why_unsigned(image, loaded, self._version(ucode)):
            self._fail(code, why)
            return
        self.state = State.RUNNING
        self._later(_RUN_NS, f"run {image.name}", partial(self._run, image, loaded.data))

    def _fail(self, code: int, why: str) -> None:
        self.state = State.USED
        self.answer(code)
        self._chip.violation(f"boot ROM of {self.engine.name}: {why}")

    def _run(self, image: Signed, data: bytes) -> None:
        self.state = State.USED
        self.on_run(image, data)
