# Made by `python -m tools.autogen.metal` from PyPI package mlx-metal 0.32.4: do not edit.
#   mlx/include/metal_cpp/{Foundation,Metal}/*.hpp
#     sha256 f41e06d53aced5729701c7de437c8e89ad16c26c1693a82f20ac120a1ba7f39e
# metal-cpp is under the Apache licence 2.0, copyright Apple Inc.; here are types and numbers alone.
"""Metal: types of methods by selector, and numbers of enumerations."""

from __future__ import annotations

PACKAGE: str = "mlx-metal"
VERSION: str = "0.32.4"

# selector -> (what it gives, what it takes)
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "GPUEndTime": ("double", ()), "GPUStartTime": ("double", ()),
    "UTF8String": ("char const *", ()), "alloc": ("void *", ()),
    "blitCommandEncoder": ("void *", ()), "code": ("NSInteger", ()),
    "commandBuffer": ("void *", ()), "commit": ("void", ()),
    "computeCommandEncoder": ("void *", ()),
    "concurrentDispatchThreadgroups:threadsPerThreadgroup:": ("void", ("MTLSize", "MTLSize")),
    "contents": ("void *", ()),
    "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:": ("void", ("void *", "NSUInteger", "void *", "NSUInteger", "NSUInteger")),
    "count": ("NSUInteger", ()), "device": ("void *", ()),
    "dispatchThreadgroups:threadsPerThreadgroup:": ("void", ("MTLSize", "MTLSize")),
    "domain": ("void *", ()), "endEncoding": ("void", ()), "error": ("void *", ()),
    "executeCommandsInBuffer:withRange:": ("void", ("void *", "NSRange")),
    "indirectComputeCommandAtIndex:": ("void *", ("NSUInteger",)), "init": ("void *", ()),
    "length": ("NSUInteger", ()), "localizedDescription": ("void *", ()),
    "maxBufferLength": ("NSUInteger", ()), "maxTotalThreadsPerThreadgroup": ("NSUInteger", ()),
    "name": ("void *", ()),
    "newBufferWithBytesNoCopy:length:options:deallocator:": ("void *", ("void *", "NSUInteger", "NSUInteger", "void *")),
    "newBufferWithLength:options:": ("void *", ("NSUInteger", "NSUInteger")),
    "newCommandQueue": ("void *", ()),
    "newComputePipelineStateWithDescriptor:options:reflection:error:": ("void *", ("void *", "NSUInteger", "void *", "void *")),
    "newComputePipelineStateWithFunction:error:": ("void *", ("void *", "void *")),
    "newFunctionWithName:": ("void *", ("void *",)),
    "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:": ("void *", ("void *", "NSUInteger", "NSUInteger")),
    "newLibraryWithSource:options:error:": ("void *", ("void *", "void *", "void *")),
    "objectAtIndex:": ("void *", ("NSUInteger",)), "recommendedMaxWorkingSetSize": ("uint64_t", ()),
    "registryID": ("uint64_t", ()), "respondsToSelector:": ("bool", ("void *",)),
    "setBarrier": ("void", ()),
    "setBuffers:offsets:withRange:": ("void", ("void *", "void *", "NSRange")),
    "setBytes:length:atIndex:": ("void", ("void *", "NSUInteger", "NSUInteger")),
    "setCommandTypes:": ("void", ("NSUInteger",)), "setComputeFunction:": ("void", ("void *",)),
    "setComputePipelineState:": ("void", ("void *",)), "setFastMathEnabled:": ("void", ("bool",)),
    "setInheritBuffers:": ("void", ("bool",)), "setInheritPipelineState:": ("void", ("bool",)),
    "setKernelBuffer:offset:atIndex:": ("void", ("void *", "NSUInteger", "NSUInteger")),
    "setMathFloatingPointFunctions:": ("void", ("NSInteger",)),
    "setMathMode:": ("void", ("NSInteger",)),
    "setMaxKernelBufferBindCount:": ("void", ("NSUInteger",)),
    "setSupportIndirectCommandBuffers:": ("void", ("bool",)), "status": ("NSUInteger", ()),
    "storageMode": ("NSUInteger", ()), "supportsFamily:": ("bool", ("NSInteger",)),
    "threadExecutionWidth": ("NSUInteger", ()),
    "useResources:count:usage:": ("void", ("void *", "NSUInteger", "NSUInteger")),
    "waitUntilCompleted": ("void", ()),
}

MTLCommandBufferErrorNone: int = 0
MTLCommandBufferErrorInternal: int = 1
MTLCommandBufferErrorTimeout: int = 2
MTLCommandBufferErrorPageFault: int = 3
MTLCommandBufferErrorBlacklisted: int = 4
MTLCommandBufferErrorAccessRevoked: int = 4
MTLCommandBufferErrorNotPermitted: int = 7
MTLCommandBufferErrorOutOfMemory: int = 8
MTLCommandBufferErrorInvalidResource: int = 9
MTLCommandBufferErrorMemoryless: int = 10
MTLCommandBufferErrorDeviceRemoved: int = 11
MTLCommandBufferErrorStackOverflow: int = 12
MTLCommandBufferStatusNotEnqueued: int = 0
MTLCommandBufferStatusEnqueued: int = 1
MTLCommandBufferStatusCommitted: int = 2
MTLCommandBufferStatusScheduled: int = 3
MTLCommandBufferStatusCompleted: int = 4
MTLCommandBufferStatusError: int = 5
MTLGPUFamilyApple1: int = 1001
MTLGPUFamilyApple2: int = 1002
MTLGPUFamilyApple3: int = 1003
MTLGPUFamilyApple4: int = 1004
MTLGPUFamilyApple5: int = 1005
MTLGPUFamilyApple6: int = 1006
MTLGPUFamilyApple7: int = 1007
MTLGPUFamilyApple8: int = 1008
MTLGPUFamilyApple9: int = 1009
MTLGPUFamilyApple10: int = 1010
MTLGPUFamilyMac1: int = 2001
MTLGPUFamilyMac2: int = 2002
MTLGPUFamilyMacCatalyst1: int = 4001
MTLGPUFamilyMacCatalyst2: int = 4002
MTLMathFloatingPointFunctionsFast: int = 0
MTLMathFloatingPointFunctionsPrecise: int = 1
MTLIndirectCommandTypeConcurrentDispatch: int = 1 << 5
MTLMathModeSafe: int = 0
MTLMathModeRelaxed: int = 1
MTLMathModeFast: int = 2
MTLResourceStorageModeShared: int = 0
MTLResourceUsageRead: int = 1
MTLResourceUsageWrite: int = 1 << 1
MTLStorageModeShared: int = 0
