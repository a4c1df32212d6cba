"""RM: libos' regions, the queues, messages and calls."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpu.autogen.nv import gsp as h
from sim.nv_pci.client import (
    DOORBELL,
    LOG_BYTES,
    PAGE,
    REGISTRY,
    SYSTEM_INFO,
    Client,
    Reply,
    make_registry,
)

STATIC_INFO, UNLOADING, CONTINUATION = 65, 47, 71
STATIC_INFO_BYTES = 1656
NOT_SUPPORTED, INVALID_PARAM_STRUCT = 0x56, 0x3A
FULL = 16 * PAGE - 0x50
Change = Callable[[Client], None]


def refused(change: Change, *why: str) -> None:
    """RM stops where a boot is so changed: nothing comes of it."""
    client = Client("gb202").prepare()
    client.queue_first()
    change(client)
    assert not client.start()
    client.pass_ms(60)
    assert client.told("RM: ", *why)
    assert client.receive() is None
    assert "RM answers no more" in client.card.why_idle()
    client.close()


# Regions.


def region(index: int, **changed: object) -> Change:
    names = ("name", "address", "size", "kind", "where")

    def change(client: Client) -> None:
        old = dict(zip(names, client.regions[index], strict=True))
        client.regions[index] = tuple({**old, **changed}.values())  # type: ignore[call-overload]

    return change


def swapped(client: Client) -> None:
    client.regions[:2] = client.regions[1::-1]


def doubled(client: Client) -> None:
    client.regions.append(client.regions[2])


def missing(name: str) -> Change:
    def change(client: Client) -> None:
        client.regions = [each for each in client.regions if each[0] != name]

    return change


def log_word(index: int, value: int) -> Change:
    def change(client: Client) -> None:
        client.poke(client.regions[1][1] + 8 * index, struct.pack("<Q", value))

    return change


def far_arguments(client: Client) -> None:
    client.params.gspRmParams.bootArgsOffset = 1 << 34


def odd_arguments(client: Client) -> None:
    client.params.gspRmParams.bootArgsOffset = client.hold(bytes(PAGE)) + 32


REGIONS: dict[str, tuple[Change, str]] = {
    "unknown name": (region(1, name="LOGFOO"), "libos has no region 'LOGFOO'"),
    "order": (swapped, "region LOGINTR comes first"),
    "twice": (doubled, "region LOGRM is there twice"),
    "kind": (region(1, kind=2), "region LOGINTR is of kind 2 in 1"),
    "in video memory": (region(3, where=2), "region RMARGS is of kind 1 in 2"),
    "no size": (region(1, size=0), "region LOGINTR has 0x0 bytes"),
    "short log": (region(1, size=LOG_BYTES // 2), "LOGINTR has 0x8000 bytes"),
    "no RMARGS": (missing("RMARGS"), "have no region RMARGS"),
    "no log of RM": (missing("LOGRM"), "have no region LOGRM"),
    "log that is written": (log_word(0, 5), "LOGINTR is written up to 0x5"),
    "page of a log": (log_word(3, PAGE), "LOGINTR lists 0x1000 as its page 2"),
    "small RMARGS": (region(3, size=64), "RMARGS has 0x40 bytes"),
    "unmapped arguments": (far_arguments, "libos' arguments"),
    "arguments at no page": (odd_arguments, "libos' arguments at", "not at a page"),
}  # type: ignore[dict-item]


@pytest.mark.parametrize("case", REGIONS)
def test_regions_that_are_refused(case: str) -> None:
    refused(*REGIONS[case])


def test_more_logs_are_taken() -> None:
    client = Client("gb202").prepare()
    for name in ("LOGMNOC", "LOGKRNL"):
        client.regions.insert(3, (name, *client.hold_log(2 * LOG_BYTES), 1, 1))
    assert client.boot() is not None and not client.violations
    client.close()


# Queues.


def rmargs(field: str, value: int) -> Change:
    def change(client: Client) -> None:
        *path, last = field.split(".")
        target = client.rmargs
        for name in path:
            target = getattr(target, name)
        setattr(target, last, value)

    return change


def header(field: str, value: int) -> Change:
    def change(client: Client) -> None:
        found = h.msgqTxHeader.from_buffer_copy(client.peek(client.commands, 32))
        setattr(found, field, value)
        client.poke(client.commands, bytes(found))

    return change


def entry(index: int, value: int) -> Change:
    return lambda client: client.poke(client.shared + 8 * index, struct.pack("<Q", value))


_Q = "messageQueueInitArguments."
QUEUES: dict[str, tuple[Change, str]] = {
    "resume": (rmargs("srInitArguments.bInPMTransition", 1), "RMARGS tells of a resume"),
    "stack": (rmargs("bDmemStack", 2), "bDmemStack is 2"),
    "profiler": (rmargs("profilerArgs.pa", PAGE), "RMARGS has a profiler's buffer"),
    "no pages": (rmargs(_Q + "pageTableEntryCount", 0), "a table of 0 queue pages"),
    "few pages": (rmargs(_Q + "pageTableEntryCount", 65), "queues at 0x1000 and 0x41000"),
    "command queue": (rmargs(_Q + "cmdQueueOffset", 2 * PAGE), "command queue is at 0x2000"),
    "status queue": (rmargs(_Q + "statQueueOffset", 0x41008), "queues at 0x1000 and 0x41008"),
    "small queue": (rmargs(_Q + "statQueueOffset", 0x7F000), "room for the longest message"),
    "first entry": (entry(0, PAGE), "begins with 0x1000, not with itself"),
    "entry of no page": (entry(7, 0), "queue page 7 is 0x0"),
    "entry that is not mapped": (entry(7, 1 << 34), "queue page 7: 0x1000 bytes"),
    "version": (header("version", 1), "the command queue has version 1"),
    "bytes": (header("size", 0x3F000), "the command queue has 0x3f000 bytes"),
    "element": (header("msgSize", 0x800), "has elements of 0x800 bytes"),
    "first element": (header("entryOff", 0x2000), "from 0x2000 on"),
    "read pointer": (header("rxHdrOff", 0x40), "read pointer at 0x40"),
    "elements": (header("msgCount", 64), "the command queue has 64 elements, 63 fit"),
    "flags": (header("flags", 0), "the command queue has flags 0x0"),
    "write pointer": (header("writePtr", 63), "the write pointer is 63"),
}


@pytest.mark.parametrize("case", QUEUES)
def test_queues_that_are_refused(case: str) -> None:
    refused(*QUEUES[case])


# What is in the queue before the boot.


def nothing(client: Client) -> None:
    client.poke(client.commands + 0x10, bytes(4))


def half(client: Client) -> None:
    client.poke(client.commands + 0x10, struct.pack("<I", 1))


def other_way(client: Client) -> None:
    client.sent = client.wptr = 0
    client.send(REGISTRY, client.registry, ring=False)
    client.send(SYSTEM_INFO, bytes(client.system_info), ring=False)


def twice(client: Client) -> None:
    client.sent = client.wptr = 0
    client.send(SYSTEM_INFO, bytes(client.system_info), ring=False)
    client.send(SYSTEM_INFO, bytes(client.system_info), ring=False)


def info(field: str, value: int) -> Change:
    def change(client: Client) -> None:
        setattr(client.system_info, field, value)
        client.sent = client.wptr = 0
        client.queue_first()

    return change


def short_info(client: Client) -> None:
    client.sent = client.wptr = 0
    client.send(SYSTEM_INFO, bytes(client.system_info)[:-8], ring=False)


def registry(data: bytes) -> Change:
    def change(client: Client) -> None:
        client.registry = data
        client.sent = client.wptr = 0
        client.queue_first()

    return change


def table(*entry: int, names: bytes = b"A\0", count: int = 1) -> Change:
    body = struct.pack("<IB3xII", *entry) + names
    return registry(struct.pack("<II", 8 + len(body), count) + body)


FIRST: dict[str, tuple[Change, str]] = {
    "nothing": (nothing, "calls [72, 73] are not in the queue"),
    "no registry": (half, "calls [73] are not in the queue"),
    "the other way round": (other_way, "SET_REGISTRY before GSP_SET_SYSTEM_INFO"),
    "twice": (twice, "call 72 twice"),
    "short info": (short_info, "0x398 bytes, 0x3a0 wanted"),
    "BAR 0": (info("gpuPhysAddr", PAGE), "gpuPhysAddr is 0x1000"),
    "BAR 1": (info("gpuPhysFbAddr", PAGE), "gpuPhysFbAddr is 0x1000"),
    "BAR 2": (info("gpuPhysInstAddr", PAGE), "gpuPhysInstAddr is 0x1000"),
    "address": (info("nvDomainBusDeviceFunc", 0x400), "nvDomainBusDeviceFunc is 0x400"),
    "simulation": (info("simAccessBufPhysAddr", PAGE), "simAccessBufPhysAddr"),
    "mirror": (info("pciConfigMirrorBase", 0x88000), "pciConfigMirrorBase is 0x88000"),
    "bytes of the mirror": (info("pciConfigMirrorSize", 256), "pciConfigMirrorSize is 0x100"),
    "device": (info("PCIDeviceID", 0x10DE), "PCIDeviceID is 0x10de"),
    "subsystem": (info("PCISubDeviceID", 0), "PCISubDeviceID is 0x0"),
    "revision": (info("PCIRevisionID", 0), "PCIRevisionID is 0x0"),
    "addresses of the user": (info("maxUserVa", 0), "maxUserVa is 0"),
    "page of the host": (info("hostPageSize", 3000), "hostPageSize is 0xbb8"),
    "no table": (registry(bytes(4)), "4 bytes hold no table"),
    "size of the table": (registry(struct.pack("<II", 12, 0)), "a size of 0xc with 0x8"),
    "entries": (registry(struct.pack("<II", 8, 1)), "1 entries in 0x8 bytes"),
    "name among entries": (table(8, 1, 0, 4), "has its name at 0x8"),
    "name that does not end": (table(24, 1, 0, 4, names=b"AB"), "has no name that ends"),
    "no name": (table(24, 1, 0, 4, names=b"\0"), "has no name that ends"),
    "word of 8 bytes": (table(24, 1, 0, 8), "is a word of 8 bytes"),
    "data outside": (table(24, 2, 24, 64), "has 0x40 bytes at 0x18, outside"),
    "kind": (table(24, 4, 0, 4), "is of kind 4"),
}


@pytest.mark.parametrize("case", FIRST)
def test_what_is_said_before_the_boot(case: str) -> None:
    refused(FIRST[case][0], FIRST[case][1])


def test_settings_of_all_kinds() -> None:
    client = Client("gb202").prepare()
    names, data = b"A\0BC\0", b"text\0"
    at = 8 + 32
    entries = struct.pack("<IB3xII", at, 1, 7, 4)
    entries += struct.pack("<IB3xII", at + 2, 3, at + len(names), len(data))
    body = entries + names + data
    client.registry = struct.pack("<II", 8 + len(body), 2) + body
    assert client.boot() is not None and not client.violations
    client.close()


def long_registry(client: Client, function: int = CONTINUATION) -> None:
    """A table of more bytes than a message has, in two."""
    client.registry = make_registry({f"Setting{number:04}": number for number in range(3000)})
    client.send(SYSTEM_INFO, bytes(client.system_info), ring=False)
    client.send(REGISTRY, client.registry[:FULL], ring=False)
    client.send(function, client.registry[FULL:], ring=False)


def test_long_messages_go_on_in_others() -> None:
    client = Client("gb202").prepare()
    long_registry(client)
    assert not client.start()
    assert client.wait_for(0x1001, 60) is not None and not client.violations
    client.close()


def test_what_goes_on_is_a_continuation() -> None:
    def change(client: Client) -> None:
        client.sent = client.wptr = 0
        long_registry(client, function=STATIC_INFO)

    refused(change, "call 65 among the parts of another")


def test_a_continuation_continues_something(booted: Client) -> None:
    assert booted.call(CONTINUATION, bytes(8)) is None
    assert booted.told("call 71 continues nothing")


# Messages.


def rpc(field: str, value: int) -> Callable[[h.GSP_MSG_QUEUE_ELEMENT], None]:
    return lambda element: setattr(element.rpc, field, value)


def own(field: str, value: int) -> Callable[[h.GSP_MSG_QUEUE_ELEMENT], None]:
    return lambda element: setattr(element, field, value)


def tag(element: h.GSP_MSG_QUEUE_ELEMENT) -> None:
    element.authTagBuffer[3] = 1


MESSAGES: dict[str, tuple[Callable[[h.GSP_MSG_QUEUE_ELEMENT], None], str]] = {
    "tag": (tag, "of confidential computing"),
    "length": (rpc("length", 16), "has 0x10 bytes"),
    "too long": (rpc("length", 0x20000), "has 0x20000 bytes"),
    "elements": (own("elemCount", 2), "tells of 2 elements"),
    "number": (own("seqNum", 9), "has number 9, 2 wanted"),
    "header": (rpc("header_version", 2 << 24), "header version 0x2000000"),
    "signature": (rpc("signature", 0), "has signature 0x0"),
    "result": (rpc("rpc_result", 0), "none is there yet"),
    "private result": (rpc("rpc_result_private", 0), "none is there yet"),
    "virtual function": (rpc("cpuRmGfid", 1), "is of virtual function 1"),
    "no such call": (rpc("function", 227), "call 227: there is none"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_that_are_refused(booted: Client, case: str) -> None:
    change, why = MESSAGES[case]
    booted.put(booted.element(STATIC_INFO, bytes(STATIC_INFO_BYTES), change))
    assert booted.wait_for(STATIC_INFO, 5) is None
    assert booted.told("RM: ", why)
    booted.send(STATIC_INFO, bytes(STATIC_INFO_BYTES))
    assert booted.wait_for(STATIC_INFO, 5) is None, "it answers no more"


def test_sums_are_looked_at(booted: Client) -> None:
    data = booted.element(STATIC_INFO, bytes(STATIC_INFO_BYTES), late=own("checkSum", 1))
    booted.put(data)
    assert booted.wait_for(STATIC_INFO, 5) is None
    assert booted.told("RM: ", "its sum 0x1 is wrong")


def test_elements_behind_the_write_pointer(booted: Client) -> None:
    data = booted.element(REGISTRY, bytes(2 * PAGE))
    booted.poke(booted.commands + PAGE * (1 + booted.wptr), data[:PAGE])
    booted.poke(booted.commands + 0x10, struct.pack("<I", booted.wptr + 1))
    booted.write(DOORBELL, 0)
    booted.pass_ms(1)
    assert booted.told("RM: ", "of which the write pointer shows fewer")


def test_a_read_pointer_beyond_the_queue(booted: Client) -> None:
    booted.poke(booted.commands + 0x20, struct.pack("<I", booted.count))
    booted.send(STATIC_INFO, bytes(STATIC_INFO_BYTES))
    booted.pass_ms(1)
    assert booted.told("RM: the driver has read up to 63")


def test_a_queue_that_the_driver_takes_from_it(booted: Client) -> None:
    booted.held(booted.shared).close()
    booted.write(DOORBELL, 0)
    booted.pass_ms(1)
    assert booted.told("RM: a queue", "are not the card's")
    booted.memory = [each for each in booted.memory if each.pieces[0].address != booted.shared]


def test_a_doorbell_that_is_forgotten(booted: Client) -> None:
    booted.send(STATIC_INFO, bytes(STATIC_INFO_BYTES), ring=False)
    assert booted.wait_for(STATIC_INFO, 20) is None
    booted.write(DOORBELL, 0)
    assert booted.wait_for(STATIC_INFO, 20) is not None
    assert not booted.violations


def test_queues_wrap(booted: Client) -> None:
    for _ in range(2 * booted.count):
        assert booted.call(STATIC_INFO, bytes(STATIC_INFO_BYTES)) is not None
    assert booted.sent > booted.count < booted.received and not booted.violations


def test_answers_wait_for_room(booted: Client) -> None:
    """A driver that does not read: RM keeps what does not fit."""
    for _ in range(booted.count + 5):
        booted.send(STATIC_INFO, bytes(STATIC_INFO_BYTES))
        booted.pass_ms(1)
    assert booted.card.why_idle() == "RM waits for the driver to read its queue"
    answers = 0
    for _ in range(3):
        while (reply := booted.receive()) is not None:
            answers += reply.function == STATIC_INFO
        booted.write(DOORBELL, 0)
        booted.pass_ms(1)
    assert answers == booted.count + 5 and not booted.violations


# Calls.


def test_static_info(client: Client) -> None:
    assert client.boot() is not None
    reply = client.call(STATIC_INFO, bytes(STATIC_INFO_BYTES))
    assert reply is not None and reply.result == 0 and len(reply.payload) == STATIC_INFO_BYTES
    data, size = reply.payload, client.card.chip.vram.size
    assert struct.unpack_from("<Q", data, 1224) == (size,)
    regions = [struct.unpack_from("<QQQ", data, 352 + 48 * n) for n in range(2)]
    assert data[344] == 2 and regions[0][0] == 0 and regions[1][1] == size - 1
    assert regions[0][1] + 1 == regions[1][0] == size - regions[1][2]
    heap, frts = struct.unpack_from("<QQ", data, 1640)
    assert heap == regions[1][0] < client.card.chip.wpr2.start < frts
    assert data[1260:].startswith(client.card.chip.board.chip.board.encode() + b"\0")
    assert all(struct.unpack_from("<III", data, 1600))


def test_events_come_among_answers() -> None:
    kinds = set()
    for seed in range(6):
        client = Client("gb202", seed=seed).prepare()
        assert client.boot() is not None
        client.send(STATIC_INFO, bytes(STATIC_INFO_BYTES))
        client.pass_ms(1)
        first = client.receive()
        assert isinstance(first, Reply)
        kinds.add(first.function)
        client.close()
    assert STATIC_INFO in kinds and kinds & {0x100C, 0x101C}


@pytest.mark.parametrize("function,size", [(STATIC_INFO, 8), (UNLOADING, 12)])
def test_parameters_have_their_size(booted: Client, function: int, size: int) -> None:
    reply = booted.call(function, bytes(size))
    assert reply is not None and reply.result == INVALID_PARAM_STRUCT
    assert booted.told(f"call {function}: ", "bytes wanted")


def test_suspending_is_not_modelled(booted: Client) -> None:
    reply = booted.call(UNLOADING, b"\x01" + bytes(7))
    assert reply is not None and reply.result == NOT_SUPPORTED
    assert booted.told("suspending is not modelled")


def test_calls_that_are_not_modelled(booted: Client) -> None:
    reply = booted.call(5, bytes(64))
    assert reply is not None and reply.result == NOT_SUPPORTED and not booted.violations


def test_no_call_after_unloading(booted: Client) -> None:
    assert booted.call(UNLOADING, bytes(8)) is not None
    booted.send(STATIC_INFO, bytes(STATIC_INFO_BYTES))
    booted.pass_ms(2)
    assert booted.told("call 65 after the driver has unloaded RM")
