"""The WEBGPU device: Dawn's C library, WGSL, whatever adapter it finds."""
