"""Machine code of kernels: cubins, what they say of themselves, and images in memory."""
