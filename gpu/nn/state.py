"""Model state: the public names of `gpu.tensor.nn.state`."""

from gpu.tensor.nn.state import (
    GgufFile,
    SafeMetadata,
    TensorInfo,
    get_parameters,
    get_state_dict,
    gguf_load,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
    tar_extract,
    torch_load,
    zip_extract,
)

__all__ = [
    "GgufFile",
    "SafeMetadata",
    "TensorInfo",
    "get_parameters",
    "get_state_dict",
    "gguf_load",
    "load_state_dict",
    "safe_load",
    "safe_load_metadata",
    "safe_save",
    "tar_extract",
    "torch_load",
    "zip_extract",
]
