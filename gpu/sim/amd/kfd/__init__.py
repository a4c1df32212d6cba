"""The kernel driver before the chip: KFD and amdgpu of Linux 6.12, calls, memory and events."""
