"""The steps that bring a card from having power to RM running on its GSP.

    claim -> state -> reset -> ready -> memory -> images -> arguments -> protect -> start -> init

All that GSP, FSP and the Falcons read is the machine's memory. What differs between families is
below ``protect`` and ``start``: on Hopper and Blackwell FSP's chain of trust, in
`gpu.drivers.nv.pci.fsp`; on Ampere and Ada code of the VBIOS and booter, in
`gpu.drivers.nv.pci.booter`.

Sources: kgspInitRm, kgspBootstrap_{TU102,GH100}, kgspTeardown_{TU102,GH100},
kfspWaitForGspTargetMaskReleased_GH100 of open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.bits import align_up
from gpu.core.errors import DeviceError, Unsupported
from gpu.core.firmware import load as load_firmware
from gpu.core.pci import PciAddress
from gpu.core.wait import Waiter
from gpu.drivers.boot import Done, Step, walk
from gpu.drivers.card import ALL_ONES, Load, cards_of, choose_card
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.pci import bootargs, events, fsp
from gpu.drivers.nv.pci.booter import Cores, FalconWay
from gpu.drivers.nv.pci.chip import INSTANCE_BAR, MMIO_BAR, PAGE, VRAM_BAR, NvCard
from gpu.drivers.nv.pci.chips import Way, find_chip
from gpu.drivers.nv.pci.images import (
    Bootloader,
    Fmc,
    GspImage,
    parse_bootloader,
    parse_fmc,
    parse_gsp,
)
from gpu.drivers.nv.pci.layout import Placed, Reserved, make_wpr_meta
from gpu.drivers.nv.pci.msgq import SIZE as QUEUES_SIZE
from gpu.drivers.nv.pci.msgq import Queues
from gpu.drivers.nv.pci.registers import (
    GFW_BOOT,
    GFW_BOOT_MASK,
    HWCFG2,
    PMC_BOOT_42,
    RISCV_CPUCTL,
    WPR2_ADDR,
    Value,
    is_locked,
)
from gpu.transport.missing import NO_PCI_NVIDIA
from gpu.transport.pci.function import DmaMemory, PciFunction
from gpu.transport.world import World

_NVIDIA: Final = 0x10DE
_READY: Final = 0xFF
_AFTER_RESET: Final = 0.1  # seconds in which nothing of a function may be touched
_MOST_VRAM: Final = 1 << 42
CRASH_QUEUE_SIZE: Final = 4096  # kgspGetCrashcatSysmemBufferSize, of GB20x alone
_QUEUE_SECONDS: Final = 1.0  # for a place in the command queue, as RM
_LINK_SECONDS: Final = 4.0
_LEAVE_SECONDS: Final = 10.0


class BootCard(NvCard):
    """A card with what its boot has made for it.

    Attributes: those of `NvCard`, and
        cores: of GSP.
        image, bootloader, fmc: its firmware, taken apart; ``falcon_way`` of Ampere and Ada.
        meta, meta_at: what the firmware is told of memory, and where that is on the bus.
        libos_at, fmc_params_at: where its other arguments are.
        queues: between driver and GSP.
        logs: memory of libos' tasks' logs, in the order of `bootargs.LOGS`.
        crash_queue: where firmware queues reports of its crashes, on chips that do so in the
            machine's memory; on others it is in GSP's own.
        runs: whether firmware was given to it, which has not ended.
    """

    image: GspImage
    bootloader: Bootloader
    fmc: Fmc
    falcon_way: FalconWay
    meta: gsp.GspFwWprMeta
    meta_at: int = 0
    libos_at: int = 0
    fmc_params_at: int = 0
    queues: Queues
    runs: bool = False

    def __init__(self, function: PciFunction, waiter: Waiter, *, load: Load = load_firmware):
        """``load`` gives what a firmware file holds."""
        super().__init__(function, waiter, load=load)
        self.cores = Cores(self)
        self.logs: list[DmaMemory] = []
        self.crash_queue: DmaMemory | None = None

    def evidence(self) -> dict[str, bytes]:
        """What firmware has logged, as it wrote it: by names of the logs, CRASHES for its reports.

        Logs are as long as firmware was given room for them; nothing is there before that.
        """
        found = {
            name: memory.window.load(0, bootargs.LOG_SIZE)
            for name, memory in zip(bootargs.LOGS, self.logs, strict=False)
        }
        if self.crash_queue is not None:
            found["CRASHES"] = self.crash_queue.window.load(0, CRASH_QUEUE_SIZE)
        return found


def claim(card: BootCard) -> None:
    """The function is a GPU of NVIDIA's, of a chip that this driver boots, and it answers."""
    function = card.function
    if function.ids.vendor != _NVIDIA:
        raise Unsupported(f"{function.address} is of vendor {function.ids.vendor:#06x}, not NVIDIA")
    missing = [bar for bar in (MMIO_BAR, VRAM_BAR, INSTANCE_BAR) if bar not in function.bars]
    if missing:
        raise Unsupported(f"{function.address} has no BAR {missing[0]}: it is no GPU of NVIDIA's")
    function.set_bus_master(True)
    common = card.registers.common
    if common.read("PMC_BOOT_0").value == ALL_ONES:
        raise DeviceError(
            f"{function.address}: its registers read as ones: it is off the bus, asleep or in reset"
        )
    which = common.read(PMC_BOOT_42)
    card.chip_name, card.chip = find_chip(which.ARCHITECTURE, which.IMPLEMENTATION)


def find_state(card: BootCard) -> None:
    """Whether memory is protected: then somebody's GSP runs, or was left so."""
    card.state = "alive" if is_protected(card) else "cold"


def is_protected(card: BootCard) -> bool:
    """Whether WPR2 is up."""
    return WPR2_ADDR.parse(card.registers.common.read("WPR2_ADDR_HI").value).VAL != 0


def reset(card: BootCard) -> None:
    """A card on which a GSP ran is reset. Raises BootError where that leaves WPR2 up."""
    if card.state == "cold":
        return
    function = card.function
    function.set_bus_master(False)
    function.reset()
    card.sleep(_AFTER_RESET)
    function.set_bus_master(True)
    if is_protected(card):
        common = card.registers.common
        value = common.read("WPR2_ADDR_HI").value
        more = "a reset of the function did not take it down: the card must lose power"
        raise card.fail(common, "WPR2_ADDR_HI", value, "0: no protected memory", more)
    card.state = "cold"


def wait_ready(card: BootCard) -> None:
    """The card's own firmware has finished its start."""
    common, name = card.registers.common, card.chip.ready
    if card.chip.way is Way.FALCON:
        card.wait(
            *(common, "GFW_BOOT_MASK"),
            lambda value: bool(GFW_BOOT_MASK.parse(value).READ_PROTECTION_LEVEL0),
            "READ_PROTECTION_LEVEL0: progress may be read",
        )
        card.wait(common, name, lambda v: GFW_BOOT.parse(v).PROGRESS == _READY, "PROGRESS 0xff")
        return
    card.wait(common, name, lambda value: value == _READY, "0xff: FSP has started")


def find_memory(card: BootCard) -> None:
    """How much video memory there is; the card gets a page to flush to, before any engine's reset.

    The page stays while the card may write to the machine's memory.
    """
    common = card.registers.common
    size = common.read("FB_SIZE").value << 20
    if not 0 < size < _MOST_VRAM:
        raise DeviceError(f"{card.name}: FB_SIZE says {size:#x} bytes of video memory")
    card.vram_size = size
    page = card.place(b"", "the page that it flushes to")
    if card.chip.flush == "FLUSH_GA10X":
        page >>= 8
    common.write(Value(VALUE=page >> 32), f"{card.chip.flush}_HI")
    common.write(Value(VALUE=page & 0xFFFF_FFFF), f"{card.chip.flush}_LO")


def read_images(card: BootCard) -> None:
    """Firmware is found by its hashes, and taken apart. Raises FirmwareError, FormatError."""
    chip = card.chip
    files = {part: card.load(chip.firmware(part)) for part in chip.parts}
    card.image = parse_gsp(files["gsp"], chip)
    card.bootloader = parse_bootloader(files["bootloader"])
    if chip.way is Way.FSP:
        card.fmc = parse_fmc(files["fmc"], chip)
    else:
        card.falcon_way = FalconWay(card, card.cores, files)


def place_arguments(card: BootCard) -> None:
    """Images, queues and arguments lie where the card finds them; two calls wait for RM."""
    image, bootloader = card.image, card.bootloader
    placed = Placed(
        image=_place_image(card, image.image),
        image_size=len(image.image),
        bootloader=card.place(bootloader.image, "the bootloader"),
        signature=card.place(image.signature, "the signature of GSP's image"),
        signature_size=align_up(len(image.signature), PAGE),
    )
    reserved = card.falcon_way.reserved() if card.chip.way is Way.FALCON else Reserved()
    card.meta = make_wpr_meta(card.chip, card.vram_size, placed, bootloader, reserved)
    if card.chip.family == "gb20x":
        card.crash_queue = card.allocate_dma(CRASH_QUEUE_SIZE)
        queue_at = card.bus_pages(card.crash_queue, "the queue of crash reports")[0]
        card.meta.sysmemAddrOfCrashReportQueue = queue_at
        card.meta.sizeOfCrashReportQueue = CRASH_QUEUE_SIZE
    card.meta_at = card.place(bytes(card.meta), "WPR meta")
    _make_queues(card)
    regions = {name: _place_log(card) for name in bootargs.LOGS}
    rmargs = bootargs.make_rmargs(card.queues.arguments)
    regions[bootargs.RMARGS] = (card.place(rmargs, "RM's arguments"), PAGE)
    libos = bootargs.make_libos(regions)
    card.libos_at = card.place(libos, "libos' arguments", gsp.LIBOS_INIT_ARGUMENTS_SIZE)


def _place_image(card: BootCard, image: bytes) -> int:
    """RM's image as a tree of pages, which may lie anywhere; where its root is."""
    levels = bootargs.radix3_levels(len(image))
    memory = card.hold_dma(sum(levels) * PAGE)
    pages = card.bus_pages(memory, "GSP's image")
    memory.window.store(0, bootargs.radix3_tables(levels, pages))
    memory.window.store(sum(levels[:-1]) * PAGE, image)
    return pages[0]


def _place_log(card: BootCard) -> tuple[int, int]:
    """Memory for the log of one of libos' tasks: where it is, and its size."""
    memory = card.allocate_dma(bootargs.LOG_SIZE)
    pages = card.bus_pages(memory, "a log")
    memory.window.store(0, bootargs.log_head(pages))
    card.logs.append(memory)
    return pages[0], bootargs.LOG_SIZE


def _make_queues(card: BootCard) -> None:
    """The queues, with what RM is to know before it starts."""
    memory = card.hold_dma(QUEUES_SIZE)
    block = card.registers.gsp
    card.queues = Queues(
        memory.window,
        card.bus_pages(memory, "the queues"),
        card.wait_value,
        lambda: block.write(Value(VALUE=0), "QUEUE_HEAD"),
    )
    function = card.function
    info = bootargs.make_system_info(
        *(function.address, function.ids, function.config, (MMIO_BAR, VRAM_BAR, INSTANCE_BAR)),
        card.chip.config_mirror,
    )
    send = card.queues.send
    send(gsp.NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO, info, _QUEUE_SECONDS)
    registry = bootargs.make_registry(bootargs.REGISTRY)
    send(gsp.NV_VGPU_MSG_FUNCTION_SET_REGISTRY, registry, _QUEUE_SECONDS)


def protect(card: BootCard) -> None:
    """WPR2 begins to be made: FSP is asked for all of it, or FWSEC of the VBIOS makes FRTS."""
    card.runs = True
    if card.chip.way is Way.FALCON:
        card.falcon_way.make_frts(card.meta)
        return
    params = bootargs.make_fmc_params(card.meta_at, card.libos_at)
    card.fmc_params_at = card.place(params, "the FMC's arguments")
    fmc_at = card.place(card.fmc.image, "the FMC")
    packet = fsp.make_cot(card.chip, card.fmc, fmc_at, card.fmc_params_at)
    fsp.Mailbox(card).ask(gsp.NVDM_TYPE_COT, packet)


def start(card: BootCard) -> None:
    """GSP's firmware runs on its RISC-V core."""
    cores = card.cores
    cores.libos_at, cores.app_version = card.libos_at, card.bootloader.app_version
    if card.chip.way is Way.FALCON:
        card.falcon_way.start(card.meta_at)
    else:
        _wait_fmc(card)
    cores.run_rm()


def _wait_fmc(card: BootCard) -> None:
    """Waits until FSP, then the FMC let the host to GSP. Raises BootError with the FMC's code.

    First the target mask: until it is released GSP's registers read as 0 or 0xBADF41xx, in which
    the bit of the lockdown is 0. Then the lockdown. Until the FMC has read them, its arguments'
    address is in the mailboxes, which is no error.
    """
    block = card.registers.gsp
    hwcfg2 = block.offset_of("FALCON_HWCFG2")
    card.wait_value(
        lambda: card.mmio.read(hwcfg2, 4),
        lambda value: value not in (0, ALL_ONES) and not is_locked(value),
        *("GSP.FALCON_HWCFG2", "neither 0 nor 0xbadf41xx: FSP releases its target mask", 4.0),
    )

    def is_over(value: int) -> bool:
        return not HWCFG2.parse(value).RISCV_BR_PRIV_LOCKDOWN or bool(_fmc_error(card))

    wanted = "RISCV_BR_PRIV_LOCKDOWN 0: the FMC lets the host in"
    card.wait(block, "FALCON_HWCFG2", is_over, wanted)
    if code := _fmc_error(card):
        raise card.fail(block, "FALCON_MAILBOX0", code, "0", "the FMC gave up with this code")


def _fmc_error(card: BootCard) -> int:
    """The FMC's error code, 0 for none."""
    low = card.cores.gsp.get("FALCON_MAILBOX0")
    if not low or is_locked(low):
        return 0
    high = card.cores.gsp.get("FALCON_MAILBOX1")
    return 0 if high << 32 | low == card.fmc_params_at else low


def wait_init(card: BootCard) -> None:
    """RM has made its queue, and says that it is up."""
    card.queues.link(_LINK_SECONDS)
    events.wait_for(card, card.queues, gsp.NV_VGPU_MSG_EVENT_GSP_INIT_DONE, card.cores)


STEPS: Final[tuple[Step[BootCard], ...]] = (
    Step(
        "claim",
        "the function is a GPU's of a known chip, may reach memory, and its registers answer",
        (),
        ("function",),
        1.0,
        claim,
    ),
    Step("state", "whether somebody's GSP runs on it", ("function",), ("state",), 0.5, find_state),
    Step(
        "reset",
        "a card on which one runs goes back to where it was when it got power (FLR)",
        ("state",),
        ("cold",),
        5.0,
        reset,
    ),
    Step(
        "ready",
        "the card's own firmware has finished its start (GFW boot, FSP)",
        ("cold",),
        ("ready",),
        10.5,
        wait_ready,
    ),
    Step(
        "memory",
        "video memory has a size, and what the card writes has a page to be flushed to",
        ("ready",),
        ("memory", "flush"),
        0.5,
        find_memory,
    ),
    Step(
        "images",
        "firmware 570.144 is found by its hashes, and taken apart",
        ("ready",),
        ("images",),
        30.0,
        read_images,
    ),
    Step(
        "arguments",
        "images, queues and arguments lie in the machine's memory, where the card finds them",
        ("images", "memory"),
        ("arguments",),
        30.0,
        place_arguments,
    ),
    Step(
        "protect",
        "protected memory is asked for (FSP's chain of trust, or FWSEC for FRTS)",
        ("arguments", "flush"),
        ("protected",),
        10.0,
        protect,
    ),
    Step("start", "GSP's firmware runs", ("protected",), ("gsp",), 15.0, start),
    Step("init", "RM says that it is up (GSP_INIT_DONE)", ("gsp",), ("rm",), 30.0, wait_init),
)
"""What brings a card from having power to taking RM's calls."""


def cards(world: World) -> Sequence[PciAddress]:
    """GPUs of NVIDIA's on the bus, in order; none is opened."""
    return cards_of(world, _NVIDIA)


def take_card(world: World, index: int, load: Load = load_firmware) -> BootCard:
    """A card's function for this process, nothing of it touched, by its place in `cards`.

    Raises as `PciBus.open`, InvalidIndex, DeviceError where there is none.
    """
    address = choose_card(cards(world), "NV", index, NO_PCI_NVIDIA)
    return BootCard(world.pci.open(address), world.waiter, load=load)


def boot(card: BootCard, until: str | None = None) -> Iterator[Done]:
    """Walks the steps of a card; `gpu.drivers.boot.walk` says what it raises."""
    return walk(card, STEPS, until)


def close_card(card: BootCard) -> None:
    """Ends what a boot began, as far as it came, and gives the function back.

    Firmware that does not end by itself is ended by a reset, once it reaches no memory any more.
    """
    with Undo() as undo:
        undo.add(card.function.close)
        for memory in card.dma:
            undo.add(memory.close)
        undo.add(_stop, card)
        undo.add(card.function.set_bus_master, False)
        if "init" in card.done and not card.lost:
            undo.add(leave, card)


def _stop(card: BootCard) -> None:
    if card.runs:
        card.function.reset()


def leave(card: BootCard) -> None:
    """RM ends, and WPR2 comes down. Raises FirmwareError, BootError, BootTimeout."""
    card.begin("leaving", card.waiter.now_ns() + round(_LEAVE_SECONDS * 1e9))
    unload = gsp.NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER
    payload = bytes(gsp.rpc_unloading_guest_driver_v1F_07())
    card.queues.send(unload, payload, _QUEUE_SECONDS)
    events.wait_for(card, card.queues, unload, card.cores)
    if card.chip.way is Way.FALCON:
        card.falcon_way.leave()
    else:
        card.wait(
            *(card.registers.gsp, "RISCV_CPUCTL"),
            lambda value: bool(RISCV_CPUCTL.parse(value).HALTED),
            "HALTED: RM has ended",
        )
    common = card.registers.common
    card.wait(
        *(common, "WPR2_ADDR_HI", lambda value: WPR2_ADDR.parse(value).VAL == 0),
        "0: protected memory is given back",
    )
    card.runs = False
