"""Mistakes put into the driver of cards on PCI, and the test that finds each on the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu.autogen.nv import alloc, gsp, gspcalls
from gpu.drivers.nv.pci import (
    boot,
    bootargs,
    booter,
    chip,
    contexts,
    fsp,
    gmmu,
    ground,
    layout,
    msgq,
    wiper,
)
from gpu.drivers.nv.pci.booter import Cores, FalconWay
from gpu.drivers.nv.pci.chip import NvCard
from gpu.drivers.nv.pci.contexts import Contexts
from gpu.drivers.nv.pci.falcon import Falcon
from gpu.drivers.nv.pci.fsp import Mailbox
from gpu.drivers.nv.pci.ground import CardGround
from gpu.drivers.nv.pci.memory import CardMemory
from gpu.drivers.nv.pci.msgq import Queues
from gpu.drivers.nv.pci.registers import DMATRFCMD, FALCON_CPUCTL, Value
from mutating import Apply, Mutations, Patcher
from nv import test_pci_boot, test_pci_leavings

TESTS = {
    name[5:]: getattr(module, name)
    for module in (test_pci_boot, test_pci_leavings)
    for name in dir(module)
    if name.startswith("test_")
}
MUTATIONS = Mutations(TESTS)
BOOTS, LEFT, CALLS, KILLED = (
    "a_card_boots_and_is_given_back_and_boots_again",
    "a_card_that_somebody_left_running_is_reset",
    "calls_wrap_in_both_queues",
    "who_opens_a_card_after_a_kill_sees_zeros",
)


def mutation(found_by: str, *arguments: object) -> Callable[[Apply], Apply]:
    """`arguments` are those of the test."""
    return MUTATIONS.found_by(found_by, arguments)


def _nothing(*_: object) -> None:
    """Does nothing."""


def _skip(patch: Patcher, name: str) -> None:
    """A step of the boot does nothing."""
    steps = (replace(each, run=_nothing) if each.name == name else each for each in boot.STEPS)
    patch.setattr(boot, "STEPS", tuple(steps))


def _change(patch: Patcher, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """What a function gives is changed."""
    inner = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: change(inner(*args, **options)))


def _change_params(patch: Patcher, **values: int) -> None:
    """The FMC's arguments about WPR meta have other values."""

    def change(data: bytes) -> bytes:
        params = gsp.GSP_FMC_BOOT_PARAMS.from_buffer_copy(data)
        for name, value in values.items():
            setattr(params.bootGspRmParams, name, value)
        return bytes(params)

    _change(patch, bootargs, "make_fmc_params", change)


def _change_meta(patch: Patcher, **more: int) -> None:
    """WPR meta has other values, by so much."""

    def change(meta: gsp.GspFwWprMeta) -> gsp.GspFwWprMeta:
        for name, value in more.items():
            setattr(meta, name, getattr(meta, name) + value)
        return meta

    _change(patch, boot, "make_wpr_meta", change)


def _lose(patch: Patcher, *names: str) -> None:
    """Some registers of FSP's are not written."""
    put = Mailbox._put

    def forgetful(self: Mailbox, name: str, value: int) -> None:
        if name not in names:
            put(self, name, value)

    patch.setattr(Mailbox, "_put", forgetful)


# Before the firmware


@mutation(LEFT, "gh100")
def that_a_card_runs_is_not_seen(patch: Patcher) -> None:
    patch.setattr(boot, "is_protected", lambda card: False)


@mutation("a_card_that_was_just_plugged_in_is_waited_for", "gh100")
def fsp_is_not_waited_for(patch: Patcher) -> None:
    _skip(patch, "ready")


def _forget_flushing(patch: Patcher) -> None:
    """The page to flush to is told, and then none."""
    find = boot.find_memory

    def late(card: Any) -> None:
        find(card)
        for half in ("HI", "LO"):
            card.registers.common.write(Value(VALUE=0), f"{card.chip.flush}_{half}")

    steps = (replace(each, run=late) if each.name == "memory" else each for each in boot.STEPS)
    patch.setattr(boot, "STEPS", tuple(steps))


@mutation(BOOTS, "gh100", 3)
def there_is_no_page_to_flush_to(patch: Patcher) -> None:
    _forget_flushing(patch)


# FSP


@mutation(BOOTS, "gh100", 3)
def the_head_is_written_before_the_tail(patch: Patcher) -> None:
    put = Mailbox._put
    held: list[int] = []

    def swapped(self: Mailbox, name: str, value: int) -> None:
        if name == "QUEUE_TAIL":
            held.append(value)
            return
        put(self, name, value)
        if name == "QUEUE_HEAD":
            put(self, "QUEUE_TAIL", held.pop())

    patch.setattr(Mailbox, "_put", swapped)


@mutation(BOOTS, "gb202", 3)
def the_tail_is_behind_the_last_word(patch: Patcher) -> None:
    put = Mailbox._put

    def further(self: Mailbox, name: str, value: int) -> None:
        put(self, name, value + 4 * (name == "QUEUE_TAIL"))

    patch.setattr(Mailbox, "_put", further)


@mutation(LEFT, "gh100")
def fsps_words_are_not_counted_on(patch: Patcher) -> None:
    _lose(patch, "EMEMD")


@mutation(BOOTS, "gb202", 3)
def pmus_memory_is_not_left_out(patch: Patcher) -> None:
    patch.setattr(fsp, "frts_offset", lambda row: row.end_reserve)


@mutation(BOOTS, "gb202", 3)
def the_key_has_no_first_byte(patch: Patcher) -> None:
    _change(patch, boot, "parse_fmc", lambda fmc: replace(fmc, key=fmc.key[1:]))


@mutation("what_fsp_refuses_is_told_by_its_code", "gh100")
def fsps_error_code_is_not_read(patch: Patcher) -> None:
    patch.setattr(fsp, "check_response", _nothing)


@mutation(BOOTS, "gh100", 3)
def locked_registers_are_taken_as_unlocked(patch: Patcher) -> None:
    patch.setattr(boot, "is_locked", lambda value: False)
    patch.setattr(chip, "is_error", lambda value: False)


@mutation("what_the_fmc_refuses_is_told_by_its_code", "gb202")
def the_fmcs_error_code_is_not_read(patch: Patcher) -> None:
    patch.setattr(boot, "_fmc_error", lambda card: 0)


# Falcons


def _change_block(patch: Patcher, **values: int) -> None:
    """A register of a falcon's is written with other values."""
    put = Falcon.put
    patch.setattr(Falcon, "put", lambda self, at, value: put(self, at, values.get(at, value)))


def _spare(patch: Patcher, *names: str) -> None:
    """Some registers of a falcon's are not written."""
    put = Falcon.put

    def forgetful(self: Falcon, name: str, value: int) -> None:
        if name not in names:
            put(self, name, value)

    patch.setattr(Falcon, "put", forgetful)


def _load_otherwise(patch: Patcher, change: Callable[..., tuple[Any, ...]]) -> None:
    """What `Falcon._load` is given is changed."""
    load = Falcon._load
    patch.setattr(Falcon, "_load", lambda self, *given: load(self, *change(*given)))


@mutation("a_card_that_was_just_plugged_in_is_waited_for", "ga102")
def the_cards_own_firmware_is_not_waited_for(patch: Patcher) -> None:
    _skip(patch, "ready")


@mutation(BOOTS, "ad102", 3)
def there_is_no_page_that_falcons_flush_to(patch: Patcher) -> None:
    _forget_flushing(patch)


@mutation(BOOTS, "ga102", 3)
def scrubbing_is_not_waited_for(patch: Patcher) -> None:
    wait = NvCard.wait

    def hasty(self: Any, block: Any, name: str, *rest: Any) -> Any:
        return None if name == "FALCON_HWCFG2" else wait(self, block, name, *rest)

    patch.setattr(NvCard, "wait", hasty)


@mutation(BOOTS, "ga102", 3)
def falcons_are_not_reset(patch: Patcher) -> None:
    patch.setattr(Falcon, "_reset_engine", _nothing)


@mutation(BOOTS, "ga102", 3)
def falcon_rm_is_forgotten(patch: Patcher) -> None:
    _spare(patch, "FALCON_RM")


@mutation(BOOTS, "ad102", 3)
def dma_wants_a_context(patch: Patcher) -> None:
    patch.setattr(Falcon, "allow_dma", _nothing)


@mutation(BOOTS, "ga102", 3)
def instruction_memory_is_not_secure(patch: Patcher) -> None:
    def open_(*given: Any) -> tuple[Any, ...]:
        command = given[-1]
        return *given[:-1], DMATRFCMD(SIZE=command.SIZE, IMEM=command.IMEM)

    _load_otherwise(patch, open_)


@mutation(BOOTS, "ad102", 3)
def code_and_data_are_swapped(patch: Patcher) -> None:
    def swap(*given: Any) -> tuple[Any, ...]:
        command = given[-1]
        return *given[:-1], DMATRFCMD(SIZE=command.SIZE, IMEM=not command.IMEM, SEC=command.SEC)

    _load_otherwise(patch, swap)


@mutation(BOOTS, "ga102", 3)
def the_last_block_is_left_out(patch: Patcher) -> None:
    _load_otherwise(patch, lambda at, offset, size, *rest: (at, offset, size - 0x100, *rest))


@mutation(BOOTS, "ad102", 3)
def the_base_is_not_that_of_the_falcons_addresses(patch: Patcher) -> None:
    _load_otherwise(
        patch, lambda at, offset, size, virtual, command: (at, offset, size, 0, command)
    )


@mutation(BOOTS, "ga102", 3)
def a_full_queue_is_written(patch: Patcher) -> None:
    patch.setattr(Falcon, "_wait_dma", _nothing)


@mutation(BOOTS, "ga102", 3)
def the_place_of_the_signature_is_not_told(patch: Patcher) -> None:
    _change_block(patch, BROM_PARAADDR=0)


@mutation(BOOTS, "ad102", 3)
def the_mask_of_engines_is_forgotten(patch: Patcher) -> None:
    _spare(patch, "BROM_ENGIDMASK")


@mutation(BOOTS, "ga102", 3)
def the_ucode_is_another(patch: Patcher) -> None:
    _change_block(patch, BROM_CURR_UCODE_ID=1)


@mutation(BOOTS, "ga102", 3)
def the_algorithm_is_none(patch: Patcher) -> None:
    _change_block(patch, BROM_MOD_SEL=0)


@mutation(BOOTS, "ad102", 3)
def the_boot_vector_is_forgotten(patch: Patcher) -> None:
    _spare(patch, "FALCON_BOOTVEC")


@mutation(BOOTS, "ga102", 3)
def booter_does_not_know_of_memory(patch: Patcher) -> None:
    _spare(patch, "FALCON_MAILBOX0")


@mutation("signatures_are_chosen_by_the_fuses", "ga102")
def the_first_signature_is_taken(patch: Patcher) -> None:
    patch.setattr(Falcon, "fuse_version", lambda self, ucode: 0)


@mutation("both_ways_to_start_a_falcon_are_met", "ga102")
def the_alias_is_not_looked_at(patch: Patcher) -> None:
    def start(self: Falcon) -> None:
        self.block.write(FALCON_CPUCTL(STARTCPU=1), "FALCON_CPUCTL")

    patch.setattr(Falcon, "start", start)


@mutation(BOOTS, "ga102", 3)
def gsp_is_not_reset_to_its_other_core(patch: Patcher) -> None:
    patch.setattr(Falcon, "reset_to_riscv", Falcon.reset)


@mutation(BOOTS, "ad102", 3)
def libos_arguments_are_not_told(patch: Patcher) -> None:
    patch.setattr(Cores, "reset_to_riscv", lambda self: self.gsp.reset_to_riscv())


@mutation("memory_is_scrubbed_where_it_was_not", "ad102")
def nothing_is_scrubbed(patch: Patcher) -> None:
    patch.setattr(FalconWay, "_is_scrubbed", lambda self: True)


@mutation("what_booter_refuses_is_told_by_its_code", "ga102")
def booters_error_code_is_not_read(patch: Patcher) -> None:
    run = Falcon.run
    patch.setattr(Falcon, "run", lambda *given: run(*given) and 0)


@mutation("what_fwsec_refuses_is_told_by_its_code", "ad102")
def fwsecs_error_code_is_not_read(patch: Patcher) -> None:
    patch.setattr(FalconWay, "_check_scratch", _nothing)


@mutation(BOOTS, "ga102", 3)
def frts_is_wanted_elsewhere(patch: Patcher) -> None:
    _change_meta(patch, frtsOffset=-0x20000)


@mutation(BOOTS, "ad102", 3)
def the_heap_reaches_into_the_image(patch: Patcher) -> None:
    _change_meta(patch, gspFwHeapSize=1 << 20)


@mutation(BOOTS, "ga102", 3)
def the_end_of_memory_is_another(patch: Patcher) -> None:
    _change_meta(patch, fbSize=-(1 << 20))


@mutation(BOOTS, "ad102", 3)
def fwsec_is_not_told_of_the_end(patch: Patcher) -> None:
    patch.setattr(booter, "SB", booter.FRTS)


@mutation(BOOTS, "ga102", 3)
def booter_unload_is_given_an_address(patch: Patcher) -> None:
    patch.setattr(booter, "_NO_RESUME", (0, 0))


@mutation(BOOTS, "ga102", 3)
def booter_does_not_unload(patch: Patcher) -> None:
    run = FalconWay._run_sec2
    patch.setattr(
        FalconWay,
        "_run_sec2",
        lambda self, part, boxes: None if part == "booter_unload" else run(self, part, boxes),
    )


# What the firmware reads


@mutation(BOOTS, "gh100", 3)
def wpr_meta_has_another_size(patch: Patcher) -> None:
    _change_params(patch, gspRmDescSize=0x100 - 8)


@mutation(BOOTS, "gb202", 3)
def wpr_meta_is_looked_for_in_video_memory(patch: Patcher) -> None:
    _change_params(patch, target=0)


@mutation(BOOTS, "gh100", 3)
def the_heap_has_no_whole_mib(patch: Patcher) -> None:
    patch.setattr(layout, "align_up", lambda value, to: value + 1)


@mutation(BOOTS, "gb202", 3)
def pmus_reserve_is_not_told(patch: Patcher) -> None:
    def change(meta: gsp.GspFwWprMeta) -> gsp.GspFwWprMeta:
        meta.pmuReservedSize = 0
        return meta

    _change(patch, boot, "make_wpr_meta", change)


@mutation(BOOTS, "gh100", 3)
def parts_of_the_bootloader_are_swapped(patch: Patcher) -> None:
    def swap(loader: Any) -> Any:
        return replace(loader, code_offset=loader.data_offset, data_offset=loader.code_offset)

    _change(patch, boot, "parse_bootloader", swap)


@mutation(BOOTS, "gh100", 3)
def the_image_has_two_levels(patch: Patcher) -> None:
    patch.setattr(bootargs, "LEVELS", 2)


@mutation(BOOTS, "gh100", 3)
def names_of_regions_are_little_endian(patch: Patcher) -> None:
    patch.setattr(bootargs, "region_id", lambda name: int.from_bytes(name.encode(), "little"))


@mutation(BOOTS, "gb202", 3)
def the_log_of_the_start_is_not_first(patch: Patcher) -> None:
    patch.setattr(bootargs, "LOGS", bootargs.LOGS[::-1])


@mutation(BOOTS, "gb202", 3)
def logs_list_no_pages(patch: Patcher) -> None:
    patch.setattr(bootargs, "log_head", lambda pages: bytes(8))


@mutation(BOOTS, "gh100", 3)
def bars_are_told_with_their_flags(patch: Patcher) -> None:
    patch.setattr(bootargs, "_BAR_FLAGS", 0)


@mutation(BOOTS, "gh100", 3)
def bars_are_told_by_their_lower_half(patch: Patcher) -> None:
    patch.setattr(bootargs, "_BAR_64BIT", 0)


# The queues


@mutation(BOOTS, "gh100", 3)
def the_table_does_not_count_its_own_pages(patch: Patcher) -> None:
    patch.setattr(msgq, "TABLE_ENTRIES", msgq._PAGES)


@mutation(BOOTS, "gh100", 3)
def the_header_counts_as_an_element(patch: Patcher) -> None:
    patch.setattr(msgq, "COUNT", msgq.COUNT + 1)


@mutation(BOOTS, "gb202", 3)
def there_is_no_checksum(patch: Patcher) -> None:
    _change(patch, msgq, "make_elements", lambda data: data[:32] + bytes(4) + data[36:])


@mutation(BOOTS, "gb202", 3)
def messages_are_not_counted(patch: Patcher) -> None:
    make = msgq.make_elements
    patch.setattr(
        msgq, "make_elements", lambda function, data, _, call: make(function, data, 0, call)
    )


@mutation(CALLS, "gh100")
def the_doorbell_is_forgotten(patch: Patcher) -> None:
    patch.setattr(boot, "Queues", lambda *args: Queues(*args[:-1], _nothing))


@mutation(CALLS, "gb202")
def what_was_read_is_not_told(patch: Patcher) -> None:
    patch.setattr(Queues, "_tell_read", _nothing)


@mutation(CALLS, "gh100")
def reading_does_not_wrap(patch: Patcher) -> None:
    def straight(self: Queues, index: int) -> bytes:
        at = msgq._ENTRIES + (self._read + index) * msgq.ELEMENT
        return self._status.load(at, msgq.ELEMENT)

    patch.setattr(Queues, "_element", straight)


@mutation(CALLS, "gh100")
def calls_have_no_numbers(patch: Patcher) -> None:
    make = msgq.make_elements
    patch.setattr(msgq, "make_elements", lambda function, data, n, _: make(function, data, n, 0))


# Leaving


@mutation(BOOTS, "gh100", 3)
def rm_is_not_asked_to_end(patch: Patcher) -> None:
    patch.setattr(boot, "leave", _nothing)


@mutation("a_boot_that_ends_at_any_step_can_be_begun_anew", "gh100", "start")
def firmware_runs_on_when_its_memory_goes(patch: Patcher) -> None:
    patch.setattr(boot, "_stop", _nothing)


# Objects, channels, memory


@mutation(KILLED, "gh100")
def memory_is_not_cleared(patch: Patcher) -> None:
    patch.setattr(wiper.Wiper, "clear", _nothing)


@mutation(KILLED, "ga102")
def half_of_it_is_cleared(patch: Patcher) -> None:
    inner = wiper.fill
    patch.setattr(
        wiper, "fill", lambda at, number, width, size: inner(at, number, width, size // 2)
    )


@mutation(KILLED, "gh100")
def contexts_have_no_room(patch: Patcher) -> None:
    patch.setattr(Contexts, "promote", _nothing)


@mutation(KILLED, "ad102")
def the_common_buffers_are_not_promoted(patch: Patcher) -> None:
    patch.setattr(contexts, "_COMMON", (3, 4))


@mutation(KILLED, "gh100")
def tokens_lack_their_runlist(patch: Patcher) -> None:
    _change(patch, CardGround, "token", lambda token: token & 0xFFFF)


@mutation(KILLED, "gb202")
def tokens_lack_their_mark(patch: Patcher) -> None:
    _change(patch, CardGround, "token", lambda token: token & ~(1 << 30))


@mutation(KILLED, "gh100")
def groups_are_not_scheduled(patch: Patcher) -> None:
    patch.setattr(CardGround, "schedule", _nothing)


@mutation(KILLED, "ga102")
def pages_are_of_another_kind(patch: Patcher) -> None:
    patch.setattr(gmmu, "_GENERIC", 5)


@mutation(KILLED, "gh100")
def pages_of_the_machine_are_the_cards(patch: Patcher) -> None:
    patch.setattr(gmmu, "_COHERENT", 0)


@mutation(KILLED, "ga102")
def numbers_of_channels_begin_anew(patch: Patcher) -> None:
    _change(patch, CardGround, "_draw", lambda drawn: (drawn[0], 1))


@mutation(KILLED, "gb202")
def tables_hold_no_pages(patch: Patcher) -> None:
    patch.setattr(CardMemory, "root_entries", 8)


@mutation(KILLED, "gh100")
def parts_of_channels_are_said_to_be_the_machines(patch: Patcher) -> None:
    patch.setattr(gspcalls, "ADDR_FBMEM", gspcalls.ADDR_SYSMEM)


@mutation(KILLED, "ga102")
def half_an_instance_is_given(patch: Patcher) -> None:
    patch.setattr(ground, "_INSTANCE_SIZE", 0x800)


@mutation(KILLED, "gb202")
def half_of_ramfc_is_given(patch: Patcher) -> None:
    patch.setattr(ground, "_RAMFC_SIZE", 0x100)


@mutation(KILLED, "gh100")
def numbers_are_left_to_firmware(patch: Patcher) -> None:
    patch.setattr(gspcalls, "NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_FIXED", 0)


@mutation(KILLED, "ad102")
def contexts_are_too_small(patch: Patcher) -> None:
    patch.setattr(contexts, "_MAIN_MORE", -0x20000)


@mutation(KILLED, "gh100")
def tables_are_said_to_be_rms(patch: Patcher) -> None:
    patch.setattr(alloc, "NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED", 0)


@mutation(KILLED, "ga102")
def pages_are_privileged(patch: Patcher) -> None:
    patch.setattr(gmmu, "_VALID", 1 | 1 << 5)
