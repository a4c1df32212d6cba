"""The C interface of the Dawn library in dawn-python 0.3.0: functions, structures, enumerations.

Written by hand: no Debian package holds this header. It is that of Chromium 133.0.6940, which still
has the older names (`WGPUShaderModuleWGSLDescriptor`, callback infos ending in 2); newer libraries
have other structures under the same function names. The facts are those of the package's own
`pydawn/webgpu.py`, which was generated from the header; `tests/unit/webgpu/test_bindings.py`
compares the two. Names keep WebGPU's spelling without the prefixes `WGPU` and `wgpu`.
"""

import ctypes
from typing import Final

from gpu.autogen.nv.layout import layout, u32, u64

CHROMIUM: Final = "133.0.6940"

# Enumerations, of which only what is used here is listed.

BackendType: Final = {
    0: "undefined", 1: "null", 2: "WebGPU", 3: "D3D11", 4: "D3D12", 5: "Metal", 6: "Vulkan",
    7: "OpenGL", 8: "OpenGLES",
}  # fmt: skip
BackendType_Null: Final = 1
AdapterType: Final = {1: "discrete GPU", 2: "integrated GPU", 3: "CPU", 4: "unknown"}
AdapterType_CPU: Final = 3
PowerPreference_LowPower: Final = 1
PowerPreference_HighPerformance: Final = 2

FeatureName_TimestampQuery: Final = 3
FeatureName_ShaderF16: Final = 8
FeatureName_Subgroups: Final = 13

BufferUsage_MapRead: Final = 0x1
BufferUsage_CopySrc: Final = 0x4
BufferUsage_CopyDst: Final = 0x8
BufferUsage_Uniform: Final = 0x40
BufferUsage_Storage: Final = 0x80
BufferUsage_QueryResolve: Final = 0x200
MapMode_Read: Final = 1

BufferBindingType_Uniform: Final = 1
BufferBindingType_Storage: Final = 2
BufferBindingType_ReadOnlyStorage: Final = 3
ShaderStage_Compute: Final = 4
QueryType_Timestamp: Final = 2

TextureUsage_CopyDst: Final = 0x2
TextureUsage_TextureBinding: Final = 0x4
TextureDimension_2D: Final = 2
TextureViewDimension_2D: Final = 2
TextureFormat_RGBA32Uint: Final = 36
TextureSampleType_Uint: Final = 5
TextureAspect_All: Final = 1

CallbackMode_WaitAnyOnly: Final = 1
CallbackMode_AllowSpontaneous: Final = 3
Status_Success: Final = 1
"""The same number in WaitStatus and in the status that each callback gets."""
WaitStatus_TimedOut: Final = 2
MapAsyncStatus_Aborted: Final = 4

ErrorFilter_Validation: Final = 1
ErrorFilter_OutOfMemory: Final = 2
ErrorFilter_Internal: Final = 3
ErrorType_NoError: Final = 1
ErrorType_OutOfMemory: Final = 3
ErrorType_DeviceLost: Final = 6
ErrorType: Final = {
    1: "no error", 2: "validation", 3: "out of memory", 4: "internal", 5: "unknown",
    6: "device lost",
}  # fmt: skip
DeviceLostReason_Unknown: Final = 1
DeviceLostReason_Destroyed: Final = 2
CompilationMessageType_Error: Final = 1

SType_ShaderSourceWGSL: Final = 2
SType_AdapterPropertiesSubgroups: Final = 10
SType_DawnTogglesDescriptor: Final = 0x5000A

# Structures. Handles and pointers are addresses.


@layout
class StringView(ctypes.Structure):
    """Text by address and length in bytes."""

    data: u64
    length: u64


@layout
class ChainedStruct(ctypes.Structure):
    """The head of an extension of another structure."""

    next: u64
    sType: u32


@layout
class InstanceDescriptor(ctypes.Structure):
    """With its `features` written out."""

    nextInChain: u64
    featuresNextInChain: u64
    timedWaitAnyEnable: u32
    timedWaitAnyMaxCount: u64


@layout
class RequestAdapterOptions(ctypes.Structure):
    """Which adapter is wanted."""

    nextInChain: u64
    compatibleSurface: u64
    featureLevel: u32
    powerPreference: u32
    backendType: u32
    forceFallbackAdapter: u32
    compatibilityMode: u32


@layout
class CallbackInfo(ctypes.Structure):
    """All of the callback infos of the second kind that have a mode: one layout."""

    nextInChain: u64
    mode: u32
    callback: u64
    userdata1: u64
    userdata2: u64


@layout
class UncapturedErrorCallbackInfo(ctypes.Structure):
    """Of the second kind; has no mode, since it comes at any time."""

    nextInChain: u64
    callback: u64
    userdata1: u64
    userdata2: u64


@layout
class Future(ctypes.Structure):
    """Something that will have happened."""

    id: u64


@layout
class FutureWaitInfo(ctypes.Structure):
    """A future to wait for."""

    future: Future
    completed: u32


@layout
class AdapterInfo(ctypes.Structure):
    """What an adapter is."""

    nextInChain: u64
    vendor: StringView
    architecture: StringView
    device: StringView
    description: StringView
    backendType: u32
    adapterType: u32
    vendorID: u32
    deviceID: u32
    compatibilityMode: u32


@layout
class Limits(ctypes.Structure):
    """What an adapter or device can do at most."""

    maxTextureDimension1D: u32
    maxTextureDimension2D: u32
    maxTextureDimension3D: u32
    maxTextureArrayLayers: u32
    maxBindGroups: u32
    maxBindGroupsPlusVertexBuffers: u32
    maxBindingsPerBindGroup: u32
    maxDynamicUniformBuffersPerPipelineLayout: u32
    maxDynamicStorageBuffersPerPipelineLayout: u32
    maxSampledTexturesPerShaderStage: u32
    maxSamplersPerShaderStage: u32
    maxStorageBuffersPerShaderStage: u32
    maxStorageTexturesPerShaderStage: u32
    maxUniformBuffersPerShaderStage: u32
    maxUniformBufferBindingSize: u64
    maxStorageBufferBindingSize: u64
    minUniformBufferOffsetAlignment: u32
    minStorageBufferOffsetAlignment: u32
    maxVertexBuffers: u32
    maxBufferSize: u64
    maxVertexAttributes: u32
    maxVertexBufferArrayStride: u32
    maxInterStageShaderComponents: u32
    maxInterStageShaderVariables: u32
    maxColorAttachments: u32
    maxColorAttachmentBytesPerSample: u32
    maxComputeWorkgroupStorageSize: u32
    maxComputeInvocationsPerWorkgroup: u32
    maxComputeWorkgroupSizeX: u32
    maxComputeWorkgroupSizeY: u32
    maxComputeWorkgroupSizeZ: u32
    maxComputeWorkgroupsPerDimension: u32
    maxStorageBuffersInVertexStage: u32
    maxStorageTexturesInVertexStage: u32
    maxStorageBuffersInFragmentStage: u32
    maxStorageTexturesInFragmentStage: u32


@layout
class SupportedLimits(ctypes.Structure):
    """Limits in a chain; `RequiredLimits` is the same."""

    nextInChain: u64
    limits: Limits


@layout
class DeviceDescriptor(ctypes.Structure):
    """What a device must have. `defaultQueue` is written out."""

    nextInChain: u64
    label: StringView
    requiredFeatureCount: u64
    requiredFeatures: u64
    requiredLimits: u64
    defaultQueueNextInChain: u64
    defaultQueueLabel: StringView
    deviceLostCallbackInfo2: CallbackInfo
    uncapturedErrorCallbackInfo2: UncapturedErrorCallbackInfo


@layout
class AdapterPropertiesSubgroups(ctypes.Structure):
    """How many invocations a subgroup may have, of an adapter that has the feature."""

    chain: ChainedStruct
    subgroupMinSize: u32
    subgroupMaxSize: u32


@layout
class DawnTogglesDescriptor(ctypes.Structure):
    """Switches of Dawn's own."""

    chain: ChainedStruct
    enabledToggleCount: u64
    enabledToggles: u64
    disabledToggleCount: u64
    disabledToggles: u64


@layout
class BufferDescriptor(ctypes.Structure):
    """A buffer of `size` bytes."""

    nextInChain: u64
    label: StringView
    usage: u64
    size: u64
    mappedAtCreation: u32


@layout
class TextureDescriptor(ctypes.Structure):
    """A texture; its size is written out."""

    nextInChain: u64
    label: StringView
    usage: u64
    dimension: u32
    width: u32
    height: u32
    depthOrArrayLayers: u32
    format: u32
    mipLevelCount: u32
    sampleCount: u32
    viewFormatCount: u64
    viewFormats: u64


@layout
class ImageCopyBuffer(ctypes.Structure):
    """A buffer that is copied to a texture; its layout is written out."""

    layoutNextInChain: u64
    layoutOffset: u64
    layoutBytesPerRow: u32
    layoutRowsPerImage: u32
    buffer: u64


@layout
class ImageCopyTexture(ctypes.Structure):
    """Where in a texture; the origin is written out."""

    texture: u64
    mipLevel: u32
    originX: u32
    originY: u32
    originZ: u32
    aspect: u32


@layout
class Extent3D(ctypes.Structure):
    """Texels of a copy."""

    width: u32
    height: u32
    depthOrArrayLayers: u32


@layout
class ShaderModuleDescriptor(ctypes.Structure):
    """A shader; its source is in the chain."""

    nextInChain: u64
    label: StringView


@layout
class ShaderSourceWGSL(ctypes.Structure):
    """The source of a shader."""

    chain: ChainedStruct
    code: StringView


@layout
class ComputePipelineDescriptor(ctypes.Structure):
    """A pipeline; its `compute` stage is written out."""

    nextInChain: u64
    label: StringView
    layout: u64
    computeNextInChain: u64
    computeModule: u64
    computeEntryPoint: StringView
    computeConstantCount: u64
    computeConstants: u64


@layout
class BindGroupLayoutEntry(ctypes.Structure):
    """What is bound where: of buffer and texture one, and the rest zero."""

    nextInChain: u64
    binding: u32
    visibility: u64
    bufferNextInChain: u64
    bufferType: u32
    bufferHasDynamicOffset: u32
    bufferMinBindingSize: u64
    samplerNextInChain: u64
    samplerType: u32
    textureNextInChain: u64
    textureSampleType: u32
    textureViewDimension: u32
    textureMultisampled: u32
    storageTextureNextInChain: u64
    storageTextureAccess: u32
    storageTextureFormat: u32
    storageTextureViewDimension: u32


@layout
class BindGroupLayoutDescriptor(ctypes.Structure):
    """Entries of a bind group."""

    nextInChain: u64
    label: StringView
    entryCount: u64
    entries: u64


@layout
class PipelineLayoutDescriptor(ctypes.Structure):
    """The bind groups of a pipeline."""

    nextInChain: u64
    label: StringView
    bindGroupLayoutCount: u64
    bindGroupLayouts: u64
    immediateDataRangeByteSize: u32


@layout
class BindGroupEntry(ctypes.Structure):
    """A buffer or a texture that is bound."""

    nextInChain: u64
    binding: u32
    buffer: u64
    offset: u64
    size: u64
    sampler: u64
    textureView: u64


@layout
class BindGroupDescriptor(ctypes.Structure):
    """Buffers that are bound together."""

    nextInChain: u64
    label: StringView
    layout: u64
    entryCount: u64
    entries: u64


@layout
class ComputePassTimestampWrites(ctypes.Structure):
    """Where the times of a pass's begin and end go."""

    querySet: u64
    beginningOfPassWriteIndex: u32
    endOfPassWriteIndex: u32


@layout
class ComputePassDescriptor(ctypes.Structure):
    """A pass; `timestampWrites` may be null."""

    nextInChain: u64
    label: StringView
    timestampWrites: u64


@layout
class QuerySetDescriptor(ctypes.Structure):
    """Queries of one type."""

    nextInChain: u64
    label: StringView
    type: u32
    count: u32


@layout
class CompilationMessage(ctypes.Structure):
    """What the shader compiler says, and about which place; lines and columns count from 1."""

    nextInChain: u64
    message: StringView
    type: u32
    lineNum: u64
    linePos: u64
    offset: u64
    length: u64
    utf16LinePos: u64
    utf16Offset: u64
    utf16Length: u64


@layout
class CompilationInfo(ctypes.Structure):
    """All messages of a shader module."""

    nextInChain: u64
    messageCount: u64
    messages: u64


# Callbacks. The last two arguments of each are the two pointers given with it.

_P: Final = ctypes.c_void_p
RequestCallback: Final = ctypes.CFUNCTYPE(None, ctypes.c_uint32, _P, StringView, _P, _P)
"""Of adapters and devices: status, what was asked for, message."""
BufferMapCallback: Final = ctypes.CFUNCTYPE(None, ctypes.c_uint32, StringView, _P, _P)
PopErrorScopeCallback: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_uint32, ctypes.c_uint32, StringView, _P, _P
)
"""Status, type of the error, message."""
QueueWorkDoneCallback: Final = ctypes.CFUNCTYPE(None, ctypes.c_uint32, _P, _P)
CompilationInfoCallback: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_uint32, ctypes.POINTER(CompilationInfo), _P, _P
)
DeviceCallback: Final = ctypes.CFUNCTYPE(None, _P, ctypes.c_uint32, StringView, _P, _P)
"""Of a lost device (reason) and errors in no scope (type): pointer to the device, number, text."""

_U32, _U64, _SIZE = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t

# Name without `wgpu` -> result, arguments.
FUNCTIONS: Final[dict[str, tuple[type | None, tuple[type, ...]]]] = {
    "CreateInstance": (_P, (_P,)),
    "InstanceWaitAny": (_U32, (_P, _SIZE, _P, _U64)),
    "InstanceProcessEvents": (None, (_P,)),
    "InstanceRelease": (None, (_P,)),
    "InstanceRequestAdapter2": (Future, (_P, _P, CallbackInfo)),
    "AdapterGetInfo": (_U32, (_P, _P)),
    "AdapterInfoFreeMembers": (None, (AdapterInfo,)),
    "AdapterGetLimits": (_U32, (_P, _P)),
    "AdapterHasFeature": (_U32, (_P, _U32)),
    "AdapterRequestDevice2": (Future, (_P, _P, CallbackInfo)),
    "AdapterRelease": (None, (_P,)),
    "DeviceGetQueue": (_P, (_P,)),
    "DevicePushErrorScope": (None, (_P, _U32)),
    "DevicePopErrorScope2": (Future, (_P, CallbackInfo)),
    "DeviceForceLoss": (None, (_P, _U32, StringView)),
    "DeviceInjectError": (None, (_P, _U32, StringView)),
    "DeviceDestroy": (None, (_P,)),
    "DeviceRelease": (None, (_P,)),
    "DeviceCreateBuffer": (_P, (_P, _P)),
    "DeviceCreateTexture": (_P, (_P, _P)),
    "TextureCreateView": (_P, (_P, _P)),
    "TextureViewRelease": (None, (_P,)),
    "TextureRelease": (None, (_P,)),
    "DeviceCreateShaderModule": (_P, (_P, _P)),
    "DeviceCreateBindGroupLayout": (_P, (_P, _P)),
    "DeviceCreatePipelineLayout": (_P, (_P, _P)),
    "DeviceCreateComputePipeline": (_P, (_P, _P)),
    "DeviceCreateBindGroup": (_P, (_P, _P)),
    "DeviceCreateQuerySet": (_P, (_P, _P)),
    "DeviceCreateCommandEncoder": (_P, (_P, _P)),
    "BufferMapAsync2": (Future, (_P, _U64, _SIZE, _SIZE, CallbackInfo)),
    "BufferGetConstMappedRange": (_P, (_P, _SIZE, _SIZE)),
    "BufferUnmap": (None, (_P,)),
    "BufferRelease": (None, (_P,)),
    "ShaderModuleGetCompilationInfo2": (Future, (_P, CallbackInfo)),
    "ShaderModuleRelease": (None, (_P,)),
    "BindGroupLayoutRelease": (None, (_P,)),
    "PipelineLayoutRelease": (None, (_P,)),
    "ComputePipelineRelease": (None, (_P,)),
    "BindGroupRelease": (None, (_P,)),
    "QuerySetRelease": (None, (_P,)),
    "CommandEncoderBeginComputePass": (_P, (_P, _P)),
    "CommandEncoderCopyBufferToBuffer": (None, (_P, _P, _U64, _P, _U64, _U64)),
    "CommandEncoderCopyBufferToTexture": (None, (_P, _P, _P, _P)),
    "CommandEncoderResolveQuerySet": (None, (_P, _P, _U32, _U32, _P, _U64)),
    "CommandEncoderFinish": (_P, (_P, _P)),
    "CommandEncoderRelease": (None, (_P,)),
    "CommandBufferRelease": (None, (_P,)),
    "ComputePassEncoderSetPipeline": (None, (_P, _P)),
    "ComputePassEncoderSetBindGroup": (None, (_P, _U32, _P, _SIZE, _P)),
    "ComputePassEncoderDispatchWorkgroups": (None, (_P, _U32, _U32, _U32)),
    "ComputePassEncoderEnd": (None, (_P,)),
    "ComputePassEncoderRelease": (None, (_P,)),
    "QueueWriteBuffer": (None, (_P, _P, _U64, _P, _SIZE)),
    "QueueSubmit": (None, (_P, _SIZE, _P)),
    "QueueOnSubmittedWorkDone2": (Future, (_P, CallbackInfo)),
    "QueueRelease": (None, (_P,)),
}
