"""Linear IR printed as LLVM IR text: for CPUs, AMD's GPUs and NVIDIA's."""
