"""A machine that several real processes use."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpu
from am.kernels import PythonKernels
from am.served_user import work
from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.errors import AccessDenied, DeviceHang, TransportError
from gpu.drivers.am.kfd.port import open_kfd
from gpu.hcq.conformance.kit import download, numbers, upload
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.remote import RemoteWorld
from gpu.sim.server import serve
from gpu.transport.os import Os
from gpu.transport.world import World

_TREES = os.pathsep.join(str(Path(file).parents[1]) for file in (gpu.__file__, __file__))


@pytest.fixture
def world() -> Iterator[KfdWorld]:
    world = KfdWorld(seed=1, executor=PythonKernels(1))
    yield world
    assert world.debug.violations == []
    world.close()


@pytest.fixture
def path(world: KfdWorld, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "machine")
    with serve(world, path):
        yield path
    assert not Path(path).exists()


def start(path: str, rounds: int) -> subprocess.Popen[str]:
    """A process that works; it has begun when this returns."""
    command = [sys.executable, "-m", "am.served_user", path, str(rounds)]
    environment = {**os.environ, "PYTHONPATH": _TREES}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def test_processes_work_at_once(world: KfdWorld, path: str) -> None:
    """Each has memory of its own at whatever address; all use the one GPU."""
    users = [start(path, 40) for _ in range(2)]
    with open_kfd(World(world.os, world.waiter)) as device:
        work(device, 20, 1)
    for user in users:
        assert user.stdout is not None
        # `communicate` would miss what was read already with the first line.
        assert (user.stdout.read(), user.wait(60)) == ("done\n", 0)
    assert world.counts.kernels == 2 * 40 + 20


def test_a_killed_process_leaves_nothing(world: KfdWorld, path: str) -> None:
    with open_kfd(World(world.os, world.waiter)) as device:
        mine = upload(device, numbers(3))
        assert (download(device, mine) == numbers(3)).all()  # all queues are open that it needs
        card, fds = world.gpus[0], len(os.listdir("/proc/self/fd"))
        used, queues = card.vram_used, len(card.queues)
        user = start(path, 0)
        assert card.vram_used > used and len(card.queues) > queues
        user.kill()
        user.communicate()
        late = time.monotonic() + 20
        while len(card.users) > 1 and time.monotonic() < late:
            time.sleep(0.01)
        assert (card.vram_used, len(card.queues)) == (used, queues)
        assert len(os.listdir("/proc/self/fd")) == fds
        np.testing.assert_array_equal(download(device, mine), numbers(3))


def test_waits_are_patient(world: KfdWorld, path: str) -> None:
    """What nothing on the machine can bring, another process may: time passes meanwhile."""
    remote = RemoteWorld(path)
    with open_kfd(World(remote.os, remote.waiter)) as device:
        point = device.queue().wait(go := device.signal(), 1).submit(device)
        start = time.monotonic()
        with pytest.raises(DeviceHang):
            device.wait(point, timeout=0.05)
        assert time.monotonic() - start > 0.04
        go.set(1)
        device.wait(point)
    remote.close()


def test_calls(world: KfdWorld, path: str) -> None:
    """Every call of a system, its errors, and arguments with pointers."""
    remote = RemoteWorld(path)
    system: Os = remote.os
    base = "/sys/devices/virtual/kfd/kfd/topology"
    assert system.list_dir(base) == world.os.list_dir(base)
    assert system.read_file(f"{base}/nodes/1/gpu_id") == b"%d\n" % world.gpus[0].gpu_id
    assert system.exists("/dev/kfd") and not system.exists("/dev/none")
    for call in (lambda: system.open(base, 0), lambda: system.write_file(base, b"1")):
        with pytest.raises(AccessDenied, match="the model does not let"):
            call()
    with pytest.raises(TransportError) as caught:
        system.open("/dev/none", os.O_RDWR)
    assert caught.value.errno == errno.ENOENT
    fd, drm = system.open("/dev/kfd", os.O_RDWR), system.open("/dev/dri/renderD128", os.O_RDWR)
    gpu_id = world.gpus[0].gpu_id
    system.ioctl(
        fd, kfd.AMDKFD_IOC_ACQUIRE_VM, kfd.kfd_ioctl_acquire_vm_args(drm_fd=drm, gpu_id=gpu_id)
    )
    wrong = kfd.kfd_ioctl_get_process_apertures_new_args(
        kfd_process_device_apertures_ptr=0x1000, num_of_nodes=1
    )
    with pytest.raises(TransportError) as caught:
        system.ioctl(fd, kfd.AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, wrong)
    assert caught.value.errno == errno.EFAULT
    apertures = kfd.kfd_process_device_apertures()
    wrong.kfd_process_device_apertures_ptr = ctypes.addressof(apertures)
    system.ioctl(fd, kfd.AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, wrong)
    assert apertures.gpu_id == gpu_id
    system.close(fd)
    with pytest.raises(TransportError) as caught:
        system.close(fd)
    assert caught.value.errno == errno.EBADF
    remote.close()


def test_interrupted_calls_and_forks(path: str) -> None:
    """An answer that nobody took is dropped with its descriptor; a child is another process."""
    remote = RemoteWorld(path)
    fd = remote.os.open("/dev/kfd", os.O_RDWR)
    fds = len(os.listdir("/proc/self/fd"))
    event = kfd.kfd_ioctl_create_event_args()
    remote.os.ioctl(fd, kfd.AMDKFD_IOC_CREATE_EVENT, event)
    mapping = [fd, 0x1000, 3, hostmem.MAP_SHARED, event.event_page_offset, 0]
    remote._wire.send({"number": 0, "call": "mmap", "arguments": mapping})
    assert remote.os.exists("/dev/kfd")
    assert len(os.listdir("/proc/self/fd")) == fds + 1  # the page, which the machine has made
    child = os.fork()
    if child == 0:
        try:
            remote.os.exists("/dev/kfd")
        except TransportError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    remote.close()
