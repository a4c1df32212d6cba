"""Mistakes put into the driver of cards on PCI, and the test that finds each on the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from am import test_pci_boot, test_pci_rules
from gpu.drivers.am.pci import entries
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import Access
from gpu.drivers.am.pci.ip import gmc
from gpu.drivers.am.pci.ip.gmc import Hub
from gpu.drivers.am.pci.ip.ih import Ring
from gpu.drivers.am.pci.ip.smu import Smu
from gpu.drivers.am.pci.memory import Allocation, PciMemory
from gpu.drivers.am.pci.registers import Block
from mutating import Apply, Mutations, Patcher

TESTS = {
    name[5:]: getattr(module, name)
    for module in (test_pci_boot, test_pci_rules)
    for name in dir(module)
    if name.startswith("test_")
}
MUTATIONS = Mutations(TESTS)


def mutation(found_by: str, *arguments: object) -> Callable[[Apply], Apply]:
    """`arguments` are those of the test."""
    return MUTATIONS.found_by(found_by, arguments)


def _nothing(*_: object) -> None:
    """Does nothing."""


def _without(patch: Patcher, name: str) -> None:
    """Memory does something without dropping TLBs."""
    inner = getattr(PciMemory, name)

    def quiet(self: PciMemory, *arguments: Any) -> Any:
        self._invalidate = _nothing  # type: ignore[method-assign]
        try:
            return inner(self, *arguments)
        finally:
            del self._invalidate

    patch.setattr(PciMemory, name, quiet)


def _lose(patch: Patcher, register: str) -> None:
    """A register is not written."""
    store = Block.set

    def forgetful(self: Block, name: str, value: int, shift: int = 0) -> None:
        if name != register:
            store(self, name, value, shift)

    patch.setattr(Block, "set", forgetful)


# Translation


@mutation("private_caches_forget", "gfx1100")
def private_caches_are_not_told(patch: Patcher) -> None:
    patch.setattr(gmc, "_PRIVATE_INVALIDATION", 0)


@mutation("private_caches_forget", "gfx1201")
def the_semaphore_is_kept(patch: Patcher) -> None:
    _lose(patch, "MMVM_INVALIDATE_ENG17_SEM")


@mutation("that_memory_was_not_there_is_forgotten", "gfx1100")
def mapping_drops_no_tlb(patch: Patcher) -> None:
    _without(patch, "_map")


@mutation("what_was_freed_is_not_reached_any_more")
def unmapping_drops_no_tlb(patch: Patcher) -> None:
    _without(patch, "_unmap")


@mutation("what_was_freed_is_not_reached_any_more")
def another_vmid_is_invalidated(patch: Patcher) -> None:
    invalidate = Hub.invalidate
    patch.setattr(Hub, "invalidate", lambda self, vmid: invalidate(self, vmid ^ 1))


@mutation("what_may_only_be_read_is_not_written", Access.READ | Access.EXECUTE)
def what_can_be_read_can_be_written(patch: Patcher) -> None:
    bits = entries._BITS
    patch.setattr(entries, "_BITS", {**bits, Access.READ: bits[Access.READ] | bits[Access.WRITE]})


# Boot


@mutation("a_card_that_runs_is_reset", "gfx1100")
def bus_master_through_a_reset(patch: Patcher) -> None:
    order = Smu.order_reset

    def early(self: Smu) -> None:
        self.chip.function.set_bus_master(True)
        order(self)

    patch.setattr(Smu, "order_reset", early)


@mutation("a_card_that_runs_is_reset", "gfx1201")
def registers_are_used_in_reset(patch: Patcher) -> None:
    patch.setattr(Chip, "sleep", _nothing)


@mutation("every_chip_comes_up_cold", "gfx1100")
def firmware_is_still_in_the_bridge(patch: Patcher) -> None:
    patch.setattr(Chip, "store", lambda self, offset, data: self.vram.window.store(offset, data))


@mutation("every_chip_comes_up_cold", "gfx1201")
def answers_are_not_taken_back(patch: Patcher) -> None:
    _lose(patch, "MP1_SMN_C2PMSG_90")


# Life


@mutation("memory_is_cleared_for_whoever_has_the_card_next", "gfx1100")
def memory_is_left_as_it_was(patch: Patcher) -> None:
    def end(self: PciMemory) -> None:
        for held in list(self._live.values()):
            self.drop(held)
        self._end()

    patch.setattr(PciMemory, "close", end)


@mutation("each_fault_is_told_by_its_own_address", "gfx1100")
def faults_are_not_forgotten(patch: Patcher) -> None:
    patch.setattr(Hub, "clear_fault", _nothing)


@mutation("faults_are_told_and_recovered_from", "gfx1201")
def interrupts_are_not_read(patch: Patcher) -> None:
    patch.setattr(Ring, "entries", lambda self: iter(()))


@mutation("what_was_freed_is_not_reached_any_more")
def freed_memory_has_no_name(patch: Patcher) -> None:
    drop = PciMemory.drop

    def forgetful(self: PciMemory, held: Allocation) -> None:
        drop(self, held)
        self._freed.clear()

    patch.setattr(PciMemory, "drop", forgetful)
