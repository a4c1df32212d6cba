"""The kernel modules' device files: calls with the memory and descriptors of processes."""
