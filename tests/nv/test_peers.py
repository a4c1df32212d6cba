"""GPUs of one process: UVM's file that they share, memory of each other, and the end of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import sizeof
from dataclasses import asdict

import numpy as np
import pytest

from am.systems import Failure, SteppedOs
from gpu.autogen.nv import uvm
from gpu.core.errors import GpuFault, InvalidValue, RmError, TransportError, Unsupported
from gpu.drivers.device import Rung
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.nvk import peercalls, uvmfile
from gpu.drivers.nv.nvk.memory import NvMemoryPort
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.hostdevice import HostMemory
from gpu.hcq.ports import Memory, MemoryKind
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.os import Argument, Os, Ref
from gpu.transport.world import World
from nv.kernels import LAYOUTS, PythonKernels, cubin
from nv.rm_target import RmTarget
from nv.test_faults import BEHIND, fail, load, refuse

CHIPS = ["gh100", "ga102"]
KINDS = list(MemoryKind)


def test_sizes_are_those_of_the_headers() -> None:
    """As a C compiler has them, branches 535 and 580."""
    caps = peercalls.P2pCaps
    assert (sizeof(peercalls.P2pCaps535), sizeof(caps)) == (4252, 8348)
    assert (caps.gpuCount.offset, caps.p2pCaps.offset, caps.busPeerIds.offset) == (128, 132, 156)
    assert (sizeof(peercalls.PeerAccess), sizeof(peercalls.UnmapExternal)) == (36, 40)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[RmTarget]:
    made = RmTarget(11, getattr(request, "param", "gh100"), "oldest")
    yield made
    assert made.complaints() == []
    made.close()


def two(target: RmTarget) -> tuple[RmDevice, RmDevice]:
    return RmDevice.open(target.world), RmDevice.open(target.world, 1)


@pytest.mark.parametrize("target", CHIPS, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_and_copies_reach_all_memory_of_a_peer(target: RmTarget, kind: MemoryKind) -> None:
    owner, peer = two(target)
    with owner, peer:
        add, there = load(peer, "add"), upload(owner, numbers(1), kind)
        here, out = upload(peer, numbers(2)), upload(peer, numbers(0))
        owner.synchronize()
        there.map_to(peer)
        add(out, there, here, vals=(WORDS,))
        assert (download(peer, out) == numbers(1) + numbers(2)).all()
        peer.allocator.copy(there, out)
        peer.synchronize()
        assert (download(owner, there) == numbers(1) + numbers(2)).all()
        there.unmap_from(peer)


def test_peers_are_mapped_without_atomics(
    target: RmTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None cross over PCIe."""
    owner, peer = two(target)
    kinds, real = [], type(target.world.os).ioctl

    def ioctl(self: Os, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        if request == uvm.UVM_MAP_EXTERNAL_ALLOCATION:
            assert isinstance(argument, uvm.UVM_MAP_EXTERNAL_ALLOCATION_PARAMS)
            kinds.append(argument.perGpuAttributes[0].gpuMappingType)
        return real(self, fd, request, argument, refs)

    with owner, peer, monkeypatch.context() as patch:
        patch.setattr(type(target.world.os), "ioctl", ioctl)
        mapped(owner, peer)
        assert kinds == [
            uvm.UVM_GPU_MAPPING_TYPE_READ_WRITE_ATOMIC,
            uvm.UVM_GPU_MAPPING_TYPE_READ_WRITE,
        ]


def test_what_is_not_mapped_any_more_faults(target: RmTarget) -> None:
    owner, peer = two(target)
    with owner, peer:
        there, here = upload(owner, numbers(1)), upload(peer, numbers(0))
        there.map_to(peer)
        there.unmap_from(peer)
        with pytest.raises(GpuFault, match="copy queue failed with FIFO_ERROR_MMU_ERR_FLT"):
            peer.wait(peer.queue("copy").copy(here.address, there.address, 4).submit(peer))
        peer.recover()
        assert (download(owner, there) == numbers(1)).all()


def mapped(owner: RmDevice, peer: RmDevice) -> tuple[NvMemoryPort, NvMemoryPort, Memory]:
    """Both memories, and memory of the first that the second has mapped."""
    ours, theirs = owner.port.gpu.memory, peer.port.gpu.memory
    memory = ours.allocate(1 << 16, MemoryKind.VRAM)
    theirs.map_peer(memory, ours)
    return ours, theirs, memory


def test_the_owner_may_close_first(target: RmTarget) -> None:
    owner, peer = two(target)
    _, theirs, memory = mapped(owner, peer)
    owner.close()
    theirs.unmap_peer(memory)
    with RmDevice.open(target.world) as owner, peer:  # the two become peers once more
        _, _, again = mapped(owner, peer)
        assert theirs.unmap_peer(again) is None


def test_the_peer_may_close_first(target: RmTarget) -> None:
    owner, peer = two(target)
    ours, theirs, memory = mapped(owner, peer)
    peer.close()
    theirs.unmap_peer(memory)
    ours.free(memory)
    owner.close()


@pytest.mark.parametrize("first", [0, 1])
def test_closing_with_everything_mapped(target: RmTarget, first: int) -> None:
    pair = two(target)
    mapped(*pair)
    mapped(*pair[::-1])
    pair[first].close()
    pair[1 - first].close()


@pytest.mark.parametrize("first", [0, 1])
def test_buffers_of_who_stays_are_of_use(target: RmTarget, first: int) -> None:
    pair = two(target)
    buffers = [upload(device, numbers(n)) for n, device in enumerate(pair)]
    for device, buffer in zip(pair, buffers, strict=True):
        device.synchronize()
        buffer.map_to(pair[device is pair[0]])
    pair[first].close()
    with pair[1 - first] as stays:
        assert (download(stays, buffers[1 - first]) == numbers(1 - first)).all()
        buffers[1 - first].free()
        assert (download(stays, upload(stays, numbers(5))) == numbers(5)).all()


def test_mappings_are_checked(target: RmTarget) -> None:
    owner, peer = two(target)
    with owner, peer:
        ours, theirs, memory = mapped(owner, peer)
        with pytest.raises(InvalidValue, match="already"):
            theirs.map_peer(memory, ours)
        theirs.unmap_peer(memory)
        with pytest.raises(InvalidValue, match="no peer's memory"):
            theirs.unmap_peer(memory)
        ours.free(memory)
        with pytest.raises(InvalidValue, match="is not of"):
            theirs.map_peer(memory, ours)


@pytest.mark.parametrize("target", CHIPS, indirect=True)
def test_mappings_outlive_recovery(target: RmTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page tables made anew: with what the other GPU owns, and what it sees is not touched."""
    refuse(Rung.QUEUES, monkeypatch)
    owner, peer = two(target)
    with owner, peer:
        of_owner, of_peer = upload(owner, numbers(1)), upload(peer, numbers(2))
        of_owner.map_to(peer)
        of_peer.map_to(owner)
        for device in (owner, peer):
            device.synchronize()
            fail(device, load(device, "fill"))
            assert device.recover() is Rung.ADDRESS_SPACE
            for one in (owner, peer):
                out, add = upload(one, numbers(0)), load(one, "add")
                add(out, of_owner, of_peer, vals=(WORDS,))
                assert (download(one, out) == numbers(1) + numbers(2)).all()


@pytest.mark.parametrize(
    ("chips", "are_peers", "why"),
    [
        (("gh100", "gh100"), False, r"no reads and writes \(capabilities 0x0\)"),
        (("gh100", "ga102"), True, "no reads and writes"),
    ],
)
def test_gpus_that_are_no_peers(chips: tuple[str, str], are_peers: bool, why: str) -> None:
    sim = NvSimWorld(1, chips, pcie_peers=are_peers, executor=PythonKernels())
    world = World(sim.os, sim.waiter)
    with RmDevice.open(world) as owner, RmDevice.open(world, 1) as peer:
        there = upload(owner, numbers(1))
        with pytest.raises(Unsupported, match=why):
            there.map_to(peer)
        assert (download(owner, there) == numbers(1)).all()
    assert not any(asdict(sim.usage()).values())
    sim.close()


def test_a_gpu_that_is_opened_twice_is_no_peer_of_itself(target: RmTarget) -> None:
    with RmDevice.open(target.world) as owner, RmDevice.open(target.world) as again:
        assert owner.port.gpu.session.uvm_file is not again.port.gpu.session.uvm_file
        there = upload(owner, numbers(1))
        with pytest.raises(Unsupported, match="one of them twice"):
            there.map_to(again)
        fill, out = (
            again.load(cubin(90, "fill"), "fill", LAYOUTS["fill"]),
            upload(again, numbers(0)),
        )
        fill(out, vals=(3, WORDS))
        assert (download(again, out) == 3).all()


def test_memory_of_other_drivers_is_refused(target: RmTarget) -> None:
    with RmDevice.open(target.world) as device:
        memory = upload(device, numbers(0)).allocation.memory
        with pytest.raises(Unsupported, match="of no NVIDIA GPU"):
            device.port.memory.map_peer(memory, HostMemory(1 << 20))


def test_the_file_lives_as_long_as_one_of_its_gpus(target: RmTarget) -> None:
    first, second = two(target)
    file = first.port.gpu.session.uvm_file
    assert second.port.gpu.session.uvm_file is file
    first.close()
    out = upload(second, numbers(1))
    with RmDevice.open(target.world) as first:
        assert first.port.gpu.session.uvm_file is file
    assert (download(second, out) == numbers(1)).all()
    second.close()
    with RmDevice.open(target.world) as first:
        assert first.port.gpu.session.uvm_file is not file


def test_a_forked_child_has_a_file_of_its_own(
    target: RmTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = uvmfile.UvmFile(target.world.os)
    file.gpus.add(0)
    file.process -= 1  # as a child sees it
    monkeypatch.setattr(uvmfile, "_files", [file])
    with RmDevice.open(target.world, 1) as child:
        assert child.port.gpu.session.uvm_file is not file
    file.close()


def test_host_memory_that_both_have_mapped(target: RmTarget) -> None:
    first, second = two(target)
    with first, second:
        pages = np.zeros(3 * 1024, np.int32)
        host = pages[-pages.ctypes.data % 4096 // 4 :][:1024]
        host[:WORDS] = numbers(1)
        both = [device.allocator.map_host(host) for device in (first, second)]
        with pytest.raises(RmError, match="IN_USE"):
            first.allocator.map_host(host)
        for device, buffer in zip((first, second), both, strict=True):
            out = upload(device, numbers(0))
            device.allocator.copy(out, buffer.view(0, out.size))
            assert (download(device, out) == numbers(1)).all()
            buffer.free()
            device.allocator.alloc(64).free()


def test_an_opening_beside_another_that_fails_leaves_nothing(target: RmTarget) -> None:
    failure = Failure(-1)
    world = World(SteppedOs(target.world.os, failure), target.world.waiter)
    with RmDevice.open(world) as first:
        out, before, failures = upload(first, numbers(1)), target.sim.usage(), 0
        for number in range(0, 400, 3):
            failure.left = number
            try:
                second = RmDevice.open(world, 1)
            except TransportError:
                failures += 1
                assert target.sim.usage() == before, failure.failed
                continue
            was_last, failure.left = failure.left >= 0, -1
            second.close()
            if was_last:
                break
        assert failures > 20
        assert (download(first, out) == numbers(1)).all()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_peer_does_not_wait_for_who_failed(target: RmTarget, failing: int) -> None:
    """Of two that wait for each other on the device, the other one goes on, with its memory."""
    owner, peer = devices = two(target)
    with owner, peer:
        there, here = upload(owner, numbers(1)), upload(peer, numbers(2))
        there.map_to(peer)
        hurt, well = devices[failing], devices[1 - failing]
        fills = [load(device, "fill") for device in devices]
        owner.synchronize()
        peer.synchronize()
        fills[failing](upload(hurt, numbers(1)), vals=(7, BEHIND))
        peer.allocator.copy(here, there)  # behind the fault of either
        for fill, buffer in zip(fills, (there, here), strict=True):
            fill(buffer, vals=(5, WORDS))
        with pytest.raises(GpuFault):
            hurt.synchronize()
        assert (download(well, (there, here)[1 - failing]) == 5).all()
        hurt.recover()
        assert (download(hurt, upload(hurt, numbers(3))) == numbers(3)).all()
