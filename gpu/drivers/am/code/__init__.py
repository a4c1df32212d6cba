"""Code objects: kernels, their descriptors and metadata."""
