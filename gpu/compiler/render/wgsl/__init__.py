"""Linear IR printed as WGSL, for WebGPU."""
