"""The CUDA device: NVIDIA GPUs through libcuda, the vendor's own driver library."""
