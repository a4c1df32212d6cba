"""Mistakes put into the driver of cards on PCI, and the test that finds each on the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu.autogen.nv import gsp
from gpu.drivers.nv.pci import boot, bootargs, chip, fsp, layout, msgq
from gpu.drivers.nv.pci.fsp import Mailbox
from gpu.drivers.nv.pci.msgq import Queues
from gpu.drivers.nv.pci.registers import Value
from mutating import Apply, Mutations, Patcher
from nv import test_pci_boot

TESTS = {
    name[5:]: getattr(test_pci_boot, name)
    for name in dir(test_pci_boot)
    if name.startswith("test_")
}
MUTATIONS = Mutations(TESTS)
BOOTS, LEFT, CALLS = (
    "a_card_boots_and_is_given_back_and_boots_again",
    "a_card_that_somebody_left_running_is_reset",
    "calls_wrap_in_both_queues",
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


@mutation(BOOTS, "gh100", 3)
def there_is_no_page_to_flush_to(patch: Patcher) -> None:
    find = boot.find_memory

    def late(card: Any) -> None:
        find(card)
        for half in ("HI", "LO"):
            card.registers.common.write(Value(VALUE=0), f"{card.chip.flush}_{half}")

    steps = (replace(each, run=late) if each.name == "memory" else each for each in boot.STEPS)
    patch.setattr(boot, "STEPS", tuple(steps))


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
