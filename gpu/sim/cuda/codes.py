"""Results of the driver API: numbers and names of CUresult in cuda.h 13.5, and their texts.

The texts are those that cuGetErrorString is known to give; where none is known it is the name in
words.
"""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
NO_DEVICE: Final = 100
INVALID_DEVICE: Final = 101
INVALID_IMAGE: Final = 200
INVALID_CONTEXT: Final = 201
MAP_FAILED: Final = 205
NO_BINARY_FOR_GPU: Final = 209
UNSUPPORTED_LIMIT: Final = 215
PEER_ACCESS_UNSUPPORTED: Final = 217
INVALID_PTX: Final = 218
UNSUPPORTED_PTX_VERSION: Final = 222
FILE_NOT_FOUND: Final = 301
INVALID_HANDLE: Final = 400
NOT_FOUND: Final = 500
NOT_READY: Final = 600
ILLEGAL_ADDRESS: Final = 700
LAUNCH_OUT_OF_RESOURCES: Final = 701
LAUNCH_TIMEOUT: Final = 702
PEER_ACCESS_ALREADY_ENABLED: Final = 704
PEER_ACCESS_NOT_ENABLED: Final = 705
PRIMARY_CONTEXT_ACTIVE: Final = 708
CONTEXT_IS_DESTROYED: Final = 709
HOST_MEMORY_ALREADY_REGISTERED: Final = 712
HOST_MEMORY_NOT_REGISTERED: Final = 713
MISALIGNED_ADDRESS: Final = 716
INVALID_ADDRESS_SPACE: Final = 717
LAUNCH_FAILED: Final = 719
COOPERATIVE_LAUNCH_TOO_LARGE: Final = 720
NOT_PERMITTED: Final = 800
NOT_SUPPORTED: Final = 801
GRAPH_EXEC_UPDATE_FAILURE: Final = 910
UNKNOWN: Final = 999

_TABLE: Final = """
0 SUCCESS: no error
1 INVALID_VALUE: invalid argument
2 OUT_OF_MEMORY: out of memory
3 NOT_INITIALIZED: initialization error
4 DEINITIALIZED: driver shutting down
5 PROFILER_DISABLED: profiler disabled while using external profiling tool
6 PROFILER_NOT_INITIALIZED
7 PROFILER_ALREADY_STARTED
8 PROFILER_ALREADY_STOPPED
34 STUB_LIBRARY: CUDA driver is a stub library
36 CALL_REQUIRES_NEWER_DRIVER
46 DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable
47 MULTICAST_RESOURCE_FULL
100 NO_DEVICE: no CUDA-capable device is detected
101 INVALID_DEVICE: invalid device ordinal
102 DEVICE_NOT_LICENSED
200 INVALID_IMAGE: device kernel image is invalid
201 INVALID_CONTEXT: invalid device context
202 CONTEXT_ALREADY_CURRENT
205 MAP_FAILED: mapping of buffer object failed
206 UNMAP_FAILED: unmapping of buffer object failed
207 ARRAY_IS_MAPPED
208 ALREADY_MAPPED
209 NO_BINARY_FOR_GPU: no kernel image is available for execution on the device
210 ALREADY_ACQUIRED
211 NOT_MAPPED
212 NOT_MAPPED_AS_ARRAY
213 NOT_MAPPED_AS_POINTER
214 ECC_UNCORRECTABLE: uncorrectable ECC error encountered
215 UNSUPPORTED_LIMIT: limit is not supported on this architecture
216 CONTEXT_ALREADY_IN_USE: exclusive-thread device already in use by a different thread
217 PEER_ACCESS_UNSUPPORTED: peer access is not supported between these two devices
218 INVALID_PTX: a PTX JIT compilation failed
219 INVALID_GRAPHICS_CONTEXT: invalid OpenGL or DirectX context
220 NVLINK_UNCORRECTABLE
221 JIT_COMPILER_NOT_FOUND: PTX JIT compiler library not found
222 UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported toolchain.
223 JIT_COMPILATION_DISABLED: PTX JIT compilation was disabled
224 UNSUPPORTED_EXEC_AFFINITY
225 UNSUPPORTED_DEVSIDE_SYNC
226 CONTAINED
227 INSUFFICIENT_LOADER_VERSION
300 INVALID_SOURCE: device kernel image is invalid
301 FILE_NOT_FOUND: file not found
302 SHARED_OBJECT_SYMBOL_NOT_FOUND: shared object symbol not found
303 SHARED_OBJECT_INIT_FAILED: shared object initialization failed
304 OPERATING_SYSTEM: OS call failed or operation not supported on this OS
400 INVALID_HANDLE: invalid resource handle
401 ILLEGAL_STATE: the operation cannot be performed in the present state
402 LOSSY_QUERY
500 NOT_FOUND: named symbol not found
600 NOT_READY: device not ready
700 ILLEGAL_ADDRESS: an illegal memory access was encountered
701 LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch
702 LAUNCH_TIMEOUT: the launch timed out and was terminated
703 LAUNCH_INCOMPATIBLE_TEXTURING
704 PEER_ACCESS_ALREADY_ENABLED: peer access is already enabled
705 PEER_ACCESS_NOT_ENABLED: peer access has not been enabled
708 PRIMARY_CONTEXT_ACTIVE: cannot set while device is active in this process
709 CONTEXT_IS_DESTROYED: context is destroyed
710 ASSERT: device-side assert triggered
711 TOO_MANY_PEERS: peer mapping resources exhausted
712 HOST_MEMORY_ALREADY_REGISTERED: part or all of the requested memory range is already mapped
713 HOST_MEMORY_NOT_REGISTERED: pointer does not correspond to a registered memory region
714 HARDWARE_STACK_ERROR: hardware stack error
715 ILLEGAL_INSTRUCTION: an illegal instruction was encountered
716 MISALIGNED_ADDRESS: misaligned address
717 INVALID_ADDRESS_SPACE: operation not supported on global/shared address space
718 INVALID_PC: invalid program counter
719 LAUNCH_FAILED: unspecified launch failure
720 COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in cooperative launch
721 TENSOR_MEMORY_LEAK
800 NOT_PERMITTED: operation not permitted
801 NOT_SUPPORTED: operation not supported
802 SYSTEM_NOT_READY: system not yet initialized
803 SYSTEM_DRIVER_MISMATCH: system has unsupported display driver / cuda driver combination
804 COMPAT_NOT_SUPPORTED_ON_DEVICE: forward compatibility was attempted on non supported HW
805 MPS_CONNECTION_FAILED
806 MPS_RPC_FAILURE
807 MPS_SERVER_NOT_READY
808 MPS_MAX_CLIENTS_REACHED
809 MPS_MAX_CONNECTIONS_REACHED
810 MPS_CLIENT_TERMINATED
811 CDP_NOT_SUPPORTED
812 CDP_VERSION_MISMATCH
900 STREAM_CAPTURE_UNSUPPORTED: operation not permitted when stream is capturing
901 STREAM_CAPTURE_INVALIDATED: operation failed due to a previous error during capture
902 STREAM_CAPTURE_MERGE: operation would result in a merge of separate capture sequences
903 STREAM_CAPTURE_UNMATCHED: capture was not ended in the same stream as it began
904 STREAM_CAPTURE_UNJOINED: capturing stream has unjoined work
905 STREAM_CAPTURE_ISOLATION: dependency created on uncaptured work in another stream
906 STREAM_CAPTURE_IMPLICIT: operation would make the legacy stream depend on a capturing blocking stream
907 CAPTURED_EVENT: operation not permitted on an event last recorded in a capturing stream
908 STREAM_CAPTURE_WRONG_THREAD
909 TIMEOUT
910 GRAPH_EXEC_UPDATE_FAILURE: the graph update was not performed because it included changes which violated constraints specific to instantiated graph update
911 EXTERNAL_DEVICE
912 INVALID_CLUSTER_SIZE
913 FUNCTION_NOT_LOADED
914 INVALID_RESOURCE_TYPE
915 INVALID_RESOURCE_CONFIGURATION
916 KEY_ROTATION
917 STREAM_DETACHED
918 GRAPH_RECAPTURE_FAILURE
919 FABRIC_NOT_READY
999 UNKNOWN: unknown error
"""  # noqa: E501


def _read(line: str) -> tuple[int, tuple[str, str]]:
    head, _, text = line.partition(": ")
    number, _, name = head.partition(" ")
    full = f"CUDA_{name}" if name == "SUCCESS" else f"CUDA_ERROR_{name}"
    return int(number), (full, text or name.replace("_", " ").lower())


RESULTS: Final = dict(map(_read, _TABLE.strip().splitlines()))
"""Code -> (name, text)."""


class CudaError(Exception):
    """A call's result that is not success.

    Attributes:
        code: of `RESULTS`.
    """

    def __init__(self, code: int, why: str):
        super().__init__(f"{RESULTS[code][0]}: {why}")
        self.code = code
