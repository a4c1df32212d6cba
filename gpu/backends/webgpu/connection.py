"""A connection to an adapter: instance, adapter, device, and what went wrong on them.

Dawn tells of errors in three ways, all of which end as typed errors here: a status in a callback,
an error scope around calls, and two callbacks that come at any time, for errors in no scope and for
the loss of the device. Nothing may be raised from a callback, so these two are noted, and raised by
the next `check`.

A device of Dawn's takes calls of one thread at a time, and has one stack of error scopes for all
(docs/dawn/features/implicit_device_synchronization.md of Dawn). So whoever calls holds `lock`, and
what the garbage collector drops, at any moment in any thread, is given back by whoever calls next.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final, NamedTuple

from gpu.autogen import webgpu as api
from gpu.backends.webgpu.library import Library, text_of, view
from gpu.core.config import lent_variable
from gpu.core.errors import DeviceError, DeviceLost, OutOfMemory
from gpu.core.interrupts import put_off
from gpu.core.lifetime import tell_of_forks
from gpu.core.log import get_logger

log = get_logger(__name__)

FEATURES: Final = {
    "shader-f16": api.FeatureName_ShaderF16,
    "subgroups": api.FeatureName_Subgroups,
    "timestamp-query": api.FeatureName_TimestampQuery,
}
"""What is asked for where the adapter has it."""
_POLL: Final = 100_000_000  # nanoseconds between looks at signals, as Ctrl-C, during a wait
_NO_FOLDER: Final = "/nonexistent"
_SCOPES: Final = (
    api.ErrorFilter_Internal, api.ErrorFilter_OutOfMemory, api.ErrorFilter_Validation,
)  # fmt: skip
_FALLBACK: Final = "FALLBACK"
_PREFERENCES: Final = {
    "HIGH-PERFORMANCE": api.PowerPreference_HighPerformance,
    "LOW-POWER": api.PowerPreference_LowPower,
    _FALLBACK: 0,
}
# Times of launches in nanoseconds instead of multiples of 100 us, which browsers round them to.
_DISABLED_TOGGLES: Final = (b"timestamp_quantization",)


class Problem(NamedTuple):
    """An error that Dawn told of: its type, of `api.ErrorType`, and its text."""

    kind: int
    text: str

    def error(self, doing: str) -> DeviceError | OutOfMemory:
        """The problem as something to raise; `doing` is what failed."""
        if self.kind == api.ErrorType_OutOfMemory:
            return OutOfMemory(f"WebGPU: {doing}: out of memory: {self.text}; free tensors")
        name = api.ErrorType.get(self.kind, str(self.kind))
        return DeviceError(f"WebGPU: {doing}: {name} error: {self.text}")


class Connection:
    """An open device, its queue and its limits.

    Attributes:
        library: Dawn.
        lock: held by whoever calls Dawn.
        device: its handle.
        queue: its handle.
        name: of the adapter and its driver.
        kind: ``Vulkan on a CPU`` and the like.
        is_cpu: whether its memory is the host's.
        features: those of `FEATURES` that the device has.
        subgroup: invocations of a subgroup, 0 where they may be more or fewer from one to another.
        limits: those of the device, which are the adapter's.
        lost: why the device was lost; empty as long as it was not.
    """

    def __init__(self, library: Library, preference: str):
        """Opens what `preference`, of the setting WEBGPU_ADAPTER, asks for. Raises DeviceError."""
        self.library = library
        self.lost = ""
        self.lock = RLock()
        self._dropped: deque[tuple[Callable[[int], None], int]] = deque()
        tell_of_forks(self)
        self._problems: list[Problem] = []
        self._keep: list[Any] = []
        description = api.InstanceDescriptor(timedWaitAnyEnable=1)
        self.instance: int = library.CreateInstance(ctypes.byref(description))
        if not self.instance:
            raise DeviceError(f"WebGPU: {library.path} makes no instance")
        # Vulkan's loader looks for a display and complains on stderr where this is unset.
        with lent_variable("XDG_RUNTIME_DIR", _NO_FOLDER):
            self.adapter = self._request_adapter(preference)
        self.name, self.kind, self.is_cpu = self._about()
        self.features = frozenset(
            name
            for name, number in FEATURES.items()
            if library.AdapterHasFeature(self.adapter, number)
        )
        self.subgroup = self._subgroup() if "subgroups" in self.features else 0
        self._supported = api.SupportedLimits()
        library.AdapterGetLimits(self.adapter, ctypes.byref(self._supported))
        self.limits: api.Limits = self._supported.limits
        self.device = self._request_device()
        self.queue: int = library.DeviceGetQueue(self.device)
        log.info("WebGPU: %s, %s, with %s", self.name, self.kind, ", ".join(sorted(self.features)))

    def _request_adapter(self, preference: str) -> int:
        options = api.RequestAdapterOptions(
            powerPreference=_PREFERENCES[preference],
            forceFallbackAdapter=preference == _FALLBACK,
        )
        got, why = self._request(self.library.InstanceRequestAdapter2, self.instance, options)
        if not got and preference == _FALLBACK:
            got, why = self._adapter_in_software()
        if got and self._info(got).backendType == api.BackendType_Null:
            got, why = 0, "only Dawn's null backend, which computes nothing"
        if not got:
            raise DeviceError(
                f"WebGPU finds no {preference.lower()} adapter ({why or 'no reason given'});"
                " install a Vulkan driver, on Debian the packages libvulkan1 and"
                " mesa-vulkan-drivers (which has one that runs on the CPU), or choose another with"
                " WEBGPU_ADAPTER; where VK_ICD_FILENAMES is set it must name a driver that exists"
            )
        return got

    def _adapter_in_software(self) -> tuple[int, str]:
        """The adapter there is, if that is a CPU; and why there is none.

        As a fallback Dawn gives only the SwiftShader that it was built with, which dawn-python's
        was not.
        """
        options = api.RequestAdapterOptions()
        got, why = self._request(self.library.InstanceRequestAdapter2, self.instance, options)
        if not got or self._info(got).adapterType == api.AdapterType_CPU:
            return got, why
        return 0, "name the driver of one that is a CPU in VK_ICD_FILENAMES; the one found is none"

    def _info(self, adapter: int) -> api.AdapterInfo:
        """What an adapter is; the texts in it are gone."""
        info = api.AdapterInfo()
        self.library.AdapterGetInfo(adapter, ctypes.byref(info))
        self.library.AdapterInfoFreeMembers(info)
        return info

    def _request_device(self) -> int:
        wanted = [FEATURES[name] for name in sorted(self.features)]
        numbers = (ctypes.c_uint32 * len(wanted))(*wanted)
        toggles = (ctypes.c_char_p * len(_DISABLED_TOGGLES))(*_DISABLED_TOGGLES)
        switches = api.DawnTogglesDescriptor(
            chain=api.ChainedStruct(0, api.SType_DawnTogglesDescriptor),
            disabledToggleCount=len(_DISABLED_TOGGLES),
            disabledToggles=ctypes.addressof(toggles),
        )
        lost, error = api.DeviceCallback(self._on_lost), api.DeviceCallback(self._on_error)
        self._keep += [lost, error]
        description = api.DeviceDescriptor(
            nextInChain=ctypes.addressof(switches),
            requiredFeatureCount=len(wanted),
            requiredFeatures=ctypes.addressof(numbers),
            requiredLimits=ctypes.addressof(self._supported),
            deviceLostCallbackInfo2=api.CallbackInfo(
                0, api.CallbackMode_AllowSpontaneous, _address(lost)
            ),
            uncapturedErrorCallbackInfo2=api.UncapturedErrorCallbackInfo(0, _address(error)),
        )
        got, why = self._request(self.library.AdapterRequestDevice2, self.adapter, description)
        if not got:
            raise DeviceError(f"WebGPU: {self.name} gives no device: {why}")
        return got

    def _request(
        self, function: Callable[..., api.Future], parent: int, options: ctypes.Structure
    ) -> tuple[int, str]:
        """What an asynchronous request gave, 0 if nothing, and why."""
        answer: list[tuple[int, str]] = []

        def done(status: int, got: int | None, why: api.StringView, *_: object) -> None:
            answer.append((got or 0 if status == api.Status_Success else 0, text_of(why)))

        callback = api.RequestCallback(done)
        self.wait(function(parent, ctypes.byref(options), info_for(callback)))
        return answer[0]

    def _about(self) -> tuple[str, str, bool]:
        info = api.AdapterInfo()
        self.library.AdapterGetInfo(self.adapter, ctypes.byref(info))
        name = f"{text_of(info.device)} ({text_of(info.description)})"
        kind = api.AdapterType.get(info.adapterType, "unknown")
        backend = api.BackendType.get(info.backendType, "unknown")
        self.library.AdapterInfoFreeMembers(info)
        return name, f"{backend} on a {kind}", kind == "CPU"

    def _subgroup(self) -> int:
        sizes = api.AdapterPropertiesSubgroups(
            chain=api.ChainedStruct(0, api.SType_AdapterPropertiesSubgroups)
        )
        info = api.AdapterInfo(nextInChain=ctypes.addressof(sizes))
        self.library.AdapterGetInfo(self.adapter, ctypes.byref(info))
        self.library.AdapterInfoFreeMembers(info)
        least, most = sizes.subgroupMinSize, sizes.subgroupMaxSize
        return least if least == most else 0

    # What goes wrong.

    def _on_lost(self, _: int, reason: int, text: api.StringView, *__: object) -> None:
        if reason != api.DeviceLostReason_Destroyed:
            self.lost = _brief(text) or f"reason {reason}"

    def _on_error(self, _: int, kind: int, text: api.StringView, *__: object) -> None:
        self._problems.append(Problem(kind, _brief(text)))

    def check(self, doing: str) -> None:
        """Raises what has gone wrong since the last check.

        DeviceLost, OutOfMemory or DeviceError, which name what was being done.
        """
        self._note_losses(self._problems)
        if self.lost:
            raise DeviceLost(
                f"WebGPU: {doing}: the device was lost: {self.lost}; what was in its memory is"
                " gone. The next use opens it again: make tensors on it anew"
            )
        if self._problems:
            problem, self._problems = self._problems[0], []
            raise problem.error(doing)

    def _note_losses(self, problems: list[Problem]) -> None:
        """Errors of calls may tell of the loss of the device before the callback for that does."""
        for problem in problems:
            if problem.kind == api.ErrorType_DeviceLost and not self.lost:
                self.lost = problem.text

    # Handles that nobody needs any more.

    def drop(self, release: Callable[[int], None], handle: int) -> None:
        """Has a handle given back by `release`, soon; may be called at any moment."""
        self._dropped.append((release, handle))

    def give_back(self) -> None:
        """Gives back what was dropped. What was lost took its handles along."""
        with self.lock:
            while self._dropped:
                release, handle = self._dropped.popleft()
                if not self.lost:
                    release(handle)

    # Error scopes.

    @contextmanager
    def scope(self, doing: str) -> Iterator[None]:
        """Raises what goes wrong in the calls within: OutOfMemory, DeviceError or DeviceLost."""
        with self.lock, put_off():  # a scope that stays would swallow the errors of others
            self.give_back()
            for kind in _SCOPES:
                self.library.DevicePushErrorScope(self.device, kind)
            try:
                yield
            finally:
                problems = [problem for _ in _SCOPES if (problem := self._pop_scope())]
            self._note_losses(problems)
            self.check(doing)
            if problems:
                raise problems[0].error(doing)

    def _pop_scope(self) -> Problem | None:
        found: list[Problem] = []

        def done(status: int, kind: int, text: api.StringView, *_: object) -> None:
            if status == api.Status_Success and kind != api.ErrorType_NoError:
                found.append(Problem(kind, _brief(text)))

        callback = api.PopErrorScopeCallback(done)
        self.wait(self.library.DevicePopErrorScope2(self.device, info_for(callback)))
        return found[0] if found else None

    # Waiting.

    def wait(self, future: api.Future) -> None:
        """Waits until a future has happened and its callback has run. Raises DeviceError.

        Whoever waits holds `lock`, except while nobody else knows the connection.
        """
        info = api.FutureWaitInfo(future)
        status = api.WaitStatus_TimedOut
        while status == api.WaitStatus_TimedOut:
            with put_off():  # an exception in a callback is lost, and with it what that was told
                status = self.library.InstanceWaitAny(self.instance, 1, ctypes.byref(info), _POLL)
        if status != api.Status_Success:
            raise DeviceError(f"WebGPU: waiting failed with status {status}")

    def finish(self) -> None:
        """Waits until everything submitted is done. Raises as `check` does."""
        callback = api.QueueWorkDoneCallback(lambda *_: None)
        self.wait(self.library.QueueOnSubmittedWorkDone2(self.queue, info_for(callback)))
        self.check("waiting for kernels")

    def forked(self) -> None:
        """Loses the device: the threads that run Dawn's commands do not exist in a forked child."""
        self.lost = "this process was forked after the device was opened"

    def lose(self, why: bytes) -> None:
        """Makes the device lost, as a crashed driver would; for tests."""
        self.library.DeviceForceLoss(self.device, api.DeviceLostReason_Unknown, view(why))
        self.library.InstanceProcessEvents(self.instance)


def info_for(callback: Any) -> api.CallbackInfo:
    """A callback that is called by the wait for its future."""
    return api.CallbackInfo(0, api.CallbackMode_WaitAnyOnly, _address(callback))


def _address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


def _brief(text: api.StringView) -> str:
    """What Dawn says without its account of where in Dawn that was."""
    lines = text_of(text).splitlines()
    told = [line.strip() for line in lines if not line.lstrip().startswith(("at ", "- While"))]
    return " ".join(filter(None, told))
