"""The CPU as a device: LLVM in process, machine code in executable memory."""
