"""KFD's queue calls: create, update, destroy, and masks of compute units.

Checks, their order and the errno of each are those of Linux 6.12 kfd_chardev.c, kfd_queue.c,
kfd_process_queue_manager.c and kfd_device_queue_manager.c.
"""

from __future__ import annotations

import errno
from typing import Final

from gpu.autogen import kfd
from gpu.core.bits import align_up, is_power_of_two
from gpu.sim.amd.chip.aql import AqlQueue
from gpu.sim.amd.chip.hwqueue import HwQueue, RingSettings
from gpu.sim.amd.chip.pm4_queue import Pm4Queue
from gpu.sim.amd.chip.sdma import SdmaQueue
from gpu.sim.amd.kfd.process import MAX_QUEUES, Allocation, KfdProcess, KfdQueue, ProcessDevice
from gpu.sim.kernel import ENOTSUPP, SysError, check_access
from gpu.sim.translate import PAGE_SIZE

MMAP_DOORBELL: Final = 3 << 62
_COMPUTE: Final = (kfd.KFD_IOC_QUEUE_TYPE_COMPUTE, kfd.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL)
_BY_ENGINE: Final = kfd.KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID
_XGMI: Final = kfd.KFD_IOC_QUEUE_TYPE_SDMA_XGMI
_KINDS: Final[dict[int, type[HwQueue]]] = {
    kfd.KFD_IOC_QUEUE_TYPE_COMPUTE: Pm4Queue,
    kfd.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL: AqlQueue,
    kfd.KFD_IOC_QUEUE_TYPE_SDMA: SdmaQueue,
    _XGMI: SdmaQueue,
    _BY_ENGINE: SdmaQueue,
}
_PER_DEVICE: Final = 127  # "HWS limit"
_MAX_CUS: Final = 1024


def create_queue(p: KfdProcess, args: kfd.kfd_ioctl_create_queue_args) -> None:
    """CREATE_QUEUE."""
    _check_properties(args.queue_percentage, args.queue_priority, args.ring_size)
    args.ring_size = max(args.ring_size, kfd.KFD_MIN_QUEUE_RING_SIZE)
    for address in (args.ring_base_address, args.read_pointer_address, args.write_pointer_address):
        check_access(address, 4)
    for address in (args.eop_buffer_address, args.ctx_save_restore_address):
        check_access(address, 4)
    if args.queue_type not in _KINDS:
        raise SysError(ENOTSUPP, f"queue type {args.queue_type}")
    device = p.device(args.gpu_id)
    if device.drm is None:
        raise SysError(errno.ESRCH, "ACQUIRE_VM must come first")
    chip = device.gpu.chip
    engines = chip.sdma_engines + chip.xgmi_engines
    if args.queue_type == _BY_ENGINE and args.sdma_engine_id >= engines:
        raise SysError(errno.EINVAL, f"there is no copy engine {args.sdma_engine_id}")
    device.need_doorbells()
    holds = _acquire_buffers(device, args)
    queue = _make_queue(p, device, args)
    queue.holds = holds
    for allocation in holds:
        device.hold(allocation)
    args.queue_id = queue.number
    args.doorbell_offset = MMAP_DOORBELL | args.gpu_id << 46 | queue.doorbell_at


def _check_properties(percentage: int, priority: int, ring_size: int) -> None:
    if percentage & 0xFF > kfd.KFD_MAX_QUEUE_PERCENTAGE:
        raise SysError(errno.EINVAL, f"queue percentage {percentage & 0xFF}")
    if priority > kfd.KFD_MAX_QUEUE_PRIORITY:
        raise SysError(errno.EINVAL, f"queue priority {priority}")
    if ring_size and not is_power_of_two(ring_size):
        raise SysError(errno.EINVAL, f"ring size {ring_size:#x} is no power of two")


def _acquire_buffers(
    device: ProcessDevice, args: kfd.kfd_ioctl_create_queue_args
) -> list[Allocation]:
    """kfd_queue_acquire_buffers; returns what the queue will hold."""
    held = [
        _buffer(device, args.write_pointer_address, PAGE_SIZE, "the write pointer's page"),
        _buffer(device, args.read_pointer_address, PAGE_SIZE, "the read pointer's page"),
        _buffer(device, args.ring_base_address, args.ring_size, "the ring"),
    ]
    if args.queue_type not in _COMPUTE:
        return held
    context = device.gpu.board.context
    if args.eop_buffer_address:
        if args.eop_buffer_size < context.eop:
            raise SysError(errno.EINVAL, f"EOP buffer: {context.eop:#x} bytes are needed")
        size = align_up(args.eop_buffer_size, PAGE_SIZE)
        held.append(_buffer(device, args.eop_buffer_address, size, "the EOP buffer"))
    if args.ctl_stack_size != context.control_stack:
        raise SysError(errno.EINVAL, f"ctl_stack_size must be {context.control_stack:#x}")
    if args.ctx_save_restore_size < context.save_area:
        raise SysError(errno.EINVAL, f"ctx_save_restore_size: at least {context.save_area:#x}")
    total = (args.ctx_save_restore_size + context.debug) * device.gpu.chip.xccs
    area = align_up(total, PAGE_SIZE)
    held.append(_buffer(device, args.ctx_save_restore_address, area, "the context save area"))
    return held


def _buffer(device: ProcessDevice, address: int, size: int, what: str) -> Allocation:
    """kfd_queue_buffer_get: the address must begin a mapping of exactly this size."""
    mapping = device.space.find(address)
    pages = size // PAGE_SIZE
    if mapping is None:
        raise SysError(errno.EINVAL, f"{what} at {address:#x} is not mapped")
    allocation = mapping.owner
    assert isinstance(allocation, Allocation)
    bo = allocation.bo
    start = allocation.va
    if allocation.double and address >= start + bo.size:
        start += bo.size
    if address // PAGE_SIZE != start // PAGE_SIZE or (pages and pages != bo.size // PAGE_SIZE):
        raise SysError(
            errno.EINVAL,
            f"{what} at {address:#x}, {size:#x} bytes, is not the whole mapping at {start:#x} of"
            f" {bo.size:#x} bytes",
        )
    return allocation


def _make_queue(
    p: KfdProcess, device: ProcessDevice, args: kfd.kfd_ioctl_create_queue_args
) -> KfdQueue:
    mine = [queue for _, queue in p.queues if queue.device is device]
    limit = 255 if device.gpu.chip.gc == (9, 4, 3) else _PER_DEVICE
    if len(mine) >= limit:
        raise SysError(errno.ENOSPC, f"{limit} queues exist")
    kind = _KINDS[args.queue_type]
    slot = None
    if kind is SdmaQueue:
        slot = _sdma_slot(device, args)
        device.gpu.engine_slots.add(slot)
        doorbell = _sdma_doorbell(device, slot)
    else:
        taken = device.doorbell_slots
        free = next((i for i in range(MAX_QUEUES) if i not in taken), None)
        if free is None:
            raise SysError(errno.EBUSY, "no doorbell is free")
        taken.add(free)
        doorbell = free
    settings = RingSettings(
        ring=args.ring_base_address,
        size=args.ring_size,
        rptr=args.read_pointer_address,
        wptr=args.write_pointer_address,
        enabled=_is_enabled(args),
    )
    queue = KfdQueue(device, kind, settings, 8 * doorbell, slot)
    queue.number = p.queues.add(queue, 0, MAX_QUEUES)
    device.gpu.queues.append(queue.hardware)
    return queue


def _is_enabled(
    args: kfd.kfd_ioctl_create_queue_args | kfd.kfd_ioctl_update_queue_args,
) -> bool:
    """Linux 6.12 kfd_priv.h QUEUE_IS_ACTIVE, as far as the process decides."""
    return bool(args.ring_base_address and args.queue_percentage & 0xFF)


def _sdma_slot(device: ProcessDevice, args: kfd.kfd_ioctl_create_queue_args) -> int:
    """`allocate_sdma_queue`: the first free queue; engines take turns. XGMI ones come after."""
    chip = device.gpu.chip
    used = device.gpu.engine_slots
    plain = chip.sdma_engines * chip.sdma_queues
    reserved = chip.sdma_engines * chip.sdma_reserved
    slots = range(reserved, plain)
    if args.queue_type == _XGMI or (
        args.queue_type == _BY_ENGINE and args.sdma_engine_id >= chip.sdma_engines
    ):
        slots = range(plain, plain + chip.xgmi_engines * chip.sdma_queues)
    for slot in slots:
        if slot in used:
            continue
        if args.queue_type == _BY_ENGINE and _sdma_engine(device, slot) != args.sdma_engine_id:
            continue
        return slot
    raise SysError(errno.ENOMEM, "no queue of the copy engines is free")


def _sdma_engine(device: ProcessDevice, slot: int) -> int:
    chip = device.gpu.chip
    plain = chip.sdma_engines * chip.sdma_queues
    if slot < plain:
        return slot % chip.sdma_engines
    return chip.sdma_engines + (slot - plain) % chip.xgmi_engines


def _sdma_doorbell(device: ProcessDevice, slot: int) -> int:
    """`allocate_doorbell`: each engine has its own; odd queues are 512 above."""
    chip = device.gpu.chip
    plain = chip.sdma_engines * chip.sdma_queues
    number = slot // chip.sdma_engines if slot < plain else (slot - plain) // chip.xgmi_engines
    first = chip.sdma_doorbells[_sdma_engine(device, slot)]
    if chip.gc == (9, 4, 3):
        first = align_up(first, 4)  # KFD_SDMA_SHADER_DOORBELL_GRANULARITY
    return first + (number & 1) * 512 + (number >> 1)


def update_queue(p: KfdProcess, args: kfd.kfd_ioctl_update_queue_args) -> None:
    """UPDATE_QUEUE; a null ring or percentage 0 disables the queue."""
    _check_properties(args.queue_percentage, args.queue_priority, args.ring_size)
    check_access(args.ring_base_address, 8)
    size = max(args.ring_size, kfd.KFD_MIN_QUEUE_RING_SIZE)
    queue = _find(p, args.queue_id, errno.EFAULT)
    device = queue.device
    if args.ring_base_address:
        try:
            ring = _buffer(device, args.ring_base_address, size, "the ring")
        except SysError as error:
            raise SysError(errno.EFAULT, error.reason) from error
        _exchange_ring(queue, ring)
    _preempt(queue)
    if device.was_reset:
        raise SysError(errno.EACCES, "the queue was reset")
    hardware = queue.hardware
    was_active = hardware.active
    settings = hardware.settings
    settings.ring, settings.size = args.ring_base_address, size
    settings.enabled = _is_enabled(args)
    if hardware.active and not was_active:
        hardware.remap()


def _exchange_ring(queue: KfdQueue, ring: Allocation) -> None:
    queue.device.let_go(queue.holds[2])
    queue.device.hold(ring)
    queue.holds[2] = ring


def destroy_queue(p: KfdProcess, args: kfd.kfd_ioctl_destroy_queue_args) -> None:
    """DESTROY_QUEUE."""
    queue = _find(p, args.queue_id, errno.EINVAL)
    hardware, gpu = queue.hardware, queue.device.gpu
    if hardware.active and hardware.wptr > hardware.rptr and not hardware.blocked:
        gpu.sim.debug.note(f"{queue} is destroyed before it read all its packets")
    hung = _preempt(queue)
    drop_queue(p, queue)
    if hung:
        # remove_queue_mes passes on MES's time-out, execute_queues_cpsch that of the older firmware
        raise SysError(errno.ETIMEDOUT if gpu.chip.mes else errno.ETIME, "GPU reset")


def drop_queue(p: KfdProcess, queue: KfdQueue) -> None:
    """Forgets a queue and what it held."""
    p.queues.remove(queue.number)
    queue.device.gpu.queues.remove(queue.hardware)
    for allocation in queue.holds:
        queue.device.let_go(allocation)
    if queue.engine_slot is None:
        queue.device.doorbell_slots.discard(queue.doorbell_at // 8)
    else:
        queue.device.gpu.engine_slots.discard(queue.engine_slot)


def set_cu_mask(p: KfdProcess, args: kfd.kfd_ioctl_set_cu_mask_args) -> None:
    """SET_CU_MASK: checked, and without effect on what runs."""
    if args.num_cu_mask % 32 or not args.num_cu_mask:
        raise SysError(errno.EINVAL, f"a mask of {args.num_cu_mask} compute units")
    count = min(args.num_cu_mask, _MAX_CUS)
    mask = int.from_bytes(p.process.user.read(args.cu_mask_ptr, count // 8), "little")
    queue = _find(p, args.queue_id, errno.EFAULT)
    half_pairs = any(mask >> i & 3 in (1, 2) for i in range(0, count, 2))
    if queue.device.gpu.chip.gc[0] >= 10 and half_pairs:
        raise SysError(errno.EINVAL, "compute units are enabled in pairs")


def _find(p: KfdProcess, number: int, missing: int) -> KfdQueue:
    queue = p.queues.get(number)
    if queue is None:
        raise SysError(missing, f"there is no queue {number}")
    return queue


def _preempt(queue: KfdQueue) -> bool:
    """Takes a queue off hardware; one that stands at an unmet wait may hang the scheduler.

    Then the kernel resets the GPU, and the result is True.
    """
    hardware, gpu = queue.hardware, queue.device.gpu
    hung = hardware.is_unsaved or (hardware.stuck and gpu.stuck_wait_resets)
    if hung:
        gpu.reset(hardware.why_idle())
    return hung
